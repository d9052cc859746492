"""The fastest way to run a config on this machine: measured once, remembered, and taken by `--batch_size=auto`.

Tokens per update stay what they are; what is looked for is how to cut them into micro-batches. The measuring happens in a process of its
own, as training does. The answer lies in the user's cache folder, by everything that the speed depends on; losing it costs
a few seconds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from nanolens import files
from nanolens.config.fields import Config, settings
from nanolens.config.load import load
from nanolens.config.settings import Settings
from nanolens.errors import fault
from nanolens.message import Message, msg

DEFAULT_PRESET = "quickstart"
SIZES_AT_MOST = 9
SAME_SPEED_FRAC, DOUBT_AT_MOST = 0.02, 0.05  # differences below the first are the machine's mood; above the second they count anyway
COLUMNS_OF_SPEED = frozenset({"model", "optimizer", "machine"})  # groups of settings that a step's time depends on
RATES = frozenset(
    {"learning_rate", "matrix_learning_rate", "weight_decay", "beta1", "beta2", "grad_clip", "softcap", "skip_budget", "backend"}
)
"""Settings of those groups that cost no time."""
Tell = Callable[[Message], None]


@dataclass(frozen=True)
class Row:
    """One micro-batch size: measured, or not tried and why."""

    size: int
    accumulation: int
    memory_bytes: float
    update_s: float | None
    tokens_per_s: float | None
    scatter: float
    skipped: str  # "", "memory", "time", "slower" or "died"


@dataclass(frozen=True)
class CompileTrial:
    update_s: float | None
    took_s: float
    failed: str
    pays_after: int | None  # updates after which the time for compiling is won back; None: never


@dataclass(frozen=True)
class Tuned:
    config: Config  # with the winner's micro-batch
    asked: Config
    rows: tuple[Row, ...]
    winner: Row
    why: tuple[Message, ...]
    machine: Mapping[str, Any]
    compiled: CompileTrial | None
    source: str = ""

    @property
    def changes(self) -> dict[str, Any]:
        """The settings that the answer is about."""
        chosen = {"batch_size": self.winner.size, "gradient_accumulation_steps": self.winner.accumulation}
        return {**chosen, "compile": self.config.compile} if self.config.compile != self.asked.compile else chosen


def tune(
    source: str | None, overrides: Sequence[tuple[str, str]] = (), *, limit_bytes: float | None = None, try_compile: bool = False,
    tell: Tell = lambda message: None,
) -> Tuned:  # fmt: skip
    """Measures, chooses, and leaves the answer where `train` finds it."""
    found = tuned_for(load(source or DEFAULT_PRESET, overrides).config, limit_bytes=limit_bytes, try_compile=try_compile, tell=tell)
    remember(found)
    return dataclasses.replace(found, source=source or DEFAULT_PRESET)


def tuned_for(config: Config, *, limit_bytes: float | None = None, try_compile: bool = False, tell: Tell = lambda message: None) -> Tuned:
    from nanolens.api.planning import data_facts
    from nanolens.sizing import shape_of

    data = data_facts(config)
    sizes = sizes_to_try(config.batch_size * config.gradient_accumulation_steps, config.batch_size)
    question = {
        "config": dataclasses.asdict(config), "vocab_size": shape_of(config, data.vocab_size).vocab_size, "dataset": data.folder,
        "sizes": sizes, "limit_bytes": limit_bytes, "try_compile": try_compile,
    }  # fmt: skip
    answers = _ask(question, config, tell)
    return choose(config, answers)


def sizes_to_try(sequences: int, configured: int) -> list[int]:
    """Micro-batches that cut an update into equal parts: all of them where there are few, else those nearest to powers of two."""
    divisors = [size for size in range(1, sequences + 1) if sequences % size == 0]
    if len(divisors) <= SIZES_AT_MOST:
        return divisors
    steps = [2 ** (math.log2(sequences) * i / (SIZES_AT_MOST - 2)) for i in range(SIZES_AT_MOST - 1)]
    return sorted({min(divisors, key=lambda size: abs(math.log(size / step))) for step in steps} | {configured})


def _ask(question: Mapping[str, Any], config: Config, tell: Tell) -> list[dict[str, Any]]:
    """What the measuring process said, line by line. One that dies has said what it found before, and that is kept."""
    answers: list[dict[str, Any]] = []
    worker = [sys.executable, "-m", "nanolens.api.tuning_worker"]
    with subprocess.Popen(worker, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout and process.stderr
        try:
            process.stdin.write(json.dumps(question))
            process.stdin.close()
            for line in process.stdout:
                answers.append(json.loads(line))
                if (words := _progress(answers[-1], config)) is not None:
                    tell(words)
            last_words = process.stderr.read().strip().splitlines()
            code = process.wait()
        finally:
            process.kill()  # whoever interrupts this does not want to wait for it
    if not any(answer["kind"] == "probe" and answer["update_s"] is not None for answer in answers):
        if any(answer["kind"] == "probe" and answer["skipped"] == "memory" for answer in answers):
            needed = next(answer["memory_bytes"] for answer in answers if answer["kind"] == "probe")
            raise fault(
                msg("this model does not fit here: a single sequence would need about {needed:bytes} of memory", needed=needed),
                fix=msg("use a smaller model or block_size, or {command:code} for what would fit", command="nanolens plan"),
            )
        problem = last_words[-1] if last_words else f"exit code {code}"
        raise fault(msg("nothing could be measured: {problem}", problem=problem))
    if answers[-1]["kind"] != "done":
        answers.append({"kind": "died", "problem": last_words[-1] if last_words else f"exit code {code}"})
    return answers


def _progress(answer: Mapping[str, Any], config: Config) -> Message | None:
    if answer["kind"] != "probe" or answer["update_s"] is None or answer["is_again"]:
        return None
    speed = config.tokens_per_update / answer["update_s"]
    return msg("micro-batch {size:count}: {speed:tokens_per_s}", size=answer["size"], speed=speed)


def choose(config: Config, answers: Sequence[Mapping[str, Any]]) -> Tuned:
    """The fastest; among those that are no slower than the machine's mood, the one that needs the least memory."""
    rows = _rows(config, answers)
    machine = next((dict(answer) for answer in answers if answer["kind"] == "machine"), {})
    machine.pop("kind", None)
    measured = [row for row in rows if row.tokens_per_s is not None]
    fastest = max(measured, key=lambda row: row.tokens_per_s or 0.0)
    equals = [row for row in measured if (row.tokens_per_s or 0.0) >= (fastest.tokens_per_s or 0.0) * (1 - _doubt(row, fastest))]
    winner = min(equals, key=lambda row: (row.memory_bytes, row.size))
    compiled = _compile_trial(answers, winner, config)
    is_worth_compiling = compiled is not None and compiled.pays_after is not None and compiled.pays_after < config.max_iters
    chosen = dataclasses.replace(
        config, batch_size=winner.size, gradient_accumulation_steps=winner.accumulation,
        compile=is_worth_compiling if compiled is not None and config.compile is None else config.compile,
    )  # fmt: skip
    why = tuple(_reasons(config, rows, winner, fastest, compiled, machine))
    return Tuned(chosen, config, tuple(rows), winner, why, machine, compiled)


