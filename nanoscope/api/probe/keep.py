"""Keeps what probes found: the answer beside the branches, for `diagnose`, and a config for each change that is worth making."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from nanoscope import files
from nanoscope.analysis import probe_plan as plan
from nanoscope.analysis.probe import Answer, Effect
from nanoscope.analysis.probe_plan import Frame
from nanoscope.api.probe.grow import START
from nanoscope.api.probe.subject import Subject
from nanoscope.message import Message
from nanoscope.present.plan import config_text
from nanoscope.present.words import say
from nanoscope.record.layout import answer_file, probe_folder


def keep(subject: Subject, frame: Frame, answer: Answer) -> Answer:
    effects = tuple(dataclasses.replace(effect, next=_next(subject, frame, effect)) for effect in answer.effects)
    answer = dataclasses.replace(answer, effects=effects)
    files.write_whole(answer_file(subject.folder, subject.step), json.dumps(as_plain(answer), indent=1))
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


def _next(subject: Subject, frame: Frame, effect: Effect) -> str:
    """The command that makes the change for the rest of the run."""
    if not effect.is_clear:
        return ""
    if effect.cause in ("val_differs", "val_in_train", "data_too_little"):
        return "nanoscope prepare TEXT... --out=DIR"
    wanted = _branch_of(frame, effect)
    if wanted is None:
        return ""
    branch = probe_folder(subject.folder, subject.step, wanted.name)
    path = branch.with_name(branch.name + ".toml")  # one for each change: two of them may mend one cause
    from_ = subject.name
    if wanted.is_wider:
        from_ = f"{probe_folder(subject.folder, subject.step, wanted.name)}{START}@{subject.step}"
    config = dataclasses.replace(subject.config, **{**wanted.for_the_rest, "init_from": from_, "out_dir": "auto", "overwrite": False})
    files.write_whole(path, config_text(config, f"nanoscope probe {subject.name}: {say(effect.title)}"))
    return f"nanoscope train {path}"


def _branch_of(frame: Frame, effect: Effect) -> plan.Branch | None:
    name = effect.branch.replace("\\", "/").rpartition("/")[2].partition("-")[2]
    if name.startswith("batch-x"):
        slower = frame.updates / max(1, _updates_of(effect))
        return plan.larger_batch(frame, slower)
    known = [plan.to_zero(frame), *(plan.rate_times(frame, t) for t in (*plan.HIGHER, 0.5)), plan.smaller_batch(frame), plan.wider(frame)]
    known += [plan.with_dropout(frame, d) for d in (0.0, 0.1)] + [plan.with_decay(frame, d) for d in (0.0, 0.1)]
    return next((each for each in known if each is not None and each.name == name), None)


def _updates_of(effect: Effect) -> int:
    return int(str(effect.change.args["updates"]))
