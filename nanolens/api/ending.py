"""What there is to say of a run that has ended, from its folder: for `train` at its end, and for whoever watches it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nanolens.config.preset import named_preset
from nanolens.message import Message
from nanolens.record.layout import checkpoint_folder
from nanolens.record.progress import Progress
from nanolens.record.store import as_typed
from nanolens.session.summary import Ending, Expected
from nanolens.trackers.live import tracker_places

if TYPE_CHECKING:
    from nanolens.facts.finding import Finding


def ending_of(
    folder: Path, progress: Progress, state: str, findings: Sequence[Finding] | None = None, notes: Sequence[Message] = ()
) -> Ending:  # fmt: skip
    """`findings` None: the run is diagnosed here."""
    if findings is None:
        from nanolens.api.training import diagnosed

        findings, notes = diagnosed(folder)
    progress.state = state
    name = as_typed(folder)
    return Ending(
        progress=progress,
        run=name,
        best_checkpoint=_best_checkpoint(folder, progress),
        expected=_expected(folder),
        findings=findings,
        notes=notes,
        resume=f"nanolens train --init_from=resume --out_dir={folder}",
        trackers=tracker_places(folder),
    )


def _best_checkpoint(folder: Path, progress: Progress) -> str:
    best = progress.best
    if best is not None and checkpoint_folder(folder, best.step).is_dir():
        return str(checkpoint_folder(folder, best.step))
    return ""


def _expected(folder: Path) -> Expected | None:
    """The preset's promise, where the run kept the preset's settings as far as the loss depends on them."""
    from nanolens.record.write import read_run_file

    facts = read_run_file(folder)
    preset = named_preset(str(facts.get("preset") or "")) if facts.get("preset") else None
    if preset is None or (preset.val_loss is None and not preset.curve):
        return None
    config = facts.get("config", {})
    free = {
        "eval_interval",
        "log_interval",
        "out_dir",
        "compile",
        "device",
        "threads",
        "checkpoint_interval",
        "keep_checkpoints",
        "sample_interval",
        "sample_tokens",
        "seed",
    }
    if any(config.get(key) != value for key, value in preset.values.items() if key not in free):
        return None
    return Expected(preset.name, preset.val_loss, preset.val_loss_source, preset.curve)
