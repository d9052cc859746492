"""Two machines, as far as one can have them: network namespaces with addresses of their own and a cable between
them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.distributed.test_torchrun import ENVIRONMENT, make_data, ranks_of, wait_for_step, words
from tests.training.small import events_of

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]

NAMES = ("nanolens-a", "nanolens-b")
ADDRESSES = ("10.97.0.1", "10.97.0.2")


@pytest.fixture
def machines() -> Iterator[tuple[str, str]]:
    if shutil.which("ip") is None or subprocess.run(["ip", "netns", "add", NAMES[0]], capture_output=True).returncode:
        pytest.skip("network namespaces are not permitted here (iproute2 and root are needed)")
    try:
        ip(f"netns add {NAMES[1]}")
        ip(f"link add ns-a netns {NAMES[0]} type veth peer name ns-b netns {NAMES[1]}")
        for name, address, link in zip(NAMES, ADDRESSES, ("ns-a", "ns-b"), strict=True):
            ip(f"-n {name} addr add {address}/24 dev {link}")
            ip(f"-n {name} link set {link} up")
            ip(f"-n {name} link set lo up")
        yield NAMES
    finally:
        for name in NAMES:
            for pid in subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def ip(words: str) -> None:
    done = subprocess.run(["ip", *words.split()], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"ip {words}: {done.stderr.strip()}")


def start(number: int, folder: Path, arguments: list[str]) -> subprocess.Popen:
    """One of two machines: a working folder of its own, torchrun with a rendezvous at the first."""
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes=2",
        "--nproc_per_node=1",
        "--max-restarts=5",
        "--rdzv_backend=c10d",
        f"--rdzv_endpoint={ADDRESSES[0]}:29511",
        "--rdzv_id=test",
        f"--local_addr={ADDRESSES[number]}",
        "--rdzv_conf=is_host=" + ("1" if number == 0 else "0") + ",join_timeout=120,last_call_timeout=3",
        "-m",
        "nanolens",
    ]
    environment = {**ENVIRONMENT, "GLOO_SOCKET_IFNAME": ("ns-a", "ns-b")[number]}
    command = ["ip", "netns", "exec", NAMES[number], *torchrun, *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def both(tmp_path: Path, arguments: list[str]) -> tuple[list[subprocess.Popen], list[Path]]:
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
        make_data(folder)
    return [start(number, folder, arguments) for number, folder in enumerate(folders)], folders


def run_folder(folders: list[Path]) -> Path:
    """Which of the two is the first rank is the rendezvous's choice."""
    until_s = time.monotonic() + 120
    while time.monotonic() < until_s:
        for folder in folders:
            if (folder / "run" / "events.jsonl").exists():
                return folder / "run"
        time.sleep(0.1)
    raise AssertionError("no run began")


def test_two_machines_train_and_one_that_is_killed_comes_back(machines: tuple[str, str], tmp_path: Path):
    group, folders = both(tmp_path, words("run"))
    run = run_folder(folders)
    wait_for_step(run, 12)
    other = 1 - folders.index(run.parent)
    for pid in ranks_of(group[other].pid):
        os.kill(pid, signal.SIGKILL)
    said = [process.communicate(timeout=200)[0] for process in group]
    assert [process.returncode for process in group] == [0, 0], "\n".join(said)
    attempts = {event.get("attempt", 1) for event in events_of(run)}
    steps = [event["step"] for event in events_of(run) if event["event"] == "step_taken"]
    assert max(steps) == 60 and len(attempts) >= 2


def test_a_link_that_is_cut_ends_with_the_name_of_who_is_missing(machines: tuple[str, str], tmp_path: Path):
    group, folders = both(tmp_path, words("run", "--max_iters=1000000", "--rank_timeout=5"))
    run = run_folder(folders)
    wait_for_step(run, 12)
    ip(f"-n {NAMES[1]} link set ns-b down")
    until_s = time.monotonic() + 90
    lost: list[dict] = []
    while not lost and time.monotonic() < until_s:
        time.sleep(0.5)
        lost = [event for event in events_of(run) if event["event"] == "ranks_lost"]
    for process in group:
        process.kill()
        process.communicate()
    assert lost and lost[0]["call"] and lost[0]["waited_s"] >= 4
    assert "cannot be reached" in lost[0]["because"] or "cannot reach the others" in lost[0]["because"]
