"""The fastest way to run a config on this machine: measured once, remembered, and taken by `--batch_size=auto`.

Tokens per update stay what they are; what is looked for is how to cut them into micro-batches. The answer lies in the
user's cache folder, by everything that the speed depends on; losing it costs a few seconds."""

from __future__ import annotations

import dataclasses
import math
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import msgspec
import psutil

from nanolens import files
from nanolens.config.fields import Config, Settings, settings
from nanolens.errors import fault
from nanolens.measure import SizeTrial, Values, ask
from nanolens.message import Message, msg
from nanolens.planning.question import data_facts
from nanolens.show.answer import Answer, JsonObject, plain, typed
from nanolens.show.document import GAP, Part, Table, Text, TextBlock
from nanolens.show.words import show
from nanolens.sizing.shape import shape_of

SIZES_AT_MOST = 9
SAME_SPEED_FRAC = 0.02  # differences below are the machine's mood
DIFFERENT_SPEED_FRAC = 0.05  # differences above count, however much the times scatter
GROUPS_OF_SPEED = frozenset({"model", "optimizer", "machine"})  # of settings that an update's time depends on
WITHOUT_COST = """learning_rate matrix_learning_rate weight_decay beta1 beta2 grad_clip softcap skip_budget
    backend""".split()  # settings of those groups that cost no time
Tell = Callable[[Message], None]


@dataclass(frozen=True)
class CompileTrial:
    update_s: float | None
    took_s: float
    failed: str
    pays_after: int | None  # updates after which the time for compiling is won back; None: never


@dataclass(frozen=True)
class TuneResult:
    config: Config  # with the winner's micro-batch
    asked: Config
    rows: tuple[SizeTrial, ...]
    winner: SizeTrial
    fastest: SizeTrial
    machine: Mapping[str, object]
    compiled: CompileTrial | None

    @property
    def changes(self) -> Values:
        """The settings that the answer is about."""
        chosen = {"batch_size": self.winner.size, "gradient_accumulation_steps": self.winner.accumulation}
        return {**chosen, "compile": self.config.compile} if self.config.compile != self.asked.compile else chosen

    @property
    def why(self) -> tuple[Message, ...]:
        return tuple(_reasons(self))

    @property
    def kept(self) -> Values:
        """What `train` will want to know of it."""
        return {"changes": self.changes, "tokens_per_s": self.winner.tokens_per_s, "machine": dict(self.machine)}


def tuned_for(
    config: Config, *, limit_bytes: float | None = None, try_compile: bool = False, tell: Tell = lambda message: None
) -> TuneResult:
    """Measures, chooses, and leaves the answer where `train` finds it."""
    data = data_facts(config)
    question = {
        "vocab_size": shape_of(config, data.vocab_size).vocab_size,
        "dataset": data.folder,
        "sizes": sizes_to_try(config.batch_size * config.gradient_accumulation_steps, config.batch_size),
        "limit_bytes": limit_bytes,
        "try_compile": try_compile,
    }
    found = choose(config, _answers(config, question, tell))
    remember(found)
    return found


def sizes_to_try(sequences: int, configured: int) -> list[int]:
    """Micro-batches that cut an update into equal parts: all where they are few, else those near powers of two."""
    divisors = [size for size in range(1, sequences + 1) if sequences % size == 0]
    if len(divisors) <= SIZES_AT_MOST:
        return divisors
    steps = [2 ** (math.log2(sequences) * i / (SIZES_AT_MOST - 2)) for i in range(SIZES_AT_MOST - 1)]
    return sorted({min(divisors, key=lambda size: abs(math.log(size / step))) for step in steps} | {configured})


def _answers(config: Config, question: Values, tell: Tell) -> list[Values]:
    def report(answer: Values) -> None:
        if answer["kind"] == "size" and answer["update_s"] is not None and not answer["is_again"]:
            speed = config.tokens_per_update / answer["update_s"]
            tell(msg("micro-batch {size:count}: {speed:tokens_per_s}", answer["size"], speed))

    reply = ask("timed", config, question, each=report)
    sizes = [answer for answer in reply.answers if answer["kind"] == "size"]
    if not any(answer["update_s"] is not None for answer in sizes):
        if not any(answer["skipped"] == "memory" for answer in sizes):
            raise fault(msg("nothing could be measured: {problem}", reply.problem))
        size = sizes[0]["memory_bytes"]
        what = msg("this model does not fit here: a single sequence would need about {needed:bytes} of memory", size)
        fix = msg("use a smaller model or block_size; {command:code} shows what would fit", "nanolens plan")
        raise fault(what, fix=fix)
    is_whole = reply.answers[-1]["kind"] == "done"
    return reply.answers if is_whole else [*reply.answers, {"kind": "died", "problem": reply.problem}]


