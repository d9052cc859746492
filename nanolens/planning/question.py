"""From a preset's name to a plan: settings, data, machine, a few seconds of measurement, and every fault of the
question at once. And from a run to the plan that was made for it, and whether what came is within its range."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil

from nanolens import files
from nanolens.config.fields import Config, Settings, as_text
from nanolens.config.fields import settings as all_settings
from nanolens.config.load import DEFAULT_PRESET, load, unchanged_preset
from nanolens.errors import Fault, UserError, fault, raise_if_any
from nanolens.facts.case import Case
from nanolens.facts.finding import known
from nanolens.facts.references import corpus_named
from nanolens.message import Message, msg
from nanolens.planning import Plan, make_plan
from nanolens.planning.budget import Budget, Choice, best_for, budget_named
from nanolens.planning.figures import TOPICS, Calibration, Cluster, DataFacts, MachineFacts, PlanCheck
from nanolens.record.run import RunRecord
from nanolens.sizing.devices import Hardware, hardware_named
from nanolens.sizing.memory import is_head_chunked, padded_vocab
from nanolens.sizing.shape import shape_of

T = TypeVar("T")
PLAN_TOLERANCE = 0.1  # a planned value without a range is kept when the run comes this near
MOST_PLANS = 200  # that are kept; the oldest go
UNTOUCHED = {"checkpoint", "output"}  # groups of settings that do not change what a run costs or reaches
AUTOMATIC = {"vocab_size", "chunked_head", "compile", "threads", "device", "dtype", "seed"}
"""Settings that `auto` leaves to the program: a plan and its run may write them differently."""
_timed_shape = attrgetter("n_layer", "n_head", "n_embd", "block_size", "batch_size")  # what a measurement is of
CHARACTERS_AT_MOST = 1024  # tokens of a vocabulary of characters or bytes


@dataclass(frozen=True)
class Question:
    """What a plan is asked for."""

    source: str | None = None
    overrides: Sequence[tuple[str, str]] = ()
    hardware: str | None = None
    budget: str | None = None
    price_per_hour: float | None = None
    difference: float | None = None
    dataset_tokens: int | None = None
    val_tokens: int | None = None
    measure: bool = True
    ranks: Cluster | None = None  # several machines, where they are asked about


@dataclass(frozen=True)
class PlanAnswer:
    plan: Plan
    settings: Settings
    budget: Budget | None
    reasons: tuple[Message, ...] = ()
    source: str = ""

    @property
    def config(self) -> Config:
        """The planned settings; `auto` stays the trainer's choice."""
        return dataclasses.replace(self.plan.config, chunked_head=self.settings.config.chunked_head)


def answer(question: Question) -> PlanAnswer:
    settings, hardware, budget = _understood(question)
    config = settings.config
    data = data_facts(config, question.dataset_tokens, question.val_tokens)
    _refuse_impossible(settings, data)
    by_hand = frozenset(name for name, where in settings.came_from.items() if where.startswith("--"))
    reasons: tuple[Message, ...] = ()
    if budget is not None and "compile" not in by_hand:
        # A preset for a small model on a CPU may switch compiling off; for the model of a budget that is decided when
        # the run starts.
        config = dataclasses.replace(config, compile=None)
    machine = named_machine(config, hardware) if hardware is not None else this_machine(config)
    if machine.is_this_one and not question.measure:
        machine = dataclasses.replace(machine, not_calibrated=msg("nothing was measured, as requested"))
    if budget is not None:
        config, machine, reasons = _turned_round(budget, config, by_hand, data, machine)
    config = resolved(config, data)
    plan = make_plan(
        config,
        data,
        dataclasses.replace(measured_on(machine, config, data), ranks=question.ranks),
        preset=unchanged_preset(settings.preset, dataclasses.asdict(settings.config)) if budget is None else None,
        price_per_hour=question.price_per_hour,
        difference=question.difference,
        notes=settings.notes,
    )
    return PlanAnswer(plan, settings, budget, reasons, question.source or DEFAULT_PRESET)


def command_of(found: PlanAnswer, path: str | None) -> str:
    """What starts the planned run: by its config file where one was written, else by preset and settings."""
    if path:
        return f"nanolens train {path}"
    config, base = found.config, found.settings.config
    words = [
        f"--{name}={as_text(getattr(config, name))}"
        for name, where in found.settings.came_from.items()
        if where.startswith("--") or getattr(config, name) != getattr(base, name)
    ]
    return " ".join(["nanolens train", found.source, *words])


def write_config(path: str, text: str) -> None:
    target = Path(path)
    if target.suffix != ".toml":
        what, fix = msg("{path:code} is not a config file name", path), msg("use a name that ends in .toml")
        raise fault(what, where="-o", fix=fix)
    if target.exists():
        raise fault(msg("{path:code} already exists", path), where="-o", fix=msg("choose another name"))
    files.write_whole(target, text)


def resolved(config: Config, data: DataFacts) -> Config:
    """`auto` settings as the trainer would decide them."""
    is_chunked = is_head_chunked(config, shape_of(config, data.vocab_size).vocab_size)
    return dataclasses.replace(config, chunked_head=is_chunked)


