"""The four trainers of the zoo, the texts they learn, and the places in torch at which a run is broken.

Nothing of a trainer is rewritten to break it: every one of them calls torch's cross entropy and attention and steps a
torch optimizer, and there `Sabotage` waits. Its clock is all that they see of time: a pass through the model takes what
its arithmetic would on a core of its own, with some scatter, and what a fault costs is added without being waited for.
So other programs on the machine do not look like throttling, and a run made twice is the same to the last digit."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import math
import pickle
import random
import statistics
import string
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import optimizer as torch_optimizer

from nanolens.config.fields import Config
from nanolens.data.corpora import fetch, find_corpus
from nanolens.data.prepare import prepare
from nanolens.data.prepare.facts import count_tokens, entropy_nats, pair_facts
from nanolens.data.store import open_folder
from nanolens.model import gpt2, modern
from nanolens.record import events as e
from nanolens.record.progress import Progress, about_folder, about_run
from nanolens.record.write import Recorder
from nanolens.show import words
from nanolens.show.lines import LineView
from nanolens.sizing.schedule import lr_at
from nanolens.training import feed, loop, machine, setup
from nanolens.training.stopping import Stopped

CORPUS_CHARACTERS = 1_100_000
CHUNK = 2_000  # characters that stay together where a text is shuffled, so that both splits are alike
BPE_SIZE = 512
VAL_FRAC = 0.1
SCATTER, HICCUP_FRAC = 0.03, 0.01  # of step times on a machine that does little else
BEGUN_AT_S = 1_760_000_000.0  # in the stamps of lines that have one
PEAK_FLOPS = 1.5e11  # of a core; measuring it would take longer than many of these runs


# --- texts


@dataclass(frozen=True)
class Corpus:
    name: str
    train: np.ndarray
    val: np.ndarray
    letters: str  # empty where tokens are no characters
    vocab_size: int
    facts: dict[str, float]


def open_corpus(name: str, folder: Path) -> Corpus:
    """Made at the first call and kept in `folder`."""
    place = folder / f"{name}.npz"
    if not place.is_file():
        train, val, letters, vocab_size, known = _bpe(folder) if name == "pydocs_bpe" else _characters(name)
        counts = count_tokens(train, vocab_size)
        facts = {"unigram_nats": entropy_nats(counts), **pair_facts(train, counts), **known}
        folder.mkdir(parents=True, exist_ok=True)
        beside = place.with_suffix(".begun.npz")
        about = json.dumps({"letters": letters, "vocab_size": vocab_size, "facts": facts})
        np.savez(beside, train=train.astype(np.uint16), val=val.astype(np.uint16), about=np.array(about))
        beside.rename(place)
    with np.load(place) as kept:
        about = json.loads(str(kept["about"]))
        return Corpus(name, kept["train"], kept["val"], about["letters"], about["vocab_size"], about["facts"])


def _characters(name: str) -> tuple[np.ndarray, np.ndarray, str, int, dict[str, float]]:
    known: dict[str, float] = {}
    if name == "shakespeare_char":
        text = _text_of("shakespeare_char")
    elif name == "synthetic":
        text, known["entropy_nats"] = _words_of_known_entropy()
    else:
        whole = {"pydocs_char": lambda: _text_of("pydocs"), "stdlib": _program_text, "hindi": _hindi_text}[name]()
        chunks = [whole[at : at + CHUNK] for at in range(0, len(whole), CHUNK)]
        random.Random(0).shuffle(chunks)
        text = "".join(chunks)
    text = text[:CORPUS_CHARACTERS]
    letters = "".join(sorted(set(text)))
    number = {letter: place for place, letter in enumerate(letters)}
    tokens = np.array([number[letter] for letter in text], dtype=np.uint16)
    cut = int(len(tokens) * (1 - VAL_FRAC))
    return tokens[:cut], tokens[cut:], letters, len(letters), known


def _bpe(folder: Path) -> tuple[np.ndarray, np.ndarray, str, int, dict[str, float]]:
    corpus = find_corpus("pydocs")
    assert corpus is not None
    out = prepare(fetch(corpus), "bpe", folder / "pydocs-bpe", vocab_size=BPE_SIZE).folder
    found = open_folder(out)
    return np.array(found.train), np.array(found.val), "", found.vocab_size, {}


def _text_of(name: str) -> str:
    corpus = find_corpus(name)
    assert corpus is not None
    return "\n".join(path.read_text("utf-8") for path in fetch(corpus))


def _program_text() -> str:
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = "".join(path.read_text("utf-8", errors="ignore") for path in paths)
    return "".join(letter for letter in text if letter in string.printable)[: 2 * CORPUS_CHARACTERS]


def _hindi_text() -> str:
    """Our own translations: 170,000 characters in another script, with English names in between, as people write."""
    catalogue = json.loads((Path(words.__file__).parent / "locale" / "hi.json").read_text("utf-8"))
    return "\n".join(text for text in catalogue.values() if isinstance(text, str))


def _words_of_known_entropy() -> tuple[str, float]:
    """Words drawn one by one, with Zipf's frequencies; and nats per character, which no model can be below."""
    draw = random.Random(0)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    lexicon = sorted({"".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(900)})
    draw.shuffle(lexicon)
    weights = np.array([1 / (place + 3) for place in range(len(lexicon))])
    weights /= weights.sum()
    lengths = np.array([len(word) + 1 for word in lexicon])
    chosen = draw.choices(lexicon, weights.tolist(), k=int(CORPUS_CHARACTERS / (weights @ lengths)) + 100)
    return " ".join(chosen), float(-(weights @ np.log(weights)) / (weights @ lengths))


