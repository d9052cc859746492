"""The page that goes with an exported model: what it is, what it was trained on, how well it does, what stood out, how to use it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nanolens.message import Message, msg
from nanolens.present.curves import Series, overlaid
from nanolens.present.markdown import said
from nanolens.present.text import SURENESS

if TYPE_CHECKING:
    from nanolens.facts.finding import Finding

PICTURE = "loss.png"
FRONT = "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- nanolens\n---\n"


@dataclass(frozen=True)
class Card:
    title: str
    architecture: str  # their name for it
    parameters: int
    context: int
    facts: Sequence[tuple[Message, Message]]  # of the training: what, and its value
    findings: Sequence[Finding]
    curves: Sequence[Series]
    has_picture: bool
    notes: Sequence[Message]
    start: str  # the beginning of a text, in the example


def model_card(card: Card, lang: str = "en") -> str:
    what = msg(
        "{architecture:code} with {parameters:parameters} parameters and a context of {context:count} tokens, trained with nanolens.",
        architecture=card.architecture, parameters=card.parameters, context=card.context,
    )  # fmt: skip
    parts = [FRONT, f"# {card.title}", said(what, lang), *(said(note, lang) for note in card.notes)]
    if card.facts:
        rows = [f"| {said(name, lang)} | {said(value, lang)} |" for name, value in card.facts]
        parts += [f"## {said(msg('Training'), lang)}", "\n".join(["| | |", "|---|---|", *rows])]
    if card.has_picture:
        parts.append(f"![{said(msg('loss by step'), lang)}]({PICTURE})")
    elif any(len(series.xs) > 1 for series in card.curves):
        drawn = overlaid(list(card.curves), 72, 12, plain=True)
        parts.append("\n".join(["```", *drawn, "```"]))
    parts.append(f"## {said(msg('What stood out'), lang)}")
    if card.findings:
        parts.append(
            "\n".join(
                f"- {said(finding.claim, lang)} (`{finding.code}`, {said(SURENESS[finding.sureness], lang)})" for finding in card.findings
            )
        )
    else:
        parts.append(said(msg("Nothing stands out."), lang))
    parts += [f"## {said(msg('Use'), lang)}", _use(card.start)]
    return "\n\n".join(parts) + "\n"


def _use(start: str) -> str:
    return "\n".join(
        [
            "```python",
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            'folder = "."  # this folder, or its name on the hub',
            "model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)",
            f'inputs = tokenizer({start!r}, return_tensors="pt")',
            "print(tokenizer.decode(model.generate(**inputs, max_new_tokens=100)[0]))",
            "```",
        ]
    )
