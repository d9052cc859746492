"""From a preset's name to a plan: settings, data, machine, a few seconds of measurement, and every fault of the question at once."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nanolens import files
from nanolens.analysis.corpora import corpus_named
from nanolens.analysis.plan import Plan, make_plan
from nanolens.analysis.plan_ranks import RanksAsked
from nanolens.config.fields import Config, as_text
from nanolens.config.load import load
from nanolens.config.preset import named_preset
from nanolens.config.settings import Settings
from nanolens.errors import Fault, UserError, fault, raise_if_any
from nanolens.message import Message, msg
from nanolens.planning.budget import Budget, best_for, budget_named, estimated_speed
from nanolens.planning.figures import Calibration, DataFacts, MachineFacts
from nanolens.sizing import Device, hardware_named, shape_of
from nanolens.sizing.memory import is_head_chunked, padded_vocab

DEFAULT_PRESET = "quickstart"
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
    ranks: RanksAsked | None = None  # several machines, where they are asked about


@dataclass(frozen=True)
class Answer:
    plan: Plan
    settings: Settings
    budget: Budget | None
    reasons: tuple[Message, ...] = ()
    source: str = ""


def answer(question: Question) -> Answer:
    settings, device, budget = _understood(question)
    data = data_facts(settings.config, question.dataset_tokens, question.val_tokens)
    _refuse_impossible(settings, data)
    config = settings.config if budget is None else _without_compile(settings)
    machine = named_machine(config, device) if device is not None else this_machine(config)
    reasons: tuple[Message, ...] = ()
    if budget is not None:
        config, machine, reasons = _turned_round(budget, config, _set_by_hand(settings), data, machine, question)
    config = resolved(config, data)
    if machine.is_this_one and machine.calibration is None and question.measure:
        machine = measured_on(machine, config, data)
    elif machine.is_this_one and machine.calibration is None:
        machine = dataclasses.replace(machine, not_calibrated=msg("nothing was measured, as asked"))
    machine = dataclasses.replace(machine, ranks=question.ranks)
    plan = make_plan(
        config, data, machine, preset=_unchanged_preset(settings) if budget is None else None, price_per_hour=question.price_per_hour,
        difference=question.difference, notes=settings.notes,
    )  # fmt: skip
    return Answer(plan, settings, budget, reasons, question.source or DEFAULT_PRESET)


def command_of(found: Answer, path: str | None) -> str:
    """What starts the planned run: by its config file where one was written, else by preset and settings."""
    if path:
        return f"nanolens train {path}"
    if found.budget is None:
        given = [
            f"--{name}={as_text(getattr(found.settings.config, name))}"
            for name, where in found.settings.came_from.items()
            if where.startswith("--")
        ]
        return " ".join(["nanolens train", found.source, *given])
    base = found.settings.config
    changed = [
        f"--{name}={as_text(getattr(found.plan.config, name))}"
        for name, where in found.settings.came_from.items()
        if name not in ("chunked_head",) and (where.startswith("--") or getattr(found.plan.config, name) != getattr(base, name))
    ]
    return " ".join(["nanolens train", found.source, *changed])


def write_config(path: str, text: str) -> None:
    target = Path(path)
    if target.suffix != ".toml":
        raise fault(msg("{path:code} is not a config file's name", path=path), where=msg("{option:code}", option="-o"),
                    fix=msg("give it a name that ends in .toml"))  # fmt: skip
    if target.exists():
        raise fault(msg("{path:code} exists already", path=path), where=msg("{option:code}", option="-o"), fix=msg("choose another name"))
    files.write_whole(target, text)


def resolved(config: Config, data: DataFacts) -> Config:
    """`auto` settings as the trainer would decide them."""
    if config.chunked_head is not None:
        return config
    return dataclasses.replace(config, chunked_head=is_head_chunked(config, shape_of(config, data.vocab_size).vocab_size))


def data_facts(config: Config, train_tokens: int | None = None, val_tokens: int | None = None) -> DataFacts:
    """The prepared data if there is some, else what is known of a corpus of that name."""
    found = _prepared(config.dataset) or _known_corpus(config.dataset) or DataFacts(config.dataset)
    changes: dict[str, object] = {}
    if train_tokens is not None:
        changes |= {"train_tokens": train_tokens, "origin": msg("as given")}
    if val_tokens is not None:
        changes["val_tokens"] = val_tokens
    if config.vocab_size is not None:
        changes["vocab_size"] = config.vocab_size
    if found.vocab_size is None and config.vocab_size is None:
        changes["vocab_size"] = padded_vocab(50257)  # what `nanolens prepare` makes of a text that names no tokenizer
    found = dataclasses.replace(found, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(found, is_char=found.vocab_size is not None and found.vocab_size <= CHARACTERS_AT_MOST)


def named_machine(config: Config, device: tuple[str, Device | None, str, int, float | None]) -> MachineFacts:
    text, found, kind, count, memory_gb = device
    dtype = config.dtype if config.dtype != "auto" else found.best_dtype if found is not None and kind == "gpu" else "float32"
    size = memory_gb or (min(found.memory_gb) if found is not None and found.memory_gb else None)
    return MachineFacts(
        name=(f"{count}x {found.name}" if count > 1 else found.name) if found is not None else text,
        kind=kind,
        dtype=dtype,
        device=found,
        count=count,
        memory_bytes=size * 1e9 if size else None,
        is_this_one=False,
        compiled=config.compile is not False and kind == "gpu",
        not_calibrated=None
        if found is not None
        else msg("the speed of {name:code} is only known by measurement: run this on it", name=text),
    )


def this_machine(config: Config) -> MachineFacts:
    import psutil

    free = shutil.disk_usage(_existing(Path(config.out_dir if config.out_dir != "auto" else "."))).free
    facts = MachineFacts(
        name="this machine", kind="cpu", dtype=config.dtype if config.dtype != "auto" else "float32",
        memory_bytes=psutil.virtual_memory().total, free_disk_bytes=free,
    )  # fmt: skip
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        return dataclasses.replace(
            facts, not_calibrated=msg("torch is not installed, so nothing can be measured: {command:code}", command="pip install torch")
        )
    from nanolens.training.machine import choose_machine

    chosen = choose_machine(config, lambda event: None)
    kind = {"cuda": "gpu", "mps": "apple"}.get(chosen.device.type, "cpu")
    return dataclasses.replace(
        facts, name=f"this machine ({chosen.hardware})", kind=kind, dtype=chosen.dtype, memory_bytes=chosen.memory_bytes,
        device=hardware_named(chosen.hardware).device if kind != "cpu" else None, compiled=config.compile is not False and kind == "gpu",
    )  # fmt: skip


def measured_on(machine: MachineFacts, config: Config, data: DataFacts) -> MachineFacts:
    """The machine with a few seconds of this model on it, or with the reason why there is no measurement."""
    if machine.not_calibrated is not None:
        return machine
    from nanolens.api.calibrate import calibrate

    found = calibrate(config, shape_of(config, data.vocab_size).vocab_size, data.folder)
    if isinstance(found, Calibration):
        return dataclasses.replace(machine, calibration=found)
    return dataclasses.replace(machine, not_calibrated=found)


def _set_by_hand(settings: Settings) -> frozenset[str]:
    return frozenset(name for name, where in settings.came_from.items() if where.startswith("--"))


def _without_compile(settings: Settings) -> Config:
    """A preset for a small model on a CPU may switch compiling off; for the model of a budget that is decided when the run starts."""
    return settings.config if "compile" in _set_by_hand(settings) else dataclasses.replace(settings.config, compile=None)


def _turned_round(
    budget: Budget, base: Config, fixed: frozenset[str], data: DataFacts, machine: MachineFacts, question: Question
) -> tuple[Config, MachineFacts, tuple[Message, ...]]:
    """The best config for the budget. On this machine one shape is timed first; where the choice then moves, the new one is timed too."""
    if machine.is_this_one and question.measure and budget.kind == "seconds":
        machine = measured_on(machine, resolved(base, data), data)
    choice = best_for(budget, base, data, machine, estimated_speed(machine), fixed)
    for _ in range(2):
        if not (machine.is_this_one and question.measure) or machine.not_calibrated is not None:
            break
        before = _shape_key(choice.config)
        machine = measured_on(dataclasses.replace(machine, calibration=None), resolved(choice.config, data), data)
        if budget.kind != "seconds":
            break
        choice = best_for(budget, base, data, machine, estimated_speed(machine), fixed)
        if _shape_key(choice.config) == before:
            break
        machine = dataclasses.replace(machine, calibration=None) if _ == 1 else machine
    return choice.config, machine, choice.reasons


def _shape_key(config: Config) -> tuple[int, ...]:
    return (config.n_layer, config.n_head, config.n_embd, config.block_size, config.batch_size)


def _understood(question: Question) -> tuple[Settings, tuple[str, Device | None, str, int, float | None] | None, Budget | None]:
    """Settings, device and budget; every fault of all three is told together."""
    faults: list[Fault] = []
    settings, device, budget = None, None, None
    try:
        settings = load(question.source or DEFAULT_PRESET, question.overrides)
    except UserError as error:
        faults += error.faults
    if question.hardware is not None:
        found = hardware_named(question.hardware)
        if found.device is None and found.kind != "cpu":
            faults.append(_unknown_device(question.hardware, found.is_laptop))
        else:
            kind = found.kind or "gpu"
            device = (
                question.hardware,
                found.device,
                kind if kind in ("cpu", "gpu", "apple") else "gpu",
                found.count or 1,
                found.memory_gb,
            )
    if question.budget is not None:
        try:
            budget = budget_named(question.budget)
        except UserError as error:
            faults += error.faults
    raise_if_any(faults)
    assert settings is not None
    return settings, device, budget


def _unknown_device(text: str, is_laptop: bool) -> Fault:
    what = msg("the table of devices does not hold {name:code}, and a similar name says nothing about its speed", name=text)
    if is_laptop:
        return Fault(
            what,
            where=msg("{option:code}", option="--hardware"),
            fix=msg("laptop parts share a name with faster cards: run {command:code} on the laptop itself", command="nanolens plan"),
        )
    return Fault(
        what,
        where=msg("{option:code}", option="--hardware"),
        fix=msg(
            "use a name such as {names:code}, or run {command:code} on the machine itself",
            names=("RTX 4070", "A100", "M3 Max"),
            command="nanolens plan",
        ),
    )


def _refuse_impossible(settings: Settings, data: DataFacts) -> None:
    config = settings.config
    faults = []
    for name, tokens in (("train", data.train_tokens), ("val", data.val_tokens)):
        if tokens is not None and tokens <= config.block_size:
            faults.append(
                Fault(
                    msg(
                        "the {split} split has {tokens:count} tokens, fewer than one context of {block:count}",
                        split=name,
                        tokens=tokens,
                        block=config.block_size,
                    ),
                    where=msg("{where:code}", where=[f"block_size: {settings.came_from.get('block_size', 'default')}"]),
                    fix=msg("use a shorter context or more text"),
                )
            )
    raise_if_any(faults)


def _prepared(name: str) -> DataFacts | None:
    """Data that is already on this machine, or can be made from what Python carries."""
    from nanolens.data.corpora import BuiltIn, cache_folder, find_corpus, version_of
    from nanolens.data.sidecar import read_sidecar, tokens_file
    from nanolens.data.store import DATA, prepare_corpus

    folders = [Path(name), Path(DATA) / name, Path(DATA) / name.replace("-", "_")]
    corpus = find_corpus(name)
    if corpus is not None:
        folders.append(cache_folder() / "prepared" / (corpus.name + version_of(corpus)))
    folder = next((each for each in folders if tokens_file(each, "train").is_file()), None)
    if folder is None and corpus is not None and isinstance(corpus.comes_from, BuiltIn):
        folder = prepare_corpus(corpus)
    if folder is None:
        return None
    about = read_sidecar(folder)
    if about is not None:
        facts = about.get("facts", {})
        return DataFacts(
            name=name,
            train_tokens=about["train"]["tokens"],
            val_tokens=about["val"]["tokens"],
            vocab_size=padded_vocab(about["vocab_size"]),
            bytes_per_token=facts.get("bytes_per_token"),
            unigram_nats=facts.get("unigram_nats"),
            folder=str(folder),
            origin=msg("counted in {folder:code}", folder=str(folder)),
        )
    return _nanogpt_folder(name, folder)


def _nanogpt_folder(name: str, folder: Path) -> DataFacts:
    """Two bytes a token; the vocabulary is in meta.pkl, or GPT-2's."""
    from nanolens.data.sidecar import META, tokens_file
    from nanolens.data.unpickle import read_plain_pickle

    sizes = {split: tokens_file(folder, split).stat().st_size // 2 for split in ("train", "val") if tokens_file(folder, split).is_file()}
    vocab = 50257
    if (folder / META).is_file():
        meta = read_plain_pickle(folder / META)
        vocab = int(meta["vocab_size"]) if isinstance(meta, dict) and isinstance(meta.get("vocab_size"), int) else vocab
    return DataFacts(
        name=name, train_tokens=sizes.get("train"), val_tokens=sizes.get("val"), vocab_size=padded_vocab(vocab),
        folder=str(folder), origin=msg("counted in {folder:code}", folder=str(folder)),
    )  # fmt: skip


def _known_corpus(name: str) -> DataFacts | None:
    corpus = corpus_named(name)
    if corpus is None:
        return None
    return DataFacts(
        name=name,
        train_tokens=corpus.train_tokens,
        val_tokens=corpus.val_tokens,
        vocab_size=corpus.vocab_size,
        unigram_nats=corpus.unigram_nats,
        is_char=corpus.is_char,
        origin=msg("as nanoGPT prepares {corpus:code}", corpus=corpus.name),
    )


def _unchanged_preset(settings: Settings):
    """The preset, where nothing that matters for its result was changed."""
    preset = named_preset(settings.preset) if settings.preset else None
    if preset is None:
        return None
    harmless = {
        "out_dir",
        "log_interval",
        "device",
        "dtype",
        "compile",
        "threads",
        "seed",
        "eval_interval",
        "wandb_log",
        "keep_checkpoints",
    }
    changed = [name for name, where in settings.came_from.items() if where.startswith("--") and name not in harmless]
    return None if changed else preset


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
