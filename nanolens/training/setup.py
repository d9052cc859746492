"""What a run needs before its first step: machine, model, optimizer, data, and the facts that go into the record."""

from __future__ import annotations

import contextlib
import dataclasses
import platform
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nanolens import files
from nanolens.config.fields import Config
from nanolens.data.store import Dataset
from nanolens.data.tokenizers import Tokenizer
from nanolens.errors import UserError, fault
from nanolens.message import msg
from nanolens.model import build
from nanolens.model.loss import WithLoss
from nanolens.record.events import Event, choice
from nanolens.sizing.memory import is_head_chunked, padded_vocab
from nanolens.sizing.shape import flops_per_token, parameters, shape_of
from nanolens.training.begin import Beginning
from nanolens.training.checkpoint import copied, fill, tensors_of
from nanolens.training.distributed.ranks import SINGLE_PROCESS, Ranks, partition_of
from nanolens.training.feed import Feed, NanoGPTFeed, NanoGPTFeedTogether, ShuffledFeed
from nanolens.training.machine import Machine, choose_machine, with_peak
from nanolens.training.optimizers import build_optimizer
from nanolens.training.state import Trainee


@dataclass(frozen=True)
class Workshop:
    config: Config
    machine: Machine
    vocab_size: int
    trainee: Trainee
    choices: dict[str, Any]  # what `auto` came to; a resumed run keeps them
    built: Config | None = None  # the config with the file that a user's own model is in

    def whole_model(self) -> tuple[nn.Module, Machine]:
        """The model for checks on it, and where it is; of a sharded one a whole copy, in the computer's own memory."""
        if not self.trainee.ranks.is_sharded:
            return self.trainee.model, self.machine
        state = torch.get_rng_state()
        model = build(self.built or self.config, self.vocab_size)
        torch.set_rng_state(state)
        fill(model, copied(tensors_of(self.trainee.model)), msg("the weights of {name:code}", self.config.init_from))
        return model, dataclasses.replace(self.machine, device=torch.device("cpu"))


def set_up(
    config: Config,
    dataset: Dataset,
    beginning: Beginning,
    tell: Callable[[Event], None],
    initial: Mapping[str, Tensor] | None,
    built: Config | None = None,
    ranks: Ranks = SINGLE_PROCESS,
) -> Workshop:
    """Builds the trainee and brings it to where the run begins. `built`: config with the file of a user's own model."""
    checkpoint = beginning.checkpoint
    if checkpoint:
        refuse_other_tokenizer(checkpoint.state, dataset)
    remembered = dict(checkpoint.state["choices"]) if checkpoint else {}
    if remembered.get("ranks", 1) != ranks.size:
        remembered.pop("threads", None)  # cores are shared out anew
    machine = with_peak(choose_machine(config, tell, remembered, ranks.local_rank))
    vocab_size = choose_vocab_size(config, dataset, tell)
    chunked = choose_chunked(config, vocab_size, tell, remembered.get("chunked_head"))
    model = fresh_model(built or config, vocab_size)
    if initial is not None:
        fill(model, dict(initial), msg("the weights of {name:code}", config.init_from))
    is_sharded = ranks.size > 1 and ranks.first_does(lambda: choose_engine(config, machine, vocab_size, tell)) == "fsdp"
    if not is_sharded:
        model.to(machine.device)
    with_loss = WithLoss(model, label_smoothing=config.label_smoothing, chunked=chunked)
    micro_batch = choose_micro_batch(config, ranks, tell)
    ranks.begin(config, with_loss, machine.device, is_sharded=is_sharded)
    optimizer, feed = build_optimizer(model, config), make_feed(config, dataset.train, machine.device, ranks)
    scaler = torch.amp.GradScaler(machine.device.type) if machine.dtype == "float16" else None
    trainee = Trainee(model, with_loss, with_loss, optimizer, scaler, feed, micro_batch, ranks=ranks)
    if checkpoint:
        trainee.restore(checkpoint)
        trainee.micro_batch = min(micro_batch, checkpoint.state["micro_batch"])
    else:
        trainee.feed.prefetch(0)  # nanoGPT draws its first batch before its first evaluation
    choices = {"device": str(machine.device), "dtype": machine.dtype, "threads": machine.threads}
    choices |= {"chunked_head": chunked, "compile": remembered.get("compile"), "ranks": ranks.size}
    trainee.run = ranks.wrap(with_loss)
    return Workshop(config, machine, vocab_size, trainee, choices, built)


def fresh_model(config: Config, vocab_size: int) -> nn.Module:
    """The same weights for the same seed."""
    torch.manual_seed(config.seed)
    random.seed(config.seed)  # for models that draw from these; they start differently in each process otherwise
    np.random.seed(config.seed % 2**32)
    return build(config, vocab_size)


def choose_micro_batch(config: Config, ranks: Ranks, tell: Callable[[Event], None]) -> int:
    size = partition_of(config, ranks.rank, ranks.size).size
    if size != config.batch_size:
        count = config.gradient_accumulation_steps
        because = msg(
            "{count:count micro-batch|micro-batches} for {ranks:count} ranks: made smaller", count, ranks.size
        )
        tell(choice("micro-batch of a rank", size, because))
    return size


