"""A model from elsewhere becomes a run of ours: it can be sampled, explained, resumed and fine-tuned like any other."""

from __future__ import annotations

import dataclasses
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from nanolens.config.fields import Config, as_text, settings
from nanolens.config.load import load
from nanolens.convert.foreign import ForeignModel, Moments, OnStage, fit, no_progress
from nanolens.convert.hf_folder import hugging_face_folder, read_hugging_face
from nanolens.convert.nanogpt import CHECKPOINT, nanogpt_file, read_nanogpt
from nanolens.data.store import Dataset, open_dataset, open_folder
from nanolens.data.token_files import tokens_file
from nanolens.data.tokenizers import TOKENIZER_FILE, GPT2Tokenizer, Tokenizer, tokenizer_from_files
from nanolens.errors import fault
from nanolens.files import require_free_space
from nanolens.message import Message, msg
from nanolens.model import build
from nanolens.record import checkpoint_folder, is_run
from nanolens.record.events import RunEnded, RunStarted, choice
from nanolens.record.store import free_folder, source_name
from nanolens.record.write import Recorder, bare_evaluation, write_run_file
from nanolens.training.checkpoint import Snapshot, fill, save, tensors_of
from nanolens.training.optimizers import build_optimizer
from nanolens.training.setup import data_facts, sizes_of, tokenizer_writer, versions
from nanolens.training.state import Counters, numpy_state, written

# nanoGPT's learning rate for fine-tuning: that of a start from nothing would undo the weights. The number of
# updates is left to the user.
FINE_TUNING = {"learning_rate": 3e-5, "decay_lr": False, "max_iters": 0}


@dataclass(frozen=True)
class ImportResult:
    run: Path
    kind: str
    step: int
    parameters: int
    with_optimizer: bool
    notes: tuple[Message, ...]


def import_model(
    source: str,
    out: str | None = None,
    overrides: Sequence[tuple[str, str]] = (),
    tokenizer: str | None = None,
    on_stage: OnStage = no_progress,
) -> ImportResult:
    """Makes a run of a model that another program wrote, in the folder `out` or a new one below `runs/`."""
    model = foreign_ready(source, tokenizer, dict(overrides).get("dataset"), on_stage)
    folder = _place(source, out)
    config, came_from = _config(model, overrides, source)
    _write_run(folder, model, config, came_from, on_stage)
    parameters = sum(tensor.numel() for tensor in model.weights.values())
    return ImportResult(folder, model.kind, model.step, parameters, model.moments is not None, model.notes)


def foreign_ready(
    source: str, tokenizer: str | None = None, dataset: str | None = None, on_stage: OnStage = no_progress
) -> ForeignModel:
    """The model that `source` holds, with a tokenizer; refused where it lacks one or is none."""
    model = read_foreign_model(source, tokenizer, dataset, on_stage)
    if model is None:
        fix = msg(
            "give a folder in Hugging Face format, nanoGPT's {file:code} or its folder, or a name on the hub",
            CHECKPOINT,
        )
        raise fault(msg("{source:code} is not a model that can be imported", source), fix=fix)
    if model.tokenizer is None:
        what = msg(
            "the meaning of its {count:count} tokens is unknown: it has no tokenizer, and its data was not found",
            model.vocab_size,
        )
        fix = msg(
            "name the prepared folder it was trained on with {dataset:code}, or a tokenizer with {option:code}",
            "--dataset=FOLDER",
            "--tokenizer=FOLDER",
        )
        raise fault(what, where=str(model.source), fix=fix)
    return model


def read_foreign_model(
    source: str, tokenizer: str | None = None, dataset: str | None = None, on_stage: OnStage = no_progress
) -> ForeignModel | None:
    """What `source` holds; None where it is no model."""
    known = None if tokenizer is None else _named_tokenizer(tokenizer)
    if (checkpoint := nanogpt_file(Path(source))) is not None:
        return read_nanogpt(checkpoint, known, None if dataset is None else open_dataset(dataset).folder)
    if (folder := hugging_face_folder(source)) is not None:
        return read_hugging_face(folder, known, on_stage)
    return None


def _named_tokenizer(name: str) -> Tokenizer:
    if name == "gpt2":
        return GPT2Tokenizer()
    if (Path(name) / TOKENIZER_FILE).is_file():
        return tokenizer_from_files(Path(name))
    if (found := open_dataset(name).tokenizer) is None:
        what = msg("{name:code} does not say what its token ids mean", name)
        raise fault(what, fix=msg("name a folder with a tokenizer, or {gpt2:code}", "gpt2"))
    return found


def _place(source: str, out: str | None) -> Path:
    if out is None:
        path = Path(source).absolute()
        return free_folder(source_name(None, path.parent.name if path.suffix == ".pt" else path.name))
    folder = Path(out)
    another = msg("choose another folder with {option:code}", "-o")
    if is_run(folder):
        raise fault(msg("{folder:code} already contains a run", out), fix=another)
    if folder.exists() and not folder.is_dir():
        raise fault(msg("{folder:code} is a file", out), fix=another)
    return folder


