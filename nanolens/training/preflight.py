"""Checks before the first step, in seconds, so that a mistake is not found after an hour.

A check either passes with the number it saw, or refuses the run with what that means, or (where the run may still be
right) warns. What moves weights is tried on a copy with randomised weights: a head that starts at zero would hide every
leak and look dead."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from nanolens.data.store import Dataset
from nanolens.errors import UserError, fault
from nanolens.message import Message, msg
from nanolens.model.loss import WithLoss, logits_of
from nanolens.record.events import CheckPassed, Event, Warned
from nanolens.training.feed import Batch
from nanolens.training.machine import Machine

FIRST_LOSS_TOLERANCE = 0.5  # nats; llm.c's GPT-2 starts 0.2 above ln V, a wrong initialisation several nats
LEAK_TOLERANCE = 1e-4  # of the largest logit: far above rounding, far below any real leak
SEQUENCES_TRIED, TOKENS_TRIED = 4, 128  # little, so that checking never needs more memory than training
TOKENS_SCANNED = 50_000_000
OVERLAP_WINDOW, OVERLAP_WINDOWS, OVERLAP_TOKENS = 32, 2000, 4_000_000
OVERLAP_WORTH_TELLING = 0.2


@dataclass(frozen=True)
class CheckOutcome:
    """What a check saw, what is usual, and, where that is odd without being wrong for certain, a warning."""

    seen: float
    usual: float | None = None
    code: str = ""
    warning: Message | None = None


def preflight(
    model: nn.Module,
    vocab_size: int,
    dataset: Dataset,
    batch: Batch,
    machine: Machine,
    tell: Callable[[Event], None],
    check_stop: Callable[[], None],
    is_fresh: bool,
    may_refuse: bool,
) -> None:
    """Runs every check and reports each. `is_fresh`: the weights were drawn just now, so the first loss is known.
    Leaves no trace in the random generators. `may_refuse` off turns refusals into warnings."""
    generator = torch.get_rng_state()
    short, short_targets = (each[:SEQUENCES_TRIED, :TOKENS_TRIED] for each in batch)
    trial = randomised(model)
    checks: dict[str, Callable[[], CheckOutcome]] = {
        "token_ids": lambda: token_ids_fit(dataset, vocab_size),
        "train_val_overlap": lambda: splits_differ(dataset),
        "first_loss": lambda: first_loss(model, (short, short_targets), vocab_size, machine, is_fresh),
        "causal_leak": lambda: nothing_leaks(trial, short, vocab_size),
        "parameters_change": lambda: parameters_change(trial, short, short_targets),
    }
    if short.shape[1] == 1:
        del checks["causal_leak"]
    try:
        for name, check in checks.items():
            check_stop()
            started_at_s = time.perf_counter()
            try:
                found = check()
            except UserError as refusal:
                if may_refuse:
                    raise
                tell(Warned(step=0, code=name, claim=str(refusal), words=refusal.faults[0].what))
                continue
            tell(CheckPassed(check=name, seen=found.seen, usual=found.usual, took_s=time.perf_counter() - started_at_s))
            if found.warning is not None:
                tell(Warned(step=0, code=found.code, claim=str(found.warning), words=found.warning))
    finally:
        torch.set_rng_state(generator)


def token_ids_fit(dataset: Dataset, vocab_size: int) -> CheckOutcome:
    largest, last = max(_largest(dataset.train), _largest(dataset.val)), vocab_size - 1
    if largest <= last:
        return CheckOutcome(largest, last)
    what = msg(
        "the token files contain id {largest:count}, and the vocabulary has only {size:count} tokens (0 to "
        "{last:count})",
        largest,
        vocab_size,
        last,
    )
    fix = msg("prepare the data again, or check that the tokenizer next to it is the one it was made with")
    raise fault(what, where=msg("dataset {name:code}", dataset.name), fix=fix)


def _largest(tokens: np.ndarray) -> int:
    """Over all tokens; over evenly spaced pieces where there are very many."""
    if len(tokens) <= TOKENS_SCANNED:
        return int(tokens.max())
    size = TOKENS_SCANNED // 500
    starts = np.linspace(0, len(tokens) - size, 500).astype(np.int64).tolist()
    return max(int(tokens[start : start + size].max()) for start in starts)


def splits_differ(dataset: Dataset) -> CheckOutcome:
    """Share of windows of the val split that stand word for word in the train split."""
    share = overlap(np.asarray(dataset.train[:OVERLAP_TOKENS]), np.asarray(dataset.val[:OVERLAP_TOKENS]))
    if share < OVERLAP_WORTH_TELLING:
        return CheckOutcome(share, 0.0)
    warning = msg(
        "{share:share} of the val windows ({tokens:count} tokens each) also occur in the train split: val loss will "
        "measure memorisation",
        share,
        OVERLAP_WINDOW,
    )
    return CheckOutcome(share, 0.0, "val_leak", warning)


def overlap(train: np.ndarray, val: np.ndarray) -> float:
    if min(len(train), len(val)) < OVERLAP_WINDOW:
        return 0.0
    last = len(val) - OVERLAP_WINDOW
    places = np.linspace(0, last, min(OVERLAP_WINDOWS, last + 1)).astype(np.int64)
    return float(np.isin(_hashes(val)[places], _hashes(train)).mean())


def _hashes(tokens: np.ndarray) -> np.ndarray:
    """A 64-bit hash of the window that begins at each token; different windows practically never have equal ones."""
    multipliers = np.random.default_rng(0).integers(1, 2**63, OVERLAP_WINDOW, dtype=np.uint64) | np.uint64(1)
    count = len(tokens) - OVERLAP_WINDOW + 1
    total = np.zeros(count, dtype=np.uint64)
    ids = tokens.astype(np.uint64) + np.uint64(1)
    for place, multiplier in enumerate(multipliers):
        total += ids[place : place + count] * multiplier
    return total


@torch.no_grad()
def first_loss(model: nn.Module, batch: Batch, vocab_size: int, machine: Machine, is_fresh: bool) -> CheckOutcome:
    model.eval()
    with machine.autocast():
        seen = WithLoss(model, chunked=True).eval()(*batch).plain.item()
    model.train()
    usual = math.log(vocab_size)
    if not math.isfinite(seen):
        raise fault(
            msg("the loss is {seen:nats} before the first step: the model's output is not finite", seen),
            fix=msg("try {option:code}; if it persists, the weights or the model code are faulty", "--dtype=float32"),
        )
    if not is_fresh or abs(seen - usual) <= FIRST_LOSS_TOLERANCE:
        return CheckOutcome(seen, usual if is_fresh else None)
    warning = msg(
        "the first loss is {seen:nats}; guessing among {size:count} tokens would give {usual:nats}. The initial "
        "weights are too large, or the loss is not a mean over tokens",
        seen,
        vocab_size,
        usual,
    )
    return CheckOutcome(seen, usual, "dead_init", warning)


def randomised(model: nn.Module) -> nn.Module:
    """A copy in which nothing is zero any more."""
    trial = copy.deepcopy(model).float()
    generator = torch.Generator(device="cpu").manual_seed(0)
    with torch.no_grad():
        for parameter in trial.parameters():
            noise = torch.randn(parameter.shape, generator=generator).mul_(0.05)
            parameter.add_(noise.to(parameter.device))
    return trial.eval()


@torch.no_grad()
def nothing_leaks(trial: nn.Module, idx: Tensor, vocab_size: int) -> CheckOutcome:
    """Changes the tokens from the middle on; what the model says before the middle must not notice."""
    middle = idx.shape[1] // 2
    other = idx.clone()
    other[:, middle:] = (other[:, middle:] + 1) % vocab_size
    before, after = logits_of(trial, idx).float(), logits_of(trial, other).float()
    scale = before.abs().max().clamp_min(1e-12)
    seen = ((before[:, :middle] - after[:, :middle]).abs().max() / scale).item()
    if seen > LEAK_TOLERANCE:
        what = msg(
            "the model sees the future: its predictions change by {seen:share} when only later tokens change. It "
            "would learn to copy the answer, reach a loss near zero, and generate nonsense",
            seen,
        )
        raise fault(what, fix=msg("give the attention a causal mask (position t may only see 0..t)"))
    return CheckOutcome(seen, 0.0)


def parameters_change(trial: nn.Module, idx: Tensor, targets: Tensor) -> CheckOutcome:
    """Which parameters get a gradient at all."""
    trial.zero_grad(set_to_none=True)
    WithLoss(trial, chunked=True)(idx, targets).objective.backward()
    named = [(name, parameter) for name, parameter in trial.named_parameters() if parameter.requires_grad]
    still = [name for name, parameter in named if parameter.grad is None or not bool(parameter.grad.any())]
    trial.zero_grad(set_to_none=True)
    if len(still) == len(named):
        what = msg("no parameter gets a gradient: training would change nothing")
        raise fault(what, fix=msg("check that the loss depends on the model"))
    share = 1 - len(still) / len(named)
    fixed = still + [name for name, parameter in trial.named_parameters() if not parameter.requires_grad]
    if not fixed:
        return CheckOutcome(share, 1.0)
    count, total, names = len(fixed), len(list(trial.parameters())), fixed[:5]
    warning = msg("{count:count} of {all:count} parameter tensors will never change: {names:code}", count, total, names)
    return CheckOutcome(share, 1.0, "frozen_parameters", warning)
