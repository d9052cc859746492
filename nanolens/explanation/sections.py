"""The sections of an explanation: what is trained, the story of a run, and a config before it is run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np

from nanolens.config.fields import as_text, settings
from nanolens.config.load import Preset
from nanolens.diagnosis.rules import all_findings
from nanolens.explanation.pick import Explanation, Said, Section, remarks
from nanolens.facts import sentences, timing
from nanolens.facts.case import Case
from nanolens.facts.finding import Finding
from nanolens.facts.laws import FRESH_EPOCHS
from nanolens.facts.reading import what_was_read
from nanolens.message import Message, msg
from nanolens.record.events import PART_NAMES

CLAIM_SLACK = 0.15  # "124M" for 123.6M is no mismatch
MUCH_EVALUATION = 0.15  # of the time: more than this is worth a change
NEARLY_DONE = 0.02  # of the learning rate's way down: what is left of it brings nothing to speak of
CHECKPOINT_BYTES = 12  # a parameter: float32 weights and Adam's two averages


def _sections(**parts: tuple[Message, Iterable[Said]]) -> tuple[Section, ...]:
    """Those of which there is something to say, by name."""
    sections = (Section(name, title, remarks(said)) for name, (title, said) in parts.items())
    return tuple(section for section in sections if section.remarks)


# --- what is trained


def about(case: Case) -> Section:
    schedule = case.schedule
    said = (
        ("step", None if case.is_ahead else what_was_read(case).sentence),
        ("parameters", sentences.model_words(case)),
        ("parameters", _claim(case)),
        ("epoch", _data(case)),
        ("tokens_per_update", sentences.tokens_per_update_words(case)),
        ("flops", sentences.flops_words(case)),
        ("learning_rate", sentences.schedule_words(schedule) if schedule is not None else None),
        ("mfu", sentences.device_words(case)),
    )
    return Section("about", msg("What is trained"), remarks(said))


def _claim(case: Case) -> Message | None:
    claimed, parameters = case.number("claimed_parameters"), case.parameters
    if not claimed or parameters is None or abs(parameters.value / claimed - 1) <= CLAIM_SLACK:
        return None
    return msg(
        "Its name or comment claims {claimed:parameters}. That is not this model: its shape gives {total:parameters}.",
        claimed,
        parameters.value,
    )


def _data(case: Case) -> Message | None:
    tokens, name, unit = case.dataset_tokens, case.text("dataset"), sentences.unit_of(case)
    if tokens is not None and name:
        return msg("Data: {name:code}, {count:count} {unit} for training.", name, tokens.value, unit)
    if tokens is not None:
        return msg("Data: {count:count} {unit} for training.", tokens.value, unit)
    if name:
        return msg("Data: {name:code}; its number of tokens is not known, so epochs cannot be counted.", name)
    return None


def lacking(case: Case) -> Iterator[Message]:
    """What would sharpen the explanation, and how to give it."""
    if case.shape is None:
        shape = "--n_layer=N --n_head=N --n_embd=N --block_size=N --vocab_size=N"
        yield msg(
            "The model's shape, for parameters and FLOPs: {options:code}, or {config:code}.", shape, "--config=FILE"
        )
    elif case.vocab_size is None:
        yield msg("The vocabulary size, for the loss of random guessing: {option:code}.", "--vocab_size=N")
    if case.tokens_per_update is None:
        batch = "--batch_size=N --block_size=N --gradient_accumulation_steps=N"
        yield msg("Tokens per update, for speed, tokens seen and MFU: {options:code}.", batch)
    if case.dataset_tokens is None:
        yield msg(
            "The number of training tokens, for epochs: {option:code}. A nanoGPT train.bin has two bytes per token.",
            "--dataset_tokens=N",
        )
    if case.peak is None and (np.isfinite(case.steps.took_s).any() or np.isfinite(case.steps.mfu_frac).any()):
        yield msg("The device, for the true MFU: {option:code}.", '--hardware="RTX 4070"')


# --- the story of a run: its course


def story(case: Case, codes: Collection[str] = ()) -> tuple[Section, ...]:
    """`codes` are the findings of the diagnosis, certain and likely ones: the verdict has to agree with them."""
    return _sections(
        course=(msg("How it went"), _course(case)),
        time=(msg("Where the time went"), _time(case)),
        cost=(msg("What it cost"), _cost(case)),
        verdict=(msg("Stop or continue"), _verdict(case, frozenset(codes))),
    )


def _course(case: Case) -> Iterator[Said]:
    if (attempts := case.run.reading.attempts) > 1:
        words = msg(
            "{count:count attempt|attempts}: the run was started or resumed more than once; where steps were "
            "repeated, the last attempt counts.",
            attempts,
        )
        yield "checkpoint", words
    yield "ln_v", sentences.start_words(case)
    yield from _fall(case)
    if (course := sentences.course_words(case)) is not None:
        yield "overfitting" if course[0] else "val_loss", course[1]
    yield from _breaks(case)
    lr = case.lr_at(case.last_step)
    if case.schedule is not None and lr is not None and case.last_step:
        yield "learning_rate", sentences.lr_words(case.schedule, case.last_step, lr)


def _fall(case: Case) -> Iterator[Said]:
    """When it passed the landmarks, and when it had done half of its way."""
    steps, losses = case.curve
    if len(steps) < 4 or not math.isfinite(losses[0]) or steps[0] > 0.1 * case.last_step:
        return  # the way down is not in this source
    first, lowest = float(losses[0]), float(np.min(losses))
    if first - lowest <= 0.05:
        return
    words = msg(
        "From {first:nats} to {lowest:nats}: halfway by step {half:count}, all the way by step {all:count} of "
        "{last:count}.",
        first,
        lowest,
        int(steps[int(np.argmax(losses <= first - 0.5 * (first - lowest)))]),
        int(steps[int(np.argmin(losses))]),
        case.last_step,
    )
    yield "loss", words
    for level, what in (
        (case.unigram_nats, msg("it knows more than token frequencies")),
        (case.bigram_nats, msg("it uses more than the previous token")),
    ):
        if level is not None and first > level > lowest:
            step = int(steps[int(np.argmax(losses < level))])
            yield "unigram", msg("By step {step:count} it is below {level:rough_nats}: {what}.", step, level, what)


def _breaks(case: Case) -> Iterator[Said]:
    kinds = Counter(mark.kind for mark in case.run.marks)
    broken = np.flatnonzero(timing.broken_rows(case))
    if len(broken):
        first, count = int(case.steps.step[broken[0]]), len(broken)
        yield "nan", msg("Updates without a finite loss: {count:count}, the first at step {step:count}.", count, first)
    for kind, topic, words in (
        ("skip", "nan", msg("Updates skipped because they were not finite: {count:count}.", kinds["skip"])),
        ("rollback", "checkpoint", msg("Returns to an earlier checkpoint: {count:count}.", kinds["rollback"])),
        ("out_of_memory", "memory", msg("Out-of-memory errors: {count:count}.", kinds["out_of_memory"])),
        ("lost", "checkpoint", msg("Some events could not be written, so the log has gaps.")),
    ):
        if kinds[kind]:
            yield topic, words


# --- where the time went, and what it cost


def _time(case: Case) -> Iterator[Said]:
    parts, step = case.run.time_parts, case.step_time
    total = sum(seconds for seconds in parts.values() if seconds > 0)
    for name, seconds in sorted(parts.items(), key=lambda item: -item[1]):
        if seconds > 0 and seconds >= 0.005 * total:
            part = PART_NAMES.get(name, PART_NAMES["other"])
            yield "tokens_per_s", msg("{part}: {took:seconds}, {share:share}.", part, seconds, seconds / total)
    if parts or step is None:
        return
    took = case.steps.took_s[timing.ordinary(case)]
    if len(took) >= 3:
        low, high = np.percentile(took, [5, 95]) if len(took) > 20 else (took.min(), took.max())
        yield "tokens_per_s", msg("A normal update takes {range:seconds_range}.", (float(low), float(high)))
    else:
        yield "tokens_per_s", msg("A normal update takes {took:seconds}.", step.value)
    yield "eval_interval", _evaluation_share(case, step.value)
    first = timing.is_first(case)
    if len(first) and first[0] and 2 * step.value < case.steps.took_s[0] < math.inf:
        words = msg(
            "The first iteration took {took:seconds}, a one-off cost: startup and compilation, and the first "
            "evaluation if there is one.",
            float(case.steps.took_s[0]),
        )
        yield "compile", words


def _evaluation_share(case: Case, ordinary: float) -> Message | None:
    spacing, extra = timing.eval_spacing(case), timing.eval_seconds(case)[1]
    if not spacing or not len(extra):
        return None
    each, train = float(np.mean(extra)), spacing * ordinary
    share = each / (each + train)
    advice = msg("Nothing needs fixing. To save time, use a larger eval_interval or smaller eval_iters.")
    if share > MUCH_EVALUATION:
        advice = msg("That is a lot: a larger eval_interval or smaller eval_iters would save time.")
    return msg(
        "Per {spacing:count update|updates}, {spacing:count} x {step:seconds} = {train:seconds} go into training and "
        "about {each:rough_seconds} into {what}: {share:share} of the time. {advice}",
        spacing,
        ordinary,
        train,
        each,
        msg("evaluating and saving") if case.marks("checkpoint") else msg("evaluating"),
        share,
        advice,
    )


def _amounts(case: Case, step: int) -> Iterator[Said]:
    """What was used by a step, or will be."""
    if case.tokens_at(step) and step:
        yield "tokens_per_update", sentences.tokens_words(case, step)
        if case.dataset_tokens is not None or not case.is_ahead:
            yield "epoch", sentences.epochs_words(case, step)
        yield "tokens_per_parameter", sentences.per_parameter_words(case, step)
        yield "flops", sentences.compute_words(case, step)


def _cost(case: Case) -> Iterator[Said]:
    last = case.last_step
    yield from _amounts(case, last)
    wall = case.number("wall_s") or sum(case.run.time_parts.values())  # 0 where a log was imported that does not tell
    if wall:
        yield "tokens_per_s", msg("{wall:seconds} in total.", wall)
    elif case.step_time is not None and last:
        extra, spacing = timing.eval_seconds(case)[1], timing.eval_spacing(case)
        evals = float(np.mean(extra)) * (last // spacing) if len(extra) and spacing else 0.0
        wall = last * case.step_time.value + evals
        words = msg("About {wall:seconds} from step 0, if all updates took as long as those shown.", wall)
        yield "tokens_per_s", words


# --- stop or go on


def _verdict(case: Case, codes: frozenset[str]) -> Iterator[Said]:
    if codes & {"nan_divergence", "hf_zero_loss_is_nan", "loss_divergence", "grad_explosion"}:
        words = msg("Stop. Training has broken down; go back to a checkpoint before that, and fix the cause first.")
        yield "nan", words
    elif "overfitting" in codes:
        yield "overfitting", _stop_at_best(case)
    else:
        yield from _go_on(case, codes)


def _stop_at_best(case: Case) -> Message:
    (steps, vals), known = case.vals, case.reference
    best = int(np.argmin(vals)) if len(vals) else 0
    if len(vals) >= 3 and best < len(vals) - 1:
        return msg(
            "Stop. More training makes the val loss worse; keep the weights of step {step:count} ({val:nats}).",
            int(steps[best]),
            float(vals[best]),
        )
    if known is not None and known.best_step is not None:
        return msg(
            "Stop. More training makes the val loss worse; the reference run of this config was best near iteration "
            "{step:count}.",
            known.best_step,
        )
    return msg("Stop. More training makes the val loss worse; keep the weights with the lowest val loss.")


def _go_on(case: Case, codes: frozenset[str]) -> Iterator[Said]:
    last, plan, end, rate = case.last_step, case.schedule, case.whole("max_iters"), case.lr_at(case.last_step)
    is_decayed = False
    if plan is not None and rate is not None and plan.learning_rate > plan.min_lr and last > plan.decay_begins:
        is_decayed = (rate - plan.min_lr) / (plan.learning_rate - plan.min_lr) < NEARLY_DONE
    if plan is not None and plan.decay_lr and last < plan.decay_ends and not is_decayed:
        words = msg(
            "Continue to step {ends:count}: the learning rate has not finished its decay, and the remaining gain "
            "comes with it.",
            plan.decay_ends,
        )
        yield "learning_rate", words
    elif end is not None and last >= end:
        yield "step", msg("The run is at its planned end, step {end:count}.", end)
    if "underfitting_capacity" in codes:
        words = msg(
            "A clearly lower loss needs a larger model, not more training: train and val are close together, and "
            "this size is near its limit."
        )
        yield "underfitting", words
    yield "dropout", _idle_dropout(case)
    is_improving = "still_improving" in codes and "underfitting_capacity" not in codes
    if is_improving and (plan is None or last >= plan.decay_ends):
        words = msg(
            "It was still improving: a longer run, with its schedule stretched to the new length, would end lower."
        )
        yield "plateau", words


def _idle_dropout(case: Case) -> Message | None:
    """Dropout where nothing is memorised."""
    dropout, epochs, evals = case.number("dropout"), case.epochs_at(case.last_step) or 0.0, case.evals
    last = case.both_splits[evals.step[case.both_splits] > 0][-1:]
    if not dropout or not len(last) or (evals.val[last] > evals.train[last]).any() or epochs > FRESH_EPOCHS:
        return None
    return msg(
        "Dropout {dropout:number} prevents memorisation, but there is none here: it probably only hurts.", dropout
    )


# --- a config before it is run


def explain_ahead(case: Case, came_from: Mapping[str, str], preset: Preset | None) -> Explanation:
    story = _sections(
        ahead=(msg("What it will do"), _ahead(case, case.whole("max_iters") or 0)),
        findings=(msg("Before you start"), _findings(case)),
        expected=(msg("What to expect"), _expected(case, preset)),
        settings=(msg("Its settings, one by one"), _settings(case, came_from)),
    )
    return Explanation(case.run.name, about(case), (), None, story, tuple(lacking(case)))


def _ahead(case: Case, steps: int) -> Iterator[Said]:
    yield from _amounts(case, steps)
    if 1 <= (case.epochs_at(steps) or 0) <= FRESH_EPOCHS:
        words = msg("Up to {fresh:count epoch|epochs}, text seen again is nearly as good as new text.", FRESH_EPOCHS)
        yield "epoch", words
    yield "eval_interval", _planned_evaluations(case, steps)
    yield "memory", sentences.memory_words(case)
    if case.parameters is not None:
        size = CHECKPOINT_BYTES * case.parameters.value
        yield "checkpoint", msg("A checkpoint takes about {size:bytes} on disk.", size)


def _planned_evaluations(case: Case, steps: int) -> Message | None:
    interval, batches = case.whole("eval_interval"), case.whole("eval_iters")
    accumulation = case.whole("gradient_accumulation_steps")
    if not interval or not batches or not accumulation:
        return None
    # An evaluation batch is a forward pass, a third of a training micro-batch.
    share = (2 * batches / 3) / (2 * batches / 3 + interval * accumulation)
    return msg(
        "Evaluations: every {interval:count update|updates}, {times:count} in total, 2 x "
        "{batches:count batch|batches} each: about {share:share} of the compute.",
        interval,
        steps // interval + 1,
        batches,
        share,
    )


def _findings(case: Case) -> Iterator[Said]:
    """What the rules say of the config: the same words as in `plan` and `diagnose`."""
    for found in all_findings(case):
        if isinstance(found, Finding):
            advice, key = (found.change.words, found.change.key) if found.change is not None else (None, None)
            words = msg("{claim}: {advice}.", found.claim, advice) if advice else found.claim
            yield key if key in settings() else "epoch", words


def _expected(case: Case, preset: Preset | None) -> Iterator[Said]:
    if case.ln_vocab is not None and (vocab := case.vocab_size) is not None and not case.is_pretrained:
        words = msg("The first loss should be about ln {vocab:count} = {chance:nats}.", vocab.value, case.ln_vocab)
        yield "ln_v", words
    yield "val_loss", _expected_val(case, preset)
    if preset is not None:
        for step, mean, spread in preset.curve:
            yield "val_loss", msg("At step {step:count}: {mean:nats} ± {spread:nats} over seeds.", step, mean, spread)
        if not preset.was_run:
            yield "plateau", msg("This preset has not been run yet: its values are calculated.")
        elif preset.took is not None:
            yield "tokens_per_s", msg("It took {took}.", preset.took)
    plan = f"nanolens plan {case.run.name}"
    yield "tokens_per_s", msg("{command:code} estimates how long it would take on this machine.", plan)


def _expected_val(case: Case, preset: Preset | None) -> Message | None:
    known = case.reference
    if preset is not None and preset.val_loss is not None:
        if preset.val_loss_source is None:
            return msg("Expected val loss: {val:nats}.", preset.val_loss)
        return msg("Expected val loss: {val:nats} ({source}).", preset.val_loss, preset.val_loss_source)
    if known is not None and known.best_val is not None and known.best_step is not None:
        return msg(
            "The reference run of this model and data ({name}) was best at {val:rough_nats}, near update {step:count}.",
            known.name,
            known.best_val,
            known.best_step,
        )
    if known is not None and known.end_val is not None and known.end_step is not None:
        return msg(
            "The reference run of this model and data ({name}) ends at {val:rough_nats} after update {step:count}.",
            known.name,
            known.end_val,
            known.end_step,
        )
    return None


def _settings(case: Case, came_from: Mapping[str, str]) -> Iterator[Said]:
    for name, known in settings().items():
        if came_from.get(name, "default") != "default":
            value = as_text(case.run.get(name))
            yield name, msg("{setting:code}: {meaning}.", f"{name} = {value}", known.meaning)
