"""nanolens prepare SOURCE... [--tokenizer=char|gpt2|bpe] [--vocab_size=N] [--out=DIR]"""

from __future__ import annotations

import signal
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanolens.cli.arguments import Parser
from nanolens.message import Message, msg

if TYPE_CHECKING:
    from rich.progress import TaskID

    from nanolens.data.corpora import Corpus
    from nanolens.data.prepare import Prepared, Progress, Told

HELP = msg("turn text into tokens: text files, .jsonl, .parquet, folders of them, standard input, or a named corpus")


def arguments(parser: Parser) -> None:
    from nanolens.data.corpora import CORPORA

    parser.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help=msg("files, folders, - for standard input, or one of {corpora:code}", corpora=list(CORPORA)),
    )
    parser.add_argument(
        "--tokenizer",
        default="auto",
        metavar="char|gpt2|bpe|bpe-gpt2|DIR",
        help=msg(
            "characters, GPT-2's tokens, a BPE trained on this text (bpe-gpt2: split as GPT-2 does, for llama.cpp), or the one in a folder;"
            " auto: by the size of the text"
        ),
    )
    parser.add_argument("--vocab_size", type=int, metavar="N", help=msg("tokens of a BPE of your own; 4,096 if not given"))
    parser.add_argument("--out", type=Path, metavar="DIR", help=msg("where to; data/ and the name of the source if not given"))
    parser.add_argument("--text_column", metavar="NAME", help=msg("the column or key that holds the text; found if not given"))
    parser.add_argument(
        "--dedup", choices=("none", "exact", "near"), default="none", help=msg("leave out documents that were there before")
    )
    parser.add_argument(
        "--val_frac", type=float, metavar="F", help=msg("share of the documents for validation; a tenth, less of a large corpus")
    )
    parser.add_argument("--shards", type=int, metavar="N", help=msg("take only the first files of a large named corpus"))
    parser.add_argument("--workers", type=int, metavar="N", help=msg("threads or processes that encode; as many as cores if not given"))
    parser.add_argument(
        "--part", metavar="K/N|join", help=msg("on many machines: only part K of N of the files; join: put all parts together")
    )
    parser.add_argument("--overwrite", action="store_true", help=msg("replace another dataset in the folder"))


def run(given: Namespace) -> int:
    from nanolens.data.prepare import prepare

    with _stoppable(), shown_progress(given.lang) as told:
        sources, corpus = _sources(given, told)
        prepared = prepare(
            sources,
            corpus.tokenizer if corpus and given.tokenizer == "auto" else given.tokenizer,
            given.out or Path("data") / _name(given.sources, corpus),
            vocab_size=given.vocab_size,
            text_column=given.text_column,
            dedup=given.dedup,
            val_frac=corpus.val_frac if corpus and given.val_frac is None else given.val_frac,
            workers=given.workers,
            overwrite=given.overwrite,
            name=_name(given.sources, corpus),
            progress=told,
            part=given.part,
        )
    from nanolens.show.words import say

    if given.part not in (None, "join"):
        print(say(_part_summary(prepared, given.part), given.lang))
        return 0
    print("\n".join(say(line, given.lang) for line in summary(prepared)))
    return 0


def _sources(given: Namespace, told: Told) -> tuple[list[Any], Corpus | None]:
    """What to read; a name that is also a file or folder here means the file or folder."""
    from nanolens.data.corpora import fetch, find_corpus
    from nanolens.data.prepare import Progress

    name = given.sources[0]
    corpus = find_corpus(name) if len(given.sources) == 1 and not Path(name).exists() else None
    if corpus is None:
        return given.sources, None
    return fetch(corpus, lambda done, total: told(Progress("download", done, total)), given.shards), corpus


def _name(sources: list[str], corpus: Corpus | None) -> str:
    if corpus is not None:
        return corpus.name
    first = Path(sources[0])
    name = first.resolve().name if first.is_dir() else first.name.split(".")[0]
    return name if name not in ("", "-") else "stdin"


# --- what is said at the end


def _part_summary(prepared: Prepared, part: str) -> Message:
    return msg(
        "{folder:code} is made: part {part:code}, {tokens:count} tokens; when all parts are there, the same command with {join:code} puts "
        "them together",
        folder=str(prepared.folder), part=part, tokens=sum(prepared.about["tokens"].values()), join="--part=join",
    )  # fmt: skip


