"""Our run as nanoGPT's `ckpt.pt`: its `train.py --init_from=resume` goes on from it, its `sample.py` writes with it."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanolens import files
from nanolens.config.fields import Config
from nanolens.data.sidecar import META
from nanolens.data.tokenizers import CharTokenizer, Tokenizer
from nanolens.errors import Fault
from nanolens.interop.gpt2_names import to_theirs
from nanolens.interop.nanogpt_in import CHECKPOINT
from nanolens.message import Message, msg

if TYPE_CHECKING:
    from torch import Tensor

THEIRS = (
    "out_dir eval_interval log_interval eval_iters eval_only always_save_checkpoint init_from wandb_log wandb_project wandb_run_name "
    "dataset gradient_accumulation_steps batch_size block_size n_layer n_head n_embd dropout bias learning_rate max_iters weight_decay "
    "beta1 beta2 grad_clip decay_lr warmup_iters lr_decay_iters min_lr backend device dtype compile"
).split()
UNKNOWN_TO_IT = {"schedule": "cosine", "label_smoothing": 0.0}  # settings of ours that change a training, and what nanoGPT does


def faults_of(config: Config) -> Iterator[Fault]:
    """Why nanoGPT cannot have this model."""
    where = msg("{arch:code}", arch=f"arch={config.arch}")
    if config.arch != "gpt2":
        yield Fault(
            msg("nanoGPT has no other model than GPT-2"), where, msg("export what was trained with {option:code}", option="--arch=gpt2")
        )
    elif config.gelu != "exact":
        yield Fault(
            msg("nanoGPT computes the exact GELU, and this model was trained with its approximation"),
            msg("{option:code}", option=f"gelu={config.gelu}"),
            msg("go on with {option:code} for some updates, and export that", option="--gelu=exact"),
        )


def notes_of(config: Config, tokenizer: Tokenizer) -> Iterator[Message]:
    """What nanoGPT will do otherwise if it goes on with this run."""
    for key, value in UNKNOWN_TO_IT.items():
        if getattr(config, key) != value:
            here = f"{key}={getattr(config, key)}"
            yield msg("nanoGPT has no {ours:code} and would go on as with {theirs:code}", ours=here, theirs=f"{key}={value}")
    if config.optimizer != "adamw":
        yield msg("nanoGPT has no {optimizer:code}: its AdamW would begin afresh", optimizer=config.optimizer)
    if tokenizer.kind == "bpe":
        yield msg("nanoGPT knows GPT-2's tokens and characters only: its sample.py cannot spell what this model writes")
    if tokenizer.kind == "char":
        yield msg("its sample.py spells with {meta:code}: copy it to {place:code}", meta=META, place=f"data/{_dataset(config)}/")


def write_nanogpt(
    folder: Path, config: Config, weights: Mapping[str, Tensor], optimizer: Mapping[str, Any], tokenizer: Tokenizer, *, vocab_size: int,
    step: int, val_loss: float,
) -> None:  # fmt: skip
    import torch

    model = {to_theirs(name): tensor for name, tensor in weights.items() if name != "head.weight"}
    model["lm_head.weight"] = model["transformer.wte.weight"]
    shape = {key: getattr(config, key) for key in ("n_layer", "n_head", "n_embd", "block_size", "bias")}
    whole = {
        "model": model,
        "optimizer": _adamw(optimizer, config),
        "model_args": {**shape, "vocab_size": vocab_size, "dropout": config.dropout},
        "iter_num": step,
        "best_val_loss": torch.tensor(val_loss),
        "config": _config(config),
    }
    with files.whole_file(folder / CHECKPOINT) as file:
        torch.save(whole, file)
    if isinstance(tokenizer, CharTokenizer):
        meta = {"vocab_size": tokenizer.vocab_size, "itos": dict(enumerate(tokenizer.characters)), "stoi": tokenizer.ids}
        files.write_whole(folder / META, pickle.dumps(meta))


def _adamw(saved: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """As torch's own AdamW keeps it. Ours has the same parameters under the same numbers."""
    shared = {
        "lr": config.learning_rate, "betas": (config.beta1, config.beta2), "eps": 1e-8, "amsgrad": False, "maximize": False,
        "foreach": None, "capturable": False, "differentiable": False, "fused": None, "decoupled_weight_decay": True,
    }  # fmt: skip
    numbers = [list(group["params"]) for group in saved["param_groups"]]
    groups = [
        {**shared, "weight_decay": decay, "params": params} for decay, params in zip((config.weight_decay, 0.0), numbers, strict=True)
    ]
    return {"state": {number: dict(moments) for number, moments in saved["state"].items()}, "param_groups": groups}


def _config(config: Config) -> dict[str, Any]:
    """nanoGPT's settings; what we decide by ourselves (`auto`) as nanoGPT's default."""
    ours = dataclasses.asdict(config)
    fallback = {"device": "cuda", "dtype": "float16", "compile": True, "lr_decay_iters": config.max_iters}
    known = {key: ours[key] if ours[key] not in (None, "auto") else fallback.get(key, ours[key]) for key in THEIRS}
    return {**known, "dataset": _dataset(config), "out_dir": "out", "init_from": "scratch", "wandb_log": False}


def _dataset(config: Config) -> str:
    """nanoGPT joins it to `data/`."""
    return Path(config.dataset).name or config.dataset
