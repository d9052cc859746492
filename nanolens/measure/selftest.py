"""What can only be checked on the user's own machine: each check trains small models there and compares numbers.

Nothing here is a benchmark; a check passes, fails or is left out with a reason, and the report is made to be pasted into an issue.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from nanolens.config.fields import Config
from nanolens.errors import UserError
from nanolens.message import Message, msg
from nanolens.record import events as e
from nanolens.session.detach import raise_if_signalled

SMALL = Config(
    n_layer=4, n_head=4, n_embd=128, block_size=64, batch_size=12, gradient_accumulation_steps=1, dataset="pydocs", learning_rate=1e-3,
    min_lr=1e-4, warmup_iters=10, max_iters=60, lr_decay_iters=60, eval_interval=30, eval_iters=4, sample_interval=0, compile=False,
)  # fmt: skip
LARGER = replace(SMALL, n_layer=6, n_head=6, n_embd=384, block_size=256, batch_size=16, max_iters=8, eval_interval=1000, eval_iters=1)
BUSY_S = 8.0  # how long speed is measured

# Relative differences of the loss that rounding explains on a healthy machine. float32: sums in another order, over 60 updates;
# 16 bits: the mantissa has 8 or 11 bits, and the losses of the 60 updates drift apart accordingly.
SAME_FLOAT32, SAME_16_BIT = 2e-3, 2e-2
MEMORY_ABOVE_PLAN, MEMORY_BELOW_PLAN = 1.25, 0.5
MFU_MOST = 1.05  # more than the peak means that the peak or the FLOPs are wrong


@dataclass(frozen=True)
class Check:
    name: Message
    state: Literal["ok", "failed", "skipped"]
    said: Message
    took_s: float = 0.0


@dataclass
class Report:
    device: str
    machine: dict[str, Any] = field(default_factory=dict)
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
            state, said = check(bench)
        except Exception as error:  # a check that breaks is a result: it is what the report is for
            state, said = "failed", msg("{error}", error=_error(error))
        done = Check(name, state, said, time.perf_counter() - started_at_s)
        report.checks.append(done)
        tell(done)
    return report


class _Bench:
    """The device under test, the text to train on, and ways to train on it."""

    def __init__(self, device: str):
        from nanolens.data.store import open_dataset
        from nanolens.training.machine import choose_machine, with_peak

        config = replace(SMALL, device=device)
        self.machine = with_peak(choose_machine(config, lambda chosen: None))
        self.config = replace(config, device=str(self.machine.device), dtype="float32")
        self.dataset = open_dataset(config.dataset)

    def facts(self) -> dict[str, Any]:
        import platform
        from importlib.metadata import version

        machine = self.machine
        return {
            "nanolens": version("nanolens"), "torch": version("torch"), "python": platform.python_version(),
            "system": platform.platform(), "hardware": machine.hardware, "device": str(machine.device), "dtype": machine.dtype,
            "threads": machine.threads, "memory_bytes": machine.memory_bytes, "peak_flops": machine.peak_flops,
            "peak_origin": machine.peak_origin,
        }  # fmt: skip

    def train(self, config: Config, folder: Path | None = None, emit: Callable[[e.Event], None] = lambda event: None) -> list[e.Event]:
        from nanolens.record.write import Recorder, fan_out
        from nanolens.training.loop import train

        seen: list[e.Event] = []

        with _a_folder(folder) as run:
            recorder = Recorder(run)
            outcome = train(config, self.dataset, run, fan_out(recorder, seen.append, emit))
            recorder.close()
        raise_if_signalled(outcome.signal)
        if outcome.why == "failed":
            raise RuntimeError(str(outcome.because))
        return seen

    @cached_property
    def plain(self) -> list[e.Event]:
        """What the others are compared with: float32, not compiled."""
        return self.train(self.config)


def _parity(bench: _Bench) -> tuple[Literal["ok", "failed", "skipped"], Message]:
    here = _losses(bench.plain)
    if bench.machine.device.type == "cpu":
        change: dict[str, Any] = {"threads": 1 if bench.machine.threads > 1 else 2}
        what = msg("the same run with another number of threads")
    else:
        change, what = {"device": "cpu"}, msg("the same run on the CPU")
    gap = _gap(here, _losses(bench.train(replace(bench.config, **change))))
    said = msg(
        "{steps:count} updates in float32, losses at most {gap:rough_rate} apart (relative) from {what}; last loss {loss:nats}",
        steps=len(here), gap=gap, what=what, loss=here[-1],
    )  # fmt: skip
    return _verdict(gap <= SAME_FLOAT32 and here[-1] < 0.9 * here[0]), said


def _sixteen_bits(dtype: str) -> Callable[[_Bench], tuple[Literal["ok", "failed", "skipped"], Message]]:
    def check(bench: _Bench) -> tuple[Literal["ok", "failed", "skipped"], Message]:
        # A CPU without 16-bit arithmetic of its own emulates it, at a thirtieth of the speed: half the updates have to do there.
        updates = bench.config.max_iters // (2 if bench.machine.device.type == "cpu" else 1)
        exact, rough = bench.plain, bench.train(replace(bench.config, dtype=dtype, max_iters=updates))
        # The last ten: a GradScaler may skip the first updates of float16 while it finds its scale.
        gap = abs(_mean(_losses(rough)[-10:]) / _mean(_losses(exact)[updates - 10 : updates]) - 1)
        skipped = sum(isinstance(event, e.StepSkipped) for event in rough)
        said = msg(
            "last losses {gap:rough_rate} apart (relative) from float32, {skipped:count} updates skipped, {speed:times} its speed",
            gap=gap, skipped=skipped, speed=_speed(rough) / _speed(exact),
        )  # fmt: skip
        return _verdict(gap <= SAME_16_BIT), said

    return check


def _compiled(bench: _Bench) -> tuple[Literal["ok", "failed", "skipped"], Message]:
    plain = bench.plain
    try:
        compiled = bench.train(replace(bench.config, compile=True))
    except Exception as error:
        if _lacks_compiler(error):
            return "skipped", msg("torch.compile finds no compiler here: {error}", error=_error(error))
        raise
    gap = _gap(_losses(plain), _losses(compiled))
    took_s = sum(event.took_s for event in compiled if isinstance(event, e.Compiled))
    said = msg(
        "losses at most {gap:rough_rate} apart (relative) from eager; compiling took {took:seconds}, then {speed:times} the speed",
        gap=gap, took=took_s, speed=_speed(compiled) / _speed(plain),
    )  # fmt: skip
    return _verdict(gap <= SAME_FLOAT32), said


def _exact_resume(bench: _Bench) -> tuple[Literal["ok", "failed", "skipped"], Message]:
    from nanolens.record.layout import STOP_FILE

    config = replace(bench.config, dropout=0.1, checkpoint_interval=7)
    with _a_folder(None) as one, _a_folder(None) as two:
        whole = bench.train(config, one)

        def stop_in_the_middle(event: e.Event) -> None:
            if isinstance(event, e.StepTaken) and event.step == config.max_iters * 2 // 5:
                (two / STOP_FILE).touch()

        first = bench.train(config, two, stop_in_the_middle)
        second = bench.train(replace(config, init_from="resume"), two)
        stopped_at = max(event.step for event in first if isinstance(event, e.StepTaken))
        same_weights = _weights(one, config.max_iters) == _weights(two, config.max_iters)
    losses = {event.step: float(event.loss) for event in [*first, *second] if isinstance(event, e.StepTaken)}
    gap = _gap(_losses(whole), [losses[step] for step in sorted(losses)])
    if same_weights:
        return "ok", msg("stopped at step {step:count} and resumed: the final weights are equal to the last bit", step=stopped_at)
    said = msg(
        "stopped at step {step:count} and resumed: losses at most {gap:rough_rate} apart, weights not bit-equal", step=stopped_at, gap=gap
    )
    if bench.machine.device.type == "cpu":
        return "failed", said
    return _verdict(gap <= SAME_FLOAT32), said  # a GPU adds in an order of its own unless told otherwise


def _damage(bench: _Bench) -> tuple[Literal["ok", "failed", "skipped"], Message]:
    from nanolens.checkpoint.load import verify
    from nanolens.record.layout import checkpoint_folder

    noticed, tries = 0, 20
    with _a_folder(None) as run:
        bench.train(replace(bench.config, max_iters=4, eval_interval=4), run)
        folder = checkpoint_folder(run, 4)
        if verify(folder):
            return "failed", msg("a fresh checkpoint does not verify: {problems}", problems=[str(item) for item in verify(folder)])
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        for k in range(tries):
            path = files[k % len(files)]
            noticed += _flipped(path, k, lambda: bool(verify(folder)))
    return _verdict(noticed == tries), msg("{noticed:count} of {tries:count} flipped bits noticed", noticed=noticed, tries=tries)


def _memory(bench: _Bench) -> tuple[Literal["ok", "failed", "skipped"], Message]:
    from nanolens.sizing import memory, shape_of

    config = replace(LARGER, device=bench.config.device, dtype="float32")
    planned = memory(
        shape_of(config, bench.dataset.vocab_size),
        batch_size=config.batch_size,
        dtype="float32",
        on_gpu=bench.machine.device.type == "cuda",
    )
    wanted = planned.total - (planned.overhead if bench.machine.device.type != "cpu" else 0)  # a GPU's own count leaves its context out
    measured = _measured_memory(config)
    ratio = measured / wanted
    said = msg(
        "planned {planned:bytes}, measured {measured:bytes}: {ratio:times} of the plan", planned=wanted, measured=measured, ratio=ratio
    )
    return _verdict(MEMORY_BELOW_PLAN <= ratio <= MEMORY_ABOVE_PLAN), said


def _mfu(bench: _Bench) -> tuple[Literal["ok", "failed", "skipped"], Message]:
    from nanolens.sizing import flops_per_token, shape_of
    from nanolens.training.machine import measured_peak

    machine = bench.machine
    config = replace(LARGER, device=bench.config.device, dtype=machine.dtype, max_iters=100_000)
    matmul = measured_peak(machine)  # and once more afterwards: a machine that throttles or is shared is not the same twice
    with _a_folder(None) as run:
        from nanolens.record.layout import STOP_FILE

        started_at_s = time.perf_counter()

        def stop_after_a_while(event: e.Event) -> None:
            if isinstance(event, e.StepTaken) and event.step > 5 and time.perf_counter() - started_at_s > BUSY_S:
                (run / STOP_FILE).touch()

        speed = _speed(bench.train(config, run, stop_after_a_while))
    matmul = max(matmul, measured_peak(machine))
    achieved = speed * flops_per_token(shape_of(config, bench.dataset.vocab_size)).training
    said = msg(
        "{speed:tokens_per_s}, {achieved:flops_per_s}: {mfu:share} of a matmul measured here ({matmul:flops_per_s}, {dtype:code})",
        speed=speed, achieved=achieved, mfu=achieved / matmul, matmul=matmul, dtype=machine.dtype,
    )  # fmt: skip
    return _verdict(0 < achieved / matmul <= MFU_MOST), said


CHECKS: tuple[tuple[Message, Callable[[_Bench], tuple[Literal["ok", "failed", "skipped"], Message]]], ...] = (
    (msg("parity"), _parity),
    (msg("bfloat16"), _sixteen_bits("bfloat16")),
    (msg("float16"), _sixteen_bits("float16")),
    (msg("exact resume"), _exact_resume),
    (msg("damage is noticed"), _damage),
    (msg("memory against the plan"), _memory),
    (msg("speed"), _mfu),
    (msg("compile"), _compiled),
)


def measure_memory(config: Config) -> float:
    """Bytes that training adds to a process that has torch and the data already: for a process of its own, see `_measured_memory`."""
    import psutil

    from nanolens.training.machine import most_resident

    bench = _Bench(config.device)
    bench.train(replace(bench.config, max_iters=2, eval_interval=1000))  # libraries and thread pools are in memory after this
    before = psutil.Process().memory_info().rss
    told: list[int] = []

    def note(event: e.Event) -> None:
        if isinstance(event, e.StepTaken) and event.memory_bytes:
            told.append(event.memory_bytes)
        told.append(psutil.Process().memory_info().rss if bench.machine.device.type == "cpu" else 0)

    bench.train(config, None, note)
    if bench.machine.device.type != "cpu":
        return float(max(told))
    return float(most_resident() - before)


def _measured_memory(config: Config) -> float:
    program = "import json, sys; from nanolens.measure.selftest import measure_memory; from nanolens.config.fields import Config; "
    program += "print('BYTES', measure_memory(Config(**json.loads(sys.argv[1]))))"
    done = subprocess.run([sys.executable, "-c", program, json.dumps(asdict(config))], capture_output=True, text=True, timeout=600)
    for line in done.stdout.splitlines():
        if line.startswith("BYTES "):
            return float(line.split()[1])
    raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "the process gave no answer")


def _flipped(path: Path, k: int, look: Callable[[], bool]) -> bool:
    """What `look` says while one bit of the file is flipped; the file is as before afterwards."""
    whole = path.read_bytes()
    at = (k * 7919 + 13) % len(whole)
    damaged = bytearray(whole)
    damaged[at] ^= 1 << (k % 8)
    path.write_bytes(damaged)
    try:
        return look()
    finally:
        path.write_bytes(whole)


def _weights(run: Path, step: int) -> bytes:
    import hashlib

    from nanolens.checkpoint.load import weights_of
    from nanolens.record.layout import checkpoint_folder

    tensors, _ = weights_of(checkpoint_folder(run, step))
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(tensors[name].contiguous().numpy().tobytes())
    return digest.digest()


@contextmanager
def _a_folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="nanolens-selftest-") as folder:
        yield Path(folder)


def _losses(seen: list[e.Event]) -> list[float]:
    return [float(event.loss) for event in seen if isinstance(event, e.StepTaken)]


def _speed(seen: list[e.Event]) -> float:
    """Tokens a second, without the first updates, in which memory is found and caches fill."""
    steps = [event for event in seen if isinstance(event, e.StepTaken)][3:]
    return sum(event.tokens for event in steps) / sum(event.took_s for event in steps)


def _gap(a: list[float], b: list[float]) -> float:
    if len(a) != len(b) or not a:
        return math.inf
    return max(abs(x - y) / max(abs(x), 1e-9) for x, y in zip(a, b, strict=True))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _verdict(is_good: bool) -> Literal["ok", "failed", "skipped"]:
    return "ok" if is_good else "failed"


def _lacks_compiler(error: Exception) -> bool:
    words = str(error).lower()
    return any(
        word in words for word in ("invalidcxxcompiler", "no working c++ compiler", "compiler not found", "cannot find a working triton")
    )


def _error(error: Exception) -> str:
    if isinstance(error, UserError):
        return "; ".join(str(fault.what) for fault in error.faults)
    first = str(error).strip().splitlines()[0] if str(error).strip() else ""
    return f"{type(error).__name__}: {first}"
