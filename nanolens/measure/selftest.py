"""What can only be checked on the user's own machine: each check trains small models there and compares numbers. It
passes, fails or is left out with a reason, and the report is made to be pasted into an issue."""

from __future__ import annotations

import math
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from statistics import fmean

import psutil

from nanolens.config.fields import Config
from nanolens.config.load import load
from nanolens.data.store import open_dataset
from nanolens.errors import UserError
from nanolens.measure import Values, ask
from nanolens.measure.timed import Emit, short_run, steps_of, update_times
from nanolens.message import Message, msg
from nanolens.planning.memory import memory_of
from nanolens.record import STOP_FILE, checkpoint_folder
from nanolens.record import events as e
from nanolens.session.detach import raise_if_signalled
from nanolens.sizing.shape import flops_per_token, shape_of
from nanolens.training.checkpoint import verify, weights_of
from nanolens.training.machine import choose_machine, measured_peak, most_resident, with_peak

Outcome = tuple[bool | None, Message]  # whether the check passed (None: it was left out), and what was seen
_STATE_OF = {True: "ok", False: "failed", None: "skipped"}
SMALL = replace(
    load("shakespeare-char-cpu").config,
    dataset="pydocs",
    beta2=0.95,
    warmup_iters=10,
    max_iters=60,
    lr_decay_iters=60,
    eval_interval=30,
    eval_iters=4,
    sample_interval=0,
    always_save_checkpoint=True,
)
LARGER = replace(
    SMALL, n_layer=6, n_head=6, n_embd=384, block_size=256, batch_size=16, max_iters=8, eval_interval=1000, eval_iters=1
)
BUSY_S, BUSY_UPDATES = 8.0, 6  # how long speed is measured, at least
MEMORY_PATIENCE_S = 600.0

# Relative differences of the loss that rounding explains on a healthy machine. float32: sums in another order, over 60
# updates; 16 bits: the mantissa has 8 or 11 bits, and the losses of the 60 updates drift apart accordingly.
SAME_FLOAT32, SAME_16_BIT = 2e-3, 2e-2
MEMORY_ABOVE_PLAN, MEMORY_BELOW_PLAN = 1.25, 0.5
NO_COMPILER = ("invalidcxxcompiler", "no working c++ compiler", "compiler not found", "cannot find a working triton")
MFU_MOST = 1.05  # more than the peak means that the peak or the FLOPs are wrong


@dataclass(frozen=True)
class Check:
    name: Message
    state: str  # "ok", "failed" or "skipped"
    said: Message
    took_s: float = 0.0


@dataclass
class Report:
    device: str
    machine: dict[str, object] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return all(check.state != "failed" for check in self.checks)


def selftest(device: str, tell: Callable[[Check], None]) -> Report:
    """Runs every check on `device` ("auto" for the one that training would take), telling each result as it comes."""
    bench = _Bench(device)
    report = Report(str(bench.machine.device), bench.facts())
    for name, check in CHECKS:
        started_at_s = time.perf_counter()
        try:
            passed, said = check(bench)
        except Exception as error:  # a check that breaks is a result: it is what the report is for
            passed, said = False, msg("{error}", _error(error))
        done = Check(name, _STATE_OF[passed], said, time.perf_counter() - started_at_s)
        report.checks.append(done)
        tell(done)
    return report


class _Bench:
    """The device under test, the text to train on, and ways to train on it."""

    def __init__(self, device: str):
        config = replace(SMALL, device=device)
        self.machine = with_peak(choose_machine(config, lambda chosen: None))
        self.config = replace(config, device=str(self.machine.device), dtype="float32")
        self.dataset = open_dataset(config.dataset)

    def facts(self) -> dict[str, object]:
        machine = self.machine
        return {
            **{package: version(package) for package in ("nanolens", "torch")},
            "python": platform.python_version(),
            "system": platform.platform(),
            "hardware": machine.hardware,
            "device": str(machine.device),
            **{key: getattr(machine, key) for key in ("dtype", "threads", "memory_bytes", "peak_flops", "peak_origin")},
        }

    def train(
        self, config: Config, folder: Path | None = None, emit: Emit = lambda event: None, budget_s: float = math.inf
    ) -> list[e.Event]:
        events, outcome = short_run(config, self.dataset, folder, emit, budget_s=budget_s, at_least=BUSY_UPDATES)
        raise_if_signalled(outcome.signal)
        if outcome.why == "failed":
            raise RuntimeError(str(outcome.because))
        return events

    @cached_property
    def plain(self) -> list[e.Event]:
        """What the others are compared with: float32, not compiled."""
        return self.train(self.config)


