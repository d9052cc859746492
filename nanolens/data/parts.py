"""Preparing one dataset on many machines: each takes some of the files (`--part=3/16`), and one puts the parts together (`--part=join`).

Parts lie beside the dataset in `NAME.parts/03-of-16`, each sealed with a manifest. A document's split depends on nothing but the document,
and files keep their order, so the joined dataset is byte for byte what one machine would have made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nanolens import files
from nanolens.data.documents import Damaged
from nanolens.data.job import Job
from nanolens.data.pipeline import Outcome
from nanolens.data.sidecar import INDEX, documents_file, tokens_file
from nanolens.data.sources import SourceFile
from nanolens.data.split import FEW_DOCUMENTS, ByHash, fits
from nanolens.errors import fault
from nanolens.message import msg

ABOUT = "part.json"
COUNTS, FEW = "counts.npy", "few.npy"
SPLITS = ("train", "val")


@dataclass(frozen=True)
class PartOf:
    number: int  # from 1
    count: int

    @property
    def name(self) -> str:
        width = len(str(self.count))
        return f"{self.number:0{width}d}-of-{self.count}"


@dataclass(frozen=True)
class Encoded:
    """What the tokens were made of; of one part, or of all."""

    outcome: Outcome
    counts: np.ndarray
    tokens: dict[str, int]
    documents: dict[str, int]
    damaged: Damaged
    digests: list[str]
    end_of_document: int | None


def asked_part(text: str) -> PartOf | None:
    """`3/16`; None for `join`."""
    if text == "join":
        return None
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise fault(
            msg("{text:code} names no part", text=text),
            where=msg("{option:code}", option=f"--part={text}"),
            fix=msg("write {one:code} to {last:code} on the machines, and {join:code} at the end", one="--part=1/16", last="--part=16/16",
                    join="--part=join"),
        )  # fmt: skip
    return PartOf(int(found[1]), int(found[2]))


def parts_folder(out: Path) -> Path:
    return out.with_name(out.name + ".parts")


def files_of(found: list[SourceFile], part: PartOf) -> list[SourceFile]:
    """A run of neighbouring files with about its share of the bytes; every file is in exactly one part, and every part has one."""
    if len(found) < part.count:
        raise fault(
            msg(
                "there are {files:count} files for {parts:count} parts, and a file is read by one machine",
                files=len(found), parts=part.count,
            ),
            fix=msg("use {option:code} or fewer, or cut the text into more files", option=f"--part=1/{len(found)}"),
        )  # fmt: skip
    return found[_bounds(found, part.count)[part.number - 1] : _bounds(found, part.count)[part.number]]


def _bounds(found: list[SourceFile], count: int) -> list[int]:
    before = np.concatenate([[0], np.cumsum([file.bytes for file in found])])
    bounds = [0]
    for number in range(1, count):
        nearest = int(np.abs(before - before[-1] * number / count).argmin())
        bounds.append(min(max(nearest, bounds[-1] + 1), len(found) - (count - number)))
    return [*bounds, len(found)]


def require_parts_possible(job: Job) -> None:
    if job.dedup != "none":
        raise fault(
            msg("documents that were there before are found only by a machine that sees all of them"),
            where=msg("{option:code}", option=f"--dedup={job.dedup}"),
            fix=msg("leave it out, or prepare without parts"),
        )
    if len(job.found) == 1:
        raise fault(msg("a single file cannot be prepared in parts"), fix=msg("leave out {option:code}", option="--part"))


def facts_of(job: Job, tokenizer: str, part: PartOf, rule: ByHash, encoded: Encoded) -> dict[str, Any]:
    """What has to be the same in all parts, and what each found."""
    outcome, damaged = encoded.outcome, encoded.damaged
    return {
        "of": {
            "settings": job.settings, "sources": [[file.path.name, file.bytes] for file in job.found], "tokenizer": tokenizer,
            "count": part.count, "val_frac": rule.val_frac, "end_of_document": encoded.end_of_document,
        },
        "number": part.number, "documents": outcome.documents, "text_bytes": outcome.text_bytes, "tokens": encoded.tokens,
        "documents_of": encoded.documents, "sha256": encoded.digests, "is_few": outcome.few_keys is not None,
        "damaged": {"count": damaged.count, "empty": damaged.empty, "named": damaged.named},
    }  # fmt: skip


def write_part(folder: Path, facts: Mapping[str, Any], encoded: Encoded) -> None:
    (folder / ABOUT).write_text(json.dumps(facts, indent=1))
    np.save(folder / COUNTS, encoded.counts)
    if encoded.outcome.few_keys is not None:
        keys = np.concatenate([np.zeros(0, np.uint64), *encoded.outcome.few_keys]).astype(np.uint64)
        sizes = np.concatenate([np.zeros(0, np.int64), *encoded.outcome.few_sizes]).astype(np.uint64)
        np.save(folder / FEW, np.stack([keys, sizes]))


def whole_parts(out: Path, job: Job, tokenizer: str) -> list[tuple[Path, dict[str, Any]]]:
    """All parts, in order, verified, and made from these files in this way; else one message that says what is missing."""
    folder = parts_folder(out)
    there = sorted(path for path in folder.glob("*-of-*") if (path / ABOUT).is_file())
    if not there:
        raise fault(
            msg("there are no parts in {folder:code}", folder=str(folder)),
            fix=msg("make them first, each with {option:code} and the same other options", option="--part=1/16"),
        )
    about = {path: json.loads((path / ABOUT).read_bytes()) for path in there}
    count = max(facts["of"]["count"] for facts in about.values())
    by_number = {facts["number"]: path for path, facts in about.items() if facts["of"]["count"] == count}
    missing = [number for number in range(1, count + 1) if number not in by_number]
    if missing:
        raise fault(
            msg("of {count:count} parts these are missing: {missing:count}", count=count, missing=missing),
            where=msg("{folder:code}", folder=str(folder)),
            fix=msg("make them with {option:code}, and join again", option=f"--part={missing[0]}/{count}"),
        )
    chosen = [(by_number[number], about[by_number[number]]) for number in range(1, count + 1)]
    wanted = {"settings": job.settings, "sources": [[file.path.name, file.bytes] for file in job.found], "tokenizer": tokenizer}
    for path, facts in chosen:
        if any(facts["of"][key] != json.loads(json.dumps(value)) for key, value in wanted.items()) or facts["of"] != chosen[0][1]["of"]:
            raise fault(
                msg("this part was made from other files or with other options"),
                where=msg("{folder:code}", folder=str(path)),
                fix=msg("make it again with the files and options of this call"),
            )
        if damage := files.damage(path):
            raise fault(
                msg("{file:code} of this part is not as it was written ({problem})", file=damage[0].file, problem=damage[0].problem),
                where=msg("{folder:code}", folder=str(path)),
                fix=msg("make this part again"),
            )
    return chosen


def join(folder: Path, parts: list[tuple[Path, dict[str, Any]]]) -> tuple[Encoded, ByHash]:
    """Puts the token files and document indexes together in `folder`."""
    outcome, damaged = Outcome(), Damaged()
    counts = sum((np.load(path / COUNTS) for path, _ in parts), start=np.zeros(1, np.int64))
    tokens = dict.fromkeys(SPLITS, 0)
    documents = dict.fromkeys(SPLITS, 0)
    few_keys: list[np.ndarray] | None = []
    for path, facts in parts:
        outcome.documents += facts["documents"]
        for split in SPLITS:
            _append(tokens_file(path, split), tokens_file(folder, split))
            index = np.fromfile(documents_file(path, split), dtype=INDEX)
            index["end"] += np.uint64(tokens[split])
            with open(documents_file(folder, split), "ab") as file:
                file.write(index.tobytes())
            outcome.text_bytes[split] += facts["text_bytes"][split]
            tokens[split] += facts["tokens"][split]
            documents[split] += facts["documents_of"][split]
        damaged.count += facts["damaged"]["count"]
        damaged.empty += facts["damaged"]["empty"]
        damaged.named += facts["damaged"]["named"][: damaged.most_named - len(damaged.named)]
        if few_keys is not None and facts["is_few"] and outcome.documents <= FEW_DOCUMENTS:
            keys, sizes = np.load(path / FEW)
            few_keys.append(keys)
            outcome.few_sizes.append(sizes.astype(np.int64))
        else:
            few_keys, outcome.few_sizes = None, []
    outcome.few_keys = few_keys
    rule = ByHash(parts[0][1]["of"]["val_frac"])
    if few_keys and not fits(outcome.text_bytes["val"], sum(outcome.text_bytes.values()), rule.val_frac):
        raise fault(
            msg("the documents are so few ({count:count}) that they have to be split by hand-picking", count=outcome.documents),
            fix=msg("prepare them on one machine, without {option:code}", option="--part"),
        )
    digests = [digest for _, facts in parts for digest in facts["sha256"]]
    return Encoded(outcome, counts, tokens, documents, damaged, digests, parts[0][1]["of"]["end_of_document"]), rule


def _append(source: Path, target: Path) -> None:
    with open(source, "rb") as one, open(target, "ab") as other:
        for block in _blocks(one):
            other.write(block)


def _blocks(file: Any) -> Iterator[bytes]:
    while block := file.read(1 << 22):
        yield block
