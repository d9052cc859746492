"""nanolens sweep: how the budget is spent, what goes on, and a small one from end to end."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from nanolens.cli import main
from nanolens.config.load import load
from nanolens.errors import UserError
from nanolens.measure.sweep import range_named, rungs_of, survivors, trials_of
from tests.probing.small_run import make_data


def test_a_range_of_rates_is_filled_evenly_on_a_log_scale():
    swept = range_named("learning_rate", "1e-4..1e-2")
    assert swept is not None and swept.is_log
    assert [trial["learning_rate"] for trial in trials_of([swept], 3)] == [1e-4, 1e-3, 1e-2]
    assert range_named("learning_rate", "1e-3") is None


def test_two_ranges_are_both_filled():
    ranges = [range_named("learning_rate", "1e-4..1e-2"), range_named("n_embd", "32..128")]
    trials = trials_of([each for each in ranges if each], 9)
    assert len({trial["n_embd"] for trial in trials}) >= 8 and all(isinstance(trial["n_embd"], int) for trial in trials)


@pytest.mark.parametrize(
    ("key", "text"), [("learning_rate", "1e-2..1e-4"), ("learning_rate", "a..b"), ("dataset", "a..b")]
)
def test_what_is_no_range_is_told(key: str, text: str):
    with pytest.raises(UserError):
        range_named(key, text)


@pytest.mark.parametrize("updates", [300, 1000, 5000, 100_000])
def test_rungs_stay_within_the_budget_and_the_run(updates: int):
    rungs = rungs_of(updates, 2000)
    assert sum(rung.trials * rung.updates for rung in rungs) <= updates * 1.02
    assert rungs[-1].updates <= 2000 and all(
        b.updates > a.updates and b.trials < a.trials for a, b in itertools.pairwise(rungs)
    )


def test_a_budget_for_nothing_is_refused():
    with pytest.raises(UserError):
        rungs_of(50, 2000)


def test_what_cannot_be_told_from_the_best_goes_on_with_it():
    losses = {0: 2.0, 1: 2.001, 2: 2.3, 3: float("inf")}
    assert survivors(losses, {0: False, 1: False, 2: True, 3: True}, 1) == [0, 1]
    assert survivors(losses, {0: False, 1: True, 2: True, 3: True}, 1) == [0]


def test_a_sweep_finds_the_better_rate_and_writes_it_down(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nanolens.measure.sweep.CANDIDATES", (3,))
    data = make_data(tmp_path / "data" / "tiny")
    base = tmp_path / "base.toml"
    base.write_text(
        f'dataset = "{data.as_posix()}"\nn_layer = 1\nn_head = 2\nn_embd = 16\nblock_size = 16\nbatch_size = '
        f"4\ngradient_accumulation_steps = 1\n"
        "max_iters = 60\nlr_decay_iters = 60\nwarmup_iters = 4\neval_iters = 4\nlearning_rate = 1e-3\nmin_lr = "
        '1e-4\ndevice = "cpu"\n'
        "compile = false\nthreads = 1\n"
    )
    assert main(["sweep", str(base), "--learning_rate=1e-6..1e-2", "--budget=5m", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["best"]["values"]["learning_rate"] == 1e-2
    best = load(found["config_file"]).config
    assert (best.learning_rate, best.min_lr, best.max_iters) == (1e-2, 1e-3, 60)
    assert all((Path(trial["run"]) / "run.json").is_file() for trial in found["trials"])
