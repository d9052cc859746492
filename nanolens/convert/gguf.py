"""Our GPT-2 as a GGUF file, for llama.cpp and what is built on it (Ollama, LM Studio), the tokenizer inside.

llama.cpp has no architecture that arch=modern is (weightless norms, norms of queries and keys after their rotation, ReLU squared,
soft-capped logits, all in one), so only arch=gpt2 goes out. It computes GELU by its tanh approximation, from a table in half precision.

Its BPE splits text by a fixed list of rules, GPT-2's among them and ours not. Characters are spelled as a vocabulary of the kind that it
has for RWKV, which takes the longest token that fits: among single characters there is only one, and no token ends a text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanolens.config.fields import Config
from nanolens.data.gpt2 import END_OF_TEXT, PATTERN
from nanolens.data.tokenizers import BytePairTokenizer, CharTokenizer, Tokenizer
from nanolens.errors import Fault, require
from nanolens.interop.hf_tokenizer import merges_of, spelled
from nanolens.message import Message, msg

if TYPE_CHECKING:
    from torch import Tensor

TYPES = ("f32", "f16", "q8_0")
BLOCK = 32  # numbers that q8_0 packs together
EPS = 1e-5
_NAMES = {
    "embedding": "token_embd", "position": "position_embd", "norm": "output_norm", "norm1": "attn_norm", "norm2": "ffn_norm",
    "attention.qkv": "attn_qkv", "attention.out": "attn_output", "mlp.up": "ffn_up", "mlp.down": "ffn_down",
}  # fmt: skip


def faults_of(config: Config, tokenizer: Tokenizer, kind: str) -> Iterator[Fault]:
    """Why llama.cpp cannot have this model."""
    if config.arch != "gpt2":
        yield Fault(
            msg("llama.cpp has no architecture that is this model, and one that is nearly it would write something else"),
            msg("{arch:code}", arch=f"arch={config.arch}"),
            msg("export what was trained with {gpt2:code}; {hf:code} takes arch=modern too", gpt2="--arch=gpt2", hf="--to=hf"),
        )
    if isinstance(tokenizer, BytePairTokenizer) and tokenizer.pattern != PATTERN:
        yield Fault(
            msg("llama.cpp cannot split text as this tokenizer does: it knows a fixed list of rules, and this one is not among them"),
            msg("the tokenizer that was trained on your text"),
            msg(
                "train a model on data of {command:code}, or on GPT-2's tokens or characters",
                command="nanolens prepare FILE --tokenizer=bpe-gpt2",
            ),
        )
    if isinstance(tokenizer, CharTokenizer) and "\n" not in tokenizer.ids:
        yield Fault(
            msg("llama.cpp stops at an alphabet without a line end"),
            None,
            msg("prepare text that has line ends, or export with {hf:code}", hf="--to=hf"),
        )
    if kind == "q8_0" and config.n_embd % BLOCK:
        yield Fault(
            msg("q8_0 packs {block:count} numbers together, and rows of {width:count} do not divide", block=BLOCK, width=config.n_embd),
            msg("{option:code}", option=f"n_embd={config.n_embd}"),
            msg("use {option:code}", option="--dtype=f16"),
        )


def notes_of() -> Iterator[Message]:
    """What differs there, whatever the model."""
    yield msg("llama.cpp looks GELU up in a table of half precision: its log-probabilities differ from ours by a hundredth or less")


def write_gguf(
    path: Path, config: Config, weights: Mapping[str, Tensor], tokenizer: Tokenizer, vocab_size: int, *, kind: str = "f32", name: str = ""
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
    writer.add_layer_norm_eps(EPS)
    writer.add_file_type(
        {"f32": gguf.LlamaFileType.ALL_F32, "f16": gguf.LlamaFileType.MOSTLY_F16, "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0}[kind]
    )
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _add_tokenizer(writer, gguf, tokenizer)
    for tensor_name, numbers, packed in _tensors(config, weights, vocab_size, kind, gguf):
        writer.add_tensor(tensor_name, numbers, raw_dtype=packed)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _tensors(config: Config, weights: Mapping[str, Tensor], vocab_size: int, kind: str, gguf: Any) -> Iterator[tuple[str, Any, Any]]:
    """(name, numbers, packing); matrices are packed, vectors and positions stay as they are."""
    import numpy as np

    types = gguf.GGMLQuantizationType
    for ours, tensor in weights.items():
        if ours == "head.weight":
            continue  # the embedding again: llama.cpp takes that where no head is given
        layer, _, part = ours.rpartition(".")
        where = f"blk.{layer.split('.')[1]}." if layer.startswith("blocks.") else ""
        theirs = f"{where}{_NAMES[layer.split('.', 2)[2] if where else layer]}"
        numbers = tensor.float().numpy()
        if ours == "embedding.weight":
            numbers = numbers[:vocab_size]
        if kind == "f32" or numbers.ndim == 1 or ours == "position.weight":
            yield f"{theirs}.{part}", np.ascontiguousarray(numbers), None
        elif kind == "f16":
            yield f"{theirs}.{part}", numbers.astype(np.float16), None
        else:
            yield f"{theirs}.{part}", gguf.quants.quantize(numbers, types.Q8_0), types.Q8_0
        if part == "weight" and not config.bias and ours not in ("embedding.weight", "position.weight"):
            yield f"{theirs}.bias", np.zeros(len(numbers), dtype=np.float32), None  # theirs always has one; of zeros it does nothing


def _add_tokenizer(writer: Any, gguf: Any, tokenizer: Tokenizer) -> None:
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
