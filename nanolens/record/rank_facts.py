"""What the record says of a run's ranks, as facts of the run: medians over all updates that were told."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from nanolens.record import events as e
from nanolens.record.run import Known


def rank_facts(told: Iterable[object]) -> dict[str, Known]:
    """`told`: the events of the record that are no steps. Of several attempts with other numbers of ranks, the last one's."""
    paces = [event for event in told if isinstance(event, e.RanksPaced) and event.rank_busy_s]
    if not paces:
        return {}
    size = len(paces[-1].rank_busy_s)
    paces = [pace for pace in paces if len(pace.rank_busy_s) == size and pace.attempt == paces[-1].attempt]
    weights = np.array([pace.updates for pace in paces], dtype=float)
    busy = np.average([pace.rank_busy_s for pace in paces], axis=0, weights=weights)
    comm = np.average([pace.rank_comm_s for pace in paces], axis=0, weights=weights)
    slowest = np.sum([pace.rank_slowest or [0] * size for pace in paces], axis=0)
    took = float(np.average([pace.took_s for pace in paces], weights=weights))
    facts = {
        "rank_busy_s": tuple(float(value) for value in busy), "rank_comm_s": tuple(float(value) for value in comm), "rank_took_s": took,
        "rank_slowest": tuple(int(value) for value in slowest), "rank_updates": int(weights.sum()), "rank_hosts": tuple(paces[-1].hosts),
    }  # fmt: skip
    return {name: Known(value, "recorded", "events.jsonl: ranks_paced") for name, value in facts.items()}