def _doubt(one: Row, other: Row) -> float:
    return min(DOUBT_AT_MOST, max(SAME_SPEED_FRAC, 2 * math.hypot(one.scatter, other.scatter)))


def _rows(config: Config, answers: Sequence[Mapping[str, Any]]) -> list[Row]:
    rows: dict[int, Row] = {}
    for answer in answers:
        if answer["kind"] != "probe":
            continue
        update_s = answer["update_s"]
        rows[answer["size"]] = Row(  # one that was timed again replaces its first measurement
            answer["size"], answer["accumulation"], answer["memory_bytes"], update_s,
            config.tokens_per_update / update_s if update_s is not None else None, answer["scatter"], answer["skipped"],
        )  # fmt: skip
    if any(answer["kind"] == "died" for answer in answers):
        for size in sizes_to_try(config.batch_size * config.gradient_accumulation_steps, config.batch_size):
            if size not in rows:
                accumulation = config.batch_size * config.gradient_accumulation_steps // size
                rows[size] = Row(size, accumulation, math.nan, None, None, 0.0, "died")
    return [rows[size] for size in sorted(rows)]


def _compile_trial(answers: Sequence[Mapping[str, Any]], winner: Row, config: Config) -> CompileTrial | None:
    found = next((answer for answer in answers if answer["kind"] == "compiled"), None)
    if found is None:
        return None
    eager = next(row.update_s for row in _rows(config, answers) if row.size == found["size"])
    won_s = (eager or 0.0) - (found["update_s"] or math.inf)
    pays_after = math.ceil(found["compiled_in_s"] / won_s) if won_s > 0 else None
    return CompileTrial(found["update_s"], found["compiled_in_s"], found["failed"], pays_after)


