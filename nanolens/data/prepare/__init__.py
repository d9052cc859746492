"""Text to a folder of tokens: `train.bin`, `val.bin`, and all that is known of them.

The folder is written beside its place and renamed when it is whole, so Ctrl-C leaves nothing behind. What it was made
from is noted with its sha256: preparing the same again takes no time, and something else is not put in its place."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from nanolens import files
from nanolens.data.prepare import parts, readers
from nanolens.data.prepare.documents import (
    LONG_BYTES,
    SINGLE_TRAIN_FRAC,
    AtCharacter,
    ByHash,
    DamageReport,
    Dedup,
    SplitRule,
    characters_in,
    choose,
    fits,
)
from nanolens.data.prepare.encoders import encoder_for
from nanolens.data.prepare.facts import entropy_nats, length_facts, pair_facts
from nanolens.data.prepare.pipeline import (
    SPLITS,
    EncodePass,
    EncodeResult,
    OnProgress,
    PrepareJob,
    dtype_for,
    tokenizer_for,
    usable_cores,
)
from nanolens.data.token_files import (
    FORMAT,
    INDEX,
    META,
    SIDECAR,
    SOURCES,
    Sidecar,
    TokensOnDisk,
    combined,
    documents_file,
    fingerprint_of_tokens,
    read_sidecar,
    tokens_file,
)
from nanolens.data.tokenizers import CharTokenizer, Tokenizer
from nanolens.errors import fault
from nanolens.message import msg

VAL_FRAC, MOST_VAL_BYTES = 0.1, 32 << 20


@dataclass(frozen=True)
class PreparedData:
    folder: Path
    about: Sidecar
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
    progress: OnProgress | None = None,
    part: str | None = None,
) -> PreparedData:
    """`tokenizer` is "auto", "char", "gpt2", "bpe", a folder that holds one, or a Tokenizer. `part`: "3/16" prepares
    only that part of the files, "join" puts the parts together (see `parts.py`)."""
    started = time.perf_counter()
    given = [str(source) for source in sources]
    name, workers, on_progress = name or out.name, workers or usable_cores(), progress or (lambda _: None)
    with tempfile.TemporaryDirectory() as spool:
        here = [readers.spool_stdin(Path(spool)) if source == readers.STDIN else source for source in given]
        found = readers.find_files(here)
        job = PrepareJob(found, given, tokenizer, vocab_size, text_column, dedup, val_frac, name, workers, on_progress)
        ready = None
        if part is not None and (one := parts.asked_part(part)) is not None:
            out, about = _prepare_part(out, job, one)
        elif (ready := _find_ready(out, job)) is None:
            _require_place(out, overwrite, found)
            _require_space(out, job)
            _remove_dead(out)
            try:
                about = _prepare_folder(out, job, from_parts=part is not None)
            except OSError:
                if (ready := _find_ready(out, job)) is None:  # else another process was faster
                    raise
        took_s = time.perf_counter() - started
        if ready is not None:
            return PreparedData(out, ready, was_ready=True, took_s=took_s)
        return PreparedData(out, about, took_s=took_s, stages_s=job.stages_s)


def _find_ready(out: Path, job: PrepareJob) -> Sidecar | None:
    """The sidecar of `out`, if it was made from these files in this way and is still whole."""
    about = read_sidecar(out)
    if about is None or about.get("settings") != job.settings or files.damage(out, contents=False):
        return None
    try:
        noted = json.loads((out / SOURCES).read_bytes())
        pairs = list(zip(noted["files"], job.found, strict=True))
        have_same_sizes = all(entry["bytes"] == file.bytes for entry, file in pairs)
        is_same = have_same_sizes and all(_is_same(entry, file, noted["read_at_ns"]) for entry, file in pairs)
        return about if is_same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_same(entry: dict[str, object], file: readers.SourceFile, read_at_ns: int) -> bool:
    """A file of the same place, size and time of change is not read again, unless it was read just after a change."""
    is_untouched = entry["path"] == str(file.path.absolute()) and entry["modified_ns"] == file.modified_ns
    is_old = file.modified_ns < read_at_ns - 2_000_000_000
    return (is_untouched and is_old) or files.sha256_of(file.path) == entry["sha256"]


def _require_place(out: Path, overwrite: bool, sources: Sequence[readers.SourceFile]) -> None:
    """Only what was prepared here is replaced, and never the text itself."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    elsewhere = msg("choose another folder with {out:code}, or remove it yourself", "--out=DIR")
    about = read_sidecar(out)
    if about is None:
        raise fault(msg("this was not prepared by nanolens, so it is not replaced"), where=str(out), fix=elsewhere)
    if any(file.path.resolve().is_relative_to(out.resolve()) for file in sources):
        raise fault(msg("the text itself lies in the folder to be replaced"), where=str(out), fix=elsewhere)
    if not overwrite:
        instead, anyway = "--out=DIR", "--overwrite"
        fix = msg("choose another folder with {out:code}, or replace it with {overwrite:code}", instead, anyway)
        what = msg("the folder already contains a different dataset: {what}", about["name"])
        raise fault(what, where=str(out), fix=fix)


