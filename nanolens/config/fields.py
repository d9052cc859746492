"""Every setting of a run, once: `Config` has its name (nanoGPT's where nanoGPT has one), type and default;
`settings.toml` has its unit, meaning and range.

`--help`, the option reference, validation, `explain` and the tooltips of the page are all made from these two. The
defaults are nanoGPT's own, so that one of its config files means here what it means there. A setting that is None is
shown and written as `auto`: the program decides, and records its choice with the reason."""

from __future__ import annotations

import dataclasses
import tomllib
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path

import msgspec

from nanolens.errors import Fault
from nanolens.message import Message, msg

_TABLE = Path(__file__).with_name("settings.toml")


@dataclass(frozen=True)
class Setting:
    name: str
    type: type  # int, float, bool or str
    default: object
    is_optional: bool  # None is allowed, and is written `auto`
    group: str  # a key of TITLES
    meaning: Message
    unit: str  # "", or what is counted: "tokens", "updates", …
    low: float | None  # smallest and largest values that make sense, both allowed
    high: float | None
    choices: tuple[str, ...]
    is_fixed_by_checkpoint: bool  # resuming with another value is refused


@dataclass(frozen=True, kw_only=True)
class Config:
    # --- model
    arch: str = "gpt2"
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    block_size: int = 1024
    vocab_size: int | None = None
    dropout: float = 0.0
    bias: bool = False
    gelu: str = "exact"
    softcap: float = 15.0
    token_shift: bool = True
    ngram_rows: int = 4096
    ngram_order: int = 3
    ngram_dropout: float = 0.0
    # --- data
    dataset: str = "openwebtext"
    batch_size: int = 12
    gradient_accumulation_steps: int = 40
    data_order: str = "shuffled"
    seed: int = 1337
    # --- optimizer
    optimizer: str = "adamw"
    learning_rate: float = 6e-4
    matrix_learning_rate: float = 0.02
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    grad_clip: float = 1.0
    label_smoothing: float = 0.0
    # --- schedule
    max_iters: int = 600_000
    decay_lr: bool = True
    schedule: str = "cosine"
    warmup_iters: int = 2000
    lr_decay_iters: int | None = 600_000
    min_lr: float = 6e-5
    decay_frac: float = 0.2
    # --- evaluation
    eval_interval: int = 2000
    eval_iters: int = 200
    eval_whole: bool = False
    eval_only: bool = False
    sample_interval: int | None = None
    sample_tokens: int = 200
    # --- checkpoints
    init_from: str = "scratch"
    always_save_checkpoint: bool = True
    checkpoint_interval: int | None = None
    keep_checkpoints: int = 2
    overwrite: bool = False
    # --- machine
    device: str = "auto"
    dtype: str = "auto"
    compile: bool | None = None
    chunked_head: bool | None = None
    threads: int | None = None
    backend: str = "nccl"
    engine: str = "auto"
    rank_timeout: float = 600.0
    skip_budget: int = 3
    # --- output
    out_dir: str = "auto"
    log_interval: int = 1
    trackers: str = "none"
    wandb_log: bool = False
    wandb_project: str | None = None
    wandb_run_name: str | None = None

    @property
    def tokens_per_update(self) -> int:
        return self.batch_size * self.block_size * self.gradient_accumulation_steps

    @property
    def decay_ends(self) -> int:
        return self.max_iters if self.lr_decay_iters is None else self.lr_decay_iters


