"""How fast text becomes tokens, against nanoGPT's way; how much memory that takes; and where the time goes.

    python bench/prepare.py speed [--megabytes=400]  GPT-2 ids of real, unique text: `prepare` against tiktoken in a
        process per core
    python bench/prepare.py memory                      peak memory over 50, 200 and 800 MB (made-up text)
    python bench/prepare.py parquet [--megabytes=1000]  a parquet file of local text, end to end, by stage

The text is what the machine has: documentation of the system, sources and documentation of Python and its packages,
each file once, and no file of which most lines were in an earlier one. `speed` times three roads from the same parquet
file to token files on disk: all of `prepare` (hashing, facts, syncing too); nanoGPT's way, which is tiktoken by
document through Hugging Face's datasets, a process per core (pip install datasets); and a bare pool of processes, which
leaves out of it whatever can be left out."""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

TEXT_FILES = (".py", ".pyi", ".txt", ".md", ".rst", ".html", ".h", ".c", ".tex", ".pod", ".pm", ".css", ".js")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "memory", "parquet", "nanogpt", "bare", "measure"])
    parser.add_argument("--megabytes", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to work; default: a temporary folder")
    given = parser.parse_args()
    if given.what in ("nanogpt", "bare"):
        return nanogpts_way(given.folder, is_bare=given.what == "bare")
    if given.what == "measure":
        return measure(given.folder)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        {"speed": speed, "memory": memory, "parquet": parquet}[given.what](Path(folder), given)


# --- speed


def speed(folder: Path, given: argparse.Namespace) -> None:
    source = folder / "text.parquet"
    documents, size = write_parquet(source, real_texts(), (given.megabytes or 400) * 10**6)
    print(f"{size / 1e6:.1f} MB of real text in {documents:,} documents, {cores()} cores")
    seen: dict[str, list[dict]] = {"prepare": [], "nanoGPT's way": [], "bare pool": []}
    for _ in range(given.rounds):  # taking turns, so that whatever else the machine does falls on all
        for name, what in zip(seen, ("measure", "nanogpt", "bare"), strict=True):
            seen[name].append(in_process(what, folder))
        print(
            "  " + ", ".join(f"{name} {size / 1e6 / took[-1]['took_s']:.1f} MB/s" for name, took in seen.items()),
            flush=True,
        )
    is_equal = same_ids(folder)
    print(f"ids identical: {is_equal}")
    ours = seen.pop("prepare")
    for name, theirs in seen.items():
        clock, cpu = ([a[key] / b[key] for a, b in zip(theirs, ours, strict=True)] for key in ("took_s", "cpu_s"))
        each = ", ".join(f"{ratio:.1f}" for ratio in clock)
        print(f"against {name}: {np.median(clock):.1f}x as fast ({each}), {np.median(cpu):.1f}x less CPU time")
    sys.exit(0 if is_equal else 1)


def nanogpts_way(folder: Path, is_bare: bool) -> None:
    """tiktoken per document in as many processes as there are cores; bare: what cannot be left out, else with Hugging
    Face's datasets."""
    global ENCODING
    from nanolens.data.tokenizers import GPT2Tokenizer

    started, used = time.perf_counter(), cpu_seconds()
    ENCODING = GPT2Tokenizer().encoding
    lengths = (bare if is_bare else with_datasets)(folder / "text.parquet", folder / "nanogpt.bin")
    took_s = time.perf_counter() - started
    np.save(folder / "nanogpt-lengths.npy", lengths)
    print(json.dumps({"took_s": took_s, "cpu_s": cpu_seconds() - used}))


def bare(source: Path, out: Path) -> np.ndarray:
    """A pool of processes that hand back arrays."""
    import pyarrow.parquet

    texts = pyarrow.parquet.read_table(source, columns=["text"])["text"].to_pylist()
    with multiprocessing.get_context("fork").Pool(cores()) as pool:
        ids = list(pool.imap(_array_of, texts, chunksize=64))
        pool.close()
        pool.join()  # so that their time is known
    np.concatenate(ids).tofile(out)
    return np.array([len(part) for part in ids])


def with_datasets(source: Path, out: Path) -> np.ndarray:
    """`map` with a dict of a list for each document, kept as Arrow on the disk, then put together: the road that
    nanoGPT's script takes."""
    import datasets

    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory(dir=source.parent) as cache:
        found = datasets.Dataset.from_parquet(str(source), cache_dir=cache, columns=["text"])
        encoded = found.map(_row_of, remove_columns=["text"], num_proc=cores())
        lengths = np.array(encoded["len"])
        tokens = np.memmap(out, dtype=np.uint16, mode="w+", shape=(int(lengths.sum()),))
        place, parts = 0, min(1024, len(encoded))
        for part in range(parts):
            ids = np.concatenate(encoded.shard(parts, part, contiguous=True).with_format("numpy")["ids"][:])
            tokens[place : place + len(ids)] = ids
            place += len(ids)
        tokens.flush()
    return lengths


def _row_of(row: dict) -> dict:
    ids = ENCODING.encode_ordinary(row["text"])
    ids.append(ENCODING.eot_token)
    return {"ids": ids, "len": len(ids)}


def _array_of(text: str) -> np.ndarray:
    return np.array(_row_of({"text": text})["ids"], dtype=np.uint16)


def same_ids(folder: Path) -> bool:
    """Each document's ids, in order, as far as they are for the same split."""
    import pyarrow.parquet

    from nanolens.data.prepare.documents import ByHash, hashes_of, split_keys

    about = json.loads((folder / "out" / "dataset.json").read_text())
    texts = [text.encode() for text in pyarrow.parquet.read_table(folder / "text.parquet")["text"].to_pylist()]
    text, bounds = (
        np.frombuffer(b"".join(texts), np.uint8),
        np.concatenate([[0], np.cumsum([len(text) for text in texts])]),
    )
    is_val = ByHash(about["split"]["val_frac"]).is_val(split_keys(text, bounds, hashes_of(text, bounds)))
    theirs, lengths = np.fromfile(folder / "nanogpt.bin", np.uint16), np.load(folder / "nanogpt-lengths.npy")
    of_val = np.repeat(is_val, lengths)
    ours = {split: np.fromfile(folder / "out" / f"{split}.bin", np.uint16) for split in ("train", "val")}
    return np.array_equal(theirs[~of_val], ours["train"]) and np.array_equal(theirs[of_val], ours["val"])


def measure(folder: Path) -> None:
    """One `prepare` in this process: its time, its stages and the most memory it had."""
    from nanolens.data.prepare import prepare

    (source,) = folder.glob("text.*")
    shutil.rmtree(folder / "out", ignore_errors=True)
    used = cpu_seconds()
    prepared = prepare([source], "gpt2", folder / "out")
    used = cpu_seconds() - used
    print(
        json.dumps(
            {"took_s": prepared.took_s, "cpu_s": used, "stages_s": dict(prepared.stages_s), "peak_bytes": peak_bytes()}
        )
    )


def cpu_seconds() -> float:
    """Of this process and those it started, since it began."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def peak_bytes() -> int:
    """Most memory that this program held. Not ru_maxrss where it can be helped: that also counts the process it was
    forked from."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def in_process(what: str, folder: Path) -> dict:
    command = [sys.executable, __file__, what, f"--folder={folder}"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


# --- memory


def memory(folder: Path, given: argparse.Namespace) -> None:
    for kind in ("parquet", "jsonl", "txt"):
        for megabytes in (50, 200, 800):
            for old in folder.glob("text.*"):
                old.unlink()
            path = folder / f"text.{kind}"
            if kind == "parquet":
                write_parquet(path, made_up_texts(), megabytes * 10**6)
            else:
                write_lines(path, made_up_texts(), megabytes * 10**6)
            found = in_process("measure", folder)
            rate = megabytes / found["took_s"]
            print(f"{kind:8} {megabytes:4} MB  peak {found['peak_bytes'] / 1e6:6.0f} MB  {rate:6.1f} MB/s")


def made_up_texts() -> Iterator[str]:
    """Sentences of made-up words, in another order in each document; the lengths are spread like those of web pages."""
    draw = random.Random(1)
    words = ["".join(draw.choice("etaoinshrdlu") for _ in range(draw.randint(2, 9))) for _ in range(20_000)]
    sentences = [" ".join(draw.choices(words, k=draw.randint(5, 25))) + ".\n" for _ in range(20_000)]
    while True:
        yield "".join(draw.choices(sentences, k=int(draw.lognormvariate(3, 1)) + 1))


# --- parquet


def parquet(folder: Path, given: argparse.Namespace) -> None:
    source = folder / "text.parquet"
    wanted = (given.megabytes or 1000) * 10**6
    documents, size = write_parquet(source, repeated(real_texts), wanted)
    print(
        f"{size / 1e6:.0f} MB of text in {documents:,} documents, {source.stat().st_size / 1e6:.0f} MB of parquet, "
        f"{cores()} cores"
    )
    found = in_process("measure", folder)
    total = sum(found["stages_s"].values())
    print(
        f"{size / 1e6 / found['took_s']:.1f} MB/s, {found['took_s']:.1f} s, peak memory "
        f"{found['peak_bytes'] / 1e6:.0f} MB"
    )
    shares = [
        f"{name} {seconds / total:.1%}" for name, seconds in found["stages_s"].items() if seconds / total > 0.0005
    ]
    print("share of the work: " + ", ".join(shares))


def repeated(texts) -> Iterator[str]:
    """Real text until there is enough: what comes again is told apart by a number in each line, or it would be a
    duplicate."""
    for turn in range(1000):
        for text in texts():
            yield text if not turn else text.replace("\n", f"\n{turn} ")


# --- text


def real_texts() -> Iterator[str]:
    """Text files of this machine, in a fixed order, none of them mostly made of lines seen before."""
    roots = dict.fromkeys(
        ["/usr/share", "/usr/include", sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "/usr/lib"]
    )
    seen_lines: set[int] = set()
    seen_files: set[bytes] = set()
    for root in roots:
        for folder, below, files in os.walk(root):
            below.sort()
            for name in sorted(files):
                path = Path(folder) / name
                if path.suffix not in TEXT_FILES or path.is_symlink():
                    continue
                try:
                    raw = path.read_bytes()
                    text = raw.decode()
                except (OSError, UnicodeDecodeError):
                    continue
                digest = hashlib.sha256(raw).digest()
                lines = [hash(line) for line in text.splitlines() if len(line) > 20]
                new = sum(line not in seen_lines for line in lines)
                if digest in seen_files or "\0" in text or new * 2 <= len(lines):
                    continue
                seen_files.add(digest)
                seen_lines.update(lines)
                yield text


def write_parquet(path: Path, texts: Iterator[str], at_least: int) -> tuple[int, int]:
    """Rows of text until there are enough bytes, in row groups of 1,000 as FineWeb has them."""
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.schema([("text", pyarrow.string()), ("id", pyarrow.string())])
    documents = size = 0
    with pyarrow.parquet.ParquetWriter(path, schema, compression="snappy") as writer:
        rows: list[str] = []
        for text in texts:
            rows.append(text)
            size += len(text.encode())
            if len(rows) == 1000 or size >= at_least:
                writer.write_table(
                    pyarrow.table({"text": rows, "id": [str(documents + n) for n in range(len(rows))]}, schema=schema)
                )
                documents += len(rows)
                rows = []
            if size >= at_least:
                break
    return documents, size


def write_lines(path: Path, texts: Iterator[str], at_least: int) -> None:
    size = 0
    with open(path, "w", encoding="utf-8") as file:
        for text in texts:
            file.write(json.dumps({"text": text}) + "\n" if path.suffix == ".jsonl" else text + "\n")
            size += len(text)
            if size >= at_least:
                return


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    main()
