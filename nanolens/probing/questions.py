"""How the seven questions are answered.

Three only look at the checkpoint. numbers: the future must not be seen, the same step must give the same result, the
precision must do, every layer must move. where: the loss by place in the window, by kind of token, by document. data:
is it memory, or do the splits differ? The other four train a changed branch, and compare it with the unchanged one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from nanolens.data.batches import EVALUATION, Batch, ShuffledWindows, eval_windows, gather, keyed
from nanolens.data.prepare.facts import counts_of, surprisal
from nanolens.data.tokenizers import Tokenizer
from nanolens.facts.statistics import fall_per_efold, standard_error
from nanolens.message import msg
from nanolens.model.loss import logits_of
from nanolens.probing import experiments, judge
from nanolens.probing.branches import Branches, BranchResult, Look, ProbeSubject, joined, look_at
from nanolens.probing.experiments import FORWARD, NUMBERS_UPDATES, WINDOWS_FRAC
from nanolens.probing.judge import Effect, Measurement, extrapolated_gain, paired_gain, seen_fact
from nanolens.record import checkpoint_folder
from nanolens.record.events import StepTaken
from nanolens.record.read import events_since
from nanolens.training.checkpoint import weights_of
from nanolens.training.machine import seconds_of
from nanolens.training.preflight import OVERLAP_TOKENS, overlap

Found = Iterator[Effect | Measurement]

LEAK = 1e-4  # of the largest logit, as before the first step
FEWEST_SCORED_WINDOWS, MOST_SCORED_WINDOWS = 32, 512  # windows of each kind
EXCERPT = 60  # characters shown of a passage
DATA_BLOCKS = 24  # neighbouring windows are alike: errors are taken over this many stretches of a split
COUNTED, SCORED = 2_000_000, 200_000  # tokens for the yardstick
FEWEST_COUNTED = 100_000
"""Below this a part of train that is kept out is still more like the rest of it than any other text is: the yardstick
would take little data for a shift (0.8 +- 0.2 nats at 12,000 characters of one corpus)."""
MUCH_OVERLAP = 0.2  # share of val windows that stand in train


def _affordable_windows(sequences: float) -> int:
    """Windows that may be scored for the price of so many sequences that are trained on."""
    return int(min(MOST_SCORED_WINDOWS, max(FEWEST_SCORED_WINDOWS, WINDOWS_FRAC * sequences / FORWARD)))


# --- numbers


def numbers(branches: Branches) -> Found:
    subject, config, look = branches.subject, branches.subject.config, look_at(branches.subject)
    pair = next(iter(eval_windows(subject.dataset.val, config.block_size, config.batch_size, 1, 3)))
    if config.block_size > 1:
        yield _leak(subject, look, pair)
    yield from _twice(subject, look, pair)
    yield from _moves(branches)


def _leak(subject: ProbeSubject, look: Look, pair: Batch) -> Effect | Measurement:
    """Later tokens are changed: what the model says before them must not notice. Where it does, the last position of a
    window, which has nothing after it, shows the loss that the model really has."""
    inputs, middle = pair[0], pair[0].shape[1] // 2
    other = inputs.copy()
    other[:, middle:] = (other[:, middle:] + 1) % subject.vocab_size
    with torch.no_grad():
        pairs = (torch.from_numpy(x).to(look.machine.device) for x in (inputs, other))
        before, after = (logits_of(look.model, x)[:, :middle].float() for x in pairs)
    seen = float((before - after).abs().max() / before.abs().max().clamp_min(1e-12))
    if seen <= LEAK:
        words = msg("no leak: predictions do not change when only later tokens change ({seen:share})", seen)
        return Measurement("numbers", words, {"leak": seen})
    losses = look.losses(*pair)
    last, others = losses[:, -1], losses[:, : -max(1, middle // 2)].mean(axis=1)
    gain, error = float(others.mean() - last.mean()), standard_error(last - others)
    half = math.nan if error is None else 2 * error
    change = msg(
        "predictions change by {seen:share} when only later tokens change; the loss is {others:nats} where later "
        "tokens are visible and {last:nats} at the last token of a window, where none are",
        seen,
        float(others.mean()),
        float(last.mean()),
    )
    return Effect("mask_leak", change, gain, half / 2, gain, gain - half, gain + half, 1.0, is_fact=True)


def _twice(subject: ProbeSubject, look: Look, pair: Batch) -> Found:
    (one, first), (other, second) = look.gradients([pair, pair])
    apart = float((first - second).norm() / first.norm())
    change = msg("the same batch twice: the gradient differs by {apart:share} of its norm", apart)
    if one == other and bool((first == second).all()):
        words = msg("the same batch twice gives the same gradient, bit for bit")
        yield Measurement("numbers", words, {"same_twice": True})
    elif apart > 1e-4:  # on a GPU a few bits may differ by the order in which numbers are added; this is a fault
        yield seen_fact("not_reproducible", change, 2.0)
    else:
        yield Measurement("numbers", change, {"same_twice": False, "apart": apart})
    dtype = str(subject.choices.get("dtype") or subject.config.dtype)
    if dtype not in ("bfloat16", "float16"):
        return
    ((loss, rough),) = look.gradients([pair], dtype)
    off = float((rough - first).norm() / first.norm())
    change = msg(
        "the same batch in {dtype:code}: loss {loss:nats} instead of {exact:nats}, gradient off by {off:share} of its "
        "norm",
        dtype,
        loss,
        one,
        off,
    )
    if math.isfinite(off):
        yield Measurement("numbers", change, {"dtype": dtype, "loss": loss, "exact": one, "off": off})
    else:
        yield seen_fact("precision", change, 1.0)


def _moves(branches: Branches) -> Found:
    """The run's own next updates, in a branch: bit-equal to the run's, and showing which tensors change."""
    weights, updates = branches.subject.weights, NUMBERS_UPDATES
    folder = branches.run(experiments.own_continuation()).folder
    yield from _is_exact(branches.subject, folder)
    end = checkpoint_folder(folder, branches.subject.step + updates)
    if not end.is_dir():
        return
    after, _ = weights_of(end)
    moved = {
        name: float((after[name].float() - tensor.float()).norm()) / (float(tensor.float().norm()) or 1.0)
        for name, tensor in weights.items()
    }
    still = [name for name, share in moved.items() if share == 0.0]
    slowest, fastest = min(moved, key=moved.__getitem__), max(moved, key=moved.__getitem__)
    if not still:
        words = msg(
            "every tensor moves (updates: {updates:count}): {slow:code} by {least:share} of its norm, {fast:code} by "
            "{most:share}",
            updates,
            slowest,
            moved[slowest],
            fastest,
            moved[fastest],
        )
        yield Measurement("numbers", words, {"moved": moved})
    elif len(still) == len(moved):
        yield Measurement("numbers", msg("the weights do not move: the learning rate is zero"), {"moved": moved})
    else:
        share = sum(weights[name].numel() for name in still) / sum(tensor.numel() for tensor in weights.values())
        change = msg(
            "{count:count} of {all:count tensor|tensors} ({share:share} of the weights) did not change at all "
            "(updates: {updates:count}): {names:code}",
            len(still),
            len(moved),
            share,
            updates,
            still[:4],
        )
        yield seen_fact("frozen_parameters", change, updates, str(folder))


def _is_exact(subject: ProbeSubject, folder: Path) -> Iterator[Measurement]:
    """Where the run has gone on from this step by itself, its losses and the branch's are compared bit by bit."""
    own = dict(zip(subject.run.steps.step.tolist(), subject.run.steps.loss.tolist(), strict=True))
    taken = {event.step: float(event.loss) for event in events_since(folder, 0)[0] if isinstance(event, StepTaken)}
    apart = [abs(taken[step] - own[step]) for step in taken if step in own]
    if not apart:
        return
    differ = [each for each in apart if each != 0]
    words = msg("the unchanged branch reproduces the run's own {count:count update|updates} bit for bit", len(apart))
    if differ:
        words = msg(
            "the unchanged branch differs from the run's own continuation in {count:count} of "
            "{all:count update|updates} (by at most {most:nats}): a different machine or version",
            len(differ),
            len(apart),
            max(differ),
        )
    yield Measurement("numbers", words, {"exact": not differ, "compared": len(apart)})


