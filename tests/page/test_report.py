"""A run as a file, a picture, and a notebook's card."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from nanolens.cli import main
from nanolens.record.read import read_run
from tests.page.runs import NANOGPT_LOG, write_run


def test_a_report_is_one_file_whose_policy_allows_no_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "runs" / "one")
    out = tmp_path / "one.html"
    assert main(["report", str(tmp_path / "runs" / "one"), "-o", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert (
        policy is not None
        and "default-src 'none'" in policy[1]
        and "connect-src" not in policy[1]
        and "unsafe" not in policy[1]
    )
    page = text.partition("<script")[0]
    assert not re.search(r"\bsrc=|\bhref=|@import|url\(", page)
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    (run,) = data["runs"].values()
    assert run["series"]["loss"]["step"][-1] == 400 and run["view"]["row"]["name"] == "one"
    assert set(run["places"]) == {"step", "tokens", "flops", "time"}
    assert out.stat().st_size < 400_000
    said = capsys.readouterr().out
    assert "one.html" in said and "<pre>" not in said


def test_a_report_is_complete_without_its_script(tmp_path: Path) -> None:
    write_run(tmp_path / "sick", nan_from=300)
    out = tmp_path / "sick.html"
    assert main(["report", str(tmp_path / "sick"), "-o", str(out)]) == 0
    written = out.read_text(encoding="utf-8").partition("<script")[0]
    assert "the loss is not finite from step 300 on" in written and "nan_divergence" in written
    assert len(re.findall(r'<path d="M[^"]{60,}"', written)) == 4  # batch, its mean, train, val (nine evaluations)
    assert "To be, or not (400)" in written and str(tmp_path) not in out.read_text(encoding="utf-8")


def test_a_report_of_several_runs_ranks_them_and_can_be_markdown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [str(write_run(tmp_path / name, seed=i)) for i, name in enumerate(("a-run-with-a-rather-long-name", "b"))]
    for form in ("html", "md"):
        out = tmp_path / f"both.{form}"
        assert main(["report", *runs, f"--format={form}", "-o", str(out)]) == 0
        text = out.read_text(encoding="utf-8")
        assert "a-run-with-a-rather-long-name" in text and "No difference is shown" in text
    assert "```" not in capsys.readouterr().out


def test_a_report_of_a_log_in_hindi(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(NANOGPT_LOG)
    out = tmp_path / "log.html"
    assert main(["report", str(log), "-o", str(out), "--lang=hi"]) == 0
    text = out.read_text(encoding="utf-8")
    assert '<html lang="hi">' in text and "निष्कर्ष" in text


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_picture_of_one_run_and_of_several(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    runs = [str(write_run(tmp_path / name, steps=100, seed=i)) for i, name in enumerate(("a", "b$x$"))]
    for targets in (runs[:1], runs):
        out = tmp_path / f"loss{len(targets)}.{ending}"
        assert main(["plot", *targets, "-o", str(out), "--x=tokens", "--log_x"]) == 0
        start = out.read_bytes()[:200]
        assert start.startswith(b"\x89PNG") or b"<svg" in out.read_bytes()[:2000]


def test_a_picture_needs_a_name_and_an_axis_that_the_run_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    log = tmp_path / "train.log"
    log.write_text("\n".join(f"iter {k}: loss {4 - k / 100:.4f}" for k in range(100)))
    assert main(["plot", str(log), "-o", str(tmp_path / "loss.bmp")]) == 1
    assert ".png" in capsys.readouterr().err
    assert main(["plot", str(log), "-o", str(tmp_path / "loss.png"), "--x=flops"]) == 1
    assert "--x=step" in capsys.readouterr().err


def test_a_notebook_gets_a_card_without_a_script_and_with_names_as_text(tmp_path: Path) -> None:
    from nanolens.diagnosis import diagnose
    from nanolens.page.report import notebook_html

    run = read_run(write_run(tmp_path / "<script>alert(1)<∕script>", nan_from=300))
    card = notebook_html(run, diagnose(run).findings)
    assert "<script" not in card and "&lt;script&gt;" in card and "nan_divergence" in card
    assert "data:image/svg+xml;base64," in card and len(card) < 40_000


def test_a_folder_that_is_not_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", "nowhere/at/all"]) == 1
    assert "nowhere/at/all" in capsys.readouterr().err
