"""One side of a comparison: a run, or several that differ by their seed only; and whether losses can be compared."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files

import numpy as np

from nanolens.facts.case import Case
from nanolens.facts.finding import Figure
from nanolens.facts.statistics import mean_error, standard_error
from nanolens.facts.timing import eval_seconds, instant_mfu
from nanolens.message import Message, msg
from nanolens.record.run import RunRecord


@dataclass(frozen=True)
class Axis:
    """What two runs can be compared at equal amounts of."""

    title: Message
    kind: str  # of an amount, one of message.KINDS
    noun: Message  # behind an amount
    lacking: Message  # what has to be known


COMPARISON_TABLES = tomllib.loads(files("nanolens.comparison").joinpath("tables.toml").read_text("utf-8"))
AXES = {
    key: Axis(Message(a["title"]), a["kind"], Message(a["noun"]), Message(a["lacking"], {"option": "--watts=N"}))
    for key, a in COMPARISON_TABLES["axes"].items()
}
FIGURES = {key: (Message(about["what"]), about["kind"]) for key, about in COMPARISON_TABLES["figures"].items()}
"""Of a side: what each attribute is called, and its kind."""
JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class SeedGroup:
    """Runs that count as repeats of one another."""

    name: str
    runs: tuple[RunRecord, ...]


@dataclass(frozen=True)
class ValCurve:
    """Val losses of a side by step: the mean over its runs at the steps that all of them evaluated."""

    step: np.ndarray
    val: np.ndarray

    def __len__(self) -> int:
        return len(self.step)


class Side:
    def __init__(self, group: SeedGroup, name: str = "", *, by_batch_loss: bool = False):
        """`by_batch_loss`: the losses of the updates stand in for evaluations that were not made."""
        assert group.runs, "a side needs a run"
        self.group, self.by_batch_loss = group, by_batch_loss
        self.name, self.title = name or group.name, group.name  # the name is short, for sentences
        self.cases = tuple(Case(run) for run in group.runs)
        self.case, self.count = self.cases[0], len(self.cases)
        self.updates = max(case.last_step for case in self.cases)
        self.device_name = self.case.text("hardware") or self.case.text("device")
        self._measure_cost(self.case)

    def _measure_cost(self, case: Case) -> None:
        """None where a figure is not known."""
        step_s = [each.step_time.value for each in self.cases if each.step_time is not None]
        watts = case.number("watts")
        rated = _product(case.device.watts if case.device else None, case.devices)
        self.step_s = float(np.median(step_s)) if step_s else None
        self.watts = rated if watts is None else watts  # of all devices together
        self.parameters = _value(case.parameters)
        self.tokens_per_update = _value(case.tokens_per_update)
        self.flops_per_token = _value(case.flops_per_token)
        self.tokens_per_s = _ratio(self.tokens_per_update, self.step_s)
        self.flops_per_s = _product(self.tokens_per_s, self.flops_per_token)
        self.peak_flops = _value(case.peak)
        self.mfu = _value(case.true_mfu)
        self.printed_mfu = instant_mfu(case)
        accumulation = case.whole("gradient_accumulation_steps")
        self.micro_batch_s = _ratio(_product(self.step_s, case.devices or 1), accumulation)  # on one device
        self.per_step = {
            "steps": 1.0,
            "tokens": self.tokens_per_update,
            "flops": _product(self.tokens_per_update, self.flops_per_token),
            "time": self.step_s,
            "energy": _product(self.step_s, self.watts),
        }
        self.tokens, self.flops, self.time_s, self.energy_j = map(self.total, ("tokens", "flops", "time", "energy"))
        self.energy_kwh = None if self.energy_j is None else self.energy_j / JOULES_PER_KWH
        self.epochs = _ratio(self.tokens, _value(case.dataset_tokens))

    def total(self, axis: str) -> float | None:
        each = self.per_step[axis]
        return None if each is None else each * self.updates

    @cached_property
    def vals(self) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
        """(steps, losses) of each run: its evaluations, or means of its batch losses over stretches of steps."""
        if self.by_batch_loss:
            return tuple((steps, means) for steps, means, _ in map(_stretches, self.cases))
        return tuple(case.vals for case in self.cases)

    @cached_property
    def eval_error(self) -> float | None:
        """Standard error of one value of the curve."""
        if self.by_batch_loss:
            errors = np.concatenate([error for _, _, error in map(_stretches, self.cases)])
            return float(errors[-1]) if len(errors) and np.isfinite(errors[-1]) else None
        return self.case.eval_noise.value if self.case.eval_noise is not None else None

    @cached_property
    def curve(self) -> ValCurve:
        vals = [dict(zip(*each, strict=True)) for each in self.vals]
        shared = sorted(set.intersection(*(set(each) for each in vals)))
        return ValCurve(np.array(shared, float), np.array([np.mean([each[step] for each in vals]) for step in shared]))

    @property
    def last_val(self) -> float | None:
        return float(self.curve.val[-1]) if len(self.curve) else None

    @property
    def best_val(self) -> float | None:
        return float(self.curve.val.min()) if len(self.curve) else None

    @property
    def best_step(self) -> int | None:
        return int(self.curve.step[np.argmin(self.curve.val)]) if len(self.curve) else None

    def val_at(self, step: float) -> np.ndarray | None:
        """The val loss of each of this side's runs at that step, or None where one of them has no evaluation there."""
        found = [vals[steps == step][-1:] for steps, vals in self.vals]
        return np.concatenate(found) if all(map(len, found)) else None

    def batch_losses_at(self, step: float) -> list[tuple[str, np.ndarray]] | None:
        """(fingerprint, loss of each val batch) of each run at that step, where they were kept."""
        found = []
        for case in () if self.by_batch_loss else self.cases:
            evals = case.evals
            at = np.flatnonzero((evals.step == step) & np.isfinite(evals.val))
            if not len(at) or len(evals.val_batch_losses) <= at[-1] or len(evals.batches) <= at[-1]:
                return None
            if not evals.batches[at[-1]] or len(evals.val_batch_losses[at[-1]]) < 2:
                return None
            found.append((evals.batches[at[-1]], np.asarray(evals.val_batch_losses[at[-1]], float)))
        return found or None

    @property
    def printed_parameters(self) -> int | None:
        """As nanoGPT prints them, where it trained this: without the position table."""
        counted = self.case.counted if self.case.run.conventions.trainer == "nanogpt" else None
        return counted.as_nanogpt_prints if counted is not None else None

    @property
    def eval_s(self) -> float | None:
        """Seconds of one evaluation, as recorded or as the slow lines show it."""
        recorded = self.case.evals.took_s[np.isfinite(self.case.evals.took_s)]
        extra = recorded if len(recorded) else eval_seconds(self.case)[1]
        return float(np.median(extra)) if len(extra) else None


