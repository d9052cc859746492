"""Remarks on the line of one update: which one it is, its loss, learning rate, time and MFU, each with how it was made."""

# ruff: noqa: E501  (sentences stay whole, so that they can be searched for)

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from nanolens.analysis.explain.about import trainer_name
from nanolens.analysis.explain.context import Context
from nanolens.analysis.explanation import Remark
from nanolens.facts import timing as pace
from nanolens.facts.case import Case
from nanolens.message import Message, msg

USUAL_MFU = (0.30, 0.60)  # of small models on one GPU
LARGEST_FOR_PERPLEXITY = 20.0  # beyond this e^loss says nothing to anybody
NEARLY = 0.01  # of the learning rate's way down
SAME_SHARE = 0.05  # printed and true MFU that agree so far are against the same peak
SAME_MFU = 0.0006  # two printed MFUs that agree but for the rounding to two decimals, twice


def update_remarks(context: Context, i: int) -> Iterator[Remark]:
    in_full = context.is_new("update")
    is_last = i == len(context.case.steps) - 1
    yield from _place(context.case, i, in_full, in_full or is_last)
    yield from _loss(context, i, in_full)
    if in_full or is_last:
        yield from _rate(context.case, i)
    yield from _gradient(context, i)
    yield from _time(context, i)
    yield from _mfu(context, i)


# --- which update


def _place(case: Case, i: int, in_full: bool, with_tokens: bool) -> Iterator[Remark]:
    step, printed = int(case.steps.step[i]), int(case.steps.printed[i])
    if in_full and case.run.words.updates_before_printed == 1:
        words = msg(
            "{printed:code} is the update that leads from step {before:count} to step {after:count}.",
            printed=f"iter {printed}" if case.run.words.trainer == "nanogpt" else f"step {printed}", before=step - 1, after=step,
        )  # fmt: skip
        yield Remark("step", words)
    seen = seen_words(case, step)
    if seen is not None and with_tokens:
        yield Remark("epoch", seen)


def seen_words(case: Case, step: int) -> Message | None:
    """Tokens and epochs at a step."""
    tokens, epochs = case.tokens_at(step), case.epochs_at(step)
    if tokens is None:
        return None
    if epochs is None or case.dataset_tokens is None:
        return msg("{tokens:tokens} tokens are seen by then.", tokens=tokens)
    if epochs < 1:
        return msg(
            "{tokens:tokens} tokens are seen by then: {share:share} of the {size:tokens} in the training text.",
            tokens=tokens, share=epochs, size=case.dataset_tokens.value,
        )  # fmt: skip
    if case.is_char:
        return msg(
            "{tokens:tokens} characters are seen by then: {epochs:about} epochs of {size:count}.",
            tokens=tokens, epochs=epochs, size=case.dataset_tokens.value,
        )  # fmt: skip
    return msg(
        "{tokens:tokens} tokens are seen by then: {epochs:about} epochs of {size:tokens}.",
        tokens=tokens,
        epochs=epochs,
        size=case.dataset_tokens.value,
    )


# --- its loss


def _loss(context: Context, i: int, in_full: bool) -> Iterator[Remark]:
    case = context.case
    loss = float(case.steps.loss[i])
    if math.isnan(loss) and not context.is_broken[i]:
        return  # the source says none here
    if not math.isfinite(loss) and not context.is_new("broken"):
        yield Remark("nan", msg("loss {loss:number}, as before.", loss=loss))
    elif not math.isfinite(loss):
        yield Remark("nan", msg("The loss is {loss:number}: the arithmetic has broken, and what follows means nothing.", loss=loss))
    elif in_full:
        yield Remark(
            "loss", msg("loss {loss:nats}: how surprised the model was, in nats per token, by {what}.", loss=loss, what=_measured_on(case))
        )
        if loss < LARGEST_FOR_PERPLEXITY:
            yield Remark(
                "perplexity",
                msg(
                    "Perplexity e^{loss:nats} = {ppl:about}: as unsure as a fair choice among that many tokens.",
                    loss=loss,
                    ppl=math.exp(loss),
                ),
            )
        yield from landmarks(context)
        yield from _beside_evaluation(case, i)
    else:
        yield from _against_the_one_before(case, i, loss)


