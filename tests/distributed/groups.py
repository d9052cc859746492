"""Starting groups of ranks for tests, without torchrun's seconds."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def start(size: int, jobs: dict[Path, dict[str, Any]], **options: Any) -> list[subprocess.Popen]:
    """`jobs`: run folders and what differs from the small config; done one after another by the same processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    listed = [{"run": str(run), "config": changes} for run, changes in jobs.items()]
    words = [sys.executable, "-m", "tests.distributed.worker", json.dumps(listed), json.dumps(options)]
    shared = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(size),
    }
    shared.pop("TORCHELASTIC_RUN_ID", None)
    if size == 1:
        return [subprocess.Popen(words, env=shared, stderr=subprocess.PIPE, text=True)]
    return [
        subprocess.Popen(
            words, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stderr=subprocess.PIPE, text=True
        )
        for rank in range(size)
    ]


def ends(processes: list[subprocess.Popen], timeout_s: float = 900) -> tuple[list[int], list[str]]:
    said = [process.communicate(timeout=timeout_s)[1] for process in processes]
    return [process.returncode for process in processes], said


def trained(size: int, jobs: dict[Path, dict[str, Any]], **options: Any) -> None:
    codes, said = ends(start(size, jobs, **options))
    assert codes == [0] * size, "\n".join(said)
