"""The benchmark itself, on little text: it runs, and the ids it compares are equal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "prepare.py"


@pytest.mark.heavy
@pytest.mark.parametrize("what", ["speed", "parquet"])
def test_the_benchmark_runs_on_a_few_megabytes(what: str, tmp_path: Path):
    command = [sys.executable, str(BENCH), what, "--megabytes=6", "--rounds=1", f"--folder={tmp_path}"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "ids identical: True" in said if what == "speed" else "share of the work: " in said
    assert list(tmp_path.iterdir()) == []
