"""A trained model as a Python object: `nanolens.load("quickstart-1").generate("def ")`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nanolens.config.fields import Config, settings
from nanolens.convert.foreign import fit
from nanolens.convert.hf_folder import is_hugging_face
from nanolens.convert.nanogpt import nanogpt_file
from nanolens.data.tokenizers import Tokenizer, tokenizer_from_files
from nanolens.errors import Fault, UserError, fault, raise_if_any
from nanolens.message import Message, msg
from nanolens.model import build
from nanolens.model.generate import SamplingParams, generate
from nanolens.record import checkpoint_folder, checkpoint_folders, is_run, step_of
from nanolens.record.store import RunAt, find_checkpoint, find_run
from nanolens.training.checkpoint import STATE, fill, verify, weights_of
from nanolens.training.machine import choose_machine

DEFAULT_PROMPT = "\n"  # nanoGPT's


def load(run: str | Path, *, best: bool = False, device: str = "auto", arch: str | None = None) -> Model:
    """The model of a run: `RUN` (its newest checkpoint), `RUN@500`, or the best evaluation's. Every byte is verified
    first. nanoGPT's `out` folders and folders in Hugging Face format are taken as they are.

    A model of your own is built from the copy of its file that the run has. Code is only ever run because its owner
    named it: where that was on another machine, name it again (`arch="my_model.py"`)."""
    if (foreign := _foreign(Path(run), device)) is not None:
        return foreign
    folder = choose_checkpoint(find_run(str(run)), best)
    weights, state = weights_of(folder)
    config, note = _config(state["config"], arch, folder)
    module, place = _built(config, int(state["vocab_size"]), weights, folder, device)
    return Model(module, config, tokenizer_from_files(folder), place, int(state["step"]), folder, note)


def _built(config: Config, rows: int, weights: dict[str, Tensor], source: Path, device: str) -> tuple[nn.Module, str]:
    """The module, for use and not for training, and the device that it is on."""
    machine = choose_machine(Config(device=device, dtype="float32"), lambda chosen: None)
    module = build(config, rows)
    fill(module, weights, msg("{folder:code}", str(source)))
    module.to(machine.device).eval()
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    return module, str(machine.device)


def _foreign(path: Path, device: str) -> Model | None:
    """A model that another program wrote; None where this is a run of ours, or nothing."""
    if is_run(path) or not (is_hugging_face(path) or nanogpt_file(path)):
        return None
    from nanolens.convert.importing import foreign_ready

    model = foreign_ready(str(path))
    assert model.tokenizer is not None
    shape = Config(block_size=int(model.settings["block_size"]), arch=str(model.settings["arch"]))
    config, weights = fit(model, shape, msg("{folder:code}", str(path)))
    module, place = _built(config, model.vocab_size, weights, path, device)
    return Model(module, config, model.tokenizer, place, model.step, path, model.notes[0] if model.notes else None)


@dataclass(frozen=True)
class Model:
    module: nn.Module
    config: Config
    tokenizer: Tokenizer
    device: str
    step: int
    folder: Path  # of the checkpoint
    note: Message | None = None  # what its user should know

    @property
    def name(self) -> str:
        return f"{self.folder.parent.parent.name}@{self.step}" if step_of(self.folder) is not None else self.folder.name

    def generate(
        self,
        prompt: str = DEFAULT_PROMPT,
        *,
        max_new_tokens: int = 500,
        num_samples: int = 1,
        temperature: float = 0.8,
        top_k: int | None = 200,
        top_p: float | None = None,
        seed: int = 1337,
        on_text: Callable[[str], object] | None = None,
    ) -> str | list[str]:
        """The prompt with its continuation; a list of them where several samples are asked for. All are written
        together, a token each at a time; `on_text` is called with each new piece of the first one."""
        raise_if_any(_faults(max_new_tokens, num_samples, temperature, top_k, top_p))
        ids = self._prompt_ids(prompt)
        stream = self.tokenizer.stream()

        def on_token(column: torch.Tensor) -> None:
            token = int(column[0])
            if on_text is not None and token < self.tokenizer.vocab_size and (text := stream.feed(token)):
                on_text(text)

        start = torch.tensor([ids] * num_samples, dtype=torch.long, device=self.device)
        params = SamplingParams(temperature=temperature, top_k=top_k or None, top_p=top_p)
        written = generate(
            self.module, self.config, start, max_new_tokens, sampling=params, seed=seed, on_token=on_token
        )
        if on_text is not None and (rest := stream.end()):
            on_text(rest)
        texts = [prompt + self._text(row[len(ids) :]) for row in written.tolist()]
        return texts[0] if num_samples == 1 else texts

    def _prompt_ids(self, prompt: str) -> list[int]:
        if prompt not in ("", DEFAULT_PROMPT):
            return self.tokenizer.encode(prompt)
        try:
            return self.tokenizer.encode(DEFAULT_PROMPT) or [0]
        except UserError:
            return [0]  # nobody asked for the line break that this vocabulary lacks

    def _text(self, ids: list[int]) -> str:
        """A vocabulary that was rounded up has ids without a text; a trained model all but never writes one."""
        return self.tokenizer.decode([token for token in ids if token < self.tokenizer.vocab_size])


def choose_checkpoint(run: RunAt, best: bool = False) -> Path:
    """Of the step that was named, or the best, or the newest that is whole."""
    if run.step is not None:
        found = find_checkpoint(run)
    elif best:
        found = _best(run.folder)
    else:
        folders = checkpoint_folders(run.folder)
        found = next((folder for folder in folders if not verify(folder)), folders[0] if folders else None)
    if found is None:
        fix = msg("wait for the first one; {command:code} shows when it is due", f"nanolens watch {run.folder}")
        raise fault(msg("{run:code} has no checkpoint yet", str(run.folder)), fix=fix)
    return found


def _best(run: Path) -> Path | None:
    """Of the step with the lowest val loss, as the newest checkpoint knows it."""
    for folder in checkpoint_folders(run):
        try:
            step = int(json.loads((folder / STATE).read_bytes())["progress"]["best_step"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if checkpoint_folder(run, step).is_dir():
            return checkpoint_folder(run, step)
        steps = sorted(step_of(path) or 0 for path in checkpoint_folders(run))
        what = msg(
            "the best evaluation of {run:code} was at step {step:count}, and that checkpoint no longer exists",
            str(run),
            step,
        )
        raise fault(what, fix=msg("available: {steps:count}", steps))
    return None


def saved_config(saved: dict[str, Any]) -> Config:
    """As a checkpoint holds it, without the settings of another version."""
    return Config(**{key: value for key, value in saved.items() if key in settings()})


def _config(saved: dict[str, Any], arch: str | None, folder: Path) -> tuple[Config, Message | None]:
    config = saved_config(saved)
    if not config.arch.endswith(".py"):
        return config, None
    from nanolens.session.job import file_to_run

    path, note = file_to_run(folder.parent.parent, config.arch, arch)
    return dataclasses.replace(config, arch=str(path)), note


def _faults(
    max_new_tokens: int, num_samples: int, temperature: float, top_k: int | None, top_p: float | None
) -> Iterator[Fault]:
    more = msg("use 1 or more")
    if max_new_tokens < 1:
        yield Fault(msg("max_new_tokens = {value:code} is not a number of tokens", max_new_tokens), fix=more)
    if num_samples < 1:
        yield Fault(msg("num_samples = {value:code} is not a number of samples", num_samples), fix=more)
    if not 0 <= temperature < 1e6:
        fix = msg("use 0 to 2; 0 always takes the most likely token")
        yield Fault(msg("temperature = {value:code} is below 0 or not a number", temperature), fix=fix)
    if top_k is not None and top_k < 0:
        yield Fault(msg("top_k = {value:code} is below 0", top_k), fix=msg("use 1 or more, or 0 for all tokens"))
    if top_p is not None and not 0 < top_p <= 1:
        fix = msg("use a number above 0 and up to 1")
        yield Fault(msg("top_p = {value:code} is not a probability", top_p), fix=fix)
