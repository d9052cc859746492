"""The loss is lower than such a model can get honestly.

What it sees. A val loss below the lowest that is known for this corpus and a small model; or below what any model has reached in
bits per byte; or a val loss that follows train down into memorised territory. From how fast it fell and how many passes were made
it tells a leak of the future (attention_bug) from a val split that the model has trained on (val_leak).

Why it matters. The number will not hold on new text, and every decision made with it is wrong.

When it is wrong. Another text, tokenizer or split than the one meant explains it as well, and so does a pretrained start.

What it looks like. On characters of Shakespeare, where 1.47 is the best known:

    step 1500: train loss 0.7420, val loss 1.1890

What to change. Check that val holds text that train does not, that targets are inputs shifted by one, and that the attention is
causal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from nanolens.analysis import places
from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked
from nanolens.message import msg

CODES = ("too_good_to_be_true", "val_leak", "attention_bug")

FLOOR_BITS_PER_BYTE = 0.5  # the best language models of any size stand at about 0.6 on English text
MARGIN = 0.05


def look(case: Case) -> Iterator[Finding | NotChecked]:
    yield from _recorded_overlap(case)
    if case.is_pretrained:
        return
    at = np.flatnonzero(np.isfinite(case.evals.val))
    per_byte = np.flatnonzero(np.isfinite(case.evals.val_bits_per_byte))
    if not len(at) and not len(per_byte):
        yield NotChecked("too_good_to_be_true", msg("there is no val loss"))
        return
    # Some trainers tell of their val split in bits per byte alone.
    best = int(at[np.argmin(case.evals.val[at])]) if len(at) else int(per_byte[np.argmin(case.evals.val_bits_per_byte[per_byte])])
    floor = _floor(case, best)
    if floor is not None:
        evidence, is_extreme = floor
        yield Finding(
            "too_good_to_be_true",
            "likely",
            msg("val is lower than a model trained on this text can honestly get"),
            (evidence,),
            Change(
                msg(
                    "compare train.bin and val.bin: overlap, another text, another tokenizer; "
                    "then test whether a position sees the tokens after it"
                )
            ),
            msg("the text is another one, or far more repetitive, than the name says"),
        )
        if is_extreme:
            yield from _future(case, best)
    yield from _leak(case, best)


def _recorded_overlap(case: Case) -> Iterator[Finding]:
    """Our own preparation counts how much of val stands in train."""
    share = max(case.number("val_tokens_in_train_frac") or 0.0, case.number("val_documents_in_train_frac") or 0.0)
    if share < 0.1:
        return
    evidence = Evidence(
        msg("share of val that stands in train"),
        share,
        (0.0, 0.02),
        case.where("val_tokens_in_train_frac"),
        msg("counted when the data was prepared"),
        "share",
    )
    yield Finding(
        "val_leak",
        "certain",
        msg("the val split holds text that the model has trained on"),
        (evidence,),
        Change(
            msg("prepare the data again with a val split of its own: {command:code}", command="nanolens prepare"),
            command="nanolens prepare SOURCE",
        ),
        msg("the repeated documents are boilerplate that new text will hold as well"),
    )


def _floor(case: Case, best: int) -> tuple[Evidence, bool] | None:
    val = float(case.evals.val[best])
    per_byte = _bits_per_byte(case, best)
    step = int(case.evals.step[best])
    if per_byte is not None and per_byte < FLOOR_BITS_PER_BYTE:
        return Evidence(
            msg("val bits per byte"),
            per_byte,
            msg("above {floor:number}", floor=FLOOR_BITS_PER_BYTE),
            places.evaluation(case, best),
            msg("loss / ln 2 x tokens / bytes; the best models of any size stand near 0.6"),
            "number",
            step,
        ), True
    known = case.corpus
    if known is not None and known.lowest_val is not None and val < known.lowest_val - MARGIN:
        return Evidence(
            msg("val loss"),
            val,
            known.lowest_val,
            places.evaluation(case, best),
            msg("lowest known on {corpus:code} ({source})", corpus=known.name, source=known.lowest_source),
            "nats",
            step,
        ), False
    if known is not None and known.is_web_text and case.parameters is not None and case.parameters.value < 2e9:
        # Hoffmann's law without its data term: what this size would reach on endless web text; for small models generous by 0.2.
        limit = 1.8172 + 482.01 / case.parameters.value**0.3478
        if val < limit - 0.15:
            return Evidence(
                msg("val loss"),
                val,
                msg("above {limit:nats}", limit=limit),
                places.evaluation(case, best),
                msg("1.82 + 482 / N^0.348: this size on endless web text (arXiv 2404.10102)"),
                "nats",
                step,
            ), False
    return None


def _bits_per_byte(case: Case, best: int) -> float | None:
    recorded = float(case.evals.val_bits_per_byte[best])
    if math.isfinite(recorded):
        return recorded
    bytes_per_token = case.number("bytes_per_token") or (1.0 if case.is_char else None)
    return None if bytes_per_token is None else float(case.evals.val[best]) / math.log(2) / bytes_per_token


def _future(case: Case, best: int) -> Iterator[Finding]:
    """Far too low, and train no lower than val: nothing was memorised, so the answer itself must be visible."""
    train, val = float(case.evals.train[best]), float(case.evals.val[best])
    epochs = case.epochs_at(int(case.evals.step[best]))
    if not math.isfinite(train) or abs(val - train) > 0.1 * max(val, 0.2) or (epochs is not None and epochs > 3 and not _was_early(case)):
        return
    evidence = Evidence(
        msg("val loss minus train loss"),
        val - train,
        msg("above 0 where text is memorised"),
        places.evaluation(case, best),
        msg("after {epochs:number} passes over the data", epochs=epochs) if epochs is not None else msg("both evaluated the same way"),
        "nats",
    )
    yield Finding(
        "attention_bug",
        "likely",
        msg("the model sees the tokens that it is asked to predict: the attention is not causal, or the targets are not shifted"),
        (evidence,),
        Change(msg("change one token and see whether earlier outputs change: with a causal mask none may")),
        msg("changing a later token leaves all earlier outputs as they were, and targets are the inputs shifted by one"),
    )


def _was_early(case: Case) -> bool:
    """Whether the loss was already impossible within the first two passes."""
    for i in np.flatnonzero(np.isfinite(case.evals.val)):
        epochs = case.epochs_at(int(case.evals.step[i]))
        per_byte = _bits_per_byte(case, int(i))
        if epochs is not None and epochs <= 2 and per_byte is not None and per_byte < FLOOR_BITS_PER_BYTE:
            return True
    return False


def _leak(case: Case, best: int) -> Iterator[Finding]:
    """Train has been memorised and val with it: val holds the training text."""
    both = np.flatnonzero(np.isfinite(case.evals.val) & np.isfinite(case.evals.train))
    if not len(both):
        return
    last = int(both[-1])
    epochs = case.epochs_at(int(case.evals.step[last]))
    train, val = float(case.evals.train[last]), float(case.evals.val[last])
    memorised = _memorised_below(case)
    if epochs is None or epochs < 8 or memorised is None or train > memorised or _was_early(case):
        return
    noise = case.eval_noise.value if case.eval_noise is not None else 0.02
    if abs(val - train) > min(max(0.05 * train, 4 * noise), 0.12 * train):
        return
    evidence = (
        Evidence(
            msg("val loss minus train loss"),
            val - train,
            msg("above {least:nats}", least=0.1 * train),
            places.evaluation(case, last),
            msg("train has been read {epochs:number} times and memorised; unseen text would be far above it", epochs=epochs),
            "nats",
        ),
        Evidence(
            msg("train loss"),
            train,
            msg("above {level:nats} without memorising", level=memorised),
            places.evaluation(case, last),
            msg("the lowest level that val can honestly have on such text"),
            "nats",
            int(case.evals.step[last]),
        ),
    )
    yield Finding(
        "val_leak",
        "likely",
        msg("the val split holds text that the model has trained on"),
        evidence,
        Change(
            msg("prepare the data again with a val split of its own: {command:code}", command="nanolens prepare"),
            command="nanolens prepare SOURCE",
        ),
        msg("no stretch of 50 characters of val occurs in train"),
    )


def _memorised_below(case: Case) -> float | None:
    if case.corpus is not None and case.corpus.lowest_val is not None:
        return case.corpus.lowest_val - MARGIN
    # About 1.6 bits per character is what small models reach on unseen text; half of the bigram level stands for it elsewhere.
    return 0.45 * case.bigram_nats if case.bigram_nats is not None and case.is_char else None
