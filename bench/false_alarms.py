"""How often does the diagnosis cry wolf, and how often does it miss the wolf? Runs made for the purpose, from seeds.

    python bench/false_alarms.py [--only NAME] [--seed N] [--write docs/diagnosis.md]

Healthy: small runs of our own (seeds, presets, both architectures and optimizers, schedules, dropout, batch shapes),
each also cut at random steps. None may get a fault of sureness certain or likely. Faulty: the same runs with one thing
broken on purpose; the first finding must name it. Step times are taken from the processor's clock, so that other
programs on the machine do not look like throttling."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")

import msgspec
import torch

from nanolens.config.fields import Config
from nanolens.config.load import named_preset
from nanolens.data.store import Dataset, open_dataset
from nanolens.diagnosis import diagnose, is_fault
from nanolens.facts.finding import Finding
from nanolens.model import gpt2, modern
from nanolens.record import is_run
from nanolens.record.events import StepSkipped
from nanolens.record.read import read_run
from nanolens.record.run import RunRecord, until
from nanolens.record.write import Recorder
from nanolens.training import feed, loop, optimizers, state, step

BASE: dict[str, Any] = {
    "dataset": "pydocs",
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 64,
    "block_size": 32,
    "batch_size": 12,
    "gradient_accumulation_steps": 1,
    "learning_rate": 4e-3,
    "min_lr": 4e-4,
    "beta2": 0.99,
    "warmup_iters": 20,
    "max_iters": 300,
    "lr_decay_iters": None,
    "eval_interval": 50,
    "eval_iters": 10,
    "sample_interval": 0,
    "checkpoint_interval": 10**6,
    "compile": False,
    "device": "cpu",
    "dtype": "float32",
    "threads": 1,
}
TINY_TOKENS = 3_000


@dataclass(frozen=True)
class Made:
    """A run to be made: settings on top of BASE, what is broken in it, and the codes of which the first finding must be
    one."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    broken: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext
    dataset: Callable[[Dataset], Dataset] = lambda dataset: dataset
    expected: tuple[str, ...] = ()
    then: Callable[[Path], None] | None = None  # a second attempt in the same folder
    blind: tuple[str, ...] = ()  # what its curves alone must say, where the checks before the first step say it too


def preset(name: str, steps: int) -> Made:
    """A preset on the text that needs no download, its schedule shortened with it."""
    known = named_preset(name)
    assert known is not None
    shorter = {
        "dataset": "pydocs",
        "max_iters": steps,
        "lr_decay_iters": None,
        "eval_interval": steps // 6,
        "eval_iters": 10,
    }
    return Made(
        f"preset {name}", {**known.values, **shorter, "warmup_iters": min(20, int(known.values.get("warmup_iters", 0)))}
    )  # type: ignore[call-overload]


SEEDS = (11, 12)  # of the runs that are made twice
HEALTHY = (
    *(Made(f"gpt2, seed {seed}", {"seed": seed}) for seed in (*SEEDS, 13)),
    *(
        Made(f"modern with Muon, seed {seed}", {"arch": "modern", "optimizer": "muon", "ngram_rows": 512, "seed": seed})
        for seed in SEEDS
    ),
    preset("quickstart", 150),
    preset("shakespeare-fast", 150),
    preset("shakespeare-char-cpu", 300),
    Made("modern with AdamW", {"arch": "modern", "ngram_rows": 0, "learning_rate": 3e-3}),
    Made("modern, whole val", {"arch": "modern", "ngram_rows": 512, "eval_whole": False, "eval_iters": 20}),
    *(Made(f"dropout {dropout}", {"dropout": dropout}) for dropout in (0.1, 0.2)),
    Made("modern with dropout", {"arch": "modern", "ngram_rows": 512, "dropout": 0.1}),
    Made("wsd schedule", {"schedule": "wsd"}),
    Made("linear schedule", {"schedule": "linear", "min_lr": 0.0}),
    Made("constant rate", {"decay_lr": False, "learning_rate": 1e-3}),
    Made("low rate", {"learning_rate": 6e-4, "min_lr": 6e-5}),
    Made("high rate", {"learning_rate": 5e-3, "min_lr": 5e-4}),
    Made("with biases", {"bias": True}),
    Made("four micro-batches", {"batch_size": 4, "gradient_accumulation_steps": 4}),
    Made("small batch", {"batch_size": 4, "max_iters": 450}),
    Made("large batch", {"batch_size": 32, "max_iters": 200}),
    Made("short context", {"block_size": 32, "batch_size": 32}),
    Made("four layers", {"n_layer": 4, "n_embd": 64, "max_iters": 300}),
    Made("no weight decay", {"weight_decay": 0.0}),
    Made("nanoGPT's order", {"data_order": "nanogpt"}),
    Made("long", {"max_iters": 700, "eval_interval": 100}),
)


