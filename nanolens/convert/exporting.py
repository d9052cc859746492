"""A trained model, written for other programs. What cannot be written exactly is refused, with all reasons at once."""

from __future__ import annotations

import contextlib
import importlib.util
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from nanolens import files
from nanolens.convert import foreign, gguf, nanogpt
from nanolens.convert.foreign import GPT2, NANOCHAT, OnStage, no_progress
from nanolens.convert.hf_folder import CARD, DTYPE_NAMES, write_hugging_face
from nanolens.data.token_files import META
from nanolens.data.tokenizers import CharTokenizer
from nanolens.diagnosis import diagnose
from nanolens.errors import Fault, UserError, fault, raise_if_any
from nanolens.loaded import Model, load
from nanolens.message import Message, msg
from nanolens.record.read import read_run
from nanolens.record.run import RunRecord, until
from nanolens.record.store import find_run
from nanolens.record.write import read_run_file
from nanolens.show.answer import fenced
from nanolens.show.answer import said_in_markdown as said
from nanolens.show.curves import Series, overlaid
from nanolens.show.findings import SURENESS_WORDS
from nanolens.show.plots import Panel, picture
from nanolens.training.checkpoint import load as load_checkpoint
from nanolens.training.checkpoint import tensors_of
from nanolens.training.optimizers import build_optimizer

TO = ("hf", "gguf", "nanogpt")
SHORT_NAMES = {"float32": "f32", "float16": "f16"}
LONG_NAMES = {"f32": "float32", "fp32": "float32", "f16": "float16", "fp16": "float16", "bf16": "bfloat16"}
Written = tuple[str, tuple[Message, ...], tuple[Message, ...]]
"""What it is, what its user should know, and what to do with it."""


@dataclass(frozen=True)
class ExportResult:
    name: str  # RUN@STEP
    path: Path
    what: str
    dtype: str
    bytes: int
    notes: tuple[Message, ...]
    uses: tuple[Message, ...]  # what to do with it


def export_model(
    run: str | Path,
    to: str,
    path: str | Path,
    *,
    best: bool = False,
    dtype: str | None = None,
    overwrite: bool = False,
    on_stage: OnStage = no_progress,
    lang: str = "en",
) -> ExportResult:
    """Writes the model of `RUN` or `RUN@STEP` to `path`: a folder for `hf` and `nanogpt`, a file for `gguf`."""
    find_run(str(run))  # what another program wrote is imported first: the card speaks of a run
    place = Path(path)
    kind, wrong_dtype = _dtype(to, dtype)
    model = load(run, best=best, device="cpu")
    if to == "gguf":
        unfit = gguf.faults_of(model.config, model.tokenizer, kind)
    else:
        unfit = (foreign if to == "hf" else nanogpt).faults_of(model.config)
    raise_if_any([*_place_faults(place, to, overwrite), *wrong_dtype, *unfit])
    rows, padding = _rows(model), _rows_there(model) - _rows(model)
    needed = sum(tensor.nbytes for tensor in model.module.parameters()) * (3 if to == "nanogpt" else 1)
    files.require_free_space(place, needed, "exporting this")
    on_stage("write", 0, needed)
    if to == "hf":
        what, notes, uses = _write_hf(model, place, kind, rows, lang)
    elif to == "gguf":
        what, notes, uses = _write_gguf(model, place, kind, rows)
    else:
        what, notes, uses = _write_nanogpt(model, place)
    if padding and to != "nanogpt":
        left_out = msg(
            "the {count:count row|rows} that only pad the vocabulary to {rows:count} are left out: they are not tokens",
            padding,
            rows + padding,
        )
        notes = (left_out, *notes)
    on_stage("write", needed, needed)
    size = sum(file.stat().st_size for file in (place, *place.rglob("*")) if file.is_file())
    return ExportResult(model.name, place, what, kind, size, notes, uses)


def _place_faults(place: Path, to: str, overwrite: bool) -> Iterator[Fault]:
    where = str(place)
    if to == "gguf" and place.is_dir():
        what, fix = msg("this is a folder, and GGUF is one file"), msg("give a file name, {example:code}", "model.gguf")
        yield Fault(what, where, fix)
    elif to != "gguf" and place.exists() and not place.is_dir():
        yield Fault(msg("a file with this name exists"), where, msg("give a folder name"))
    elif not place.exists() or (place.is_dir() and not any(place.iterdir())):
        return
    elif not overwrite:
        fix = msg("choose another name, or replace it with {option:code}", "--overwrite")
        yield Fault(msg("the destination already exists"), where, fix)
    elif place.is_dir() and "exported" not in (files.read_manifest(place) or {}):
        what = msg("this folder was not made by an export, so it is not replaced")
        yield Fault(what, where, msg("choose another name, or remove it yourself"))


