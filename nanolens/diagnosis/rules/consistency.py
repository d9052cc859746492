"""Whether config, names, log and printed numbers fit each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from nanolens.diagnosis.rule import Answers, Seen, finding, rule
from nanolens.facts import locations
from nanolens.facts.case import Case
from nanolens.facts.finding import Evidence, Finding, NotChecked, known, see
from nanolens.message import Message, msg
from nanolens.sizing.schedule import lr_of
from nanolens.sizing.shape import Parameters, Shape
from nanolens.sizing.shape import parameters as count_parameters


@rule("config_log_mismatch", only=("run.known",))
def mismatch(case: Case) -> Answers:
    """The log cannot come from the stated config."""
    if case.run.conventions.trainer == "nanolens":
        return  # log and config come from one record
    if not len(case.steps) and not len(case.evals) and case.number("parameters") is None:
        return
    evidence = [*_intervals(case), *_tokens(case), *_parameters(case), *_first_loss(case), *_rates(case)]
    if not evidence:
        return
    # The interval of the lines is often overridden, and changes no number of the training.
    only_printing = all(item.how.msgid.startswith("log_interval") for item in evidence)
    yield finding("config_log_mismatch", "possible" if only_printing else "likely", *evidence)


def _intervals(case: Case) -> Iterator[Evidence]:
    if not case.is_nanogpt:
        return
    evals, rows, last = case.evals.printed, case.steps.printed, case.stated("max_iters")
    off, every = _off_the_beat(case, "eval_interval", evals, 2, 1)
    if len(off) >= 2:
        expected, where = msg("a multiple of {every:count}", every), locations.evaluation(case, off[0])
        how = msg("eval_interval; evaluations that do not match: {count:count}", len(off))
        yield see(msg("step of an evaluation"), evals[off[0]], expected, where, how, "count")
    off, every = _off_the_beat(case, "log_interval", rows, 3, 2)
    if len(off) >= 2:
        expected, where = msg("a multiple of {every:count}", every), locations.row(case, off[0])
        how = msg("log_interval; lines that do not match: {count:count}", len(off))
        yield see(msg("iteration of a line"), rows[off[0]], expected, where, how, "count")
    if last and last > 0 and case.last_step > last * 1.01 + 1:
        expected = msg("at most {last:count}", int(last))
        yield see(msg("last step"), case.last_step, expected, msg("the end of the log"), msg("max_iters"), "count")


def _off_the_beat(case: Case, key: str, printed: np.ndarray, fewest: int, least: int) -> tuple[np.ndarray, int]:
    """Which numbers are no multiples of an interval that was stated, and that interval."""
    every = case.stated(key) or 0.0
    if not least <= every < 2**53 or len(printed) < fewest:
        return np.zeros(0, int), 0
    return np.flatnonzero(printed % int(every) != 0), int(every)


def _tokens(case: Case) -> Iterator[Evidence]:
    printed = case.run.known.get("tokens_per_update")
    batch, block, count = map(case.stated, ("batch_size", "block_size", "gradient_accumulation_steps"))
    if printed is None or printed.origin != "printed" or not isinstance(printed.value, (int, float)):
        return
    product = (batch or 0.0) * (block or 0.0) * (count or 0.0)
    if product <= 0:
        return
    ratio = float(printed.value) / product
    # A whole multiple may be the number of processes, which some releases multiply in.
    may_be_devices = case.devices is None and ratio >= 2 and abs(ratio - round(ratio)) < 1e-6
    if abs(ratio - 1) < 0.001 or abs(ratio - (case.devices or 1)) < 0.001 or may_be_devices:
        return
    what, how = msg("printed tokens per iteration"), msg("batch_size x block_size x gradient_accumulation_steps")
    yield see(what, float(printed.value), product, msg("{where:code}", printed.where), how, "tokens")


def _parameters(case: Case) -> Iterator[Evidence]:
    printed, shape, vocab = case.number("parameters"), case.shape, case.vocab_size
    if printed is None or shape is None or shape.arch != "gpt2" or vocab is None or vocab.origin == "inferred":
        return  # an inferred vocabulary is itself a guess
    if case.run.conventions.trainer not in ("nanogpt", "build-nanogpt", "unknown", ""):
        return
    variants = [replace(shape, bias=bias, tied=tied) for bias in (False, True) for tied in (True, False)]
    counts = [count for variant in variants for count in _counts(count_parameters(variant))]
    if any(abs(printed - count) < 0.02 * count + _rounding(printed) for count in counts):
        return
    nearest = min(counts, key=lambda count: abs(count - printed))
    how = msg("the count for this shape, with or without biases, embeddings, a separate head")
    yield Evidence(msg("printed parameter count"), printed, float(nearest), case.where("parameters"), how, "parameters")


def _rounding(printed: float) -> float:
    """Half a unit of the last digit of a count: 150,000 was printed as 0.15M."""
    return 5000.0 if printed >= 10_000 and printed % 10_000 == 0 else 0.5


def _first_loss(case: Case) -> Iterator[Evidence]:
    given, first, level = case.whole("vocab_size"), case.first_loss, case.ln_vocab
    if given is None or first is None or level is None or case.text("init_from").lower() not in ("", "scratch"):
        return
    unigram = case.unigram_nats or (7.7 if given > 50_000 else None)
    if first <= 0.85 * level and (unigram is None or first <= unigram - 0.3):
        how = msg("ln of vocab_size: an untrained model cannot start lower")
        yield see(msg("first loss"), first, level, msg("the first line with a loss"), how, "nats", 0)


def _rates(case: Case) -> Iterator[Evidence]:
    schedule, rates = case.schedule, case.steps.lr
    rows = np.flatnonzero(np.isfinite(rates) & (rates > 0))
    if schedule is None or not case.is_nanogpt or len(rows) < 3 or case.whole("warmup_iters") is None:
        return
    rows = rows[:: max(1, len(rows) // 200)]
    near = np.array([[lr_of(schedule, int(step) + by) for by in (-1, 0, 1)] for step in case.steps.printed[rows]])
    expected = near[:, 1]  # some print the rate of the update before, or of the next
    off = np.flatnonzero((rates[rows] > 1.1 * near.max(axis=1)) | (rates[rows] < 0.9 * near.min(axis=1)))
    if len(off) < 0.5 * len(rows):
        return
    row, how = rows[off[0]], msg("the schedule's formula")
    yield see(msg("printed learning rate"), rates[row], expected[off[0]], locations.row(case, row), how, "rate")


NAME_KEYS = (
    *("wandb_run_name", "run_name", "name", "model_name", "model", "out_dir", "wandb_project"),
    *("title", "description", "comment", "comment_in_config"),
)
_SIZE = re.compile(
    r"(?<![\w.])~?(\d{1,4}(?:\.\d+)?)\s?(M|m|B|million|billion)(?![a-zA-Z])(?!\s*(?:tok|byte|word|char|sample|row))"
)
_PARAMETERS = re.compile(r"\s*-?\s*(?:param|model)", re.IGNORECASE)


@dataclass(frozen=True)
class Claim:
    count: float
    where: Message


@rule("param_count_mismatch", needs=("parameters",))
def parameter_count(case: Case) -> Answers:
    """The model does not have the number of parameters that its name, comment or author claims."""
    printed, claim = case.number("parameters"), claimed(case)
    honest = [known(case.parameters).value, printed, *(_counts(case.counted) if case.counted is not None else [])]
    if claim is not None and not any(0.875 < claim.count / count < 1.125 for count in honest if count):
        yield _wrong_claim(case, claim, printed)
    shape = _shape_without_context(case)
    if shape is not None and printed is not None:
        yield from _untied_head(case, printed, shape)


def claimed(case: Case) -> Claim | None:
    """A size that a name or a comment states, where one does."""
    for key in (*NAME_KEYS, "claimed_parameters", "comments"):
        stated = case.run.get(key)
        for value in stated if isinstance(stated, (tuple, list)) else (stated,):
            if isinstance(value, (int, float)) and key == "claimed_parameters":
                return Claim(float(value), case.where(key))
            if isinstance(value, str) and (found := _in_text(value)) is not None:
                return Claim(found, msg("{key:code} = {text:code}", key, value))
    return None


def _in_text(text: str) -> float | None:
    for found in _SIZE.finditer(text):
        is_million = found[2].lower().startswith("m")
        says_parameters = _PARAMETERS.match(text, found.end()) is not None
        if (is_million and (says_parameters or float(found[1]) >= 5)) or says_parameters:
            return float(found[1]) * (1e6 if is_million else 1e9)
    return None


def _counts(counted: Parameters) -> list[float]:
    return [counted.total, counted.as_nanogpt_prints, counted.without_embeddings, counted.matmul]


def _wrong_claim(case: Case, claim: Claim, printed: float | None) -> Finding:
    true = case.counted.total if case.counted is not None else known(case.parameters).value
    evidence = [see(msg("parameters"), true, claim.count, claim.where, _arithmetic(case), "parameters")]
    if printed is not None:
        what, how = msg("printed parameter count"), msg("nanoGPT leaves out the position embedding")
        evidence.append(see(what, printed, claim.count, case.where("parameters"), how, "parameters"))
    deep, wide = min(GPT2_SHAPES.items(), key=lambda item: abs(item[0] - claim.count) / item[0])[1]
    sets, name = ("n_embd", case.whole("n_embd"), wide), "param_count_mismatch.name"
    return finding(name, "certain", *evidence, sets=sets, true=true, claimed=claim.count, layers=deep, width=wide)


def _arithmetic(case: Case) -> Message:
    if case.counted is None or case.shape is None:
        return msg("as printed")
    parts = case.counted.by_part
    return msg(
        "{embedding:parameters} embeddings + {blocks:parameters} in the blocks, 12 x n_layer x n_embd x n_embd",
        sum(parts.get(part, 0) for part in ("token embedding", "position embedding", "head", "n-gram tables")),
        parts["attention"] + parts["mlp"],
    )


# Layers and width by size: GPT-2's own, and two smaller ones.
GPT2_SHAPES = {
    124e6: (12, 768),
    355e6: (24, 1024),
    774e6: (36, 1280),
    1558e6: (48, 1600),
    41e6: (12, 384),
    10.7e6: (6, 384),
}


def _shape_without_context(case: Case) -> Shape | None:
    """The shape; where only the context length is unknown, with none: the position table is then left out of every
    count."""
    layers, width, vocab = case.whole("n_layer"), case.whole("n_embd"), case.whole("vocab_size")
    if case.shape is not None or layers is None or width is None or vocab is None or min(layers, width, vocab) < 1:
        return case.shape
    return Shape(n_layer=layers, n_head=max(1, width // 64), n_embd=width, block_size=0, vocab_size=vocab)


def _untied_head(case: Case, printed: float, shape: Shape) -> Iterator[Finding]:
    """A printed count that is larger than the shape's usual one by exactly one embedding matrix."""
    usual = count_parameters(replace(shape, tied=True, arch="gpt2"))
    untied = count_parameters(replace(shape, tied=False, arch="gpt2"))
    plain = untied.total - untied.by_part["norms"] - untied.by_part["position embedding"]
    fits = [value for value in (untied.total, untied.as_nanogpt_prints, plain) if abs(printed / value - 1) < 0.003]
    tied = (usual.total, usual.as_nanogpt_prints)
    if (
        not fits
        or shape.arch != "gpt2"
        or any(abs(printed - count) < 0.01 * count + _rounding(printed) for count in tied)
    ):
        return
    yield finding(
        "param_count_mismatch.untied",
        "certain",
        Seen(printed, usual.total, case.where("parameters")),
        sets=("tied", False, True),
        matmul=usual.matmul,
        embedding=shape.vocab_size * shape.n_embd,
        blocks=12 * shape.n_layer * shape.n_embd**2,
    )


