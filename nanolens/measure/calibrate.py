"""The plan's calibration: a few seconds of a config's own model here, trained by the trainer's own loop, whose events
say what an update, an evaluation, a checkpoint, a sample and the start take.

Two micro-batch sizes give time and memory of any other. A model whose update takes seconds is tried with one and with a
few layers, and the rest follows from the difference: blocks are alike. Each trial has a process of its own where that
costs nothing, and elsewhere the smaller trial comes first."""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from nanolens.config.fields import Config
from nanolens.data.store import Dataset
from nanolens.measure import Values, ask, timed
from nanolens.message import Message, msg
from nanolens.planning.figures import Calibration
from nanolens.record import events as e
from nanolens.sizing.shape import flops_per_token, parameters, shape_of
from nanolens.training.machine import Machine, choose_machine, measured_peak, relative_error, with_peak

BUDGET_S = 6.0  # of timed work; building the model and importing libraries come on top
CALIBRATION_PATIENCE_S = 180.0
OUT_OF_MEMORY = ("MemoryError", "can't allocate memory", "out of memory")  # signs of it on stderr
EFFICIENCY_GUESS = 0.5  # of the fastest matrix product, for guessing what a measurement will take
LONGEST_WHOLE_UPDATE_S = 2.0  # of the whole model at the configured micro-batch; above, fewer layers are tried
TRIAL_UPDATES = (4, 300)  # with fewer, the one that a checkpoint is written beside would count for half
QUICK_S = 0.1  # an update that takes less has its forward pass timed more often
TRIAL_STATE_BYTES = 28.0  # per parameter: weight, gradient, two moments, and the copy for a checkpoint
BY_PARAMETERS = ("optimizer_s", "stall_s", "begin_s", "end_s")  # of a trial; they grow with the model


def calibrate(config: Config, vocab_size: int, dataset: str = "") -> Calibration | Message:
    """The measurement, or why there is none. `dataset` is the prepared folder, where there is one."""
    started_at_s = time.time()
    question = {"vocab_size": vocab_size, "dataset": dataset, "started_at_s": started_at_s}
    reply = ask("calibrate", config, question, patience_s=CALIBRATION_PATIENCE_S)
    if reply.answers:
        return msgspec.convert({**reply.answers[0], "took_s": time.time() - started_at_s}, Calibration)
    if reply.is_late:
        spent_s = CALIBRATION_PATIENCE_S
        return msg("measurement stopped after {seconds:seconds}: this model is too slow for this machine", spent_s)
    if reply.code < 0 or any(sign in reply.problem for sign in OUT_OF_MEMORY):
        problem = reply.problem if reply.code >= 0 else f"signal {-reply.code}"
        return msg("the measurement ran out of memory: this model does not fit on this machine ({problem})", problem)
    return msg("the measurement failed: {problem}", reply.problem)


# --- in the measuring process


@dataclass(frozen=True)
class TrialResult:
    layers: int
    size: int
    micro_s: float  # forward and backward of one micro-batch
    forward_s: float  # of one evaluation batch
    optimizer_s: float
    stall_s: float  # the loop standing still for a checkpoint
    sample_s: float
    begin_s: float  # from the call to the first update: model, checks, first checkpoint
    end_s: float  # from the last update to the return
    scatter: float
    memory_bytes: float


def measured(config: Config, question: Values) -> Iterator[tuple[str, Values]]:
    """The worker's half: everything that a `Calibration` holds."""
    machine = choose_machine(config, lambda event: None)
    imported_s = time.time() - question["started_at_s"]
    peak = timed.alone(machine, lambda: measured_peak(machine))
    base = timed.peak_bytes(machine)
    is_cpu = machine.device.type == "cpu"
    config = dataclasses.replace(
        config,
        init_from="scratch",
        vocab_size=question["vocab_size"],
        compile=False if is_cpu else config.compile,
        warmup_iters=0,
        eval_whole=False,
        keep_checkpoints=1,
        overwrite=False,
    )
    data = timed.opened(question["dataset"], config, question["vocab_size"])
    with tempfile.TemporaryDirectory(prefix="nanolens-plan-") as folder:
        libraries = timed.library_bytes()
        results = [
            timed.alone(machine, partial(_run, trial, budget_s, data, machine, Path(folder, str(i)), libraries))
            for i, (trial, budget_s) in enumerate(_trials(config, peak))
        ]
    whole = _of_whole_model(results, config, base)
    size, micro_s = whole["micro_s"][-1]
    whole |= {
        "peak_flops": peak if is_cpu else with_peak(machine).peak_flops,
        "achieved_flops": flops_per_token(shape_of(config)).training * config.block_size * size / micro_s,
        "start_s": imported_s + whole["begin_s"],
        "scatter": max(result.scatter for result in results),
        "layers_timed": sorted({result.layers for result in results}),
    }
    yield "calibrated", whole


