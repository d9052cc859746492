"""A model in Hugging Face's format, both ways: a folder with `config.json`, weights and a tokenizer, or a name on the
hub. The transformers library loads ours without any code of ours; the ids of its tokens are the same, one by one.

Characters are a `WordLevel` vocabulary of single letters: a letter that is not in it is an error there as it is here. A
BPE is a byte-level one, its bytes spelled in GPT-2's letters. tiktoken joins any two neighbours that together are a
token, the library only those in its list of merges: so all pairs that make a token are in the list, in the order of the
tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from nanolens import files
from nanolens.config.fields import Config
from nanolens.convert import foreign
from nanolens.convert.foreign import FOREIGN_FORMATS, ForeignModel, JsonObject, OnStage, Shape, Weights, no_progress
from nanolens.data.tokenizers import (
    END_OF_TEXT,
    GPT2_PATTERN,
    BytePairTokenizer,
    CharTokenizer,
    GPT2Tokenizer,
    OwnBPETokenizer,
    Tokenizer,
    bytes_by_letter,
    gpt2_merges,
    gpt2_ranks,
    may_be_gpt2,
)
from nanolens.errors import UserError, fault, raise_if_any, require
from nanolens.message import Message, msg

HUB_NAMES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
WEIGHTS, _INDEX, SHAPE_FILE = "model.safetensors", "model.safetensors.index.json", "config.json"
GENERATION, CARD = "generation_config.json", "README.md"
DTYPE_NAMES = ("float32", "float16", "bfloat16")
TOKENIZER, TOKENIZER_CONFIG, MERGES = "tokenizer.json", "tokenizer_config.json", "merges.txt"
ANY_CHARACTER = r"[\s\S]"
MOST_FILES = 1000
MOST_HEADER_BYTES = 8 << 20  # of a safetensors file; a GPT of 1,000 blocks has 2 MB
MOST_JSON_BYTES = 64 << 20


def hugging_face_folder(source: str) -> Path | None:
    """The folder that `source` means, fetched from the hub where it is one of its names; None where it is neither."""
    folder = Path(source)
    if is_hugging_face(folder):
        return folder
    if source not in HUB_NAMES:
        return None
    hub, wanted = require("huggingface_hub", "hf"), [WEIGHTS, SHAPE_FILE]
    try:
        return Path(hub.snapshot_download(source, allow_patterns=wanted))
    except Exception as error:  # the hub's client raises a dozen kinds for "not reachable"
        what = msg("{name:code} could not be downloaded from the hub: {problem}", source, str(error).splitlines()[0])
        fix = msg("download its {files:code} elsewhere, and give that folder instead of the name", wanted)
        raise fault(what, fix=fix) from None


def is_hugging_face(folder: Path) -> bool:
    return (folder / SHAPE_FILE).is_file() and any((folder / name).is_file() for name in (WEIGHTS, _INDEX))


def read_hugging_face(
    folder: Path, tokenizer: Tokenizer | None = None, on_stage: OnStage = no_progress
) -> ForeignModel:
    """The model in the folder. `tokenizer` stands in for the folder's own."""
    settings, vocab_size = foreign.shape_from(read_json(folder / SHAPE_FILE), folder / SHAPE_FILE)
    notes: tuple[Message, ...] = ()
    tokenizer = tokenizer or read_tokenizer(folder)
    if tokenizer is None and may_be_gpt2(vocab_size):
        tokenizer = GPT2Tokenizer()
        notes = (msg("the folder has no tokenizer; GPT-2's is used, because it has as many tokens as the model"),)
    config = Config(**settings)  # type: ignore[arg-type]
    empty = foreign.weights_out(config, foreign.parameters_of(config, vocab_size), vocab_size)
    tensors = _tensors(folder, {name: tuple(tensor.shape) for name, tensor in empty.items()}, on_stage)
    weights = foreign.weights_in(config, tensors)
    return ForeignModel(folder, "Hugging Face", settings, vocab_size, weights, tokenizer, notes=notes)


def _tensors(folder: Path, wanted: Mapping[str, Shape], on_stage: OnStage) -> dict[str, Tensor]:
    """The tensors that the shape needs, as float32; every one that lacks or does not fit is reported at once."""
    where_is: dict[Path, dict[str, str]] = {}  # of each file: the names there, and those wanted
    found: dict[str, tuple[str, Shape]] = {}
    for path in _files(folder):
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118  no dict
                full = name if name in wanted else f"transformer.{name}"  # a GPT-2 was saved with its head or without
                if full in wanted:
                    where_is.setdefault(path, {})[name] = full
                    part = file.get_slice(name)
                    found[full] = part.get_dtype(), tuple(part.get_shape())
    raise_if_any(foreign.misfits(wanted, found, folder))
    tensors: dict[str, Tensor] = {}
    total = sum(path.stat().st_size for path in where_is)
    for path, names in where_is.items():
        with _opened(path) as file:
            tensors |= {full: file.get_tensor(name).float() for name, full in names.items()}
        on_stage("read", sum(tensor.nbytes for tensor in tensors.values()), total)
    return tensors


