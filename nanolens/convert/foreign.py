"""A model that was trained elsewhere, in our names and shapes, and ours in theirs.

Two architectures of the transformers library are ours, number for number: GPT2LMHeadModel and NanoChatForCausalLM.
What a `config.json` asks for and ours cannot do is refused, all of it at once: never a model that is nearly right."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any

import torch
from torch import Tensor

from nanolens.config.fields import Config
from nanolens.data.tokenizers import Tokenizer
from nanolens.errors import Fault, fault, raise_if_any
from nanolens.message import Message, msg
from nanolens.model import build

Settings = dict[str, bool | int | float | str]
Moments = dict[int, dict[str, Tensor]]  # AdamW's state of each parameter, by the numbers that our optimizer gives them
OnStage = Callable[[str, int, int], None]  # the stage ("read" or "write"), bytes done, bytes in all
Shape = tuple[int, ...]
Weights = Mapping[str, Tensor]
JsonObject = dict[str, Any]

FOREIGN_FORMATS: JsonObject = json.loads(Path(__file__).with_name("formats.json").read_bytes())
"""Of other programs: `layers` of GPT-2 as Hugging Face and nanoGPT, and llama.cpp call them; the `config.json` of an
architecture, our `sizes` there, and what is `required`, since ours can do nothing else; a tokenizer; and so on."""
LAYERS: Mapping[str, Sequence[str]] = FOREIGN_FORMATS["layers"]
SIZES: Mapping[str, Mapping[str, str]] = FOREIGN_FORMATS["sizes"]

SHAPE = ("arch", "n_layer", "n_head", "n_embd", "bias", "gelu", "softcap", "token_shift", "ngram_rows")
FLOATS = frozenset("F32 F16 BF16 F64 torch.float32 torch.float16 torch.bfloat16 torch.float64".split())
_OURS = {theirs: ours for ours, (theirs, _) in LAYERS.items()}
_THEIR_NAME = re.compile(rf"(?:transformer\.)?(?:h\.(\d+)\.)?({'|'.join(map(re.escape, _OURS))})\.(weight|bias)$")
_OUR_NAME = re.compile(r"(?:blocks\.(\d+)\.)?(.+)\.(weight|bias)$")
GPT2, NANOCHAT = (FOREIGN_FORMATS[kind]["architectures"][0] for kind in ("gpt2", "nanochat"))
EXACT, TANH = ("gelu",), ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")  # their words for one activation
_NANOCHAT_TABLES = {"embedding.weight": "model.embed_tokens.weight", "head.weight": "lm_head.weight"}
_NANOCHAT_LAYERS = {"attention.out": "self_attn.o_proj", "mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"}
LARGEST = {"n_layer": 1000, "n_head": 1000, "n_embd": 100_000, "block_size": 1_048_576, "vocab_size": 10_000_000}


def no_progress(stage: str, done_bytes: int, all_bytes: int) -> None:
    """Nobody wants to know how far it is."""


@dataclass(frozen=True, eq=False)
class ForeignModel:
    source: Path
    kind: str  # "Hugging Face" or "nanoGPT"
    settings: Settings  # what the files say, by our names
    vocab_size: int  # rows of the embedding
    weights: Weights  # by our names, tied ones once
    tokenizer: Tokenizer | None
    dataset: Path | None = None  # the prepared folder that it was trained on, where that was found
    step: int = 0
    moments: Moments | None = None  # None: AdamW begins afresh
    val_loss: float | None = None  # at `step`, as its trainer measured it
    notes: tuple[Message, ...] = ()  # what its new owner should know

    def __post_init__(self) -> None:
        if self.tokenizer is not None and (tokens := self.tokenizer.vocab_size) > self.vocab_size:
            what = msg("the tokenizer has {tokens:count} tokens and the model {rows:count}", tokens, self.vocab_size)
            fix = msg("they do not match; name the right tokenizer with {option:code}", "--tokenizer")
            raise fault(what, where=str(self.source), fix=fix)


def fit(model: ForeignModel, config: Config, where: Message) -> tuple[Config, dict[str, Tensor]]:
    """Config and weights in the model's shape: positions cut off at `block_size`, rows added up to `vocab_size`."""
    theirs = {key: value for key, value in model.settings.items() if key in SHAPE}
    longest, rows = int(model.settings["block_size"]), config.vocab_size or model.vocab_size
    has_positions = "position.weight" in model.weights
    faults = []
    if config.arch != theirs["arch"]:
        what = msg("weights of arch = {theirs:code} do not fit arch = {arch:code}", theirs["arch"], config.arch)
        faults.append(Fault(what, where, msg("use {option:code}", f"--arch={theirs['arch']}")))
    if has_positions and config.block_size > longest:
        what = msg(
            "block_size = {wanted:count} is more than the checkpoint's {there:count position|positions}",
            config.block_size,
            longest,
        )
        faults.append(Fault(what, where, msg("use {option:code} or less", f"--block_size={longest}")))
    if rows < model.vocab_size:
        what = msg(
            "vocab_size = {wanted:count} is less than the checkpoint's {there:count row|rows}", rows, model.vocab_size
        )
        faults.append(Fault(what, where, msg("leave it out, or use {option:code}", f"--vocab_size={model.vocab_size}")))
    raise_if_any(faults)
    weights = dict(model.weights)
    if has_positions:
        weights["position.weight"] = weights["position.weight"][: config.block_size].clone()
    # A row that is added is the mean of those there. Not zeros: GPT-2's logits lie far below zero, and a row of zeros
    # would be the likeliest token of all. The logit of a mean row is the mean logit, whose exponential is at most the
    # mean exponential: k rows added to n raise the loss by ln(1 + k / n) nats at most.
    for name in ("embedding.weight", "head.weight"):
        if name in weights and (more := rows - len(table := weights[name])):
            weights[name] = torch.cat((table, table.mean(0, keepdim=True).expand(more, -1)))
    return dataclasses.replace(config, **theirs, vocab_size=rows), weights  # type: ignore[arg-type]


