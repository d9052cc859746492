"""What a device could do at best, from `devices.toml`: dense peaks with float32 accumulation, memory, bandwidth, board
power, and where each figure comes from; and how long an update would take on it.

For NVIDIA cards the peak is SMs x FLOP per clock and SM x boost clock, the whitepapers' to half a per cent.

A micro-batch costs its matrix products at a share of the peak, plus the bytes that everything between them moves.
Attention is counted with its causal half, which fused kernels skip. The constants were chosen once and held against
measured runs (named at the end of `devices.toml`), which take between 0.93 and 1.26 of the middle. So the range is the
middle times and divided by the square root of two: an estimate for a card that nobody has measured, no more."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

from nanolens.sizing.shape import Shape, flops_per_token, parameters

Kind = Literal["gpu", "apple", "cpu", "tpu"]
_TABLE = Path(__file__).with_name("devices.toml")
PRECISION_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "tf32": "tf32", "fp32": "float32"}


@dataclass(frozen=True)
class Device:
    name: str
    kind: Kind
    # FLOP/s by "bfloat16", "float16", "tf32", "float32"; absent: not supported by the matrix units
    peaks: Mapping[str, float] = field(default_factory=dict)
    memory_gb: tuple[float, ...] = ()  # sizes that it is sold with
    bytes_per_s: float | None = None
    watts: float | None = None  # rated board power: with it x time a run can have drawn at most, not what it drew
    attainable: float | None = None  # share of the peak that the power limit leaves to large matrix products
    source: str = ""

    def peak(self, dtype: str, *, tf32: bool = True) -> float | None:
        """For a training dtype; float32 matmuls run as TF32 where the card has it and the trainer allows it."""
        return self.peaks.get("tf32" if dtype == "float32" and tf32 and "tf32" in self.peaks else dtype)

    @property
    def best_dtype(self) -> str:
        """What `auto` comes to here: 16 bit where it is faster, bfloat16 before float16."""
        usable = [dtype for dtype in ("bfloat16", "float16") if self.peaks.get(dtype, 0) > self.peaks.get("float32", 0)]
        return usable[0] if usable else "float32"


@cache
def known_devices() -> dict[str, Device]:
    return {
        name: Device(
            name=name,
            kind="apple" if section["family"] == "apple" else "gpu",
            peaks=_peaks(row, section["family"], section.get("flop_per_clock", 0)),
            memory_gb=tuple(row["memory"]),
            bytes_per_s=row["gb_per_s"] * 1e9,
            watts=row.get("watts"),
            attainable=row.get("attainable"),
            source=row.get("source", section["source"]),
        )
        for section in tomllib.loads(_TABLE.read_text(encoding="utf-8")).values()
        for name, row in section["devices"].items()
    }


def _peaks(row: Mapping[str, float], family: str, flop_per_clock: int) -> dict[str, float]:
    if family == "datasheet":
        return {dtype: row[key] * 1e12 for key, dtype in PRECISION_DTYPES.items() if key in row}
    sms, clock = row["sms"], row["ghz"] * 1e9
    matrix = sms * flop_per_clock * clock
    if family == "apple":
        return dict.fromkeys(("float32", "float16", "bfloat16"), sms * flop_per_clock * row["ghz"] * 1e9)
    if family == "turing":  # 64 float32 lanes an SM, two FLOP each
        return {"float16": matrix, "float32": sms * 128 * clock}
    # from RTX 30 on: TF32 is half of BF16; 128 float32 lanes an SM
    return {"bfloat16": matrix, "float16": matrix, "tf32": matrix / 2, "float32": sms * 256 * clock}


@dataclass(frozen=True)
class Hardware:
    text: str
    device: Device | None
    count: int | None  # devices; None where the text speaks of several without a number
    kind: Kind | None
    memory_gb: float | None = None  # of one device, as the text says it
    is_laptop: bool = False


_COUNTS = {"two": "2", "three": "3", "four": "4", "eight": "8"}
_KINDS: tuple[tuple[Kind, str], ...] = (
    ("tpu", r"\btpu"),
    ("gpu", r"\bgpus?\b|cuda|rtx|gtx|radeon|instinct|\bmi\d{3}"),
    ("apple", r"\bmps\b|macbook|mac mini|mac studio|imac|apple|\bm[1-9]\b"),
    ("cpu", r"\bcpu|xeon|epyc|ryzen|intel|core i\d|threadripper|graviton|vcpu|raspberry"),
)


def hardware_named(text: str) -> Hardware:
    """A loose reading: "1x RTX 4070 Ti 12GB", "NVIDIA A100-SXM4-40GB", "laptop CPU", "M3 Max", "A100 (several)"."""
    lower = re.sub(r"nvidia|geforce|tesla|quadro|\(tm\)|\(r\)", " ", text.lower())
    lower = re.sub(r"\b(two|three|four|eight)\b", lambda word: _COUNTS[word[1]], lower)
    is_laptop = re.search(r"laptop|notebook|mobile|max-?q", lower) is not None
    device, matched = _named_in(lower)
    if device is not None and is_laptop and device.kind == "gpu":
        device = None  # laptop parts carry the same name with other SM counts and clocks
    kind = device.kind if device else next((kind for kind, words in _KINDS if re.search(words, lower)), None)
    memory = re.search(r"(?<![a-z0-9.])(\d{1,4}(?:\.\d+)?)\s*(?:gi?b|g)(?![a-z0-9])", lower)
    return Hardware(text, device, _count_in(lower, matched), kind, float(memory[1]) if memory else None, is_laptop)


def _named_in(lower: str) -> tuple[Device | None, str]:
    """The device with the longest name in the text, and that name as it is written there."""
    devices = known_devices().values()
    found = ((device, match[0]) for device in devices for match in _pattern(device.name).finditer(lower))
    return max(found, key=lambda each: len(each[1]), default=(None, ""))


@cache
def _pattern(name: str) -> re.Pattern[str]:
    """The name's words in order, whatever stands between them; "RTX" may be left out before a four-digit number. Of a
    card without a "Super" an "s" behind its name is a plural."""
    words = [re.escape(word) for word in name.lower().split()]
    if words[0] in ("rtx", "gtx") and re.fullmatch(r"\d{4}", words[1]):
        words[0] = rf"(?:{words[0]})?"
    if words[-1] == "super":
        words[-1] = r"(?:super|s)"
    elif words[-1][-1].isdigit() and not {f"{name} Super", f"{name}S"} & known_devices().keys():
        words[-1] += "s?"
    return re.compile(r"(?<![a-z0-9])" + r"[\s_-]*".join(words) + r"(?![a-z0-9])")


def _count_in(lower: str, matched: str) -> int | None:
    begins = r"(?<![a-z0-9.])"
    patterns = [begins + r"(\d{1,4})\s*(?:x|×|\*)\s*(?=[a-z(])", begins + r"(\d{1,4})\s+(?:gpus?|cards|devices)\b"]
    if matched:
        name = re.escape(matched)
        patterns.append(name + r"[^,;()]{0,16}?(?:\bx|×)\s*(\d{1,4})\b")
        patterns.append(begins + r"(\d{1,2})\s+(?:of\s+(?:the|those|these|my)\s+)?" + name)
    for pattern in patterns:
        if number := re.search(pattern, lower):
            return max(1, int(number[1]))
    return None if re.search(r"several|multiple|\bmany\b|cluster|\bnodes?\b", lower) else 1


ATTAINABLE = {"gpu": 0.85, "apple": 0.55}  # share of the rated peak that large matrix products reach
# Bytes moved in 16 bit, forward and backward; compiled or not
ACTIVATION_TRAFFIC = {True: 100.0, False: 200.0}  # per layer, channel and token
LOGIT_TRAFFIC = {True: 12.0, False: 24.0}  # per vocabulary entry and token
DROPOUT_FACTOR = 1.25  # masks are made, kept and read again
OPTIMIZER_TRAFFIC = 32.0  # per parameter: weight, gradient, moments read, three of them written, the gradient cleared
LAUNCH_S = 5e-6
KERNELS_PER_LAYER = {True: 40, False: 110}
RANGE = math.sqrt(2.0)
HIGHEST_EFFICIENCY = 0.95  # of the rated peak; nobody has shown more


@dataclass(frozen=True)
class UpdateTime:
    seconds: float  # the middle
    low_s: float
    high_s: float
    efficiency: float  # FLOPs of the usual convention over peak x time, at the middle
    low_efficiency: float
    high_efficiency: float


def update_time(
    shape: Shape,
    device: Device,
    *,
    batch_size: int,
    accumulation: int,
    dtype: str,
    dropout: float = 0.0,
    compiled: bool = True,
    devices: int = 1,
) -> UpdateTime | None:
    """None without a peak for this precision or a bandwidth. `accumulation` is of all devices together."""
    peak = device.peak(dtype)
    if not peak or not device.bytes_per_s:
        return None
    each = math.ceil(accumulation / devices)
    micro_s = micro_batch_time(shape, device, batch_size=batch_size, dtype=dtype, dropout=dropout, compiled=compiled)
    seconds = each * micro_s + OPTIMIZER_TRAFFIC * parameters(shape).total / device.bytes_per_s
    counted = flops_per_token(shape).training * batch_size * shape.block_size * each
    efficiency = counted / (peak * seconds)
    highest = min(efficiency * RANGE, HIGHEST_EFFICIENCY)
    low_s = counted / (peak * highest)
    return UpdateTime(seconds, low_s, seconds * RANGE, efficiency, efficiency / RANGE, highest)


def micro_batch_time(
    shape: Shape, device: Device, *, batch_size: int, dtype: str, dropout: float = 0.0, compiled: bool = True
) -> float:
    """Forward and backward of one micro-batch, seconds."""
    peak, bandwidth = device.peak(dtype), device.bytes_per_s
    assert peak and bandwidth, "ask update_time, which says None"
    is_compiled = compiled and device.kind == "gpu"
    attainable = device.attainable or ATTAINABLE.get(device.kind, 0.5)
    matmul_s = flops_per_token(shape).training_causal / (peak * attainable)
    width = 2.0 if dtype == "float32" else 1.0
    moved = ACTIVATION_TRAFFIC[is_compiled] * shape.n_layer * shape.n_embd * (DROPOUT_FACTOR if dropout else 1.0)
    moved += LOGIT_TRAFFIC[is_compiled] * shape.vocab_size
    on_device_s = batch_size * shape.block_size * (matmul_s + width * moved / bandwidth)
    return max(on_device_s, LAUNCH_S * KERNELS_PER_LAYER[is_compiled] * (shape.n_layer + 2))
