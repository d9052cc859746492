"""A model twice as wide that computes exactly what the narrow one does, with room to learn more: whether size is the limit is asked from
where the run stands, not from nothing.

Each channel is there twice. What writes into the channels writes the same into both copies; what reads them reads half from each, plus
something with opposite signs, which cancels as long as the copies are equal and makes them different from the first update on. Adam's
moments are carried over by the same map: a gradient falls to each of n copies of s times a weight by 1 / (n s)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanolens.api.probe.subject import Subject
from nanolens.config.fields import Config
from nanolens.record.layout import RUN_FILE, checkpoint_folder

if TYPE_CHECKING:
    from torch import Tensor

START = "-start"  # behind the branch's name: the folder of the grown weights that it starts from
APART = 0.5  # how far the halves that are read differ, in standard deviations of the matrix


def grown_parent(subject: Subject, branch: Path, config: Config) -> str:
    """`FOLDER@STEP` of a run whose only content is the subject's checkpoint in twice the width."""
    import json
    import shutil

    from nanolens import files
    from nanolens.checkpoint import Snapshot, load, save
    from nanolens.record.events import RunEnded
    from nanolens.record.write import Recorder
    from nanolens.training.setup import tokenizer_writer

    checkpoint = load(subject.checkpoint)
    folder = branch.with_name(branch.name + START)
    shutil.rmtree(folder, ignore_errors=True)
    resuming = dict(checkpoint.resuming)
    resuming["optimizer"] = _grown_optimizer(resuming["optimizer"], subject.config, subject.vocab_size)
    like_parent = dataclasses.replace(subject.config, n_embd=config.n_embd, n_head=config.n_head)
    state = {**checkpoint.state, "config": dataclasses.asdict(like_parent)}
    weights = {name: grown(name, tensor, subject.config.n_embd) for name, tensor in checkpoint.model.items()}
    save(checkpoint_folder(folder, subject.step), Snapshot(weights, resuming, state), tokenizer_writer(subject.dataset))
    facts = json.loads((subject.folder / RUN_FILE).read_bytes())
    parent = {"run": str(subject.folder), "step": subject.step}
    told = {**facts, "name": folder.name, "config": dataclasses.asdict(like_parent), "parent": parent, "sizes": {}}
    files.write_whole(folder / RUN_FILE, json.dumps(told, indent=1))
    recorder = Recorder(folder)
    recorder(RunEnded(step=subject.step, why="finished"))
    recorder.close()
    return f"{folder}@{subject.step}"


def grown(name: str, tensor: Tensor, width: int) -> Tensor:
    """The tensor of that name in a model twice as wide."""
    wide, _, scale = _tiled(name, tensor, width)
    wide = wide * scale
    if tensor.dim() == 2 and scale != 1:  # it reads channels that are there twice
        half = wide.shape[1] // 2
        import torch

        generator = torch.Generator().manual_seed(len(name) + tensor.numel())
        apart = APART * float(tensor.std()) * torch.randn(wide.shape[0], half, generator=generator)
        wide[:, :half] += apart
        wide[:, half:] -= apart
    return wide.contiguous()


def _tiled(name: str, tensor: Tensor, width: int) -> tuple[Tensor, int, float]:
    """(the tensor repeated, how often each number is in it, what each is multiplied by)."""
    if tensor.dim() == 1:
        rows = tensor.reshape(3, -1).repeat(1, 2).flatten() if name.endswith("qkv.bias") else tensor.repeat(2)
        return rows, 2, 0.5 if name.startswith("norm.") else 1.0  # the last norm feeds the head, which reads both copies
    if name in ("embedding.weight", "position.weight"):
        return tensor.repeat(1, 2), 2, 1.0
    rows = tensor.reshape(3, -1, width).repeat(1, 2, 1).flatten(0, 1) if name.endswith("qkv.weight") else tensor.repeat(2, 1)
    return rows.repeat(1, 2), 4, 0.5


def _grown_optimizer(saved: dict[str, Any], config: Config, vocab_size: int) -> dict[str, Any]:
    from nanolens.model import build
    from nanolens.train.optimizers import build_optimizer

    model = build(config, vocab_size)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    order = [names[id(parameter)] for group in build_optimizer(model, config).param_groups for parameter in group["params"]]
    state = {}
    for index, moments in saved["state"].items():
        name = order[index]
        _, times, scale = _tiled(name, moments["exp_avg"], config.n_embd)
        per = 1.0 / (times * scale)
        state[index] = {
            "step": moments["step"],
            "exp_avg": (_tiled(name, moments["exp_avg"], config.n_embd)[0] * per).contiguous(),
            "exp_avg_sq": (_tiled(name, moments["exp_avg_sq"], config.n_embd)[0] * per**2).contiguous(),
        }
    return {**saved, "state": state}
