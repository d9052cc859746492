"""nanoGPT's `ckpt.pt`, and the `out` folder that it lies in: weights, AdamW's state and settings, so that training goes on.

The file is read by `torch_file.py`, which runs nothing. nanoGPT keeps AdamW's moments by number: first the parameters that are decayed,
then the others, each in the order of the model; in its first months both in the order of their names, with the embeddings among the others.
A model that was compiled has `_orig_mod.` before each name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanolens.config.fields import settings as our_settings
from nanolens.data.sidecar import META, tokens_file
from nanolens.data.store import open_folder, tokenizer_from_meta
from nanolens.data.tokenizers import GPT2Tokenizer, Tokenizer
from nanolens.errors import Fault, UserError, fault
from nanolens.interop.foreign import ForeignModel
from nanolens.interop.gpt2_names import to_ours, to_theirs
from nanolens.interop.torch_file import Stored, read_torch_file, unreadable
from nanolens.message import Message, msg

if TYPE_CHECKING:
    from torch import Tensor

CHECKPOINT = "ckpt.pt"
COMPILED = "_orig_mod."
SIZES = {"n_layer": 1000, "n_head": 1000, "n_embd": 100_000, "block_size": 1_048_576, "vocab_size": 10_000_000}
MACHINE = ("device", "dtype", "compile", "backend")  # of the machine that it was trained on
MOMENTS = ("exp_avg", "exp_avg_sq")
FLOATS = ("float32", "float16", "bfloat16", "float64")


def nanogpt_file(source: Path) -> Path | None:
    """The checkpoint that `source` means: the file itself, or the one in an `out` folder; None where it is neither."""
    for path in (source, source / CHECKPOINT):
        if path.is_file() and path.suffix == ".pt":
            return path
    return None


def read_nanogpt(path: Path, tokenizer: Tokenizer | None = None, dataset: Path | None = None) -> ForeignModel:
    """The model in the file. Its data is looked for below `data/`, here and beside the `out` folder, unless `dataset` names it."""
    whole = read_torch_file(path)
    where = msg("{path:code}", path=str(path))
    sizes = _sizes(whole, where)
    given = whole.get("config") if isinstance(whole.get("config"), dict) else {}
    named = _named(whole["model"])
    wanted = _shapes(sizes)
    _require_fit(named, wanted, where)
    folder = dataset or _dataset(path, given.get("dataset"))
    tokenizer, notes = _tokenizer(tokenizer, folder, path.parent / META, sizes["vocab_size"])
    weights = {name: named[name].read().float() for name in wanted}
    weights["head.weight"] = weights["embedding.weight"]
    optimizer, trouble = _optimizer(whole.get("optimizer"), wanted)
    notes += trouble
    step, val_loss = whole.get("iter_num"), whole.get("best_val_loss")
    if type(step) is not int or not 0 <= step < 10**12:
        raise unreadable(path, "it does not say at which iteration it was saved")
    return ForeignModel(
        path, "nanoGPT", _settings(given, sizes, folder), sizes["vocab_size"], weights, tokenizer, folder, step, optimizer,
        _loss(val_loss), notes,
    )  # fmt: skip


def _sizes(whole: Any, where: Message) -> dict[str, Any]:
    args = whole.get("model_args") if isinstance(whole, dict) else None
    if not isinstance(args, dict) or not isinstance(whole.get("model"), dict):
        raise fault(
            msg("this is no checkpoint of nanoGPT's: it has no {keys:code}", keys=["model", "model_args"]),
            where=where,
            fix=msg("give a {name:code} that nanoGPT's train.py wrote", name=CHECKPOINT),
        )
    faults = [
        Fault(msg("its {key:code} is {value:code}, which is no size", key=key, value=repr(args.get(key))[:60]), where)
        for key, most in SIZES.items()
        if type(args.get(key)) is not int or not 0 < args[key] <= most
    ]
    if not faults and args["n_embd"] % args["n_head"]:
        faults.append(
            Fault(
                msg("its width {width:count} does not divide into {heads:count} heads", width=args["n_embd"], heads=args["n_head"]), where
            )
        )
    if type(args.get("bias")) is not bool:
        faults.append(
            Fault(msg("its {key:code} is {value:code}, neither True nor False", key="bias", value=repr(args.get("bias"))[:60]), where)
        )
    if faults:
        raise UserError(*faults)
    return {**{key: args[key] for key in SIZES}, "bias": args["bias"]}


def _named(model: Mapping[str, Any]) -> dict[str, Any]:
    """Its tensors by our names; the head is the embedding, and buffers of old versions are not needed."""
    found = {}
    for name, value in model.items():
        if isinstance(name, str) and (ours := to_ours(name.removeprefix(COMPILED))) is not None:
            found[ours] = value
    return found


def _shapes(sizes: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Each parameter's shape, in the order in which both models have them."""
    width = sizes["n_embd"]
    shapes: dict[str, tuple[int, ...]] = {
        "embedding.weight": (sizes["vocab_size"], width), "position.weight": (sizes["block_size"], width),
    }  # fmt: skip

    def add(name: str, *shape: int) -> None:
        shapes[f"{name}.weight"] = shape
        if sizes["bias"]:
            shapes[f"{name}.bias"] = shape[:1]

    for block in range(sizes["n_layer"]):
        at = f"blocks.{block}."
        add(f"{at}norm1", width)
        add(f"{at}attention.qkv", 3 * width, width)
        add(f"{at}attention.out", width, width)
        add(f"{at}norm2", width)
        add(f"{at}mlp.up", 4 * width, width)
        add(f"{at}mlp.down", width, 4 * width)
    add("norm", width)
    return shapes


