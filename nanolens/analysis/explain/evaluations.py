"""Remarks on one evaluation: what was measured, beside the landmarks, the evaluations before it, and the known run of this model and data."""

# ruff: noqa: E501  (sentences stay whole, so that they can be searched for)

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from nanolens.analysis.explain.context import Context
from nanolens.analysis.explain.updates import LARGEST_FOR_PERPLEXITY, landmarks, seen_words
from nanolens.analysis.explanation import Remark
from nanolens.facts.case import Case
from nanolens.facts.references import Reference
from nanolens.message import Message, msg

NEAR = 20  # updates' lines on either side that an evaluation's train loss is set beside
START_SLACK = 0.25  # nats that a fresh model may stand above ln V: GPT-2's initialisation gives up to 0.2


def evaluation_remarks(context: Context, i: int) -> Iterator[Remark]:
    case = context.case
    step = int(case.evals.step[i])
    train, val = float(case.evals.train[i]), float(case.evals.val[i])
    loss = val if math.isfinite(val) else train
    yield from _place(case, step, context.is_new("evaluation"))
    if not math.isfinite(loss):
        if math.isinf(loss) or np.nan_to_num(case.evals.not_finite[i]) > 0:
            yield Remark("nan", msg("The evaluation is not finite: the weights are broken."))
        return
    if context.is_new("how evaluated"):
        yield from _measured(case, i, train, val)
    if step == 0:
        yield from _start(case, loss)
        return
    if context.is_new("units"):
        yield from _units(case, loss)
    yield from landmarks(context)
    yield from _gap(case, i, train, val)
    yield from _dropout_offset(case, i, train)
    yield from _among_the_others(case, i, val)
    yield from _known_run(case, step, val)
    yield from _saved(context, i, val)


def _place(case: Case, step: int, in_full: bool) -> Iterator[Remark]:
    if in_full:
        words = (
            msg("An evaluation of the model as it is after {step:count} updates.", step=step)
            if step
            else msg("An evaluation of the model before its first update.")
        )
        yield Remark("val_loss", words)
    seen = seen_words(case, step)
    if seen is not None and step > 0:
        yield Remark("epoch", seen)


def _measured(case: Case, i: int, train: float, val: float) -> Iterator[Remark]:
    count, error = case.whole("eval_iters"), float(case.evals.val_se[i])
    without = msg("with dropout off") if case.run.words.eval_mode_off_dropout else msg("as this trainer evaluates")
    if math.isfinite(train) and math.isfinite(val):
        on = msg("{count:count} batches of each split", count=count) if count else msg("a few batches of each split")
        yield Remark(
            "val_loss",
            msg(
                "train loss {train:nats}, val loss {val:nats}: nats per token, averaged over {on}, {without}.",
                train=train,
                val=val,
                on=on,
                without=without,
            ),
        )
    elif math.isfinite(val):
        yield Remark("val_loss", msg("val loss {val:nats}: nats per token on text that is not trained on.", val=val))
    if math.isfinite(error):
        yield Remark(
            "standard_error",
            msg("Its standard error is {error:nats}: on other batches it could come out that much higher or lower.", error=error),
        )


def _start(case: Case, loss: float) -> Iterator[Remark]:
    chance = case.ln_vocab
    if chance is None or case.is_pretrained:
        return
    off = loss - chance
    assert case.vocab_size is not None
    vocab = case.vocab_size.value
    if case.is_vocab_guessed:  # told from this very number: no check of it
        words = msg("The model is untrained and guesses. A guess among {vocab:count} tokens has the loss ln {vocab:count} = {chance:nats}, so that is about the size of its vocabulary.",
                    vocab=vocab, chance=chance)  # fmt: skip
    elif abs(off) <= START_SLACK:
        words = msg(
            "The model is untrained and guesses: ln {vocab:count} = {chance:nats} is what that should give, {loss:nats} is what it gives. As it should be.",
            vocab=vocab, chance=chance, loss=loss,
        )  # fmt: skip
    elif off > 0:
        words = msg(
            "The model is untrained: guessing would give ln {vocab:count} = {chance:nats}, it starts {off:nats} above. It is surer than it has reason to be.",
            vocab=vocab, chance=chance, off=off,
        )  # fmt: skip
    else:
        words = msg(
            "Guessing would give ln {vocab:count} = {chance:nats}; it starts {off:nats} below. It knows something already: weights loaded, or another vocabulary.",
            vocab=vocab, chance=chance, off=-off,
        )  # fmt: skip
    yield Remark("ln_v", words)


