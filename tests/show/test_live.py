"""The live view, compared as plain text, and what it may never do at any size."""

from __future__ import annotations

import io
import time

import pytest

from nanolens.message import msg
from nanolens.record import events as e
from nanolens.record.progress import Progress, about_run
from nanolens.show import live
from nanolens.show.document import cells, clean, wrapped
from nanolens.show.live import LiveView, Screen, screen
from tests.show.made_run import KNOWN, made_progress, made_run

HINT = msg("Ctrl-C saves and stops")


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def text_of(progress: Progress, width: int, height: int, **options) -> str:
    """The view as a terminal of that size shows it."""
    from rich.console import Console

    stream = io.StringIO()
    rows = screen(progress, width, height - 1, now_s=progress.last_at_s + 0.2, hint=HINT, **options)
    Console(file=stream, width=width, height=height, color_system=None, legacy_windows=False).print(
        Screen(rows), end=""
    )
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def test_the_view_at_80_by_24():
    it = made_progress(steps=1500, ends=False)
    it.take(e.Warned(step=1500, code="overfitting", claim="val loss rises while train loss falls"))
    assert text_of(it, 80, 24) == GOLDEN_80


def test_the_view_without_braille_is_drawn_with_ascii():
    text = text_of(made_progress(steps=1500, ends=False), 80, 24, plain=True)
    assert "*" in text and "#####" in text and "=====" in text
    assert not set("⠉│━█•") & set(text)


def test_before_the_first_step_it_shows_the_checks_and_the_choices():
    it = Progress(about_run("quickstart-1", KNOWN))
    for event in list(made_run(0))[:3]:
        it.take(event)
    assert text_of(it, 80, 24) == GOLDEN_START


def test_a_larger_screen_shows_every_evaluation():
    text = text_of(made_progress(steps=1500, ends=False), 120, 40)
    for step in ("0", "250", "500", "750", "1,000", "1,250", "1,500"):
        assert f" {step}  " in text
    assert text.count("best") == 1


def test_a_finished_run_says_how_long_it_took():
    text = text_of(made_progress(steps=2000), 80, 24)
    assert "finished" in text and "took 60.6 s" in text and "to go" not in text and "100%" in text


@pytest.mark.parametrize("lang", ["en", "hi"])
@pytest.mark.parametrize("width", [1, 20, 33, 63, 64, 80, 100, 200])
@pytest.mark.parametrize("height", [2, 5, 9, 14, 24, 60])
def test_it_fits_any_screen(width: int, height: int, lang: str):
    it = made_progress(steps=700, ends=False)
    for k in range(5):
        it.take(e.Warned(step=700, code="x", claim=f"claim {k} " * 40))
    it.take(e.SampleWritten(step=700, text="東京" * 300 + "\n" + "नमस्ते " * 100))
    rows = screen(it, width, height - 1, now_s=it.last_at_s, hint=HINT, lang=lang)
    assert len(rows) <= height - 1
    for row in rows:
        assert sum(cells(text) for text, _ in row) <= max(20, width)
        assert "\n" not in "".join(text for text, _ in row)


def test_nothing_from_a_run_folder_steers_the_terminal():
    hostile = "\x1b[2J\x1b]0;title\x07\r\b\u202eevil\n"
    it = Progress(
        about_run(hostile, {**KNOWN, "dataset": hostile, "arch": hostile, "device": hostile, "peak_origin": hostile})
    )
    for event in made_run(30, ends=False):
        it.take(event)
    it.take(e.Chosen(what=hostile, value=hostile, because=hostile))
    it.take(e.CheckPassed(check=hostile))
    it.take(e.Warned(step=1, code=hostile, claim=hostile))
    it.take(e.SampleWritten(step=1, text=hostile))
    it.take(e.RunEnded(step=30, why="failed", because=hostile))
    shown = "".join(text for row in screen(it, 100, 40, now_s=it.last_at_s, hint=HINT) for text, _ in row)
    assert not [letter for letter in shown if not letter.isprintable()]
    before = Progress(about_run("x", KNOWN))
    before.take(e.Chosen(what=hostile, value=hostile, because=hostile))
    before.take(e.CheckPassed(check=hostile))
    shown = "".join(text for row in screen(before, 100, 40, now_s=0.0) for text, _ in row)
    assert not [letter for letter in shown if not letter.isprintable()]


