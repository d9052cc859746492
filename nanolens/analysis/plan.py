"""What a config would cost and reach, before it costs anything: every number with its source, and warnings.

plan = make_plan(config, DataFacts(...), MachineFacts(...))
plan.sections, plan.warnings, plan.value("total_s")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nanolens.analysis.plan_loss import expected_loss
from nanolens.analysis.plan_ranks import sections_of
from nanolens.analysis.plan_rows import Row, Section, calculated, estimated, two_digits, unknown
from nanolens.analysis.plan_time import TimePlan, time_plan, time_rows
from nanolens.analysis.plan_warnings import Warning, disk_bytes, is_extrapolated, suggested_rate, warnings_of
from nanolens.config.fields import Config
from nanolens.config.preset import Preset
from nanolens.facts.laws import LOSS_LAWS, STEP_LAW_RANGE, critical_batch, step_law_batch, worth_of_tokens
from nanolens.message import Message, msg
from nanolens.planning.figures import DataFacts, MachineFacts
from nanolens.planning.memory import memory_rows
from nanolens.sizing import Shape, flops_per_token, parameters, shape_of

PARTS = {
    "token embedding": msg("token embedding"), "position embedding": msg("position embedding"), "attention": msg("attention"),
    "mlp": msg("mlp"), "norms": msg("norms"), "head": msg("head"), "n-gram tables": msg("n-gram tables"), "token shift": msg("token shift"),
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    config: Config
    shape: Shape
    data: DataFacts
    machine: MachineFacts
    sections: tuple[Section, ...]
    warnings: tuple[Warning, ...]
    notes: tuple[Message, ...] = ()

    def row(self, key: str) -> Row:
        return next(row for section in self.sections for row in section.rows if row.key == key)

    def value(self, key: str) -> object:
        return self.row(key).value


@dataclass(frozen=True)
class Asked:
    """What a plan is made from, for sections that live in files of their own."""

    config: Config
    shape: Shape
    data: DataFacts
    machine: MachineFacts
    times: TimePlan | Message  # of one machine, or why they are not known


ADDITIONS: tuple[Callable[[Asked], Iterator[Section | Warning]], ...] = (sections_of,)
"""Each gives the sections and warnings that it has for this plan, or nothing; sections come behind Time, warnings behind the others."""


def make_plan(
    config: Config, data: DataFacts, machine: MachineFacts, *, preset: Preset | None = None, price_per_hour: float | None = None,
    difference: float | None = None, notes: tuple[Message, ...] = (),
) -> Plan:  # fmt: skip
    """`preset` only where the config is exactly that preset; `difference`: the smallest difference in val loss that is to be seen."""
    shape = shape_of(config, data.vocab_size)
    times = time_plan(config, shape, machine)
    asked = Asked(config, shape, data, machine, times)
    added = [each for addition in ADDITIONS for each in addition(asked)]
    sections = (
        Section("model", msg("Model"), tuple(_model_rows(shape))),
        Section("data", msg("Data"), tuple(_data_rows(config, shape, data))),
        Section("optimisation", msg("Batch and learning rate"), tuple(_optimisation_rows(config, shape))),
        Section("memory", msg("Memory"), tuple(memory_rows(config, shape, machine))),
        Section("time", msg("Time"), tuple(time_rows(config, shape, machine, times, price_per_hour))),
        *(each for each in added if isinstance(each, Section)),
        Section("disk", msg("Disk"), tuple(_disk_rows(config, shape))),
        Section("loss", msg("Loss"), (expected_loss(config, shape, data, preset),)),
    )
    warnings = (*warnings_of(config, shape, data, machine, times, difference), *(each for each in added if isinstance(each, Warning)))
    return Plan(config, shape, data, machine, sections, warnings, notes)


def _model_rows(shape: Shape) -> Iterator[Row]:
    counted = parameters(shape)
    from_shape = msg("counted from the shape")
    yield calculated("parameters", msg("parameters"), counted.total, "parameters", from_shape)
    for part, count in counted.by_part.items():
        yield calculated(
            "parameters_" + part.replace(" ", "_").replace("-", "_"),
            PARTS.get(part, msg("{part}", part=part)),
            count,
            "parameters",
            from_shape,
        )
    flops = flops_per_token(shape)
    yield calculated(
        "flops_per_token", msg("FLOPs per token"), flops.training, "flops", msg("6 per matrix parameter + 12 x layers x width x context")
    )
    yield calculated("flops_attention", msg("of which attention"), flops.attention, "flops", msg("12 x layers x width x context"))


def _data_rows(config: Config, shape: Shape, data: DataFacts) -> Iterator[Row]:
    seen = config.tokens_per_update * config.max_iters
    yield calculated(
        "tokens_per_update",
        msg("tokens per update"),
        config.tokens_per_update,
        "tokens",
        msg("batch_size x block_size x gradient_accumulation_steps"),
    )
    yield calculated(
        "tokens", msg("tokens seen in all"), seen, "tokens", msg("tokens per update x {updates:count} updates", updates=config.max_iters)
    )
    yield calculated("flops", msg("FLOPs in all"), seen * flops_per_token(shape).training, "flops", msg("tokens x FLOPs per token"))
    yield calculated(
        "tokens_per_parameter",
        msg("tokens per parameter"),
        seen / parameters(shape).total,
        "about",
        msg(
            "about 20 spends compute best, {low:about} to {high:about} by the published fits; more is normal for a model that will be used",
            low=_best_ratio(seen * flops_per_token(shape).training)[0],
            high=_best_ratio(seen * flops_per_token(shape).training)[1],
        ),
    )
    if data.train_tokens is None:
        yield unknown("epochs", msg("epochs"), "about", msg("the size of the data is not known: {because}", because=data.origin))
        return
    epochs = seen / data.train_tokens
    yield calculated(
        "epochs",
        msg("epochs"),
        epochs,
        "about",
        msg("of {tokens:tokens} training tokens ({origin})", tokens=data.train_tokens, origin=data.origin),
    )
    worth = worth_of_tokens(seen, data.train_tokens) / seen if seen else 1.0
    yield estimated("repetition_worth", msg("what a token is worth with so much repetition"), worth, "share",
                    msg("Muennighoff 2023 (arXiv 2305.16264); it knows of no overfitting"), None, None)  # fmt: skip


def _best_ratio(flops: float) -> tuple[float, float]:
    """Tokens per parameter that the published fits find best for this compute (least and most of the three)."""
    if flops <= 0:
        return (20.0, 20.0)
    found = []
    for law in LOSS_LAWS:
        share = (law.alpha * law.A / (law.beta * law.B)) ** (1 / (law.alpha + law.beta))
        best_N = share * (flops / 6) ** (law.beta / (law.alpha + law.beta))
        found.append(flops / 6 / best_N**2)
    return min(found), max(found)


def _optimisation_rows(config: Config, shape: Shape) -> Iterator[Row]:
    seen = config.tokens_per_update * config.max_iters
    if not seen:
        yield unknown("suggested_batch", msg("best tokens per update"), "tokens", msg("the run has no updates"))
        return
    outside = is_extrapolated(config, shape)
    law = msg("Step Law (arXiv 2503.04715), a factor of 2 either way")
    if outside:
        law = msg("Step Law (arXiv 2503.04715), far from the sizes and lengths it was fitted on: an order of magnitude only")
    best, critical = two_digits(step_law_batch(seen)), two_digits(critical_batch(seen))
    width = STEP_LAW_RANGE * (2 if outside else 1)
    yield estimated("suggested_batch", msg("best tokens per update"), best, "tokens", law, best / width, best * width)
    yield estimated("critical_batch", msg("critical batch, beyond which tokens are wasted"), critical, "tokens",
                    msg("Zhang 2024 (arXiv 2410.21676), a factor of 2 either way"), critical / 2, critical * 2)  # fmt: skip
    yield calculated("batch_over_critical", msg("tokens per update over the critical batch"), config.tokens_per_update / critical, "times",
                     msg("of the two above"))  # fmt: skip
    rate = suggested_rate(config, shape)
    yield calculated("learning_rate", msg("learning rate"), config.learning_rate, "rate", msg("as configured"))
    if config.optimizer == "adamw":
        yield estimated(
            "suggested_rate",
            msg("learning rate that suits this size, length and batch"),
            rate,
            "rough_rate",
            law,
            rate / width,
            rate * width,
        )
    if config.decay_lr:
        yield calculated(
            "warmup_share",
            msg("share of the run that is warm-up"),
            config.warmup_iters / max(1, config.max_iters),
            "share",
            msg("1% to 10% is usual"),
        )
        yield calculated(
            "decay_ends_share",
            msg("the decay ends at this share of the run"),
            config.decay_ends / max(1, config.max_iters),
            "share",
            msg("100% is best"),
        )
        yield calculated(
            "final_rate_share",
            msg("last learning rate over the largest"),
            config.min_lr / config.learning_rate if config.learning_rate else None,
            "share",
            msg("10% is customary; 0 would gain 0.01 to 0.02 nats (arXiv 2502.15938)"),
        )


def _disk_rows(config: Config, shape: Shape) -> Iterator[Row]:
    from nanolens.planning.memory import checkpoint_bytes

    yield calculated(
        "checkpoint_bytes", msg("one checkpoint"), checkpoint_bytes(shape), "bytes", msg("weights and optimizer, 12 bytes a parameter")
    )
    yield calculated("disk_bytes", msg("disk for checkpoints"), disk_bytes(config, shape), "bytes",
                     msg("{kept:count} kept, the best, and one being written", kept=config.keep_checkpoints))  # fmt: skip
