"""Reading takes time in proportion to the text, whatever the text is: 10 MB in under 2 s, 5,000 lines in far less than
one."""

from __future__ import annotations

import contextlib
import os
import random
import re
import time

import pytest

from nanolens.errors import UserError
from nanolens.logs import read_logs
from tests.logs import samples


def rows(form: str, size: int) -> str:
    """A log of about that many characters; `{k}` counts and `{x}` is a number with four decimals."""
    chance = random.Random(1)
    count = size // max(1, len(form.format(k=10_000, x="2.1234")))
    return "".join(form.format(k=k, x=f"{2 + chance.random():.4f}") for k in range(count))


def repeated(text: str, size: int) -> str:
    return (text * (size // len(text) + 1))[:size]


LOGS = {
    "nanogpt": "iter {k}: loss {x}, time 33.22ms, mfu 11.07%\n",
    "nanogpt with more": (
        "2024-01-01 10:00:00 iter {k}: loss {x}, time 33.22ms, mfu 11.07%, lr 1.0e-3, grad_norm 0.53\n"
    ),
    "nanochat": (
        "step {k:05d}/21400 (0.02%) | loss: {x} | lrm: 1.00 | dt: 989.44ms | tok/sec: 529,882 | mfu: 74.13 | "
        "total time: 0.00m\n"
    ),
    "llm.c": (
        "step {k:4d}/190000 | loss {x} (+1.20z)| norm 0.2932 (-0.31z)| lr 3.00e-04 | 36.58 ms | 52.1% bf16 MFU "
        "| 112241 tok/s\n"
    ),
    "main.log": "s:{k} trl:{x} lr:0.000300 norm:2.35\n",
    "modded": "step:{k}/1770000 train_time:{k}ms step_avg:94.11ms\n",
    "key-value": "03:22:14 [INFO] [Rank 0] step: {k}, loss: {x}, tokens_per_second: 76477.73, mfu: 37.59\n",
    "hf": "{{'loss': {x}, 'grad_norm': 1.23, 'learning_rate': 4.5e-05, 'epoch': 0.25}}\n",
    "bars": "\rEpoch 0:   0%|          | {k}/1793507 [00:02<1175:20:35,  0.42it/s, v_num=12, train_loss={x}]",
    "jsonl": '{{"step": {k}, "train/loss": {x}, "lr": 0.001}}\n',
    "restarts": "n_layer = {k}\niter 1: loss {x}, time 33.00ms, mfu 11.07%\nTraceback (most recent call last):\n",
    "runs": "# run {k}\niter 5: loss {x}, time 33.00ms, mfu 11.07%\n",
    "all different": (
        "iter {k}: loss {x}, time {k}.00ms, mfu 11.07% {k}\nstep {k}: train loss {x}, val loss {x}\nval "
        "loss: {k}: {x}, {k}1: {x}\n"
    ),
}
HOSTILE = (
    "1",
    "1,",
    "1,234,",
    "iter 111111111111111111111111111111: loss 2222222222",
    "step 1\n",
    "step 1 ",
    "step 1 loss ",
    " ",
    "\n",
    "\r",
    "\x1b[",
    "\x1b]0;abc",
    "{'",
    "{'loss': 1, ",
    '{"',
    '{"a":',
    "val loss: 1: 2, ",
    "val loss ",
    "# a=b ",
    "# run A\n",
    "| a | 1 |\n",
    " 5%|██| 5/10 [00:01<00:02, 1.0it/s, loss=3]",
    "Epoch 1: 5%|",
    "number of parameters out of memory checkpoint ",
    "CUDA out of memory\n",
    "Traceback (most recent call last):\n",
    "n_layer = 1\n",
    "loss: ",
    "rank 1 ",
    "a" * 50 + " = ",
    "> " * 10 + "\n",
    "é",
    "\U0001f600",
)


def seconds(text: str | bytes) -> float:
    started_s = time.process_time()
    with contextlib.suppress(UserError):
        read_logs(text)
    return time.process_time() - started_s


def busy() -> float:
    """How many times slower than usual this machine is at the moment: others may be using it."""
    pattern, text = (
        re.compile(r"iter (\d+): loss ([\d.]+), time ([\d.]+)ms"),
        "iter 100: loss 2.4049, time 929.71ms\n" * 20_000,
    )
    started_s = time.process_time()
    for match in pattern.finditer(text):
        match.groups()
    return max(1.0, (time.process_time() - started_s) / 0.015)


def test_a_log_of_5000_lines_is_read_in_a_blink():
    text = samples.NANOGPT + rows(LOGS["nanogpt"], 5000 * 50)
    read_logs(text)
    assert seconds(text) < 0.9 * busy()  # the goal is 0.3 s; threefold room for a busy machine


@pytest.mark.parametrize("name", LOGS)
def test_a_megabyte_of_rows(name):
    assert seconds(rows(LOGS[name], 1_000_000)) < 1.0 * busy()


@pytest.mark.parametrize("text", HOSTILE, ids=repr)
def test_a_megabyte_of_anything(text):
    assert seconds(repeated(text, 1_000_000)) < 1.0 * busy()


def test_a_megabyte_of_noise():
    assert seconds(os.urandom(1_000_000)) < 1.0 * busy()


@pytest.mark.heavy
@pytest.mark.parametrize("name", LOGS)
def test_ten_megabytes_of_rows(name):
    text = rows(LOGS[name], 10_000_000)
    assert seconds(text) < 6.0 * busy()  # the goal is 2 s; threefold room


@pytest.mark.heavy
@pytest.mark.parametrize("text", HOSTILE, ids=repr)
def test_ten_megabytes_of_anything(text):
    assert seconds(repeated(text, 10_000_000)) < 6.0 * busy()
