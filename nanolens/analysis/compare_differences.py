"""What differed between the sides, what follows from it, and whether it can explain a difference in loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from nanolens.comparison.side import Side
from nanolens.config.fields import settings
from nanolens.message import Message, msg

Effect = Literal["can", "within_spread", "cannot", "measures"]
"""can: able to change the loss; within_spread: by no more than one run differs from its repeat; cannot: changes speed or nothing;
measures: changes what is measured, not the model."""


@dataclass(frozen=True)
class Difference:
    key: str
    what: Message
    values: tuple[object, ...]  # one a side; None where not known
    kind: str  # of the values, one of message.KINDS
    effect: Effect
    because: Message
    is_derived: bool = False  # follows from other differences


IGNORED = {"out_dir", "overwrite", "init_from", "trackers", "wandb_log", "wandb_project", "wandb_run_name", "log_interval", "dataset"}
SPEED_ONLY = msg("changes the speed, not the numbers")
REASONS: dict[str, tuple[Effect, Message]] = {
    "device": ("cannot", msg("the arithmetic is the same on each device, to rounding")),
    "compile": ("cannot", SPEED_ONLY),
    "threads": ("cannot", SPEED_ONLY),
    "backend": ("cannot", SPEED_ONLY),
    "chunked_head": ("cannot", msg("the same sums in another order")),
    "dtype": ("cannot", msg("rounding of 16-bit arithmetic stays below 0.01 nats unless the run overflows")),
    "seed": ("within_spread", msg("another start and another order of the data: differs as repeats of one run do")),
    "eval_iters": ("measures", msg("more batches, less noise; the model is the same")),
    "eval_whole": ("measures", msg("other tokens are evaluated; the model is the same")),
    "eval_interval": ("measures", msg("evaluated at other steps; the model is the same")),
    "block_size": ("can", msg("a longer context is more to predict from, and by itself lowers the loss")),
    "dropout": ("can", msg("dropout trades speed of learning against learning by heart")),
    "data_order": ("within_spread", msg("another order of the same data")),
}
GROUP_REASONS: dict[str, tuple[Effect, Message]] = {
    "model": ("can", msg("another model")),
    "data": ("can", msg("other data or other batches")),
    "optimizer": ("can", msg("other updates from the same gradients")),
    "schedule": ("can", msg("another learning rate or another length")),
    "evaluation": ("measures", msg("how it is measured, not what is trained")),
    "checkpoint": ("cannot", msg("what is kept on disk")),
    "machine": ("cannot", SPEED_ONLY),
    "output": ("cannot", msg("what is shown")),
}


def differences(sides: Sequence[Side]) -> tuple[Difference, ...]:
    found = [*_settings(sides), *_facts(sides)]
    return (*sorted(found, key=lambda each: ("can", "within_spread", "measures", "cannot").index(each.effect)), *_derived(sides))


INNOCENT = set(
    """seed learning_rate min_lr matrix_learning_rate weight_decay beta1 beta2 grad_clip label_smoothing max_iters decay_lr schedule
    warmup_iters lr_decay_iters decay_frac eval_interval eval_iters eval_whole data_order tokens epochs flops updates""".split()
)
"""Differences that leave the time of a step as it is."""
UNEXPLAINED_SPEED = 1.2


def unexplained_speed(sides: Sequence[Side], differ: Sequence[Difference]) -> float | None:
    """How many times slower one side's steps are than another's where nothing that is known to differ can be the reason; None where that
    is not so. The machine was then busy with something else, and times say nothing about the configs."""
    times = [side.step_s for side in sides if side.step_s]
    if len(times) < 2 or max(times) <= UNEXPLAINED_SPEED * min(times) or {each.key for each in differ} - INNOCENT:
        return None
    return max(times) / min(times)


def _settings(sides: Sequence[Side]) -> list[Difference]:
    same_update = _is_same([side.tokens_per_update for side in sides])
    found = []
    for known in settings().values():
        if known.name in IGNORED:
            continue
        values = tuple(side.case.get(known.name) for side in sides)
        if not _differ(values):
            continue
        effect, because = REASONS.get(known.name, GROUP_REASONS[known.group])
        if known.name in ("batch_size", "gradient_accumulation_steps") and same_update:
            effect, because = "cannot", msg("the tokens per update are the same, so is the mean gradient")
        kind = "rate" if known.name in ("learning_rate", "min_lr", "matrix_learning_rate") else "number"
        found.append(Difference(known.name, msg("{key:code}", key=known.name), values, kind, effect, because))
    return found


def _facts(sides: Sequence[Side]) -> list[Difference]:
    rows: list[tuple[str, Message, Callable[[Side], object], Effect, Message]] = [
        ("dataset", msg("data"), lambda side: side.case.text("dataset") or None, "can", msg("other text")),
        ("data_fingerprint", msg("fingerprint of the data"), lambda side: side.case.get("data_fingerprint"), "can", msg("other tokens")),
        (
            "tokenizer_fingerprint",
            msg("tokenizer"),
            lambda side: side.case.get("tokenizer_fingerprint"),
            "can",
            msg("other tokens: losses per token mean something else"),
        ),
        ("model_code", msg("code of the model"), lambda side: side.case.get("model_code"), "can", msg("another model")),
        (
            "hardware",
            msg("hardware"),
            lambda side: side.device_name or None,
            "cannot",
            msg("the arithmetic is the same on each device, to rounding"),
        ),
        ("devices", msg("devices"), lambda side: side.case.devices if side.device_name else None, "cannot", SPEED_ONLY),
        (
            "torch",
            msg("torch"),
            lambda side: side.case.get("torch"),
            "cannot",
            msg("changes the speed, unless one of the versions has a fault"),
        ),
        (
            "trainer",
            msg("trainer"),
            lambda side: side.case.run.words.trainer,
            "can",
            msg("another program: initial weights, defaults and losses may differ"),
        ),
        (
            "trainer_version",
            msg("version of the trainer"),
            lambda side: side.case.get("trainer_version"),
            "within_spread",
            msg("other code: numbers may have moved, see its changelog"),
        ),
    ]
    found = []
    for key, what, value_of, effect, because in rows:
        values = tuple(value_of(side) for side in sides)
        if _differ(values):
            found.append(Difference(key, what, values, "text", effect, because))
    return found


def _derived(sides: Sequence[Side]) -> list[Difference]:
    """What follows from the settings, each a ratio of its own."""
    rows: list[tuple[str, Message, Callable[[Side], object], str, Effect, Message]] = [
        (
            "schedule",
            msg("learning rate over the run"),
            _schedule_words,
            "text",
            "can",
            msg("how long the rate stays high, and how far it comes down"),
        ),
        (
            "parameters",
            msg("parameters"),
            lambda side: _value(side.case.parameters),
            "parameters",
            "can",
            msg("a larger model learns more from each token"),
        ),
        (
            "tokens_per_update",
            msg("tokens per update"),
            lambda side: side.tokens_per_update,
            "tokens",
            "can",
            msg("a larger batch takes fewer and better updates from the same tokens"),
        ),
        (
            "flops_per_token",
            msg("FLOPs per token"),
            lambda side: _value(side.case.flops_per_token),
            "flops",
            "can",
            msg("the cost of a token"),
        ),
        ("updates", msg("updates"), lambda side: float(side.last_step), "count", "can", msg("a longer run learns more")),
        ("tokens", msg("tokens seen"), lambda side: side.total("tokens"), "tokens", "can", msg("more text seen")),
        ("epochs", msg("epochs"), lambda side: side.epochs, "about", "can", msg("after many epochs a model learns its text by heart")),
        ("flops", msg("FLOPs in all"), lambda side: side.total("flops"), "flops", "can", msg("more compute")),
    ]
    found = []
    for key, what, value_of, kind, effect, because in rows:
        values = tuple(value_of(side) for side in sides)
        if _differ(values, tolerance=0.005):
            found.append(Difference(key, what, values, kind, effect, because, is_derived=True))
    return found


def _schedule_words(side: Side) -> Message | None:
    schedule = side.case.schedule
    if schedule is None:
        return None
    if not schedule.decay_lr or schedule.min_lr == schedule.learning_rate:
        return msg("constant at {rate:rate}", rate=schedule.learning_rate)
    values = {"rate": schedule.learning_rate, "least": schedule.min_lr, "warmup": schedule.warmup_iters, "end": schedule.decay_ends}
    if schedule.shape == "wsd":
        return msg(
            "{rate:rate} after {warmup:count} updates, constant until {begins:count}, down to {least:rate} at {end:count}",
            begins=schedule.decay_begins, **values,
        )  # fmt: skip
    return msg("{rate:rate} after {warmup:count} updates, {shape} down to {least:rate} at {end:count}", shape=schedule.shape, **values)


def _value(quantity: object) -> float | None:
    return None if quantity is None else quantity.value  # type: ignore[attr-defined]


def _differ(values: Sequence[object], tolerance: float = 0.0) -> bool:
    """Whether two of the values that are known are not the same. What one side does not say is no difference."""
    known = [value for value in values if value is not None]
    return len(known) > 1 and not _is_same(known, tolerance)


def _is_same(values: Sequence[object], tolerance: float = 0.0) -> bool:
    first = values[0]
    if first is None:
        return False
    for value in values[1:]:
        if isinstance(value, (int, float)) and isinstance(first, (int, float)):
            if abs(value - first) > tolerance * max(abs(value), abs(first)):
                return False
        elif value != first:
            return False
    return True
