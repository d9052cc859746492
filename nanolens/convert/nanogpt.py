"""nanoGPT's `ckpt.pt`, both ways: weights, AdamW's state and settings, so that training goes on.

nanoGPT keeps AdamW's moments by number: first the parameters that are decayed, then the others, each in the order of
the model; in its first months both in the order of their names, with the embeddings among the others.

A `ckpt.pt` is a zip archive with a pickle (`data.pkl`) that describes the values, and one entry for the numbers of each
tensor. torch's own reader runs nothing in it and maps the numbers without reading them. It does trust sizes: those of
the archive and of the pickle are looked at before, those of the tensors before they are copied."""

from __future__ import annotations

import dataclasses
import math
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from reprlib import repr as short_repr
from typing import IO, Any, TypeVar

import torch
from torch import Tensor

from nanolens import files
from nanolens.config.fields import Config
from nanolens.config.fields import settings as our_settings
from nanolens.convert import foreign
from nanolens.convert.foreign import (
    FOREIGN_FORMATS,
    ForeignModel,
    Moments,
    Settings,
    Shape,
    Weights,
    to_ours,
    to_theirs,
)
from nanolens.data.store import open_folder, tokenizer_from_meta
from nanolens.data.token_files import META, MOST_PICKLE_BYTES, UnsafePickle, require_plain_pickle, tokens_file
from nanolens.data.tokenizers import GPT2Tokenizer, Tokenizer, may_be_gpt2
from nanolens.errors import Fault, UserError, fault, raise_if_any
from nanolens.message import Message, msg

CHECKPOINT = "ckpt.pt"
COMPILED = "_orig_mod."  # before each name of a compiled model
MOMENTS = ("exp_avg", "exp_avg_sq")
# Of the machine that it was trained on, or of that one run
NOT_TAKEN = ("device", "dtype", "compile", "backend", "out_dir", "init_from", "wandb_log", "eval_only")
# Settings of ours that change a training, and what nanoGPT does
UNKNOWN_TO_IT = {"schedule": "cosine", "label_smoothing": 0.0}
MOST_DIRECTORY_BYTES = 4 << 20  # of the archive's list of entries; a model of 1,000 blocks with its optimizer has 3 MB
Key = TypeVar("Key")
TORCH_NAMES = re.compile(r"torch\._utils _rebuild_(tensor_v2|parameter)|torch [A-Z]\w*Storage|collections OrderedDict")


def nanogpt_file(source: Path) -> Path | None:
    """The checkpoint that `source` means: the file itself, or the one in an `out` folder; None where it is neither."""
    return next((path for path in (source, source / CHECKPOINT) if path.is_file() and path.suffix == ".pt"), None)


def read_nanogpt(path: Path, tokenizer: Tokenizer | None = None, dataset: Path | None = None) -> ForeignModel:
    """The model in the file. Where `dataset` does not name its data, nanoGPT's folders are searched for it."""
    whole = _dict(_read_checkpoint(path))
    sizes = _sizes(whole, path)
    rows = sizes["vocab_size"]
    parameters = foreign.parameters_of(Config(**sizes), rows)  # type: ignore[arg-type]
    wanted = {name: tuple(tensor.shape) for name, tensor in parameters.items()}
    weights = _weights(_dict(whole["model"]), wanted, path)
    given = _dict(whole.get("config"))
    folder = dataset or _dataset(path, given.get("dataset"))
    tokenizer, notes = _tokenizer(tokenizer, folder, path.parent / META, rows)
    moments, trouble = _moments(whole.get("optimizer"), wanted, path)
    step, loss = whole.get("iter_num"), _number(whole.get("best_val_loss"))
    if type(step) is not int or not 0 <= step < 10**12:
        raise _unreadable(path, "it does not say at which iteration it was saved")
    if loss is not None and not (math.isfinite(loss) and loss < 1e9):  # nanoGPT's word for none
        loss = None
    settings, notes = _settings(given, sizes, folder), notes + trouble
    return ForeignModel(path, "nanoGPT", settings, rows, weights, tokenizer, folder, step, moments, loss, notes)


