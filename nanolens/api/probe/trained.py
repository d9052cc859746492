"""The questions that are answered by training: regularisation, rate, batch and size. Each compares a changed branch with the unchanged."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator

import numpy as np

from nanolens.analysis.probe_noise import noise_scale
from nanolens.api.probe.branches import Branches, Ran
from nanolens.api.probe.look import gradients, look_at
from nanolens.message import msg
from nanolens.probing import experiments as plan
from nanolens.probing.judge import Effect, Reading, foretold, paired_gain

Found = Iterator[Effect | Reading]


def regularisation(branches: Branches) -> Found:
    frame, config = branches.frame, branches.subject.config
    off = config.dropout > 0
    yield measured(branches, plan.with_dropout(frame, 0.0 if off else 0.1), "dropout_too_high" if off else "dropout_too_low", "dropout")
    off = config.weight_decay > 0
    yield measured(branches, plan.with_decay(frame, 0.0 if off else 0.1), "decay_too_high" if off else "decay_too_low", "decay")


def rate(branches: Branches) -> Found:
    """First whether the noise of the rate that is left at the end costs anything; then whether the schedule is at the right height."""
    frame = branches.frame
    yield _of_the_rate(branches)
    is_found = False
    if plan.may_fall_further(frame):
        against = branches.run(plan.as_it_stands(frame))
        falling = measured(branches, plan.to_zero(frame), "rate_too_high", "rate_too_high", against=against)
        yield falling
        is_found = falling.is_clear
    twice = measured(branches, plan.rate_times(frame, plan.HIGHER[0]), "rate_too_low", "rate_too_low")
    hurts = (twice.gain or 0.0) < -2 * twice.se
    if hurts or is_found:
        yield twice
        if hurts and not plan.may_fall_further(frame):
            yield measured(branches, plan.rate_times(frame, 0.5), "rate_too_high_all_along", "rate_lower")
        return
    # At a rate that is far too low, twice of it is not to be seen in a short branch.
    further = measured(branches, plan.rate_times(frame, plan.HIGHER[1]), "rate_too_low", "rate_too_low")
    yield max((twice, further), key=lambda effect: -math.inf if effect.gain is None else effect.gain)


def _of_the_rate(branches: Branches) -> Reading:
    """How much of the present loss is only the noise of the rate, and goes with it."""
    now, planned = branches.judged(branches.subject.checkpoint), branches.reference()
    gain, se = paired_gain(now, planned.val)
    words = msg(
        "{gain:nats} ± {se:nats} of the present val loss goes as the rest of the schedule is played in {count:count} updates",
        gain=gain, se=se, count=branches.frame.updates,
    )  # fmt: skip
    return Reading("rate", words, {"gain": gain, "se": se})


def batch(branches: Branches) -> Found:
    subject, frame = branches.subject, branches.frame
    look = look_at(subject)
    yield from _noise(branches, look)
    slower = _slower(branches, look)
    yield Reading("batch", msg("an update with four times the batch takes {times:times} as long", times=slower), {"slower": slower})
    yield measured(branches, plan.larger_batch(frame, slower), "batch_too_small", "batch")
    smaller = plan.smaller_batch(frame)
    if smaller is not None and subject.config.batch_size * subject.config.gradient_accumulation_steps > 1:
        yield measured(branches, smaller, "batch_too_large", "batch_smaller")


def size(branches: Branches) -> Found:
    """The wider branch has as many updates as the unchanged one. At equal FLOPs it would have fewer: what the run gains in the difference
    is taken off, by the slope of its own curve."""
    frame = branches.frame
    wanted = plan.wider(frame)
    assert wanted is not None
    ratio, rest = plan.wider_cost(frame), frame.rest.updates
    found = measured(branches, wanted, "model_too_small", "size", rest=rest / ratio)
    lost = _slope(branches) * math.log((frame.step + rest) / (frame.step + rest / ratio))
    yield Reading(
        "size",
        msg("twice the width costs {ratio:times} the FLOPs; the updates that this takes are worth {lost:nats} to the run as it is",
            ratio=ratio, lost=lost),
        {"ratio": ratio, "lost": lost},
    )  # fmt: skip
    expected = found.expected or 0.0
    yield dataclasses.replace(found, expected=expected - lost, low=found.low - lost, high=found.high - lost)


def measured(
    branches: Branches, wanted: plan.Branch, cause: str, kind: str, against: Ran | None = None, rest: float | None = None
) -> Effect:
    """`rest`: updates that the change would have for the rest of the run, where they are not those that the run has left."""
    unchanged, changed = against or branches.reference(), branches.run(wanted)
    gain, se = paired_gain(unchanged.val, changed.val)
    if not math.isfinite(gain):
        gain, se = (-math.inf, 0.0)
    longer = (rest or branches.frame.rest.updates) / branches.frame.updates
    expected, low, high = foretold(gain, se, kind, longer) if math.isfinite(gain) else (gain, gain, gain)
    return Effect(
        cause, question_of(cause), wanted.words, gain, se, expected, low, high, wanted.cost, changed.took_s, branch=str(changed.folder)
    )


def question_of(cause: str) -> str:
    head = cause.partition("_")[0]
    return {"dropout": "regularisation", "decay": "regularisation", "rate": "rate", "batch": "batch", "model": "size"}[head]


def _noise(branches: Branches, look) -> Found:
    """The noise scale: how many tokens an update needs until its gradient is as much signal as noise."""
    subject = branches.subject
    batches = [_batch(branches, number, 1) for number in range(plan.NOISE_BATCHES)]
    vectors = [vector for _, vector in gradients(subject, look, batches)]
    squares = np.array([float(vector @ vector) for vector in vectors])
    total = sum(vectors) / len(vectors)
    tokens = subject.config.batch_size * subject.config.block_size
    dots = np.array([float(vector @ total) for vector in vectors])
    scale = noise_scale(squares, float(total @ total), dots, tokens)
    update = subject.config.tokens_per_update
    if scale is None:
        yield Reading("batch", msg("the gradients of single batches have nothing in common that could be measured"), {"noise_scale": None})
        return
    yield Reading(
        "batch",
        msg("noise scale: {scale:tokens} tokens (between {low:tokens} and {high:tokens}); an update of this run has {update:tokens}",
            scale=scale.tokens, low=scale.low, high=scale.high, update=update),
        {"noise_scale": scale.tokens, "low": scale.low, "high": scale.high, "tokens_per_update": update},
    )  # fmt: skip


def _slower(branches: Branches, look) -> float:
    """Seconds of an update with four times the batch over those of one, both in turns, the fastest of each: whatever else the machine does
    slows both."""
    one, four = [], []
    for number in range(plan.TIMED):
        one.append(_seconds(branches, look, _batch(branches, number, 1)))
        four.append(_seconds(branches, look, _batch(branches, number, plan.LARGER)))
    return float(min(plan.LARGER, max(1.0, min(four) / min(one))))


def _seconds(branches: Branches, look, pair) -> float:
    look.machine.synchronize()
    started_at_s = time.perf_counter()
    for _ in gradients(branches.subject, look, [pair]):
        pass
    look.machine.synchronize()
    return time.perf_counter() - started_at_s


def _batch(branches: Branches, number: int, times: int) -> tuple[np.ndarray, np.ndarray]:
    """Batches that the run has not come to yet."""
    from nanolens.data.batches import Shuffled

    config = branches.subject.config
    order = Shuffled(branches.subject.dataset.train, config.block_size, config.seed)
    count = config.batch_size * times
    return order.gather(branches.subject.sample + number * count, count)


def _slope(branches: Branches) -> float:
    """Nats that the loss falls per e-fold of updates, about the step probed."""
    evals, step = branches.subject.run.evals, branches.subject.step
    near = (evals.step >= step / 3) & (evals.step <= step) & np.isfinite(evals.val) & (evals.step > 0)
    if near.sum() < 2:
        return 0.0
    return max(0.0, -float(np.polyfit(np.log(evals.step[near]), evals.val[near], 1)[0]))
