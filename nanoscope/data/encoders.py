"""Much text to token ids at once, on all cores. Each encoder gives exactly the ids of its tokenizer's `encode`, document by document.

GPT-2's vocabulary is encoded by gigatoken where it is installed (about 15 times as fast as tiktoken on one core), and part of every batch
is encoded by tiktoken too and compared. Without it, and for an own BPE, tiktoken works in one process per core: its regex engine slows
down when threads share it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import queue
import subprocess
import sys
import tempfile
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np

from nanoscope.data.documents import last_cut
from nanoscope.data.encode_worker import read_array, write_array
from nanoscope.data.gpt2 import as_tiktoken_file
from nanoscope.data.tokenizers import BytePairTokenizer, CharTokenizer, GPT2Tokenizer, Tokenizer, cut_long_runs
from nanoscope.errors import fault
from nanoscope.message import msg

Encoded = tuple[np.ndarray, np.ndarray]
"""Ids of all documents, and the bounds of each document in them."""

SMALL_BYTES = 4 << 20
"""Below this, loading a fast encoder or starting processes takes longer than encoding does."""


class Encoder(ABC):
    name: str
    because: str

    @abstractmethod
    def encode(self, text: np.ndarray, bounds: np.ndarray) -> Encoded:
        """May be called from several threads at once."""

    def close(self) -> None:
        """Ends what the encoder started."""


def encoder_for(tokenizer: Tokenizer, source_bytes: int, workers: int) -> Encoder:
    if isinstance(tokenizer, CharTokenizer):
        return CharEncoder(tokenizer)
    assert isinstance(tokenizer, BytePairTokenizer)
    if source_bytes <= SMALL_BYTES:
        return TiktokenEncoder(tokenizer, "the text is short")
    if isinstance(tokenizer, GPT2Tokenizer):
        if importlib.util.find_spec("gigatoken") is not None:
            return GigatokenEncoder(tokenizer)
        return ProcessEncoder(tokenizer, workers, "gigatoken is not installed; pip install 'nanoscope[fast]' makes this many times faster")
    return ProcessEncoder(tokenizer, workers, "gigatoken knows no split pattern but the published ones")


class CharEncoder(Encoder):
    """A table from code point to id."""

    name, because = "table", "characters"

    def __init__(self, tokenizer: CharTokenizer):
        self.tokenizer = tokenizer
        self.unknown = len(tokenizer.characters)
        self.table = np.full(0x110000, self.unknown, dtype=np.uint32)
        self.table[[ord(character) for character in tokenizer.characters]] = np.arange(len(tokenizer.characters))

    def encode(self, text: np.ndarray, bounds: np.ndarray) -> Encoded:
        codes, bounds = code_points(text, bounds)
        ids = self.table[codes]
        if len(ids) and ids.max() == self.unknown:
            raise self.tokenizer.unknown(text.tobytes().decode())
        return ids, bounds


def code_points(text: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Characters as numbers, and the bounds counted in characters."""
    if not len(text) or text.max() < 0x80:
        return text, bounds
    begins = (text & 0xC0) != 0x80
    in_characters = np.concatenate([[0], np.cumsum(begins)])[bounds]
    return np.frombuffer(text.tobytes().decode().encode("utf-32-le"), dtype=np.uint32), in_characters


class TiktokenEncoder(Encoder):
    """tiktoken in this process, one document after the other."""

    name = "tiktoken"

    def __init__(self, tokenizer: BytePairTokenizer, because: str):
        self.tokenizer, self.because = tokenizer, because

    def encode(self, text: np.ndarray, bounds: np.ndarray) -> Encoded:
        return encode_each(self.tokenizer, text, bounds)


def encode_each(tokenizer: BytePairTokenizer, text: np.ndarray, bounds: np.ndarray) -> Encoded:
    edges = bounds.tolist()
    # encode_to_numpy makes no Python list of the ids; with no special token allowed or refused it is encode_ordinary.
    encode = tokenizer.encoding.encode_to_numpy
    parts = [
        [encode(part, disallowed_special=()) for part in cut_long_runs(text[start:end].tobytes().decode())]
        for start, end in zip(edges, edges[1:], strict=False)
    ]
    lengths = [sum(map(len, document)) for document in parts]
    flat = [part for document in parts for part in document]
    return np.concatenate(flat) if flat else np.empty(0, np.uint32), np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


