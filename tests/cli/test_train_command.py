"""From the command line to a run on disk and back, with a model that trains in a second."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nanolens.cli import main
from nanolens.record import EVENTS_FILE, OUTPUT_FILE, RUN_FILE, STOP_FILE
from nanolens.session.listeners import certain_faults
from tests.cli.tiny import SETTINGS, make_data, nanolens


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_data(tmp_path)
    return tmp_path


def steps_in(run: Path) -> list[int]:
    lines = [json.loads(line) for line in (run / EVENTS_FILE).read_text().splitlines()]
    return [line["step"] for line in lines if line["event"] == "step_taken"]


def test_a_piped_run_prints_nanogpts_lines_and_ends_with_words(here: Path):
    done = nanolens("train", *SETTINGS, "--out_dir=out")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("# nanolens ") and "run=out" in lines[0] and "peak_origin='measured" in lines[0]
    assert [line.split(":")[0] for line in lines if re.match(r"(iter|step) ", line)] == [
        "step 0",
        "iter 0",
        "iter 5",
        "step 10",
        "iter 10",
        "iter 15",
        "step 20",
    ]
    assert "saving checkpoint to out" in lines
    words = "\n".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))
    assert "out finished: 20 steps in " in words
    assert "best val loss " in words and "Latest sample, step 20" in words and "nanolens sample out" in words
    assert steps_in(here / "out") == list(range(1, 21))
    assert done.stderr == ""


def test_training_goes_on_where_it_was_stopped_with_what_it_was_started_with(here: Path, capsys):
    assert main(["train", *SETTINGS, "--out_dir=runs/a", "--max_iters=10", "--seed=7"]) == 0
    assert main(["train", "--init_from=resume", "--out_dir=a", "--max_iters=16"]) == 0
    out = capsys.readouterr().out
    assert "# resumed at step 10" in out and "# max_iters changed from 10 to 16" in out
    assert steps_in(here / "runs" / "a") == list(range(1, 17))
    facts = json.loads((here / "runs" / "a" / RUN_FILE).read_text())
    assert facts["config"]["seed"] == 7 and facts["config"]["n_embd"] == 16
    assert facts["came_from"]["max_iters"] == "--max_iters=16"
    assert facts["came_from"]["seed"] == "--seed=7"


def test_a_run_is_not_overwritten_unless_asked_and_then_moved_aside(here: Path, capsys):
    arguments = ["train", *SETTINGS, "--out_dir=out", "--max_iters=4"]
    assert main(arguments) == 0
    capsys.readouterr()
    assert main(arguments) == 1
    assert capsys.readouterr().err == (
        "error: out already contains a run\n"
        "  in: --out_dir=out\n"
        "  fix: continue it with --init_from=resume, choose another out_dir, or move it aside with --overwrite=True\n"
    )
    assert main([*arguments, "--overwrite=True"]) == 0
    assert steps_in(here / "out") == steps_in(here / "out.old-1") == [1, 2, 3, 4]


def test_without_out_dir_runs_are_numbered_and_listed(here: Path, capsys):
    for _ in range(2):
        assert main(["train", "quickstart", *SETTINGS, "--max_iters=4"]) == 0
    capsys.readouterr()
    assert main(["runs"]) == 0
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["run", "state", "step", "loss", "best", "val", "tokens/s", "modified", "size"]
    assert first.split()[:5] == ["quickstart-1", "finished", "4", "/", "4"]
    assert second.split()[0] == "quickstart-2"
    assert main(["runs", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["run"], row["state"], row["step"]) for row in rows] == [
        ("runs/quickstart-1", "finished", 4),
        ("runs/quickstart-2", "finished", 4),
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--dataset=nowhere"], "error: there is no dataset named nowhere\n  fix: use one of "),
        (
            ["--init_from=resume", "--out_dir=nothing"],
            "error: nothing to resume: nothing contains no run\n  in: --out_dir=nothing\n"
            "  fix: name the run with --out_dir=FOLDER (nanolens runs lists them), or start a new one without "
            "--init_from=resume\n",
        ),
        (
            ["--out_dir=data/tiny/train.bin"],
            "error: cannot write to data/tiny/train.bin: there is a file in the way\n  in: "
            "--out_dir=data/tiny/train.bin\n"
            "  fix: choose another folder with --out_dir=FOLDER\n",
        ),
        (["--vocab_size=5"], "error: vocab_size = 5"),
        (["--init_from=runs/gone@5"], "error: "),
    ],
)
def test_a_mistake_is_one_clear_message_and_leaves_nothing_behind(here: Path, capsys, words: list[str], said: str):
    assert main(["train", *SETTINGS, *words]) == 1
    told = capsys.readouterr()
    assert told.err.startswith(said) and "Traceback" not in told.err
    if said.endswith("\n"):
        assert told.err == said
    assert not list(here.glob("runs/*"))


def test_a_checkpoint_of_another_shape_cannot_be_resumed(here: Path, capsys):
    assert main(["train", *SETTINGS, "--out_dir=out", "--max_iters=4"]) == 0
    capsys.readouterr()
    assert main(["train", "--init_from=resume", "--out_dir=out", "--n_embd=32", "--n_layer=2"]) == 1
    assert capsys.readouterr().err == (
        "error: n_layer = 2 differs from the checkpoint's 1\n  fix: leave it out, or start a new run\n"
        "error: n_embd = 32 differs from the checkpoint's 16\n  fix: leave it out, or start a new run\n"
    )


def test_a_run_that_cannot_go_on_fails_with_its_reason_and_a_finding(here: Path, capsys, monkeypatch):
    arguments = [
        "train",
        *SETTINGS,
        "--out_dir=out",
        "--learning_rate=100",
        "--min_lr=100",
        "--grad_clip=0",
        "--max_iters=50",
    ]
    # The peak measured while other programs hold the cores would bring in a finding about the hardware.
    monkeypatch.setattr("nanolens.training.machine.measured_peak", lambda machine: 1e12)
    assert main(arguments) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [
        line
        for line in lines
        if re.match(r"# the update after step \d was skipped: its (loss|gradient) was not finite", line)
    ]
    assert [line for line in lines if line.startswith("# out failed at step ")]
    assert [line for line in lines if "(nan_divergence)" in line and "certain" in line]
    assert lines[-2:] == ["#   nanolens diagnose out", "#   nanolens train --init_from=resume --out_dir=out"]
    assert "nan_divergence" in dict(certain_faults(here / "out"))  # what would have been told, had the run gone on


def test_code_is_only_run_when_it_is_named_in_the_call(here: Path, capsys):
    Path("config.toml").write_text('arch = "evil.py"\n')
    Path("evil.py").write_text("open('it-ran', 'w')\n")
    assert main(["train", "config.toml", *(word for word in SETTINGS if not word.startswith("--arch"))]) == 1
    assert capsys.readouterr().err == (
        "error: arch = evil.py is custom code, and custom code only runs if you name it yourself\n  in: config.toml line 1\n  "
        "fix: add --arch=evil.py\n"
    )
    assert not Path("it-ran").exists()


OWN_MODEL = """
import torch
class Model(torch.nn.Module):
    def __init__(self, config, vocab_size):
        super().__init__()
        self.table = torch.nn.Embedding(vocab_size, vocab_size)
        torch.nn.init.zeros_(self.table.weight)
    def forward(self, idx):
        return self.table(idx)
