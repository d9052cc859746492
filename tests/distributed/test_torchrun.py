"""As users start it: torchrun, `--devices`, restarts after a rank died, signals to the launcher; and twenty random
kills."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.tiny import SETTINGS, make_data
from tests.training.small import digests, events_of, losses_of

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
STEPS = 60


@pytest.fixture
def here(tmp_path: Path) -> Path:
    make_data(tmp_path)
    return tmp_path


def words(run: str, *more: str) -> list[str]:
    settings = [
        word
        for word in SETTINGS
        if not word.startswith(("--threads", "--max_iters", "--gradient_accumulation", "--lr_decay"))
    ]
    return [
        "train",
        *settings,
        "--gradient_accumulation_steps=2",
        f"--max_iters={STEPS}",
        f"--lr_decay_iters={STEPS}",
        "--checkpoint_interval=5",
        "--eval_interval=20",
        "--sample_interval=0",
        f"--out_dir={run}",
        "--log_interval=10",
        *more,
    ]


def devices(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "nanolens", *arguments, "--devices=2", "--max_restarts=30"]


def torchrun(*arguments: str) -> list[str]:
    return [*TORCHRUN, "--max-restarts=30", "-m", "nanolens", *arguments]


def start(command: list[str], here: Path) -> subprocess.Popen:
    return subprocess.Popen(
        command, cwd=here, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def done(command: list[str], here: Path) -> str:
    process = start(command, here)
    said = process.communicate(timeout=200)[0]
    assert process.returncode == 0, said
    return said


def test_one_rank_speaks_and_the_run_is_that_of_one_process(here: Path):
    said = done(torchrun(*words("many")), here)
    assert said.count("step 0: train loss") == 1 and said.count("# many finished") == 1
    done([sys.executable, "-m", "nanolens", *words("one")], here)
    one, many = losses_of(here / "one"), losses_of(here / "many")
    assert many.keys() == one.keys()
    assert all(many[step][0] == pytest.approx(loss, abs=2e-4) for step, (loss, _) in one.items())


def test_mistakes_are_told_once(here: Path):
    process = start(devices(*words("run"), "--batch_size=5", "--gradient_accumulation_steps=1"), here)
    said = process.communicate(timeout=100)[0]
    assert process.returncode == 1
    assert said.count("cannot be divided equally among 2 ranks") == 1 and "Traceback" not in said
    process = start(devices(*words("run"), "--learning_rate=-1"), here)
    assert process.communicate(timeout=100)[0].count("learning_rate = -1") == 1


@pytest.mark.parametrize("launched", [devices, torchrun])
def test_a_signal_to_the_launcher_saves_and_stops_everywhere(launched, here: Path):
    process = start(launched(*words("run", "--max_iters=100000")), here)
    wait_for_step(here / "run", 8)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=60)[0]
    assert process.returncode != 0
    ended = [event for event in events_of(here / "run") if event["event"] == "run_ended"]
    assert [event["why"] for event in ended] == ["stopped"], said
    assert (here / "run" / "checkpoints" / f"step-{ended[0]['step']:06d}" / "manifest.json").is_file()
    assert not ranks_of(process.pid)


def test_a_rank_that_dies_is_replaced_and_training_goes_on_by_itself(here: Path):
    """By torchrun; what `--devices` does is killed twenty times below."""
    whole = done(devices(*words("whole")), here)
    assert "whole finished" in whole
    process = start(torchrun(*words("run")), here)
    wait_for_step(here / "run", 12)
    os.kill(random.choice(ranks_of(process.pid)), signal.SIGKILL)
    said = process.communicate(timeout=200)[0]
    assert process.returncode == 0, said
    assert max(event.get("attempt", 1) for event in events_of(here / "run")) == 2
    assert digests(here / "run", STEPS) == digests(here / "whole", STEPS)
    assert losses_of(here / "run") == losses_of(here / "whole")


@pytest.mark.timeout(900)
def test_twenty_random_kills_of_ranks_and_launchers_change_no_bit(here: Path):
    """A killed rank is replaced by its launcher; a killed launcher is started again, as a scheduler would. Most die
    within some steps of their start, some while they start."""
    steps, kills, draw = 600, 20, random.Random(7)
    long = (f"--max_iters={steps}", f"--lr_decay_iters={steps}", "--eval_interval=200")
    done(devices(*words("whole", *long)), here)
    command = devices(*words("run", *long, "--init_from=auto"))
    process = start(command, here)
    for number in range(kills):
        if number % 4 == 3:
            time.sleep(draw.uniform(0, 4))
        else:
            wait_for_step(here / "run", steps_told(here / "run") + draw.randint(1, 25), process)
        if process.poll() == 0:
            break  # quicker than the kills; how many there were is counted below
        victims = ranks_of(process.pid)
        assert process.poll() is None, process.communicate()[0]
        if number % 3 == 2 or not victims:
            process.kill()
            process.communicate()
            wait_until_gone(victims)
            process = start(command, here)
        else:
            os.kill(draw.choice(victims), signal.SIGKILL)
    said = process.communicate(timeout=300)[0]
    assert process.returncode == 0, said
    assert max(event.get("attempt", 1) for event in events_of(here / "run")) > kills // 2
    assert digests(here / "run", steps) == digests(here / "whole", steps)
    assert losses_of(here / "run") == losses_of(here / "whole")


def steps_told(run: Path) -> int:
    return (run / "events.jsonl").read_bytes().count(b'"step_taken"') if (run / "events.jsonl").exists() else 0


def ranks_of(launcher: int) -> list[int]:
    import psutil

    try:
        children = psutil.Process(launcher).children(recursive=True)
        return [
            child.pid for child in children if "nanolens" in " ".join(child.cmdline()) and "RANK" in child.environ()
        ]
    except psutil.Error:
        return []


def wait_until_gone(processes: list[int]) -> None:
    import psutil

    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in processes if psutil.pid_exists(pid)], timeout=60)
    assert not alive, "ranks whose launcher is gone stop by themselves"


def wait_for_step(run: Path, step: int, process: subprocess.Popen | None = None) -> None:
    """Or for the end of the process."""
    until_s = time.monotonic() + 120
    while time.monotonic() < until_s:
        if process is not None and process.poll() is not None:
            return
        if (run / "events.jsonl").exists() and (run / "events.jsonl").read_bytes().count(b'"step_taken"') >= step:
            return
        time.sleep(0.05)
    raise AssertionError("the run did not begin")
