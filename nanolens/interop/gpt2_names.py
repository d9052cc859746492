"""GPT-2's parameters by the names that Hugging Face and nanoGPT share, and by ours.

They call it `c_attn`, `c_proj`, `ln_1`. Hugging Face keeps its linear layers transposed (Conv1D): input channels first.
"""

from __future__ import annotations

import re

_OURS = {
    "wte": "embedding", "wpe": "position", "ln_f": "norm", "ln_1": "norm1", "ln_2": "norm2",
    "attn.c_attn": "attention.qkv", "attn.c_proj": "attention.out", "mlp.c_fc": "mlp.up", "mlp.c_proj": "mlp.down",
}  # fmt: skip
_THEIRS = {ours: theirs for theirs, ours in _OURS.items()}
_NAME = re.compile(
    r"(?:transformer\.)?(?:h\.(?P<block>\d+)\.)?(?P<layer>wte|wpe|ln_f|ln_[12]|attn\.c_(?:attn|proj)|mlp\.c_(?:fc|proj))\.(?P<kind>weight|bias)$"
)
_OUR_NAME = re.compile(r"(?:blocks\.(?P<block>\d+)\.)?(?P<layer>.+)\.(?P<kind>weight|bias)$")


def to_ours(theirs: str) -> str | None:
    """None for what is no parameter of ours: mask buffers (`attn.bias`), and the head, which is the embedding."""
    found = _NAME.match(theirs)
    if found is None:
        return None
    where = f"blocks.{found['block']}." if found["block"] else ""
    return f"{where}{_OURS[found['layer']]}.{found['kind']}"


def to_theirs(ours: str) -> str:
    found = _OUR_NAME.match(ours)
    assert found is not None, ours
    where = f"h.{found['block']}." if found["block"] else ""
    return f"transformer.{where}{_THEIRS[found['layer']]}.{found['kind']}"


def is_conv1d(ours: str) -> bool:
    """Whether Hugging Face keeps this one transposed."""
    return ours.endswith(".weight") and (".attention." in ours or ".mlp." in ours)
