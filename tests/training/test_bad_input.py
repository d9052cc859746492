"""Each mistake is one clear message, and leaves nothing behind that looks like a run."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nanolens.data.store import Dataset
from nanolens.data.tokenizers import CharTokenizer
from nanolens.errors import UserError
from nanolens.record.events import StepTaken
from tests.training.small import but, events_of, recorded, signal_at


def refused(config, data: Dataset, run: Path) -> str:
    with pytest.raises(UserError) as refusal:
        recorded(config, data, run)
    assert len(refusal.value.faults) == 1, refusal.value.faults
    assert refusal.value.faults[0].fix is not None, "a message says what to do"
    return str(refusal.value)


def test_a_token_file_that_does_not_fit_the_vocabulary(data: Dataset, tmp_path: Path):
    wrong = data.train.copy()
    wrong[777] = 500
    assert "500" in refused(but(), replace(data, train=wrong), tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_vocabulary_smaller_than_the_datas(data: Dataset, tmp_path: Path):
    assert "vocab_size = 7 is smaller than the data's 11" in refused(but(vocab_size=7), data, tmp_path / "run")


def test_a_split_shorter_than_one_window(data: Dataset, tmp_path: Path):
    assert "val" in refused(but(), replace(data, val=data.val[:10]), tmp_path / "run")


def test_resuming_where_there_is_nothing(data: Dataset, tmp_path: Path):
    assert "no run" in refused(but(init_from="resume"), data, tmp_path / "run")


def test_a_folder_that_holds_a_run_is_never_overwritten(data: Dataset, tmp_path: Path):
    run = tmp_path / "run"
    recorded(but(max_iters=2, eval_interval=2), data, run)
    before = (run / "events.jsonl").read_bytes()
    assert "already contains a run" in refused(but(max_iters=2), data, run)
    assert (run / "events.jsonl").read_bytes() == before
    recorded(but(max_iters=3, eval_interval=3, overwrite=True), data, run)
    assert (tmp_path / "run.old-1" / "events.jsonl").read_bytes() == before, "the old run was moved aside"
    assert {event.get("attempt", 1) for event in events_of(run)} == {1}


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to the superuser")
def test_a_folder_that_may_not_be_written(data: Dataset, tmp_path: Path):
    (tmp_path / "locked").mkdir(mode=0o500)
    assert "cannot write to" in refused(but(), data, tmp_path / "locked" / "run")


def test_a_run_folder_that_is_a_file(data: Dataset, tmp_path: Path):
    (tmp_path / "run").write_text("")
    assert "cannot write to" in refused(but(), data, tmp_path / "run")


def test_a_checkpoint_of_another_architecture(data: Dataset, tmp_path: Path):
    run = tmp_path / "run"
    recorded(but(max_iters=2, eval_interval=2), data, run)
    assert "arch = modern differs from the checkpoint's gpt2" in refused(
        but(init_from="resume", arch="modern"), data, run
    )


def test_an_own_model_that_was_changed_since_cannot_take_the_old_weights(data: Dataset, tmp_path: Path):
    own, run = tmp_path / "mine.py", tmp_path / "run"
    text = (
        "import torch\nclass Model(torch.nn.Module):\n    def __init__(self, config, vocab_size):\n        "
        "super().__init__()\n"
        "        self.table = torch.nn.Embedding(vocab_size, {width})\n        self.head = torch.nn.Linear({width}, "
        "vocab_size, bias=False)\n"
        "    def forward(self, idx):\n        return self.head(self.table(idx))\n"
    )
    own.write_text(text.replace("{width}", "8"))
    config = but(arch=str(own), max_iters=2, eval_interval=2)
    recorded(config, data, run)
    own.write_text(text.replace("{width}", "9"))
    assert (
        recorded(replace(config, init_from="resume", max_iters=4), data, run).step == 4
    )  # the run has a copy of its own
    with pytest.raises(UserError) as refusal:
        recorded(replace(config, init_from=f"{run}@2", max_iters=4), data, tmp_path / "branch")
    assert {fault.what.args["name"] for fault in refusal.value.faults} == {"table.weight", "head.weight"}


def test_data_of_another_tokenizer_on_resuming(data: Dataset, tmp_path: Path):
    run = tmp_path / "run"
    recorded(but(max_iters=2, eval_interval=2), data, run)
    other = replace(data, tokenizer=CharTokenizer("abcdefgh.\n "))
    assert "a different tokenizer" in refused(but(init_from="resume", max_iters=4), other, run)


def test_a_branch_from_a_run_or_a_step_that_is_not_there(data: Dataset, tmp_path: Path):
    parent = tmp_path / "parent"
    recorded(but(max_iters=2, eval_interval=2), data, parent)
    assert "no checkpoint at step 7" in refused(but(init_from=f"{parent}@7"), data, tmp_path / "a")
    assert "no run" in refused(but(init_from=f"{tmp_path}/nowhere@7"), data, tmp_path / "b")
    assert "not a step" in refused(but(init_from=f"{parent}@last"), data, tmp_path / "c")


def test_two_processes_do_not_train_in_one_folder(data: Dataset, tmp_path: Path):
    run = tmp_path / "run"
    recorded(but(max_iters=3, eval_interval=3), data, run, signal_at(StepTaken, 1))
    (run / "running.json").write_text(json.dumps({"pid": 1, "host": os.uname().nodename, "started_at_s": 9e9}))
    assert "process 1 is already training" in refused(but(init_from="resume", max_iters=3), data, run)
    (run / "running.json").write_text(json.dumps({"pid": 2**22 - 7, "host": os.uname().nodename, "started_at_s": 9e9}))
    assert recorded(but(init_from="resume", max_iters=3), data, run).why == "finished", (
        "the claim of a dead process does not count"
    )


def test_a_model_that_is_larger_than_its_disk(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("nanolens.files.free_bytes", lambda path: 1000)
    assert "the disk has 1000 left" in refused(but(), data, tmp_path / "run")


def test_an_unknown_init_from_names_what_it_could_be(data: Dataset, tmp_path: Path):
    assert "init_from" in refused(but(init_from="gpt2-huge"), data, tmp_path / "run")


def test_an_empty_split_is_refused_before_anything_else(data: Dataset, tmp_path: Path):
    assert "train" in refused(but(), replace(data, train=np.zeros(0, np.uint16)), tmp_path / "run")
