"""The parts of probing that need no run: schedules, statistics, the yardstick of counts, and the growing of a model."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from nanolens.config.fields import Config
from nanolens.data.prepare.facts import counts_of, surprisal
from nanolens.diagnosis import by_probes
from nanolens.facts.finding import Evidence, Finding
from nanolens.message import msg
from nanolens.probing.experiments import compressed_schedule, frame_of, plan, rest_of
from nanolens.probing.judge import Effect, extrapolated_gain, is_settled, noise_scale, paired_gain, ranked
from nanolens.record.run import Conventions, Known, RunRecord, evals_from, steps_from
from nanolens.sizing.schedule import lr_at

CONFIG = Config(max_iters=1000, lr_decay_iters=None, learning_rate=1e-3, min_lr=1e-4, warmup_iters=50)


def test_a_branch_plays_the_rest_of_the_schedule_from_the_rate_of_now_to_that_of_the_end():
    branch = dataclasses.replace(CONFIG, **compressed_schedule(CONFIG, 600, 30, rest_of(CONFIG, 600)))
    assert lr_at(branch, 600) == pytest.approx(lr_at(CONFIG, 600))
    assert lr_at(branch, 630) == pytest.approx(lr_at(CONFIG, 1000))
    assert all(lr_at(branch, step) > lr_at(branch, step + 1) for step in range(600, 629))


def test_the_stable_part_of_a_schedule_stays_stable_in_the_branch():
    config = dataclasses.replace(CONFIG, schedule="wsd", decay_frac=0.2)
    branch = dataclasses.replace(config, **compressed_schedule(config, 600, 40, rest_of(config, 600)))
    assert lr_at(branch, 619) == 1e-3  # half of the 400 updates that are left are before the decay
    assert lr_at(branch, 640) == pytest.approx(1e-4)


def test_a_run_that_is_over_goes_on_at_its_last_rate():
    rest = rest_of(CONFIG, 1000)
    branch = dataclasses.replace(CONFIG, **compressed_schedule(CONFIG, 1000, 30, rest))
    assert rest.is_over and {lr_at(branch, step) for step in (1000, 1015, 1029)} == {lr_at(CONFIG, 1000)}


def test_no_question_costs_more_than_fifteen_percent_of_the_run():
    config = dataclasses.replace(
        CONFIG, n_layer=4, n_head=4, n_embd=128, block_size=64, batch_size=12, gradient_accumulation_steps=1
    )
    for planned in plan(
        frame_of(config, 600, 64), ("numbers", "where", "data", "regularisation", "lr", "batch", "size")
    ):
        assert planned.cost <= 0.15 * config.max_iters, planned.question


def test_branches_are_as_long_as_their_question_may_be_and_a_budget_makes_all_shorter():
    usual, cut = (plan(frame_of(CONFIG, 600, 64, allowed), ("lr", "regularisation")) for allowed in (None, 50.0))
    for one, other in zip(usual, cut, strict=True):
        assert other.frame.updates < one.frame.updates and other.cost <= 50.0 < one.cost


def test_a_fall_to_zero_is_tried_where_the_schedule_does_not_fall_by_itself():
    steady = dataclasses.replace(CONFIG, decay_lr=False)
    names = [
        {branch.name for branch in plan(frame_of(config, 600, 64), ("lr",))[0].branches} for config in (CONFIG, steady)
    ]
    assert ["lr-to-zero" in each for each in names] == [False, True]


def test_pairing_sees_a_gain_that_the_spread_of_the_batches_hides():
    rng = np.random.default_rng(0)
    batches = 2 + rng.normal(0, 0.3, 24)
    gain, error = paired_gain(batches, batches - 0.02 + rng.normal(0, 0.005, 24))
    assert gain == pytest.approx(0.02, abs=0.005) and error < 0.006


def effect(cause: str, expected: float, error: float, **more) -> Effect:
    return Effect(cause, msg("a change"), expected, error, expected, 0.0, 2 * expected, 30.0, **more)


def test_a_certain_fault_comes_before_the_largest_gain_and_ends_the_questions():
    leak = effect("mask_leak", -2.0, 0.1, is_fact=True)
    order = ranked([effect("lr_too_low", 0.5, 0.1), effect("lr_too_high", 0.9, 0.5), leak])
    assert [each.cause for each in order] == [
        "mask_leak",
        "lr_too_low",
        "lr_too_high",
    ]  # an unclear gain is last, however large
    assert is_settled(order) and not is_settled(order[1:])


def test_a_batch_that_wins_no_more_than_a_lower_rate_does_not_come_before_it():
    rate, batch = effect("lr_too_high", 0.032, 0.007), effect("batch_too_small", 0.06, 0.015)
    assert [each.cause for each in ranked([batch, rate])] == ["lr_too_high", "batch_too_small"]
    larger = effect("batch_too_small", 0.2, 0.015)
    assert [each.cause for each in ranked([larger, rate])] == ["batch_too_small", "lr_too_high"]


def test_an_interval_holds_the_error_of_the_measurement_and_what_becomes_of_such_gains():
    expected, low, high = extrapolated_gain("val_differs", 0.1, 0.01)
    assert (expected, low, high) == pytest.approx((0.1, 0.1 - 1.96 * 0.01, 0.1 + 1.96 * 0.01), abs=1e-4)
    assert extrapolated_gain("dropout_too_low", 0.1, 0.01, 16)[2] > 1.5 * high
    assert extrapolated_gain("dropout_too_low", 0.1, 0.01, 1) == pytest.approx(
        (expected, low, high)
    )  # nothing is left for it to grow in


def test_the_noise_scale_of_made_gradients_is_found():
    rng = np.random.default_rng(0)
    signal, tokens, true = rng.normal(0, 1, 400), 64, 1000.0
    power = float(signal @ signal)
    spread = math.sqrt(true * power / 400 / tokens)  # tr(S) / tokens of noise in a batch's gradient
    found = [noise_scale(*_made(signal, spread, rng), tokens) for _ in range(20)]
    assert np.median([each.tokens for each in found if each]) == pytest.approx(true, rel=0.1)
    assert sum(each is not None and each.low <= true <= each.high for each in found) >= 15


def _made(signal: np.ndarray, spread: float, rng: np.random.Generator) -> tuple[np.ndarray, float, np.ndarray]:
    vectors = signal + rng.normal(0, spread, (24, len(signal)))
    mean = vectors.mean(axis=0)
    return (vectors**2).sum(axis=1), float(mean @ mean), vectors @ mean


def test_the_yardstick_is_a_probability():
    counts = counts_of(np.random.default_rng(0).integers(0, 4, 300), 4)
    context = [1, 2, 0, 3]
    chances = [math.exp(-surprisal(counts, np.array([*context, last]))[0]) for last in range(4)]
    assert sum(chances) == pytest.approx(1.0)


def test_the_yardstick_tells_two_kinds_of_text_apart():
    rng = np.random.default_rng(0)
    one, other = (np.cumsum(rng.choice(steps, 6000)) % 11 for steps in ([1, 1, 1, 5], [3, 3, 3, 5]))
    counts = counts_of(one[:5000], 11)
    same = surprisal(counts, one[5000:]).mean()
    assert same < 0.8 and surprisal(counts, other[:1000]).mean() > same + 1


@pytest.mark.parametrize("bias", [True, False])
def test_a_grown_model_computes_the_same_and_its_copies_part(bias: bool):
    import torch

    from nanolens.model import build
    from nanolens.probing.branches import grown

    config = Config(n_layer=2, n_head=2, n_embd=16, block_size=16, bias=bias)
    torch.manual_seed(0)
    narrow, wide = build(config, 50), build(dataclasses.replace(config, n_embd=32, n_head=4), 50)
    with torch.no_grad():
        for name, parameter in narrow.named_parameters():
            parameter += 0.1 * torch.randn_like(parameter)
            dict(wide.named_parameters())[name].copy_(grown(name, parameter.detach()))
    x = torch.randint(0, 50, (3, 16))
    assert torch.allclose(narrow(x), wide(x), atol=1e-5)
    torch.nn.functional.cross_entropy(wide(x).flatten(0, 1), x.flatten()).backward()
    up = wide.blocks[0].mlp.up.weight.grad
    assert (up[:64] - up[64:]).norm() > 0.1 * up.norm()


FINDING = Finding(
    "lr_too_high",
    "likely",
    msg("the learning rate is too high"),
    (Evidence(msg("x"), 1.0, 2.0, msg("here"), msg("so")),),
    None,
    msg("otherwise"),
)


@pytest.mark.parametrize(
    ("sureness", "measured", "becomes"),
    [
        ("possible", {"is_clear": True, "gain": 0.1, "expected": 0.1, "high": 0.2}, "likely"),
        ("likely", {"is_clear": True, "gain": 0.1, "expected": 0.1, "high": 0.2}, "likely"),
        ("likely", {"is_clear": True, "is_fact": True}, "certain"),
        ("likely", {"is_clear": False, "gain": 0.0, "expected": 0.0, "high": 0.01}, "possible"),
        ("possible", {"is_clear": False, "gain": 0.0, "expected": 0.0, "high": 0.01}, None),
        ("likely", {"is_clear": False, "gain": 0.0, "expected": 0.0, "high": 0.3}, "likely"),
    ],
)
def test_a_probe_makes_a_finding_surer_or_drops_it(sureness: str, measured: dict, becomes: str | None):
    probes = {
        "step": 600,
        "effects": [{"cause": "lr_too_high", "change": "the learning rate falls to zero", "se": 0.01, **measured}],
    }
    run = RunRecord(
        "r", Conventions("nanolens"), steps_from({}, 0), evals_from({}, 0), {"probes": Known(probes, "recorded")}
    )
    found = by_probes([dataclasses.replace(FINDING, sureness=sureness)], run)
    assert [each.sureness for each in found] == ([] if becomes is None else [becomes])


def test_findings_that_no_probe_speaks_of_stay_as_they_are():
    run = RunRecord(
        "r",
        Conventions("nanolens"),
        steps_from({}, 0),
        evals_from({}, 0),
        {"probes": Known({"step": 1, "effects": []}, "recorded")},
    )
    assert by_probes([FINDING], run) == [FINDING]
    assert list(itertools.chain(by_probes([FINDING], dataclasses.replace(run, known={})))) == [FINDING]