def _read_checkpoint(path: Path) -> object:
    try:
        require_plain_pickle(_pickle_in(path), TORCH_NAMES)
        return torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except UnsafePickle as reason:
        raise _unreadable(path, str(reason)) from None
    except Exception as error:  # of a damaged file, nearly any
        sentence = re.split(r"\.\s|\n", str(error).rpartition("WeightsUnpickler error: ")[2])[0]
        raise _unreadable(path, f"it is damaged ({sentence:.200})") from None


def _unreadable(path: Path, reason: str) -> UserError:
    what = msg(
        "this checkpoint is not just tensors and plain data from torch.save, and was not opened: {reason}", reason
    )
    fix = msg("a pickle can run code, so only plain ones are read; get the file again from its source")
    return fault(what, where=str(path), fix=fix)


def _pickle_in(path: Path) -> bytes:
    if not path.is_file():
        raise UnsafePickle("it is not a file")
    with open(path, "rb") as file:
        _require_small_directory(file, path.stat().st_size)
        with zipfile.ZipFile(file) as archive:
            entries = [entry for entry in archive.infolist() if re.fullmatch("[^/]+/data.pkl", entry.filename)]
            if len(entries) != 1:
                raise UnsafePickle("it holds no data.pkl")
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise UnsafePickle("an entry is compressed")
            if entries[0].file_size > MOST_PICKLE_BYTES:
                raise UnsafePickle(f"its data.pkl is {entries[0].file_size:,} bytes long")
            return archive.read(entries[0])


def _require_small_directory(file: IO[bytes], size: int) -> None:
    """Python's zipfile keeps the whole list of entries, however long the file says that it is."""
    file.seek(max(0, size - 22 - 65535 - 20))
    tail = file.read()
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < 22:
        raise UnsafePickle("it is not a zip archive; files of torch before 1.6 cannot be read")
    (length,) = struct.unpack_from("<I", tail, at + 12)
    if at >= 20 and tail[at - 20 : at - 16] == b"PK\x06\x07":
        (where,) = struct.unpack_from("<Q", tail, at - 12)
        if where > size - 56:
            raise UnsafePickle("its list of entries is not where it should be")
        file.seek(where)
        (length,) = struct.unpack_from("<Q", file.read(56), 40)
    if length > MOST_DIRECTORY_BYTES:
        raise UnsafePickle(f"its list of entries is {length:,} bytes long")


def _sizes(whole: Mapping[object, object], path: Path) -> dict[str, int]:
    args = whole.get("model_args")
    if not isinstance(args, dict) or not isinstance(whole.get("model"), dict):
        what = msg("this is not a nanoGPT checkpoint: {keys:code} is missing", ["model", "model_args"])
        raise fault(what, where=str(path), fix=msg("give a {name:code} written by nanoGPT's train.py", CHECKPOINT))
    wrong = foreign.invalid_sizes(args, {key: key for key in foreign.LARGEST})
    if type(bias := args.get("bias")) is not bool:
        wrong.append(msg("its {key:code} is {value:code}, neither True nor False", "bias", short_repr(bias)))
    raise_if_any(Fault(what, str(path)) for what in wrong)
    return {key: args[key] for key in (*foreign.LARGEST, "bias")}


def _weights(model: Mapping[object, object], wanted: Mapping[str, Shape], path: Path) -> dict[str, Tensor]:
    """Its tensors by our names; the head is the embedding, and buffers of old versions are not needed."""
    named = {to_ours(str(name).removeprefix(COMPILED)): value for name, value in model.items()}
    found = {name: value for name in wanted if isinstance(value := named.get(name), Tensor)}
    about = {to_theirs(name): (str(tensor.dtype), tuple(tensor.shape)) for name, tensor in found.items()}
    raise_if_any(foreign.misfits({to_theirs(name): shape for name, shape in wanted.items()}, about, path))
    return _copied(found, path)


def _copied(tensors: Mapping[Key, Tensor], path: Path) -> dict[Key, Tensor]:
    """As float32, each with its own numbers. Where many tensors share a few, the copies would fill the memory."""
    if sum(tensor.nbytes for tensor in tensors.values()) > path.stat().st_size:
        raise _unreadable(path, "its tensors are larger than the file")
    return {
        key: tensor.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        for key, tensor in tensors.items()
    }


