"""Rows as they were printed -> updates and evaluations: each with its number, in our units.

- A row without a number has that of the head above it (`Epoch 3/20`, `[batch=20/3200]:`), of the bar beside it, or is
  counted. An evaluation without one is of the weights between the rows around it (`assemble`).
- A counter that starts anew with each epoch becomes absolute; of the micro-batches of an update the last row stays.
- Speeds become times, per cent a share, bits and perplexities nats. What a time without a unit is shows its column."""

from __future__ import annotations

import math

import numpy as np

from nanolens.config.names import is_of_validation, words_of
from nanolens.logs.lines import OF_LOSS, OF_VAL
from nanolens.logs.rows import Found, Rows, Sign, joined, median
from nanolens.logs.trainers import Trainer

LN2 = math.log(2)
MOST_LINES_BELOW = 60  # a head stands so far above its rows at most
SECONDS, MILLISECONDS = 20.0, 1000.0  # a step time without a unit is one or the other below and above these
MOST_EPOCHS = 1000
FEWEST_CONSTANT = 8  # of rows without a number whose losses are all the same
FEWEST_LOOSE = 3  # rows of one form that are counted, where none of them has a number: fewer are a sentence
_KEPT = frozenset(
    """loss lr grad_norm took_s tokens_per_s device_tokens_per_s mfu_frac at_s loss_scale memory_bytes data_s train val
    val_bits_per_byte eval_s total epoch absolute updates tokens_seen samples_seen batch_sequences tokens_per_update
    samples_per_s quoted micro_batches tokens clipped train_se val_se""".split()
)
_LOSSES = ("loss", "train", "val", "smoothed", "mean_loss", "mean_val", "epoch_loss")


def settle(found: Found, trainer: Trainer) -> None:
    """Turns what was read into `found.steps` and `found.evals`."""
    tables = dict(found.tables)
    _name_by_behaviour(tables)
    tables["heads"] = _regular(tables.get("heads", Rows()))
    steps, evals = tables.get("steps", Rows()), tables.get("evals", Rows())
    for name in ("steps", "evals"):
        loose = tables.get(f"loose_{name}", Rows())
        if len(loose):
            below, loose = _below_heads(loose, tables.get("heads", Rows()), steps)
            tables[f"loose_{name}"] = loose
            if name == "steps":
                steps = joined((steps, below))
            else:
                evals = joined((evals, below))
    steps, evals = _merged_by_head(steps, evals)
    steps = _with_loose(steps, evals, tables, found)
    loose = tables.get("loose_evals", Rows())
    if not len(steps) and not np.any(evals.printed >= 0):  # nothing but sentences, unless they come again and again
        loose = _recurring(loose)
    evals = joined((evals, loose)) if not np.any(evals.printed >= 0) else joined((evals, _final(loose, steps)))
    if not len(evals):
        tests = tables.get("tests", Rows())
        tests.columns = {"val" if name == "test" else name: values for name, values in tests.columns.items()}
        tests.not_finite = {"val" if name == "test" else name: values for name, values in tests.not_finite.items()}
        evals = tests if len(tests) else _last_of_progress(tables.get("progress", Rows()))
    for rows in (steps, evals):
        _tell_epochs(rows, tables["heads"])
    steps, evals = _split(steps, evals)
    steps, evals = _by_epoch(steps, evals, found)
    for rows in (steps, evals):
        _absolute(rows)
    _at_ends_of_epochs(steps, evals)
    steps = _without_micro_batches(steps, evals, found, trainer)
    _units(steps, evals, found, trainer)
    if trainer.time_is_of == "clock":
        steps = _with_clocks_of(evals, steps)
    _times(steps, trainer)
    full_bars = evals.column("took_s")[evals.column("is_bar") == 1.0]
    found.bar_step_s = median(full_bars) if np.isnan(steps.column("took_s")).all() else None
    for rows in (steps, evals):
        for kind in (rows.columns, rows.not_finite):
            for name in kind.keys() - _KEPT:
                del kind[name]
    found.steps, found.evals = steps, joined((evals, found.evals))


