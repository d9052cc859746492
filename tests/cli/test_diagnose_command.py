"""`nanolens diagnose` as it is typed."""

import json

import pytest

from nanolens.cli import main

LOG = "\n".join(f"iter {i}: loss {4.2 - 0.002 * i:.4f}, time 33.20ms, mfu 11.20%" for i in range(0, 1000, 10))


@pytest.fixture
def log(tmp_path):
    (tmp_path / "train.log").write_text(LOG)
    (tmp_path / "known.toml").write_text(
        "n_layer = 6\nn_head = 6\nn_embd = 384\nblock_size = 256\nbatch_size = 64\nvocab_size = 65\n"
    )
    return tmp_path


def test_json_has_the_promised_shape(log, capsys):
    assert (
        main(
            [
                "diagnose",
                str(log / "train.log"),
                "--config",
                str(log / "known.toml"),
                "--hardware",
                "RTX 4070 Ti",
                "--json",
            ]
        )
        == 0
    )
    answer = json.loads(capsys.readouterr().out)
    assert set(answer) == {"headline", "run", "findings", "not_checked", "others"}
    codes = {finding["code"]: finding for finding in answer["findings"]}
    wrong = codes["mfu_wrong_peak"]
    assert set(wrong) == {"code", "sureness", "claim", "evidence", "change", "wrong_if"}
    assert {"what", "seen", "usual", "where", "how"} <= set(wrong["evidence"][0])
    assert wrong["evidence"][0]["seen"] == 312e12
    assert all({"code", "because"} == set(item) for item in answer["not_checked"])


@pytest.mark.parametrize("form", ["text", "md"])
def test_other_forms_say_the_same(log, capsys, form):
    assert main(["diagnose", str(log / "train.log"), f"--format={form}", "--hardware=RTX 4070 Ti"]) == 0
    assert "312 TFLOP/s" in capsys.readouterr().out


def test_why_prints_the_symptom_s_page(capsys):
    assert main(["diagnose", "--why=overfitting"]) == 0
    assert "When it is wrong." in capsys.readouterr().out


def test_why_prints_its_page_as_json(capsys):
    assert main(["diagnose", "--why=overfitting", "--json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert page["codes"] == ["overfitting", "checkpoint_not_best"] and len(page["paragraphs"]) >= 5


def test_an_unknown_code_is_met_with_the_nearest(capsys):
    assert main(["diagnose", "--why=overfiting"]) == 1
    assert "overfitting" in capsys.readouterr().err


def test_any_setting_may_be_given(log, capsys):
    assert (
        main(
            [
                "diagnose",
                str(log / "train.log"),
                "--json",
                "--dataset_tokens=1000",
                "--tokens-per-update=16384",
                "--learning_rate=1e-3",
            ]
        )
        == 0
    )
    answer = json.loads(capsys.readouterr().out)
    assert answer["run"]["derived"]["epochs"]["value"] > 1000


def test_nothing_named_is_an_error_without_a_traceback(capsys):
    assert main(["diagnose"]) == 1
    assert "error" in capsys.readouterr().err
