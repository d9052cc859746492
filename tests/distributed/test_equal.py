"""The result does not depend on the number of ranks, nor on whether each has the whole model or a part of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import equal

from nanolens.record import checkpoint_folder
from nanolens.training.checkpoint import load
from tests.distributed.groups import trained
from tests.training.small import digests, evaluations_of, events_of, losses_of

pytestmark = pytest.mark.heavy

COMMON = {"max_iters": 50, "lr_decay_iters": 50, "eval_interval": 25, "eval_iters": 5, "gradient_accumulation_steps": 4}
KINDS = {
    "gpt2": COMMON,
    "modern": COMMON | {"arch": "modern", "optimizer": "muon", "ngram_rows": 32, "weight_decay": 0.01},
    "nanogpt_order": COMMON | {"data_order": "nanogpt", "max_iters": 20, "eval_interval": 10},
    "one_micro_batch": COMMON | {"gradient_accumulation_steps": 1, "max_iters": 20, "eval_interval": 10, "bias": True},
    "chunked_smoothed": COMMON | {"chunked_head": True, "label_smoothing": 0.1, "max_iters": 20, "eval_interval": 10},
}
ENGINES = ("ddp", "fsdp")


ISSUE = ("gpt2", "modern")
CASES = (
    [(kind, 2, True) for kind in KINDS]
    + [(kind, 4, True) for kind in ISSUE]
    + [(kind, size, False) for kind in ISSUE for size in (2, 4)]
)
"""(kind, ranks, in float64 for all its steps, or in float32 for ten)."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each kind trained by one process, and by several with both engines; each group of processes does all of its
    runs."""
    base = tmp_path_factory.mktemp("equal")
    for is_float64 in (True, False):
        short = {} if is_float64 else {"max_iters": 10, "eval_interval": 5}
        sizes = {size for _, size, precise in CASES if precise == is_float64}
        kinds = {kind for kind, _, precise in CASES if precise == is_float64}
        trained(1, {base / f"{kind}-{is_float64}": KINDS[kind] | short for kind in kinds}, float64=is_float64)
        for size in sizes:
            jobs = {
                base / f"{kind}-{is_float64}-{size}-{engine}": KINDS[kind] | short | {"engine": engine}
                for kind, ranks, precise in CASES
                for engine in ENGINES
                if ranks == size and precise == is_float64
            }
            trained(size, jobs, float64=is_float64)
    return base


@pytest.mark.timeout(400)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("kind", "size", "is_float64"), CASES)
def test_losses_are_those_of_one_process(kind: str, size: int, is_float64: bool, engine: str, runs: Path):
    one, many = runs / f"{kind}-{is_float64}", runs / f"{kind}-{is_float64}-{size}-{engine}"
    limit = 1e-9 if is_float64 else 1e-5
    alone, together = losses_of(one), losses_of(many)
    assert together.keys() == alone.keys()
    for step, (loss, norm) in alone.items():
        assert together[step][0] == pytest.approx(loss, abs=limit), f"loss of step {step}"
        assert together[step][1] == pytest.approx(norm, abs=20 * limit), f"gradient norm of step {step}"
    assert evaluations_of(one).keys() == evaluations_of(many).keys()
    for which, losses in evaluations_of(one).items():
        assert evaluations_of(many)[which] == pytest.approx(losses, abs=max(limit, 1e-6)), which  # told in float32
    if engine == "ddp":
        told = [event for event in events_of(many) if event["event"] == "step_taken"]
        assert all(len(event["rank_s"]) == len(event["rank_busy_s"]) == size for event in told)
        if KINDS[kind]["gradient_accumulation_steps"] > 1:
            norms = [event["micro_norms"] for event in told]
            expected = [event["micro_norms"] for event in events_of(one) if event["event"] == "step_taken"]
            assert norms[0] == pytest.approx(expected[0], rel=1e-4)


@pytest.mark.timeout(300)
def test_mixed_precision_and_dropout_train_with_both_engines(tmp_path: Path):
    """Sixteen bits round differently in every order of summing, and what is dropped depends on the micro-batch: near,
    not equal."""
    kinds = {
        "bfloat16": COMMON | {"dtype": "bfloat16", "max_iters": 20},
        "float16": COMMON | {"dtype": "float16", "max_iters": 20},
        "dropout": COMMON | {"dropout": 0.1, "max_iters": 20},
    }
    trained(1, {tmp_path / name: changes for name, changes in kinds.items()})
    trained(
        2,
        {
            tmp_path / f"{name}-{engine}": changes | {"engine": engine}
            for name, changes in kinds.items()
            for engine in ENGINES
        },
    )
    for name in kinds:
        for engine in ENGINES:
            alone, together = losses_of(tmp_path / name), losses_of(tmp_path / f"{name}-{engine}")
            assert together.keys() == alone.keys()
            limit = 0.2 if name == "dropout" else 0.03
            assert together[20][0] == pytest.approx(alone[20][0], abs=limit), (name, engine)


@pytest.mark.timeout(300)
def test_a_checkpoint_loads_on_any_number_of_ranks_and_either_engine(tmp_path: Path):
    """1 -> 2 -> 4 -> 1, with a change of engine. What is loaded and saved again, nothing done in between, keeps every
    bit."""
    kinds = {
        kind: KINDS[kind] | {"eval_interval": 4, "keep_checkpoints": 20, "max_iters": 4, "lr_decay_iters": 16}
        for kind in ISSUE
    }
    trained(1, {tmp_path / kind: config for kind, config in kinds.items()})
    last = 4
    for size, engine in ((2, "fsdp"), (4, "ddp"), (1, "ddp")):
        jobs = {}
        for kind, config in kinds.items():
            branch = {"engine": engine, "max_iters": 0, "init_from_run": f"{tmp_path / kind}@{last}"}
            jobs[tmp_path / f"{kind}-copied-by-{size}"] = config | branch
            jobs[tmp_path / kind] = config | {"engine": engine, "max_iters": last + 2}
        trained(size, jobs)
        for kind in kinds:
            before, after = (
                load(checkpoint_folder(tmp_path / name, last)) for name in (kind, f"{kind}-copied-by-{size}")
            )
            assert before.model.keys() == after.model.keys()
            assert all(equal(before.model[name], after.model[name]) for name in before.model)
            assert digests(tmp_path / kind, last) == digests(tmp_path / f"{kind}-copied-by-{size}", last)
        last += 2
    trained(1, {tmp_path / f"{kind}-whole": config | {"max_iters": last} for kind, config in kinds.items()})
    for kind in kinds:
        alone, parts = losses_of(tmp_path / f"{kind}-whole"), losses_of(tmp_path / kind)
        assert parts.keys() == alone.keys()
        assert all(parts[step][0] == pytest.approx(loss, abs=1e-5) for step, (loss, _) in alone.items())


@pytest.mark.timeout(300)
def test_a_sharded_model_writes_the_text_of_a_whole_one(tmp_path: Path):
    """Small, where one token goes through in a few operations, and large, where products are taken in parts."""
    short = {"sample_interval": 2, "sample_tokens": 8, "max_iters": 2, "eval_interval": 2}
    kinds = {"small": COMMON | short, "large": COMMON | short | {"n_embd": 512, "n_layer": 1}}
    trained(1, {tmp_path / name: changes for name, changes in kinds.items()})
    trained(2, {tmp_path / f"{name}-fsdp": changes | {"engine": "fsdp"} for name, changes in kinds.items()})
    for name in kinds:
        alone, sharded = (sorted((tmp_path / run / "samples").iterdir()) for run in (name, f"{name}-fsdp"))
        assert len(alone) == 2
        assert [path.read_text() for path in alone] == [path.read_text() for path in sharded]
