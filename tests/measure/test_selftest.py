"""The selftest tells a healthy machine from a sick one. With models of a few thousand parameters: the sums are the
same."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nanolens.cli import main
from nanolens.measure import selftest as room
from nanolens.record import events as e


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = np.cumsum(np.random.default_rng(0).choice([1, 1, 1, 5], size=4000)) % 12
    (tmp_path / "data" / "tiny").mkdir(parents=True)
    for split, part in (("train", ids[:3600]), ("val", ids[3600:])):
        part.astype(np.uint16).tofile(tmp_path / "data" / "tiny" / f"{split}.bin")
    names = {"vocab_size": 12, "itos": dict(enumerate("\n abcdefghij"))}
    (tmp_path / "data" / "tiny" / "meta.pkl").write_bytes(pickle.dumps(names))
    monkeypatch.chdir(tmp_path)
    tiny = replace(
        room.SMALL,
        max_iters=24,
        lr_decay_iters=24,
        warmup_iters=2,
        n_layer=1,
        n_head=2,
        n_embd=16,
        block_size=16,
        batch_size=4,
        eval_iters=1,
        threads=1,
        dataset="tiny",
        learning_rate=1e-2,
    )
    monkeypatch.setattr(room, "SMALL", tiny)
    monkeypatch.setattr(room, "LARGER", replace(tiny, n_embd=32, max_iters=4))
    monkeypatch.setattr(room, "BUSY_S", 0.2)
    quick = [(name, check) for name, check in room.CHECKS if str(name) not in ("compile", "memory vs plan")]
    monkeypatch.setattr(room, "CHECKS", tuple(quick))


def test_a_healthy_machine_passes_and_gets_a_report(capsys):
    assert main(["selftest", "--device=cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    states = [line.split()[0] for line in lines[1:7]]
    assert states == ["ok"] * 6
    assert any("the final weights match bit for bit" in line for line in lines)
    assert any("20 of 20 flipped bits detected" in line for line in lines)
    for key in (
        "nanolens",
        "torch",
        "python",
        "system",
        "hardware",
        "device",
        "dtype",
        "threads",
        "memory_bytes",
        "peak_flops",
    ):
        assert any(line.startswith(f"  {key}: ") for line in lines)
    assert lines[-1] == "all checks passed on cpu"


def test_a_machine_that_computes_wrongly_fails(monkeypatch: pytest.MonkeyPatch, capsys):
    honest = room._Bench.train

    def wrong(self, config, *more, **options):
        seen = honest(self, config, *more, **options)
        if config.dtype == "float32":
            return seen
        return [replace_loss(event, 1.1) if isinstance(event, e.StepTaken) else event for event in seen]

    monkeypatch.setattr(room._Bench, "train", wrong)
    monkeypatch.setattr(room, "CHECKS", tuple((name, check) for name, check in room.CHECKS if str(name) == "bfloat16"))
    assert main(["selftest", "--device=cpu"]) == 1
    out = capsys.readouterr().out
    assert "  FAILED  bfloat16" in out and "last losses within 0.1" in out
    assert out.splitlines()[-1] == "failed: bfloat16; please paste everything above into an issue"


def test_a_check_that_breaks_is_a_result_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch):
    def broken(bench):
        raise OSError("no space left")

    good = next(pair for pair in room.CHECKS if str(pair[0]) == "damage is detected")
    monkeypatch.setattr(room, "CHECKS", ((room.CHECKS[0][0], broken), good))
    report = room.selftest("cpu", lambda check: None)
    assert [(check.state, str(check.said)) for check in report.checks] == [
        ("failed", "OSError: no space left"),
        ("ok", "20 of 20 flipped bits detected"),
    ]
    assert not report.is_good


@pytest.mark.heavy
def test_the_memory_of_a_training_is_measured_in_a_process_of_its_own():
    small, large = (room.measured_memory(replace(room.LARGER, n_embd=width, device="cpu")) for width in (64, 512))
    assert 0 < small < large


def replace_loss(event: e.StepTaken, factor: float) -> e.StepTaken:
    import msgspec

    return msgspec.structs.replace(event, loss=float(event.loss) * factor)
