"""Where the time goes: every second of a run belongs to exactly one part of `events.PARTS`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from nanolens.record.events import PARTS


class Clock:
    """Always in one part, `other` at first. A part inside another takes its seconds away from the outer one."""

    def __init__(self) -> None:
        self.started_at_s = self._since_s = time.perf_counter()
        self._part = "other"
        self._spent = dict.fromkeys(PARTS, 0.0)

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        before = self._part
        self._turn_to(name)
        try:
            yield
        finally:
            self._turn_to(before)

    @property
    def wall_s(self) -> float:
        return time.perf_counter() - self.started_at_s

    def spent_s(self, part: str) -> float:
        """Seconds of a part that was left again."""
        return self._spent[part]

    def parts(self) -> dict[str, float]:
        self._turn_to(self._part)
        return dict(self._spent)

    def _turn_to(self, part: str) -> None:
        now_s = time.perf_counter()
        self._spent[self._part] += now_s - self._since_s
        self._since_s, self._part = now_s, part