def _trials(config: Config, peak: float) -> list[tuple[Config, float]]:
    """Miniature runs and the seconds that each may take, in the order of growing memory."""
    # From two micro-batches on, gradients wait in memory and the micro-batches' norms are taken.
    accumulation = min(2, config.gradient_accumulation_steps)

    def cost_s(layers: int, size: int) -> float:
        shape = shape_of(dataclasses.replace(config, n_layer=layers))
        return flops_per_token(shape).training * size * config.block_size / (EFFICIENCY_GUESS * peak)

    def trial(layers: int, size: int, budget_s: float, is_main: bool) -> tuple[Config, float]:
        """`is_main`: at the configured size, or nearest to it; this one also writes a sample."""
        update_s = cost_s(layers, size) * accumulation
        fewest, most = TRIAL_UPDATES
        updates = min(most, max(fewest, int(budget_s / update_s)))
        small = dataclasses.replace(
            config,
            n_layer=layers,
            batch_size=size,
            gradient_accumulation_steps=accumulation,
            max_iters=updates,
            lr_decay_iters=updates,
            eval_interval=updates,
            eval_iters=1 if layers < config.n_layer else 10 if update_s < QUICK_S else 3,
            # Halfway, so that its writing is in the peak of memory and not in the median of the times; and at the end.
            checkpoint_interval=max(2, updates // 2),
            sample_interval=None if config.sample_interval != 0 and is_main else 0,
        )
        return small, budget_s

    size = config.batch_size
    if cost_s(config.n_layer, size) <= LONGEST_WHOLE_UPDATE_S:
        tried = sorted({max(1, size // 2), size if size > 1 else 2})
        # The configured size is what the plan rests on; the other one only says how time and memory go with it.
        return [trial(config.n_layer, each, BUDGET_S * (0.7 if each == size else 0.3), each == size) for each in tried]
    while size > 1 and cost_s(2, size) > LONGEST_WHOLE_UPDATE_S:
        size //= 2
    # The more layers, the less the scatter of the two counts when all layers are reckoned from them. Beside a large
    # head they cost little.
    deep, most_s = min(2, config.n_layer), max(LONGEST_WHOLE_UPDATE_S, 2 * cost_s(1, size))
    while deep < config.n_layer and cost_s(deep + 1, size) <= most_s:
        deep += 1
    return [trial(layers, size, BUDGET_S / 2, layers == deep) for layers in sorted({1, deep})]


def _run(
    config: Config, budget_s: float, data: Dataset, machine: Machine, folder: Path, libraries: float
) -> TrialResult:
    """`libraries`: bytes of their pages that were in memory before the trial had its own process."""
    began_at_s, at_least = time.time(), (config.checkpoint_interval or 0) + 2
    events, _ = timed.short_run(config, data, folder, budget_s=budget_s, at_least=at_least, may_refuse=False)
    ended_at_s, memory_bytes = time.time(), timed.peak_bytes(machine) + timed.not_counted(libraries)
    steps, times = timed.steps_of(events), timed.update_times(events)
    optimizer_s = timed.TimedModel(config, data).optimizer_s()
    evals = [event for event in events if isinstance(event, e.Evaluated)]
    stalls = [event.stall_s for event in events if isinstance(event, e.CheckpointSaved) and event.step]
    samples = [event.took_s for event in events if isinstance(event, e.SampleWritten)]
    batches = max(1, len(evals[0].batch_losses))
    before_s = sum(event.took_s for event in evals[:2]) + sum(samples[:1])
    is_whole = len(evals) > 2  # not stopped before the last evaluation
    after_s = sum(event.took_s for event in evals[2:]) + sum(samples[1:]) if is_whole else 0.0
    return TrialResult(
        layers=config.n_layer,
        size=config.batch_size,
        micro_s=max(1e-6, (statistics.median(times) - optimizer_s) / config.gradient_accumulation_steps),
        forward_s=statistics.median(event.took_s / batches for event in evals),
        optimizer_s=optimizer_s,
        stall_s=statistics.median(stalls or [0.0]),
        sample_s=statistics.median(samples or [0.0]),
        begin_s=max(0.0, steps[0].at_s - steps[0].took_s - began_at_s - before_s),
        end_s=max(0.0, ended_at_s - steps[-1].at_s - after_s),
        scatter=relative_error(times),
        memory_bytes=memory_bytes,
    )


def _of_whole_model(results: list[TrialResult], config: Config, base: float) -> Values:
    """The trials as figures of the whole model."""
    last = results[-1]
    if last.layers < config.n_layer:
        return _deepened(results[0], last, config, base)
    chosen = next((result for result in results if result.size == config.batch_size), last)
    by_size = {
        name: [(result.size, getattr(result, name)) for result in results]
        for name in ("micro_s", "forward_s", "memory_bytes")
    }
    return by_size | {name: getattr(chosen, name) for name in (*BY_PARAMETERS, "sample_s")}


def _deepened(few: TrialResult, many: TrialResult, config: Config, base: float) -> Values:
    """From one layer and a few to all of them."""
    total = parameters(shape_of(config)).total
    timed_total = parameters(shape_of(dataclasses.replace(config, n_layer=many.layers))).total

    def at_depth(name: str) -> float:
        one, other = getattr(few, name), getattr(many, name)
        each = max(0.0, other - one) / (many.layers - few.layers) if many.layers > few.layers else 0.0
        return one + (config.n_layer - few.layers) * each

    memory = at_depth("memory_bytes")
    return {
        "micro_s": [(many.size, at_depth("micro_s"))],
        "forward_s": [(many.size, at_depth("forward_s"))],
        "memory_bytes": [(0, min(base + TRIAL_STATE_BYTES * total, memory)), (many.size, memory)],
        "sample_s": at_depth("sample_s"),
        **{name: getattr(many, name) * total / timed_total for name in BY_PARAMETERS},
    }
