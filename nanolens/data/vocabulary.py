"""The vocabulary of a corpus, where it has to be found in the text."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nanolens.data.documents import Batch, Damaged, Documents
from nanolens.data.encoders import code_points
from nanolens.data.gpt2 import PATTERN as GPT2_PATTERN
from nanolens.data.hashing import hashes_of
from nanolens.data.job import DEFAULT_BPE_SIZE, Counted, Job, is_compressed
from nanolens.data.sources import read_documents
from nanolens.data.tokenizers import CharTokenizer, GPT2Tokenizer, Tokenizer
from nanolens.data.train_bpe import PATTERN, train_bpe

BPE_SAMPLE_BYTES = 64 << 20


def tokenizer_for(job: Job) -> Tokenizer:
    """The one that is asked for; characters and an own BPE are found in the text."""
    match job.tokenizer:
        case Tokenizer() as given:
            return given
        case "gpt2":
            return GPT2Tokenizer()
        case "char":
            return _characters_of(job)
        case "bpe":
            return _own_bpe(job, PATTERN)
        case "bpe-gpt2":
            return _own_bpe(job, GPT2_PATTERN)  # llama.cpp splits text by this rule, and not by ours
    raise AssertionError(job.tokenizer)


def _characters_of(job: Job) -> CharTokenizer:
    """All characters of the corpus, and a line end where it has several documents."""
    seen = np.zeros(0x110000, dtype=bool)
    documents = 0
    for batch in _read_for_vocabulary(job):
        seen[code_points(batch.text, np.array([0]))[0]] = True
        documents += len(batch) if isinstance(batch, Documents) else batch.is_last
    if documents > 1:
        seen[ord("\n")] = True
    return CharTokenizer([chr(code) for code in np.flatnonzero(seen)])


def _own_bpe(job: Job, pattern: str) -> Tokenizer:
    size = job.vocab_size or DEFAULT_BPE_SIZE
    if job.vocab_size is None:
        job.choose("vocab_size", size, "none was given")
    trained = train_bpe(_sample_of(job), size, pattern)
    if trained.vocab_size < size:
        job.choose("vocab_size", trained.vocab_size, f"the text has no pair left to join; {size} was asked for")
    return trained


def _sample_of(job: Job) -> Iterator[str]:
    """All documents where they are few, else a share of them, picked by their hashes so that the order of the files does not matter."""
    text_bytes = sum(file.bytes * (3 if is_compressed(file) else 1) for file in job.found)
    share = min(1.0, BPE_SAMPLE_BYTES / max(1, text_bytes))
    for batch in _read_for_vocabulary(job):
        bounds = batch.bounds if isinstance(batch, Documents) else np.array([0, len(batch.text)])
        taken = np.flatnonzero(hashes_of(batch.text, bounds) < np.uint64(share * (2**64 - 2**11)))
        for document in taken.tolist():
            yield batch.text[bounds[document] : bounds[document + 1]].tobytes().decode()


def _read_for_vocabulary(job: Job) -> Iterator[Batch]:
    told = Counted(job, "vocabulary")
    for batch in read_documents(job.found, job.text_column, Damaged(), {}):
        told(batch.read_bytes)
        yield batch
