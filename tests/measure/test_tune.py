"""Choosing a micro-batch from what was measured, and `--batch_size=auto`."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanolens.config.fields import Config
from nanolens.config.load import load
from nanolens.errors import UserError
from nanolens.measure import tune
from nanolens.measure.tune import choose, recall, remember, sizes_to_try, with_answer

CONFIG = Config(batch_size=4, gradient_accumulation_steps=4, block_size=100, max_iters=1000)


def size_of(size: int, update_s: float | None, memory: float = 0.0, skipped: str = "", scatter: float = 0.0) -> dict:
    return {
        "kind": "size",
        "size": size,
        "accumulation": 16 // size,
        "memory_bytes": memory or 1e6 * size,
        "update_s": update_s,
        "scatter": scatter,
        "skipped": skipped,
        "is_again": False,
    }


MACHINE = {"kind": "machine", "hardware": "a CPU", "device": "cpu", "dtype": "float32", "threads": 2}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tune.files, "cache_folder", lambda: tmp_path / "cache")


def test_sizes_cut_an_update_into_equal_parts_and_hold_the_configs_own():
    assert sizes_to_try(16, 4) == [1, 2, 4, 8, 16]
    many = sizes_to_try(480, 12)
    assert 12 in many and 1 in many and 480 in many and len(many) <= tune.SIZES_AT_MOST
    assert all(480 % size == 0 for size in many)


def test_the_fastest_wins_and_speeds_follow_from_the_tokens_of_an_update():
    found = choose(CONFIG, [MACHINE, size_of(1, 4.0), size_of(4, 2.0), size_of(8, 1.0), size_of(16, 1.5)])
    assert (found.winner.size, found.winner.accumulation, found.winner.tokens_per_s) == (8, 2, 1600.0)
    assert found.changes == {"batch_size": 8, "gradient_accumulation_steps": 2}
    assert found.config.tokens_per_update == CONFIG.tokens_per_update
    words = " ".join(map(str, found.why))
    assert "8 is the fastest" in words and "the config's 4 runs at" in words and "0.5 slower" in words


def test_among_equals_the_one_that_needs_the_least_memory_wins():
    found = choose(CONFIG, [MACHINE, size_of(2, 1.3), size_of(4, 1.01), size_of(8, 1.0)])
    assert found.winner.size == 4
    assert "needs less memory" in str(found.why[0])


def test_much_noise_does_not_make_a_slow_size_win():
    found = choose(CONFIG, [MACHINE, size_of(1, 1.2, scatter=0.5), size_of(8, 1.0, scatter=0.5)])
    assert found.winner.size == 8


def test_a_second_measurement_replaces_the_first():
    found = choose(CONFIG, [MACHINE, size_of(4, 1.0), size_of(8, 2.0), size_of(4, 3.0), size_of(8, 2.0)])
    assert found.winner.size == 8


def test_a_measurement_that_died_keeps_what_it_had_found():
    found = choose(CONFIG, [MACHINE, size_of(1, 2.0), size_of(2, 1.0), {"kind": "died", "problem": "killed"}])
    assert found.winner.size == 2
    assert [row.skipped for row in found.rows] == ["", "", "died", "died", "died"]


@pytest.mark.parametrize(
    ("compiled_s", "cost_s", "is_on"), [(0.5, 60.0, True), (0.99, 60.0, False), (1.5, 60.0, False)]
)
def test_compiling_is_chosen_where_the_run_is_long_enough(compiled_s: float, cost_s: float, is_on: bool):
    compiled = {"kind": "compiled", "size": 8, "update_s": compiled_s, "compiled_in_s": cost_s, "failed": ""}
    assert choose(CONFIG, [MACHINE, size_of(8, 1.0), compiled]).config.compile is is_on


def test_auto_keeps_the_tokens_of_an_update_and_takes_the_remembered_answer(monkeypatch):
    settings = load("shakespeare-char-cpu", [("gradient_accumulation_steps", "4"), ("batch_size", "auto")])
    assert settings.automatic == {"batch_size"} and settings.config.batch_size == 12
    found = choose(settings.config, [MACHINE, {**size_of(16, 1.0), "accumulation": 3}])
    remember(found)
    monkeypatch.setattr(tune, "tuned_for", lambda *a, **k: pytest.fail("it was measured already"))
    settled = with_answer(settings)
    assert (settled.config.batch_size, settled.config.gradient_accumulation_steps) == (16, 3)
    assert settled.came_from["batch_size"].startswith("auto: the fastest")
    other = load("shakespeare-char-cpu", [("n_embd", "64")]).config
    assert recall(other) is None


def test_a_number_given_after_auto_is_that_number():
    settings = load("quickstart", [("batch_size", "auto"), ("batch_size", "6")])
    assert settings.automatic == frozenset() and settings.config.batch_size == 6


def test_only_settings_that_are_measured_may_be_auto_that_way():
    with pytest.raises(UserError):
        load("quickstart", [("n_layer", "auto")])