def _parity(bench: _Bench) -> Outcome:
    here = _losses(bench.plain)
    if bench.machine.device.type == "cpu":
        other = replace(bench.config, threads=1 if bench.machine.threads > 1 else 2)
        what = msg("the same run with a different number of threads")
    else:
        other, what = replace(bench.config, device="cpu"), msg("the same run on the CPU")
    gap = _gap(here, _losses(bench.train(other)))
    said = msg(
        "{steps:count update|updates} in float32, losses within {gap:rough_rate} (relative) of {what}; last loss "
        "{loss:nats}",
        len(here),
        gap,
        what,
        here[-1],
    )
    return gap <= SAME_FLOAT32 and here[-1] < 0.9 * here[0], said


def _sixteen_bits(dtype: str, bench: _Bench) -> Outcome:
    # A CPU without 16-bit arithmetic of its own emulates it, at a thirtieth of the speed: there half the updates do.
    updates = bench.config.max_iters // (2 if bench.machine.device.type == "cpu" else 1)
    exact, rough = bench.plain, bench.train(replace(bench.config, dtype=dtype, max_iters=updates))
    # The last ten: a GradScaler may skip the first updates of float16 while it finds its scale.
    gap = abs(fmean(_losses(rough)[-10:]) / fmean(_losses(exact)[updates - 10 : updates]) - 1)
    said = msg(
        "last losses within {gap:rough_rate} (relative) of float32, {skipped:count update|updates} skipped, "
        "{speed:times} its speed",
        gap,
        sum(isinstance(event, e.StepSkipped) for event in rough),
        _speed(rough) / _speed(exact),
    )
    return gap <= SAME_16_BIT, said


def _compiled(bench: _Bench) -> Outcome:
    plain = bench.plain
    try:
        compiled = bench.train(replace(bench.config, compile=True))
    except Exception as error:
        if any(sign in str(error).lower() for sign in NO_COMPILER):
            return None, msg("torch.compile found no compiler here: {error}", _error(error))
        raise
    gap = _gap(_losses(plain), _losses(compiled))
    said = msg(
        "losses within {gap:rough_rate} (relative) of eager; compiling took {took:seconds}, then {speed:times} the "
        "speed",
        gap,
        sum(event.took_s for event in compiled if isinstance(event, e.Compiled)),
        _speed(compiled) / _speed(plain),
    )
    return gap <= SAME_FLOAT32, said


def _exact_resume(bench: _Bench) -> Outcome:
    config = replace(bench.config, dropout=0.1, checkpoint_interval=7)
    with tempfile.TemporaryDirectory(prefix="nanolens-selftest-") as folder:
        one, two = Path(folder, "one"), Path(folder, "two")
        whole = bench.train(config, one)

        def stop_in_the_middle(event: e.Event) -> None:
            if isinstance(event, e.StepTaken) and event.step == config.max_iters * 2 // 5:
                (two / STOP_FILE).touch()

        first = bench.train(config, two, stop_in_the_middle)
        second = bench.train(replace(config, init_from="resume"), two)
        stopped_at = max(event.step for event in steps_of(first))
        same_weights = _weights(one, config.max_iters) == _weights(two, config.max_iters)
    losses = {event.step: float(event.loss) for event in steps_of([*first, *second])}
    gap = _gap(_losses(whole), [losses[step] for step in sorted(losses)])
    if same_weights:
        return True, msg("stopped at step {step:count} and resumed: the final weights match bit for bit", stopped_at)
    # A GPU adds in an order of its own unless asked for another.
    said = msg(
        "stopped at step {step:count} and resumed: losses within {gap:rough_rate}, weights not bit-identical",
        stopped_at,
        gap,
    )
    return gap <= SAME_FLOAT32 and bench.machine.device.type != "cpu", said


