"""What a log says besides its rows: settings, sizes, the machine, and things that happened (checkpoints, resumes, errors).

The sentences are those of the trainers named in the doors. A setting counts where a line states it alone (`n_layer = 12`, `| num_layers L
| 12 |`), under any of the names in `names.py`.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Callable
from functools import cache

import numpy as np

from nanolens.config.fields import settings
from nanolens.interop.logs.door import Found, Sign
from nanolens.interop.logs.names import SETTINGS, normalised, setting_of
from nanolens.interop.logs.rows import NUMBER
from nanolens.logs.text import Text, lines_with

LONGEST_TEXT = 400
MOST_LINES = 2000  # with one sentence, and of settings: a text that repeats itself more often says nothing new
LONGEST_TRACEBACK = 20_000
MOST_TRACEBACKS = 32
_SCALES = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_BYTES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "MB": 10**6, "GB": 10**9}


def read_facts(source: Text, found: Found) -> None:
    for part in source.besides_rows:
        for word, take in _SENTENCES:
            for start, line in itertools.islice(lines_with(part.text, word), MOST_LINES):
                take(_Line(line, start, part, found))
    _take_settings(source, found)


class _Line:
    """A line with one of the words, and where it stands."""

    def __init__(self, text: str, start: int, source: Text, found: Found):
        self.text, self.start, self.source, self.found = text, start, source, found

    def tell(self, name: str, value: object) -> None:
        if isinstance(value, float) and not math.isfinite(value):
            return
        self.found.tell(name, value, self.source.line_at(self.start), self.source.offset + self.start)

    def sign(self, kind: str, text: str | None = None, step: int | None = None) -> None:
        said = (self.text if text is None else text).strip()[:LONGEST_TEXT]
        self.found.sign(Sign(kind, self.source.offset + self.start, self.source.line_at(self.start), said, step))


# The patterns below are compiled when a text holds their word, by `re` itself, which keeps them: most texts hold few of these words.


def _number(name: str, pattern: str) -> Callable[[_Line], None]:
    """A sentence that holds one number, with or without a letter for thousands, millions or billions."""
    whole = pattern.replace("NUMBER", rf"({NUMBER})([KkMBT]?)(?!\w)")

    def take(line: _Line) -> None:
        if match := re.search(whole, line.text):
            line.tell(name, _plain(float(match[1].replace(",", "")) * _SCALES[match[2]]))

    return take


def _scaled(name: str, scale: float, pattern: str) -> Callable[[_Line], None]:
    whole = pattern.replace("NUMBER", f"({NUMBER})")

    def take(line: _Line) -> None:
        if match := re.search(whole, line.text):
            line.tell(name, float(match[1].replace(",", "")) * scale)

    return take


def _text(name: str, pattern: str) -> Callable[[_Line], None]:
    def take(line: _Line) -> None:
        if match := re.search(pattern, line.text):
            line.tell(name, literal(match[1].strip()) if match[1] in ("True", "False") else match[1].strip())

    return take


def _mark(kind: str, pattern: str) -> Callable[[_Line], None]:
    """A sentence about something that happened; a group named `step` says when."""

    def take(line: _Line) -> None:
        if match := re.search(pattern, line.text):
            step = match.groupdict().get("step")
            line.sign(kind, step=int(step) if step else None)

    return take


def _plain(number: float) -> int | float:
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _parameter_tensors(line: _Line) -> None:
    """nanoGPT counts decayed and other parameters in two sentences; their sum is all of them."""
    if match := re.search(r"num (non-)?decayed parameter tensors: [\d,]{1,12}, with ([\d,]{1,20}) parameters", line.text):
        line.tell("parameters_without_decay" if match[1] else "parameters_with_decay", int(match[2].replace(",", "")))


def _batch_parts(line: _Line) -> None:
    """llama2.c says what an iteration is made of. nanoGPT's gradient_accumulation_steps counts all processes, so theirs is multiplied."""
    parts = re.search(r"(\d{1,9}) grad accum steps \* (\d{1,9}) processes \* (\d{1,9}) batch size \* (\d{1,9}) max seq len", line.text)
    if parts:
        accumulation, processes, batch, length = (int(part) for part in parts.groups())
        line.tell("gradient_accumulation_steps", accumulation * processes)
        line.tell("devices", processes)
        line.tell("batch_size", batch)
        line.tell("block_size", length)