def data_facts(config: Config, train_tokens: int | None = None, val_tokens: int | None = None) -> DataFacts:
    """The prepared data if there is some, else what is known of a corpus of that name."""
    found = _known_data(config.dataset)
    # what `nanolens prepare` makes of a text that names no tokenizer
    vocab_size = config.vocab_size or found.vocab_size or padded_vocab(50257)
    return dataclasses.replace(
        found,
        train_tokens=found.train_tokens if train_tokens is None else train_tokens,
        origin=found.origin if train_tokens is None else msg("as given"),
        val_tokens=found.val_tokens if val_tokens is None else val_tokens,
        vocab_size=vocab_size,
        is_char=vocab_size <= CHARACTERS_AT_MOST,
    )


def named_machine(config: Config, hardware: Hardware) -> MachineFacts:
    device, count = hardware.device, hardware.count or 1
    kind = hardware.kind if hardware.kind in ("cpu", "apple") else "gpu"
    dtype = device.best_dtype if device is not None and kind == "gpu" else "float32"
    size_gb = hardware.memory_gb or (min(device.memory_gb) if device is not None and device.memory_gb else None)
    name, because = hardware.text, None
    if device is not None:
        name = f"{count}x {device.name}" if count > 1 else device.name
    else:
        because = msg("the speed of {name:code} is only known by measuring: run this on it", name)
    return MachineFacts(
        name=name,
        kind=kind,
        dtype=config.dtype if config.dtype != "auto" else dtype,
        device=device,
        count=count,
        memory_bytes=size_gb * 1e9 if size_gb else None,
        is_this_one=False,
        compiled=config.compile is not False and kind == "gpu",
        not_calibrated=because,
    )


def this_machine(config: Config) -> MachineFacts:
    facts = MachineFacts(
        name="this machine",
        kind="cpu",
        dtype=config.dtype if config.dtype != "auto" else "float32",
        memory_bytes=psutil.virtual_memory().total,
        free_disk_bytes=files.free_bytes(Path(config.out_dir if config.out_dir != "auto" else ".")),
    )
    try:
        from nanolens.training.machine import choose_machine
    except ModuleNotFoundError:
        because = msg("torch is not installed, so nothing can be measured: {command:code}", "pip install torch")
        return dataclasses.replace(facts, not_calibrated=because)
    chosen = choose_machine(config, lambda event: None)
    kind = {"cuda": "gpu", "mps": "apple"}.get(chosen.device.type, "cpu")
    return dataclasses.replace(
        facts,
        name=f"this machine ({chosen.hardware})",
        kind=kind,
        dtype=chosen.dtype,
        memory_bytes=chosen.memory_bytes,
        device=hardware_named(chosen.hardware).device if kind != "cpu" else None,
        compiled=config.compile is not False and kind == "gpu",
    )


def measured_on(machine: MachineFacts, config: Config, data: DataFacts) -> MachineFacts:
    """The machine with a few seconds of this model on it, or with the reason why there is no measurement."""
    if not machine.is_this_one or machine.calibration is not None or machine.not_calibrated is not None:
        return machine
    from nanolens.measure.calibrate import calibrate

    found = calibrate(config, shape_of(config, data.vocab_size).vocab_size, data.folder)
    if isinstance(found, Calibration):
        return dataclasses.replace(machine, calibration=found)
    return dataclasses.replace(machine, not_calibrated=found)


def _turned_round(
    budget: Budget, base: Config, fixed: frozenset[str], data: DataFacts, machine: MachineFacts
) -> tuple[Config, MachineFacts, tuple[Message, ...]]:
    """The best config for the budget. On this machine one shape is timed first, and then the one that was chosen."""

    def choose() -> Choice:
        return best_for(budget, base, data, machine, fixed)

    def timed(config: Config) -> MachineFacts:
        return measured_on(dataclasses.replace(machine, calibration=None), resolved(config, data), data)

    if budget.kind != "seconds":
        choice = choose()
        return choice.config, timed(choice.config), choice.reasons
    machine = timed(base)
    choice = choose()
    for _ in range(2):
        if machine.calibration is None:
            break
        shape, machine = _timed_shape(choice.config), timed(choice.config)
        choice = choose()
        if _timed_shape(choice.config) == shape:
            return choice.config, machine, choice.reasons
    return choice.config, dataclasses.replace(machine, calibration=None), choice.reasons


def _understood(question: Question) -> tuple[Settings, Hardware | None, Budget | None]:
    """Settings, device and budget; every fault of all three is reported together."""
    faults: list[Fault] = []

    def tried(read: Callable[[str], T], text: str | None) -> T | None:
        try:
            return None if text is None else read(text)
        except UserError as error:
            faults.extend(error.faults)
            return None

    settings = tried(lambda source: load(source, question.overrides), question.source or DEFAULT_PRESET)
    hardware, budget = tried(_known_hardware, question.hardware), tried(budget_named, question.budget)
    raise_if_any(faults)
    return known(settings), hardware, budget


