"""The measuring process behind `nanolens tune`: one question as JSON on stdin, one line of JSON on stdout for each thing it found out."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from nanolens.api.calibration_worker import opened, peak_bytes
from nanolens.config.fields import Config


def main() -> None:
    _go_first()
    question = json.loads(sys.stdin.read())
    from nanolens.train.tuning import Tuner

    config = Config(**question["config"])
    largest = dataclasses.replace(config, batch_size=max(question["sizes"]))
    data = opened(question["dataset"], largest, question["vocab_size"])
    tuner = Tuner(dataclasses.replace(config, vocab_size=question["vocab_size"]), data, peak_bytes)
    machine = tuner.machine
    _say("machine", {"hardware": machine.hardware, "device": str(machine.device), "dtype": machine.dtype, "threads": machine.threads})
    fastest: tuple[float, int] = (float("inf"), 0)
    for probe in tuner.probes(question["sizes"], question["limit_bytes"]):
        _say("probe", dataclasses.asdict(probe))
        if probe.update_s is not None:
            fastest = min(fastest, (probe.update_s, probe.size))
    is_wanted = question["try_compile"] or (machine.device.type == "cuda" and config.compile is None)
    if is_wanted and fastest[1]:
        _say("compiled", dataclasses.asdict(tuner.compiled(fastest[1])))
    _say("done", {})


def _say(kind: str, found: dict[str, Any]) -> None:
    print(json.dumps({"kind": kind, **found}), flush=True)


def _go_first() -> None:
    """Should memory run out all the same, whatever else takes it: then this process is the one to go. Linux only; elsewhere it is luck."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    main()
