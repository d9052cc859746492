"""Short names for the sides of a comparison, to be used in sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence

LONGEST = 20


def labels(names: Sequence[str]) -> list[str]:
    """The names themselves where they are short; else their first word where that tells them apart; else letters."""
    if len(set(names)) == len(names) and all(len(name) <= LONGEST and ":" not in name for name in names):
        return list(names)
    firsts = [re.split(r"[\s:(,;]", name.strip(), maxsplit=1)[0] for name in names]
    if len(set(firsts)) == len(firsts) and all(0 < len(first) <= LONGEST for first in firsts):
        return firsts
    return [chr(ord("A") + i) for i in range(len(names))]
