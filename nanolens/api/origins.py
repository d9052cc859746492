"""What a run begins from, where that is not nothing: another run, a model of another program, or nanoGPT's `out` folder.

A run that goes on from weights has their shape. Settings that were not asked for are therefore taken from where the weights come from, and
only those that were asked for and do not fit are refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanolens.config.fields import Config, as_text
from nanolens.config.fields import settings as all_settings
from nanolens.config.load import load
from nanolens.config.settings import Settings
from nanolens.errors import fault
from nanolens.message import msg
from nanolens.record.layout import RUNS, is_run

if TYPE_CHECKING:
    from torch import Tensor

    from nanolens.data.store import Dataset

OF_A_PROCESS = ("init_from", "out_dir", "overwrite")
OF_THE_WEIGHTS = ("block_size", "gelu")  # besides those that a checkpoint fixes; they may be changed on purpose


def run_named(init_from: str) -> Path | None:
    """The folder of `RUN` or `RUN@STEP`; None where `init_from` is something else."""
    if init_from in ("scratch", "resume"):
        return None
    name = init_from.rpartition("@")[0] or init_from
    return next((folder for folder in (Path(name), Path(RUNS) / name, Path(init_from)) if is_run(folder)), None)


def settings_of_run(run: Path, overrides: Sequence[tuple[str, str]]) -> Settings:
    """What a run was started with, and what is asked for now on top."""
    from nanolens.record.write import read_run_file

    kept = {key: value for key, value in read_run_file(run).get("config", {}).items() if key in all_settings() and key not in OF_A_PROCESS}
    recorded = [(key, as_text(value)) for key, value in kept.items()]
    settings = load(None, [*recorded, *overrides])
    asked = {key.replace("-", "_") for key, _ in overrides}
    came_from = {key: where if key in asked or where == "default" else str(run) for key, where in settings.came_from.items()}
    return dataclasses.replace(settings, came_from=came_from)


def with_shape_of(settings: Settings, run: Path) -> Settings:
    """The settings, with the run's own where a checkpoint fixes them and nobody asked for another."""
    from nanolens.record.write import read_run_file

    recorded: Mapping[str, Any] = read_run_file(run).get("config", {})
    taken = {
        key: recorded[key]
        for key, about in all_settings().items()
        if (about.is_fixed_by_checkpoint or key in OF_THE_WEIGHTS) and key in recorded and settings.came_from.get(key) == "default"
    }
    config = dataclasses.replace(settings.config, **taken)
    return dataclasses.replace(settings, config=config, came_from={**settings.came_from, **dict.fromkeys(taken, str(run))})


def take_over(settings: Settings) -> None:
    """nanoGPT's `out` folder that is to be resumed becomes a run where it is; its `ckpt.pt` stays."""
    from nanolens.interop.nanogpt_in import nanogpt_file

    config = settings.config
    folder = Path(config.out_dir)
    if config.init_from != "resume" or config.out_dir == "auto" or is_run(folder) or is_run(Path(RUNS) / config.out_dir):
        return
    if not folder.is_dir() or nanogpt_file(folder) is None:
        return
    from nanolens.convert.importing import import_model

    asked = [(key, as_text(getattr(config, key))) for key in ("data_order", "dataset", "seed") if settings.came_from.get(key) != "default"]
    import_model(str(folder), str(folder), asked)


def initial_weights(config: Config, dataset: Dataset) -> tuple[Config, Mapping[str, Tensor] | None]:
    """Weights that come from elsewhere, with the shape that they bring along; None where the run begins from nothing or from a run."""
    if config.init_from in ("scratch", "resume") or run_named(config.init_from) is not None:
        return config, None
    from nanolens.convert.importing import read_foreign_model
    from nanolens.interop.fitting import fit

    model = read_foreign_model(config.init_from)
    if model is None:
        return config, None
    if model.tokenizer is not None and dataset.tokenizer is not None and model.tokenizer != dataset.tokenizer:
        raise fault(
            msg("the data was made with another tokenizer than the model was trained with"),
            where=msg("dataset {name:code}, init_from {source:code}", name=dataset.name, source=config.init_from),
            fix=msg("prepare the text with the model's own tokenizer: {command:code}", command="nanolens prepare --tokenizer=gpt2")
            if model.tokenizer.kind == "gpt2"
            else msg("import the model first, and prepare the text with {option:code}", option="--tokenizer=RUN/checkpoints/step-000000"),
        )
    return fit(model, config, msg("{where:code}", where=f"init_from={config.init_from}"))
