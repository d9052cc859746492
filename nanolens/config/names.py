"""What other trainers and trackers call settings, columns and precisions, and what we call them: `names.toml`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

_TABLES: Mapping[str, Mapping[str, str]] = tomllib.loads(Path(__file__).with_name("names.toml").read_text("utf-8"))


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
_OTHERS = re.compile(r"[^a-z0-9_]+")


@lru_cache(maxsize=4096)
def normalised(name: str) -> str:
    """`learningRate`, `Learning rate` and `learning-rate` are one name; so are `train/loss` and `train loss`."""
    return _OTHERS.sub("_", _CAMEL.sub("_", name.strip()).lower()).strip("_") or name.strip()


def column_of(name: str) -> str:
    """Our column for somebody's name, or "" where its meaning is not plain."""
    plain = normalised(name)
    if plain.endswith("_global_step"):
        return "step"
    if plain in FOREIGN_COLUMNS or "/" not in name:
        return FOREIGN_COLUMNS.get(plain, "")
    if "/device/" in name:
        return ""  # of one device; our speed is that of all
    # In `perf/mfu` the last part says what it is; in `aux/loss` it does not say which.
    last = FOREIGN_COLUMNS.get(normalised(name.rpartition("/")[2]), "")
    return last if last in ("mfu", "lr", "grad_norm", "tokens_per_s", "loss_scale") else ""


def setting_of(name: str) -> str:
    """Our name of a setting; the name itself where we have no other."""
    plain = normalised(name)
    return SETTINGS.get(plain, plain)
