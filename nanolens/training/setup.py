"""Everything that a run needs before its first step: machine, model, optimizer, data, and the facts that go into the record."""

from __future__ import annotations

import contextlib
import dataclasses
import platform
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from nanolens import files
from nanolens.checkpoint import tensors_of
from nanolens.checkpoint.load import fill
from nanolens.checkpoint.tree import copied
from nanolens.config.fields import Config
from nanolens.errors import UserError, fault
from nanolens.message import msg
from nanolens.model import build
from nanolens.model.loss import WithLoss
from nanolens.record.events import Chosen, Event
from nanolens.sizing import flops_per_token, parameters, shape_of
from nanolens.sizing.memory import CHUNK_TOKENS, is_head_chunked, padded_vocab
from nanolens.train.optimizers import build_optimizer
from nanolens.training.begin import Beginning
from nanolens.training.distributed.ranks import ALONE, Ranks
from nanolens.training.feed import Feed, NanoGPTFeed, NanoGPTFeedTogether, ShuffledFeed
from nanolens.training.machine import Machine, choose_machine, with_peak
from nanolens.training.state import Progress, Trainee

if TYPE_CHECKING:
    from nanolens.data.store import Dataset


@dataclass(frozen=True)
class Workshop:
    config: Config
    machine: Machine
    vocab_size: int
    trainee: Trainee
    choices: dict[str, Any]  # what `auto` came to; a resumed run keeps them
    built: Config | None = None  # the config with the file that a model of one's own is in

    def whole_model(self) -> tuple[nn.Module, Machine]:
        """The model for checks on it, and where it is. Of one that is spread over ranks a whole copy, in the computer's own memory."""
        if not self.trainee.ranks.is_sharded:
            return self.trainee.model, self.machine
        state = torch.get_rng_state()
        model = build(self.built or self.config, self.vocab_size)
        torch.set_rng_state(state)
        fill(model, copied(tensors_of(self.trainee.model)), msg("the weights of {name:code}", name=self.config.init_from))
        return model, dataclasses.replace(self.machine, device=torch.device("cpu"))


def set_up(
    config: Config, dataset: Dataset, beginning: Beginning, tell: Callable[[Event], None], initial: Mapping[str, Tensor] | None,
    built: Config | None = None, ranks: Ranks = ALONE,
) -> Workshop:  # fmt: skip
    """Builds the trainee and brings it to where the run begins. `built`: the config with the file that a model of one's own is in."""
    checkpoint = beginning.checkpoint
    for choice in dataset.chosen:
        tell(Chosen(what=str(choice["what"]), value=choice["value"], because=str(choice["because"])))
    remembered = checkpoint.state["choices"] if checkpoint else {}
    if remembered.get("ranks", 1) != ranks.size:
        remembered = {key: value for key, value in remembered.items() if key != "threads"}  # cores are shared out anew
    machine = with_peak(choose_machine(config, tell, remembered, ranks.local_rank))
    vocab_size = choose_vocab_size(config, dataset, tell)
    chunked = choose_chunked(config, vocab_size, tell, remembered.get("chunked_head"))
    torch.manual_seed(config.seed)
    random.seed(config.seed)  # for models that draw from these; they start differently in each process otherwise
    np.random.seed(config.seed % 2**32)
    model = build(built or config, vocab_size)
    if initial is not None:
        fill(model, dict(initial), msg("the weights of {name:code}", name=config.init_from))
    is_sharded = begin_together(ranks, config, machine, vocab_size, tell)
    if not is_sharded:
        model.to(machine.device)
    with_loss = WithLoss(model, label_smoothing=config.label_smoothing, chunked=chunked, chunk=CHUNK_TOKENS)
    if checkpoint:
        refuse_other_tokenizer(checkpoint.state, dataset)
    ranks.spread(with_loss, machine.device)
    share = ranks.share(config)
    trainee = Trainee(
        model=model, with_loss=with_loss, run=with_loss, optimizer=build_optimizer(model, config),
        scaler=torch.amp.GradScaler(machine.device.type) if machine.needs_scaler else None,
        feed=make_feed(config, dataset.train, machine.device, ranks), progress=Progress(), micro_batch=share.size, ranks=ranks,
    )  # fmt: skip
    if checkpoint:
        trainee.restore(checkpoint)
        trainee.micro_batch = min(share.size, checkpoint.state["micro_batch"])
    else:
        trainee.feed.prefetch(0)  # nanoGPT draws its first batch before its first evaluation
    choices = {
        "device": str(machine.device), "dtype": machine.dtype, "threads": machine.threads, "chunked_head": chunked,
        "compile": remembered.get("compile"), "ranks": ranks.size,
    }  # fmt: skip
    trainee.run = ranks.wrapped(with_loss, trainee.optimizer)
    return Workshop(config, machine, vocab_size, trainee, choices, built)


def choose_vocab_size(config: Config, dataset: Dataset, tell: Callable[[Event], None]) -> int:
    tokens = int(dataset.vocab_size)
    if config.vocab_size is not None:
        if config.vocab_size < tokens:
            raise fault(
                msg("vocab_size = {given:count} is smaller than the data's {needed:count} tokens", given=config.vocab_size, needed=tokens),
                fix=msg("leave it out, or use {option:code}", option=f"--vocab_size={tokens}"),
            )
        return config.vocab_size
    padded = padded_vocab(tokens)
    if padded != tokens:
        tell(Chosen(what="vocab_size", value=padded, because=f"the {tokens} tokens of the data, up to a multiple of 64"))
    return padded


