"""Our model as a folder that the transformers library loads: `AutoModelForCausalLM.from_pretrained(folder)`, no code of ours needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanolens import files
from nanolens.config.fields import Config
from nanolens.interop.hf_in import SHAPE, WEIGHTS
from nanolens.interop.hf_shapes import shape_file, weights_out
from nanolens.interop.hf_tokenizer import tokenizer_files

if TYPE_CHECKING:
    from torch import Tensor

    from nanolens.data.tokenizers import Tokenizer

GENERATION, CARD = "generation_config.json", "README.md"
DTYPES = ("float32", "float16", "bfloat16")


def write_hugging_face(
    folder: Path, config: Config, weights: Mapping[str, Tensor], tokenizer: Tokenizer, vocab_size: int, *, dtype: str = "float32",
    beside: Mapping[str, bytes] | None = None,
) -> None:  # fmt: skip
    """Fills `folder`. `vocab_size` rows of the vocabulary are kept; `beside` holds further files (the model card, its picture)."""
    import torch
    from safetensors.torch import save_file

    end = end_of_text(tokenizer)
    tensors = weights_out(config, weights, vocab_size)
    save_file({name: tensor.to(getattr(torch, dtype)) for name, tensor in tensors.items()}, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / WEIGHTS).chmod(0o644)  # the library keeps what it writes to its owner
    contents: dict[str, Any] = {
        SHAPE: shape_file(config, vocab_size, end, dtype),
        GENERATION: generation(end),
        **tokenizer_files(tokenizer, config.block_size),
    }
    for name, value in contents.items():
        files.write_whole(folder / name, json.dumps(value, indent=2 if name != "tokenizer.json" else None, ensure_ascii=False))
    for name, payload in (beside or {}).items():
        files.write_whole(folder / name, payload)


def end_of_text(tokenizer: Tokenizer) -> int | None:
    """The id that ends a text; characters have none (their line end ends a line)."""
    return None if tokenizer.kind == "char" else tokenizer.end_of_document


def generation(end: int | None) -> dict[str, Any]:
    """The taste of `nanolens sample`, which is nanoGPT's."""
    return {"bos_token_id": end, "eos_token_id": end, "do_sample": True, "temperature": 0.8, "top_k": 200, "max_new_tokens": 500}
