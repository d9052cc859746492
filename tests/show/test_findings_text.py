"""Findings and faults as a user reads them, word for word."""

from __future__ import annotations

from nanolens.diagnosis import Diagnosis
from nanolens.diagnosis.rule import LACKS
from nanolens.diagnosis.words import diagnosis_parts
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked
from nanolens.message import msg
from nanolens.show.answer import fenced, markdown
from nanolens.show.document import plain
from tests.diagnosis.rules.build import make

FINDING = Finding(
    code="eval_dominates_time",
    sureness="likely",
    claim=msg("evaluations take {share:share} of the time, {total:seconds} in all", share=0.347, total=88.3),
    evidence=(
        Evidence(
            msg("share of the time that evaluations take"),
            0.347,
            (0.01, 0.1),
            msg("every {spacing:count} updates", spacing=250),
            msg("recorded"),
            "share",
        ),
    ),
    change=Change(
        msg("evaluate less often, or fewer batches"),
        key="eval_interval",
        old=250,
        new=1730.0,
        command="nanolens train --eval_interval=1730",
    ),
    wrong_if=msg("the evaluations are what the run is for"),
)
DIAGNOSIS = Diagnosis(
    make(),
    findings=(FINDING,),
    not_checked=(
        NotChecked("loss_spike", msg("there are too few losses")),
        NotChecked("constant_loss", msg("there are too few losses")),
    ),
)


def test_a_finding_in_a_terminal() -> None:
    assert (
        plain(diagnosis_parts(DIAGNOSIS, is_all=True), 100)
        == """\
likely: evaluations take 34.7% of the time, 88.3 s in all. What to do: evaluate less often, or fewer
batches.

1. likely: evaluations take 34.7% of the time, 88.3 s in all (eval_dominates_time)
   - share of the time that evaluations take: 34.7%, expected 1% to 10%
     every 250 updates; recorded
   What to do: evaluate less often, or fewer batches
     eval_interval = 1730   # 250
     nanolens train --eval_interval=1730
   This is wrong if the evaluations are what the run is for

Not checked
  - loss_spike, constant_loss: there are too few losses
"""
    )


def test_a_finding_in_hindi_keeps_numbers_keys_and_commands() -> None:
    said = plain(diagnosis_parts(DIAGNOSIS, is_all=True), 100, "hi")
    assert "34.7%" in said and "1% से 10%" in said and "eval_interval = 1730   # 250" in said and "बहुत संभव" in said


def test_a_finding_in_markdown() -> None:
    said = markdown(diagnosis_parts(DIAGNOSIS, is_all=True))
    assert "### 1. likely: evaluations take 34.7% of the time" in said
    assert "```\neval_interval = 1730   # 250\nnanolens train --eval_interval=1730\n```" in said
    assert "- `loss_spike`, `constant_loss`: there are too few losses" in said


def test_a_fence_is_longer_than_what_it_holds() -> None:
    assert fenced("a ``` b") == "````\na ``` b\n````"


def test_nothing_found_is_said() -> None:
    said = "No fault was found in what was read; that is too little to call the run healthy.\n\n"
    assert plain(diagnosis_parts(Diagnosis(make()))) == said


def test_what_could_not_be_checked_is_one_line_that_names_what_would_help() -> None:
    lacking = (NotChecked("low_mfu", LACKS["hardware"]), NotChecked("data_repeated", LACKS["tokens_per_update"]))
    said = plain(diagnosis_parts(Diagnosis(make(), not_checked=lacking)), 100)
    assert "Not checked: 2 causes; most would be with --hardware=NAME, --config=FILE (--all names them)" in said


def test_what_is_in_order_beside_a_fault_is_one_line() -> None:
    fine = Finding("init_loss_ok", "certain", msg("the first loss is fine"), FINDING.evidence, None, msg("never"))
    beside, alone = Diagnosis(make(), findings=(FINDING, fine)), Diagnosis(make(), findings=(fine,))
    assert "Nothing wrong with: the first loss." in plain(diagnosis_parts(beside))
    assert "(init_loss_ok)" not in plain(diagnosis_parts(beside))
    assert "(init_loss_ok)" in plain(diagnosis_parts(alone)) and "(init_loss_ok)" in plain(
        diagnosis_parts(beside, True)
    )
