"""A checkpoint is whole or not there, and any change to it is noticed."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from nanolens import files
from nanolens.errors import UserError
from nanolens.training.checkpoint import Snapshot, load, newest_good, save, verify, weights_of


def snapshot(step: int, size: int = 64) -> Snapshot:
    generator = torch.Generator().manual_seed(step)
    weights = {"a.weight": torch.randn(size, generator=generator), "b.weight": torch.randn(3, 5, generator=generator)}
    moments = {
        "state": {0: {"exp_avg": torch.randn(size, generator=generator), "step": torch.tensor(float(step))}},
        "param_groups": [{"lr": 0.1}],
    }
    return Snapshot(weights, {"optimizer": moments, "scaler": None}, {"step": step, "progress": {"sample": 7}})


def folder(parent: Path, step: int) -> Path:
    return parent / f"step-{step:06d}"


def is_same(checkpoint, wanted: Snapshot) -> bool:
    return all(torch.equal(checkpoint.model[name], tensor) for name, tensor in wanted.model.items()) and torch.equal(
        checkpoint.resuming["optimizer"]["state"][0]["exp_avg"], wanted.resuming["optimizer"]["state"][0]["exp_avg"]
    )


def test_what_is_saved_is_loaded_bit_for_bit(tmp_path: Path):
    tokenizer = lambda where: (where / "tokenizer.json").write_text("{}")  # noqa: E731
    size = save(folder(tmp_path, 3), snapshot(3), tokenizer)
    found = load(folder(tmp_path, 3))
    assert is_same(found, snapshot(3))
    assert found.state["progress"] == {"sample": 7}
    assert size == sum(path.stat().st_size for path in folder(tmp_path, 3).iterdir())
    assert (folder(tmp_path, 3) / "tokenizer.json").is_file()
    weights, state = weights_of(folder(tmp_path, 3))
    assert torch.equal(weights["a.weight"], found.model["a.weight"])
    assert state["step"] == 3


def test_there_is_no_pickle_in_it(tmp_path: Path):
    save(folder(tmp_path, 3), snapshot(3))
    for path in folder(tmp_path, 3).iterdir():
        assert not path.read_bytes().startswith((b"\x80", b"PK"))
        assert path.suffix in (".json", ".safetensors")


def damage_kinds(path: Path, rng: random.Random, other: Path):
    """Each yields one damaged state of `path`, which is restored by the caller."""
    payload = path.read_bytes()
    bit = rng.randrange(len(payload) * 8)
    flipped = bytearray(payload)
    flipped[bit // 8] ^= 1 << (bit % 8)
    yield "flipped", bytes(flipped)
    yield "truncated", payload[: rng.randrange(len(payload))]
    zeros = rng.randrange(1, min(len(payload), 64))
    if payload[-zeros:] != bytes(zeros):
        yield "zeroed tail", payload[:-zeros] + bytes(zeros)
    if other.read_bytes() != payload:
        yield "from another checkpoint", other.read_bytes()


@pytest.mark.parametrize("rounds", [30, pytest.param(400, marks=pytest.mark.heavy)])
def test_every_damage_is_noticed_and_the_checkpoint_before_is_used(tmp_path: Path, rounds: int):
    for step in (1, 2):
        save(folder(tmp_path, step), snapshot(step))
    rng = random.Random(0)
    names = [path.name for path in folder(tmp_path, 2).iterdir()]
    tried = 0
    for _ in range(rounds):
        path = folder(tmp_path, 2) / rng.choice(names)
        whole = path.read_bytes()
        for kind, payload in damage_kinds(path, rng, folder(tmp_path, 1) / path.name):
            path.write_bytes(payload)
            assert verify(folder(tmp_path, 2)), (kind, path.name)
            found, refused = newest_good([folder(tmp_path, 2), folder(tmp_path, 1)])
            assert found is not None
            assert is_same(found, snapshot(1)), (kind, path.name)
            assert [path.name for path, _ in refused] == ["step-000002"] * len(refused)
            assert refused
            tried += 1
        path.write_bytes(whole)
    assert tried >= 3 * rounds
    assert not verify(folder(tmp_path, 2))


def test_a_missing_file_a_missing_manifest_and_a_swapped_folder_are_noticed(tmp_path: Path):
    save(folder(tmp_path, 1), snapshot(1))
    for name in ("model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"):
        copy = tmp_path / "copy" / "step-000001"
        shutil.copytree(folder(tmp_path, 1), copy)
        (copy / name).unlink()
        assert verify(copy), name
        shutil.rmtree(copy)
    os.rename(folder(tmp_path, 1), folder(tmp_path, 9))
    assert "a different name" in str(verify(folder(tmp_path, 9))[0])


def test_the_message_names_the_file_and_the_difference(tmp_path: Path):
    save(folder(tmp_path, 1), snapshot(1))
    path = folder(tmp_path, 1) / "model.safetensors"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(UserError) as refusal:
        load(folder(tmp_path, 1))
    assert str(refusal.value.faults[0].what) == f"model.safetensors has {size - 5} bytes instead of {size}"


class Fault:
    """Lets the first `after` operations on the disk pass, and spoils the next one (or, if persistent, all that
    follow)."""

    def __init__(self, after: int, spoil, persistent: bool):
        self.left, self.spoil, self.persistent, self.fired = after, spoil, persistent, False

    def __call__(self) -> None:
        if self.left == 0 or (self.left < 0 and self.persistent):
            self.left, self.fired = -1, True
            self.spoil()
        else:
            self.left -= 1


def with_faults(monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    import builtins

    real_open = builtins.open

    def watched(real):
        def call(*args, **kwargs):
            fault()
            return real(*args, **kwargs)

        return call

    def opened(file, mode="r", *args, **kwargs):
        if "w" in mode:
            fault()
        return real_open(file, mode, *args, **kwargs)

    for name in ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir"):
        monkeypatch.setattr(os, name, watched(getattr(os, name)))
    monkeypatch.setattr(shutil, "rmtree", watched(shutil.rmtree))
    monkeypatch.setattr(sys.modules["nanolens.training.checkpoint"], "save_file", watched(save_file))
    monkeypatch.setattr(builtins, "open", opened)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_an_error_at_any_operation_leaves_the_old_checkpoint_whole(
    number: int, persistent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Fails the first operation, then the second, ... until a save passes unharmed."""
    save(folder(tmp_path, 1), snapshot(1))

    def spoil():
        raise OSError(number, os.strerror(number))

    for after in range(100):
        fault = Fault(after, spoil, persistent)
        with monkeypatch.context() as patch:
            with_faults(patch, fault)
            with contextlib.suppress(OSError):
                save(folder(tmp_path, 2), snapshot(2))
        found, _ = newest_good([path for path in (folder(tmp_path, 2), folder(tmp_path, 1)) if path.exists()])
        assert found is not None
        assert is_same(found, snapshot(found.state["step"])), after
        if not fault.fired:
            assert found.state["step"] == 2
            assert after > 10, "a save has more operations than that"
            return
        shutil.rmtree(folder(tmp_path, 2), ignore_errors=True)
    pytest.fail("a save has more than 100 operations")


class Killed(BaseException):
    """Stands for SIGKILL: once it was raised, every further operation raises it too, as a dead process does nothing any
    more."""


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_kill_at_any_operation_leaves_a_whole_checkpoint(
    is_replaced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Dies at the first operation, then at the second, ... also when step 2 is written over an older step 2."""

    def die():
        raise Killed

    for after in range(100):
        parent = tmp_path / str(after)
        save(folder(parent, 1), snapshot(1))
        if is_replaced:
            save(folder(parent, 2), snapshot(2))
        fault = Fault(after, die, True)
        with monkeypatch.context() as patch:
            with_faults(patch, fault)
            with contextlib.suppress(Killed):
                save(folder(parent, 2), snapshot(2))
        files.remove_unfinished(parent)
        found, refused = newest_good(sorted(parent.glob("step-*"), reverse=True))
        assert found is not None
        assert is_same(found, snapshot(found.state["step"]))
        assert not refused, "a kill leaves no damaged checkpoint, only an older one"
        if not fault.fired:
            assert found.state["step"] == 2
            assert after > 10
            return
    pytest.fail("a save has more than 100 operations")