# --- what can be broken


@contextlib.contextmanager
def batches(change: Callable[[int, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]) -> Iterator[None]:
    """The training batches, changed by `change(sample, x, y)`. Evaluations are left alone."""
    plain = feed.ShuffledFeed.take
    with patch.object(feed.ShuffledFeed, "take", lambda self, sample: change(sample, *plain(self, sample))):
        yield


def shuffled_labels() -> contextlib.AbstractContextManager:
    def change(sample: int, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        order = torch.randperm(y.numel(), generator=torch.Generator().manual_seed(sample))
        return x, y.flatten()[order].view_as(y)

    return batches(change)


def same_batches() -> contextlib.AbstractContextManager:
    """A sampler that starts anew at each step: two batches for ever."""
    plain = feed.ShuffledFeed.take
    return patch.object(feed.ShuffledFeed, "take", lambda self, sample: plain(self, sample % 32))


def attention_is(other: Callable[..., torch.Tensor]) -> contextlib.AbstractContextManager:
    stack = contextlib.ExitStack()
    for model in (gpt2, modern):
        stack.enter_context(patch.object(model, "causal_attention", other))
    return stack


def without_mask() -> contextlib.AbstractContextManager:
    return attention_is(
        lambda q, k, v, dropout=0.0: torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
    )


def without_attention() -> contextlib.AbstractContextManager:
    """A kernel that returns zeros."""
    return attention_is(lambda q, k, v, dropout=0.0: torch.zeros_like(v) * q.sum())


@contextlib.contextmanager
def at_step(number: int, act: Callable[[state.Trainee], None], *, for_ever: bool = False) -> Iterator[None]:
    """`act` on the trainee before the update of a step."""
    plain = step.take_update

    def acted(one: state.Trainee, *rest: Any) -> Any:
        if one.progress.step == number or (for_ever and one.progress.step > number):
            act(one)
        return plain(one, *rest)

    with patch.object(loop, "take_update", acted):
        yield


def blown_up(factor: float) -> Callable[[state.Trainee], None]:
    @torch.no_grad()
    def act(one: state.Trainee) -> None:
        for parameter in one.model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(factor)

    return act


@contextlib.contextmanager
def rate_times(factor: float, since: int) -> Iterator[None]:
    plain = step.lr_at
    with patch.object(step, "lr_at", lambda config, at: plain(config, at) * (factor if at >= since else 1)):
        yield


@contextlib.contextmanager
def overflow(since: int) -> Iterator[None]:
    """What float16 does beyond 65,504: the loss of each batch is infinite from a step on."""
    plain = step.gather_gradients

    def gathered(one: state.Trainee, *rest: Any) -> Any:
        found = plain(one, *rest)
        return dataclasses.replace(found, loss=found.loss * float("inf")) if one.progress.step >= since else found

    with patch.object(step, "gather_gradients", gathered):
        yield


@contextlib.contextmanager
def slower(growth: float, steps: int) -> Iterator[None]:
    """Steps that burn ever more processor time, as a throttled core does."""
    plain = step.gather_gradients
    measured: list[float] = []

    def gathered(one: state.Trainee, *rest: Any) -> Any:
        started = time.process_time()
        found = plain(one, *rest)
        measured.append(time.process_time() - started)
        usual = sorted(measured[:40])[len(measured[:40]) // 2]
        while time.process_time() - started < usual * (1 + growth * one.progress.step / steps):
            pass
        return found

    with patch.object(step, "gather_gradients", gathered):
        yield


@contextlib.contextmanager
def waiting_for_data(share: float) -> Iterator[None]:
    plain = feed.ShuffledFeed.take

    def take(self: Any, sample: int) -> Any:
        until_s = time.process_time() + share
        while time.process_time() < until_s:
            pass
        return plain(self, sample)

    with patch.object(feed.ShuffledFeed, "take", take):
        yield


@contextlib.contextmanager
def summed_loss() -> Iterator[None]:
    """The classic slip: the loss that is reported is added up over micro-batches and never divided."""
    plain = step.take_update

    def reported(one: state.Trainee, config: Config, *rest: Any) -> Any:
        update = plain(one, config, *rest)
        if isinstance(update, StepSkipped):
            return update
        return msgspec.structs.replace(update, loss=update.loss * config.gradient_accumulation_steps)

    with patch.object(loop, "take_update", reported):
        yield


@contextlib.contextmanager
def frozen_blocks() -> Iterator[None]:
    plain = optimizers.build_optimizer

    def made(model: torch.nn.Module, *rest: Any, **named: Any) -> Any:
        for name, parameter in model.named_parameters():
            if "block" in name or name.startswith("h."):
                parameter.requires_grad_(False)
        return plain(model, *rest, **named)

    from nanolens.training import setup

    with patch.object(setup, "build_optimizer", made):
        yield


def no_update() -> contextlib.AbstractContextManager:
    """An optimizer that holds other parameters than the model's: its steps change nothing."""

    def act(one: state.Trainee) -> None:
        one.optimizer.step = lambda closure=None: None  # type: ignore[method-assign, assignment, misc]

    return at_step(0, act)


def few_tokens(dataset: Dataset) -> Dataset:
    return dataclasses.replace(
        dataset, train=dataset.train[:TINY_TOKENS], facts={**dataset.facts, "dataset_tokens": TINY_TOKENS}
    )


def val_is_train(dataset: Dataset) -> Dataset:
    small = few_tokens(dataset)
    return dataclasses.replace(small, val=small.train)


def resumed_afresh(folder: Path) -> None:
    """A resume that took up step, optimizer and data, and not the weights: they are drawn anew."""
    plain = state.Trainee.restore

    @torch.no_grad()
    def restore(self: state.Trainee, checkpoint: Any) -> None:
        plain(self, checkpoint)
        for parameter in self.model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))

    with patch.object(state.Trainee, "restore", restore):
        make(
            Made("", {"init_from": "resume", "max_iters": 300, "checkpoint_interval": 150}),
            folder,
            seed=read_run(folder).get("seed"),
        )


QUICK = {"arch": "modern", "optimizer": "muon", "ngram_rows": 512}  # learns fast: what is wrong shows within 300 steps
MEMORISING = {**QUICK, "max_iters": 400, "eval_interval": 20}

FAULTY = tuple(
    dataclasses.replace(made, name=f"{made.name}, seed {seed}", settings={**made.settings, "seed": seed})
    for made in (
        Made("learning rate x30", {"learning_rate": 6e-2, "min_lr": 6e-3}, expected=("lr_too_high",)),
        Made("learning rate x100", {"learning_rate": 0.2, "min_lr": 0.02}, expected=("lr_too_high",)),
        Made(
            "no warm-up at a high rate",
            {"learning_rate": 5e-2, "warmup_iters": 0},
            expected=("lr_too_high", "lr_schedule_mismatch"),
        ),
        Made("learning rate / 1000", {"learning_rate": 2e-6, "min_lr": 2e-7}, expected=("lr_too_low",)),
        Made("learning rate 0", {"learning_rate": 0.0, "min_lr": 0.0}, expected=("lr_zero",)),
        Made(
            "warm-up longer than the run",
            {"warmup_iters": 4000, "lr_decay_iters": 5000},
            expected=("lr_schedule_mismatch",),
        ),
        Made("decay much longer than the run", {"lr_decay_iters": 20_000}, expected=("lr_schedule_mismatch",)),
        Made("tiny data, many passes", MEMORISING, dataset=few_tokens, expected=("overfitting",)),
        Made("val copied from train", MEMORISING, dataset=val_is_train, expected=("val_leak",), blind=("val_leak",)),
        Made("shuffled labels", {}, shuffled_labels, expected=("collapse_to_unigram",)),
        Made("causal mask off", QUICK, without_mask, expected=("attention_bug",), blind=("attention_bug",)),
        Made(
            "attention returns zeros",
            {"max_iters": 900, "eval_interval": 75},
            without_attention,
            expected=("frozen_parameters",),
            blind=("bigram_plateau",),
        ),
        Made("frozen blocks", {}, frozen_blocks, expected=("frozen_parameters",)),
        Made("optimizer holds other weights", {}, no_update, expected=("dead_init",)),
        Made("the same two batches", {}, same_batches, expected=("data_repeated",)),
        Made(
            "weights blown up at step 200",
            {},
            lambda: at_step(200, blown_up(6.0)),
            expected=("grad_explosion", "loss_divergence"),
        ),
        Made(
            "rate x60 from step 200 on",
            {"decay_lr": False},
            lambda: rate_times(60, 200),
            expected=("loss_divergence", "lr_too_high"),
        ),
        Made("float16 overflow", {"dtype": "float16"}, lambda: overflow(150), expected=("fp16_overflow",)),
        Made("NaN in float32", {}, lambda: overflow(150), expected=("nan_divergence",)),
        Made("throttled steps", {}, lambda: slower(0.8, 300), expected=("throttling_suspected",)),
        Made("evaluation every 3 steps", {"eval_interval": 3, "max_iters": 150}, expected=("eval_dominates_time",)),
        Made(
            "loss summed over micro-batches",
            {"batch_size": 4, "gradient_accumulation_steps": 4},
            summed_loss,
            expected=("grad_accum_loss_scaling",),
        ),
        Made("waiting for data", {"max_iters": 200}, lambda: waiting_for_data(0.03), expected=("input_bound",)),
        Made(
            "resumed without the weights",
            {"max_iters": 150, "lr_decay_iters": 300, "checkpoint_interval": 150},
            then=resumed_afresh,
            expected=("resume_discontinuity",),
        ),
    )
    for seed in SEEDS
)


# --- making and judging


def make(made: Made, folder: Path, seed: object = None) -> RunRecord:
    settings = {**BASE, "seed": 100 + len(made.name), **made.settings, "out_dir": str(folder)}
    settings["seed"] = settings["seed"] + int(os.environ.get(SEED, "0")) if seed is None else seed
    config = Config(**settings)
    dataset = made.dataset(open_dataset(config.dataset))
    processor = SimpleNamespace(**{**time.__dict__, "perf_counter": time.process_time})
    recorder = Recorder(folder)
    with contextlib.ExitStack() as stack:
        for module in ("state", "step", "evaluate"):
            stack.enter_context(patch(f"nanolens.training.{module}.time", processor))
        stack.enter_context(patch("nanolens.training.machine.measured_peak", lambda *rest, **named: 2e10))
        stack.enter_context(made.broken())
        try:
            loop.train(config, dataset, folder, recorder, may_refuse=False)
        finally:
            recorder.close()
    if made.then is not None:
        made.then(folder)
    return read_run(folder)


@dataclass(frozen=True)
class Verdict:
    made: Made  # between processes its number: what breaks a run cannot be sent
    first: Finding | None
    faults: list[Finding]
    cut: int | None = None
    is_blind: bool = False  # judged without the word of the checks before the first step

    @property
    def expected(self) -> tuple[str, ...]:
        return self.made.blind if self.is_blind else self.made.expected

    @property
    def is_right(self) -> bool:
        if not self.expected:
            return not self.faults
        return self.first is not None and self.first.code in self.expected


def judged(made: Made, run: RunRecord, cut: int | None = None) -> Verdict:
    findings = diagnose(run if cut is None else until(run, cut)).findings
    faults = [finding for finding in findings if is_fault(finding)]
    sure = [finding for finding in findings if finding.sureness != "possible"]
    return Verdict(made, faults[0] if faults else sure[0] if sure else None, faults, cut)


def verdicts_of(number: int) -> list[Verdict]:
    """The run of that number, whole, and where it is healthy also cut at three random steps."""
    torch.set_num_threads(1)
    made, draw = ALL[number], random.Random(number)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(os.environ.get(KEEP) or folder, made.name.replace(" ", "-").replace("/", "by"))
        if not is_run(place):
            begun = place.with_name(place.name + ".begun")  # one that was broken off is not taken for a run
            shutil.rmtree(begun, ignore_errors=True)
            if make(made, begun).get("state") == "stopped":
                raise SystemExit(f"stopped while {made.name!r} was made")
            begun.rename(place)
        run = read_run(place)
    cuts = [draw.randint(20, int(run.steps.step[-1]) - 1) for _ in range(3)] if not made.expected else []
    found = [judged(made, run, cut) for cut in (None, *cuts)]
    if made.blind:
        unwarned = dataclasses.replace(run, marks=tuple(mark for mark in run.marks if mark.kind != "warned"))
        found.append(dataclasses.replace(judged(made, unwarned), is_blind=True))
    return [dataclasses.replace(verdict, made=number) for verdict in found]


ALL = (*HEALTHY, *FAULTY)
# a folder in which runs are kept, and found the next time: rules can change without training anew
KEEP = "FALSE_ALARMS_RUNS"

SEED = "FALSE_ALARMS_SEED"  # is added to the seed of every run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", default="", help="runs whose name holds this, or one of several; separated by semicolons"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument(
        "--seed", type=int, default=0, help="is added to the seed of every run: other runs of the same kinds"
    )
    parser.add_argument(
        "--write", type=Path, help="a Markdown file whose part between the marks is replaced by the table"
    )
    given = parser.parse_args()
    os.environ[SEED] = str(given.seed)
    open_dataset("pydocs")  # prepared once, before the processes start
    started = time.monotonic()
    verdicts: list[Verdict] = []
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        for found in pool.map(
            verdicts_of,
            [number for number, made in enumerate(ALL) if any(part in made.name for part in given.only.split(";"))],
        ):
            for verdict in found:
                verdicts.append(dataclasses.replace(verdict, made=ALL[verdict.made]))  # type: ignore[call-overload]
                if not verdicts[-1].is_right or verdict.cut is None:
                    print(line_of(verdicts[-1]), flush=True)
    healthy = [v for v in verdicts if not v.made.expected]
    faulty = [v for v in verdicts if v.made.expected]
    right, alarms = sum(v.is_right for v in faulty), sum(not v.is_right for v in healthy)
    print(f"healthy: {alarms} false alarms in {len(healthy)} verdicts on {sum(v.cut is None for v in healthy)} runs")
    print(f"faulty: {right} of {len(faulty)} named, the right cause first; {time.monotonic() - started:.0f} s")
    if given.write:
        write_table(given.write, healthy, faulty)
    return 0 if alarms == 0 and (not faulty or right / len(faulty) >= 0.95) else 1


