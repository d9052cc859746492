"""A model from elsewhere becomes a run of ours: a folder that can be sampled, explained, resumed and fine-tuned like any other."""

from __future__ import annotations

import dataclasses
import math
import platform
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanolens.config.fields import Config, as_text, settings
from nanolens.config.load import load
from nanolens.errors import fault
from nanolens.message import Message, msg
from nanolens.record.layout import RUNS, checkpoint_folder, is_run

if TYPE_CHECKING:
    import numpy as np
    import torch

    from nanolens.data.store import Dataset
    from nanolens.data.tokenizers import Tokenizer
    from nanolens.interop.foreign import ForeignModel

# nanoGPT's rate for fine-tuning: that of a start from nothing would undo the weights. How many updates is for whoever goes on to say.
FINE_TUNING = {"learning_rate": 3e-5, "decay_lr": False, "max_iters": 0}
Told = Callable[[str, int, int], None]  # the stage, bytes done, bytes in all


@dataclass(frozen=True)
class Imported:
    run: Path
    kind: str
    step: int
    parameters: int
    with_optimizer: bool
    notes: tuple[Message, ...]


def import_model(
    source: str, out: str | None = None, overrides: Sequence[tuple[str, str]] = (), tokenizer: str | None = None,
    told: Told = lambda stage, done, total: None,
) -> Imported:  # fmt: skip
    """Makes a run of a model that another program wrote. `out` is the run folder; without it a new one below `runs/`."""
    given = dict(overrides)
    model = foreign_ready(source, tokenizer, given.get("dataset"), lambda done, total: told("read", done, total))
    folder = _place(source, out)
    config, came_from = _config(model, overrides, source)
    _write_run(folder, model, config, came_from, told)
    return Imported(
        folder, model.kind, model.step, sum(tensor.numel() for name, tensor in model.weights.items() if not _is_tied(model, name)),
        model.optimizer is not None, model.notes,
    )  # fmt: skip


def foreign_ready(
    source: str, tokenizer: str | None = None, dataset: str | None = None, told: Callable[[int, int], None] = lambda done, total: None
) -> ForeignModel:
    """The model that `source` holds, with a tokenizer; refused where it lacks one or is none."""
    model = read_foreign_model(source, tokenizer, dataset, told)
    if model is None:
        raise fault(
            msg("{source:code} is no model that can be imported", source=source),
            fix=msg("give a folder in Hugging Face format, nanoGPT's {file:code} or its folder, or a name on the hub", file="ckpt.pt"),
        )
    _require_tokenizer(model)
    return model


def read_foreign_model(
    source: str, tokenizer: str | None = None, dataset: str | None = None, told: Callable[[int, int], None] = lambda done, total: None
) -> ForeignModel | None:
    """What `source` holds, whoever wrote it; None where it is no model."""
    from nanolens.interop.hf_in import hugging_face_folder, read_hugging_face
    from nanolens.interop.nanogpt_in import nanogpt_file, read_nanogpt

    known = None if tokenizer is None else _named_tokenizer(tokenizer)
    if (checkpoint := nanogpt_file(Path(source))) is not None:
        return read_nanogpt(checkpoint, known, None if dataset is None else _data_folder(dataset))
    if (folder := hugging_face_folder(source)) is not None:
        return read_hugging_face(folder, known, told)
    return None


def _named_tokenizer(name: str) -> Tokenizer:
    from nanolens.data.store import open_dataset
    from nanolens.data.tokenizers import TOKENIZER_FILE, GPT2Tokenizer, tokenizer_from_files

    if name == "gpt2":
        return GPT2Tokenizer()
    if (Path(name) / TOKENIZER_FILE).is_file():
        return tokenizer_from_files(Path(name))
    found = open_dataset(name).tokenizer
    if found is None:
        raise fault(
            msg("{name:code} does not say what its numbers mean", name=name),
            fix=msg("name a folder with a tokenizer, or {gpt2:code}", gpt2="gpt2"),
        )
    return found


def _data_folder(name: str) -> Path:
    from nanolens.data.store import open_dataset

    return open_dataset(name).folder


def _place(source: str, out: str | None) -> Path:
    if out is None:
        from nanolens.record.store import source_name

        path = Path(source).absolute()
        name = source_name(None, path.parent.name if path.suffix == ".pt" else path.name)
        number = 1
        while (folder := Path(RUNS) / f"{name}-{number}").exists():
            number += 1
        return folder
    folder = Path(out)
    if is_run(folder):
        raise fault(msg("{folder:code} already holds a run", folder=out), fix=msg("choose another folder with {option:code}", option="-o"))
    if folder.exists() and not folder.is_dir():
        raise fault(msg("{folder:code} is a file", folder=out), fix=msg("choose another folder with {option:code}", option="-o"))
    return folder