def _measured_on(case: Case) -> Message:
    accumulation, micro = micro_batches(case), case.micro_batch_tokens
    kind = case.run.words.loss
    if kind == "last_micro_batch" and accumulation == 1 and micro:
        return msg("the one batch of this update, {tokens:count} tokens, {dropout}", tokens=micro, dropout=_dropout(case))
    if kind == "last_micro_batch" and accumulation and micro:
        return msg(
            "the last of the {count:count} micro-batches of this update, {tokens:count} of its {all:count} tokens, {dropout}",
            count=accumulation, tokens=micro, all=micro * accumulation, dropout=_dropout(case),
        )  # fmt: skip
    if kind == "last_micro_batch":
        return msg("the last micro-batch of this update, {dropout}", dropout=_dropout(case))
    if kind == "mean":
        return msg("the whole batch of this update, {dropout}", dropout=_dropout(case))
    if kind == "smoothed":
        return msg("the batches of the last updates, averaged, {dropout}", dropout=_dropout(case))
    return msg("a batch of the training text, {dropout}", dropout=_dropout(case))


def micro_batches(case: Case) -> int | None:
    """Micro-batches of one update: as time and MFU prove them, or as configured. None where the two do not fit together."""
    per_update, micro = case.tokens_per_update, case.micro_batch_tokens
    if per_update is None or not micro:
        return None
    count = per_update.value / micro
    return round(count) if count >= 0.5 and abs(count - round(count)) < 0.02 * count else None


def _dropout(case: Case) -> Message:
    dropout = case.number("dropout")
    if dropout is None:
        return msg("with dropout as trained")
    return msg("with dropout {dropout:number} on", dropout=dropout) if dropout > 0 else msg("without dropout")


def landmarks(context: Context) -> Iterator[Remark]:
    case = context.case
    chance, unigram, bigram = case.ln_vocab, case.unigram_nats, case.bigram_nats
    if chance is None or case.vocab_size is None or not context.is_new("landmarks"):
        return
    vocab = case.vocab_size.value
    if case.is_vocab_guessed and len(case.evals) and case.evals.step[0] == 0:
        return  # said there
    if case.is_vocab_guessed:
        words = msg(
            "The vocabulary is not stated. If it has {vocab:count} tokens, of which ln is near the first loss, guessing has {chance:nats}.",
            vocab=vocab, chance=chance,
        )  # fmt: skip
    elif unigram is not None and bigram is not None:
        words = msg(
            "For comparison: guessing has ln {vocab:count} = {chance:nats}, knowing only the frequency of each token {unigram:nats}, knowing only the token before {bigram:nats}.",
            vocab=vocab, chance=chance, unigram=unigram, bigram=bigram,
        )  # fmt: skip
    elif unigram is not None:
        words = msg(
            "For comparison: guessing has ln {vocab:count} = {chance:nats}, knowing only the frequency of each token about {unigram:rough_nats}.",
            vocab=vocab, chance=chance, unigram=unigram,
        )  # fmt: skip
    else:
        words = msg("For comparison: guessing has ln {vocab:count} = {chance:nats}.", vocab=vocab, chance=chance)
    yield Remark("ln_v", words)


def _beside_evaluation(case: Case, i: int) -> Iterator[Remark]:
    """One micro-batch beside the average of many: the reader who sees both asks which is true."""
    accumulation = micro_batches(case) or 1
    train = np.isfinite(case.evals.train) & (case.evals.step > 0)
    if case.run.words.loss != "last_micro_batch" or accumulation < 2 or not train.any():
        return
    rows = np.flatnonzero(train)
    nearest = rows[int(np.argmin(np.abs(case.evals.step[rows] - case.steps.step[i])))]
    yield Remark(
        "val_loss",
        msg(
            "So small a sample scatters: it may stand a few tenths of a nat from the evaluation, which averages many batches ({train:nats} at step {step:count}). That is noise of the printed number, not of the training.",
            train=float(case.evals.train[nearest]), step=int(case.evals.step[nearest]),
        ),
    )  # fmt: skip


