"""Preparing one dataset on many machines: each takes some of the files (`--part=3/16`), one joins them (`--part=join`).

Parts lie beside the dataset in `NAME.parts/03-of-16`, each sealed with a manifest. A document's split depends on
nothing but the document, and files keep their order, so the joined dataset is byte for byte that of one machine."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nanolens import files
from nanolens.data.prepare.documents import FEW_DOCUMENTS, ByHash, fits
from nanolens.data.prepare.pipeline import SPLITS, EncodeResult, PrepareJob
from nanolens.data.prepare.readers import SourceFile
from nanolens.data.token_files import INDEX, documents_file, tokens_file
from nanolens.errors import fault
from nanolens.message import msg

ABOUT, COUNTS, FEW = "part.json", "counts.npy", "few.npy"

PartFacts = dict[str, Any]  # part.json: what has to be the same in all parts (under "of"), and what each found


@dataclass(frozen=True)
class PartOf:
    number: int  # from 1
    count: int

    @property
    def name(self) -> str:
        return f"{self.number:0{len(str(self.count))}d}-of-{self.count}"


def asked_part(text: str) -> PartOf | None:
    """`3/16`; None for `join`."""
    if text == "join":
        return None
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        one, last, end = "--part=1/16", "--part=16/16", "--part=join"
        fix = msg("use {one:code} to {last:code} on the machines, and {join:code} at the end", one, last, end)
        raise fault(msg("{text:code} is not a part", text), where=f"--part={text}", fix=fix)
    return PartOf(int(found[1]), int(found[2]))


def parts_folder(out: Path) -> Path:
    return out.with_name(out.name + ".parts")


def files_of(found: list[SourceFile], part: PartOf) -> list[SourceFile]:
    """Neighbouring files with about a part's share of the bytes; every file is in one part, and every part has one."""
    have, count = len(found), part.count
    if have < count:
        what = msg(
            "there are {files:count file|files} for {parts:count part|parts}, and each file is read by one machine",
            have,
            count,
        )
        fix = msg("use {option:code} or fewer, or split the text into more files", f"--part=1/{have}")
        raise fault(what, fix=fix)
    before = np.concatenate([[0], np.cumsum([file.bytes for file in found])])
    bounds = [0]
    for number in range(1, count):
        nearest = int(np.abs(before - before[-1] * number / count).argmin())
        bounds.append(min(max(nearest, bounds[-1] + 1), have - (count - number)))
    bounds.append(have)
    return found[bounds[part.number - 1] : bounds[part.number]]


def require_parts_possible(job: PrepareJob) -> None:
    if job.dedup != "none":
        what = msg("duplicate documents can only be found by a machine that sees all documents")
        raise fault(what, where=f"--dedup={job.dedup}", fix=msg("leave it out, or prepare without parts"))
    if len(job.found) == 1:
        raise fault(msg("a single file cannot be prepared in parts"), fix=msg("leave out {option:code}", "--part"))


def _identity(job: PrepareJob, tokenizer: str) -> dict[str, object]:
    sources = [[file.path.name, file.bytes] for file in job.found]
    return {"settings": job.settings, "sources": sources, "tokenizer": tokenizer}


def write_part(folder: Path, job: PrepareJob, tokenizer: str, part: PartOf, result: EncodeResult) -> PartFacts:
    """Puts beside the token files what is known of them. `tokenizer` is its fingerprint."""
    assert isinstance(result.rule, ByHash)
    damaged = result.damaged
    facts: PartFacts = {
        "of": {
            **_identity(job, tokenizer),
            "count": part.count,
            "val_frac": result.rule.val_frac,
            "end_of_document": result.end_of_document,
        },
        "number": part.number,
        "documents": result.documents,
        "text_bytes": result.text_bytes,
        "tokens": result.tokens,
        "documents_of": result.documents_of,
        "sha256": result.source_digests,
        "is_few": result.few is not None,
        "damaged": {"count": damaged.count, "empty": damaged.empty, "named": damaged.named},
    }
    (folder / ABOUT).write_text(json.dumps(facts, indent=1))
    np.save(folder / COUNTS, result.counts)
    if result.few is not None:
        few = [np.stack([keys, sizes.astype(np.uint64)]) for keys, sizes in result.few]
        np.save(folder / FEW, np.concatenate([np.zeros((2, 0), np.uint64), *few], axis=1))
    return facts


