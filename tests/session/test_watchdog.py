"""Trouble that is certain is told during the run, once, and looking for it stays within its budget."""

from __future__ import annotations

import time

from nanolens.message import msg
from nanolens.record import events as e
from nanolens.session import listeners as room
from nanolens.session.listeners import Watchdog


def evaluated(step: int) -> e.Evaluated:
    return e.Evaluated(step=step, split="val", loss=1.0, standard_error=0.1, batch_losses=[], batches="", tokens=1)


def test_each_certain_fault_is_told_once_with_the_step():
    told: list[e.Event] = []
    dog = Watchdog(lambda: [("overfitting", msg("val rises"))], told.append)
    for step in (0, 100, 200, 300):
        dog(evaluated(step))
        dog.tick()
    assert told == [e.Warned(step=100, code="overfitting", claim="val rises", words=msg("val rises"))]


def test_it_does_not_run_preflight_there_is_something_new():
    looks: list[int] = []
    dog = Watchdog(lambda: looks.append(1) or [], lambda event: None)
    dog.tick()
    dog(evaluated(0))
    dog.tick()
    assert looks == []
    dog(evaluated(100))
    dog.tick()
    dog.tick()
    assert looks == [1]


def test_a_costly_look_is_not_repeated_before_its_cost_is_a_small_share(monkeypatch):
    looks: list[int] = []

    def slow() -> list:
        looks.append(1)
        until_s = time.thread_time() + 0.05
        while time.thread_time() < until_s:
            pass
        return []

    monkeypatch.setattr(room, "BUDGET_FRAC", 0.05)
    dog = Watchdog(slow, lambda event: None)
    dog(evaluated(0))
    started_at_s = time.monotonic()
    step = 0
    while time.monotonic() - started_at_s < 1.5:
        step += 1
        dog(evaluated(step))
        dog.tick()
        time.sleep(0.01)
    assert 1 <= len(looks) <= 2  # 0.05 s at 5 %: not more often than once a second