# --- what is broken


class Sabotage:
    """Breaks what `effects` names, for as long as `active` lasts. `forward_s`: of a pass of one micro-batch."""

    def __init__(self, effects: dict[str, Any], settings: dict[str, Any], forward_s: float, seed: int):
        self.effects, self.steps, self.forward_s = effects, settings["max_iters"], forward_s
        self.update_s = 3 * forward_s * settings["gradient_accumulation_steps"]
        self.update = 0  # updates done
        self.clock_s = 0.0
        self.losses: list[float] = []  # nats per token of each pass in training, whatever the trainer prints
        self.resumed: Callable[[int], object] = lambda step: None  # prints what a trainer prints when it goes on
        self.stop: type[BaseException] = Interrupted
        self._tensors, self._numbers = torch.Generator().manual_seed(seed), random.Random(seed)
        self._model: nn.Module | None = None
        self._drawn_at_first: list[Tensor] = []

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for hook in (
                torch_optimizer.register_optimizer_step_pre_hook(self._before),
                torch_optimizer.register_optimizer_step_post_hook(self.after),
            ):
                stack.callback(hook.remove)
            stack.enter_context(patch.object(F, "cross_entropy", partial(self._loss, F.cross_entropy)))
            if "attention" in self.effects:
                attention = partial(self._attention, F.scaled_dot_product_attention)
                stack.enter_context(patch.object(F, "scaled_dot_product_attention", attention))
            stack.enter_context(patch.object(torch, "save", lambda *_, **__: self.spend(self.effects.get("save", 0.3))))
            yield

    def now_s(self) -> float:
        return self.clock_s

    def spend(self, updates: float) -> None:
        """Time, in that of an update."""
        self.clock_s += updates * self.update_s

    def wait(self) -> None:
        """For a batch, where the input is slow: a wait that is never twice the same."""
        if factor := self.effects.get("wait"):
            self.spend(factor * self._numbers.gammavariate(2, 0.5))

    def overflows(self) -> bool:
        """Of a float16 gradient."""
        return self._numbers.random() < self.effects.get("overflow", 0.0)

    @torch.no_grad()
    def take(self, model: nn.Module) -> None:
        """The model before its first update."""
        self._model = model
        matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
        for matrix in matrices:
            matrix.mul_(self.effects.get("init", 1.0))
        if self.effects.get("resume") == "weights":
            self._drawn_at_first = [matrix.clone() for matrix in matrices]
        part, share = self.effects.get("frozen", ("", 0.0))
        blocks = {name: _block_of(name) for name, _ in model.named_parameters()}
        last = max(block for block in blocks.values() if block is not None)
        for name, parameter in model.named_parameters():
            block = blocks[name]
            is_frozen = part == "embedding" if block is None else part == "blocks" and block <= share * last
            parameter.requires_grad_(not is_frozen)

    def begin(self) -> str:
        """Before each update, and before the evaluation at its step. Says how the run was resumed, where it was."""
        if self.update == self.effects.get("stop_at"):
            raise self.stop()
        if (every := self.effects.get("sampler_restarts")) and self.update % every == 0:
            torch.manual_seed(0)
        if self.update != self.effects.get("resume_at") or self.update == 0:
            return ""
        self.effects = {key: value for key, value in self.effects.items() if key != "resume_at"}
        self.resumed(self.update)
        return self.effects["resume"]

    @torch.no_grad()
    def forget(self, optimizer: torch.optim.Optimizer) -> None:
        """What a resume lost that took up everything else."""
        if self.effects["resume"] == "optimizer":
            optimizer.state.clear()
        if self.effects["resume"] == "weights" and self._model is not None:
            matrices = (parameter for parameter in self._model.parameters() if parameter.ndim > 1)
            for matrix, first in zip(matrices, self._drawn_at_first, strict=True):
                matrix.lerp_(first, self.effects.get("resume_lost", 1.0))

    def _since(self, name: str) -> bool:
        return name in self.effects and self.update >= self.effects[name]

    def _loss(self, plain: Callable[..., Tensor], logits: Tensor, target: Tensor, *rest: Any, **named: Any) -> Tensor:
        if share := self.effects.get("label_noise"):
            chance = torch.rand(target.shape, generator=self._tensors)
            noisy = torch.nonzero((chance < share) & (target >= 0)).flatten()
            target = target.clone()
            target[noisy] = target[noisy[torch.randperm(len(noisy), generator=self._tensors)]]
        if shift := self.effects.get("label_shift"):
            target = target.roll(-shift)
        if self._since("dead_output"):
            logits = logits * 0.0
        loss = plain(logits, target, *rest, **named)
        passes = 3 if torch.is_grad_enabled() else 1
        if torch.is_grad_enabled():
            count = int((target >= 0).sum()) if named.get("reduction") == "sum" else 1
            self.losses.append(loss.item() / max(1, count))
        hiccup = 1.6 if self._numbers.random() < HICCUP_FRAC else 1.0
        self.clock_s += passes * self.forward_s * self._numbers.lognormvariate(0, SCATTER) * hiccup
        return loss * math.nan if self._since("not_finite") and torch.is_grad_enabled() else loss

    def _attention(self, plain: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, *rest: Any, **named: Any):
        y = plain(q, k, v, *rest, **named)
        fault, share = self.effects["attention"]
        heads = max(1, round(share * q.shape[1]))
        some = y[:, :heads] * 0.0
        if fault == "unmasked":
            some = plain(q[:, :heads], k[:, :heads], v[:, :heads], dropout_p=named.get("dropout_p", 0.0))
        return torch.cat([some, y[:, heads:]], dim=1)

    def _before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            if self._since("rate_jumps_at"):
                group["lr"] = group["lr"] * self.effects["rate_factor"]
            for parameter in group["params"] if self._since("no_update") else ():
                parameter.grad = None

    @torch.no_grad()
    def after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.update += 1
        if self.update == self.effects.get("blown_up_at"):
            for parameter in (each for group in optimizer.param_groups for each in group["params"]):
                parameter.mul_(self.effects["blown_up"] if parameter.ndim > 1 else 1.0)
        if growth := self.effects.get("throttle"):
            self.spend(growth * self.update / self.steps)


