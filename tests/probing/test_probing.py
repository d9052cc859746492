"""Probing a small run from end to end: exact, complete, and without a trace in the run itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nanolens.probing import plan, probe
from nanolens.probing.judge import QUESTIONS, ProbeAnswer
from nanolens.record import checkpoint_folder, probe_folder
from nanolens.record.read import read_run
from nanolens.record.store import find_runs
from tests.probing.small_run import fingerprint, make_data, trained

STEP = 24


@pytest.fixture(scope="module")
def before(run: Path) -> dict[str, str]:
    return fingerprint(run)


@pytest.fixture(scope="module")
def answer(run: Path, before: dict[str, str]) -> ProbeAnswer:
    return probe(f"{run}@{STEP}")


def digests(folder: Path, step: int) -> dict[str, str]:
    manifest = json.loads((checkpoint_folder(folder, step) / "manifest.json").read_text())
    return {name: manifest["files"][name]["sha256"] for name in ("model.safetensors", "optimizer.safetensors")}


def test_the_parent_is_never_touched(run: Path, before: dict[str, str], answer: ProbeAnswer):
    assert fingerprint(run) == before


def test_an_unchanged_branch_is_bit_equal_to_the_runs_own_continuation(run: Path, answer: ProbeAnswer):
    branch = probe_folder(run, STEP, "unchanged")
    assert digests(branch, STEP + 6) == digests(run, STEP + 6)
    assert [r.values["exact"] for r in answer.readings if "exact" in r.values] == [True]


def test_every_question_is_answered_and_every_branch_is_a_run(run: Path, answer: ProbeAnswer):
    assert set(answer.costs) == set(QUESTIONS) and not answer.not_asked
    assert {effect.question for effect in answer.effects} >= {"data", "regularisation", "lr", "batch", "size"}
    names = {path.name.partition("-")[2] for path in find_runs(run) if path != run}
    assert names >= {
        "unchanged",
        "as-planned-20",
        "lr-x2",
        "dropout-0",
        "weight-decay-0",
        "batch-x4",
        "batch-half",
        "width-x2",
    }
    assert all(read_run(path).get("state") == "finished" for path in find_runs(run))


def test_branches_are_judged_on_the_same_tokens(run: Path, answer: ProbeAnswer):
    branches = [
        path
        for path in find_runs(run / "probes")
        if path.name.partition("-")[2] in ("as-planned-20", "lr-x2", "width-x2")
    ]
    assert len({read_run(path).evals.batches[-1] for path in branches}) == 1


def test_what_was_asked_before_is_not_run_again(run: Path, answer: ProbeAnswer):
    told: list = []
    again = probe(f"{run}@{STEP}", ("lr", "size"), tell=told.append)
    assert not told
    assert [effect.gain for effect in again.effects if effect.cause == "model_too_small"] == [
        effect.gain for effect in answer.effects if effect.cause == "model_too_small"
    ]


def test_a_plan_writes_nothing(tmp_path: Path):
    run = trained(tmp_path / "other", make_data(tmp_path / "data"), max_iters=4, lr_decay_iters=4, eval_interval=2)
    before = fingerprint(run)
    found = plan(f"{run}@2")
    assert [planned.question for planned in found.planned] == list(QUESTIONS)
    assert not (run / "probes").exists() and fingerprint(run) == before


def test_a_question_that_cannot_be_asked_is_left_out_with_the_reason(tmp_path: Path):
    run = trained(
        tmp_path / "other",
        make_data(tmp_path / "data"),
        max_iters=4,
        lr_decay_iters=4,
        eval_interval=2,
        arch="modern",
        ngram_rows=0,
    )
    found = probe(f"{run}@2", ("size",))
    assert [question for question, _ in found.not_asked] == ["size"] and not found.effects


MODEL = """
import torch
from nanolens.model.gpt2 import GPT2

class Model(GPT2):
    def __init__(self, config, vocab_size):
        super().__init__(config, vocab_size)
        {fault}

def see_all(attention, norm, x):
    B, T, d = x.shape
    q, k, v = attention.qkv(norm(x)).view(B, T, 3, attention.n_head, -1).transpose(1, 3).unbind(2)
    return attention.out(torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, T, d))
"""


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("self.blocks[0].mlp.requires_grad_(False)", "frozen_parameters"),
        (
            "self.blocks[0].attention.forward = lambda norm, x, cache: see_all(self.blocks[0].attention, norm, x)",
            "mask_leak",
        ),
    ],
)
def test_a_fault_of_the_model_is_seen_and_ends_the_questions(tmp_path: Path, fault: str, cause: str):
    file = tmp_path / "faulty.py"
    file.write_text(MODEL.format(fault=fault))
    run = trained(tmp_path / "run", make_data(tmp_path / "data"), arch=str(file), max_iters=12, lr_decay_iters=12)
    answer = probe(f"{run}@6", arch=str(file))
    assert answer.first is not None and answer.first.cause == cause
    assert {question for question, _ in answer.not_asked} == set(QUESTIONS) - {"numbers"}


def test_a_val_split_of_another_kind_is_told_from_memory(tmp_path: Path):
    run = trained(tmp_path / "run", make_data(tmp_path / "data", shift=2))
    answer = probe(f"{run}@{STEP}", ("data",))
    assert answer.first is not None and answer.first.cause == "val_differs"
