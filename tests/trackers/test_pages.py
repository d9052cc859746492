"""Each block of code in docs/python.md and docs/trackers.md, run as it stands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_the_python_page(tmp_path: Path):
    """In one go, in a Python of its own, as a reader would paste it."""
    for module in ("pandas", "tensorboardX"):
        pytest.importorskip(module)
    parts = blocks("python.md", "python")
    assert len(parts) >= 9
    script = "\n".join(f"print({f'--- block {number}'!r})\n{part}" for number, part in enumerate(parts, 1))
    (tmp_path / "page.py").write_text(script)
    done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    said = done.stdout.split("--- block ")
    assert "n_embd = 50 is not divisible by n_head = 4" in said[2].replace("`", "")
    assert "healthy" in done.stdout or "run_too_short" in done.stdout


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_the_commands_of_the_trackers_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for module in ("tensorboardX", "wandb", "trackio"):
        pytest.importorskip(module)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "db"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("NANOLENS_TRACKER_S", "90")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "train.log").write_text(
        "".join(f"iter {k}: loss {4 - k / 100:.4f}, time 30.00ms, mfu 10.00%\n" for k in range(100))
    )
    commands = [
        line for block in blocks("trackers.md", "sh") for line in block.splitlines() if line.startswith("nanolens ")
    ]
    assert len(commands) >= 5
    for command in commands:
        words = [sys.executable, "-m", *shlex.split(command)]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
        assert "lacks" not in done.stdout, (command, done.stdout[-2000:])
    assert (tmp_path / "db" / "plays.db").exists() and list(
        (tmp_path / "runs" / "first" / "wandb").glob("offline-run-*")
    )
    assert list((tmp_path / "tensorboard" / "train").glob("events.out.tfevents.*"))


def test_the_trackers_page_names_every_number_that_is_sent():
    from nanolens.config.names import TRACKER_COLUMNS

    page = (DOCS / "trackers.md").read_text(encoding="utf-8")
    for name in TRACKER_COLUMNS.values():
        rest = name.rpartition("/")[2]
        assert name in page or f"…/{rest}" in page, name


def test_import_nanolens_is_light():
    code = (
        "import sys, nanolens; nanolens.Run; print([m for m in ('torch', 'numpy', 'scipy', 'rich', 'wandb') if m "
        "in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "torch" not in done.stdout and "scipy" not in done.stdout
    bare = subprocess.run(
        [sys.executable, "-c", "import sys, nanolens; print(len(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    )
    none = subprocess.run(
        [sys.executable, "-c", "import sys, typing; print(len(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(bare.stdout) - int(none.stdout) < 10
