"""The end of a run in words: what was reached, against what was expected, where the time went, what was seen, and what to do next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nanolens.message import Message, msg
from nanolens.present.blocks import GAP, Block
from nanolens.present.text import SURENESS
from nanolens.record.progress import Evaluation, Progress
from nanolens.show.live import PART_NAMES, clean, wrapped
from nanolens.show.words import show, tied

if TYPE_CHECKING:
    from nanolens.facts.finding import Finding

FINDINGS_SHOWN = 5
SAMPLE_LINES = 8


@dataclass(frozen=True)
class Expected:
    """What the preset promises, and who measured it."""

    preset: str
    val_loss: float | None
    source: Message | None
    curve: tuple[tuple[int, float, float], ...] = ()  # (step, mean val loss, standard deviation over seeds) of its recorded runs


@dataclass(frozen=True)
class Ending:
    progress: Progress
    run: str  # as the user would type it
    best_checkpoint: str = ""
    expected: Expected | None = None
    findings: Sequence[Finding] = ()
    notes: Sequence[Message] = ()  # what else should be known: a listener in trouble, a diagnosis that failed
    resume: str = ""  # the command that goes on with a run that did not finish
    trackers: Sequence[str] = ()  # where to look at it elsewhere: addresses and commands


def summary_blocks(ending: Ending, lang: str = "en") -> list[Block]:
    it = ending.progress

    def line(said: Message, indent: int = 2) -> Block:
        return Block(tied(said, lang), indent=indent)

    blocks = [Block(tied(_title(it), lang), "bad" if it.state == "failed" else "head")]
    if it.state == "failed" and it.because:
        blocks.append(Block(clean(it.because), "bad", indent=2))
    blocks += [line(said) for said in _reached(it, ending.expected)]
    blocks += [line(said) for said in (_speed(it), _time(it, lang)) if said is not None]
    if ending.best_checkpoint:
        blocks.append(line(msg("best weights: {folder:code}", folder=ending.best_checkpoint)))
    blocks += _sample(it, lang)
    blocks += _seen(ending, lang)
    blocks += [GAP, Block(tied(msg("Next"), lang), "head")]
    blocks += [Block(command, "command", indent=2) for command in _next(ending)]
    return blocks


def _title(it: Progress) -> Message:
    took_s = it.wall_s(it.last_at_s)
    match it.state:
        case "finished":
            return msg("{run} is done: {steps:count} steps in {took:seconds}", run=it.about.name, steps=it.step, took=took_s)
        case "stopped" if it.saved_step == it.step:
            return msg(
                "{run} was stopped and saved at step {step:count}, after {took:seconds}", run=it.about.name, step=it.step, took=took_s
            )
        case "stopped":
            return msg("{run} was stopped at step {step:count}, after {took:seconds}", run=it.about.name, step=it.step, took=took_s)
        case "failed":
            return msg("{run} failed at step {step:count}, after {took:seconds}", run=it.about.name, step=it.step, took=took_s)
        case "gone":
            return msg("the process of {run} is gone; its last word was of step {step:count}", run=it.about.name, step=it.step)
        case _:
            return msg("{run} is at step {step:count}", run=it.about.name, step=it.step)


def _reached(it: Progress, expected: Expected | None) -> list[Message]:
    best = it.best
    if best is None:
        return [msg("batch loss {loss:nats}; no evaluation yet", loss=it.loss)] if math.isfinite(it.loss) else []
    first, last = it.evals[0], it.evals[-1]
    said = [_val(best)]
    if last.step != best.step and math.isfinite(last.val):
        said.append(
            msg(
                "at the end, step {step:count}: val loss {val:nats}, train loss {train:nats}",
                step=last.step,
                val=last.val,
                train=last.train,
            )
        )
    elif math.isfinite(best.train):
        said.append(msg("train loss {train:nats} at the same step", train=best.train))
    if first.step < best.step and math.isfinite(first.val):
        said.append(msg("it started from {val:nats} at step {step:count}", val=first.val, step=first.step))
    if expected is not None:
        said += [message for message in (_beside_the_curve(last, expected), _expectation(best.val, expected)) if message is not None]
    return said


def _beside_the_curve(last: Evaluation, expected: Expected) -> Message | None:
    """Where the preset's recorded runs stood at this step; two standard deviations are what seeds and evaluation batches do."""
    if not expected.curve or not math.isfinite(last.val) or not expected.curve[0][0] <= last.step <= expected.curve[-1][0]:
        return None
    steps, means, spreads = zip(*expected.curve, strict=True)
    mean, spread = float(np.interp(last.step, steps, means)), float(np.interp(last.step, steps, spreads))
    facts = {"step": last.step, "mean": mean, "spread": _rounded(spread), "preset": expected.preset}
    if abs(last.val - mean) <= 2 * spread:
        return msg(
            "recorded runs of {preset:code} had {mean:nats} ± {spread:number} at step {step:count}: this one is among them",
            **facts,
        )
    if last.val < mean:
        return msg("recorded runs of {preset:code} had {mean:nats} ± {spread:number} at step {step:count}: this one is lower", **facts)
    return msg("recorded runs of {preset:code} had {mean:nats} ± {spread:number} at step {step:count}: this one is higher", **facts)


