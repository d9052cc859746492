"""One rank of some small trainings, one after another: `python worker.py '[{"run": ..., "config": {...}}, ...]'
'{"float64": true}'`.

Each resumes where there is a run. The last one decides the exit code.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch

from nanolens.record import is_run
from nanolens.training.distributed.group import DistributedRanks, join
from nanolens.training.distributed.ranks import SINGLE_PROCESS
from tests.training.small import SMALL, recorded, small_data

if __name__ == "__main__":
    jobs, options = json.loads(sys.argv[1]), json.loads(sys.argv[2])
    if options.get("float64"):
        torch.set_default_dtype(torch.float64)
    ranks = join() or SINGLE_PROCESS
    if hook := options.get("hook"):
        from tests.distributed import hooks

        getattr(hooks, hook)(ranks)
    for job in jobs:
        run = Path(job["run"])
        resumes = ranks.first_does(lambda run=run: is_run(run))
        changes = dict(job["config"])
        beginning = "resume" if resumes else changes.pop("init_from_run", "scratch")
        config = replace(SMALL, **changes, init_from=beginning)
        outcome = recorded(config, small_data(), run, ranks=ranks)
        if outcome.because is not None:
            print(outcome.because, file=sys.stderr, flush=True)
    if outcome.is_rank_lost:
        os._exit(1)
    if isinstance(ranks, DistributedRanks):
        ranks.end()
    sys.exit(128 + outcome.signal if outcome.signal else {"finished": 0, "stopped": 3, "failed": 1}[outcome.why])
