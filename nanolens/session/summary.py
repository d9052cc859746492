"""The end of a run in words: what was reached and expected, where the time went, what was seen, what to do next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nanolens.config.load import Preset, unchanged_preset
from nanolens.diagnosis import diagnose, headline_of
from nanolens.facts.finding import Finding
from nanolens.facts.laws import two_digits
from nanolens.message import Message, msg
from nanolens.record import checkpoint_folder
from nanolens.record.events import PART_NAMES
from nanolens.record.progress import EvalPoint, Progress
from nanolens.record.read import read_run
from nanolens.record.store import as_typed
from nanolens.record.write import read_run_file
from nanolens.show.document import GAP, TextBlock, bullet, clean, wrapped
from nanolens.show.findings import SURENESS_WORDS
from nanolens.trackers.live import tracker_places

FINDINGS_SHOWN = 5
SAMPLE_LINES = 8


@dataclass(frozen=True)
class RunSummary:
    progress: Progress
    run: str  # as the user would type it
    best_checkpoint: str = ""
    expected: Preset | None = None  # whose settings the run has, as far as the loss depends on them
    findings: Sequence[Finding] = ()
    notes: Sequence[Message] = ()  # what else should be known: a listener in trouble, a diagnosis that failed
    resume: str = ""  # the command that goes on with a run that did not finish
    trackers: Sequence[str] = ()  # where to look at it elsewhere: addresses and commands


def summary_blocks(ending: RunSummary) -> list[TextBlock]:
    it = ending.progress
    blocks = [TextBlock(_title(it), "bad" if it.state == "failed" else "head")]
    if it.state == "failed" and it.because:
        blocks.append(TextBlock(clean(it.because) if isinstance(it.because, str) else it.because, "bad", indent=2))
    said = [*_reached(it, ending.expected), *_speed(it), *_time(it)]
    if ending.best_checkpoint:
        said.append(msg("best weights: {folder:code}", ending.best_checkpoint))
    blocks += [TextBlock(line, indent=2) for line in said]
    commands = [TextBlock(command, "command", indent=2) for command in _next(ending)]
    return [*blocks, *_sample(it), *_seen(ending), GAP, TextBlock(msg("Next"), "head"), *commands]


def _title(it: Progress) -> Message:
    facts = {"run": it.about.name, "step": it.step, "took": it.wall_s(it.last_at_s)}
    match it.state:
        case "finished":
            return msg("{run} finished: {step:count step|steps} in {took:seconds}", **facts)
        case "stopped" if it.saved_step == it.step:
            return msg("{run} was stopped and saved at step {step:count}, after {took:seconds}", **facts)
        case "stopped":
            return msg("{run} was stopped at step {step:count}, after {took:seconds}", **facts)
        case "failed":
            return msg("{run} failed at step {step:count}, after {took:seconds}", **facts)
        case "gone":
            return msg("the process of {run} has died; its last recorded step was {step:count}", **facts)
        case _:
            return msg("{run} is at step {step:count}", **facts)


def _reached(it: Progress, expected: Preset | None) -> list[Message]:
    best = it.best
    if best is None:
        return [msg("batch loss {loss:nats}; no evaluation yet", it.loss)] if math.isfinite(it.loss) else []
    first, last = it.evals[0], it.evals[-1]
    said = [_val(best)]
    if last.step != best.step and math.isfinite(last.val):
        facts = {"step": last.step, "val": last.val, "train": last.train}
        said.append(msg("at the end, step {step:count}: val loss {val:nats}, train loss {train:nats}", **facts))
    elif math.isfinite(best.train):
        said.append(msg("train loss {train:nats} at the same step", best.train))
    if first.step < best.step and math.isfinite(first.val):
        said.append(msg("it started from {val:nats} at step {step:count}", first.val, first.step))
    if expected is not None:
        said += [*_beside_the_curve(last, expected), *_expectation(best.val, expected)]
    return said


def _beside_the_curve(last: EvalPoint, expected: Preset) -> Iterator[Message]:
    """Where the preset's recorded runs stood at this step; seeds and batches account for two standard deviations."""
    if not expected.curve or not math.isfinite(last.val):
        return
    steps, means, spreads = zip(*expected.curve, strict=True)
    if not steps[0] <= last.step <= steps[-1]:
        return
    mean, spread = float(np.interp(last.step, steps, means)), float(np.interp(last.step, steps, spreads))
    facts = {"step": last.step, "mean": mean, "spread": two_digits(spread), "preset": expected.name}
    if abs(last.val - mean) <= 2 * spread:
        yield msg(
            "recorded runs of {preset:code} had {mean:nats} ± {spread:number} at step {step:count}: this run is in "
            "that range",
            **facts,
        )
    elif last.val < mean:
        yield msg(
            "recorded runs of {preset:code} had {mean:nats} ± {spread:number} at step {step:count}: this run is lower",
            **facts,
        )
    else:
        yield msg(
            "recorded runs of {preset:code} had {mean:nats} ± {spread:number} at step {step:count}: this run is higher",
            **facts,
        )


def _val(best: EvalPoint) -> Message:
    facts = {"val": best.val, "bits": best.bits_per_byte, "step": best.step}
    if not math.isfinite(best.val_se):
        return msg("best val loss {val:nats} nats per token, at step {step:count}", **facts)
    facts["se"] = two_digits(best.val_se)  # an error is not known any better
    if math.isfinite(best.bits_per_byte):
        return msg(
            "best val loss {val:nats} ± {se:number} nats per token ({bits:nats} bits per byte), at step {step:count}",
            **facts,
        )
    return msg("best val loss {val:nats} ± {se:number} nats per token, at step {step:count}", **facts)


