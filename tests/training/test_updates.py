"""What an update is: the mean gradient over the whole batch, however it is cut."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nanolens.data.store import Dataset
from nanolens.record import checkpoint_folder
from nanolens.sizing.schedule import lr_at
from nanolens.training.checkpoint import load
from tests.training.small import SMALL, but, events_of, losses_of, recorded, steps_of


def weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    return load(checkpoint_folder(run, step)).model


def test_one_micro_batch_of_16_and_16_of_one_give_the_same_update(data: Dataset, tmp_path: Path):
    shared = {"max_iters": 3, "eval_interval": 3, "grad_clip": 0.5}
    recorded(but(batch_size=16, gradient_accumulation_steps=1, **shared), data, tmp_path / "wide")
    recorded(but(batch_size=1, gradient_accumulation_steps=16, **shared), data, tmp_path / "deep")
    wide, deep = losses_of(tmp_path / "wide"), losses_of(tmp_path / "deep")
    for step in wide:
        assert wide[step] == pytest.approx(deep[step], rel=2e-5)
    for name, tensor in weights(tmp_path / "wide", 3).items():
        assert torch.allclose(tensor, weights(tmp_path / "deep", 3)[name], atol=2e-5), name


def test_micro_batch_norms_are_those_of_the_micro_batches_own_gradients(data: Dataset, tmp_path: Path):
    """Checked against gradients taken one by one with the first step's weights."""
    from nanolens.model import build
    from nanolens.model.loss import WithLoss
    from nanolens.training.feed import ShuffledFeed

    config = but(gradient_accumulation_steps=4, max_iters=1, eval_interval=1)
    run = tmp_path / "run"
    recorded(config, data, run)
    told = steps_of(run)[0]["micro_norms"]
    torch.manual_seed(config.seed)
    model = WithLoss(build(config, data.vocab_size))
    feed = ShuffledFeed(data.train, config.block_size, config.batch_size, config.seed, torch.device("cpu"))
    for number, norm in enumerate(told):
        model.zero_grad(set_to_none=True)
        model(*feed.take(number * config.batch_size)).objective.backward()
        assert norm == pytest.approx(
            torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item(), rel=1e-5
        )


