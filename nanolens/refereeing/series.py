"""A series of tries: what each changed, what it started from, and what makes its score no evidence of a gain."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from itertools import pairwise
from typing import Literal

from nanolens.comparison.side import COMPARISON_TABLES
from nanolens.config.fields import settings as all_settings
from nanolens.config.names import setting_of
from nanolens.facts.statistics import standard_error
from nanolens.message import Message

Status = Literal["baseline", "kept", "discarded", "failed", "unknown"]
_WORDS = tomllib.loads(files("nanolens.refereeing").joinpath("words.toml").read_text("utf-8"))
CONFOUNDERS = {key: Message(about["why"]) for key, about in _WORDS["confounders"].items()}
_IN_TEXT = {key: re.compile(about["text"], re.I) for key, about in _WORDS["confounders"].items() if about["text"]}
_OF_SETTING = {name: key for key, about in _WORDS["confounders"].items() for name in about["settings"].split()}
BASELINE_WORDS, SEVERAL = (re.compile(_WORDS["text"][name], re.I) for name in ("baseline", "several"))
NOT_A_GAIN = (
    "seed",
    "repeat",
    "evaluation",
    "data",
    "budget",
)  # with one of these a lower score says nothing of the change


@dataclass(frozen=True)
class Try:
    """One thing that was tried, with the score of each of its repeats (none where it failed)."""

    name: str
    scores: tuple[float, ...]
    status: Status = "unknown"
    description: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)
    seconds: float | None = None  # of one run
    error: float | None = None  # standard error of one evaluation
    parent: int | None = None  # place in the series of what it changed
    changes: tuple[str, ...] = ()  # against that
    confounders: tuple[str, ...] = ()  # of CONFOUNDERS

    @property
    def score(self) -> float:
        return sum(self.scores) / len(self.scores) if self.scores else math.nan

    @property
    def is_counted(self) -> bool:
        return bool(self.scores) and not set(self.confounders) & set(NOT_A_GAIN)


@dataclass(frozen=True)
class Series:
    source: str
    score: str  # name of the score
    is_lower_better: bool
    tries: tuple[Try, ...]
    notes: tuple[Message, ...] = ()
    spread: tuple[float, Message] | None = None  # between repeats, as known of such runs

    def toward_lower(self, score: float) -> float:
        return score if self.is_lower_better else -score


def related(tries: Sequence[Try]) -> tuple[Try, ...]:
    """Each try with what it started from and what it changed; repeats are put together with the try they repeat."""
    by_settings = sum(len(each.settings) > 0 for each in tries) > len(tries) / 2
    found: list[Try] = []
    for each in tries:
        parent = _nearest(each, found) if by_settings else _current(found)
        told = _with_changes(each, found, parent)
        same = _repeated(told, found, by_settings)
        if same is not None:
            before, names = found[same], {"seed"} if "seed" in told.confounders else {"repeat"}
            found[same] = replace(before, scores=(*before.scores, *told.scores))
            told = replace(told, parent=same, confounders=tuple(sorted(names)))
        found.append(told)
    return tuple(found)


def _current(found: Sequence[Try]) -> int | None:
    """In a table each try changes what was kept last."""
    return next((i for i in reversed(range(len(found))) if _is_state(found[i], i)), None)


def _is_state(each: Try, place: int) -> bool:
    return is_own(each) and (each.status in ("kept", "baseline") or place == 0)


def is_own(each: Try) -> bool:
    """It has a score and does not only repeat another try."""
    return bool(each.scores) and not set(each.confounders) & {"seed", "repeat"}


def _nearest(each: Try, found: Sequence[Try]) -> int | None:
    """Among runs with known settings: the earlier one that differs in the fewest that can matter; of several the
    earliest."""
    scored = [i for i in range(len(found)) if is_own(found[i])]
    return min(scored, key=lambda i: len(_apart(each, found[i])), default=None)


def _apart(one: Try, other: Try) -> list[str]:
    """The settings that differ and can change a loss; how a run is measured counts as well."""
    keys = dict.fromkeys((*one.settings, *other.settings))
    both = ((key, one.settings.get(key), other.settings.get(key)) for key in keys)
    return [key for key, a, b in both if a is not None and b is not None and a != b and effect_of(key) != "cannot"]


def effect_of(key: str) -> str:
    """What a setting can do to a loss, as `compare` says it."""
    name = setting_of(key)
    tables = (COMPARISON_TABLES["settings"], COMPARISON_TABLES["facts"])
    for table in tables:
        if name in table:
            return str(table[name]["effect"])
    known = all_settings().get(name)
    return str(COMPARISON_TABLES["groups"][known.group]["effect"]) if known else "can"


def _with_changes(each: Try, found: Sequence[Try], parent: int | None) -> Try:
    if parent is None:
        return replace(each, status="baseline" if each.status == "unknown" else each.status)
    changes = _apart(each, found[parent]) if each.settings else []
    named = {name for key in changes if (name := _OF_SETTING.get(setting_of(key)))}
    others = [key for key in changes if setting_of(key) not in _OF_SETTING]
    if not each.settings:
        named |= {name for name, pattern in _IN_TEXT.items() if pattern.search(each.description)}
    if len(others) > 1 or ("seed" in named and others) or (not each.settings and SEVERAL.search(each.description)):
        named.add("several")
    if others and "seed" in named:  # a changed seed beside a change is only another repeat of it
        named -= {"seed", "several"} if len(others) == 1 else {"seed"}
    return replace(each, parent=parent, changes=tuple(changes), confounders=tuple(sorted(named)))


def _repeated(each: Try, found: Sequence[Try], by_settings: bool) -> int | None:
    """The earlier try that this one only repeats, with another seed or with none."""
    if each.parent is None:
        return None
    if by_settings:
        return each.parent if set(each.changes) <= {"seed", "data_order"} else None
    if each.confounders == ("seed",) or BASELINE_WORDS.search(each.description):
        return each.parent
    same = [i for i in range(len(found)) if found[i].parent == each.parent and each.description and is_own(found[i])]
    return next((i for i in same if _plain(found[i].description) == _plain(each.description)), None)


def _plain(description: str) -> str:
    return re.sub(r"\W+", " ", description).strip().lower()


# --- which column is the score


@dataclass(frozen=True)
class ScoreName:
    name: str
    is_lower_better: bool | None


def score_among(names: Sequence[str], is_number: Callable[[str], bool]) -> ScoreName | None:
    """The first of the known names of scores that one of the columns has."""
    for pattern, is_lower in ((each["name"], each["lower"]) for each in _WORDS["scores"]):
        for name in names:
            if re.fullmatch(pattern, re.sub(r"\W+", "_", name.strip()).strip("_"), re.I) and is_number(name):
                return ScoreName(name, is_lower if isinstance(is_lower, bool) else None)
    return None


def direction_of(name: str) -> bool | None:
    found = score_among([name], lambda _: True)
    return found.is_lower_better if found else None


def direction_in(tries: Sequence[Try]) -> bool | None:
    """Whether lower is better, by what was kept; None where that does not say."""
    kept = [each.score for i, each in enumerate(tries) if _is_state(each, i)]
    moves = [b - a for a, b in pairwise(kept) if a != b]
    return (
        None if not moves or sum(m < 0 for m in moves) * 2 == len(moves) else sum(m < 0 for m in moves) * 2 > len(moves)
    )


def status_named(text: str) -> Status:
    for status, pattern in _WORDS["statuses"].items():
        if re.search(pattern, text, re.I):
            return status
    return "unknown"


def noise_within(tries: Sequence[Try]) -> tuple[float, int] | None:
    """(standard deviation between repeats, degrees of freedom), pooled over all that have repeats."""
    freedom, squares = 0, 0.0
    for each in filter(is_own, tries):
        error = standard_error(each.scores)  # type: ignore[arg-type]
        if error is not None:
            n = len(each.scores)
            freedom, squares = freedom + n - 1, squares + (n - 1) * n * error**2
    return (math.sqrt(squares / freedom), freedom) if freedom and squares > 0 else None


def differing(each: Try) -> Message | str:
    """What was tried, in its own words or by its settings."""
    if each.description:
        return each.description
    shown = [f"{key}={each.settings[key]}" for key in each.changes if key in each.settings]
    return " ".join(shown) or each.name


def confounder_of(setting: str) -> str | None:
    """What a change of this setting is, where a lower score would then say nothing of a gain."""
    return _OF_SETTING.get(setting_of(setting))
