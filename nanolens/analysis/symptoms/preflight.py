"""What the checks before the first step saw.

What it sees. In our own runs: warnings of the pre-flight checks that the run was started in spite of. A position that sees later
tokens (attention_bug), a val split whose windows stand in the train split (val_leak), parameters that get no gradient
(frozen_parameters).

Why it matters. These are tests of the model and the data themselves, not readings of a curve: they hold from the first step on.

When it is wrong. Frozen parameters may be meant, when part of a pretrained model is kept.

What it looks like. Changing the second half of a text changes what the model says about the first half.

What to change. What the warning says, before training any further.
"""

from __future__ import annotations

from collections.abc import Iterator

from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked, Sureness
from nanolens.message import Message, msg

CODES = ("frozen_parameters", "attention_bug", "val_leak")


def look(case: Case) -> Iterator[Finding | NotChecked]:
    for mark in case.run.marks:
        # Later warnings are diagnoses of this very kind, made while the run went on: they prove nothing new.
        if mark.kind != "warned" or mark.step != 0:
            continue
        check = mark.text.partition(":")[0]
        if check == "causal_leak":
            yield _finding(
                "attention_bug",
                "certain",
                mark.text,
                msg("the model sees the tokens that it is asked to predict: the attention is not causal, or the targets are not shifted"),
                Change(msg("give the attention a causal mask: position t may look at 0 to t only")),
            )
        elif check == "val_leak":
            yield _finding(
                "val_leak",
                "certain",
                mark.text,
                msg("the val split holds text that the model has trained on"),
                Change(msg("prepare the data again with a val split of its own: {command:code}", command="nanolens prepare")),
            )
        elif check == "frozen_parameters":
            yield _finding(
                "frozen_parameters",
                "possible" if case.is_pretrained else "likely",
                mark.text,
                msg("some parameters get no gradient and never change"),
                Change(msg("set requires_grad on all parameters that should learn")),
            )


def _finding(code: str, sureness: Sureness, text: str, claim: Message, change: Change) -> Finding:
    evidence = Evidence(
        msg("pre-flight check"),
        text,
        msg("passed"),
        msg("before the first step"),
        msg("a test of the model and the data themselves"),
        "text",
        0,
    )
    return Finding(code, sureness, claim, (evidence,), change, msg("the check is repeated and passes"))
