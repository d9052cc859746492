"""Who is there: each rank says once a second where it is, so that after a hang somebody can name the rank and the call."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from nanolens.message import Message, msg

BEAT_S = 1.0
LISTEN_S = 2.5 * BEAT_S
SIGNS = (
    "timed out", "timeout", "connection closed", "connection reset", "connection refused", "broken pipe", "socket", "gloo", "nccl",
    "network is unreachable", "no route to host", "rendezvous", "remote process exited",
)  # fmt: skip
BUSY = "its own work"


def is_about_connection(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, dist.DistError) or any(sign in text for sign in SIGNS)


class Presence:
    def __init__(self, rank: int, size: int):
        self.rank, self.size, self.step = rank, size, 0
        self._call, self._calls, self._is_waiting = BUSY, 0, False
        self._store: Any = None
        self._done = threading.Event()
        self._beats = 0

    def start(self) -> None:
        store: Any = dist.distributed_c10d._get_default_store()
        store = store.clone()  # a connection of its own: the thread must not get in anybody's way
        store.set_timeout(timedelta(seconds=5 * BEAT_S))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = dist.PrefixStore(f"nanolens-{attempt}", store)
        self._say()
        threading.Thread(target=self._keep_saying, name="presence", daemon=True).start()

    def end(self) -> None:
        self._done.set()

    def wait_in(self, call: str) -> None:
        self._call, self._is_waiting = call, True
        self._calls += 1

    def go_on(self) -> None:
        self._call, self._is_waiting = BUSY, False

    def who_is_missing(self, call: str, waited_s: float, error: BaseException) -> tuple[Message, list[int]]:
        """Looks twice, some seconds apart: whoever says the same again says nothing any more."""
        waited_s = round(waited_s, 1)
        first, second = self._two_looks()
        others = [rank for rank in range(self.size) if rank != self.rank]
        if not any(second.values()):
            address = os.environ.get("MASTER_ADDR", "")
            return msg(
                "rank {own:count} cannot reach the others any more: the connection to {address:code} is gone, while {call:code} (step "
                "{step:count}, after {waited:seconds})",
                own=self.rank, address=address, call=call, step=self.step, waited=waited_s,
            ), others  # fmt: skip
        silent = [rank for rank in others if not second[rank] or (first[rank] or {}).get("beats") == second[rank]["beats"]]
        if silent:
            last = second[silent[0]] or first[silent[0]] or {}
            return msg(
                "rank {rank:count} (process {pid:code} on {host:code}) is gone or cannot be reached: nothing was heard of it while "
                "{call:code} (step {step:count}, after {waited:seconds}); its last word was of {doing:code}",
                rank=silent[0], pid=last.get("pid", "?"), host=last.get("host", "?"), call=call, step=self.step, waited=waited_s,
                doing=last.get("call", "?"),
            ), silent  # fmt: skip
        busy = [rank for rank in others if not second[rank]["is_waiting"]] or self._behind(second, others)
        if busy and "closed" not in str(error).lower():
            state = second[busy[0]]
            return msg(
                "rank {rank:count} (process {pid:code} on {host:code}) did not come to {call:code} (step {step:count}) within "
                "{waited:seconds}: it is alive, and busy with {doing:code}",
                rank=busy[0], pid=state["pid"], host=state["host"], call=call, step=self.step, waited=waited_s, doing=state["call"],
            ), busy  # fmt: skip
        return msg(
            "the connection to another rank broke while {call:code} (step {step:count}, after {waited:seconds})",
            call=call, step=self.step, waited=waited_s,
        ), []  # fmt: skip

    def _two_looks(self) -> tuple[dict[int, Any], dict[int, Any]]:
        """In a thread: a store behind a cable that is out may never answer."""
        looks = [dict.fromkeys(range(self.size)), dict.fromkeys(range(self.size))]

        def look() -> None:
            looks[0] = self._everybody()
            time.sleep(LISTEN_S)
            looks[1] = self._everybody()

        thread = threading.Thread(target=look, name="who-is-missing", daemon=True)
        thread.start()
        thread.join(LISTEN_S + 10 * BEAT_S)
        return looks[0], looks[1]

    def _behind(self, states: dict[int, Any], others: list[int]) -> list[int]:
        least = min(states[rank]["calls"] for rank in others)
        return [rank for rank in others if states[rank]["calls"] == least and least < self._calls]

    def _everybody(self) -> dict[int, Any]:
        return {rank: self._heard(rank) for rank in range(self.size)}

    def _heard(self, rank: int) -> Any:
        try:
            return json.loads(self._store.get(str(rank)))
        except Exception:  # no store, no connection to it, no such key: all the same to us
            return None

    def _keep_saying(self) -> None:
        while not self._done.wait(BEAT_S):
            with contextlib.suppress(Exception):  # the store may be gone before we are
                self._say()

    def _say(self) -> None:
        self._beats += 1
        state = {
            "beats": self._beats, "call": self._call, "calls": self._calls, "is_waiting": self._is_waiting, "step": self.step,
            "host": socket.gethostname(), "pid": os.getpid(),
        }  # fmt: skip
        self._store.set(str(self.rank), json.dumps(state))
