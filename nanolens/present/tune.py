"""What was measured of each micro-batch size, with the winner and why, as text or JSON."""

from __future__ import annotations

import dataclasses
import math
from typing import IO, TYPE_CHECKING, Any

from nanolens.message import Message, msg
from nanolens.present.blocks import GAP, Block, for_stream
from nanolens.present.table import table
from nanolens.show.words import say, show, tied

if TYPE_CHECKING:
    from nanolens.config.fields import Config

SKIPPED: dict[str, Message] = {
    "memory": msg("not tried: more memory than is free"),
    "time": msg("not tried: an update would take too long to measure"),
    "slower": msg("not tried: larger ones only got slower"),
    "died": msg("not tried: the measurement ended before"),
}


def text_of(found: Any, command: str, stream: IO[str], lang: str = "en") -> str:
    """`found` is an api.tuning.Tuned."""
    config: Config = found.asked
    title = msg(
        "{tokens:count} tokens per update, cut into micro-batches ({hardware}, threads: {threads:count}, {dtype:code})",
        tokens=config.tokens_per_update, hardware=found.machine.get("hardware", ""), threads=found.machine.get("threads", 0),
        dtype=found.machine.get("dtype", ""),
    )  # fmt: skip
    blocks = [Block(tied(title, lang), "title"), GAP, Block("\n".join(_table(found, lang)), "quote"), GAP]
    blocks += [Block(tied(reason, lang), "good" if i == 0 else "body", mark="- ") for i, reason in enumerate(found.why)]
    blocks += [GAP, Block(tied(msg("Remembered for {option:code}, which takes it from here:", option="--batch_size=auto"), lang), "head")]
    return for_stream([*blocks, Block(command, "command", indent=2)], stream)


def _table(found: Any, lang: str) -> list[str]:
    header = [
        "", "batch_size", "gradient_accumulation_steps", say(msg("tokens/s"), lang), say(msg("update"), lang), say(msg("memory"), lang), "",
    ]  # fmt: skip
    return table(header, [_row(row, found.winner.size, lang) for row in found.rows], left=(0, 6))


def _row(row: Any, winner: int, lang: str) -> list[str]:
    if row.tokens_per_s is None:
        memory = (
            "" if math.isnan(row.memory_bytes) or row.skipped != "memory" else say(msg("about {size:bytes}", size=row.memory_bytes), lang)
        )
        return ["", str(row.size), str(row.accumulation), "", "", memory, say(SKIPPED[row.skipped], lang)]
    mark, word = ("→", say(msg("the winner"), lang)) if row.size == winner else ("", "")
    speed = f"{row.tokens_per_s:,.0f}"
    return [mark, str(row.size), str(row.accumulation), speed, show(row.update_s, "seconds"), show(row.memory_bytes, "bytes"), word]


def json_of(found: Any, command: str) -> dict[str, Any]:
    return {
        "machine": dict(found.machine), "tokens_per_update": found.asked.tokens_per_update,
        "rows": [_known(dataclasses.asdict(row)) for row in found.rows],
        "winner": found.changes, "why": [say(reason) for reason in found.why],
        "compiled": None if found.compiled is None else dataclasses.asdict(found.compiled), "command": command,
    }  # fmt: skip


def _known(row: dict[str, Any]) -> dict[str, Any]:
    """JSON has no word for what is not a number."""
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}