# --- columns whose names nobody knows


def _name_by_behaviour(tables: dict[str, Rows]) -> None:
    """Where no loss has a name, the loss is the column that falls from a level that a loss may have, and the step a
    whole number that grows. A column that is e to another is its perplexity."""
    for rows in tables.values():
        if any(name in rows.columns for name in OF_LOSS | OF_VAL):
            return
    kinds = ("steps", "unknown")
    rows = max((tables[kind] for kind in kinds if kind in tables), key=len, default=Rows())
    if len(rows) < FEWEST_BY_BEHAVIOUR:
        return
    kind, counts = np.unique(rows.column("kind"), return_counts=True)
    rows = rows.take(np.flatnonzero(rows.column("kind") == kind[counts.argmax()]))
    named = {name: values for name, values in rows.columns.items() if name[0] == "?" and np.isfinite(values).all()}
    if np.any(rows.printed < 0) and np.isnan(rows.column("epoch")).any():
        counters = [
            name for name, values in named.items() if np.all(values == np.floor(values)) and np.all(np.diff(values) > 0)
        ]
        if not counters:
            return
        rows.printed = named.pop(counters[0]).astype(np.int64)
    has_epochs = bool(np.isfinite(rows.column("epoch")).any())
    if len(rows) < FEWEST_BY_BEHAVIOUR or not (has_epochs or np.all(np.diff(rows.printed) >= 0)):
        return
    falling = {name: fall for name, values in named.items() if (fall := _fall(values)) > 0}
    for name in [
        name for name in falling if any(_is_power(named[name], named[other]) for other in falling if other != name)
    ]:
        del falling[name]
    if falling:
        best = max(falling, key=falling.__getitem__)
        _name_evaluations(tables, best)
        rows.columns["loss"] = rows.columns.pop(best)
        tables["steps"] = rows


FEWEST_BY_BEHAVIOUR = 8


def _name_evaluations(tables: dict[str, Rows], loss: str) -> None:
    """`val q7` is the val loss where `q7` is the loss."""
    found = []
    for rows in tables.values():
        for name, values in list(rows.columns.items()):
            others = [word for word in words_of(name[1:]) if not is_of_validation(word)]
            if name[0] == "?" and is_of_validation(name) and others == list(words_of(loss[1:])):
                evals = rows.take(np.flatnonzero(np.isfinite(values)))
                evals.columns["val"] = evals.columns.pop(name)
                evals.columns = {key: each for key, each in evals.columns.items() if key[0] != "?"}
                found.append(evals)
    if found:
        tables["evals"] = joined((tables.get("evals", Rows()), *found))