def choose_chunked(config: Config, vocab_size: int, tell: Callable[[Event], None], remembered: bool | None) -> bool:
    if config.chunked_head is not None:
        return config.chunked_head
    value = is_head_chunked(config, vocab_size) if remembered is None else remembered
    logits = 4 * config.batch_size * config.block_size * vocab_size
    because = "the run had it before" if remembered is not None else f"the logits of a micro-batch would be {logits} bytes"
    tell(Chosen(what="chunked_head", value=value, because=because))
    return value


def begin_together(ranks: Ranks, config: Config, machine: Machine, vocab_size: int, tell: Callable[[Event], None]) -> bool:
    """Opens the connections between ranks; True where the model is sharded over them."""
    if ranks.size == 1:
        return False
    is_sharded = ranks.first_does(lambda: choose_engine(config, machine, vocab_size, tell)) == "fsdp"
    share = ranks.share(config)
    if share.size != config.batch_size:
        because = f"{config.gradient_accumulation_steps} micro-batches do not divide by {ranks.size} ranks; tokens per update stay"
        tell(Chosen(what="micro-batch of a rank", value=share.size, because=because))
    ranks.begin(config, machine.device, is_sharded=is_sharded)
    return is_sharded


def choose_engine(config: Config, machine: Machine, vocab_size: int, tell: Callable[[Event], None]) -> str:
    """`ddp` where the weights, gradients and moments fit on one device with room for the rest; else `fsdp`."""
    if config.engine != "auto":
        return config.engine
    value, because = "ddp", "the model fits on each device"
    with contextlib.suppress(UserError):  # a user's own model: its size is not known from its config
        needed = STATE_BYTES * parameters(shape_of(config, vocab_size)).total
        if machine.memory_bytes and machine.device.type == "cuda" and needed > STATE_FRAC * machine.memory_bytes:
            value, because = "fsdp", f"weights, gradients and moments are {needed} bytes, and a device has {machine.memory_bytes}"
    tell(Chosen(what="engine", value=value, because=because))
    return value


STATE_BYTES = 16  # per parameter: weight, gradient and Adam's two moments in float32
STATE_FRAC = 0.7  # of a device's memory; the rest is for activations


def make_feed(config: Config, tokens: np.ndarray, device: torch.device, ranks: Ranks = ALONE) -> Feed:
    if config.data_order == "nanogpt" and ranks.size > 1:
        return NanoGPTFeedTogether(tokens, config, ranks.share(config), device)
    if config.data_order == "nanogpt":
        return NanoGPTFeed(tokens, config.block_size, config.batch_size, device)
    return ShuffledFeed(tokens, config.block_size, ranks.share(config).size, config.seed, device)


def refuse_other_tokenizer(state: Mapping[str, Any], dataset: Dataset) -> None:
    known, given = state["data"].get("tokenizer_fingerprint"), dataset.tokenizer_fingerprint
    if known and given and known != given:
        raise fault(
            msg("the data was made with another tokenizer than the one that the checkpoint was trained with"),
            where=msg("dataset {name:code}", name=dataset.name),
            fix=msg("use the data of the first run, or prepare this text with the same tokenizer"),
        )


def facts_of(workshop: Workshop, dataset: Dataset, came_from: Mapping[str, str], preset: str, parent: Any) -> dict[str, Any]:
    """What `run.json` says of this run; see `record/write.py`."""
    config, machine = workshop.config, workshop.machine
    return {
        "config": dataclasses.asdict(config),
        "came_from": dict(came_from),
        "preset": preset,
        "data": data_facts(dataset),
        "machine": {
            "hardware": machine.hardware, "device": str(machine.device), "devices": workshop.trainee.ranks.size,
            "dtype": machine.dtype, "threads": machine.threads,
            "memory_bytes": machine.memory_bytes, "peak_flops": machine.peak_flops, "peak_origin": machine.peak_origin,
            "platform": platform.platform(),
        },
        "versions": {
            "nanolens": version_of("nanolens"), "torch": torch.__version__, "numpy": np.__version__, "python": platform.python_version()
        },
        "sizes": sizes_of(workshop.trainee.model, config, workshop.vocab_size),
        "parent": parent,
        "launch": workshop.trainee.ranks.launch,
    }  # fmt: skip


def data_facts(dataset: Dataset) -> dict[str, Any]:
    return {
        "name": dataset.name, "folder": str(dataset.folder), "fingerprint": dataset.fingerprint,
        "tokenizer_fingerprint": dataset.tokenizer_fingerprint, "text_fingerprint": getattr(dataset, "text_fingerprint", ""),
        "vocab_size": int(dataset.vocab_size), "train_tokens": len(dataset.train), "val_tokens": len(dataset.val),
        "facts": dict(dataset.facts),
    }  # fmt: skip


def sizes_of(model: nn.Module, config: Config, vocab_size: int) -> dict[str, Any]:
    total = sum(parameter.numel() for parameter in model.parameters())
    sizes: dict[str, Any] = {"vocab_size": vocab_size, "parameters_total": total, "tokens_per_update": config.tokens_per_update}
    with contextlib.suppress(UserError):  # the sizes of a user's own model are not known from its config
        shape = shape_of(config, vocab_size)
        sizes["parameters"] = parameters(shape).as_nanogpt_prints
        sizes["flops_per_token"] = flops_per_token(shape).training
    return sizes


def version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def tokenizer_writer(dataset: Dataset) -> Callable[[Path], None] | None:
    """What puts the tokenizer into a checkpoint, which must be able to stand alone."""
    if dataset.tokenizer is None:
        return None
    contents = dataset.tokenizer.to_files()

    def write(folder: Path) -> None:
        for name, payload in contents.items():
            files.write_whole(folder / name, payload)

    return write


def bytes_per_token(dataset: Dataset, split: str) -> float | None:
    """Bytes of text behind a token of the split, for bits per byte; None where the data does not say."""
    return dataset.facts.get("val_bytes_per_token" if split == "val" else "bytes_per_token")
