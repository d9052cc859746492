"""Text to token ids and back: characters, GPT-2's BPE, or a byte-level BPE trained on the user's own text.

A tokenizer is saved as one JSON file with its own fingerprint inside, so that a prepared folder or a checkpoint stands alone.
Encoding much text at once is the task of `encoders.py`; what is here is for prompts, samples and checks.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import hashlib
import itertools
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from nanolens.data.gpt2 import END_OF_TEXT, PATTERN, VOCAB_BPE_SHA256, gpt2_ranks
from nanolens.errors import fault
from nanolens.message import msg

TOKENIZER_FILE = "tokenizer.nanolens.json"  # not tokenizer.json: that name belongs to another format
KINDS = ("char", "gpt2", "bpe")


class Tokenizer(ABC):
    kind: ClassVar[str]
    vocab_size: int
    end_of_document: int | None
    """The id that stands after each document, where there are several."""

    @abstractmethod
    def encode(self, text: str) -> list[int]: ...

    @abstractmethod
    def token_bytes(self, token: int) -> bytes:
        """UTF-8 of one token; of a byte-level tokenizer it may be a part of a character."""

    @abstractmethod
    def definition(self) -> dict[str, Any]:
        """All that makes this tokenizer what it is, as JSON values."""

    def decode(self, ids: Iterable[int]) -> str:
        """Bytes that are no UTF-8, as in a sequence cut inside a character, become the replacement character."""
        return b"".join(self.token_bytes(int(token)) for token in ids).decode("utf-8", errors="replace")

    def stream(self) -> StreamDecoder:
        return StreamDecoder(self)

    @property
    def fingerprint(self) -> str:
        return _fingerprint(self.definition())

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

    def unknown(self, text: str):
        strange = next(character for character in text if character not in self.ids)
        return fault(
            msg(
                "the character {character:code} is not among the {count:count} that this data has",
                character=repr(strange),
                count=self.vocab_size,
            ),
            where=msg("{text:code}", text=_around(text, text.index(strange))),
            fix=msg("use only these: {known:code}", known=_listing(self.characters)),
        )

    def token_bytes(self, token: int) -> bytes:
        return self.characters[token].encode("utf-8", errors="surrogatepass")

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.characters[int(token)] for token in ids)

    def definition(self) -> dict[str, Any]:
        return {"kind": self.kind, "characters": self.characters}


class BytePairTokenizer(Tokenizer):
    """Byte-level BPE: any text can be encoded, and decodes to itself. tiktoken does the work."""

    def __init__(self, pattern: str, ranks: Mapping[bytes, int]):
        self.pattern, self.ranks = pattern, dict(ranks)
        self.end_of_document: int = len(self.ranks)
        self.vocab_size = len(self.ranks) + 1

    @cached_property
    def encoding(self):
        import tiktoken

        special = {END_OF_TEXT: self.end_of_document}
        return tiktoken.Encoding(f"nanolens-{self.kind}", pat_str=self.pattern, mergeable_ranks=self.ranks, special_tokens=special)

    def encode(self, text: str) -> list[int]:
        """`<|endoftext|>` in the text is ordinary text: only `prepare` ends a document."""
        ids: list[int] = []
        for part in cut_long_runs(text):
            ids += self.encoding.encode_ordinary(part)
        return ids

    @cached_property
    def _by_id(self) -> list[bytes]:
        return [*sorted(self.ranks, key=self.ranks.__getitem__), b""]

    def token_bytes(self, token: int) -> bytes:
        return self._by_id[token]


class GPT2Tokenizer(BytePairTokenizer):
    """GPT-2's own 50,257 tokens."""

    kind = "gpt2"

    def __init__(self):
        super().__init__(PATTERN, gpt2_ranks())

    def definition(self) -> dict[str, Any]:
        # The vocabulary is a constant of the field and comes with the package; its hash is enough to know that it is the same.
        return {"kind": self.kind, "vocab_bpe_sha256": VOCAB_BPE_SHA256}


class OwnBPETokenizer(BytePairTokenizer):
    """A vocabulary trained on the user's text (`train_bpe.py`)."""

    kind = "bpe"

    def definition(self) -> dict[str, Any]:
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
    """The text in parts that give the same ids as the whole. tiktoken's regex engine dies on a million spaces before a word.

    All spaces but the last of a run before a word are one piece, whether the word follows or the text ends there.
    """
    if len(text) < 50_000:
        return [text]
    cuts = [0, *(run.end() - 1 for run in _LONG_RUN.finditer(text)), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(cuts)]


def tokenizer_from_files(folder: Path) -> Tokenizer:
    """The tokenizer that `to_files` wrote into `folder`."""
    path = folder / TOKENIZER_FILE
    try:
        payload = json.loads(path.read_bytes())
        tokenizer = tokenizer_from_definition(payload)
        if payload.get("fingerprint") != tokenizer.fingerprint:
            raise ValueError("the fingerprint does not match")
    except FileNotFoundError:
        raise fault(
            msg("there is no tokenizer here"),
            where=msg("{path:code}", path=str(folder)),
            fix=msg("prepare the data again, or copy {name:code} from where it was prepared", name=TOKENIZER_FILE),
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise fault(
            msg("the tokenizer file is damaged: {error}", error=str(error)),
            where=msg("{path:code}", path=str(path)),
            fix=msg("prepare the data again, or copy {name:code} from where it was prepared", name=TOKENIZER_FILE),
        ) from None
    return tokenizer


def tokenizer_from_definition(payload: Mapping[str, Any]) -> Tokenizer:
    match payload["kind"]:
        case "char":
            characters = payload["characters"]
            if not all(isinstance(character, str) for character in characters) or len(set(characters)) != len(characters):
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


def _fingerprint(definition: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()[:16]


def _around(text: str, place: int, reach: int = 20) -> str:
    return text[max(0, place - reach) : place + reach].replace("\n", "\\n")


def _listing(characters: Sequence[str], at_most: int = 120) -> str:
    shown = "".join(character for character in characters if character.isprintable())
    return shown if len(shown) <= at_most else shown[:at_most] + "…"
