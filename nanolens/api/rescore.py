"""Scores the checkpoints of several runs on the same text, so that their difference can be taken batch by batch.

The models see the same windows of the val split, with the shortest of their contexts. Where they speak different tokenizers, the text is
cut into passages, each model reads them in its own tokens, and what is compared is bits per byte."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nanolens.analysis.compare_axes import Verdict, verdicts_at
from nanolens.analysis.compare_labels import labels
from nanolens.comparison.side import Group, Side
from nanolens.errors import UserError, fault
from nanolens.message import msg
from nanolens.record.run import Run, evals_from

if TYPE_CHECKING:
    from nanolens.loaded import Model

WINDOWS_AT_ONCE = 8
TOKENS = 1 << 16  # scored by each model, where the val split has as many
PASSAGES, PASSAGE_CHARACTERS = 64, 2048
SEED = 1  # of the choice of windows; not the evaluations' own, whose best value was picked on those


def rescore(targets: Sequence[str], first_group: int | None = None) -> tuple[Verdict, ...]:
    """The verdicts on the newest checkpoints (or RUN@STEP). `first_group`: so many targets are repeats of one run, the rest of another."""
    from nanolens.api.comparing import groups_of

    models = [_load(target) for target in targets]
    if len(models) < 2:
        raise fault(msg("there is only one run to score"), fix=msg("name two runs"))
    runs = [_whole_run(target) for target in targets]
    text = _text_of(models, runs)
    scored = [_with_score(run, model, text) for run, model in zip(runs, models, strict=True)]
    if first_group is None:
        groups = [Group(run.name, (run,)) for run in scored]
    else:
        names = [group.name for group in groups_of(targets[:first_group], targets[first_group:])]
        groups = [Group(names[0], tuple(scored[:first_group])), Group(names[1], tuple(scored[first_group:]))]
    sides = [Side(group, name) for group, name in zip(groups, labels([group.name for group in groups]), strict=True)]
    return verdicts_at(sides, [_step_of(side) for side in sides])


def _step_of(side: Side) -> float:
    """All runs of a side are scored at one step, or they are no repeats of one another."""
    steps = {int(case.evals.step[-1]) for case in side.cases}
    if len(steps) > 1:
        raise fault(
            msg("the checkpoints of {name} are of different steps: {steps:count}", name=side.name, steps=sorted(steps)),
            fix=msg("name one step for all with {form:code}", form="RUN@STEP"),
        )
    return float(steps.pop())


def _load(target: str) -> Model:
    from nanolens.loaded import load
    from nanolens.record.store import find_run

    try:
        find_run(target)
    except UserError:
        if Path(target.partition("@")[0]).is_file():
            raise fault(
                msg("{target:code} is a log: it holds no model that could be scored again", target=target),
                fix=msg("leave out {option:code}, or name run folders", option="--rescore"),
            ) from None
        raise
    return load(target)


def _whole_run(target: str) -> Run:
    from nanolens.api.sources import open_run

    return open_run(target)


@dataclasses.dataclass(frozen=True)
class Text:
    """What all models are scored on: windows of tokens, or passages of characters."""

    windows: list[tuple[np.ndarray, np.ndarray]] | None  # (inputs, targets), each (sequences, context)
    passages: list[str] | None
    fingerprint: str


def _text_of(models: Sequence[Model], runs: Sequence[Run]) -> Text:
    val, tokenizer = _val_split(runs[0])
    context = min(model.config.block_size for model in models)
    if len({model.tokenizer.fingerprint for model in models}) == 1:
        from nanolens.data.batches import eval_windows

        count = max(1, TOKENS // (WINDOWS_AT_ONCE * context))
        chosen = eval_windows(val, context, WINDOWS_AT_ONCE, count, SEED)
        return Text([(np.asarray(x), np.asarray(y)) for x, y in chosen], None, chosen.fingerprint)
    characters = tokenizer.decode(val[: 4 * PASSAGES * PASSAGE_CHARACTERS].tolist())
    pieces = [characters[start : start + PASSAGE_CHARACTERS] for start in range(0, len(characters), PASSAGE_CHARACTERS)]
    pieces = [piece for piece in pieces if len(piece) > PASSAGE_CHARACTERS // 2]
    step = max(1, len(pieces) // PASSAGES)
    passages = pieces[::step][:PASSAGES]
    return Text(None, passages, hashlib.sha256("\0".join(passages).encode()).hexdigest()[:16])


def _val_split(run: Run) -> tuple[np.ndarray, Any]:
    """Of the first run's data: that is the text which both are scored on."""
    from nanolens.data.store import open_dataset, open_folder

    folder = run.get("folder")
    if isinstance(folder, str) and Path(folder).is_dir():
        dataset = open_folder(Path(folder))
    else:
        dataset = open_dataset(str(run.get("dataset")))
    recorded = run.get("data_fingerprint")
    if recorded and dataset.fingerprint != recorded:
        raise fault(
            msg("the data in {folder:code} is no longer what {run:code} was trained on", folder=str(dataset.folder), run=run.name),
            fix=msg("prepare it again as it was: scoring on other text would say nothing about the record"),
        )
    if dataset.tokenizer is None:
        raise fault(msg("the data of {run:code} does not say what its tokens mean", run=run.name))
    return dataset.val, dataset.tokenizer


