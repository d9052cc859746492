"""Checkpoints: a folder each, written whole, checksummed, verified before it is believed, and free of pickle.

model.safetensors       weights by name
optimizer.safetensors   the optimizer's tensors, the gradient scaler's and the random generators'
state.json              step, data cursor, best loss, the run's config and choices: all else that resuming needs
tokenizer…              what turns ids into text
manifest.json           size and sha256 of each of these"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from nanolens import files
from nanolens.errors import Fault, UserError, raise_if_any
from nanolens.message import Message, msg
from nanolens.record import CHECKPOINTS, EVENTS_FILE, RUN_FILE, step_of
from nanolens.record import events as e
from nanolens.record.read import events_since
from nanolens.record.write import read_run_file
from nanolens.training.distributed.ranks import spread_like, whole

MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
_FORMAT = 1

TENSOR = "$tensor"  # {"$tensor": "state/~0/exp_avg"} stands where a tensor was
PAIRS = "$pairs"  # a dict with keys that are not strings, as a list of pairs
TUPLE = "$tuple"


@dataclass(frozen=True)
class Snapshot:
    """All that a run needs to go on, in the computer's memory, where no update can reach it any more."""

    model: dict[str, Tensor]
    resuming: dict[str, Any]  # a tree of tensors, numbers and strings: optimizer, scaler, random generators
    state: dict[str, Any]  # JSON only


@dataclass(frozen=True)
class Checkpoint(Snapshot):
    folder: Path


