"""`watch -- COMMAND`: any trainer, started by us, recorded as a run, and diagnosed while it goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nanolens.message import Message, msg

if TYPE_CHECKING:
    from nanolens.record.run import Run


def watch_others(command: Sequence[str], tell: Callable[[Message], None]) -> tuple[int, Path]:
    """(exit code, run folder). `tell` gets what is certainly wrong while the command runs, each thing once."""
    from nanolens.logs.watch import free_folder, watch_command

    folder = free_folder(command)
    tell(msg("{command:code} is recorded in {folder:code}", command=command[0], folder=str(folder)))
    return watch_command(command, folder=folder, echo=sys.stdout.buffer, look=Teller(tell)), folder


class Teller:
    """Says what the rows leave no doubt of, once."""

    def __init__(self, tell: Callable[[Message], None]):
        self._tell = tell
        self._told: set[str] = set()

    def __call__(self, run: Run) -> None:
        from nanolens.diagnosis import FAULTS, diagnose

        for finding in diagnose(run).findings:
            if finding.sureness == "certain" and finding.code in FAULTS and finding.code not in self._told:
                self._told.add(finding.code)
                self._tell(msg("{claim} ({code:code})", claim=finding.claim, code=finding.code))