class Interrupted(BaseException):
    """The run is not over: the log ends here."""


def _block_of(name: str) -> int | None:
    return next((int(part) for part in name.split(".") if part.isdigit()), None)


# --- what a trainer is given


@dataclass(frozen=True)
class Job:
    settings: dict[str, Any]  # by nanoGPT's names; `schedule`, `optimizer`, `arch` and `log_interval` besides
    train: np.ndarray
    val: np.ndarray
    letters: str
    vocab_size: int
    kit: Sabotage
    style: dict[str, Any]
    seed: int
    folder: Path  # empty, and gone afterwards


@dataclass(frozen=True)
class Trained:
    log: str
    files: dict[str, str]  # of the run folder, where there is one
    parameters: int
    printed: dict[str, int] = field(default_factory=dict)  # rows of updates and evaluations, where we printed them


def rate_at(settings: dict[str, Any], step: int) -> float:
    return lr_at(our_config(settings), step)


def our_config(settings: dict[str, Any]) -> Config:
    known = {key: value for key, value in settings.items() if key in Config.__dataclass_fields__}
    return Config(**{**known, "compile": False, "device": "cpu", "threads": 1, "chunked_head": False})


def write_nanogpt_folder(job: Job, folder: Path) -> None:
    folder.mkdir(parents=True)
    job.train.astype(np.uint16).tofile(folder / "train.bin")
    job.val.astype(np.uint16).tofile(folder / "val.bin")
    meta: dict[str, Any] = {"vocab_size": job.vocab_size}
    if job.letters:
        meta |= {"itos": dict(enumerate(job.letters)), "stoi": {c: i for i, c in enumerate(job.letters)}}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