def _units(case: Case, loss: float) -> Iterator[Remark]:
    if loss > LARGEST_FOR_PERPLEXITY:
        return
    per_byte = bits_per_byte(case, loss)
    if per_byte is not None:
        yield Remark(
            "bits_per_byte",
            msg("In other units: perplexity {ppl:about}, {bpb:about} bits per byte.", ppl=math.exp(loss), bpb=per_byte),
        )
    elif not case.is_char and case.vocab_size is not None:
        yield Remark(
            "bits_per_byte",
            msg(
                "In other units: perplexity {ppl:about}. It is per token, a piece of a word: a loss per character cannot be set beside it.",
                ppl=math.exp(loss),
            ),
        )
    else:
        yield Remark("perplexity", msg("In other units: perplexity {ppl:about}.", ppl=math.exp(loss)))


def bits_per_byte(case: Case, loss: float) -> float | None:
    """loss / ln 2 x tokens / bytes. The characters of Shakespeare are one byte each."""
    per_token = case.number("bytes_per_token")
    if per_token is None and case.corpus is not None and case.corpus.name == "shakespeare_char":
        per_token = 1.0
    return None if not per_token else loss / math.log(2) / per_token


def _gap(case: Case, i: int, train: float, val: float) -> Iterator[Remark]:
    if not (math.isfinite(train) and math.isfinite(val)):
        return
    gap, error = val - train, _gap_error(case, i)
    if gap == 0:
        words = msg("Val and train are equal: nothing is learned by heart here.")
    elif gap < 0:
        words = msg("Val is {gap:nats} below train: nothing is learned by heart here.", gap=-gap)
    elif error is not None and gap <= 2 * error:
        words = msg(
            "Val is {gap:nats} above train, within what the scatter of evaluations can do: nothing is learned by heart so far.", gap=gap
        )
    else:
        words = msg("Val is {gap:nats} above train: the model knows its training text that much better than new text.", gap=gap)
    yield Remark("overfitting", words)


def _gap_error(case: Case, i: int) -> float | None:
    errors = float(case.evals.train_se[i]), float(case.evals.val_se[i])
    if all(map(math.isfinite, errors)):
        return math.hypot(*errors)
    return None if case.eval_noise is None else math.sqrt(2) * case.eval_noise.value


def _dropout_offset(case: Case, i: int, train: float) -> Iterator[Remark]:
    dropout = case.number("dropout")
    losses = _losses_near(case, i)
    if not dropout or not math.isfinite(train) or len(losses) < 2 or losses.min() <= train:
        return
    yield Remark(
        "dropout",
        msg(
            "The updates near it print {range:nats_range}, above this train loss: they are measured with dropout {dropout:number} on, the evaluation without. That is dropout, not noise.",
            range=(float(losses.min()), float(losses.max())), dropout=dropout,
        ),
    )  # fmt: skip


def _losses_near(case: Case, i: int) -> np.ndarray:
    """Batch losses of the updates' lines next to the evaluation, if they are near enough for the weights to be about the same."""
    steps, losses = case.losses
    if not len(steps):
        return np.zeros(0)
    at = float(case.evals.step[i])
    place = int(np.searchsorted(steps, at))
    near = slice(max(0, place - NEAR), place + NEAR)
    kept = np.abs(steps[near] - at) <= max(1.0, 0.02 * at)
    return losses[near][kept]


def _among_the_others(case: Case, i: int, val: float) -> Iterator[Remark]:
    if not math.isfinite(val):
        return
    earlier = np.flatnonzero(np.isfinite(case.evals.val[:i]) & (case.evals.step[:i] > 0))
    if not len(earlier):
        if len(case.evals) > 1:
            yield Remark("val_loss", msg("val loss {val:nats}: the first since the start.", val=val))
        return
    best = earlier[int(np.argmin(case.evals.val[earlier]))]
    lowest, step = float(case.evals.val[best]), int(case.evals.step[best])
    if val == lowest:
        words = msg("val loss {val:nats}: as low as the lowest so far (step {step:count}).", val=val, step=step)
    elif val < lowest:
        words = msg(
            "val loss {val:nats}: the lowest so far, {gain:nats} below the best before it (step {step:count}).",
            val=val,
            gain=lowest - val,
            step=step,
        )
    else:
        words = msg(
            "val loss {val:nats}: {off:nats} above the lowest so far, {lowest:nats} at step {step:count}.",
            val=val,
            off=val - lowest,
            lowest=lowest,
            step=step,
        )
    yield Remark("val_loss", words)


