"""Fixtures that every room's tests may use."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "2")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in the background with Ctrl-C ignored, and programs that tests start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shakespeare() -> Path:
    """tinyshakespeare.txt from the folder named by NANOLENS_DATA; tests that want it are skipped where it is absent."""
    folder = os.environ.get("NANOLENS_DATA")
    path = Path(folder, "tinyshakespeare.txt") if folder else None
    if path is None or not path.is_file():
        pytest.skip("needs tinyshakespeare.txt in the folder named by NANOLENS_DATA")
    return path


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's cache; one cache serves the whole session, so that a corpus is prepared
    once."""
    monkeypatch.setenv("NANOLENS_CACHE", str(tmp_path_factory.getbasetemp() / "nanolens-cache"))
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
