"""A model in Hugging Face's format: a folder with `config.json`, weights and a tokenizer, or a name on the hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanolens.data.tokenizers import GPT2Tokenizer, Tokenizer
from nanolens.errors import Fault, UserError, fault, require
from nanolens.interop.foreign import ForeignModel
from nanolens.interop.hf_shapes import Shape, shape_from
from nanolens.interop.hf_tokenizer import read_tokenizer
from nanolens.interop.safetensors_file import DTYPES, read_header, read_json, read_tensors
from nanolens.message import Message, msg

if TYPE_CHECKING:
    from torch import Tensor

HUB_NAMES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
WEIGHTS, INDEX, SHAPE = "model.safetensors", "model.safetensors.index.json", "config.json"
MOST_FILES = 1000
Told = Callable[[int, int], None]  # bytes done, bytes in all


def hugging_face_folder(source: str) -> Path | None:
    """The folder that `source` means, fetched from the hub where it is one of its names; None where it is neither."""
    folder = Path(source)
    if is_hugging_face(folder):
        return folder
    if source not in HUB_NAMES:
        return None
    hub = require("huggingface_hub", "hf")
    try:
        return Path(hub.snapshot_download(source, allow_patterns=[WEIGHTS, SHAPE]))
    except Exception as error:  # the hub's client raises a dozen kinds for "not reachable"
        raise fault(
            msg("{name:code} could not be fetched from the hub: {problem}", name=source, problem=str(error).splitlines()[0]),
            fix=msg(
                "download its {files:code} elsewhere, and give that folder instead of the name",
                files=[WEIGHTS, SHAPE],
            ),
        ) from None


def is_hugging_face(folder: Path) -> bool:
    return (folder / SHAPE).is_file() and any((folder / name).is_file() for name in (WEIGHTS, INDEX))


def read_hugging_face(folder: Path, tokenizer: Tokenizer | None = None, told: Told = lambda done, total: None) -> ForeignModel:
    """The model in the folder. `tokenizer` stands in for the folder's own."""
    shape = shape_from(read_json(folder / SHAPE), msg("{path:code}", path=str(folder / SHAPE)))
    notes: tuple[Message, ...] = ()
    if tokenizer is None:
        tokenizer = read_tokenizer(folder)
    if tokenizer is None and 0 <= shape.vocab_size - GPT2Tokenizer().vocab_size < 1024:
        tokenizer = GPT2Tokenizer()
        notes = (msg("the folder has no tokenizer; GPT-2's is taken, for it has as many tokens as the model"),)
    if tokenizer is not None and tokenizer.vocab_size > shape.vocab_size:
        raise fault(
            msg(
                "the tokenizer has {tokens:count} tokens and the model {rows:count}",
                tokens=tokenizer.vocab_size, rows=shape.vocab_size,
            ),
            where=msg("{path:code}", path=str(folder)),
            fix=msg("they do not belong together; name the right one with {option:code}", option="--tokenizer"),
        )  # fmt: skip
    weights = shape.weights_in(_tensors(folder, shape, told))
    if shape.settings["arch"] == "gpt2":
        weights["head.weight"] = weights["embedding.weight"]
    return ForeignModel(folder, "Hugging Face", shape.settings, shape.vocab_size, weights, tokenizer, notes=notes)


def _tensors(folder: Path, shape: Shape, told: Told) -> dict[str, Tensor]:
    """The tensors that the shape needs, as float32, by their plain names; every one that lacks or does not fit is told at once."""
    where_is: dict[str, tuple[Path, str]] = {}
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for path in _files(folder):
        for name, about in read_header(path).items():
            plain = shape.names(name)
            if plain is not None and plain in shape.wanted:
                where_is[plain], found[plain] = (path, name), about
    faults = list(_misfits(shape.wanted, found, msg("{folder:code}", folder=str(folder))))
    if faults:
        raise UserError(*faults[:8])
    tensors: dict[str, Any] = {}
    total = sum(path.stat().st_size for path in {path for path, _ in where_is.values()})
    for path in sorted({path for path, _ in where_is.values()}):
        names = {name: plain for plain, (place, name) in where_is.items() if place == path}
        tensors |= {names[name]: tensor.float() for name, tensor in read_tensors(path, names).items()}
        told(sum(tensor.numel() * 4 for tensor in tensors.values()), total)
    return tensors


def _files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    index = read_json(folder / INDEX).get("weight_map")
    names = set(index.values()) if isinstance(index, Mapping) and all(isinstance(name, str) for name in index.values()) else set()
    if not names or len(names) > MOST_FILES or any(Path(name).name != name or name.startswith(".") for name in names):
        raise fault(
            msg("{file:code} does not name files of this folder", file=str(folder / INDEX)),
            fix=msg("get the file again from where it was written"),
        )
    return [folder / name for name in sorted(names)]


def _misfits(wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[str, tuple[int, ...]]], where: Message) -> list[Fault]:
    faults = []
    if lacking := [name for name in wanted if name not in found]:
        what = msg(
            "the weights lack {count:count} of {total:count} tensors: {names:code}",
            count=len(lacking),
            total=len(wanted),
            names=lacking[:3],
        )
        faults.append(Fault(what, where))
    for name, (dtype, size) in found.items():
        if size != wanted[name]:
            what = msg("{name:code} is {found:code}, and the config makes it {wanted:code}", name=name, found=size, wanted=wanted[name])
            faults.append(Fault(what, where))
        if dtype not in DTYPES:
            faults.append(Fault(msg("{name:code} holds numbers of the kind {dtype:code}", name=name, dtype=dtype), where))
    return faults
