"""The story of a run: its course and turning points, where the time went, what it cost, and whether to stop or go on."""

# ruff: noqa: E501  (sentences stay whole, so that they can be searched for)

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

import numpy as np

from nanolens.analysis.explanation import Remark, Section
from nanolens.analysis.rows import broken_rows
from nanolens.facts import timing as pace
from nanolens.facts.case import Case
from nanolens.message import Message, msg

PART_NAMES: dict[str, Message] = {
    "compile": msg("compilation"),
    "data": msg("waiting for data"),
    "train": msg("training"),
    "eval": msg("evaluation"),
    "checkpoint": msg("checkpoints"),
    "sample": msg("sample texts"),
    "other": msg("other"),
}
MUCH_EVALUATION = 0.15  # of the time: more than this is worth a change
REPEATED = 4.0  # epochs up to which repeated text is nearly as good as new
NEARLY_DONE = 0.02  # of the learning rate's way down: what is left of it brings nothing to speak of


def story(case: Case, codes: Collection[str] = ()) -> tuple[Section, ...]:
    """`codes` are the findings of the diagnosis, certain and likely ones: the verdict has to agree with them."""
    sections = (
        Section("course", msg("How it went"), tuple(_course(case))),
        Section("time", msg("Where the time went"), tuple(_time(case))),
        Section("cost", msg("What it cost"), tuple(_cost(case))),
        Section("verdict", msg("Stop or go on"), tuple(_verdict(case, frozenset(codes)))),
    )
    return tuple(section for section in sections if section.remarks)


# --- its course


def _course(case: Case) -> Iterator[Remark]:
    yield from _restarts(case)
    yield from _start(case)
    yield from _fall(case)
    yield from _turning_point(case)
    yield from _breaks(case)
    yield from _rate_phase(case)


def _restarts(case: Case) -> Iterator[Remark]:
    if case.run.reading.attempts > 1:
        yield Remark(
            "checkpoint",
            msg(
                "{count:count} attempts: the run was started or resumed more than once; where steps were repeated, the last attempt counts.",
                count=case.run.reading.attempts,
            ),
        )


def _start(case: Case) -> Iterator[Remark]:
    first, chance = case.first_loss, case.ln_vocab
    if first is None:
        return
    if chance is not None and not case.is_vocab_guessed:
        yield Remark("ln_v", msg("It starts at {first:nats}; guessing is {chance:nats}.", first=first, chance=chance))
    else:
        yield Remark("ln_v", msg("It starts at {first:nats}.", first=first))


def _fall(case: Case) -> Iterator[Remark]:
    """When it passed the landmarks, and when it had done half of its way."""
    steps, losses = case.curve
    if len(steps) < 4 or not math.isfinite(losses[0]):
        return
    lowest = float(np.min(losses))
    if steps[0] > 0.1 * case.last_step:
        return  # the way down is not in this source
    half = losses[0] - 0.5 * (losses[0] - lowest)
    if losses[0] - lowest <= 0.05:
        return
    at = int(steps[int(np.argmax(losses <= half))])
    yield Remark(
        "loss",
        msg(
            "From {first:nats} to {lowest:nats}: half of the way is done by step {half:count}, all of it by step {all:count} of {last:count}.",
            first=float(losses[0]), lowest=lowest, half=at, all=int(steps[int(np.argmin(losses))]), last=case.last_step,
        ),
    )  # fmt: skip
    for level, words in ((case.unigram_nats, _past_unigram), (case.bigram_nats, _past_bigram)):
        if level is not None and losses[0] > level > lowest:
            yield Remark("unigram", words(level, int(steps[int(np.argmax(losses < level))])))


def _past_unigram(level: float, step: int) -> Message:
    return msg(
        "By step {step:count} it is below {level:rough_nats}: it knows more than the frequency of each token.", step=step, level=level
    )


def _past_bigram(level: float, step: int) -> Message:
    return msg("By step {step:count} it is below {level:rough_nats}: it uses more than the token before.", step=step, level=level)


