"""The files of docs/machines.md do what they say: run by a shell, with the scheduler's commands and variables put in
its place.

Only the size is changed: two processes on the CPU and a tiny model, where the page has eight GPUs and GPT-2.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.cli.tiny import SETTINGS, make_data
from tests.training.small import events_of

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]

DOCS = Path(__file__).parents[2] / "docs"
SLURM = {"scontrol": 'echo "127.0.0.1"', "srun": 'exec "$@"'}


def slurm_script() -> str:
    (found,) = re.findall(r"^```\n(#!/bin/bash\n#SBATCH.*?)^```", (DOCS / "machines.md").read_text(), re.M | re.S)
    return found


def skypilot_run() -> str:
    _, _, found = (DOCS / "machines.sky.yaml").read_text().partition("\nrun: |\n")
    return textwrap.dedent(found)


def small(script: str, out: str, updates: int) -> str:
    """The same script with a tiny model, on a port that is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = [
        word
        for word in SETTINGS
        if not word.startswith(("--threads", "--max_iters", "--lr_decay", "--gradient_accumulation"))
    ]
    model = " ".join(
        [
            *settings,
            "--gradient_accumulation_steps=2",
            f"--max_iters={updates}",
            "--checkpoint_interval=5",
            "--sample_interval=0",
        ]
    )
    for old, new in (
        ("nproc_per_node=8", "nproc_per_node=2"),
        ("train gpt2-124m", f"train {model}"),
        ("29500", str(port)),
        ("--dataset=fineweb ", ""),
    ):
        script = script.replace(old, new)
    changed = re.sub(r"--out_dir=\S+", f"--out_dir={out}", script)
    assert model in changed and changed.count("--out_dir=") == 1
    return changed


def run(script: str, here: Path, **more: str) -> None:
    commands = here / "bin"
    commands.mkdir(exist_ok=True)
    for name, does in {**SLURM, "torchrun": f'exec {sys.executable} -m torch.distributed.run "$@"'}.items():
        (commands / name).write_text(f"#!/bin/sh\n{does}\n")
        (commands / name).chmod(0o755)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", **more}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=here,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("script", "variables"),
    [
        (slurm_script(), {"SLURM_NNODES": "1", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "one"}),
        (
            skypilot_run(),
            {
                "SKYPILOT_NODE_IPS": "127.0.0.1",
                "SKYPILOT_NUM_NODES": "1",
                "SKYPILOT_NUM_GPUS_PER_NODE": "2",
                "SKYPILOT_NODE_RANK": "0",
            },
        ),
    ],
    ids=["slurm", "skypilot"],
)
def test_the_script_trains_and_goes_on_when_it_is_started_again(
    script: str, variables: dict[str, str], tmp_path: Path
) -> None:
    make_data(tmp_path)
    out = tmp_path / "run"
    run(small(script, str(out), 10), tmp_path, **variables)
    run(
        small(script, str(out), 20), tmp_path, **variables
    )  # the machine came back: the same script, here with more to do
    steps = [event["step"] for event in events_of(out) if event["event"] == "step_taken"]
    assert steps == list(range(1, 21))


def test_the_setup_of_skypilot_is_a_command_that_exists() -> None:
    setup = (DOCS / "machines.sky.yaml").read_text().partition("\nsetup: |\n")[2].partition("\nrun:")[0]
    (command,) = re.findall(r"nanolens (prepare .*)", setup)
    from nanolens.cli.arguments import Parser

    given = Parser("prepare").parse(command.split()[1:])
    assert given.shards == 4 and str(given.out) == "data/fineweb"
    (extras,) = re.findall(r"\[([\w,]+)\]", setup)
    known = (DOCS.parent / "pyproject.toml").read_text()
    assert "hub" in extras.split(",") and all(f"\n{name} = [" in known for name in extras.split(","))
