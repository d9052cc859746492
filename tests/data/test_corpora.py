"""Corpora that have a name."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import types
import urllib.error
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import nanolens
from nanolens.data import corpora
from nanolens.data import corpora as hub
from nanolens.data.corpora import NAMED_CORPORA, Download, fetch, find_corpus, pydocs_as_jsonl
from nanolens.data.store import open_dataset
from nanolens.errors import UserError
from nanolens.show.words import say


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("NANOLENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NANOLENS_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


@pytest.fixture
def offline(monkeypatch) -> None:
    def refuse(*_, **__):
        raise urllib.error.URLError("no network here")

    monkeypatch.setattr(corpora.urllib.request, "urlopen", refuse)


# --- pydocs


@pytest.fixture(scope="module")
def pydocs() -> bytes:
    return pydocs_as_jsonl()


def test_the_built_in_corpus_is_large_enough_plain_and_mostly_words(pydocs: bytes):
    documents = [json.loads(line)["text"] for line in pydocs.splitlines()]
    text = "\n".join(documents)
    assert len(text) >= 1_000_000 and len(documents) > 200
    assert text.isascii() and len(set(text)) < 100
    assert sum(c.isalpha() or c == " " for c in text) / len(text) > 0.8
    assert "the" in text.split()[:200]
    paragraphs = [" ".join(p.split()) for document in documents for p in document.split("\n\n")]
    long = [p for p in paragraphs if len(p) > 40]
    assert len(set(long)) == len(long), "no paragraph twice: val would know it from train"


def test_it_is_the_same_in_another_process_and_making_it_imports_nothing_that_it_reads(pydocs: bytes):
    code = """