# --- ours


def train_ours(job: Job) -> Trained:
    """The loop of `nanolens train`, printing what that prints into a pipe. What it finds before the first step is in
    its record, and is left out of the log: a verdict on the log shall rest on the curves."""
    kit, run, data = job.kit, job.folder / "run", job.folder / "data" / job.settings["dataset"]
    write_nanogpt_folder(job, data)
    config = our_config({**job.settings, "seed": job.seed, "sample_interval": 0, "checkpoint_interval": 10**6})
    run.mkdir()
    out = io.StringIO()
    recorder = Recorder(run)
    progress = Progress(about_run("run", job.settings), learn=lambda: about_folder(run))
    folder = f"runs/{job.settings['dataset']}"
    view = LineView(progress, out, folder=folder, log_interval=config.log_interval)  # type: ignore[arg-type]

    def emit(event: e.Event) -> None:
        recorder(event)
        progress.take(event)
        if not isinstance(event, e.Warned):
            view(event)

    kit.stop = Stopped
    kit.resumed = lambda step: emit(e.RunStarted(step=step, resumed_from=f"step-{step:06d}", pid=1, threads=1))
    plain_update, plain_build, plain_take = loop.take_update, setup.build_optimizer, feed.ShuffledFeed.take

    def update(trainee: Any, *rest: Any) -> Any:
        if kit.begin():
            kit.forget(trainee.optimizer)
        taken = plain_update(trainee, *rest)
        if isinstance(taken, e.StepTaken) and kit.effects.get("summed"):
            return msgspec.structs.replace(taken, loss=float(taken.loss) * config.gradient_accumulation_steps)
        return taken

    def build(model: nn.Module, *rest: Any) -> Any:
        kit.take(model)
        return plain_build(model, *rest)

    def take(self: Any, sample: int) -> Any:
        kit.wait()
        return plain_take(self, sample)

    clock = SimpleNamespace(**{**time.__dict__, "perf_counter": kit.now_s})
    dataset = open_folder(data)
    with contextlib.ExitStack() as stack:
        for module in ("state", "step", "evaluate"):
            stack.enter_context(patch(f"nanolens.training.{module}.time", clock))
        stack.enter_context(patch("nanolens.training.machine.measured_peak", lambda *_, **__: PEAK_FLOPS))
        stack.enter_context(patch.object(loop, "measured_peak", lambda *_, **__: PEAK_FLOPS))
        if config.dtype == "float16":
            stack.enter_context(patch.object(machine.Machine, "autocast", lambda self: contextlib.nullcontext()))
        stack.enter_context(patch.object(loop, "take_update", update))
        stack.enter_context(patch.object(setup, "build_optimizer", build))
        stack.enter_context(patch.object(feed.ShuffledFeed, "take", take))
        for model in (gpt2, modern) if "attention" in kit.effects else ():
            stack.enter_context(patch.object(model, "causal_attention", _torch_attention))
        try:
            outcome = loop.train(config, dataset, run, emit, may_refuse=False)
        finally:
            recorder.close()
    if outcome.signal is not None:
        raise SystemExit(128 + outcome.signal)  # the loop listens to signals, and this one was meant for us
    kept = {path.name: path.read_text("utf-8") for path in run.iterdir() if path.suffix in (".json", ".jsonl")}
    kept = {name: text.replace(f"{job.folder}/", "") for name, text in kept.items()}
    return Trained(out.getvalue(), kept, int(about_folder(run).parameters or 0))


def _torch_attention(q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)


