"""A model that writes for the page, in a process of its own, so that torch never enters the server. It is started at
the first wish and kept for the next ones, since loading the weights takes seconds. It speaks JSON, one line a message:
a wish in, pieces of text out, `null` at the end of each answer, an object with faults where something is wrong."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from nanolens.errors import UserError
from nanolens.record import checkpoint_folders


@dataclass(frozen=True)
class GenerateRequest:
    prompt: str
    max_new_tokens: int = 200
    temperature: float = 0.8
    top_k: int = 200
    seed: int = 1337


class Writer:
    def __init__(self, folder: Path):
        self.folder = folder
        self.newest = _newest(folder)
        self._turn = threading.Lock()
        self._child = subprocess.Popen(
            [sys.executable, "-m", "nanolens.page.generator", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )

    def serves(self, folder: Path) -> bool:
        """Whether it still holds this run's newest weights."""
        return folder == self.folder and self._child.poll() is None and _newest(folder) == self.newest

    def write(self, wish: GenerateRequest) -> Iterator[str]:
        """Pieces of text as they are written. Whoever stops listening ends the process: a model has no other stop."""
        assert self._child.stdin is not None and self._child.stdout is not None
        is_whole = False
        with self._turn:
            try:
                self._child.stdin.write(json.dumps(asdict(wish)) + "\n")
                self._child.stdin.flush()
                for line in self._child.stdout:
                    said = json.loads(line)
                    if said is None:
                        is_whole = True
                        return
                    yield said if isinstance(said, str) else said["fault"]
                yield "…"  # the process has died; the page shows that the text breaks off
            except (OSError, ValueError):
                yield "…"
            finally:
                if not is_whole:
                    self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()


def _newest(folder: Path) -> str:
    found = checkpoint_folders(folder)
    return found[0].name if found else ""


def answer_wishes(folder: str) -> None:
    """The child: loads the model once, and writes for each line of its input."""

    def tell(said: object) -> None:
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()

    from nanolens.loaded import load

    model, problem = None, ""
    try:
        model = load(folder)  # before the first wish: whoever asks will not have to wait for it
    except UserError as error:
        problem = str(error)
    for line in sys.stdin:
        wish = json.loads(line)
        try:
            if model is None:
                tell({"fault": problem})
            else:
                model.generate(on_text=tell, **wish)
        except UserError as error:
            tell({"fault": str(error)})
        tell(None)


if __name__ == "__main__":
    answer_wishes(sys.argv[1])