import hashlib, sys
from nanolens.data.corpora import pydocs_as_jsonl
print(hashlib.sha256(pydocs_as_jsonl()).hexdigest(), *({"turtle", "this", "antigravity", "doctest"} & set(sys.modules)))
"""
    found = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONHASHSEED": "7", "PATH": ""},
    ).stdout
    assert found.split() == [hashlib.sha256(pydocs).hexdigest()]


def test_it_opens_without_network_and_the_second_time_at_once(offline):
    first = open_dataset("pydocs")
    again = open_dataset("pydocs")
    assert again.fingerprint == first.fingerprint and first.tokenizer.kind == "char"
    assert 0.05 < len(first.val) / len(first.train) < 0.25
    assert first.facts["val_documents_in_train_frac"] == 0
    assert "\n" in first.tokenizer.characters and first.name == "pydocs"


# --- downloads


def small(url: str = "https://example.org/x.txt", payload: bytes = b"some text " * 100) -> tuple[Download, bytes]:
    return Download(url, "x.txt", hashlib.sha256(payload).hexdigest(), len(payload)), payload


def test_the_folder_of_the_user_comes_before_the_cache_and_the_network(
    empty_cache: Path, offline, monkeypatch, tmp_path: Path
):
    download, payload = small()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "x.txt").write_bytes(payload)
    monkeypatch.setenv("NANOLENS_DATA", str(mine))
    assert corpora._downloaded(download, "x", lambda *_: None) == mine / "x.txt"
    (mine / "x.txt").write_bytes(b"something else")  # not what it should be: not used
    (empty_cache / "corpora").mkdir(parents=True)
    (empty_cache / "corpora" / "x.txt").write_bytes(payload)
    assert corpora._downloaded(download, "x", lambda *_: None) == empty_cache / "corpora" / "x.txt"


def test_offline_says_what_to_do(empty_cache: Path, offline):
    with pytest.raises(UserError) as caught:
        open_dataset("shakespeare_char")
    (found,) = caught.value.faults
    assert say(found.what) == "shakespeare_char is not on this machine and could not be downloaded: no network here"
    assert "tinyshakespeare.txt" in say(found.fix) and "NANOLENS_DATA" in say(found.fix) and "pydocs" in say(found.fix)


def test_a_download_is_checked_and_kept(empty_cache: Path, monkeypatch):
    download, payload = small()
    calls = []
    monkeypatch.setattr(
        corpora.urllib.request, "urlopen", lambda url, timeout: calls.append(url) or io.BytesIO(payload)
    )
    told = []
    path = corpora._downloaded(download, "x", lambda *at: told.append(at))
    assert path.read_bytes() == payload and told[-1] == (len(payload), len(payload))
    corpora._downloaded(download, "x", lambda *_: None)
    assert calls == [download.url], "fetched once"


@pytest.mark.parametrize("arrives", [b"<html>please log in</html>", b"x" * 10_000_000, b""])
def test_a_download_that_is_something_else_is_refused_and_not_kept(empty_cache: Path, monkeypatch, arrives: bytes):
    download, _ = small()
    monkeypatch.setattr(corpora.urllib.request, "urlopen", lambda url, timeout: io.BytesIO(arrives))
    with pytest.raises(UserError, match="the download is not the expected file"):
        corpora._downloaded(download, "x", lambda *_: None)
    assert list((empty_cache / "corpora").iterdir()) == []


def test_shakespeare_is_nanogpts(empty_cache: Path, shakespeare: Path, monkeypatch):
    monkeypatch.setenv("NANOLENS_DATA", str(shakespeare.parent))
    char, bpe = open_dataset("shakespeare-char"), open_dataset("shakespeare")
    assert (len(char.train), len(char.val), char.vocab_size) == (1_003_854, 111_540, 65)
    assert (len(bpe.train), len(bpe.val), bpe.vocab_size) == (301_966, 36_059, 50_257)
    assert char.facts["bigram_nats"] == pytest.approx(2.45, abs=0.01)
    monkeypatch.delenv("NANOLENS_DATA")
    assert open_dataset("shakespeare_char").fingerprint == char.fingerprint, "prepared once, it needs its text no more"


def test_names_are_found_with_dashes_or_underscores():
    assert find_corpus("fineweb_edu") is find_corpus("fineweb-edu") is NAMED_CORPORA["fineweb-edu"]
    assert find_corpus("Shakespeare-Char") is NAMED_CORPORA["shakespeare_char"]
    assert find_corpus("nothing") is None


# --- the hub


class FakeHub(types.ModuleType):
    """As much of huggingface_hub as is used, over a folder."""

    def __init__(self, files: dict[str, bytes], damaged: str = "", revision: str = "main"):
        super().__init__("huggingface_hub")
        self.files, self.damaged, self.revision, self.fetched = files, damaged, revision, []
        self.errors = types.SimpleNamespace(RevisionNotFoundError=type("RevisionNotFoundError", (Exception,), {}))

    def HfApi(self):
        return self

    def list_repo_files(self, repository, repo_type, revision):
        if revision != self.revision:
            raise self.errors.RevisionNotFoundError
        return [*self.files, "README.md"]

    def get_paths_info(self, repository, paths, repo_type, revision):
        made = []
        for path in paths:
            lfs = types.SimpleNamespace(sha256=hashlib.sha256(self.files[path]).hexdigest())
            made.append(types.SimpleNamespace(path=path, size=len(self.files[path]), lfs=lfs))
        return made

    def hf_hub_download(self, repository, path, repo_type, revision, local_dir):
        self.fetched.append(path)
        target = Path(local_dir) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        payload = self.files[path]
        target.write_bytes(payload[:-1] + b"?" if path == self.damaged else payload)


def shard(texts: list[str]) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), sink)
    return sink.getvalue()


SHARDS = {f"sample/10BT/{n:03}_00000.parquet": shard([f"page {n} {m} " * 20 for m in range(30)]) for n in range(3)}


def test_shards_are_fetched_checked_prepared_and_not_fetched_again(empty_cache: Path, monkeypatch):
    fake = FakeHub(SHARDS | {"data/other.parquet": b""})
    monkeypatch.setattr(hub, "require", lambda module, extra: fake)
    found = fetch(NAMED_CORPORA["fineweb-edu"], shards=2)
    assert [path.name for path in found] == ["000_00000.parquet", "001_00000.parquet"]
    assert len(fetch(NAMED_CORPORA["fineweb-edu"])) == 3
    assert fake.fetched == sorted(SHARDS), "each once"
    dataset = open_dataset("fineweb-edu")
    assert dataset.facts["documents"] == 90 and dataset.tokenizer.kind == "gpt2"
    monkeypatch.setattr(hub, "require", lambda module, extra: pytest.fail("asked the hub again"))
    assert open_dataset("fineweb-edu").fingerprint == dataset.fingerprint


def test_a_damaged_shard_is_refused_and_fetched_anew(empty_cache: Path, monkeypatch):
    fake = FakeHub(SHARDS, damaged="sample/10BT/001_00000.parquet")
    monkeypatch.setattr(hub, "require", lambda module, extra: fake)
    with pytest.raises(UserError, match=r"001_00000.parquet was damaged in download"):
        fetch(NAMED_CORPORA["fineweb-edu"])
    fake.damaged = ""
    assert len(fetch(NAMED_CORPORA["fineweb-edu"])) == 3
    assert fake.fetched == [
        "sample/10BT/000_00000.parquet",
        "sample/10BT/001_00000.parquet",
        "sample/10BT/001_00000.parquet",
        "sample/10BT/002_00000.parquet",
    ]


def test_a_dataset_in_another_form_is_taken_from_the_hubs_parquet_copy(empty_cache: Path, monkeypatch):
    fake = FakeHub({"plain_text/train/0000.parquet": shard(["a"])}, revision=hub.CONVERTED)
    monkeypatch.setattr(hub, "require", lambda module, extra: fake)
    assert [path.name for path in fetch(NAMED_CORPORA["openwebtext"])] == ["0000.parquet"]


def test_the_users_own_parquet_files_come_first(empty_cache: Path, monkeypatch, tmp_path: Path):
    own = tmp_path / "mine" / "fineweb-edu"
    own.mkdir(parents=True)
    (own / "a.parquet").write_bytes(SHARDS["sample/10BT/000_00000.parquet"])
    monkeypatch.setenv("NANOLENS_DATA", str(tmp_path / "mine"))
    monkeypatch.setattr(hub, "require", lambda module, extra: pytest.fail("asked the hub"))
    assert fetch(NAMED_CORPORA["fineweb-edu"]) == [own / "a.parquet"]


def test_a_hub_that_cannot_be_reached_says_what_to_do(empty_cache: Path, monkeypatch):
    fake = FakeHub({})
    monkeypatch.setattr(fake, "list_repo_files", lambda *_, **__: (_ for _ in ()).throw(ConnectionError("no route")))
    monkeypatch.setattr(hub, "require", lambda module, extra: fake)
    with pytest.raises(UserError) as caught:
        fetch(NAMED_CORPORA["openwebtext"])
    assert "no route" in say(caught.value.faults[0].what) and "$NANOLENS_DATA/openwebtext" in say(
        caught.value.faults[0].fix
    )
    assert np.all([corpus.name for corpus in NAMED_CORPORA.values()])


@pytest.mark.parametrize("path", ["openwebtext/", "./fineweb-edu"])
def test_a_path_that_is_missing_downloads_nothing(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nanolens.data.corpora.fetch", lambda *_: pytest.fail("a download was begun"))
    with pytest.raises(UserError, match="no such file or folder"):
        nanolens.prepare(path, out="out")