def _damage(bench: _Bench) -> Outcome:
    noticed, tries = 0, 20
    with tempfile.TemporaryDirectory(prefix="nanolens-selftest-") as made:
        run = Path(made)
        bench.train(replace(bench.config, max_iters=4, eval_interval=4), run)
        folder = checkpoint_folder(run, 4)
        if problems := [str(item) for item in verify(folder)]:
            return False, msg("a new checkpoint fails verification: {problems}", problems)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        for k in range(tries):
            path = files[k % len(files)]
            whole = path.read_bytes()
            damaged = bytearray(whole)
            damaged[(k * 7919 + 13) % len(whole)] ^= 1 << (k % 8)
            path.write_bytes(damaged)
            noticed += bool(verify(folder))
            path.write_bytes(whole)
    return noticed == tries, msg("{noticed:count} of {tries:count} flipped bits detected", noticed, tries)


def _memory(bench: _Bench) -> Outcome:
    config = replace(LARGER, device=bench.config.device, dtype="float32")
    shape, kind = shape_of(config, bench.dataset.vocab_size), bench.machine.device.type
    planned = memory_of(config, shape, "float32", on_gpu=kind == "cuda", chunked=False)
    # A GPU's own count leaves its context out.
    wanted = planned.total - (planned.overhead if kind != "cpu" else 0)
    needed = measured_memory(config)
    ratio = needed / wanted
    said = msg("planned {planned:bytes}, measured {measured:bytes}: {ratio:times} of the plan", wanted, needed, ratio)
    return MEMORY_BELOW_PLAN <= ratio <= MEMORY_ABOVE_PLAN, said


def _mfu(bench: _Bench) -> Outcome:
    machine = bench.machine
    config = replace(LARGER, device=bench.config.device, dtype=machine.dtype, max_iters=100_000)
    # And once more afterwards: a machine that throttles or is shared is not the same twice.
    matmul = measured_peak(machine)
    speed = _speed(bench.train(config, budget_s=BUSY_S))
    matmul = max(matmul, measured_peak(machine))
    achieved = speed * flops_per_token(shape_of(config, bench.dataset.vocab_size)).training
    mfu = achieved / matmul
    facts = {"speed": speed, "achieved": achieved, "mfu": mfu, "matmul": matmul, "dtype": machine.dtype}
    return 0 < mfu <= MFU_MOST, msg(
        "{speed:tokens_per_s}, {achieved:flops_per_s}: {mfu:share} of a matmul measured here ({matmul:flops_per_s}, "
        "{dtype:code})",
        **facts,
    )


CHECKS: tuple[tuple[Message, Callable[[_Bench], Outcome]], ...] = (
    (msg("parity"), _parity),
    (msg("bfloat16"), partial(_sixteen_bits, "bfloat16")),
    (msg("float16"), partial(_sixteen_bits, "float16")),
    (msg("exact resume"), _exact_resume),
    (msg("damage is detected"), _damage),
    (msg("memory vs plan"), _memory),
    (msg("speed"), _mfu),
    (msg("compile"), _compiled),
)


def measured_memory(config: Config) -> float:
    """Bytes that training adds to a process that has torch and the data already."""
    reply = ask("selftest", config, {}, patience_s=MEMORY_PATIENCE_S)
    if not reply.answers:
        raise RuntimeError(reply.problem)
    return float(reply.answers[0]["bytes"])


def measured(config: Config, question: Values) -> Iterator[tuple[str, Values]]:
    """The worker's half of `measured_memory`."""
    bench = _Bench(config.device)
    # Libraries and thread pools are in memory after this.
    bench.train(replace(bench.config, max_iters=2, eval_interval=1000))
    before = psutil.Process().memory_info().rss
    events = bench.train(config)
    of_steps = max(event.memory_bytes or 0 for event in steps_of(events))
    yield "memory", {"bytes": most_resident() - before if bench.machine.device.type == "cpu" else of_steps}


def _weights(run: Path, step: int) -> dict[str, bytes]:
    tensors, _ = weights_of(checkpoint_folder(run, step))
    return {name: tensor.contiguous().numpy().tobytes() for name, tensor in tensors.items()}


def _losses(seen: list[e.Event]) -> list[float]:
    return [float(event.loss) for event in steps_of(seen)]


def _speed(seen: list[e.Event]) -> float:
    """Tokens a second."""
    return steps_of(seen)[0].tokens / fmean(update_times(seen))


def _gap(a: list[float], b: list[float]) -> float:
    if len(a) != len(b) or not a:
        return math.inf
    return max(abs(x - y) / max(abs(x), 1e-9) for x, y in zip(a, b, strict=True))


def _error(error: Exception) -> str:
    if isinstance(error, UserError):
        return "; ".join(str(fault.what) for fault in error.faults)
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
