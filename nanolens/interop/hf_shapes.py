"""Two architectures of the transformers library that ours are, number for number: GPT2LMHeadModel and NanoChatForCausalLM.

Each is told by its `config.json`. What a config asks for and ours cannot do is refused, all of it at once: never a model that is nearly
right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nanolens.config.fields import Config
from nanolens.errors import Fault, UserError, fault
from nanolens.interop.gpt2_names import is_conv1d, to_ours, to_theirs
from nanolens.message import Message, msg

if TYPE_CHECKING:
    from torch import Tensor

GPT2, NANOCHAT = "GPT2LMHeadModel", "NanoChatForCausalLM"
GPT2_EPS, NANOCHAT_EPS, ROPE_BASE = 1e-5, 1e-6, 10_000.0
EXACT, TANH = ("gelu",), ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")  # their words for one activation
Weights = Mapping[str, "Tensor"]


# --- out


def faults_of(config: Config) -> Iterator[Fault]:
    """Why this model has no place in the library."""
    where = msg("{arch:code}", arch=f"arch={config.arch}")
    if config.arch not in ("gpt2", "modern"):
        yield Fault(
            msg("a model of your own has no place in another library"), where, msg("export what was trained with arch=gpt2 or arch=modern")
        )
    if config.arch == "modern" and config.token_shift:
        yield Fault(
            msg("it mixes each embedding with the one before ({key:code}), for which no other library has a place", key="token_shift"),
            where,
            msg("train one that can be exported: {options:code}", options="--token_shift=False --ngram_rows=0"),
        )
    if config.arch == "modern" and config.ngram_rows:
        yield Fault(
            msg("it has tables of n-grams ({key:code}), for which no other library has a place", key="ngram_rows"),
            where,
            msg("train one that can be exported: {options:code}", options="--token_shift=False --ngram_rows=0"),
        )


def shape_file(config: Config, vocab_size: int, end: int | None, dtype: str) -> dict[str, Any]:
    """`config.json`."""
    both = {"vocab_size": vocab_size, "bos_token_id": end, "eos_token_id": end, "dtype": dtype, "use_cache": True}
    if config.arch == "gpt2":
        return {
            "architectures": [GPT2], "model_type": "gpt2", **both, "n_positions": config.block_size, "n_ctx": config.block_size,
            "n_embd": config.n_embd, "n_layer": config.n_layer, "n_head": config.n_head, "n_inner": None,
            "activation_function": (TANH if config.gelu == "tanh" else EXACT)[0], "layer_norm_epsilon": GPT2_EPS, "initializer_range": 0.02,
            "resid_pdrop": config.dropout, "embd_pdrop": config.dropout, "attn_pdrop": config.dropout, "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False, "reorder_and_upcast_attn": False, "tie_word_embeddings": True,
        }  # fmt: skip
    return {
        "architectures": [NANOCHAT], "model_type": "nanochat", **both, "pad_token_id": None, "hidden_size": config.n_embd,
        "intermediate_size": 4 * config.n_embd, "num_hidden_layers": config.n_layer, "num_attention_heads": config.n_head,
        "num_key_value_heads": config.n_head, "max_position_embeddings": config.block_size, "hidden_act": "relu2", "attention_dropout": 0.0,
        "rms_norm_eps": NANOCHAT_EPS, "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_BASE},
        "final_logit_softcapping": config.softcap or None, "attention_bias": False, "tie_word_embeddings": False,
    }  # fmt: skip


def weights_out(config: Config, weights: Weights, vocab_size: int) -> dict[str, Tensor]:
    """Our tensors under their names; rows of the vocabulary beyond `vocab_size` are left out."""
    return _gpt2_out(config, weights, vocab_size) if config.arch == "gpt2" else _nanochat_out(config, weights, vocab_size)


def _gpt2_out(config: Config, weights: Weights, vocab_size: int) -> dict[str, Tensor]:
    out = {}
    for name, tensor in weights.items():
        if name == "head.weight":
            continue  # the embedding again
        tensor = tensor[:vocab_size] if name == "embedding.weight" else tensor
        out[to_theirs(name)] = tensor.t().contiguous() if is_conv1d(name) else tensor.contiguous()
        bias = name.removesuffix("weight") + "bias"
        if not config.bias and name not in ("embedding.weight", "position.weight"):
            out[to_theirs(bias)] = tensor.new_zeros(tensor.shape[0])  # theirs always has one; of zeros it does nothing
    return out


def _nanochat_out(config: Config, weights: Weights, vocab_size: int) -> dict[str, Tensor]:
    out = {"model.embed_tokens.weight": weights["embedding.weight"][:vocab_size], "lm_head.weight": weights["head.weight"][:vocab_size]}
    for block in range(config.n_layer):
        ours, theirs = f"blocks.{block}.", f"model.layers.{block}."
        q, k, v = weights[f"{ours}attention.qkv.weight"].chunk(3)
        out |= {
            f"{theirs}self_attn.q_proj.weight": halves(q, config.n_head), f"{theirs}self_attn.k_proj.weight": halves(k, config.n_head),
            f"{theirs}self_attn.v_proj.weight": v, f"{theirs}self_attn.o_proj.weight": weights[f"{ours}attention.out.weight"],
            f"{theirs}mlp.fc1.weight": weights[f"{ours}mlp.up.weight"], f"{theirs}mlp.fc2.weight": weights[f"{ours}mlp.down.weight"],
        }  # fmt: skip
    return {name: tensor.contiguous() for name, tensor in out.items()}


def halves(weight: Tensor, n_head: int) -> Tensor:
    """Ours turns channels 0 and 1 together, 2 and 3, ...; theirs i and i + half. In that order queries and keys give the same products."""
    return weight.unflatten(0, (n_head, -1, 2)).transpose(1, 2).flatten(0, 2)


def pairs(weight: Tensor, n_head: int) -> Tensor:
    """The inverse of `halves`."""
    return weight.unflatten(0, (n_head, 2, -1)).transpose(1, 2).flatten(0, 2)


# --- in


@dataclass(frozen=True)
class Shape:
    """What a `config.json` describes, by our names, and how its tensors become ours."""

    settings: Mapping[str, Any]
    vocab_size: int
    names: Callable[[str], str | None]  # a tensor's plain name, or None where it is not needed
    wanted: Mapping[str, tuple[int, ...]]  # their names and shapes
    weights_in: Callable[[Weights], dict[str, Tensor]]


def shape_from(about: Mapping[str, Any], where: Message) -> Shape:
    kind = about.get("model_type")
    if kind not in ("gpt2", "nanochat"):
        raise fault(
            msg("a model of type {kind:code} is not one that nanolens has", kind=str(kind)[:60]),
            where=where,
            fix=msg("give the folder of a {gpt2:code} or a {nanochat:code}", gpt2=GPT2, nanochat=NANOCHAT),
        )
    faults = [Fault(what, where, msg("this model cannot be imported")) for what in _differences(about, kind)]
    if faults:
        raise UserError(*faults[:8])
    return _gpt2_shape(about) if kind == "gpt2" else _nanochat_shape(about)


REQUIRED: dict[str, dict[str, tuple[Any, ...]]] = {
    "gpt2": {
        "activation_function": (None, *EXACT, *TANH), "layer_norm_epsilon": (None, GPT2_EPS), "scale_attn_weights": (None, True),
        "scale_attn_by_inverse_layer_idx": (None, False), "add_cross_attention": (None, False), "tie_word_embeddings": (None, True),
    },
    "nanochat": {
        "hidden_act": (None, "relu2"), "rms_norm_eps": (None, NANOCHAT_EPS), "attention_bias": (None, False),
        "tie_word_embeddings": (None, False),
    },
}  # fmt: skip
SIZES = {
    "gpt2": {"n_layer": "n_layer", "n_head": "n_head", "n_embd": "n_embd", "block_size": "n_positions", "vocab_size": "vocab_size"},
    "nanochat": {
        "n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_embd": "hidden_size", "block_size": "max_position_embeddings",
        "vocab_size": "vocab_size",
    },
}  # fmt: skip
LARGEST = {"n_layer": 1000, "n_head": 1000, "n_embd": 100_000, "block_size": 1_048_576, "vocab_size": 10_000_000}


def _differences(about: Mapping[str, Any], kind: str) -> Iterator[Message]:
    for key, allowed in REQUIRED[kind].items():
        value = about.get(key)
        if not any(value is known or value == known for known in allowed):
            yield msg("its {key:code} is {value:code}, and ours is {ours:code}", key=key, value=str(value)[:60], ours=list(allowed[1:]))
    for ours, theirs in SIZES[kind].items():
        size = about.get(theirs)
        if type(size) is not int or not 0 < size <= LARGEST[ours]:
            yield msg("its {key:code} is {value:code}, which is no size", key=theirs, value=repr(size)[:60])
            return
    width, heads = (about[SIZES[kind][key]] for key in ("n_embd", "n_head"))
    if width % heads:
        yield msg("its width {width:count} does not divide into {heads:count} heads", width=width, heads=heads)
        return
    inner, kv = about.get("n_inner" if kind == "gpt2" else "intermediate_size"), about.get("num_key_value_heads")
    if inner not in ((None, 4 * width) if kind == "gpt2" else (4 * width,)):
        yield msg("its mlp is {inner:code} wide, and ours four times the model", inner=str(inner)[:60])
    if kind == "nanochat":
        if kv not in (None, heads) or about.get("head_dim") not in (None, width // heads) or (width // heads) % 2:
            yield msg("its heads share keys or have another size, and ours do not")
        rope = about.get("rope_parameters") or {}
        if not isinstance(rope, Mapping) or rope.get("rope_type", "default") != "default" or rope.get("rope_theta", ROPE_BASE) != ROPE_BASE:
            yield msg("its positions are turned by another rule ({rope:code})", rope=str(rope)[:120])
        cap = about.get("final_logit_softcapping")
        if cap is not None and not (isinstance(cap, (int, float)) and 0 < cap <= 1000):
            yield msg("its {key:code} is {value:code}, which is no size", key="final_logit_softcapping", value=repr(cap)[:60])


def _sizes(about: Mapping[str, Any], kind: str) -> dict[str, int]:
    return {ours: about[theirs] for ours, theirs in SIZES[kind].items()}


def _gpt2_shape(about: Mapping[str, Any]) -> Shape:
    sizes = _sizes(about, "gpt2")
    width, context, vocabulary = sizes["n_embd"], sizes["block_size"], sizes.pop("vocab_size")
    wanted = {"wte.weight": (vocabulary, width), "wpe.weight": (context, width), "ln_f.weight": (width,), "ln_f.bias": (width,)}
    for block in range(sizes["n_layer"]):
        for norm in ("ln_1", "ln_2"):
            wanted |= {f"h.{block}.{norm}.weight": (width,), f"h.{block}.{norm}.bias": (width,)}
        for layer, into, out in (("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1), ("mlp.c_fc", 1, 4), ("mlp.c_proj", 4, 1)):
            wanted |= {f"h.{block}.{layer}.weight": (into * width, out * width), f"h.{block}.{layer}.bias": (out * width,)}
    settings = {"arch": "gpt2", **sizes, "bias": True, "gelu": "exact" if about.get("activation_function") in EXACT else "tanh"}

    def weights_in(theirs: Weights) -> dict[str, Tensor]:
        ours = {}
        for name, tensor in theirs.items():
            our_name = to_ours(name)
            assert our_name is not None
            ours[our_name] = tensor.t().contiguous() if is_conv1d(our_name) else tensor
        return ours

    return Shape(settings, vocabulary, lambda name: name.removeprefix("transformer."), wanted, weights_in)


def _nanochat_shape(about: Mapping[str, Any]) -> Shape:
    sizes = _sizes(about, "nanochat")
    width, heads, vocabulary, blocks = sizes["n_embd"], sizes["n_head"], sizes.pop("vocab_size"), sizes["n_layer"]
    wanted = {"model.embed_tokens.weight": (vocabulary, width), "lm_head.weight": (vocabulary, width)}
    for block in range(blocks):
        at = f"model.layers.{block}."
        wanted |= {f"{at}self_attn.{name}_proj.weight": (width, width) for name in "qkvo"}
        wanted |= {f"{at}mlp.fc1.weight": (4 * width, width), f"{at}mlp.fc2.weight": (width, 4 * width)}
    cap = about.get("final_logit_softcapping", 15.0)
    settings = {
        "arch": "modern", **sizes, "softcap": float(cap or 0.0), "token_shift": False, "ngram_rows": 0, "bias": False,
    }  # fmt: skip

    def weights_in(theirs: Weights) -> dict[str, Tensor]:
        import torch

        ours = {"embedding.weight": theirs["model.embed_tokens.weight"], "head.weight": theirs["lm_head.weight"]}
        for block in range(blocks):
            at, to = f"model.layers.{block}.", f"blocks.{block}."
            q, k, v = (theirs[f"{at}self_attn.{name}_proj.weight"] for name in "qkv")
            ours[f"{to}attention.qkv.weight"] = torch.cat((pairs(q, heads), pairs(k, heads), v))
            ours[f"{to}attention.out.weight"] = theirs[f"{at}self_attn.o_proj.weight"]
            ours[f"{to}mlp.up.weight"], ours[f"{to}mlp.down.weight"] = theirs[f"{at}mlp.fc1.weight"], theirs[f"{at}mlp.fc2.weight"]
        return ours

    return Shape(settings, vocabulary, lambda name: name, wanted, weights_in)
