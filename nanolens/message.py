"""Every sentence for a user is a Message: its English form, and the values that go into it.

The sentence is the key of the translation, so it stands in the code as a plain literal: `msg("step {step:count} took {took:seconds}",
step=step, took=took_s)`. A placeholder names the *kind* of its value, never its digits: how many decimals a loss has, or which unit
a time is given in, is decided once, in `show/words.py`, where a Message becomes text in the reader's language.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, field

KINDS = frozenset(
    """text code count number about nats rough_nats nats_range rate rough_rate seconds rough_seconds seconds_range ms share percent
    bytes tokens flops flops_per_s tokens_per_s parameters times date""".split()
)
"""What a placeholder may name: `{x:nats}` a loss, `{x:rate}` a learning rate, `{x:share}` a fraction in per cent, `{x:times}` a ratio,
`{x:code}` something to be typed or read literally (a command, a key, a path). No kind means text. `about` is a number to three digits, the
`rough_` kinds are for what is known to two; `nats_range` and `seconds_range` take a pair; `ms` and `percent` have the digits that trainers
print (33.22 ms; a fraction as 11.07%), for speaking of what stands in a log."""


@dataclass(frozen=True)
class Message:
    msgid: str
    args: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        """The English sentence with its values as Python shows them: for logs and tests of our own. Users get `show.words.say`."""
        return _Plain().vformat(self.msgid, (), self.args)


def msg(msgid: str, /, **args: object) -> Message:
    """`msgid` must be a literal: the catalogue's test collects the literals from the source."""
    return Message(msgid, args)


def placeholders(msgid: str) -> dict[str, str]:
    """Each name in the sentence with its kind ("text" where none is given)."""
    return {name: kind or "text" for _, name, kind, _ in string.Formatter().parse(msgid) if name is not None}


class _Plain(string.Formatter):
    def format_field(self, value: object, format_spec: str) -> str:
        return str(value)
