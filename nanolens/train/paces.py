"""How long each rank took, collected between two evaluations: medians say who is slow, single updates only that something happened."""

from __future__ import annotations

from statistics import median

from nanolens.record.events import RanksPaced
from nanolens.training.distributed.ranks import Pace


class Paces:
    def __init__(self) -> None:
        self._took: list[float] = []
        self._busy: list[list[float]] = []
        self._comm: list[list[float]] = []

    def add(self, took_s: float, pace: Pace) -> None:
        if pace.busy_s is not None and pace.comm_s is not None:
            self._took.append(took_s)
            self._busy.append(pace.busy_s)
            self._comm.append(pace.comm_s)

    def take(self, step: int, hosts: list[str]) -> RanksPaced | None:
        """The medians since the last call; None where there is nothing to tell."""
        if not self._took:
            return None
        told = RanksPaced(
            step=step, updates=len(self._took), took_s=median(self._took), hosts=hosts,
            rank_busy_s=[median(column) for column in zip(*self._busy, strict=True)],
            rank_slowest=[sum(row.index(max(row)) == rank for row in self._busy) for rank in range(len(self._busy[0]))],
            rank_comm_s=[median(column) for column in zip(*self._comm, strict=True)],
        )  # fmt: skip
        for kept in (self._took, self._busy, self._comm):
            kept.clear()
        return told