def summary(prepared: Prepared) -> Iterator[Message]:
    about, facts = prepared.about, prepared.about["facts"]
    yield _headline(prepared)
    for split in ("train", "val"):
        yield msg(
            "  {split:code}: {tokens:count} tokens, documents: {documents:count}",
            split=split,
            tokens=about[split]["tokens"],
            documents=about[split]["documents"],
        )
    yield msg(
        "  tokenizer {kind:code}, {size:count} tokens, of which the text uses {used:count}; {bytes:number} bytes a token",
        kind=about["tokenizer"]["kind"],
        size=about["vocab_size"],
        used=facts["vocab_used"],
        bytes=facts["bytes_per_token"],
    )
    yield msg("  loss of a model that knows only how frequent each token is: {unigram:nats} nats", unigram=facts["unigram_nats"])
    if facts["bigram_nats"] is not None:
        yield msg("  and of one that also sees the token before: {bigram:nats} nats", bigram=facts["bigram_nats"])
    yield from _duplicates(about)
    yield from _troubles(about)
    for choice in about["chosen"]:
        yield msg("  chosen: {what:code} = {value:code}, because {because}", **choice)
    yield msg("next: {command:code}", command=f"nanolens train --dataset={_as_dataset(prepared.folder)}")


def _headline(prepared: Prepared) -> Message:
    about = prepared.about
    if prepared.was_ready:
        return msg("{folder:code} was ready: the sources and settings are the same", folder=str(prepared.folder))
    size = about["sources"]["bytes"]
    return msg(
        "{folder:code} is made: {size:bytes} read in {took:seconds}, {rate:bytes} a second; files: {files:count}",
        folder=str(prepared.folder),
        size=size,
        files=about["sources"]["files"],
        took=prepared.took_s,
        rate=size / prepared.took_s,
    )


def _duplicates(about: Any) -> Iterator[Message]:
    facts, left_out = about["facts"], about["left_out_as_duplicates"]
    if left_out["documents"]:
        yield msg(
            "  {count:count} documents ({size:bytes}) were there before and are left out",
            count=left_out["documents"],
            size=left_out["bytes"],
        )
    if facts["documents"] > 1:
        yield msg(
            "  repeated documents: {repeated:share}; val documents that are also in train: {leaked:share}",
            repeated=facts["repeated_documents_frac"],
            leaked=facts["val_documents_in_train_frac"],
        )


def _troubles(about: Any) -> Iterator[Message]:
    damaged = about["damaged"]
    if damaged["count"]:
        yield msg("  {count:count} damaged rows or files were left out:", count=damaged["count"])
        for name in damaged["named"][:5]:
            yield msg("    {name}", name=name)
        if damaged["count"] > 5:
            yield msg("    and more; {file:code} names them", file="dataset.json")
    if about["empty_documents"]:
        yield msg("  {count:count} documents had no text", count=about["empty_documents"])
    for split in ("train", "val"):
        if about[split]["tokens"] < 2:
            yield msg("  the {split} split is too small to be used", split=split)


def _as_dataset(folder: Path) -> str:
    """As short as `train` finds it."""
    return folder.name if folder.parent == Path("data") else str(folder)


# --- while it goes on


@contextmanager
def shown_progress(lang: str) -> Iterator[Told]:
    """A bar with rate and time left on a terminal, a line now and then elsewhere; both on stderr."""
    if sys.stderr.isatty():
        with _Bar(lang) as bar:
            yield bar
    else:
        yield _Lines(lang)


def _stage(progress: Progress) -> Message:
    return {"download": msg("fetching"), "vocabulary": msg("vocabulary")}.get(progress.stage, msg("encoding"))


class _Bar:
    def __init__(self, lang: str):
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self._bars = Bars(*columns, TextColumn("{task.fields[found]}"), console=Console(stderr=True), transient=True)
        self._lang = lang
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> _Bar:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def __call__(self, progress: Progress) -> None:
        from nanolens.show.words import say

        if progress.stage not in self._tasks:
            self._tasks[progress.stage] = self._bars.add_task(
                say(_stage(progress), self._lang), total=progress.total_bytes or None, found=""
            )
        found = say(_found(progress), self._lang) if progress.tokens else ""
        self._bars.update(self._tasks[progress.stage], completed=progress.done_bytes, found=found)


def _found(progress: Progress) -> Message:
    return msg("{documents:count} documents, {tokens:tokens} tokens", documents=progress.documents, tokens=progress.tokens)


class _Lines:
    """At most one line each ten seconds: a short job prints nothing."""

    EVERY_S = 10.0

    def __init__(self, lang: str):
        self._lang = lang
        self._begun_at_s: dict[str, float] = {}
        self._said_at_s = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        begun = self._begun_at_s.setdefault(progress.stage, now)
        if now - self._said_at_s < self.EVERY_S or not progress.done_bytes:
            return
        from nanolens.show.words import say

        self._said_at_s = now
        rate = progress.done_bytes / max(now - begun, 1e-9)
        line = msg(
            "{stage}: {done:bytes} of {total:bytes}, {rate:bytes} a second, {left:seconds} to go",
            stage=_stage(progress),
            done=progress.done_bytes,
            total=progress.total_bytes,
            rate=rate,
            left=(progress.total_bytes - progress.done_bytes) / rate,
        )
        print(say(line, self._lang), file=sys.stderr, flush=True)


@contextmanager
def _stoppable() -> Iterator[None]:
    """A polite kill ends as Ctrl-C does: what was half written is removed on the way out."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