def parameters_of(config: Config, vocab_size: int) -> dict[str, Tensor]:
    """What a model has, in its order, as tensors without numbers. One block is built, however many a file claims."""
    with torch.device("meta"):
        small = dict(build(dataclasses.replace(config, n_layer=1), vocab_size).named_parameters())
    found: dict[str, Tensor] = {}
    for is_block, members in groupby(small, key=lambda name: name.startswith("blocks.0.")):
        names = list(members)
        for block in range(config.n_layer if is_block else 1):
            found |= {name.replace("blocks.0.", f"blocks.{block}."): small[name] for name in names}
    return found


def misfits(wanted: Mapping[str, Shape], found: Mapping[str, tuple[str, Shape]], source: Path) -> list[Fault]:
    """What `found` (the number type and shape of each tensor) lacks, or has otherwise than the config says."""
    faults, where = [], str(source)
    if lacking := [name for name in wanted if name not in found]:
        what = msg(
            "the weights are missing {count:count} of {total:count tensor|tensors}: {names:code}",
            len(lacking),
            len(wanted),
            lacking[:3],
        )
        faults.append(Fault(what, where))
    for name, (dtype, shape) in found.items():
        if shape != wanted[name]:
            what = msg("{name:code} is {found:code}, and the config requires {wanted:code}", name, shape, wanted[name])
            faults.append(Fault(what, where))
        if dtype not in FLOATS:
            faults.append(Fault(msg("{name:code} has the unsupported number type {dtype:code}", name, dtype), where))
    return faults[:8]


def to_ours(theirs: str) -> str | None:
    """None for what is no parameter of ours: mask buffers (`attn.bias`), and the head, which is the embedding."""
    if (found := _THEIR_NAME.match(theirs)) is None:
        return None
    block, layer, kind = found.groups()
    return (f"blocks.{block}." if block else "") + f"{_OURS[layer]}.{kind}"


def to_theirs(ours: str) -> str:
    return _renamed(ours, 0, "transformer.", "transformer.h.{}.")


def to_llama_cpp(ours: str) -> str:
    return _renamed(ours, 1, "", "blk.{}.")


def _renamed(ours: str, column: int, top: str, block: str) -> str:
    found = _OUR_NAME.match(ours)
    assert found is not None, ours
    number, layer, kind = found.groups()
    return (top if number is None else block.format(number)) + f"{LAYERS[layer][column]}.{kind}"


def is_conv1d(ours: str) -> bool:
    """Whether Hugging Face keeps this one transposed: input channels first."""
    return ours.endswith(".weight") and (".attention." in ours or ".mlp." in ours)


