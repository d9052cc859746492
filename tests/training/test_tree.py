"""Nested state goes through plain JSON and named tensors and comes back the same."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nanolens.training.checkpoint import copied, join, split

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.lists(st.floats(width=32, allow_nan=False), max_size=4).map(torch.tensor)
)
keys = st.text(st.characters(exclude_characters="$"), min_size=1) | st.integers()
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3) | st.tuples(inner, inner),
    max_leaves=12,
)


@given(trees)
def test_what_is_split_can_be_joined(tree):
    plain, tensors = split({"root": tree})
    back = join(json.loads(json.dumps(plain)), tensors)
    assert same(back, {"root": tree})


def same(a, b) -> bool:
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and a == b


def test_two_tensors_never_share_a_name():
    tree = {
        "a": {"b/c": torch.tensor(1.0)},
        "a/b": {"c": torch.tensor(2.0)},
        1: torch.tensor(3.0),
        "1": torch.tensor(4.0),
    }
    assert same(join(*split(tree)), tree)


def test_what_cannot_be_saved_is_said_with_its_place():
    with pytest.raises(TypeError, match="optimizer/x: a set"):
        split({"optimizer": {"x": {1, 2}}})


def test_a_snapshot_is_a_real_copy():
    weight = torch.zeros(3)
    snapshot = copied({"weight": weight, "list": [weight]})
    weight.add_(1)
    assert snapshot["weight"].tolist() == [0, 0, 0]
    assert snapshot["list"][0].tolist() == [0, 0, 0]
