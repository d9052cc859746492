"""Runs in a table, what was checked of one, and what was prepared, in words."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from nanolens.message import Message, msg, revived
from nanolens.show.answer import Answer, typed
from nanolens.show.document import Part, Table, Text, TextBlock
from nanolens.show.live import STATES
from nanolens.show.words import show

if TYPE_CHECKING:
    from nanolens.data.prepare import PreparedData
    from nanolens.measure.selftest import Check, Report
    from nanolens.record.progress import Glance
    from nanolens.training.checkpoint import CheckResult


class RunRowData(msgspec.Struct):
    run: str
    state: str
    step: int
    max_iters: int | None
    loss: float | None
    best_val: float | None
    tokens_per_s: float | None
    changed_at_s: float | None
    bytes: int
    warnings: int


def runs_answer(rows: list[Glance], folder: str) -> Answer[list[Glance]]:
    return Answer(rows, lambda lang: [_table(rows, folder)], lambda lang: [_row_data(row) for row in rows])


def _table(rows: Sequence[Glance], folder: str) -> Part:
    if not rows:
        command = "nanolens train"
        return TextBlock(msg("no runs in {folder:code}; start one with {command:code}", folder, command), "literal")
    words = (msg("run"), msg("state"), msg("step"), msg("loss"), msg("best val"), msg("tokens/s"), msg("modified"))
    return Table((*words, msg("size")), [_cells(row) for row in rows], left=(0, 1))


def _cells(row: Glance) -> list[Text]:
    def text(value: object, kind: str) -> str:
        return "-" if isinstance(value, float) and math.isnan(value) else show(value, kind)

    step = text(row.step, "count") + (f" / {text(row.max_iters, 'count')}" if row.max_iters is not None else "")
    speed = text(round(row.tokens_per_s) if math.isfinite(row.tokens_per_s) else math.nan, "count")
    is_dated = math.isfinite(row.changed_at_s)
    age = msg("{age:rough_seconds} ago", time.time() - row.changed_at_s) if is_dated else "-"
    state = STATES[row.state][0] if row.state in STATES else msg("unreadable")
    losses = [text(row.loss, "nats"), text(row.best_val, "nats")]
    return [row.folder.name, state, step, *losses, speed, age, text(row.bytes, "bytes")]


def _row_data(row: Glance) -> RunRowData:
    numbers = {name: getattr(row, name) for name in ("loss", "best_val", "tokens_per_s", "changed_at_s")}
    finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
    return typed(RunRowData, row, "en", run=str(row.folder), **finite)


def checked_lines(checked: CheckResult) -> Iterator[Text]:
    state = msg("DAMAGED") if checked.problems else msg("ok")
    facts = "" if checked.facts is None else msg("  {facts}", checked.facts)
    yield msg("{state} {what}{facts}", _padded(state, 8), checked.what, facts)
    for said in (*checked.problems, *checked.notes):
        yield msg("         {said}", said)


def check_line(check: Check) -> Text:
    state = {"ok": msg("ok"), "failed": msg("FAILED"), "skipped": msg("skipped")}[check.state]
    return msg("  {state}{name} ({took:seconds}): {said}", _padded(state, 8), check.name, check.took_s, check.said)


def machine_lines(report: Report) -> list[Text]:
    kinds = {"memory_bytes": "bytes", "peak_flops": "flops_per_s"}
    return [f"  {key}: {show(value, kinds.get(key, 'text'))}" for key, value in report.machine.items()]


def _padded(state: Message, width: int) -> Text:
    """Filled up to a column; other languages than English only get a blank behind the word."""
    return msg("{state}{gap}", state, " " * (width - len(state.msgid)))


# --- what was prepared


def part_words(prepared: PreparedData, part: str) -> Message:
    return msg(
        "{folder:code} written: part {part:code}, {tokens:count} tokens; once all parts exist, the same command with "
        "{join:code} joins them",
        str(prepared.folder),
        part,
        sum(prepared.about["tokens"].values()),
        "--part=join",
    )


def prepared_words(prepared: PreparedData) -> Iterator[Message]:
    about, facts, folder = prepared.about, prepared.about["facts"], prepared.folder
    yield _headline(prepared)
    for split in ("train", "val"):
        tokens, documents = about[split]["tokens"], about[split]["documents"]
        yield msg("  {split:code}: {tokens:count} tokens, documents: {documents:count}", split, tokens, documents)
    yield msg(
        "  tokenizer {kind:code}, {size:count} tokens, of which the text uses {used:count}; bytes per token: "
        "{bytes:number}",
        about["tokenizer"]["kind"],
        about["vocab_size"],
        facts["vocab_used"],
        facts["bytes_per_token"],
    )
    yield msg("  loss of a model that knows only token frequencies: {unigram:nats} nats", facts["unigram_nats"])
    if facts["bigram_nats"] is not None:
        yield msg("  loss of one that also sees the previous token: {bigram:nats} nats", facts["bigram_nats"])
    left_out = about["left_out_as_duplicates"]
    if left_out["documents"]:
        count, size = left_out["documents"], left_out["bytes"]
        yield msg("  duplicate documents left out: {count:count} ({size:bytes})", count, size)
    if facts["documents"] > 1:
        yield msg(
            "  duplicate documents: {repeated:share}; val documents that are also in train: {leaked:share}",
            facts["repeated_documents_frac"],
            facts["val_documents_in_train_frac"],
        )
    yield from _troubles(prepared)
    for choice in about["chosen"]:
        values = {**choice, "because": revived(choice.get("words")) or choice["because"]}
        yield msg("  chosen: {what:code} = {value:code}, because {because}", **values)
    dataset = folder.name if folder.parent == Path("data") else str(folder)  # as short as `train` finds it
    yield msg("next: {command:code}", f"nanolens train --dataset={dataset}")


def _headline(prepared: PreparedData) -> Message:
    folder, sources = str(prepared.folder), prepared.about["sources"]
    if prepared.was_ready:
        return msg("{folder:code} is up to date: same sources and settings", folder)
    return msg(
        "{folder:code} written: {size:bytes} read in {took:seconds}, {rate:bytes} per second; files: {files:count}",
        folder,
        sources["bytes"],
        prepared.took_s,
        sources["bytes"] / prepared.took_s,
        sources["files"],
    )


def _troubles(prepared: PreparedData) -> Iterator[Message]:
    about, damaged = prepared.about, prepared.about["damaged"]
    if damaged["count"]:
        yield msg("  damaged rows or files left out: {count:count}", damaged["count"])
        for name in damaged["named"][:5]:
            yield msg("    {name}", name)
        if damaged["count"] > 5:
            yield msg("    and more; see {file:code}", "dataset.json")
    if about["empty_documents"]:
        yield msg("  documents without text: {count:count}", about["empty_documents"])
    for split in ("train", "val"):
        if about[split]["tokens"] < 2:
            yield msg("  the {split} split is too small to use", split)