def _require_space(out: Path, job: PrepareJob) -> None:
    """Refuses only where the disk is clearly too small: how many tokens a text has is not known before."""
    packed = sum(file.bytes * (2.0 if file.is_compressed else 1.0) for file in job.found)
    files.require_free_space(out, int(packed * (2.0 if job.tokenizer == "char" else 0.4)), "preparing this")


def _remove_dead(out: Path) -> None:
    """What a process that was killed left behind while preparing the same folder."""
    for left in out.parent.glob(f"{files.UNFINISHED}*-{out.name}"):
        number = left.name.removeprefix(files.UNFINISHED).split("-")[0]
        if number.isdigit() and not psutil.pid_exists(int(number)):
            shutil.rmtree(left, ignore_errors=True)


def _prepare_folder(out: Path, job: PrepareJob, from_parts: bool) -> Sidecar:
    file_digests: dict[str, str] = {}
    with contextlib.ExitStack() as writing:
        fresh = writing.enter_context(files.whole_folder(out, {"kind": "dataset"}, file_digests))
        read_at_ns = time.time_ns()
        with job.stage("vocabulary"):
            tokenizer = tokenizer_for(job)
        if from_parts:
            parts.require_parts_possible(job)
            all_parts = parts.whole_parts(out, job, tokenizer.fingerprint)
            with job.stage("join"):
                if job.val_frac is None:
                    _choose_val_frac(job)
                result = parts.join(fresh, all_parts)
        else:
            result = _encode(fresh, job, tokenizer, job.found)
        file_digests.update(result.file_digests)
        with job.stage("facts"):
            about = _finish(fresh, job, tokenizer, result, read_at_ns)
        with job.stage("seal"):
            writing.close()
    return about


def _prepare_part(out: Path, job: PrepareJob, part: parts.PartOf) -> tuple[Path, dict[str, object]]:
    """One part, sealed. What was made before from the same files is made again: nothing of it is needed to be sure."""
    parts.require_parts_possible(job)
    place = parts.parts_folder(out) / part.name
    tokenizer = tokenizer_for(job)
    file_digests: dict[str, str] = {}
    with files.whole_folder(place, {"kind": "part"}, file_digests) as fresh:
        result = _encode(fresh, job, tokenizer, parts.files_of(job.found, part))
        file_digests.update(result.file_digests)
        return place, parts.write_part(fresh, job, tokenizer.fingerprint, part, result)