def faults_of(config: Config) -> Iterator[Fault]:
    """Why this model has no place in the library."""
    where = f"arch={config.arch}"
    if config.arch not in ("gpt2", "modern"):
        fix = msg("export a model trained with arch=gpt2 or arch=modern")
        yield Fault(msg("a custom model cannot be exported to another library"), where, fix)
    without = msg("train a model that can be exported: {options:code}", "--token_shift=False --ngram_rows=0")
    if config.arch == "modern" and config.token_shift:
        key = "token_shift"
        what = msg("it mixes each embedding with the previous one ({key:code}), which no other library supports", key)
        yield Fault(what, where, without)
    if config.arch == "modern" and config.ngram_rows:
        what = msg("it has n-gram tables ({key:code}), which no other library supports", "ngram_rows")
        yield Fault(what, where, without)


def shape_file(config: Config, vocab_size: int, end: int | None, dtype: str) -> JsonObject:
    """`config.json`."""
    kind = "gpt2" if config.arch == "gpt2" else "nanochat"
    sizes = {theirs: getattr(config, ours) for ours, theirs in SIZES[kind].items()} | {"vocab_size": vocab_size}
    about = FOREIGN_FORMATS[kind] | {"bos_token_id": end, "eos_token_id": end, "dtype": dtype} | sizes
    if kind == "gpt2":
        about |= {"n_ctx": config.block_size, "activation_function": (TANH if config.gelu == "tanh" else EXACT)[0]}
        return about | dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), config.dropout)
    about |= {"intermediate_size": 4 * config.n_embd, "num_key_value_heads": config.n_head}
    return about | {"final_logit_softcapping": config.softcap or None}


def weights_out(config: Config, weights: Weights, vocab_size: int) -> dict[str, Tensor]:
    """Our tensors under their names; rows of the vocabulary beyond `vocab_size` are left out."""
    if config.arch == "gpt2":
        ours = gpt2_tensors(config, weights, vocab_size)
        out = {to_theirs(name): tensor.t() if is_conv1d(name) else tensor for name, tensor in ours.items()}
    else:
        out = _nanochat_out(config, weights, vocab_size)
    return {name: tensor.contiguous() for name, tensor in out.items()}


def gpt2_tensors(config: Config, weights: Weights, vocab_size: int) -> dict[str, Tensor]:
    """As other programs expect it: no head, which is the embedding, and a bias everywhere; of zeros it does nothing."""
    out: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if name != "head.weight":
            out[name] = tensor[:vocab_size] if name == "embedding.weight" else tensor
        if not config.bias and name not in ("embedding.weight", "position.weight", "head.weight"):
            out[name.removesuffix("weight") + "bias"] = tensor.new_zeros(len(tensor))
    return out


def _nanochat_out(config: Config, weights: Weights, vocab_size: int) -> dict[str, Tensor]:
    out = {theirs: weights[ours][:vocab_size] for ours, theirs in _NANOCHAT_TABLES.items()}
    for block in range(config.n_layer):
        ours, theirs = f"blocks.{block}.", f"model.layers.{block}."
        q, k, v = weights[f"{ours}attention.qkv.weight"].chunk(3)
        # Ours turns channels 0 and 1 together, 2 and 3, ...; theirs i and i + half. In that order queries and keys give
        # the same products.
        pairs = (config.n_head, -1, 2)
        qkv = {"q": _reordered(q, pairs), "k": _reordered(k, pairs), "v": v}
        out |= {f"{theirs}self_attn.{name}_proj.weight": tensor for name, tensor in qkv.items()}
        out |= {f"{theirs}{name}.weight": weights[f"{ours}{own}.weight"] for own, name in _NANOCHAT_LAYERS.items()}
    return out


def _reordered(weight: Tensor, channels: Shape) -> Tensor:
    return weight.unflatten(0, channels).transpose(1, 2).flatten(0, 2)


def shape_from(about: Mapping[str, object], path: Path) -> tuple[Settings, int]:
    """The settings that a `config.json` describes, by our names, and the size of the vocabulary."""
    kind = about.get("model_type")
    if kind not in ("gpt2", "nanochat"):
        what = msg("models of type {kind:code} are not supported", str(kind)[:60])
        fix = msg("give the folder of a {gpt2:code} or {nanochat:code} model", GPT2, NANOCHAT)
        raise fault(what, where=str(path), fix=fix)
    differences = list(_differences(about, str(kind)))[:8]
    raise_if_any(Fault(what, str(path), msg("this model cannot be imported")) for what in differences)
    sizes: dict[str, int] = {ours: about[theirs] for ours, theirs in SIZES[str(kind)].items()}  # type: ignore[misc]
    vocab_size = sizes.pop("vocab_size")
    if kind == "gpt2":
        gelu = "exact" if about.get("activation_function") in EXACT else "tanh"
        return {"arch": "gpt2", **sizes, "bias": True, "gelu": gelu}, vocab_size
    cap = about.get("final_logit_softcapping", 15.0)
    softcap = float(cap) if isinstance(cap, (int, float)) else 0.0
    plain = {"token_shift": False, "ngram_rows": 0, "bias": False}
    return {"arch": "modern", **sizes, "softcap": softcap, **plain}, vocab_size


