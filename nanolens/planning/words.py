"""A plan in words and as JSON, and as a config file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from nanolens.config.fields import Config, as_text, settings
from nanolens.facts.finding import Change
from nanolens.message import Message, msg
from nanolens.planning import Plan
from nanolens.planning.figures import PlanCheck, PlanFigure
from nanolens.show.answer import Answer, JsonObject, Scalar, plain, typed
from nanolens.show.document import GAP, Part, TextBlock, bullet
from nanolens.show.findings import change_parts
from nanolens.show.words import say, show

if TYPE_CHECKING:
    from nanolens.planning.question import PlanAnswer

_ORIGINS = (msg("given"), msg("measured"), msg("calculated"), msg("estimated"), msg("unknown"))
_ORIGIN_WORDS = {word.msgid: word for word in _ORIGINS}
SHORT_PLAN = ("parameters", "tokens", "epochs", "memory_total", "update_s", "total_s", "cost", "final_loss")
"""The rows that most people ask for."""


def answer_of(found: PlanAnswer, command: str, out: str | None) -> Answer[Plan]:
    """`command` starts the run; `out` is the config file, where one was written."""
    plan, file = found.plan, config_file(found)

    def parts(_: str) -> list[Part]:
        title = msg("Config file ({option:code} writes it)", "-o FILE.toml")
        if out:
            title = msg("Config file, written to {path:code}", out)
        shown: list[Part] = (
            [TextBlock(title, "head"), TextBlock(file.rstrip(), "quote", indent=2), GAP] if found.budget else []
        )
        start: list[Part] = [TextBlock(msg("To start it:"), "head"), TextBlock(command, "command", indent=2)]
        return [*plan_parts(plan, found.reasons), *shown, *start]

    return Answer(plan, parts, lambda lang: plan_data(plan, lang, file, command))


def config_file(found: PlanAnswer) -> str:
    about = f"nanolens plan --budget={found.budget.text}" if found.budget else "nanolens plan"
    return config_text(found.config, about)


def plan_parts(plan: Plan, reasons: Sequence[Message] = ()) -> Iterator[Part]:
    yield TextBlock(msg("Plan for {data:code} on {machine:code}", plan.data.name, plan.machine.name), "title")
    if reasons:
        yield from (GAP, TextBlock(msg("Chosen for this budget"), "head"), *map(bullet, reasons))
    yield from (GAP, TextBlock(msg("In short"), "head"))
    yield from (bullet(_row(row)) for row in plan.rows if row.key in SHORT_PLAN and row.is_known)
    if plan.warnings:
        yield from (GAP, TextBlock(msg("Before you start"), "head"))
    for warning in plan.warnings:
        claim = msg("{claim} ({code:code})", warning.claim, warning.code)
        yield TextBlock(claim, "likely", indent=2, mark="! ")
        yield from change_parts(warning.change) if warning.change is not None else ()
    for section in plan.sections:
        yield from (GAP, TextBlock(section.title, "head"))
        said: set[str] = set()  # an origin is said once in a section
        for row in section.rows:
            yield bullet(_row(row) if say(row.how) in said else _row(row, row.how))
            said.add(say(row.how))
    yield GAP
    yield from (TextBlock(note, "note") for note in plan.notes)


def against_plan(checks: Sequence[PlanCheck]) -> list[Part]:
    """The run against what was planned for its settings."""
    return [GAP, TextBlock(msg("Plan vs actual"), "head"), *(bullet(each.words) for each in checks)] if checks else []


def _row(row: PlanFigure, origin: Message | None = None) -> Message:
    said = {"what": row.what, "value": value_of(row), "source": _ORIGIN_WORDS[row.origin]}
    if origin is None:
        return msg("{what}: {value} ({source})", **said)
    return msg("{what}: {value} ({source}: {origin})", origin=origin, **said)


def value_of(row: PlanFigure) -> str:
    """The value and its range, in the form of its kind."""
    value = show(row.value if row.is_known else None, row.kind)
    if not row.is_known or row.low is None or row.high is None:
        return value
    low, high = show(row.low, row.kind), show(row.high, row.kind)
    return value if low == high == value else f"{value} [{low} … {high}]"


class PlanRowData(msgspec.Struct, rename={"origin": "source", "how": "from"}):
    value: Scalar | list[Scalar]
    low: float | None
    high: float | None
    origin: str
    how: str


def _row_data(row: PlanFigure, lang: str) -> PlanRowData:
    return typed(PlanRowData, row, lang, value=row.value if row.is_known else None)


class PlanMachineData(msgspec.Struct):
    name: str
    dtype: str
    devices: int


class AdviceData(msgspec.Struct):
    words: str
    options: str


class WarningData(msgspec.Struct):
    code: str
    claim: str
    change: AdviceData | None


class PlanData(msgspec.Struct):
    data: str
    machine: PlanMachineData
    config: JsonObject
    plan: dict[str, dict[str, PlanRowData]]
    warnings: list[WarningData]
    notes: list[str]
    config_file: str
    command: str


def plan_data(plan: Plan, lang: str = "en", config_file: str = "", command: str = "") -> PlanData:
    def advice(change: Change | None) -> AdviceData | None:
        if change is None:
            return None
        option = change.command or (f"--{change.key}={as_text(change.new)}" if change.key else "")
        return AdviceData(say(change.words, lang), option)

    return PlanData(
        plan.data.name,
        typed(PlanMachineData, plan.machine, lang, devices=plan.machine.count),
        {key: plain(value) for key, value in dataclasses.asdict(plan.config).items()},
        {each.key: {row.key: _row_data(row, lang) for row in each.rows} for each in plan.sections},
        [typed(WarningData, each, lang, change=advice(each.change)) for each in plan.warnings],
        [say(note, lang) for note in plan.notes],
        config_file,
        command,
    )


def config_text(config: Config, about: str) -> str:
    """The settings that differ from the defaults, as a TOML file that `nanolens train` takes."""
    lines = [
        f"{name} = {json.dumps('auto' if value is None else value)}"
        for name, known in settings().items()
        if (value := getattr(config, name)) != known.default
    ]
    return "\n".join([f"# {about}", *lines]) + "\n"