def _fall(values: np.ndarray) -> float:
    """How surely a column falls as losses do: in spreads of its scatter; 0 where it cannot be a loss."""
    quarter = max(2, len(values) // 4)
    first, last = values[:quarter], values[-quarter:]
    is_level = 0.05 < np.median(values) < 20 and values.min() > 0 and np.any(values != np.floor(values))
    scatter = float(np.std(np.diff(values))) + 1e-9
    has_scatter = len(np.unique(values)) > len(values) // 3 and np.any(np.diff(values) > 0)
    return float(first.mean() - last.mean()) / scatter if is_level and has_scatter else 0.0


def _is_power(values: np.ndarray, of: np.ndarray) -> bool:
    return bool(np.median(np.abs(np.log(np.maximum(values, 1e-9)) - of)) < 0.02)


# --- numbers of rows


def _regular(heads: Rows) -> Rows:
    """Those that come more than once, or say of how many: `epochs: 2` alone is a setting."""
    if not len(heads):
        return heads
    kinds, counts = np.unique(heads.column("kind"), return_counts=True)
    is_often = np.isin(heads.column("kind"), kinds[counts > 1])
    says_total = np.isfinite(heads.column("total")) | np.isfinite(heads.column("epochs"))
    return heads.take(np.flatnonzero(is_often | says_total))


def _final(loose: Rows, steps: Rows) -> Rows:
    """Of evaluations without a number beside others that have one: the one at the end, if it says no more than that."""
    at_end = loose.at > (steps.at.max(initial=-1))
    return loose.take(np.flatnonzero(at_end & (loose.column("is_plain") == 1.0))[:1])


def _recurring(rows: Rows) -> Rows:
    """Rows of a form that comes again and again. The same few numbers repeated are a sentence."""
    kept = ~(rows.column("repeats") < FEWEST_LOOSE)
    names = [name for name in ("loss", "val", "smoothed", "ppl", "lr", "grad_norm") if name in rows.columns]
    for kind in np.unique(rows.column("kind")):
        its = np.flatnonzero(kept & (rows.column("kind") == kind) & np.isfinite(rows.column("repeats")))
        if len(its) < FEWEST_CONSTANT and all(len(np.unique(rows.columns[name][its])) < FEWEST_LOOSE for name in names):
            kept[its] = False
    return rows.take(np.flatnonzero(kept))


def _tell_epochs(steps: Rows, heads: Rows) -> None:
    """Rows that count the batches of an epoch, below a head with its number."""
    heads = heads.take(np.flatnonzero(~np.isnan(heads.column("epoch")) & (heads.printed < 0)))
    if not len(heads) or not len(steps):
        return
    head = np.searchsorted(heads.at, steps.at) - 1
    epoch = np.where(head >= 0, heads.column("epoch")[np.maximum(head, 0)], np.nan)
    steps.fill("epoch", np.where(steps.printed >= 0, epoch, np.nan))


def _below_heads(loose: Rows, heads: Rows, steps: Rows) -> tuple[Rows, Rows]:
    """Rows below a head, with its number; and the others."""
    if not len(heads):
        return Rows(), loose
    head = np.searchsorted(heads.at, loose.at) - 1
    before = np.maximum(head, 0)
    is_near = (head >= 0) & (loose.line - heads.line[before] <= MOST_LINES_BELOW)
    # A row with a number of its own between them: the head is of something else
    between = np.searchsorted(steps.at, loose.at) - np.searchsorted(steps.at, heads.at[before])
    is_near &= (between == 0) | (heads.column("epoch")[before] >= 0)
    is_near &= ~_are_several_a_head(loose, np.where(is_near, head, -1))
    below = loose.take(np.flatnonzero(is_near))
    its = heads.take(before[is_near])
    below.printed = its.printed
    for name in ("epoch", "total", "epochs", "is_iter"):
        below.fill(name, its.column(name))
    below.columns["head"] = its.at.astype(float)
    return below, loose.take(np.flatnonzero(~is_near))


def _are_several_a_head(loose: Rows, head: np.ndarray) -> np.ndarray:
    """Rows of a kind that comes with other losses again and again below a head: the head is of more than one row."""
    several = np.zeros(len(loose), bool)
    loss, kinds = loose.column("loss"), loose.column("kind")
    for kind in np.unique(kinds):
        its = np.flatnonzero((kinds == kind) & (head >= 0) & np.isfinite(loss))
        told = len(np.unique(np.stack([head[its], loss[its]]), axis=1).T)
        several[kinds == kind] = told > 2 * len(np.unique(head[its]))
    return several


def _merged_by_head(steps: Rows, evals: Rows) -> tuple[Rows, Rows]:
    """One row of all lines below a head: `Train Loss: …` and `Valid Loss: …` of one epoch are one evaluation."""
    steps, evals = _once_a_head(steps), _once_a_head(evals)
    heads = steps.column("head")
    of = {head: index for index, head in enumerate(evals.column("head").tolist()) if not math.isnan(head)}
    shared = [index for index, head in enumerate(heads.tolist()) if head in of]
    for index in shared:
        for name, values in steps.columns.items():
            column = evals.columns.setdefault(name, np.full(len(evals), np.nan))
            target = of[heads[index]]
            column[target] = values[index] if np.isnan(column[target]) else column[target]
    return steps.without(shared), evals


def _once_a_head(rows: Rows) -> Rows:
    heads = rows.column("head")
    order = np.flatnonzero(~np.isnan(heads))
    if not len(order):
        return rows
    _, first, of = np.unique(heads[order], return_index=True, return_inverse=True)
    kept = order[first]
    for name, values in rows.columns.items():
        for index, group in zip(order.tolist(), of.tolist(), strict=True):
            if np.isnan(values[kept[group]]) and not np.isnan(values[index]):
                values[kept[group]] = values[index]
                if name in rows.not_finite:
                    rows.not_finite[name][kept[group]] |= rows.not_finite[name][index]
    return rows.without(np.setdiff1d(order, kept))


def _with_loose(steps: Rows, evals: Rows, tables: dict[str, Rows], found: Found) -> Rows:
    """Rows without a number: by the bar beside them, else counted; where others have numbers they say nothing new."""
    loose, bars = tables.get("loose_steps", Rows()), tables.get("bars", Rows())
    has_loss = np.zeros(len(loose), bool)
    for name in OF_LOSS & loose.columns.keys():
        has_loss |= ~np.isnan(loose.column(name)) | loose.is_not_finite(name)
    loose = _recurring(loose.take(np.flatnonzero(has_loss)))
    numbered = steps.take(np.flatnonzero(steps.printed >= 0))
    is_numbered = any(np.isfinite(numbered.column(name)).any() for name in OF_LOSS)
    if not len(loose):
        bare = tables.get("bare", Rows())
        if is_numbered or len(evals) or len(bare) < 3:
            return steps
        bare.columns["loss"] = bare.columns.pop("bare")
        if "bare" in bare.not_finite:
            bare.not_finite["loss"] = bare.not_finite.pop("bare")
        loose = bare
    if is_numbered:
        return joined((steps, _of_another_run(loose, joined((numbered, evals)), found)))
    total = float(np.nan_to_num(bars.column("total")).max(initial=0.0))
    training = bars.take(np.flatnonzero(bars.column("total") == total)) if len(bars) else bars
    if len(training):
        loose.printed = _by_bars(loose, training)
        for name in ("took_s", "it_per_s"):
            near = np.maximum(np.searchsorted(training.at, loose.at) - 1, 0)
            loose.fill(name, training.column(name)[near])
        if math.isfinite(total):
            found.tell("max_iters", int(total), int(training.line[0]), int(training.at[0]))
        if len(evaluations := tables.get("loose_evals", Rows())):
            evaluations.printed = _by_bars(evaluations, training)
    else:
        _count(loose, tables.get("loose_evals", Rows()), found)
    return joined((steps, loose))


FEWEST_OF_ANOTHER = 4


def _of_another_run(loose: Rows, numbered: Rows, found: Found) -> Rows:
    """Records without a number, all of them before or all behind the rows that have one: what another trainer wrote."""
    loose = loose.take(np.flatnonzero(np.isinf(loose.column("repeats"))))
    if len(loose) < FEWEST_OF_ANOTHER or (numbered.at[0] < loose.at[-1] and loose.at[0] < numbered.at[-1]):
        return Rows()
    later = loose if loose.at[0] > numbered.at[0] else numbered
    found.sign(Sign("run", int(later.line[0]), int(later.at[0])))
    _count(loose, Rows(), found)
    return loose


def _by_bars(rows: Rows, bars: Rows) -> np.ndarray:
    """The bar drawn right behind a row counts as the row does; the one before may be from some steps ago."""
    behind = np.searchsorted(bars.at, rows.at)
    before = np.where(behind > 0, bars.printed[np.maximum(behind - 1, 0)], -1)
    after = np.where(behind < len(bars), bars.printed[np.minimum(behind, len(bars) - 1)], -1)
    every = np.median(np.diff(before[before >= 0])) if np.sum(before >= 0) > 1 else 4.0
    is_same_line = (behind > 0) & (bars.piece[np.maximum(behind - 1, 0)] == rows.piece)
    is_after = (after >= 0) & ((before < 0) | ((after - before >= 0) & (after - before < max(2.0, every / 2))))
    return np.where(is_after & ~is_same_line, after, before)


def _count(loose: Rows, evals: Rows, found: Found) -> None:
    """Numbers rows one by one, or by the interval that is stated. The same row from several writers counts once."""
    interval = found.facts["log_interval"][-1].value if "log_interval" in found.facts else 1
    every = float(interval) if isinstance(interval, (int, float)) and not isinstance(interval, bool) else 1.0
    names = [name for name in ("loss", "lr", "grad_norm", "epoch_real", *OF_LOSS) if name in loose.columns]
    table = np.stack([np.nan_to_num(loose.columns[name], nan=-1.0) for name in names], axis=1)
    is_new = np.append(True, np.any(np.diff(table, axis=0) != 0, axis=1))
    # Only where most rows are copies: a loss that stands still is no copy.
    if np.mean(is_new) > 0.6 or "lr" not in names:
        is_new[:] = True
    number = np.cumsum(is_new) * every
    loose.columns["updates"] = number
    loose.printed = number.astype(np.int64)
    found.tell("steps_counted", int(is_new.sum()), int(loose.line[0]), int(loose.at[0]))
    if len(evals):
        before = np.searchsorted(loose.at, evals.at) - 1
        evals.columns["updates"] = np.where(before >= 0, number[np.maximum(before, 0)], 0.0)
        evals.printed = evals.columns["updates"].astype(np.int64)


def _last_of_progress(rows: Rows) -> Rows:
    """Where an evaluation shows only how far it is, its last row is its result."""
    if not len(rows):
        return rows
    starts_anew = np.append(np.diff(rows.printed) <= 0, True)
    last = rows.take(np.flatnonzero(starts_anew))
    last.printed = np.full(len(last), -1)
    return last


def _split(steps: Rows, evals: Rows) -> tuple[Rows, Rows]:
    """A train loss beside a val loss is an evaluation too, unless rows of this very kind come without a val loss, or
    the row says more of an update."""
    losses = [name for name in evals.columns if name in OF_LOSS - {"train", "train_bits"}]
    has_loss, is_update = np.zeros(len(evals), bool), np.zeros(len(evals), bool)
    for name in losses:
        has_loss |= ~np.isnan(evals.columns[name]) | evals.is_not_finite(name)
    for name in ("lr", "grad_norm", "took_s", "took", "tokens_per_s", "it_per_s"):
        is_update |= np.isfinite(evals.column(name))
    is_update &= (evals.printed >= 0) & np.isnan(evals.column("is_bar"))  # a bar that is full sums up its epoch
    is_batch = np.isin(evals.column("kind"), steps.column("kind")) | is_update
    is_batch &= has_loss & np.isnan(evals.column("head"))
    if is_batch.any():
        known = {*zip(steps.printed.tolist(), np.nan_to_num(steps.column("epoch"), nan=-1.0).tolist(), strict=True)}
        theirs = zip(evals.printed.tolist(), np.nan_to_num(evals.column("epoch"), nan=-1.0).tolist(), strict=True)
        updates = evals.take(np.flatnonzero(is_batch & np.array([number not in known for number in theirs])))
        for name in OF_VAL & updates.columns.keys():
            del updates.columns[name]
            updates.not_finite.pop(name, None)
        updates.at = updates.at + 1
        steps = joined((steps, updates))
    for name in losses:
        values, strange = evals.columns.pop(name), evals.not_finite.pop(name, np.zeros(len(evals), bool))
        target = {"loss": "train", "nll": "train", "loss_bits": "train_bits"}.get(name)
        if target:
            evals.fill(target, np.where(is_batch, np.nan, values))
            evals.not_finite[target] = (strange & ~is_batch) | evals.is_not_finite(target)
    return steps, evals


def _by_epoch(steps: Rows, evals: Rows, found: Found) -> tuple[Rows, Rows]:
    """Rows that are numbered by their epoch alone. Beside rows with steps they sum up an epoch: its train loss belongs
    to the evaluation at its end. Where there are no others, the epoch is the step."""
    is_summary = (steps.printed < 0) & ~np.isnan(steps.column("epoch"))
    has_steps = bool(np.any(~is_summary & (steps.printed >= 0)))
    if has_steps and is_summary.any():
        summaries, steps = steps.take(np.flatnonzero(is_summary)), steps.take(np.flatnonzero(~is_summary))
        by_epoch = dict(zip(summaries.column("epoch").tolist(), summaries.column("loss").tolist(), strict=True))
        means = np.array([by_epoch.get(epoch, np.nan) for epoch in evals.column("epoch").tolist()])
        if len(evals):
            evals.fill("train", means)
        found.understood += summaries.line.tolist()
        return steps, evals
    if has_steps or not (is_summary.any() or np.any((evals.printed < 0) & ~np.isnan(evals.column("epoch")))):
        return steps, evals
    for rows in (steps, evals):
        epoch = rows.column("epoch")
        rows.printed = np.where((rows.printed < 0) & ~np.isnan(epoch), np.nan_to_num(epoch), rows.printed).astype(
            np.int64
        )
        rows.columns["by_epoch"] = np.where(np.isnan(epoch), np.nan, 1.0)
    numbers = np.unique(np.concatenate([steps.printed, evals.printed]))
    numbers = numbers[numbers >= 0]
    if len(numbers) and numbers[-1] <= MOST_EPOCHS and set(np.diff(numbers).tolist()) <= {1}:
        first = steps if len(steps) else evals
        found.tell("steps_are_epochs", True, int(first.line[0]), int(first.at[0]))
    return steps, evals


def _absolute(rows: Rows) -> None:
    """Steps of an epoch -> steps of the run."""
    epoch, total = rows.column("epoch"), rows.column("total")
    counts = (rows.printed >= 0) & ~np.isnan(epoch) & np.isnan(rows.column("by_epoch"))
    if not counts.any():
        return
    order = np.flatnonzero(counts)
    order = order[np.argsort(rows.at[order], kind="stable")]
    later = np.diff(epoch[order]) > 0
    goes_back = np.diff(rows.printed[order]) < 0
    restarts = bool((later & goes_back).any())
    per_epoch = float(np.nanmedian(total[order])) if np.isfinite(total[order]).any() else np.nan
    if not restarts:
        # One epoch alone, shown as so many of so many: that of an epoch where it is not the first
        is_bar = not np.isnan(rows.column("is_bar")[order]).all()
        if not (is_bar and math.isfinite(per_epoch) and np.all(rows.printed[order] <= per_epoch)):
            return
    if math.isnan(per_epoch):
        per_epoch = float(rows.printed[order].max() + 1)
    base = 0.0 if np.nanmin(epoch[order]) == 0 or (not restarts and np.nanmax(epoch[order]) == 0) else 1.0
    updates = rows.printed.astype(float)
    updates[order] += (epoch[order] - base) * per_epoch
    rows.columns["absolute"] = updates
    rows.columns["per_epoch"] = np.full(len(rows), per_epoch)
    rows.columns["epoch_base"] = np.full(len(rows), base)


def _at_ends_of_epochs(steps: Rows, evals: Rows) -> None:
    """Evaluations that say their epoch alone are of its end, where the rows show how long an epoch is."""
    per_epoch = steps.column("per_epoch")
    if not np.isfinite(per_epoch).any() or not len(evals):
        return
    base, each = float(steps.column("epoch_base")[0]), float(np.nanmax(per_epoch))
    by_epoch = (evals.printed < 0) & ~np.isnan(evals.column("epoch"))
    ends = (evals.column("epoch") - base + 1) * each
    evals.columns["absolute"] = np.where(by_epoch, ends, evals.column("absolute"))


def _without_micro_batches(steps: Rows, evals: Rows, found: Found, trainer: Trainer) -> Rows:
    """Rows of micro-batches under the number of their update: the last one stays, no other is of an update that is
    done. Evaluations numbered by micro-batch are numbered by update."""
    micro = steps.column("micro_batches")
    if np.isnan(micro).all() or not len(steps):
        return steps
    goes_on = (np.diff(steps.printed) == 0) & (np.diff(micro) > 0)
    found.rows_read += int(goes_on.sum())
    found.understood += steps.line[:-1][goes_on].tolist()
    kept = steps.take(np.flatnonzero(~np.append(goes_on, False)))
    done = kept.printed > 0
    per_update = (
        max(1.0, float(np.max(kept.column("micro_batches")[done]) / np.max(kept.printed[done]))) if done.any() else 1.0
    )
    if trainer.time_is_of == "micro_batch" and per_update != 1.0:
        kept.columns.pop("took_s", None)
    by_iter = evals.column("is_iter") == 1.0
    evals.printed = np.where(
        by_iter & (evals.printed >= 0), np.round(evals.printed / per_update).astype(np.int64), evals.printed
    )
    return kept


# --- units


def _units(steps: Rows, evals: Rows, found: Found, trainer: Trainer) -> None:
    """Losses in nats. In which unit they were printed is a fact of the text (`loss_unit`)."""
    unit, scale = trainer.loss_unit or "", LN2 if trainer.loss_unit.startswith("bits") else 1.0
    for rows, plain, nll in ((steps, "loss", "nll"), (evals, "val", "val_nll")):
        if nll in rows.columns:  # without label smoothing
            values = rows.columns.pop(nll)
            rows.columns[plain] = np.where(np.isnan(values), rows.column(plain), values)
    for rows, name in ((steps, "loss"), (evals, "val"), (evals, "train")):
        if f"{name}_bits" in rows.columns and not np.isfinite(rows.column(name)).any():
            rows.columns[name] = rows.columns.pop(f"{name}_bits")
            if f"{name}_bits" in rows.not_finite:
                rows.not_finite[name] = rows.not_finite.pop(f"{name}_bits")
            unit, scale = found.bits_unit or "bits_per_token", LN2
    for rows, name, perplexity in ((steps, "loss", "ppl"), (evals, "val", "val_ppl")):
        shown, loss = rows.column(perplexity), rows.column(name)
        with np.errstate(all="ignore"):
            log = np.log(shown)
        both = np.isfinite(log) & np.isfinite(loss) & (loss > 0.2)
        if both.any() and not unit:
            is_base_2 = (
                np.median(np.abs(log[both] / LN2 - loss[both])) < 0.02 < np.median(np.abs(log[both] - loss[both]))
            )
            unit, scale = ("bits_per_token", LN2) if is_base_2 else ("", 1.0)
    if len(steps) and not np.isfinite(steps.column("loss")).any() and not steps.is_not_finite("loss").any():
        for name in ("smoothed", "mean_loss", "epoch_loss"):
            if np.isfinite(steps.column(name)).any() or steps.is_not_finite(name).any():
                steps.columns["loss"] = steps.columns[name]
                if name in steps.not_finite:
                    steps.not_finite["loss"] = steps.not_finite[name]
                found.loss_is_smoothed = name != "epoch_loss"
                break
        else:
            if np.isfinite(steps.column("bits")).any():
                steps.columns["loss"], unit, scale = steps.columns["bits"], found.bits_unit or "bits_per_token", LN2
    for rows, name, perplexity in ((steps, "loss", "ppl"), (evals, "val", "val_ppl")):
        shown, loss = rows.column(perplexity), rows.column(name)
        if len(rows) and not np.isfinite(loss).any() and np.any(shown > 0) and not rows.is_not_finite(name).any():
            rows.columns[name] = np.log(np.where(shown > 0, shown, np.nan))
            unit = unit or "perplexity"
    if "bits" in evals.columns and "val" not in evals.columns:
        evals.columns["val"], unit, scale = evals.columns.pop("bits"), found.bits_unit or "bits_per_token", LN2
    if scale != 1.0 and unit != "perplexity":
        for rows in (steps, evals):
            for name in _LOSSES:
                if name in rows.columns:
                    rows.columns[name] = rows.columns[name] * scale
    found.loss_unit, found.loss_scale = unit or "nats", scale


def _times(steps: Rows, trainer: Trainer) -> None:
    if (mfu := steps.columns.pop("mfu", None)) is not None:
        steps.fill("mfu_frac", mfu / 100.0 if np.any(mfu[np.isfinite(mfu)] > 1.0) else mfu)
    if (took := steps.columns.pop("took", None)) is not None and len(steps):
        if _is_clock(took, steps):
            steps.fill("clock_s", took)
        else:
            usual = float(np.median(took[np.isfinite(took)])) if np.isfinite(took).any() else np.nan
            scale = 1.0 if usual < SECONDS else 1e-3 if usual > MILLISECONDS else np.nan
            steps.fill("took_s", took * scale)
    if (bare := steps.columns.pop("bare_s", None)) is not None:
        steps.fill("clock_s" if _is_clock(bare, steps) else "took_s", bare)
    if "it_per_s" in steps.columns:
        steps.fill("took_s", _inverse(steps.column("it_per_s")))
    if (trainer.time_is_of != "clock" and "took_s" not in steps.columns) or np.isnan(steps.column("took_s")).all():
        steps.fill("took_s", _by_clock(steps) if "clock_s" in steps.columns else steps.column("average_s"))


def _inverse(speeds: np.ndarray) -> np.ndarray:
    """Seconds of a step from steps a second, in no more digits than these were printed with."""
    digits = max(
        (len(f"{speed:.10g}".replace(".", "").strip("0")) for speed in speeds[:200].tolist() if speed > 0), default=3
    )
    return np.array([float(f"{1.0 / speed:.{max(2, digits)}g}") if speed > 0 else np.nan for speed in speeds.tolist()])


def _with_clocks_of(evals: Rows, steps: Rows) -> Rows:
    """Times from a clock that evaluations tell too, also of a step that has no row of its own."""
    alone = evals.take(np.flatnonzero(~np.isin(evals.printed, steps.printed)))
    alone.columns = {name: alone.column(name) for name in ("clock_s", "average_s", "total") if name in alone.columns}
    alone.not_finite = {}
    rows = joined((steps, alone)) if "clock_s" in alone.columns else steps
    if "clock_s" in rows.columns:
        rows.columns["took_s"] = _by_clock(rows)
    return rows.take(np.flatnonzero(rows.printed > 0))


def _is_clock(values: np.ndarray, steps: Rows) -> bool:
    """A time that only ever grows, with the steps, is the time since the start."""
    finite = np.flatnonzero(np.isfinite(values) & (steps.printed >= 0))
    if len(finite) < 4 or np.ptp(steps.printed[finite]) == 0:
        return False
    seen, step = values[finite], steps.printed[finite]
    rises = np.all(np.diff(seen) >= 0) and seen[-1] > seen[0] and np.all(np.diff(step) > 0)
    return bool(rises and np.corrcoef(seen, step)[0, 1] > 0.98 and seen[-1] - seen[0] > seen[0] * 0.3)


def _by_clock(rows: Rows) -> np.ndarray:
    """The clock's difference to the row before, an update."""
    clock, order = rows.column("clock_s"), np.argsort(rows.at, kind="stable")
    number = rows.columns.get("absolute", rows.printed.astype(float))[order]
    passed, done = np.diff(clock[order], prepend=np.nan), np.diff(number, prepend=np.nan)
    took = np.full(len(rows), np.nan)
    with np.errstate(all="ignore"):
        took[order] = np.where((done > 0) & (passed >= 0), passed / done, np.nan)
    average = rows.column("average_s")
    has_started = np.isnan(np.append(np.nan, average[order][:-1])) & np.isfinite(average[order])
    took[order] = np.where(has_started, average[order], took[order])
    return np.where(np.isnan(took), average, took) if np.isfinite(took).sum() == 0 else took
