"""Scores the checkpoints of several runs on the same text, so that their difference can be taken batch by batch.

The models see the same windows of the val split, with the shortest of their contexts. Where they speak different
tokenizers, the text is cut into passages, each model reads them in its own tokens, and what is compared is bits per
byte."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from nanolens.comparison import groups_of
from nanolens.comparison.side import Side, labels
from nanolens.comparison.verdict import Verdict, verdicts_at
from nanolens.config.fields import Config
from nanolens.data.batches import Batch, eval_windows
from nanolens.data.store import open_trained_on
from nanolens.errors import UserError, fault
from nanolens.loaded import Model, load
from nanolens.logs.open import open_run
from nanolens.message import msg
from nanolens.record.run import RunRecord, evals_from
from nanolens.record.store import find_run
from nanolens.training.evaluate import evaluate_model
from nanolens.training.feed import on_device
from nanolens.training.machine import choose_machine

RESCORED_AT_ONCE = 8
TOKENS = 1 << 16  # scored by each model, where the val split has as many
PASSAGES, PASSAGE_CHARACTERS = 64, 2048
RESCORE_SEED = 1  # of the choice of windows; not the evaluations' own, whose best value was picked on those


def rescore(targets: Sequence[str], against: Sequence[str] = ()) -> tuple[Verdict, ...]:
    """On the newest checkpoints, or RUN@STEP. With `against` there are two groups of repeats."""
    names = [*targets, *against]
    models = [_load(target) for target in names]
    if len(models) < 2:
        raise fault(msg("there is only one run to score"), fix=msg("name two runs"))
    runs = [open_run(target) for target in names]
    text = _text_of(models, runs)
    scored = [_with_score(run, model, text) for run, model in zip(runs, models, strict=True)]
    groups = groups_of(scored, targets, against)
    sides = list(map(Side, groups, labels([group.name for group in groups])))
    steps = [sorted({int(case.evals.step[-1]) for case in side.cases}) for side in sides]
    for side, its_steps in zip(sides, steps, strict=True):
        if len(its_steps) > 1:  # runs of a side are scored at one step, or they are no repeats of one another
            raise fault(
                msg("the checkpoints of {name} are from different steps: {steps:count}", side.name, its_steps),
                fix=msg("name one step for all with {form:code}", "RUN@STEP"),
            )
    return verdicts_at(sides, [float(step) for (step,) in steps])


def _load(target: str) -> Model:
    try:
        find_run(target)
    except UserError:
        if Path(target.partition("@")[0]).is_file():
            raise fault(
                msg("{target:code} is a log: it has no model to score again", target),
                fix=msg("leave out {option:code}, or name run folders", "--rescore"),
            ) from None
        raise
    return load(target)


@dataclasses.dataclass(frozen=True)
class RescoreText:
    """What all models are scored on: windows of tokens, or passages of characters."""

    windows: list[Batch]
    passages: list[str]
    fingerprint: str


def _text_of(models: Sequence[Model], runs: Sequence[RunRecord]) -> RescoreText:
    """Of the first run's val split: that is the text which all are scored on."""
    dataset = open_trained_on(runs[0])
    if dataset.tokenizer is None:
        raise fault(msg("the data of {run:code} does not say what its tokens mean", runs[0].name))
    context = min(model.config.block_size for model in models)
    if len({model.tokenizer.fingerprint for model in models}) == 1:
        count = max(1, TOKENS // (RESCORED_AT_ONCE * context))
        chosen = eval_windows(dataset.val, context, RESCORED_AT_ONCE, count, RESCORE_SEED)
        return RescoreText(list(chosen), [], chosen.fingerprint)
    characters = dataset.tokenizer.decode(dataset.val[: 4 * PASSAGES * PASSAGE_CHARACTERS].tolist())
    pieces = [characters[start : start + PASSAGE_CHARACTERS] for start in range(0, len(characters), PASSAGE_CHARACTERS)]
    pieces = [piece for piece in pieces if len(piece) > PASSAGE_CHARACTERS // 2]
    passages = pieces[:: max(1, len(pieces) // PASSAGES)][:PASSAGES]
    return RescoreText([], passages, hashlib.sha256("\0".join(passages).encode()).hexdigest()[:16])


def _with_score(run: RunRecord, model: Model, text: RescoreText) -> RunRecord:
    """The run with one more evaluation: of this checkpoint, on this text. Evaluations after the checkpoint's step are
    left out; those before show how far repeats of such runs lie apart, where they were made on batches that others
    have in common."""
    evals, losses, scale = run.evals, _losses(model, text), 1.0
    if not text.windows:  # in bits per byte
        both = np.isfinite(evals.val) & np.isfinite(evals.val_bits_per_byte)
        scale = float(np.median(evals.val_bits_per_byte[both] / evals.val[both])) if both.any() else 1 / math.log(2)
    before = np.flatnonzero((evals.step < model.step) & np.isfinite(evals.val))
    has_batches = scale == 1.0 and len(evals.batches) == len(evals) == len(evals.val_batch_losses)
    batches = [(evals.batches[i], np.asarray(evals.val_batch_losses[i], float)) for i in before if has_batches]
    batches = batches or [("", np.zeros(0))] * len(before)
    rows = {
        "step": [*evals.step[before], model.step],
        "train": [*evals.train[before], math.nan],
        "val": [*(evals.val[before] * scale), float(losses.mean())],
        "printed": [*evals.printed[before], model.step],
        "batches": (*(fingerprint for fingerprint, _ in batches), text.fingerprint),
        "val_batch_losses": (*(each for _, each in batches), losses),
    }
    return dataclasses.replace(run, evals=evals_from(rows, len(before) + 1))


def _losses(model: Model, text: RescoreText) -> np.ndarray:
    """Nats of each batch of windows; or bits per byte of each passage, which the model reads in its own tokens, window
    after window, its first token not counted."""
    machine = choose_machine(Config(device=model.device, dtype="float32"), lambda event: None)
    if text.windows:
        batches = [on_device(batch, torch.device(model.device)) for batch in text.windows]
        return np.array(evaluate_model(model.module, batches, machine).batch_losses)
    found = []
    context = model.config.block_size
    for passage in text.passages:
        ids = torch.tensor(model.tokenizer.encode(passage), dtype=torch.long, device=model.device)
        targets = [ids[start + 1 : start + context + 1][None] for start in range(0, len(ids) - 1, context)]
        parts = [(ids[i * context :][None, : y.shape[1]], y) for i, y in enumerate(targets)]
        scored = evaluate_model(model.module, parts, machine)
        nats = sum(loss * y.numel() for loss, (_, y) in zip(scored.batch_losses, parts, strict=True))
        size = len(passage.encode()) - len(model.tokenizer.decode([int(ids[0])]).encode())
        found.append(nats / math.log(2) / size)
    return np.array(found)
