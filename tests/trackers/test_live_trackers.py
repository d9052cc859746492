"""While a run goes on: a tracker that hangs, raises or is slow changes nothing for the training, and is told of."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nanolens.config.fields import Config
from nanolens.record import events as e
from nanolens.record.read import read_run
from nanolens.record.write import Recorder, write_run_file
from nanolens.session.listeners import Listeners
from nanolens.trackers.live import Tracking, trackers_asked
from tests.trackers import made

FAKE = '''
"""Looks like wandb, and does what the environment says, at the call that it names."""
import os, time, pathlib, types
def trouble(where):
    pathlib.Path(os.environ["FAKE_CALLS"], where).touch()
    if os.environ["FAKE_AT"] == where:
        if os.environ["FAKE_DOES"] == "raise":
            raise ConnectionError("no such project")
        time.sleep(float(os.environ["FAKE_DOES"]))
trouble("import")
class Settings:
    def __init__(self, **more): self.sync_dir = "somewhere"
class Html:
    def __init__(self, text, inject=True): pass
class Run:
    url, settings, summary = "https://wandb.example/run", Settings(), {}
    def log(self, data, step):
        trouble("log")
        with open(pathlib.Path(os.environ["FAKE_CALLS"], "rows"), "a") as file: file.write(f"{step}\\n")
    def finish(self, exit_code): trouble("finish")
def init(**more):
    trouble("init")
    return Run()
'''


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """fake("log", "60"): a wandb that sleeps so many seconds at that call, or `raise`s. Gives the folder in which it
    notes its calls."""

    def install(at: str, does: str) -> Path:
        for name in ("fake", "calls"):
            (tmp_path / name).mkdir()
        (tmp_path / "fake" / "wandb.py").write_text(FAKE)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "fake"), os.environ.get("PYTHONPATH", "")]))
        monkeypatch.setenv("FAKE_CALLS", str(tmp_path / "calls"))
        monkeypatch.setenv("FAKE_AT", at)
        monkeypatch.setenv("FAKE_DOES", does)
        monkeypatch.setenv("WANDB_MODE", "online")
        return tmp_path / "calls"

    return install


def wait_for(what: Callable[[], bool], within_s: float = 60.0) -> None:
    until_s = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < until_s, "it never came"
        time.sleep(0.02)


def begun(folder: Path) -> tuple[Listeners, Tracking]:
    folder.mkdir()
    write_run_file(folder, made.FACTS)
    tracker = Tracking("wandb", folder)
    listeners = Listeners(Recorder(folder), [tracker])
    tracker._emit = listeners.emit
    listeners.emit(e.RunStarted(step=0, pid=os.getpid()))
    return listeners, tracker


def lives(tracker: Tracking) -> bool:
    return tracker._process is not None and tracker._process.poll() is None


HEAVY = pytest.mark.heavy  # each case is a Python of its own


@pytest.mark.parametrize(
    "at", [pytest.param("import", marks=HEAVY), "init", "log", pytest.param("finish", marks=HEAVY)]
)
def test_the_training_thread_never_waits_for_a_tracker_that_hangs(
    at: str, fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    calls = fake(at, "600")
    listeners, tracker = begun(tmp_path / "run")
    for event in [*made.around(0), *made.events(1, 30)]:
        listeners.emit(event)
    if at != "finish":
        wait_for((calls / at).exists)
        for k in range(31, 1001):
            listeners.emit(made.step(k))  # it comes back from each, although the tracker hangs till it is killed
        assert lives(tracker)
    else:
        wait_for(lambda: len((calls / "rows").read_text().split()) >= 30 if (calls / "rows").exists() else False)
    last = 1000 if at != "finish" else 30
    listeners.emit(made.ended(last))
    if at == "finish":
        wait_for((calls / at).exists)
    wait_for(lambda: tracker._has_ended)
    tracker._grace_s = 0.3
    assert listeners.close() == []
    assert not lives(tracker)
    assert len(read_run(tmp_path / "run").steps) == last, "the record is complete"
    said = tracker.problem()
    assert said is not None and said.args["send"] == f"nanolens send {tmp_path / 'run'} --to=wandb"
    assert said.args["missed"] == (0 if at == "finish" else last)


@pytest.mark.parametrize("at", [pytest.param("import", marks=HEAVY), pytest.param("init", marks=HEAVY), "log"])
def test_a_tracker_that_raises_is_told_of_at_once_and_at_the_end(at: str, fake, tmp_path: Path):
    fake(at, "raise")
    listeners, tracker = begun(tmp_path / "run")
    for event in [*made.around(0), *made.events(1, 30)]:
        listeners.emit(event)
    warned = lambda: "tracker_failed" in (tmp_path / "run" / "events.jsonl").read_text()  # noqa: E731
    wait_for(warned)
    listeners.emit(made.ended(30))
    assert listeners.close() == []
    claims = [mark.text for mark in read_run(tmp_path / "run").marks if mark.kind == "warned"]
    assert claims == ["tracker_failed: wandb: ConnectionError: no such project"]
    said = tracker.problem()
    assert said is not None and (said.args["missed"], said.args["because"]) == (30, "ConnectionError: no such project")


def test_a_tracker_that_is_well_gets_everything_and_nothing_is_said(fake, tmp_path: Path):
    calls = fake("nowhere", "0")
    listeners, tracker = begun(tmp_path / "run")
    wait_for(lambda: tracker._is_shown)
    for event in [*made.around(0), *made.events(1, 30), made.ended(30)]:
        listeners.emit(event)
    wait_for(lambda: tracker._has_ended)
    tracker._grace_s = tracker.patience_s = 60.0
    assert listeners.close() == [] and tracker.problem() is None
    assert (calls / "rows").read_text().split() == [str(k) for k in range(31)]
    assert (calls / "finish").exists()
    chosen = [mark.text for mark in read_run(tmp_path / "run").marks if mark.kind == "chosen"]
    assert chosen == ["wandb = https://wandb.example/run: the run is sent there while it trains"]


def test_a_tracker_process_ends_when_the_training_is_killed(fake, tmp_path: Path):
    """The training is a Python that starts the tracker and is then killed without a word."""
    calls = fake("log", "600")
    code = (
        "import sys, time; from pathlib import Path; from nanolens.trackers.live import _started\n"
        "print(_started('wandb', Path(sys.argv[1])).pid, flush=True); time.sleep(600)"
    )
    folder = made.made_run(tmp_path / "run")
    environment = {**os.environ, "NANOLENS_ORPHAN_S": "0.5"}
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    wait_for((calls / "log").exists)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    import psutil

    wait_for(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE)


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ({}, []),
        ({"wandb_log": True}, ["wandb"]),
        ({"trackers": "tensorboard, trackio"}, ["tensorboard", "trackio"]),
        ({"trackers": "wandb,tensorboard", "wandb_log": True}, ["wandb", "tensorboard"]),
    ],
)
def test_which_trackers_are_asked_for(settings: dict, asked: list[str]):
    assert trackers_asked(Config(**settings)) == asked


def train(*more: str, **options) -> subprocess.Popen:
    from tests.cli.tiny import SETTINGS

    words = [sys.executable, "-m", "nanolens", "train", "quickstart", *SETTINGS, "--out_dir=runs/it", *more]
    return subprocess.Popen(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from tests.cli.tiny import make_data

    monkeypatch.chdir(tmp_path)
    make_data(tmp_path)
    return tmp_path / "runs" / "it"


def test_ctrl_c_with_a_hanging_tracker_saves_and_ends(data: Path, fake):
    calls = fake("log", "600")
    child = train("--wandb_log=True", "--max_iters=1000000", "--lr_decay_iters=1000000", "--eval_interval=100000")
    wait_for((calls / "log").exists)
    child.send_signal(signal.SIGINT)
    said, _ = child.communicate(timeout=60)
    assert child.returncode == 130
    from nanolens.record import checkpoint_folders, step_of
    from nanolens.training.checkpoint import verify

    newest = checkpoint_folders(data)[0]
    assert not verify(newest) and step_of(newest) == read_run(data).steps.step[-1]
    assert re.search(r"wandb was not finished 3\.\d+ s after the run and\s+#?\s*is\s+#?\s*missing", said), said


@pytest.mark.heavy
@pytest.mark.parametrize("tracker", ["tensorboard", "wandb", "trackio"])
def test_a_resumed_training_goes_on_in_the_same_tracker_run(tracker: str, data: Path, monkeypatch: pytest.MonkeyPatch):
    """By the commands, with the libraries themselves: stopped at 20, resumed to 30."""
    pytest.importorskip(tracker)
    from tests.trackers import read_back

    monkeypatch.setenv("TRACKIO_DIR", str(data.parent / "db"))
    monkeypatch.setenv("NANOLENS_TRACKER_S", "90")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for more in ([], ["--init_from=resume", "--max_iters=30"]):
        child = train(f"--trackers={tracker}", "--wandb_project=plays", *more)
        said, _ = child.communicate(timeout=100)
        assert child.returncode == 0, said
        assert "lacks" not in said, said
    if tracker == "tensorboard":
        numbers, _ = read_back.tensorboard(data / "tensorboard")
    elif tracker == "trackio":
        numbers, _, _ = read_back.trackio(data.parent / "db" / "plays.db", "it")
    else:
        folders = sorted((data / "wandb").glob("offline-run-*"))
        assert len({folder.name.rpartition("-")[2] for folder in folders}) == 1, "one id"
        parts = [read_back.wandb(folder)[0] for folder in folders]
        assert not set(parts[0]) & set(parts[1])
        numbers = {**parts[0], **parts[1]}
    run = read_run(data)
    losses = {step: value for (step, name), value in numbers.items() if name == "batch/loss"}
    assert list(losses) == list(range(1, 31))
    assert list(losses.values()) == pytest.approx(run.steps.loss.tolist(), rel=1e-7)
    vals = {step: value for (step, name), value in numbers.items() if name == "val/loss"}
    assert list(vals) == [0, 10, 20, 30] and list(vals.values()) == pytest.approx(run.evals.val.tolist(), rel=1e-7)
    assert json.loads((data / "trackers" / f"{tracker}.json").read_text())["state"] == "finished"


def test_a_missing_library_is_an_error_for_who_types_it_and_a_note_for_a_config_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    from nanolens.config.load import load
    from nanolens.errors import UserError
    from nanolens.trackers import live

    monkeypatch.setattr(live, "is_installed", lambda name: False)
    with pytest.raises(UserError) as raised:
        live.check_trackers(load("quickstart", [("wandb_log", "True")]))
    assert str(raised.value.faults[0].fix) == "run pip install 'nanolens[wandb]'"
    (tmp_path / "train_plays.py").write_text("wandb_log = True\nwandb_project = 'plays'\n")
    settings = load(str(tmp_path / "train_plays.py"))
    (note,) = live.check_trackers(settings)
    assert note.args["send"] == "nanolens send RUN --to=wandb"
    assert live.tracking(settings.config, tmp_path, lambda event: None) == []
