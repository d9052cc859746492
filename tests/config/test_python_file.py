"""nanoGPT's Python configs: read, never run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanolens.config.load import load
from nanolens.config.python_file import read_python
from nanolens.errors import UserError
from nanolens.show.words import say


def test_literals_arithmetic_and_earlier_names_are_understood():
    read = read_python(
        "a = 5 * 8\nb = a // 4 + 1\nc = 'x' + 'y'\nd = -1e-3\ne = not True\nlr: float = 2**-10\n", "c.py"
    )
    assert read.values == {"a": 40, "b": 11, "c": "xy", "d": -1e-3, "e": False, "lr": 2**-10}
    assert not read.faults and read.where["b"] == "c.py line 2"


def test_a_file_in_the_manner_of_nanogpt_loads_on_its_defaults(tmp_path: Path):
    file = tmp_path / "finetune.py"
    file.write_text(
        '"""tune a large one on plays"""\nimport time\n\nout_dir = "out-plays"\nwandb_run_name = "ft-" + '
        "str(time.time())\n"
        'init_from = "gpt2-xl"\nbatch_size = 1\ngradient_accumulation_steps = 4 * 8\nmax_iters = 20\ndecay_lr = False\n'
    )
    loaded = load(str(file))
    assert loaded.config.gradient_accumulation_steps == 32
    assert loaded.came_from["max_iters"] == "finetune.py line 9"
    assert (loaded.config.arch, loaded.config.n_layer, loaded.config.learning_rate) == ("gpt2", 12, 6e-4)
    assert [say(note) for note in loaded.notes] == [
        "finetune.py line 2: import skipped: nanolens reads config files and does not run them",
        "finetune.py line 5: wandb_run_name is computed by code, which nanolens does not run",
    ]


def test_a_setting_that_matters_and_is_computed_is_a_fault_with_its_line(tmp_path: Path):
    file = tmp_path / "clever.py"
    file.write_text(
        "import os\nbatch_size = int(os.environ['B'])\nif True:\n    n_layer = 3\nfor dropout in range(3):\n    pass\n"
    )
    with pytest.raises(UserError) as raised:
        load(str(file))
    told = [(say(fault.what), say(fault.where)) for fault in raised.value.faults]
    assert told == [
        ("batch_size is set by code, and nanolens does not run config files", "clever.py line 2"),
        ("n_layer is set by code, and nanolens does not run config files", "clever.py line 3"),
        ("dropout is set by code, and nanolens does not run config files", "clever.py line 5"),
    ]


def test_nothing_in_a_config_file_runs(tmp_path: Path):
    canary = tmp_path / "canary"
    file = tmp_path / "evil.py"
    file.write_text(
        f"__import__('pathlib').Path({str(canary)!r}).touch()\nx = open({str(canary)!r}, 'w')\nbatch_size = 3\n"
    )
    assert load(str(file)).config.batch_size == 3
    assert not canary.exists()


def test_a_slip_of_the_pen_in_a_python_file_is_told_and_a_helper_variable_is_not(tmp_path: Path):
    file = tmp_path / "c.py"
    file.write_text("things = 3\nbatch_size = things * 2\n")
    assert load(str(file)).config.batch_size == 6
    file.write_text("batchsize = 3\n")
    with pytest.raises(UserError, match="no setting named batchsize"):
        load(str(file))


def test_huge_arithmetic_is_refused_at_once():
    assert read_python("batch_size = 9 ** 9 ** 9", "c.py").faults
    assert read_python("batch_size = 10 ** 60 * 10 ** 60", "c.py").faults
    assert read_python("batch_size = 1 // 0", "c.py").faults


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_without_an_exception(text: str):
    read_python(text, "c.py")


@given(
    st.recursive(
        st.sampled_from(["1", "2.5", "'a'", "x", "True"]),
        lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from("+-*/%"), inner),
        max_leaves=20,
    )
)
def test_any_expression_is_read_or_refused_without_an_exception(expression: str):
    read_python(f"x = 3\nbatch_size = {expression}\n", "c.py")
