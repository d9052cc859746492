"""A plan as text, Markdown or JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nanolens.config.fields import as_text, settings
from nanolens.message import Message, msg
from nanolens.present.blocks import GAP, Block
from nanolens.present.text import change_blocks
from nanolens.show.words import show, tied

if TYPE_CHECKING:
    from nanolens.analysis.plan import Plan
    from nanolens.analysis.plan_rows import Row
    from nanolens.config.fields import Config

SOURCES: dict[str, Message] = {
    "given": msg("given"),
    "measured": msg("measured"),
    "calculated": msg("calculated"),
    "estimated": msg("estimated"),
    "unknown": msg("not known"),
}


def blocks_of(plan: Plan, lang: str = "en", reasons: Iterable[Message] = ()) -> list[Block]:
    blocks = [
        Block(tied(msg("Plan for {data:code} on {machine:code}", data=plan.data.name, machine=plan.machine.name), lang), "title"),
        GAP,
    ]
    chosen = list(reasons)
    if chosen:
        blocks += [
            Block(tied(msg("Chosen for this budget"), lang), "head"),
            *(Block(tied(each, lang), indent=2, mark="- ") for each in chosen),
            GAP,
        ]
    blocks += [Block(tied(msg("In short"), lang), "head"), *(Block(text, indent=2, mark="- ") for text in short(plan, lang)), GAP]
    if plan.warnings:
        blocks.append(Block(tied(msg("Before you start"), lang), "head"))
        for warning in plan.warnings:
            blocks.append(Block(f"{tied(warning.claim, lang)} ({warning.code})", "likely", indent=2, mark="! "))
            blocks += change_blocks(warning.change, lang) if warning.change is not None else []
        blocks.append(GAP)
    for section in plan.sections:
        blocks.append(Block(tied(section.title, lang), "head"))
        said: set[str] = set()  # an origin is told once in a section
        for row in section.rows:
            origin = tied(row.origin, lang)
            blocks.append(Block(line_of(row, lang, with_origin=origin not in said), indent=2, mark="- "))
            said.add(origin)
        blocks.append(GAP)
    blocks += [Block(tied(note, lang), "note") for note in plan.notes]
    return blocks


SHORT = ("parameters", "tokens", "epochs", "memory_total", "update_s", "total_s", "cost", "final_loss")


def short(plan: Plan, lang: str) -> list[str]:
    """The rows that most people ask for, without their origins."""
    rows = [row for section in plan.sections for row in section.rows if row.key in SHORT and row.is_known]
    return [
        tied(msg("{what}: {value} ({source})", what=row.what, value=value_of(row, lang), source=SOURCES[row.source]), lang) for row in rows
    ]


def line_of(row: Row, lang: str, *, with_origin: bool = True) -> str:
    if not with_origin:
        return tied(msg("{what}: {value} ({source})", what=row.what, value=value_of(row, lang), source=SOURCES[row.source]), lang)
    said = msg(
        "{what}: {value} ({source}: {origin})", what=row.what, value=value_of(row, lang), source=SOURCES[row.source], origin=row.origin
    )
    return tied(said, lang)


def value_of(row: Row, lang: str = "en") -> str:
    """The value and its range, in the form of its kind."""
    if row.value is None:
        return "-"
    value = show(row.value, row.kind, lang)
    if row.low is None or row.high is None:
        return value
    low, high = show(row.low, row.kind, lang), show(row.high, row.kind, lang)
    return value if low == high == value else f"{value} [{low} … {high}]"


def markdown_of(plan: Plan, lang: str = "en", reasons: Iterable[Message] = ()) -> str:
    from nanolens.present.markdown import said

    parts = [f"## {said(msg('Plan for {data:code} on {machine:code}', data=plan.data.name, machine=plan.machine.name), lang)}"]
    parts += ["\n".join(f"- {said(each, lang)}" for each in reasons)] if reasons else []
    for warning in plan.warnings:
        advice = (
            ""
            if warning.change is None
            else f" {said(warning.change.words, lang)}" + (f": `{option_of(warning.change)}`" if option_of(warning.change) else "")
        )
        parts.append(f"> **{said(warning.claim, lang)}** (`{warning.code}`){advice}")
    for section in plan.sections:
        rows = [
            f"| {said(row.what, lang)} | {value_of(row, lang)} | {said(SOURCES[row.source], lang)}: {said(row.origin, lang)} |"
            for row in section.rows
        ]
        parts.append(f"### {said(section.title, lang)}\n\n| | | |\n|---|---:|---|\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


def json_of(plan: Plan) -> dict[str, Any]:
    """Keys and numbers for programs; sentences in English."""
    from nanolens.show.words import say

    def row_of(row: Row) -> dict[str, Any]:
        return {"value": row.value, "low": row.low, "high": row.high, "source": row.source, "from": say(row.origin)}

    return {
        "data": plan.data.name,
        "machine": {"name": plan.machine.name, "dtype": plan.machine.dtype, "devices": plan.machine.count},
        "config": dataclasses.asdict(plan.config),
        "plan": {section.key: {row.key: row_of(row) for row in section.rows} for section in plan.sections},
        "warnings": [
            {
                "code": each.code,
                "claim": say(each.claim),
                "change": None if each.change is None else {"words": say(each.change.words), "options": option_of(each.change)},
            }
            for each in plan.warnings
        ],
        "notes": [say(note) for note in plan.notes],
    }


def option_of(change: Any) -> str:
    return change.command or (f"--{change.key}={as_text(change.new)}" if change.key else "")


def config_text(config: Config, about: str, only: Iterable[str] | None = None) -> str:
    """The settings as a TOML file that `nanolens train` takes: those that differ from the defaults, or those named."""
    lines = [f"# {about}"]
    wanted = set(only) if only is not None else None
    for name, known in settings().items():
        value = getattr(config, name)
        if (wanted is None and value == known.default) or (wanted is not None and name not in wanted):
            continue
        lines.append(f"{name} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    import json

    if value is None:
        return '"auto"'
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, str) else repr(value)
