"""One small run, probed once for all tests of a module."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.probing.small_run import make_data, trained


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("probed")


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    return trained(place / "runs" / "parent", make_data(place / "data" / "tiny"))
