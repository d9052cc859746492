"""Runs for tests of comparison and forecast: from a few figures, or from a law that is known."""

from __future__ import annotations

import numpy as np

from nanolens.record.run import Conventions, Known, RunRecord, evals_from, steps_from

NANOGPT = Conventions(
    trainer="nanogpt",
    loss="last_micro_batch",
    time="with_eval",
    updates_before_printed=1,
    peak_flops=312e12,
    mfu_is_smoothed=True,
)
OURS = Conventions(trainer="nanolens", loss="mean", time="step_only")


def run_of(name="A", steps=(), evals=(), conventions=OURS, batches=None, **known):
    """`steps`: (step, loss, seconds); `evals`: (step, train, val); `batches`: (fingerprint, per-batch val losses) of
    each evaluation."""
    rows = {
        "step": [s[0] for s in steps],
        "printed": [s[0] - conventions.updates_before_printed for s in steps],
        "loss": [s[1] for s in steps],
        "took_s": [s[2] for s in steps],
    }
    if steps and len(steps[0]) > 3:
        rows["mfu_frac"] = [s[3] for s in steps]
    columns = {
        "step": [e[0] for e in evals],
        "train": [e[1] for e in evals],
        "val": [e[2] for e in evals],
        "printed": [e[0] for e in evals],
    }
    if batches is not None:
        columns["batches"] = [each[0] for each in batches]
        columns["val_batch_losses"] = [np.asarray(each[1], float) for each in batches]
    facts = {key: Known(value, "given") for key, value in known.items()}
    return RunRecord(name, conventions, steps_from(rows, len(steps)), evals_from(columns, len(evals)), facts)


CPU_DEMO = {
    "dataset": "shakespeare_char",
    "device": "cpu",
    "compile": False,
    "batch_size": 12,
    "block_size": 64,
    "gradient_accumulation_steps": 1,
    "n_layer": 4,
    "n_head": 4,
    "n_embd": 128,
    "dropout": 0.0,
    "learning_rate": 1e-3,
    "max_iters": 2000,
    "lr_decay_iters": 2000,
    "min_lr": 1e-4,
    "beta2": 0.99,
    "warmup_iters": 100,
    "eval_interval": 250,
    "eval_iters": 20,
    "hardware": "laptop CPU",
}
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
    "beta2": 0.99,
    "warmup_iters": 100,
    "eval_interval": 250,
    "eval_iters": 200,
    "log_interval": 10,
    "hardware": "1x RTX 4070 Ti 12GB",
}
SMALL = {
    "batch_size": 16,
    "gradient_accumulation_steps": 32,
    "block_size": 1024,
    "n_layer": 12,
    "n_head": 12,
    "n_embd": 384,
    "vocab_size": 50304,
    "bias": False,
    "learning_rate": 1e-3,
    "hardware": "1x RTX 4070 12GB",
}
LARGE = {
    "batch_size": 8,
    "gradient_accumulation_steps": 64,
    "block_size": 1024,
    "n_layer": 12,
    "n_head": 12,
    "n_embd": 768,
    "vocab_size": 50304,
    "bias": False,
    "learning_rate": 3e-4,
    "hardware": "1x RTX 4070 12GB",
}


def cpu_run():
    return run_of(
        "A", [(1991, 1.72, 0.116, 0.0001), (2001, 1.70, 1.505, 0.0001)], [(2000, 1.76, 1.89)], NANOGPT, **CPU_DEMO
    )


def gpu_run():
    return run_of(
        "B",
        [(4991, 0.8212, 0.03323, 0.1109), (5001, 0.8236, 4.44683, 0.0999)],
        [(5000, 0.6224, 1.7044)],
        NANOGPT,
        **GPU_DEMO,
    )


def small_run():
    return run_of("A", [(801, 4.8, 3.9, 0.129)], [(500, 5.5328, 5.5328), (1000, 4.4593, 4.4593)], NANOGPT, **SMALL)


def large_run():
    return run_of("B", [(801, 4.8, 9.34, 0.154)], [(500, 5.5194, 5.5194)], NANOGPT, **LARGE)