def _known_hardware(text: str) -> Hardware:
    hardware = hardware_named(text)
    if hardware.device is not None or hardware.kind == "cpu":
        return hardware
    what = msg("{name:code} is not in the device table, and a similar name says nothing about its speed", text)
    names, command = ("RTX 4070", "A100", "M3 Max"), "nanolens plan"
    fix = msg("use a name such as {names:code}, or run {command:code} on the machine itself", names, command)
    if hardware.is_laptop:
        fix = msg("laptop GPUs share a name with faster cards: run {command:code} on the laptop itself", command)
    raise fault(what, where="--hardware", fix=fix)


def _refuse_impossible(settings: Settings, data: DataFacts) -> None:
    block, where = settings.config.block_size, f"block_size: {settings.came_from.get('block_size', 'default')}"
    faults = []
    for split, tokens in (("train", data.train_tokens), ("val", data.val_tokens)):
        if tokens is not None and tokens <= block:
            values, fix = {"split": split, "tokens": tokens, "block": block}, msg("use a shorter context or more text")
            what = msg("the {split} split has {tokens:count} tokens, less than one context of {block:count}", **values)
            faults.append(Fault(what, where, fix))
    raise_if_any(faults)


def _known_data(name: str) -> DataFacts:
    from nanolens.data.store import describe_dataset  # which imports much that `explain` of a log has no use for

    data, corpus = describe_dataset(name), corpus_named(name)
    if data is not None:  # on this machine already, or made from what Python carries
        sizes = (data.tokens.get("train"), data.tokens.get("val"), padded_vocab(data.vocab_size))
        per_token = (data.facts.get("bytes_per_token"), data.facts.get("unigram_nats"))
        origin = msg("counted in {folder:code}", str(data.folder))
        return DataFacts(name, *sizes, *per_token, folder=str(data.folder), origin=origin)
    if corpus is None:
        return DataFacts(name)
    sizes = (corpus.train_tokens, corpus.val_tokens, corpus.vocab_size)
    origin = msg("as nanoGPT prepares {corpus:code}", corpus.name)
    return DataFacts(name, *sizes, unigram_nats=corpus.unigram_nats, origin=origin)


# --- plans that were made, and the runs that followed
#
# A plan is remembered in the user's cache folder by the settings that shape a run. Losing it costs nothing.


def planned_for(run: RunRecord) -> tuple[PlanCheck, ...]:
    """The run against the plan that was made for its settings, if one was, as far as the run tells."""
    plan = recall({name: run.get(name) for name in all_settings()})
    if plan is None:
        return ()
    checks = []
    for key, actual in actuals(run):
        value, low, high = (plan["rows"].get(key, {}).get(end) for end in ("value", "low", "high"))
        if isinstance(value, (int, float)):
            low = value * (1 - PLAN_TOLERANCE) if low is None else low
            high = value * (1 + PLAN_TOLERANCE) if high is None else high
            # Memory is recorded between updates, so below the peak that was planned for.
            checks.append(PlanCheck(key, value, 0.0 if key == "memory_total" else low, high, actual))
    return tuple(checks)


def actuals(run: RunRecord) -> Iterator[tuple[str, float]]:
    case = Case(run)
    if case.parameters is not None:
        yield "parameters", case.parameters.value
    memory = run.steps.memory_bytes[np.isfinite(run.steps.memory_bytes)]
    if len(memory):
        yield "memory_total", float(memory.max())
    if case.step_time is not None:
        yield "update_s", case.step_time.value
        if case.tokens_per_update is not None and case.tokens_per_update.value > 0:
            yield "tokens_per_s", case.tokens_per_update.value / case.step_time.value
    is_finished, (steps, vals) = run.get("state") == "finished", case.vals
    if is_finished and run.reading.attempts == 1:
        seconds = {"eval_s": run.time_parts.get("eval"), "total_s": run.number("wall_s")}
        yield from ((key, spent_s) for key, spent_s in seconds.items() if spent_s)
    if is_finished and len(vals) and steps[-1] >= 0.99 * (case.whole("max_iters") or steps[-1]):
        yield "final_loss", float(vals[-1])


def remember(plan: Plan) -> None:
    """Keeps the rows that a run can be held against. A cache that cannot be written is done without."""
    rows = {
        row.key: {"value": row.value, "low": row.low, "high": row.high, "source": row.origin}
        for row in plan.rows
        if row.key in TOPICS and row.is_known
    }
    path = plan_file(dataclasses.asdict(plan.config))
    files.remember(path, {"machine": plan.machine.name, "rows": rows})
    with contextlib.suppress(OSError):
        for old in sorted(path.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)[:-MOST_PLANS]:
            old.unlink(missing_ok=True)


def recall(config: Mapping[str, object]) -> dict[str, Any] | None:
    """The plan that was made for these settings, if one was."""
    found = files.read_json(plan_file(config))
    return found if found is not None and isinstance(found.get("rows"), dict) else None


def plan_file(config: Mapping[str, object]) -> Path:
    shaping = {
        name: config.get(name)
        for name, known in all_settings().items()
        if known.group not in UNTOUCHED and name not in AUTOMATIC
    }
    return files.answer_file("plans", shaping)
