"""News for open pages, by server-sent events.

One task looks at the run folders for everybody, and only while somebody is looking: a `stat` a run, and a read of the new lines where a
file has grown. What it finds is turned into messages once, however many pages are open.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from nanolens.present.dashboard.series import Wanted, tail_of
from nanolens.present.dashboard.shelf import Shelf

TICK_S = 0.5
SLOWEST_TICK_S = 1.5  # a new step is on the page within two seconds
COST_FRAC = 0.02  # of one core, for looking; where a look is expensive, there are fewer of them
PING_S = 15.0
RESTARTS = ("resume", "attempt", "rollback")


class Hub:
    def __init__(self, shelf: Shelf):
        self.shelf = shelf
        self._waiting: set[asyncio.Queue[set[str]]] = set()
        self._tails: dict[tuple, Any] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            started_at_s = time.monotonic()
            try:
                if self._waiting and await self._look():
                    continue
            except Exception:  # one run that cannot be read must not end the news of all others; the terminal tells of it
                traceback.print_exc()
                await asyncio.sleep(SLOWEST_TICK_S)
            spent_s = time.monotonic() - started_at_s
            await asyncio.sleep(min(SLOWEST_TICK_S, max(TICK_S, spent_s / COST_FRAC)))

    async def _look(self) -> bool:
        """Whether there is more to catch up with at once."""
        self._tails.clear()
        self._tell(await asyncio.to_thread(self.shelf.news))
        caught_up = await asyncio.to_thread(self.shelf.catch_up)
        self._tell(set() if caught_up is None else {caught_up})
        return caught_up is not None

    def _tell(self, changed: set[str]) -> None:
        if changed:
            for queue in self._waiting:
                queue.put_nowait(changed)

    async def stream(self, watched: dict[str, int], wanted: Wanted) -> AsyncIterator[bytes]:
        """`watched`: the last step that the page already has of each run that it shows."""
        queue: asyncio.Queue[set[str]] = asyncio.Queue()
        self._waiting.add(queue)
        restarts: dict[str, int] = {}
        try:
            yield b": nanolens\n\n"
            changed = set(watched)  # what happened between the page's first look and now
            while True:
                for name in sorted(changed):
                    with contextlib.suppress(KeyError):  # a folder that has been removed
                        for message in await asyncio.to_thread(self._messages, name, watched, restarts, wanted):
                            yield message
                changed = set()
                try:
                    changed |= await asyncio.wait_for(queue.get(), PING_S)
                    while not queue.empty():
                        changed |= queue.get_nowait()
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            self._waiting.discard(queue)

    def _messages(self, name: str, watched: dict[str, int], restarts: dict[str, int], wanted: Wanted) -> list[bytes]:
        messages = [_message("row", {"id": name, "row": self.shelf.row(name)})]
        if name not in watched:
            return messages
        columns = self.shelf.columns(name)
        count = sum(mark.kind in RESTARTS for mark in columns.run.marks)
        is_new_attempt = restarts.setdefault(name, count) != count
        restarts[name] = count
        key = (name, wanted, watched[name], len(columns))
        if key not in self._tails:
            self._tails[key] = None if is_new_attempt else tail_of(columns, wanted, watched[name])
        tail = self._tails[key]
        watched[name] = int(columns.step[-1]) if len(columns) else 0
        return [*messages, _message("tail", {"id": name, "tail": tail})]


def _message(kind: str, value: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(value) + b"\n\n"
