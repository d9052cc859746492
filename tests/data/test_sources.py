"""Every form in which text comes, and every way in which it can be damaged."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from nanolens.data.prepare import readers
from nanolens.data.prepare.documents import LONG_BYTES, DamageReport, Documents
from nanolens.data.prepare.readers import blocks_of, count_characters, find_files, read_documents
from nanolens.errors import UserError
from tests.data.texts import utf8_text

TEXTS = ["first document", "दूसरा\nदस्तावेज़", "third <|endoftext|> one", "x"]


def read(*paths: Path, column: str | None = None) -> tuple[list[str], DamageReport]:
    damaged = DamageReport()
    found: list[str] = []
    unfinished = ""
    for batch in read_documents(find_files(paths), column, damaged, {}):
        if isinstance(batch, Documents):
            found += [batch.text[a:b].tobytes().decode() for a, b in zip(batch.bounds, batch.bounds[1:], strict=False)]
        else:
            unfinished += batch.text.tobytes().decode()
            if batch.is_last:
                found, unfinished = [*found, unfinished], ""
    return found, damaged


def as_jsonl(texts: list[str], key: str = "text") -> bytes:
    return "".join(json.dumps({"id": 1, key: text}) + "\n" for text in texts).encode()


def write_parquet(path: Path, texts: list[str | None], column: str = "text", **options) -> Path:
    kind = options.pop("type", pyarrow.string())
    table = pyarrow.table({column: pyarrow.array(texts, kind), "n": list(range(len(texts)))})
    pyarrow.parquet.write_table(table, path, **options)
    return path


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_json_lines_plain_and_compressed(tmp_path: Path, ending: str):
    pack = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}[ending]
    path = tmp_path / f"x.jsonl{ending}"
    path.write_bytes(pack(as_jsonl(TEXTS)))
    found, damaged = read(path)
    assert found == TEXTS and damaged.count == 0


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_compressed_text_is_one_document(tmp_path: Path, ending: str):
    path = tmp_path / f"book.txt{ending}"
    path.write_bytes((gzip.compress if ending == ".gz" else zstandard.compress)("\n".join(TEXTS).encode()))
    assert read(path)[0] == ["\n".join(TEXTS)]


def test_gzipped_text_with_a_damaged_middle_is_counted_and_not_used(tmp_path: Path):
    raw = bytearray(gzip.compress(" ".join(map(str, range(20_000))).encode()))
    raw[len(raw) // 2 : len(raw) // 2 + 100] = b"\xff" * 100
    (tmp_path / "book.txt.gz").write_bytes(bytes(raw))
    (tmp_path / "other.txt").write_text("whole")
    found, damaged = read(tmp_path)
    assert found == ["whole"] and damaged.count == 1 and "it breaks off" in damaged.named[0]


def test_a_zst_file_of_several_frames_is_read_to_its_end(tmp_path: Path):
    path = tmp_path / "x.jsonl.zst"
    path.write_bytes(zstandard.compress(as_jsonl(TEXTS[:2])) + zstandard.compress(as_jsonl(TEXTS[2:])))
    assert read(path)[0] == TEXTS


@pytest.mark.parametrize(
    "kind", [pyarrow.string(), pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())]
)
def test_parquet_of_several_row_groups(tmp_path: Path, kind):
    texts = [f"{text} {n}" for n in range(50) for text in TEXTS]
    path = write_parquet(tmp_path / "x.parquet", texts, row_group_size=7, type=kind)
    if pyarrow.types.is_dictionary(kind):
        assert read(path, column="text")[0] == texts
    else:
        assert read(path)[0] == texts


def test_parquet_is_read_a_few_rows_at_a_time(tmp_path: Path):
    path = write_parquet(tmp_path / "x.parquet", [f"{n} " * 20_000 for n in range(200)], row_group_size=200)
    batches = list(read_documents(find_files([path]), None, DamageReport(), {}))
    assert len(batches) >= 4 and max(len(batch.text) for batch in batches) < 8 << 20
    assert 0.5 < sum(batch.read_bytes for batch in batches) / path.stat().st_size < 1.5


def test_a_folder_is_read_in_the_order_of_its_paths_without_hidden_files(tmp_path: Path):
    for name, text in (("b.txt", "b"), ("a/2.md", "a2"), ("a/1.txt", "a1"), (".git/config", "no"), (".hidden", "no")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "c.jsonl").write_bytes(as_jsonl(TEXTS))
    write_parquet(tmp_path / "d.parquet", ["last"])
    assert read(tmp_path)[0] == ["a1", "a2", "b", *TEXTS, "last"]


def test_line_ends_and_byte_order_marks_are_as_python_reads_text(tmp_path: Path):
    path = tmp_path / "x.txt"
    raw = "\ufeffone\r\ntwo\rthree\n\r\n".encode()
    path.write_bytes(raw)
    assert read(path)[0] == [path.read_text(encoding="utf-8-sig")] == ["one\ntwo\nthree\n\n"]


@given(text=utf8_text, block=st.integers(1, 9))
def test_a_long_file_read_in_blocks_is_the_file(tmp_path_factory, text: str, block: int):
    path = tmp_path_factory.getbasetemp() / "blocks.txt"
    text = text.replace("\0", "")
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "BLOCK_BYTES", block)
        found = b"".join(blocks_of(path)).decode()
        assert found == path.read_text(encoding="utf-8-sig")
        assert count_characters(path) == len(found)


def test_a_file_too_long_to_hold_travels_in_pieces(tmp_path: Path):
    path = tmp_path / "long.txt"
    line = "some words of a line\r\n"
    path.write_text(line * (LONG_BYTES // len(line) + 10), newline="")
    (found,), _ = read(path)
    assert found == path.read_text()


# --- damage


def test_damaged_lines_are_counted_and_named(tmp_path: Path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(
        as_jsonl(["good"])
        + b'{"text": 5}\n{"txt": "?"}\n{"text": "broken\n\xff\xfe\n{"text": ""}\n\n{"text": "\\ud800"}\n'
        + as_jsonl(["end"])
    )
    found, damaged = read(path)
    assert found == ["good", "end"]
    assert damaged.count == 5 and damaged.empty == 1
    assert [name.split(":")[0].split(" line ")[1] for name in damaged.named] == ["2", "3", "4", "5", "8"]
    assert "Expected `str`, got `int`" in damaged.named[0]


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_file_that_breaks_off_is_named_with_the_last_good_line(tmp_path: Path, ending: str):
    path = tmp_path / f"x.jsonl{ending}"
    rng = np.random.default_rng(0)
    texts = [" ".join(map(str, rng.integers(0, 10**9, 30))) for _ in range(3000)]
    whole = gzip.compress(as_jsonl(texts)) if ending == ".gz" else zstandard.compress(as_jsonl(texts))
    path.write_bytes(whole[: len(whole) // 2])
    found, damaged = read(path)
    assert found == texts[: len(found)] and 0 < len(found) < 3000
    assert damaged.count >= 1 and str(path) in damaged.named[-1]


def test_a_file_that_is_not_text_is_named_with_the_place(tmp_path: Path):
    (tmp_path / "a.txt").write_text("good")
    (tmp_path / "b.txt").write_bytes(b"caf" + b"\xe9 au lait")
    (tmp_path / "c.png").write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00")
    found, damaged = read(tmp_path)
    assert found == ["good"] and damaged.count == 2
    assert damaged.named == [
        f"{tmp_path / 'b.txt'}: not UTF-8: byte 0xe9 at 3",
        f"{tmp_path / 'c.png'}: not text: a zero byte at 8",
    ]


def test_a_long_file_is_used_whole_or_not_at_all(tmp_path: Path):
    path = tmp_path / "long.txt"
    path.write_bytes(b"words " * (LONG_BYTES // 6 + 10) + b"\xff")
    found, damaged = read(path)
    assert (
        found == []
        and damaged.count == 1
        and f"not UTF-8: byte 0xff at {path.stat().st_size - 1:,}" in damaged.named[0]
    )


def test_nulls_and_bad_strings_in_parquet_are_named_by_row(tmp_path: Path):
    path = write_parquet(tmp_path / "x.parquet", ["a", None, "b", "", "c"], row_group_size=2)
    found, damaged = read(path)
    assert found == ["a", "b", "c"] and damaged.count == 1 and damaged.empty == 1
    assert damaged.named == [f"{path} row group 0 row 1: null"]

    offsets, data = np.array([0, 2, 4, 6], dtype=np.int32), b"ok\xff\xfeno"
    bad = pyarrow.Array.from_buffers(pyarrow.string(), 3, [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(data)])
    pyarrow.parquet.write_table(pyarrow.table({"text": bad}), tmp_path / "bad.parquet")
    found, damaged = read(tmp_path / "bad.parquet")
    assert found == ["ok", "no"] and damaged.count == 1 and "row 1: not UTF-8" in damaged.named[0]


def test_a_damaged_row_group_costs_its_own_rows_only(tmp_path: Path):
    path = write_parquet(
        tmp_path / "x.parquet",
        [f"text {n} " * 50 for n in range(300)],
        row_group_size=100,
        compression="snappy",
        use_dictionary=False,
    )
    start = pyarrow.parquet.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    raw = bytearray(path.read_bytes())
    raw[start : start + 40] = b"\xff" * 40
    path.write_bytes(raw)
    found, damaged = read(path)
    assert len(found) == 200 and damaged.count == 100
    assert f"{path} row group 1, rows 0 to 99" in damaged.named[0]


def test_a_parquet_file_cut_short_is_named(tmp_path: Path):
    path = write_parquet(tmp_path / "x.parquet", ["a"])
    path.write_bytes(path.read_bytes()[:-10])
    found, damaged = read(path)
    assert found == [] and damaged.count == 1 and "not a readable parquet file" in damaged.named[0]


def test_only_the_first_hundred_are_named_but_all_are_counted(tmp_path: Path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(as_jsonl(["good"]) + b"nonsense\n" * 1000)
    _, damaged = read(path)
    assert damaged.count == 1000 and len(damaged.named) == 100


# --- the column


@pytest.mark.parametrize("key", ["text", "content", "whatever"])
def test_the_text_column_is_found(tmp_path: Path, key: str):
    (tmp_path / "x.jsonl").write_bytes(as_jsonl(TEXTS, key))
    assert read(tmp_path / "x.jsonl")[0] == TEXTS
    assert read(write_parquet(tmp_path / "x.parquet", TEXTS, key))[0] == TEXTS


def test_an_unclear_column_is_asked_for_and_a_named_one_is_taken(tmp_path: Path):
    table = pyarrow.table({"url": ["u"], "page": ["p"], "n": [1]})
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    (tmp_path / "x.jsonl").write_text('{"url": "u", "page": "p", "n": 1}\n')
    for name in ("x.parquet", "x.jsonl"):
        with pytest.raises(UserError, match="which column contains the text"):
            read(tmp_path / name)
        assert read(tmp_path / name, column="page")[0] == ["p"]
    with pytest.raises(UserError, match="there is no column nope"):
        read(tmp_path / "x.parquet", column="nope")


def test_what_is_not_there_is_said(tmp_path: Path):
    with pytest.raises(UserError, match="there is no such file or folder"):
        find_files([tmp_path / "nothing"])
    with pytest.raises(UserError, match="there are no files"):
        find_files([tmp_path])
