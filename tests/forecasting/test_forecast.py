"""Forecasts: curves whose end is known, and questions that must be refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nanolens.errors import UserError
from nanolens.forecasting import Forecast, Refusal, forecast, lr_curve, step_named, stretched
from nanolens.forecasting.law import ScheduleProgress, draws_of
from nanolens.forecasting.words import answer_of
from nanolens.logs import Given, read_log
from nanolens.show.words import say
from nanolens.sizing.schedule import Schedule
from tests.comparison.comparing import run_of

STEPS = 2000
SCHEDULES = {
    "cosine": Schedule(learning_rate=1e-3, min_lr=1e-4, warmup_iters=100, decay_ends=STEPS),
    "linear": Schedule(learning_rate=1e-3, min_lr=1e-4, warmup_iters=100, decay_ends=STEPS, shape="linear"),
    "wsd": Schedule(learning_rate=1e-3, min_lr=1e-4, warmup_iters=100, decay_ends=STEPS, shape="wsd"),
    "constant": Schedule(
        learning_rate=1e-3, min_lr=1e-3, warmup_iters=100, decay_ends=STEPS, shape="wsd", decay_frac=0.0
    ),
}


def lawful(schedule, seed=0, E=1.4, a=9.0, b=0.35, gain=0.3, noise=0.004, every=25, upto=STEPS):
    """Evaluations of a run that follows a law of the multi-power kind, with a delay of its own."""
    rates = lr_curve(schedule, STEPS)
    progress = ScheduleProgress(rates)
    S, G = progress.added_up, progress.effect(0.08 * STEPS)
    rng = np.random.default_rng(seed)
    return [
        (k, float(E + a * max(S[k], 1e-3) ** -b - gain * G[k] + rng.normal(0, noise)))
        for k in range(every, upto + 1, every)
    ]


def cut_run(name, upto, seed=0, **changes):
    schedule = SCHEDULES[name]
    evals = [(k, v, v) for k, v in lawful(schedule, seed, **changes) if k <= upto]
    return run_of(
        name,
        [(k, v, 0.1) for k, v, _ in evals],
        evals,
        learning_rate=schedule.learning_rate,
        min_lr=schedule.min_lr,
        warmup_iters=schedule.warmup_iters,
        lr_decay_iters=STEPS,
        max_iters=STEPS,
        schedule=schedule.shape,
        decay_frac=schedule.decay_frac,
        batch_size=16,
        block_size=64,
        gradient_accumulation_steps=1,
    )


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("share", [0.5, 0.75])
def test_the_end_of_a_lawful_curve_is_foretold(name, share):
    truth = lawful(SCHEDULES[name], noise=0.0)[-1][1]
    found = forecast(cut_run(name, int(share * STEPS)))
    assert isinstance(found, Forecast) and found.at_step == STEPS
    assert found.low <= truth <= found.high
    assert abs(found.loss - truth) < 0.06
    assert found.loss < found.now_loss


def test_intervals_cover_four_of_five_lawful_ends():
    covered = []
    for seed in range(0, 12, 2):
        for name in SCHEDULES:
            changes = {"E": 1.2 + 0.05 * seed, "b": 0.25 + 0.02 * seed, "gain": 0.15 + 0.025 * seed}
            truth = lawful(SCHEDULES[name], seed, **changes, noise=0.0)[-1][1]
            found = forecast(cut_run(name, 1200, seed, **changes))
            covered.append(found.low <= truth <= found.high)
    assert 0.6 <= np.mean(covered) <= 1.0


def test_the_schedule_ahead_changes_the_answer():
    """Up to here both ran at a constant rate; one of them is about to decay."""
    decaying, staying = forecast(cut_run("wsd", 1400)), forecast(cut_run("constant", 1400))
    assert decaying.loss < staying.loss - 0.02


def test_nothing_is_taken_from_the_hidden_part():
    whole = cut_run("cosine", STEPS)
    cut = cut_run("cosine", 1000)
    from nanolens.record.run import until

    assert forecast(until(whole, 1000)).loss == forecast(cut).loss


def test_the_band_begins_where_the_run_stands_and_widens():
    steps, median, low, high = forecast(cut_run("cosine", 1000)).curve
    assert steps[0] == 1000 and steps[-1] == STEPS
    assert abs(median[0] - lawful(SCHEDULES["cosine"], noise=0.0)[39][1]) < 0.02
    assert high[-1] - low[-1] > high[0] - low[0]


# --- refusals


@pytest.mark.parametrize(
    ("run", "at", "code"),
    [
        (lambda: cut_run("cosine", 1000), 5000, "too_far"),
        (lambda: cut_run("cosine", 1000), 900, "already_there"),
        (lambda: cut_run("cosine", 200), 500, "warming_up"),
        (lambda: run_of("x", evals=[(k, 0, 3.0 - k / 1e4) for k in range(100, 1100, 100)]), None, "no_target"),
        (lambda: run_of("x", evals=[(k, 0, 3.0 - k / 1e4) for k in range(100, 1100, 100)]), 2000, "no_schedule"),
        (lambda: cut_run("cosine", 1000, every=250), 2000, "too_few_points"),  # four evaluations
    ],
)
def test_questions_that_are_refused(run, at, code):
    found = forecast(run(), at)
    assert isinstance(found, Refusal) and found.code == code
    assert say(found.because) and (found.instead is None or say(found.instead))


def test_a_rising_loss_is_not_continued():
    rising = [(k, 0, 2.0 + 0.5 * math.exp(-k / 300) + max(0, k - 800) * 5e-4) for k in range(25, 1500, 25)]
    run = run_of(
        "x", evals=rising, learning_rate=1e-3, min_lr=1e-4, warmup_iters=50, lr_decay_iters=3000, max_iters=3000
    )
    assert forecast(run).code == "rising" and "above its minimum at step" in say(forecast(run).because)


def test_losses_that_are_no_longer_finite_are_refused():
    rows = [(k, math.nan if k > 900 else 3.0, 0.1) for k in range(1, 1001)]
    run = cut_run("cosine", 1000)
    broken = run_of(
        "x",
        rows,
        [(int(s), v, v) for s, v in zip(run.evals.step, run.evals.val, strict=True)],
        learning_rate=1e-3,
        min_lr=1e-4,
        warmup_iters=100,
        lr_decay_iters=STEPS,
        max_iters=STEPS,
    )
    assert forecast(broken).code == "not_finite"


def test_many_epochs_with_a_growing_gap_are_refused():
    val = lawful(SCHEDULES["cosine"])
    evals = [(k, v - 0.1 - 0.0004 * k, v) for k, v in val if k <= 1000]
    run = run_of(
        "x",
        evals=evals,
        learning_rate=1e-3,
        min_lr=1e-4,
        warmup_iters=100,
        lr_decay_iters=STEPS,
        max_iters=STEPS,
        batch_size=16,
        block_size=64,
        gradient_accumulation_steps=1,
        dataset_tokens=200_000,
    )
    assert forecast(run).code == "overfitting" and "will have been seen" in say(forecast(run).because)


def bigram_run(level, lowest):
    """Down to the bigram level, a rest there, and beyond it from step 600 on, until `lowest`."""
    evals = [
        (k, 0.0, max(level + 2.0 * math.exp(-k / 60), level) if k < 600 else level - (level - lowest) * (k - 600) / 400)
        for k in range(20, 1001, 20)
    ]
    return run_of(
        "x",
        evals=evals,
        learning_rate=1e-3,
        min_lr=1e-4,
        warmup_iters=50,
        lr_decay_iters=2000,
        max_iters=2000,
        bigram_nats=level,
    )


def test_nothing_is_foretold_from_the_bigram_level():
    """What pairs of tokens tell is learnt first; the curve up to there says nothing about what comes after."""
    refused = forecast(bigram_run(2.45, 2.40))
    assert isinstance(refused, Refusal) and refused.code == "bigram_level" and "2.4500" in say(refused.because)
    assert isinstance(forecast(bigram_run(2.45, 2.40), at=1200), Forecast)  # so near an end is near in loss, too
    beyond = forecast(bigram_run(2.45, 2.10))
    assert isinstance(beyond, Forecast) and beyond.points <= 21  # none of those at rest


def test_a_fall_through_the_bigram_level_is_not_foretold():
    evals = [(k, 0.0, 2.0 + 8.0 * k**-0.4) for k in range(20, 501, 20)]  # 2.67 at step 500, 2.38 at 2,000
    known = {
        "learning_rate": 1e-3,
        "min_lr": 1e-3,
        "warmup_iters": 50,
        "lr_decay_iters": 1200,
        "max_iters": 1200,
        "schedule": "wsd",
    }
    refused = forecast(run_of("x", evals=evals, bigram_nats=2.5, **known))
    assert isinstance(refused, Refusal) and refused.code == "bigram_level" and "has yet to pass" in say(refused.because)
    assert isinstance(forecast(run_of("x", evals=evals, bigram_nats=2.2, **known)), Forecast)


def test_an_evaluation_before_the_first_update_shifts_nothing():
    curve = lawful(SCHEDULES["cosine"], every=1, noise=0.05)
    steps = [(k, v, 0.1) for k, v in curve if k <= 1000]
    known = {"learning_rate": 1e-3, "min_lr": 1e-4, "warmup_iters": 100, "lr_decay_iters": STEPS, "max_iters": STEPS}
    found = forecast(run_of("x", steps, [(0, 4.2, 4.2)], **known))
    assert found.series == "batch" and abs(found.loss - lawful(SCHEDULES["cosine"], noise=0.0)[-1][1]) < 0.08


def test_few_evaluations_are_helped_by_the_batch_losses():
    schedule = SCHEDULES["cosine"]
    curve = lawful(schedule, every=1, noise=0.05)
    evals = [(k, v, v + 0.05) for k, v in lawful(schedule, every=250, noise=0.0) if k <= 1000]
    run = run_of(
        "x",
        [(k, v, 0.1) for k, v in curve if k <= 1000],
        evals,
        learning_rate=1e-3,
        min_lr=1e-4,
        warmup_iters=100,
        lr_decay_iters=STEPS,
        max_iters=STEPS,
    )
    found = forecast(run)
    truth = lawful(schedule, noise=0.0)[-1][1] + 0.05
    assert found.series == "val" and abs(found.loss - truth) < 0.08
    assert any("batch losses" in str(note) for note in found.notes)


def test_a_longer_horizon_is_that_of_a_fresh_run():
    found = forecast(cut_run("cosine", STEPS), at=2 * STEPS)
    assert found.loss < forecast(cut_run("cosine", 1500)).loss
    assert "fresh run" in str(found.schedule)


# --- pieces


def test_the_effect_of_a_falling_rate_comes_with_its_delay():
    rates = np.concatenate([np.full(1000, 1.0), np.full(1000, 0.5)])
    effect = ScheduleProgress(rates).effect(100.0)
    assert effect[1000] == 0.0
    assert effect[1001 + 200] == pytest.approx(0.5 * (1 - math.exp(-1)), abs=0.01)  # 200 updates at half the rate
    assert effect[-1] == pytest.approx(0.5, abs=0.01)


def test_long_runs_do_not_overflow():
    effect = ScheduleProgress(lr_curve(Schedule(learning_rate=1e-3, decay_ends=100_000), 100_000)).effect(3.0)
    assert np.isfinite(effect).all() and effect[-1] == pytest.approx(1.0, abs=0.01)


def test_a_curve_that_does_not_fall_has_no_law():
    steps = np.arange(100, 1100, 50)
    progress = ScheduleProgress(np.full(2000, 1e-3))
    assert draws_of(progress, progress, steps, np.linspace(1.0, 2.0, len(steps)), np.array([2000])) is None


def test_a_stretched_schedule_keeps_its_warm_up():
    longer = stretched(SCHEDULES["cosine"], 2.0)
    assert (longer.warmup_iters, longer.decay_ends) == (100, 4000)


@pytest.mark.parametrize(("text", "step"), [("20000", 20_000), ("20,000", 20_000), ("1.024Mtok", 1000)])
def test_where_to_look(text, step):
    assert step_named(text, cut_run("cosine", 1000)) == step


@pytest.mark.parametrize("text", ["soon", "2h", "-5", "1e15flop"])
def test_other_places_are_refused(text):
    with pytest.raises(UserError):
        step_named(text, cut_run("cosine", 1000))


def test_the_forms_of_an_answer_and_of_a_refusal():
    run = cut_run("cosine", 1000)
    found, refused = forecast(run), forecast(run, at=50_000)
    text = answer_of(found, run).text()
    assert "80% interval" in text and "\x1b" not in text
    assert answer_of(found, run).data()["forecast"]["coverage"] == 0.8
    assert answer_of(refused, run).data()["refused"]["code"] == "too_far"
    assert "No forecast, because" in answer_of(refused, run).text()
    assert "## Forecast" in answer_of(found, run).markdown()


def test_a_long_run_with_many_evaluations_is_quick_and_small():
    schedule = Schedule(learning_rate=6e-4, min_lr=6e-5, warmup_iters=2000, decay_ends=600_000)
    evals = [(k, 0, 2.6 + 30 * k**-0.35) for k in range(500, 300_001, 500)]
    run = run_of(
        "x", evals=evals, learning_rate=6e-4, min_lr=6e-5, warmup_iters=2000, lr_decay_iters=600_000, max_iters=600_000
    )
    found = forecast(run)
    assert found.points <= 96 and found.low < found.high
    from nanolens.sizing.schedule import lr_of

    rates = lr_curve(schedule, 600_000)
    assert all(abs(rates[k] - lr_of(schedule, k)) < 1e-7 for k in range(0, 600_000, 7_919))


def test_a_published_run_of_another_size():
    """llm.c's 124M run on FineWeb, 700 updates of warm-up and a cosine to zero: from a half and from three quarters of
    it, 3.272 at the end."""
    published = (
        (1000, 4.317),
        (1250, 4.1296),
        (1500, 4.006),
        (1750, 3.9189),
        (2500, 3.7652),
        (5000, 3.5535),
        (7500, 3.4566),
        (10_000, 3.3924),
        (12_500, 3.3408),
        (15_000, 3.3003),
    )
    for upto in (10_000, 15_000):
        run = run_of(
            "llm.c",
            evals=[(k, v, v) for k, v in published if k <= upto],
            learning_rate=6e-4,
            min_lr=0.0,
            warmup_iters=700,
            lr_decay_iters=19_560,
            max_iters=19_560,
        )
        found = forecast(run)
        assert found.low <= 3.272 <= found.high and abs(found.loss - 3.272) < 0.04


def test_one_evaluation_before_the_first_update_is_refused():
    log = b"step 0: train loss 4.2, val loss 4.2\n"
    known = {"learning_rate": 1e-3, "min_lr": 1e-4, "max_iters": 100, "lr_decay_iters": 100, "warmup_iters": 0}
    assert isinstance(forecast(read_log(log, Given(config=known))), Refusal)
