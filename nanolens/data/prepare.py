"""Text to a folder of tokens: `train.bin`, `val.bin`, and all that is known of them.

The folder is written beside its place and renamed when it is whole, so Ctrl-C leaves nothing behind. What it was made from is noted
with its sha256: preparing the same again takes no time, and preparing something else into it is refused unless asked for.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nanolens import files
from nanolens.data.compressed import COMPRESSED, Broken
from nanolens.data.dedup import Dedup
from nanolens.data.documents import LONG_BYTES, Damaged
from nanolens.data.encoders import encoder_for
from nanolens.data.facts import entropy_nats, length_facts, pair_facts
from nanolens.data.fingerprint import combined, fingerprint_of_tokens
from nanolens.data.job import Counted, Job, Progress, Told
from nanolens.data.parts import (
    Encoded,
    PartOf,
    asked_part,
    facts_of,
    files_of,
    join,
    parts_folder,
    require_parts_possible,
    whole_parts,
    write_part,
)  # fmt: skip
from nanolens.data.pipeline import Encoding, Outcome, Stages, encode_all, usable_cores
from nanolens.data.read_text import count_characters
from nanolens.data.ready import find_ready, remove_dead, require_place, require_space
from nanolens.data.sidecar import FORMAT, INDEX, META, SIDECAR, SOURCES, TokensOnDisk, documents_file, tokens_file
from nanolens.data.sources import STDIN, SourceFile, find_files, read_documents, spool_stdin
from nanolens.data.split import SINGLE_TRAIN_FRAC, AtCharacter, ByHash, SplitRule, choose, fits
from nanolens.data.token_writer import SplitWriter
from nanolens.data.tokenizers import CharTokenizer, Tokenizer
from nanolens.data.vocabulary import tokenizer_for
from nanolens.errors import fault
from nanolens.files import whole_folder
from nanolens.message import msg

VAL_FRAC, MOST_VAL_BYTES = 0.1, 32 << 20


@dataclass(frozen=True)
class Prepared:
    folder: Path
    about: Mapping[str, Any]  # the sidecar
    was_ready: bool = False  # nothing had to be done
    took_s: float = 0.0
    stages_s: Mapping[str, float] = field(default_factory=dict)  # thread seconds by kind of work


def prepare(
    sources: Iterable[str | Path],
    tokenizer: str | Tokenizer,
    out: Path,
    *,
    vocab_size: int | None = None,
    text_column: str | None = None,
    dedup: Dedup = "none",
    val_frac: float | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    name: str = "",
    progress: Told | None = None,
    part: str | None = None,
) -> Prepared:
    """`tokenizer` is "auto", "char", "gpt2", "bpe", a folder that holds one, or a Tokenizer. `part`: "3/16" prepares only that part of the
    files, "join" puts the parts together (see `parts.py`)."""
    started = time.perf_counter()
    with ExitStack() as stack:
        given = [str(source) for source in sources]
        here = [spool_stdin(Path(stack.enter_context(tempfile.TemporaryDirectory()))) if source == STDIN else source for source in given]
        found = find_files(here)
        job = Job(found, given, tokenizer, vocab_size, text_column, dedup, val_frac, name or out.name, progress or (lambda _: None))
        if part is not None and (one := asked_part(part)) is not None:
            return _prepare_part(out, job, one, workers or usable_cores(), started)
        if (ready := find_ready(out, job)) is not None:
            return Prepared(out, ready, was_ready=True, took_s=time.perf_counter() - started)
        require_place(out, overwrite)
        require_space(out, job)
        remove_dead(out)
        stages = Stages()
        try:
            known: dict[str, str] = {}
            with whole_folder(out, {"kind": "dataset"}, known) as fresh:
                if part is None:
                    about = _fill(fresh, job, workers or usable_cores(), stages, known)
                else:
                    about = _fill_from_parts(fresh, out, job, stages)
                sealing = time.perf_counter()
        except OSError:
            if (ready := find_ready(out, job)) is None:
                raise
            return Prepared(out, ready, was_ready=True, took_s=time.perf_counter() - started)  # another process was faster
        stages.add("seal", sealing)
    return Prepared(out, about, took_s=time.perf_counter() - started, stages_s=stages.seconds)


# --- doing it


def _fill(folder: Path, job: Job, workers: int, stages: Stages, hashed: dict[str, str]) -> dict[str, Any]:
    read_at_ns = time.time_ns()
    started = time.perf_counter()
    tokenizer = tokenizer_for(job)
    stages.add("vocabulary", started)
    encoded, rule = _encode(folder, job, tokenizer, workers, stages, job.found, hashed)
    return _finish(folder, job, tokenizer, encoded, rule, read_at_ns, stages)


def _prepare_part(out: Path, job: Job, part: PartOf, workers: int, started_at_s: float) -> Prepared:
    """One part, sealed. What was made before from the same files is made again: nothing of it is needed to be sure."""
    require_parts_possible(job)
    stages, place = Stages(), parts_folder(out) / part.name
    tokenizer = tokenizer_for(job)
    hashed: dict[str, str] = {}
    with whole_folder(place, {"kind": "part"}, hashed) as fresh:
        encoded, rule = _encode(fresh, job, tokenizer, workers, stages, files_of(job.found, part), hashed)
        assert isinstance(rule, ByHash)
        facts = facts_of(job, tokenizer.fingerprint, part, rule, encoded)
        write_part(fresh, facts, encoded)
    return Prepared(place, facts, took_s=time.perf_counter() - started_at_s, stages_s=stages.seconds)


def _fill_from_parts(folder: Path, out: Path, job: Job, stages: Stages) -> dict[str, Any]:
    read_at_ns = time.time_ns()
    tokenizer = tokenizer_for(job)
    require_parts_possible(job)
    parts = whole_parts(out, job, tokenizer.fingerprint)
    started = time.perf_counter()
    if job.val_frac is None:
        choose_val_frac(job)
    encoded, rule = join(folder, parts)
    stages.add("join", started)
    return _finish(folder, job, tokenizer, encoded, rule, read_at_ns, stages)


def _encode(
    folder: Path, job: Job, tokenizer: Tokenizer, workers: int, stages: Stages, found: list[SourceFile], hashed: dict[str, str]
) -> tuple[Encoded, SplitRule]:
    """Of all files, or of those of one part."""
    digests = _Digests(found)
    with ThreadPoolExecutor(1) as starting:
        encoder = starting.submit(encoder_for, tokenizer, job.bytes, workers)  # while the first text is read
        try:
            passes = _Passes(folder, job, tokenizer, encoder.result, dtype_for(tokenizer), workers, stages, digests.known, found)
            outcome, writers, damaged, rule = passes.run() if found is job.found else passes.run_part()
            sources = digests.all()
        finally:
            digests.stop()
            if encoder.exception() is None:
                encoder.result().close()
    if because := encoder.result().because:
        job.choose("encoder", encoder.result().name, because)
    hashed.update({writer.name: digest for writer in writers.values() if (digest := writer.sha256())})
    return Encoded(
        outcome, writers["train"].counts, {split: writer.tokens for split, writer in writers.items()},
        {split: writer.documents for split, writer in writers.items()}, damaged, sources, passes.end_of_document,
    ), rule  # fmt: skip


def dtype_for(tokenizer: Tokenizer) -> np.dtype:
    return np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")


def _finish(
    folder: Path, job: Job, tokenizer: Tokenizer, encoded: Encoded, rule: SplitRule, read_at_ns: int, stages: Stages
) -> dict[str, Any]:
    """Facts and sidecar of what was written."""
    outcome, damaged, dtype = encoded.outcome, encoded.damaged, dtype_for(tokenizer)
    _require_tokens(outcome, encoded.tokens, damaged, job)
    started = time.perf_counter()
    tokens = {split: TokensOnDisk(tokens_file(folder, split), dtype) for split in encoded.tokens}
    facts = _facts(tokens, encoded.counts, folder, outcome, tokenizer)
    entries = [
        {"path": str(file.path.absolute()), "bytes": file.bytes, "modified_ns": file.modified_ns, "sha256": digest}
        for file, digest in zip(job.found, encoded.digests, strict=True)
    ]
    about = {
        "format": FORMAT,
        "name": job.name,
        "dtype": dtype.name,
        "vocab_size": tokenizer.vocab_size,
        "tokenizer": {"kind": tokenizer.kind, "fingerprint": tokenizer.fingerprint},
        "end_of_document": encoded.end_of_document,
        **{
            split: {"tokens": encoded.tokens[split], "documents": encoded.documents[split], "bytes": outcome.text_bytes[split]}
            for split in ("train", "val")
        },
        "boundaries": {
            **{split: documents_file(folder, split).name for split in encoded.tokens},
            "record": [list(field) for field in INDEX.descr],
        },
        "split": _rule_in_words(rule),
        "sources": {
            "given": job.given,
            "files": len(entries),
            "bytes": job.bytes,
            "sha256": _sha256_of_all(encoded.digests),
            "list": SOURCES,
        },
        "damaged": {"count": damaged.count, "named": damaged.named},
        "empty_documents": damaged.empty,
        "left_out_as_duplicates": {"documents": outcome.repeated, "bytes": outcome.repeated_bytes},
        "facts": facts,
        "chosen": job.chosen,
        "settings": job.settings,
        "fingerprint": combined(*(fingerprint_of_tokens(tokens[split]) for split in ("train", "val"))),
    }
    _write(folder, about, entries, read_at_ns, tokenizer)
    stages.add("facts", started)
    return about


class _Passes:
    """One pass over the documents, or two where only the first shows how they are to be split."""

    def __init__(
        self, folder, job: Job, tokenizer: Tokenizer, encoder, dtype: np.dtype, workers: int, stages: Stages, digests: dict[Path, str],
        found: list[SourceFile],
    ):  # fmt: skip
        self.folder, self.job, self.tokenizer, self.encoder, self.found = folder, job, tokenizer, encoder, found
        self.dtype, self.workers, self.stages, self.digests = dtype, workers, stages, digests
        self.end_of_document: int | None = None

    def run(self) -> tuple[Outcome, dict[str, SplitWriter], Damaged, SplitRule]:
        rule = self._first_rule()
        result = self._run_once(rule)
        better = self._better_rule(rule, result[0])
        return (*self._run_once(better), better) if better else (*result, rule)

    def run_part(self) -> tuple[Outcome, dict[str, SplitWriter], Damaged, SplitRule]:
        """Some of the files, split as all of them are; whether another rule would suit them better shows when they are joined."""
        rule = self._first_rule()
        return (*self._run_once(rule), rule)

    def _first_rule(self) -> SplitRule:
        files_found, job = self.job.found, self.job
        if len(files_found) == 1 and files_found[0].kind == "text":
            try:
                return self._cut(count_characters(files_found[0].path))
            except (Broken, OSError) as problem:
                raise fault(
                    msg("this is not text that can be read: {problem}", problem=str(problem)),
                    where=msg("{path:code}", path=str(files_found[0].path)),
                    fix=msg("save it as UTF-8, for example with {command:code}", command="iconv -f LATIN1 -t UTF-8 OLD > NEW"),
                ) from None
        return ByHash(choose_val_frac(job) if job.val_frac is None else job.val_frac)

    def _better_rule(self, rule: SplitRule, outcome: Outcome) -> SplitRule | None:
        if not isinstance(rule, ByHash):
            return None
        if outcome.documents - outcome.repeated == 1 and outcome.documents == 1:
            return self._cut(self._characters())
        if outcome.few_keys and not fits(outcome.text_bytes["val"], sum(outcome.text_bytes.values()), rule.val_frac):
            return choose(np.concatenate(outcome.few_keys), np.concatenate(outcome.few_sizes), rule.val_frac)
        return None

    def _cut(self, characters: int) -> AtCharacter:
        train_frac = SINGLE_TRAIN_FRAC if self.job.val_frac is None else 1 - self.job.val_frac
        return AtCharacter(int(characters * train_frac))

    def _characters(self) -> int:
        batches = read_documents(self.job.found, self.job.text_column, Damaged(), {})
        return sum(int(np.count_nonzero((batch.text & 0xC0) != 0x80)) for batch in batches)

    def _run_once(self, rule: SplitRule) -> tuple[Outcome, dict[str, SplitWriter], Damaged]:
        # A single document needs no mark at its end, and nanoGPT sets none there.
        self.end_of_document = None if isinstance(rule, AtCharacter) else self.tokenizer.end_of_document
        how = Encoding(self.encoder, rule, self.end_of_document, self.dtype, self.tokenizer.vocab_size, self.job.dedup)
        damaged = Damaged()
        batches = read_documents(self.found, self.job.text_column, damaged, self.digests)
        told = Counted(self.job)
        outcome, writers = encode_all(batches, how, self.folder, self.workers, self.stages, told)
        return outcome, writers, damaged


def choose_val_frac(job: Job) -> float:
    frac = min(VAL_FRAC, MOST_VAL_BYTES / max(1, job.bytes))
    job.choose("val_frac", frac, f"a tenth of the documents, but not much more than {MOST_VAL_BYTES:,} bytes")
    return frac


class _Digests:
    """sha256 of the sources: of those that the readers do not hash on the way, in a thread beside them."""

    def __init__(self, found: list[SourceFile]):
        self.known: dict[Path, str] = {}
        self._found, self._stop = found, threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._waiting = {
            file.path: self._pool.submit(self._digest, file.path)
            for file in found
            if file.kind != "text" or file.path.suffix in COMPRESSED or file.bytes > LONG_BYTES
        }

    def _digest(self, path: Path) -> str:
        def check(_: int) -> None:
            if self._stop.is_set():
                raise InterruptedError

        return files.sha256_of(path, check)

    def all(self) -> list[str]:
        found = {path: future.result() for path, future in self._waiting.items()}
        return [found.get(file.path) or self.known.get(file.path) or files.sha256_of(file.path) for file in self._found]

    def stop(self) -> None:
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)


# --- what was found


def _require_tokens(outcome: Outcome, tokens: Mapping[str, int], damaged: Damaged, job: Job) -> None:
    if outcome.documents and tokens["train"] and tokens["val"]:
        return
    if damaged.count:
        raise fault(
            msg(
                "no text could be read; {count:count} rows or files are damaged, the first: {first}",
                count=damaged.count,
                first=damaged.named[0],
            ),
            where=msg("{given:code}", given=job.given),
            fix=msg("mend or leave out what is named, or name the column of the text with {option:code}", option="--text_column"),
        )
    raise fault(
        msg(
            "there is not enough text: {train:count} tokens for training, {val:count} for validation",
            train=tokens["train"],
            val=tokens["val"],
        ),
        where=msg("{given:code}", given=job.given),
        fix=msg("name more text"),
    )


def _facts(tokens: Mapping[str, TokensOnDisk], counts: np.ndarray, folder: Path, outcome: Outcome, tokenizer: Tokenizer) -> dict[str, Any]:
    index = {split: np.fromfile(documents_file(folder, split), dtype=INDEX) for split in ("train", "val")}
    all_hashes = np.concatenate([index["train"]["hash"], index["val"]["hash"]])
    in_train = np.isin(index["val"]["hash"], index["train"]["hash"])
    text_bytes = outcome.text_bytes
    return {
        "dataset_tokens": len(tokens["train"]),
        "val_tokens": len(tokens["val"]),
        "documents": outcome.documents - outcome.repeated,
        "bytes_per_token": text_bytes["train"] / len(tokens["train"]),
        "val_bytes_per_token": text_bytes["val"] / len(tokens["val"]),
        "unigram_nats": entropy_nats(counts),
        **pair_facts(tokens["train"], counts),
        "vocab_used": int(np.count_nonzero(counts)),
        "vocab_size": tokenizer.vocab_size,
        **length_facts(index["train"]["end"].astype(np.int64)),
        "repeated_documents_frac": 1 - len(np.unique(all_hashes)) / len(all_hashes),
        "val_documents_in_train_frac": float(in_train.mean()),
        "val_tokens_in_train_frac": _token_share(index["val"], in_train),
    }


def _token_share(index: np.ndarray, chosen: np.ndarray) -> float:
    lengths = np.diff(index["end"].astype(np.int64), prepend=0)
    return float(lengths[chosen].sum() / max(1, lengths.sum()))


def _rule_in_words(rule: SplitRule) -> dict[str, Any]:
    match rule:
        case AtCharacter(place):
            return {"how": "one document, cut before a character", "character": place}
        case ByHash(val_frac):
            return {"how": "by the document's hash", "val_frac": val_frac}
    return {"how": "few documents, chosen in the order of their hashes to fit the share", "documents": len(rule.val_keys)}


def _sha256_of_all(digests: list[str]) -> str:
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _write(folder: Path, about: dict[str, Any], entries: list[dict[str, Any]], read_at_ns: int, tokenizer: Tokenizer) -> None:
    (folder / SIDECAR).write_text(json.dumps(about, indent=1, ensure_ascii=False), encoding="utf-8")
    (folder / SOURCES).write_text(json.dumps({"read_at_ns": read_at_ns, "files": entries}), encoding="utf-8")
    for name, payload in tokenizer.to_files().items():
        (folder / name).write_bytes(payload)
    if isinstance(tokenizer, CharTokenizer):
        meta = {"vocab_size": tokenizer.vocab_size, "itos": dict(enumerate(tokenizer.characters)), "stoi": tokenizer.ids}
        (folder / META).write_bytes(pickle.dumps(meta))


__all__ = ["Prepared", "Progress", "Told", "prepare"]
