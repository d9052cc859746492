"""GPT-2 checkpoints in Hugging Face's format, as `init_from` takes them: a local folder, or a name on the hub.

They call it `c_attn`, `c_proj`, `ln_1`, and keep their linear layers transposed (Conv1D): input channels first.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from nanoscope.config.fields import Config
from nanoscope.errors import Fault, fault, raise_if_any, require
from nanoscope.message import msg

if TYPE_CHECKING:
    from torch import Tensor

HUB_NAMES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
WEIGHTS, SHAPE = "model.safetensors", "config.json"

_OURS = {
    "wte": "embedding", "wpe": "position", "ln_f": "norm", "ln_1": "norm1", "ln_2": "norm2",
    "attn.c_attn": "attention.qkv", "attn.c_proj": "attention.out", "mlp.c_fc": "mlp.up", "mlp.c_proj": "mlp.down",
}  # fmt: skip
_NAME = re.compile(
    r"(?:transformer\.)?(?:h\.(?P<block>\d+)\.)?(?P<layer>wte|wpe|ln_f|ln_[12]|attn\.c_(?:attn|proj)|mlp\.c_(?:fc|proj))\.(?P<kind>weight|bias)$"
)


def gpt2_folder(source: str) -> Path | None:
    """The folder that `source` means, fetched from the hub where it is one of its names; None where it is neither."""
    folder = Path(source)
    if (folder / SHAPE).is_file() and (folder / WEIGHTS).is_file():
        return folder
    if source not in HUB_NAMES:
        return None
    hub = require("huggingface_hub", "hub")
    try:
        return Path(hub.snapshot_download(source, allow_patterns=[WEIGHTS, SHAPE]))
    except Exception as error:  # the hub's client raises a dozen kinds for "not reachable"
        raise fault(
            msg("{name:code} could not be fetched from the hub: {problem}", name=source, problem=str(error).splitlines()[0]),
            fix=msg(
                "download its {files:code} elsewhere, and give that folder as {option:code}",
                files=[WEIGHTS, SHAPE],
                option="--init_from=FOLDER",
            ),
        ) from None


def read_gpt2(folder: Path, config: Config) -> tuple[Config, dict[str, Tensor]]:
    """The config with the checkpoint's shape, and its weights by our names; positions beyond `block_size` are cut off."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    shaped = _with_shape(folder, config)
    try:
        theirs = load_file(folder / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise fault(msg("{file:code} cannot be read: {problem}", file=str(folder / WEIGHTS), problem=str(error))) from None
    ours = {}
    for name, tensor in theirs.items():
        found = _NAME.match(name)
        if found is None:
            continue  # mask buffers (attn.bias), and the head, which is the embedding
        transposed = found["kind"] == "weight" and "." in found["layer"]
        where = f"blocks.{found['block']}." if found["block"] else ""
        ours[f"{where}{_OURS[found['layer']]}.{found['kind']}"] = tensor.t().contiguous() if transposed else tensor
    if "embedding.weight" not in ours or "position.weight" not in ours:
        raise fault(
            msg("{folder:code} holds no GPT-2: its weights have other names", folder=str(folder)),
            fix=msg("give the folder of a GPT2LMHeadModel"),
        )
    ours["position.weight"] = ours["position.weight"][: shaped.block_size].clone()
    ours["head.weight"] = ours["embedding.weight"]
    return shaped, ours


def _with_shape(folder: Path, config: Config) -> Config:
    try:
        theirs = json.loads((folder / SHAPE).read_bytes())
        layers, heads, width = (int(theirs[key]) for key in ("n_layer", "n_head", "n_embd"))
        context, vocabulary = int(theirs.get("n_positions", theirs.get("n_ctx", 0))), int(theirs["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise fault(
            msg("{file:code} does not describe a GPT-2: {problem}", file=str(folder / SHAPE), problem=repr(error)),
            fix=msg("give the folder of a GPT2LMHeadModel"),
        ) from None
    where = msg("{where:code}", where=f"init_from={config.init_from}")
    faults = []
    if config.arch != "gpt2":
        faults.append(
            Fault(
                msg("a GPT-2 checkpoint cannot fill arch = {arch:code}", arch=config.arch),
                where,
                msg("use {option:code}", option="--arch=gpt2"),
            )
        )
    if config.block_size > context:
        faults.append(
            Fault(
                msg(
                    "block_size = {wanted:count} is more than the checkpoint's {there:count} positions",
                    wanted=config.block_size,
                    there=context,
                ),
                where,
                msg("use {option:code} or less", option=f"--block_size={context}"),
            )
        )
    raise_if_any(faults)
    return dataclasses.replace(config, n_layer=layers, n_head=heads, n_embd=width, vocab_size=vocabulary, bias=True)