def _files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    index = read_json(folder / _INDEX).get("weight_map")
    names = {str(name) for name in index.values()} if isinstance(index, Mapping) else set()
    if not names or len(names) > MOST_FILES or any(Path(name).name != name or name.startswith(".") for name in names):
        what = msg("{file:code} does not list files in this folder", str(folder / _INDEX))
        raise fault(what, fix=msg("get the file again from its source"))
    return [folder / name for name in sorted(names)]


@contextmanager
def _opened(path: Path) -> Iterator[safe_open]:
    """A safetensors file. The library checks that the tensors lie one behind the other and fill the file; what it does
    not ask is how long the list is."""
    with _read_from(path):
        with open(path, "rb") as start:
            length = int.from_bytes(start.read(8), "little")
        if length > MOST_HEADER_BYTES:
            raise ValueError(f"its header claims {length:,} bytes, in a file of {path.stat().st_size:,}")
        with safe_open(path, framework="pt") as file:
            yield file


def read_json(path: Path) -> JsonObject:
    """A JSON object from a stranger."""
    with _read_from(path):
        if path.stat().st_size > MOST_JSON_BYTES:
            raise ValueError(f"it is {path.stat().st_size:,} bytes long")
        value = json.loads(path.read_bytes())
        if not isinstance(value, dict):
            raise ValueError("it holds no JSON object")
    return value


@contextmanager
def _read_from(path: Path) -> Iterator[None]:
    """Whatever goes wrong in the block is reported as a fault of the file."""
    try:
        if not path.is_file():
            raise ValueError("it is not a file")
        yield
    except (SafetensorError, OSError, RuntimeError, ValueError, MemoryError) as error:
        problem = "its JSON is nested too deeply" if isinstance(error, RecursionError) else str(error)[:300]
        what = msg("{file:code} cannot be read: {problem}", str(path), problem)
        raise fault(what, fix=msg("get the file again from its source")) from None


def write_hugging_face(
    folder: Path, config: Config, weights: Weights, tokenizer: Tokenizer, vocab_size: int, dtype: str = "float32"
) -> None:
    """Fills `folder`. `vocab_size` rows of the vocabulary are kept."""
    end = None if tokenizer.kind == "char" else tokenizer.end_of_document  # a line end of characters ends no text
    tensors = foreign.weights_out(config, weights, vocab_size)
    tensors = {name: tensor.to(getattr(torch, dtype)) for name, tensor in tensors.items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / WEIGHTS).chmod(0o644)  # the library keeps what it writes to its owner
    taste = {"do_sample": True, "temperature": 0.8, "top_k": 200, "max_new_tokens": 500}  # of sample, and of nanoGPT
    contents: dict[str, JsonObject] = {
        SHAPE_FILE: foreign.shape_file(config, vocab_size, end, dtype),
        GENERATION: {"bos_token_id": end, "eos_token_id": end, **taste},
        **tokenizer_files(tokenizer, config.block_size),
    }
    for name, value in contents.items():
        text = json.dumps(value, indent=None if name == TOKENIZER else 2, ensure_ascii=False)
        files.write_whole(folder / name, text)


def tokenizer_files(tokenizer: Tokenizer, block_size: int) -> dict[str, JsonObject]:
    """File names and contents (JSON) from which AutoTokenizer makes the same tokenizer."""
    about = FOREIGN_FORMATS[TOKENIZER_CONFIG] | {"model_max_length": block_size}
    if isinstance(tokenizer, CharTokenizer):
        return {TOKENIZER: FOREIGN_FORMATS[TOKENIZER] | _characters(tokenizer), TOKENIZER_CONFIG: about}
    assert isinstance(tokenizer, BytePairTokenizer)
    about |= {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT}
    return {TOKENIZER: FOREIGN_FORMATS[TOKENIZER] | _byte_pairs(tokenizer), TOKENIZER_CONFIG: about}


def _split(regex: str) -> JsonObject:
    return FOREIGN_FORMATS["split"] | {"pattern": {"Regex": regex}}


def _characters(tokenizer: CharTokenizer) -> JsonObject:
    if any("\ud800" <= character <= "\udfff" for character in tokenizer.characters):
        what = msg("its alphabet contains halves of characters (surrogates), which no other format supports")
        raise fault(what, fix=msg("prepare the text again as valid UTF-8"))
    # [UNK] is not in the vocabulary: a strange letter is an error
    model = {"type": "WordLevel", "vocab": tokenizer.ids, "unk_token": "[UNK]"}
    return {"pre_tokenizer": _split(ANY_CHARACTER), "decoder": {"type": "Fuse"}, "model": model}