def _config(model: ForeignModel, overrides: Sequence[tuple[str, str]], source: str) -> tuple[Config, dict[str, str]]:
    """The model's own settings with those given now on top, checked as any others."""
    own = dict(model.settings) if "learning_rate" in model.settings else {**FINE_TUNING, **model.settings}
    theirs = [(key, as_text(value)) for key, value in own.items() if key in settings()]
    loaded = load(None, [*theirs, *overrides])
    given = {key.replace("-", "_") for key, _ in overrides}
    came_from = {
        key: where if key in given or key not in model.settings else str(model.source)
        for key, where in loaded.came_from.items()
    }
    return dataclasses.replace(loaded.config, init_from=source), came_from


def _write_run(folder: Path, model: ForeignModel, config: Config, came_from: dict[str, str], on_stage: OnStage) -> None:
    """`run.json` comes last: a folder without it is no run, whatever happens on the way."""
    where = msg("{source:code}", str(model.source))
    config, weights = fit(model, config, where)
    dataset = None
    if model.dataset and all(tokens_file(model.dataset, split).is_file() for split in ("train", "val")):
        dataset = open_folder(model.dataset)
    rows = config.vocab_size or model.vocab_size
    torch.manual_seed(config.seed)
    module = build(config, rows)  # draws as many random numbers as a start from nothing, as nanoGPT does on resuming
    resuming = _generators(config, dataset)
    fill(module, weights, where)
    optimizer = build_optimizer(module, config).state_dict()
    if model.moments is not None:
        optimizer["state"] = _cropped(model.moments, module)
    resuming |= {"optimizer": optimizer, "scaler": None}
    state = {
        "step": model.step,
        "progress": _progress(model, config),
        "micro_batch": config.batch_size,
        "config": dataclasses.asdict(config),
        "choices": {},
        "vocab_size": rows,
        "data": _data_facts(model, dataset),
        "torch": torch.__version__,
    }
    sizes = sizes_of(module, config, rows)
    needed = 4 * sizes["parameters_total"] * (3 if model.moments else 1)
    require_free_space(folder, needed, "importing this")
    on_stage("write", 0, needed)
    was_there = folder.exists()
    try:
        snapshot = Snapshot(tensors_of(module), resuming, state)
        save(checkpoint_folder(folder, model.step), snapshot, tokenizer_writer(model.tokenizer))
        on_stage("write", needed, needed)
        _write_events(folder, model, config)
        facts = {
            "config": state["config"],
            "came_from": came_from,
            "preset": "",
            "data": state["data"],
            "machine": {},
            "versions": versions(),
            "sizes": sizes,
            "parent": None,
            "imported": {"from": str(model.source.absolute()), "kind": model.kind, "vocab_size": model.vocab_size},
        }
        write_run_file(folder, facts)
    except BaseException:
        if not was_there:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _generators(config: Config, dataset: Dataset | None) -> dict[str, object]:
    """The random generators as in nanoGPT when it has resumed: seeded, the model drawn, and the first batch drawn."""
    feed: dict[str, object] = {}
    if config.data_order == "nanogpt" and dataset is not None and len(dataset.train) > config.block_size:
        pending = torch.randint(len(dataset.train) - config.block_size, (config.batch_size,)).tolist()
        feed = {"pending": pending, "generator": torch.get_rng_state()}
    return {
        "feed": feed,
        "torch": torch.get_rng_state(),
        "numpy": numpy_state(np.random.RandomState(config.seed % 2**32).get_state(legacy=True)),
        "python": random.Random(config.seed).getstate(),
    }


def _cropped(state: Moments, module: torch.nn.Module) -> Moments:
    """The moments of rows that were cut off or added: cut off, or zero as those of a row that has had no gradient."""
    order = sorted(module.parameters(), key=lambda parameter: parameter.dim() < 2)  # matrices first
    fitted = {}
    for number, moments in state.items():
        rows = len(order[number])
        fitted[number] = {
            key: value if not value.dim() or len(value) == rows else F.pad(value, (0, 0, 0, rows - len(value)))
            for key, value in moments.items()
        }
    return fitted


def _progress(model: ForeignModel, config: Config) -> dict[str, object]:
    tokens = model.step * config.tokens_per_update
    progress = Counters(step=model.step, sample=tokens // config.block_size, tokens_seen=tokens, tries=model.step)
    if model.val_loss is not None:
        progress.val_loss = progress.best_val = model.val_loss
        progress.best_step = model.step
    return {key: written(value) for key, value in dataclasses.asdict(progress).items()}


def _data_facts(model: ForeignModel, dataset: Dataset | None) -> dict[str, object]:
    if dataset is not None:
        return data_facts(dataset)
    assert model.tokenizer is not None
    known = {"tokenizer_fingerprint": model.tokenizer.fingerprint, "vocab_size": model.tokenizer.vocab_size}
    return {**dict.fromkeys(("name", "folder", "fingerprint", "text_fingerprint"), ""), **known, "facts": {}}


def _write_events(folder: Path, model: ForeignModel, config: Config) -> None:
    recorder = Recorder(folder)
    recorder(RunStarted(step=model.step))
    recorder(choice("imported from", str(model.source), msg("it is a model in the format of {program}", model.kind)))
    if model.val_loss is not None:
        tokens = config.eval_iters * config.batch_size * config.block_size
        recorder(bare_evaluation(model.step, "val", model.val_loss, tokens=tokens, is_best=True))
    recorder(RunEnded(step=model.step, why="finished"))
    recorder.close()
