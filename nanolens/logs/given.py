"""All that is known of a run besides its rows: what the user gives, what the log prints, what is published; each with
its origin.

A fact given on the command line counts before one from the config file, that before one printed, and that before an
inferred one. Where a given fact contradicts a printed one, the printed one is kept too, as `printed_NAME`: that the two
differ may be the diagnosis."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TypeVar

from nanolens.config.fields import settings
from nanolens.config.load import named_preset
from nanolens.config.names import PRECISIONS, setting_of
from nanolens.facts.references import CORPORA
from nanolens.logs.fields import NUMBER
from nanolens.logs.rows import COUNT_SCALES, Found
from nanolens.record.run import Known, Origin, number_of
from nanolens.sizing.shape import GPT2_FAMILY


@dataclass(frozen=True)
class Given:
    config: Mapping[str, object] = field(default_factory=dict)
    config_where: Mapping[str, str] = field(default_factory=dict)  # "known.toml line 3" by key
    comments: Sequence[str] = ()  # of the config file
    hardware: str | None = None
    facts: Mapping[str, object] = field(default_factory=dict)  # --key=value

    @property
    def max_iters(self) -> float | None:
        said = (value for key, value in (*self.facts.items(), *self.config.items()) if setting_of(key) == "max_iters")
        return next((number for value in said if (number := number_of(value)) is not None), None)


_COMMENT_KEYS = re.compile(r"comment|note|name|title|description", re.I)
_SIZE = re.compile(r"(?<![\w.])~?(\d{1,6}(?:\.\d{1,4})?) ?([MBmb])(?![\w/])")
_LOOSE = re.compile(rf"(?:default|about|approx\.?|~|≈|circa)? {{0,3}}({NUMBER})\Z", re.I)
_DEVICES = re.compile(r"(?<![\w.])(\d{1,5}) ?[x×*] ?(?=[A-Za-z])|\b(\d{1,5}) (?:GPUs?|cards?|devices)\b", re.I)
_COUNT = re.compile(r"~? ?(\d{1,15}(?:,\d{1,9}){0,4}(?:\.\d{1,9})?) ?([KMBT]?)\Z", re.I)

KnownFacts = dict[str, Known]
T = TypeVar("T")


def known_facts(found: Found, given: Given, trainer: str) -> KnownFacts:
    known: KnownFacts = {}
    for key, value in given.facts.items():
        _give(known, key, value, f"--{key}")
    if given.hardware:
        _give(known, "hardware", given.hardware, "--hardware")
    for key, value in given.config.items():
        _give(known, key, value, given.config_where.get(key, f"config: {key}"))
    comments = [value for key, value in given.config.items() if isinstance(value, str) and _COMMENT_KEYS.search(key)]
    _take_claims(known, [*given.comments, *comments], "given")
    _take_printed(known, found)
    _take_published(known)
    _take_derived(known, trainer)
    return known


def _give(known: KnownFacts, key: str, value: object, where: str) -> None:
    """A given fact under its own name, and under ours where that is another."""
    key = key.replace("-", "_")
    names = [key, setting_of(key)] if isinstance(value, (int, float, str)) else [key]
    facts = {name: _in_our_form(name, _loosely_a_number(name, value)) for name in names}
    count = _count(value)
    if key in ("params", "n_params", "num_params", "model_size") and count:
        # A round figure ("124M") is what somebody calls the model; a whole number is a count.
        facts["claimed_parameters" if isinstance(value, str) else "parameters"] = count
    if key in ("tokens", "total_tokens") and count:
        facts["tokens_trained"] = count
    if key == "total_batch_size" and isinstance(value, int) and value >= 1024:
        facts["tokens_per_update"] = value  # of nanochat, llm.c and build-nanogpt: tokens
    if key == "steps" and isinstance(value, int):
        facts["max_iters"] = value
    _add(known, facts, "given", where)


def _loosely_a_number(name: str, value: object) -> object:
    """A setting said in words: "default 6e-4" is 6e-4."""
    known = settings().get(name)
    if known is None or known.type not in (int, float) or not isinstance(value, str):
        return value
    match = _LOOSE.match(value.strip())
    if match is None:
        return value
    number = float(match[1].replace(",", ""))
    return int(number) if known.type is int and number.is_integer() else number


def _in_our_form(name: str, value: object) -> object:
    return PRECISIONS.get(value.lower(), value) if name == "dtype" and isinstance(value, str) else value


def _count(value: object) -> float | None:
    """10.26B, 124M, 13443137."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value if math.isfinite(value) and value > 0 else None
    match = _COUNT.match(value.strip()) if isinstance(value, str) else None
    return float(match[1].replace(",", "")) * COUNT_SCALES[match[2].upper()] if match else None


def _take_claims(known: KnownFacts, texts: Sequence[str], origin: Origin) -> None:
    """Comments, and the size that one of them claims for the model. Whether it is true is for analysis to ask."""
    texts = [text for text in texts if text]
    if texts:
        before = known["comments"].value if "comments" in known else ()
        known["comments"] = Known((*(before if isinstance(before, tuple) else (before,)), *texts), origin)
    for text in texts:
        for match in _SIZE.finditer(text):
            of_parameters = "param" in text[match.start() : match.end() + 12].lower()
            # `125M-single-parquet` is a name and no prose that may count tokens; billions in a name may be tokens too.
            is_name = " " not in text.strip() and match[2] in "Mm"
            if of_parameters or is_name:
                size = float(match[1]) * COUNT_SCALES[match[2].upper()]
                known.setdefault("claimed_parameters", Known(size, origin, text))
                return