def _against_the_one_before(case: Case, i: int, loss: float) -> Iterator[Remark]:
    before = next((j for j in range(i - 1, max(-1, i - 50), -1) if math.isfinite(case.steps.loss[j])), None)
    if before is None:
        yield Remark("loss", msg("loss {loss:nats}.", loss=loss))
        return
    change = loss - float(case.steps.loss[before])
    noise = case.batch_noise
    if change == 0:
        yield Remark("loss", msg("loss {loss:nats}: the same as on the line before.", loss=loss))
    elif noise is not None and abs(change) <= 3 * noise.value:
        yield Remark(
            "loss",
            msg(
                "loss {loss:nats}: {size:nats} {direction} the line before. Single batches scatter by about {noise:rough_nats}, so one such step says nothing.",
                loss=loss, size=abs(change), direction=_direction(change), noise=max(noise.value, 0.01),
            ),
        )  # fmt: skip
    else:
        yield Remark(
            "loss",
            msg("loss {loss:nats}: {size:nats} {direction} the line before.", loss=loss, size=abs(change), direction=_direction(change)),
        )


def _direction(change: float) -> Message:
    return msg("above") if change > 0 else msg("below")


# --- learning rate and gradient


def _rate(case: Case, i: int) -> Iterator[Remark]:
    step = int(case.steps.step[i]) - 1
    recorded = float(case.steps.rate[i])
    rate = recorded if math.isfinite(recorded) else case.rate_at(step)
    if rate is not None:
        yield Remark("learning_rate", rate_words(case, step, rate))


def rate_words(case: Case, step: int, rate: float) -> Message:
    plan = case.schedule
    if plan is None or not plan.decay_lr:
        return msg("Learning rate: {rate:rate}.", rate=rate)
    if step < plan.warmup_iters:
        return msg("Learning rate: {rate:rate}, still warming up (until update {until:count}).", rate=rate, until=plan.warmup_iters)
    if step < plan.decay_begins:
        return msg("Learning rate: {rate:rate}, its peak; it begins to fall at update {begins:count}.", rate=rate, begins=plan.decay_begins)
    if step >= plan.decay_ends:
        return msg("Learning rate: {rate:rate}, the end of its decay.", rate=rate)
    done = (plan.learning_rate - rate) / (plan.learning_rate - plan.min_lr) if plan.learning_rate > plan.min_lr else 1.0
    if done < NEARLY:
        return msg(
            "Learning rate: {rate:rate}, still near its peak; it falls to {least:rate} by update {ends:count}.",
            rate=rate,
            least=plan.min_lr,
            ends=plan.decay_ends,
        )
    if done > 1 - NEARLY:
        return msg("Learning rate: {rate:rate}, almost at the end of its decay (update {ends:count}).", rate=rate, ends=plan.decay_ends)
    return msg(
        "Learning rate: about {rate:rough_rate}, on its way from {peak:rate} to {least:rate} at update {ends:count}.",
        rate=rate, peak=plan.learning_rate, least=plan.min_lr, ends=plan.decay_ends,
    )  # fmt: skip


def _gradient(context: Context, i: int) -> Iterator[Remark]:
    norm, clip = float(context.case.steps.grad_norm[i]), context.case.number("grad_clip")
    if math.isnan(norm) or not context.is_new("gradient"):
        return
    if clip and norm > clip:
        yield Remark(
            "clipping",
            msg(
                "Gradient norm {norm:about}, above grad_clip = {clip:number}: the step was shortened to that length.", norm=norm, clip=clip
            ),
        )
    else:
        yield Remark(
            "gradient_norm", msg("Gradient norm {norm:about}: how steep the loss was; most GPTs settle between 0.1 and 2.", norm=norm)
        )


# --- time


def _time(context: Context, i: int) -> Iterator[Remark]:
    case = context.case
    took, ordinary = float(case.steps.took_s[i]), case.step_time
    if not math.isfinite(took):
        return
    if case.run.words.time == "average" and not context.is_first[i]:
        if context.is_new("speed"):
            yield Remark("tokens_per_s", msg("time {took:ms} for one update, as an average over several.", took=took))
    elif ordinary is not None and context.is_slow[i]:
        yield Remark("tokens_per_s", _why_slow(context, i, took, ordinary.value))
        if context.holds_eval[i] and not context.is_first[i]:
            yield from _eval_batches(case, took, ordinary.value)
    elif context.is_new("speed"):
        yield from _speed(case, took)


def _speed(case: Case, took: float) -> Iterator[Remark]:
    per_update = case.tokens_per_update
    if per_update is None:
        yield Remark("tokens_per_s", msg("time {took:ms}: one whole update, forward, backward and the change of the weights.", took=took))
        return
    yield Remark(
        "tokens_per_s",
        msg(
            "time {took:ms}: one whole update, forward, backward and the change of the weights: {speed:tokens_per_s}.",
            took=took, speed=per_update.value / took,
        ),
    )  # fmt: skip