def _dataset(checkpoint: Path, name: object) -> Path | None:
    """nanoGPT looks in `data/NAME` of the folder that it is started in, which is most often where `out` is."""
    if not isinstance(name, str) or not name or len(name) > 200 or "\0" in name:
        return None
    folders = (Path("data") / name, checkpoint.absolute().parent.parent / "data" / name, Path(name))
    return next((each for each in folders if tokens_file(each, "train").is_file() or (each / META).is_file()), None)


def _tokenizer(
    given: Tokenizer | None, folder: Path | None, beside: Path, rows: int
) -> tuple[Tokenizer | None, tuple[Message, ...]]:
    """The one that is named; else what an export of ours put beside the checkpoint; else that of its data."""
    if given is not None:
        return given, ()
    if beside.is_file():
        return tokenizer_from_meta(beside), ()
    if folder is not None:
        has_tokens = tokens_file(folder, "train").is_file()
        return open_folder(folder).tokenizer if has_tokens else tokenizer_from_meta(folder / META), ()
    if not may_be_gpt2(rows):
        return None, ()
    note = msg(
        "its data was not found; GPT-2's tokenizer is used, as in nanoGPT, because it has as many tokens as the model"
    )
    return GPT2Tokenizer(), (note,)


def _settings(given: Mapping[object, object], sizes: Mapping[str, int], dataset: Path | None) -> Settings:
    """Its settings by our names, which are the same; those of the machine are chosen anew."""
    kept: Settings = {
        key: value
        for key in our_settings()
        if isinstance(value := given.get(key), (bool, int, float, str)) and key not in NOT_TAKEN
    }
    kept |= {**sizes, "arch": "gpt2", "data_order": "nanogpt", "optimizer": "adamw"}
    if dataset is not None:
        kept["dataset"] = str(dataset)
    return kept


def _moments(saved: object, wanted: Mapping[str, Shape], path: Path) -> tuple[Moments | None, tuple[Message, ...]]:
    """AdamW's moments by the numbers that ours has, or None with the reason."""
    if saved is None:
        return None, (msg("it has no optimizer state: AdamW starts fresh"),)
    order = _order(saved, wanted)
    state = _dict(saved).get("state")
    if order is None or not isinstance(state, dict):
        return None, (msg("its optimizer state is not that of AdamW for this model: AdamW starts fresh"),)
    if not state:
        return None, ()
    number_of = {name: number for number, name in enumerate(_numbered(wanted))}
    found: dict[tuple[int, str], Tensor] = {}
    for number, name in enumerate(order):
        kept = _dict(state.get(number))
        step = _number(kept.get("step"))
        fits = {key: m for key in MOMENTS if isinstance(m := kept.get(key), Tensor) and m.shape == wanted[name]}
        if step is None or len(fits) < len(MOMENTS) or not all(m.is_floating_point() for m in fits.values()):
            why = msg("its optimizer state does not fit {name:code}: AdamW starts fresh", to_theirs(name))
            return None, (why,)
        fits["step"] = torch.tensor(step)
        found |= {(number_of[name], key): tensor for key, tensor in fits.items()}
    moments: Moments = {}
    for (number, key), tensor in _copied(found, path).items():
        moments.setdefault(number, {})[key] = tensor
    return moments, ()


def _numbered(wanted: Mapping[str, Shape]) -> list[str]:
    """Our optimizer's order: matrices first, each kind in the model's order."""
    return sorted(wanted, key=lambda name: len(wanted[name]) == 1)


def _order(saved: object, wanted: Mapping[str, Shape]) -> list[str] | None:
    """Our names by their numbers there; which of nanoGPT's two orders it is shows in the size of the first group."""
    try:
        first, second = (group["params"] for group in saved["param_groups"])  # type: ignore[index]
        if [*first, *second] != list(range(len(wanted))):
            return None
    except (KeyError, TypeError, ValueError):
        return None
    matrices = [name for name, shape in wanted.items() if len(shape) > 1]
    if len(first) == len(matrices):
        return _numbered(wanted)
    linear = [name for name in matrices if name not in ("embedding.weight", "position.weight")]
    if len(first) == len(linear):
        return [*sorted(linear, key=to_theirs), *sorted((name for name in wanted if name not in linear), key=to_theirs)]
    return None