def _value(figure: Figure | None) -> float | None:
    return figure.value if figure is not None and figure.value > 0 else None


def _product(one: float | None, other: float | None) -> float | None:
    return one * other if one and other else None


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None


CURVE_STRETCHES = 24


def _stretches(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(last step, mean, its standard error) of the batch losses over stretches of steps that double every few."""
    steps, losses = case.losses
    if len(steps) < 8:
        return np.zeros(0), np.zeros(0), np.zeros(0)
    ends = np.unique(np.round(np.geomspace(max(2.0, steps[0]), 2.0 ** np.ceil(np.log2(steps[-1])), CURVE_STRETCHES)))
    found = []
    for first, last in itertools.pairwise(ends):
        inside = losses[(steps > first) & (steps <= last)]
        if len(inside) >= 4 and last <= steps[-1]:
            error = mean_error(inside)
            found.append((last, inside.mean(), standard_error(inside) if error is None else error))
    columns = np.array(found, float).reshape(-1, 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]


LONGEST_LABEL = 20


def labels(names: Sequence[str]) -> list[str]:
    """The names themselves where they are short; else their first word where that tells them apart; else letters."""
    if len(set(names)) == len(names) and all(len(name) <= LONGEST_LABEL and ":" not in name for name in names):
        return list(names)
    firsts = [re.split(r"[\s:(,;]", name.strip(), maxsplit=1)[0] for name in names]
    if len(set(firsts)) == len(firsts) and all(0 < len(first) <= LONGEST_LABEL for first in firsts):
        return firsts
    return [chr(ord("A") + i) for i in range(len(names))]


# --- can their losses be compared?

PADDING = 128  # vocabularies that differ by less are one tokenizer, padded differently


@dataclass(frozen=True)
class Comparability:
    unit: str  # "nats" per token, or "bits" per byte
    not_comparable: Message | None
    notes: tuple[Message, ...] = ()


def grounds(sides: Sequence[Side]) -> Comparability:
    """Nats per token where text, tokenizer and context are the same; bits per byte where only the text is."""
    is_same_text = _same(sides, "text_fingerprint") and _same(sides, "block_size") is not False
    has_bits = all(np.isfinite(side.case.evals.val_bits_per_byte).any() for side in sides)
    if is_same_text and has_bits and _same_tokenizer(sides) is False:
        return Comparability("bits", None, (msg("different tokenizers, same text: compared in bits per byte"),))
    because = _not_comparable(sides)
    notes = []
    if because is None and not _data_names(sides):
        notes.append(msg("the logs do not name their data: assumed to be the same"))
    if because is None and any(side.by_batch_loss for side in sides):
        notes.append(msg("there are no evaluations: compared by training loss, averaged over ranges of steps"))
    return Comparability("nats", because, tuple(notes))


def _not_comparable(sides: Sequence[Side]) -> Message | None:
    """Why nats per token of these sides say nothing about each other. Without evaluations the batch losses are all
    there is, and those hold the dropout too."""
    if _same(sides, "block_size") is False:
        contexts = [side.case.whole("block_size") for side in sides]
        return msg("the contexts differ ({contexts:count} tokens): a longer context alone lowers the loss", contexts)
    if _same_tokenizer(sides) is False:
        return msg(
            "the tokenizers differ ({vocabularies:count} tokens): losses per token are not comparable; only bits "
            "per byte on the same text are",
            [int(side.case.vocab_size.value) if side.case.vocab_size else None for side in sides],
        )
    is_other_data = _same(sides, "data_fingerprint") is False and not _same(sides, "text_fingerprint")
    if _same(sides, "val_fingerprint") is False or is_other_data:
        return msg("the val sets differ: different text, different difficulty")
    if len(names := _data_names(sides)) > 1:
        return msg("the val sets differ ({names}): different text, different difficulty", names)
    if any(side.by_batch_loss for side in sides) and _same(sides, "dropout") is False:
        return msg("there are no evaluations, and the training losses were measured with different dropout")
    return None


def _data_names(sides: Sequence[Side]) -> list[str]:
    names = {side.case.corpus.name if side.case.corpus else side.case.text("dataset") for side in sides}
    return sorted(names - {""})


def in_bits_per_byte(group: SeedGroup) -> SeedGroup:
    runs = []
    for run in group.runs:
        evals, bits = run.evals, run.evals.val_bits_per_byte
        with np.errstate(all="ignore"):
            factor = bits / evals.val
        losses = tuple(losses * each for losses, each in zip(evals.val_batch_losses, factor, strict=False))
        in_bits = replace(evals, val=bits, val_se=evals.val_se * factor, val_batch_losses=losses)
        runs.append(replace(run, evals=in_bits))
    return SeedGroup(group.name, tuple(runs))


def _same(sides: Sequence[Side], name: str) -> bool | None:
    """None where a side does not say, and the others do not differ."""
    values = {None if (value := side.case.get(name)) == "" else value for side in sides}
    return False if len(values - {None}) > 1 else None if None in values else True


def _same_tokenizer(sides: Sequence[Side]) -> bool | None:
    by_fingerprint = _same(sides, "tokenizer_fingerprint")
    sizes = [side.case.vocab_size.value for side in sides if side.case.vocab_size is not None]
    if by_fingerprint is not None or len(sizes) < 2:
        return by_fingerprint
    return max(sizes) - min(sizes) < PADDING and max(sizes) / min(sizes) < 1.2
