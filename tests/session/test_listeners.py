"""No listener can stop or slow a training, and none fails in silence."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import pytest

from nanolens.record import events as e
from nanolens.record.progress import Progress, about_run
from nanolens.session import listeners as room
from nanolens.session.listeners import Listeners


def step(k: int) -> e.StepTaken:
    return e.StepTaken(step=k, loss=1.0, lr=1e-3, grad_norm=1.0, tokens=8, took_s=0.01)


def into(record: list[e.Event]) -> Callable[[e.Event], e.Event]:
    """A recorder: stamps the event, keeps it, and gives it back."""

    def keep(event: e.Event) -> e.Event:
        record.append(msgspec.structs.replace(event, at_s=time.time(), attempt=3))
        return record[-1]

    return keep


class Keeper:
    poll_s = 0.01

    def __init__(self) -> None:
        self.events: list[e.Event] = []
        self.closed = self.ticks = 0

    def __call__(self, event: e.Event) -> None:
        self.events.append(event)

    def tick(self) -> None:
        self.ticks += 1

    def close(self) -> None:
        self.closed += 1


def test_everybody_gets_every_event_in_order_and_is_closed_once():
    record: list[e.Event] = []
    others = [Keeper(), Keeper()]
    listeners = Listeners(into(record), others)
    for k in range(1, 101):
        listeners.emit(step(k))
    assert [event.step for event in record] == list(range(1, 101))  # at once, before any thread has looked
    assert listeners.close() == []
    for other in others:
        assert [event.step for event in other.events] == list(range(1, 101))
        assert other.closed == 1 and other.ticks >= 1


def test_the_record_and_the_listeners_see_the_same_stamped_event():
    record: list[e.Event] = []
    other = Keeper()
    listeners = Listeners(into(record), [other])
    listeners.emit(step(1))
    listeners.close()
    assert record == other.events
    assert abs(record[0].at_s - time.time()) < 60 and other.events[0].attempt == 3


def test_events_are_added_up_before_anybody_hears_of_them_and_a_mistake_in_that_is_reported():
    seen: list[int] = []
    progress = Progress(about_run("x", {}))
    listeners = Listeners(into([]), [lambda event: seen.append(progress.step)], progress.take)
    listeners.emit(step(7))
    assert progress.step == 7
    assert listeners.close() == [] and seen == [7]

    def broken(event: e.Event) -> None:
        raise ValueError("no such column")

    listeners = Listeners(into([]), [], broken)
    listeners.emit(step(1))
    assert [trouble.because for trouble in listeners.close()] == ["ValueError: no such column"]


def test_a_listener_that_raises_is_counted_told_once_and_left_alone_after_a_while():
    record: list[e.Event] = []

    class Broken(Keeper):
        name = "my tracker"

        def __call__(self, event: e.Event) -> None:
            self.events.append(event)
            raise ValueError("no such project")

    broken, healthy = Broken(), Keeper()
    listeners = Listeners(into(record), [broken, healthy])
    for k in range(100):
        listeners.emit(step(k))
    time.sleep(0.2)
    (trouble,) = listeners.close()
    warned = [event for event in record if isinstance(event, e.Warned)]
    assert [(event.code, event.claim) for event in warned] == [
        ("listener_failed", "my tracker raised ValueError: no such project")
    ]
    assert trouble.listener == "my tracker" and trouble.because == "ValueError: no such project"
    assert trouble.failures == room.FAILURES_IN_A_ROW == len(broken.events)
    assert trouble.failures + trouble.missed >= 100
    assert len([event for event in healthy.events if isinstance(event, e.StepTaken)]) == 100


def test_a_listener_that_hangs_does_not_hold_the_loop_or_the_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(room, "QUEUE_LIMIT", 50)

    class Hung(Keeper):
        patience_s = 0.2

        def __call__(self, event: e.Event) -> None:
            time.sleep(30)

    listeners = Listeners(lambda event: event, [Hung()])
    listeners.emit(step(0))
    time.sleep(0.1)
    started_at_s = time.perf_counter()
    for k in range(1000):
        listeners.emit(step(k))
    assert time.perf_counter() - started_at_s < 0.5
    (trouble,) = listeners.close()
    assert time.perf_counter() - started_at_s < 2
    assert trouble.missed == 1000 and trouble.failures == 0
    assert trouble.because == "it did not come to an end"


def test_several_that_hang_are_waited_for_together():
    class Hung(Keeper):
        patience_s = 0.5

        def __call__(self, event: e.Event) -> None:
            time.sleep(30)

    listeners = Listeners(lambda event: event, [Hung() for _ in range(6)])
    listeners.emit(step(0))
    time.sleep(0.1)
    started_at_s = time.perf_counter()
    assert len(listeners.close()) == 6
    assert time.perf_counter() - started_at_s < 2.0  # and not six times half a second


def test_telling_an_event_costs_microseconds():
    listeners = Listeners(lambda event: event, [Keeper(), Keeper(), Keeper()])
    events = [step(k) for k in range(2000)]
    best_s = float("inf")
    for _ in range(5):
        started_at_s = time.perf_counter()
        for event in events:
            listeners.emit(event)
        best_s = min(best_s, time.perf_counter() - started_at_s)
        time.sleep(0.05)
    listeners.close()
    assert best_s / 2000 < 50e-6  # measured: 1.2 microseconds; the room is for a busy machine
