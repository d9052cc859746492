"""From what a user names to a Run."""

import io
import json

import pytest

from nanolens.errors import UserError
from nanolens.logs import open

LOG = (
    "step 0: train loss 4.2874, val loss 4.2823\niter 0: loss 4.2639, time 25857.56ms, mfu -100.00%\niter 10: loss "
    "3.1459, time 220.50ms, mfu 1.69%\n"
)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_log_with_its_config_and_what_the_user_adds(tmp_path):
    (tmp_path / "train.log").write_text(LOG)
    (tmp_path / "known.toml").write_text("n_layer = 6\nn_embd = 384\n")
    run = open.open_run("train.log", "known.toml", "RTX 4070", [("dataset_tokens", "1003854"), ("bias", "False")])
    assert (run.get("n_layer"), run.get("hardware"), run.get("dataset_tokens"), run.get("bias")) == (
        6,
        "RTX 4070",
        1003854,
        False,
    )
    assert len(run.steps) == 2 and len(run.evals) == 1


def test_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(LOG.encode())))
    assert len(open.open_run("-").steps) == 2


def test_a_config_alone_is_a_run_of_which_nothing_has_happened(tmp_path):
    (tmp_path / "run.toml").write_text("n_layer = 48\nn_embd = 64\n")
    run = open.open_run("run.toml")
    assert run.get("n_layer") == 48 and not len(run.steps)


def test_a_preset_is_a_config_too():
    assert open.open_run("shakespeare-char").get("n_embd") == 384


def test_a_json_file_of_the_hugging_face_trainer_is_a_log(tmp_path):
    history = [{"loss": 3.0 - 0.1 * i, "learning_rate": 1e-4, "epoch": 0.1 * i, "step": 10 * i} for i in range(1, 6)]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history, "max_steps": 50}))
    assert len(open.open_run("trainer_state.json").steps) == 5


@pytest.mark.parametrize("target", ["nothing-here", "no/such/file.log", None, ""])
def test_what_is_not_there_is_said(target):
    with pytest.raises(UserError):
        open.open_run(target)