def whole_parts(out: Path, job: PrepareJob, tokenizer: str) -> list[tuple[Path, PartFacts]]:
    """All parts, in order, verified, and made from these files in this way."""
    folder = parts_folder(out)
    there = sorted(path for path in folder.glob("*-of-*") if (path / ABOUT).is_file())
    if not there:
        fix = msg("create them first, each with {option:code} and otherwise the same options", "--part=1/16")
        raise fault(msg("there are no parts in {folder:code}", str(folder)), fix=fix)
    about: dict[Path, PartFacts] = {path: json.loads((path / ABOUT).read_bytes()) for path in there}
    count = max(facts["of"]["count"] for facts in about.values())
    by_number = {facts["number"]: (path, facts) for path, facts in about.items() if facts["of"]["count"] == count}
    missing = [number for number in range(1, count + 1) if number not in by_number]
    if missing:
        what = msg("of {count:count part|parts}, these are missing: {missing:count}", count, missing)
        fix = msg("create them with {option:code}, and join again", f"--part={missing[0]}/{count}")
        raise fault(what, where=str(folder), fix=fix)
    chosen = [by_number[number] for number in range(1, count + 1)]
    for path, facts in chosen:
        if facts["of"] != {**chosen[0][1]["of"], **_identity(job, tokenizer)}:
            what = msg("this part was created from other files or with other options")
            raise fault(what, where=str(path), fix=msg("create it again with this command's files and options"))
        if damage := files.damage(path):
            name, problem = damage[0].file, damage[0].problem
            what = msg("{file:code} of this part has changed since it was written ({problem})", name, problem)
            raise fault(what, where=str(path), fix=msg("create this part again"))
    return chosen


def join(folder: Path, parts: list[tuple[Path, PartFacts]]) -> EncodeResult:
    shared = parts[0][1]["of"]
    rule = ByHash(shared["val_frac"])
    whole = EncodeResult(rule, shared["end_of_document"])
    whole.counts = sum((np.load(path / COUNTS) for path, _ in parts), start=np.zeros(1, np.int64))
    for path, facts in parts:
        whole.documents += facts["documents"]
        for split in SPLITS:
            with open(tokens_file(path, split), "rb") as source, open(tokens_file(folder, split), "ab") as target:
                shutil.copyfileobj(source, target, 1 << 22)
            index = np.fromfile(documents_file(path, split), dtype=INDEX)
            index["end"] += np.uint64(whole.tokens[split])
            with open(documents_file(folder, split), "ab") as target:
                target.write(index.tobytes())
            whole.text_bytes[split] += facts["text_bytes"][split]
            whole.tokens[split] += facts["tokens"][split]
            whole.documents_of[split] += facts["documents_of"][split]
        damaged = whole.damaged
        damaged.count += facts["damaged"]["count"]
        damaged.empty += facts["damaged"]["empty"]
        damaged.named += facts["damaged"]["named"][: damaged.most_named - len(damaged.named)]
        whole.source_digests += facts["sha256"]
        if whole.few is not None and facts["is_few"] and whole.documents <= FEW_DOCUMENTS:
            keys, sizes = np.load(path / FEW)
            whole.few.append((keys, sizes.astype(np.int64)))
        else:
            whole.few = None
    if whole.few and not fits(whole.text_bytes["val"], sum(whole.text_bytes.values()), rule.val_frac):
        what = msg("there are too few documents ({count:count}) to prepare them in parts", whole.documents)
        raise fault(what, fix=msg("prepare them on one machine, without {option:code}", "--part"))
    return whole