def _llmc_batch(line: _Line) -> None:
    parts = re.search(
        r"batch_size B=(\d{1,9}) \* seq_len T=(\d{1,9}) \* num_processes=(\d{1,9}) and total_batch_size=(\d{1,12})", line.text
    )
    if parts:
        for name, value in zip(("batch_size", "block_size", "devices", "tokens_per_update"), parts.groups(), strict=True):
            line.tell(name, int(value))


def _vocabulary(line: _Line) -> None:
    if match := re.search(r"found vocab_size = (\d{1,9}) \(inside (\S{1,400})\)", line.text):
        line.tell("vocab_size", int(match[1]))
        folder = re.split(r"[/\\]", match[2])
        if len(folder) > 1:
            line.tell("dataset", folder[-2])


def _config_file(line: _Line) -> None:
    if match := re.search(r"Overriding config with (\S{1,400}?):?\s*$", line.text):
        line.tell("config_file", match[1])


def _command(line: _Line) -> None:
    """`python train.py config/x.py --batch_size=8`: what was typed is what was meant."""
    if not re.search(r"\b(?:python3?|torchrun|accelerate)\b", line.text):
        return
    if match := re.search(r"(\S{0,200}config/[\w.\-]{1,80}\.py)", line.text):
        line.tell("config_file", match[1])
    if match := re.search(r"--nproc[_-]per[_-]node[= ](\d{1,4})", line.text):
        line.tell("devices", int(match[1]))
    for key, value in re.findall(r"--([A-Za-z_]\w{1,40})=(\S{1,200})", line.text):
        if setting_of(key) in settings():
            line.tell(setting_of(key), literal(value))


def _out_of_memory(line: _Line) -> None:
    line.sign("out_of_memory")
    for pattern in (r"([\d.]{1,12}) (MiB|GiB) total capacity", r"total capacity of ([\d.]{1,12}) (MiB|GiB)"):
        if match := re.search(pattern, line.text):
            line.tell("device_memory_bytes", round(float(match[1]) * _BYTES[match[2]]))
    if match := re.search(r"Tried to allocate ([\d.]{1,12}) (KiB|MiB|GiB)", line.text):
        line.tell("allocation_bytes", round(float(match[1]) * _BYTES[match[2]]))


def _loss_is_nan(line: _Line) -> None:
    """A trainer that stops without printing the row."""
    line.sign("error", line.text.strip()[:200])


def _traceback(line: _Line) -> None:
    """The last line of a traceback says what went wrong."""
    if sum(sign.kind in ("error", "ended") for sign in line.found.signs[-MOST_TRACEBACKS:]) >= MOST_TRACEBACKS:
        return
    part = line.source.text[line.start : line.start + LONGEST_TRACEBACK]
    errors = re.findall(
        r"^[^\n]{0,60}?\b((?:[\w.]{1,80}\.)?\w{0,60}(?:Error|Exception|Interrupt|Exit)\b(?::[^\n]{0,400})?)[ \t\r]*$", part, re.M
    )
    last = errors[0] if errors else "Traceback"
    line.sign("ended" if "KeyboardInterrupt" in last else "error", last)


def _nvidia_smi(line: _Line) -> None:
    if match := re.search(r"\|\s{1,6}(\d{1,3})\s{1,6}((?:NVIDIA |Tesla |GeForce |Quadro )[\w ().\-]{2,60}?)\s{2,}", line.text):
        line.tell("hardware", match[2].strip())
        line.tell("gpu_index", int(match[1]))


def _wall(line: _Line) -> None:
    """What `time` says at the end: BSD's and bash's form."""
    if match := re.match(rf"\s{{0,20}}({NUMBER}) real\s{{1,20}}{NUMBER} user\s{{1,20}}{NUMBER} sys", line.text):
        line.tell("wall_s", float(match[1]))
    elif match := re.match(r"real\s{1,8}(\d{1,6})m([\d.]{1,9})s\s*$", line.text):
        line.tell("wall_s", int(match[1]) * 60 + float(match[2]))


# "Resuming training from out", "resuming from checkpoint-3000", "Continuing training from global step 3000", "Restored all states from …".
# The number in it is not where the rows go on: some trainers count these anew, and some give an epoch.
_RESUMED = (
    r"(?i)(?<!not )\b(?:resum|restor|continu)(?:ing|ed)\b[^\n]{0,60}?"
    r"(?:check-?point|ckpt|(?:training|optimization|step|iter\w*|epoch) from|from (?:\w+ )?(?:step|iter|epoch)|all states)"
)

