"""Remarks on single lines of a log, or rows of a run folder: updates, and evaluations."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from nanolens.explanation.pick import Said
from nanolens.facts import sentences, timing
from nanolens.facts.case import Case
from nanolens.message import Message, msg

SAME_MFU = 0.0006  # two printed MFUs that agree but for the rounding to two decimals, twice
NEAR_STEPS = 20  # updates' lines on either side that an evaluation's train loss is set beside
START_SLACK = 0.25  # nats that a fresh model may stand above ln V: GPT-2's initialisation gives up to 0.2


class LineContext:
    """What the remarks on all rows share: computed once, since a run may have a million rows."""

    def __init__(self, case: Case, mentions: set[str] | None = None):
        """`mentions`: what an earlier reading of the same source has said, and needs saying once only."""
        self.case, self.mentions = case, set() if mentions is None else mentions
        self.holds_eval, self.is_first = timing.holds_eval(case), timing.is_first(case)
        self.is_slow, self.is_broken = timing.slow_rows(case), timing.broken_rows(case)
        self.checkpoint_lines = np.array(sorted(mark.line for mark in case.marks("checkpoint")), np.int64)
        self.placeholder_lines = {mark.line for mark in case.marks("sentinel") if "mfu" in mark.text.lower()}

    def is_new(self, what: str) -> bool:
        """Whether this has not been mentioned before; from now on it has."""
        is_new = what not in self.mentions
        self.mentions.add(what)
        return is_new


# --- one update


def update_remarks(context: LineContext, i: int) -> Iterator[Said]:
    case, in_full = context.case, context.is_new("update")
    step, is_last = int(case.steps.step[i]), i == len(case.steps) - 1
    if in_full and case.run.conventions.updates_before_printed == 1:
        printed = f"{'iter' if case.run.conventions.trainer == 'nanogpt' else 'step'} {int(case.steps.printed[i])}"
        words = msg(
            "{printed:code} is the update from step {before:count} to step {after:count}.", printed, step - 1, step
        )
        yield "step", words
    if in_full or is_last:
        yield "epoch", sentences.seen_words(case, step)
    yield from _loss(context, i, in_full)
    if in_full or is_last:
        recorded = float(case.steps.lr[i])
        lr = recorded if math.isfinite(recorded) else case.lr_at(step - 1)
        yield "learning_rate", None if lr is None else sentences.lr_words(case.schedule, step - 1, lr)
    yield from _gradient(context, i)
    yield from _time(context, i)
    yield from _mfu(context, i)


def _loss(context: LineContext, i: int, in_full: bool) -> Iterator[Said]:
    case = context.case
    loss = float(case.steps.loss[i])
    if math.isnan(loss) and not context.is_broken[i]:
        return  # the source says none here
    if not math.isfinite(loss) and not context.is_new("broken"):
        yield "nan", msg("loss {loss:number}, as before.", loss)
    elif not math.isfinite(loss):
        words = msg(
            "The loss is {loss:number}: training has broken down numerically, and nothing after this is meaningful.",
            loss,
        )
        yield "nan", words
    elif in_full:
        dropout = case.number("dropout")
        known = msg("with dropout {dropout:number} on", dropout) if dropout else msg("without dropout")
        words = msg(
            "loss {loss:nats}: how far off the model's predictions were, in nats per token, on {what}, {dropout}.",
            loss,
            _measured_on(case),
            msg("with dropout as trained") if dropout is None else known,
        )
        yield "loss", words
        yield "perplexity", sentences.perplexity_words(loss)
        yield "ln_v", _landmarks(context)
        yield "val_loss", _beside_evaluation(case, i)
    else:
        yield "loss", _against_the_one_before(case, i, loss)


def _measured_on(case: Case) -> Message:
    accumulation, micro, kind = micro_batches(case), case.micro_batch_tokens, case.run.conventions.loss
    if kind == "last_micro_batch" and accumulation == 1 and micro:
        return msg("the one batch of this update, {tokens:count} tokens", micro)
    if kind == "last_micro_batch" and accumulation and micro:
        return msg(
            "the last of the {count:count micro-batch|micro-batches} of this update, {tokens:count} of its "
            "{all:count} tokens",
            accumulation,
            micro,
            micro * accumulation,
        )
    kinds = {
        "last_micro_batch": msg("the last micro-batch of this update"),
        "mean": msg("the whole batch of this update"),
        "smoothed": msg("the batches of recent updates, averaged"),
    }
    return kinds.get(kind, msg("a batch of the training text"))


def micro_batches(case: Case) -> int | None:
    """Of one update, as time and MFU prove them, or as configured; None where the two do not fit together."""
    per_update, micro = case.tokens_per_update, case.micro_batch_tokens
    if per_update is None or not micro:
        return None
    count = per_update.value / micro
    return round(count) if count >= 0.5 and abs(count - round(count)) < 0.02 * count else None


def _landmarks(context: LineContext) -> Message | None:
    case = context.case
    if case.is_vocab_guessed and len(case.evals) and case.evals.step[0] == 0:
        return None  # said there
    words = sentences.landmark_words(case)
    return words if words is not None and context.is_new("landmarks") else None


def _beside_evaluation(case: Case, i: int) -> Message | None:
    """One micro-batch beside the average of many: the reader who sees both asks which is true."""
    rows = np.flatnonzero(np.isfinite(case.evals.train) & (case.evals.step > 0))
    if case.run.conventions.loss != "last_micro_batch" or (micro_batches(case) or 1) < 2 or not len(rows):
        return None
    nearest = rows[int(np.argmin(np.abs(case.evals.step[rows] - case.steps.step[i])))]
    return msg(
        "Such a small sample is noisy: it may be a few tenths of a nat away from the evaluation, which averages "
        "many batches ({train:nats} at step {step:count}). That is noise in the printed number, not in the "
        "training.",
        float(case.evals.train[nearest]),
        int(case.evals.step[nearest]),
    )


def _against_the_one_before(case: Case, i: int, loss: float) -> Message:
    before = [each for each in case.steps.loss[max(0, i - 49) : i].tolist() if math.isfinite(each)]
    if not before:
        return msg("loss {loss:nats}.", loss)
    change, noise = loss - before[-1], case.batch_noise
    values: dict[str, object] = {"loss": loss, "size": abs(change)}
    values["direction"] = msg("above") if change > 0 else msg("below")
    if change == 0:
        return msg("loss {loss:nats}: the same as on the line before.", loss)
    if noise is not None and abs(change) <= 3 * noise.value:
        return msg(
            "loss {loss:nats}: {size:nats} {direction} the line before. Single batches scatter by about "
            "{noise:rough_nats}, so one such change means nothing.",
            **values,
            noise=max(noise.value, 0.01),
        )
    return msg("loss {loss:nats}: {size:nats} {direction} the line before.", **values)


def _gradient(context: LineContext, i: int) -> Iterator[Said]:
    norm, clip = float(context.case.steps.grad_norm[i]), context.case.number("grad_clip")
    if math.isnan(norm) or not context.is_new("gradient"):
        return
    if clip and norm > clip:
        words = msg(
            "Gradient norm {norm:about}, above grad_clip = {clip:number}: the gradient was scaled down to that norm.",
            norm,
            clip,
        )
        yield "clipping", words
    else:
        words = msg("Gradient norm {norm:about}: how steep the loss was; most GPTs settle between 0.1 and 2.", norm)
        yield "gradient_norm", words


def _time(context: LineContext, i: int) -> Iterator[Said]:
    case = context.case
    took, ordinary = float(case.steps.took_s[i]), case.step_time
    if not math.isfinite(took):
        return
    if case.run.conventions.time == "average" and not context.is_first[i]:
        if context.is_new("speed"):
            yield "tokens_per_s", msg("time {took:ms} for one update, averaged over several.", took)
    elif ordinary is not None and context.is_slow[i]:
        why = _why_slow(context, i, took - ordinary.value)
        values = {**why.args, "took": took, "times": took / ordinary.value, "ordinary": ordinary.value}
        words = msg("time {took:ms}, {times:times} a normal update ({ordinary:seconds}): {why}", **values, why=why)
        yield "tokens_per_s", words
        if context.holds_eval[i] and not context.is_first[i]:
            yield "eval_interval", _eval_batches(case, took, ordinary.value)
    elif context.is_new("speed"):
        yield "tokens_per_s", sentences.speed_words(case, took)


def _why_slow(context: LineContext, i: int, extra: float) -> Message:
    lines, holds_eval, is_first = context.case.steps.line, context.holds_eval[i], context.is_first[i]
    rows = [lines[i - 1] if i > 0 else 0, lines[i]]
    saved = np.diff(np.searchsorted(context.checkpoint_lines, rows, side="right"))[0] > 0  # between the two
    if holds_eval and is_first:
        return msg("the first iteration includes the first evaluation and one-off startup work (compilation, memory).")
    if is_first:
        return msg("the first iteration includes one-off startup work (compilation, memory).")
    if holds_eval and saved:
        return msg(
            "in this trainer this line includes the preceding evaluation and the saving of the checkpoint. They took "
            "{extra:rough_seconds}; the update itself is no slower.",
            extra,
        )
    if holds_eval:
        return msg(
            "in this trainer this line includes the preceding evaluation. It took {extra:rough_seconds}; the update "
            "itself is no slower.",
            extra,
        )
    if saved:
        return msg("a checkpoint was saved just before it.")
    return msg("the log does not say why. There is no evaluation and no checkpoint before it.")


def _eval_batches(case: Case, took: float, ordinary: float) -> Message | None:
    """The cost of one evaluation batch against a training micro-batch: a forward pass is a third of it. With several
    devices it depends on how the trainer shares the micro-batches."""
    count, accumulation = case.whole("eval_iters"), micro_batches(case)
    if not count or not accumulation or (case.devices or 1) > 1:
        return None
    each, micro = (took - ordinary) / (2 * count), ordinary / accumulation
    return msg(
        "It covered 2 x {count:count} = {both:count batch|batches}: ({took:ms} - {ordinary:ms}) / {both:count} = "
        "{each:seconds} each, {share:share} of a training micro-batch ({micro:seconds}). A forward pass alone "
        "should be about a third.",
        count,
        2 * count,
        took,
        ordinary,
        each,
        each / micro,
        micro,
    )


def _mfu(context: LineContext, i: int) -> Iterator[Said]:
    case = context.case
    printed, took = float(case.steps.mfu_frac[i]), float(case.steps.took_s[i])
    if int(case.steps.line[i]) in context.placeholder_lines:
        yield "mfu", msg("The MFU on this line is a placeholder: nothing has been measured yet.")
        return
    if math.isfinite(printed):
        if context.is_new("printed mfu"):
            yield "mfu", sentences.printed_mfu_words(case, printed, took)
        yield "mfu", _sag(context, i, printed, took)
    if not context.is_slow[i] and context.is_new("true mfu"):
        yield "mfu", sentences.achieved_words(case, took)


def _sag(context: LineContext, i: int, printed: float, took: float) -> Message | None:
    """A moving average that swallowed one slow line."""
    case = context.case
    before = float(case.steps.mfu_frac[i - 1])
    if not case.run.conventions.mfu_is_smoothed or i == 0 or not context.is_slow[i] or not math.isfinite(before):
        return None
    now = math.nan if (work := case.mfu_work) is None else work / took
    if abs(timing.EMA * before + (1 - timing.EMA) * now - printed) <= SAME_MFU:
        return msg(
            "mfu {printed:percent}: the moving average includes this slow line, 0.9 x {before:percent} + 0.1 x "
            "{now:percent}. Nothing has become slower; it recovers over the next lines.",
            printed,
            before,
            now,
        )
    return msg(
        "mfu {printed:percent}: the moving average includes this slow line. It recovers over the next lines.", printed
    )


# --- one evaluation


def evaluation_remarks(context: LineContext, i: int) -> Iterator[Said]:
    case = context.case
    step, train, val = int(case.evals.step[i]), float(case.evals.train[i]), float(case.evals.val[i])
    loss = val if math.isfinite(val) else train
    if context.is_new("evaluation"):
        before = msg("An evaluation of the model before its first update.")
        yield "val_loss", msg("An evaluation of the model after update {step:count}.", step) if step else before
    if step > 0:
        yield "epoch", sentences.seen_words(case, step)
    if not math.isfinite(loss):
        if math.isinf(loss) or np.nan_to_num(case.evals.not_finite[i]) > 0:
            yield "nan", msg("The evaluation is not finite: the weights are corrupted.")
        return
    if context.is_new("how evaluated"):
        yield "val_loss", _measured(case, train, val)
        yield "standard_error", _error_words(float(case.evals.val_se[i]))
    if step == 0:
        yield "ln_v", _start(case, loss)
        return
    if context.is_new("units"):
        yield "bits_per_byte", sentences.units_words(case, loss)
    yield "ln_v", _landmarks(context)
    yield "overfitting", sentences.gap_words(case, i)
    yield "dropout", _dropout_offset(case, i, train)
    yield "val_loss", _among_the_others(case, i, val)
    yield "val_loss", sentences.reference_words(case, step, val)
    if case.run.conventions.trainer == "nanogpt":
        yield "checkpoint", _saved(context, i, val)


def _measured(case: Case, train: float, val: float) -> Message | None:
    if not math.isfinite(val):
        return None
    if not math.isfinite(train):
        return msg("val loss {val:nats}: nats per token on text not used for training.", val)
    count, is_off = case.whole("eval_iters"), case.run.conventions.eval_mode_off_dropout
    return msg(
        "train loss {train:nats}, val loss {val:nats}: nats per token, averaged over {on}, {without}.",
        train,
        val,
        msg("{count:count batch|batches} of each split", count) if count else msg("a few batches of each split"),
        msg("with dropout off") if is_off else msg("as this trainer evaluates"),
    )


def _error_words(error: float) -> Message | None:
    if not math.isfinite(error):
        return None
    return msg("Its standard error is {error:nats}: with other batches it could be that much higher or lower.", error)


def _start(case: Case, loss: float) -> Message | None:
    chance = case.ln_vocab
    if chance is None or case.vocab_size is None or case.is_pretrained:
        return None
    off = loss - chance
    values: dict[str, object] = {"vocab": case.vocab_size.value, "chance": chance}
    if case.is_vocab_guessed:  # inferred from this very number: no check of it
        return msg(
            "The model is untrained and guesses at random. With {vocab:count} tokens, guessing gives a loss of ln "
            "{vocab:count} = {chance:nats}, so that is about the size of its vocabulary.",
            **values,
        )
    if abs(off) <= START_SLACK:
        return msg(
            "The model is untrained and guesses at random: the expected loss is ln {vocab:count} = {chance:nats}, "
            "and it is {loss:nats}. As it should be.",
            **values,
            loss=loss,
        )
    if off > 0:
        return msg(
            "The model is untrained: random guessing gives ln {vocab:count} = {chance:nats}, but it starts "
            "{off:nats} above. It is overconfident.",
            **values,
            off=off,
        )
    return msg(
        "Random guessing gives ln {vocab:count} = {chance:nats}; it starts {off:nats} below. It already knows "
        "something: weights were loaded, or the vocabulary is different.",
        **values,
        off=-off,
    )


def _dropout_offset(case: Case, i: int, train: float) -> Message | None:
    dropout, at, (steps, losses) = case.number("dropout"), float(case.evals.step[i]), case.losses
    place = int(np.searchsorted(steps, at))
    near = slice(max(0, place - NEAR_STEPS), place + NEAR_STEPS)
    losses = losses[near][np.abs(steps[near] - at) <= max(1.0, 0.02 * at)]  # where the weights are about the same
    if not dropout or not math.isfinite(train) or len(losses) < 2 or losses.min() <= train:
        return None
    return msg(
        "Nearby updates print {range:nats_range}, above this train loss: they are measured with dropout "
        "{dropout:number} on, the evaluation without. That is dropout, not noise.",
        (float(losses.min()), float(losses.max())),
        dropout,
    )


def _among_the_others(case: Case, i: int, val: float) -> Message | None:
    if not math.isfinite(val):
        return None
    earlier = np.flatnonzero(np.isfinite(case.evals.val[:i]) & (case.evals.step[:i] > 0))
    if not len(earlier):
        return msg("val loss {val:nats}: the first since the start.", val) if len(case.evals) > 1 else None
    best = earlier[int(np.argmin(case.evals.val[earlier]))]
    lowest, step = float(case.evals.val[best]), int(case.evals.step[best])
    if val == lowest:
        return msg("val loss {val:nats}: as low as the lowest so far (step {step:count}).", val, step)
    if val < lowest:
        return msg(
            "val loss {val:nats}: the lowest so far, {gain:nats} below the previous best (step {step:count}).",
            val,
            lowest - val,
            step,
        )
    return msg(
        "val loss {val:nats}: {off:nats} above the lowest so far, {lowest:nats} at step {step:count}.",
        val,
        val - lowest,
        lowest,
        step,
    )


def _saved(context: LineContext, i: int, val: float) -> Message | None:
    """nanoGPT says so when it saves; where it did not, the file on disk is of an earlier, better evaluation."""
    case, vals = context.case, context.case.evals.val
    if _is_saved_after(context, i):
        return msg("These weights were saved.")
    if case.get("always_save_checkpoint") is True or not _was_better_before(case, i, val):
        return None
    # A paste may lack its saving lines: an evaluation that was the best so far must be followed by one.
    best = np.fmin.accumulate(vals[:200])  # NaN only where no evaluation so far was finite
    improved = [j for j in range(1, len(best)) if vals[j] < best[j - 1]]
    if not all(_is_saved_after(context, j) for j in improved[:3]):
        return None
    return msg(
        "No line says that these weights were saved: in that case nanoGPT keeps those with the lowest val loss, so the "
        "better weights are still on disk."
    )


def _is_saved_after(context: LineContext, i: int) -> bool:
    """A checkpoint line between this evaluation and the next row."""
    case, line = context.case, int(context.case.evals.line[i])
    following = [int(lines[lines > line].min()) for lines in (case.steps.line, case.evals.line) if (lines > line).any()]
    saved = context.checkpoint_lines[context.checkpoint_lines > line]
    return bool(len(saved)) and (not following or int(saved[0]) < min(following))


def _was_better_before(case: Case, i: int, val: float) -> bool:
    earlier, known = case.evals.val[:i], case.reference
    if np.isfinite(earlier).any():
        return float(np.nanmin(earlier)) < val
    if known is None or known.best_val is None or known.best_step is None:
        return False
    return known.best_val + known.spread < val and bool(known.best_step < case.evals.step[i])