def save(folder: Path, snapshot: Snapshot, write_tokenizer: Callable[[Path], None] | None = None) -> int:
    """Writes the snapshot as `folder`, whole or not at all, and reads all of it back; the number of bytes."""
    plain, tensors = split(snapshot.resuming)
    with files.whole_folder(folder, {"format": _FORMAT, "step": snapshot.state["step"]}) as fresh:
        save_file(snapshot.model, fresh / MODEL, metadata={"format": "pt"})
        save_file(tensors, fresh / OPTIMIZER)
        files.write_whole(fresh / STATE, json.dumps({"format": _FORMAT, **snapshot.state, "resuming": plain}))
        if write_tokenizer:
            write_tokenizer(fresh)
    wrong = files.damage(folder)
    if wrong:  # the disk did not keep what it was given: better known now than at the next start
        raise OSError(f"{wrong[0].file} read back differently from what was written ({wrong[0].problem})")
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def delete(folder: Path) -> None:
    """Takes the folder's name away first: a kill in the middle must not leave a half that looks like a damaged one."""
    doomed = folder.with_name(f"{files.UNFINISHED}{os.getpid()}-deleted-{folder.name}")
    os.rename(folder, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def load(folder: Path) -> Checkpoint:
    """The checkpoint, verified, its tensors on the CPU; a UserError that names what is wrong with it."""
    if wrong := verify(folder):
        raise _damaged(folder, wrong)
    try:
        state = json.loads((folder / STATE).read_bytes())
        resuming = join(state.pop("resuming"), load_file(folder / OPTIMIZER))
        return Checkpoint(load_file(folder / MODEL), resuming, state, folder)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise _damaged(folder, [msg("{error}", str(error))]) from None


def weights_of(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Only the weights and the state, for sampling and export; verified like the whole."""
    if wrong := verify(folder):
        raise _damaged(folder, wrong)
    state = json.loads((folder / STATE).read_bytes())
    state.pop("resuming", None)
    return load_file(folder / MODEL), state


def newest_good(folders: Iterable[Path]) -> tuple[Checkpoint | None, list[tuple[Path, Message]]]:
    """The first of `folders` (newest first) that verifies, and those that were passed over, with the reason."""
    refused: list[tuple[Path, Message]] = []
    for folder in folders:
        try:
            return load(folder), refused
        except UserError as error:
            refused += [(folder, item.what) for item in error.faults]
    return None, refused


def verify(folder: Path) -> list[Message]:
    """What is wrong with the checkpoint, every byte compared with the manifest; empty when nothing is."""
    if damage := files.damage(folder):
        return [_sentence(item) for item in damage]
    manifest = files.read_manifest(folder) or {}
    missing = [name for name in (MODEL, OPTIMIZER, STATE) if name not in manifest["files"]]
    if missing:
        return [msg("{files:code} is not in its manifest", missing)]
    if manifest.get("format", 0) > _FORMAT:
        return [msg("it was written by a newer nanolens (format {format:count})", manifest["format"])]
    if folder.name.startswith("step-") and folder.name != f"step-{manifest.get('step'):06d}":
        return [msg("it contains step {step:count} under a different name", manifest.get("step"))]
    return []


def _sentence(item: files.Damage) -> Message:
    if item.problem == "size":
        found, expected = int(item.found), int(item.expected)
        return msg("{file:code} has {found:count} bytes instead of {expected:count}", item.file, found, expected)
    if item.problem == "content":
        return msg("{file:code} has changed since it was written (its sha256 differs)", item.file)
    return msg("{file:code}: {problem}", item.file, item.problem)


def _damaged(folder: Path, wrong: list[Message]) -> UserError:
    fix = msg("use another checkpoint; {command:code} checks them all", f"nanolens verify {folder.parent.parent}")
    return UserError(*(Fault(item, str(folder), fix) for item in wrong))


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Each parameter and kept buffer by name, tied ones once."""
    kept = model.state_dict().keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in kept}
    return {name: tensor.detach() for name, tensor in {**dict(model.named_parameters()), **buffers}.items()}


def fill(model: nn.Module, tensors: dict[str, Tensor], where: Message) -> None:
    """Copies saved tensors into a model, whatever device it is on; every name and shape must fit. Tables of positions
    (`model.cropped_by_block_size`) may be longer than the model wants: the context was shortened."""
    wanted = tensors_of(model)
    missing, unknown = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    faults = [Fault(msg("the checkpoint is missing {name:code}", name), where) for name in missing]
    faults += [Fault(msg("the model has no {name:code}", name), where) for name in unknown]
    fix = msg("use the arch and sizes the checkpoint was trained with")
    for name in sorted(wanted.keys() & tensors.keys()):
        if cropped(model, name, tensors[name], wanted[name].shape).shape != wanted[name].shape:
            old, new = tuple(tensors[name].shape), tuple(wanted[name].shape)
            what = msg("{name:code} is {saved:code} in the checkpoint and {wanted:code} in the model", name, old, new)
            faults.append(Fault(what, where, fix))
    raise_if_any(faults[:8])
    for name, tensor in wanted.items():
        tensor.data.copy_(spread_like(tensor, cropped(model, name, tensors[name], tensor.shape)))


def cropped(model: nn.Module, name: str, saved: Tensor, shape: tuple[int, ...]) -> Tensor:
    may_crop = name in getattr(model, "cropped_by_block_size", ())
    is_longer = saved.shape[1:] == shape[1:] and saved.shape[0] > shape[0]
    return saved[: shape[0]] if may_crop and is_longer else saved


def split(tree: object) -> tuple[object, dict[str, Tensor]]:
    """(the tree with its tensors named, the tensors by name). TypeError on what neither of the formats can hold."""
    tensors: dict[str, Tensor] = {}

    def plain(tree: object, path: str) -> object:
        if isinstance(tree, Tensor):
            tensors[path] = tree
            return {TENSOR: path}
        if isinstance(tree, dict):
            before = f"{path}/" if path else ""
            pairs = [(key, plain(value, before + _named(key))) for key, value in tree.items()]
            return dict(pairs) if all(isinstance(key, str) for key in tree) else {PAIRS: pairs}
        if isinstance(tree, (list, tuple)):
            items = [plain(value, f"{path}/{number}") for number, value in enumerate(tree)]
            return {TUPLE: items} if isinstance(tree, tuple) else items
        if tree is None or isinstance(tree, (bool, int, float, str)):
            return tree
        raise TypeError(f"{path}: a {type(tree).__name__} cannot be saved")

    return plain(tree, ""), tensors


def _named(key: object) -> str:
    """A key as part of a path that no other key has: 1 and "1" differ, and a key with a slash is one part."""
    return key.replace("~", "~~").replace("/", "~s") if isinstance(key, str) else f"~{key}"


def join(plain: Any, tensors: dict[str, Tensor]) -> Any:
    """The inverse of `split`."""
    if isinstance(plain, list):
        return [join(value, tensors) for value in plain]
    if not isinstance(plain, dict):
        return plain
    if TENSOR in plain:
        return tensors[plain[TENSOR]]
    if TUPLE in plain:
        return tuple(join(plain[TUPLE], tensors))
    return {key: join(value, tensors) for key, value in plain.get(PAIRS, plain.items())}


def copied(tree: Any) -> Any:
    """In the computer's memory, out of reach of later updates: a real copy, also of tensors that are there already."""
    if isinstance(tree, Tensor):
        full = whole(tree.detach())
        return torch.empty_like(full, device="cpu", memory_format=torch.contiguous_format).copy_(full)
    if isinstance(tree, dict):
        return {key: copied(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(copied(value) for value in tree)
    return tree


@dataclass(frozen=True)
class CheckResult:
    what: str  # a path below the run folder
    facts: Message | None = None  # what it holds
    problems: tuple[Message, ...] = ()
    notes: tuple[Message, ...] = ()  # worth knowing, and no damage


def verify_run(folder: Path) -> Iterator[CheckResult]:
    """Every byte of a run folder, compared with what was written: one result after the other, as they are found, since
    hashing a large checkpoint takes a while."""
    yield _run_file(folder)
    yield _events(folder)
    for path in sorted((folder / CHECKPOINTS).glob("*")):
        name = path.relative_to(folder).as_posix()
        if step_of(path) is not None:
            size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            count = len((files.read_manifest(path) or {}).get("files", ()))
            yield CheckResult(name, msg("{count:count file|files}, {size:bytes}", count, size), tuple(verify(path)))
        elif path.name.startswith(files.UNFINISHED):
            left = msg("left by a process that was killed while saving; the next attempt removes it")
            yield CheckResult(name, notes=(left,))


def _run_file(folder: Path) -> CheckResult:
    try:
        facts = read_run_file(folder)
    except UserError as error:
        return CheckResult(RUN_FILE, problems=tuple(fault.what for fault in error.faults))
    # A run of another loop says in its words whose it is; of its settings only what was printed is known.
    needed = ("words",) if isinstance(facts.get("words"), dict) else ("config", "machine", "versions", "data")
    missing = [key for key in needed if not isinstance(facts.get(key), dict)]
    problems = (msg("{keys:code} is missing from it", missing),) if missing else ()
    return CheckResult(RUN_FILE, msg("{count:count setting|settings}", len(facts.get("config", {}))), problems)


def _events(folder: Path) -> CheckResult:
    path = folder / EVENTS_FILE
    if not path.is_file():
        return CheckResult(EVENTS_FILE, problems=(msg("it is missing"),))
    found, _ = events_since(folder, 0)
    torn = path.read_bytes().count(b"\n") - len(found)
    steps = {event.step for event in found if isinstance(event, e.StepTaken) and not event.rank}
    logged = {event.step for event in found if isinstance(event, e.Logged)}  # of another loop, which may leave some out
    first = min((event.step for event in found if isinstance(event, e.RunStarted)), default=0)
    gaps = [step for step in range(first + 1, max(steps, default=first) + 1) if step not in steps]
    tries = max((event.attempt for event in found), default=0)
    problems: list[Message] = []
    notes: list[Message] = []
    if gaps:
        problems.append(msg("{count:count step is|steps are} missing, the first is {step:count}", len(gaps), gaps[0]))
    if torn:
        why = msg("{count:count line|lines} could not be read: cut off by a kill, or written by a newer nanolens", torn)
        (notes if torn < tries else problems).append(why)
    ends = [(event.events_lost, event.lost_because) for event in found if isinstance(event, e.RunEnded)]
    problems += [msg("{count:count event was|events were} lost: {because}", n, why) for n, why in ends if n]
    events, known = len(found), len(steps | logged)
    facts = msg(
        "{events:count event|events}, {steps:count step|steps}, {attempts:count attempt|attempts}", events, known, tries
    )
    return CheckResult(EVENTS_FILE, facts, tuple(problems), tuple(notes))