def _encode(folder: Path, job: PrepareJob, tokenizer: Tokenizer, found: list[readers.SourceFile]) -> EncodeResult:
    """All files, or those of one part, split as all of them are: whether another rule would suit them better shows when
    they are joined. Two passes where only the first shows how the documents are to be split."""
    rule: SplitRule | None = _first_rule(job)
    known: dict[Path, str] = {}
    is_over = threading.Event()
    with ThreadPoolExecutor(1) as starting, ThreadPoolExecutor(1) as hashing:
        encoder = starting.submit(encoder_for, tokenizer, job.bytes, job.workers)  # while the first text is read
        # The sources that the readers do not hash on the way are hashed beside them.
        alone = [file.path for file in found if file.kind != "text" or file.is_compressed or file.bytes > LONG_BYTES]
        digests = {path: hashing.submit(files.sha256_of, path, is_over) for path in alone}
        try:
            while rule is not None:
                result = EncodePass(job, folder, tokenizer, encoder.result, rule).run(found, known)
                rule = _better_rule(job, result) if found is job.found else None
            known |= {path: digest.result() for path, digest in digests.items()}
            result.source_digests = [known.get(file.path) or files.sha256_of(file.path) for file in found]
        finally:
            is_over.set()
            hashing.shutdown(cancel_futures=True)
            if encoder.exception() is None:
                encoder.result().close()
    if because := encoder.result().because:
        job.choose("encoder", encoder.result().name, because)
    return result


def _first_rule(job: PrepareJob) -> SplitRule:
    if len(job.found) > 1 or job.found[0].kind != "text":
        return ByHash(_choose_val_frac(job) if job.val_frac is None else job.val_frac)
    try:
        return _cut(job, readers.count_characters(job.found[0].path))
    except (readers.BrokenFile, OSError) as problem:
        what = msg("this is not readable text: {problem}", str(problem))
        fix = msg("save it as UTF-8, for example with {command:code}", "iconv -f LATIN1 -t UTF-8 OLD > NEW")
        raise fault(what, where=str(job.found[0].path), fix=fix) from None


def _better_rule(job: PrepareJob, result: EncodeResult) -> SplitRule | None:
    rule = result.rule
    if not isinstance(rule, ByHash):
        return None
    if result.documents == 1:
        batches = readers.read_documents(job.found, job.text_column, DamageReport(), {})
        return _cut(job, sum(characters_in(batch.text) for batch in batches))
    if result.few and not fits(result.text_bytes["val"], sum(result.text_bytes.values()), rule.val_frac):
        keys, sizes = (np.concatenate(arrays) for arrays in zip(*result.few, strict=True))
        return choose(keys, sizes, rule.val_frac)
    return None


def _cut(job: PrepareJob, characters: int) -> AtCharacter:
    return AtCharacter(int(characters * (SINGLE_TRAIN_FRAC if job.val_frac is None else 1 - job.val_frac)))


def _choose_val_frac(job: PrepareJob) -> float:
    frac = min(VAL_FRAC, MOST_VAL_BYTES / max(1, job.bytes))
    because = msg("a tenth of the documents, but not much more than {most:bytes}", MOST_VAL_BYTES)
    job.choose("val_frac", frac, because)
    return frac