def choose_vocab_size(config: Config, dataset: Dataset, tell: Callable[[Event], None]) -> int:
    tokens, given = int(dataset.vocab_size), config.vocab_size
    if given is not None and given < tokens:
        what = msg("vocab_size = {given:count} is smaller than the data's {needed:count} tokens", given, tokens)
        raise fault(what, fix=msg("leave it out, or use {option:code}", f"--vocab_size={tokens}"))
    size = given if given is not None else padded_vocab(tokens)
    if given is None and size != tokens:
        tell(choice("vocab_size", size, msg("the data's {tokens:count} tokens, up to a multiple of 64", tokens)))
    return size


def choose_chunked(config: Config, vocab_size: int, tell: Callable[[Event], None], remembered: bool | None) -> bool:
    if config.chunked_head is not None:
        return config.chunked_head
    value, because = remembered, msg("the run had it before")
    if value is None:
        logits = 4 * config.batch_size * config.block_size * vocab_size
        value = is_head_chunked(config, vocab_size)
        because = msg("the logits of a micro-batch would take {size:bytes}", logits)
    tell(choice("chunked_head", value, because))
    return value


def choose_engine(config: Config, machine: Machine, vocab_size: int, tell: Callable[[Event], None]) -> str:
    """`ddp` where the weights, gradients and moments fit on one device with room for the rest; else `fsdp`."""
    if config.engine != "auto":
        return config.engine
    value, because, room = "ddp", msg("the model fits on each device"), machine.memory_bytes
    with contextlib.suppress(UserError):  # a user's own model: its size is not known from its config
        needed = STATE_BYTES * parameters(shape_of(config, vocab_size)).total
        if room and machine.device.type == "cuda" and needed > STATE_FRAC * room:
            value = "fsdp"
            because = msg(
                "weights, gradients and moments take {needed:bytes}, and a device has {room:bytes}", needed, room
            )
    tell(choice("engine", value, because))
    return value


STATE_BYTES = 16  # per parameter: weight, gradient and Adam's two moments in float32
STATE_FRAC = 0.7  # of a device's memory; the rest is for activations


def make_feed(config: Config, tokens: np.ndarray, device: torch.device, ranks: Ranks = SINGLE_PROCESS) -> Feed:
    partition = partition_of(config, ranks.rank, ranks.size)
    if config.data_order == "nanogpt" and ranks.size > 1:
        return NanoGPTFeedTogether(tokens, config, partition, device)
    if config.data_order == "nanogpt":
        return NanoGPTFeed(tokens, config.block_size, config.batch_size, config.seed, device)
    return ShuffledFeed(tokens, config.block_size, partition.size, config.seed, device)


def refuse_other_tokenizer(state: Mapping[str, Any], dataset: Dataset) -> None:
    known, given = state["data"].get("tokenizer_fingerprint"), dataset.tokenizer_fingerprint
    if known and given and known != given:
        what = msg("the data was prepared with a different tokenizer than the one the checkpoint was trained with")
        fix = msg("use the data of the first run, or prepare this text with the same tokenizer")
        raise fault(what, where=msg("dataset {name:code}", dataset.name), fix=fix)


def facts_of(
    workshop: Workshop, dataset: Dataset, came_from: Mapping[str, str], preset: str, parent: object
) -> dict[str, Any]:
    """What `run.json` says of this run; see `record/write.py`."""
    config, machine, ranks = workshop.config, workshop.machine, workshop.trainee.ranks
    return {
        "config": dataclasses.asdict(config),
        "came_from": dict(came_from),
        "preset": preset,
        "data": data_facts(dataset),
        "machine": {
            **dataclasses.asdict(machine),
            "device": str(machine.device),
            "devices": ranks.size,
            "platform": platform.platform(),
        },
        "versions": versions(),
        "sizes": sizes_of(workshop.trainee.model, config, workshop.vocab_size),
        "parent": parent,
        "launch": ranks.launch,
    }


def data_facts(dataset: Dataset) -> dict[str, object]:
    return {
        "name": dataset.name,
        "folder": str(dataset.folder),
        "fingerprint": dataset.fingerprint,
        "tokenizer_fingerprint": dataset.tokenizer_fingerprint,
        "text_fingerprint": getattr(dataset, "text_fingerprint", ""),
        "vocab_size": int(dataset.vocab_size),
        "train_tokens": len(dataset.train),
        "val_tokens": len(dataset.val),
        "facts": dict(dataset.facts),
    }


def sizes_of(model: nn.Module, config: Config, vocab_size: int) -> dict[str, Any]:
    total = sum(parameter.numel() for parameter in model.parameters())
    tokens = config.tokens_per_update
    sizes: dict[str, Any] = {"vocab_size": vocab_size, "parameters_total": total, "tokens_per_update": tokens}
    with contextlib.suppress(UserError):  # the sizes of a user's own model are not known from its config
        shape = shape_of(config, vocab_size)
        sizes["parameters"] = parameters(shape).as_nanogpt_prints
        sizes["flops_per_token"] = flops_per_token(shape).training
    return sizes


def versions() -> dict[str, str]:
    own = ""
    with contextlib.suppress(metadata.PackageNotFoundError):
        own = metadata.version("nanolens")
    return {"nanolens": own, "torch": torch.__version__, "numpy": np.__version__, "python": platform.python_version()}


def tokenizer_writer(tokenizer: Tokenizer | None) -> Callable[[Path], None] | None:
    """What puts the tokenizer into a checkpoint, which must be able to stand alone."""
    if tokenizer is None:
        return None
    contents = tokenizer.to_files()

    def write(folder: Path) -> None:
        for name, payload in contents.items():
            files.write_whole(folder / name, payload)

    return write
