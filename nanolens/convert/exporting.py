"""A trained model, written for other programs. What cannot be written exactly is refused, with all reasons at once."""

from __future__ import annotations

import contextlib
import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanolens import files
from nanolens.errors import Fault, UserError, fault, raise_if_any
from nanolens.message import Message, msg

if TYPE_CHECKING:
    from nanolens.loaded import Model
    from nanolens.record.run import Run

Told = Callable[[str, int, int], None]
TO = ("hf", "gguf", "nanogpt")
SPELLINGS = {"f32": "float32", "fp32": "float32", "f16": "float16", "fp16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True)
class Exported:
    name: str  # RUN@STEP
    path: Path
    what: str
    dtype: str
    bytes: int
    notes: tuple[Message, ...]
    uses: tuple[Message, ...]  # what to do with it


def export_model(
    run: str | Path, to: str, path: str | Path, *, best: bool = False, dtype: str | None = None, overwrite: bool = False,
    told: Told = lambda stage, done, total: None, lang: str = "en",
) -> Exported:  # fmt: skip
    """Writes the model of `RUN` or `RUN@STEP` to `path`: a folder for `hf` and `nanogpt`, a file for `gguf`."""
    from nanolens.loaded import load
    from nanolens.record.store import find_run

    find_run(str(run))  # what another program wrote is imported first: the card speaks of a run
    place = Path(path)
    faults = [*_place_faults(place, to, overwrite)]
    kind, wrong = _dtype(to, dtype)
    faults += wrong
    model = load(run, best=best, device="cpu")
    faults += _model_faults(model, to, kind)
    raise_if_any(faults)
    rows = _rows(model)
    needed = sum(tensor.numel() * tensor.element_size() for tensor in model.module.parameters()) * (3 if to == "nanogpt" else 1)
    files.require_free_space(place, needed, "exporting this")
    told("write", 0, needed)
    write = {"hf": _write_hf, "gguf": _write_gguf, "nanogpt": _write_nanogpt}[to]
    what, notes, uses = write(model, place, kind, rows, lang)
    if rows < _rows_there(model) and to != "nanogpt":
        left_out = msg(
            "the {count:count} rows that only fill the vocabulary up to {rows:count} are left out: they stand for no token",
            count=_rows_there(model) - rows, rows=_rows_there(model),
        )  # fmt: skip
        notes = (left_out, *notes)
    told("write", needed, needed)
    size = place.stat().st_size if place.is_file() else sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    return Exported(model.name, place, what, kind, size, notes, uses)


def _place_faults(place: Path, to: str, overwrite: bool) -> list[Fault]:
    where = msg("{path:code}", path=str(place))
    if to == "gguf":
        if place.is_dir():
            return [
                Fault(msg("this is a folder, and GGUF is one file"), where, msg("give a file's name, {example:code}", example="model.gguf"))
            ]
        is_taken = place.exists()
    else:
        if place.exists() and not place.is_dir():
            return [Fault(msg("there is a file in the way"), where, msg("give a folder's name"))]
        is_taken = place.is_dir() and any(place.iterdir())
    if is_taken and not overwrite:
        return [
            Fault(
                msg("there is something already"), where, msg("choose another name, or replace it with {option:code}", option="--overwrite")
            )
        ]
    if is_taken and overwrite and place.is_dir() and not _is_ours(place):
        return [
            Fault(
                msg("this folder was not made by an export, and is not replaced"), where, msg("choose another name, or remove it yourself")
            )
        ]
    return []


def _is_ours(place: Path) -> bool:
    manifest = files.read_manifest(place)
    return manifest is not None and "exported" in manifest


def _dtype(to: str, dtype: str | None) -> tuple[str, list[Fault]]:
    from nanolens.convert.gguf import TYPES
    from nanolens.interop.hf_out import DTYPES

    known = {"hf": DTYPES, "gguf": TYPES, "nanogpt": ("float32",)}[to]
    if dtype is None:
        return known[0], []
    kind = (
        SPELLINGS.get(dtype, dtype)
        if to != "gguf"
        else {long: short for short, long in SPELLINGS.items() if len(short) == 3}.get(dtype, dtype)
    )
    if kind in known:
        return kind, []
    what = msg("{dtype:code} is no type of numbers that {to:code} has", dtype=dtype, to=to)
    return known[0], [Fault(what, msg("{option:code}", option=f"--dtype={dtype}"), msg("use one of {choices:code}", choices=known))]


def _model_faults(model: Model, to: str, kind: str) -> list[Fault]:
    from nanolens.convert import gguf as gguf_out
    from nanolens.interop import hf_shapes, nanogpt_out

    if to == "hf":
        return list(hf_shapes.faults_of(model.config))
    if to == "gguf":
        return list(gguf_out.faults_of(model.config, model.tokenizer, kind))
    return list(nanogpt_out.faults_of(model.config))


def _rows_there(model: Model) -> int:
    return int(model.module.embedding.weight.shape[0])  # type: ignore[union-attr, index]


def _rows(model: Model) -> int:
    """Rows of the vocabulary that mean something: the tokenizer's, or those that an imported model came with."""
    from nanolens.record.write import read_run_file

    came_with = 0
    with contextlib.suppress(UserError, TypeError, ValueError):
        came_with = int((read_run_file(model.folder.parent.parent).get("imported") or {}).get("vocab_size", 0))
    return min(_rows_there(model), max(model.tokenizer.vocab_size, came_with))


Written = tuple[str, tuple[Message, ...], tuple[Message, ...]]


def _write_hf(model: Model, place: Path, kind: str, rows: int, lang: str) -> Written:
    from nanolens.checkpoint import tensors_of
    from nanolens.interop.hf_out import CARD, write_hugging_face
    from nanolens.interop.hf_shapes import GPT2, NANOCHAT
    from nanolens.present.model_card import PICTURE, model_card

    architecture = GPT2 if model.config.arch == "gpt2" else NANOCHAT
    card, picture = _card(model, architecture, rows)
    beside = {CARD: model_card(card, lang).encode()}
    if picture:
        beside[PICTURE] = picture
    with files.whole_folder(place, {"exported": model.name}) as fresh:
        write_hugging_face(fresh, model.config, tensors_of(model.module), model.tokenizer, rows, dtype=kind, beside=beside)
    command = f"AutoModelForCausalLM.from_pretrained({str(place)!r})"
    return architecture, (), (msg("in Python: {command:code}", command=command),)


def _write_gguf(model: Model, place: Path, kind: str, rows: int, lang: str) -> Written:
    from nanolens.checkpoint import tensors_of
    from nanolens.convert.gguf import notes_of, write_gguf

    if model.tokenizer.vocab_size != rows:
        raise fault(
            msg(
                "llama.cpp wants a token for each of the {rows:count} rows, and the tokenizer has {tokens:count}",
                rows=rows, tokens=model.tokenizer.vocab_size,
            ),
            fix=msg("import the model with the tokenizer that it was trained with"),
        )  # fmt: skip
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = place.with_name(f"{files.UNFINISHED}{place.name}")
    try:
        write_gguf(fresh, model.config, tensors_of(model.module), model.tokenizer, rows, kind=kind, name=model.name)
        files.sync_file(fresh)
        fresh.replace(place)
        files.sync_folder(place.parent)
    finally:
        fresh.unlink(missing_ok=True)
    return "GPT-2 (GGUF)", tuple(notes_of()), (msg("in llama.cpp: {command:code}", command=f"llama-cli -m {place} -p TEXT"),)


def _write_nanogpt(model: Model, place: Path, kind: str, rows: int, lang: str) -> Written:
    from nanolens.checkpoint import load, tensors_of
    from nanolens.interop.nanogpt_out import notes_of, write_nanogpt
    from nanolens.train.optimizers import build_optimizer

    checkpoint = load(model.folder)
    optimizer = checkpoint.resuming["optimizer"]
    if model.config.optimizer != "adamw":  # nanoGPT's groups, with nothing in them yet
        import dataclasses

        optimizer = build_optimizer(model.module.requires_grad_(True), dataclasses.replace(model.config, optimizer="adamw")).state_dict()
    val_loss = float(checkpoint.state["progress"].get("val_loss", math.nan))
    with files.whole_folder(place, {"exported": model.name}) as fresh:
        write_nanogpt(
            fresh, model.config, tensors_of(model.module), optimizer, model.tokenizer, vocab_size=_rows_there(model), step=model.step,
            val_loss=1e9 if math.isnan(val_loss) else val_loss,
        )  # fmt: skip
    uses = (
        msg("nanoGPT goes on with it: {command:code}", command=f"python train.py CONFIG --init_from=resume --out_dir={place}"),
        msg("nanoGPT writes with it: {command:code}", command=f"python sample.py --out_dir={place}"),
    )
    return "nanoGPT ckpt.pt", tuple(notes_of(model.config, model.tokenizer)), uses


# --- the model card


def _card(model: Model, architecture: str, rows: int) -> tuple[Any, bytes | None]:
    from nanolens.diagnosis import diagnose
    from nanolens.present.model_card import Card
    from nanolens.record.read import read_run
    from nanolens.record.run import until

    folder = model.folder.parent.parent
    run = until(read_run(folder), model.step)
    findings = diagnose(run).findings if len(run.steps) else ()
    curves = _curves(run)
    picture = _picture(curves, folder.name) if importlib.util.find_spec("matplotlib") else None
    parameters = sum(parameter.numel() for parameter in model.module.parameters())
    notes = []
    if model.config.arch == "gpt2" and not model.config.bias:
        notes.append(msg("It was trained without biases; those in the file are zeros."))
    if _rows_there(model) > rows:
        notes.append(
            msg(
                "Its vocabulary was padded to {rows:count} rows in training; the file has the {tokens:count} that stand for a token.",
                rows=_rows_there(model), tokens=rows,
            )
        )  # fmt: skip
    start = model.tokenizer.decode([0]) if model.tokenizer.kind == "char" else "The"
    card = Card(
        model.name,
        architecture,
        parameters,
        model.config.block_size,
        _facts(run, model),
        findings,
        curves,
        picture is not None,
        notes,
        start,
    )
    return card, picture


def _facts(run: Run, model: Model) -> Sequence[tuple[Message, Message]]:
    """What the run's record knows; what it does not is left out."""
    facts: list[tuple[Message, Message]] = []
    name = run.get("data_name") or Path(str(run.get("dataset") or "")).name
    if name:
        facts.append((msg("data"), msg("{name}", name=str(name))))
    if tokens := run.number("dataset_tokens"):
        facts.append((msg("tokens of the data"), msg("{tokens:tokens}", tokens=tokens)))
    facts.append((msg("tokenizer"), msg("{kind:code}, {count:count} tokens", kind=model.tokenizer.kind, count=model.tokenizer.vocab_size)))
    facts.append((msg("updates"), msg("{step:count}", step=model.step)))
    if per_update := run.number("tokens_per_update"):
        facts.append((msg("tokens seen"), msg("{tokens:tokens}", tokens=model.step * per_update)))
    last = len(run.evals) - 1
    if last >= 0:
        for title, loss in ((msg("train loss"), run.evals.train[last]), (msg("val loss"), run.evals.val[last])):
            if math.isfinite(loss):
                facts.append(
                    (title, msg("{loss:nats} nats per token, at step {step:count}", loss=float(loss), step=int(run.evals.step[last])))
                )
        bits = float(run.evals.val_bits_per_byte[last])
        if math.isfinite(bits):
            facts.append((msg("bits per byte (val)"), msg("{bits:number}", bits=round(bits, 4))))
    for key in ("optimizer", "learning_rate", "batch_size", "gradient_accumulation_steps", "seed", "hardware"):
        if (value := run.get(key)) not in (None, ""):
            facts.append((msg("{key:code}", key=key), msg("{value:code}", value=str(value))))
    return facts


def _curves(run: Run) -> list[Any]:
    from nanolens.present.curves import Series

    steps = [float(step) for step in run.evals.step]
    both = [("train", run.evals.train), ("val", run.evals.val)]
    return [Series(name, steps, [float(loss) for loss in losses]) for name, losses in both if len(steps) > 1]


def _picture(curves: list[Any], title: str) -> bytes | None:
    from nanolens.present.plots import Panel, picture

    return picture([Panel("step", "loss (nats per token)", curves)], "png", title) if curves else None


__all__ = ["TO", "Exported", "export_model"]