_SENTENCES: tuple[tuple[str, Callable[[_Line], None]], ...] = (
    ("okens per iteration", _number("tokens_per_update", r"[Tt]okens per iteration(?: will be)?: NUMBER")),
    ("otal desired batch size", _number("tokens_per_update", r"[Tt]otal desired batch size: NUMBER")),
    ("Total batch size ", _number("tokens_per_update", r"Total batch size NUMBER =>")),
    ("breaks down as", _batch_parts),
    ("total_batch_size=", _llmc_batch),
    ("umber of parameters", _number("parameters", r"[Nn]umber of parameters: NUMBER")),
    ("otal parameters", _number("parameters_total", r"[Tt]otal parameters: NUMBER")),
    ("trainable parameters", _number("parameters_trainable", r"trainable parameters(?: =|:) NUMBER")),
    ("parameters", _number("parameters", r"^\s{0,8}NUMBER (?:trainable )?parameters\s*$")),
    ("num_parameters: ", _number("parameters_total", r"num_parameters: NUMBER")),
    ("decayed parameter tensors", _parameter_tensors),
    ("found vocab_size", _vocabulary),
    ("ocab size: ", _number("vocab_size", r"\b[Vv]ocab size: NUMBER")),
    ("vocab_size of GPT-2", _number("vocab_size", r"defaulting to vocab_size of GPT-2 to NUMBER")),
    ("Estimated FLOPs per token", _number("flops_per_token", r"Estimated FLOPs per token: NUMBER")),
    ("number of iterations", _number("max_iters", r"number of iterations[\w :]{0,60}?: NUMBER")),
    ("Total optimization steps", _number("max_iters", r"Total optimization steps = NUMBER")),
    ("Gradient Accumulation steps", _number("gradient_accumulation_steps", r"Gradient Accumulation steps = NUMBER")),
    ("batch size per device", _number("batch_size", r"Instantaneous batch size per device = NUMBER")),
    ("train has ", _number("dataset_tokens", r"\btrain has NUMBER tokens")),
    ("val has ", _number("val_tokens", r"\bval has NUMBER tokens")),
    ("DataLoader: total number of tokens", _number("dataset_tokens", r"^(?:Training )?DataLoader: total number of tokens: NUMBER")),
    ("Overriding config with", _config_file),
    ("train.py", _command),
    ("Initializing from OpenAI GPT-2 weights", _text("init_from", r"Initializing from OpenAI GPT-2 weights: ([\w\-]{1,40})")),
    ("using fused AdamW", _text("fused_adamw", r"using fused AdamW: (True|False)")),
    ("GPU: ", _text("hardware", r"\bGPU: ([^|\n]{2,80}) \| Peak FLOPS")),
    ("Peak FLOPS (BF16)", _number("peak_flops", r"Peak FLOPS \(BF16\): NUMBER")),
    ("capacity: ", _text("hardware", r"\b(?:CUDA|HIP) capacity: ([^\n]{2,80}?) with [\d.]{1,9}GiB memory")),
    ("| device ", _text("hardware", r"\| device {1,40}\| ([^|\n]{3,60}?) {1,60}\|")),
    ("| peak TFlops", _scaled("peak_flops", 1e12, r"\| peak TFlops {1,40}\| NUMBER")),
    ("using device", _text("device", r"using device: ([\w:]{2,20})")),
    ("unning PyTorch", _text("torch", r"[Rr]unning [Pp]y[Tt]orch ([\w.+]{3,40})")),
    ("unning pytorch", _text("torch", r"[Rr]unning [Pp]y[Tt]orch ([\w.+]{3,40})")),
    ("NVIDIA ", _nvidia_smi),
    ("Tesla ", _nvidia_smi),
    (" real ", _wall),
    ("real\t", _wall),
    ("aving checkpoint", _mark("checkpoint", r"\b[Ss]aving checkpoint to [^\n]{0,300}?(?:step-0*(?P<step>\d{1,12}))?(?:[/\\'\"]|\b)")),
    ("aving model checkpoint", _mark("checkpoint", r"Saving model checkpoint to [^\n]{0,300}?(?:checkpoint-(?P<step>\d{1,12}))?\s*$")),
    ("Writing checkpoint at step", _mark("checkpoint", r"Writing checkpoint at step (?P<step>\d{1,12})")),
    (
        "Saved model parameters to",
        _mark("checkpoint", r"Saved model parameters to:? [^\n]{0,300}?(?:model_0*(?P<step>\d{1,12}))?(?:\.|\s*$)"),
    ),
    *((words, _mark("resume", _RESUMED)) for words in ("esuming ", "esumed ", "RESUM", "estoring ", "estored ", "ontinuing ")),
    ("ompiling the model", _mark("compile", r"[Cc]ompiling the model")),
    ("Compiling model", _mark("compile", r"Compiling model")),
    ("skipping update due to", _mark("skip", r"skipping update due to (?:loss|grad)")),
    ("radient overflow", _mark("skip", r"[Gg]radient overflow\.\s{1,4}Skipping step")),
    ("out of memory", _out_of_memory),
    ("OutOfMemoryError", lambda line: None if "out of memory" in line.text else _out_of_memory(line)),
    ("Traceback (most recent call last)", _traceback),
    ("diverged with loss = NaN", _loss_is_nan),
    ("Loss is nan, stopping", _loss_is_nan),
    ("Segmentation fault", _mark("error", r"Segmentation fault")),
    ("CUDA error: ", _mark("error", r"CUDA error: ")),
)

