"""All that is known of a run besides its rows: what the user gives, what the log prints, what is published; each with its origin.

A fact given on the command line counts before one from the config file, that before one printed, and that before an inferred one. Where a
given fact contradicts a printed one, the printed one is kept too, as `printed_NAME`: that the two differ may be the diagnosis.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nanolens.config.fields import settings
from nanolens.interop.logs.door import Fact, Found
from nanolens.interop.logs.names import setting_of
from nanolens.interop.logs.published import DATASETS, GPT2_SHAPES, known_dataset, published_config
from nanolens.interop.logs.rows import NUMBER
from nanolens.record.run import Known


@dataclass(frozen=True)
class Given:
    """What the user says about a log."""

    config: Mapping[str, object] = field(default_factory=dict)
    config_where: Mapping[str, str] = field(default_factory=dict)  # "known.toml line 3" by key
    comments: Sequence[str] = ()  # of the config file
    hardware: str | None = None
    facts: Mapping[str, object] = field(default_factory=dict)  # --key=value


_COMMENT_KEYS = re.compile(r"comment|note|name|title|description", re.I)
_SIZE = re.compile(r"(?<![\w.])~?(\d{1,6}(?:\.\d{1,4})?) ?([MBmb])(?![\w/])")
_LOOSE = re.compile(rf"(?:default|about|approx\.?|~|≈|circa)? {{0,3}}({NUMBER})\Z", re.I)
_DEVICES = re.compile(r"(?<![\w.])(\d{1,5}) ?[x×*] ?(?=[A-Za-z])|\b(\d{1,5}) (?:GPUs?|cards?|devices)\b", re.I)
_DTYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "half": "float16",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "float32": "float32",
}


def known_facts(found: Found, given: Given, trainer: str) -> dict[str, Known]:
    known: dict[str, Known] = {}
    _take_given(known, given)
    _take_printed(known, found)
    _take_published(known)
    _take_derived(known, trainer)
    return known


def _take_given(known: dict[str, Known], given: Given) -> None:
    for key, value in given.facts.items():
        _give(known, key, value, f"--{key}")
    if given.hardware:
        _give(known, "hardware", given.hardware, "--hardware")
    for key, value in given.config.items():
        _give(known, key, value, given.config_where.get(key, f"config: {key}"))
    comments = [str(value) for key, value in given.config.items() if isinstance(value, str) and _COMMENT_KEYS.search(key)]
    _take_claims(known, [*given.comments, *comments], "given")


def _give(known: dict[str, Known], key: str, value: object, where: str) -> None:
    """A given fact under its own name, and under ours where that is another."""
    key = key.replace("-", "_")
    known.setdefault(key, Known(_in_our_form(key, _loosely_a_number(key, value)), "given", where))
    if isinstance(value, (bool, int, float, str)):
        name = setting_of(key)
        known.setdefault(name, Known(_in_our_form(name, _loosely_a_number(name, value)), "given", where))
    if key in ("params", "n_params", "num_params", "model_size") and (count := _count(value)):
        # A round figure ("124M") is what somebody calls the model; a whole number is a count.
        known.setdefault("claimed_parameters" if isinstance(value, str) else "parameters", Known(count, "given", where))
    if key in ("tokens", "total_tokens") and (count := _count(value)):
        known.setdefault("tokens_trained", Known(count, "given", where))
    if key == "total_batch_size" and isinstance(value, int) and value >= 1024:
        known.setdefault("tokens_per_update", Known(value, "given", where))  # of nanochat, llm.c and build-nanogpt: tokens
    if key == "steps" and isinstance(value, int):
        known.setdefault("max_iters", Known(value, "given", where))


def _loosely_a_number(name: str, value: object) -> object:
    """A setting said in words: "default 6e-4" is 6e-4."""
    known = settings().get(name)
    if known is not None and known.type in (int, float) and isinstance(value, str) and (match := _LOOSE.match(value.strip())):
        number = float(match[1].replace(",", ""))
        return int(number) if known.type is int and number.is_integer() else number
    return value


def _in_our_form(name: str, value: object) -> object:
    return _DTYPES.get(value.lower(), value) if name == "dtype" and isinstance(value, str) else value


def _count(value: object) -> float | None:
    """10.26B, 124M, 13443137."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value if math.isfinite(value) and value > 0 else None
    match = re.match(r"~? ?(\d{1,15}(?:[.,]\d{1,9}){0,4}) ?([KMBT]?)\Z", value.strip(), re.I) if isinstance(value, str) else None
    return float(match[1].replace(",", "")) * {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}[match[2].upper()] if match else None


