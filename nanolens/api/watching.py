"""A run seen from outside: everything comes from its folder, so any terminal may watch, and the training never knows."""

from __future__ import annotations

import time
from pathlib import Path

from nanolens.api.training import about_folder
from nanolens.record import events as e
from nanolens.record.progress import Progress
from nanolens.record.read import events_since
from nanolens.record.write import living_process

SILENT_AFTER_S = 60.0  # without an event for so long, and ten times longer than a step takes, a run is shown as silent
PROCESS_LOOKED_AT_EVERY_S = 2.0


class Watching:
    """A Progress that is brought up to date from the run folder whenever it is asked."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.progress = Progress(about_folder(folder), learn=lambda: about_folder(folder))
        self._offset = 0
        self._looked_at_s = -PROCESS_LOOKED_AT_EVERY_S
        self._is_alive = True

    def catch_up(self) -> list[e.Event]:
        """The events since the last call, already taken into `progress`."""
        fresh, self._offset = events_since(self.folder, self._offset)
        for event in fresh:
            self.progress.take(event)
        return fresh

    def state(self) -> str:
        """What a look at the process adds to what the record says: `gone` without a word, or `silent`."""
        it = self.progress
        if it.state not in ("starting", "running"):
            return it.state
        if not self._lives():
            return "gone"
        patience_s = max(SILENT_AFTER_S, 10 * it.update_s if it.recent else 0.0)
        return "silent" if time.time() - it.last_at_s > patience_s else it.state

    @property
    def is_over(self) -> bool:
        return self.state() in ("finished", "stopped", "failed", "gone")

    def _lives(self) -> bool:
        now_s = time.monotonic()
        if now_s - self._looked_at_s >= PROCESS_LOOKED_AT_EVERY_S:
            self._looked_at_s = now_s
            self._is_alive = living_process(self.folder) is not None
        return self._is_alive
