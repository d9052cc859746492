"""Debian's Chromium behind Playwright, and a page that notes whatever should not happen on it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
]


def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("needs Debian's chromium: apt-get install -y chromium")
    return found


@contextmanager
def server_over(root: Path, *more: str) -> Iterator[str]:
    """The real command over a folder; its URL."""
    command = [sys.executable, "-m", "nanolens", "dashboard", str(root), "--port=0", "--no_browser", *more]
    own_cache = {**os.environ, "NANOLENS_CACHE": str(root.parent / "cache")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=own_cache) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found is not None
            yield found[0]
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


class Watched:
    """A page with everything that it was seen to do wrong."""

    def __init__(self, page) -> None:
        self.page = page
        self.errors: list[str] = []
        self.hosts: set[str] = set()
        page.on(
            "console",
            lambda message: self.errors.append(message.text) if message.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on(
            "request", lambda request: self.hosts.add(urlsplit(request.url).hostname or urlsplit(request.url).scheme)
        )

    def assert_clean(self, hosts: set[str]) -> None:
        assert self.errors == []
        assert self.hosts <= hosts, self.hosts


def drawn(page, chart: str = "loss") -> None:
    page.wait_for_selector(f"[data-chart={chart}] .plot path.curve[d^=M]", state="attached", timeout=20_000)


def x_range(page, chart: str = "loss") -> list[float]:
    stage = "chart => document.querySelector(`[data-chart=${chart}] .stage`).dataset"
    return page.evaluate(f"chart => {{ const it = ({stage})(chart); return [Number(it.from), Number(it.to)]; }}", chart)


def until(page, is_so: Callable[[], bool], timeout_s: float = 15.0) -> None:
    """Waits for something to be so: a page answers when it can, and a busy machine takes its time."""
    ends_at_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < ends_at_s, "it did not come to be so"
        page.wait_for_timeout(50)
