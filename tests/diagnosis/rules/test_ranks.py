import numpy as np
import pytest

from nanolens.record.events import RanksPaced
from nanolens.record.read import rank_facts
from tests.diagnosis.rules.build import OURS, found, make, mark, sure

LOSSES = np.linspace(4, 3, 50)


def paced(busy, took, *, comm=0.01, updates=40, slowest=None, hosts=()):
    slowest = (
        [updates if rank == int(np.argmax(busy)) else 0 for rank in range(len(busy))] if slowest is None else slowest
    )
    told = RanksPaced(
        step=50,
        updates=updates,
        took_s=took,
        rank_busy_s=list(busy),
        rank_comm_s=[comm] * len(busy),
        rank_slowest=slowest,
        hosts=list(hosts),
    )
    facts = {name: fact.value for name, fact in rank_facts([told]).items()}
    return make(LOSSES, conventions=OURS, took=took, **facts)


def test_a_straggler_is_named_with_its_machine_and_cost():
    finding = found(paced([0.40, 0.41, 0.66, 0.40], 0.70, hosts=["a", "a", "b", "b"]), "straggler_rank")[
        "straggler_rank"
    ]
    assert finding.sureness == "certain"
    assert finding.evidence[0].where.args == {"rank": 2, "host": "b"}
    assert finding.evidence[1].seen == pytest.approx(0.26 / 0.70)


def test_ranks_that_differ_little_or_in_turn_are_no_stragglers():
    assert "straggler_rank" not in found(paced([0.40, 0.41, 0.44, 0.40], 0.46), "straggler_rank")
    in_turn = paced([0.40, 0.52], 0.56, slowest=[18, 22])
    assert "straggler_rank" not in found(in_turn, "straggler_rank")
    assert "straggler_rank" not in found(paced([0.0004, 0.0009], 0.002), "straggler_rank"), (
        "a millisecond is the operating system's"
    )


def test_a_slow_network_is_told_from_slow_ranks():
    assert sure(paced([0.30, 0.30], 1.0, comm=0.8), "straggler_rank") == {"communication_bound"}
    assert not found(paced([0.90, 0.91], 1.0, comm=0.8), "straggler_rank"), "hidden behind the backward pass"


def test_few_updates_say_nothing_and_one_process_is_not_asked():
    assert not found(paced([0.4, 0.8], 1.0, updates=5), "straggler_rank")
    assert not found(make(LOSSES, conventions=OURS, took=0.1), "straggler_rank")


def test_a_lost_rank_is_told_with_its_words():
    run = make(LOSSES, conventions=OURS, marks=[mark("rank_lost", 7, "rank 1 (process 12 on b) is gone")])
    finding = found(run, "straggler_rank")["rank_lost"]
    assert (
        finding.sureness == "certain" and finding.evidence[0].where.args["words"] == "rank 1 (process 12 on b) is gone"
    )


def test_the_facts_of_ranks_are_those_of_the_last_attempt():
    told = [
        RanksPaced(
            step=10,
            updates=10,
            took_s=9.0,
            rank_busy_s=[9.0, 9.0],
            rank_comm_s=[1.0, 1.0],
            rank_slowest=[10, 0],
            attempt=1,
        ),
        RanksPaced(
            step=20,
            updates=10,
            took_s=1.0,
            rank_busy_s=[0.5, 0.7],
            rank_comm_s=[0.1, 0.1],
            rank_slowest=[1, 9],
            attempt=2,
        ),
        RanksPaced(
            step=30,
            updates=30,
            took_s=2.0,
            rank_busy_s=[0.9, 1.1],
            rank_comm_s=[0.1, 0.1],
            rank_slowest=[0, 30],
            attempt=2,
        ),
    ]
    facts = {name: fact.value for name, fact in rank_facts(told).items()}
    assert facts["rank_updates"] == 40 and facts["rank_took_s"] == pytest.approx(1.75)
    assert facts["rank_busy_s"] == pytest.approx((0.8, 1.0)) and facts["rank_slowest"] == (1, 39)
    assert rank_facts([]) == {}
