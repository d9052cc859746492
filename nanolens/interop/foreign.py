"""A model that was trained elsewhere, in our words: what each door for models hands over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanolens.message import Message

if TYPE_CHECKING:
    from torch import Tensor

    from nanolens.data.tokenizers import Tokenizer


@dataclass(frozen=True, eq=False)
class ForeignModel:
    source: Path
    kind: str  # "Hugging Face" or "nanoGPT"
    settings: Mapping[str, Any]  # what the files say, by our names
    vocab_size: int  # rows of the embedding
    weights: Mapping[str, Tensor]  # by our names
    tokenizer: Tokenizer | None
    dataset: Path | None = None  # the prepared folder that it was trained on, where that was found
    step: int = 0
    optimizer: Mapping[str, Any] | None = None  # AdamW's state, as ours keeps it; None: it begins afresh
    val_loss: float | None = None  # at `step`, as its trainer measured it
    notes: tuple[Message, ...] = field(default_factory=tuple)  # what its new owner should know
