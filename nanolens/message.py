"""Every sentence for a user is a Message: its English form, and the values that go into it.

The sentence is the key of the translation, so it stands in the code as a plain literal, with its values in the order of
its placeholders: `msg("step {step:count} took {took:seconds}", step, took_s)`. A placeholder names the *kind* of its
value, never its digits: those and the unit are decided once, in `show/words.py`, where a Message becomes text."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

KINDS = frozenset(
    """text code count number about nats rough_nats nats_range rate rough_rate seconds rough_seconds seconds_range ms
    share percent bytes tokens flops flops_per_s tokens_per_s parameters times date""".split()
)
"""What a placeholder may name: `{x:nats}` a loss, `{x:rate}` a learning rate, `{x:share}` a fraction in per cent,
`{x:times}` a ratio, `{x:code}` something to be typed or read literally (a command, a key, a path). No kind means text.
A noun that is counted stands with its number, as one and as many: `{n:count update|updates}`.
`about` is a number to three digits, the `rough_` kinds are for what is known to two; `nats_range` and `seconds_range`
take a pair; `ms` and `percent` have the digits that trainers print (33.22 ms; a fraction as 11.07%)."""

NOT_FINITE = ("nan", "inf", "-inf")  # how such numbers are written in JSON


@dataclass(frozen=True)
class Message:
    msgid: str
    args: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        """The English sentence with its values as Python shows them: for our own tests. Users get `show.words.say`."""
        return _Plain().vformat(self.msgid, (), self.args)


def msg(msgid: str, /, *values: object, **named: object) -> Message:
    """`msgid` must be a literal: tests collect them from the source, and check that each placeholder has a value."""
    return Message(msgid, dict(zip(placeholders(msgid), values, strict=True)) if values else named)


def revived(value: object) -> object:
    """A Message that was written as JSON, with the messages and the numbers that are not finite among its values."""
    if isinstance(value, Message):
        return revived({"msgid": value.msgid, "args": value.args})
    if isinstance(value, (list, tuple)):
        return type(value)(revived(each) for each in value)
    if not (isinstance(value, dict) and value.keys() == {"msgid", "args"}):
        return value
    kinds = placeholders(value["msgid"])
    args = {
        name: float(str(each)) if each in NOT_FINITE and kinds.get(name) not in ("text", "code") else revived(each)
        for name, each in value["args"].items()
    }
    return Message(value["msgid"], args)


@cache
def placeholders(msgid: str) -> dict[str, str]:
    """Each name in the sentence with its kind ("text" where none is given), in the order of the sentence."""
    fields = ((name, spec or "text") for _, name, spec, _ in string.Formatter().parse(msgid) if name is not None)
    return {name: spec.partition(" ")[0] for name, spec in fields}


def counted(shown: str, value: object, forms: str) -> str:
    """The number as shown, with the noun in the form that belongs to it: `forms` is "update|updates"."""
    if not forms:
        return shown
    one, _, many = forms.partition("|")
    return f"{shown} {one if value == 1 else many or one}"


class _Plain(string.Formatter):
    def format_field(self, value: object, format_spec: str) -> str:
        return counted(str(value), value, format_spec.partition(" ")[2])