def _turning_point(case: Case) -> Iterator[Remark]:
    steps, vals = case.vals
    if not len(vals):
        return
    best = int(np.argmin(vals))
    last = len(vals) - 1
    if len(vals) == 1:
        yield Remark(
            "val_loss",
            msg("Its only evaluation with a val loss is {val:nats}, at step {step:count}.", val=float(vals[0]), step=int(steps[0])),
        )
        return
    noise = case.eval_noise.value if case.eval_noise is not None else 0.0
    rise = float(vals[last] - vals[best])
    if best == last:
        words = msg("The last val loss, {val:nats} at step {step:count}, is the lowest.", val=float(vals[last]), step=int(steps[last]))
        yield Remark("val_loss", words)
    elif rise <= 2 * math.sqrt(2) * noise:
        words = msg(
            "The last val loss, {val:nats} at step {step:count}, is {rise:nats} above the lowest (step {best:count}): no more than the scatter of evaluations.",
            val=float(vals[last]), step=int(steps[last]), rise=rise, best=int(steps[best]),
        )  # fmt: skip
        yield Remark("val_loss", words)
    else:
        yield Remark(
            "overfitting",
            msg(
                "Turning point: the val loss was lowest at step {step:count}, {best:nats}, and has risen by {rise:nats} since.",
                step=int(steps[best]), best=float(vals[best]), rise=rise,
            ),
        )  # fmt: skip


def _breaks(case: Case) -> Iterator[Remark]:
    kinds = [mark.kind for mark in case.run.marks]
    broken = np.flatnonzero(broken_rows(case))
    if len(broken):
        first, count = int(case.steps.step[broken[0]]), len(broken)
        yield Remark("nan", msg("{count:count} updates have no finite loss, the first at step {step:count}.", count=count, step=first))
    if "skip" in kinds:
        yield Remark("nan", msg("{count:count} updates were skipped because they were not finite.", count=kinds.count("skip")))
    if "rollback" in kinds:
        yield Remark("checkpoint", msg("It went back to an earlier checkpoint {count:count} times.", count=kinds.count("rollback")))
    if "out_of_memory" in kinds:
        yield Remark("memory", msg("It ran out of memory {count:count} times.", count=kinds.count("out_of_memory")))
    if "lost" in kinds:
        yield Remark("checkpoint", msg("Some events could not be written, so the record has gaps."))


def _rate_phase(case: Case) -> Iterator[Remark]:
    plan, last = case.schedule, case.last_step
    rate = case.rate_at(last)
    if plan is None or rate is None or last == 0:
        return
    if not plan.decay_lr:
        yield Remark("learning_rate", msg("The learning rate is constant, {rate:rate}.", rate=rate))
    elif last < plan.warmup_iters:
        yield Remark(
            "learning_rate", msg("The learning rate is still warming up: {rate:rate} of {peak:rate}.", rate=rate, peak=plan.learning_rate)
        )
    elif last >= plan.decay_ends:
        yield Remark("learning_rate", msg("The learning rate has come to its end, {rate:rate}.", rate=rate))
    else:
        yield Remark(
            "learning_rate",
            msg(
                "The learning rate is at about {rate:rough_rate} and will fall to {least:rate} by step {ends:count}; that fall will lower the loss some more.",
                rate=rate, least=plan.min_lr, ends=plan.decay_ends,
            ),
        )  # fmt: skip


# --- where the time went


def _time(case: Case) -> Iterator[Remark]:
    if case.run.time_parts:
        yield from _recorded_parts(case)
        return
    step = case.step_time
    if step is None:
        return
    took = case.steps.took_s[pace.ordinary(case)]
    if len(took) >= 3:
        low, high = np.percentile(took, [5, 95]) if len(took) > 20 else (took.min(), took.max())
        yield Remark(
            "tokens_per_s",
            msg("An ordinary update takes {range:seconds_range}.", range=(float(low), float(high))),
        )
    else:
        yield Remark("tokens_per_s", msg("An ordinary update takes {took:seconds}.", took=step.value))
    yield from _evaluation_share(case, step.value)
    yield from _first_iteration(case, step.value)


