"""A non-finite number never reaches the weights; too many of them turn the run back; full memory changes nothing but
the micro-batch."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import nanolens.training.step as step_module
from nanolens.data.store import Dataset
from nanolens.record.events import StepSkipped
from nanolens.training.step import take_update as real_take_update
from tests.training.small import but, digests, events_of, losses_of, recorded


class Poison:
    """Spoils chosen tries: the loss, one gradient, or one weight's gradient with an infinity."""

    def __init__(self, tries: set[int], kind: str):
        self.tries, self.kind, self.count = tries, kind, 0
        self.before: list[torch.Tensor] = []
        self.changed_by_bad_try: list[bool] = []
        self.real = step_module.gather_gradients

    def __call__(self, trainee, config, machine, clock, check):
        gathered = self.real(trainee, config, machine, clock, check)
        self.count += 1
        if self.count not in self.tries:
            return gathered
        if self.kind == "loss":
            return step_module.BatchGradients(gathered.loss * math.nan, gathered.data_s, gathered.micro_norms)
        value = math.nan if self.kind == "gradient" else math.inf
        trainee.model.blocks[1].mlp.up.weight.grad[0, 0] = value
        return gathered


@pytest.mark.parametrize("kind", ["loss", "gradient", "infinity"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_bad_update_leaves_weights_and_moments_bit_for_bit(
    kind: str, dtype: str, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    poison = Poison({4}, kind)
    seen: list[tuple[bool, bool]] = []

    def watched(trainee, *rest):
        def state():
            moments = [v for s in trainee.optimizer.state.values() for v in s.values()]
            return [tensor.clone() for tensor in (*trainee.model.parameters(), *moments)]

        before = state()
        update = real_take_update(trainee, *rest)
        after = state()
        same = len(before) == len(after) and all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        seen.append((isinstance(update, StepSkipped), same))
        return update

    monkeypatch.setattr(step_module, "gather_gradients", poison)
    monkeypatch.setattr("nanolens.training.loop.take_update", watched)
    run = tmp_path / "run"
    outcome = recorded(but(max_iters=8, eval_interval=4, dtype=dtype), data, run)
    assert outcome.why == "finished"
    assert seen[3] == (True, True), "the bad try was noticed and changed nothing"
    assert all(pair == (False, False) for place, pair in enumerate(seen) if place != 3), (
        "every other try moved the weights"
    )
    skipped = [event for event in events_of(run) if event["event"] == "step_skipped"]
    assert len(skipped) == 1
    assert skipped[0]["step"] == 3
    assert skipped[0]["because"] == ("loss" if kind == "loss" else "gradient")
    assert skipped[0]["sample"] == 3 * 4, "the cursor of the batch that did it"
    if kind != "loss":
        assert skipped[0]["layer"] == "blocks.1.mlp.up.weight"
    assert sorted(losses_of(run)) == list(range(1, 9))


def test_bad_data_makes_the_run_go_back_and_on_behind_it(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(step_module, "gather_gradients", Poison({7, 8, 9}, "loss"))
    run = tmp_path / "run"
    outcome = recorded(but(max_iters=8, eval_interval=4, skip_budget=2), data, run)
    assert (outcome.why, outcome.step) == ("finished", 8)
    told = [event for event in events_of(run) if event["event"] in ("step_skipped", "rolled_back", "step_taken")]
    back = next(place for place, event in enumerate(told) if event["event"] == "rolled_back")
    assert (told[back]["from_step"], told[back]["to_step"]) == (6, 4)
    assert [event["event"] for event in told[back - 3 : back]] == ["step_skipped"] * 3
    assert told[back + 1]["step"] == 5, "goes on from the checkpoint's step"


def test_the_data_after_a_roll_back_is_fresh(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    taken: list[int] = []
    from nanolens.training.feed import ShuffledFeed

    real = ShuffledFeed.take

    def noted(self, sample):
        taken.append(sample)
        return real(self, sample)

    monkeypatch.setattr(ShuffledFeed, "take", noted)
    monkeypatch.setattr(step_module, "gather_gradients", Poison({7, 8, 9}, "loss"))
    recorded(but(max_iters=8, eval_interval=4, skip_budget=2), data, tmp_path / "run")
    used = taken[1:]  # the first was the pre-flight's
    assert used == sorted(set(used)), "no batch is met twice"


@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_a_run_that_stays_bad_stops_within_ten_tries_and_says_why(
    kind: str, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    poison = Poison(set(range(5, 1000)), kind)
    monkeypatch.setattr(step_module, "gather_gradients", poison)
    run = tmp_path / "run"
    outcome = recorded(but(max_iters=100, eval_interval=4), data, run)
    assert outcome.why == "failed"
    assert poison.count <= 4 + 10
    assert "non-finite" in str(outcome.because)
    end = events_of(run)[-1]
    assert (end["event"], end["why"]) == ("run_ended", "failed")
    assert "non-finite" in end["because"]


def test_float16_may_look_for_its_scale_without_using_up_the_budget(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(step_module, "gather_gradients", Poison({1, 2, 3, 4, 5}, "infinity"))
    run = tmp_path / "run"
    outcome = recorded(but(max_iters=4, eval_interval=4, dtype="float16", skip_budget=1), data, run)
    assert outcome.why == "finished"
    told = events_of(run)
    assert not [event for event in told if event["event"] == "rolled_back"]
    scales = [event["loss_scale"] for event in told if event["event"] in ("step_skipped", "step_taken")]
    assert scales[:6] == [65536.0 / 2**k for k in range(6)]


class FullMemory:
    """Raises an out-of-memory error at chosen calls of the model."""

    def __init__(self, model, calls: set[int], error: type[Exception]):
        self.model, self.calls, self.error, self.count = model, calls, error, 0

    def __call__(self, idx, targets):
        self.count += 1
        if self.count in self.calls:
            raise self.error("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
        return self.model(idx, targets)

    def __getattr__(self, name):
        return getattr(self.model, name)


@pytest.mark.parametrize("order", ["shuffled", "nanogpt"])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError])
def test_full_memory_halves_the_micro_batch_and_keeps_the_update(
    order: str, error: type[Exception], data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = but(max_iters=6, eval_interval=6, batch_size=6, gradient_accumulation_steps=2, data_order=order)
    whole, run = tmp_path / "whole", tmp_path / "run"
    recorded(config, data, whole)
    from nanolens.training.loop import Loop

    real, loops = Loop._to_the_end, []

    def with_full_memory(self):
        self.trainee.run = FullMemory(
            self.trainee.run, {18, 21}, error
        )  # inside the third update, and again when it is tried anew
        loops.append(self)
        real(self)

    monkeypatch.setattr(Loop, "_to_the_end", with_full_memory)
    outcome = recorded(config, data, run)
    assert outcome.why == "finished"
    assert not any(each._backward_hooks for each in loops[0].trainee.parameters), (
        "what measured the failed pass is gone"
    )
    halved = [(event["old"], event["new"]) for event in events_of(run) if event["event"] == "micro_batch_halved"]
    assert halved == [(6, 3), (3, 1)]
    assert {event["tokens"] for event in events_of(run) if event["event"] == "step_taken"} == {6 * 16 * 2}
    ours, theirs = losses_of(run), losses_of(whole)
    assert ours.keys() == theirs.keys()
    for step in ours:
        assert ours[step] == pytest.approx(theirs[step], rel=1e-5)


def test_no_memory_even_for_one_sequence_ends_the_run_with_a_sentence(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from nanolens.training.loop import Loop

    real = Loop._to_the_end

    def never_enough(self):
        self.trainee.run = FullMemory(self.trainee.run, set(range(7, 1000)), torch.OutOfMemoryError)
        real(self)

    monkeypatch.setattr(Loop, "_to_the_end", never_enough)
    outcome = recorded(but(max_iters=3, eval_interval=3), data, tmp_path / "run")
    assert outcome.why == "failed"
    assert "not enough memory for a single sequence" in str(outcome.because)


def test_other_errors_are_not_taken_for_full_memory(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(*_):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(step_module, "gather_gradients", broken)
    run = tmp_path / "run"
    with pytest.raises(RuntimeError, match="mat1"):
        recorded(but(), data, run)
    end = events_of(run)[-1]
    assert (end["why"], "mat1" in end["because"]) == ("failed", True), "the record says how it ended"
    assert digests(run, 0), "and what was saved is still there"


def test_full_memory_in_an_evaluation_does_not_end_the_run(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = but(max_iters=4, eval_interval=2, data_order="nanogpt")
    recorded(config, data, tmp_path / "whole")
    from nanolens.training.loop import Loop

    real = Loop._to_the_end

    def with_full_memory(self):
        self.trainee.run = FullMemory(
            self.trainee.run, {6 + 2 + 5}, torch.OutOfMemoryError
        )  # inside the second evaluation
        real(self)

    monkeypatch.setattr(Loop, "_to_the_end", with_full_memory)
    assert recorded(config, data, tmp_path / "run").why == "finished"
    told = [event for event in events_of(tmp_path / "run") if event["event"] == "micro_batch_halved"]
    assert [(event["step"], event["old"], event["new"]) for event in told] == [(2, 4, 2)]
    for name in ("whole", "run"):
        evaluations = [event["loss"] for event in events_of(tmp_path / name) if event["event"] == "evaluated"]
        assert len(evaluations) == 6
    ours, theirs = losses_of(tmp_path / "run"), losses_of(tmp_path / "whole")
    for step in ours:
        assert ours[step] == pytest.approx(theirs[step], rel=1e-5)


def test_weights_that_became_bad_are_never_saved_and_are_replaced_from_a_good_checkpoint(data: Dataset, tmp_path: Path):
    """As if memory had failed: a weight turns into NaN between two steps."""
    from nanolens.record import checkpoint_folders
    from nanolens.record.events import StepTaken
    from nanolens.training.checkpoint import load
    from nanolens.training.loop import Loop

    loops: list[Loop] = []
    real = Loop.go
    run = tmp_path / "run"

    def go(self):
        loops.append(self)
        return real(self)

    def spoil(event):
        if (
            isinstance(event, StepTaken)
            and event.step == 6
            and not any(e["event"] == "rolled_back" for e in events_of(run))
        ):
            loops[0].trainee.model.blocks[0].mlp.up.weight.data[0, 0] = math.nan

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "go", go)
        outcome = recorded(
            but(max_iters=10, eval_interval=3, checkpoint_interval=1, keep_checkpoints=20), data, run, spoil
        )
    assert (outcome.why, outcome.step) == ("finished", 10)
    told = events_of(run)
    assert [(e["from_step"], e["to_step"]) for e in told if e["event"] == "rolled_back"] == [(6, 5)]
    assert ["not finite" in e["because"] for e in told if e["event"] == "checkpoint_failed"] == [True]
    for folder in checkpoint_folders(run):
        assert all(torch.isfinite(tensor).all() for tensor in load(folder).model.values())