"""


def test_a_model_of_ones_own_is_kept_with_the_run(here: Path, capsys):
    Path("mine.py").write_text(OWN_MODEL)
    settings = [word for word in SETTINGS if not word.startswith("--arch")]
    assert main(["train", *settings, "--arch=mine.py", "--out_dir=out", "--max_iters=5"]) == 0
    assert (here / "out" / "model.py").read_text() == OWN_MODEL
    Path("mine.py").write_text("raise SystemExit('the changed file ran')")
    assert main(["train", "--init_from=resume", "--out_dir=out", "--max_iters=6"]) == 0  # named before, on this machine
    told = map(json.loads, (here / "out" / EVENTS_FILE).read_text().splitlines())
    chosen = [event for event in told if event["event"] == "chosen" and event["what"] == "model file"]
    assert [event["because"] for event in chosen] == [
        "mine.py has changed since the run began; the run's own copy is used"
    ]
    capsys.readouterr()
    assert main(["sample", "out", "--max_new_tokens=3"]) == 0
    assert (
        capsys.readouterr().err == "mine.py has changed since the run began; the run's own copy out/model.py is used\n"
    )


def test_code_in_the_run_folder_of_a_stranger_is_not_run(here: Path, capsys):
    Path("mine.py").write_text(OWN_MODEL)
    settings = [word for word in SETTINGS if not word.startswith("--arch")]
    assert main(["train", *settings, "--arch=mine.py", "--out_dir=out", "--max_iters=5"]) == 0
    (here / "out" / "model.py").write_text("import pathlib\npathlib.Path('it-ran').touch()\n" + OWN_MODEL)
    capsys.readouterr()
    for words in (["sample", "out"], ["train", "--init_from=resume", "--out_dir=out"]):
        assert main(words) == 1
        assert "custom code only runs if you name it" in capsys.readouterr().err
        assert main([*words, "--arch=mine.py"]) == 1
        assert "mine.py is not the code this model was built by" in capsys.readouterr().err
    assert main(["train", *settings, "--init_from=resume", "--out_dir=out", "--arch=mine.py"]) == 1
    assert not Path("it-ran").exists()
    assert main(["sample", "out", "--arch=out/model.py", "--max_new_tokens=3"]) == 0  # its owner has read and named it
    assert Path("it-ran").exists()


def test_damage_is_found_and_named(here: Path, capsys):
    assert main(["train", *SETTINGS, "--out_dir=out"]) == 0
    capsys.readouterr()
    assert main(["verify", "out"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "ok       run.json  54 settings" or re.fullmatch(r"ok       run\.json  \d+ settings", lines[0])
    assert re.fullmatch(r"ok       events\.jsonl  \d+ events, 20 steps, 1 attempt", lines[1])
    assert lines[-1] == "everything is intact"
    weights = here / "out" / "checkpoints" / "step-000010" / "model.safetensors"
    payload = bytearray(weights.read_bytes())
    payload[-1] ^= 1
    weights.write_bytes(payload)
    assert main(["verify", "out"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith("DAMAGED")).startswith("DAMAGED  checkpoints/step-000010")
    assert "         model.safetensors has changed since it was written (its sha256 differs)" in lines
    assert lines[-1] == "damaged parts: 1; resuming uses the newest intact checkpoint"


def test_a_step_that_is_missing_from_the_record_is_found(here: Path, capsys):
    assert main(["train", *SETTINGS, "--out_dir=out", "--max_iters=6"]) == 0
    record = here / "out" / EVENTS_FILE
    lines = [
        line
        for line in record.read_text().splitlines(keepends=True)
        if '"step":4,' not in line or "step_taken" not in line
    ]
    record.write_text("".join(lines))
    capsys.readouterr()
    assert main(["verify", "out"]) == 1
    assert "         1 step is missing, the first is 4" in capsys.readouterr().out.splitlines()


def started(words: list[str], here: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "nanolens", *words], cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def in_a_terminal(words: list[str], here: Path, rows: int, columns: int) -> tuple[subprocess.Popen, int]:
    """The command with a terminal of that size, and the end of it that a person would sit at."""
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environ = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")} | {
        "TERM": "xterm-256color"
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "nanolens", *words],
        cwd=here,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environ,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    return process, ours


class Reading:
    """All that a terminal has been sent so far."""

    def __init__(self, terminal: int):
        self._terminal, self._seen = terminal, b""

    def text(self, until_closed: bool = False) -> str:
        import select

        while until_closed or select.select([self._terminal], [], [], 0)[0]:
            try:
                piece = os.read(self._terminal, 65536)
            except OSError:  # the other side has gone
                break
            if not piece:
                break
            self._seen += piece
        return self._seen.decode(errors="replace")


def wait_until(true, seconds: float = 60.0) -> None:
    until_s = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until_s, "nothing happened"
        time.sleep(0.05)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no pty there")
def test_in_a_terminal_there_is_a_live_view_and_ctrl_c_saves(here: Path):
    words = ["train", *SETTINGS, "--out_dir=out", "--max_iters=1000000", "--eval_interval=50"]
    process, terminal = in_a_terminal(words, here, rows=24, columns=80)
    shown = Reading(terminal)
    wait_until(lambda: "step 1" in shown.text() and "tokens/s" in shown.text())
    os.write(terminal, b"\x03")
    process.wait(timeout=60)
    text = shown.text(until_closed=True)
    assert process.returncode == 130
    assert "─" in text and "Ctrl-C saves and stops · from any terminal: nanolens watch out" in text
    after = text.rpartition("\x1b[?25h")[2]  # the cursor is back; what follows stays on the screen
    plain = re.sub(r"\x1b\[[0-9;]*m", "", after).replace("\r", "")
    found = re.search(r"^out was stopped and saved at step ([\d,]+), after ", plain, re.MULTILINE)
    assert found, plain
    assert "  nanolens train --init_from=resume --out_dir=out" in plain.splitlines()
    assert (here / "out" / "checkpoints" / f"step-{int(found[1].replace(',', '')):06d}").is_dir()


@pytest.mark.skipif(sys.platform == "win32", reason="sessions are others there")
def test_a_detached_run_is_watched_and_stopped_from_elsewhere(here: Path, capsys):
    done = nanolens("train", *SETTINGS, "--max_iters=1000000", "--detach", cwd=here)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    found = re.fullmatch(r"training continues in the background as process (\d+)", lines[0])
    assert found, done.stdout
    assert lines[1:] == [
        "  watch: nanolens watch runs/quickstart-1",
        "  stop:  nanolens stop runs/quickstart-1",
        f"  log:   {Path('runs/quickstart-1') / OUTPUT_FILE}",
    ]
    pid = int(found[1])
    run = here / "runs" / "quickstart-1"
    try:
        assert os.getsid(pid) == pid  # a session of its own: closing the terminal does not reach it
        watching = started(["watch", "quickstart-1"], here)
        wait_until(lambda: len(steps_in(run)) > 10)
        capsys.readouterr()
        for word in ("--init_from=resume", "--overwrite=True"):
            assert main(["train", *SETTINGS, "--out_dir=runs/quickstart-1", word]) == 1
            assert capsys.readouterr().err.startswith(
                f"error: process {pid} is already training in runs/quickstart-1\n"
            )
        assert main(["stop", "quickstart-1"]) == 0
        said = capsys.readouterr().out.splitlines()
        found = re.fullmatch(r"quickstart-1 stopped; step ([\d,]+) is saved", said[0])
        assert found and said[1] == "continue with nanolens train --init_from=resume --out_dir=runs/quickstart-1"
        assert not (run / STOP_FILE).exists()
        out, err = watching.communicate(timeout=60)  # ends by itself, when the run does
        assert watching.returncode == 0, err
        assert (
            out.startswith("# nanolens ")
            and "iter 0: loss " in out
            and "quickstart-1 was stopped and saved at step " in out
        )
        assert "iter 0: loss " in (run / OUTPUT_FILE).read_text()
        assert main(["stop", "quickstart-1"]) == 1
        assert capsys.readouterr().err == (
            "error: runs/quickstart-1 is not training now\n  fix: nanolens runs shows the state of each run\n"
        )
    finally:
        if (run / "running.json").exists():
            os.kill(pid, signal.SIGKILL)


def test_a_detached_run_that_cannot_start_says_why_at_once(here: Path):
    done = nanolens("train", *SETTINGS, "--dataset=nowhere", "--detach", cwd=here)
    assert done.returncode == 1
    assert done.stderr.startswith("error: there is no dataset named nowhere\n")
    assert not list(here.glob("runs/*"))


def test_any_trainer_behind_two_dashes_is_echoed_recorded_and_summed_up(here: Path, capsys):
    lines = "".join(f"iter {k}: loss {4.0 - k / 20:.4f}, time 30.00ms, mfu 1.00%\n" for k in range(40))
    Path("theirs.py").write_text(
        f"import sys\nprint({lines!r}, end='')\nsys.exit(int(sys.argv[1].removeprefix('--exit-with=')))\n"
    )
    done = nanolens("watch", "--", sys.executable, "theirs.py", "--exit-with=3", cwd=here)
    assert done.returncode == 3
    assert done.stdout == lines
    said = done.stderr.splitlines()
    assert said[0].startswith("# recording ") and said[0].endswith(" in runs/theirs-1")
    assert "# theirs-1 failed at step 40" in done.stderr and said[-2:][0] == "#   nanolens diagnose theirs-1"
    assert main(["runs"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["theirs-1", "failed", "40"]
