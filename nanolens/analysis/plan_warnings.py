"""What should be known before the money is spent: each warning with its number, what would be usual, and the change."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from nanolens.analysis.corpora import corpus_named
from nanolens.analysis.plan_rows import two_digits
from nanolens.analysis.plan_time import TimePlan
from nanolens.config.fields import Config
from nanolens.facts.finding import Change
from nanolens.facts.laws import (
    critical_batch,
    is_outside_step_law,
    rate_for_batch,
    step_law_batch,
    step_law_rate,
    tokens_wasted,
    worth_of_tokens,
)
from nanolens.facts.references import REFERENCES
from nanolens.message import Message, msg
from nanolens.planning.figures import DataFacts, MachineFacts
from nanolens.planning.memory import checkpoint_bytes, largest_micro_batch, peak_memory, usable_memory
from nanolens.sizing import Shape, parameters

MANY_EPOCHS = 24  # tokens repeated so often are worth half of fresh ones, and even with dropout val soon turns
FEW_EPOCHS = 6  # without dropout, a model with more parameters than the data has tokens knows them by heart after a few more
TOO_LARGE_BATCH = 4.0  # times the critical batch: five times the tokens that are needed
TOO_FEW_UPDATES = 500
EVAL_SHARE = 0.15
WINDOW_SD = {True: 0.2, False: 0.4}
"""Nats by which the mean loss of one window of 256 characters, or of any number of BPE tokens, scatters between places of a text."""


@dataclass(frozen=True)
class Warning:
    code: str
    claim: Message
    change: Change | None


def warnings_of(
    config: Config, shape: Shape, data: DataFacts, machine: MachineFacts, times: TimePlan | Message, difference: float | None
) -> Iterator[Warning]:
    yield from _fits(config, shape, machine)
    yield from _disk(config, shape, machine)
    if config.max_iters and not config.eval_only:
        yield from _repetition(config, shape, data)
        yield from _batch(config)
        yield from _schedule(config)
        yield from _rate(config, shape)
    yield from _precision(machine)
    yield from _evaluation(config, data, times, difference)


def _fits(config: Config, shape: Shape, machine: MachineFacts) -> Iterator[Warning]:
    room = usable_memory(machine)
    if room is None:
        return
    expected, low, high = peak_memory(config, shape, machine)
    if expected <= room and high <= room:
        return
    largest = largest_micro_batch(config, shape, machine)
    claim = (
        msg("will not fit: about {need:bytes} at the peak, and {room:bytes} can be used", need=expected, room=room)
        if expected > room
        else msg("may not fit: {low:bytes} to {high:bytes} at the peak, and {room:bytes} can be used", low=low, high=high, room=room)
    )
    yield Warning("will_not_fit" if expected > room else "may_not_fit", claim, _smaller_micro_batch(config, shape, machine, largest))


def _smaller_micro_batch(config: Config, shape: Shape, machine: MachineFacts, largest: int | None) -> Change | None:
    per_update = config.batch_size * config.gradient_accumulation_steps
    chunked = largest_micro_batch(config, shape, machine, chunked=True) if machine.calibration is None else None
    if not config.chunked_head and chunked and chunked >= config.batch_size:
        return Change(msg("never hold all logits at once: the same numbers with less memory"), "chunked_head", config.chunked_head, True)
    best = largest or chunked or 0
    sizes = [size for size in range(1, best + 1) if per_update % size == 0]
    if not sizes:
        return Change(msg("not even one sequence fits: a smaller model, a shorter context, or another device"))
    size = sizes[-1]
    options = f"--batch_size={size} --gradient_accumulation_steps={per_update // size}"
    if not largest:
        options += " --chunked_head=True"
    return Change(msg("a smaller micro-batch and more of them: the update stays the same"), command=options)


def _disk(config: Config, shape: Shape, machine: MachineFacts) -> Iterator[Warning]:
    need, free = disk_bytes(config, shape), machine.free_disk_bytes
    if free is not None and need > free:
        yield Warning(
            "disk_full",
            msg("the checkpoints will need {need:bytes} of disk, and {free:bytes} are free", need=need, free=free),
            Change(msg("keep fewer"), "keep_checkpoints", config.keep_checkpoints, 1),
        )


def disk_bytes(config: Config, shape: Shape) -> float:
    """At the worst moment: those kept, the best, and one being written."""
    return checkpoint_bytes(shape) * (config.keep_checkpoints + 2)


def _repetition(config: Config, shape: Shape, data: DataFacts) -> Iterator[Warning]:
    if not data.train_tokens:
        return
    seen = config.tokens_per_update * config.max_iters
    epochs = seen / data.train_tokens
    if epochs <= 1 and config.dropout > 0:
        yield Warning(
            "dropout_in_one_epoch",
            msg("dropout {dropout:about} in a run that sees each token at most once: it only slows learning", dropout=config.dropout),
            Change(msg("switch it off"), "dropout", config.dropout, 0.0),
        )
    if epochs > MANY_EPOCHS:
        worth = worth_of_tokens(seen, data.train_tokens) / seen
        claim = msg(
            "will repeat the data {epochs:about} times: its {seen:tokens} tokens teach as much as {fresh:tokens} fresh ones at best",
            epochs=epochs, seen=seen, fresh=worth * seen,
        )  # fmt: skip
        if parameters(shape).total > data.train_tokens / 5:  # enough to know much of it by heart
            claim = msg("{claim}, and val will likely rise before the end", claim=claim)
        yield Warning("data_repeated", claim, _shorter(config, shape, data))
    elif epochs > FEW_EPOCHS and config.dropout == 0 and parameters(shape).total > 2 * data.train_tokens:
        claim = msg(
            "{parameters:parameters} parameters see {tokens:tokens} tokens {epochs:about} times without dropout: they will "
            "learn them by heart",
            parameters=parameters(shape).total,
            tokens=data.train_tokens,
            epochs=epochs,
        )
        yield Warning("will_overfit", claim, Change(msg("switch dropout on, or take more text"), "dropout", 0.0, 0.2))


def _shorter(config: Config, shape: Shape, data: DataFacts) -> Change:
    """Where this very config is known to be best, or else where repetition has lost most of its worth."""
    corpus = corpus_named(data.name)
    for known in REFERENCES:
        same = (known.n_layer, known.n_embd, known.block_size, known.tokens_per_update) == (
            shape.n_layer, shape.n_embd, shape.block_size, config.tokens_per_update,
        )  # fmt: skip
        if corpus is not None and known.corpus == corpus.name and same and known.best_step is not None:
            return Change(
                msg("this config is known to be best near update {step:count} ({source})", step=known.best_step, source=known.source),
                "max_iters", config.max_iters, known.best_step,
            )  # fmt: skip
    updates = max(1, round(MANY_EPOCHS * (data.train_tokens or 0) / config.tokens_per_update))
    return Change(msg("stop earlier, or take more text"), "max_iters", config.max_iters, updates)


def _batch(config: Config) -> Iterator[Warning]:
    tokens = config.tokens_per_update * config.max_iters
    critical, best = two_digits(critical_batch(tokens)), two_digits(step_law_batch(tokens))
    ratio = config.tokens_per_update / critical
    accumulation = max(1, round(best / (config.batch_size * config.block_size)))
    change = (
        Change(
            msg("fewer tokens per update and more updates; {tokens:tokens} a time is near the best for this budget", tokens=best),
            "gradient_accumulation_steps",
            config.gradient_accumulation_steps,
            accumulation,
        )
        if accumulation < config.gradient_accumulation_steps
        else Change(msg("a smaller batch_size and more updates"), "batch_size", config.batch_size, max(1, round(best / config.block_size)))
    )
    if ratio >= TOO_LARGE_BATCH * 0.95:
        claim = msg(
            "{batch:tokens} tokens per update on a budget of {budget:tokens}: {times:about} times the critical batch of "
            "about {critical:tokens}, so some {waste:about} times the tokens are needed",
            batch=config.tokens_per_update,
            budget=tokens,
            times=ratio,
            critical=critical,
            waste=tokens_wasted(config.tokens_per_update, critical),
        )
        yield Warning("batch_too_large", claim, change)
    elif config.max_iters < TOO_FEW_UPDATES and config.tokens_per_update > 4 * best:
        claim = msg(
            "only {updates:count} updates for {budget:tokens} tokens: {times:about} times the best batch of about {best:tokens}",
            updates=config.max_iters, budget=tokens, times=config.tokens_per_update / best, best=best,
        )  # fmt: skip
        yield Warning("too_few_updates", claim, change)


def _schedule(config: Config) -> Iterator[Warning]:
    if not config.decay_lr:
        return
    if config.decay_ends > 1.05 * config.max_iters:
        yield Warning(
            "decay_longer_than_run",
            msg(
                "the {shape} decay ends at update {end:count}, and the run at {stop:count}: the learning rate will not come down",
                shape=config.schedule, end=config.decay_ends, stop=config.max_iters,
            ),
            Change(msg("let the decay end with the run"), "lr_decay_iters", config.decay_ends, config.max_iters),
        )  # fmt: skip
    elif config.decay_ends < 0.9 * config.max_iters:
        yield Warning(
            "decay_shorter_than_run",
            msg(
                "the decay ends at update {end:count}; the last {rest:count} updates run at min_lr and teach little",
                end=config.decay_ends, rest=config.max_iters - config.decay_ends,
            ),
            Change(msg("let the decay end with the run"), "lr_decay_iters", config.decay_ends, config.max_iters),
        )  # fmt: skip
    if config.warmup_iters > 0.2 * config.max_iters:
        yield Warning(
            "warmup_too_long",
            msg("warm-up takes {share:share} of the run", share=config.warmup_iters / config.max_iters),
            Change(msg("a twentieth is plenty"), "warmup_iters", config.warmup_iters, max(1, config.max_iters // 20)),
        )
    elif config.warmup_iters == 0 and config.init_from == "scratch" and config.optimizer == "adamw":
        yield Warning(
            "no_warmup",
            msg("no warm-up: Adam's first updates are as large as the rate allows"),
            Change(msg("warm up briefly"), "warmup_iters", 0, max(1, min(100, config.max_iters // 20))),
        )


def suggested_rate(config: Config, shape: Shape) -> float:
    """Step Law's rate for this size and length, less where the batch is smaller than its best."""
    tokens = config.tokens_per_update * config.max_iters
    N = parameters(shape).total
    return rate_for_batch(step_law_rate(N, tokens), config.tokens_per_update, step_law_batch(tokens))


