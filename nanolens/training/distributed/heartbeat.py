"""Each rank reports once a second where it is, so that after a hang the rank and the call can be named."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
import time
from datetime import timedelta
from typing import TypedDict

import torch.distributed as dist

from nanolens.message import Message, msg

BEAT_S = 1.0
LISTEN_S = 2.5 * BEAT_S
STORE_TIMEOUT_S = 5 * BEAT_S
SIGNS = re.compile(
    "timed out|timeout|connection (closed|reset|refused)|broken pipe|socket|gloo|nccl|network is unreachable|"
    "no route to host|rendezvous|remote process exited"
)
BUSY = "its own work"


def is_about_connection(error: BaseException) -> bool:
    return isinstance(error, dist.DistError) or SIGNS.search(str(error).lower()) is not None


class RankState(TypedDict):
    """What a rank reports of itself."""

    beats: int
    call: str  # what it is busy with
    calls: int
    is_waiting: bool  # for others, in that call
    step: int
    host: str
    pid: int


States = dict[int, RankState | None]  # by rank; None where nothing was heard


class Heartbeat:
    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size
        host, pid = socket.gethostname(), os.getpid()
        self.state = RankState(beats=0, call=BUSY, calls=0, is_waiting=False, step=0, host=host, pid=pid)
        self._store: dist.Store | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._keep_reporting, name="heartbeat", daemon=True)

    def start(self) -> None:
        # a connection of its own: the thread must not get in anybody's way
        store = dist.distributed_c10d._get_default_store().clone()  # type: ignore[attr-defined]
        store.set_timeout(timedelta(seconds=STORE_TIMEOUT_S))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = dist.PrefixStore(f"nanolens-{attempt}", store)
        self._report()
        if not self._thread.is_alive():  # one training may follow another in the same processes
            self._thread.start()

    def end(self) -> None:
        """Waits for the report under way: Python ends a thread that is inside the store's C++ by ending the process."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join(STORE_TIMEOUT_S + BEAT_S)

    def wait_in(self, call: str) -> None:
        self.state["call"], self.state["is_waiting"] = call, True
        self.state["calls"] += 1

    def go_on(self) -> None:
        self.state["call"], self.state["is_waiting"] = BUSY, False

    def who_is_missing(self, call: str, waited_s: float, error: BaseException) -> tuple[Message, list[int]]:
        """Looks twice, some seconds apart: a rank whose report is the same again has stopped reporting."""
        first, second = self._two_looks()
        others = [rank for rank in range(self.size) if rank != self.rank]
        at = {"call": call, "step": self.state["step"], "waited": round(waited_s, 1)}
        if not any(second.values()):
            return msg(
                "rank {own:count} can no longer reach the others: the connection to {address:code} was lost during "
                "{call:code} (step {step:count}, after {waited:seconds})",
                own=self.rank,
                address=os.environ.get("MASTER_ADDR", ""),
                **at,
            ), others
        beats = [{rank: state["beats"] for rank, state in look.items() if state} for look in (first, second)]
        if silent := [rank for rank in others if beats[0].get(rank) == beats[1].get(rank) or not second[rank]]:
            return msg(
                "rank {rank:count} (process {pid:code} on {host:code}) has died or cannot be reached: no sign of it "
                "during {call:code} (step {step:count}, after {waited:seconds}); it last reported {doing:code}",
                **_about(silent[0], second[silent[0]] or first[silent[0]]),
                **at,
            ), silent
        states = {rank: state for rank in others if (state := second[rank])}
        fewest, own = min(state["calls"] for state in states.values()), self.state["calls"]
        behind = [rank for rank, state in states.items() if state["calls"] == fewest < own]
        busy = [rank for rank, state in states.items() if not state["is_waiting"]] or behind
        if busy and "closed" not in str(error).lower():
            return msg(
                "rank {rank:count} (process {pid:code} on {host:code}) did not reach {call:code} (step {step:count}) "
                "within {waited:seconds}: it is alive and busy with {doing:code}",
                **_about(busy[0], states[busy[0]]),
                **at,
            ), busy
        return msg(
            "the connection to another rank broke during {call:code} (step {step:count}, after {waited:seconds})", **at
        ), []

    def _two_looks(self) -> tuple[States, States]:
        """In a thread: a store behind a cable that is out may never answer."""
        looks: list[States] = [dict.fromkeys(range(self.size)), dict.fromkeys(range(self.size))]

        def look() -> None:
            looks[0] = {rank: self._heard(rank) for rank in range(self.size)}
            time.sleep(LISTEN_S)
            looks[1] = {rank: self._heard(rank) for rank in range(self.size)}

        thread = threading.Thread(target=look, name="who-is-missing", daemon=True)
        thread.start()
        thread.join(LISTEN_S + 10 * BEAT_S)
        return looks[0], looks[1]

    def _heard(self, rank: int) -> RankState | None:
        with contextlib.suppress(Exception):  # no store, no connection to it, no such key: all the same to us
            assert self._store is not None
            return json.loads(self._store.get(str(rank)))
        return None

    def _keep_reporting(self) -> None:
        while not self._done.wait(BEAT_S):
            with contextlib.suppress(Exception):  # the store may be gone before we are
                self._report()

    def _report(self) -> None:
        assert self._store is not None
        self.state["beats"] += 1
        self._store.set(str(self.rank), json.dumps(self.state))


def _about(rank: int, state: RankState | None) -> dict[str, object]:
    if state is None:
        return {"rank": rank, "pid": "?", "host": "?", "doing": "?"}
    return {"rank": rank, "pid": state["pid"], "host": state["host"], "doing": state["call"]}
