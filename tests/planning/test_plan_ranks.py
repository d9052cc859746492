"""Whether several machines pay: against figures worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest

from nanolens.config.fields import Config
from nanolens.errors import UserError
from nanolens.message import msg
from nanolens.planning import make_plan
from nanolens.planning.figures import Cluster, DataFacts, MachineFacts
from nanolens.planning.time import LATENCY_S, asked_ranks, needed_micro_batches, together
from nanolens.sizing.devices import hardware_named
from nanolens.sizing.memory import GRADIENT_BUCKETS

GPT2_BYTES = 4 * 124e6


def asked(count: int, bytes_per_s: float, speeds: tuple[float, ...] = ()) -> Cluster:
    return Cluster(count, bytes_per_s, 0.0, speeds or (1.0,) * count, msg("test"))


def test_one_machine_sends_nothing():
    found = together(0.5, 8, 0.1, GPT2_BYTES, asked(1, 1e8))
    assert (found.update_s, found.comm_s) == (pytest.approx(4.1), 0.0)


def test_gradients_go_around_a_ring():
    """GPT-2 small over a gigabit: 496 MB there and back through half the ring, at 112.5 MB/s."""
    found = together(0.5, 8, 0.0, GPT2_BYTES, asked_ranks(2, "1Gbit", None))
    assert found.comm_s == pytest.approx(GPT2_BYTES / 112.5e6 + GRADIENT_BUCKETS * 2 * LATENCY_S)
    assert found.compute_s == pytest.approx(2.0)
    assert found.update_s == pytest.approx(found.compute_s + found.exposed_s)
    assert 0 < found.comm_s - found.exposed_s <= 0.5 * 2 / 3, "at most one backward pass hides it"
    four = together(0.5, 8, 0.0, GPT2_BYTES, asked_ranks(4, "1Gbit", None))
    assert four.comm_s / found.comm_s == pytest.approx(1.5, rel=0.02)


def test_a_fast_network_hides_all_but_the_last_bucket():
    found = together(0.5, 8, 0.0, GPT2_BYTES, asked(2, 10e9))
    assert found.exposed_s == pytest.approx(found.comm_s / GRADIENT_BUCKETS)


def test_the_slower_machine_decides():
    equal, unequal = (together(0.5, 8, 0.0, 1e6, asked(2, 1e9, speeds)) for speeds in ((1.0, 1.0), (1.0, 0.4)))
    assert unequal.compute_s == pytest.approx(equal.compute_s / 0.4)
    assert unequal.update_s > 0.5 * 8, "slower than the fast machine alone"


def test_how_many_micro_batches_make_it_pay():
    slow = asked(2, 100e6)
    needed = needed_micro_batches(0.5, 0.0, GPT2_BYTES, slow)
    assert together(0.5, needed, 0.0, GPT2_BYTES, slow).update_s < 0.5 * needed
    assert together(0.5, needed // 2, 0.0, GPT2_BYTES, slow).update_s >= 0.5 * (needed // 2)
    assert needed_micro_batches(0.5, 0.0, GPT2_BYTES, asked(2, 1e9, (1.0, 0.3))) is None, "one so slow never helps"


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [("1Gbit", 112.5e6), ("2.5gbit/s", 281.25e6), ("100Mbps", 11.25e6), ("110MB", 110e6), ("1.2GB/s", 1.2e9)],
)
def test_speeds_of_networks_as_people_write_them(text: str, bytes_per_s: float):
    assert asked_ranks(2, text, None).bytes_per_s == pytest.approx(bytes_per_s)


@pytest.mark.parametrize("text", ["fast", "1.2.3Gbit", "0Gbit", "Gbit"])
def test_what_is_no_speed_is_refused(text: str):
    with pytest.raises(UserError, match="not a valid network speed"):
        asked_ranks(2, text, None)


@pytest.mark.parametrize("text", ["1,0.5", "fast", "1,fast,1", "1,0..5,1", "1,0,1", ""])
def test_each_machine_needs_its_speed(text: str):
    with pytest.raises(UserError, match="one speed for each of 3"):
        asked_ranks(3, "1Gbit", text)


def test_speeds_are_separated_by_commas():
    assert asked_ranks(3, "1Gbit", "1, 0.5,.25").speeds == (1.0, 0.5, 0.25)


def test_a_plan_says_whether_two_machines_are_faster():
    gpu = hardware_named("RTX 4070")
    machine = MachineFacts("RTX 4070", gpu.kind, "bfloat16", gpu.device, 1, 12e9, is_this_one=False, compiled=True)
    config, data = Config(dataset="openwebtext"), DataFacts("openwebtext", 9_000_000_000, 4_000_000, 50304)
    small = dataclasses.replace(config, gradient_accumulation_steps=2)
    for changes, network, is_faster in ((config, "10Gbit", True), (small, "100Mbit", False)):
        plan = make_plan(changes, data, dataclasses.replace(machine, ranks=asked_ranks(2, network, None)))
        assert (plan.value("ranks_gain") > 1) == is_faster
        assert ("ranks_slower" in {warning.code for warning in plan.warnings}) == (not is_faster)
        assert plan.value("ranks_update_s") == pytest.approx(
            plan.value("ranks_compute_s") + plan.value("ranks_exposed_s")
        )
    assert "ranks" not in {section.key for section in make_plan(config, data, machine).sections}