def _why_slow(context: Context, i: int, took: float, ordinary: float) -> Message:
    holds_eval, is_first = context.holds_eval[i], context.is_first[i]
    times, saved = took / ordinary, _is_saved_before(context, i)
    if holds_eval and is_first:
        return msg(
            "time {took:ms}, {times:times} an ordinary update ({ordinary:seconds}): the first iteration holds the first evaluation and the warming up of the machine (compilation, memory).",
            took=took, times=times, ordinary=ordinary,
        )  # fmt: skip
    if is_first:
        return msg(
            "time {took:ms}, {times:times} an ordinary update ({ordinary:seconds}): the first iteration holds the warming up of the machine (compilation, memory).",
            took=took, times=times, ordinary=ordinary,
        )  # fmt: skip
    if holds_eval and saved:
        return msg(
            "time {took:ms}, {times:times} an ordinary update ({ordinary:seconds}): this trainer counts the evaluation before it and the saving of the checkpoint into this line. They took {extra:rough_seconds}; the update itself is no slower.",
            took=took, times=times, ordinary=ordinary, extra=took - ordinary,
        )  # fmt: skip
    if holds_eval:
        return msg(
            "time {took:ms}, {times:times} an ordinary update ({ordinary:seconds}): this trainer counts the evaluation before it into this line. It took {extra:rough_seconds}; the update itself is no slower.",
            took=took, times=times, ordinary=ordinary, extra=took - ordinary,
        )  # fmt: skip
    if saved:
        return msg(
            "time {took:ms}, {times:times} an ordinary update ({ordinary:seconds}): a checkpoint was saved before it.",
            took=took, times=times, ordinary=ordinary,
        )  # fmt: skip
    return msg(
        "time {took:ms}, {times:times} an ordinary update ({ordinary:seconds}). Why is not told: no evaluation and no checkpoint stands before it.",
        took=took, times=times, ordinary=ordinary,
    )  # fmt: skip


def _is_saved_before(context: Context, i: int) -> bool:
    """A checkpoint line between the row before and this one."""
    lines = context.case.steps.line
    after, until = (lines[i - 1] if i > 0 else 0), lines[i]
    first, last = np.searchsorted(context.checkpoint_lines, [after, until], side="right")
    return bool(last > first)


def _eval_batches(case: Case, took: float, ordinary: float) -> Iterator[Remark]:
    """The cost of one evaluation batch against a training micro-batch: a forward pass is a third of it."""
    count, accumulation = case.whole("eval_iters"), micro_batches(case)
    if (
        not count or not accumulation or (case.devices or 1) > 1
    ):  # with several devices it depends on how the trainer shares the micro-batches
        return
    each = (took - ordinary) / (2 * count)
    yield Remark(
        "eval_interval",
        msg(
            "It was 2 x {count:count} = {both:count} batches: ({took:ms} - {ordinary:ms}) / {both:count} = {each:seconds} each, {share:share} of a training micro-batch ({micro:seconds}). A forward pass alone should be about a third.",
            count=count, both=2 * count, took=took, ordinary=ordinary, each=each, share=each / (ordinary / accumulation), micro=ordinary / accumulation,
        ),
    )  # fmt: skip


# --- MFU


def _mfu(context: Context, i: int) -> Iterator[Remark]:
    case = context.case
    printed = float(case.steps.mfu_frac[i])
    if int(case.steps.line[i]) in context.placeholder_lines:
        yield Remark("mfu", msg("The MFU here is a placeholder: nothing has been measured yet."))
        return
    if math.isfinite(printed):
        if context.is_new("printed mfu"):
            yield from _how_printed(case, i, printed)
        if (sagged := _sag(context, i, printed)) is not None:
            yield Remark("mfu", sagged)
    if not context.is_slow[i] and context.is_new("true mfu"):
        yield from _true_mfu(case, i)


