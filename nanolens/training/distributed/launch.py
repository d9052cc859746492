"""`nanolens train --devices=N`: starts N processes of itself on this machine, as torchrun would, and looks after them.

A process that dies takes the others down; then all start again and go on from the last checkpoint. A signal is passed on once, so that the
run is saved and stops; a second one ends everything on the spot.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nanolens.api.ranks import LAUNCHER
from nanolens.errors import fault
from nanolens.message import Message, msg

LOST = 75  # how a rank ends that lost another: the group may well work when it is started again (sysexits: a temporary failure)
GRACE_S = 30.0
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def how_many(asked: str) -> tuple[int, Message | None]:
    """The number that `--devices` means: all GPUs of this machine for `auto`. On a CPU one process uses all cores, and is faster so."""
    if asked != "auto":
        if not asked.isdigit() or int(asked) < 1:
            raise fault(msg("{value:code} is not a number of devices", value=asked), fix=msg("use {option:code}", option="--devices=auto"))
        return int(asked), None
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found > 1:
        return found, msg("training on {count:count} GPUs", count=found)
    return 1, None


def launch(arguments: Sequence[str], size: int, restarts: int, tell: Callable[[Message], None]) -> int:
    """Runs `nanolens ARGUMENTS` in `size` processes; the exit code."""
    group = Group(list(arguments), size)
    before = {number: signal.signal(number, group.on_signal) for number in SIGNALS}
    try:
        for attempt in range(restarts + 1):
            codes = group.run(attempt)
            if group.signal is not None:
                return 128 + group.signal
            if not any(codes):
                return 0
            died = next((rank, code) for rank, code in group.ended if code)
            if not _is_worth_a_restart(died[1]):
                return died[1]
            if attempt < restarts:
                tell(
                    msg(
                        "rank {rank:count} ended ({how}); all start again from the last checkpoint, restart {attempt:count} of "
                        "{restarts:count}", rank=died[0], how=_how(died[1]), attempt=attempt + 1, restarts=restarts,
                    )
                )  # fmt: skip
        return 1
    finally:
        group.kill()
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_worth_a_restart(code: int) -> bool:
    """Killed by the system or another rank lost; not a mistake of the user's, which would only be told again."""
    return code < 0 or code == LOST


def _how(code: int) -> str:
    return signal.Signals(-code).name if code < 0 and -code in set(signal.Signals) else f"exit code {code}"


@dataclass
class Group:
    arguments: list[str]
    size: int

    def __post_init__(self) -> None:
        self.signal: int | None = None
        self.ended: list[tuple[int, int]] = []  # (rank, code), in the order in which they ended
        self._processes: list[subprocess.Popen] = []
        self._id = uuid.uuid4().hex

    def run(self, attempt: int) -> list[int]:
        self.ended = []
        environment = self._environment(attempt)
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "nanolens", *self.arguments],
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.DEVNULL if rank else None,
                start_new_session=True,  # a Ctrl-C in the terminal reaches only us, and is passed on once
            )
            for rank in range(self.size)
        ]
        while len(self.ended) < self.size:
            time.sleep(0.1)
            seen = {rank for rank, _ in self.ended}
            for rank, process in enumerate(self._processes):
                if rank not in seen and process.poll() is not None:
                    self.ended.append((rank, process.returncode))
            if any(code for _, code in self.ended) and len(self.ended) < self.size:
                self._end_the_others()
        return [code for _, code in self.ended]

    def on_signal(self, number: int, frame: object) -> None:
        if self.signal is not None:
            self.kill()
            os._exit(128 + number)
        self.signal = number
        self._send(number)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _end_the_others(self) -> None:
        """They notice by themselves that one is gone, and say so; then they are asked, and in the end not asked any more."""
        until_s = time.monotonic() + GRACE_S
        is_asked = False
        while any(process.poll() is None for process in self._processes):
            left_s = until_s - time.monotonic()
            if left_s < GRACE_S - 10 and not is_asked:
                is_asked = True
                self._send(signal.SIGTERM)
            if left_s < 0:
                self.kill()
            time.sleep(0.1)

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
            "OMP_NUM_THREADS": str(max(1, cores // self.size)), **os.environ,
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(self.size), "LOCAL_WORLD_SIZE": str(self.size),
            "TORCHELASTIC_RESTART_COUNT": str(attempt), "TORCHELASTIC_RUN_ID": self._id, LAUNCHER: str(os.getpid()),
        }  # fmt: skip
