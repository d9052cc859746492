"""Is it memory, or are the splits different? Losses on windows just seen, seen long ago, never seen, and val; and counts as a yardstick."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from nanolens.api.probe.branches import Branches
from nanolens.api.probe.look import joined, look_at
from nanolens.api.probe.subject import Subject
from nanolens.message import msg
from nanolens.probing import experiments as plan
from nanolens.probing.judge import Effect, Reading, foretold

FEWEST, MOST = 32, 512  # windows of each kind
BLOCKS = 24  # neighbouring windows are alike: errors are taken over this many stretches of a split
COUNTED, SCORED = 2_000_000, 200_000  # tokens for the yardstick
FEWEST_COUNTED = 100_000
"""Below this a part of train that is kept out is still more like the rest of it than any other text is: the yardstick would take little
data for a shift (0.8 +- 0.2 nats at 12,000 characters of one corpus)."""
WORTH_TELLING = 0.2  # share of val windows that stand in train


def data(branches: Branches) -> Iterator[Effect | Reading]:
    subject = branches.subject
    look = look_at(subject)
    count = _windows(branches)
    losses = {kind: look.losses(*pair).mean(axis=1) for kind, pair in _kinds(subject, count).items()}
    cost = plan.FORWARD * sum(map(len, losses.values())) / (subject.config.batch_size * subject.config.gradient_accumulation_steps)
    means = {kind: (float(each.mean()), _error(each)) for kind, each in losses.items()}
    yield Reading("data", _told(means), {kind: mean for kind, (mean, _) in means.items()})
    overlap = _overlap(subject)
    if overlap >= WORTH_TELLING:
        change = msg("{share:share} of the val windows of 32 tokens stand in the train split word for word", share=overlap)
        yield Effect("val_in_train", "data", change, None, math.nan, None, math.nan, math.nan, 0.0, is_fact=True)
    is_enough = len(subject.dataset.train) >= FEWEST_COUNTED
    shift, shift_error = _shift(subject) if is_enough else (0.0, math.inf)
    if is_enough:
        told = msg(
            "to counts of n-grams the val split is {shift:nats} ± {error:nats} more surprising than a part of train that was not counted",
            shift=shift, error=shift_error,
        )  # fmt: skip
        yield Reading("data", told, {"shift": shift, "error": shift_error})
    # What was seen a moment ago is fresh in the weights, and soon fades; what was seen long ago and is still known is memory.
    seen, seen_error = means["long_ago" if "long_ago" in means else "just"]
    val, val_error = means["val"]
    if "never" in means:
        fresh, fresh_error = means["never"]
        shift, shift_error = val - fresh, math.hypot(val_error, fresh_error)
        memory, memory_error = fresh - seen, math.hypot(fresh_error, seen_error)
        change = msg("the train split's own windows that were not seen yet, against val")
    else:
        # The yardstick's shift cannot be larger than the gap that it explains, nor the gap turn negative by it.
        gap, gap_error = val - seen, math.hypot(val_error, seen_error)
        explained = min(max(shift, 0.0), max(gap, 0.0)) if shift > 2 * shift_error else 0.0
        memory, memory_error = gap - explained, math.hypot(gap_error, shift_error if explained else 0.0)
        change = msg("a part of train that was kept from the counting, against val")
    if math.isfinite(shift_error):
        yield Effect("val_differs", "data", change, shift, shift_error, *foretold(shift, shift_error, "as_seen"), cost)
    fresh_data = msg("windows seen long ago, against text of the same kind that was never seen")
    yield Effect("data_too_little", "data", fresh_data, memory, memory_error, *foretold(memory, memory_error, "data"), cost)


def _windows(branches: Branches) -> int:
    config = branches.subject.config
    affordable = plan.WINDOWS_FRAC * config.max_iters * config.batch_size * config.gradient_accumulation_steps / plan.FORWARD / 4
    return int(min(MOST, max(FEWEST, affordable)))


def _kinds(subject: Subject, count: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Windows by how the run has met them. Samples that follow each other lie anywhere in the text."""
    from nanolens.data.batches import EVALUATION, Shuffled, eval_windows, gather
    from nanolens.data.permutation import keyed

    config, dataset = subject.config, subject.dataset
    found = {}
    if config.data_order == "shuffled":
        order, seen = Shuffled(dataset.train, config.block_size, config.seed), subject.sample

        def taken(first: int, many: int) -> tuple[np.ndarray, np.ndarray]:
            return gather(order.tokens, np.sort(order.windows(first, many)), config.block_size)

        recent = max(1, min(count, seen))
        found["just"] = taken(max(0, seen - recent), recent)
        if seen > 4 * count:
            found["long_ago"] = taken(0, count)
        left = order.windows_per_epoch - seen
        if left >= FEWEST:
            found["never"] = taken(seen, min(count, left))
    else:  # drawn at random: which windows were seen is not known, only that most of them were
        windows = eval_windows(dataset.train, config.block_size, 1, count, keyed(config.seed, EVALUATION) % 2**31, "train")
        found["just"] = joined(windows)
    found["val"] = joined(eval_windows(dataset.val, config.block_size, 1, count, 2))
    return found


def _error(losses: np.ndarray) -> float:
    """Over stretches of windows that are near to each other in the text."""
    blocks = [part.mean() for part in np.array_split(losses, min(BLOCKS, len(losses) // 2)) if len(part)]
    return float(np.std(blocks, ddof=1) / math.sqrt(len(blocks)))


def _told(means: dict[str, tuple[float, float]]):
    names = {
        "just": msg("just seen"), "long_ago": msg("seen long ago"), "never": msg("never seen"), "val": msg("val"),
    }  # fmt: skip
    parts = [msg("{kind} {mean:nats} ± {error:nats}", kind=names[kind], mean=mean, error=error) for kind, (mean, error) in means.items()]
    return msg("loss on windows {parts}", parts=parts)


def _overlap(subject: Subject) -> float:
    from nanolens.training.preflight import OVERLAP_TOKENS, overlap

    return overlap(np.asarray(subject.dataset.train[:OVERLAP_TOKENS]), np.asarray(subject.dataset.val[:OVERLAP_TOKENS]))


def _shift(subject: Subject) -> tuple[float, float]:
    """How much more surprising val is than train, to counts over the rest of train; and its standard error."""
    from nanolens.data.ngram import counts_of, surprisal

    train, val = (np.asarray(tokens) for tokens in (subject.dataset.train, subject.dataset.val))
    size = max(16, min(len(train) // 10, SCORED, len(val)) // BLOCKS)
    kept_out = np.zeros(len(train), bool)
    starts = np.linspace(0, len(train) - size, BLOCKS).astype(int)
    for start in starts:
        kept_out[start : start + size] = True
    counted = counts_of(train[~kept_out][:COUNTED], subject.dataset.vocab_size)
    apart = [surprisal(counted, train[start : start + size]).mean() for start in starts]
    places = np.linspace(0, len(val) - size, BLOCKS).astype(int)
    there = [surprisal(counted, val[start : start + size]).mean() for start in places]
    error = math.hypot(np.std(apart, ddof=1), np.std(there, ddof=1)) / math.sqrt(BLOCKS)
    return float(np.mean(there) - np.mean(apart)), float(error)