def _config(model: ForeignModel, overrides: Sequence[tuple[str, str]], source: str) -> tuple[Config, dict[str, str]]:
    """The model's own settings with those given now on top, checked as any others."""
    own = dict(model.settings) if "learning_rate" in model.settings else {**FINE_TUNING, **model.settings}
    theirs = [(key, as_text(value)) for key, value in own.items() if key in settings()]
    loaded = load(None, [*theirs, *overrides])
    given = {key.replace("-", "_") for key, _ in overrides}
    came_from = {key: where if key in given or key not in model.settings else str(model.source) for key, where in loaded.came_from.items()}
    return dataclasses.replace(loaded.config, init_from=source), came_from


def _require_tokenizer(model: ForeignModel) -> None:
    if model.tokenizer is None:
        raise fault(
            msg("what its {count:count} tokens mean is not known: it has no tokenizer, and its data was not found", count=model.vocab_size),
            where=msg("{path:code}", path=str(model.source)),
            fix=msg(
                "name the prepared folder that it was trained on with {dataset:code}, or a tokenizer with {option:code}",
                dataset="--dataset=FOLDER", option="--tokenizer=FOLDER",
            ),
        )  # fmt: skip
    if model.tokenizer.vocab_size > model.vocab_size:
        raise fault(
            msg(
                "the tokenizer has {tokens:count} tokens and the model {rows:count}",
                tokens=model.tokenizer.vocab_size, rows=model.vocab_size,
            ),
            where=msg("{path:code}", path=str(model.source)),
            fix=msg("they do not belong together; name the right one with {option:code}", option="--tokenizer"),
        )  # fmt: skip


def _is_tied(model: ForeignModel, name: str) -> bool:
    return name == "head.weight" and model.settings["arch"] == "gpt2"


# --- the run folder


def _write_run(folder: Path, model: ForeignModel, config: Config, came_from: dict[str, str], told: Told) -> None:
    """`run.json` comes last: a folder without it is no run, whatever happens on the way."""
    import torch

    from nanolens.checkpoint import Snapshot, save, tensors_of
    from nanolens.checkpoint.load import fill
    from nanolens.files import require_free_space
    from nanolens.interop.fitting import fit
    from nanolens.model import build
    from nanolens.record.write import write_run_file
    from nanolens.train.optimizers import build_optimizer
    from nanolens.training.setup import sizes_of

    where = msg("{source:code}", source=str(model.source))
    config, weights = fit(model, config, where)
    dataset = _dataset(model)
    rows = config.vocab_size or model.vocab_size
    torch.manual_seed(config.seed)
    module = build(config, rows)  # draws as many random numbers as a start from nothing, as nanoGPT does when it resumes
    resuming = _generators(config, dataset)
    fill(module, weights, where)
    optimizer = build_optimizer(module, config).state_dict()
    if model.optimizer is not None:
        optimizer["state"] = _cropped(model.optimizer["state"], module, config)
    sizes = sizes_of(module, config, rows)
    resuming |= {"optimizer": optimizer, "scaler": None}
    state = {
        "step": model.step, "progress": _progress(model, config), "micro_batch": config.batch_size, "config": dataclasses.asdict(config),
        "choices": {}, "vocab_size": rows, "data": _data_facts(model, dataset), "torch": torch.__version__,
    }  # fmt: skip
    needed = 4 * sizes["parameters_total"] * (3 if model.optimizer else 1)
    require_free_space(folder, needed, "importing this")
    told("write", 0, needed)
    was_there = folder.exists()
    try:
        save(checkpoint_folder(folder, model.step), Snapshot(tensors_of(module), resuming, state), _tokenizer_writer(model))
        told("write", needed, needed)
        _write_events(folder, model, config)
        facts = {
            "config": dataclasses.asdict(config), "came_from": came_from, "preset": "", "data": state["data"], "machine": {},
            "versions": _versions(), "sizes": sizes, "parent": None,
            "imported": {"from": str(model.source.absolute()), "kind": model.kind, "vocab_size": model.vocab_size},
        }  # fmt: skip
        write_run_file(folder, facts)
    except BaseException:
        if not was_there:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _dataset(model: ForeignModel) -> Dataset | None:
    from nanolens.data.sidecar import tokens_file
    from nanolens.data.store import open_folder

    folder = model.dataset
    return open_folder(folder) if folder is not None and all(tokens_file(folder, split).is_file() for split in ("train", "val")) else None


