"""A question has one answer: what plan says of a config, diagnose says of its run; and a named constant has one value."""

from __future__ import annotations

import ast
import dataclasses
import random
from collections import defaultdict
from pathlib import Path

import numpy as np

from nanolens.config.fields import Config, faults_in
from nanolens.diagnosis import diagnose
from nanolens.facts.finding import Finding
from nanolens.planning import PlanInputs, case_of, make_plan
from nanolens.planning.figures import DataFacts, MachineFacts
from nanolens.planning.time import time_plan
from nanolens.record.run import RunRecord, evals_from, steps_from
from nanolens.sizing.devices import hardware_named
from nanolens.sizing.shape import shape_of

PACKAGE = Path(__file__).parents[2] / "nanolens"
NEEDS_A_MACHINE = {"will_not_fit", "may_not_fit", "disk_full", "eval_dominates_time"}
"""Said of a plan alone: a record does not tell the free memory and disk, or the share of time before any is spent."""
HOLD_AFTERWARDS = {"lr_schedule_mismatch", "data_repeated", "dropout_in_one_epoch", "batch_too_large"}
"""Judgements of the settings, which a finished run cannot change. The others (is the learning rate too high, will it
overfit) are about what will happen, and the curve knows better."""


def drawn(count: int = 300) -> list[tuple[Config, DataFacts]]:
    draw, found = random.Random(14), []
    while len(found) < count:
        updates = draw.choice([100, 300, 1000, 5000, 20_000])
        config = dataclasses.replace(
            Config(),
            n_layer=draw.choice([2, 4, 12]),
            n_head=4,
            n_embd=draw.choice([64, 256, 768]),
            block_size=draw.choice([64, 256, 1024]),
            batch_size=draw.choice([4, 16, 64]),
            gradient_accumulation_steps=draw.choice([1, 8, 64]),
            max_iters=updates,
            lr_decay_iters=round(updates * draw.choice([0.5, 0.7, 0.85, 1.0, 1.1, 1.3, 1.6, 10.0])),
            warmup_iters=round(updates * draw.choice([0, 0.01, 0.05, 0.15, 0.3, 0.6, 1.2])),
            learning_rate=draw.choice([1e-5, 3e-4, 1e-3, 3e-2]),
            min_lr=1e-6,
            dropout=draw.choice([0.0, 0.1, 0.2]),
            eval_iters=draw.choice([2, 20, 200]),
            decay_lr=draw.random() < 0.9,
            chunked_head=True,
        )
        tokens = draw.choice([10**6, 10**8, 10**10])
        if not list(faults_in(config, {})):
            found.append((config, DataFacts("a text", tokens, tokens // 10, draw.choice([65, 50304]))))
    return found


def codes(findings) -> set[str]:
    return {each.code for each in findings if isinstance(each, Finding)}


def finished(run: RunRecord, updates: int) -> RunRecord:
    """The same settings after a run whose loss fell as it should."""
    steps = np.unique(np.linspace(1, updates, 200).astype(int))
    losses = 2.0 + 2.0 * steps**-0.3
    rows = {"step": steps, "printed": steps, "line": steps, "loss": losses}
    evals = {"step": steps[::20], "printed": steps[::20], "line": steps[::20]}
    evals |= {"train": losses[::20], "val": losses[::20] + 0.01}
    return dataclasses.replace(run, steps=steps_from(rows, len(steps)), evals=evals_from(evals, len(steps[::20])))


def test_plan_and_diagnose_agree_on_300_configs() -> None:
    card = hardware_named("RTX 4070")
    assert card.device is not None
    machine = MachineFacts("RTX 4070", "gpu", "bfloat16", card.device, 1, 12e9, is_this_one=False, compiled=True)
    said: set[str] = set()
    for config, data in drawn():
        shape = shape_of(config, data.vocab_size)
        asked = PlanInputs(config, shape, data, machine, time_plan(config, shape, machine))
        planned = make_plan(config, data, machine).warnings
        run = case_of(asked).run
        assert codes(planned) - NEEDS_A_MACHINE == codes(diagnose(run).findings), config
        afterwards = diagnose(finished(run, config.max_iters)).findings
        assert codes(planned) & HOLD_AFTERWARDS == codes(afterwards) & HOLD_AFTERWARDS, config
        said |= codes(planned)
    assert said >= HOLD_AFTERWARDS | {"no_warmup", "lr_too_high", "lr_too_low", "eval_noise"}


# --- constants


def constants() -> dict[str, list[str]]:
    """Public UPPER_CASE names of modules, with the modules that define them, whatever the value is made of."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for name in (each for target in targets if target is not None for each in ast.walk(target)):
                is_constant = isinstance(name, ast.Name) and len(name.id) > 1 and name.id.isupper()
                if is_constant and isinstance(name.ctx, ast.Store) and not name.id.startswith("_"):
                    found[name.id].append(path.relative_to(PACKAGE).as_posix())
    return found


def test_a_named_constant_has_one_home() -> None:
    """So it cannot have two values. A number that is a module's own affair starts with an underscore."""
    twice = {name: modules for name, modules in constants().items() if len(modules) > 1}
    assert not twice