def _val(best: Evaluation) -> Message:
    if not math.isfinite(best.val_se):
        return msg("best val loss {val:nats} nats per token, at step {step:count}", val=best.val, step=best.step)
    if math.isfinite(best.bits_per_byte):
        return msg(
            "best val loss {val:nats} ± {se:number} nats per token ({bits:nats} bits per byte), at step {step:count}",
            val=best.val, se=_rounded(best.val_se), bits=best.bits_per_byte, step=best.step,
        )  # fmt: skip
    return msg(
        "best val loss {val:nats} ± {se:number} nats per token, at step {step:count}",
        val=best.val,
        se=_rounded(best.val_se),
        step=best.step,
    )


def _expectation(val: float, expected: Expected) -> Message | None:
    if expected.val_loss is None:
        return None
    facts = {
        "gap": abs(val - expected.val_loss),
        "preset": expected.preset,
        "wanted": expected.val_loss,
        "source": expected.source or msg("measured by nanolens"),
    }
    if val <= expected.val_loss:
        return msg("{gap:nats} below the {wanted:nats} that preset {preset:code} promises ({source})", **facts)
    return msg("{gap:nats} above the {wanted:nats} that preset {preset:code} promises ({source})", **facts)


def _speed(it: Progress) -> Message | None:
    seconds = it.parts["train"] + it.parts["data"]
    if not it.tokens or not seconds:
        return None
    speed = it.tokens / seconds
    if it.about.flops_per_token and it.about.peak_flops:
        return msg(
            "{tokens:tokens} tokens at {speed:tokens_per_s}, MFU {mfu:share} of {peak:flops_per_s} ({origin})",
            tokens=it.tokens, speed=speed, mfu=speed * it.about.flops_per_token / it.about.peak_flops, peak=it.about.peak_flops,
            origin=it.about.peak_origin.partition(":")[0],
        )  # fmt: skip
    return msg("{tokens:tokens} tokens at {speed:tokens_per_s}", tokens=it.tokens, speed=speed)


def _time(it: Progress, lang: str) -> Message | None:
    parts = it.time_parts(it.last_at_s)
    total = sum(parts.values())
    if not total or not it.tokens or len([seconds for seconds in parts.values() if seconds]) < 2:
        return None
    shown = [(name, seconds / total) for name, seconds in sorted(parts.items(), key=lambda part: -part[1]) if seconds / total >= 0.005]
    words = ", ".join(f"{show(PART_NAMES[name], 'text', lang)} {show(round(share, 2), 'share', lang)}" for name, share in shown)
    return msg("time: {parts}", parts=words)


def _sample(it: Progress, lang: str) -> list[Block]:
    if it.sample is None:
        return []
    blocks = [GAP]
    first = it.first_sample
    if first is not None and first.step < it.sample.step:
        blocks.append(Block(tied(msg("At step {step:count} it wrote", step=first.step), lang), "head"))
        blocks += [Block(text, "quote", indent=2) for text in wrapped(first.text, 76, 2)]
    blocks.append(Block(tied(msg("At step {step:count} it writes", step=it.sample.step), lang), "head"))
    return blocks + [Block(text, "quote", indent=2) for text in wrapped(it.sample.text, 76, SAMPLE_LINES)]


def _seen(ending: Ending, lang: str) -> list[Block]:
    notes = [Block(tied(note, lang), indent=2, mark="! ") for note in ending.notes]
    if not ending.findings:
        return [GAP, *notes] if notes else []
    blocks = [GAP, Block(tied(msg("What nanolens saw"), lang), "head")]
    for finding in ending.findings[:FINDINGS_SHOWN]:
        said = msg("{sureness}: {claim}", sureness=SURENESS[finding.sureness], claim=finding.claim)
        blocks.append(Block(f"{tied(said, lang)} ({finding.code})", indent=2, mark="- "))
    more = len(ending.findings) - FINDINGS_SHOWN
    if more > 0:
        blocks.append(Block(tied(msg("and {count:count} more", count=more), lang), "note", indent=4))
    return blocks + notes


def _next(ending: Ending) -> list[str]:
    """Commands that make sense now, the most useful first."""
    state = ending.progress.state
    mend = next((finding.change.command for finding in ending.findings if finding.change and finding.change.command), "")
    resume = ending.resume if state in ("stopped", "failed", "gone") else ""
    sample = f"nanolens sample {ending.run}" if ending.progress.evals and ending.best_checkpoint else ""
    diagnose = f"nanolens diagnose {ending.run}"
    order = (diagnose, mend, resume) if state == "failed" else (resume, sample, diagnose, mend)
    return list(dict.fromkeys(command for command in (*order, *ending.trackers) if command))


def _rounded(error: float) -> float:
    """A standard error is known to two digits at best."""
    if not math.isfinite(error) or error <= 0:
        return error
    return round(error, 1 - math.floor(math.log10(error)))