def _reasons(
    config: Config, rows: Sequence[Row], winner: Row, fastest: Row, compiled: CompileTrial | None, machine: Mapping[str, Any]
) -> list[Message]:
    said = []
    if winner is fastest:
        said.append(msg("micro-batch {size:count} is the fastest: {speed:tokens_per_s}", size=winner.size, speed=winner.tokens_per_s))
    else:
        said.append(
            msg(
                "micro-batch {size:count} is as fast as {other:count}, the fastest, to {difference:share}, and needs less memory",
                size=winner.size, other=fastest.size, difference=1 - (winner.tokens_per_s or 0.0) / (fastest.tokens_per_s or 1.0),
            )
        )  # fmt: skip
    now = next((row for row in rows if row.size == config.batch_size), None)
    if now is not None and now.size != winner.size and now.tokens_per_s and winner.tokens_per_s:
        gain = winner.tokens_per_s / now.tokens_per_s - 1
        said.append(
            msg(
                "the config's own {size:count} runs at {speed:tokens_per_s}: {gain:share} less",
                size=now.size,
                speed=now.tokens_per_s,
                gain=gain / (1 + gain),
            )
            if gain > 0
            else msg("the config's own {size:count} is no faster beyond doubt", size=now.size)
        )
    if compiled is None:
        if machine.get("device") == "cpu":
            said.append(
                msg(
                    "compiling was not tried: it takes about a minute and wins little on a CPU; {option:code} tries it",
                    option="--try_compile",
                )
            )
    elif compiled.failed:
        said.append(msg("compiling failed here ({problem:code}): it stays off", problem=compiled.failed))
    elif compiled.pays_after is None:
        said.append(msg("compiled, an update takes {took:seconds}, which is no faster: it stays off", took=compiled.update_s))
    else:
        said.append(
            msg(
                "compiled, an update takes {took:seconds} instead of {eager:seconds}; the {cost:seconds} for compiling are won back after "
                "{updates:count} updates",
                took=compiled.update_s, eager=winner.update_s, cost=compiled.took_s, updates=compiled.pays_after,
            )
        )  # fmt: skip
    return said


# --- the answer, kept for `train`


def remember(found: Tuned) -> None:
    """A cache that cannot be written is done without."""
    kept = {"changes": found.changes, "tokens_per_s": found.winner.tokens_per_s, "machine": dict(found.machine)}
    path = answer_path(found.asked)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_whole(path, json.dumps(kept))
    except OSError:
        return


def recall(config: Config) -> dict[str, Any] | None:
    try:
        found = json.loads(answer_path(config).read_text(encoding="utf-8"))
        return found if isinstance(found.get("changes"), dict) else None
    except (OSError, ValueError, AttributeError):
        return None


def with_answer(given: Settings, tell: Tell = lambda message: None) -> Settings:
    """The settings with `batch_size = auto` settled: by an answer that is kept, or by measuring now."""
    if "batch_size" not in given.automatic:
        return given
    known = recall(given.config)
    if known is None:
        tell(msg("measuring which micro-batch is the fastest here, once"))
        found = tuned_for(given.config, tell=tell)
        remember(found)
        known = {"changes": found.changes, "tokens_per_s": found.winner.tokens_per_s}
    origin = f"auto: the fastest that nanolens tune measured here, {round(known['tokens_per_s'])} tokens/s"
    changes = {name: value for name, value in known["changes"].items() if name in settings()}
    return dataclasses.replace(
        given, config=dataclasses.replace(given.config, **changes), came_from={**given.came_from, **dict.fromkeys(changes, origin)}
    )


def answer_path(config: Config) -> Path:
    shaping = {name: getattr(config, name) for name, known in settings().items() if known.group in COLUMNS_OF_SPEED and name not in RATES}
    shaping |= {"sequences": config.batch_size * config.gradient_accumulation_steps, "dataset": config.dataset}
    key = json.dumps([shaping, this_machine()], sort_keys=True, default=str)
    return files.cache_folder() / "tuned" / (hashlib.sha256(key.encode()).hexdigest()[:24] + ".json")


def this_machine() -> dict[str, Any]:
    """What an answer holds for: a cache folder may be shared by several machines, and torch gets faster."""
    import os
    import platform

    import psutil

    return {
        "host": platform.node(), "processor": platform.machine(), "cores": psutil.cpu_count(logical=False),
        "allowed": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "omp": os.environ.get("OMP_NUM_THREADS", ""), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", ""), "torch": _version("torch"),
    }  # fmt: skip


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
