"""The story agrees with the numbers and with the diagnosis."""

from __future__ import annotations

from collections.abc import Collection

from nanolens.explanation.sections import story
from nanolens.facts.case import Case
from nanolens.logs import Given, read_log
from nanolens.show.words import say


def told(log: str, codes: Collection[str] = (), **config: object) -> dict[str, str]:
    sections = story(Case(read_log(log, Given(config=config))), codes)
    return {section.name: " ".join(say(remark.words) for remark in section.remarks) for section in sections}


RISING = "".join(
    f"step {k}: train loss {2.0 - k / 4000:.4f}, val loss {1.5 + abs(k - 2000) / 4000:.4f}\n"
    for k in range(250, 5001, 250)
)
FALLING = "".join(
    f"step {k}: train loss {3.9 - k / 10000:.4f}, val loss {4.0 - k / 10000:.4f}\n" for k in range(500, 5001, 500)
)


def test_the_turning_point_is_the_lowest_val_loss() -> None:
    assert "the val loss was lowest at step 2,000, 1.5000, and has risen by 0.7500 since" in told(RISING)["course"]
    assert "3.5000 at step 5,000, is the lowest" in told(FALLING)["course"]


def test_an_overfit_run_is_stopped_at_its_best_step() -> None:
    assert told(RISING, {"overfitting"})["verdict"].startswith("Stop.")
    assert "keep the weights of step 2,000 (1.5000)" in told(RISING, {"overfitting"})["verdict"]


def test_a_broken_run_is_stopped_whatever_else_is_found() -> None:
    assert "Training has broken down" in told(FALLING, {"nan_divergence", "still_improving"})["verdict"]


def test_nobody_is_told_to_stop_before_the_decay() -> None:
    said = told(FALLING, learning_rate=1e-3, min_lr=1e-4, lr_decay_iters=20_000, max_iters=20_000, warmup_iters=100)[
        "verdict"
    ]
    assert "Continue to step 20,000" in said and "Stop" not in said


def test_less_than_an_epoch_cannot_be_learned_by_heart() -> None:
    said = told(FALLING, batch_size=8, block_size=128, gradient_accumulation_steps=1, dataset_tokens=10_000_000)["cost"]
    assert "51.2% of the 10M training tokens: less than one epoch, so nothing can be memorised" in said


def test_dropout_without_anything_to_fight_is_pointed_out() -> None:
    below = FALLING.replace("val loss", "val loss ").replace("train loss 3", "train loss 4")
    said = told(below, dropout=0.1, learning_rate=1e-3, min_lr=1e-4, lr_decay_iters=20_000)["verdict"]
    assert "Dropout 0.1 prevents memorisation, but there is none here" in said