class ProcessEncoder(Encoder):
    """tiktoken in processes of its own, spoken to over pipes. They end when their input ends, whatever happens to us."""

    name = "tiktoken"

    def __init__(self, tokenizer: BytePairTokenizer, workers: int, because: str):
        self.because = because
        self._folder = tempfile.TemporaryDirectory(prefix="nanoscope-")
        for name, payload in tokenizer.to_files().items():
            (Path(self._folder.name) / name).write_bytes(payload)
        command = [sys.executable, "-m", "nanoscope.data.encode_worker", self._folder.name]
        self._workers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(workers)]
        self._idle: queue.SimpleQueue[subprocess.Popen] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)

    def encode(self, text: np.ndarray, bounds: np.ndarray) -> Encoded:
        worker = self._idle.get()
        try:
            assert worker.stdin and worker.stdout
            write_array(worker.stdin, text)
            write_array(worker.stdin, bounds)
            worker.stdin.flush()
            return read_array(worker.stdout), read_array(worker.stdout)
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        for worker in self._workers:
            with contextlib.suppress(OSError):
                assert worker.stdin
                worker.stdin.close()
            worker.wait()
            assert worker.stdout
            worker.stdout.close()
        self._folder.cleanup()


class GigatokenEncoder(Encoder):
    """gigatoken, with a part of each batch encoded by tiktoken as well."""

    name = "gigatoken"
    CHECKED_BYTES = 4 << 10  # of each batch

    def __init__(self, tokenizer: GPT2Tokenizer):
        import awkward
        from gigatoken.gigatoken_rs import BPETokenizer

        self._awkward, self.tokenizer = awkward, tokenizer
        self._lock = threading.Lock()
        self.checked_bytes = 0
        with tempfile.TemporaryDirectory(prefix="nanoscope-") as folder:
            path = Path(folder) / "gpt2.tiktoken"
            path.write_bytes(as_tiktoken_file(tokenizer.ranks))
            # No special tokens: it would read <|endoftext|> in a text as the end of it, which tiktoken's encode_ordinary does not.
            self._encoder = BPETokenizer.from_tiktoken(path, "gpt2", {})

    @property
    def because(self) -> str:  # type: ignore[override]
        return f"it is installed, and gave tiktoken's ids on {self.checked_bytes:,} bytes that were encoded by both"

    def encode(self, text: np.ndarray, bounds: np.ndarray) -> Encoded:
        found = self._encoder.encode_batch(self._strings(text, bounds), parallel=False).layout
        encoded = np.asarray(found.content.data), np.asarray(found.offsets.data)
        self._check(text, bounds, *encoded)
        return encoded

    def _strings(self, text: np.ndarray, bounds: np.ndarray) -> Any:
        """The documents in awkward's layout, without a copy."""
        contents, index = self._awkward.contents, self._awkward.index
        letters = contents.NumpyArray(text, parameters={"__array__": "char"})
        return self._awkward.Array(contents.ListOffsetArray(index.Index64(bounds), letters, parameters={"__array__": "string"}))

    def _check(self, text: np.ndarray, bounds: np.ndarray, ids: np.ndarray, id_bounds: np.ndarray) -> None:
        """Short documents from anywhere in the batch; where all are long, the beginning of the shortest."""
        lengths = np.diff(bounds)
        order = np.roll(np.arange(len(lengths)), -(len(ids) % len(lengths)))
        few = order[np.cumsum(lengths[order]) <= self.CHECKED_BYTES]
        for document in few.tolist() or [int(np.argmin(lengths))]:
            begins = text[bounds[document] : bounds[document + 1]][: self.CHECKED_BYTES].tobytes()
            if len(begins) < lengths[document]:
                begins = begins[: last_cut(begins) or 0]
            theirs = self.tokenizer.encode(begins.decode())
            ours = ids[id_bounds[document] : id_bounds[document + 1]][: len(theirs)].tolist()
            is_whole = len(begins) == lengths[document]
            if ours != theirs or (is_whole and len(theirs) != id_bounds[document + 1] - id_bounds[document]):
                raise fault(
                    msg("gigatoken and tiktoken disagree on {text:code}", text=begins[:80].decode(errors="replace")),
                    fix=msg("run {command:code} to use tiktoken alone, and report this text", command="pip uninstall gigatoken"),
                )
            with self._lock:
                self.checked_bytes += len(begins)