def choose(config: Config, answers: Sequence[Values]) -> TuneResult:
    """The fastest; among those that are no slower than the machine's mood, the one that needs the least memory."""
    rows = _rows(config, answers)
    speeds = {row: row.tokens_per_s for row in rows if row.tokens_per_s is not None}
    fastest = max(speeds, key=lambda row: speeds[row])

    def is_as_fast(row: SizeTrial) -> bool:
        doubt = max(SAME_SPEED_FRAC, 2 * math.hypot(row.scatter, fastest.scatter))
        return speeds[row] >= speeds[fastest] * (1 - min(DIFFERENT_SPEED_FRAC, doubt))

    winner = min(filter(is_as_fast, speeds), key=lambda row: (row.memory_bytes, row.size))
    compiled = _compile_trial(answers, rows)
    chosen = dataclasses.replace(config, batch_size=winner.size, gradient_accumulation_steps=winner.accumulation)
    if compiled is not None and config.compile is None:
        is_worth_it = compiled.pays_after is not None and compiled.pays_after < config.max_iters
        chosen = dataclasses.replace(chosen, compile=is_worth_it)
    return TuneResult(chosen, config, tuple(rows), winner, fastest, _first(answers, "machine") or {}, compiled)


def _first(answers: Sequence[Values], kind: str) -> Values | None:
    found = next((answer for answer in answers if answer["kind"] == kind), None)
    return found and {key: value for key, value in found.items() if key != "kind"}


