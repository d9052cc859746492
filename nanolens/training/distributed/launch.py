"""`nanolens train --devices=N`: starts N processes of itself on this machine, as torchrun would, and looks after them;
and this process as one of several that train together, where it was started so (by either).

A process that dies takes the others down; then all start again and go on from the last checkpoint of the run that they
began. A signal is passed on once, so that the run is saved and stops; a second one ends everything on the spot.

Not torch's own elastic launcher: it starts again after every failure, also after a mistake of the user's, and ends the
others at once, before they can say who is missing; it knows no second signal, and allows 30 s for saving."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from nanolens.errors import UserError, fault
from nanolens.message import Message, msg
from nanolens.record import RUNS, checkpoint_folders, step_of
from nanolens.record.store import find_runs, run_folder
from nanolens.record.write import read_run_file
from nanolens.training.stopping import handled_by

if TYPE_CHECKING:
    from nanolens.training.distributed.group import DistributedRanks


# how a rank ends that lost another: the group may well work when it is started again (sysexits: a temporary failure)
LOST = 75
NOTICE_S, GRACE_S = 10.0, 30.0  # after a rank has failed: until the others are asked to end, and until they are killed
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def how_many(asked: str) -> tuple[int, Message | None]:
    """What `--devices` means: `auto` is all GPUs of this machine, or one process, which is fastest on a CPU."""
    if asked != "auto":
        if not asked.isdigit() or int(asked) < 1:
            what = msg("{value:code} is not a number of devices", asked)
            raise fault(what, fix=msg("use {option:code}", "--devices=auto"))
        return int(asked), None
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return (found, msg("training on {count:count} GPUs", found)) if found > 1 else (1, None)


def launch(arguments: Sequence[str], size: int, restarts: int, tell: Callable[[Message], None]) -> int:
    """Runs `nanolens ARGUMENTS` in `size` processes; the exit code."""
    group = RankProcesses(arguments, size)
    with handled_by(group.on_signal, _SIGNALS), contextlib.closing(group):
        for attempt in range(restarts + 1):
            codes = group.run(attempt)
            if group.signal is not None:
                return 128 + group.signal
            rank, code = next(((rank, code) for rank, code in codes.items() if code), (0, 0))
            if code >= 0 and code != LOST:  # done, or a mistake of the user's, which would only be reported again
                return code
            if attempt < restarts:
                how = signal.Signals(-code).name if -code in set(signal.Signals) else f"exit code {code}"
                what = msg(
                    "rank {rank:count} ended ({how}); all ranks restart from the last checkpoint, restart "
                    "{attempt:count} of {restarts:count}",
                    rank,
                    how,
                    attempt + 1,
                    restarts,
                )
                tell(what)
        return 1


class RankProcesses:
    def __init__(self, arguments: Sequence[str], size: int):
        self._command, self._size = [sys.executable, "-m", "nanolens", *arguments], size
        self._processes: list[subprocess.Popen] = []
        self._id = uuid.uuid4().hex
        self.signal: int | None = None  # the first that came

    def run(self, attempt: int) -> dict[int, int]:
        """The exit code of each rank, in the order in which they ended. When one has failed, the others notice by
        themselves that it is gone, and say so; then they are asked to end, and finally killed."""
        environment = self._environment(attempt)
        self._processes = [
            subprocess.Popen(
                self._command,
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.DEVNULL if rank else None,
                start_new_session=True,  # a Ctrl-C in the terminal reaches only us, and is passed on once
            )
            for rank in range(self._size)
        ]
        codes: dict[int, int] = {}
        failed_at_s, is_asked = math.inf, False
        while len(codes) < self._size:
            time.sleep(0.1)
            for rank, process in enumerate(self._processes):
                if rank not in codes and process.poll() is not None:
                    codes[rank] = process.returncode
                    if process.returncode:
                        failed_at_s = min(failed_at_s, time.monotonic())
            waited_s = time.monotonic() - failed_at_s
            if waited_s > NOTICE_S and not is_asked:
                self._send(signal.SIGTERM)
                is_asked = True
            if waited_s > GRACE_S:
                self.close()
        return codes

    def on_signal(self, number: int, frame: object) -> None:
        if self.signal is not None:
            self.close()
            os._exit(128 + number)
        self.signal = number
        self._send(number)

    def close(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(number)

    def _environment(self, attempt: int) -> dict[str, str]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
        return {
            "OMP_NUM_THREADS": str(max(1, cores // self._size)),
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(self._size),
            "LOCAL_WORLD_SIZE": str(self._size),
            "TORCHELASTIC_RESTART_COUNT": str(attempt),
            "TORCHELASTIC_RUN_ID": self._id,
            LAUNCHER: str(os.getpid()),
        }


LAUNCHER = "NANOLENS_LAUNCHER"  # in the environment of the processes that `--devices` starts: who started them
_joined: list[DistributedRanks] = []


def is_a_rank() -> bool:
    """torchrun may have started a single one, and start it again with others."""
    return "RANK" in os.environ and ("TORCHELASTIC_RUN_ID" in os.environ or int(os.environ.get("WORLD_SIZE", "1")) > 1)


def ranks_here() -> DistributedRanks | None:
    """The group, joined once; None for a process alone, which then need not import torch yet."""
    if not is_a_rank():
        return None
    if not _joined:
        launcher = int(os.environ.get(LAUNCHER, os.getppid()))  # asked before torch is imported, which takes seconds
        from nanolens.training.distributed.group import join

        group = join(launcher=launcher)
        assert group is not None, "this is a rank"
        _joined.append(group)
    return _joined[0]


def leave() -> None:
    while _joined:
        _joined.pop().end()


def first_on_disk(overrides: Sequence[tuple[str, str]], ranks: DistributedRanks) -> Sequence[tuple[str, str]]:
    """Lets that rank be the first which has the run that is to go on, and gives the settings with which it does: a
    group that was started again goes on with what it had begun, on whatever machine's disk that is."""
    run = _begun_by(overrides, ranks.launch)
    step = -1 if run is None else max([step_of(folder) or 0 for folder in checkpoint_folders(run)], default=0)
    ranks.choose_first(step)
    if run is None or not _is_of_launch(run, ranks.launch):
        return overrides
    kept = [(key, value) for key, value in overrides if key not in ("init_from", "out_dir", "overwrite")]
    return [*kept, ("init_from", "resume"), ("out_dir", str(run))]


def _begun_by(overrides: Sequence[tuple[str, str]], launch: str) -> Path | None:
    given = dict(overrides)
    out_dir, goes_on = given.get("out_dir", "auto"), given.get("init_from") in ("resume", "auto")
    if out_dir == "auto":
        return next((run for run in reversed(find_runs(Path(RUNS))) if _is_of_launch(run, launch)), None)
    there = run_folder(out_dir)
    return there if there is not None and (goes_on or _is_of_launch(there, launch)) else None


def _is_of_launch(run: Path, launch: str) -> bool:
    """Whether the processes that train now, started before by the same launcher, have begun this run."""
    try:
        facts, started_at_s = read_run_file(run), psutil.Process(os.getppid()).create_time()
        return facts.get("launch") == launch and facts.get("created_at_s", 0.0) >= started_at_s - 1
    except (UserError, psutil.Error):
        return False
