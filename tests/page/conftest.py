from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.page.runs import write_run

pytest.importorskip("starlette", reason="the page needs the extra `page`")
TOKEN = "k" * 32


@dataclasses.dataclass
class Door:
    """The page's server without a socket: requests as a browser would send them, or as an attacker would."""

    client: object
    guard: object
    store: object

    def get(self, path: str, **headers: str):
        return self.client.get(
            path, headers={"host": "127.0.0.1:7860", "cookie": f"{self.guard.cookie}={TOKEN}", **headers}
        )

    def post(self, path: str, body: str | bytes, **headers: str):
        usual = {
            "host": "127.0.0.1:7860",
            "cookie": f"{self.guard.cookie}={TOKEN}",
            "origin": "http://127.0.0.1:7860",
            "x-nanolens": "1",
        }
        return self.client.post(path, content=body, headers={**usual, **headers})

    def id_of(self, name: str) -> str:
        return next(row["id"] for row in self.get("/api/runs").json()["runs"] if row["name"] == name)


@pytest.fixture
def open_door() -> Iterator[Callable[[Path], Door]]:
    from starlette.testclient import TestClient

    from nanolens.page.runs import Runs
    from nanolens.page.server import build_app

    opened = []

    def make(root: Path) -> Door:
        store = Runs(root)
        guard = build_app(store, TOKEN, "en")
        client = TestClient(guard, raise_server_exceptions=False, base_url="http://127.0.0.1:7860")
        opened.append(store)
        return Door(client, guard, store)

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def door(tmp_path: Path, open_door: Callable[[Path], Door]) -> Door:
    write_run(tmp_path / "runs" / "one", seed=1)
    write_run(tmp_path / "runs" / "two", seed=2, learning_rate=3e-3)
    return open_door(tmp_path / "runs")


def conventions_in(text: str) -> str:
    return re.sub(r"\s+", " ", text)