# --- where


def where(branches: Branches) -> Iterator[Measurement]:
    subject, config = branches.subject, branches.subject.config
    count = _affordable_windows(config.max_iters * config.batch_size)
    windows = eval_windows(subject.dataset.val, config.block_size, 1, count, 4)
    starts = np.concatenate(windows.starts)
    order = np.argsort(starts)
    inputs, targets = (each[order] for each in joined(windows))
    losses = look_at(subject).losses(inputs, targets)
    yield _by_place(losses)
    if (tokenizer := subject.dataset.tokenizer) is not None:
        yield _by_kind(tokenizer, losses, targets)
        yield from _by_document(tokenizer, subject.dataset.document_ends("val"), losses, inputs, starts[order])


def _by_place(losses: np.ndarray) -> Measurement:
    """Does it use its context? The loss falls along the window as long as more context helps."""
    quarters = [float(part.mean()) for part in np.array_split(losses.mean(axis=0), min(4, losses.shape[1]))]
    first, gain = float(losses[:, 0].mean()), quarters[-2] - quarters[-1] if len(quarters) > 1 else 0.0
    words = msg(
        "by position: {first:nats} at the first token of a window, {parts:nats} in its quarters; the last quarter of "
        "the context gains {gain:nats}",
        first,
        quarters,
        gain,
    )
    return Measurement("where", words, {"first": first, "quarters": quarters})