@rule("grad_sync_bug", marks=("rank_drifted",))
def rank_drift(case: Case) -> Answers:
    """Replicas are not synchronised."""
    drifted = case.marks("rank_drifted")
    step = drifted[0].step or 0
    yield finding("grad_sync_bug", "certain", Seen(len(drifted), 0, locations.onwards(step), step))


@rule("grad_sync_bug", only=("has_several_devices",))
def replicas(case: Case) -> Answers:
    """What one log cannot show."""
    because = msg("one log cannot show whether replicas agree; compare two runs that differ only in accumulation")
    yield NotChecked("grad_sync_bug", because)


@rule("grad_accum_loss_scaling", only=("run.known",))
def transformers_sum(case: Case) -> Answers:
    """Versions of the Hugging Face Trainer that print the sum over the micro-batches."""
    version = case.text("transformers") or case.text("transformers_version")
    if not re.match(r"4\.4[67](\.|$)", version):
        return
    count = case.whole("gradient_accumulation_steps")
    has_sum = count is not None and count != 1
    name = "grad_accum_loss_scaling.transformers_sum" if has_sum else "grad_accum_loss_scaling.transformers"
    yield finding(name, "likely", Seen(version, msg("4.48 or later"), case.where("transformers")), count=count)


@rule("grad_accum_loss_scaling", only=("gradient_accumulation_steps",))
def summed_losses(case: Case) -> Answers:
    """The logged loss is multiplied by gradient accumulation."""
    count = case.whole("gradient_accumulation_steps")
    if count is not None and count >= 2:
        yield from _multiple_of_ln_vocab(case, count)
        yield from _multiple_of_evaluations(case, count)


