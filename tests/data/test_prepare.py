"""Text files in, a folder of tokens out."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from nanolens import files
from nanolens.data import prepare as preparing
from nanolens.data.prepare import documents, encoders, pipeline, prepare, readers
from nanolens.data.prepare.pipeline import PrepareProgress
from nanolens.data.store import open_folder
from nanolens.data.token_files import INDEX
from nanolens.data.tokenizers import GPT2Tokenizer, tokenizer_from_files
from nanolens.errors import UserError

GPT2 = GPT2Tokenizer()


def corpus(count: int = 400, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    words = [
        "the",
        "cat",
        "sat",
        "on",
        "a",
        "mat",
        "नमस्ते",
        "<|endoftext|>",
        "don't",
        "1234",
        "\n\n",
        "é",
        "naïve",
        "  ",
        "end.",
    ]
    return [" ".join(rng.choice(words, size=rng.integers(1, 60))) + f" {n}" for n in range(count)]


def write_jsonl(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix in (".bin", ".docs")}


def by_split(folder: Path) -> dict[str, list[np.ndarray]]:
    """The documents of each split, mark and all."""
    found = {}
    for split in ("train", "val"):
        ends = np.fromfile(folder / f"{split}.docs", dtype=INDEX)["end"].astype(np.int64)
        found[split] = np.split(np.fromfile(folder / f"{split}.bin", dtype=np.uint16), ends[:-1])
    return found


# --- as nanoGPT


def test_one_text_by_characters_is_byte_for_byte_what_nanogpt_makes(tmp_path: Path):
    text = "".join(corpus())
    (tmp_path / "input.txt").write_text(text)
    prepared = prepare([tmp_path / "input.txt"], "char", tmp_path / "out")
    characters = sorted(set(text))
    ids = np.array([characters.index(c) for c in text], dtype=np.uint16)
    cut = int(len(text) * 0.9)
    assert (prepared.folder / "train.bin").read_bytes() == ids[:cut].tobytes()
    assert (prepared.folder / "val.bin").read_bytes() == ids[cut:].tobytes()


def test_one_text_in_gpt2s_tokens_is_what_nanogpt_makes(tmp_path: Path):
    text = "".join(corpus())
    (tmp_path / "input.txt").write_text(text)
    folder = prepare([tmp_path / "input.txt"], "gpt2", tmp_path / "out").folder
    cut = int(len(text) * 0.9)
    for split, part in (("train", text[:cut]), ("val", text[cut:])):
        assert np.fromfile(folder / f"{split}.bin", dtype=np.uint16).tolist() == GPT2.encoding.encode_ordinary(part)


def test_tiny_shakespeare_has_nanogpts_counts(tmp_path: Path, shakespeare: Path):
    for kind, counts in (("char", (1_003_854, 111_540)), ("gpt2", (301_966, 36_059))):
        about = prepare([shakespeare], kind, tmp_path / kind).about
        assert (about["train"]["tokens"], about["val"]["tokens"]) == counts


def test_every_document_is_there_once_with_its_end(tmp_path: Path):
    texts = corpus()
    folder = prepare([write_jsonl(tmp_path / "x.jsonl", texts)], "gpt2", tmp_path / "out").folder
    found = by_split(folder)
    decoded = sorted(GPT2.decode(ids[:-1]) for split in found.values() for ids in split)
    assert decoded == sorted(texts)
    assert all(ids[-1] == 50256 and 50256 not in ids[:-1] for split in found.values() for ids in split)
    order = {text: place for place, text in enumerate(texts)}
    for split in found.values():
        places = [order[GPT2.decode(ids[:-1])] for ids in split]
        assert places == sorted(places), "in the order of the source"
    assert 0.05 < len(found["val"]) / len(texts) < 0.16


def test_characters_of_several_documents_end_in_a_line_end(tmp_path: Path):
    folder = prepare([write_jsonl(tmp_path / "x.jsonl", ["ab", "cd", "ef"] * 3)], "char", tmp_path / "out").folder
    tokenizer = tokenizer_from_files(folder)
    assert {tokenizer.decode(ids) for split in by_split(folder).values() for ids in split} == {"ab\n", "cd\n", "ef\n"}


def test_a_large_vocabulary_gets_four_bytes(tmp_path: Path):
    text = "".join(chr(code) for code in range(0x4E00, 0x4E00 + 20_000)) + "".join(
        chr(code) for code in range(0x20000, 0x20000 + 50_000)
    )
    (tmp_path / "x.txt").write_text(text)
    prepared = prepare([tmp_path / "x.txt"], "char", tmp_path / "out")
    assert prepared.about["dtype"] == "uint32" and prepared.about["vocab_size"] == 70_000
    assert (
        open_folder(prepared.folder).tokenizer.decode(open_folder(prepared.folder).val) == text[int(len(text) * 0.9) :]
    )


# --- nothing but the documents matters


@pytest.mark.parametrize("kind", ["gpt2", "char"])
def test_batches_workers_and_formats_change_no_byte(tmp_path: Path, monkeypatch, kind: str):
    texts = corpus()
    expected = contents(prepare([write_jsonl(tmp_path / "x.jsonl", texts)], kind, tmp_path / "out").folder)
    for size in (1, 300, 10_000):
        for module in (documents, readers, readers):
            monkeypatch.setattr(module, "BATCH_BYTES", size)
        monkeypatch.setattr(documents.packed, "__defaults__", (size,))
        assert contents(prepare([tmp_path / "x.jsonl"], kind, tmp_path / f"out{size}", workers=3).folder) == expected
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "x.parquet", row_group_size=37)
    assert contents(prepare([tmp_path / "x.parquet"], kind, tmp_path / "parquet").folder) == expected
    (tmp_path / "folder").mkdir()
    for place, text in enumerate(texts):
        (tmp_path / "folder" / f"{place:05}.txt").write_text(text)
    assert contents(prepare([tmp_path / "folder"], kind, tmp_path / "folder-out").folder) == expected


def test_whoever_encodes_changes_no_byte_and_is_noted(tmp_path: Path, monkeypatch):
    paths = [write_jsonl(tmp_path / "x.jsonl", corpus())]
    (tmp_path / "one.txt").write_text("".join(corpus(50)))
    monkeypatch.setattr(documents.packed, "__defaults__", (2000,))
    for sources in (paths, [tmp_path / "one.txt"]):
        folder = tmp_path / sources[0].stem
        expected = contents(prepare(sources, "gpt2", folder / "tiktoken").folder)
        with monkeypatch.context() as patch:
            patch.setattr(encoders, "SMALL_BYTES", 0)
            if importlib.util.find_spec("gigatoken"):
                fast = prepare(sources, "gpt2", folder / "fast")
                assert contents(fast.folder) == expected
                (choice,) = [choice for choice in fast.about["chosen"] if choice["what"] == "encoder"]
                assert choice["value"] == "gigatoken" and "gave tiktoken's ids on" in choice["because"]
            patch.setattr(encoders.importlib.util, "find_spec", lambda name: None)
            slow = prepare(sources, "gpt2", folder / "slow", workers=2)
            assert contents(slow.folder) == expected
            assert "gigatoken is not installed" in slow.about["chosen"][-1]["because"]


def test_long_documents_in_pieces_change_no_byte(tmp_path: Path, monkeypatch):
    texts = corpus(60)
    (tmp_path / "folder").mkdir()
    for place in range(20):
        (tmp_path / "folder" / f"{place:02}.txt").write_text(" ".join(texts[place * 3 : place * 3 + 3]))
    monkeypatch.setattr(documents, "KEY_BYTES", 20)  # the split looks at the first piece only, however long
    expected = contents(prepare([tmp_path / "folder"], "gpt2", tmp_path / "out").folder)
    monkeypatch.setattr(readers, "LONG_BYTES", 100)
    monkeypatch.setattr(readers, "BLOCK_BYTES", 64)
    monkeypatch.setattr(documents.pieces, "__defaults__", (0, 90))
    assert contents(prepare([tmp_path / "folder"], "gpt2", tmp_path / "pieces").folder) == expected
    (tmp_path / "one.txt").write_text(" ".join(texts))
    one = contents(prepare([tmp_path / "one.txt"], "gpt2", tmp_path / "one-pieces").folder)
    monkeypatch.undo()
    assert contents(prepare([tmp_path / "one.txt"], "gpt2", tmp_path / "one-whole").folder) == one


def test_the_order_of_the_files_changes_the_order_and_nothing_else(tmp_path: Path):
    a, b = write_jsonl(tmp_path / "a.jsonl", corpus(100, 1)), write_jsonl(tmp_path / "b.jsonl", corpus(100, 2))
    one, other = (
        by_split(prepare(paths, "gpt2", tmp_path / name, val_frac=0.2).folder)
        for paths, name in (([a, b], "ab"), ([b, a], "ba"))
    )
    for split in ("train", "val"):
        assert sorted(map(tuple, one[split])) == sorted(map(tuple, other[split]))


# --- the split


def test_few_uneven_documents_still_give_a_sensible_split(tmp_path: Path):
    texts = ["x " * 50_000, "y " * 3000, "z " * 3500, "w " * 20_000]
    about = prepare([write_jsonl(tmp_path / "x.jsonl", texts)], "char", tmp_path / "out").about
    assert 0.03 < about["val"]["bytes"] / (about["train"]["bytes"] + about["val"]["bytes"]) < 0.2
    assert about["split"]["how"].startswith("few documents")


def test_a_table_of_one_row_is_a_single_document(tmp_path: Path):
    text = "".join(corpus(30))
    write_jsonl(tmp_path / "x.jsonl", [text])
    (tmp_path / "x.txt").write_text(text)
    assert contents(prepare([tmp_path / "x.jsonl"], "gpt2", tmp_path / "a").folder) == contents(
        prepare([tmp_path / "x.txt"], "gpt2", tmp_path / "b").folder
    )


def test_the_share_that_is_asked_for_is_given(tmp_path: Path):
    path = write_jsonl(tmp_path / "x.jsonl", corpus(2000))
    about = prepare([path], "char", tmp_path / "out", val_frac=0.25).about
    assert 0.22 < about["val"]["documents"] / 2000 < 0.28
    (tmp_path / "one.txt").write_text("0123456789" * 100)
    assert prepare([tmp_path / "one.txt"], "char", tmp_path / "one", val_frac=0.25).about["val"]["tokens"] == 250
    with pytest.raises(UserError, match="between 0 and 1"):
        prepare([path], "char", tmp_path / "two", val_frac=1.5)


# --- duplicates


def test_repeated_documents_are_reported_and_never_stand_on_both_sides(tmp_path: Path):
    texts = corpus(300)
    facts = prepare([write_jsonl(tmp_path / "x.jsonl", [*texts, *texts[:100]])], "gpt2", tmp_path / "out").about[
        "facts"
    ]
    assert facts["repeated_documents_frac"] == pytest.approx(100 / 400)
    assert facts["val_documents_in_train_frac"] == 0 == facts["val_tokens_in_train_frac"]


def test_documents_on_both_sides_would_be_reported_with_their_share(tmp_path: Path, monkeypatch):
    """The rule makes it impossible; the report must not rely on that."""
    from nanolens.data.prepare.documents import ByHash

    monkeypatch.setattr(ByHash, "is_val", lambda self, keys: np.arange(len(keys)) % 10 == 9)
    texts = corpus(100)
    texts[9] = texts[0]
    facts = prepare([write_jsonl(tmp_path / "x.jsonl", texts)], "gpt2", tmp_path / "out").about["facts"]
    assert facts["val_documents_in_train_frac"] == pytest.approx(0.1)
    assert 0 < facts["val_tokens_in_train_frac"] < 1


@pytest.mark.parametrize("batch", [100, 1 << 20])
def test_exact_duplicates_can_be_left_out(tmp_path: Path, monkeypatch, batch: int):
    monkeypatch.setattr(documents.packed, "__defaults__", (batch,))
    texts = corpus(200)
    path = write_jsonl(tmp_path / "x.jsonl", [*texts, *texts[:50], texts[7]])
    about = prepare([path], "gpt2", tmp_path / "out", dedup="exact").about
    assert about["left_out_as_duplicates"] == {
        "documents": 51,
        "bytes": sum(len(text.encode()) for text in [*texts[:50], texts[7]]),
    }
    assert about["facts"]["documents"] == 200 and about["facts"]["repeated_documents_frac"] == 0
    clean = prepare([write_jsonl(tmp_path / "clean.jsonl", texts)], "gpt2", tmp_path / "clean").folder
    assert contents(tmp_path / "out") == contents(clean)


def test_long_duplicates_are_taken_back(tmp_path: Path, monkeypatch):
    texts = corpus(60)
    long = " ".join(texts)
    (tmp_path / "in").mkdir()
    for place, text in enumerate([*texts[:20], long, texts[20], long + "!", long, *texts[21:]]):
        (tmp_path / "in" / f"{place:03}.txt").write_text(text)
    monkeypatch.setattr(readers, "LONG_BYTES", 2000)
    monkeypatch.setattr(readers, "BLOCK_BYTES", 512)
    monkeypatch.setattr(documents.pieces, "__defaults__", (0, 700))
    about = prepare([tmp_path / "in"], "gpt2", tmp_path / "out", dedup="exact").about
    assert about["left_out_as_duplicates"] == {"documents": 1, "bytes": len(long.encode())}
    decoded = [GPT2.decode(ids[:-1]) for split in by_split(tmp_path / "out").values() for ids in split]
    assert sorted(decoded) == sorted([*texts, long, long + "!"])
    counts = sum(
        np.bincount(np.fromfile(tmp_path / "out" / f"{s}.bin", np.uint16), minlength=50257) for s in ("train",)
    )
    assert about["facts"]["vocab_used"] == np.count_nonzero(counts)


def test_near_duplicates_can_be_left_out(tmp_path: Path):
    texts = [" ".join(f"w{n}-{m}" for m in range(200)) for n in range(30)]
    texts.insert(20, texts[3].replace("w3-100", "other"))
    about = prepare([write_jsonl(tmp_path / "x.jsonl", texts)], "gpt2", tmp_path / "out", dedup="near").about
    assert about["left_out_as_duplicates"]["documents"] == 1 and about["facts"]["documents"] == 30


# --- what is known of the corpus


def test_the_sidecar_says_what_is_there(tmp_path: Path):
    texts = corpus()
    path = write_jsonl(tmp_path / "x.jsonl", texts)
    with open(path, "a") as file:
        file.write('{"text": null}\n{"text": ""}\n')
    prepared = prepare([path], "gpt2", tmp_path / "out", name="mine")
    about = json.loads((prepared.folder / "dataset.json").read_text())
    assert about == prepared.about
    boundaries = np.fromfile(
        prepared.folder / about["boundaries"]["train"], dtype=[tuple(field) for field in about["boundaries"]["record"]]
    )
    assert boundaries["end"][-1] == about["train"]["tokens"] and len(boundaries) == about["train"]["documents"]
    assert about["train"]["documents"] + about["val"]["documents"] == 400
    assert about["train"]["bytes"] + about["val"]["bytes"] == sum(len(text.encode()) for text in texts)
    assert (
        about["damaged"]["count"] == 1 and "line 401" in about["damaged"]["named"][0] and about["empty_documents"] == 1
    )
    facts, tokens = about["facts"], np.fromfile(prepared.folder / "train.bin", np.uint16)
    assert facts["bytes_per_token"] == pytest.approx(about["train"]["bytes"] / len(tokens))
    counts = np.bincount(tokens)
    shares = counts[counts > 0] / len(tokens)
    assert facts["unigram_nats"] == pytest.approx(-(shares * np.log(shares)).sum())
    assert facts["document_tokens_longest"] == max(map(len, by_split(prepared.folder)["train"]))
    (source,) = json.loads((prepared.folder / "sources.json").read_text())["files"]
    assert source["sha256"] == files.sha256_of(path) and source["bytes"] == path.stat().st_size
    assert files.damage(prepared.folder) == []


def test_what_was_decided_without_asking_is_noted_with_the_reason(tmp_path: Path, monkeypatch):
    (tmp_path / "x.txt").write_text("small text " * 50)
    about = prepare([tmp_path / "x.txt"], "auto", tmp_path / "a").about
    assert about["tokenizer"]["kind"] == "char" and about["chosen"][0]["what"] == "tokenizer"
    monkeypatch.setattr(pipeline, "SMALL_CORPUS_BYTES", 10)
    assert prepare([tmp_path / "x.txt"], "auto", tmp_path / "b").about["tokenizer"]["kind"] == "gpt2"
    bpe = prepare([tmp_path / "x.txt"], "bpe", tmp_path / "c", vocab_size=5000).about
    because = "the text has no pair left to join; 5000 was asked for"
    assert ("vocab_size", bpe["vocab_size"], because) in [
        (choice["what"], choice["value"], choice["because"]) for choice in bpe["chosen"]
    ]


def test_another_datasets_tokenizer_can_be_used(tmp_path: Path):
    (tmp_path / "a.txt").write_text("".join(corpus(50)))
    (tmp_path / "b.txt").write_text("the cat sat on a mat " * 20)
    first = prepare([tmp_path / "a.txt"], "bpe", tmp_path / "a", vocab_size=300)
    second = prepare([tmp_path / "b.txt"], str(first.folder), tmp_path / "b")
    assert second.about["tokenizer"] == first.about["tokenizer"]


# --- again, and in between


def test_the_same_again_takes_no_time_and_does_not_read_the_files(tmp_path: Path, monkeypatch):
    path = write_jsonl(tmp_path / "x.jsonl", corpus())
    old = time.time() - 100
    os.utime(path, (old, old))
    first = prepare([path], "gpt2", tmp_path / "out")
    monkeypatch.setattr(files, "sha256_of", lambda *_: pytest.fail("was read"))
    again = prepare([path], "gpt2", tmp_path / "out")
    assert not first.was_ready and again.was_ready and again.about == first.about


def test_a_touched_or_moved_file_is_recognised_by_its_contents(tmp_path: Path):
    path = write_jsonl(tmp_path / "x.jsonl", corpus())
    prepare([path], "gpt2", tmp_path / "out")
    os.utime(path)
    assert prepare([path], "gpt2", tmp_path / "out").was_ready
    moved = path.rename(tmp_path / "y.jsonl")
    assert prepare([moved], "gpt2", tmp_path / "out").was_ready


def test_a_file_changed_in_the_same_second_is_noticed(tmp_path: Path):
    path = write_jsonl(tmp_path / "x.jsonl", ["aaa", "bbb", "ccc"])
    about = path.stat()
    prepare([path], "char", tmp_path / "out")
    write_jsonl(path, ["aaa", "bbb", "ccd"])
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))  # same size, same time
    with pytest.raises(UserError, match="already contains a different dataset"):
        prepare([path], "char", tmp_path / "out")


def test_other_contents_settings_or_damage_are_not_ready(tmp_path: Path):
    path = write_jsonl(tmp_path / "x.jsonl", corpus())
    out = tmp_path / "out"
    prepare([path], "gpt2", out)
    for change in ({"dedup": "exact"}, {"val_frac": 0.3}):
        with pytest.raises(UserError, match="already contains a different dataset: out"):
            prepare([path], "gpt2", out, **change)
    assert not prepare([path], "gpt2", out, dedup="exact", overwrite=True).was_ready
    with open(out / "train.bin", "ab") as file:
        file.write(b"x")
    assert not prepare([path], "gpt2", out, dedup="exact", overwrite=True).was_ready


def test_a_folder_of_somebody_else_is_not_touched(tmp_path: Path):
    (tmp_path / "x.txt").write_text("hello " * 100)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("precious")
    for overwrite in (False, True):
        with pytest.raises(UserError, match="not prepared by nanolens, so it is not replaced"):
            prepare([tmp_path / "x.txt"], "char", tmp_path / "out", overwrite=overwrite)
    assert (tmp_path / "out" / "thesis.tex").read_text() == "precious"


def test_the_text_itself_is_never_replaced(tmp_path: Path):
    text, folder = tmp_path / "x.txt", tmp_path / "books"
    text.write_text("hello " * 100)
    folder.mkdir()
    (folder / "a.txt").write_text("hello " * 100)
    for source in (text, folder):
        with pytest.raises(UserError, match="not replaced"):
            prepare([source], "char", source, overwrite=True)
    prepare([text], "char", tmp_path / "out")
    (tmp_path / "out" / "b.txt").write_text("other " * 90)
    with pytest.raises(UserError, match="the text itself"):
        prepare([tmp_path / "out" / "b.txt"], "char", tmp_path / "out", overwrite=True)
    assert text.read_text() == (folder / "a.txt").read_text() == "hello " * 100
    assert (tmp_path / "out" / "b.txt").read_text() == "other " * 90


def test_a_failure_leaves_nothing_behind_and_the_old_folder_as_it_was(tmp_path: Path, monkeypatch):
    path = write_jsonl(tmp_path / "x.jsonl", corpus())
    out = tmp_path / "data" / "out"
    prepare([path], "gpt2", out)
    before = contents(out)
    monkeypatch.setattr(preparing, "pair_facts", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        prepare([path], "char", out, overwrite=True)
    assert contents(out) == before and [p.name for p in (tmp_path / "data").iterdir()] == ["out"]


@pytest.mark.skipif(os.name == "nt", reason="signals are other there")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_nothing_half_written(tmp_path: Path, number: int, code: int):
    some = write_jsonl(tmp_path / "some.jsonl", corpus(2000))
    slow = prepare([some], "bpe", tmp_path / "slow", vocab_size=260).folder  # tiktoken, in processes of its own
    path = tmp_path / "x.jsonl"
    path.write_bytes(some.read_bytes() * 150)
    command = [sys.executable, "-m", "nanolens", "prepare", str(path), f"--tokenizer={slow}", "--out=data/out"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("data/.new-*/train.bin")) and time.monotonic() < deadline:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        process.send_signal(number)
        assert process.wait(60) == code, process.stderr.read()
    finally:
        process.kill()
        process.communicate()
    assert list((tmp_path / "data").iterdir()) == []


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path):
    (tmp_path / "x.txt").write_text("hello " * 100)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    gone, alive = tmp_path / "data" / f".new-{dead.pid}-out", tmp_path / "data" / f".new-{os.getppid()}-out"
    for folder in (gone, alive):
        folder.mkdir(parents=True)
    prepare([tmp_path / "x.txt"], "char", tmp_path / "data" / "out")
    assert not gone.exists() and alive.exists()


def test_progress_goes_from_nothing_to_all(tmp_path: Path):
    path = write_jsonl(tmp_path / "x.jsonl", corpus(2000))
    told: list[PrepareProgress] = []
    prepare([path], "char", tmp_path / "out", progress=told.append)
    assert {p.stage for p in told} == {"vocabulary", "encode"}
    encoded = [p for p in told if p.stage == "encode"]
    assert encoded[-1].done_bytes == encoded[-1].total_bytes == path.stat().st_size
    assert encoded[-1].documents == 2000 and encoded[-1].tokens > 10_000


def test_standard_input_is_text_or_json_lines(tmp_path: Path, monkeypatch):
    for name, payload in (
        ("text", "one long text " * 50),
        ("jsonl", "".join(json.dumps({"text": text}) + "\n" for text in corpus(50))),
    ):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(payload.encode())))
        about = prepare(["-"], "gpt2", tmp_path / name).about
        assert about["facts"]["documents"] == (1 if name == "text" else 50)
        assert about["sources"]["given"] == ["-"]


# --- mistakes


def test_mistakes_are_told(tmp_path: Path):
    (tmp_path / "x.txt").write_text("hello " * 100)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "empty.txt").write_text("")
    write_jsonl(tmp_path / "x.jsonl", ["a"] * 3)
    cases = [
        ({"sources": [tmp_path / "x.txt"], "tokenizer": "words"}, "there is no tokenizer named words"),
        (
            {"sources": [tmp_path / "x.txt"], "tokenizer": "gpt2", "vocab_size": 1000},
            "vocab_size applies only to a BPE trained on your text",
        ),
        ({"sources": [tmp_path / "x.txt"], "tokenizer": "bpe", "vocab_size": 100}, "too small for a byte-level BPE"),
        ({"sources": [tmp_path / "latin.txt"], "tokenizer": "gpt2"}, "not UTF-8: byte 0xe9 at 3"),
        ({"sources": [tmp_path / "empty.txt"], "tokenizer": "char"}, "not enough text"),
        (
            {"sources": [tmp_path / "x.jsonl"], "tokenizer": "gpt2", "text_column": "body"},
            "no text could be read; damaged rows or files: 3",
        ),
        ({"sources": [tmp_path / "x.jsonl"], "tokenizer": "gpt2", "dedup": "exact"}, "not enough text"),
    ]
    for given, sentence in cases:
        with pytest.raises(UserError, match=sentence):
            prepare(out=tmp_path / "out", **given)
        assert not (tmp_path / "out").exists()


def test_a_disk_that_is_too_small_is_noticed_first(tmp_path: Path, monkeypatch):
    (tmp_path / "x.txt").write_text("hello " * 1000)
    monkeypatch.setattr(files, "free_bytes", lambda path: 100)
    with pytest.raises(UserError, match="the disk has 100 left"):
        prepare([tmp_path / "x.txt"], "char", tmp_path / "out")
