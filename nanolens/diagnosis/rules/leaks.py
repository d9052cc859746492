"""Losses that are too low, and checks before the first step."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from nanolens.diagnosis.rule import Answers, Seen, finding, rule
from nanolens.facts import locations
from nanolens.facts.case import LOWEST_VAL_MARGIN, Case
from nanolens.facts.finding import Evidence, Finding, Sureness, known, see
from nanolens.facts.laws import LOSS_LAWS
from nanolens.message import msg

_PREFLIGHT_FINDINGS = {
    "causal_leak": "attention_bug.preflight",
    "val_leak": "val_leak.preflight",
    "frozen_parameters": "frozen_parameters",
}
"""The finding of each pre-flight check."""


@rule("frozen_parameters", "attention_bug", "val_leak", marks=("warned",))
def preflight(case: Case) -> Answers:
    """Findings of the checks before the first step."""
    for mark in case.marks("warned"):
        check = mark.text.partition(":")[0]
        if mark.step != 0 or check not in _PREFLIGHT_FINDINGS:
            continue  # later warnings are diagnoses of this very kind, made while the run went on: nothing new
        failed = Seen(mark.text, msg("passed"), msg("before the first step"), 0)
        sureness: Sureness = "certain"
        if check == "frozen_parameters":
            sureness = "possible" if case.is_pretrained else "likely"
        yield finding(_PREFLIGHT_FINDINGS[check], sureness, failed, command="nanolens prepare")


@rule("val_leak", only=("val_in_train_frac",))
def recorded_overlap(case: Case) -> Answers:
    """Our own preparation counts how much of val stands in train."""
    share = known(case.val_in_train_frac)
    if share >= 0.1:
        seen = Seen(share, (0.0, 0.02), case.where("val_tokens_in_train_frac"))
        yield finding("val_leak.recorded", "certain", seen, command="nanolens prepare")


FLOOR_BITS_PER_BYTE = 0.5  # the best language models of any size stand at about 0.6 on English text


@rule("too_good_to_be_true", "attention_bug", only=("is_from_scratch",), needs=("any_val", "text_levels"))
def too_good(case: Case) -> Answers:
    """The loss is lower than such a model can legitimately reach."""
    best = int(np.nanargmin(case.evals.val if len(case.val_rows) else case.evals.val_bits_per_byte))
    floor = _floor(case, best)
    if floor is None:
        return
    yield finding("too_good_to_be_true", "likely", floor)
    if floor.kind != "nats":
        yield from _sees_future(case, best)


def _floor(case: Case, best: int) -> Evidence | None:
    """What the lowest val loss lies below: of any model in bits per byte, or of a small one on this text in nats."""
    val, per_byte, corpus, size = float(case.evals.val[best]), _bits_per_byte(case, best), case.corpus, case.parameters
    step, where = case.evals.step[best], locations.evaluation(case, best)
    if per_byte is not None and per_byte < FLOOR_BITS_PER_BYTE:
        expected = msg("above {floor:number}", FLOOR_BITS_PER_BYTE)
        how = msg("loss / ln 2 x tokens / bytes; the best models of any size are near 0.6")
        return see(msg("val bits per byte"), per_byte, expected, where, how, "number", step)
    if corpus is None:
        return None
    if corpus.lowest_val is not None and val < corpus.lowest_val - LOWEST_VAL_MARGIN:
        how = msg("lowest known on {corpus:code} ({source})", corpus.name, corpus.lowest_source)
        return see(msg("val loss"), val, corpus.lowest_val, where, how, "nats", step)
    if corpus.is_web_text and size is not None and size.value < 2e9:
        # The law without its data term: what this size would reach on endless web text; for small models generous by
        # 0.2.
        limit = LOSS_LAWS[0].loss(size.value, math.inf)
        if val < limit - 0.15:
            expected = msg("above {limit:nats}", limit)
            how = msg("1.82 + 482 / N^0.348: this size on unlimited web text (arXiv 2404.10102)")
            return see(msg("val loss"), val, expected, where, how, "nats", step)
    return None


def _bits_per_byte(case: Case, best: int) -> float | None:
    recorded = float(case.evals.val_bits_per_byte[best])
    if math.isfinite(recorded):
        return recorded
    bytes_per_token = case.number("bytes_per_token") or (1.0 if case.is_char else None)
    return None if bytes_per_token is None else float(case.evals.val[best]) / math.log(2) / bytes_per_token


def _sees_future(case: Case, best: int) -> Iterator[Finding]:
    """Far too low, and train no lower than val: nothing was memorised, so the answer itself must be visible."""
    train, val = float(case.evals.train[best]), float(case.evals.val[best])
    epochs = case.epochs_at(int(case.evals.step[best]))
    is_memorised = epochs is not None and epochs > 3 and not _was_early(case)
    if not math.isfinite(train) or abs(val - train) > 0.1 * max(val, 0.2) or is_memorised:
        return
    name = "attention_bug" if epochs is None else "attention_bug.after_epochs"
    gap = Seen(val - train, msg("above 0 where text is memorised"), locations.evaluation(case, best))
    yield finding(name, "likely", gap, epochs=epochs)


def _was_early(case: Case) -> bool:
    """Whether the loss was already impossible within the first two passes."""
    for i in case.val_rows:
        epochs, per_byte = case.epochs_at(int(case.evals.step[i])), _bits_per_byte(case, int(i))
        if epochs is not None and epochs <= 2 and per_byte is not None and per_byte < FLOOR_BITS_PER_BYTE:
            return True
    return False


@rule("val_leak", only=("is_from_scratch", "both_splits", "epochs", "memorised_below"))
def val_memorised(case: Case) -> Answers:
    """Train has been memorised and val with it: val holds the training text."""
    last, memorised = int(case.both_splits[-1]), known(case.memorised_below)
    step, train, val = int(case.evals.step[last]), float(case.evals.train[last]), float(case.evals.val[last])
    epochs = known(case.epochs_at(step))
    if epochs < 8 or train > memorised or _was_early(case):
        return
    if abs(val - train) > min(max(0.05 * train, 4 * case.eval_error), 0.12 * train):
        return
    where = locations.evaluation(case, last)
    gap = Seen(val - train, msg("above {least:nats}", 0.1 * train), where)
    expected = msg("above {level:nats} without memorising", memorised)
    how = msg("the lowest level that val can legitimately have on such text")
    low = see(msg("train loss"), train, expected, where, how, "nats", step)
    yield finding("val_leak.memorised", "likely", gap, low, command="nanolens prepare", epochs=epochs)