def _generators(config: Config, dataset: Dataset | None) -> dict[str, Any]:
    """The random generators as they are in nanoGPT when it has resumed: seeded, the model drawn, and the first batch drawn."""
    import numpy as np
    import torch

    feed: dict[str, Any] = {}
    state = torch.get_rng_state()
    if config.data_order == "nanogpt" and dataset is not None and len(dataset.train) > config.block_size:
        pending = torch.randint(len(dataset.train) - config.block_size, (config.batch_size,)).tolist()
        state = torch.get_rng_state()
        feed = {"pending": pending, "generator": state.clone()}
    return {
        "feed": feed,
        "torch": state,
        "numpy": _numpy_state(np.random.RandomState(config.seed % 2**32)),
        "python": random.Random(config.seed).getstate(),
    }


def _numpy_state(generator: np.random.RandomState) -> list[Any]:
    import numpy as np
    import torch

    name, keys, position, has_gauss, gauss = generator.get_state(legacy=True)
    return [name, torch.from_numpy(np.asarray(keys, dtype=np.int64)), int(position), int(has_gauss), float(gauss)]


def _cropped(state: dict[int, dict[str, torch.Tensor]], module: torch.nn.Module, config: Config) -> dict[int, dict[str, torch.Tensor]]:
    """The moments of rows that were cut off or added: cut off, or zero as those of a row that has had no gradient."""
    import torch

    matrices = [p for p in module.parameters() if p.dim() >= 2]
    order = matrices + [p for p in module.parameters() if p.dim() < 2]
    fitted = {}
    for number, moments in state.items():
        shape = order[number].shape
        fitted[number] = dict(moments)
        for key, value in moments.items():
            if value.dim() and value.shape != shape:
                whole = torch.zeros(shape)
                rows = min(len(value), len(whole))
                whole[:rows] = value[:rows]
                fitted[number][key] = whole
    return fitted


def _progress(model: ForeignModel, config: Config) -> dict[str, Any]:
    from nanolens.training.state import Progress, written

    samples = config.tokens_per_update // config.block_size
    has_loss = model.val_loss is not None
    progress = Progress(
        step=model.step, sample=model.step * samples, tokens_seen=model.step * config.tokens_per_update, tries=model.step,
        val_loss=model.val_loss if model.val_loss is not None else math.nan,
        best_val=model.val_loss if model.val_loss is not None else math.inf, best_step=model.step if has_loss else -1,
    )  # fmt: skip
    return {key: written(value) for key, value in dataclasses.asdict(progress).items()}


def _data_facts(model: ForeignModel, dataset: Dataset | None) -> dict[str, Any]:
    from nanolens.training.setup import data_facts

    if dataset is not None:
        return data_facts(dataset)
    assert model.tokenizer is not None
    return {
        "name": "", "folder": "", "fingerprint": "", "tokenizer_fingerprint": model.tokenizer.fingerprint, "text_fingerprint": "",
        "vocab_size": model.tokenizer.vocab_size, "facts": {},
    }  # fmt: skip


def _tokenizer_writer(model: ForeignModel) -> Callable[[Path], None]:
    from nanolens.files import write_whole

    def write(folder: Path) -> None:
        assert model.tokenizer is not None
        for name, payload in model.tokenizer.to_files().items():
            write_whole(folder / name, payload)

    return write


def _write_events(folder: Path, model: ForeignModel, config: Config) -> None:
    from nanolens.record.events import Chosen, Evaluated, RunEnded, RunStarted
    from nanolens.record.write import Recorder

    recorder = Recorder(folder)
    recorder(RunStarted(step=model.step))
    recorder(Chosen(what="imported from", value=str(model.source), because=f"a model of {model.kind}'s"))
    if model.val_loss is not None:
        tokens = config.eval_iters * config.batch_size * config.block_size
        recorder(
            Evaluated(
                step=model.step, split="val", loss=model.val_loss, standard_error="nan", batch_losses=[], batches="", tokens=tokens,
                is_best=True,
            )
        )  # fmt: skip
    recorder(RunEnded(step=model.step, why="finished"))
    recorder.close()


def _versions() -> dict[str, str]:
    import numpy as np
    import torch

    from nanolens.training.setup import version_of

    return {"nanolens": version_of("nanolens"), "torch": torch.__version__, "numpy": np.__version__, "python": platform.python_version()}
