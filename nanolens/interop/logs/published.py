"""Facts that are published and that logs leave out: nanoGPT's own configs, the shapes of GPT-2, the sizes of well-known token files.

They become known facts of origin "inferred", each with its source. Sources: the config files and the readmes of the data folders of
nanoGPT; the GPT-2 checkpoints; shakespeare_char counted from the file itself (1,115,394 characters, nine tenths for training).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from nanolens.config.fields import settings
from nanolens.config.preset import named_preset

DATASETS: Mapping[str, Mapping[str, int]] = {
    "shakespeare_char": {"vocab_size": 65, "dataset_tokens": 1_003_854, "val_tokens": 111_540},
    "shakespeare": {"dataset_tokens": 301_966, "val_tokens": 36_059},
    "openwebtext": {"dataset_tokens": 9_035_582_198, "val_tokens": 4_434_897},
}
"""By the name of nanoGPT's data folder. The vocabulary of the last two is GPT-2's, 50,257, which trainers pad to what suits them."""

GPT2_SHAPES: Mapping[str, Mapping[str, object]] = {
    name: {"n_layer": layers, "n_head": heads, "n_embd": width, "vocab_size": 50257, "block_size": 1024, "bias": True}
    for name, layers, heads, width in (
        ("gpt2", 12, 12, 768), ("gpt2-medium", 24, 16, 1024), ("gpt2-large", 36, 20, 1280), ("gpt2-xl", 48, 25, 1600),
    )
}  # fmt: skip

_EVALUATION = {"batch_size": 8, "eval_iters": 500, "eval_only": True}
_FILES: Mapping[str, Mapping[str, object]] = {
    "finetune_shakespeare": {
        "dataset": "shakespeare", "init_from": "gpt2-xl", "eval_interval": 5, "eval_iters": 40, "always_save_checkpoint": False,
        "batch_size": 1, "gradient_accumulation_steps": 32, "max_iters": 20, "learning_rate": 3e-5, "decay_lr": False,
    },
    "eval_gpt2": {**_EVALUATION, "init_from": "gpt2"},
    "eval_gpt2_medium": {**_EVALUATION, "init_from": "gpt2-medium"},
    "eval_gpt2_large": {**_EVALUATION, "init_from": "gpt2-large"},
    "eval_gpt2_xl": {**_EVALUATION, "init_from": "gpt2-xl"},
}  # fmt: skip
_PRESETS = {"train_shakespeare_char": "shakespeare-char", "train_gpt2": "gpt2-124m"}
_NANOGPTS = tuple(
    """n_layer n_head n_embd block_size dropout bias dataset batch_size gradient_accumulation_steps learning_rate weight_decay beta1 beta2
    grad_clip max_iters decay_lr warmup_iters lr_decay_iters min_lr eval_interval eval_iters eval_only init_from always_save_checkpoint
    log_interval""".split()
)
"""Settings that nanoGPT has too; their defaults in `Config` are nanoGPT's own."""


def published_config(file: str) -> dict[str, object]:
    """The settings that one of nanoGPT's own config files stands for, its defaults included; empty for any other file."""
    stem = PurePosixPath(file.replace("\\", "/")).name.removesuffix(".py")
    preset = named_preset(_PRESETS[stem]) if stem in _PRESETS else None
    if preset is None and stem not in _FILES:
        return {}
    own = preset.values if preset is not None else _FILES[stem]
    defaults = {name: settings()[name].default for name in _NANOGPTS}
    return {**defaults, **own}


def known_dataset(name: str) -> str:
    """The folder name of a well-known dataset, said in any of the usual ways; "" for another."""
    said = re.sub(r"[^a-z]+", " ", name.lower()).split()
    if "shakespeare" in said or "tinyshakespeare" in said:
        return (
            "shakespeare_char"
            if "char" in said or "character" in said or "characters" in said
            else "shakespeare"
            if name == "shakespeare"
            else ""
        )
    return "openwebtext" if "openwebtext" in said or "owt" in said else ""
