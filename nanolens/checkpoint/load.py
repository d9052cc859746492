"""Loading: nothing is believed before every byte has been compared with the manifest."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from nanolens import files
from nanolens.checkpoint.save import FORMAT, MODEL, OPTIMIZER, STATE
from nanolens.checkpoint.sharded import spread_like
from nanolens.checkpoint.tree import join
from nanolens.errors import Fault, UserError, fault
from nanolens.message import Message, msg


@dataclass(frozen=True)
class Checkpoint:
    folder: Path
    model: dict[str, Tensor]
    resuming: Any
    state: dict[str, Any]


@dataclass(frozen=True)
class Refused:
    folder: Path
    because: Message


def load(folder: Path) -> Checkpoint:
    """The checkpoint, verified, its tensors on the CPU; a UserError that names what is wrong with it."""
    wrong = verify(folder)
    if wrong:
        raise _damaged(folder, wrong)
    try:
        state = json.loads((folder / STATE).read_bytes())
        resuming = join(state.pop("resuming"), load_file(folder / OPTIMIZER))
        return Checkpoint(folder, load_file(folder / MODEL), resuming, state)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise _damaged(folder, [msg("{error}", error=str(error))]) from None


def weights_of(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Only the weights and the state, for sampling and export; verified like the whole."""
    wrong = verify(folder)
    if wrong:
        raise _damaged(folder, wrong)
    state = json.loads((folder / STATE).read_bytes())
    state.pop("resuming", None)
    return load_file(folder / MODEL), state


def verify(folder: Path) -> list[Message]:
    """What is wrong with the checkpoint, empty when nothing is."""
    found = [_sentence(item) for item in files.damage(folder)]
    if found:
        return found
    manifest = files.read_manifest(folder) or {}
    missing = [name for name in (MODEL, OPTIMIZER, STATE) if name not in manifest["files"]]
    if missing:
        return [msg("{files:code} is not in its manifest", files=missing)]
    if manifest.get("format", 0) > FORMAT:
        return [msg("it was written by a newer nanolens (format {format:count})", format=manifest["format"])]
    if folder.name.startswith("step-") and folder.name != f"step-{manifest.get('step'):06d}":
        return [msg("it holds step {step:count} under the name of another", step=manifest.get("step"))]
    return []


def newest_good(folders: Iterable[Path]) -> tuple[Checkpoint | None, list[Refused]]:
    """The first of `folders` (newest first) that verifies, and those that were passed over."""
    refused: list[Refused] = []
    for folder in folders:
        try:
            return load(folder), refused
        except UserError as error:
            refused += [Refused(folder, item.what) for item in error.faults]
    return None, refused


def fill(model: nn.Module, tensors: dict[str, Tensor], where: Message) -> None:
    """Copies saved tensors into a model, whatever device it is on; every name and shape must fit.

    Tables of positions (`model.cropped_by_block_size`) may be longer than the model wants: the context was shortened.
    """
    wanted = dict(model.named_parameters()) | {name: b for name, b in model.named_buffers() if name in model.state_dict()}
    faults = [Fault(msg("the checkpoint lacks {name:code}", name=name), where) for name in sorted(wanted.keys() - tensors.keys())]
    faults += [Fault(msg("the model has no {name:code}", name=name), where) for name in sorted(tensors.keys() - wanted.keys())]
    for name in sorted(wanted.keys() & tensors.keys()):
        if cropped(model, name, tensors[name], wanted[name].shape).shape != wanted[name].shape:
            what = msg(
                "{name:code} is {saved:code} in the checkpoint and {wanted:code} in the model",
                name=name, saved=tuple(tensors[name].shape), wanted=tuple(wanted[name].shape),
            )  # fmt: skip
            faults.append(Fault(what, where, msg("use the arch and sizes that the checkpoint was trained with")))
    if faults:
        raise UserError(*faults[:8])
    for name, tensor in wanted.items():
        tensor.data.copy_(spread_like(tensor, cropped(model, name, tensors[name], tensor.shape)))


def cropped(model: nn.Module, name: str, saved: Tensor, shape: tuple[int, ...]) -> Tensor:
    if name in getattr(model, "cropped_by_block_size", ()) and saved.shape[1:] == shape[1:] and saved.shape[0] > shape[0]:
        return saved[: shape[0]]
    return saved


def _sentence(item: files.Damage) -> Message:
    if item.problem == "size":
        return msg(
            "{file:code} has {found:count} bytes instead of {expected:count}",
            file=item.file, found=int(item.found), expected=int(item.expected),
        )  # fmt: skip
    if item.problem == "content":
        return msg("{file:code} has changed since it was written (its sha256 differs)", file=item.file)
    return msg("{file:code} is {problem}", file=item.file, problem=item.problem)


def _damaged(folder: Path, wrong: list[Message]) -> UserError:
    fix = msg("use another checkpoint; {command:code} checks them all", command=f"nanolens verify {folder.parent.parent}")
    if len(wrong) == 1:
        return fault(wrong[0], where=msg("{folder:code}", folder=str(folder)), fix=fix)
    return UserError(*(Fault(item, msg("{folder:code}", folder=str(folder)), fix) for item in wrong))
