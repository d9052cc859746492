"""Our tokenizers as `tokenizer.json`, the format of Hugging Face's tokenizers library, and back; the ids are the same, one by one.

Characters are a `WordLevel` vocabulary of single letters: a letter that is not in it is an error there as it is here. A BPE is a
byte-level one, its bytes spelled in GPT-2's letters. tiktoken joins any two neighbours that together are a token, the library only those in
its list of merges: so all pairs that make a token are in the list, in the order of the tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nanolens.data.gpt2 import END_OF_TEXT, PATTERN, bytes_by_letter, gpt2_merges, gpt2_ranks
from nanolens.data.tokenizers import BytePairTokenizer, CharTokenizer, GPT2Tokenizer, OwnBPETokenizer, Tokenizer
from nanolens.errors import UserError, fault
from nanolens.interop.safetensors_file import read_json
from nanolens.message import msg

TOKENIZER, TOKENIZER_CONFIG, MERGES = "tokenizer.json", "tokenizer_config.json", "merges.txt"
ANY_CHARACTER = r"[\s\S]"


def tokenizer_files(tokenizer: Tokenizer, block_size: int) -> dict[str, dict[str, Any]]:
    """File names and contents (JSON) from which AutoTokenizer makes the same tokenizer."""
    end = END_OF_TEXT if isinstance(tokenizer, BytePairTokenizer) else None
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": block_size, "clean_up_tokenization_spaces": False,
        "add_prefix_space": False, "bos_token": end, "eos_token": end,
    }  # fmt: skip
    definition = _characters(tokenizer) if isinstance(tokenizer, CharTokenizer) else _byte_pairs(tokenizer)
    return {TOKENIZER: definition, TOKENIZER_CONFIG: {key: value for key, value in about.items() if value is not None}}


def _characters(tokenizer: CharTokenizer) -> dict[str, Any]:
    if any("\ud800" <= character <= "\udfff" for character in tokenizer.characters):
        raise fault(
            msg("its alphabet has halves of characters (surrogates), which no other format can hold"),
            fix=msg("prepare the text again as valid UTF-8"),
        )
    split = {"type": "Split", "pattern": {"Regex": ANY_CHARACTER}, "behavior": "Isolated", "invert": False}
    model = {"type": "WordLevel", "vocab": tokenizer.ids, "unk_token": "[UNK]"}  # it is not in the vocabulary: a strange letter is an error
    return _frame(split, {"type": "Fuse"}, model, [])


def _byte_pairs(tokenizer: Tokenizer) -> dict[str, Any]:
    assert isinstance(tokenizer, BytePairTokenizer)
    end = {
        "id": tokenizer.end_of_document, "content": END_OF_TEXT, "single_word": False, "lstrip": False, "rstrip": False,
        "normalized": False, "special": True,
    }  # fmt: skip
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    if tokenizer.pattern == PATTERN:
        split: dict[str, Any] = {**bytes_only, "use_regex": True}  # the library's own split is GPT-2's
    else:
        regex = {"type": "Split", "pattern": {"Regex": tokenizer.pattern}, "behavior": "Isolated", "invert": False}
        split = {"type": "Sequence", "pretokenizers": [regex, bytes_only]}
    words = spelled(tokenizer)
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
        "byte_fallback": False, "ignore_merges": False,
        "vocab": {**{word: token for token, word in enumerate(words)}, END_OF_TEXT: end["id"]},
        "merges": [merge.split(" ") for merge in merges_of(tokenizer)],
    }  # fmt: skip
    return _frame(split, {**bytes_only, "use_regex": True}, model, [end])


def _frame(split: dict[str, Any], decoder: dict[str, Any], model: dict[str, Any], added: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None, "pre_tokenizer": split,
        "post_processor": None, "decoder": decoder, "model": model,
    }  # fmt: skip


def spelled(tokenizer: BytePairTokenizer) -> list[str]:
    """Each token, but for the end of text, in GPT-2's letters for bytes."""
    letter_of = {byte: letter for letter, byte in bytes_by_letter().items()}
    return ["".join(letter_of[byte] for byte in tokenizer.token_bytes(token)) for token in range(tokenizer.end_of_document)]