def _dtype(to: str, dtype: str | None) -> tuple[str, list[Fault]]:
    known = {"hf": DTYPE_NAMES, "gguf": gguf.TENSOR_TYPES, "nanogpt": ("float32",)}[to]
    kind = known[0] if dtype is None else (SHORT_NAMES if to == "gguf" else LONG_NAMES).get(dtype, dtype)
    if kind in known:
        return kind, []
    what = msg("{dtype:code} is not a number type that {to:code} supports", dtype, to)
    return known[0], [Fault(what, f"--dtype={dtype}", msg("use one of {choices:code}", known))]


def _rows_there(model: Model) -> int:
    return int(model.module.embedding.weight.shape[0])  # type: ignore[union-attr, index]


def _rows(model: Model) -> int:
    """Rows of the vocabulary that mean something: the tokenizer's, or those that an imported model came with."""
    came_with = 0
    with contextlib.suppress(UserError, TypeError, ValueError):
        came_with = int((read_run_file(model.folder.parent.parent).get("imported") or {}).get("vocab_size", 0))
    return min(_rows_there(model), max(model.tokenizer.vocab_size, came_with))


def _write_hf(model: Model, place: Path, kind: str, rows: int, lang: str) -> Written:
    architecture = GPT2 if model.config.arch == "gpt2" else NANOCHAT
    with files.whole_folder(place, {"exported": model.name}) as fresh:
        write_hugging_face(fresh, model.config, tensors_of(model.module), model.tokenizer, rows, kind)
        for name, payload in _card(model, architecture, rows, lang).items():
            files.write_whole(fresh / name, payload)
    use = msg("in Python: {command:code}", f"AutoModelForCausalLM.from_pretrained({str(place)!r})")
    return architecture, (), (use,)


def _write_gguf(model: Model, place: Path, kind: str, rows: int) -> Written:
    if model.tokenizer.vocab_size != rows:
        what = msg(
            "llama.cpp needs a token for each of the {rows:count row|rows}, and the tokenizer has {tokens:count}",
            rows,
            model.tokenizer.vocab_size,
        )
        raise fault(what, fix=msg("import the model with the tokenizer it was trained with"))
    with files.written_beside(place) as fresh:
        weights = tensors_of(model.module)
        gguf.write_gguf(fresh, model.config, weights, model.tokenizer, rows, kind=kind, name=model.name)
    use = msg("in llama.cpp: {command:code}", f"llama-cli -m {place} -p TEXT")
    return "GPT-2 (GGUF)", (gguf.NOTE,), (use,)


def _write_nanogpt(model: Model, place: Path) -> Written:
    checkpoint = load_checkpoint(model.folder)
    optimizer = checkpoint.resuming["optimizer"]
    if model.config.optimizer != "adamw":  # nanoGPT's groups, with nothing in them yet
        adamw = replace(model.config, optimizer="adamw")
        optimizer = build_optimizer(model.module.requires_grad_(True), adamw).state_dict()
    known = float(checkpoint.state["progress"].get("val_loss", math.nan))
    val_loss = 1e9 if math.isnan(known) else known  # nanoGPT's word for none
    with files.whole_folder(place, {"exported": model.name}) as fresh:
        path, weights, rows = fresh / nanogpt.CHECKPOINT, tensors_of(model.module), _rows_there(model)
        nanogpt.write_nanogpt(path, model.config, weights, optimizer, rows, model.step, val_loss)
        if isinstance(model.tokenizer, CharTokenizer):
            files.write_whole(fresh / META, model.tokenizer.nanogpt_meta())
    train = f"python train.py CONFIG --init_from=resume --out_dir={place}"
    uses = (
        msg("continue training in nanoGPT: {command:code}", train),
        msg("sample in nanoGPT: {command:code}", f"python sample.py --out_dir={place}"),
    )
    return "nanoGPT ckpt.pt", tuple(nanogpt.notes_of(model.config, model.tokenizer)), uses