class _About(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of settings.toml."""

    meaning: str
    unit: str = ""
    range: tuple[int | float | None, int | float | None] = (None, None)
    choices: tuple[str, ...] = ()
    fixed: bool = False


@cache
def settings() -> dict[str, Setting]:
    """All settings by name, in the order of settings.toml."""
    tables = msgspec.convert(tomllib.loads(_TABLE.read_text("utf-8")), dict[str, dict[str, _About]])
    hints, defaults = typing.get_type_hints(Config), dataclasses.asdict(Config())
    found = {}
    for group, table in tables.items():
        for name, about in table.items():
            kinds = typing.get_args(hints[name]) or (hints[name],)
            found[name] = Setting(
                name,
                kinds[0],
                defaults[name],
                is_optional=types.NoneType in kinds,
                group=group,
                meaning=Message(about.meaning),
                unit=about.unit,
                low=about.range[0],
                high=about.range[1],
                choices=about.choices,
                is_fixed_by_checkpoint=about.fixed,
            )
    return found


def as_text(value: object) -> str:
    """A setting's value as a user would type it."""
    return "auto" if value is None else str(value)


@dataclass(frozen=True)
class Settings:
    """A Config together with where each of its values came from."""

    config: Config
    # "default", "preset quickstart", "config.toml line 4", "--max_iters=10"
    came_from: Mapping[str, str] = field(default_factory=dict)
    preset: str = ""
    comments: tuple[str, ...] = ()  # comments of the config file, for checking what they claim
    automatic: frozenset[str] = frozenset()  # left to a measurement (`batch_size = auto`); a value stands in until then
    notes: tuple[Message, ...] = ()  # what was passed over while reading, for the user to know


# --- what is wrong with a Config taken as a whole: every fault, each with its value, where that came from, and the fix

TRACKER_CHOICES = {"tensorboard", "wandb", "trackio", "mlflow", "none", ""}


def recommended_warmup(max_iters: int) -> int:
    """Updates of warm-up that suit a run of this length: 5% of it, at least 10 and at most 1,000. Adam's second moment
    needs about 2 / (1 - beta2) updates (arXiv 1910.04209), 40 to 200 with the usual beta2."""
    return max(1, min(10, max_iters // 2), min(1000, max_iters // 20))


def faults_in(config: Config, came_from: Mapping[str, str], ignore: Set[str] = frozenset()) -> Iterator[Fault]:
    """Faults of single values, then of values that do not go together. Those in `ignore` already have a fault."""
    bad = set(ignore)
    for known in settings().values():
        if known.name not in bad and (what := _out_of_range(known, getattr(config, known.name))):
            bad.add(known.name)
            yield Fault(what, where=_where(came_from, known.name), fix=_allowed(known))
    for names, what, fix in _conflicts(config):
        if not bad.intersection(names):
            yield Fault(what, where=_where(came_from, *names), fix=fix)


def _out_of_range(known: Setting, value: object) -> Message | None:
    if value is None:
        return None
    is_wrong_tracker = known.name == "trackers" and not {x.strip() for x in str(value).split(",")} <= TRACKER_CHOICES
    if is_wrong_tracker or (known.choices and value not in known.choices):
        return msg("{key:code} = {value:code} is not a valid choice", known.name, value)
    if known.low is not None and value < known.low:  # type: ignore[operator]
        return msg("{key:code} = {value:code} is too small", known.name, as_text(value))
    if known.high is not None and value > known.high:  # type: ignore[operator]
        return msg("{key:code} = {value:code} is too large", known.name, as_text(value))
    return None


def _allowed(known: Setting) -> Message:
    if known.name == "trackers":
        return msg("use one or more of {choices:code}, separated by commas", sorted(TRACKER_CHOICES - {""}))
    if known.choices:
        return msg("use one of {choices:code}", known.choices)
    return msg("use a value from {low:code} to {high:code}", as_text(known.low), as_text(known.high))


Conflict = tuple[tuple[str, ...], Message, Message]  # settings that do not go together, what is wrong, the fix


def _conflicts(config: Config) -> Iterator[Conflict]:
    a, width, b, heads = "n_embd", config.n_embd, "n_head", max(1, config.n_head)  # fewer are reported as too small
    if rest := width % heads:
        what = msg("{a:code} = {width:code} is not divisible by {b:code} = {heads:code}", a, width, b, heads)
        sizes = [size for size in (width - rest, width - rest + heads) if size]
        fix = msg("use n_embd {choices:code}, or a number of heads that divides {width:code}", sizes, width)
        yield (a, b), what, fix
    elif config.arch == "modern" and (width // heads) % 2:
        what = msg("a head of {size:code} channels cannot be rotated in pairs, as arch=modern does", width // heads)
        yield (a, b, "arch"), what, msg("choose an even n_embd / n_head")
    if config.decay_lr:
        yield from _schedule_conflicts(config)
    if config.dtype == "float16" and config.device == "mps":
        what = msg("float16 with gradient scaling is not supported on mps")
        yield ("dtype", "device"), what, msg("use {option:code}", "--dtype=bfloat16")


def _schedule_conflicts(config: Config) -> Iterator[Conflict]:
    warmup, total, ends = config.warmup_iters, config.max_iters, config.decay_ends
    if config.min_lr > config.learning_rate:
        what = msg("min_lr = {low:rate} is above learning_rate = {high:rate}", config.min_lr, config.learning_rate)
        lower = f"--min_lr={config.learning_rate / 10:g}"
        yield ("min_lr", "learning_rate"), what, msg("use {option:code}, a tenth, or less", lower)
    if ends <= warmup < total:
        what = msg("the decay ends at update {end:count}, before the warm-up does ({warmup:count})", ends, warmup)
        yield ("lr_decay_iters", "warmup_iters"), what, msg("use {option:code}", f"--lr_decay_iters={total}")


def _where(came_from: Mapping[str, str], *names: str) -> Message:
    return msg("{where:code}", [f"{name}: {came_from.get(name, 'default')}" for name in names])


TITLES: dict[str, Message] = {
    "model": msg("Model"),
    "data": msg("Data"),
    "optimizer": msg("Optimizer"),
    "schedule": msg("Schedule"),
    "evaluation": msg("Evaluation and samples"),
    "checkpoint": msg("Checkpoints"),
    "machine": msg("Machine"),
    "output": msg("Output"),
}


def settings_text(say: Callable[[Message], str]) -> str:
    lines = [say(msg("Settings, each given as {form:code}; a preset or config file can set them too:", "--key=value"))]
    for group, members in groupby(settings().values(), key=lambda known: known.group):
        lines += ["", say(TITLES[group])]
        for known in members:
            lines.append(f"  --{known.name}={as_text(known.default)}{' ' + known.unit if known.unit else ''}")
            lines.append(f"      {say(known.meaning)}")
    return "\n".join(lines)


def settings_markdown(say: Callable[[Message], str]) -> str:
    lines = ["# Settings", "", "Made from `nanolens/config/settings.toml` by `python -m nanolens.config.fields`.", ""]
    for group, members in groupby(settings().values(), key=lambda known: known.group):
        lines += [f"## {say(TITLES[group])}", ""]
        lines += ["| setting | default | unit | range | meaning |", "|---|---|---|---|---|"]
        lines += [
            f"| `{known.name}` | `{as_text(known.default)}` | {known.unit} | {_range(known)} | "
            f"{say(known.meaning).replace('|', '/')} |"
            for known in members
        ]
        lines.append("")
    return "\n".join(lines)


def _range(known: Setting) -> str:
    if known.choices:
        return ", ".join(f"`{choice}`" for choice in known.choices)
    if known.low is None:
        return "True, False" if known.type is bool else ""
    return f"{known.low:,} to {known.high:,}"


if __name__ == "__main__":
    print(settings_markdown(str), end="")