def _number(value: object) -> float | None:
    """Of a number, or of a tensor of one."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value)
    return float(value) if isinstance(value, (int, float)) else None


def _dict(value: object) -> dict[object, object]:
    return value if isinstance(value, dict) else {}


# --- and back: `train.py --init_from=resume` goes on from it, `sample.py` writes with it


def faults_of(config: Config) -> Iterator[Fault]:
    """Why nanoGPT cannot have this model."""
    if config.arch != "gpt2":
        fix = msg("export a model trained with {option:code}", "--arch=gpt2")
        yield Fault(msg("nanoGPT supports only GPT-2"), f"arch={config.arch}", fix)
    elif config.gelu != "exact":
        what = msg("nanoGPT uses the exact GELU, and this model was trained with its approximation")
        fix = msg("continue training with {option:code} for some updates, and export that", "--gelu=exact")
        yield Fault(what, f"gelu={config.gelu}", fix)


def notes_of(config: Config, tokenizer: Tokenizer) -> Iterator[Message]:
    """What nanoGPT will do otherwise if it goes on with this run."""
    for key, value in UNKNOWN_TO_IT.items():
        if getattr(config, key) != value:
            here = f"{key}={getattr(config, key)}"
            yield msg("nanoGPT does not have {ours:code} and would continue with {theirs:code}", here, f"{key}={value}")
    if config.optimizer != "adamw":
        yield msg("nanoGPT does not have {optimizer:code}: its AdamW would start fresh", config.optimizer)
    if tokenizer.kind == "bpe":
        yield msg(
            "nanoGPT supports only GPT-2's tokens and characters: its sample.py cannot decode this model's output"
        )
    if tokenizer.kind == "char":
        place = f"data/{_dataset_name(config)}/"
        yield msg("its sample.py decodes with {meta:code}: copy it to {place:code}", META, place)


def write_nanogpt(
    path: Path, config: Config, weights: Weights, optimizer: Mapping[str, Any], vocab_size: int, step: int, loss: float
) -> None:
    """`optimizer` is the state of our AdamW, which has the same parameters under the same numbers."""
    model = {to_theirs(name): tensor for name, tensor in weights.items() if name != "head.weight"}
    model["lm_head.weight"] = model["transformer.wte.weight"]
    shape = {key: getattr(config, key) for key in ("n_layer", "n_head", "n_embd", "block_size", "bias", "dropout")}
    shared = {**FOREIGN_FORMATS["adamw"], "lr": config.learning_rate, "betas": (config.beta1, config.beta2)}
    groups = [
        {**shared, "weight_decay": decay, "params": group["params"]}
        for decay, group in zip((config.weight_decay, 0.0), optimizer["param_groups"], strict=True)
    ]
    whole = {
        "model": model,
        "optimizer": {"state": optimizer["state"], "param_groups": groups},
        "model_args": {**shape, "vocab_size": vocab_size},
        "iter_num": step,
        "best_val_loss": torch.tensor(loss),
        "config": _config(config),
    }
    with files.whole_file(path) as file:
        torch.save(whole, file)


def _config(config: Config) -> dict[str, object]:
    """nanoGPT's settings; what we decide by ourselves (`auto`) as nanoGPT's default."""
    ours = dataclasses.asdict(config)
    fallback = {"device": "cuda", "dtype": "float16", "compile": True, "lr_decay_iters": config.max_iters}
    known = {
        key: ours[key] if ours[key] not in (None, "auto") else fallback.get(key, ours[key])
        for key in FOREIGN_FORMATS["nanogpt_settings"]
    }
    return {**known, "dataset": _dataset_name(config), "out_dir": "out", "init_from": "scratch", "wandb_log": False}


def _dataset_name(config: Config) -> str:
    """nanoGPT joins it to `data/`."""
    return Path(config.dataset).name or config.dataset
