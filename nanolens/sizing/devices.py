"""What a device could do at best: dense peaks with float32 accumulation, memory, bandwidth, and where each figure comes from.

For NVIDIA cards the peak is SMs x FLOP per clock and SM x boost clock, a rule that reproduces the whitepapers to half a per cent. Every
GeForce RTX does 512 per clock in 16 bit with float32 accumulation, half of what its workstation sister does: the restriction is the
product's, not the chip's. A card that the table does not hold has no peak here. It is never guessed from a similar name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

Kind = Literal["gpu", "apple", "cpu", "tpu"]
GB = 1e9

AMPERE = "NVIDIA GA102 whitepaper v2"
ADA = "NVIDIA Ada whitepaper v2.02, appendix A"
BLACKWELL = "NVIDIA RTX Blackwell whitepaper, table 3"
TURING = "NVIDIA Turing whitepaper"
DATASHEET = "vendor's datasheet"
RULE = "SMs x FLOP per clock x boost clock"
APPLE = "GPU cores x 256 FLOP per clock x clock"


@dataclass(frozen=True)
class Device:
    name: str
    kind: Kind
    peaks: dict[str, float] = field(
        default_factory=dict
    )  # FLOP/s by "bfloat16", "float16", "tf32", "float32"; absent: not supported by the matrix units
    memory_gb: tuple[float, ...] = ()  # sizes that it is sold with
    bytes_per_s: float | None = None
    source: str = ""
    sms: int | None = None
    boost_ghz: float | None = None

    def peak(self, dtype: str, *, tf32: bool = True) -> float | None:
        """For a training dtype; float32 matmuls run as TF32 where the card has it and the trainer allows it (nanoGPT does)."""
        if dtype == "float32" and tf32 and "tf32" in self.peaks:
            return self.peaks["tf32"]
        return self.peaks.get(dtype)

    @property
    def best_dtype(self) -> str:
        """What `auto` comes to here: 16 bit where it is faster, bfloat16 before float16."""
        usable = [dtype for dtype in ("bfloat16", "float16") if self.peaks.get(dtype, 0) > self.peaks.get("float32", 0)]
        return usable[0] if usable else "float32"


@dataclass(frozen=True)
class Hardware:
    """What a user's words for their hardware were taken to mean."""

    text: str
    device: Device | None
    count: int | None  # devices; None where the text speaks of several without a number
    kind: Kind | None
    memory_gb: float | None = None  # of one device, as the text says it
    matched: str = ""  # the part of the text that named the device
    is_laptop: bool = False


_COUNTS = {"two": "2", "three": "3", "four": "4", "eight": "8"}


def hardware_named(text: str) -> Hardware:
    """A loose reading: "1x RTX 4070 Ti 12GB", "NVIDIA A100-SXM4-40GB", "laptop CPU", "MacBook Pro M3 Max 64GB", "A100 (several)"."""
    lower = re.sub(r"nvidia|geforce|tesla|quadro|\(tm\)|\(r\)", " ", text.lower())
    lower = re.sub(r"\b(two|three|four|eight)\b", lambda word: _COUNTS[word[1]], lower)
    is_laptop = re.search(r"laptop|notebook|mobile|max-?q", lower) is not None
    found, matched = _named_in(lower)
    if found is not None and is_laptop and found.kind == "gpu":
        found = None  # laptop parts carry the same name with other SM counts and clocks
    kind = found.kind if found is not None else _kind_of(lower)
    return Hardware(text, found, _count_in(lower, matched), kind, _memory_in(lower), matched, is_laptop)


def derived(name: str, sms: int, boost_ghz: float, flop_per_clock: int, memory_gb: float | None = None) -> Device:
    """A card that the table lacks, from the SM count and clock that its driver reports."""
    return _card(name, sms, boost_ghz, flop_per_clock, (memory_gb,) if memory_gb else (), None, RULE)


def _named_in(lower: str) -> tuple[Device | None, str]:
    best: tuple[Device | None, str] = (None, "")
    for device, pattern in _patterns():
        for found in pattern.finditer(lower):
            if len(found[0]) > len(best[1]):
                best = (device, found[0])
    return best


@cache
def _patterns() -> tuple[tuple[Device, re.Pattern[str]], ...]:
    return tuple((device, _pattern(device.name)) for device in DEVICES)