# --- the model card

PICTURE = "loss.png"
FRONT = "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- nanolens\n---\n"
USAGE = """from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "."  # this folder, or its name on the hub
model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
inputs = tokenizer({start!r}, return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=100)[0]))"""


def _card(model: Model, architecture: str, rows: int, lang: str) -> dict[str, bytes]:
    """The page, and its picture where one can be drawn."""
    folder = model.folder.parent.parent
    run = until(read_run(folder), model.step)
    steps, both = run.evals.step.astype(float).tolist(), {"train": run.evals.train, "val": run.evals.val}
    curves = [Series(name, steps, losses.tolist()) for name, losses in both.items()] if len(steps) > 1 else []
    what = msg(
        "{architecture:code} with {parameters:parameters} parameters and a context of {context:count} tokens, "
        "trained with nanolens.",
        architecture,
        sum(parameter.numel() for parameter in model.module.parameters()),
        model.config.block_size,
    )
    parts = [FRONT, f"# {model.name}", *(said(sentence, lang) for sentence in (what, *_card_notes(model, rows)))]
    table = [f"| {said(name, lang)} | {said(value, lang)} |" for name, value in _card_facts(run, model)]
    parts += [f"## {said(msg('Training'), lang)}", "\n".join(["| | |", "|---|---|", *table])]
    beside = {}
    if curves and importlib.util.find_spec("matplotlib"):
        beside[PICTURE] = picture([Panel("step", "loss (nats per token)", curves)], "png", folder.name)
        parts.append(f"![{said(msg('loss by step'), lang)}]({PICTURE})")
    elif curves:
        parts.append(fenced("\n".join(overlaid(curves, 72, 12, plain=True))))
    findings = "\n".join(
        f"- {said(finding.claim, lang)} (`{finding.code}`, {said(SURENESS_WORDS[finding.sureness], lang)})"
        for finding in (diagnose(run).findings if len(run.steps) else ())
    )
    parts += [f"## {said(msg('Findings of the run'), lang)}", findings or said(msg("Nothing stands out."), lang)]
    usage = USAGE.format(start=model.tokenizer.decode([0]) if model.tokenizer.kind == "char" else "The")
    parts += [f"## {said(msg('Usage'), lang)}", f"```python\n{usage}\n```"]
    return {CARD: ("\n\n".join(parts) + "\n").encode(), **beside}


def _card_notes(model: Model, rows: int) -> Iterator[Message]:
    if model.config.arch == "gpt2" and not model.config.bias:
        yield msg("It was trained without biases; those in the file are zeros.")
    if _rows_there(model) > rows:
        yield msg(
            "Its vocabulary was padded to {rows:count row|rows} in training; the file has only the {tokens:count} "
            "real tokens.",
            _rows_there(model),
            rows,
        )


def _card_facts(run: RunRecord, model: Model) -> Iterator[tuple[Message, Message]]:
    """What the run's record knows; what it does not is left out."""
    if name := run.get("data_name") or Path(str(run.get("dataset") or "")).name:
        yield msg("data"), msg("{name}", str(name))
    if tokens := run.number("dataset_tokens"):
        yield msg("tokens of the data"), msg("{tokens:tokens}", tokens)
    tokenizer = model.tokenizer
    yield msg("tokenizer"), msg("{kind:code}, {count:count} tokens", tokenizer.kind, tokenizer.vocab_size)
    yield msg("updates"), msg("{step:count}", model.step)
    if per_update := run.number("tokens_per_update"):
        yield msg("tokens seen"), msg("{tokens:tokens}", model.step * per_update)
    if len(run.evals):
        step = int(run.evals.step[-1])
        for title, loss in ((msg("train loss"), run.evals.train[-1]), (msg("val loss"), run.evals.val[-1])):
            if math.isfinite(loss):
                yield title, msg("{loss:nats} nats per token, at step {step:count}", float(loss), step)
        bits = float(run.evals.val_bits_per_byte[-1])
        if math.isfinite(bits):
            yield msg("bits per byte (val)"), msg("{bits:number}", round(bits, 4))
    for key in ("optimizer", "learning_rate", "batch_size", "gradient_accumulation_steps", "seed", "hardware"):
        if (value := run.get(key)) not in (None, ""):
            yield msg("{key:code}", key), msg("{value:code}", str(value))