def _byte_pairs(tokenizer: BytePairTokenizer) -> JsonObject:
    split = by_bytes = FOREIGN_FORMATS["byte_level"]  # whose own split is GPT-2's
    if tokenizer.pattern != GPT2_PATTERN:
        split = {"type": "Sequence", "pretokenizers": [_split(tokenizer.pattern), by_bytes | {"use_regex": False}]}
    vocab = {word: token for token, word in enumerate([*spelled(tokenizer), END_OF_TEXT])}
    merges = [merge.split(" ") for merge in merges_of(tokenizer)]
    return {
        "added_tokens": [FOREIGN_FORMATS["added_token"] | {"id": tokenizer.end_of_document, "content": END_OF_TEXT}],
        "pre_tokenizer": split,
        "decoder": by_bytes,
        "model": FOREIGN_FORMATS["bpe"] | {"vocab": vocab, "merges": merges},
    }


def spelled(tokenizer: BytePairTokenizer) -> list[str]:
    """Each token, but for the end of text, in GPT-2's letters for bytes."""
    letter_of = {byte: letter for letter, byte in bytes_by_letter().items()}
    return [
        "".join(letter_of[byte] for byte in tokenizer.token_bytes(token)) for token in range(tokenizer.end_of_document)
    ]


def merges_of(tokenizer: BytePairTokenizer) -> list[str]:
    """Pairs that are joined, first things first, as "left right" in GPT-2's letters."""
    if isinstance(tokenizer, GPT2Tokenizer):
        return gpt2_merges()
    words = spelled(tokenizer)
    number = {word: token for token, word in enumerate(words)}
    merges = []
    for word in words:
        pairs = [
            (word[:cut], word[cut:]) for cut in range(1, len(word)) if word[:cut] in number and word[cut:] in number
        ]
        merges += sorted(pairs, key=lambda pair: (number[pair[0]], number[pair[1]]))
    return [f"{left} {right}" for left, right in merges]


def read_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer of a model folder as one of ours; None where it has none. One that we cannot be is refused."""
    if (folder / TOKENIZER).is_file():
        try:
            return _from_json(read_json(folder / TOKENIZER))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise _strange(folder / TOKENIZER, str(error)[:200]) from None
    if (folder / MERGES).is_file() and (folder / MERGES).stat().st_size < 64 << 20:
        lines = (folder / MERGES).read_text(encoding="utf-8", errors="replace").splitlines()
        if [line for line in lines if line and not line.startswith("#version")] == gpt2_merges():
            return GPT2Tokenizer()
        raise _strange(folder / MERGES, "its merges are not GPT-2's")
    return None


def _strange(path: Path, problem: str) -> UserError:
    what = msg("this tokenizer is not supported (characters, GPT-2's, or a byte-level BPE are): {problem}", problem)
    fix = msg("name another with {option:code}: {gpt2:code}, or a folder with a prepared one", "--tokenizer", "gpt2")
    return fault(what, where=str(path), fix=fix)


def _from_json(whole: JsonObject) -> Tokenizer:
    model, split = whole["model"], whole["pre_tokenizer"]
    if whole.get("normalizer") is not None:
        raise ValueError("it changes the text before it splits it")
    words = sorted(model["vocab"], key=model["vocab"].__getitem__)
    if [model["vocab"][word] for word in words] != list(range(len(words))):
        raise ValueError("its ids have gaps")
    if model["type"] == "WordLevel":
        has_characters = all(len(word) == 1 for word in words)
        if not has_characters or (split["type"], split["pattern"]) != ("Split", {"Regex": ANY_CHARACTER}):
            raise ValueError("its words are not single characters")
        return CharTokenizer(words)
    if model["type"] != "BPE" or model.get("byte_fallback"):
        raise ValueError(f"a {str(model['type'])[:40]} model")
    return _bpe_from_json(words, model["merges"], split)


def _bpe_from_json(words: list[str], merges: list[str | list[str]], split: JsonObject) -> Tokenizer:
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
    if ranks == gpt2_ranks() and pattern == GPT2_PATTERN:
        return GPT2Tokenizer()
    return OwnBPETokenizer(pattern, ranks)


def _pattern(split: JsonObject) -> str:
    parts = split["pretokenizers"] if split["type"] == "Sequence" else [split]
    *before, last = parts
    if last["type"] == "ByteLevel" and not any(part.get("add_prefix_space") for part in parts):
        by_regex = last.get("use_regex", True)
        if not before and by_regex:
            return GPT2_PATTERN
        regex = before[0].get("pattern", {}).get("Regex") if len(before) == 1 and not by_regex else None
        if isinstance(regex, str) and {**_split(regex), **before[0]} == _split(regex):
            trial = OwnBPETokenizer(regex, {bytes([byte]): byte for byte in range(256)})
            trial.encode("")  # a ValueError where the regex is none
            return regex
    raise ValueError("it splits text in a way that ours do not")