def _require_fit(named: Mapping[str, Any], wanted: Mapping[str, tuple[int, ...]], where: Message) -> None:
    lacking = [name for name in wanted if not isinstance(named.get(name), Stored) or named[name].numbers.dtype not in FLOATS]
    if lacking:
        names = [to_theirs(name) for name in lacking[:3]]
        raise fault(
            msg(
                "the weights lack {count:count} of {total:count} tensors: {names:code}", count=len(lacking), total=len(wanted), names=names
            ),
            where=where,
        )  # fmt: skip
    faults = []
    for name, shape in wanted.items():
        found = named[name]
        if found.shape != shape:
            what = msg(
                "{name:code} is {found:code}, and the config makes it {wanted:code}", name=to_theirs(name), found=found.shape, wanted=shape
            )
            faults.append(Fault(what, where))
        if len(faults) == 8:
            break
    if faults:
        raise UserError(*faults)


# --- its data


def _dataset(checkpoint: Path, name: Any) -> Path | None:
    """nanoGPT looks in `data/NAME` of the folder that it is started in, which is most often where `out` is."""
    if not isinstance(name, str) or not name or len(name) > 200 or "\0" in name:
        return None
    for folder in (Path("data") / name, checkpoint.absolute().parent.parent / "data" / name, Path(name)):
        if tokens_file(folder, "train").is_file() or (folder / META).is_file():
            return folder
    return None


def _tokenizer(given: Tokenizer | None, folder: Path | None, beside: Path, rows: int) -> tuple[Tokenizer | None, tuple[Message, ...]]:
    """The one that is named; else what an export of ours put beside the checkpoint; else that of its data."""
    if given is not None:
        return given, ()
    if beside.is_file():
        return tokenizer_from_meta(beside), ()
    if folder is not None and tokens_file(folder, "train").is_file():
        return open_folder(folder).tokenizer, ()
    if folder is not None:
        return tokenizer_from_meta(folder / META), ()
    gpt2 = GPT2Tokenizer()
    if 0 <= rows - gpt2.vocab_size < 1024:
        return gpt2, (msg("its data was not found; GPT-2's tokenizer is taken, as nanoGPT does, for it has as many tokens as the model"),)
    return None, ()