def merges_of(tokenizer: BytePairTokenizer) -> list[str]:
    """Pairs that are joined, first things first, as "left right" in GPT-2's letters."""
    if isinstance(tokenizer, GPT2Tokenizer):
        return gpt2_merges()
    words = spelled(tokenizer)
    number = {word: token for token, word in enumerate(words)}
    merges = []
    for word in words:
        pairs = [(word[:cut], word[cut:]) for cut in range(1, len(word)) if word[:cut] in number and word[cut:] in number]
        merges += sorted(pairs, key=lambda pair: (number[pair[0]], number[pair[1]]))
    return [f"{left} {right}" for left, right in merges]


# --- and back


def read_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer of a model folder as one of ours; None where the folder has none. One that we cannot be is refused."""
    if (folder / TOKENIZER).is_file():
        try:
            return _from_json(read_json(folder / TOKENIZER))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise _strange(folder / TOKENIZER, str(error)) from None
    if (folder / MERGES).is_file() and (folder / MERGES).stat().st_size < 64 << 20:
        lines = (folder / MERGES).read_text(encoding="utf-8", errors="replace").splitlines()
        if [line for line in lines if line and not line.startswith("#version")] == gpt2_merges():
            return GPT2Tokenizer()
        raise _strange(folder / MERGES, "its merges are not GPT-2's")
    return None


def _strange(path: Path, problem: str) -> UserError:
    return fault(
        msg("this tokenizer is not one that nanolens has (characters, GPT-2's, or a byte-level BPE): {problem}", problem=problem[:200]),
        where=msg("{path:code}", path=str(path)),
        fix=msg("name another with {option:code}: {gpt2:code}, or a folder with a prepared one", option="--tokenizer", gpt2="gpt2"),
    )


def _from_json(whole: dict[str, Any]) -> Tokenizer:
    model, split = whole["model"], whole["pre_tokenizer"]
    if whole.get("normalizer") is not None:
        raise ValueError("it changes the text before it splits it")
    words = sorted(model["vocab"], key=model["vocab"].__getitem__)
    if [model["vocab"][word] for word in words] != list(range(len(words))):
        raise ValueError("its ids have gaps")
    if model["type"] == "WordLevel":
        if any(len(word) != 1 for word in words) or split["type"] != "Split" or split["pattern"] != {"Regex": ANY_CHARACTER}:
            raise ValueError("its words are not single characters")
        return CharTokenizer(words)
    if model["type"] != "BPE" or model.get("byte_fallback"):
        raise ValueError(f"a {str(model['type'])[:40]} model")
    return _bpe_from_json(words, model["merges"], split)


def _bpe_from_json(words: list[str], merges: list[Any], split: dict[str, Any]) -> Tokenizer:
    if not words or words[-1] != END_OF_TEXT:
        raise ValueError(f"its last token is not {END_OF_TEXT}")
    byte_of, number = bytes_by_letter(), {word: token for token, word in enumerate(words)}
    if any(letter not in byte_of for word in words[:-1] for letter in word):
        raise ValueError("its tokens are not spelled in bytes")
    tokens = [bytes(byte_of[letter] for letter in word) for word in words[:-1]]
    joined = ["".join(merge.split(" ") if isinstance(merge, str) else merge) for merge in merges]
    places = [number[word] for word in joined]
    if places != sorted(places) or {bytes([byte]) for byte in range(256)} - set(tokens):
        raise ValueError("its tokens are not in the order in which they are joined")
    ranks = {token: rank for rank, token in enumerate(tokens)}
    pattern = _pattern(split)
    if ranks == gpt2_ranks() and pattern == PATTERN:
        return GPT2Tokenizer()
    return OwnBPETokenizer(pattern, ranks)


def _pattern(split: dict[str, Any]) -> str:
    parts = split["pretokenizers"] if split["type"] == "Sequence" else [split]
    if any(part.get("add_prefix_space") for part in parts) or parts[-1]["type"] != "ByteLevel":
        raise ValueError("it splits text in a way that ours do not")
    if len(parts) == 1 and parts[0].get("use_regex", True):
        return PATTERN
    if len(parts) == 2 and parts[0]["type"] == "Split" and parts[0]["behavior"] == "Isolated" and not parts[1].get("use_regex", True):
        pattern = parts[0]["pattern"]["Regex"]
        if isinstance(pattern, str) and not parts[0].get("invert"):
            return _compiled(pattern)
    raise ValueError("it splits text in a way that ours do not")


def _compiled(pattern: str) -> str:
    import tiktoken

    tiktoken.Encoding("trial", pat_str=pattern, mergeable_ranks={bytes([byte]): byte for byte in range(256)}, special_tokens={})
    return pattern
