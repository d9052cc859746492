"""Are the numbers sound? The future must not be seen, the same step must give the same result, the precision must do, and every layer must
move."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from nanolens.api.probe.branches import Branches
from nanolens.api.probe.look import Look, gradients, look_at
from nanolens.message import msg
from nanolens.probing import experiments as plan
from nanolens.probing.judge import Effect, Reading
from nanolens.record.events import StepTaken
from nanolens.record.layout import checkpoint_folder

LEAK = 1e-4  # of the largest logit, as before the first step
PRECISION_WORTH_TELLING = 0.02  # of the gradient's length, by which it is off in the run's precision


def numbers(branches: Branches) -> Iterator[Effect | Reading]:
    look = look_at(branches.subject)
    pair = _batch(branches)
    yield from _leak(branches, look, pair)
    yield from _twice(branches, look, pair)
    yield from _moves(branches)


def _batch(branches: Branches) -> tuple[np.ndarray, np.ndarray]:
    from nanolens.data.batches import eval_windows

    config = branches.subject.config
    inputs, targets = next(iter(eval_windows(branches.subject.dataset.val, config.block_size, config.batch_size, 1, 3)))
    return inputs, targets


def _leak(branches: Branches, look: Look, pair: tuple[np.ndarray, np.ndarray]) -> Iterator[Effect | Reading]:
    """Later tokens are changed: what the model says before them must not notice. Where it does, the last position of a window, which has
    nothing after it, shows the loss that the model really has."""
    import torch

    from nanolens.model.loss import logits_of

    inputs, _ = pair
    middle = inputs.shape[1] // 2
    if middle < 1:
        return
    other = inputs.copy()
    other[:, middle:] = (other[:, middle:] + 1) % branches.subject.vocab_size
    with torch.no_grad():
        before, after = (logits_of(look.model, torch.from_numpy(x).to(look.machine.device))[:, :middle].float() for x in (inputs, other))
    seen = float((before - after).abs().max() / before.abs().max().clamp_min(1e-12))
    if seen <= LEAK:
        yield Reading("numbers", msg("no leak: when only later tokens change, predictions stay ({seen:share})", seen=seen), {"leak": seen})
        return
    losses = look.losses(*pair)
    last, others = losses[:, -1], losses[:, : -max(1, middle // 2)].mean(axis=1)
    gap = float(last.mean() - others.mean())
    change = msg(
        "predictions change by {seen:share} when only later tokens change; the loss is {others:nats} where later tokens are to be seen and "
        "{last:nats} at the last token of a window, where none are", seen=seen, others=float(others.mean()), last=float(last.mean()),
    )  # fmt: skip
    error = float(np.std(last - others, ddof=1) / math.sqrt(len(last))) if len(last) > 1 else math.nan
    yield Effect("mask_leak", "numbers", change, -gap, error, -gap, -gap - 2 * error, -gap + 2 * error, 1.0, is_fact=True)


def _twice(branches: Branches, look: Look, pair: tuple[np.ndarray, np.ndarray]) -> Iterator[Effect | Reading]:
    subject = branches.subject
    (one, first), (other, second) = gradients(subject, look, [pair, pair])
    if one == other and bool((first == second).all()):
        yield Reading("numbers", msg("the same batch twice gives the same gradient, to the last bit"), {"same_twice": True})
    else:
        apart = float((first - second).norm() / first.norm())
        change = msg("the same batch twice: the gradient differs by {apart:share} of its length", apart=apart)
        # On a GPU a few bits may differ by the order in which numbers are added; more than that is a fault.
        if apart > 1e-4:
            yield Effect("not_reproducible", "numbers", change, None, math.nan, None, math.nan, math.nan, 2.0, is_fact=True)
        else:
            yield Reading("numbers", change, {"same_twice": False, "apart": apart})
    dtype = str(subject.state.get("choices", {}).get("dtype") or subject.config.dtype)
    if dtype in ("bfloat16", "float16"):
        ((loss, rough),) = gradients(subject, look, [pair], dtype)
        off = float((rough - first).norm() / first.norm())
        change = msg(
            "the same batch in {dtype:code}: loss {loss:nats} instead of {exact:nats}, the gradient off by {off:share} of its length",
            dtype=dtype, loss=loss, exact=one, off=off,
        )  # fmt: skip
        if not math.isfinite(off):
            yield Effect("precision", "numbers", change, None, math.nan, None, math.nan, math.nan, 1.0, is_fact=True)
        else:
            yield Reading("numbers", change, {"dtype": dtype, "loss": loss, "exact": one, "off": off})


def _moves(branches: Branches) -> Iterator[Effect | Reading]:
    """The run's own next updates, in a branch: bit-equal to the run's, where the run has gone on, and showing which tensors change."""
    from nanolens.checkpoint import weights_of

    subject = branches.subject
    (same,) = plan.plan(branches.frame, ("numbers",))[0].branches
    ran = branches.run(same)
    yield from _is_exact(branches, ran.folder, same.updates)
    end = checkpoint_folder(ran.folder, subject.step + same.updates)
    if not end.is_dir():
        return
    after, _ = weights_of(end)
    moved = {}
    for name, tensor in subject.weights.items():
        size = float(tensor.float().norm())
        moved[name] = float((after[name].float() - tensor.float()).norm()) / (size or 1.0)
    still = [name for name, share in moved.items() if share == 0.0]
    if len(still) == len(moved):
        yield Reading("numbers", msg("nothing moves: the learning rate is zero"), {"moved": moved})
        return
    if still:
        weights = sum(subject.weights[name].numel() for name in still)
        share = weights / sum(tensor.numel() for tensor in subject.weights.values())
        change = msg(
            "{count:count} of {all:count} tensors ({share:share} of the weights) do not change at all in {updates:count} updates: "
            "{names:code}", count=len(still), all=len(moved), share=share, updates=same.updates, names=still[:4],
        )  # fmt: skip
        yield Effect("frozen_parameters", "numbers", change, None, math.nan, None, math.nan, math.nan, same.cost, is_fact=True,
                     branch=str(ran.folder))  # fmt: skip
        return
    slowest, fastest = min(moved, key=lambda name: moved[name]), max(moved, key=lambda name: moved[name])
    yield Reading(
        "numbers",
        msg("every tensor moves: in {updates:count} updates {slow:code} by {least:share} of its length, {fast:code} by {most:share}",
            updates=same.updates, slow=slowest, least=moved[slowest], fast=fastest, most=moved[fastest]),
        {"moved": moved},
    )  # fmt: skip


def _is_exact(branches: Branches, folder: Path, updates: int) -> Iterator[Reading]:
    """Where the run has gone on from this step by itself, its losses and the branch's are compared bit by bit."""
    subject = branches.subject
    record = subject.run.steps
    own = dict(zip(record.step.tolist(), record.loss.tolist(), strict=True))
    from nanolens.record.read import events_since

    taken = {event.step: float(event.loss) for event in events_since(folder, 0)[0] if isinstance(event, StepTaken)}
    both = [step for step in taken if step in own]
    if not both:
        return
    differ = [step for step in both if taken[step] != own[step]]
    if not differ:
        words = msg("the unchanged branch repeats the run's own {count:count} updates to the last bit", count=len(both))
    else:
        words = msg(
            "the unchanged branch differs from the run's own continuation in {count:count} of {all:count} updates (by {most:nats} at most):"
            " another machine or version", count=len(differ), all=len(both), most=max(abs(taken[step] - own[step]) for step in differ),
        )  # fmt: skip
    yield Reading("numbers", words, {"exact": not differ, "compared": len(both)})