def _sag(context: Context, i: int, printed: float) -> Message | None:
    """A moving average that swallowed one slow line."""
    case = context.case
    if not case.run.words.mfu_is_smoothed or i == 0 or not context.is_slow[i]:
        return None
    before, took = float(case.steps.mfu_frac[i - 1]), float(case.steps.took_s[i])
    if not math.isfinite(before):
        return None
    work = pace.mfu_times_seconds(case)
    now = None if work is None else work / took
    if now is None or abs(pace.EMA * before + (1 - pace.EMA) * now - printed) > SAME_MFU:
        return msg(
            "mfu {printed:percent}: the moving average has taken in this slow line. It recovers over the next lines.", printed=printed
        )
    return msg(
        "mfu {printed:percent}: the moving average has taken in this slow line, 0.9 x {before:percent} + 0.1 x {now:percent}. Nothing has become slower; it recovers over the next lines.",
        printed=printed, before=before, now=now,
    )  # fmt: skip


def _how_printed(case: Case, i: int, printed: float) -> Iterator[Remark]:
    assumed, trainer = case.run.words.peak_flops, trainer_name(case)
    true = _share_of_peak(case, float(case.steps.took_s[i]))
    is_own_peak = true is not None and printed > 0 and abs(true / printed - 1) < SAME_SHARE
    if assumed is not None and case.peak is not None and is_own_peak:
        words = msg(
            "mfu {printed:percent}: the share of this hardware's peak, {peak:flops_per_s}, that the training uses.",
            printed=printed,
            peak=case.peak.value,
        )
        yield Remark("mfu", words)
    elif assumed is None:
        yield Remark(
            "mfu",
            msg(
                "mfu {printed:percent}: the share of the device's peak that the training uses, as {trainer} computes it.",
                printed=printed,
                trainer=trainer,
            ),
        )
    elif case.run.words.mfu_is_smoothed:
        yield Remark(
            "mfu",
            msg(
                "mfu {printed:percent}: a share of {peak:flops_per_s}, an A100's, because {trainer} divides by that whatever the device is; and a moving average (0.9 x the value before + 0.1 x this line's).",
                printed=printed, peak=assumed, trainer=trainer,
            ),
        )  # fmt: skip
    else:
        yield Remark(
            "mfu",
            msg("mfu {printed:percent}: a share of {peak:flops_per_s}, which {trainer} takes whatever the device is.", printed=printed, peak=assumed, trainer=trainer),
        )  # fmt: skip


def _true_mfu(case: Case, i: int) -> Iterator[Remark]:
    took = float(case.steps.took_s[i])
    words = true_mfu_words(case, took) if math.isfinite(took) and took > 0 else None
    if words is not None:
        yield Remark("mfu", words)


def _share_of_peak(case: Case, took: float) -> float | None:
    per_token, per_update = case.flops_per_token, case.tokens_per_update
    if per_token is None or per_update is None or case.peak is None or not case.devices or not took > 0:
        return None
    return per_token.value * per_update.value / took / (case.peak.value * case.devices)


def true_mfu_words(case: Case, took: float) -> Message | None:
    """What an update of that length achieves, and the share of this hardware's own peak."""
    per_token, per_update = case.flops_per_token, case.tokens_per_update
    if per_token is None or per_update is None:
        return None
    achieved = per_token.value * per_update.value / took
    values: dict[str, object] = {"cost": per_token.value, "tokens": per_update.value, "took": took, "achieved": achieved}
    if case.peak is None or not case.devices:
        return msg("Achieved: {cost:flops} per token x {tokens:tokens} tokens / {took:ms} = {achieved:flops_per_s}.", **values)
    share = _share_of_peak(case, took) or 0.0
    values |= {"share": share, "peak": case.peak.value * case.devices}
    if case.is_cpu and share <= 1:  # what is usual is known of GPUs only
        return msg(
            "Achieved: {cost:flops} per token x {tokens:tokens} tokens / {took:ms} = {achieved:flops_per_s}, which is {share:share} of the {peak:flops_per_s} that this hardware can do at best.",
            **values,
        )
    values["verdict"] = _verdict_on(share)
    return msg(
        "Achieved: {cost:flops} per token x {tokens:tokens} tokens / {took:ms} = {achieved:flops_per_s}, which is {share:share} of the {peak:flops_per_s} that this hardware can do at best. {verdict}",
        **values,
    )


def _verdict_on(share: float) -> Message:
    low, high = USUAL_MFU
    if share > 1:
        return msg("More than 100% is impossible: the peak, the FLOP count or the tokens per update are not those of this run.")
    if share < low:
        return msg("Small models on one GPU usually reach 30 to 60%.")
    if share <= high:
        return msg("That is a usual value: small models on one GPU reach 30 to 60%.")
    return msg("That is a high value: small models on one GPU usually reach 30 to 60%.")
