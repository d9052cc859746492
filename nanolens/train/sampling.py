"""Sample texts on the way: what the model writes now, kept as files and told as events."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nanolens import files
from nanolens.config.fields import Config
from nanolens.model.generate import Taste, generate
from nanolens.record.events import SampleWritten
from nanolens.record.layout import sample_file
from nanolens.train.clock import Clock
from nanolens.training.distributed.ranks import ALONE, Ranks
from nanolens.training.machine import Machine
from nanolens.training.state import Progress

TASTE = Taste(temperature=0.8, top_k=200)  # nanoGPT's


class Sampler:
    def __init__(
        self, config: Config, tokenizer: Any, run: Path, machine: Machine, clock: Clock, check: Callable[[], None], ranks: Ranks = ALONE
    ):
        self._config, self._tokenizer, self._run = config, tokenizer, run
        self._machine, self._clock, self._check, self._ranks = machine, clock, check, ranks

    def is_due(self, progress: Progress) -> bool:
        interval = self._config.sample_interval
        if self._tokenizer is None or interval == 0 or progress.sampled_at == progress.step:
            return False
        if interval is None:
            return progress.evaluated_at == progress.step
        return progress.step % interval == 0

    def sample(self, model: nn.Module, progress: Progress) -> SampleWritten:
        """Always from the same prompt and seed, so that texts differ by what was learnt. Does not touch the run's random numbers."""
        with self._clock.part("sample"):
            started_at_s = time.perf_counter()
            prompt = torch.tensor([self._prompt()], device=self._machine.device)
            written = generate(
                model, self._config, prompt, self._config.sample_tokens, taste=TASTE, seed=self._config.seed, on_token=self._on_token
            )
            ids = written[0, prompt.shape[1] :].tolist()
            text = self._tokenizer.decode([i for i in ids if i < self._tokenizer.vocab_size])  # a padded vocabulary has ids without text
            progress.sampled_at = progress.step
            self._keep(progress.step, text)
            return SampleWritten(step=progress.step, text=text, took_s=time.perf_counter() - started_at_s)

    def _prompt(self) -> list[int]:
        try:
            return self._tokenizer.encode("\n") or [0]
        except Exception:  # a vocabulary without a line break: any token will do to begin with
            return [0]

    def _on_token(self, token: Tensor) -> None:
        if self._ranks.size == 1:  # several agree on a stop after the next update
            self._check()

    def _keep(self, step: int, text: str) -> None:
        if not self._ranks.is_first:
            return
        with contextlib.suppress(OSError):  # the event holds the text too
            files.write_whole(sample_file(self._run, step), text)
