"""Whether the losses of the sides can be set against each other at all, and in which unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nanolens.comparison.side import Group, Side
from nanolens.message import Message, msg
from nanolens.record.run import Run

PADDING = 128  # vocabularies that differ by less are one tokenizer, padded differently


@dataclass(frozen=True)
class Grounds:
    unit: str  # "nats" per token, or "bits" per byte
    not_comparable: Message | None
    notes: tuple[Message, ...] = ()


def grounds(sides: Sequence[Side], *, by_batch_loss: bool = False) -> Grounds:
    """Nats per token where text, tokenizer and context are the same; bits per byte where only the text is; else not at all.

    Without evaluations the batch losses are all there is, and those hold the dropout too."""
    same_text = _same(sides, "text_fingerprint")
    if _same(sides, "block_size") is False:
        contexts = [side.case.whole("block_size") for side in sides]
        return Grounds(
            "nats", msg("the contexts differ ({contexts:count} tokens): a longer one by itself lowers the loss", contexts=contexts)
        )
    if _same_tokenizer(sides) is False:
        if same_text and all(np.isfinite(side.case.evals.val_bits_per_byte).any() for side in sides):
            return Grounds("bits", None, (msg("other tokenizers, the same text: compared in bits per byte"),))
        return Grounds(
            "nats",
            msg(
                "the tokenizers differ ({vocabularies:count} tokens): losses per token mean different things; only bits per "
                "byte on the same text compare",
                vocabularies=[int(side.case.vocab_size.value) if side.case.vocab_size else None for side in sides],
            ),
        )
    if _same(sides, "val_fingerprint") is False or (_same(sides, "data_fingerprint") is False and not same_text):
        return Grounds("nats", msg("the val sets differ: other text, other difficulty"))
    names = {side.case.corpus.name if side.case.corpus else side.case.text("dataset") for side in sides} - {""}
    if len(names) > 1:
        return Grounds("nats", msg("the val sets differ ({names}): other text, other difficulty", names=sorted(names)))
    notes = [] if names else [msg("the logs do not name their data: taken to be the same")]
    if by_batch_loss:
        if _same(sides, "dropout") is False:
            return Grounds("nats", msg("there are no evaluations, and the losses of the updates were taken with different dropout"))
        notes.append(msg("there are no evaluations: compared by the losses of the updates, averaged over stretches of steps"))
    return Grounds("nats", None, tuple(notes))


def in_bits_per_byte(group: Group) -> Group:
    """The same runs with val losses in bits per byte."""
    return Group(group.name, tuple(_in_bits(run) for run in group.runs))


def _in_bits(run: Run) -> Run:
    bits = run.evals.val_bits_per_byte
    with np.errstate(all="ignore"):
        factor = bits / run.evals.val
    evals = replace(
        run.evals, val=bits, val_se=run.evals.val_se * factor,
        val_batch_losses=tuple(losses * each for losses, each in zip(run.evals.val_batch_losses, factor, strict=False)),
    )  # fmt: skip
    return replace(run, evals=evals)


def _same(sides: Sequence[Side], name: str) -> bool | None:
    """None where a side does not say."""
    values = [side.case.get(name) for side in sides]
    if any(value in (None, "") for value in values):
        known = {value for value in values if value not in (None, "")}
        return False if len(known) > 1 else None
    return len(set(values)) == 1


def _same_tokenizer(sides: Sequence[Side]) -> bool | None:
    by_fingerprint = _same(sides, "tokenizer_fingerprint")
    if by_fingerprint is not None:
        return by_fingerprint
    sizes = [side.case.vocab_size.value for side in sides if side.case.vocab_size is not None]
    if len(sizes) < 2:
        return None
    return max(sizes) - min(sizes) < PADDING and max(sizes) / min(sizes) < 1.2