def _take_printed(known: KnownFacts, found: Found) -> None:
    for name, facts in found.facts.items():
        printed = Known(_in_our_form(name, facts[-1].value), "printed", f"line {facts[-1].line}")
        if name == "notes":
            known.setdefault("notes", Known(tuple(str(fact.value) for fact in facts), "printed"))
        elif name == "comments":
            _take_claims(known, [str(fact.value) for fact in facts], "printed")
        elif name not in known or isinstance(known[name].value, (list, tuple, dict)):
            known[name] = printed  # several values given: the text says which is this run's
        elif known[name].value != printed.value and known[name].origin == "given":
            known.setdefault(f"printed_{name}", printed)
    # Sums that a text gives in parts
    parts = [found.facts.get(name, [None])[-1] for name in ("parameters_with_decay", "parameters_without_decay")]
    counts = [part.value for part in parts if part is not None and isinstance(part.value, int)]
    if len(counts) == 2:
        where = " and ".join(str(part.line) for part in parts if part is not None)
        known.setdefault("parameters_total", Known(sum(counts), "printed", f"lines {where}, added"))
    if cards := found.facts.get("gpu_index"):
        seen = len({fact.value for fact in cards})
        known.setdefault("gpus_seen", Known(seen, "printed", f"line {cards[0].line}"))


def _take_published(known: KnownFacts) -> None:
    for key in ("config_file", "init", "config"):
        file = _value(known, key, str) or ""
        if file.endswith(".py"):
            _add(known, published_config(file), "inferred", f"nanoGPT's {file}")
    model = _value(known, "init_from", str) or ""
    for name in SHAPE_SETTINGS if model in GPT2_FAMILY else ():
        if name not in known or known[name].origin == "inferred":
            known[name] = Known(getattr(GPT2_FAMILY[model], name), "inferred", f"shape of {model}")
    if folder := known_dataset(_value(known, "dataset", str) or ""):
        _add(known, DATASETS[folder], "inferred", f"nanoGPT's data/{folder}")


def _take_derived(known: KnownFacts, trainer: str) -> None:
    hardware = _value(known, "hardware", str) or ""
    if match := _DEVICES.search(hardware):
        _add(known, {"devices": int(match[1] or match[2])}, "inferred", f'hardware "{hardware}"')
    devices, depth = _value(known, "devices", int), _value(known, "depth", int)
    for name in ("grad_accum_steps", "accumulate_grad_batches"):  # of one process; nanoGPT's name counts all of them
        accumulation = _value(known, name, int)
        if accumulation is not None and devices is not None:
            _add(known, {"gradient_accumulation_steps": accumulation * devices}, "inferred", f"{name} x devices")
    if trainer == "nanochat" and depth is not None and 0 < depth < 1000:
        shape = {"n_embd": 64 * depth, "n_head": max(1, (64 * depth + 127) // 128)}
        _add(known, shape, "inferred", "nanochat: width 64 x depth, heads of 128")


def _add(known: KnownFacts, facts: Mapping[str, object], origin: Origin, where: str) -> None:
    for name, value in facts.items():
        known.setdefault(name, Known(value, origin, where))


def _value(known: KnownFacts, name: str, kind: type[T]) -> T | None:
    value = known[name].value if name in known else None
    return value if isinstance(value, kind) else None


DATASETS: Mapping[str, Mapping[str, int]] = {
    corpus.name: {
        **({"vocab_size": corpus.vocab_size} if corpus.is_char else {}),
        "dataset_tokens": corpus.train_tokens,
        "val_tokens": corpus.val_tokens,
    }
    for corpus in CORPORA
    if corpus.train_tokens is not None and corpus.val_tokens is not None
}
"""By nanoGPT's data folder. The vocabulary of those in GPT-2's tokens is left open: trainers pad it as suits them."""

SHAPE_SETTINGS = ("n_layer", "n_head", "n_embd", "vocab_size", "block_size", "bias")
PUBLISHED = Path(__file__).with_name("published.toml")
_PRESETS = {"train_shakespeare_char": "shakespeare-char", "train_gpt2": "gpt2-124m"}
_NANOGPTS = tuple(
    """n_layer n_head n_embd block_size dropout bias dataset batch_size gradient_accumulation_steps learning_rate
    weight_decay beta1 beta2 grad_clip max_iters decay_lr warmup_iters lr_decay_iters min_lr eval_interval eval_iters
    eval_only init_from always_save_checkpoint log_interval""".split()
)
"""Settings that nanoGPT has too; their defaults in `Config` are nanoGPT's own."""


def published_config(file: str) -> dict[str, object]:
    """What one of nanoGPT's own config files stands for, its defaults included; empty for any other file."""
    stem = PurePosixPath(file.replace("\\", "/")).name.removesuffix(".py")
    preset = named_preset(_PRESETS[stem]) if stem in _PRESETS else None
    own = preset.values if preset is not None else tomllib.loads(PUBLISHED.read_text("utf-8")).get(stem)
    return {} if own is None else {**{name: settings()[name].default for name in _NANOGPTS}, **own}


def known_dataset(name: str) -> str:
    """The folder name of a well-known dataset, said in any of the usual ways; "" for another."""
    said = set(re.sub(r"[^a-z]+", " ", name.lower()).split())
    if said & {"shakespeare", "tinyshakespeare"}:
        is_char = bool(said & {"char", "character", "characters"})
        return "shakespeare_char" if is_char else "shakespeare" if name == "shakespeare" else ""
    return "openwebtext" if said & {"openwebtext", "owt"} else ""
