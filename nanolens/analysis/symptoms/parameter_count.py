"""The model does not have the number of parameters that its name, its comment or its owner says.

What it sees. Sizes claimed in names and comments ("125M"), the count that the trainer printed, and the count that follows from the
shapes, with and without a head of its own.

Why it matters. Everything that is planned by size, from learning rate to tokens, goes wrong with the wrong size; and a small model
is taken for a bad one.

When it is wrong. There are several honest counts: with or without embeddings, position table, head. A claim that fits any of them
within an eighth is accepted. Numbers that count tokens ("10B tokens", "sample-100BT") are not sizes.

What it looks like. A run called 125M-single-parquet with n_layer=12 and n_embd=384:

    number of parameters: 40.56M

What to change. The name, or the shape: 125M is n_layer=12, n_head=12, n_embd=768.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked
from nanolens.message import Message, msg
from nanolens.sizing import Shape
from nanolens.sizing import parameters as count_parameters

CODES = ("param_count_mismatch",)

NAMES = (
    "wandb_run_name",
    "run_name",
    "name",
    "model_name",
    "model",
    "out_dir",
    "wandb_project",
    "title",
    "description",
    "comment",
    "comment_in_config",
)
_SIZE = re.compile(r"(?<![\w.])~?(\d{1,4}(?:\.\d+)?)\s?(M|m|B|million|billion)(?![a-zA-Z])(?!\s*(?:tok|byte|word|char|sample|row))")
_PARAMETERS = re.compile(r"\s*-?\s*(?:param|model)", re.IGNORECASE)


@dataclass(frozen=True)
class Claim:
    count: float
    text: str
    where: Message


def look(case: Case) -> Iterator[Finding | NotChecked]:
    printed = case.number("parameters")
    counted = case.counted
    if counted is None and printed is None:
        case.need("parameters")
    honest = _honest_counts(case, printed)
    claim = claimed(case)
    if claim is not None and not any(0.875 < claim.count / count < 1.125 for count in honest):
        yield _claimed(case, claim, printed)
    shape = _shape_without_context(case)
    if shape is not None and printed is not None:
        yield from _head_of_its_own(case, printed, shape)


def claimed(case: Case) -> Claim | None:
    """A size that a name or a comment states, where one does."""
    for key in (*NAMES, "claimed_parameters", "comments"):
        known = case.run.known.get(key)
        if known is None:
            continue
        values = known.value if isinstance(known.value, (tuple, list)) else (known.value,)
        for value in values:
            if isinstance(value, (int, float)) and key == "claimed_parameters":
                return Claim(float(value), str(value), case.where(key))
            if isinstance(value, str) and (found := _in_text(value)) is not None:
                return Claim(found, value, msg("{key:code} = {text:code}", key=key, text=value))
    return None


def _in_text(text: str) -> float | None:
    for found in _SIZE.finditer(text):
        is_million = found[2].lower().startswith("m")
        says_parameters = _PARAMETERS.match(text, found.end()) is not None
        if (is_million and (says_parameters or float(found[1]) >= 5)) or says_parameters:
            return float(found[1]) * (1e6 if is_million else 1e9)
    return None


def _honest_counts(case: Case, printed: float | None) -> list[float]:
    counts = [printed] if printed else []
    if case.counted is not None:
        counts += [case.counted.total, case.counted.as_nanogpt_prints, case.counted.without_embeddings, case.counted.matmul]
    return [count for count in counts if count > 0]


def _claimed(case: Case, claim: Claim, printed: float | None) -> Finding:
    true = case.counted.total if case.counted is not None else printed
    assert true is not None
    evidence = [Evidence(msg("parameters"), true, claim.count, claim.where, _arithmetic(case), "parameters")]
    if printed is not None:
        evidence.append(
            Evidence(
                msg("parameters as printed"),
                printed,
                claim.count,
                case.where("parameters"),
                msg("nanoGPT leaves the position table out"),
                "parameters",
            )
        )
    suits = _shape_for(claim.count)
    return Finding(
        "param_count_mismatch",
        "certain",
        msg("the model has {true:parameters} parameters, not the {claimed:parameters} that its name says", true=true, claimed=claim.count),
        tuple(evidence),
        Change(
            msg("rename the run, or use n_layer={layers:count}, n_embd={width:count} for that size", layers=suits[0], width=suits[1]),
            key="n_embd",
            old=case.whole("n_embd"),
            new=suits[1],
        ),
        msg("the number in the name does not mean parameters"),
    )


def _arithmetic(case: Case) -> Message:
    if case.counted is None or case.shape is None:
        return msg("as printed")
    parts = case.counted.by_part
    return msg(
        "{embedding:parameters} embeddings + {blocks:parameters} in the blocks, 12 x n_layer x n_embd x n_embd",
        embedding=sum(parts.get(part, 0) for part in ("token embedding", "position embedding", "head", "n-gram tables")),
        blocks=parts["attention"] + parts["mlp"],
    )


def _shape_for(count: float) -> tuple[int, int]:
    """GPT-2's own shapes, nearest in size."""
    known = {124e6: (12, 768), 355e6: (24, 1024), 774e6: (36, 1280), 1558e6: (48, 1600), 41e6: (12, 384), 10.7e6: (6, 384)}
    return known[min(known, key=lambda size: abs(size - count) / size)]


def _shape_without_context(case: Case) -> Shape | None:
    """The shape; where only the context length is unknown, with none: the position table is then left out of every count."""
    layers, width, vocab = case.whole("n_layer"), case.whole("n_embd"), case.whole("vocab_size")
    if case.shape is not None or layers is None or width is None or vocab is None or min(layers, width, vocab) < 1:
        return case.shape
    return Shape(n_layer=layers, n_head=max(1, width // 64), n_embd=width, block_size=0, vocab_size=vocab)


def _head_of_its_own(case: Case, printed: float, shape: Shape) -> Iterator[Finding]:
    """A printed count that is larger than the shape's usual one by exactly one embedding matrix."""
    usual = count_parameters(replace(shape, tied=True, arch="gpt2"))
    untied = count_parameters(replace(shape, tied=False, arch="gpt2"))
    plain = untied.total - untied.by_part["norms"] - untied.by_part["position embedding"]
    fits = [value for value in (untied.total, untied.as_nanogpt_prints, plain) if abs(printed / value - 1) < 0.003]
    if not fits or shape.arch != "gpt2" or abs(printed / usual.total - 1) < 0.01:
        return
    embedding = shape.vocab_size * shape.n_embd
    evidence = Evidence(
        msg("parameters as printed"),
        printed,
        usual.total,
        case.where("parameters"),
        msg(
            "2 x {embedding:parameters} (embedding and head) + {blocks:parameters} in the blocks",
            embedding=embedding,
            blocks=12 * shape.n_layer * shape.n_embd**2,
        ),
        "parameters",
    )
    yield Finding(
        "param_count_mismatch",
        "certain",
        msg(
            "the count is larger than usual for this shape because embedding and head are two matrices here; "
            "each token still meets {matmul:parameters}",
            matmul=usual.matmul,
        ),
        (evidence,),
        Change(msg("tie the head to the embedding for the usual count; the speed is the same either way"), key="tied", old=False, new=True),
        msg("the vocabulary or the width is another one"),
    )
