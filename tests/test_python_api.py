"""The Python API says what the commands say, and reads whatever they read."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import nanolens
from nanolens.cli import main
from nanolens.cli.arguments import Parser, command_table
from tests.trackers import made


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        made.made_run(tmp_path / "runs" / name)
    lines = [f"iter {k}: loss {4 - k / 50:.4f}, time 30.00ms, mfu 10.00%" for k in range(100)]
    (tmp_path / "train.log").write_text("step 0: train loss 4.2000, val loss 4.2100\n" + "\n".join(lines) + "\n")
    return tmp_path


def printed(*words: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(list(words)) == 0
    return out.getvalue()


def test_a_run_has_its_columns_and_facts(runs: Path):
    run = nanolens.Run("one")
    assert run.name == "one" and run.folder == Path("runs/one") and run.state == "finished"
    assert run.config["batch_size"] == 4
    assert run.steps.step.tolist() == list(range(1, 31)) and np.isnan(run.steps.loss[6])
    assert run.evals.step.tolist() == [0, 10, 20, 30]
    assert run.samples[20].startswith("sample of step 20")
    assert nanolens.Run("one@10").steps.step[-1] == 10
    assert nanolens.Run(runs / "runs" / "one").name == "one"


def test_a_run_is_also_the_log_of_another_trainer(runs: Path):
    log = nanolens.Run("train.log", hardware="RTX 4070")
    assert log.name == "train" and len(log.steps) == 100 and log.evals.val.tolist() == [4.21]
    assert log.config["hardware"] == "RTX 4070"
    assert len(log.findings()) and log.explain().data()
    with pytest.raises(nanolens.UserError, match="is a log, not a run folder"):
        log.folder  # noqa: B018
    with pytest.raises(nanolens.UserError, match="there is no run named nothing"):
        nanolens.Run("nothing")


def test_tables(runs: Path):
    pytest.importorskip("pandas")
    run = nanolens.Run("one")
    assert list(run.steps.to_pandas()["step"]) == list(range(1, 31))
    assert list(run.frame("evals")["val"]) == run.evals.val.tolist()
    both = run.to_pandas()
    assert (
        list(both.index) == list(range(31))
        and both.loc[20, "val"] == run.evals.val[2]
        and both.loc[20, "loss"] == run.steps.loss[19]
    )


@pytest.mark.parametrize("command", ["diagnose", "explain", "forecast"])
def test_an_answer_is_what_the_command_prints(command: str, runs: Path):
    told = getattr(nanolens, command)(nanolens.Run("one"))
    assert str(told) == printed(command, "one").rstrip()
    assert json.dumps(told.data(), sort_keys=True) == json.dumps(
        json.loads(printed(command, "one", "--format=json")), sort_keys=True
    )
    assert told.markdown().rstrip() == printed(command, "one", "--format=md").rstrip()
    assert told.text("hi") != told.text("en")


def test_a_comparison_and_a_plan(runs: Path):
    comparison = nanolens.compare("one", nanolens.Run("two"))
    assert comparison.data() == json.loads(printed("compare", "one", "two", "--json"))
    assert str(comparison) == printed("compare", "one", "two").rstrip()
    plan = nanolens.plan("quickstart", max_iters=77, hardware="RTX 4070")
    assert plan.value.config.max_iters == 77 and plan.data()["config"]["max_iters"] == 77
    assert str(plan).startswith("Plan for")


def test_what_a_code_means_and_what_was_sent_are_answers(runs: Path):
    page = nanolens.diagnose(why="overfitting")
    assert str(page) == printed("diagnose", "--why=overfitting").rstrip()
    assert page.text("hi") == printed("diagnose", "--why=overfitting", "--lang=hi")
    assert page.data("hi") == json.loads(printed("diagnose", "--why=overfitting", "--lang=hi", "--json"))
    with pytest.raises(nanolens.UserError) as error:
        nanolens.diagnose(why="overfiting")
    assert error.value.faults[0].fix.args == {"nearest": "overfitting"}
    sent = nanolens.send(nanolens.Run("one"), "tensorboard")
    assert sent.value.rows == sent.data()["rows"] == 31 and "up to step 30" in str(sent)


def test_another_trainer_is_run_and_recorded(runs: Path, capfd: pytest.CaptureFixture[str]):
    command = [sys.executable, "-c", "print(open('train.log').read(), end='')"]
    run = nanolens.watch(command=command)
    assert len(run.steps.loss) == 100 and "iter 99: loss 2.0200" in capfd.readouterr().out
    with pytest.raises(nanolens.UserError):
        nanolens.watch()


def test_findings_are_a_sequence_that_can_be_read(runs: Path):
    found = nanolens.Run("one").findings()
    assert (
        [finding.code for finding in found] == found.codes and found[0].code == found.codes[0] and len(found[:1]) == 1
    )
    assert found.codes[0] in str(found) and str(found) == repr(found)


def test_a_notebook_shows_a_run(runs: Path):
    html = nanolens.Run("one")._repr_html_()
    assert "<b>one</b>" in html and nanolens.Run("one").findings().codes[0] in html and "<script" not in html


def test_every_name_is_there_and_documented():
    docs = Path(__file__).parent.parent / "docs"
    page, reference = ((docs / name).read_text(encoding="utf-8") for name in ("python.md", "api.md"))
    assert set(nanolens.__all__) <= set(dir(nanolens))
    assert sorted(re.findall(r"^::: nanolens\.(\w+)$", reference, re.M)) == nanolens.__all__
    for name in nanolens.__all__:
        assert getattr(nanolens, name) is not None
        assert name in page, name


def test_a_quiet_run_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from nanolens.record import events as e
    from nanolens.record.write import write_run_file
    from nanolens.training import loop

    def fails(config: object, dataset: object, run: Path, emit: object, **more: object) -> loop.TrainingOutcome:
        write_run_file(run, {"config": {"max_iters": 5}})
        emit(e.RunStarted(step=0))
        emit(e.RunEnded(step=3, why="failed", because="there is not enough memory"))
        nan = float("nan")
        return loop.TrainingOutcome(run, 3, "failed", None, None, nan, nan, nan, 0, "", {}, 1.0)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loop, "train", fails)
    with pytest.raises(RuntimeError, match="runs/quickstart-1: there is not enough memory"):
        nanolens.train("quickstart", quiet=True)


def test_every_command_is_a_function_with_the_commands_options():
    elsewhere = {"lang", "help", "format", "json", "overrides", "view"}
    of_the_terminal = {
        "dashboard": {"no_browser"},
        "sample": {"out_dir"},  # nanoGPT's spelling of a run
        "train": {"detach", "devices", "max_restarts"},  # processes that the command starts
    }
    for name in command_table():
        function = getattr(nanolens, f"{name}_" if name in ("import", "try") else name)
        options = {action.dest for action in Parser(name)._actions} - elsewhere - of_the_terminal.get(name, set())
        assert options <= set(inspect.signature(function).parameters), name