def _multiple_of_ln_vocab(case: Case, count: int) -> Iterator[Finding]:
    first, level = case.first_loss, case.ln_vocab
    if first is None or level is None or case.is_pretrained or case.is_vocab_guessed:
        return
    if abs(first / (level * count) - 1) > 0.06 or (count == 2 and first < 1.85 * level):
        return
    loss = Seen(first, level, msg("the first line with a loss"), 0)
    yield finding("grad_accum_loss_scaling.multiple_of_ln_vocab", "likely", loss, count=count, ratio=first / level)


def _multiple_of_evaluations(case: Case, count: int) -> Iterator[Finding]:
    """The printed loss stays at a whole multiple of the evaluated one."""
    evals = np.flatnonzero(np.isfinite(case.evals.train) & (case.evals.train > 0) & (case.evals.step > 0))
    steps, losses = case.losses
    if len(evals) < 2 or len(losses) < 10:
        return
    at, train = case.evals.step[evals], case.evals.train[evals]
    inside = (steps >= at[0]) & (steps <= at[-1])
    ratio = float(np.median((losses / np.interp(steps, at, train))[inside])) if inside.sum() >= 5 else 1.0
    if abs(ratio / count - 1) > 0.1 or ratio < 1.7:
        return
    where = msg("{rows:count step|steps} between evaluations", int(inside.sum()))
    yield finding("grad_accum_loss_scaling", "likely", Seen(ratio, 1.0, where), count=count)