def _by_kind(tokenizer: Tokenizer, losses: np.ndarray, targets: np.ndarray) -> Measurement:
    tokens, places = np.unique(targets, return_inverse=True)
    kinds = np.array([kind_of(tokenizer.decode([int(token)])) for token in tokens])[places.reshape(targets.shape)]
    of_kind = {str(kind): losses[kinds == kind] for kind in np.unique(kinds)}
    of_kind = dict(sorted(of_kind.items(), key=lambda item: -float(item[1].sum() / losses.sum())))
    means = {kind: float(here.mean()) for kind, here in of_kind.items()}
    parts = [
        msg(
            "{kind}: {loss:nats} ({of_loss:share} of the loss, {of_tokens:share} of the tokens)",
            judge.TOKEN_KINDS[kind],
            means[kind],
            float(here.sum() / losses.sum()),
            len(here) / losses.size,
        )
        for kind, here in of_kind.items()
    ]
    return Measurement("where", msg("by kind: {parts}", parts), means)


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


def _by_document(
    tokenizer: Tokenizer, ends: np.ndarray | None, losses: np.ndarray, inputs: np.ndarray, starts: np.ndarray
) -> Iterator[Measurement]:
    """Passages with the highest and the lowest loss: garbage and copies stand out."""
    document = np.arange(len(starts))
    if ends is not None and len(ends) > 1:
        document = np.searchsorted(np.asarray(ends), starts, side="right")
    means = losses.mean(axis=1)
    # The loss of each document, and its first window.
    ranked = sorted(
        (float(means[document == each].mean()), int(each), int(np.flatnonzero(document == each)[0]))
        for each in np.unique(document)
    )
    for title, some in ((msg("hardest"), ranked[::-1][:2]), (msg("easiest"), ranked[:2])):
        passages = [(loss, tokenizer.decode(inputs[window].tolist())[:EXCERPT]) for loss, _, window in some]
        parts = [msg("{loss:nats} {text:code}", loss, repr(text)) for loss, text in passages]
        yield Measurement("where", msg("{title} passages: {parts}", title, parts), {"passages": passages})


