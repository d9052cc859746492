"""The first signal saves and stops at once; the second ends the process on the spot and harms nothing; a kill loses at
most an interval."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nanolens.data.store import Dataset
from nanolens.record import checkpoint_folders, step_of
from nanolens.record.events import RunStarted, StepTaken
from nanolens.training.checkpoint import verify
from tests.training.small import but, digests, evaluations_of, events_of, losses_of, recorded

CHILD = Path(__file__).with_name("child.py")
# By our own exit, or, when the second signal comes after everything is saved, by Python's: a shell reads 143 from both.
TERMINATED = (143, -signal.SIGTERM)


def start(run: Path, **changes) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, str(CHILD), str(run), json.dumps(changes)], env=environment)


def wait_for_step(run: Path, step: int, within_s: float = 60) -> None:
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        path = run / "events.jsonl"
        if path.exists() and f'"step":{step},"loss"' in path.read_text():
            return
        time.sleep(0.005)
    pytest.fail(f"step {step} was not reached within {within_s} s")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_the_current_step_and_ends_with_its_code(number: int, code: int, tmp_path: Path):
    child = start(tmp_path / "run", max_iters=100_000, eval_interval=1000)
    wait_for_step(tmp_path / "run", 5)
    child.send_signal(number)
    assert child.wait(timeout=30) == code
    last = max(losses_of(tmp_path / "run"))
    newest = checkpoint_folders(tmp_path / "run")[0]
    assert step_of(newest) == last
    assert not verify(newest)
    end = events_of(tmp_path / "run")[-1]
    assert (end["event"], end["why"], end["step"]) == ("run_ended", "stopped", last)
    assert not (tmp_path / "run" / "running.json").exists()


def test_a_second_signal_ends_the_process_on_the_spot(tmp_path: Path):
    run = tmp_path / "run"
    child = start(run, max_iters=100_000, eval_interval=1000)
    wait_for_step(run, 3)
    child.send_signal(signal.SIGTERM)
    child.send_signal(signal.SIGTERM)
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=30) in TERMINATED
    assert not any(verify(folder) for folder in checkpoint_folders(run))


def test_the_stop_file_stops_too(data: Dataset, tmp_path: Path):
    run = tmp_path / "run"

    def ask(event):
        if isinstance(event, StepTaken) and event.step == 5:
            (run / "stop-requested").touch()

    outcome = recorded(but(max_iters=100_000, eval_interval=1000), data, run, ask)
    assert (outcome.why, outcome.signal) == ("stopped", None)
    assert 5 <= outcome.step < 10_000
    assert not (run / "stop-requested").exists(), "the request is used up"


@pytest.mark.parametrize("when", ["eval", "sample"])
def test_evaluations_and_samples_are_left_at_once(when: str, data: Dataset, tmp_path: Path):
    """With an evaluation, or a sample, of minutes: the signal is seen inside it."""
    if when == "sample":
        config = but(sample_tokens=100_000, sample_interval=4)
    else:
        config, data = but(eval_whole=True, batch_size=1, block_size=2), replace(data, val=np.tile(data.val, 400))

    def listen(event):
        if isinstance(event, RunStarted):
            threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()

    outcome = recorded(config, data, tmp_path / "run", listen)
    assert (outcome.why, outcome.step) == ("stopped", 0)
    told = [
        event["event"] for event in events_of(tmp_path / "run") if event["event"] in ("evaluated", "sample_written")
    ]
    assert told == (["evaluated"] * 2 if when == "sample" else []), "the signal came inside it"
    assert outcome.parts[when] > 0.1


def chain_of_kills(run: Path, whole: Path, kills: int, rng: random.Random, aim_at_saves: bool, **changes) -> int:
    """Kills at random moments until it has happened `kills` times, then lets the run finish; the number of attempts."""
    attempts = 0
    while True:
        child = start(run, **changes)
        attempts += 1
        if attempts <= kills:
            time.sleep(rng.uniform(0.0, 0.5) if rng.random() < 0.2 else 0)
            if (
                aim_at_saves and rng.random() < 0.6
            ):  # half of them inside a save: something unfinished stands in the folder
                until_s = time.monotonic() + 20
                while (
                    child.poll() is None
                    and time.monotonic() < until_s
                    and not list((run / "checkpoints").glob(".new-*"))
                ):
                    time.sleep(0.001)
            else:
                time.sleep(rng.uniform(1.5, 5.0))
            child.kill()
        code = child.wait()
        if code == 0 and attempts > kills:
            return attempts
        assert code in (0, -signal.SIGKILL), code


def test_a_disk_that_really_takes_no_more_costs_checkpoints_and_not_the_run(tmp_path: Path):
    """No file may grow beyond 60 kB: the first checkpoint fits, later ones (with moments) do not."""
    import resource

    run = tmp_path / "run"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    changes = json.dumps({"max_iters": 12, "eval_interval": 4})
    limited = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))  # noqa: E731
    done = subprocess.run(
        [sys.executable, str(CHILD), str(run), changes], env=environment, preexec_fn=limited, check=False
    )
    told = events_of(run)
    assert done.returncode == 0
    assert max(losses_of(run)) == 12
    failed = [event for event in told if event["event"] == "checkpoint_failed"]
    assert [event["step"] for event in failed] == [4, 8, 12]
    assert all(event["because"] for event in failed)
    assert [folder.name for folder in checkpoint_folders(run)] == ["step-000000"]
    assert not verify(checkpoint_folders(run)[0])
    assert not list((run / "checkpoints").glob(".new-*")), "what could not be finished is cleared away"


@pytest.mark.heavy
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", range(20))
def test_signals_at_random_moments_end_with_the_current_step_saved(number: int, tmp_path: Path):
    """Loading, checking, stepping, evaluating, sampling, saving: wherever it hits. Every fourth time there are two of
    them."""
    rng = random.Random(number)
    run = tmp_path / "run"
    child = start(
        run,
        max_iters=100_000,
        eval_interval=20,
        eval_iters=20,
        sample_interval=20,
        sample_tokens=50,
        gradient_accumulation_steps=3,
    )
    wait_for_step(run, 1)
    time.sleep(rng.uniform(0, 3))
    child.send_signal(signal.SIGTERM)
    if number % 4 == 0:
        time.sleep(rng.uniform(0, 0.05))
        child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=60) in (TERMINATED if number % 4 == 0 else (143,))
    folders = checkpoint_folders(run)
    assert not any(verify(folder) for folder in folders)
    if number % 4:
        assert step_of(folders[0]) == max(losses_of(run))


@pytest.mark.heavy
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("order", ["shuffled", "nanogpt"])
def test_thirty_kills_end_in_the_same_bits_as_none(order: str, tmp_path: Path):
    changes = {
        "max_iters": 3000,
        "eval_interval": 50,
        "data_order": order,
        "dropout": 0.1,
        "gradient_accumulation_steps": 2,
    }
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert start(whole, **changes).wait() == 0
    chain_of_kills(run, whole, 30 if order == "shuffled" else 10, random.Random(0), True, **changes)
    last = step_of(checkpoint_folders(whole)[0])
    assert last is not None
    assert digests(run, last) == digests(whole, last)
    assert losses_of(run) == losses_of(whole)
    assert evaluations_of(run) == evaluations_of(whole)
    assert not list((run / "checkpoints").glob(".new-*")), "nothing half-written is left"


def test_two_kills_end_in_the_same_bits_as_none(tmp_path: Path):
    changes = {"max_iters": 60, "eval_interval": 10}
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert start(whole, **changes).wait() == 0
    for step in (7, 25):
        child = start(run, **changes)
        wait_for_step(run, step)
        child.kill()
        assert child.wait() == -signal.SIGKILL
    assert start(run, **changes).wait() == 0
    assert digests(run, 60) == digests(whole, 60)
    assert losses_of(run) == losses_of(whole)
    assert evaluations_of(run) == evaluations_of(whole)