_SETTING = re.compile(
    r"^[> \t|]{0,12}+(?:Overriding: )?[\"']?([A-Za-z_][\w \-()]{0,40}?)[\"']?(?: (?:: ?(?:int|float|str|bool) ))? {0,30}[=:|] {0,4}"
    rf"((?:[\"'][^\"'\n]{{0,200}}[\"']|\d{{1,9}}(?: ?\* ?\d{{1,9}}){{1,3}}|{NUMBER}|[\w./\-]{{1,80}}))"
    r"[ \t,|]{0,80}+((?:#[^\n]{0,400})?)$",
    re.M,
)
_PROGRAM = re.compile(r"^(?:def|class) \w{1,80}[(:]", re.M)
_TEXTS = frozenset("dataset init_from dtype device optimizer schedule arch hardware wandb_run_name".split())


def _take_settings(source: Text, found: Found) -> None:
    """Lines that state one setting."""
    known = _known_names()
    blocks = _without_rows(source, found)
    if any(_PROGRAM.search(part.text) for part in source.besides_rows):
        # Some trainers print their own source first. Its assignments are a program's: which of them hold, only running it would tell.
        blocks = blocks[1:]
    said = ((low, high) for low, high in blocks if not source.text[low:high].isspace())
    matches = itertools.chain.from_iterable(_SETTING.finditer(source.text, low, high) for low, high in said)
    for match in itertools.islice((match for match in matches if normalised(match[1]) in known), MOST_LINES):
        name, value = setting_of(match[1]), literal(match[2])
        if (isinstance(value, str) and name not in _TEXTS) or (isinstance(value, float) and not math.isfinite(value)):
            continue
        line, at = source.line_at(match.start()), source.offset + match.start()
        found.tell(name, value, line, at)
        if match[3]:
            found.tell("comments", match[3].lstrip("# ").strip(), line, at)


def _without_rows(source: Text, found: Found) -> list[tuple[int, int]]:
    """Stretches of lines that hold no row: most lines of most logs are rows, and no row states a setting."""
    starts = source.line_starts
    is_row = np.zeros(len(starts) + 1, bool)
    is_row[np.concatenate([found.steps.line, found.evals.line]) - source.first_line] = True
    is_row[-1] = True
    edges = np.flatnonzero(np.diff(np.concatenate([[True], is_row])))  # first of a stretch, first behind it, and so on
    ends = np.append(starts, len(source.text) + 1)
    return [(int(ends[low]), int(ends[high]) - 1) for low, high in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)]


@cache
def _known_names() -> frozenset[str]:
    """Names that are settings wherever they stand. One letter is not: `t = 1` may be anything."""
    return frozenset(
        {*settings(), *(name for name in SETTINGS if len(name) > 1), "flops_per_token", "peak_flops"}
        - {"device", "num_steps", "dim", "gpu", "wd"}
    )


def literal(text: str) -> object:
    """A value as a person or a Python program writes it."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if re.fullmatch(r"\d{1,9}(?: ?\* ?\d{1,9}){1,3}", text):
        return math.prod(int(part) for part in text.split("*"))
    if re.fullmatch(NUMBER, text):
        return _plain(float(text.replace(",", "")))
    try:
        value = ast.literal_eval(text)
        return value if isinstance(value, (str, int, float, bool)) else text
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text.strip("\"'")
