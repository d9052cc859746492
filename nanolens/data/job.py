"""One request to `prepare`: all that decides what is made, and how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanolens.data.compressed import COMPRESSED
from nanolens.data.dedup import Dedup
from nanolens.data.sidecar import FORMAT
from nanolens.data.sources import SourceFile
from nanolens.data.tokenizers import KINDS, Tokenizer, tokenizer_from_files
from nanolens.errors import fault
from nanolens.message import msg

SMALL_CORPUS_BYTES = 16 << 20  # up to here characters are a sensible vocabulary, and few texts are large enough for 50,257 tokens
OWN_BPE = ("bpe", "bpe-gpt2")  # trained on the text: split by our rule, or by GPT-2's
DEFAULT_BPE_SIZE = 4096


@dataclass(frozen=True)
class Progress:
    """How far `prepare` is. `total_bytes` is of the sources on disk."""

    stage: str  # "download", "vocabulary" or "encode"
    done_bytes: int
    total_bytes: int
    documents: int = 0
    tokens: int = 0


Told = Callable[[Progress], None]


@dataclass
class Job:
    """All that decides what is made."""

    found: list[SourceFile]
    given: list[str]
    tokenizer: str | Tokenizer
    vocab_size: int | None
    text_column: str | None
    dedup: Dedup
    val_frac: float | None
    name: str
    told: Told
    chosen: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if isinstance(self.tokenizer, str) and Path(self.tokenizer).is_dir():
            self.tokenizer = tokenizer_from_files(Path(self.tokenizer))
        if self.tokenizer == "auto":
            small = self.bytes <= SMALL_CORPUS_BYTES
            self.tokenizer = "char" if small else "gpt2"
            self.choose(
                "tokenizer", self.tokenizer, f"the sources have {self.bytes:,} bytes; up to {SMALL_CORPUS_BYTES:,} characters do well"
            )
        if not isinstance(self.tokenizer, Tokenizer) and self.tokenizer not in (*KINDS, *OWN_BPE):
            raise fault(
                msg("there is no tokenizer {name:code}", name=self.tokenizer),
                fix=msg("use {kinds:code}, or a folder that holds one", kinds=[*KINDS, OWN_BPE[1]]),
            )
        if self.vocab_size is not None and self.tokenizer not in OWN_BPE:
            raise fault(
                msg("only a BPE of your own has a size to choose; this tokenizer is {kind:code}", kind=str(self.tokenizer)),
                where=msg("--vocab_size={size}", size=self.vocab_size),
                fix=msg("add {option:code}, or leave the size out", option="--tokenizer=bpe"),
            )
        if self.val_frac is not None and not 0 < self.val_frac < 1:
            raise fault(msg("the share for validation must lie between 0 and 1"), where=msg("--val_frac={value}", value=self.val_frac))

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.found)

    @property
    def settings(self) -> dict[str, Any]:
        """What else than the sources decides the result."""
        kind = self.tokenizer.fingerprint if isinstance(self.tokenizer, Tokenizer) else self.tokenizer
        size = (self.vocab_size or DEFAULT_BPE_SIZE) if self.tokenizer in OWN_BPE else None
        return {
            "format": FORMAT,
            "tokenizer": kind,
            "vocab_size": size,
            "text_column": self.text_column,
            "dedup": self.dedup,
            "val_frac": self.val_frac,
        }

    def choose(self, what: str, value: object, because: str) -> None:
        self.chosen.append({"what": what, "value": value, "because": because})


class Counted:
    """Adds up the bytes that were read."""

    def __init__(self, job: Job, stage: str = "encode"):
        self.job, self.stage, self.done, self.total = job, stage, 0, job.bytes

    def __call__(self, read_bytes: int, documents: int = 0, tokens: int = 0) -> None:
        self.done += read_bytes
        self.job.told(Progress(self.stage, min(self.done, self.total), self.total, documents, tokens))


def is_compressed(file: SourceFile) -> bool:
    return file.kind == "parquet" or file.path.suffix in COMPRESSED
