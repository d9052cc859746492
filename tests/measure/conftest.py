from __future__ import annotations

from tests.training.conftest import same_threads_after as same_threads_after
