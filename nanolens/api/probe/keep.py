"""Keeps what probes found: the answer beside the branches, for `diagnose`, and a config for each change that is worth making."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from nanolens import files
from nanolens.api.probe.branches import Branches
from nanolens.api.probe.grow import START
from nanolens.message import Message
from nanolens.present.plan import config_text
from nanolens.probing.judge import Answer, Effect
from nanolens.record.layout import answer_file
from nanolens.show.words import say


def keep(branches: Branches, answer: Answer) -> Answer:
    effects = tuple(dataclasses.replace(effect, next=_next(branches, effect)) for effect in answer.effects)
    answer = dataclasses.replace(answer, effects=effects)
    files.write_whole(answer_file(branches.subject.folder, branches.subject.step), json.dumps(as_plain(answer), indent=1))
    return answer


def as_plain(answer: Answer) -> dict[str, Any]:
    """For JSON: keys and numbers for programs, sentences in English."""
    return {
        "format": 1, "run": answer.run, "step": answer.step, "rest": answer.rest, "is_over": answer.is_over,
        "first": answer.first.cause if answer.first else None,
        "effects": [_effect(effect) for effect in answer.effects],
        "readings": [{"question": r.question, "words": say(r.words), "values": _plain(r.values)} for r in answer.readings],
        "not_asked": [{"question": question, "because": say(because)} for question, because in answer.not_asked],
        "cost": answer.cost, "costs": answer.costs, "run_cost": answer.run_cost, "took_s": answer.took_s,
    }  # fmt: skip


def _effect(effect: Effect) -> dict[str, Any]:
    told = {key: _plain(value) for key, value in dataclasses.asdict(effect).items() if key != "change"}
    return {**told, "title": say(effect.title), "change": say(effect.change), "is_clear": effect.is_clear}


def _plain(value: Any) -> Any:
    if isinstance(value, Message):
        return say(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _next(branches: Branches, effect: Effect) -> str:
    """The command that makes the change for the rest of the run."""
    if not effect.is_clear:
        return ""
    if effect.cause in ("val_differs", "val_in_train", "data_too_little"):
        return "nanolens prepare TEXT... --out=DIR"
    if not effect.branch:
        return ""
    subject, branch = branches.subject, Path(effect.branch)
    wanted = branches.done[branch.name.partition("-")[2]].wanted
    if not wanted.for_the_rest:
        return ""
    path = branch.with_name(branch.name + ".toml")  # one for each change: two of them may mend one cause
    from_ = f"{branch}{START}@{subject.step}" if wanted.is_wider else subject.name
    config = dataclasses.replace(subject.config, **{**wanted.for_the_rest, "init_from": from_, "out_dir": "auto", "overwrite": False})
    files.write_whole(path, config_text(config, f"nanolens probe {subject.name}: {say(effect.title)}"))
    return f"nanolens train {path}"