def _recorded_parts(case: Case) -> Iterator[Remark]:
    parts = {name: seconds for name, seconds in case.run.time_parts.items() if seconds > 0}
    total = sum(parts.values())
    for name, seconds in sorted(parts.items(), key=lambda item: -item[1]):
        if seconds >= 0.005 * total:
            words = msg(
                "{part}: {took:seconds}, {share:share}.",
                part=PART_NAMES.get(name, PART_NAMES["other"]),
                took=seconds,
                share=seconds / total,
            )
            yield Remark("tokens_per_s", words)


def _evaluation_share(case: Case, ordinary: float) -> Iterator[Remark]:
    spacing = pace.eval_spacing(case)
    extra = pace.eval_seconds(case)[1]
    if not spacing or not len(extra):
        return
    each = float(np.mean(extra))
    train = spacing * ordinary
    share = each / (each + train)
    saves = any(mark.kind == "checkpoint" for mark in case.run.marks)
    what = msg("evaluating and saving") if saves else msg("evaluating")
    advice = (
        msg("That is much: a larger eval_interval or smaller eval_iters would save time.")
        if share > MUCH_EVALUATION
        else msg("Nothing needs fixing. To spend less: a larger eval_interval or smaller eval_iters.")
    )
    yield Remark(
        "eval_interval",
        msg(
            "Of each {spacing:count} updates, {spacing:count} x {step:seconds} = {train:seconds} go into training and about {each:rough_seconds} into {what}: {share:share} of the time. {advice}",
            spacing=spacing, step=ordinary, train=train, each=each, what=what, share=share, advice=advice,
        ),
    )  # fmt: skip


def _first_iteration(case: Case, ordinary: float) -> Iterator[Remark]:
    first = pace.is_first(case)
    if not len(first) or not first[0]:
        return
    took = float(case.steps.took_s[0])
    if math.isfinite(took) and took > 2 * ordinary:
        yield Remark(
            "compile",
            msg(
                "The first iteration took {took:seconds}, once: warming up and compilation, and the first evaluation where there is one.",
                took=took,
            ),
        )


# --- what it cost


def _cost(case: Case) -> Iterator[Remark]:
    last = case.last_step
    tokens, epochs = case.tokens_at(last), case.epochs_at(last)
    if tokens is not None and last:
        per_update = case.tokens_per_update
        assert per_update is not None
        yield Remark(
            "tokens_per_update",
            msg("{steps:count} updates x {each:tokens} = {tokens:tokens} tokens.", steps=last, each=per_update.value, tokens=tokens),
        )
        yield Remark("epoch", epochs_words(case, epochs))
        if case.parameters is not None:
            yield Remark("tokens_per_parameter", per_parameter_words(case, tokens, case.parameters.value, epochs))
        if case.flops_per_token is not None:
            yield Remark("flops", msg("{work:flops} of computing.", work=tokens * case.flops_per_token.value))
    yield from _duration(case)


def epochs_words(case: Case, epochs: float | None) -> Message:
    size = case.dataset_tokens
    if epochs is None or size is None:
        return msg("How many epochs that is cannot be said: the log does not tell how large the training text is.")
    if epochs < 1:
        return msg(
            "{share:share} of the {size:tokens} training tokens: not once through them, so nothing can be learned by heart.",
            share=epochs,
            size=size.value,
        )
    return msg("{epochs:about} times through {size:count} training tokens.", epochs=epochs, size=size.value)


def per_parameter_words(case: Case, tokens: float, parameters: float, epochs: float | None) -> Message:
    if epochs is not None and epochs >= REPEATED and case.dataset_tokens is not None:
        return msg(
            "{ratio:about} tokens seen per parameter ({count:parameters} parameters), but only {fresh:about} different ones: the rest is repetition.",
            ratio=tokens / parameters, count=parameters, fresh=case.dataset_tokens.value / parameters,
        )  # fmt: skip
    return msg(
        "{ratio:about} tokens seen per parameter ({count:parameters} parameters). About 20 use a fixed amount of computing best; beyond that each further token brings less.",
        ratio=tokens / parameters, count=parameters,
    )  # fmt: skip


