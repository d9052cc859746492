"""Made-up runs for tests of symptoms: a curve, evaluations, what is known; and short ways to ask what was found."""

from __future__ import annotations

import numpy as np

from nanolens.diagnosis import diagnose
from nanolens.diagnosis.pages import page_of
from nanolens.diagnosis.rules import RULES
from nanolens.facts.case import Case
from nanolens.facts.finding import Finding
from nanolens.record.run import Conventions, Known, Mark, Reading, RunRecord, evals_from, steps_from

NANOGPT = Conventions(
    trainer="nanogpt",
    loss="last_micro_batch",
    time="with_eval",
    updates_before_printed=1,
    peak_flops=312e12,
    mfu_is_smoothed=True,
)
OURS = Conventions(trainer="nanolens", loss="mean", time="step_only")

GPU_DEMO = {
    "dataset": "shakespeare_char",
    "batch_size": 64,
    "block_size": 256,
    "gradient_accumulation_steps": 1,
    "n_layer": 6,
    "n_head": 6,
    "n_embd": 384,
    "dropout": 0.2,
    "learning_rate": 1e-3,
    "max_iters": 5000,
    "lr_decay_iters": 5000,
    "min_lr": 1e-4,
    "warmup_iters": 100,
    "eval_interval": 250,
    "eval_iters": 200,
    "log_interval": 10,
}
GPT2 = {
    "n_layer": 12,
    "n_head": 12,
    "n_embd": 768,
    "block_size": 1024,
    "batch_size": 12,
    "gradient_accumulation_steps": 40,
    "vocab_size": 50304,
    "learning_rate": 6e-4,
    "min_lr": 6e-5,
    "max_iters": 20000,
    "lr_decay_iters": 20000,
    "warmup_iters": 700,
    "eval_iters": 200,
}


def make(
    losses=(),
    steps=None,
    evals=(),
    *,
    conventions=NANOGPT,
    took=None,
    mfu=None,
    rate=None,
    norm=None,
    not_finite=None,
    marks=(),
    time_parts=None,
    reading=None,
    columns=None,
    **known,
) -> RunRecord:
    """`losses` at `steps` (1, 2, 3, … if not given); `evals` as (step, train, val)."""
    count = len(losses)
    at = np.arange(1, count + 1) if steps is None else np.asarray(steps, int)
    rows = {
        "step": at,
        "printed": at - conventions.updates_before_printed,
        "loss": losses,
        "line": np.arange(1, count + 1),
    }
    for name, values in {
        "took_s": took,
        "mfu_frac": mfu,
        "lr": rate,
        "grad_norm": norm,
        "not_finite": not_finite,
        **(columns or {}),
    }.items():
        if values is not None:
            rows[name] = np.full(count, values) if np.isscalar(values) else values
    ev = {name: [row[i] for row in evals] for i, name in enumerate(("step", "train", "val"))}
    ev["printed"] = ev["step"]
    ev["line"] = list(range(1000, 1000 + len(evals)))
    facts = {key: Known(value, "given", "test") for key, value in known.items()}
    return RunRecord(
        "test",
        conventions,
        steps_from(rows, count),
        evals_from(ev, len(evals)),
        facts,
        tuple(marks),
        reading or Reading(),
        time_parts or {},
    )


def curve(count, *, start=10.8, end=3.3, noise=0.03, seed=0, every=1):
    """A falling loss with noise: (steps, losses)."""
    steps = np.arange(count) * every + 1
    share = np.log1p(steps) / np.log1p(steps[-1])
    return steps, start - (start - end) * share**0.7 + noise * np.random.default_rng(seed).standard_normal(count)


def char_curve(count=500, *, end=1.5, noise=0.02, seed=0, every=10):
    return curve(count, start=4.2, end=end, noise=noise, seed=seed, every=every)


def found(run, *codes) -> dict[str, Finding]:
    """What is found by the rules that the pages of these codes are about (or by all, resolved), by code."""
    if not codes:
        return {finding.code: finding for finding in diagnose(run).findings}
    case, asked = Case(run), {each for code in codes for each in page_of(code).codes}
    answers = [answer for rule in RULES if asked & set(rule.codes) for answer in rule.findings(case)]
    return {answer.code: answer for answer in answers if isinstance(answer, Finding) and answer.code in asked}


def sure(run, *codes) -> set[str]:
    """Codes that are certain or likely."""
    return {code for code, finding in found(run, *codes).items() if finding.sureness != "possible"}


def mark(kind, step=None, text="", line=1) -> Mark:
    return Mark(kind, step, line, text)
