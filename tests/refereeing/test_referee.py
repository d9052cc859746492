"""What the referee calls a gain, what it never counts as one, and what it reads."""

from __future__ import annotations

import contextlib
import io
import json
import math
import subprocess
from pathlib import Path

import msgspec
import numpy as np
import pytest

import nanolens
from nanolens.cli import main
from nanolens.refereeing import referee
from nanolens.refereeing.deciding import decide
from nanolens.refereeing.levels import Gain, KnownNoise, ScoredTry, posterior
from nanolens.refereeing.series import Series, Try, direction_in, related, score_among, status_named
from nanolens.refereeing.words import RefereeData

RESULTS = """commit	val_bpb	memory_gb	status	description
a1b2c3d	0.997900	44.0	keep	baseline
b2c3d4e	0.993200	44.2	keep	increase LR to 0.04
c3d4e5f	1.005000	44.0	discard	switch to GeLU activation
d4e5f6a	0.000000	0.0	crash	double model width (OOM)
e5f6a7b	0.992900	44.0	keep	change random seed 42 -> 137
f6a7b8c	0.993600	44.0	discard	weight decay 0.1
a7b8c9d	0.992500	44.0	keep	warmup ratio 0.05
b8c9d0e	0.993400	44.0	discard	rope base 50000
c9d0e1f	0.985100	45.0	keep	halve batch size
d0e1f2a	0.985900	45.0	discard	beta2 0.98
e1f2a3b	0.984800	45.0	keep	window pattern SSSL and depth 9
f2a3b4c	0.986300	45.0	discard	softcap 20
a3b4c5d	0.980000	45.0	keep	train longer: time budget 10 minutes
b4c5d6e	0.979000	45.0	keep	larger validation set
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "results.tsv"
    path.write_text(RESULTS)
    return path


def printed(*words: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(list(words)) == 0
    return out.getvalue()


def decisions(answer: nanolens.Answer) -> dict[str, str]:
    return {each.name: each.decision for each in answer.value.verdicts}


def test_a_table_of_an_overnight_loop(table: Path):
    found = nanolens.referee(table)
    said = decisions(found)
    assert said["b2c3d4e"] == said["c9d0e1f"] == "gain" and said["c3d4e5f"] == "harm"
    assert said["a7b8c9d"] == said["e1f2a3b"] == "not_shown"
    assert said["d4e5f6a"] == "failed" and said["a1b2c3d"] == "baseline"
    assert "Of 7 kept changes 2 can be told from luck." in str(found)


def test_what_is_no_change_of_the_model_is_named_and_never_a_gain(table: Path):
    found = {each.name: each for each in nanolens.referee(table).value.verdicts}
    named = {name: found[name].of.confounders for name in ("e5f6a7b", "a3b4c5d", "b4c5d6e", "e1f2a3b")}
    assert named == {"e5f6a7b": ("seed",), "a3b4c5d": ("budget",), "b4c5d6e": ("evaluation",), "e1f2a3b": ("several",)}
    assert [found[name].decision for name in ("e5f6a7b", "a3b4c5d", "b4c5d6e")] == ["not_counted"] * 3
    assert found["e1f2a3b"].gain is not None, "several at once are judged together, and named"


def test_a_changed_seed_tells_the_noise(table: Path):
    found = nanolens.referee(table).value
    base = next(each for each in found.verdicts if each.name == "b2c3d4e")
    assert base.of.scores == (0.9932, 0.9929)
    assert "repeats of 1 try" in str(nanolens.referee(table))


def test_the_json_keeps_to_its_schema_and_is_what_the_command_prints(table: Path):
    found = nanolens.referee(table)
    text = json.dumps(found.data(), allow_nan=False)
    msgspec.json.decode(text, type=RefereeData, strict=True)
    assert json.loads(printed("referee", str(table), "--json")) == found.data()
    assert found.text("hi") != found.text("en") and "संयोग" in found.text("hi")


def test_a_higher_score_may_be_better(tmp_path: Path):
    path = tmp_path / "runs.csv"
    scores = [0.700, 0.702, 0.699, 0.760, 0.701, 0.698, 0.700, 0.703]
    rows = [f"r{i},{0.001 * (i + 1)},{score}" for i, score in enumerate(scores)]
    path.write_text("name,lr,accuracy\n" + "\n".join(rows) + "\n")
    found = nanolens.referee(path).value
    assert not found.series.is_lower_better
    assert [each.name for each in found.those("gain")] == ["r3"]
    assert found.verdicts[3].gain == pytest.approx(0.06, abs=0.01)


@pytest.mark.parametrize(
    ("text", "words", "options"),
    [
        ("a,b\nx,1\ny,2\nz,3\n", "which column", ()),
        ("name,score\nx,1\ny,2\nz,3\n", "whether a lower", ()),
        ("name,loss\nx,1\n", "too few", ()),
        ("name,loss\nx,1\ny,2\nz,3\n", "no column", ("--score=acc",)),
    ],
)
def test_what_cannot_be_refereed_is_said_in_one_error(
    text: str, words: str, options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "t.csv").write_text(text)
    assert main(["referee", str(tmp_path / "t.csv"), *options]) == 1
    said = capsys.readouterr().err
    assert words in said and "fix:" in said and "Traceback" not in said


def test_a_branch_whose_commits_name_scores(tmp_path: Path):
    def git(*words: str) -> None:
        about = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(tmp_path), *about, *words], check=True, capture_output=True)

    git("init", "-b", "main")
    losses = [1.90, 1.905, 1.70, 1.702, 1.699, 1.703, 1.697, 1.55]
    for number, loss in enumerate(losses):
        git("commit", "--allow-empty", "-m", f"Change number {number}", "-m", f"val_loss: {loss}")
    git("commit", "--allow-empty", "-m", "Write a readme")
    found = nanolens.referee(f"{tmp_path}@main").value
    assert found.series.score == "val_loss" and len(found.verdicts) == len(losses)
    gains = [each.what for each in found.those("gain")]
    assert gains == ["Change number 2", "Change number 7"]
    with pytest.raises(nanolens.UserError, match="no branch nothing"):
        nanolens.referee(f"{tmp_path}@nothing")


def simulated(seed: int, count: int, noise: float) -> tuple[list[Try], np.ndarray]:
    draw = np.random.default_rng(seed)
    truth = np.where(draw.random(count) < 0.1, 1.0, 0.0)
    scores = 10 - truth + noise * draw.standard_normal(count)
    tries = [Try("base", (10.0,), "baseline")]
    return [*tries, *(Try(str(i), (score,), description=f"change {i}") for i, score in enumerate(scores))], truth


def test_few_of_the_gains_are_luck_and_most_large_ones_are_found():
    """bench/referee.py asks this of 2,000 series."""
    held = false = large = found = 0
    stated = true = 0.0
    for seed in range(30):
        tries, truth = simulated(seed, 60, noise=0.25)
        verdicts = referee(Series("x", "loss", True, related(tries))).verdicts[1:]
        gains = [i for i, each in enumerate(verdicts) if each.decision == "gain"]
        held, false = held + len(gains), false + sum(truth[i] == 0 for i in gains)
        large, found = large + int(truth.sum()), found + sum(truth[i] > 0 for i in gains)
        stated, true = stated + sum(verdicts[i].gain or 0 for i in gains), true + sum(truth[i] for i in gains)
    assert false / held < 0.1 and found / large > 0.85 and stated / true == pytest.approx(1, abs=0.1)


def test_pure_noise_has_no_gains():
    draw = np.random.default_rng(3)
    gains = 0
    for _ in range(10):
        tries = [Try(str(i), (score,), description=f"change {i}") for i, score in enumerate(draw.standard_normal(50))]
        gains += len(referee(Series("x", "loss", True, related(tries))).those("gain"))
    assert gains <= 1


def test_known_noise_is_used():
    tries = [ScoredTry(1.0, 1, None), *(ScoredTry(1.0 - 0.01 * (i == 2), 1, 0) for i in range(4))]
    sharp = posterior(tries, KnownNoise(0.001, 50)).gains[3]
    dull = posterior(tries, KnownNoise(0.01, 50)).gains[3]
    assert sharp is not None and dull is not None and sharp.odds > 0.99 and dull.odds < 0.3


def test_tries_built_on_a_lucky_score_show_its_level():
    """The second was kept for a score that those built on it do not confirm."""
    lucky = [ScoredTry(1.0, 4, None), ScoredTry(0.98, 1, 0), *(ScoredTry(1.0, 1, 1) for _ in range(6))]
    true = [*lucky[:2], *(ScoredTry(0.98, 1, 1) for _ in range(6))]
    odds = [posterior(each, KnownNoise(0.006, 20)).gains[1] for each in (lucky, true)]
    assert odds[0] is not None and odds[1] is not None
    assert odds[0].odds < 0.2 and odds[1].odds > 0.95


def test_quantiles_of_a_gain():
    gain = Gain((0.6, 0.3, 0.1), (2.0, 0.0, -1.0), (0.1, 0.0, 0.1))
    assert gain.mean == pytest.approx(1.1) and gain.quantile(0.25) == 0.0
    assert gain.quantile(0.05) == pytest.approx(-1, abs=0.01) and 1.9 < gain.quantile(0.6) < 2.1


def test_names_and_directions():
    found = score_among(["lr", "loss", "val_bpb"], lambda _: True)
    assert found is not None and found.name == "val_bpb" and found.is_lower_better
    assert status_named("discard") == "discarded" and status_named("keep") == "kept"
    kept = [Try(str(i), (score,), "kept") for i, score in enumerate((3.0, 4.0, 5.0))]
    assert direction_in(kept) is False


def test_settings_tell_what_a_run_changed():
    base = {"learning_rate": 1e-3, "beta2": 0.99, "seed": 1, "max_iters": 100, "threads": 1}
    rows = [{}, {"seed": 2}, {"learning_rate": 2e-3}, {"max_iters": 200}, {"learning_rate": 3e-3, "beta2": 0.9}]
    rows += [{"threads": 4}, {"learning_rate": 2e-3, "seed": 3}]
    tries = [Try(str(i), (1.0 + i / 100,), settings={**base, **row}) for i, row in enumerate(rows)]
    found = related(tries)
    assert [each.confounders for each in found] == [
        (),
        ("seed",),
        (),
        ("budget",),
        ("several",),
        ("repeat",),
        ("seed",),
    ]
    assert found[0].scores == (1.0, 1.01, 1.05) and found[2].scores == (1.02, 1.06)


# --- pair by pair


def test_a_clear_gain_is_kept_and_harm_is_discarded():
    assert decide([0.1, 0.11, 0.09, 0.1], 0.02).result == "keep"
    assert decide([-0.1, -0.11, -0.09, -0.1], 0.02).result == "discard"
    assert decide([0.1, 0.11], 0.02).result == "undecided", "two pairs do not tell their own spread"
    assert decide([0.03, -0.02, 0.01, 0.0], 0.02).result == "undecided"
    assert decide([-math.inf], 0.02).result == "discard"


def test_looking_after_every_pair_does_not_make_errors():
    draw, wrong = np.random.default_rng(0), 0
    for _ in range(300):
        gains = 0.03 * draw.standard_normal(40)
        wrong += any(decide(gains[:n], 0.02).result == "keep" for n in range(3, 41))
    assert wrong / 300 <= 0.05