def _duration(case: Case) -> Iterator[Remark]:
    wall = case.number("wall_s") or None  # 0 where a log was imported that does not tell
    if wall is None and case.run.time_parts:
        wall = sum(case.run.time_parts.values())
    if wall is not None:
        yield Remark("tokens_per_s", msg("{wall:seconds} in all.", wall=wall))
    elif case.step_time is not None and case.last_step:
        extra = pace.eval_seconds(case)[1]
        spacing = pace.eval_spacing(case)
        evals = float(np.mean(extra)) * (case.last_step // spacing) if len(extra) and spacing else 0.0
        yield Remark(
            "tokens_per_s",
            msg(
                "About {wall:seconds} from step 0, if all updates took as long as those shown.",
                wall=case.last_step * case.step_time.value + evals,
            ),
        )  # fmt: skip


# --- stop or go on


def _verdict(case: Case, codes: frozenset[str]) -> Iterator[Remark]:
    broken = codes & {"nan_divergence", "hf_zero_loss_is_nan", "loss_divergence", "grad_explosion"}
    if broken:
        yield Remark("nan", msg("Stop. The training has broken down; go back to a checkpoint before that, and mend the cause first."))
        return
    if "overfitting" in codes:
        yield Remark("overfitting", _stop_at_best(case))
        return
    yield from _go_on(case, codes)


def _stop_at_best(case: Case) -> Message:
    steps, vals = case.vals
    known = case.reference
    best = int(np.argmin(vals)) if len(vals) else 0
    if len(vals) >= 3 and best < len(vals) - 1:
        return msg(
            "Stop. More training makes the val loss worse; the weights of step {step:count} ({val:nats}) are the ones to keep.",
            step=int(steps[best]), val=float(vals[best]),
        )  # fmt: skip
    if known is not None and known.best_step is not None:
        return msg(
            "Stop. More training makes the val loss worse; the known run of this config was best near iteration {step:count}.",
            step=known.best_step,
        )
    return msg("Stop. More training makes the val loss worse; keep the weights of the lowest val loss.")


def _go_on(case: Case, codes: frozenset[str]) -> Iterator[Remark]:
    last, plan, end = case.last_step, case.schedule, case.whole("max_iters")
    if plan is not None and plan.decay_lr and last < plan.decay_ends and not _is_decayed(case):
        yield Remark(
            "learning_rate",
            msg(
                "Go on to step {ends:count}: the learning rate has not come to its end, and what it still brings comes with its fall.",
                ends=plan.decay_ends,
            ),
        )
    elif end is not None and last >= end:
        yield Remark("step", msg("The run is at its planned end, step {end:count}.", end=end))
    if "underfitting_capacity" in codes:
        yield Remark(
            "underfitting",
            msg(
                "For a clearly lower loss it takes a larger model, not more of the same: train and val are together, and this size is nearly used up."
            ),
        )
    yield from _idle_dropout(case)
    if "underfitting_capacity" not in codes and "still_improving" in codes and (plan is None or last >= plan.decay_ends):
        yield Remark(
            "plateau", msg("It was still improving: a longer run, with its learning rate stretched to the new length, would end lower.")
        )


def _idle_dropout(case: Case) -> Iterator[Remark]:
    """Dropout where nothing is learned by heart."""
    dropout, epochs = case.number("dropout"), case.epochs_at(case.last_step)
    both = np.isfinite(case.evals.train) & np.isfinite(case.evals.val) & (case.evals.step > 0)
    if not dropout or not both.any() or (epochs is not None and epochs > REPEATED):
        return
    last = int(np.flatnonzero(both)[-1])
    if case.evals.val[last] <= case.evals.train[last]:
        yield Remark(
            "dropout",
            msg("Dropout {dropout:number} works against learning by heart, and there is none: it probably only costs.", dropout=dropout),
        )


def _is_decayed(case: Case) -> bool:
    plan, rate = case.schedule, case.rate_at(case.last_step)
    if plan is None or rate is None or plan.learning_rate <= plan.min_lr:
        return False
    return (rate - plan.min_lr) / (plan.learning_rate - plan.min_lr) < NEARLY_DONE and case.last_step > plan.decay_begins
