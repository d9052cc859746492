"""Comparison: figures whose truth is known, noise that must not win, and grounds on which nothing may be said."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nanolens.comparison import compare
from nanolens.comparison.remarks import agreement, blown_up_at
from nanolens.comparison.side import SeedGroup, Side, labels
from nanolens.comparison.verdict import WANDERING, _first_at, measure, seeds_needed, sooner
from nanolens.comparison.words import answer_of
from nanolens.errors import UserError
from nanolens.show.words import say
from tests.comparison.comparing import LARGE, NANOGPT, OURS, SMALL, cpu_run, gpu_run, large_run, run_of, small_run


def pair(a, b):
    return compare([SeedGroup("A", (a,)), SeedGroup("B", (b,))])


def said(comparison):
    return " ".join(say(each) for each in comparison.remarks)


# --- a laptop's run against a GPU's: another model, another context, another length


def test_a_run_on_another_device_with_other_settings_is_not_blamed_on_the_device():
    found = pair(cpu_run(), gpu_run())
    effects = {each.key: each.effect for each in found.differences}
    assert effects["hardware"] == "cannot"
    assert all(effects[key] == "can" for key in ("n_layer", "n_embd", "block_size", "batch_size", "max_iters"))
    assert "The device is not the cause of the loss difference" in said(found)


def test_the_figures_of_the_laptop_and_the_gpu_run():
    found = pair(cpu_run(), gpu_run())
    a, b = found.sides
    assert (a.case.counted.as_nanogpt_prints, b.case.counted.as_nanogpt_prints) == (
        795_904,
        10_646_784,
    )  # 0.80M and 10.65M
    assert (a.tokens_per_update, b.tokens_per_update) == (768, 16_384)
    assert a.total("tokens") == pytest.approx(1.54e6, rel=0.01) and b.total("tokens") == pytest.approx(81.9e6, rel=0.01)
    assert (a.epochs, b.epochs) == (pytest.approx(1.5, abs=0.05), pytest.approx(81.6, abs=0.1))
    assert a.total("flops") == pytest.approx(7.9e12, rel=0.01) and b.total("flops") == pytest.approx(5.8e15, rel=0.01)
    assert b.total("flops") / a.total("flops") == pytest.approx(730, rel=0.01)
    assert a.step_s / b.step_s == pytest.approx(3.5, abs=0.05)
    assert b.tokens_per_s / a.tokens_per_s == pytest.approx(74, abs=1)
    assert b.flops_per_s / a.flops_per_s == pytest.approx(1000, rel=0.03)
    assert b.mfu == pytest.approx(0.436, abs=0.001) and a.mfu is None
    text = " ".join(answer_of(found).text().split())
    assert "795,904 10.65M parameters as printed by nanoGPT" in text and "116 ms in A and 33.2 ms in B (3.49x)" in text


def test_losses_at_different_contexts_get_no_winner():
    found = pair(cpu_run(), gpu_run())
    assert "contexts differ" in say(found.grounds.not_comparable)
    assert not [verdict for outcome in found.outcomes for verdict in outcome.verdicts] and not found.sooner
    assert "B: overfitting: val is 0.2347 above the minimum this config usually reaches" in said(
        found
    ) and "A ended where this config usually ends" in said(found)
    assert "For a fair comparison" in said(found)


# --- two configs of different width on one card


def test_the_figures_of_the_two_widths():
    a, b = pair(small_run(), large_run()).sides
    assert a.tokens_per_update == b.tokens_per_update == 524_288
    assert (a.tokens_per_s, b.tokens_per_s) == (pytest.approx(134_400, rel=1e-3), pytest.approx(56_100, rel=1e-3))
    assert (a.flops_per_s, b.flops_per_s) == (pytest.approx(40.3e12, rel=1e-3), pytest.approx(48.0e12, rel=1e-3))
    assert (a.mfu, b.mfu) == (pytest.approx(0.69, abs=0.005), pytest.approx(0.82, abs=0.005))
    assert (a.micro_batch_s, b.micro_batch_s) == (pytest.approx(0.122, abs=5e-4), pytest.approx(0.146, abs=5e-4))
    assert (a.case.parameters.value, b.case.parameters.value) == (40_953_216, 124_373_760)


def test_a_difference_within_an_unknown_error_is_not_called():
    steps = pair(small_run(), large_run()).outcome("steps")
    assert steps.at == 500 and steps.losses == (5.5328, 5.5194)
    assert [verdict.result for verdict in steps.verdicts] == ["cannot_say"]
    assert "error is not known" in say(steps.verdicts[0].words)


def test_at_equal_time_the_smaller_model_is_far_ahead():
    found = pair(small_run(), large_run())
    for axis in ("time", "flops", "energy"):
        verdict = found.outcome(axis).verdicts[0]
        assert (verdict.result, verdict.ahead) == ("ahead", "A") and verdict.by == pytest.approx(1.06, abs=0.01)
    assert found.outcome("time").at == 3900
    assert found.sooner[0].times["time"] == pytest.approx(2.37, abs=0.02)


def test_a_higher_mfu_is_not_taken_for_more_speed_and_the_end_is_left_to_the_budget():
    text = said(pair(small_run(), large_run()))
    assert "B is 2.39x slower per token" in text
    assert "Only testing micro-batch sizes can settle it" in text
    assert "depends on the budget" in text and "The printed MFU is a fraction of 312 TFLOP/s" in text


def test_both_ends_are_foretold_with_a_range():
    text = said(pair(small_run(), large_run()))
    assert "after 2.49B tokens each, A at 3.55-4.10 and B at 3.24-3.73; in the 12 h 19 min that B needs" in text


def test_axes_that_say_the_same_are_said_together():
    text = answer_of(pair(small_run(), large_run())).text()
    assert text.count(
        "A by at least 1.0601"
    ) == 1 and "at equal energy (rated power) (0.217 kWh): A by at least" in " ".join(text.split())


def test_the_code_of_a_model_of_ones_own_is_a_difference():
    a, b = (run_of(name, evals=[(1, 5.0, 5.0)], **SMALL, model_code=code) for name, code in (("A", "1f"), ("B", "2e")))
    row = next(each for each in pair(a, b).differences if each.key == "model_code")
    assert row.effect == "can" and row.values == ("1f", "2e")


def test_another_schedule_is_a_difference_of_its_own():
    a, b = ({**SMALL, "min_lr": 1e-4, "warmup_iters": 10, "lr_decay_iters": end} for end in (1000, 2000))
    rows = {
        each.key: each
        for each in pair(run_of("A", evals=[(1, 5.0, 5.0)], **a), run_of("B", evals=[(1, 5.0, 5.0)], **b)).differences
    }
    assert rows["schedule"].is_derived and rows["schedule"].effect == "can"
    assert [say(value) for value in rows["schedule"].values] == [
        "up to 0.001 over 10 updates, then cosine decay to 1e-4 at 1,000",
        "up to 0.001 over 10 updates, then cosine decay to 1e-4 at 2,000",
    ]


def test_equal_tokens_per_update_make_the_micro_batch_harmless():
    effects = {each.key: each.effect for each in pair(small_run(), large_run()).differences}
    assert effects["batch_size"] == effects["gradient_accumulation_steps"] == "cannot"
    smaller = {**SMALL, "gradient_accumulation_steps": 16}
    effects = {
        each.key: each.effect
        for each in pair(
            run_of("A", evals=[(1, 5.0, 5.0)], **SMALL), run_of("B", evals=[(1, 5, 5.0)], **smaller)
        ).differences
    }
    assert effects["gradient_accumulation_steps"] == "can"


# --- noise


def seeded(seed, offset=0.0, batches=("x",), sd_batch=0.2, sd_seed=0.0, n=40):
    rng, common = np.random.default_rng(seed), np.random.default_rng(7)
    losses = 2.0 + offset + common.normal(0, sd_batch, n) + rng.normal(0, 0.02, n) + rng.normal(0, sd_seed)
    return run_of(
        f"s{seed}",
        evals=[(1000, losses.mean(), losses.mean())],
        batches=[(batches[0], losses)],
        conventions=OURS,
        block_size=64,
        dataset="x",
        batch_size=8,
        gradient_accumulation_steps=1,
        n_layer=2,
    )


def test_the_same_batches_make_a_difference_sharper():
    a, b = Side(SeedGroup("A", (seeded(1),))), Side(SeedGroup("B", (seeded(2, 0.02),)))
    other = Side(SeedGroup("B", (seeded(2, 0.02, ("y",)),)))
    paired, apart = measure(a, b, 1000, 1000), measure(a, other, 1000, 1000)
    assert paired.se < apart.se / 5
    assert "paired" in str(paired.how[0].msgid)


def test_groups_of_seeds_are_compared_by_their_spread():
    a = SeedGroup("a", tuple(seeded(s, sd_seed=0.02) for s in range(5)))
    b = SeedGroup("b", tuple(seeded(s + 50, offset=0.15, sd_seed=0.02) for s in range(5)))
    verdict = compare([a, b]).outcome("steps").verdicts[0]
    assert verdict.result == "ahead" and verdict.ahead == "a"
    assert verdict.measured.spread == pytest.approx(0.02, rel=0.6)
    same = SeedGroup("b", tuple(seeded(s + 50, sd_seed=0.02) for s in range(5)))
    verdict = compare([a, same]).outcome("steps").verdicts[0]
    assert verdict.result == "no_difference" and "to detect 0.0100, add 19 seeds per side" in say(verdict.words)


def wandering(seed, sway, drift=0.0, batches="x"):
    """Evaluated 60 times on the same batches; the loss sways from one to the next, and drifts."""
    rng, pattern = np.random.default_rng(seed), np.random.default_rng(7).normal(0, 0.2, 20)
    vals = [(k * 20, 2.0 - drift * k + rng.normal(0, sway)) for k in range(1, 61)]
    return run_of(
        f"s{seed}",
        evals=[(k, v, v) for k, v in vals],
        batches=[(batches, v + pattern - pattern.mean()) for _, v in vals],
        conventions=OURS,
        block_size=64,
        dataset="x",
        batch_size=8,
        gradient_accumulation_steps=1,
        n_layer=2,
    )


def test_the_spread_between_repeats_is_seen_in_how_two_runs_wander():
    spreads = [
        compare([SeedGroup("a", (wandering(s, 0.01),)), SeedGroup("b", (wandering(s + 1, 0.01, drift),))])
        .outcome("steps")
        .verdicts[0]
        .measured.spread
        for s in range(0, 20, 2)
        for drift in (0.0, 0.005)
    ]
    assert np.sqrt(np.mean(np.square(spreads))) == pytest.approx(WANDERING * 0.01, rel=0.2)  # a drift apart is no noise
    other = compare([SeedGroup("a", (wandering(0, 0.01),)), SeedGroup("b", (wandering(1, 0.01, batches="y"),))])
    assert "typical spread" in say(
        other.outcome("steps").verdicts[0].measured.how[-1]
    )  # other batches: the sway would be theirs


def test_seeds_needed_is_the_usual_formula():
    assert seeds_needed(0.01, 0.01) == math.ceil(2 * (1.959964 + 0.841621) ** 2)
    assert seeds_needed(0.0, 0.01) == 1


def test_a_pair_that_differs_by_the_published_seed_noise_has_no_winner():
    """Two of 81 repeats of one run, spread 0.0019 (modded-nanogpt), 0.004 apart."""
    known = {
        "dataset": "fineweb",
        "n_layer": 12,
        "n_head": 6,
        "n_embd": 768,
        "block_size": 1024,
        "tokens_per_update": 393_216,
        "eval_iters": 160,
        "batch_size": 64,
    }
    a = run_of("a", evals=[(1000, math.nan, 3.45), (1770, math.nan, 3.2771)], **known)
    b = run_of("b", evals=[(1000, math.nan, 3.45), (1770, math.nan, 3.2811)], **known)
    assert pair(a, b).outcome("steps").verdicts[0].result == "no_difference"
    c = run_of("c", evals=[(1000, math.nan, 3.47), (1770, math.nan, 3.322)], **known)
    assert pair(a, c).outcome("steps").verdicts[0].result == "ahead"


# --- grounds


def with_evals(name, val=2.0, **known):
    return run_of(name, evals=[(100, val + 0.5, val + 0.5), (200, val, val)], **known)


def test_other_tokenizers_and_val_sets_are_not_compared_in_nats():
    found = pair(with_evals("a", vocab_size=65, block_size=64), with_evals("b", 3.0, vocab_size=50304, block_size=64))
    assert "tokenizers differ" in say(found.grounds.not_comparable)
    found = pair(
        with_evals("a", dataset="openwebtext", block_size=64), with_evals("b", dataset="fineweb", block_size=64)
    )
    assert "val sets differ" in say(found.grounds.not_comparable)
    found = pair(
        with_evals("a", data_fingerprint="1", block_size=64), with_evals("b", data_fingerprint="2", block_size=64)
    )
    assert "val sets differ" in say(found.grounds.not_comparable)


def test_padding_a_vocabulary_is_no_other_tokenizer():
    found = pair(with_evals("a", vocab_size=50257, block_size=64), with_evals("b", vocab_size=50304, block_size=64))
    assert found.grounds.not_comparable is None


def test_the_same_text_under_two_tokenizers_is_compared_in_bits_per_byte():
    def run(name, vocab, val, bits):
        base = with_evals(
            name,
            val,
            vocab_size=vocab,
            tokenizer_fingerprint=name,
            text_fingerprint="t",
            block_size=64,
            eval_iters=200,
            batch_size=12,
        )
        base.evals.val_bits_per_byte[:] = [bits + 0.2, bits]
        return base

    found = pair(run("a", 65, 1.47, 2.12), run("b", 50304, 2.85, 0.90))
    assert found.grounds.unit == "bits" and found.grounds.not_comparable is None
    assert found.outcome("steps").verdicts[0].ahead == "B"  # 1.47 < 2.85, and yet
    assert found.outcome("steps").losses == (pytest.approx(2.12), pytest.approx(0.90))


# --- runs that failed, and runs that should have been equal


def test_two_runs_that_fail_at_the_same_place_do_not_blame_what_differs():
    losses = [10.9, 9.9, 9.0, 7.8, 6.6, 6.1]
    a = run_of(
        "A",
        [(1 + 10 * i, x, 1.5) for i, x in enumerate([*losses, 270.0, 180.0, 120.0])],
        conventions=NANOGPT,
        dtype="float32",
    )
    b = run_of(
        "B",
        [(1 + 10 * i, x + 1e-4, 0.46) for i, x in enumerate([*losses, math.nan, math.nan, math.nan])],
        conventions=NANOGPT,
        dtype="float16",
    )
    found = pair(a, b)
    assert agreement(*found.sides) == 51 and blown_up_at(found.sides[0]) == blown_up_at(found.sides[1]) == 61
    assert "both fail between" in said(found) and "not the cause" in said(found)


def test_equal_settings_with_unequal_losses_point_at_the_code():
    a = run_of(
        "A",
        evals=[(250, 6.43, 6.43), (1000, 4.88, 4.88)],
        **{**LARGE, "batch_size": 16, "gradient_accumulation_steps": 32},
    )
    b = run_of(
        "B",
        evals=[(250, 6.16, 6.16), (1000, 4.15, 4.15)],
        **{**LARGE, "batch_size": 64, "gradient_accumulation_steps": 8},
    )
    assert "None of the differences can explain 0.73" in said(pair(a, b))


def test_runs_without_evaluations_are_compared_by_their_batch_losses():
    def run(name, level):
        rng = np.random.default_rng(len(name))
        return run_of(name, [(k, level + 3 / k**0.5 + rng.normal(0, 0.02), 0.1) for k in range(1, 400)], dropout=0.0)

    found = pair(run("a", 2.0), run("bb", 2.3))
    assert found.outcome("steps").verdicts[0].ahead == "A"
    assert "no evaluations" in said(found)


# --- equal loss


def test_the_first_time_at_a_loss_is_interpolated_and_never_extrapolated():
    side = Side(SeedGroup("A", (run_of("A", evals=[(100, 0, 4.0), (200, 0, 3.0), (400, 0, 2.0)]),)))
    assert _first_at(side, 3.0) == 200
    assert _first_at(side, 2.5) == pytest.approx(200 * math.sqrt(2))
    assert _first_at(side, 4.5) is None and _first_at(side, 1.9) is None


def test_twice_as_fast_to_the_same_loss():
    slow = Side(SeedGroup("slow", (run_of("slow", evals=[(k, 0, 8 / k**0.25) for k in (100, 200, 400, 800)]),)))
    fast = Side(SeedGroup("fast", (run_of("fast", evals=[(k, 0, 8 / (2 * k) ** 0.25) for k in (100, 200, 400, 800)]),)))
    assert sooner(fast, slow).times["steps"] == pytest.approx(2.0, rel=1e-6)


# --- the answer's forms


def test_a_busy_machine_decides_nothing():
    """Equal configs on one machine, one of them three times as slow: that is no property of a config."""

    def run(name, took_s, **more):
        steps = [(k, 5 - k / 1000, took_s) for k in range(1, 1001, 10)]
        return run_of(
            name, steps, evals=[(k, 5 - k / 1000, 5 - k / 1000) for k in range(100, 1001, 100)], **{**SMALL, **more}
        )

    found = pair(run("A", 1.0), run("B", 3.0, learning_rate=2e-3))
    assert "probably busy" in say(found.outcome("time").because) and not found.outcome("time").verdicts
    assert "time" not in found.sooner[0].needed and "steps" in found.sooner[0].needed
    assert found.outcome("steps").verdicts
    explained = pair(run("A", 1.0), run("B", 3.0, n_embd=768))
    assert explained.outcome("time").verdicts and "time" in explained.sooner[0].needed


def test_one_run_alone_is_refused():
    with pytest.raises(UserError, match="only one run"):
        compare([SeedGroup("A", (small_run(),))])


def test_labels_are_short_and_tell_apart():
    assert labels(["runs-a", "runs-b"]) == ["runs-a", "runs-b"]
    assert labels(["A: laptop CPU", "B: RTX 4070 Ti"]) == ["A", "B"]
    assert labels(["a very long name that is the same", "a very long name that is not"]) == ["A", "B"]


@pytest.mark.parametrize("runs", [(cpu_run, gpu_run), (small_run, large_run)])
def test_text_markdown_and_json_say_the_same_numbers(runs):
    found = pair(*(run() for run in runs))
    text, markdown, data = answer_of(found).text(), answer_of(found).markdown(), answer_of(found).data()
    assert "\x1b" not in text
    speed = f"{data['runs'][1]['tokens_per_s']:,.0f} tokens/s"
    assert speed in text and speed in markdown
    assert {each["key"] for each in data["differences"]} >= {"n_embd", "parameters"}
    assert [each["axis"] for each in data["outcomes"]] == ["steps", "tokens", "flops", "time", "energy"]


def test_a_non_finite_evaluation_hides_nothing():
    a = run_of("A", evals=[(100, 0, 4.0), (200, 0, math.nan), (300, 0, 3.0)])
    b = run_of("B", evals=[(100, 0, 4.0), (300, 0, math.inf)])
    found = pair(a, b)
    assert found.outcome("steps").at == 100