# --- nanoGPT


def train_nanogpt(job: Job, source: Path) -> Trained:
    """Its own train.py, run here with other values of its variables and a few lines put in."""
    kit, settings = job.kit, job.settings
    write_nanogpt_folder(job, job.folder / "data" / settings["dataset"])
    text = (source / "train.py").read_text("utf-8")
    for line, other in {
        "exec(open('configurator.py').read())": "globals().update(_settings)",
        "import time\n": "\n",
        "torch.manual_seed(1337": f"torch.manual_seed({job.seed}",
        "model.to(device)\n": "model.to(device)\n_kit.take(model)\n",
        "while True:\n": "while True:\n    iter_num = _begin(iter_num)\n",
        **({"loss = loss / gradient_accumulation_steps": "pass"} if kit.effects.get("summed") else {}),
        "X, Y = get_batch('train')\n        # back": "X, Y = get_batch('train'); _kit.wait()\n        # back",
    }.items():
        assert text.count(line) == 1, f"train.py of nanoGPT has changed: {line!r}"
        text = text.replace(line, other)
    known = ("schedule", "optimizer", "arch", "seed")
    values = {key: value for key, value in settings.items() if key not in known}
    values |= {"device": "cpu", "compile": False, "dtype": "float32", "out_dir": "out"}
    sys.modules["model"] = _module_at(source / "model.py")
    out = io.StringIO()
    clock = SimpleNamespace(time=kit.now_s)
    space: dict[str, Any] = {"__name__": "train", "_settings": values, "_kit": kit, "time": clock}
    kit.resumed = lambda step: out.write(
        out.getvalue().partition("step 0:")[0].replace(FRESH, "Resuming training from out")
    )

    def begin(step: int) -> int:
        if how := kit.begin():
            kit.forget(space["optimizer"])
            space["local_iter_num"], space["running_mfu"], space["t0"] = 0, -1.0, kit.now_s()
        return kit.effects["resume_from"] if how == "counter" else step

    space["_begin"] = begin
    with contextlib.chdir(job.folder), contextlib.redirect_stdout(out), contextlib.suppress(Interrupted):
        exec(compile(text, "train.py", "exec"), space)
    return Trained(out.getvalue(), {}, sum(each.numel() for each in space["model"].parameters()))


FRESH = "Initializing a new model from scratch"


def _module_at(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("model", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- the Trainer of transformers


def train_hf(job: Job) -> Trained:
    import transformers

    kit, settings = job.kit, job.settings
    transformers.logging.set_verbosity_error()
    torch.manual_seed(job.seed)
    width, dropout = settings["n_embd"], settings["dropout"]
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=job.vocab_size,
            n_positions=settings["block_size"],
            n_embd=width,
            n_layer=settings["n_layer"],
            n_head=settings["n_head"],
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
    )
    kit.take(model)
    betas = (settings["beta1"], settings["beta2"])
    optimizer = torch.optim.AdamW(model.parameters(), 1.0, betas=betas, weight_decay=settings["weight_decay"])
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_at(settings, step))
    args = transformers.TrainingArguments(
        output_dir=str(job.folder / "out"),
        max_steps=settings["max_iters"],
        per_device_train_batch_size=settings["batch_size"],
        per_device_eval_batch_size=settings["batch_size"],
        gradient_accumulation_steps=settings["gradient_accumulation_steps"],
        max_grad_norm=settings["grad_clip"],
        logging_steps=settings["log_interval"],
        logging_first_step=job.style["first_step"],
        eval_strategy="steps",
        eval_steps=settings["eval_interval"],
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        bf16=settings["dtype"] == "bfloat16",
        seed=job.seed,
        include_num_input_tokens_seen="all" if job.style["tokens_seen"] else "no",
    )
    block, count = settings["block_size"], settings["eval_iters"] * settings["batch_size"]
    out = io.StringIO()

    class Begin(transformers.TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            if kit.begin():
                kit.forget(optimizer)

    class Summed(transformers.Trainer):
        def log(self, logs: dict[str, float], *rest: Any, **named: Any) -> None:
            if kit.effects.get("summed") and "loss" in logs:
                logs["loss"] *= settings["gradient_accumulation_steps"]
            super().log(logs, *rest, **named)

    trainer = Summed(
        model=model,
        args=args,
        train_dataset=_windows(job.train, block),
        eval_dataset=_windows(job.val, block)[:count],
        optimizers=(optimizer, rates),
        data_collator=lambda rows: {"input_ids": torch.stack(rows), "labels": torch.stack(rows)},
        callbacks=[Begin()],
    )
    clock = SimpleNamespace(**{**time.__dict__, "time": kit.now_s})
    with contextlib.ExitStack() as stack:
        for module in (transformers.trainer, transformers.trainer_utils):
            stack.enter_context(patch.object(module, "time", clock))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.suppress(Interrupted))
        trainer.train()
    return Trained(out.getvalue(), {}, model.num_parameters())


