"""Written whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanolens import files
from nanolens.errors import UserError


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path):
    path = tmp_path / "a.txt"
    files.write_whole(path, "old")
    with pytest.raises(RuntimeError), files.whole_file(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_killed_write_leaves_the_old_file(tmp_path: Path):
    path = tmp_path / "a.txt"
    files.write_whole(path, "old")
    code = (
        f"import os\nfrom pathlib import Path\nfrom nanolens import files\nwith "
        f"files.whole_file(Path({str(path)!r})) as f:\n    f.write(b'half'); f.flush(); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 9
    assert path.read_text() == "old"
    files.remove_unfinished(tmp_path)
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_folder_appears_whole_with_its_manifest(tmp_path: Path):
    with files.whole_folder(tmp_path / "x", {"step": 3}) as fresh:
        (fresh / "w.bin").write_bytes(b"12345")
        assert not (tmp_path / "x").exists()
    assert files.damage(tmp_path / "x") == []
    assert files.read_manifest(tmp_path / "x")["step"] == 3


def test_a_folder_replaces_another_only_when_it_is_whole(tmp_path: Path):
    for text in ("old", "new"):
        with files.whole_folder(tmp_path / "x", {}) as fresh:
            (fresh / "w").write_text(text)
    with pytest.raises(RuntimeError), files.whole_folder(tmp_path / "x", {}) as fresh:
        (fresh / "w").write_text("half")
        raise RuntimeError
    assert (tmp_path / "x" / "w").read_text() == "new"
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("kind", ["exchanged", "renamed twice"])
def test_a_kill_while_a_folder_is_replaced_leaves_a_whole_one(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The process ends before each rename in turn; whatever it left, the old or the new folder is there and whole."""
    if kind == "exchanged" and sys.platform not in ("linux", "darwin"):
        pytest.skip("this system cannot exchange two names")
    seen = set()
    for killed_at in range(4):
        place = tmp_path / f"{killed_at}" / "x"
        with files.whole_folder(place, {}) as fresh:
            (fresh / "w").write_text("old")
        calls = iter(range(100))

        class Killed(BaseException):
            pass

        def dies(real, calls=calls, killed_at=killed_at, killed=Killed):
            def call(*args):
                if next(calls) == killed_at:
                    raise killed
                return real(*args)

            return call

        with monkeypatch.context() as patch:
            patch.setattr(files, "exchange", dies(files.exchange) if kind == "exchanged" else lambda *_: False)
            patch.setattr(os, "rename", dies(os.rename))
            patch.setattr(files.shutil, "rmtree", lambda *_, **__: None)  # a killed process tidies nothing up
            try:
                with files.whole_folder(place, {}) as fresh:
                    (fresh / "w").write_text("new")
            except Killed:
                seen.add(killed_at)
        files.remove_unfinished(place.parent)
        assert files.damage(place) == []
        assert (place / "w").read_text() in ("old", "new")
        assert os.listdir(place.parent) == ["x"]
    assert seen == ({0} if kind == "exchanged" else {0, 1})


@given(st.integers(0, 39), st.integers(0, 7))
def test_each_flipped_bit_is_noticed(at: int, bit: int):
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "x"
        with files.whole_folder(folder, {}) as fresh:
            (fresh / "w").write_bytes(bytes(range(40)))
        content = bytearray((folder / "w").read_bytes())
        content[at] ^= 1 << bit
        (folder / "w").write_bytes(content)
        assert [found.problem for found in files.damage(folder)] == ["content"]


def test_missing_cut_and_foreign_files_are_noticed(tmp_path: Path):
    with files.whole_folder(tmp_path / "x", {}) as fresh:
        for name in "abc":
            (fresh / name).write_text("content of " + name)
    (tmp_path / "x" / "a").unlink()
    (tmp_path / "x" / "b").write_text("cont")
    (tmp_path / "x" / "c").write_text("content of a")
    assert {found.file: found.problem for found in files.damage(tmp_path / "x")} == {
        "a": "missing",
        "b": "size",
        "c": "content",
    }
    (tmp_path / "x" / files.MANIFEST).write_text("{")
    assert [found.problem for found in files.damage(tmp_path / "x")] == ["missing"]


def test_a_full_disk_is_told_before_the_work_starts(tmp_path: Path):
    files.require_free_space(tmp_path / "not" / "yet", 1, "a test")
    with pytest.raises(UserError, match="the disk has"):
        files.require_free_space(tmp_path, 10**18, "a test")


def test_no_bit_of_the_manifest_itself_can_flip_unseen(tmp_path: Path):
    with files.whole_folder(tmp_path / "x", {"format": 1, "step": 3}) as fresh:
        (fresh / "w").write_text("weights")
    path = tmp_path / "x" / files.MANIFEST
    whole = path.read_bytes()
    for bit in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(flipped)
        assert files.damage(tmp_path / "x"), flipped
    path.write_bytes(whole)
    assert files.damage(tmp_path / "x") == []