def test_the_norms_are_left_out_where_nothing_is_accumulated(data: Dataset, tmp_path: Path):
    recorded(but(max_iters=2, eval_interval=2), data, tmp_path / "run")
    assert all("micro_norms" not in event for event in steps_of(tmp_path / "run"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("arch", ["gpt2", "modern"])
def test_the_loss_falls_with(dtype: str, arch: str, data: Dataset, tmp_path: Path):
    optimizer = "muon" if arch == "modern" else "adamw"
    config = but(
        arch=arch, optimizer=optimizer, dtype=dtype, max_iters=60, eval_interval=60, lr_decay_iters=60, ngram_rows=64
    )
    outcome = recorded(config, data, tmp_path / "run")
    first = next(
        event["loss"]
        for event in events_of(tmp_path / "run")
        if event["event"] == "evaluated" and event["split"] == "val"
    )
    assert first == pytest.approx(math.log(11), abs=0.1)
    assert outcome.val_loss < 0.93 * first


def test_the_logged_rate_is_the_schedules(data: Dataset, tmp_path: Path):
    recorded(SMALL, data, tmp_path / "run")
    for event in steps_of(tmp_path / "run"):
        assert event["rate"] == lr_at(SMALL, event["step"] - 1)


def test_label_smoothing_changes_what_is_learnt_and_not_what_is_reported(data: Dataset, tmp_path: Path):
    """The first batch loss is that of the same weights on the same tokens, so it must not know of the smoothing."""
    recorded(but(max_iters=3, eval_interval=3), data, tmp_path / "plain")
    recorded(but(max_iters=3, eval_interval=3, label_smoothing=0.2), data, tmp_path / "smooth")
    plain, smooth = losses_of(tmp_path / "plain"), losses_of(tmp_path / "smooth")
    assert plain[1][0] == smooth[1][0]
    assert plain[1][1] != smooth[1][1]
    assert plain[3] != smooth[3]


def test_every_second_belongs_to_a_part(data: Dataset, tmp_path: Path):
    config = but(max_iters=30, eval_interval=10, sample_interval=10, sample_tokens=20)
    outside = []  # of three tries: another program may take the processor between the clock of a step and that of its part
    for attempt in range(3):
        outcome = recorded(config, data, tmp_path / f"run-{attempt}")
        parts = outcome.parts
        assert 0.99 * outcome.wall_s <= sum(parts.values()) <= outcome.wall_s
        assert all(parts[part] > 0 for part in ("data", "train", "eval", "checkpoint", "sample", "other"))
        took_s = sum(event["took_s"] for event in steps_of(tmp_path / f"run-{attempt}"))
        outside.append(abs(took_s / (parts["train"] + parts["data"]) - 1))
    assert min(outside) < 0.05, "step times hold no evaluation and no saving"


def test_clipping_shortens_and_is_told(data: Dataset, tmp_path: Path):
    recorded(but(max_iters=5, eval_interval=5, grad_clip=1e-3), data, tmp_path / "run")
    assert all(event["clipped"] for event in steps_of(tmp_path / "run"))
    recorded(but(max_iters=5, eval_interval=5, grad_clip=0.0), data, tmp_path / "never")
    assert not any(event.get("clipped", False) for event in steps_of(tmp_path / "never"))


def test_the_optimizer_of_muon_and_adam_gives_each_group_its_rate(data: Dataset):
    from nanolens.model import build
    from nanolens.training.optimizers import build_optimizer, peak_lr, set_lr

    config = but(arch="modern", optimizer="muon", learning_rate=4e-3, matrix_learning_rate=2e-2, ngram_rows=16)
    optimizer = build_optimizer(build(config, 11), config)
    set_lr(optimizer, 1e-3, config)
    assert {group["role"]: group["lr"] for group in optimizer.param_groups}["matrix"] == pytest.approx(5e-3)
    # Adam's rates follow the width (training/optimizers.py); the schedule moves all of them alike.
    assert {group["role"]: group["lr"] for group in optimizer.param_groups}["embedding"] == pytest.approx(
        peak_lr("embedding", config) / 4
    )


def test_our_adamw_is_torchs_fused_one_bit_for_bit():
    from nanolens.model import build
    from nanolens.training.optimizers import AdamW

    def trained(kind, **more):
        torch.manual_seed(0)
        model = build(SMALL, 11)
        groups = [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1}]
        groups.append({"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0})
        optimizer = kind(groups, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1, **more)
        for step in range(5):
            generator = torch.Generator().manual_seed(step)
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            optimizer.step()
        return [*model.parameters(), *(value for state in optimizer.state.values() for value in state.values())]

    ours, theirs = trained(AdamW), trained(torch.optim.AdamW, fused=True)
    assert len(ours) == len(theirs)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_training_does_not_import_torchs_compiler(tmp_path: Path):
    """It takes two seconds and is not needed."""
    code = (
        "import sys; from pathlib import Path; from tests.training.small import *\n"
        "recorded(but(max_iters=2, eval_interval=1, arch=sys.argv[2], optimizer=sys.argv[3], sample_interval=1, "
        "sample_tokens=5), small_data(), Path(sys.argv[1]))\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for arch, optimizer in (("gpt2", "adamw"), ("modern", "muon")):
        subprocess.run([sys.executable, "-c", code, str(tmp_path / arch), arch, optimizer], env=environment, check=True)


def test_batches_are_those_of_the_order_wherever_one_begins(data: Dataset):
    from nanolens.data.batches import ShuffledWindows
    from nanolens.training.feed import ShuffledFeed

    order = ShuffledWindows(data.train, 16, 3)
    feed = ShuffledFeed(data.train, 16, 5, 3, torch.device("cpu"))
    for sample in (0, 5, 10, 1000, 3, 317, 320, 322, 2 * order.windows_per_epoch - 2, 10_000):
        for ours, wanted in zip(feed.take(sample), order.gather(sample, 5), strict=True):
            assert ours.numpy().tolist() == wanted.tolist()


def test_nanogpts_order_takes_the_windows_that_are_drawn(data: Dataset):
    from nanolens.training.feed import NanoGPTFeed

    torch.manual_seed(5)
    starts = torch.randint(len(data.train) - 16, (3,))  # as nanoGPT draws: (len(data) - block_size, (batch_size,))
    torch.manual_seed(5)
    inputs, targets = NanoGPTFeed(data.train, 16, 3, 0, torch.device("cpu")).take(0)
    for start, x, y in zip(starts.tolist(), inputs, targets, strict=True):
        assert x.tolist() == data.train[start : start + 16].tolist()
        assert y.tolist() == data.train[start + 1 : start + 17].tolist()