def line_of(verdict: Verdict) -> str:
    said = verdict.first.code if verdict.first else "-"
    where = f" cut at {verdict.cut}" if verdict.cut is not None else ", by its curves alone" if verdict.is_blind else ""
    wanted = " or ".join(verdict.expected) or "no fault"
    others = ", ".join(f"{finding.code} ({finding.sureness})" for finding in verdict.faults)
    return (
        f"{'right' if verdict.is_right else 'WRONG'}  {verdict.made.name}{where}: {said}; wanted {wanted}; "
        f"faults: {others or 'none'}"
    )


def write_table(path: Path, healthy: list[Verdict], faulty: list[Verdict]) -> None:
    """Between two marks, so that the words around the table stay."""
    rows = ["| what was broken | wanted | runs | named first |", "|---|---|---|---|"]
    kinds: dict[str, list[Verdict]] = {}
    for verdict in faulty:
        name = verdict.made.name.rpartition(", seed")[0] + (", by its curves alone" if verdict.is_blind else "")
        kinds.setdefault(name, []).append(verdict)
    for name, group in kinds.items():
        wanted = " or ".join(f"`{code}`" for code in group[0].expected)
        rows.append(f"| {name} | {wanted} | {len(group)} | {sum(v.is_right for v in group)} |")
    alarms = sum(not v.is_right for v in healthy)
    head = (
        f"{alarms} false alarms in {len(healthy)} verdicts on {sum(v.cut is None for v in healthy)} healthy runs, "
        f"whole and cut at random steps; "
        f"{sum(v.is_right for v in faulty)} of {len(faulty)} verdicts on {sum(not v.is_blind for v in faulty)} "
        f"faulty runs name the right cause first."
    )
    begin, end = "<!-- false alarms: begin -->", "<!-- false alarms: end -->"
    text = path.read_text(encoding="utf-8") if path.exists() else f"{begin}\n{end}\n"
    before, _, rest = text.partition(begin)
    path.write_text(
        before + begin + "\n" + head + "\n\n" + "\n".join(rows) + "\n" + end + rest.partition(end)[2], encoding="utf-8"
    )


if __name__ == "__main__":
    sys.exit(main())
