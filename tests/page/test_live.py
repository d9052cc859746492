"""News for open pages: what was written is told, once for all, and only while somebody listens."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from nanolens.page.runs import Runs
from nanolens.page.series import SeriesQuery
from nanolens.page.server import EventHub
from nanolens.record import events as e
from nanolens.record.write import Recorder
from tests.page.runs import write_run


def step(k: int) -> e.StepTaken:
    return e.StepTaken(step=k, loss=2.0, lr=1e-3, grad_norm=1.0, tokens=768, took_s=0.02)


async def messages(hub: EventHub, name: str, since: int, count: int, act=lambda: None) -> list[tuple[str, dict]]:
    found: list[tuple[str, dict]] = []
    looking = asyncio.create_task(hub.run())
    stream = hub.stream({name: since}, SeriesQuery())
    async for raw in stream:
        if raw.startswith(b"event: "):
            head, _, data = raw.decode().partition("\ndata: ")
            found.append((head.removeprefix("event: "), json.loads(data)))
            if len(found) == 2:
                act()
        if len(found) >= count:
            break
    await stream.aclose()
    looking.cancel()
    return found


def test_steps_that_are_written_reach_the_page(tmp_path: Path) -> None:
    write_run(tmp_path / "live", steps=20, ends=False)
    store = Runs(tmp_path)
    name = store.rows()[0]["id"]
    while store.catch_up():
        pass
    store.news()
    record = Recorder(tmp_path / "live")
    found = asyncio.run(
        asyncio.wait_for(messages(EventHub(store), name, 18, 4, lambda: (record(step(21)), record(step(22)))), 10)
    )
    record.close()
    assert [kind for kind, _ in found] == ["row", "tail", "row", "tail"]
    assert found[1][1]["tail"]["step"] == [19, 20]  # what the page had missed
    assert found[2][1]["row"]["step"] == 22
    assert found[3][1]["tail"]["step"] == [21, 22] and found[3][1]["tail"]["series"]["loss"] == [2.0, 2.0]


def test_after_a_resume_the_page_is_told_to_ask_again(tmp_path: Path) -> None:
    write_run(tmp_path / "live", steps=20, ends=False)
    store = Runs(tmp_path)
    name = store.rows()[0]["id"]
    while store.catch_up():
        pass
    store.news()
    record = Recorder(tmp_path / "live")
    resumed = e.RunStarted(step=10, resumed_from="step-000010")
    found = asyncio.run(
        asyncio.wait_for(messages(EventHub(store), name, 20, 4, lambda: (record(resumed), record(step(11)))), 10)
    )
    record.close()
    assert found[3][0] == "tail" and found[3][1]["tail"] is None


def test_nobody_listening_means_nothing_is_looked_at(tmp_path: Path) -> None:
    class Untouched(Runs):
        def news(self) -> set[str]:
            raise AssertionError("looked")

    async def rest() -> None:
        looking = asyncio.create_task(EventHub(Untouched(tmp_path)).run())
        await asyncio.sleep(0.7)
        assert not looking.done()
        looking.cancel()

    asyncio.run(rest())


def test_a_run_that_cannot_be_diagnosed_ends_nothing(tmp_path: Path, monkeypatch, capsys) -> None:
    write_run(tmp_path / "odd", steps=20)
    store = Runs(tmp_path)
    monkeypatch.setattr("nanolens.page.runs.diagnose", lambda run: 1 / 0)
    monkeypatch.setattr("nanolens.page.server.SLOWEST_TICK_S", 0.1)
    name = store.rows()[0]["id"]

    async def listen() -> None:
        hub = EventHub(store)
        looking = asyncio.create_task(hub.run())
        stream = hub.stream({name: 0}, SeriesQuery())
        for _ in range(3):
            await anext(stream)
        await asyncio.sleep(1.0)
        assert not looking.done()
        looking.cancel()
        await stream.aclose()

    asyncio.run(listen())
    assert capsys.readouterr().err.count("ZeroDivisionError") == 1  # told once, not at every look