def _with_score(run: Run, model: Model, text: Text) -> Run:
    """The run with one more evaluation: of this checkpoint, on this text. Evaluations after the checkpoint's step are left out."""
    losses = _window_losses(model, text.windows) if text.windows is not None else _passage_bits(model, text.passages or [])
    before = np.flatnonzero((run.evals.step < model.step) & np.isfinite(run.evals.val))
    scale = 1.0 if text.windows is not None else _bits_over_nats(run)
    count = len(before)
    has_batches = scale == 1.0 and len(run.evals.batches) == len(run.evals) == len(run.evals.val_batch_losses)
    # The way here shows how far repeats of such runs lie apart, where it was evaluated on batches that others have in common.
    batches = [run.evals.batches[i] for i in before] if has_batches else [""] * count
    batch_losses = [np.asarray(run.evals.val_batch_losses[i], float) for i in before] if has_batches else [np.zeros(0)] * count
    rows = {
        "step": [*run.evals.step[before], model.step],
        "train": [*run.evals.train[before], math.nan],
        "val": [*(run.evals.val[before] * scale), float(losses.mean())],
        "printed": [*run.evals.printed[before], model.step],
        "batches": (*batches, text.fingerprint),
        "val_batch_losses": (*batch_losses, losses),
    }
    return dataclasses.replace(run, evals=evals_from(rows, count + 1))


def _bits_over_nats(run: Run) -> float:
    both = np.isfinite(run.evals.val) & np.isfinite(run.evals.val_bits_per_byte)
    return float(np.median(run.evals.val_bits_per_byte[both] / run.evals.val[both])) if both.any() else 1 / math.log(2)


def _window_losses(model: Model, windows: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    import torch

    from nanolens.training.evaluate import evaluate_model

    batches = [(torch.from_numpy(x).long().to(model.device), torch.from_numpy(y).long().to(model.device)) for x, y in windows]
    return np.array(evaluate_model(model.module, batches, _machine(model)).batch_losses)


def _passage_bits(model: Model, passages: list[str]) -> np.ndarray:
    """Bits per byte of each passage: in its own tokens, window after window, the first token of a passage not counted."""
    import torch

    from nanolens.training.evaluate import evaluate_model

    found = []
    context = model.config.block_size
    for passage in passages:
        ids = torch.tensor(model.tokenizer.encode(passage), dtype=torch.long, device=model.device)
        parts = [
            (ids[start : start + context][None], ids[start + 1 : start + context + 1][None]) for start in range(0, len(ids) - 1, context)
        ]
        parts = [(x[:, : y.shape[1]], y) for x, y in parts]
        scored = evaluate_model(model.module, parts, _machine(model))
        nats = sum(loss * y.numel() for loss, (_, y) in zip(scored.batch_losses, parts, strict=True))
        size = len(passage.encode()) - len(model.tokenizer.decode([int(ids[0])]).encode())
        found.append(nats / math.log(2) / size)
    return np.array(found)


def _machine(model: Model) -> Any:
    from nanolens.config.fields import Config
    from nanolens.training.machine import choose_machine

    return choose_machine(Config(device=model.device, dtype="float32"), lambda event: None)
