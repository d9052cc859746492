"""Saving: from a snapshot that no update can reach any more, into a folder that appears whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from nanolens import files
from nanolens.checkpoint.tree import split

MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
FORMAT = 1


@dataclass(frozen=True)
class Snapshot:
    """All that a run needs to go on, in the computer's memory."""

    model: dict[str, Tensor]
    resuming: Any  # a tree of tensors, numbers and strings: optimizer, scaler, random generators
    state: dict[str, Any]  # JSON only


def save(folder: Path, snapshot: Snapshot, write_tokenizer: Callable[[Path], None] | None = None) -> int:
    """Writes the snapshot as `folder` and reads all of it back; the number of bytes."""
    plain, tensors = split(snapshot.resuming)
    with files.whole_folder(folder, {"format": FORMAT, "step": snapshot.state["step"]}) as fresh:
        save_file(snapshot.model, fresh / MODEL, metadata={"format": "pt"})
        save_file(tensors, fresh / OPTIMIZER)
        files.write_whole(fresh / STATE, json.dumps({"format": FORMAT, **snapshot.state, "resuming": plain}))
        if write_tokenizer:
            write_tokenizer(fresh)
    wrong = files.damage(folder)
    if wrong:  # the disk did not keep what it was given: better known now than at the next start
        raise OSError(f"{wrong[0].file} read back differently from what was written ({wrong[0].problem})")
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Each parameter and kept buffer by name, tied ones once."""
    kept = set(model.state_dict().keys())
    named = [*model.named_parameters(), *((name, buffer) for name, buffer in model.named_buffers() if name in kept)]
    return {name: tensor.detach() for name, tensor in named}


def delete(folder: Path) -> None:
    """Takes the folder's name away first, so that a kill in the middle does not leave a half that looks like a damaged checkpoint."""
    doomed = folder.with_name(f"{files.UNFINISHED}{os.getpid()}-deleted-{folder.name}")
    os.rename(folder, doomed)
    shutil.rmtree(doomed, ignore_errors=True)
