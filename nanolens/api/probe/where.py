"""Where the loss is: by place in the window, by kind of token, by document."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nanolens.api.probe.branches import Branches
from nanolens.api.probe.look import joined, look_at
from nanolens.api.probe.subject import Subject
from nanolens.message import Message, msg
from nanolens.probing import experiments as plan
from nanolens.probing.judge import Effect, Reading

MOST = 512  # windows
EXCERPT = 60  # characters shown of a passage

KINDS: dict[str, Message] = {
    "letter": msg("letters"), "digit": msg("digits"), "space": msg("spaces"), "newline": msg("line breaks"), "mark": msg("marks"),
    "word_start": msg("tokens that begin a word"), "word_inside": msg("tokens inside a word"), "other": msg("other tokens"),
}  # fmt: skip


def where(branches: Branches) -> Iterator[Effect | Reading]:
    from nanolens.data.batches import eval_windows

    subject = branches.subject
    config = subject.config
    count = int(min(MOST, max(32, plan.WINDOWS_FRAC * config.max_iters * config.batch_size / plan.FORWARD)))
    windows = eval_windows(subject.dataset.val, config.block_size, 1, count, 4)
    inputs, targets = joined(windows)
    starts = np.concatenate(windows.starts)
    order = np.argsort(starts)
    losses = look_at(subject).losses(inputs[order], targets[order])
    yield _by_place(losses)
    if subject.dataset.tokenizer is not None:
        yield _by_kind(subject, losses, targets[order])
        yield from _by_document(subject, losses, inputs[order], starts[order])


def _by_place(losses: np.ndarray) -> Reading:
    """Does it use its context? The loss falls along the window as long as more context helps."""
    parts = [part.mean() for part in np.array_split(losses.mean(axis=0), min(4, losses.shape[1]))]
    first, gain = float(losses[:, 0].mean()), float(parts[-2] - parts[-1]) if len(parts) > 1 else 0.0
    words = msg(
        "by place: {first:nats} at the first token of a window, {parts:nats} in its quarters; the last quarter of the context wins "
        "{gain:nats}",
        first=first, parts=[float(part) for part in parts], gain=gain,
    )  # fmt: skip
    return Reading("where", words, {"first": first, "quarters": [float(part) for part in parts]})


def _by_kind(subject: Subject, losses: np.ndarray, targets: np.ndarray) -> Reading:
    assert subject.dataset.tokenizer is not None
    names = np.array([kind_of(subject.dataset.tokenizer.decode([int(token)])) for token in np.unique(targets)])
    kinds = names[np.searchsorted(np.unique(targets), targets)]
    rows = []
    for kind in np.unique(names):
        here = kinds == kind
        rows.append((str(kind), float(here.mean()), float(losses[here].mean()), float(losses[here].sum() / losses.sum())))
    rows.sort(key=lambda row: -row[3])
    parts = [
        msg("{kind}: {loss:nats} ({of_loss:share} of the loss, {of_tokens:share} of the tokens)", kind=KINDS[kind], loss=loss,
            of_loss=of_loss, of_tokens=of_tokens)
        for kind, of_tokens, loss, of_loss in rows
    ]  # fmt: skip
    return Reading("where", msg("by kind: {parts}", parts=parts), {kind: loss for kind, _, loss, _ in rows})


def kind_of(text: str) -> str:
    if "\n" in text:
        return "newline"
    if text.isspace():
        return "space"
    if len(text) > 1 and any(letter.isalpha() for letter in text):
        return "word_start" if text[0].isspace() or text[0].isupper() else "word_inside"
    stripped = text.strip()
    if stripped.isdigit():
        return "digit"
    return "letter" if stripped.isalpha() else "mark" if stripped else "other"


def _by_document(subject: Subject, losses: np.ndarray, inputs: np.ndarray, starts: np.ndarray) -> Iterator[Reading]:
    """Passages with the highest and the lowest loss: garbage and copies stand out."""
    means = losses.mean(axis=1)
    ends = subject.dataset.document_ends("val")
    if ends is not None and len(ends) > 1:
        document = np.searchsorted(np.asarray(ends), starts, side="right")
        by_document = [
            (float(means[document == each].mean()), int(each), int(np.flatnonzero(document == each)[0])) for each in np.unique(document)
        ]
    else:
        by_document = [(float(mean), place, place) for place, mean in enumerate(means)]
    by_document.sort()
    tokenizer = subject.dataset.tokenizer
    assert tokenizer is not None
    shown = [
        (title, [(loss, tokenizer.decode(inputs[window].tolist())[:EXCERPT]) for loss, _, window in some])
        for title, some in ((msg("hardest"), by_document[::-1][:2]), (msg("easiest"), by_document[:2]))
    ]
    for title, some in shown:
        parts = [msg("{loss:nats} {text:code}", loss=loss, text=repr(text)) for loss, text in some]
        yield Reading("where", msg("{title} passages: {parts}", title=title, parts=parts), {"passages": some})