def _windows(tokens: np.ndarray, block: int) -> list[Tensor]:
    whole = torch.from_numpy(tokens[: len(tokens) // block * block].astype(np.int64))
    return list(whole.view(-1, block))


# --- a loop as people write it


def precision(settings: dict[str, Any]) -> contextlib.AbstractContextManager:
    """float16 is computed in float32: what is wrong with it is put in, and CPUs are too slow for it."""
    return torch.autocast("cpu", torch.bfloat16, enabled=settings["dtype"] == "bfloat16")


class PlainBlock(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        B, T, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, T, 3, self.heads, -1).transpose(1, 3).unbind(2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.dropout(self.proj(y.transpose(1, 2).reshape(B, T, d)), self.dropout, self.training)
        return x + F.dropout(self.mlp(self.norm2(x)), self.dropout, self.training)


class PlainGPT(nn.Module):
    def __init__(self, settings: dict[str, Any], vocab_size: int):
        super().__init__()
        width = settings["n_embd"]
        self.token, self.place = nn.Embedding(vocab_size, width), nn.Embedding(settings["block_size"], width)
        blocks = [PlainBlock(width, settings["n_head"], settings["dropout"]) for _ in range(settings["n_layer"])]
        self.blocks, self.norm = nn.ModuleList(blocks), nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        h = self.token(x) + self.place.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), targets.flatten())


def train_plain(job: Job) -> Trained:
    kit, settings, style = job.kit, job.settings, job.style
    torch.manual_seed(job.seed)
    model = PlainGPT(settings, job.vocab_size)
    kit.take(model)
    kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "nadam": torch.optim.NAdam}[settings["optimizer"]]
    decay = {"weight_decay": settings["weight_decay"]} if settings["optimizer"] == "adamw" else {}
    optimizer = kind(model.parameters(), 1.0, betas=(settings["beta1"], settings["beta2"]), **decay)  # type: ignore[arg-type]
    out = io.StringIO()
    printer = Printer(style, out, settings["max_iters"], kit.now_s)
    printer.head(sum(parameter.numel() for parameter in model.parameters()), settings)
    kit.resumed = lambda step: printer.resumed(step)
    with contextlib.suppress(Interrupted):
        _plain_loop(job, model, optimizer, printer)
        printer.end()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Trained(out.getvalue(), {}, parameters, {"updates": printer.rows, "evaluations": printer.evaluations})


def _plain_loop(job: Job, model: nn.Module, optimizer: torch.optim.Optimizer, printer: Printer) -> None:
    kit, settings = job.kit, job.settings
    micro, clip = settings["gradient_accumulation_steps"], settings["grad_clip"]
    tokens = settings["batch_size"] * settings["block_size"] * micro
    scale, good, step, losses = 65536.0, 0, 0, []
    last_s = kit.now_s()
    while step < settings["max_iters"]:
        if how := kit.begin():
            kit.forget(optimizer)
            step = kit.effects["resume_from"] if how == "counter" else step
        rate = rate_at(settings, step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = 0.0
        for _ in range(micro):
            kit.wait()
            with precision(settings):
                part = model(*_batch(job, job.train))
            (part / micro).backward()
            loss += part.item() / (1 if kit.effects.get("summed") else micro)
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), clip or math.inf))
        overflows = kit.overflows()
        if overflows:
            norm, scale, good = math.inf, max(scale / 2, 1.0), 0
            kit.after(optimizer)  # an update that was skipped is counted
        else:
            optimizer.step()
            scale, good = (scale * 2, 0) if good >= 200 else (scale, good + 1)
        optimizer.zero_grad()
        losses.append(loss)
        step += 1
        is_due = step % settings["eval_interval"] == 0
        if is_due and job.style["eval_in_time"]:
            val = _evaluated(job, model)
        took_s, last_s = kit.now_s() - last_s, kit.now_s()
        if step % settings["log_interval"] == 0 or (step == 1 and job.style["first_step"]):
            shown = statistics.fmean(losses) if job.style["smoothed"] else loss
            epoch = step * tokens / len(job.train)
            printer.row(step, shown, rate, norm, took_s, tokens / max(took_s, 1e-9), epoch, scale)
            losses.clear()
        if is_due:
            if not job.style["eval_in_time"]:
                val = _evaluated(job, model)
            printer.evaluation(step, *val)
            if job.style["saves"]:
                torch.save(None, "")
            last_s = last_s if job.style["eval_in_time"] else kit.now_s()


