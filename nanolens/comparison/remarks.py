"""What differed between the sides, whether that can explain a difference in loss, and what a careful reader would say
beside the table: what is not the reason, what nothing explains, a fair test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from nanolens.comparison.side import COMPARISON_TABLES, FIGURES, Comparability, Side
from nanolens.comparison.verdict import AxisOutcome
from nanolens.config.fields import settings
from nanolens.diagnosis import diagnose
from nanolens.facts.laws import LOSS_LAWS, LossLaw
from nanolens.facts.sentences import assumes_another_peak, course_words, lr_course, mfu_meaning, reference_words
from nanolens.message import Message, msg
from nanolens.planning import web_text_loss

Effect = Literal["can", "within_spread", "cannot", "measures"]
"""can: able to change the loss; within_spread: by no more than one run differs from its repeat; cannot: changes speed
or nothing; measures: changes what is measured, not the model."""


@dataclass(frozen=True)
class Difference:
    key: str
    what: Message
    kind: str  # of the values, one of message.KINDS
    values: tuple[object, ...]  # one a side; None where not known
    effect: Effect
    because: Message
    is_derived: bool = False  # follows from other differences


IGNORED = frozenset(
    "out_dir overwrite init_from trackers wandb_log wandb_project wandb_run_name log_interval dataset".split()
)


def differences(sides: Sequence[Side]) -> tuple[Difference, ...]:
    order = ("can", "within_spread", "measures", "cannot")
    return (*sorted((*_settings(sides), *_facts(sides)), key=lambda each: order.index(each.effect)), *_derived(sides))


INNOCENT = frozenset(
    """seed learning_rate min_lr matrix_learning_rate weight_decay beta1 beta2 grad_clip label_smoothing max_iters
    decay_lr schedule warmup_iters lr_decay_iters decay_frac eval_interval eval_iters eval_whole data_order tokens
    epochs flops updates""".split()
)
"""Differences that leave the time of a step as it is."""
UNEXPLAINED_SPEED = 1.2


def unexplained_speed(sides: Sequence[Side], differ: Sequence[Difference]) -> float | None:
    """How many times slower one side's steps are than another's where no known difference can be the reason: the
    machine was then busy, and times say nothing about the configs."""
    times = [side.step_s for side in sides if side.step_s]
    if len(times) < 2 or max(times) <= UNEXPLAINED_SPEED * min(times) or {each.key for each in differ} - INNOCENT:
        return None
    return max(times) / min(times)


def _settings(sides: Sequence[Side]) -> Iterator[Difference]:
    per_update = [side.tokens_per_update for side in sides]
    same_update = None not in per_update and not _differ(per_update)
    for setting in settings().values():
        values = tuple(side.case.get(setting.name) for side in sides)
        if setting.name in IGNORED or not _differ(values):
            continue
        about = COMPARISON_TABLES["settings"].get(setting.name, COMPARISON_TABLES["groups"][setting.group])
        effect, because = about["effect"], Message(about["because"])
        if setting.name in ("batch_size", "gradient_accumulation_steps") and same_update:
            effect, because = "cannot", msg("tokens per update are the same, so the mean gradient is too")
        kind = "rate" if setting.name in ("learning_rate", "min_lr", "matrix_learning_rate") else "number"
        yield Difference(setting.name, msg("{key:code}", setting.name), kind, values, effect, because)


def _facts(sides: Sequence[Side]) -> Iterator[Difference]:
    for key, about in COMPARISON_TABLES["facts"].items():
        values = tuple(_fact(side, key) for side in sides)
        if _differ(values):
            what, because = Message(about["what"]), Message(about["because"])
            yield Difference(key, what, "text", values, about["effect"], because)


def _fact(side: Side, key: str) -> object:
    if key == "hardware":
        return side.device_name or None
    if key == "devices":
        return side.case.devices if side.device_name else None
    return side.case.run.conventions.trainer if key == "trainer" else side.case.get(key) or None


def _derived(sides: Sequence[Side]) -> Iterator[Difference]:
    figures = {"schedule": (msg("learning rate over the run"), "text"), **FIGURES}
    for key, about in COMPARISON_TABLES["derived"].items():
        values = tuple(_derived_value(side, key) for side in sides)
        if _differ(values, tolerance=0.005):
            yield Difference(key, *figures[key], values, "can", Message(about["because"]), is_derived=True)


def _derived_value(side: Side, key: str) -> object:
    if key == "schedule":
        return None if side.case.schedule is None else lr_course(side.case.schedule)
    return float(side.updates) if key == "updates" else getattr(side, key)


def _differ(values: Sequence[object], tolerance: float = 0.0) -> bool:
    """Whether two of the values that are known are not the same. What one side does not say is no difference."""
    known = [value for value in values if value is not None]
    return any(not _is_same(known[0], value, tolerance) for value in known[1:])


def _is_same(one: object, other: object, tolerance: float) -> bool:
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return not abs(one - other) > tolerance * max(abs(one), abs(other))
    return one == other


# --- beside the table

AGREE = 0.02  # nats: batch losses of two runs that are still the same computation, rounding apart
UNEXPLAINED = 0.03  # nats between runs that should be repeats of each other
MANY_STEPS = 10  # losses of the first few updates agree in any two runs: all begin at the logarithm of the vocabulary
TOKENS_PER_PARAMETER = 20.0  # about where compute is spent best
JUMP = 1.5  # a loss that grows by this factor between two lines has blown up


def remarks(
    sides: Sequence[Side], differ: Sequence[Difference], ground: Comparability, results: Sequence[AxisOutcome]
) -> Iterator[Message]:
    yield from ground.notes
    yield from _not_the_device(differ)
    yield from _unexplained(differ, results)
    if len(sides) == 2:
        a, b = sides
        yield from _speed(a, b, differ)
        yield from _micro_batch(a, b, {each.key for each in differ})
        yield from _failure(a, b)
        if ground.not_comparable is None:
            yield from _crossing(a, b)
    yield from _mfu(sides)
    for side in sides:
        yield from _state(side)
    yield from _fair_test(_able(differ), ground)


def _able(differ: Sequence[Difference]) -> list[str]:
    """The settings that differ and can change the loss."""
    return [each.key for each in differ if each.effect == "can" and not each.is_derived]


def _not_the_device(differ: Sequence[Difference]) -> Iterator[Message]:
    able = [key for key in _able(differ) if key != "vocab_size"]
    if able and {"hardware", "device"} & {each.key for each in differ}:
        yield msg(
            "The device is not the cause of the loss difference: {count:count setting|settings} that affect learning "
            "differ ({keys:code}). FP32 on one device is no noisier than 16-bit on another.",
            len(able),
            able[:8],
        )
    for flops in (each.values for each in differ if each.key == "flops"):
        values = [value for value in flops if isinstance(value, float) and value > 0]
        if len(values) == len(flops) and max(values) > 3 * min(values):
            yield msg("The runs differ {times:times} in compute: {values:flops}.", max(values) / min(values), values)


def _unexplained(differ: Sequence[Difference], results: Sequence[AxisOutcome]) -> Iterator[Message]:
    """Equal settings must give equal losses; if not, the runs do not optimise the same thing."""
    lengths = {"updates", "tokens", "epochs", "flops"}
    if any(each.effect == "can" and not (each.is_derived and each.key in lengths) for each in differ):
        return
    at_equal_steps = [verdict for each in results if each.axis == "steps" for verdict in each.verdicts]
    by = max((verdict.by or 0.0 for verdict in at_equal_steps if verdict.result == "ahead"), default=0.0)
    if by < UNEXPLAINED:
        return
    if any(each.effect in ("cannot", "within_spread") for each in differ):
        yield msg(
            "None of the differences can explain {by:nats} at equal steps: such runs agree to about 0.01. The runs "
            "do not optimise the same thing; look for a bug in the code (gradients not averaged over micro-batches "
            "or devices, a different data order, a different loss).",
            by,
        )
    else:
        yield msg(
            "No setting is known to differ, yet the runs are {by:nats} apart, where repeats agree to about 0.01. If "
            "something was changed, it is not in the logs; if nothing was, look for a bug: gradients not averaged "
            "over micro-batches or devices, different data, a different loss.",
            by,
        )


def _speed(a: Side, b: Side, differ: Sequence[Difference]) -> Iterator[Message]:
    if not a.step_s or not b.step_s:
        return
    each, per_step = _in_each(a, a.step_s, b, b.step_s), max(a.step_s, b.step_s) / min(a.step_s, b.step_s)
    if a.tokens_per_s and b.tokens_per_s:
        behind, ahead = (a, b) if a.tokens_per_s < b.tokens_per_s else (b, a)
        yield msg(
            "{behind} is {times:times} slower per token ({slow:tokens_per_s} vs {fast:tokens_per_s}); a normal step "
            "takes {each} ({steps:times}).",
            behind.name,
            max(a.tokens_per_s, b.tokens_per_s) / min(a.tokens_per_s, b.tokens_per_s),
            behind.tokens_per_s,
            ahead.tokens_per_s,
            each,
            per_step,
        )
    elif per_step > 1.02:
        slow = a if a.step_s > b.step_s else b
        yield msg("A step of {slow} takes {times:times} as long ({each}).", slow.name, per_step, each)
    if unexplained_speed((a, b), differ) is not None:
        yield msg(
            "No known difference explains the difference in speed: the machine was probably busy with something else."
        )
    if a.flops_per_s and b.flops_per_s and not 0.67 < (ratio := a.flops_per_s / b.flops_per_s) < 1.5:
        quick = a if ratio > 1 else b
        yield msg("Per FLOP, {quick} is {times:times} faster.", quick.name, max(ratio, 1 / ratio))
    if a.eval_s and b.eval_s and max(a.eval_s, b.eval_s) > 3 * min(a.eval_s, b.eval_s):
        yield msg("One evaluation takes {each}.", _in_each(a, a.eval_s, b, b.eval_s))


def _in_each(a: Side, one_s: float, b: Side, other_s: float) -> Message:
    return msg("{one:seconds} in {first} and {other:seconds} in {second}", one_s, a.name, other_s, b.name)


def _micro_batch(a: Side, b: Side, keys: set[str]) -> Iterator[Message]:
    """A higher MFU with a smaller micro-batch: the matrices, most likely."""
    if "batch_size" not in keys or not {"n_embd", "n_layer", "parameters"} & keys or a.mfu is None or b.mfu is None:
        return
    if not a.micro_batch_s or not b.micro_batch_s or abs(a.mfu - b.mfu) < 0.02:
        return
    sizes = [(side.micro_batch_s, side.case.whole("batch_size")) for side in (a, b)]
    yield msg(
        "MFU {one:share} vs {other:share}: micro-batch and matrix sizes changed together. Larger matrices keep a "
        "device busier; a smaller micro-batch does not ({sizes}). Only testing micro-batch sizes can settle it: "
        "{command:code}.",
        a.mfu,
        b.mfu,
        [msg("{took:seconds} for {count:count sequence|sequences}", took, count) for took, count in sizes],
        "nanolens tune",
    )


def _failure(a: Side, b: Side) -> Iterator[Message]:
    """Two runs that were the same computation until they failed at the same place failed for the same reason."""
    together, fell = agreement(a, b), blown_up_at(a)
    if together is not None and fell is not None and fell == blown_up_at(b):
        yield msg(
            "The two runs agree until step {last:count} and both fail between there and step {next:count}: what "
            "differs between them is not the cause. One update was too large (learning rate, clipping, or something "
            "that starts there).",
            together,
            fell,
        )
    elif together is not None and together >= MANY_STEPS:
        yield msg("The batch losses of the two runs are identical until step {last:count}.", together)


def agreement(a: Side, b: Side) -> int | None:
    """The last step up to which both batch losses agree to rounding, where three lines or more can be compared."""
    steps, in_a, in_b = np.intersect1d(a.case.steps.step, b.case.steps.step, return_indices=True)
    with np.errstate(invalid="ignore"):
        apart = np.abs(a.case.steps.loss[in_a] - b.case.steps.loss[in_b])
    agreed = int(np.argmin(np.append(apart <= AGREE, False)))  # a loss that is not finite agrees with nothing
    return int(steps[agreed - 1]) if agreed >= 3 else None


def blown_up_at(side: Side) -> int | None:
    """The first step whose loss is not finite, or a multiple of the one before."""
    steps, losses = side.case.steps.step, side.case.steps.loss
    before = np.append(np.nan, losses[:-1])
    places = np.flatnonzero(~np.isfinite(losses) | ((losses > JUMP * before) & (losses > before + 2)))
    return int(steps[places[0]]) if len(places) else None


def _crossing(a: Side, b: Side) -> Iterator[Message]:
    """Models of different size on web text: how long the smaller one leads at equal time, by the published laws; and
    what both come to, at equal tokens and at equal time, where the larger one has spent its compute well."""
    small, large = sorted((a, b), key=lambda side: side.parameters or 0.0)
    N, speed = (small.parameters, large.parameters), (small.tokens_per_s, large.tokens_per_s)
    if not (N[0] and N[1] and speed[0] and speed[1]) or small.case.is_char or not small.case.vocab_size:
        return
    if N[1] < 1.2 * N[0] or speed[1] >= speed[0]:
        return
    found = [t for law in LOSS_LAWS if (t := _crossing_s(law, (N[0], N[1]), (speed[0], speed[1]))) is not None]
    if not found:
        return
    yield msg(
        "Which is better at the end depends on the budget. At equal tokens the larger model {large} should end "
        "lower; at equal time the smaller one {small} leads until about {low:seconds} to {high:seconds} "
        "({tokens:tokens} tokens of {small} or more), according to three published scaling laws.",
        large.name,
        small.name,
        min(found),
        max(found),
        min(found) * speed[0],
    )
    batches = (small.tokens_per_update, large.tokens_per_update)
    if not batches[0] or not batches[1]:
        return
    tokens = TOKENS_PER_PARAMETER * N[1]
    seconds = tokens / speed[1]
    corpus = small.case.corpus.name if small.case.corpus is not None else None
    yield msg(
        "Expected on web text: after {tokens:tokens} tokens each, {small} at {one:nats_range} and {large} at "
        "{other:nats_range}; in the {seconds:seconds} that {large} needs for them, {small} sees {more:tokens} and "
        "reaches {later:nats_range} (differences by published scaling laws, from reference runs).",
        tokens,
        small.name,
        web_text_loss(corpus, N[0], tokens, batches[0]),
        large.name,
        web_text_loss(corpus, N[1], tokens, batches[1]),
        seconds,
        speed[0] * seconds,
        web_text_loss(corpus, N[0], speed[0] * seconds, batches[0]),
    )


def _crossing_s(law: LossLaw, N: tuple[float, float], speed: tuple[float, float]) -> float | None:
    seconds = np.geomspace(10, 1e9, 400)
    gap = np.array([law.loss(N[0], speed[0] * t) - law.loss(N[1], speed[1] * t) for t in seconds])
    return float(seconds[np.argmax(gap > 0)]) if gap[0] < 0 and (gap > 0).any() else None


def _mfu(sides: Sequence[Side]) -> Iterator[Message]:
    off = [side for side in sides if side.mfu is not None and side.printed_mfu and assumes_another_peak(side.case)]
    if off:
        yield msg(
            "The printed MFU is {meaning}. Relative to their own devices, the runs reach {shares}.",
            mfu_meaning(off[0].case, off[0].printed_mfu or 0.0),
            [msg("{name} {share:share} of {peak:flops_per_s}", side.name, side.mfu, side.peak_flops) for side in off],
        )


def _state(side: Side) -> Iterator[Message]:
    """A side that has overfitted, as the diagnosis judges it, or that is where this very config is known to end."""
    known, last, course = side.case.reference, side.last_val, course_words(side.case)
    if last is None or side.by_batch_loss:
        return
    overfitting = [each for each in diagnose(side.case.run).findings if each.code == "overfitting"]
    if overfitting and overfitting[0].sureness != "possible":
        yield msg("{name}: {claim}", side.name, overfitting[0].claim)
        words = reference_words(side.case, int(side.curve.step[-1]), last)
        if known is not None and words is not None:
            yield msg("{name}: {reference} ({source})", side.name, words, known.source)
    elif known is not None and known.end_val is not None and abs(last - known.end_val) <= 2 * known.spread:
        yield msg(
            "{name} ended where this config usually ends ({end:rough_nats}, {source}): nothing is wrong, it is "
            "limited by its size and length.",
            side.name,
            known.end_val,
            known.source,
        )
    elif course is not None and course[0] and len(side.curve) >= 4:
        yield msg("{name}: {course}", side.name, course[1])


def _fair_test(able: Sequence[str], ground: Comparability) -> Iterator[Message]:
    if ground.not_comparable is not None:
        yield msg(
            "For a fair comparison, use the same config on both, or score both at equal tokens with the same context "
            "on the same text ({command:code}).",
            "nanolens compare --rescore",
        )
    elif len(able) > 1:
        yield msg(
            "{count:count setting|settings} that affect learning differ at once ({keys:code}): the comparison shows "
            "which combination is better, not which setting made the difference.",
            len(able),
            able[:8],
        )
