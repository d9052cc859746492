"""The logged loss is multiplied by gradient accumulation, or replicas are not synchronised.

What it sees. A first loss that is a whole multiple of ln V, where the multiple is the number of accumulated micro-batches; and
versions of the transformers library (4.46, 4.47) whose Trainer summed the loss of the micro-batches instead of averaging. In our
own runs: ranks whose weights differ.

Why it matters. Two runs that are the same look twice apart; learning rates are then changed for nothing.

When it is wrong. With accumulation 1 the printed loss is right. Replicas that drift cannot be seen in one log: two runs of equal
batch, rate and data must agree to about 0.01.

What it looks like. ln 50257 is 10.8, and the first loss with accumulation 2 is 21.6.

What to change. Upgrade transformers to 4.48 or later; divide the logged loss by the accumulation before comparing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from nanolens.analysis.symptoms.initial_loss import is_from_first_loss
from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked
from nanolens.message import msg

CODES = ("grad_accum_loss_scaling", "grad_sync_bug")


def look(case: Case) -> Iterator[Finding | NotChecked]:
    yield from _library(case)
    yield from _multiple(case)
    yield from _beside_evaluations(case)
    drifted = [mark for mark in case.run.marks if mark.kind == "rank_drifted"]
    if drifted:
        step = drifted[0].step or 0
        evidence = Evidence(
            msg("checks in which the ranks' weights differed"),
            len(drifted),
            0,
            msg("from step {step:count} on", step=step),
            msg("hash of the parameters on each rank"),
            "count",
            step,
        )
        yield Finding(
            "grad_sync_bug",
            "certain",
            msg("the replicas hold different weights: gradients are not averaged over all of them"),
            (evidence,),
            Change(msg("go back before the drift; set gradient synchronisation before the forward pass of the last micro-batch")),
            msg("the hashes are those of different steps"),
        )
    elif (case.devices or 1) > 1:
        yield NotChecked(
            "grad_sync_bug", msg("one log cannot show whether replicas agree; compare two runs that differ in accumulation only")
        )


def _library(case: Case) -> Iterator[Finding]:
    version = case.text("transformers") or case.text("transformers_version")
    if not re.match(r"4\.4[67](\.|$)", version):
        return
    count = case.whole("gradient_accumulation_steps")
    evidence = Evidence(
        msg("version of transformers"),
        version,
        msg("4.48 or later"),
        case.where("transformers"),
        msg("its Trainer adds up the losses of accumulated micro-batches where the model ignores num_items_in_batch (issues 35204, 37766)"),
        "text",
    )
    claim = (
        msg(
            "this version prints the loss times gradient_accumulation_steps: runs with different accumulation cannot be compared as printed"
        )
        if count is None or count == 1
        else msg("the printed loss is {count:count} times too large: it is the sum over the accumulated micro-batches", count=count)
    )
    yield Finding(
        "grad_accum_loss_scaling",
        "likely",
        claim,
        (evidence,),
        Change(
            msg("upgrade transformers, or divide the printed loss and gradient norm by gradient_accumulation_steps"),
            command="pip install -U transformers",
        ),
        msg("the loss does not change when accumulation is doubled and the micro-batch halved"),
    )


def _beside_evaluations(case: Case) -> Iterator[Finding]:
    """The printed loss stays at a whole multiple of the evaluated one."""
    count = case.whole("gradient_accumulation_steps")
    evals = np.flatnonzero(np.isfinite(case.evals.train) & (case.evals.train > 0) & (case.evals.step > 0))
    steps, losses = case.losses
    if count is None or count < 2 or len(evals) < 2 or len(losses) < 10:
        return
    level = np.interp(steps, case.evals.step[evals], case.evals.train[evals])
    inside = (steps >= case.evals.step[evals[0]]) & (steps <= case.evals.step[evals[-1]])
    if inside.sum() < 5:
        return
    ratio = float(np.median(losses[inside] / level[inside]))
    if abs(ratio / count - 1) > 0.1 or ratio < 1.7:
        return
    evidence = Evidence(
        msg("printed loss over evaluated train loss"),
        ratio,
        1.0,
        msg("{rows:count} steps between evaluations", rows=int(inside.sum())),
        msg("median; gradient_accumulation_steps is {count:count}", count=count),
        "times",
    )
    yield Finding(
        "grad_accum_loss_scaling",
        "likely",
        msg("the printed loss is the sum over {count:count} micro-batches, not their mean", count=count),
        (evidence,),
        Change(msg("divide each micro-batch's loss by gradient_accumulation_steps, both for the gradient and for printing")),
        msg("the evaluation is not of the same text as the training"),
    )


def _multiple(case: Case) -> Iterator[Finding | NotChecked]:
    first, level, count = case.first_loss, case.ln_vocab, case.whole("gradient_accumulation_steps")
    if first is None or level is None or count is None or count < 2 or case.is_pretrained:
        return
    if is_from_first_loss(case):
        return
    if abs(first / (level * count) - 1) > 0.06 or (count == 2 and first < 1.85 * level):
        return
    evidence = Evidence(
        msg("first loss"),
        first,
        level,
        msg("the first line with a loss"),
        msg("{ratio:times} ln V, and gradient_accumulation_steps is {count:count}", ratio=first / level, count=count),
        "nats",
        0,
    )
    yield Finding(
        "grad_accum_loss_scaling",
        "likely",
        msg("the printed loss is the sum over {count:count} micro-batches, not their mean", count=count),
        (evidence,),
        Change(msg("divide each micro-batch's loss by gradient_accumulation_steps, both for the gradient and for printing")),
        msg("the untrained model is confidently wrong: its loss stays when accumulation is 1"),
    )
