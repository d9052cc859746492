from __future__ import annotations

import pytest
import torch

from nanolens.data.store import Dataset
from tests.training.small import small_data


@pytest.fixture(scope="session")
def data() -> Dataset:
    return small_data()


@pytest.fixture(autouse=True)
def same_threads_after():
    """Runs set the number of threads of the whole process; the next test starts from what was."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