def _finish(folder: Path, job: PrepareJob, tokenizer: Tokenizer, result: EncodeResult, read_at_ns: int) -> Sidecar:
    """What was written gets its facts, its sidecar, its sources and its tokenizer."""
    _require_tokens(result, job)
    dtype, damaged = dtype_for(tokenizer), result.damaged
    tokens = {split: TokensOnDisk(tokens_file(folder, split), dtype) for split in SPLITS}
    sizes = {"tokens": result.tokens, "documents": result.documents_of, "bytes": result.text_bytes}
    record = [list(field) for field in INDEX.descr]
    about = {
        "format": FORMAT,
        "name": job.name,
        "dtype": dtype.name,
        "vocab_size": tokenizer.vocab_size,
        "tokenizer": {"kind": tokenizer.kind, "fingerprint": tokenizer.fingerprint},
        "end_of_document": result.end_of_document,
        **{split: {key: of[split] for key, of in sizes.items()} for split in SPLITS},
        "boundaries": {**{split: documents_file(folder, split).name for split in SPLITS}, "record": record},
        "split": _rule_in_words(result.rule),
        "sources": {
            "given": job.given,
            "files": len(job.found),
            "bytes": job.bytes,
            "sha256": hashlib.sha256("\n".join(result.source_digests).encode()).hexdigest(),
            "list": SOURCES,
        },
        "damaged": {"count": damaged.count, "named": damaged.named},
        "empty_documents": damaged.empty,
        "left_out_as_duplicates": {"documents": result.repeated, "bytes": result.repeated_bytes},
        "facts": _facts(tokens, folder, result),
        "chosen": job.chosen,
        "settings": job.settings,
        "fingerprint": combined(*(fingerprint_of_tokens(tokens[split]) for split in SPLITS)),
    }
    entries = [
        {"path": str(file.path.absolute()), "bytes": file.bytes, "modified_ns": file.modified_ns, "sha256": digest}
        for file, digest in zip(job.found, result.source_digests, strict=True)
    ]
    (folder / SIDECAR).write_text(json.dumps(about, indent=1, ensure_ascii=False), encoding="utf-8")
    (folder / SOURCES).write_text(json.dumps({"read_at_ns": read_at_ns, "files": entries}), encoding="utf-8")
    for name, payload in tokenizer.to_files().items():
        (folder / name).write_bytes(payload)
    if isinstance(tokenizer, CharTokenizer):
        (folder / META).write_bytes(tokenizer.nanogpt_meta())
    return about


def _require_tokens(result: EncodeResult, job: PrepareJob) -> None:
    tokens, damaged, where = result.tokens, result.damaged, ", ".join(job.given)
    if result.documents and tokens["train"] and tokens["val"]:
        return
    if damaged.count:
        count, first = damaged.count, damaged.named[0]
        what = msg("no text could be read; damaged rows or files: {count:count}, the first: {first}", count, first)
        fix = msg("fix or leave out the files named above, or name the text column with {option:code}", "--text_column")
        raise fault(what, where=where, fix=fix)
    train, val = tokens["train"], tokens["val"]
    what = msg("there is not enough text: {train:count} tokens for training, {val:count} for validation", train, val)
    raise fault(what, where=where, fix=msg("add more text"))


def _facts(tokens: Mapping[str, TokensOnDisk], folder: Path, result: EncodeResult) -> dict[str, object]:
    index = {split: np.fromfile(documents_file(folder, split), dtype=INDEX) for split in SPLITS}
    all_hashes = np.concatenate([index["train"]["hash"], index["val"]["hash"]])
    in_train = np.isin(index["val"]["hash"], index["train"]["hash"])
    val_lengths = np.diff(index["val"]["end"].astype(np.int64), prepend=0)
    return {
        "dataset_tokens": len(tokens["train"]),
        "val_tokens": len(tokens["val"]),
        "documents": result.documents - result.repeated,
        "bytes_per_token": result.text_bytes["train"] / len(tokens["train"]),
        "val_bytes_per_token": result.text_bytes["val"] / len(tokens["val"]),
        "unigram_nats": entropy_nats(result.counts),
        **pair_facts(tokens["train"], result.counts),
        "vocab_used": int(np.count_nonzero(result.counts)),
        "vocab_size": len(result.counts),
        **length_facts(index["train"]["end"].astype(np.int64)),
        "repeated_documents_frac": 1 - len(np.unique(all_hashes)) / len(all_hashes),
        "val_documents_in_train_frac": float(in_train.mean()),
        "val_tokens_in_train_frac": float(val_lengths[in_train].sum() / max(1, val_lengths.sum())),
    }


def _rule_in_words(rule: SplitRule) -> dict[str, object]:
    if isinstance(rule, AtCharacter):
        return {"how": "one document, cut before a character", "character": rule.place}
    if isinstance(rule, ByHash):
        return {"how": "by the document's hash", "val_frac": rule.val_frac}
    how = "few documents, chosen in the order of their hashes to fit the share"
    return {"how": how, "documents": len(rule.val_keys)}
