"""Tokens seen, counted wrongly.

What it sees. A stated number of tokens (in the config, a name, an axis) against updates x tokens per update, and whether the number
of devices explains the ratio.

Why it matters. Tokens are the axis on which runs are compared; a factor of eight in it turns every conclusion round.

When it is wrong. Whether gradient_accumulation_steps counts over all devices differs between trainers: nanoGPT's is global, most
others' is per device.

What it looks like. 8 x 1,024 x 4 x 50,000 is 1.6 billion for one process, 13 billion on eight, and the label says 100 billion.

What to change. The label, or the arithmetic: batch x context x accumulation x devices x updates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked
from nanolens.message import msg

CODES = ("token_accounting",)

_STATED = re.compile(r"(?<![\w.])(\d[\d,]*(?:\.\d+)?)\s*([KMBT])\s*-?(?:tok|$)", re.IGNORECASE)
_FACTOR = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def look(case: Case) -> Iterator[Finding | NotChecked]:
    stated = _stated(case)
    if stated is None:
        return
    key, text, tokens = stated
    per_update = case.tokens_per_update
    updates = case.whole("max_iters") or case.last_step
    if per_update is None or not updates:
        yield NotChecked("token_accounting", msg("tokens per update or the number of updates is not known"))
        return
    product = per_update.value * updates
    ratio = tokens / product
    devices = case.devices
    if 0.9 < ratio < 1.12 or (devices is not None and 0.9 < ratio / devices < 1.12):
        return
    evidence = Evidence(
        msg("tokens as stated"),
        tokens,
        product,
        msg("{key:code} = {text:code}", key=key, text=text),
        msg("{updates:count} updates x {per:tokens} tokens ({how})", updates=updates, per=per_update.value, how=per_update.how),
        "tokens",
    )
    by_devices = next((count for count in (2, 4, 8, 16, 32, 64, 128, 256) if abs(ratio / count - 1) < 0.1), None)
    claim = (
        msg("the stated tokens are {count:count} times the product: that many devices would explain it", count=by_devices)
        if by_devices is not None and devices is None
        else msg("the stated tokens are {ratio:times} what the settings give", ratio=ratio)
    )
    yield Finding(
        "token_accounting",
        "likely",
        claim,
        (evidence,),
        Change(msg("count batch_size x block_size x gradient_accumulation_steps x devices x updates, and correct the label")),
        msg("the number counts something else than tokens seen in training"),
    )


def _stated(case: Case) -> tuple[str, str, float] | None:
    for key, known in case.run.known.items():
        if not isinstance(known.value, str) or not ("token" in key.lower() or "token" in known.value.lower() or key == "tokens"):
            continue
        if key in (
            "dataset",
            "tokens_per_update",
            "tokenizer",
            "dataset_tokens",
            "val_tokens",
            "comments",
            "data_fingerprint",
            "tokenizer_fingerprint",
        ):
            continue
        found = _STATED.search(known.value)
        if found:
            return key, known.value, float(found[1].replace(",", "")) * _FACTOR[found[2].lower()]
    return None
