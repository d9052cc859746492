"""A rule looks for one cause. Its decorator says which codes it reports, and what has to be known before it can look:

    @rule("loss_spike", needs=("losses>=40",))
    def loss_spikes(case: Case) -> Answers: ...

Its own code then begins with the judgement. codes.toml has what each code weighs against the others and the words of
its findings; what a user reads about it (`diagnose --why=CODE`) stands in pages.md.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

import msgspec

from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked, Sureness, see
from nanolens.message import Message, placeholders

Answers = Iterator[Finding | NotChecked]
Look = Callable[[Case], Answers]
Setting = tuple[str, object, object]  # its name, its value, and the one to give it
PROGRESS = ("still_improving", "finished", "plateau", "underfitting_capacity", "above_reference", "eval_noise")
"""How a healthy run goes on."""


@dataclass(frozen=True)
class Code:
    """What a code weighs against the others; codes.toml explains each."""

    severity: Literal["fault", "cost", "remark"] = "remark"
    order: int = 1000
    overrules: tuple[str, ...] = ()
    overrules_progress: bool = False
    tested_by: tuple[str, ...] = ()
    excludes_health: bool = False
    fine: str = ""


_TABLES = tomllib.loads(files("nanolens.diagnosis").joinpath("codes.toml").read_text(encoding="utf-8"))
LACKS = {fact: Message(sentence) for fact, sentence in _TABLES.pop("lacks").items()}
GIVES: dict[str, str] = {LACKS[fact].msgid: flag for flag, facts in _TABLES.pop("gives").items() for fact in facts}
"""By the sentence of what is lacking: the option of `diagnose` that gives it."""
CODES = msgspec.convert(_TABLES, dict[str, Code])
FINE = {name: Message(code.fine) for name, code in CODES.items() if code.fine}
WORDS = {
    **_TABLES,
    **{
        f"{code}.{name}": {**table, **words}
        for code, table in _TABLES.items()
        for name, words in table.items()
        if isinstance(words, dict)
    },
}
"""The SENTENCES of each finding: CODE, or CODE.NAME where a code has several; what these leave out is that of CODE."""
SENTENCES = ("claim", "what", "how", "change", "wrong_if")


@dataclass(frozen=True)
class Seen:
    """A number of a finding; codes.toml has what it is, how it was got and its kind."""

    value: object
    usual: object
    where: Message
    at_step: float | None = None


def finding(
    name: str,
    sureness: Sureness,
    /,
    *evidence: Evidence | Seen,
    change: Change | None = None,
    sets: Setting | None = None,
    **values: object,
) -> Finding:
    """With the words that codes.toml has under this name. `values` are those of their placeholders, `sets` is the
    setting to change; `change` is made by the rule where its words depend on the case."""
    words = WORDS[name]
    command = words.get("command", "")
    values = {"command": command, **values}

    def said(part: str) -> Message:
        return Message(words[part], {key: values[key] for key in placeholders(words[part])})

    def number(item: Seen) -> Evidence:
        kind = words.get("kind", "number")
        return see(said("what"), item.value, item.usual, item.where, said("how"), kind, item.at_step)

    if change is None and "change" in words:
        key, old, new = sets or ("", None, None)
        change = Change(said("change"), key, old, new, command)
    items = tuple(item if isinstance(item, Evidence) else number(item) for item in evidence)
    return Finding(name.partition(".")[0], sureness, said("claim"), items, change, said("wrong_if"))


def new_lr(lr: float | None, factor: float) -> Setting | None:
    """The setting to change where the peak learning rate is known."""
    return ("learning_rate", lr, lr * factor) if lr else None


@dataclass(frozen=True)
class Rule:
    codes: tuple[str, ...]
    look: Look
    only: tuple[str, ...]
    marks: tuple[str, ...]
    needs: tuple[str, ...]

    def findings(self, case: Case) -> Answers:
        """What the rule finds, or why it could not look."""
        if not all(map(case.has, self.only)) or (self.marks and not case.marks(*self.marks)):
            return
        lacking = next((fact for fact in self.needs if not case.has(fact)), None)
        if lacking is None:
            yield from self.look(case)
        else:
            yield NotChecked(self.codes[0], LACKS[lacking])


def rule(
    *codes: str, only: tuple[str, ...] = (), marks: tuple[str, ...] = (), needs: tuple[str, ...] = ()
) -> Callable[[Look], Rule]:
    """Makes a Rule of a function. `only` names what must be so of a case, and `marks` the kinds of which its run must
    have one, for the question to arise at all; `needs` what must be known of it to answer: a fact that is missing is
    reported, with its sentence."""
    assert LACKS.keys() >= set(needs), "each needs a sentence in [lacks] of codes.toml"
    return lambda look: Rule(codes, look, only, marks, needs)
