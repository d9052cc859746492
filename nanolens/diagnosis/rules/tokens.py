"""How many tokens an update has, a parameter has seen, and how often the same ones were read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from nanolens.diagnosis.rule import Answers, Seen, finding, rule
from nanolens.diagnosis.rules import levels
from nanolens.diagnosis.rules.consistency import claimed
from nanolens.diagnosis.rules.jumps import rise_of_loss
from nanolens.facts import laws, locations
from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked, Sureness, known, see
from nanolens.facts.statistics import printed_decimals, trend
from nanolens.message import msg

# --- of an update

RECIPE_TOKENS, RECIPE_RATE = 491_520, 6e-4  # GPT-2 124M as nanoGPT trains it


@rule("grad_accum_inferred", only=("is_nanogpt",), needs=("tokens_from_mfu", "micro_batch_tokens"))
def accumulation(case: Case) -> Answers:
    """How many micro-batches an iteration really has, by its time and its MFU."""
    inferred, micro = known(case.tokens_from_mfu), known(case.micro_batch_tokens)
    times, stated = inferred.value / micro, case.whole("gradient_accumulation_steps")
    nearest, usual = max(1, round(times)), stated if stated is not None else 1
    # A printed MFU lags and is rounded: only a count that is clearly another one, and a whole one, is proof.
    is_as_stated = any(abs(times / count - 1) < 0.25 for count in {usual, max(1, usual // (case.devices or 1))})
    if abs(times - nearest) > min(0.15, 0.04 * nearest) or is_as_stated:
        return
    off = times * _rounding(case.steps.mfu_frac)
    if math.floor(times + off) > math.ceil(times - off):
        because = msg("the printed MFU has too few digits to determine the number of micro-batches")
        yield NotChecked("grad_accum_inferred", because)
        return
    where, how = locations.rows(case, 0, len(case.steps) - 1), inferred.how
    micros, sets = Seen(times, usual, where), ("gradient_accumulation_steps", nearest, usual)
    tokens = see(msg("tokens per iteration"), inferred.value, float(micro * (stated or 1)), where, how, "tokens")
    sureness: Sureness = "certain" if abs(times / nearest - 1) < 0.015 and 3 <= nearest <= 64 else "likely"
    yield finding("grad_accum_inferred", sureness, micros, tokens, sets=sets, count=nearest, how=how, micro=micro)


def _rounding(mfu: np.ndarray) -> float:
    """How far off a printed MFU may be for its last digit, as a share of it."""
    shown = mfu[np.isfinite(mfu) & (mfu > 0)][:1000]
    decimals = printed_decimals(shown, 2, 7) if len(shown) else None
    return 0.0 if decimals is None else 0.5 * 10.0**-decimals / float(np.median(shown))


@rule("batch_too_small", needs=("tokens_per_update", "peak_lr", "shape", "counts_all_devices"))
def batch_too_small(case: Case) -> Answers:
    """Tokens per update far below those of the recipe whose learning rate is used."""
    tokens, rate, shape = known(case.tokens_per_update), known(case.peak_lr), known(case.shape)
    is_recipe = (shape.n_layer, shape.n_embd) == (12, 768) and shape.vocab_size > 50_000 and rate >= 0.9 * RECIPE_RATE
    stays = levels.stuck(case)  # what too noisy updates do: the run is stuck, or has diverged
    trouble = stays[0].evidence if stays else tuple(rise_of_loss(case))
    if not is_recipe or tokens.value > RECIPE_TOKENS / (3.5 if trouble else 6) or case.is_pretrained:
        return
    what, where = msg("tokens per update"), msg("at a learning rate of {rate:rate}", rate)
    small = see(what, tokens.value, float(RECIPE_TOKENS), where, tokens.how, "tokens")
    share = tokens.value / RECIPE_TOKENS
    sets = ("learning_rate", rate, float(f"{rate * share**0.5:.1e}"))
    yield finding("batch_too_small", "likely" if trouble else "possible", small, *trouble, sets=sets, share=share)


TOO_LARGE = 4.0  # times the critical batch: five times the tokens that are needed
TOO_FEW_UPDATES = 500


@rule("batch_too_large", only=("tokens_per_update", "max_iters", "counts_all_devices", "is_from_scratch"))
def batch_too_large(case: Case) -> Answers:
    """For the planned length of the run: of one that stopped early, the batch was still chosen for all of it."""
    per_update, planned = known(case.tokens_per_update), known(case.max_iters)
    batch, budget = per_update.value, per_update.value * planned
    critical, best = laws.two_digits(laws.critical_batch(budget)), laws.two_digits(laws.step_law_batch(budget))
    if case.get("eval_only") is True:
        return
    if batch / critical >= TOO_LARGE:
        name, times = "batch_too_large", batch / critical
    elif planned < TOO_FEW_UPDATES and batch / best > TOO_LARGE:
        name, times = "batch_too_large.few_updates", batch / best
    else:
        return
    yield finding(
        name,
        "possible",
        see(msg("tokens per update"), batch, (best, critical), case.where("batch_size"), per_update.how, "tokens"),
        change=_smaller(case, best),
        batch=batch,
        updates=planned,
        budget=budget,
        times=times,
        best=best,
        critical=critical,
        waste=laws.tokens_wasted(batch, critical),
    )


def _smaller(case: Case, best: float) -> Change:
    accumulation, batch = case.whole("gradient_accumulation_steps"), case.whole("batch_size")
    block, micro = case.whole("block_size"), case.micro_batch_tokens
    fewer = max(1, round(best / micro)) if micro else None
    if fewer is not None and accumulation is not None and fewer < accumulation:
        words = msg(
            "use fewer tokens per update and more updates; about {tokens:tokens} per update is near the best for this "
            "budget",
            best,
        )
        return Change(words, "gradient_accumulation_steps", accumulation, fewer)
    size = max(1, round(best / block)) if block else None
    return Change(msg("use a smaller batch_size and more updates"), "batch_size" if size else "", batch, size)


# --- of a parameter

MANY_TOKENS = 100.0  # a parameter: five times what a compute-optimal run sees
NARROW = 4.0  # n_embd / n_layer below which depth is bought with width (GPT-2: 64 to 33)


@rule("underfitting_capacity", only=("is_from_scratch", "n_layer", "n_embd"))
def narrow_model(case: Case) -> Answers:
    """The shape is deep and far too narrow."""
    layers, width, vocab = case.whole("n_layer"), case.whole("n_embd"), case.vocab_size
    if layers is None or width is None or width / layers >= NARROW or width > 256 or layers < 12:
        return
    blocks, heads = 12 * layers * width * width, case.whole("n_head") or 1
    per_layer = Seen(width / layers, (30.0, 100.0), case.where("n_embd"))
    how = msg("{width:count} / {heads:count}", width, heads)
    head = see(msg("head size (n_embd / n_head)"), width / heads, (32.0, 128.0), case.where("n_head"), how)
    what, expected = msg("parameters in the blocks"), msg("above {least:parameters}", 10e6)
    inside = see(what, blocks, expected, case.where("n_layer"), msg("12 x n_layer x n_embd x n_embd"), "parameters")
    sureness: Sureness = "likely" if vocab is None or vocab.value >= 8192 else "possible"
    numbers, sets = (head, inside), ("n_embd", width, 512 if blocks > 12 * 512 * 512 else 384)
    yield finding("underfitting_capacity.narrow", sureness, per_layer, *numbers, sets=sets, width=width, layers=layers)


@rule("underfitting_capacity", only=("is_from_scratch",), needs=("parameters", "tokens_per_update"))
def capacity(case: Case) -> Answers:
    """The model is too small for the data it has seen."""
    count, tokens, shape = known(case.parameters).value, case.tokens_at(case.last_step), case.shape
    per_parameter = (tokens or 0.0) / count
    if tokens is None or per_parameter < MANY_TOKENS or not _train_is_no_lower(case) or _is_known_result(case):
        return
    ratio, last = Seen(per_parameter, (10.0, 40.0), msg("step {step:count}", case.last_step)), case.both_splits[-1]
    what, expected = msg("val loss minus train loss"), msg("above 0 where text is memorised")
    where, how = msg("step {step:count}", int(case.evals.step[last])), msg("both evaluated the same way")
    apart = see(what, case.evals.val[last] - case.evals.train[last], expected, where, how, "nats")
    signs, claim = list(_flat_at_high_lr(case)), claimed(case)
    if claim is not None and claim.count > 1.5 * count:
        how = msg("the size its name suggests")
        signs.insert(0, see(msg("parameters"), count, claim.count, claim.where, how, "parameters"))
    sets = ("n_embd", shape.n_embd, 768 if shape.n_embd < 768 else 2 * shape.n_embd) if shape else None
    sureness: Sureness = "likely" if signs else "possible"
    values = (apart, *signs)
    yield finding(
        "underfitting_capacity", sureness, ratio, *values, sets=sets, ratio=per_parameter, tokens=tokens, count=count
    )


def _train_is_no_lower(case: Case) -> bool:
    gaps = (case.evals.val - case.evals.train)[case.both_splits][-3:]
    noise = case.eval_noise.value if case.eval_noise is not None else 0.01
    return len(gaps) > 0 and float(np.median(gaps)) <= 2 * 1.41 * noise + 0.01


def _is_known_result(case: Case) -> bool:
    """A known run of the same model and corpus that ends here: as good as it gets, and known to be."""
    published = case.reference
    if published is None or published.end_val is None or not len(case.vals[1]):
        return False
    return float(case.vals[1][-1]) <= published.end_val + 5 * published.spread


def _flat_at_high_lr(case: Case) -> Iterator[Evidence]:
    """The last third of the curve has no slope beyond its noise although the learning rate is far above its end."""
    x, y = case.curve
    if len(y) < 9:
        return
    third = x >= x[0] + 2 / 3 * (x[-1] - x[0])
    slope, lr, peak = trend(x[third], y[third]), case.lr_at(case.last_step), case.peak_lr
    if slope is None or lr is None or peak is None or lr < 0.25 * peak:
        return
    first = x[third][0]
    fall = -slope.slope * (x[-1] - first)
    before = float(np.median(y[: max(1, len(y) // 3)]) - np.median(y[third]))
    if fall <= 0.02 * max(before, 0.1) + 0.01:
        how = msg("robust slope over the last third, at {share:share} of the peak learning rate", lr / peak)
        what, expected = msg("drop in loss over the last third"), msg("above {least:nats}", 0.02 * before)
        yield see(what, fall, expected, locations.steps(first, x[-1]), how, "nats")


# --- of the text

OVERFIT_EPOCHS = 6  # without dropout, a model with more parameters than its text has tokens has memorised it by then


@rule("data_repeated", only=("has_a_curve",))
def few_batches(case: Case) -> Answers:
    """The batches trained on are memorised while the rest of the same split is not: the updates do not see the whole
    split."""
    evals = np.flatnonzero(np.isfinite(case.evals.train) & (case.evals.step > 0))
    steps, losses = case.losses
    if len(evals) < 2 or len(losses) < 20:
        return
    before, step = case.evals.step[evals[-2:]]
    near = losses[(steps <= step) & (steps > before)]
    level = case.evals.train[evals[-1]]
    if len(near) < 5 or not np.median(near) < 0.7 * level:
        return
    where = msg("before step {step:count}", int(step))
    yield finding("data_repeated.few_batches", "likely", Seen(np.median(near), level, where, step))


@rule("data_repeated", only=("stated_epochs",))
def stated_epochs(case: Case) -> Answers:
    """Where the config counts the epochs, and nothing else can."""
    epochs = known(case.stated_epochs)
    if epochs < laws.FRESH_EPOCHS or (case.dataset_tokens is not None and case.tokens_per_update is not None):
        return
    expected = msg("up to {many:number}", laws.FRESH_EPOCHS)
    yield finding("data_repeated.stated_epochs", "likely", Seen(epochs, expected, msg("the config")), epochs=epochs)


@rule("data_repeated", "will_overfit", "dropout_in_one_epoch", needs=("dataset_tokens", "tokens_per_update"))
def repetition(case: Case) -> Answers:
    """The same text is read many times."""
    epochs = known(case.tokens_per_update).value * case.judged_step / known(case.dataset_tokens).value
    if epochs >= laws.FRESH_EPOCHS:
        yield _repeated(case, epochs)
    if case.is_ahead and OVERFIT_EPOCHS < epochs <= laws.SPENT_EPOCHS:
        yield from _memorised(case, epochs)
    if case.judged_step and epochs <= 1:
        yield from _needless_dropout(case, epochs)


def _repeated(case: Case, epochs: float) -> Finding:
    unique, per_update, size = known(case.dataset_tokens), known(case.tokens_per_update), case.parameters
    where = msg("{step:count update|updates} of {tokens:tokens} tokens", case.judged_step, per_update.value)
    read = Seen(epochs, msg("up to {many:number}", laws.FRESH_EPOCHS), where)
    expected = msg("above {limit:share}", laws.value_of_tokens(laws.FRESH_EPOCHS))
    how = msg("unique + unique*15.4*(1 - exp(-(epochs - 1)/15.4)), divided by tokens seen (arXiv 2305.16264)")
    worth = see(msg("value of a token seen"), laws.value_of_tokens(epochs), expected, where, how, "share")
    sureness: Sureness = "certain" if "inferred" not in (unique.origin, per_update.origin) else "likely"
    seen, name = per_update.value * case.judged_step, "data_repeated.ahead" if case.is_ahead else "data_repeated"
    found = finding(
        name,
        sureness,
        read,
        worth,
        change=_shorter(case, epochs),
        epochs=epochs,
        seen=seen,
        fresh=laws.value_of_tokens(epochs) * seen,
        unique=unique.value,
        how=unique.how,
    )
    memorises = size is not None and unique.value < laws.MEMORISABLE_TOKENS * size.value
    if not (case.is_ahead and epochs > laws.SPENT_EPOCHS and memorises):
        return found
    return replace(found, claim=msg("{claim}, and val will likely rise before the end", found.claim))


def _shorter(case: Case, epochs: float) -> Change | None:
    """Where this config is known to be best, or else where repetition has lost most of its worth; None for a run that
    has happened, or is short enough."""
    planned = case.whole("max_iters")
    if not case.is_ahead or planned is None or epochs <= laws.SPENT_EPOCHS:
        return None
    published, per_update = case.reference, known(case.tokens_per_update).value
    if published is not None and published.tokens_per_update == per_update and published.best_step is not None:
        best = published.best_step
        words = msg("this config is usually best near update {step:count} ({source})", best, published.source)
        return Change(words, "max_iters", planned, best)
    updates = max(1, round(laws.SPENT_EPOCHS * known(case.dataset_tokens).value / per_update))
    return Change(msg("stop earlier, or use more text"), "max_iters", planned, updates)


def _memorised(case: Case, epochs: float) -> Iterator[Finding]:
    size, tokens = case.parameters, known(case.dataset_tokens).value
    if size is None or case.number("dropout") != 0 or size.value <= 2 * tokens:
        return
    what, expected = msg("tokens per parameter"), msg("above {limit:number}", laws.MEMORISABLE_TOKENS)
    few, sets = see(what, tokens / size.value, expected, case.where("n_embd"), size.how), ("dropout", 0.0, 0.2)
    yield finding("will_overfit", "likely", few, sets=sets, parameters=size.value, tokens=tokens, epochs=epochs)


def _needless_dropout(case: Case, epochs: float) -> Iterator[Finding]:
    dropout = case.number("dropout")
    if not dropout or case.is_pretrained:
        return
    share, sets = Seen(dropout, 0.0, case.where("dropout")), ("dropout", dropout, 0.0)
    yield finding("dropout_in_one_epoch", "possible", share, sets=sets, dropout=dropout, epochs=epochs)
