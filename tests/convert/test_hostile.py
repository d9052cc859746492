"""Files of strangers: nothing in them runs, none takes the machine's memory, and each is refused with one clear
message."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from nanolens.cli import main
from nanolens.convert.exporting import export_model
from nanolens.convert.importing import foreign_ready
from nanolens.errors import UserError
from tests.convert.hostile import PAYLOADS, canary
from tests.convert.made_models import made_run

LARGE = ("zip bomb", "million", "fill the memory")  # what takes a second or more to make


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.heavy if any(w in name for w in LARGE) else ()) for name in PAYLOADS]
)
def test_it_is_refused_with_one_message_and_nothing_runs(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = PAYLOADS[name](tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    assert main(["import", str(source), "-o", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err
    assert 1 <= said.count("error: ") <= 8, (
        said
    )  # one message; all faults of a config, or of a list of tensors, are told at once
    assert "Traceback" not in said and max(map(len, said.splitlines())) < 600
    assert not canary(tmp_path).exists() and {path.name for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("count", [80, pytest.param(3000, marks=[pytest.mark.heavy, pytest.mark.timeout(300)])])
def test_any_damage_is_still_a_model_or_one_message(count: int, tmp_path: Path):
    """Bytes changed, cut out or put in, mostly where the headers are."""
    shape = {"n_embd": 8, "n_layer": 1, "max_iters": 2, "eval_interval": 2, "lr_decay_iters": 2, "warmup_iters": 1}
    run = made_run(tmp_path / "run", **shape)
    export_model(run, "hf", tmp_path / "hf")
    export_model(run, "nanogpt", tmp_path / "nanogpt")
    names = ("hf/config.json", "hf/model.safetensors", "hf/tokenizer.json", "nanogpt/ckpt.pt", "nanogpt/meta.pkl")
    sound = {tmp_path / name: (tmp_path / name).read_bytes() for name in names}
    draw = random.Random(count)
    refused = 0
    for _ in range(count):
        path, content = draw.choice(list(sound.items()))
        place = draw.randrange(min(len(content), 4000) if draw.random() < 0.7 else len(content))
        cut, put = draw.choice([(1, 1), (1, 1), (draw.randrange(50), 0), (0, 4), (8, 8)])
        path.write_bytes(content[:place] + draw.randbytes(put) + content[place + cut :])
        try:
            foreign_ready(str(path.parent))
        except UserError:
            refused += 1
        path.write_bytes(content)
    assert count / 2 < refused < count


def test_there_are_at_least_forty():
    assert len(PAYLOADS) >= 40


@pytest.mark.heavy
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the peak of a process")
def test_all_of_them_together_stay_below_512_megabytes(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.convert.hostile", tmp_path],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert f"{len(PAYLOADS)} of {len(PAYLOADS)} refused" in lines, done.stdout + done.stderr
    print(lines[-2], lines[-1])
    assert int(lines[-1].removeprefix("PEAK ")) < 512 << 20, lines[-1]
