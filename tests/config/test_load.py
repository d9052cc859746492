"""Where a Config comes from, and that all faults are told at once."""

from __future__ import annotations

import dataclasses
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanolens.config.fields import Config, settings
from nanolens.config.load import load, named_preset, preset_names, read_foreign
from nanolens.errors import UserError
from nanolens.show.words import say

NANOGPT_NAMES = """out_dir eval_interval log_interval eval_iters eval_only always_save_checkpoint init_from wandb_log wandb_project wandb_run_name
    dataset gradient_accumulation_steps batch_size block_size n_layer n_head n_embd dropout bias learning_rate max_iters weight_decay beta1 beta2
    grad_clip decay_lr warmup_iters lr_decay_iters min_lr backend device dtype compile""".split()


def faults(*arguments, **keywords) -> list[str]:
    with pytest.raises(UserError) as raised:
        load(*arguments, **keywords)
    return [say(fault.what) for fault in raised.value.faults]


def test_every_name_of_nanogpt_is_here_with_meaning_and_group():
    assert set(NANOGPT_NAMES) <= set(settings())
    assert all(known.meaning.msgid and known.group for known in settings().values())


def test_every_number_has_a_range_that_holds_its_default():
    for known in settings().values():
        if known.type in (int, float):
            assert known.low is not None and known.high is not None
            assert known.default is None or known.low <= known.default <= known.high


def test_a_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().batch_size = 3  # type: ignore[misc]


def test_later_sources_win_and_are_remembered(tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text("# a comment\nbatch_size = 8\nlearning_rate = 1\n")
    loaded = load(str(file), [("batch_size", "9")])
    assert (loaded.config.batch_size, loaded.came_from["batch_size"]) == (9, "--batch_size=9")
    assert (loaded.config.learning_rate, loaded.came_from["learning_rate"]) == (1.0, "mine.toml line 3")
    assert (loaded.config.n_layer, loaded.came_from["n_layer"]) == (12, "default")


@pytest.mark.parametrize("spelling", ["shakespeare-char-cpu", "shakespeare_char_cpu", "Shakespeare-Char_CPU"])
def test_presets_answer_to_both_spellings(spelling: str):
    loaded = load(spelling)
    assert loaded.preset == "shakespeare-char-cpu"
    assert loaded.came_from["n_embd"] == "preset shakespeare-char-cpu"


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_loads_and_says_what_to_expect(name: str):
    load(name)
    preset = named_preset(name)
    assert preset is not None and preset.summary.msgid
    assert preset.was_run or preset.took is not None


@pytest.mark.parametrize(("text", "value"), [("True", True), ("true", True), ("False", False), ("false", False)])
def test_switches_take_both_spellings(text: str, value: bool):
    assert load(None, [("bias", text)]).config.bias is value


def test_auto_is_a_value_where_the_program_may_decide():
    assert load(None, [("compile", "auto")]).config.compile is None
    assert faults(None, [("n_layer", "auto")]) == ["n_layer = auto is not a whole number"]


def test_numbers_may_be_written_as_people_write_them():
    config = load(None, [("learning_rate", "1e-3"), ("max_iters", "1e4")]).config
    assert (config.learning_rate, config.max_iters) == (1e-3, 10_000)


def test_all_faults_are_told_at_once():
    found = faults(
        "shakespeare-char",
        [
            ("n_embd", "100"),
            ("lr_decay_iters", "50"),
            ("batchsize", "3"),
            ("dropout", "-1"),
            ("bias", "maybe"),
            ("batch_size", "-4"),
            ("dtype", "int8"),
        ],
    )
    assert set(found) == {
        "there is no setting named batchsize",
        "bias = maybe is not True or False",
        "batch_size = -4 is too small",
        "dropout = -1.0 is too small",
        "dtype = int8 is not a valid choice",
        "n_embd = 100 is not divisible by n_head = 6",
        "the decay ends at update 50, before the warm-up does (100)",
    }


def test_what_is_only_unwise_is_no_fault():
    """A quick try of a long run's config; `plan` and `diagnose` say that its warm-up is too long."""
    assert load("shakespeare-char", [("max_iters", "20"), ("warmup_iters", "100")]).config.warmup_iters == 100


def test_a_fault_names_value_source_and_fix(tmp_path: Path):
    file = tmp_path / "run.toml"
    file.write_text("n_layer = 2\nn_embd = 384\nn_head = 5\n")
    with pytest.raises(UserError) as raised:
        load(str(file))
    (fault,) = raised.value.faults
    assert say(fault.what) == "n_embd = 384 is not divisible by n_head = 5"
    assert say(fault.where) == "n_embd: run.toml line 2, n_head: run.toml line 3"
    assert say(fault.fix) == "use n_embd 380, 385, or a number of heads that divides 384"


def test_a_missing_or_broken_file_is_one_clear_error(tmp_path: Path):
    assert faults(str(tmp_path / "no.toml"))[0].startswith("there is no file")
    (tmp_path / "bad.toml").write_text("batch_size = = 3")
    assert "is not valid TOML" in faults(str(tmp_path / "bad.toml"))[0]


def test_a_foreign_config_keeps_keys_that_nanolens_has_not(tmp_path: Path):
    file = tmp_path / "known.toml"
    file.write_text("rotary = true  # the 125M one\nn_embd = 384\n")
    read = read_foreign(file)
    assert read.values == {"rotary": True, "n_embd": 384}
    assert read.comments == ["the 125M one"]


@given(
    st.lists(
        st.tuples(st.one_of(st.sampled_from(sorted(settings())), st.text(max_size=20)), st.text(max_size=20)),
        max_size=6,
    )
)
def test_no_command_line_raises_anything_but_a_user_error(overrides: list[tuple[str, str]]):
    try:
        load(None, overrides)
    except UserError as error:
        assert all(say(fault.what) for fault in error.faults)


@given(
    st.dictionaries(
        st.sampled_from(sorted(settings())),
        st.one_of(st.integers(), st.floats(), st.booleans(), st.text(alphabet=string.printable, max_size=8)),
    )
)
def test_no_values_in_a_file_raise_anything_but_a_user_error(values: dict[str, object]):
    from nanolens.config.load import _Draft

    draft = _Draft()
    for key, value in values.items():
        draft.take(key, value, "file")
    from nanolens.config.fields import faults_in

    config = Config(**draft.values)  # type: ignore[arg-type]
    list(faults_in(config, draft.where, ignore=draft.faulty))


def test_every_field_is_a_setting_and_every_setting_a_field():
    assert {field.name for field in dataclasses.fields(Config)} == settings().keys()