def _take_claims(known: dict[str, Known], texts: Sequence[str], origin: str) -> None:
    """Comments, and the size that one of them claims for the model. Kept as said; whether it is true is for analysis to ask."""
    texts = [text for text in texts if text]
    if texts:
        before = known["comments"].value if "comments" in known else ()
        known["comments"] = Known((*before, *texts), origin)  # type: ignore[misc, arg-type]
    for text in texts:
        for match in _SIZE.finditer(text):
            of_parameters = "param" in text[match.start() : match.end() + 12].lower()
            if of_parameters or (_is_a_name(text) and match[2] in "Mm"):  # billions in a name may as well be tokens
                size = float(match[1]) * (1e6 if match[2] in "Mm" else 1e9)
                known.setdefault("claimed_parameters", Known(size, origin, text))  # type: ignore[arg-type]
                return


def _is_a_name(text: str) -> bool:
    """`125M-single-parquet`, `gpt2-124M`: one word, and no prose that may count tokens."""
    return " " not in text.strip()


def _take_printed(known: dict[str, Known], found: Found) -> None:
    for name, facts in found.facts.items():
        if name == "notes":
            known.setdefault("notes", Known(tuple(str(fact.value) for fact in facts), "printed"))
            continue
        if name == "comments":
            _take_claims(known, [str(fact.value) for fact in facts], "printed")
            continue
        last = facts[-1]
        printed = Known(_in_our_form(name, last.value), "printed", f"line {last.line}")
        if name not in known or isinstance(
            known[name].value, (list, tuple, dict)
        ):  # several values given: the text says which is this run's
            known[name] = printed
        elif known[name].value != printed.value and known[name].origin == "given":
            known.setdefault(f"printed_{name}", printed)
    _take_totals(known, found.facts)


def _take_totals(known: dict[str, Known], facts: Mapping[str, list[Fact]]) -> None:
    """Sums that a text gives in parts."""
    if "parameters_with_decay" in facts and "parameters_without_decay" in facts:
        total = int(facts["parameters_with_decay"][-1].value) + int(facts["parameters_without_decay"][-1].value)  # type: ignore[call-overload]
        line = facts["parameters_with_decay"][-1].line
        known.setdefault(
            "parameters_total", Known(total, "printed", f"lines {line} and {facts['parameters_without_decay'][-1].line}, added")
        )
    if "gpu_index" in facts:
        cards = {fact.value for fact in facts["gpu_index"]}
        known.setdefault("gpus_seen", Known(len(cards), "printed", f"line {facts['gpu_index'][0].line}"))


def _take_published(known: dict[str, Known]) -> None:
    for key in ("config_file", "init", "config"):
        file = known[key].value if key in known else None
        if isinstance(file, str) and file.endswith(".py"):
            for name, value in published_config(file).items():
                known.setdefault(name, Known(value, "inferred", f"nanoGPT's {file}"))
    model = known["init_from"].value if "init_from" in known else None
    for name, value in GPT2_SHAPES.get(model, {}).items() if isinstance(model, str) else ():
        if name not in known or known[name].origin == "inferred":
            known[name] = Known(value, "inferred", f"shape of {model}")
    dataset = known["dataset"].value if "dataset" in known else None
    if isinstance(dataset, str) and (folder := known_dataset(dataset)):
        for name, count in DATASETS[folder].items():
            known.setdefault(name, Known(count, "inferred", f"nanoGPT's data/{folder}"))


def _take_derived(known: dict[str, Known], trainer: str) -> None:
    """Facts that another fact says in other words."""
    hardware = known["hardware"].value if "hardware" in known else None
    if isinstance(hardware, str) and (match := _DEVICES.search(hardware)):
        known.setdefault("devices", Known(int(match[1] or match[2]), "inferred", f'hardware "{hardware}"'))
    for name in ("grad_accum_steps", "accumulate_grad_batches"):  # of one process; nanoGPT's name counts all of them
        if name in known and "devices" in known and isinstance(known[name].value, int) and isinstance(known["devices"].value, int):
            total = known[name].value * known["devices"].value  # type: ignore[operator]
            known.setdefault("gradient_accumulation_steps", Known(total, "inferred", f"{name} x devices"))
    if trainer == "nanochat" and "depth" in known and isinstance(depth := known["depth"].value, int) and 0 < depth < 1000:
        where = "nanochat: width 64 x depth, heads of 128"
        known.setdefault("n_embd", Known(64 * depth, "inferred", where))
        known.setdefault("n_head", Known(max(1, (64 * depth + 127) // 128), "inferred", where))