_STATED = re.compile(r"(?<![\w.])(\d[\d,]*(?:\.\d+)?)\s*([KMBT])\s*-?(?:tok|$)", re.IGNORECASE)
_FACTOR = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_OTHER_TOKENS = (
    *("dataset", "dataset_tokens", "data_fingerprint", "tokens_per_update", "val_tokens"),
    *("tokenizer", "tokenizer_fingerprint", "comments"),
)


@rule("token_accounting", only=("run.known",))
def token_count(case: Case) -> Answers:
    """Tokens seen, miscounted."""
    stated = _stated_tokens(case)
    if stated is None:
        return
    key, text, tokens = stated
    per_update, updates, devices = case.tokens_per_update, case.whole("max_iters") or case.last_step, case.devices
    if per_update is None or not updates:
        yield NotChecked("token_accounting", msg("tokens per update or the number of updates is unknown"))
        return
    product = per_update.value * updates
    ratio = tokens / product
    if 0.9 < ratio < 1.12 or (devices is not None and 0.9 < ratio / devices < 1.12):
        return
    said, per, how = Seen(tokens, product, msg("{key:code} = {text:code}", key, text)), per_update.value, per_update.how
    by_devices = next((count for count in (2, 4, 8, 16, 32, 64, 128, 256) if abs(ratio / count - 1) < 0.1), None)
    name = "token_accounting" if by_devices is None or devices is not None else "token_accounting.by_devices"
    yield finding(name, "likely", said, ratio=ratio, count=by_devices, updates=updates, per=per, how=how)


def _stated_tokens(case: Case) -> tuple[str, str, float] | None:
    for key, fact in case.run.known.items():
        text = fact.value
        if isinstance(text, str) and "token" in f"{key} {text}".lower() and key not in _OTHER_TOKENS:
            found = _STATED.search(text)
            if found:
                return key, text, float(found[1].replace(",", "")) * _FACTOR[found[2].lower()]
    return None


@rule("duplicate_lines", only=("has_damaged_lines",))
def reading(case: Case) -> Answers:
    """Lines that were repeated, merged or cut off."""
    twice, glued, cut = case.run.reading.duplicates, case.run.reading.glued, case.run.reading.cut
    damaged = Seen(twice + glued + cut, 0, msg("{lines:count line|lines}", case.run.reading.lines))
    yield finding("duplicate_lines", "certain", damaged, duplicates=twice, glued=glued, cut=cut)