def is_extrapolated(config: Config, shape: Shape) -> bool:
    return is_outside_step_law(parameters(shape).total, config.tokens_per_update * config.max_iters)


def _rate(config: Config, shape: Shape) -> Iterator[Warning]:
    if config.optimizer != "adamw" or config.init_from != "scratch" or not config.learning_rate or is_extrapolated(config, shape):
        return
    suggested = suggested_rate(config, shape)
    off = config.learning_rate / suggested
    if 0.2 <= off <= 5:
        return
    claim = (
        msg(
            "learning_rate = {rate:rate} is {times:about} times what suits this size and length (about {best:rough_rate})",
            rate=config.learning_rate,
            times=off,
            best=suggested,
        )
        if off > 1
        else msg(
            "learning_rate = {rate:rate} is {times:about} times too small for this size and length (about {best:rough_rate})",
            rate=config.learning_rate,
            times=1 / off,
            best=suggested,
        )
    )
    yield Warning(
        "learning_rate_off", claim, Change(msg("try the suggested one"), "learning_rate", config.learning_rate, two_digits(suggested))
    )


def _precision(machine: MachineFacts) -> Iterator[Warning]:
    device = machine.device
    if device is None or machine.dtype in ("float32", device.best_dtype) or machine.dtype in device.peaks:
        return
    yield Warning(
        "dtype_not_supported",
        msg("{device:code} has no fast {dtype:code}", device=device.name, dtype=machine.dtype),
        Change(msg("use what the card is fast at"), "dtype", machine.dtype, device.best_dtype),
    )


