"""Where the ranks of one attempt meet, and nobody of an earlier one.

torchrun keeps its key-value store when it starts the processes again, with the addresses of the dead still in it: a rank that is quicker
than the others would read those and wait in vain. So the first rank makes up a name for the attempt, and tells it to whoever asks with a
word that nobody has used before.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist

ASK_EVERY_S = 0.05
PATIENCE = timedelta(minutes=5)  # for all to come: they were started at the same time


@contextlib.contextmanager
def meeting(environment: Mapping[str, str]) -> Any:
    """The store under a name of this attempt; in the block the first rank tells that name to the others."""
    rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    is_host = rank == 0 and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store: Any = dist.TCPStore(
        environment["MASTER_ADDR"], int(environment["MASTER_PORT"]), size, is_host, timeout=PATIENCE, wait_for_workers=False
    )
    own = uuid.uuid4().hex
    done = threading.Event()
    if rank == 0:
        name = own
        threading.Thread(target=_answer, args=(store.clone(), size, name, done), name="meeting", daemon=True).start()
    else:
        store.set(f"nanolens/asks/{rank}", own)
        name = store.get(f"nanolens/told/{own}").decode()
    try:
        yield dist.PrefixStore(f"nanolens/{name}", store)
    finally:
        done.set()


def _answer(store: Any, size: int, name: str, done: threading.Event) -> None:
    """Answers every word that is asked with, also those of the dead, who do not hear it."""
    answered: set[bytes] = set()
    while not done.is_set():
        with contextlib.suppress(Exception):  # the store goes when the launcher does
            for rank in range(1, size):
                key = f"nanolens/asks/{rank}"
                if store.check([key]) and (word := store.get(key)) not in answered:
                    store.set(f"nanolens/told/{word.decode()}", name)
                    answered.add(word)
        time.sleep(ASK_EVERY_S)
