"""Every setting of a run, once: its name (nanoGPT's where nanoGPT has one), unit, meaning, default and range.

`--help`, the option reference, validation, `explain` and the tooltips of the page are all made from this class. The defaults are
nanoGPT's own, so that one of its config files means here what it means there; where nanoGPT would pick a CUDA device or a precision by hand,
the default is `auto`. A setting that is None is shown and written as `auto`: the program decides, and records its choice with the reason.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from nanolens.message import Message, msg

Group = Literal["model", "data", "optimizer", "schedule", "evaluation", "checkpoint", "machine", "output"]


@dataclass(frozen=True)
class Setting:
    """What is known of one field of Config."""

    name: str
    type: type  # int, float, bool or str
    default: Any
    meaning: Message
    unit: str  # "", or what is counted: "tokens", "updates", …
    group: Group
    low: float | None  # smallest and largest values that make sense, both allowed
    high: float | None
    choices: tuple[str, ...]
    is_optional: bool  # None is allowed, and is written `auto`
    is_fixed_by_checkpoint: bool  # resuming with another value is refused


def setting(
    default: Any, meaning: Message, *, group: Group, unit: str = "", low: float | None = None, high: float | None = None,
    choices: tuple[str, ...] = (), fixed: bool = False,
) -> Any:  # fmt: skip
    about = {"meaning": meaning, "unit": unit, "group": group, "low": low, "high": high, "choices": choices, "fixed": fixed}
    return dataclasses.field(default=default, metadata=about)


@dataclass(frozen=True, kw_only=True)
class Config:
    # fmt: off
    # --- model
    arch: str = setting("gpt2", msg("architecture: gpt2 (nanoGPT's, exactly), modern (learns more per FLOP), or a .py file with your own model"), group="model", fixed=True)
    n_layer: int = setting(12, msg("number of transformer blocks"), group="model", unit="blocks", low=1, high=1000, fixed=True)
    n_head: int = setting(12, msg("attention heads in each block; divides n_embd"), group="model", unit="heads", low=1, high=1000, fixed=True)
    n_embd: int = setting(768, msg("width of the model: numbers that stand for one token"), group="model", unit="channels", low=1, high=100_000, fixed=True)
    block_size: int = setting(1024, msg("context: how many tokens the model sees at once"), group="model", unit="tokens", low=1, high=1_048_576)
    vocab_size: int | None = setting(None, msg("number of different tokens; auto: as many as the data's tokenizer has (50,304 for GPT-2's, a multiple of 64)"), group="model", unit="tokens", low=2, high=10_000_000, fixed=True)
    dropout: float = setting(0.0, msg("share of activations switched off at random in training; 0 for one pass over much data, 0.1 to 0.2 for many passes over little"), group="model", low=0, high=0.99)
    bias: bool = setting(False, msg("biases in the linear layers and norms, as GPT-2 has; without them slightly faster and no worse"), group="model", fixed=True)
    gelu: str = setting("exact", msg("arch=gpt2: the activation: exact, as nanoGPT computes it, or tanh, the approximation that OpenAI's GPT-2 was trained with and llama.cpp computes"), group="model", choices=("exact", "tanh"))
    softcap: float = setting(15.0, msg("arch=modern: logits are bent to stay within plus or minus this; 0 switches it off"), group="model", low=0, high=1000, fixed=True)
    token_shift: bool = setting(True, msg("arch=modern: each embedding is mixed with the one before it; such a model cannot be exported to other formats"), group="model", fixed=True)
    ngram_rows: int = setting(4096, msg("arch=modern: rows of each hashed table of n-grams (token pairs, triples, …), which are added to the embedding; 0 switches the tables off, and only then the model can be exported"), group="model", unit="rows", low=0, high=10_000_000, fixed=True)
    ngram_order: int = setting(3, msg("arch=modern: the longest n-gram that has a table: 2 pairs, 3 triples too, …; 5 for characters, 2 or 3 for larger tokens"), group="model", unit="tokens", low=2, high=8, fixed=True)
    ngram_dropout: float = setting(0.0, msg("arch=modern: share of the n-grams that are left out at random in training; above 0 where the same text is read more than once"), group="model", low=0, high=0.99)
    # --- data
    dataset: str = setting("openwebtext", msg("a prepared folder, a folder below data/, or a named corpus, which is prepared at once"), group="data")
    batch_size: int = setting(12, msg("sequences in one micro-batch on one device; auto: as is fastest here by measurement (nanolens tune), with as many tokens per update as otherwise"), group="data", unit="sequences", low=1, high=1_000_000)
    gradient_accumulation_steps: int = setting(40, msg("micro-batches that are added up before the weights change, over all devices"), group="data", unit="micro-batches", low=1, high=1_000_000)
    data_order: str = setting("shuffled", msg("shuffled: every token once per epoch, in a fresh order; nanogpt: random windows, drawn exactly as nanoGPT draws them"), group="data", choices=("shuffled", "nanogpt"), fixed=True)
    seed: int = setting(1337, msg("start of all random numbers: initial weights, data order, dropout"), group="data", low=0, high=2**63 - 1, fixed=True)
    # --- optimizer
    optimizer: str = setting("adamw", msg("adamw, or muon (Muon for the matrices inside the blocks, Adam for the rest)"), group="optimizer", choices=("adamw", "muon"), fixed=True)
    learning_rate: float = setting(6e-4, msg("largest learning rate (of Adam, where the optimizer is muon)"), group="optimizer", low=0, high=100)
    matrix_learning_rate: float = setting(0.02, msg("optimizer=muon: largest learning rate of the matrices inside the blocks"), group="optimizer", low=0, high=100)
    weight_decay: float = setting(0.1, msg("how strongly weights are pulled to zero at each update"), group="optimizer", low=0, high=100)
    beta1: float = setting(0.9, msg("Adam's memory of past gradients"), group="optimizer", low=0, high=0.999999)
    beta2: float = setting(0.95, msg("Adam's memory of past squared gradients; 0.99 when an update has few tokens"), group="optimizer", low=0, high=0.9999999)
    grad_clip: float = setting(1.0, msg("gradients longer than this are shortened to it; 0 switches it off"), group="optimizer", low=0, high=1e9)
    label_smoothing: float = setting(0.0, msg("share of each target spread over all tokens; reported losses stay plain"), group="optimizer", low=0, high=0.99)
    # --- schedule
    max_iters: int = setting(600_000, msg("updates in the whole run"), group="schedule", unit="updates", low=0, high=10**12)
    decay_lr: bool = setting(True, msg("warm the learning rate up and decay it; off: constant"), group="schedule")
    schedule: str = setting("cosine", msg("shape of the decay: cosine, linear (from the peak to min_lr), or wsd (constant, then linear over the last decay_frac)"), group="schedule", choices=("cosine", "linear", "wsd"))
    warmup_iters: int = setting(2000, msg("updates over which the learning rate rises from 0"), group="schedule", unit="updates", low=0, high=10**12)
    lr_decay_iters: int | None = setting(600_000, msg("update at which the decay ends; should be max_iters; auto: max_iters"), group="schedule", unit="updates", low=1, high=10**12)
    min_lr: float = setting(6e-5, msg("learning rate at the end of the decay; a tenth of the largest is customary"), group="schedule", low=0, high=100)
    decay_frac: float = setting(0.2, msg("schedule=wsd: share of the run, at its end, over which the learning rate falls"), group="schedule", low=0, high=1)
    # --- evaluation
    eval_interval: int = setting(2000, msg("updates between two evaluations"), group="evaluation", unit="updates", low=1, high=10**12)
    eval_iters: int = setting(200, msg("batches in one evaluation, for each split"), group="evaluation", unit="batches", low=1, high=10**9)
    eval_whole: bool = setting(False, msg("evaluate each token of the val split instead of eval_iters batches of it"), group="evaluation")
    eval_only: bool = setting(False, msg("evaluate once and stop"), group="evaluation")
    sample_interval: int | None = setting(None, msg("updates between two sample texts; auto: at each evaluation of a run with a tokenizer"), group="evaluation", unit="updates", low=0, high=10**12)
    sample_tokens: int = setting(200, msg("tokens in a sample text"), group="evaluation", unit="tokens", low=1, high=1_000_000)
    # --- checkpoints
    init_from: str = setting("scratch", msg("scratch; resume; auto (resume where out_dir holds a run, else scratch); gpt2, gpt2-medium, gpt2-large, gpt2-xl or a folder in Hugging Face format; or RUN@STEP, which branches off from that run"), group="checkpoint")
    always_save_checkpoint: bool = setting(True, msg("keep the newest evaluation's weights as best even if they are not; a run can be resumed either way"), group="checkpoint")
    checkpoint_interval: int | None = setting(None, msg("updates between two checkpoints; auto: eval_interval"), group="checkpoint", unit="updates", low=1, high=10**12)
    keep_checkpoints: int = setting(2, msg("how many of the newest checkpoints stay on disk, besides the best"), group="checkpoint", unit="checkpoints", low=1, high=100_000)
    overwrite: bool = setting(False, msg("out_dir holds a run: move it aside and start anew"), group="checkpoint")
    # --- machine
    device: str = setting("auto", msg("auto, cpu, cuda, cuda:1, mps"), group="machine")
    dtype: str = setting("auto", msg("precision of the arithmetic; auto: bfloat16 or float16 where the device is fast at it, else float32"), group="machine", choices=("auto", "float32", "bfloat16", "float16"))
    compile: bool | None = setting(None, msg("torch.compile the model; auto: when the time it takes will be won back"), group="machine")
    chunked_head: bool | None = setting(None, msg("compute the loss in chunks, so that the logits are never held whole; auto: when they would be larger than the rest"), group="machine")
    threads: int | None = setting(None, msg("CPU threads; auto: the physical cores"), group="machine", unit="threads", low=1, high=4096)
    backend: str = setting("nccl", msg("how several processes speak to each other; gloo is taken where there is no GPU"), group="machine", choices=("nccl", "gloo"))
    engine: str = setting("auto", msg("several devices: ddp (each has the whole model), fsdp (each has a part of it); auto: ddp, unless the model does not fit"), group="machine", choices=("auto", "ddp", "fsdp"))
    rank_timeout: float = setting(600.0, msg("several devices: how long one waits for another before the run is ended with the name of the one that did not come"), group="machine", unit="seconds", low=1, high=10**6)
    skip_budget: int = setting(3, msg("non-finite updates that may be skipped within 100 before the run rolls back"), group="machine", unit="updates", low=0, high=10**9)
    # --- output
    out_dir: str = setting("auto", msg("the run folder; auto: runs/ and a name made from preset and number"), group="output")
    log_interval: int = setting(1, msg("updates between two printed lines"), group="output", unit="updates", low=1, high=10**12)
    trackers: str = setting("none", msg("where the run is sent while it goes on: tensorboard, wandb, trackio, mlflow, or several with commas between; nanolens send does it afterwards"), group="output")
    wandb_log: bool = setting(False, msg("send the run to Weights & Biases; the same as trackers=wandb"), group="output")
    wandb_project: str | None = setting(None, msg("project name at the trackers; auto: nanolens"), group="output")
    wandb_run_name: str | None = setting(None, msg("run name at the trackers; auto: the name of the run folder"), group="output")
    # fmt: on

    @property
    def tokens_per_update(self) -> int:
        return self.batch_size * self.block_size * self.gradient_accumulation_steps

    @property
    def decay_ends(self) -> int:
        return self.max_iters if self.lr_decay_iters is None else self.lr_decay_iters


@cache
def settings() -> dict[str, Setting]:
    """All settings by name, in the order of the class."""
    hints = typing.get_type_hints(Config)
    found = {}
    for field in dataclasses.fields(Config):
        kinds = typing.get_args(hints[field.name]) or (hints[field.name],)
        about = field.metadata
        found[field.name] = Setting(
            name=field.name, type=kinds[0], default=field.default, meaning=about["meaning"], unit=about["unit"], group=about["group"],
            low=about["low"], high=about["high"], choices=about["choices"], is_optional=types.NoneType in kinds, is_fixed_by_checkpoint=about["fixed"],
        )  # fmt: skip
    return found


def as_text(value: object) -> str:
    """A setting's value as a user would type it."""
    return "auto" if value is None else str(value)
