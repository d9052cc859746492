"""Every command and every piece of Python on docs/interop.md is run, in order, in a folder as the page describes it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from nanolens.cli import main
from nanolens.convert.exporting import export_model
from nanolens.convert.hf_folder import write_hugging_face
from nanolens.data.prepare import prepare
from nanolens.data.store import open_folder
from nanolens.record.write import Recorder
from nanolens.training.checkpoint import tensors_of
from nanolens.training.loop import train
from tests.convert.made_models import SHAPE, TEXT, random_model, tokenizer

PAGE = Path(__file__).parents[2] / "docs" / "interop.md"
BLOCK = re.compile(r"^```(sh|python|text)\n(.*?)^```", re.M | re.S)


def blocks() -> list[tuple[str, str]]:
    return BLOCK.findall(PAGE.read_text(encoding="utf-8"))


def make_folder(folder: Path) -> None:
    """What the page says is there: a text, its data as nanoGPT names it, a run, nanoGPT's `out` folder, and a GPT-2 of
    Hugging Face's."""
    import dataclasses

    (folder / "input.txt").write_text("ROMEO:\n" + TEXT, encoding="utf-8")
    data = prepare([folder / "input.txt"], "char", folder / "data" / "shakespeare_char").folder
    (folder / "runs").mkdir()
    recorder = Recorder(folder / "runs" / "shakespeare")
    train(
        dataclasses.replace(SHAPE, dataset="shakespeare_char", data_order="nanogpt"),
        open_folder(data),
        folder / "runs" / "shakespeare",
        recorder,
    )
    recorder.close()
    export_model(folder / "runs" / "shakespeare@12", "nanogpt", folder / "out-shakespeare-char")
    (folder / "gpt2-folder").mkdir()
    gpt2 = dataclasses.replace(SHAPE, bias=True, gelu="tanh", block_size=64)
    write_hugging_face(
        folder / "gpt2-folder", gpt2, tensors_of(random_model(gpt2, 50257, 0.05)), tokenizer("gpt2"), 50257
    )


def test_no_command_of_the_page_escapes():
    commands = [line for kind, text in blocks() if kind == "sh" for line in text.splitlines()]
    assert len(commands) >= 12 and all(line.startswith("nanolens ") for line in commands)
    assert [kind for kind, _ in blocks()].count("python") == 1
    outside = "".join(text for kind, text in blocks() if kind == "text")
    assert "nanolens" not in outside, "what is not run is for other programs"


@pytest.mark.heavy
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore")
def test_each_command_of_the_page_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for library in ("transformers", "gguf"):
        pytest.importorskip(library)
    make_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    for kind, text in blocks():
        if kind == "sh":
            for line in text.splitlines():
                assert main(shlex.split(line)[1:]) == 0, (line, capsys.readouterr())
        elif kind == "python":
            exec(compile(text, str(PAGE), "exec"), {})
    made = {path.name for path in tmp_path.iterdir()}
    assert {"shakespeare-hf", "shakespeare.gguf", "shakespeare-q8.gguf", "out-mine"} <= made
    assert (tmp_path / "shakespeare-q8.gguf").stat().st_size < (tmp_path / "shakespeare.gguf").stat().st_size