def test_numbers_that_are_not_finite_are_shown_as_such():
    it = made_progress(steps=300, ends=False)
    it.take(e.StepTaken(step=301, loss="nan", lr=1e-3, grad_norm="inf", tokens=768, took_s=0.02))
    it.take(e.Evaluated(step=301, split="val", loss="inf", standard_error="nan", batch_losses=[], batches="", tokens=1))
    text = text_of(it, 80, 24)
    assert "loss  nan" in text and " inf" in text


def test_a_text_is_wrapped_at_blanks_and_keeps_its_lines():
    assert wrapped("one two three\n\n\nfour", 8, 9) == ["one two", "three", "", "four"]
    assert wrapped("x" * 20, 8, 9) == ["x" * 8, "x" * 8, "xxxx"]
    assert wrapped("a\nb\nc\nd", 8, 2) == ["a", "b"]
    assert clean("a\tb\x1b[1m") == "a b·[1m"


def test_drawing_is_rationed_by_its_own_cost(monkeypatch: pytest.MonkeyPatch):
    from rich.console import Console

    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True)
    view = LiveView(made_progress(steps=300, ends=False), console)
    drawn = []

    def slow_rows():
        drawn.append(time.monotonic())
        until_s = time.thread_time() + 0.01
        while time.thread_time() < until_s:
            pass
        return []

    monkeypatch.setattr(view, "rows", slow_rows)
    monkeypatch.setattr(live, "COST_FRAC", 0.02)  # 10 ms at 2 %: a frame each half second
    started_at_s = time.monotonic()
    while time.monotonic() - started_at_s < 1.2:
        view.tick()
        time.sleep(0.01)
    view.close()
    assert 2 <= len(drawn) <= 3


def test_the_view_leaves_the_terminal_clean_when_it_closes():
    from rich.console import Console

    stream = io.StringIO()
    console = Console(file=stream, width=80, height=24, force_terminal=True)
    view = LiveView(made_progress(steps=300, ends=False), console)
    view.tick()
    assert "\x1b[?25l" in stream.getvalue()  # the cursor is hidden while it draws
    view.close()
    assert stream.getvalue().rstrip().endswith("\x1b[2K") and "\x1b[?25h" in stream.getvalue()


GOLDEN_80 = """\
quickstart-1 · 804,096 parameters · gpt2 · cpu float32 · pydocs         training
━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━─────────────   75%  step 1,500 of 2,000
46 s so far · 15 s to go, until 01:47                             saved at 1,500

loss  1.4758  lr 0.001                        step   train     val
3.01 │•⠉⠉⠉⠑⡄                                   750  1.6892  1.7379 ± 0.0051
     │     ⠈•⣄                               1,000  1.5652  1.6202 ± 0.0051
     │        ⠑⠤⣀                            1,250  1.5114  1.5726 ± 0.0051
     │           ⠑•⠤⢄⣀  •                    1,500  1.4880  1.5555 ± 0.0051 best
1.51 │                ⠉⠉⠊⠒⠒⠤⠤⠤•⠤⠤⠤⢄⣀•⣀⢄⣀⣀•
      0                              1,500

speed  30,720 tokens/s · 25.0 ms per step · MFU 75.5% of 210 GFLOP/s (measured)
time   █████████████████████████████████████████████████████████████████████████
       train 79%  eval 12%  sample 5%  data 3%  checkpoint 0.3%  other 0.4%

sample  at step 1,500
  def the(self):
      Return the value of the first line of the object that is the same as the
  string of the class, or None.

! val loss rises while train loss falls (overfitting)
Ctrl-C saves and stops"""
GOLDEN_START = """\
quickstart-1 · 804,096 parameters · gpt2 · cpu float32 · pydocs         training
─────────────────────────────────────────────────────────    0%  step 0 of 2,000


  ok  initial loss  4.18  expected 4.174
  dtype = float32  16-bit arithmetic is not faster on most CPUs


Ctrl-C saves and stops"""
