"""A run of several processes: the first one has the folder, the record and the terminal; the others only train."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanolens.api.origins import initial_weights
from nanolens.api.training import Ended, Job, _remove_if_empty, _train, settle_folder
from nanolens.message import msg
from nanolens.record.progress import Progress, about_run
from nanolens.record.store import choose_folder
from nanolens.training.distributed.ranks import Ranks

if TYPE_CHECKING:
    from nanolens.session.listeners import Listener


def run_together(
    job: Job, ranks: Ranks, views: Callable[[Progress, Path], Iterable[Listener]], on_preparing: Callable[[Any], None] | None
) -> Ended:
    from nanolens.data.store import open_dataset

    config = job.settings.config
    ranks.first_does(lambda: choose_folder(config, job.name))
    ranks.first_does(lambda: ranks.share(config))  # an update that cannot be divided is told before a corpus is prepared for it
    dataset = ranks.each_does(lambda: open_dataset(config.dataset, on_preparing if ranks.local_rank == 0 else None))
    ranks.require_equal(msg("the dataset"), f"{dataset.fingerprint} {dataset.tokenizer_fingerprint} {len(dataset.train)}")
    folder = ranks.first_does(lambda: settle_folder(job))
    if ranks.is_first:
        try:
            return _train(job, dataset, folder, views, ranks=ranks)
        finally:
            _remove_if_empty(folder)
    from nanolens.training.loop import train

    config, initial = initial_weights(config, dataset)
    outcome = train(config, dataset, folder, lambda event: None, initial=initial, ranks=ranks)
    return Ended(folder, outcome, Progress(about_run(folder.name, {})))
