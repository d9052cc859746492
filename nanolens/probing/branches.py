"""The run that is probed, and its branches: each a run of its own below `probes/`, from the same checkpoint, over the
same batches, judged on the same tokens. What they showed is kept there for `diagnose`, with a config for each change
that is worth making. Nothing else in the run's folder is written to.

The wider branch starts from a model twice as wide that computes exactly what the narrow one does, with room to learn
more: whether size is the limit is asked from where the run stands, not from nothing. Each channel is there twice. What
writes into the channels writes the same into both copies; what reads them reads half from each, plus something with
opposite signs, which cancels as long as the copies are equal and makes them different from the first update on. Adam's
moments are carried over by the same map: a gradient falls to each of n copies of s times a weight by 1 / (n s)."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nanolens import files
from nanolens.config.fields import Config
from nanolens.data.batches import Batch, eval_windows
from nanolens.data.store import Dataset, open_trained_on
from nanolens.loaded import choose_checkpoint, saved_config
from nanolens.message import Message, msg
from nanolens.model import build
from nanolens.model.loss import WithLoss, logits_of
from nanolens.planning.words import config_text
from nanolens.probing.experiments import EVAL_ITERS, Branch, Frame, Settings, unchanged
from nanolens.probing.judge import Effect, ProbeAnswer
from nanolens.probing.words import probe_data
from nanolens.record import RUN_FILE, answer_file, checkpoint_folder, is_run, probe_folder
from nanolens.record.events import RunEnded
from nanolens.record.read import events_since, read_run
from nanolens.record.run import RunRecord
from nanolens.record.store import find_run
from nanolens.record.write import Recorder, read_run_file
from nanolens.session.job import file_to_run
from nanolens.show.answer import dumped
from nanolens.show.words import say
from nanolens.training.checkpoint import Snapshot, fill, load, save, weights_of
from nanolens.training.feed import on_device
from nanolens.training.loop import train
from nanolens.training.machine import Machine, choose_machine
from nanolens.training.optimizers import build_optimizer
from nanolens.training.setup import tokenizer_writer

WINDOWS_AT_ONCE = 32
JUDGED_SEED = 5  # of the choice of windows; not the evaluations' own


@dataclass(frozen=True, eq=False)
class ProbeSubject:
    folder: Path
    step: int
    config: Config
    code: str  # `arch`, or the run's own copy of a model file
    dataset: Dataset
    run: RunRecord  # the whole record
    checkpoint: Path
    weights: dict[str, Tensor]
    vocab_size: int
    sample: int  # the first one that no update has used
    choices: dict[str, object]  # that the run made by itself: threads, dtype

    @property
    def name(self) -> str:
        return f"{self.folder}@{self.step}"

    @property
    def update_s(self) -> float | None:
        """Seconds of an update, where the record tells them."""
        took = self.run.steps.took_s[np.isfinite(self.run.steps.took_s)]
        return float(np.median(took)) if len(took) else None


def open_subject(target: str, arch: str | None = None) -> ProbeSubject:
    """`RUN` (its newest checkpoint that is whole) or `RUN@STEP`. A custom model needs its file again."""
    at = find_run(target)
    checkpoint = choose_checkpoint(at)
    weights, state = weights_of(checkpoint)
    config, run = saved_config(state["config"]), read_run(at.folder)
    code = config.arch
    if code.endswith(".py"):
        code = str(file_to_run(at.folder, code, arch)[0])  # refuses code that nobody named
    return ProbeSubject(
        at.folder,
        int(state["step"]),
        config,
        code,
        open_trained_on(run),
        run,
        checkpoint,
        weights,
        vocab_size=int(state["vocab_size"]),
        sample=int(state["progress"]["sample"]),
        choices=state.get("choices", {}),
    )


# --- what can be seen of a checkpoint without training it


@dataclass(frozen=True, eq=False)
class Look:
    """The model of the checkpoint, in eval mode and in float32, on the run's device."""

    model: nn.Module
    machine: Machine
    label_smoothing: float

    def losses(self, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Nats of each token: (windows, tokens)."""
        losses = []
        with torch.no_grad():
            for start in range(0, len(inputs), WINDOWS_AT_ONCE):
                some = slice(start, start + WINDOWS_AT_ONCE)
                x, y = on_device((inputs[some], targets[some]), self.machine.device)
                logits = logits_of(self.model, x).float()
                each = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
                losses.append(each.view(y.shape).cpu().numpy())
        return np.concatenate(losses)

    def gradients(self, batches: Iterable[Batch], dtype: str = "float32") -> Iterator[tuple[float, Tensor]]:
        """Of each batch its objective and the gradient as one long vector, without dropout."""
        machine = replace(self.machine, dtype=dtype)
        with_loss = WithLoss(self.model, label_smoothing=self.label_smoothing).eval()
        for batch in batches:
            self.model.zero_grad(set_to_none=True)
            x, y = on_device(batch, self.machine.device)
            with machine.autocast():
                objective = with_loss(x, y).objective
            objective.backward()
            parts = [p.grad.float().flatten() for p in self.model.parameters() if p.grad is not None]
            yield float(objective.detach()), torch.cat(parts)
        self.model.zero_grad(set_to_none=True)


def joined(windows: Iterable[Batch]) -> Batch:
    inputs, targets = zip(*windows, strict=True)
    return np.concatenate(inputs), np.concatenate(targets)


def look_at(subject: ProbeSubject, checkpoint: Path | None = None) -> Look:
    """The model at the step probed, or in another checkpoint, of a branch."""
    config, weights = subject.config, subject.weights
    if checkpoint is not None:
        weights, state = weights_of(checkpoint)
        config = saved_config(state["config"])
    asked = Config(device=config.device, dtype="float32", threads=config.threads)
    machine = choose_machine(asked, lambda chosen: None, {"threads": subject.choices.get("threads")})
    model = build(replace(config, arch=subject.code), subject.vocab_size)
    fill(model, weights, msg("{folder:code}", str(checkpoint or subject.checkpoint)))
    return Look(model.to(machine.device).eval(), machine, subject.config.label_smoothing)


# --- branches


class Interrupted(KeyboardInterrupt):
    """A branch was stopped by a signal; what it had done is kept."""


@dataclass(frozen=True)
class BranchResult:
    wanted: Branch
    folder: Path
    val: np.ndarray  # loss of each val window that all branches are judged on
    took_s: float


@dataclass
class Branches:
    """All branches of one probing. One that was run before, with the same settings, is not run again."""

    subject: ProbeSubject
    frame: Frame
    tell: Callable[[Message], None] = lambda message: None
    done: dict[str, BranchResult] = field(default_factory=dict)

    def run(self, wanted: Branch) -> BranchResult:
        if wanted.name not in self.done:
            folder = probe_folder(self.subject.folder, self.subject.step, wanted.name)
            self.done[wanted.name] = self._kept(wanted, folder) or self._run(wanted, folder)
        return self.done[wanted.name]

    def reference(self) -> BranchResult:
        return self.run(unchanged(self.frame))

    def _config(self, wanted: Branch, folder: Path) -> Config:
        parent, end = self.subject.config, self.subject.step + wanted.updates
        quiet: Settings = {
            "init_from": self.subject.name,
            "out_dir": str(folder),
            "overwrite": False,
            "sample_interval": 0,
            "wandb_log": False,
            "max_iters": end,
            "eval_only": False,
            "keep_checkpoints": 1,
        }
        if not wanted.changes:
            # The run's own continuation evaluates when the run does: nanoGPT's order draws batches and evaluations from
            # one stream.
            return replace(parent, **quiet, lr_decay_iters=parent.decay_ends)
        once = {"eval_interval": end + 1, "checkpoint_interval": end + 1, "eval_whole": False}
        once["eval_iters"] = min(EVAL_ITERS, parent.eval_iters)
        return replace(parent, **{**quiet, **once, **wanted.changes})

    def _kept(self, wanted: Branch, folder: Path) -> BranchResult | None:
        if not is_run(folder):
            return None
        known = read_run_file(folder).get("config", {})
        skip = ("out_dir", "init_from")  # another path to the same folder is the same branch
        config = asdict(self._config(wanted, folder))
        if any(known.get(key) != value for key, value in config.items() if key not in skip):
            return None
        ended = [event for event in events_since(folder, 0)[0] if isinstance(event, RunEnded)]
        end = checkpoint_folder(folder, self.subject.step + wanted.updates)
        if not ended or ended[-1].why != "finished" or not end.is_dir():
            return None
        return BranchResult(wanted, folder, self.judged(end), ended[-1].wall_s)

    def _run(self, wanted: Branch, folder: Path) -> BranchResult:
        if folder.exists():  # a branch of other settings, or one that was interrupted: ours to replace
            shutil.rmtree(folder)
        self.tell(msg("{name:code}: {words}", wanted.name, wanted.words))
        config = self._config(wanted, folder)
        if wanted.is_wider:
            config = replace(config, init_from=grown_parent(self.subject, folder, config))
        started_at_s = time.perf_counter()
        with closing(Recorder(folder)) as recorder:
            outcome = train(config, self.subject.dataset, folder, recorder, may_refuse=False)
        took_s = time.perf_counter() - started_at_s
        if outcome.why == "stopped":
            raise Interrupted
        end = checkpoint_folder(folder, self.subject.step + wanted.updates)
        if outcome.why == "failed" or not end.is_dir():  # it diverged: the worst that a change can do
            return BranchResult(wanted, folder, np.full(self.frame.windows, np.inf), took_s)
        return BranchResult(wanted, folder, self.judged(end), took_s)

    def judged(self, checkpoint: Path) -> np.ndarray:
        """Losses of those weights, on the same windows for all branches, each window by itself: neither the batch size
        nor the order of the data decides what is compared with what."""
        config, dataset = self.subject.config, self.subject.dataset
        windows = joined(eval_windows(dataset.val, config.block_size, 1, self.frame.windows, JUDGED_SEED))
        return look_at(self.subject, checkpoint).losses(*windows).mean(axis=1)


def keep(branches: Branches, answer: ProbeAnswer) -> ProbeAnswer:
    """Writes the answer beside the branches, for `diagnose`, and a config for each change that is worth making."""
    answer = replace(answer, effects=tuple(replace(each, next=_next(branches, each)) for each in answer.effects))
    path = answer_file(branches.subject.folder, branches.subject.step)
    files.write_whole(path, dumped(msgspec.to_builtins(probe_data(answer))))
    return answer


def _next(branches: Branches, effect: Effect) -> str:
    if not effect.is_clear:
        return ""
    if effect.cause in ("val_differs", "val_in_train", "data_too_little"):
        return "nanolens prepare TEXT... --out=DIR"
    subject, branch = branches.subject, Path(effect.branch)
    if not effect.branch or not (wanted := branches.done[branch.name.partition("-")[2]].wanted).for_the_rest:
        return ""
    path = branch.with_name(branch.name + ".toml")  # one for each change: two of them may fix one cause
    parent = f"{branch}{START}@{subject.step}" if wanted.is_wider else subject.name
    start: Settings = {"init_from": parent, "out_dir": "auto", "overwrite": False}
    config = replace(subject.config, **{**wanted.for_the_rest, **start})
    files.write_whole(path, config_text(config, f"nanolens probe {subject.name}: {say(effect.title)}"))
    return f"nanolens train {path}"


# --- the wider branch


START = "-start"  # behind the branch's name: the folder of the grown weights that it starts from
APART = 0.5  # how far the halves that are read differ, in standard deviations of the matrix


def grown_parent(subject: ProbeSubject, branch: Path, config: Config) -> str:
    """`FOLDER@STEP` of a run whose only content is the subject's checkpoint in twice the width."""
    checkpoint = load(subject.checkpoint)
    folder = branch.with_name(branch.name + START)
    shutil.rmtree(folder, ignore_errors=True)
    optimizer = checkpoint.resuming["optimizer"]
    moments = _grown_moments(optimizer["state"], subject.config, subject.vocab_size)
    resuming = {**checkpoint.resuming, "optimizer": {**optimizer, "state": moments}}
    like_parent = asdict(replace(subject.config, n_embd=config.n_embd, n_head=config.n_head))
    weights = {name: grown(name, tensor) for name, tensor in checkpoint.model.items()}
    snapshot = Snapshot(weights, resuming, {**checkpoint.state, "config": like_parent})
    save(checkpoint_folder(folder, subject.step), snapshot, tokenizer_writer(subject.dataset.tokenizer))
    facts = json.loads((subject.folder / RUN_FILE).read_bytes())
    parent = {"run": str(subject.folder), "step": subject.step}
    run_file = {**facts, "name": folder.name, "config": like_parent, "parent": parent, "sizes": {}}
    files.write_whole(folder / RUN_FILE, json.dumps(run_file, indent=1))
    with closing(Recorder(folder)) as recorder:
        recorder(RunEnded(step=subject.step, why="finished"))
    return f"{folder}@{subject.step}"


def grown(name: str, tensor: Tensor) -> Tensor:
    wide, _, scale = _tiled(name, tensor)
    wide = wide * scale
    if tensor.dim() == 2 and scale != 1:  # it reads channels that are there twice
        half = wide.shape[1] // 2
        generator = torch.Generator().manual_seed(len(name) + tensor.numel())
        apart = APART * float(tensor.std()) * torch.randn(wide.shape[0], half, generator=generator)
        wide[:, :half] += apart
        wide[:, half:] -= apart
    return wide.contiguous()


def _tiled(name: str, tensor: Tensor) -> tuple[Tensor, int, float]:
    """(the tensor repeated, how often each number is in it, what each is multiplied by)."""
    if tensor.dim() == 1:
        rows = tensor.reshape(3, -1).repeat(1, 2).flatten() if name.endswith("qkv.bias") else tensor.repeat(2)
        return rows, 2, 0.5 if name.startswith("norm.") else 1.0  # the last norm feeds the head: it reads both copies
    if name in ("embedding.weight", "position.weight"):
        return tensor.repeat(1, 2), 2, 1.0
    parts = 3 if name.endswith("qkv.weight") else 1
    return tensor.reshape(parts, -1, tensor.shape[1]).repeat(1, 2, 1).flatten(0, 1).repeat(1, 2), 4, 0.5


def _grown_moments(
    saved: dict[int, dict[str, Tensor]], config: Config, vocab_size: int
) -> dict[int, dict[str, Tensor]]:
    """Adam's, by the number of the parameter in the optimizer."""
    model = build(config, vocab_size)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = build_optimizer(model, config).param_groups
    order = [names[id(parameter)] for group in groups for parameter in group["params"]]
    state = {}
    for index, moments in saved.items():
        state[index] = {"step": moments["step"]}
        for power, moment in enumerate(("exp_avg", "exp_avg_sq"), 1):
            wide, times, scale = _tiled(order[index], moments[moment])
            state[index][moment] = (wide * (1.0 / (times * scale)) ** power).contiguous()
    return state
