"""A foreign model brought to what a run asks for: a shorter context, more rows in the vocabulary."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from nanolens.config.fields import Config
from nanolens.errors import Fault, raise_if_any
from nanolens.interop.foreign import ForeignModel
from nanolens.message import Message, msg

if TYPE_CHECKING:
    from torch import Tensor


def fit(model: ForeignModel, config: Config, where: Message) -> tuple[Config, dict[str, Tensor]]:
    """The config with the model's shape, and its weights: positions beyond `block_size` cut off, rows added up to `vocab_size`."""
    theirs = {key: value for key, value in model.settings.items() if key in SHAPE}
    longest, rows = int(model.settings["block_size"]), config.vocab_size or model.vocab_size
    has_positions = "position.weight" in model.weights
    faults = []
    if config.arch != theirs["arch"]:
        what = msg("weights of arch = {theirs:code} cannot fill arch = {arch:code}", theirs=theirs["arch"], arch=config.arch)
        faults.append(Fault(what, where, msg("use {option:code}", option=f"--arch={theirs['arch']}")))
    if has_positions and config.block_size > longest:
        what = msg(
            "block_size = {wanted:count} is more than the checkpoint's {there:count} positions", wanted=config.block_size, there=longest
        )
        faults.append(Fault(what, where, msg("use {option:code} or less", option=f"--block_size={longest}")))
    if rows < model.vocab_size:
        what = msg("vocab_size = {wanted:count} is less than the checkpoint's {there:count} rows", wanted=rows, there=model.vocab_size)
        faults.append(Fault(what, where, msg("leave it out, or use {option:code}", option=f"--vocab_size={model.vocab_size}")))
    raise_if_any(faults)
    weights = {name: tensor for name, tensor in model.weights.items() if name != "head.weight" or theirs["arch"] == "modern"}
    if has_positions:
        weights["position.weight"] = weights["position.weight"][: config.block_size].clone()
    for name in ("embedding.weight", "head.weight"):
        if name in weights:
            weights[name] = padded(weights[name], rows)
    return dataclasses.replace(config, **theirs, vocab_size=rows), weights


SHAPE = ("arch", "n_layer", "n_head", "n_embd", "bias", "gelu", "softcap", "token_shift", "ngram_rows")


def padded(table: Tensor, rows: int) -> Tensor:
    """`table` with more rows: each the mean of those there.

    Not zeros: GPT-2's logits lie far below zero, and a row of zeros would be the likeliest token of all. The logit of a mean row is the
    mean logit, whose exponential is at most the mean exponential: k rows added to n raise the loss by ln(1 + k / n) nats at most.
    """
    if rows == len(table):
        return table
    import torch

    return torch.cat((table, table.mean(0, keepdim=True).expand(rows - len(table), -1)))