def _pattern(name: str) -> re.Pattern[str]:
    """The name's words in order, whatever stands between them; "RTX" may be left out before a four-digit number. Of a card without a
    "Super" an "s" behind its name is a plural."""
    words = [re.escape(word) for word in name.lower().split()]
    if words[0] in ("rtx", "gtx") and re.fullmatch(r"\d{4}", words[1]):
        words[0] = rf"(?:{words[0]})?"
    if words[-1] == "super":
        words[-1] = r"(?:super|s)"
    elif words[-1][-1].isdigit() and not {f"{name} Super", f"{name}S"} & {other.name for other in DEVICES}:
        words[-1] += "s?"
    return re.compile(r"(?<![a-z0-9])" + r"[\s_-]*".join(words) + r"(?![a-z0-9])")


def _kind_of(lower: str) -> Kind | None:
    if re.search(r"\btpu", lower):
        return "tpu"
    if re.search(r"\bgpus?\b|cuda|rtx|gtx|radeon|instinct|\bmi\d{3}", lower):
        return "gpu"
    if re.search(r"\bmps\b|macbook|mac mini|mac studio|imac|apple|\bm[1-9]\b", lower):
        return "apple"
    if re.search(r"\bcpu|xeon|epyc|ryzen|intel|core i\d|threadripper|graviton|vcpu|raspberry", lower):
        return "cpu"
    return None


def _count_in(lower: str, matched: str) -> int | None:
    number = re.search(r"(?<![a-z0-9.])(\d{1,4})\s*(?:x|×|\*)\s*(?=[a-z(])", lower) or re.search(
        r"(?<![a-z0-9.])(\d{1,4})\s+(?:gpus?|cards|devices)\b", lower
    )
    if number is None and matched:
        number = re.search(re.escape(matched) + r"[^,;()]{0,16}?(?:\bx|×)\s*(\d{1,4})\b", lower) or re.search(
            r"(?<![a-z0-9.])(\d{1,2})\s+(?:of\s+(?:the|those|these|my)\s+)?" + re.escape(matched), lower
        )
    if number:
        return max(1, int(number[1]))
    if re.search(r"several|multiple|\bmany\b|cluster|\bnodes?\b", lower):
        return None
    return 1


def _memory_in(lower: str) -> float | None:
    found = re.search(r"(?<![a-z0-9.])(\d{1,4}(?:\.\d+)?)\s*(?:gi?b|g)(?![a-z0-9])", lower)
    return float(found[1]) if found else None


def _card(name: str, sms: int, ghz: float, per_clock: int, memory: tuple[float, ...], gb_per_s: float | None, source: str) -> Device:
    """RTX 30 and later, and their workstation sisters: TF32 is half of BF16; float32 runs on 128 lanes an SM, two FLOP each."""
    clock = ghz * 1e9
    peaks = {
        "bfloat16": sms * per_clock * clock,
        "float16": sms * per_clock * clock,
        "tf32": sms * per_clock / 2 * clock,
        "float32": sms * 256 * clock,
    }
    return Device(name, "gpu", peaks, memory, gb_per_s * GB if gb_per_s else None, source, sms, ghz)


def _turing(name: str, sms: int, ghz: float, per_clock: int, memory: float, gb_per_s: float) -> Device:
    """RTX 20 and its sisters: tensor cores for float16 only, 64 float32 lanes an SM."""
    clock = ghz * 1e9
    return Device(
        name, "gpu", {"float16": sms * per_clock * clock, "float32": sms * 128 * clock}, (memory,), gb_per_s * GB, TURING, sms, ghz
    )


def _plain(
    name: str, memory: tuple[float, ...], gb_per_s: float | None, *, kind: Kind = "gpu", source: str = DATASHEET, **tflops: float
) -> Device:
    names = {"bf16": "bfloat16", "fp16": "float16", "tf32": "tf32", "fp32": "float32"}
    return Device(
        name, kind, {names[key]: value * 1e12 for key, value in tflops.items()}, memory, gb_per_s * GB if gb_per_s else None, source
    )


def _apple(name: str, cores: int, ghz: float, memory: tuple[float, ...], gb_per_s: float) -> Device:
    """16-bit arithmetic is no faster than float32 up to the M4."""
    peak = cores * 256 * ghz * 1e9
    return Device(name, "apple", {"float32": peak, "float16": peak, "bfloat16": peak}, memory, gb_per_s * GB, APPLE, cores, ghz)


GEFORCE, WORKSTATION = 512, 1024  # FLOP per clock and SM, 16 bit with float32 accumulation

