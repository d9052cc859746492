"""What a careful reader would say beside the table: the device is not the reason, the printed MFU is of another card, nothing that
differs can explain it, both failed at the same place, what would be a fair test."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from nanolens.analysis.compare_axes import Outcome
from nanolens.analysis.compare_differences import Difference, unexplained_speed
from nanolens.analysis.compare_grounds import Grounds
from nanolens.analysis.plan_loss import web_text_loss
from nanolens.comparison.side import Side
from nanolens.facts.laws import LOSS_LAWS, LossLaw
from nanolens.message import Message, msg

AGREE = 0.02  # nats: batch losses of two runs that are still the same computation, rounding apart
UNEXPLAINED = 0.03  # nats between runs that should be repeats of each other
MANY_STEPS = 10  # losses of the first few updates agree in any two runs: all begin at the logarithm of the vocabulary
TOKENS_PER_PARAMETER = 20.0  # about where compute is spent best
JUMP = 1.5  # a loss that grows by this factor between two lines has blown up


def remarks(sides: Sequence[Side], differ: Sequence[Difference], ground: Grounds, results: Sequence[Outcome]) -> Iterator[Message]:
    yield from ground.notes
    yield from _not_the_device(differ)
    yield from _unexplained(sides, differ, results)
    if len(sides) == 2:
        a, b = sides
        yield from _speed(a, b, differ)
        yield from _micro_batch(a, b, differ)
        yield from _failure(a, b)
        yield from _crossing(a, b, ground)
    yield from _mfu(sides)
    yield from _state(sides)
    yield from _fair_test(sides, differ, ground)


def _not_the_device(differ: Sequence[Difference]) -> Iterator[Message]:
    keys = {each.key for each in differ}
    able = [each for each in differ if each.effect == "can" and not each.is_derived and each.key not in ("vocab_size",)]
    if keys & {"hardware", "device"} and able:
        yield msg(
            "The device is not the reason for the loss: {count:count} settings that change learning differ ({keys:code}). "
            "FP32 on one device is no noisier than 16 bit on another.",
            count=len(able),
            keys=[each.key for each in able[:8]],
        )
    flops = next((each for each in differ if each.key == "flops"), None)
    if flops is not None and all(isinstance(value, float) and value > 0 for value in flops.values):
        values = [value for value in flops.values if isinstance(value, float)]
        if max(values) > 3 * min(values):
            yield msg("The runs differ {times:times} in compute: {values:flops}.", times=max(values) / min(values), values=values)


def _unexplained(sides: Sequence[Side], differ: Sequence[Difference], results: Sequence[Outcome]) -> Iterator[Message]:
    """Equal settings must give equal losses; if not, the runs do not optimise the same thing."""
    able = [
        each for each in differ if each.effect == "can" and not (each.is_derived and each.key in ("updates", "tokens", "epochs", "flops"))
    ]
    if able:
        return
    steps = next((each for each in results if each.axis == "steps"), None)
    apart = [verdict.by for verdict in steps.verdicts if verdict.result == "ahead" and verdict.by is not None] if steps is not None else []
    if not apart or max(apart) < UNEXPLAINED:
        return
    if any(each.effect in ("cannot", "within_spread") for each in differ):
        yield msg(
            "Nothing that differs can explain {by:nats} at equal steps: such runs agree to about 0.01. The runs do not "
            "optimise the same thing; "
            "look for a fault in the code (gradients not averaged over micro-batches or devices, another data order, another loss).",
            by=max(apart),
        )
    else:
        yield msg(
            "No setting is known to differ, and {by:nats} lie between the runs, where repeats agree to about 0.01. What "
            "was changed is not in the logs; "
            "if nothing was, look for a fault: gradients not averaged over micro-batches or devices, other data, another loss.",
            by=max(apart),
        )


def _speed(a: Side, b: Side, differ: Sequence[Difference]) -> Iterator[Message]:
    if not a.step_s or not b.step_s:
        return
    slow, fast = (a, b) if a.step_s > b.step_s else (b, a)
    assert slow.step_s and fast.step_s
    per_step = slow.step_s / fast.step_s
    if a.tokens_per_s and b.tokens_per_s:
        behind, ahead = (a, b) if a.tokens_per_s < b.tokens_per_s else (b, a)
        assert behind.tokens_per_s and ahead.tokens_per_s
        yield msg(
            "{behind} is {times:times} slower per token ({slow:tokens_per_s} against {fast:tokens_per_s}); an ordinary "
            "step takes {one:seconds} in {first} and {other:seconds} in {second} ({steps:times}).",
            steps=per_step,
            behind=behind.name,
            times=ahead.tokens_per_s / behind.tokens_per_s,
            slow=behind.tokens_per_s,
            fast=ahead.tokens_per_s,
            one=a.step_s,
            first=a.name,
            other=b.step_s,
            second=b.name,
        )
    elif per_step > 1.02:
        yield msg(
            "A step of {slow} takes {times:times} as long ({one:seconds} against {other:seconds}).",
            slow=slow.name,
            times=per_step,
            one=slow.step_s,
            other=fast.step_s,
        )
    if unexplained_speed((a, b), differ) is not None:
        yield msg("Nothing that is known to differ explains the difference in speed: the machine was probably busy with something else.")
    if a.flops_per_s and b.flops_per_s:
        ratio = a.flops_per_s / b.flops_per_s
        if not 0.67 < ratio < 1.5:
            quick = a if ratio > 1 else b
            yield msg("Per FLOP, {quick} is {times:times} faster.", quick=quick.name, times=max(ratio, 1 / ratio))
    if a.eval_s and b.eval_s and max(a.eval_s, b.eval_s) > 3 * min(a.eval_s, b.eval_s):
        yield msg(
            "One evaluation takes {one:seconds} in {first} and {other:seconds} in {second}.",
            one=a.eval_s,
            first=a.name,
            other=b.eval_s,
            second=b.name,
        )


def _micro_batch(a: Side, b: Side, differ: Sequence[Difference]) -> Iterator[Message]:
    """A higher MFU with a smaller micro-batch: the matrices, most likely."""
    keys = {each.key for each in differ}
    if "batch_size" not in keys or not {"n_embd", "n_layer", "parameters"} & keys or a.mfu is None or b.mfu is None:
        return
    if not a.micro_batch_s or not b.micro_batch_s or abs(a.mfu - b.mfu) < 0.02:
        return
    yield msg(
        "MFU {one:share} against {other:share}: micro-batch and matrices changed together. Larger matrices keep a "
        "device busier; a smaller micro-batch does not ({first_s:seconds} for {first_n:count} sequences, "
        "{second_s:seconds} for {second_n:count}). Only a test of micro-batch sizes decides: {command:code}.",
        one=a.mfu,
        other=b.mfu,
        first_s=a.micro_batch_s,
        first_n=a.case.whole("batch_size"),
        second_s=b.micro_batch_s,
        second_n=b.case.whole("batch_size"),
        command="nanolens tune",
    )


def _failure(a: Side, b: Side) -> Iterator[Message]:
    """Two runs that were the same computation until they failed at the same place failed for the same reason."""
    together = agreement(a, b)
    fell = [blown_up_at(side) for side in (a, b)]
    if together is not None and fell[0] is not None and fell[1] is not None and fell[0] == fell[1]:
        yield msg(
            "The two runs agree until step {last:count} and both fail between there and step {next:count}: whatever "
            "differs between them is not the cause. One update was too large (learning rate, clipping, or something that "
            "starts there).",
            last=together,
            next=fell[0],
        )
    elif together is not None and together >= MANY_STEPS:
        yield msg("The batch losses of the two runs are the same until step {last:count}.", last=together)


def agreement(a: Side, b: Side) -> int | None:
    """The last step up to which the batch losses of both agree to rounding, where at least three lines can be compared."""
    rows_a, rows_b = (dict(zip(side.case.steps.step.tolist(), side.case.steps.loss.tolist(), strict=True)) for side in (a, b))
    shared = sorted(rows_a.keys() & rows_b.keys())
    last, agreed = None, 0
    for step in shared:
        if not (math.isfinite(rows_a[step]) and math.isfinite(rows_b[step])) or abs(rows_a[step] - rows_b[step]) > AGREE:
            break
        last, agreed = step, agreed + 1
    return last if agreed >= 3 else None


def blown_up_at(side: Side) -> int | None:
    """The first step whose loss is not finite or a multiple of the one before, and that is not left again."""
    steps, losses = side.case.steps.step, side.case.steps.loss
    before = math.nan
    for step, loss in zip(steps.tolist(), losses.tolist(), strict=True):
        if not math.isfinite(loss) or (math.isfinite(before) and loss > JUMP * before and loss > before + 2):
            return int(step)
        before = loss
    return None


def _crossing(a: Side, b: Side, ground: Grounds) -> Iterator[Message]:
    """Models of different size on web text: the smaller one leads for a while at equal time. By the published laws, for how long?"""
    small, large = sorted((a, b), key=lambda side: side.case.parameters.value if side.case.parameters else 0.0)
    if ground.not_comparable or small.case.is_char or not small.case.vocab_size or not (small.case.parameters and large.case.parameters):
        return
    N = (small.case.parameters.value, large.case.parameters.value)
    speed = (small.tokens_per_s, large.tokens_per_s)
    if N[1] < 1.2 * N[0] or not speed[0] or not speed[1] or speed[1] >= speed[0]:
        return
    found = [t for law in LOSS_LAWS if (t := _crossing_s(law, N, (speed[0], speed[1]))) is not None]
    if not found:
        return
    yield msg(
        "Which is better at the end depends on the budget. At equal tokens the larger model {large} should end lower; "
        "at equal time the smaller one {small} leads until about {low:seconds} to {high:seconds} ({tokens:tokens} "
        "tokens of {small} or more), by three published laws.",
        large=large.name,
        small=small.name,
        low=min(found),
        high=max(found),
        tokens=min(found) * speed[0],
    )
    yield from _ends(small, large, N, (speed[0], speed[1]))


def _ends(small: Side, large: Side, N: tuple[float, float], speed: tuple[float, float]) -> Iterator[Message]:
    """What both would come to, at equal tokens and at equal time: where the larger one has spent its compute well."""
    batches = (small.tokens_per_update, large.tokens_per_update)
    if not batches[0] or not batches[1]:
        return
    tokens = TOKENS_PER_PARAMETER * N[1]
    seconds = tokens / speed[1]
    corpus = small.case.corpus.name if small.case.corpus is not None else None
    yield msg(
        "What to expect on web text: after {tokens:tokens} tokens each, {small} at {one:nats_range} and {large} at "
        "{other:nats_range}; in the {seconds:seconds} that {large} needs for them, {small} sees {more:tokens} and comes to "
        "{later:nats_range} (differences of published laws from known runs).",
        tokens=tokens, small=small.name, large=large.name, one=web_text_loss(corpus, N[0], tokens, batches[0]),
        other=web_text_loss(corpus, N[1], tokens, batches[1]), seconds=seconds, more=speed[0] * seconds,
        later=web_text_loss(corpus, N[0], speed[0] * seconds, batches[0]),
    )  # fmt: skip


def _crossing_s(law: LossLaw, N: tuple[float, float], speed: tuple[float, float]) -> float | None:
    seconds = np.geomspace(10, 1e9, 400)
    gap = [law.loss(N[0], speed[0] * t) - law.loss(N[1], speed[1] * t) for t in seconds]
    over = [t for t, each in zip(seconds, gap, strict=True) if each > 0]
    return float(over[0]) if over and gap[0] < 0 else None


def _mfu(sides: Sequence[Side]) -> Iterator[Message]:
    off = [side for side in sides if side.case.run.words.peak_flops and side.mfu is not None and side.printed_mfu]
    off = [side for side in off if side.case.peak and abs(side.case.peak.value / (side.case.run.words.peak_flops or 1) - 1) > 0.05]
    if off:
        yield msg(
            "The printed MFU is of another device ({peak:flops_per_s}); of their own devices the runs reach {shares}.",
            peak=off[0].case.run.words.peak_flops,
            shares=[
                msg("{name} {share:share} of {peak:flops_per_s}", name=side.name, share=side.mfu, peak=side.case.peak.value)
                for side in off
                if side.case.peak
            ],
        )


def _state(sides: Sequence[Side]) -> Iterator[Message]:
    """A side that is past its best, or that is exactly where this very config is known to end."""
    for side in sides:
        known, last = side.case.reference, side.last_val
        if last is None:
            continue
        if (
            known is not None
            and known.best_val is not None
            and last > known.best_val + 3 * known.spread
            and side.last_step > (known.best_step or 0)
        ):
            yield msg(
                "{name} is overfit: this config is known to pass {best:nats} near step {at:count} before it rises ({source}); "
                "here it ends at {last:nats} after {steps:count} steps.",
                name=side.name,
                best=known.best_val,
                at=known.best_step,
                source=known.source,
                last=last,
                steps=side.last_step,
            )
        elif known is not None and known.end_val is not None and abs(last - known.end_val) <= 2 * known.spread:
            yield msg(
                "{name} ended where this config is known to end ({end:rough_nats}, {source}): it is limited by its size and "
                "length, not at fault.",
                name=side.name,
                end=known.end_val,
                source=known.source,
            )
        elif side.best is not None and len(side.curve) >= 4 and last > side.best[1] + 0.03 and side.best[0] < 0.8 * side.last_step:
            yield msg(
                "{name} was best at step {at:count} ({best:nats}) and has risen to {last:nats} since.",
                name=side.name,
                at=side.best[0],
                best=side.best[1],
                last=last,
            )


def _fair_test(sides: Sequence[Side], differ: Sequence[Difference], ground: Grounds) -> Iterator[Message]:
    able = [each.key for each in differ if each.effect == "can" and not each.is_derived]
    if ground.not_comparable is not None:
        yield msg(
            "A fair test: the same config on both, or both scored at equal tokens with the same context on the same text ({command:code}).",
            command="nanolens compare --rescore",
        )
    elif len(able) > 1:
        yield msg(
            "{count:count} settings that change learning differ at once ({keys:code}): the comparison tells which whole is "
            "better, not which of them did it.",
            count=len(able),
            keys=able[:8],
        )