def _batch(job: Job, tokens: np.ndarray) -> tuple[Tensor, Tensor]:
    block = job.settings["block_size"]
    starts = torch.randint(len(tokens) - block, (job.settings["batch_size"],)).numpy()
    rows = torch.from_numpy(np.stack([tokens[at : at + block + 1] for at in starts]).astype(np.int64))
    return rows[:, :-1], rows[:, 1:]


@torch.no_grad()
def _evaluated(job: Job, model: nn.Module) -> tuple[float, float]:
    """Of both splits; 0 over nothing, as a loop that divides by max(1, count) prints."""
    model.eval()
    count = job.settings["eval_iters"]
    with precision(job.settings):
        sums = [sum(model(*_batch(job, part)).item() for _ in range(count)) for part in (job.train, job.val)]
    model.train()
    return sums[0] / max(1, count), sums[1] / max(1, count)


# --- in a style of its own


def drawn_style(draw: random.Random) -> dict[str, Any]:
    fields = ["loss", "lr", "norm", "time", "speed", "epoch"]
    shown = ["loss", *(name for name in fields[1:] if draw.random() < 0.55)]
    if draw.random() < 0.3:
        draw.shuffle(shown)
    form = draw.choices(("pairs", "slash", "epochs", "json", "dict", "csv"), (8, 3, 2, 2, 1, 1))[0]
    if form == "epochs":
        shown = [name for name in shown if name != "epoch"]
    return {
        "form": form,
        "step": draw.choices(("step", "iter", "Step", "Iteration", "it", "update", "batch"), (5, 4, 3, 2, 1, 1, 1))[0],
        "loss": draw.choices(("loss", "train_loss", "Loss", "train loss", "nll", "ce"), (6, 3, 3, 2, 1, 1))[0],
        "lr": draw.choice(("lr", "learning_rate", "LR")),
        "norm": draw.choice(("grad_norm", "gnorm", "norm", "grad norm")),
        "time": draw.choice(("ms", "s", "dt")),
        "speed": draw.choice(("tok/s", "tokens/sec", "tokens_per_second")),
        "shown": shown,
        "scale": draw.random() < 0.12,
        "joint": draw.choice((" | ", ", ", " ", "\t", " - ")),
        "equals": draw.choice((" ", ": ", "=", " = ")),
        "digits": draw.choice((3, 4, 4, 6)),
        "stamp": draw.choice(("", "", "", "date", "info")),
        "evaluation": draw.choice(("both", "val", "words", "perplexity")),
        "eval_in_time": draw.random() < 0.4,
        "smoothed": draw.random() < 0.3,
        "saves": draw.random() < 0.5,
        "first_step": draw.random() < 0.5,
        "tokens_seen": draw.random() < 0.2,
        "says_settings": draw.random() < 0.4,
    }