def _rows(config: Config, answers: Sequence[Values]) -> list[SizeTrial]:
    rows: dict[int, SizeTrial] = {}
    for answer in answers:
        if answer["kind"] == "size":  # one that was timed again replaces its first measurement
            trial = msgspec.convert(answer, SizeTrial)
            speed = config.tokens_per_update / trial.update_s if trial.update_s is not None else None
            rows[trial.size] = dataclasses.replace(trial, tokens_per_s=speed)
    if _first(answers, "died") is not None:
        sequences = config.batch_size * config.gradient_accumulation_steps
        for size in sizes_to_try(sequences, config.batch_size):
            rows.setdefault(size, SizeTrial(size, sequences // size, skipped="died"))
    return [rows[size] for size in sorted(rows)]


def _compile_trial(answers: Sequence[Values], rows: Sequence[SizeTrial]) -> CompileTrial | None:
    trial = _first(answers, "compiled")
    if trial is None:
        return None
    eager_s = next(row.update_s for row in rows if row.size == trial["size"])
    saved_s = (eager_s or 0.0) - (trial["update_s"] or math.inf)
    pays_after = math.ceil(trial["compiled_in_s"] / saved_s) if saved_s > 0 else None
    return CompileTrial(trial["update_s"], trial["compiled_in_s"], trial["failed"], pays_after)


def _reasons(found: TuneResult) -> Iterator[Message]:
    winner, fastest = found.winner, found.fastest
    best = winner.tokens_per_s or 0.0
    if winner is fastest:
        yield msg("micro-batch {size:count} is the fastest: {speed:tokens_per_s}", winner.size, best)
    else:
        yield msg(
            "micro-batch {size:count} is within {difference:share} of {other:count}, the fastest, and needs less "
            "memory",
            winner.size,
            1 - best / (fastest.tokens_per_s or 1.0),
            fastest.size,
        )
    now = next((row for row in found.rows if row.size == found.asked.batch_size), None)
    if now is not None and now.size != winner.size and now.tokens_per_s and best:
        facts = {"size": now.size, "speed": now.tokens_per_s, "gain": 1 - now.tokens_per_s / best}
        if now.tokens_per_s < best:
            yield msg("the config's {size:count run|runs} at {speed:tokens_per_s}: {gain:share} slower", **facts)
        else:
            yield msg("the config's {size:count} is not clearly faster", now.size)
    if found.compiled is not None:
        yield _about_compiling(found.compiled, winner)
    elif found.machine.get("device") == "cpu":
        yield msg(
            "compiling was not tried: on a CPU it takes about a minute and gains little; {option:code} tries it",
            "--try_compile",
        )


def _about_compiling(compiled: CompileTrial, winner: SizeTrial) -> Message:
    if compiled.failed:
        return msg("compiling failed here ({problem:code}): it stays off", compiled.failed)
    took = compiled.update_s
    if compiled.pays_after is None:
        return msg("compiled, an update takes {took:seconds}, which is no faster: it stays off", took)
    return msg(
        "compiled, an update takes {took:seconds} instead of {eager:seconds}; the {cost:seconds} for compiling pay "
        "off after {updates:count update|updates}",
        took,
        winner.update_s,
        compiled.took_s,
        compiled.pays_after,
    )


# --- the answer, kept for `train`


def remember(found: TuneResult) -> None:
    files.remember(answer_path(found.asked), found.kept)


def recall(config: Config) -> Values | None:
    found = files.read_json(answer_path(config))
    return found if found is not None and isinstance(found.get("changes"), dict) else None


def with_answer(given: Settings, tell: Tell = lambda message: None) -> Settings:
    """The settings with `batch_size = auto` settled: by an answer that is kept, or by measuring now."""
    if "batch_size" not in given.automatic:
        return given
    known = recall(given.config)
    if known is None:
        tell(msg("measuring which micro-batch is fastest here (only once)"))
        known = tuned_for(given.config, tell=tell).kept
    origin = f"auto: the fastest that nanolens tune measured here, {round(known['tokens_per_s'])} tokens/s"
    changes = {name: value for name, value in known["changes"].items() if name in settings()}
    came_from = {**given.came_from, **dict.fromkeys(changes, origin)}
    return dataclasses.replace(given, config=dataclasses.replace(given.config, **changes), came_from=came_from)


def answer_path(config: Config) -> Path:
    shaping = {
        name: getattr(config, name)
        for name, known in settings().items()
        if known.group in GROUPS_OF_SPEED and name not in WITHOUT_COST
    }
    shaping |= {"sequences": config.batch_size * config.gradient_accumulation_steps, "dataset": config.dataset}
    machine = {  # a cache folder may be shared by several, and torch gets faster
        "host": platform.node(),
        "processor": platform.machine(),
        "cores": psutil.cpu_count(logical=False),
        "allowed": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "omp": os.environ.get("OMP_NUM_THREADS", ""),
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        "torch": metadata.version("torch"),
    }
    return files.answer_file("tuned", [shaping, machine])


# --- in words and as JSON

SKIPPED: dict[str, Message] = {
    "memory": msg("not tried: more memory than is free"),
    "time": msg("not tried: an update would take too long to measure"),
    "slower": msg("not tried: larger ones only got slower"),
    "died": msg("not tried: the measurement ended first"),
}


def answer_of(found: TuneResult, command: str) -> Answer[TuneResult]:
    return Answer(found, lambda lang: list(tune_parts(found, command)), lambda lang: tune_data(found, command, lang))


def tune_parts(found: TuneResult, command: str) -> Iterator[Part]:
    title = msg(
        "{tokens:count} tokens per update, split into micro-batches ({hardware}, threads: {threads:count}, "
        "{dtype:code})",
        found.asked.tokens_per_update,
        found.machine.get("hardware", ""),
        found.machine.get("threads", 0),
        found.machine.get("dtype", ""),
    )
    header = ("", "batch_size", "gradient_accumulation_steps", msg("tokens/s"), msg("update"), msg("memory"), "")
    yield from (TextBlock(title, "title"), GAP)
    yield from (Table(header, [_row(row, found.winner.size) for row in found.rows], left=(0, 6)), GAP)
    for i, reason in enumerate(found.why):
        yield TextBlock(reason, "body" if i else "good", mark="- ")
    yield from (GAP, TextBlock(msg("Saved; {option:code} will use it:", "--batch_size=auto"), "head"))
    yield TextBlock(command, "command", indent=2)


def _row(row: SizeTrial, winner: int) -> list[Text]:
    sizes = [str(row.size), str(row.accumulation)]
    if row.tokens_per_s is None or row.update_s is None:
        memory = msg("about {size:bytes}", row.memory_bytes) if row.skipped == "memory" else ""
        return ["", *sizes, "", "", memory, SKIPPED[row.skipped]]
    speed = [f"{row.tokens_per_s:,.0f}", show(row.update_s, "seconds"), show(row.memory_bytes, "bytes")]
    is_winner = row.size == winner
    return ["→" if is_winner else "", *sizes, *speed, msg("fastest") if is_winner else ""]


class TuneRowData(msgspec.Struct):
    size: int
    accumulation: int
    memory_bytes: float | None
    update_s: float | None
    tokens_per_s: float | None
    scatter: float | None
    skipped: str


class TuneData(msgspec.Struct):
    machine: JsonObject
    tokens_per_update: int
    rows: list[TuneRowData]
    winner: JsonObject
    why: list[str]
    compiled: JsonObject | None
    command: str


def tune_data(found: TuneResult, command: str, lang: str = "en") -> TuneData:
    rows = [
        typed(TuneRowData, row, lang, memory_bytes=None if math.isnan(row.memory_bytes) else row.memory_bytes)
        for row in found.rows
    ]
    return typed(
        TuneData,
        found,
        lang,
        rows=rows,
        tokens_per_update=found.asked.tokens_per_update,
        winner=found.changes,
        compiled=None if found.compiled is None else plain(dataclasses.asdict(found.compiled)),
        command=command,
    )
