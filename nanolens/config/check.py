"""What is wrong with a Config taken as a whole. Every fault is found, each with its value, where that came from, and the fix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from nanolens.config.fields import Config, Setting, as_text, settings
from nanolens.errors import Fault
from nanolens.message import Message, msg

TRACKERS = {"tensorboard", "wandb", "trackio", "mlflow", "none", ""}


def faults_in(config: Config, came_from: Mapping[str, str], ignore: Set[str] = frozenset()) -> Iterator[Fault]:
    """Faults of single values, then of values that do not go together. `ignore` names settings that already have a fault."""
    bad = set(ignore)
    for known in settings().values():
        if known.name not in bad and (what := _out_of_range(known, getattr(config, known.name))):
            bad.add(known.name)
            yield Fault(what, where=_where(came_from, known.name), fix=_allowed(known))
    for names, fault in _pairs(config, came_from):
        if not bad.intersection(names):
            yield fault


def _out_of_range(known: Setting, value: object) -> Message | None:
    if value is None:
        return None
    if known.name == "trackers" and not set(_listed(value)) <= TRACKERS:
        return msg("{key:code} = {value:code} is not one of its choices", key=known.name, value=value)
    if known.choices and value not in known.choices:
        return msg("{key:code} = {value:code} is not one of its choices", key=known.name, value=value)
    if known.low is not None and value < known.low:  # type: ignore[operator]
        return msg("{key:code} = {value:code} is too small", key=known.name, value=as_text(value))
    if known.high is not None and value > known.high:  # type: ignore[operator]
        return msg("{key:code} = {value:code} is too large", key=known.name, value=as_text(value))
    return None


def _listed(value: object) -> list[str]:
    return [each.strip() for each in str(value).split(",")]


def _allowed(known: Setting) -> Message:
    if known.name == "trackers":
        return msg("use one or several of {choices:code}, with commas between", choices=sorted(TRACKERS - {""}))
    if known.choices:
        return msg("use one of {choices:code}", choices=known.choices)
    return msg("use a value from {low:code} to {high:code}", low=as_text(known.low), high=as_text(known.high))


def _pairs(config: Config, came_from: Mapping[str, str]) -> Iterator[tuple[tuple[str, ...], Fault]]:
    width, heads = config.n_embd, config.n_head
    if heads < 1:
        pass  # told already: too small
    elif width % heads:
        below, above = width - width % heads, width - width % heads + heads
        yield (
            ("n_embd", "n_head"),
            Fault(
                msg(
                    "{a:code} = {width:code} does not divide into {b:code} = {heads:code}", a="n_embd", width=width, b="n_head", heads=heads
                ),
                where=_where(came_from, "n_embd", "n_head"),
                fix=msg(
                    "use n_embd {choices:code}, or a number of heads that divides {width:code}",
                    choices=[size for size in (below, above) if size],
                    width=width,
                ),
            ),
        )
    elif config.arch == "modern" and (width // heads) % 2:
        yield (
            ("n_embd", "n_head", "arch"),
            Fault(
                msg("a head of {size:code} channels cannot be rotated by pairs, as arch=modern does", size=width // heads),
                where=_where(came_from, "n_embd", "n_head", "arch"),
                fix=msg("choose n_embd / n_head even"),
            ),
        )
    if config.decay_lr and not config.eval_only and 0 < config.max_iters <= config.warmup_iters:
        yield (
            ("warmup_iters", "max_iters"),
            Fault(
                msg(
                    "the warm-up ({warmup:count} updates) is as long as the run ({total:count}): the full rate would never be reached",
                    warmup=config.warmup_iters,
                    total=config.max_iters,
                ),
                where=_where(came_from, "warmup_iters", "max_iters"),
                fix=msg("use {option:code} or less, or a longer run", option=f"--warmup_iters={config.max_iters // 10}"),
            ),
        )
    if config.decay_lr and config.min_lr > config.learning_rate:
        yield (
            ("min_lr", "learning_rate"),
            Fault(
                msg("min_lr = {low:rate} is above learning_rate = {high:rate}", low=config.min_lr, high=config.learning_rate),
                where=_where(came_from, "min_lr", "learning_rate"),
                fix=msg("use {option:code}, a tenth, or less", option=f"--min_lr={config.learning_rate / 10:g}"),
            ),
        )
    if config.decay_lr and config.decay_ends <= config.warmup_iters and config.max_iters > config.warmup_iters:
        yield (
            ("lr_decay_iters", "warmup_iters"),
            Fault(
                msg(
                    "the decay ends at update {end:count}, before the warm-up does ({warmup:count})",
                    end=config.decay_ends,
                    warmup=config.warmup_iters,
                ),
                where=_where(came_from, "lr_decay_iters", "warmup_iters"),
                fix=msg("use {option:code}", option=f"--lr_decay_iters={config.max_iters}"),
            ),
        )
    if config.dtype == "float16" and config.device == "mps":
        yield (
            ("dtype", "device"),
            Fault(
                msg("float16 with gradient scaling is not there on mps"),
                where=_where(came_from, "dtype", "device"),
                fix=msg("use {option:code}", option="--dtype=bfloat16"),
            ),
        )


def _where(came_from: Mapping[str, str], *names: str) -> Message:
    return msg("{where:code}", where=[f"{name}: {came_from.get(name, 'default')}" for name in names])
