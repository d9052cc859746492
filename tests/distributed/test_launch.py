"""What `--devices` means."""

from __future__ import annotations

import pytest
import torch

from nanolens.errors import UserError
from nanolens.show.words import say
from nanolens.training.distributed.launch import how_many


@pytest.mark.parametrize(("is_usable", "count"), [(True, 2), (False, 1)])
def test_auto_counts_only_gpus_that_this_torch_can_use(is_usable: bool, count: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: is_usable)
    found, said = how_many("auto")
    assert found == count
    assert (said is not None and say(said) == "training on 2 GPUs") if is_usable else said is None


@pytest.mark.parametrize("asked", ["0", "-1", "two"])
def test_what_is_no_number_of_devices_is_refused(asked: str):
    with pytest.raises(UserError, match="not a number of devices"):
        how_many(asked)