# --- the known run of this model and data


def _known_run(case: Case, step: int, val: float) -> Iterator[Remark]:
    known = case.reference
    if known is None or not math.isfinite(val):
        return
    words = _at_this_step(case, known, step, val) or _at_its_best(known, val) or _at_its_end(known, step, val)
    if words is not None:
        yield Remark("val_loss", words)


def _at_this_step(case: Case, known: Reference, step: int, val: float) -> Message | None:
    same_batch = case.tokens_per_update is not None and known.tokens_per_update == case.tokens_per_update.value
    if not known.val_by_step or not same_batch:
        return None
    before = [point for point in known.val_by_step if point[0] <= step]
    after = [point for point in known.val_by_step if point[0] >= step]
    if before and before[-1][0] == step:
        return msg(
            "The known run of this model and data ({name}) had {theirs:nats} here; this one has {val:nats}.",
            name=known.name, theirs=before[-1][1], val=val,
        )  # fmt: skip
    if before and after:
        return msg(
            "The known run of this model and data ({name}) had {high:nats} at step {left:count} and {low:nats} at step {right:count}; this one has {val:nats}.",
            name=known.name, high=before[-1][1], left=before[-1][0], low=after[0][1], right=after[0][0], val=val,
        )  # fmt: skip
    return None


def _at_its_best(known: Reference, val: float) -> Message | None:
    if known.best_val is None or known.best_step is None:
        return None
    if val <= known.best_val + known.spread:
        return msg(
            "The known run of this model and data ({name}) has its best val loss, {best:rough_nats}, near iteration {step:count}. This is as good.",
            name=known.name, best=known.best_val, step=known.best_step,
        )  # fmt: skip
    return msg(
        "The known run of this model and data ({name}) has its best val loss, {best:rough_nats}, near iteration {step:count}. This is {off:rough_nats} above it.",
        name=known.name, best=known.best_val, step=known.best_step, off=val - known.best_val,
    )  # fmt: skip


def _at_its_end(known: Reference, step: int, val: float) -> Message | None:
    if known.end_val is None or known.end_step is None:
        return None
    return msg(
        "The known run of this model and data ({name}) ends at {end:rough_nats} after {steps:count} updates; this one has {val:nats} after {step:count}.",
        name=known.name, end=known.end_val, steps=known.end_step, val=val, step=step,
    )  # fmt: skip


# --- what was kept of it


def _saved(context: Context, i: int, val: float) -> Iterator[Remark]:
    """nanoGPT says so when it saves; where it did not, the file on disk is of an earlier, better evaluation."""
    case = context.case
    if case.run.words.trainer != "nanogpt":
        return
    if _is_saved_after(context, i):
        yield Remark("checkpoint", msg("These weights were saved."))
    elif _was_better_before(case, i, val) and _saving_is_told(context) and case.get("always_save_checkpoint") is not True:
        yield Remark(
            "checkpoint",
            msg(
                "No line says that these weights were saved: nanoGPT then keeps those of the lowest val loss, and the better weights are still on disk."
            ),
        )


def _is_saved_after(context: Context, i: int) -> bool:
    """A checkpoint line between this evaluation and the next row."""
    case, line = context.case, int(context.case.evals.line[i])
    following = [int(lines[lines > line].min()) for lines in (case.steps.line, case.evals.line) if (lines > line).any()]
    saved = context.checkpoint_lines[context.checkpoint_lines > line]
    return bool(len(saved)) and (not following or int(saved[0]) < min(following))


def _was_better_before(case: Case, i: int, val: float) -> bool:
    earlier = case.evals.val[:i]
    if np.isfinite(earlier).any():
        return float(np.nanmin(earlier)) < val
    known = case.reference
    return known is not None and known.best_val is not None and known.best_step is not None and (
        known.best_val + known.spread < val and known.best_step < case.evals.step[i]
    )  # fmt: skip


def _saving_is_told(context: Context) -> bool:
    """False for a paste without its saving lines: an evaluation that was the best so far must be followed by one."""
    vals = context.case.evals.val
    improved = [j for j in range(1, min(len(vals), 200)) if vals[j] < np.nanmin(vals[:j])]
    return all(_is_saved_after(context, j) for j in improved[:3])
