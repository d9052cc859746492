"""Nested state (an optimizer's, say) as named tensors and plain JSON, and back: what other programs keep in a pickle."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nanolens.checkpoint.sharded import whole

TENSOR = "$tensor"  # {"$tensor": "state/~0/exp_avg"} stands where a tensor was
PAIRS = "$pairs"  # a dict with keys that are not strings, as a list of pairs
TUPLE = "$tuple"


def split(tree: Any, path: str = "") -> tuple[Any, dict[str, Tensor]]:
    """(the tree with its tensors named, the tensors by name). Raises TypeError on what neither JSON nor safetensors can hold."""
    if isinstance(tree, Tensor):
        return {TENSOR: path}, {path: tree}
    if isinstance(tree, dict):
        parts = [(key, *split(value, f"{path}/{_named(key)}" if path else _named(key))) for key, value in tree.items()]
        tensors = {name: tensor for _, _, found in parts for name, tensor in found.items()}
        if all(isinstance(key, str) for key in tree):
            return {key: plain for key, plain, _ in parts}, tensors
        return {PAIRS: [[key, plain] for key, plain, _ in parts]}, tensors
    if isinstance(tree, (list, tuple)):
        items = [split(value, f"{path}/{number}") for number, value in enumerate(tree)]
        tensors = {name: tensor for _, found in items for name, tensor in found.items()}
        plain = [item for item, _ in items]
        return ({TUPLE: plain} if isinstance(tree, tuple) else plain), tensors
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree, {}
    raise TypeError(f"{path}: a {type(tree).__name__} cannot be saved")


def _named(key: object) -> str:
    """A key as part of a path that no other key has: 1 and "1" differ, and a key with a slash is one part."""
    return key.replace("~", "~~").replace("/", "~s") if isinstance(key, str) else f"~{key}"


def join(plain: Any, tensors: dict[str, Tensor]) -> Any:
    """The inverse of `split`."""
    if isinstance(plain, dict):
        if TENSOR in plain:
            return tensors[plain[TENSOR]]
        if PAIRS in plain:
            return {key: join(value, tensors) for key, value in plain[PAIRS]}
        if TUPLE in plain:
            return tuple(join(value, tensors) for value in plain[TUPLE])
        return {key: join(value, tensors) for key, value in plain.items()}
    if isinstance(plain, list):
        return [join(value, tensors) for value in plain]
    return plain


def copied(tree: Any) -> Any:
    """A snapshot in the computer's memory that later updates do not reach: a real copy, also of tensors that are there already."""
    if isinstance(tree, Tensor):
        full = whole(tree.detach())
        return torch.empty_like(full, device="cpu", memory_format=torch.contiguous_format).copy_(full)
    if isinstance(tree, dict):
        return {key: copied(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(copied(value) for value in tree)
    return tree
