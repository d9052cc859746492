"""The words of an answer, whole."""

from __future__ import annotations

from nanolens.message import msg
from nanolens.probing.judge import Effect, Measurement, ProbeAnswer, ranked
from nanolens.probing.words import probe_data, probe_parts
from nanolens.show.document import plain

RATE = Effect(
    "lr_too_high",
    msg("the learning rate falls to zero over {count:count} updates", count=30),
    0.0812,
    0.0061,
    0.0812,
    0.035,
    0.186,
    37.0,
    1.5,
    "nanolens train runs/a/probes/000720-lr-to-zero.toml",
    "runs/a/probes/000720-lr-to-zero",
)
SIZE = Effect("model_too_small", msg("twice as wide"), 0.01, 0.005, -0.05, -0.1, 0.01, 133.0)
LEAK = Effect("mask_leak", msg("predictions change"), -2.1, 0.1, -2.1, -2.3, -1.9, 1.0, is_fact=True)


def answer(*effects: Effect, **more) -> ProbeAnswer:
    return ProbeAnswer(
        "runs/a", 720, 480, False, ranked(effects), costs={"lr": 120.0}, run_cost=1200.0, took_s=18.0, **more
    )


def test_the_cause_comes_first_with_its_numbers_and_what_to_type():
    said = plain(probe_parts(answer(SIZE, RATE, readings=(Measurement("lr", msg("a reading")),))), 100)
    assert said.startswith(
        """What limits runs/a at step 720

Limiting factor: the learning rate is too high at the end.
  the learning rate falls to zero over 30 updates: 0.0812 ± 0.0061 nats in the branch; 0.08 [0.04 …
  0.19] by the end.

cause                                       gain in the branch            by the end   cost
* the learning rate is too high at the end     0.0812 ± 0.0061    0.08 [0.04 … 0.19]   3.1%
  the model is too small                       0.0100 ± 0.0050  -0.05 [-0.10 … 0.01]  11.1%
"""
    )
    assert "  nanolens train runs/a/probes/000720-lr-to-zero.toml\n" in said and "- a reading" in said


def test_a_run_with_nothing_wrong_is_said_to_have_nothing_wrong():
    assert "These probes found nothing wrong." in plain(probe_parts(answer(SIZE)), 100)
    assert probe_data(answer(SIZE)).first is None


def test_a_certain_fault_is_named_before_the_largest_gain():
    assert "Limiting factor: the model sees the tokens it should predict." in plain(
        probe_parts(answer(RATE, LEAK)), 100
    )
    assert probe_data(answer(RATE, LEAK)).first == "mask_leak"


def test_the_answer_is_there_in_hindi():
    said = plain(probe_parts(answer(RATE)), 100, "hi")
    assert "अंत में learning rate बहुत ऊँची है" in said and "Limiting" not in said
