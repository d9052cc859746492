"""Our GPT-2 as a GGUF file, for llama.cpp and what is built on it (Ollama, LM Studio), the tokenizer inside.

llama.cpp has no architecture that arch=modern is (weightless norms, norms of queries and keys after their rotation,
ReLU squared, soft-capped logits, all in one), so only arch=gpt2 goes out. It computes GELU by its tanh approximation,
from a table in half precision.

Its BPE splits text by a fixed list of rules, GPT-2's among them and ours not. Characters are spelled as a vocabulary of
the kind that it has for RWKV, which takes the longest token that fits: among single characters there is only one, and
no token ends a text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from nanolens.config.fields import Config
from nanolens.convert.foreign import Weights, gpt2_tensors, to_llama_cpp
from nanolens.convert.hf_folder import merges_of, spelled
from nanolens.data.tokenizers import END_OF_TEXT, GPT2_PATTERN, BytePairTokenizer, CharTokenizer, Tokenizer
from nanolens.errors import Fault, require
from nanolens.message import msg

TENSOR_TYPES = ("f32", "f16", "q8_0")
_Q8_BLOCK = 32  # numbers that q8_0 packs together
NOTE = msg(
    "llama.cpp uses a half-precision table for GELU: its log-probabilities differ from ours by a hundredth or less"
)


def faults_of(config: Config, tokenizer: Tokenizer, kind: str) -> Iterator[Fault]:
    """Why llama.cpp cannot have this model."""
    if config.arch != "gpt2":
        what = msg("llama.cpp does not have this architecture, and a similar one would produce different text")
        fix = msg(
            "export a model trained with {gpt2:code}; {hf:code} supports arch=modern too", "--arch=gpt2", "--to=hf"
        )
        yield Fault(what, f"arch={config.arch}", fix)
    if isinstance(tokenizer, BytePairTokenizer) and tokenizer.pattern != GPT2_PATTERN:
        what = msg(
            "llama.cpp cannot split text as this tokenizer does: it has a fixed list of rules, and this one is "
            "not in it"
        )
        prepare = "nanolens prepare FILE --tokenizer=bpe-gpt2"
        fix = msg("train a model on data from {command:code}, or on GPT-2's tokens or characters", prepare)
        yield Fault(what, msg("the tokenizer trained on your text"), fix)
    if isinstance(tokenizer, CharTokenizer) and "\n" not in tokenizer.ids:
        fix = msg("prepare text that has newlines, or export with {hf:code}", "--to=hf")
        yield Fault(msg("llama.cpp fails on an alphabet without a newline"), None, fix)
    if kind == "q8_0" and (width := config.n_embd) % _Q8_BLOCK:
        what = msg(
            "q8_0 packs {block:count} numbers together, and rows of {width:count} are not divisible by that",
            _Q8_BLOCK,
            width,
        )
        yield Fault(what, f"n_embd={width}", msg("use {option:code}", "--dtype=f16"))


def write_gguf(
    path: Path, config: Config, weights: Weights, tokenizer: Tokenizer, vocab_size: int, *, kind: str, name: str
) -> None:
    gguf = require("gguf", "gguf")
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_name(name)
    writer.add_type("model")
    writer.add_vocab_size(vocab_size)
    writer.add_context_length(config.block_size)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_feed_forward_length(4 * config.n_embd)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType["ALL_F32" if kind == "f32" else f"MOSTLY_{kind.upper()}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _add_tokenizer(writer, gguf, tokenizer)
    for ours, tensor in gpt2_tensors(config, weights, vocab_size).items():
        numbers, packing = np.ascontiguousarray(tensor.float().numpy()), None
        if kind != "f32" and numbers.ndim > 1 and ours != "position.weight":  # vectors and positions stay as they are
            if kind == "f16":
                numbers = numbers.astype(np.float16)
            else:
                packing = gguf.GGMLQuantizationType.Q8_0
                numbers = gguf.quants.quantize(numbers, packing)
        writer.add_tensor(to_llama_cpp(ours), numbers, raw_dtype=packing)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _add_tokenizer(writer: Any, gguf: ModuleType, tokenizer: Tokenizer) -> None:
    normal, control = int(gguf.TokenType.NORMAL), int(gguf.TokenType.CONTROL)
    if isinstance(tokenizer, CharTokenizer):
        writer.add_tokenizer_model("rwkv")
        writer.add_token_list([escaped(character) for character in tokenizer.characters])
        writer.add_token_types([normal] * tokenizer.vocab_size)
        return
    assert isinstance(tokenizer, BytePairTokenizer)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*spelled(tokenizer), END_OF_TEXT])
    writer.add_token_types([*([normal] * tokenizer.end_of_document), control])
    writer.add_token_merges(merges_of(tokenizer))
    writer.add_bos_token_id(tokenizer.end_of_document)
    writer.add_eos_token_id(tokenizer.end_of_document)
    writer.add_add_bos_token(False)


def escaped(character: str) -> str:
    """As RWKV's vocabularies spell their tokens: what is not a visible ASCII letter by its bytes."""
    visible = "!" <= character <= "~" and character not in "\\'\""
    return character if visible else "".join(f"\\x{byte:02x}" for byte in character.encode())