def _evaluation(config: Config, data: DataFacts, times: TimePlan | Message, difference: float | None) -> Iterator[Warning]:
    if isinstance(times, TimePlan) and times.total.s > 0 and times.evaluation.s > EVAL_SHARE * times.total.s and times.evaluations > 2:
        yield Warning(
            "eval_dominates_time",
            msg("evaluations would take {share:share} of the time", share=times.evaluation.s / times.total.s),
            Change(msg("evaluate less often"), "eval_interval", config.eval_interval, config.eval_interval * 4),
        )
    if difference is None:
        return
    error = eval_error(config, data)
    visible = 2 * math.sqrt(2) * error
    if visible <= difference:
        return
    wanted = (visible / difference) ** 2
    tokens = config.eval_iters * config.batch_size * config.block_size
    if data.val_tokens and tokens * wanted > data.val_tokens:
        claim = msg(
            "the val set of {tokens:tokens} tokens is too small: two runs must differ by about {visible:nats} to be told "
            "apart, and you want {wanted:nats}",
            tokens=data.val_tokens,
            visible=2 * math.sqrt(2) * error * math.sqrt(min(1.0, tokens / data.val_tokens)),
            wanted=difference,
        )
        yield Warning(
            "val_set_too_small",
            claim,
            Change(
                msg("compare on the same batches (paired), which is several times sharper, or hold out more text"),
                "eval_whole",
                config.eval_whole,
                True,
            ),
        )
        return
    claim = msg(
        "an evaluation of {tokens:tokens} tokens shows differences of {visible:nats} and more, and you want {wanted:nats}",
        tokens=tokens, visible=visible, wanted=difference,
    )  # fmt: skip
    yield Warning(
        "eval_too_small",
        claim,
        Change(msg("evaluate more batches"), "eval_iters", config.eval_iters, math.ceil(config.eval_iters * wanted)),
    )


def eval_error(config: Config, data: DataFacts) -> float:
    """Standard error of one evaluation, as it usually is for windows of this length."""
    is_char = bool(data.is_char) if data.is_char is not None else (data.vocab_size or 50304) <= 1024
    window = WINDOW_SD[is_char] * (math.sqrt(256 / config.block_size) if is_char else 1.0)
    return window / math.sqrt(config.eval_iters * config.batch_size)
