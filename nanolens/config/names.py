"""What other trainers and trackers call settings, columns and precisions, and what we call them: `names.toml`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

_TABLES: Mapping[str, Mapping[str, Any]] = tomllib.loads(Path(__file__).with_name("names.toml").read_text("utf-8"))


def _ours_by_theirs(*tables: str) -> Mapping[str, str]:
    return {theirs: ours for table in tables for ours, names in _TABLES[table].items() for theirs in names.split()}


FOREIGN_COLUMNS = _ours_by_theirs("columns")
SETTINGS = _ours_by_theirs("settings")
PRECISIONS = _ours_by_theirs("precisions")
HINTS = _ours_by_theirs("often", "settings", "hints")
ALIASES: Mapping[str, tuple[str, ...]] = {
    ours: tuple(dict.fromkeys(f"{_TABLES['often'].get(ours, '')} {_TABLES['settings'].get(ours, '')}".split()))
    for ours in {**_TABLES["often"], **_TABLES["settings"]}
}
TRACKER_COLUMNS = _TABLES["tracker_columns"]
IN_PERCENT = ("mfu_frac",)  # of these in a tracker

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_OTHERS = re.compile(r"[^\w\u0900-\u097f]+")
_LOSS_WORDS: Mapping[str, str] = {
    theirs: ours for ours, words in _TABLES["loss_words"].items() for theirs in words.split()
}
LOSS_NAMES = (
    *_TABLES["loss_words"]["loss"].split(),
    *_TABLES["loss_words"]["perplexity"].split(),
    "val",
    "vloss",
    "tloss",
)
UNITS_BESIDE: Mapping[str, tuple[str, float]] = {
    unit: (column, float(scale)) for column, units in _TABLES["units"].items() for unit, scale in units.items()
}
_DROPPED = frozenset(
    """info debug warning main rank at train training trainer completed global current cur optimizer
    validate validation eval test at the a on and with for in to mode after finished done""".split()
)
_SPEEDS = ("it_per_s", "took_s", "tokens_per_s", "device_tokens_per_s", "samples_per_s")
_BY_DEVICE = frozenset("device gpu gpus".split())


@lru_cache(maxsize=8192)
def normalised(name: str) -> str:
    """`learningRate`, `Learning rate` and `learning-rate` are one name; so are `train/loss` and `train loss`."""
    return _OTHERS.sub("_", _CAMEL.sub("_", name.strip()).lower()).strip("_") or name.strip()


@lru_cache(maxsize=8192)
def words_of(name: str) -> tuple[str, ...]:
    return tuple(word for word in normalised(name).split("_") if word)


@lru_cache(maxsize=8192)
def column_of(name: str, unit: str = "") -> tuple[str, float]:
    """Our column for a name and the unit beside its number, and what to multiply with; "" where the meaning is not
    plain. Of a time without a unit, and of what may be a share or per cent, the column is left to be looked at."""
    column = _column(name)
    if not column:
        return _with_unit_in_name(name) if not unit else ("", 1.0)
    kind, scale = UNITS_BESIDE.get(unit, ("", 1.0))
    if column == "speed":
        return (kind, scale) if kind in _SPEEDS else ("", 1.0)
    if column == "ktokens_per_s":
        return "tokens_per_s", 1e3
    if column in ("took", "took_s", "took_ms", "average", "clock", "data", "evaluation_time", "eta"):
        return _of_time(column, kind, scale)
    if column in ("mfu", "memory"):
        wanted, ours = ("share", "mfu_frac") if column == "mfu" else ("memory_bytes", "memory_bytes")
        return (ours, scale) if kind == wanted else ("mfu", 1.0) if column == "mfu" else ("", 1.0)
    if column in ("loss", "val", "train", "smoothed"):
        if kind == "took_s":  # `val: 12 ms` is no loss
            return "", 1.0
        return (f"{column}_bits", 1.0) if kind == "bits" else (column, 1.0) if kind in ("", "nats") else ("", 1.0)
    if kind == "took_s" and column not in ("tokens_per_s",):
        return "", 1.0
    return column, 1.0


def _with_unit_in_name(name: str) -> tuple[str, float]:
    """`train_step_timing in s`, `data load (ms)`: the last word is the unit of a time."""
    words = words_of(name)
    kind, _ = UNITS_BESIDE.get(words[-1] if len(words) > 1 else "", ("", 1.0))
    if kind != "took_s":
        return "", 1.0
    base = "_".join(words[:-1]).removesuffix("_in")
    return column_of(base, words[-1]) if _column(base) in _TIMES else ("", 1.0)


_TIMES = ("took", "average", "clock", "data", "evaluation_time", "eta")


def _of_time(column: str, kind: str, scale: float) -> tuple[str, float]:
    if kind == "it_per_s" and column == "took":
        return "it_per_s", scale
    if kind not in ("", "took_s"):
        return "", 1.0
    ours = {"data": "data_s", "evaluation_time": "eval_s", "clock": "clock_s", "took_ms": "took_s", "eta": "eta_s"}
    if column == "average":
        return ("average_s", scale) if kind else ("smoothed", 1.0)
    if column == "took":
        return ("took_s", scale) if kind else ("took", 1.0)
    if column == "took_ms" and not kind:
        return "took_s", 1e-3
    return ours.get(column, column), scale


def _column(name: str) -> str:
    plain = normalised(name)
    if plain.endswith("_global_step"):
        return "step"
    if "/" in name and (by_path := _by_path(name)) is not None:
        return by_path
    column = FOREIGN_COLUMNS.get(plain) or _of_loss(words_of(name))
    if column:
        return column
    words = words_of(name)
    for first in range(1, len(words)):
        column = FOREIGN_COLUMNS.get("_".join(words[first:]), "")
        if column and set(words[:first]) <= _DROPPED:
            return column
        if not column and set(words[:first]) <= _DROPPED and (column := _of_loss(words[first:])):
            return column
    return ""


def _by_path(name: str) -> str | None:
    """In `perf/mfu` the last part says what it is; in `aux/loss` it does not say which. None: no path."""
    first, _, last = name.rpartition("/")
    if normalised(name) in FOREIGN_COLUMNS:
        return None
    ours = FOREIGN_COLUMNS.get(normalised(last), "")
    if ours in ("tokens_per_s", "device_tokens_per_s"):
        return "device_tokens_per_s" if set(words_of(first)) & _BY_DEVICE else ours
    is_plain = ours in ("mfu", "lr", "grad_norm", "loss_scale", "it_per_s", "tokens_seen", "samples_seen")
    return ours if is_plain else None


@lru_cache(maxsize=4096)
def _kinds_of(word: str) -> tuple[str, ...]:
    """What a word of a loss's name is; of words written without blanks (验证损失) each."""
    if word in _LOSS_WORDS or word.isascii():
        return (_LOSS_WORDS.get(word, ""),)
    kinds: list[str] = []
    while word:
        first = next((word[:end] for end in range(len(word), 0, -1) if word[:end] in _LOSS_WORDS), None)
        if first is None:
            return ("",)
        kinds.append(_LOSS_WORDS[first])
        word = word[len(first) :]
    return tuple(kinds)


def is_of_validation(name: str) -> bool:
    return any(kind == "val" for word in words_of(name) for kind in _kinds_of(word))


def _of_loss(words: tuple[str, ...]) -> str:
    """`train_loss`, `Val loss`, `avg nll`, `lm loss`: which loss of a run it is; "" where it is none."""
    kinds = [kind for word in words for kind in _kinds_of(word)]
    if "perplexity" in kinds:
        return "other" if "test" in kinds else "val_ppl" if "val" in kinds else "ppl" if "" not in kinds else ""
    if kinds in (["train"], ["val"]):
        return {"train": "train", "val": "val"}[kinds[0]]
    is_loss = "loss" in kinds or tuple(words[-2:]) == ("cross", "entropy") or words[-1:] == ("ce",)
    if not is_loss or "" in kinds:
        return ""
    if "val" in kinds:
        return "val"
    if "test" in kinds:
        return "test"
    if "epoch" in kinds:
        return "epoch_loss"
    return "smoothed" if "smoothed" in kinds and "train" not in kinds else "loss"


def setting_of(name: str) -> str:
    """Our name of a setting; the name itself where we have no other."""
    plain = normalised(name)
    return SETTINGS.get(plain, plain)