# --- data


def data(branches: Branches) -> Found:
    subject, sequences, look = branches.subject, branches.frame.sequences, look_at(branches.subject)
    count = _affordable_windows(subject.config.max_iters * sequences / 4)
    losses = {kind: look.losses(*pair).mean(axis=1) for kind, pair in _windows_by_kind(subject, count).items()}
    cost = FORWARD * sum(map(len, losses.values())) / sequences
    means = {kind: (float(each.mean()), _error(each)) for kind, each in losses.items()}
    names = {"just": msg("just seen"), "long_ago": msg("seen long ago"), "never": msg("never seen"), "val": msg("val")}
    parts = [msg("{kind} {mean:nats} ± {error:nats}", names[kind], mean, se) for kind, (mean, se) in means.items()]
    values = {kind: mean for kind, (mean, _) in means.items()}
    yield Measurement("data", msg("loss on windows {parts}", parts), values)
    train, val = (np.asarray(split[:OVERLAP_TOKENS]) for split in (subject.dataset.train, subject.dataset.val))
    if (share := overlap(train, val)) >= MUCH_OVERLAP:
        change = msg("{share:share} of the 32-token val windows occur verbatim in the train split", share)
        yield seen_fact("val_in_train", change, 0.0)
    shift, shift_error = 0.0, math.inf
    if len(subject.dataset.train) >= FEWEST_COUNTED:
        shift, shift_error = _shift(subject)
        words = msg(
            "by n-gram counts the val split is {shift:nats} ± {error:nats} harder than a held-out part of train",
            shift,
            shift_error,
        )
        yield Measurement("data", words, {"shift": shift, "error": shift_error})
    # What was seen a moment ago is fresh in the weights, and soon fades; what was seen long ago and is still known is
    # memory.
    seen, val_loss = means["long_ago" if "long_ago" in means else "just"], means["val"]
    if "never" in means:
        (shift, shift_error), memory = _apart(val_loss, means["never"]), _apart(means["never"], seen)
        change = msg("train windows not seen yet, compared with val")
    else:
        # The yardstick's shift cannot be larger than the gap that it explains, nor the gap turn negative by it.
        gap, gap_error = _apart(val_loss, seen)
        explained = min(max(shift, 0.0), max(gap, 0.0)) if shift > 2 * shift_error else 0.0
        memory = (gap - explained, math.hypot(gap_error, shift_error if explained else 0.0))
        change = msg("a part of train held out from the counts, compared with val")
    if math.isfinite(shift_error):
        expected = extrapolated_gain("val_differs", shift, shift_error)
        yield Effect("val_differs", change, shift, shift_error, *expected, cost)
    change = msg("windows seen long ago, compared with never-seen text of the same kind")
    yield Effect("data_too_little", change, *memory, *extrapolated_gain("data_too_little", *memory), cost)