# --- its settings and its optimizer


def _settings(given: Mapping[str, Any], sizes: Mapping[str, Any], dataset: Path | None) -> dict[str, Any]:
    """Its settings by our names, which are the same; those of the machine are chosen anew."""
    known = our_settings()
    kept = {
        key: value for key, value in given.items() if isinstance(key, str) and key in known and isinstance(value, (bool, int, float, str))
    }
    for key in (*MACHINE, "out_dir", "init_from", "wandb_log", "eval_only"):
        kept.pop(key, None)
    kept |= {**sizes, "arch": "gpt2", "data_order": "nanogpt", "optimizer": "adamw"}
    if dataset is not None:
        kept["dataset"] = str(dataset)
    return kept


def _optimizer(saved: Any, wanted: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, Any] | None, tuple[Message, ...]]:
    """AdamW's state by the numbers that ours has, or None with the reason."""
    if saved is None:
        return None, (msg("it holds no state of the optimizer: AdamW begins afresh"),)
    order = _order(saved, wanted)
    state = saved.get("state") if isinstance(saved, dict) else None
    if order is None or not isinstance(state, dict):
        return None, (msg("the state of its optimizer is not AdamW's for this model: AdamW begins afresh"),)
    if not state:
        return None, ()
    ours = _numbered(wanted)
    moments: dict[int, dict[str, Tensor]] = {}
    for number, name in enumerate(order):
        kept = state.get(number)
        if kept is None or not _are_moments(kept, wanted[name]):
            return None, (msg("the state of its optimizer does not fit {name:code}: AdamW begins afresh", name=to_theirs(name)),)
        moments[ours[name]] = {key: kept[key].read().float() for key in MOMENTS} | {"step": _step(kept["step"])}
    decayed = [ours[name] for name, shape in wanted.items() if len(shape) > 1]
    others = [ours[name] for name, shape in wanted.items() if len(shape) == 1]
    return {"state": moments, "param_groups": [{"params": decayed}, {"params": others}]}, ()


def _numbered(wanted: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Our optimizer's numbers: matrices first, each kind in the model's order."""
    names = [name for name, shape in wanted.items() if len(shape) > 1] + [name for name, shape in wanted.items() if len(shape) == 1]
    return {name: number for number, name in enumerate(names)}


def _order(saved: Any, wanted: Mapping[str, tuple[int, ...]]) -> list[str] | None:
    """Our names in the order of their numbers; which of nanoGPT's two orders it is shows in the size of the first group."""
    try:
        first, second = (group["params"] for group in saved["param_groups"])
        if [*first, *second] != list(range(len(wanted))):
            return None
    except (KeyError, TypeError, ValueError):
        return None
    matrices = [name for name, shape in wanted.items() if len(shape) > 1]
    if len(first) == len(matrices):
        return list(_numbered(wanted))
    linear = [name for name in matrices if name not in ("embedding.weight", "position.weight")]
    if len(first) == len(linear):
        return [*sorted(linear, key=to_theirs), *sorted((name for name in wanted if name not in linear), key=to_theirs)]
    return None


def _are_moments(kept: Any, shape: tuple[int, ...]) -> bool:
    if not isinstance(kept, dict) or "step" not in kept:
        return False
    step = kept["step"]
    if not isinstance(step, (int, float)) and not (isinstance(step, Stored) and math.prod(step.shape) == 1):
        return False
    return all(isinstance(kept.get(key), Stored) and kept[key].shape == shape and kept[key].numbers.dtype in FLOATS for key in MOMENTS)


def _step(value: Any) -> Tensor:
    import torch

    return value.read().float().reshape(()) if isinstance(value, Stored) else torch.tensor(float(value))


def _loss(value: Any) -> float | None:
    """A number or a tensor of one; 1e9 is nanoGPT's word for none."""
    if isinstance(value, Stored):
        value = float(value.read().reshape(-1)[0]) if math.prod(value.shape) == 1 else None
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) and value < 1e9 else None