def _expectation(val: float, expected: Preset) -> Iterator[Message]:
    wanted = expected.val_loss
    if wanted is None:
        return
    source = expected.val_loss_source or msg("measured by nanolens")
    facts = {"gap": abs(val - wanted), "preset": expected.name, "wanted": wanted, "source": source}
    if val <= wanted:
        yield msg("{gap:nats} below the {wanted:nats} expected of preset {preset:code} ({source})", **facts)
    else:
        yield msg("{gap:nats} above the {wanted:nats} expected of preset {preset:code} ({source})", **facts)


def _speed(it: Progress) -> Iterator[Message]:
    seconds = it.parts["train"] + it.parts["data"]
    if not it.tokens or not seconds:
        return
    about, speed = it.about, it.tokens / seconds
    if not about.flops_per_token or not about.peak_flops:
        yield msg("{tokens:tokens} tokens at {speed:tokens_per_s}", it.tokens, speed)
        return
    mfu, origin = speed * about.flops_per_token / about.peak_flops, about.peak_origin.partition(":")[0]
    facts = {"tokens": it.tokens, "speed": speed, "mfu": mfu, "peak": about.peak_flops, "origin": origin}
    yield msg(
        "{tokens:tokens} tokens at {speed:tokens_per_s}, MFU {mfu:share} of {peak:flops_per_s} ({origin})", **facts
    )


def _time(it: Progress) -> Iterator[Message]:
    parts = {name: seconds for name, seconds in it.time_parts(it.last_at_s).items() if seconds}
    total = sum(parts.values())
    if total and it.tokens and len(parts) > 1:
        shares = {name: seconds / total for name, seconds in parts.items() if seconds / total >= 0.005}
        longest_first = sorted(shares, key=shares.__getitem__, reverse=True)
        shown = [msg("{part} {share:share}", PART_NAMES[name], round(shares[name], 2)) for name in longest_first]
        yield msg("time: {parts}", shown)


def _sample(it: Progress) -> Iterator[TextBlock]:
    first, last = it.first_sample, it.sample
    if last is None:
        return
    yield GAP
    if first is not None and first.step < last.step:
        yield TextBlock(msg("Sample from step {step:count}", first.step), "head")
        yield from (TextBlock(text, "quote", indent=2) for text in wrapped(first.text, 76, 2))
    yield TextBlock(msg("Latest sample, step {step:count}", last.step), "head")
    yield from (TextBlock(text, "quote", indent=2) for text in wrapped(last.text, 76, SAMPLE_LINES))


def _seen(ending: RunSummary) -> Iterator[TextBlock]:
    if ending.findings or ending.notes:
        yield GAP
    if ending.findings:
        yield TextBlock(msg("Findings by nanolens"), "head")
        yield TextBlock(headline_of(ending.findings), indent=2)
    for finding in ending.findings[:FINDINGS_SHOWN]:
        said = msg("{sureness}: {claim}", SURENESS_WORDS[finding.sureness], finding.claim)
        yield bullet(msg("{claim} ({code:code})", said, finding.code))
    more = len(ending.findings) - FINDINGS_SHOWN
    if more > 0:
        yield TextBlock(msg("and {count:count} more", more), "note", indent=4)
    yield from (TextBlock(note, indent=2, mark="! ") for note in ending.notes)


def _next(ending: RunSummary) -> list[str]:
    """Commands that make sense now, the most useful first."""
    state = ending.progress.state
    changes = [finding.change for finding in ending.findings if finding.change is not None]
    fix = next((change.command for change in changes if change.command), "")
    resume = ending.resume if state in ("stopped", "failed", "gone") else ""
    sample = f"nanolens sample {ending.run}" if ending.progress.evals and ending.best_checkpoint else ""
    diagnose = f"nanolens diagnose {ending.run}"
    order = (diagnose, fix, resume) if state == "failed" else (resume, sample, diagnose, fix)
    return list(dict.fromkeys(command for command in (*order, *ending.trackers) if command))


def ending_of(
    folder: Path,
    progress: Progress,
    state: str,
    findings: Sequence[Finding] | None = None,
    notes: Sequence[Message] = (),
) -> RunSummary:
    """What there is to say of a run that has ended, from its folder. `findings` None: it is diagnosed here."""
    if findings is None:
        findings, notes = diagnosed(folder)
    progress.state = state
    facts, best = read_run_file(folder), progress.best
    checkpoint = None if best is None else checkpoint_folder(folder, best.step)
    return RunSummary(
        progress=progress,
        run=as_typed(folder),
        best_checkpoint=str(checkpoint) if checkpoint is not None and checkpoint.is_dir() else "",
        expected=unchanged_preset(str(facts.get("preset") or ""), facts.get("config", {})),
        findings=findings,
        notes=notes,
        resume=f"nanolens train --init_from=resume --out_dir={folder}",
        trackers=tracker_places(folder),
    )


def diagnosed(folder: Path) -> tuple[Sequence[Finding], tuple[Message, ...]]:
    """What the run's own record shows. A fault of ours in reading it may not look like a failed training."""
    try:
        return diagnose(read_run(folder)).findings, ()
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
        return (), (msg("the run could not be diagnosed: {error}; please report this", words),)
