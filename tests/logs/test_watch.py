"""Any trainer behind the dashes: started unbuffered, echoed, recorded, its exit code and signals passed on."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from nanolens.errors import UserError
from nanolens.logs import watch
from nanolens.record import EVENTS_FILE, OUTPUT_FILE, PID_FILE, STOP_FILE
from nanolens.record.read import read_run

TRAINER = """
import sys, time
print("tokens per iteration will be: 768")
print("compiling the model... (takes a ~minute)")
for k in range(int(sys.argv[1])):
    if k % 10 == 0:
        print(f"step {k}: train loss {4 - k / 100:.4f}, val loss {4.1 - k / 100:.4f}")
        if k: print("saving checkpoint to out")
    print(f"iter {k}: loss {'nan' if k == 25 else format(4 - k / 100, '.4f')}, time 20.00ms, mfu {-100 if k < 5 else 1:.2f}%")
    time.sleep(float(sys.argv[2]))
if len(sys.argv) > 3:
    raise RuntimeError(sys.argv[3])
"""


@pytest.fixture
def trainer(tmp_path, monkeypatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    (tmp_path / "train_it.py").write_text(TRAINER)
    return [sys.executable, "train_it.py"]


def test_what_it_prints_is_echoed_unchanged_and_becomes_a_run(trainer):
    echo = io.BytesIO()
    assert watch.watch_command([*trainer, "30", "0"], echo=echo) == 0
    plain = subprocess.run([*trainer, "30", "0"], capture_output=True).stdout
    assert echo.getvalue() == plain
    folder = Path("runs/train_it-1")
    assert (folder / OUTPUT_FILE).read_bytes() == plain
    run = read_run(folder)
    assert (
        run.conventions.trainer == "nanogpt"
        and run.conventions.time == "with_eval"
        and run.conventions.updates_before_printed == 1
    )
    assert run.steps.step.tolist() == list(range(1, 31)) and run.steps.printed.tolist() == list(range(30))
    assert run.steps.not_finite[25] == 1.0 and run.steps.not_finite.sum() == 1.0
    assert run.evals.step.tolist() == [0, 10, 20] and run.evals.val[1] == pytest.approx(4.0)
    assert run.get("tokens_per_update") == 768 and run.known["tokens_per_update"].origin == "printed"
    assert run.get("state") == "finished" and not (folder / PID_FILE).exists()
    kinds = [mark.kind for mark in run.marks]
    assert kinds.count("checkpoint") == 2 and kinds.count("sentinel") == 5 and "compile" in kinds
    assert "train_it.py" in json.loads((folder / "run.json").read_text())["command"]


def test_the_log_itself_and_the_recorded_run_say_the_same(trainer):
    from nanolens.logs import read_log

    watch.watch_command([*trainer, "30", "0"], echo=io.BytesIO())
    recorded, log = read_run(Path("runs/train_it-1")), read_log(Path("runs/train_it-1") / OUTPUT_FILE)
    for name in ("step", "loss", "took_s", "mfu_frac", "printed"):
        assert getattr(recorded.steps, name).tolist() == pytest.approx(
            getattr(log.steps, name).tolist(), nan_ok=True
        ), name
    assert recorded.evals.val.tolist() == log.evals.val.tolist()


def test_each_run_gets_a_folder_of_its_own(trainer):
    for _ in range(2):
        watch.watch_command([*trainer, "2", "0"], echo=io.BytesIO())
    assert sorted(path.name for path in Path("runs").iterdir()) == ["train_it-1", "train_it-2"]


def test_a_line_is_there_when_it_is_printed_and_not_8_kilobytes_later(trainer):
    """Without a terminal or PYTHONUNBUFFERED this program would print nothing before its end."""
    echo = io.BytesIO()
    watching = threading.Thread(target=lambda: watch.watch_command([*trainer, "40", "0.05"], echo=echo), daemon=True)
    watching.start()
    folder = Path("runs/train_it-1")
    deadline = time.time() + 20
    while time.time() < deadline and not (echo.getvalue().count(b"iter") >= 3 and (folder / EVENTS_FILE).exists()):
        time.sleep(0.02)
    assert watching.is_alive() and 3 <= echo.getvalue().count(b"iter") < 40
    while time.time() < deadline and not len(read_run(folder).steps):
        time.sleep(0.05)
    live = read_run(folder)
    assert 0 < len(live.steps) < 40 and live.get("state") == "running"
    watching.join(timeout=30)
    assert len(read_run(folder).steps) == 40


def test_a_program_that_is_not_python_is_not_kept_back_either(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    echo = io.BytesIO()
    script = 'for k in 0 1 2 3; do echo "iter $k: loss 3.5000, time 1.00ms, mfu 1.00%"; sleep 0.3; done'
    command = [
        "perl",
        "-e",
        'for $k (0..3) { print "iter $k: loss 3.5000, time 1.00ms, mfu 1.00%\\n"; select(undef, undef, undef, 0.4) }',
    ]
    if subprocess.run(["which", "perl"], capture_output=True).returncode:
        command = ["sh", "-c", script]
    watching = threading.Thread(target=lambda: watch.watch_command(command, echo=echo), daemon=True)
    watching.start()
    deadline = time.time() + 10
    while time.time() < deadline and b"iter 0" not in echo.getvalue():
        time.sleep(0.02)
    assert b"iter 0" in echo.getvalue() and b"iter 3" not in echo.getvalue()
    watching.join(timeout=20)
    assert b"iter 3" in echo.getvalue()


def test_its_failure_is_recorded_and_its_exit_code_passed_on(trainer):
    assert watch.watch_command([*trainer, "3", "0", "boom"], echo=io.BytesIO()) == 1
    run = read_run(Path("runs/train_it-1"))
    assert run.get("state") == "failed" and any(
        mark.kind == "error" and mark.text == "RuntimeError: boom" for mark in run.marks
    )
    assert "boom" in run.marks[-1].text


def test_what_is_recorded_does_not_depend_on_when_it_is_looked_at(trainer, tmp_path):
    printed = subprocess.run([*trainer, "24", "0", "boom"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout

    def recorded(cut: int) -> tuple[list[tuple[str, str]], list[int]]:
        recording = watch.Recording(tmp_path / f"cut-{cut}", trainer, None)
        for part in (printed[:cut], printed[cut:]):
            recording.take(part)
            recording._record(whole=False)
        recording.end(1)
        run = read_run(recording.folder)
        return [(mark.kind, mark.text) for mark in run.marks], run.steps.step.tolist()

    at_once = recorded(len(printed))
    assert ("error", "RuntimeError: boom") in at_once[0] and len(at_once[1]) == 24
    traceback = printed.index(b"Traceback")
    cuts = [*range(1, traceback, 97), *range(traceback - 2, len(printed), 5)]
    assert {cut: found for cut in cuts if (found := recorded(cut)) != at_once} == {}


def test_an_indented_line_without_an_error_does_not_keep_rows_back(tmp_path):
    recording = watch.Recording(tmp_path / "run", ["x"], None)
    recording.take(b"iter 0: loss 3.5000, time 1.00ms, mfu 1.00%\nTraceback (most recent call last):\n  File x\n")
    recording.take(b"iter 1: loss 3.4000, time 1.00ms, mfu 1.00%\n")
    recording._record(whole=False)
    assert len(read_run(tmp_path / "run").steps) == 2
    recording.end(0)


def test_the_last_words_of_a_program_are_read_however_late_they_come(trainer, monkeypatch):
    """It prints and ends just after we looked and found nothing."""
    read = watch._read

    def late(process, output):
        if process.returncode is None:  # not known to have ended
            process.wait()
            return b""
        return read(process, output)

    monkeypatch.setattr(watch, "_read", late)
    echo = io.BytesIO()
    assert watch.watch_command([*trainer, "3", "0.1"], echo=echo) == 0
    assert b"iter 2" in echo.getvalue()


def test_a_look_is_taken_at_the_end(trainer):
    seen = []
    watch.watch_command([*trainer, "30", "0"], echo=io.BytesIO(), look=lambda run: seen.append(len(run.steps)))
    assert seen[-1] == 30


def test_a_command_that_cannot_be_started_is_the_users_mistake(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="cannot be started"):
        watch.watch_command(["no-such-program-here"], echo=io.BytesIO())


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_reach_the_program_once_and_the_record_is_closed(trainer, number, code, tmp_path):
    (tmp_path / "patient.py").write_text(
        "import signal, sys, time\ncount = 0\n"
        "def stop(*_):\n    global count\n    count += 1\n"
        "signal.signal(signal.SIGINT, stop); signal.signal(signal.SIGTERM, stop)\n"
        "print('iter 0: loss 3.5000, time 1.00ms, mfu 1.00%'); sys.stdout.flush()\n"
        "while not count: time.sleep(0.02)\n"
        "time.sleep(0.3); print('saved', count); sys.exit(128 + int(sys.argv[1]))\n"
    )
    program = "import sys; from nanolens.logs.watch import watch_command; sys.exit(watch_command(sys.argv[1:]))"
    child = subprocess.Popen(
        [sys.executable, "-c", program, sys.executable, "patient.py", str(int(number))],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdout is not None and b"iter 0" in child.stdout.readline()
    child.send_signal(number)
    rest = child.stdout.read()
    assert child.wait(timeout=30) == code
    assert b"saved 1" in rest
    child.stdout.close()
    assert read_run(Path("runs/patient-1")).get("state") == "stopped"


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_request_to_stop_reaches_the_program(trainer, tmp_path):
    codes = []
    watching = threading.Thread(
        target=lambda: codes.append(watch.watch_command([*trainer, "400", "0.05"], echo=io.BytesIO())), daemon=True
    )
    watching.start()
    folder = Path("runs/train_it-1")
    deadline = time.time() + 20
    while time.time() < deadline and not (folder / PID_FILE).exists():
        time.sleep(0.02)
    time.sleep(0.5)
    (folder / STOP_FILE).touch()
    watching.join(timeout=20)
    assert codes and codes[0] in (1, 130)  # Python answers SIGINT with a traceback, or dies of it
    assert not (folder / PID_FILE).exists()


def test_a_restart_inside_the_program_replaces_what_it_repeats(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "again.py").write_text(
        "import time\n"
        "for k in range(30): print(f'iter {k}: loss 3.0{k:02d}0, time 1.00ms, mfu 1.00%')\n"
        "time.sleep(1.2); print('Resuming training from out')\n"
        "for k in range(20, 40): print(f'iter {k}: loss 2.0{k:02d}0, time 1.00ms, mfu 1.00%')\n"
    )
    watch.watch_command([sys.executable, "again.py"], echo=io.BytesIO())
    run = read_run(Path("runs/again-1"))
    assert (
        run.steps.printed.tolist() == list(range(40))
        and (run.steps.loss[20:] < 3).all()
        and (run.steps.loss[:20] >= 3).all()
    )


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "train.py", "config/x.py"], "train-1"),
        (["torchrun", "--nproc_per_node=2", "train_gpt.py"], "train_gpt-1"),
        (["./train_gpt2cu", "-i", "x"], "train_gpt2cu-1"),
        (["python", "-m", "scripts.base_train"], "python-1"),
    ],
)
def test_a_run_is_named_after_what_it_runs(command, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert watch.folder_for(command).name == name
