"""The weights do not move: learning rate zero, or a loss that never changes.

What it sees. A learning rate that is 0 on every line (lr_zero), a loss that is the same to four digits from batch to batch
(constant_loss), and a loss that is exactly ln of the vocabulary for every batch although the rate is not zero (dead_init).

Why it matters. Nothing is learned at all, and no amount of waiting changes that.

When it is wrong. A schedule that has decayed to 0 ends with steps that change nothing; that is fine, and the beginning of such a
log shows another rate. One line at rate 0, the first of a warm-up, is fine too. A loss printed with one or two digits may hide its
changes.

What it looks like. The same numbers at every step:

    step 40 | loss 10.8249 | lr 0.0
    step 50 | loss 10.8249 | lr 0.0

What to change. Give a rate above 0. In PyTorch Lightning return the scheduler with interval='step': its default steps once an
epoch, so that a warm-up never leaves its first value. If the rate is sound, look at the gradients: detached graph, zero output
weights, frozen parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from nanolens.analysis import places
from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked
from nanolens.facts.statistics import block_medians
from nanolens.message import msg

CODES = ("lr_zero", "constant_loss", "dead_init", "lr_schedule_mismatch")

USUAL_VOCABULARIES = (65, 256, 8192, 32000, 50257, 50304, 65536, 100277, 128256, 151936)
SAME = 2e-4  # relative spread below which losses are the same number


def look(case: Case) -> Iterator[Finding | NotChecked]:
    rate_is_zero = has_zero_rate(case)
    if rate_is_zero:
        yield from _zero_rate(case)
    losses = case.losses[1]
    if len(losses) < 5:
        yield NotChecked("constant_loss", msg("there are too few losses"))
        return
    if not rate_is_zero:
        yield from _no_progress(case)
        yield from _same_evaluations(case)
    constant = _constant_from(losses)
    if constant is None or (_digits(losses) < 3 and len(losses) - constant < 20 and not rate_is_zero):
        return
    yield _same(case, constant)
    vocab = _uniform_over(case, float(np.median(losses)))
    if not rate_is_zero and constant == 0 and vocab is not None:
        yield _dead(case, vocab)


def has_zero_rate(case: Case) -> bool:
    rates = case.steps.rate[np.isfinite(case.steps.rate)]
    if len(rates) >= 3:
        return float(rates.max()) == 0.0 and not _learns(case)
    return case.number("learning_rate") == 0


def _learns(case: Case) -> bool:
    """A rate that is merely printed with too few digits."""
    losses = case.losses[1]
    return len(losses) >= 8 and float(np.median(losses[-4:])) < 0.97 * float(np.median(losses[:4]))


def _constant_from(losses: np.ndarray) -> int | None:
    """Index from which all losses are the same; None where fewer than five are."""
    last = losses[-1]
    off = np.flatnonzero(np.abs(losses - last) > SAME * max(abs(float(last)), 1e-3))
    start = int(off[-1]) + 1 if len(off) else 0
    return start if len(losses) - start >= 5 else None


def _digits(losses: np.ndarray) -> int:
    """Decimals that the source prints, at most four."""
    few = losses[:200]
    for decimals in range(5):
        if np.allclose(few, np.round(few, decimals), rtol=0, atol=1e-9):
            return decimals
    return 4


def _uniform_over(case: Case, loss: float) -> int | None:
    """The vocabulary over which this loss is that of an even guess. One that is not known is taken from the usual ones where the loss is
    its logarithm to four digits: a model that computes anything at all does not stand there by chance."""
    if case.vocab_size is not None:
        return int(case.vocab_size.value) if abs(loss - math.log(case.vocab_size.value)) < 0.02 else None
    return next((size for size in USUAL_VOCABULARIES if abs(loss - math.log(size)) < 1e-4), None)


def _zero_rate(case: Case) -> Iterator[Finding]:
    rates = case.steps.rate[np.isfinite(case.steps.rate)]
    count = max(len(rates), 1)
    where = places.rows(case, 0, len(case.steps) - 1) if len(case.steps) else case.where("learning_rate")
    evidence = Evidence(
        msg("learning rate on {count:count} lines", count=count), 0.0, (1e-4, 1e-3), where, msg("largest of the printed rates"), "rate"
    )
    change = Change(
        msg("give a learning rate above 0; in Lightning return the scheduler with interval='step'"), key="learning_rate", old=0.0, new=6e-4
    )
    wrong = msg("the rate is merely printed with too few digits, and the loss falls")
    yield Finding("lr_zero", "certain", msg("the learning rate is 0 on every line: the weights do not change"), (evidence,), change, wrong)
    if "warm" in (case.text("scheduler") + case.text("schedule")).lower() or (case.number("warmup_iters") or 0) > 0:
        yield Finding(
            "lr_schedule_mismatch",
            "likely",
            msg("the warm-up never leaves its first value: the scheduler is not stepped with each update"),
            (evidence,),
            Change(msg("step the scheduler after each update (Lightning: interval='step')")),
            wrong,
        )


def _no_progress(case: Case) -> Iterator[Finding]:
    """After a hundred updates beyond the warm-up the loss still is what chance gives."""
    steps, losses = case.losses
    level, rate = case.ln_vocab, case.rate_at(case.last_step)
    warm = case.whole("warmup_iters") or 0
    if level is None or case.is_pretrained or rate is None or rate < 1e-5 or steps[-1] < warm + 100 or steps[0] > 10:
        return
    tail = losses[steps > steps[-1] / 2]
    medians = block_medians(steps, losses, 20)[1]
    if len(tail) < 10 or medians.min() < 0.97 * level or abs(float(np.median(tail)) / level - 1) > 0.015:
        return
    if medians[0] - medians[-1] > 0.01 * level:
        return  # slowly, but it learns
    evidence = Evidence(
        msg("loss after {count:count} updates", count=int(steps[-1])),
        float(np.median(tail)),
        msg("below {level:nats}", level=0.8 * level),
        places.steps(steps[-len(tail)], steps[-1]),
        msg("ln of the vocabulary's size is {level:nats}: chance", level=level),
        "nats",
        int(steps[-1]),
    )
    yield Finding(
        "dead_init",
        "likely",
        msg("nothing is learned: after {count:count} updates the loss is still that of chance", count=int(steps[-1])),
        (evidence,),
        Change(msg("look whether the weights change at all: optimizer.step, gradients, frozen parameters, output weights")),
        msg("the learning rate is still close to 0 in a long warm-up"),
    )


def _same_evaluations(case: Case) -> Iterator[Finding]:
    """The same batches give the same loss to the last digit: the weights have not moved between the evaluations."""
    batches, val = case.evals.batches, case.evals.val
    if len(batches) < 3 or len(set(batches)) > 1 or not batches[0] or not np.isfinite(val).all() or float(np.ptp(val)) > 1e-7:
        return
    evidence = Evidence(
        msg("spread of {count:count} evaluations of the same batches", count=len(val)),
        float(np.ptp(val)),
        msg("above 0"),
        places.evaluations(case, 0, len(val) - 1),
        msg("largest minus smallest val loss"),
        "nats",
        int(case.evals.step[0]),
    )
    yield Finding(
        "dead_init",
        "certain",
        msg("the weights do not change: evaluations of the same batches agree to the last digit"),
        (evidence,),
        Change(msg("look whether the weights change at all: optimizer.step, gradients, frozen parameters, output weights")),
        msg("the evaluations were all made at one step"),
    )


def _same(case: Case, start: int) -> Finding:
    steps, losses = case.losses
    evidence = Evidence(
        msg("spread of {count:count} losses", count=len(losses) - start),
        float(np.ptp(losses[start:])),
        (0.005, 0.3),
        places.steps(steps[start], steps[-1]),
        msg("largest minus smallest: different batches never have the same loss"),
        "nats",
        int(steps[start]),
    )
    return Finding(
        "constant_loss",
        "certain",
        msg("the loss is the same on every line, {loss:nats}", loss=float(np.median(losses[start:]))),
        (evidence,),
        Change(
            msg(
                "check that the weights change after a step (learning rate, gradients, frozen parameters), "
                "and that each step sees another batch"
            )
        ),
        msg("the same batch is trained on purpose with the weights frozen"),
    )


def _dead(case: Case, vocab: int) -> Finding:
    steps, losses = case.losses
    evidence = Evidence(
        msg("loss"),
        float(np.median(losses)),
        msg("below {level:nats} after a few steps", level=math.log(vocab)),
        places.steps(steps[0], steps[-1]),
        msg("ln {vocab:count}: every token equally likely", vocab=vocab),
        "nats",
        int(steps[0]),
    )
    return Finding(
        "dead_init",
        "likely",
        msg("the output is uniform for every batch and stays so: the model is dead from the start"),
        (evidence,),
        Change(msg("look at the initialisation: with all of a layer's weights zero no gradient reaches what lies before it")),
        msg("the learning rate is still close to 0 in a long warm-up"),
    )