DEVICES: tuple[Device, ...] = (
    # --- GeForce RTX 30
    _card("RTX 3050", 20, 1.777, GEFORCE, (8,), 224, RULE),
    _card("RTX 3060", 28, 1.777, GEFORCE, (12,), 360, AMPERE),
    _card("RTX 3060 Ti", 38, 1.665, GEFORCE, (8,), 448, RULE),
    _card("RTX 3070", 46, 1.725, GEFORCE, (8,), 448, AMPERE),
    _card("RTX 3070 Ti", 48, 1.770, GEFORCE, (8,), 608, RULE),
    _card("RTX 3080", 68, 1.710, GEFORCE, (10,), 760, AMPERE),
    _card("RTX 3080 Ti", 80, 1.665, GEFORCE, (12,), 912, RULE),
    _card("RTX 3090", 82, 1.695, GEFORCE, (24,), 936, AMPERE),
    _card("RTX 3090 Ti", 84, 1.860, GEFORCE, (24,), 1008, RULE),
    # --- GeForce RTX 40
    _card("RTX 4060", 24, 2.460, GEFORCE, (8,), 272, ADA),
    _card("RTX 4060 Ti", 34, 2.535, GEFORCE, (8, 16), 288, ADA),
    _card("RTX 4070", 46, 2.475, GEFORCE, (12,), 504, ADA),
    _card("RTX 4070 Super", 56, 2.475, GEFORCE, (12,), 504, RULE),
    _card("RTX 4070 Ti", 60, 2.610, GEFORCE, (12,), 504, ADA),
    _card("RTX 4070 Ti Super", 66, 2.610, GEFORCE, (16,), 672, RULE),
    _card("RTX 4080", 76, 2.505, GEFORCE, (16,), 717, ADA),
    _card("RTX 4080 Super", 80, 2.550, GEFORCE, (16,), 736, RULE),
    _card("RTX 4090", 128, 2.520, GEFORCE, (24,), 1008, ADA),
    # --- GeForce RTX 50
    _card("RTX 5050", 20, 2.572, GEFORCE, (8,), 320, RULE),
    _card("RTX 5060", 30, 2.497, GEFORCE, (8,), 448, RULE),
    _card("RTX 5060 Ti", 36, 2.572, GEFORCE, (8, 16), 448, RULE),
    _card("RTX 5070", 48, 2.512, GEFORCE, (12,), 672, RULE),
    _card("RTX 5070 Ti", 70, 2.452, GEFORCE, (16,), 896, RULE),
    _card("RTX 5080", 84, 2.617, GEFORCE, (16,), 960, RULE),
    _card("RTX 5090", 170, 2.407, GEFORCE, (32,), 1792, BLACKWELL),
    # --- Turing
    _turing("RTX 2060", 30, 1.680, GEFORCE, 6, 336),
    _turing("RTX 2060 Super", 34, 1.650, GEFORCE, 8, 448),
    _turing("RTX 2070", 36, 1.620, GEFORCE, 8, 448),
    _turing("RTX 2070 Super", 40, 1.770, GEFORCE, 8, 448),
    _turing("RTX 2080", 46, 1.710, GEFORCE, 8, 448),
    _turing("RTX 2080 Super", 48, 1.815, GEFORCE, 8, 496),
    _turing("RTX 2080 Ti", 68, 1.545, GEFORCE, 11, 616),
    _turing("Titan RTX", 72, 1.770, WORKSTATION, 24, 672),
    _turing("RTX 8000", 72, 1.770, WORKSTATION, 48, 672),
    # --- workstation and data centre, Ampere and Ada
    _card("RTX A2000", 26, 1.200, WORKSTATION, (6, 12), 288, RULE),
    _card("RTX A4000", 48, 1.560, WORKSTATION, (16,), 448, RULE),
    _card("RTX A4500", 56, 1.650, WORKSTATION, (20,), 640, RULE),
    _card("RTX A5000", 64, 1.695, WORKSTATION, (24,), 768, RULE),
    _card("RTX A6000", 84, 1.800, WORKSTATION, (48,), 768, AMPERE),
    _card("A4000", 48, 1.560, WORKSTATION, (16,), 448, RULE),
    _card("A4500", 56, 1.650, WORKSTATION, (20,), 640, RULE),
    _card("A5000", 64, 1.695, WORKSTATION, (24,), 768, RULE),
    _card("A6000", 84, 1.800, WORKSTATION, (48,), 768, AMPERE),
    _card("RTX 4000 Ada", 48, 2.175, WORKSTATION, (20,), 360, RULE),
    _card("RTX 5000 Ada", 100, 2.550, WORKSTATION, (32,), 576, RULE),
    _card("RTX 6000 Ada", 142, 2.505, WORKSTATION, (48,), 960, ADA),
    _card("RTX Pro 6000", 188, 2.617, WORKSTATION, (96,), 1792, RULE),
    _plain("A10", (24,), 600, bf16=125, fp16=125, tf32=62.5, fp32=31.2),
    _plain("A10G", (24,), 600, bf16=70, fp16=70, tf32=35, fp32=31.5),
    _plain("A30", (24,), 933, bf16=165, fp16=165, tf32=82, fp32=10.3),
    _plain("A40", (48,), 696, bf16=149.7, fp16=149.7, tf32=74.8, fp32=37.4),
    _plain("L4", (24,), 300, source=f"{DATASHEET}; 72 W: not sustained", bf16=121, fp16=121, tf32=60, fp32=30.3),
    _plain("L40", (48,), 864, bf16=181, fp16=181, tf32=90.5, fp32=90.5),
    _plain("L40S", (48,), 864, bf16=362, fp16=362, tf32=183, fp32=91.6),
    _plain("A100", (40, 80), 1555, bf16=312, fp16=312, tf32=156, fp32=19.5),
    _plain("A800", (40, 80), 2039, bf16=312, fp16=312, tf32=156, fp32=19.5),
    _plain("H100", (80,), 3350, bf16=989, fp16=989, tf32=495, fp32=67),
    _plain("H100 SXM", (80,), 3350, bf16=989, fp16=989, tf32=495, fp32=67),
    _plain("H100 PCIe", (80,), 2000, bf16=756, fp16=756, tf32=378, fp32=51),
    _plain("H100 NVL", (94,), 3900, bf16=835, fp16=835, tf32=418, fp32=60),
    _plain("H800", (80,), 3350, bf16=989, fp16=989, tf32=495, fp32=67),
    _plain("H200", (141,), 4800, bf16=989, fp16=989, tf32=495, fp32=67),
    _plain("GH200", (96, 144), 4000, bf16=989, fp16=989, tf32=495, fp32=67),
    _plain("B200", (180, 192), 8000, bf16=2250, fp16=2250, tf32=1125, fp32=80),
    # --- before Ampere: no bfloat16, no TF32
    _plain("V100", (16, 32), 900, fp16=125, fp32=15.7),
    _plain("V100 PCIe", (16, 32), 900, fp16=112, fp32=14),
    _plain("T4", (16,), 320, source=f"{DATASHEET}; 70 W: not sustained", fp16=65, fp32=8.1),
    _plain("P100", (12, 16), 732, fp16=21.2, fp32=10.6),
    _plain("P40", (24,), 346, fp32=11.8),
    _plain("K80", (12,), 240, source=f"{DATASHEET}, one of its two GPUs", fp32=4.37),
    _plain("GTX 1060", (3, 6), 192, fp32=4.4),
    _plain("GTX 1070", (8,), 256, fp32=6.5),
    _plain("GTX 1080", (8,), 320, fp32=8.9),
    _plain("GTX 1080 Ti", (11,), 484, fp32=11.3),
    _plain("Titan X", (12,), 480, fp32=11.0),
    _plain("Titan Xp", (12,), 548, fp32=12.1),
    _plain("Titan V", (12,), 653, fp16=110, fp32=14.9),
    _plain("GTX 1650", (4,), 128, fp32=3.0),
    _plain("GTX 1660 Ti", (6,), 288, fp32=5.4),
    # --- AMD
    _plain("MI250X", (128,), 3277, bf16=383, fp16=383, fp32=47.9),
    _plain("MI300X", (192,), 5300, bf16=1307.4, fp16=1307.4, tf32=653.7, fp32=163.4),
    _plain("RX 7900 XTX", (24,), 960, bf16=122.8, fp16=122.8, fp32=61.4),
    # --- Apple
    _apple("M1", 8, 1.278, (8, 16), 68),
    _apple("M1 Pro", 16, 1.296, (16, 32), 200),
    _apple("M1 Max", 32, 1.296, (32, 64), 400),
    _apple("M1 Ultra", 64, 1.296, (64, 128), 800),
    _apple("M2", 10, 1.398, (8, 16, 24), 100),
    _apple("M2 Pro", 19, 1.398, (16, 32), 200),
    _apple("M2 Max", 38, 1.398, (32, 64, 96), 400),
    _apple("M2 Ultra", 76, 1.398, (64, 128, 192), 800),
    _apple("M3", 10, 1.380, (8, 16, 24), 100),
    _apple("M3 Pro", 18, 1.380, (18, 36), 150),
    _apple("M3 Max", 40, 1.380, (36, 48, 64, 96, 128), 400),
    _apple("M4", 10, 1.680, (16, 24, 32), 120),
    _apple("M4 Pro", 20, 1.680, (24, 48, 64), 273),
    _apple("M4 Max", 40, 1.680, (36, 48, 64, 128), 546),
)  # fmt: skip
