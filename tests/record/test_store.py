"""Where a run goes, and that nothing that is there is ever lost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nanolens.config.fields import Config
from nanolens.errors import UserError
from nanolens.record import EVENTS_FILE, OUTPUT_FILE, PID_FILE, RUN_FILE, checkpoint_folder
from nanolens.record.store import (
    SILENT_AFTER_S,
    RunAt,
    choose_folder,
    claim_folder,
    find_checkpoint,
    find_run,
    find_runs,
    live_state,
    make_way,
    source_name,
    training_here,
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_run(folder: str | Path, at_s: float = 0.0, steps: tuple[int, ...] = ()) -> Path:
    folder = Path(folder)
    folder.mkdir(parents=True)
    (folder / RUN_FILE).write_text("{}")
    (folder / EVENTS_FILE).write_text("")
    os.utime(folder / EVENTS_FILE, (at_s, at_s))
    for step in steps:
        checkpoint_folder(folder, step).mkdir(parents=True)
    return folder


def told(error: pytest.ExceptionInfo[UserError]) -> list[str]:
    (fault,) = error.value.faults
    return [str(part) for part in (fault.what, fault.where, fault.fix) if part is not None]


def test_a_fresh_run_gets_the_next_number():
    assert claim_folder(Config(), "quickstart") == Path("runs/quickstart-1")
    assert claim_folder(Config(), "quickstart") == Path("runs/quickstart-2")
    assert Path("runs/quickstart-1").is_dir()


def test_a_folder_that_holds_a_run_is_never_overwritten():
    make_run("out")
    with pytest.raises(UserError) as error:
        choose_folder(Config(out_dir="out"), "x")
    assert told(error) == [
        "out already contains a run",
        "--out_dir=out",
        "continue it with --init_from=resume, choose another out_dir, or move it aside with --overwrite=True",
    ]


def test_a_folder_with_other_things_in_it_is_used_and_they_stay():
    Path("out").mkdir()
    Path("out/ckpt.pt").write_text("theirs")
    assert claim_folder(Config(out_dir="out"), "x") == Path("out")
    assert Path("out/ckpt.pt").read_text() == "theirs"


def test_resuming_takes_the_named_run_or_the_newest_of_that_name():
    make_run("runs/quickstart-1", at_s=200)
    make_run("runs/quickstart-2", at_s=100)
    make_run("runs/quickstart-big-1", at_s=300)
    assert choose_folder(Config(init_from="resume", out_dir="runs/quickstart-2"), "x") == Path("runs/quickstart-2")
    assert choose_folder(Config(init_from="resume", out_dir="quickstart-2"), "x") == Path("runs/quickstart-2")
    assert choose_folder(Config(init_from="resume"), "quickstart") == Path("runs/quickstart-1")


def test_nothing_to_resume_is_said():
    with pytest.raises(UserError) as error:
        choose_folder(Config(init_from="resume", out_dir="nowhere"), "x")
    assert told(error) == [
        "nothing to resume: nowhere contains no run",
        "--out_dir=nowhere",
        "name the run with --out_dir=FOLDER (nanolens runs lists them), or start a new one without --init_from=resume",
    ]


def test_a_folder_that_cannot_be_made_is_said():
    Path("file").write_text("")
    with pytest.raises(UserError) as error:
        claim_folder(Config(out_dir="file/run"), "x")
    assert told(error) == [
        "cannot write to file/run: there is a file in the way",
        "--out_dir=file/run",
        "choose another folder with --out_dir=FOLDER",
    ]
    with pytest.raises(UserError) as error:
        claim_folder(Config(out_dir="file"), "x")
    assert told(error)[0] == "cannot write to file: there is a file in the way"
    Path("runs").write_text("")
    with pytest.raises(UserError):
        claim_folder(Config(), "quickstart")


def test_a_run_is_found_by_path_by_name_and_with_a_step():
    folder = make_run("runs/first-1", steps=(250, 500))
    assert find_run("first-1") == RunAt(folder)
    assert find_run("runs/first-1") == RunAt(folder)
    assert find_run("first-1@500") == RunAt(folder, 500)
    assert find_checkpoint(find_run("first-1@250")) == checkpoint_folder(folder, 250)
    assert find_checkpoint(find_run("first-1")) == checkpoint_folder(folder, 500)
    with pytest.raises(UserError) as error:
        find_checkpoint(find_run("first-1@300"))
    assert told(error) == ["runs/first-1 has no checkpoint at step 300", "available: [250, 500]"]


def test_a_run_may_have_an_at_sign_in_its_name():
    folder = make_run("runs/a@5")
    assert find_run("runs/a@5") == RunAt(folder)


def test_an_unknown_run_names_the_nearest():
    with pytest.raises(UserError) as error:
        find_run("quickstart-1")
    assert told(error) == [
        "there is no run named quickstart-1",
        "there is no run in runs/ yet; start one with nanolens train",
    ]
    make_run("runs/quickstart-1")
    with pytest.raises(UserError) as error:
        find_run("quikstart-1")
    assert told(error) == ["there is no run named quikstart-1", "did you mean quickstart-1?"]


def test_a_run_that_is_getting_ready_is_not_taken_for_none():
    folder = Path("runs/new-1")
    folder.mkdir(parents=True)
    (folder / PID_FILE).write_text("{}")
    with pytest.raises(UserError) as error:
        find_run("new-1")
    assert told(error) == [
        "runs/new-1 is still starting up",
        f"try again in a few seconds; see its progress in {folder / OUTPUT_FILE}",
    ]
    assert find_run("new-1", or_starting=True) == RunAt(folder)


def test_runs_are_listed_oldest_first():
    make_run("runs/b", at_s=10)
    make_run("runs/a", at_s=20)
    Path("runs/not-a-run").mkdir()
    assert [path.name for path in find_runs()] == ["b", "a"]
    assert find_runs(Path("runs/a")) == [Path("runs/a")]
    assert find_runs(Path("nowhere")) == []


def test_a_run_is_called_after_its_preset_or_config_file():
    assert source_name("config/train_shakespeare_char.py", "") == "train_shakespeare_char"
    assert source_name("quickstart", "quickstart") == "quickstart"
    assert source_name("../..//weird name!.toml", "") == "weird-name"


def test_of_processes_that_start_in_the_same_moment_one_gets_the_run():
    folder = make_run("runs/a-1")
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom nanolens.errors import UserError\n"
        "from nanolens.record.store import training_here\n"
        "time.sleep(max(0.0, float(sys.argv[1]) - time.time()))\n"
        "try:\n    with training_here(Path('runs/a-1')):\n        time.sleep(1.5)\n        print('mine')\n"
        "except UserError:\n    print('refused')\n"
    )
    command = [sys.executable, "-c", code, str(time.time() + 3.0)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = sorted(process.communicate(timeout=60)[0].strip() for process in started)
    assert said == ["mine", "refused", "refused", "refused"]
    with training_here(folder):  # the lock has ended with its process
        assert live_state(folder) == "running"
    assert sorted(path.name for path in folder.iterdir()) == [EVENTS_FILE, RUN_FILE]


def test_a_run_is_silent_when_its_process_lives_and_says_nothing_for_long():
    folder, now_s = make_run("runs/a-1"), time.time()
    assert live_state(folder, now_s) == "gone"
    with training_here(folder):
        assert live_state(folder, now_s) == "running"
        assert live_state(folder, now_s - SILENT_AFTER_S - 1) == "silent"
        assert live_state(folder, now_s - SILENT_AFTER_S - 1, update_s=60.0) == "running"


def test_an_old_run_makes_way_only_where_that_is_asked_for():
    folder = make_run("out")
    with pytest.raises(UserError, match="already contains a run"):
        make_way(folder, Config(out_dir="out"))
    assert make_way(folder, Config(out_dir="out", overwrite=True)) == Path("out.old-1")
    assert make_way(folder, Config(out_dir="out")) is None