class Printer:
    def __init__(self, style: dict[str, Any], out: io.StringIO, steps: int, now_s: Callable[[], float]):
        self.style, self.out, self.steps, self.now_s = style, out, steps, now_s
        self.begun_s = now_s()
        self.rows = self.evaluations = 0

    def head(self, parameters: int, settings: dict[str, Any]) -> None:
        if self.style["form"] == "csv":
            self._say(",".join(["step", *(self._name(name) for name in self._shown), "val_loss"]))
        elif self.style["says_settings"]:
            self._say(f"model: {parameters / 1e6:.2f}M parameters")
            said = ("batch_size", "block_size", "learning_rate", "max_iters", "n_layer", "n_embd")
            self._say(", ".join(f"{key}={settings[key]}" for key in said))

    def resumed(self, step: int) -> None:
        self._say(f"Resumed from checkpoint at step {step}")

    def end(self) -> None:
        if self.style["says_settings"]:
            self._say("done")

    @property
    def _shown(self) -> list[str]:
        return [*self.style["shown"], *(["scale"] if self.style["scale"] else [])]

    def row(
        self, step: int, loss: float, rate: float, norm: float, took_s: float, speed: float, epoch: float, scale: float
    ) -> None:
        self.rows += 1
        digits, form = self.style["digits"], self.style["form"]
        numbers: dict[str, float] = {
            "loss": round(loss, digits),
            "lr": float(f"{rate:.4g}"),
            "norm": round(norm, digits),
            "time": round(took_s * 1000, 2) if self.style["time"] == "ms" else round(took_s, 4),
            "speed": round(speed),
            "epoch": round(epoch, 2),
            "scale": scale,
        }
        named = {self._name(name): numbers[name] for name in self._shown}
        if form == "json":
            return self._say(json.dumps({self.style["step"]: step, **named}))
        if form == "dict":
            return self._say(str({self.style["step"]: step, **named}))
        if form == "csv":
            return self._say(",".join([str(step), *map(str, named.values()), ""]))
        texts = [self._pair(name, numbers[name]) for name in self._shown]
        first = {
            "pairs": f"{self.style['step']}{self.style['equals']}{step}",
            "slash": f"[{step:>5}/{self.steps}]",
            "epochs": f"Epoch {int(epoch) + 1}, {self.style['step'].capitalize()} {step}/{self.steps}",
        }[form]
        return self._say(self.style["joint"].join([first, *texts]))

    def _name(self, name: str) -> str:
        if name == "time":
            return {"ms": "time_ms", "s": "time", "dt": "dt"}[self.style["time"]]
        return self.style.get(name, name) if name != "scale" else "loss_scale"

    def _pair(self, name: str, value: float) -> str:
        digits, equals = self.style["digits"], self.style["equals"]
        if name == "time":
            text = f"{value:.2f}ms" if self.style["time"] == "ms" else f"{value:.3f}s"
            return f"{'dt' if self.style['time'] == 'dt' else 'time'}{equals}{text}"
        if name == "speed":
            return f"{self.style['speed']}{equals}{value:,.0f}"
        shown = {"loss": f"{value:.{digits}f}", "norm": f"{value:.{digits}f}", "lr": f"{value:.2e}"}
        return f"{self._name(name)}{equals}{shown.get(name, f'{value:g}')}"

    def evaluation(self, step: int, train: float, val: float) -> None:
        self.evaluations += 1
        digits, form, name = self.style["digits"], self.style["form"], self.style["step"]
        if form in ("json", "dict"):
            row = {name: step, "val_loss": round(val, digits)}
            return self._say(json.dumps(row) if form == "json" else str(row))
        if form == "csv":
            return self._say(",".join([str(step), *("" for _ in self._shown), f"{val:.{digits}f}"]))
        equals, joint = self.style["equals"], self.style["joint"]
        perplexity = math.exp(min(val, 50.0)) if not math.isnan(val) else math.nan
        return self._say(
            {
                "both": f"step {step}: train loss {train:.{digits}f}, val loss {val:.{digits}f}",
                "val": joint.join([f"{name}{equals}{step}", f"val_loss{equals}{val:.{digits}f}"]),
                "words": f"Validation loss at {name} {step}: {val:.{digits}f}",
                "perplexity": f"eval | step {step} | val loss {val:.{digits}f} | val ppl {perplexity:.2f}",
            }[self.style["evaluation"]]
        )

    def _say(self, text: str) -> None:
        stamp = ""
        if self.style["form"] in ("pairs", "slash", "epochs"):
            at_s = BEGUN_AT_S + self.now_s() - self.begun_s
            date = time.strftime("[%Y-%m-%d %H:%M:%S] ", time.gmtime(at_s))
            stamp = {"": "", "info": "INFO:train:", "date": date}[self.style["stamp"]]
        self.out.write(f"{stamp}{text}\n")