def _apart(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """The difference of two means and its standard error."""
    return one[0] - other[0], math.hypot(one[1], other[1])


def _windows_by_kind(subject: ProbeSubject, count: int) -> dict[str, Batch]:
    """By how the run has met them. Samples that follow each other lie anywhere in the text."""
    config, dataset = subject.config, subject.dataset
    found = {}
    if config.data_order == "shuffled":
        order, seen = ShuffledWindows(dataset.train, config.block_size, config.seed), subject.sample
        recent, left = max(1, min(count, seen)), order.windows_per_epoch - seen
        chosen = {"just": (max(0, seen - recent), recent)}
        if seen > 4 * count:
            chosen["long_ago"] = (0, count)
        if left >= FEWEST_SCORED_WINDOWS:
            chosen["never"] = (seen, min(count, left))
        for kind, (first, many) in chosen.items():
            found[kind] = gather(order.tokens, np.sort(order.windows(first, many)), config.block_size)
    else:  # drawn at random: which windows were seen is not known, only that most of them were
        seed = keyed(config.seed, EVALUATION) % 2**31
        found["just"] = joined(eval_windows(dataset.train, config.block_size, 1, count, seed, "train"))
    found["val"] = joined(eval_windows(dataset.val, config.block_size, 1, count, 2))
    return found


def _error(losses: np.ndarray) -> float:
    """Over stretches of windows that are near to each other in the text."""
    blocks = [part.mean() for part in np.array_split(losses, min(DATA_BLOCKS, len(losses) // 2)) if len(part)]
    return float(np.std(blocks, ddof=1) / math.sqrt(len(blocks)))


def _shift(subject: ProbeSubject) -> tuple[float, float]:
    """How much more surprising val is than train, to counts over the rest of train; and its standard error."""
    train, val = (np.asarray(tokens) for tokens in (subject.dataset.train, subject.dataset.val))
    size = max(16, min(len(train) // 10, SCORED, len(val)) // DATA_BLOCKS)
    kept_out = np.zeros(len(train), bool)
    starts = np.linspace(0, len(train) - size, DATA_BLOCKS).astype(int)
    for start in starts:
        kept_out[start : start + size] = True
    counted = counts_of(train[~kept_out][:COUNTED], subject.dataset.vocab_size)

    def surprisals(tokens: np.ndarray, starts: np.ndarray) -> list[float]:
        return [surprisal(counted, tokens[start : start + size]).mean() for start in starts]

    apart = surprisals(train, starts)
    there = surprisals(val, np.linspace(0, len(val) - size, DATA_BLOCKS).astype(int))
    error = math.hypot(np.std(apart, ddof=1), np.std(there, ddof=1)) / math.sqrt(DATA_BLOCKS)
    return float(np.mean(there) - np.mean(apart)), float(error)


# --- trained branches


def measured(
    branches: Branches, wanted: experiments.Branch, against: BranchResult | None = None, rest: float | None = None
) -> Effect:
    """`rest`: updates that the change would have, where they are not those that the run has left."""
    unchanged, changed = against or branches.reference(), branches.run(wanted)
    gain, se = paired_gain(unchanged.val, changed.val)
    if math.isfinite(gain):
        longer = (rest or branches.frame.rest.updates) / branches.frame.updates
        expected, low, high = extrapolated_gain(wanted.cause, gain, se, longer)
    else:  # it diverged: the worst that a change can do
        gain, se, expected, low, high = -math.inf, 0.0, -math.inf, -math.inf, -math.inf
    folder = str(changed.folder)
    return Effect(wanted.cause, wanted.words, gain, se, expected, low, high, wanted.cost, changed.took_s, branch=folder)


def regularisation(branches: Branches) -> Found:
    return (measured(branches, each) for each in experiments.regularised(branches.frame))


def lr(branches: Branches) -> Found:
    """First whether the noise of the lr at the end costs anything; then whether the schedule is too low or high."""
    frame = branches.frame
    # How much of the present loss is only the noise of the learning rate, and goes with it.
    gain, se = paired_gain(branches.judged(branches.subject.checkpoint), branches.reference().val)
    words = msg(
        "running the rest of the schedule in {count:count update|updates} takes {gain:nats} ± {se:nats} off the "
        "current val loss",
        frame.updates,
        gain,
        se,
    )
    yield Measurement("lr", words, {"gain": gain, "se": se})
    is_found = False
    if frame.may_fall_further:
        falling = measured(branches, experiments.to_zero(frame), branches.run(experiments.as_it_stands(frame)))
        yield falling
        is_found = falling.is_clear
    twice = measured(branches, experiments.rate_times(frame, experiments.HIGHER[0]))
    hurts = (twice.gain or 0.0) < -2 * twice.se
    if hurts or is_found:
        yield twice
        if hurts and not frame.may_fall_further:
            yield measured(branches, experiments.rate_times(frame, 0.5))
        return
    # At an lr that is far too low, twice of it is not to be seen in a short branch.
    further = measured(branches, experiments.rate_times(frame, experiments.HIGHER[1]))
    yield max((twice, further), key=lambda effect: -math.inf if effect.gain is None else effect.gain)


def batch(branches: Branches) -> Found:
    look = look_at(branches.subject)
    yield _noise(branches, look)
    slower = _slower(branches, look)
    words = msg("an update with four times the batch takes {times:times} as long", slower)
    yield Measurement("batch", words, {"slower": slower})
    for each in (experiments.larger_batch(branches.frame, slower), *experiments.smaller_batch(branches.frame)):
        yield measured(branches, each)


def _noise(branches: Branches, look: Look) -> Measurement:
    """The noise scale: how many tokens an update needs until its gradient is as much signal as noise."""
    config = branches.subject.config
    batches = [_batch(branches, number, 1) for number in range(experiments.NOISE_BATCHES)]
    vectors = [vector for _, vector in look.gradients(batches)]
    squares = np.array([float(vector @ vector) for vector in vectors])
    total = sum(vectors[1:], vectors[0]) / len(vectors)
    dots = np.array([float(vector @ total) for vector in vectors])
    scale = judge.noise_scale(squares, float(total @ total), dots, config.batch_size * config.block_size)
    if scale is None:
        words = msg("the gradients of single batches have nothing measurable in common")
        return Measurement("batch", words, {"noise_scale": None})
    words = msg(
        "noise scale: {scale:tokens} tokens (between {low:tokens} and {high:tokens}); an update of this run has "
        "{update:tokens}",
        scale.tokens,
        scale.low,
        scale.high,
        config.tokens_per_update,
    )
    values = {"noise_scale": scale.tokens, "low": scale.low, "high": scale.high}
    return Measurement("batch", words, {**values, "tokens_per_update": config.tokens_per_update})


def _slower(branches: Branches, look: Look) -> float:
    """Of four times the batch over one, timed in turns, the fastest of each: what else the machine does slows both."""

    def seconds(number: int, times: int) -> float:
        batch = _batch(branches, number, times)
        return seconds_of(look.machine, lambda: list(look.gradients([batch])))

    pairs = [(seconds(number, 1), seconds(number, experiments.LARGER_BATCH)) for number in range(experiments.TIMED)]
    one, four = (min(each) for each in zip(*pairs, strict=True))
    return float(min(experiments.LARGER_BATCH, max(1.0, four / one)))


def _batch(branches: Branches, number: int, times: int) -> Batch:
    """Batches that the run has not come to yet."""
    config = branches.subject.config
    order = ShuffledWindows(branches.subject.dataset.train, config.block_size, config.seed)
    count = config.batch_size * times
    return order.gather(branches.subject.sample + number * count, count)


def size(branches: Branches) -> Found:
    """The wider branch has as many updates as the unchanged one. At equal FLOPs it would have fewer: what the run gains
    in the difference is taken off, by the slope of its own curve."""
    frame, evals = branches.frame, branches.subject.run.evals
    step, ratio, rest = frame.step, frame.wider_cost, frame.rest.updates
    found = measured(branches, experiments.wider(frame), rest=rest / ratio)
    near = (evals.step >= step / 3) & (evals.step <= step) & np.isfinite(evals.val) & (evals.step > 0)
    slope = fall_per_efold(evals.step[near], evals.val[near]) or 0.0
    lost = slope * math.log((step + rest) / (step + rest / ratio))
    words = msg(
        "twice the width costs {ratio:times} the FLOPs; the updates given up for it would gain the current run "
        "{lost:nats}",
        ratio,
        lost,
    )
    yield Measurement("size", words, {"ratio": ratio, "lost": lost})
    yield replace(found, expected=(found.expected or 0.0) - lost, low=found.low - lost, high=found.high - lost)


ASK: dict[str, Callable[[Branches], Found]] = {
    ask.__name__: ask for ask in (numbers, where, data, regularisation, lr, batch, size)
}
