"""Rows under names, whoever made them: a table whose columns are somebody's names becomes updates and evaluations.

Used by every door whose names are free: lines of `key value`, CSV, JSON lines, TensorBoard, Weights & Biases.

- A val loss makes an evaluation. A train loss that only ever comes with a val loss is an evaluation of the train split; one that also
  comes alone is the loss of a batch.
- MFU without a sign is per cent where any value is above 1 (a share cannot be), else a share.
- A time without a unit is not taken: milliseconds and seconds look alike.
"""

from __future__ import annotations

import numpy as np

from nanolens.interop.logs.door import Found
from nanolens.interop.logs.rows import Rows

STEP_COLUMNS = ("loss", "rate", "grad_norm", "took_s", "tokens_per_s", "mfu_frac", "at_s", "loss_scale", "memory_bytes", "tokens")
EVAL_COLUMNS = ("train", "val", "val_bits_per_byte", "eval_s", "at_s")


def split(table: Rows) -> Found:
    """Updates and evaluations of a table with our column names."""
    with_units(table.columns)
    loss, bits = table.column("loss"), table.column("val_bits_per_byte")
    has_loss, has_val = _is_said(table, "loss"), _is_said(table, "val") | np.isfinite(bits)
    if has_val.any() and has_loss.any() and not (has_loss & ~has_val).any():
        table.columns["train"] = loss
        if "loss" in table.not_finite:
            table.not_finite["train"] = table.not_finite.pop("loss")
        return Found(Rows(), _only(table, np.flatnonzero(has_val), EVAL_COLUMNS))
    tells = (
        has_loss | np.isfinite(table.column("grad_norm")) | (np.isfinite(table.column("rate")) & ~has_val) | _is_said(table, "grad_norm")
    )
    return Found(_only(table, np.flatnonzero(tells), STEP_COLUMNS), _only(table, np.flatnonzero(has_val), EVAL_COLUMNS))


def with_units(columns: dict[str, np.ndarray]) -> None:
    """`mfu` as a share, under the name that says so."""
    if "mfu" in columns:
        mfu = columns.pop("mfu")
        is_percent = bool(np.any(mfu[np.isfinite(mfu)] > 1.0))
        share = mfu / 100.0 if is_percent else mfu
        known = columns.get("mfu_frac", np.full(len(share), np.nan))
        columns["mfu_frac"] = np.where(np.isnan(known), share, known)


def _is_said(table: Rows, name: str) -> np.ndarray:
    said = ~np.isnan(table.column(name))
    return said | table.not_finite[name] if name in table.not_finite else said


def _only(table: Rows, chosen: np.ndarray, names: tuple[str, ...]) -> Rows:
    rows = table.take(chosen)
    keep = {*names, "updates", "total"}
    rows.columns = {name: values for name, values in rows.columns.items() if name in keep}
    rows.not_finite = {name: values for name, values in rows.not_finite.items() if name in keep}
    return rows


def counts_from_zero(printed: np.ndarray) -> bool:
    """A loss at step 0 is that of the first update: such a trainer counts the updates before the row."""
    return bool(len(printed)) and int(printed.min()) == 0