def weights_in(config: Config, theirs: Weights) -> dict[str, Tensor]:
    """Tensors by the names of `weights_out` as ours."""
    if config.arch == "gpt2":
        ours = {to_ours(name) or name: tensor for name, tensor in theirs.items()}
        return {name: tensor.t().contiguous() if is_conv1d(name) else tensor for name, tensor in ours.items()}
    ours = {own: theirs[name] for own, name in _NANOCHAT_TABLES.items()}
    for block in range(config.n_layer):
        at, to = f"model.layers.{block}.", f"blocks.{block}."
        q, k, v = (theirs[f"{at}self_attn.{name}_proj.weight"] for name in "qkv")
        halves = (config.n_head, 2, -1)
        ours[f"{to}attention.qkv.weight"] = torch.cat((_reordered(q, halves), _reordered(k, halves), v))
        ours |= {f"{to}{own}.weight": theirs[f"{at}{name}.weight"] for own, name in _NANOCHAT_LAYERS.items()}
    return ours


def invalid_sizes(about: Mapping[str, object], names: Mapping[str, str]) -> list[Message]:
    """What is wrong with the sizes of a model; `names` has their names by ours."""
    sizes = {ours: about.get(theirs) for ours, theirs in names.items()}
    wrong = [
        msg("its {key:code} is {value:code}, which is not a valid size", names[key], short_repr(size))
        for key, size in sizes.items()
        if type(size) is not int or not 0 < size <= LARGEST[key]
    ]
    width, heads = sizes["n_embd"], sizes["n_head"]
    if not wrong and width % heads:  # type: ignore[operator]
        wrong = [msg("its width {width:count} is not divisible by {heads:count head|heads}", width, heads)]
    return wrong


def _differences(about: Mapping[str, object], kind: str) -> Iterator[Message]:
    allowed: dict[str, tuple[object, ...]] = {
        key: (FOREIGN_FORMATS[kind][key],) for key in FOREIGN_FORMATS["required"][kind]
    }
    if kind == "gpt2":
        allowed |= {"activation_function": (*EXACT, *TANH), "add_cross_attention": (False,)}
    for key, ours in allowed.items():
        value = about.get(key)
        if value is not None and value not in ours:
            yield msg("its {key:code} is {value:code}, and nanolens has {ours:code}", key, str(value)[:60], list(ours))
    names = SIZES[kind]
    if wrong := invalid_sizes(about, names):
        yield from wrong
        return
    width, heads = about[names["n_embd"]], about[names["n_head"]]
    assert isinstance(width, int) and isinstance(heads, int)
    inner = about.get("n_inner" if kind == "gpt2" else "intermediate_size")
    if inner not in ((None, 4 * width) if kind == "gpt2" else (4 * width,)):
        yield msg("its MLP is {inner:code} wide; nanolens uses four times the model width", str(inner)[:60])
    if kind == "gpt2":
        return
    of_head, kv_heads = about.get("head_dim"), about.get("num_key_value_heads")
    if kv_heads not in (None, heads) or of_head not in (None, width // heads) or (width // heads) % 2:
        yield msg("its heads share keys or have a different size, which nanolens does not support")
    rope, usual = about.get("rope_parameters") or {}, FOREIGN_FORMATS["nanochat"]["rope_parameters"]
    if not isinstance(rope, Mapping) or any(rope.get(key, value) != value for key, value in usual.items()):
        yield msg("its positions are rotated by a different rule ({rope:code})", str(rope)[:120])
    key = "final_logit_softcapping"
    cap = about.get(key)
    if cap is not None and not (isinstance(cap, (int, float)) and 0 < cap <= 1000):
        yield msg("its {key:code} is {value:code}, which is not a valid size", key, short_repr(cap))
