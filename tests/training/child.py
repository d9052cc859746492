"""A training in a process of its own, for tests that kill it: `python child.py RUN '{"max_iters": 30}'`; resumes where
there is a run."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from nanolens.record import is_run
from tests.training.small import SMALL, recorded, small_data

if __name__ == "__main__":
    run, changes = Path(sys.argv[1]), json.loads(sys.argv[2])
    outcome = recorded(replace(SMALL, **changes, init_from="resume" if is_run(run) else "scratch"), small_data(), run)
    sys.exit(128 + outcome.signal if outcome.signal else {"finished": 0, "stopped": 3, "failed": 1}[outcome.why])
