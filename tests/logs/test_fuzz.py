"""Any bytes, and any mutation of any format: no traceback, no hang, and no number that the text does not hold."""

from __future__ import annotations

import math
import random
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nanolens.errors import UserError
from nanolens.logs import FORMATS, Given, read_logs
from nanolens.logs.fields import NUMBER
from nanolens.logs.text import clean, decode
from tests.logs import samples

LENIENT = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
TEXTS = list(samples.ALL.values())
SCALES = (1e3, 1e6, 1e9, 1.0, 1e-3, 1e-2, math.log(2))  # as printed, milliseconds, per cent, bits (fairseq's losses)
WORDS = (
    "iter",
    "step",
    "loss",
    "val loss",
    "train loss",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "%",
    "ms",
    "|",
    "\r",
    "\n",
    "\x1b[31m",
    "{",
    "}",
    "'",
    '"',
    ":",
    ",",
    "0",
    "-1",
    "99999999999999999999",
    "# run B",
    "Traceback (most recent call last):",
    "[rank1]:",
    "> ",
    "\u00a0",
    "\ud800",
    "\x00",
    "٣",
    "²",
    "1_000",
)


def read(source: str | bytes, **more):
    try:
        return read_logs(source, **more)
    except UserError as error:
        assert str(error)
        return []


def numbers_in(text: str) -> np.ndarray:
    """Every number that the text holds, as any part of a run of digits may be one."""
    found = [float(match[0].replace(",", "")) for match in re.finditer(NUMBER, text)]
    return np.unique(
        np.array([number * scale for number in found for scale in SCALES if np.isfinite(number)] or [np.nan])
    )


def assert_numbers_come_from(text: str, runs) -> None:
    held = numbers_in(text)
    for run in runs:
        for rows, names in (
            (run.steps, ("loss", "lr", "grad_norm", "tokens_per_s", "mfu_frac")),
            (run.evals, ("train", "val", "val_bits_per_byte")),
        ):
            for name in names:
                values = getattr(rows, name)
                for value in values[np.isfinite(values)]:
                    nearest = held[np.abs(held - value).argmin()]
                    assert np.isclose(nearest, value, rtol=1e-12, atol=0), (name, value)


def assert_sound(runs) -> None:
    for run in runs:
        assert (np.diff(run.steps.step) > 0).all() and (np.diff(run.evals.step) > 0).all()
        assert len(run.steps.loss) == len(run.steps.step) and len(run.evals.val) == len(run.evals.step)
        assert (run.steps.step >= 0).all() and (run.steps.line >= 1).all() and (run.evals.line >= 1).all()
        assert 0 <= run.reading.not_understood <= run.reading.lines


@LENIENT
@given(st.binary(max_size=3000))
def test_any_bytes(raw):
    runs = read(raw)
    assert_sound(runs)
    assert_numbers_come_from(clean(decode(raw)), runs)


@LENIENT
@given(
    st.lists(
        st.sampled_from(WORDS) | st.text(max_size=6) | st.floats().map(str) | st.integers().map(str), max_size=120
    ),
    st.sampled_from(["", " "]),
)
def test_any_mixture_of_the_words_of_logs(words, between):
    text = between.join(words)
    runs = read(text)
    assert_sound(runs)
    assert_numbers_come_from(clean(text), runs)


@LENIENT
@given(st.sampled_from(TEXTS), st.integers(0, 2**32), st.integers(1, 12))
def test_any_mutation_of_any_format(text, seed, times):
    text = mutated(text, random.Random(seed), times)
    runs = read(text)
    assert_sound(runs)
    assert_numbers_come_from(clean(text), runs)


@LENIENT
@given(st.sampled_from(TEXTS), st.sampled_from(TEXTS), st.integers(0, 2**32), st.sampled_from([None, *FORMATS]))
def test_any_two_formats_mixed_and_read_as_any(one, other, seed, name):
    chance = random.Random(seed)
    lines = one.splitlines(keepends=True) + other.splitlines(keepends=True)
    chance.shuffle(lines)
    text = "".join(lines)
    runs = read(text, format=name)
    assert_sound(runs)
    assert_numbers_come_from(clean(text), runs)


@LENIENT
@given(
    st.dictionaries(
        st.text(max_size=12)
        | st.sampled_from(
            [
                "lr",
                "n_layer",
                "params",
                "dataset",
                "init",
                "init_from",
                "hardware",
                "depth",
                "devices",
                "grad_accum_steps",
            ]
        ),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=20)
        | st.lists(st.integers(), max_size=3)
        | st.dictionaries(st.text(), st.integers()),
        max_size=8,
    ),
    st.text(max_size=30),
)
def test_any_config_and_hardware(config, hardware):
    assert read(samples.NANOGPT, given=Given(config, comments=[hardware], hardware=hardware, facts=dict(config)))


@pytest.mark.parametrize("name", samples.ALL)
def test_every_cut_of_every_format(name):
    text = samples.ALL[name]
    for end in range(0, len(text), max(1, len(text) // 150)):
        runs = read(text[:end])
        assert_sound(runs)
        assert_numbers_come_from(clean(text[:end]), runs)


def mutated(text: str, chance: random.Random, times: int) -> str:
    for _ in range(times):
        at, other = sorted((chance.randrange(len(text) + 1), chance.randrange(len(text) + 1)))
        match chance.randrange(8):
            case 0:
                text = text[:at] + text[min(other, at + 40) :]  # cut out
            case 1:
                text = text[:other] + text[at:other] + text[other:]  # repeat
            case 2:
                text = text[:at] + chance.choice(WORDS) + text[at:]
            case 3:
                text = text[:at].rstrip("\n") + text[at:]  # glue
            case 4:
                text = text.replace("\n", "\r\n") if chance.random() < 0.5 else text.replace("\n", "\r")
            case 5:
                lines = text.splitlines(keepends=True)
                chance.shuffle(lines)
                text = "".join(lines)
            case 6:
                text = re.sub(
                    r"\d", lambda digit: str(chance.randrange(10)) if chance.random() < 0.1 else digit[0], text
                )
            case 7:
                text = "".join("> " + line for line in text.splitlines(keepends=True))
        text = text[:20_000] or "x"
    return text
