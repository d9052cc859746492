"""What a tracker holds after `send` is every number of the run, and each once, however often it is sent."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from nanolens.record import events as e
from nanolens.record.read import read_run
from nanolens.trackers import Tracker, rows
from nanolens.trackers import sender as sending
from nanolens.trackers.sender import Sender, send
from tests.trackers import made, read_back

FLOAT32 = 6e-8  # TensorBoard keeps no more


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    return tmp_path


def test_columns_and_events_give_the_same_rows(tmp_path: Path):
    folder = made.made_run(tmp_path / "run")
    translator = rows.Translator(made.FLOPS, made.PEAK)
    told = [
        row
        for at, event in enumerate([*made.around(0), *made.events(1, 30), made.ended(30)])
        for row in translator.take(event, at)
        if not isinstance(row, rows.Rewound)
    ]
    told += translator.rest()
    by_columns = list(rows.rows_of(read_run(folder)))
    assert [row.step for row in by_columns] == [row.step for row in told] == list(range(31))
    for ours, theirs in zip(told, by_columns, strict=True):
        only_in_events = {
            name for name in ours.values if name.startswith("checkpoint/") or name in ("mfu", "train/bits_per_byte")
        }
        assert {k: v for k, v in ours.values.items() if k not in only_in_events} == pytest.approx(
            theirs.values, nan_ok=True
        )
        assert ours.texts == theirs.texts


def test_tensorboard_has_every_number(tmp_path: Path):
    pytest.importorskip("tensorboard")
    sent = send(str(made.made_run(tmp_path / "run")), "tensorboard")
    assert (sent.rows, sent.step, sent.complaints) == (31, 30, ())
    numbers, texts = read_back.tensorboard(tmp_path / "run" / "tensorboard")
    summary = {key: value for key, value in numbers.items() if key[1].startswith("summary/")}
    made.same({key: value for key, value in numbers.items() if key not in summary}, made.expected(), FLOAT32)
    assert summary[30, "summary/best_val_loss"] == np.float32(1.6)
    assert "| learning_rate | 0.01 |" in texts["config"][0][1] and "a laptop" in texts["config"][0][1]
    assert [step for step, _ in texts["sample"]] == [0, 10, 20, 30]
    assert "sample of step 20\n```\nwith a fence, <b> and & in it" in texts["sample"][2][1]
    ((_, found),) = texts["findings"]
    assert "nan" in found.lower()


def test_wandb_has_every_number(tmp_path: Path):
    pytest.importorskip("wandb")
    send(str(made.made_run(tmp_path / "run")), "wandb", project="plays", name="first")
    (folder,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
    numbers, media, config, summary = read_back.wandb(folder)
    made.same(numbers, made.expected())
    assert (
        config["learning_rate"]["value"]
        if isinstance(config["learning_rate"], dict)
        else config["learning_rate"] == 0.01
    )
    assert "sample of step 20\n```\nwith a fence, &lt;b&gt; and &amp; in it" in media[20, "sample"]
    assert "nan" in summary["findings"].lower() and summary["best_step"] == 30
    record = next(
        record.run
        for record in read_back.wandb_records(next(folder.glob("*.wandb")))
        if record.WhichOneof("record_type") == "run"
    )
    assert (record.project, record.display_name) == ("plays", "first")


def test_trackio_has_every_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trackio = pytest.importorskip("trackio")
    monkeypatch.setattr(trackio.sqlite_storage, "TRACKIO_DIR", tmp_path / "db")
    monkeypatch.setattr(trackio.utils, "TRACKIO_DIR", tmp_path / "db")
    (tmp_path / "db").mkdir()
    sent = send(str(made.made_run(tmp_path / "run")), "trackio", project="plays")
    assert sent.complaints == ()
    numbers, texts, config = read_back.trackio(tmp_path / "db" / "plays.db", "run")
    made.same(numbers, made.expected())
    assert config["learning_rate"] == 0.01 and config["machine/hardware"] == "a laptop"
    assert "sample of step 20" in texts[20, "sample"]
    assert texts[30, "summary/best_step"] == 30 and "nan" in texts[30, "findings"].lower()


@pytest.mark.heavy
def test_mlflow_has_every_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    from mlflow import MlflowClient

    send(str(made.made_run(tmp_path / "run")), "mlflow", project="plays")
    client = MlflowClient()
    experiment = client.get_experiment_by_name("plays")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED" and run.data.params["learning_rate"] == "0.01"
    history = {
        (metric.step, name): metric.value
        for name in run.data.metrics
        if not name.startswith("summary/")
        for metric in client.get_metric_history(run.info.run_id, name)
    }
    made.same(history, made.expected())
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {"sample", "findings.md"}


class Memory(Tracker):
    """A tracker that only remembers, and may fail."""

    can_rewind = False

    def __init__(self, fails: int = 0):
        self.rows: list = []
        self.fails, self.kept, self.ending = fails, {}, None

    def open(self, about, kept):
        self.about, self.kept = about, dict(kept)
        return {"id": kept.get("id", "new")}

    def add(self, batch):
        if self.fails:
            self.fails -= 1
            raise ConnectionError("no network")
        self.rows += batch

    def rewind(self, step):
        self.rows = [row for row in self.rows if row.step <= step]

    def close(self, ending):
        self.ending = ending

    def look(self):
        return "look here"

    @property
    def numbers(self):
        return {(row.step, name): value for row in self.rows for name, value in row.values.items()}


def sent_by(folder: Path, tracker: Memory, name: str = "wandb"):
    sender = Sender(folder, name)
    sender.tracker = tracker
    sender.open()
    sender.pump()
    return sender.finish()


def test_a_run_that_still_goes_on_is_sent_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "run"
    monkeypatch.setattr("nanolens.record.read.state_of", lambda folder, record: "running")
    made.write(
        folder, [e.RunStarted(step=0), *made.around(0), *made.events(1, 10)[:-2]]
    )  # the sample of step 10 is still being written
    first = Memory()
    assert sent_by(folder, first).step == 9, "more may come of step 10"
    monkeypatch.undo()
    recorder_goes_on = [*made.events(1, 10)[-2:], *made.events(11, 30), made.ended(30)]
    with open(folder / "events.jsonl", "ab") as file:
        import msgspec

        file.writelines(msgspec.json.encode(event) + b"\n" for event in recorder_goes_on)
    second = Memory()
    done = sent_by(folder, second)
    assert second.kept["id"] == "new", "the same run of the tracker"
    made.same({**first.numbers, **second.numbers}, made.expected())
    assert [row.step for row in first.rows + second.rows] == list(range(31))
    assert (done.rows, second.ending.state) == (21, "finished")


def test_nothing_is_sent_twice(tmp_path: Path):
    pytest.importorskip("tensorboardX")
    folder = str(made.made_run(tmp_path / "run"))
    assert send(folder, "tensorboard").rows == 31
    files = list((tmp_path / "run" / "tensorboard").iterdir())
    again = send(folder, "tensorboard")
    assert (again.rows, again.step) == (0, 30)
    assert list((tmp_path / "run" / "tensorboard").iterdir()) == files
    for file in files:
        file.unlink()
    assert send(folder, "tensorboard").rows == 31, "thrown away by its owner, it is written anew"


def test_after_a_failure_the_rest_is_sent_and_nothing_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sending, "ROWS_AT_ONCE", 5)
    monkeypatch.setattr(sending, "KEPT_EVERY_S", 0.0)
    folder = made.made_run(tmp_path / "run")
    tracker = Memory()
    sender = Sender(folder, "wandb")
    sender.tracker = tracker
    sender.open()
    add = tracker.add

    def third_fails(batch):
        if len(tracker.rows) >= 10:
            raise ConnectionError("no network")
        add(batch)

    tracker.add = third_fails
    with pytest.raises(ConnectionError):
        sender.pump()
    tracker.add = add
    rest = Memory()
    sent_by(folder, rest)  # another call, on another day
    assert [row.step for row in tracker.rows + rest.rows] == list(range(31))
    sender.pump()  # or the same process, which tries again
    sender.finish()
    made.same(tracker.numbers, made.expected())


@pytest.mark.parametrize("can_rewind", [True, False])
def test_a_resumed_run_goes_on_in_the_same_tracker_run(can_rewind: bool, tmp_path: Path):
    folder = tmp_path / "run"
    first = Memory()
    first.can_rewind = can_rewind
    made.write(folder, [e.RunStarted(step=0), *made.around(0), *made.events(1, 17)])
    sent_by(folder, first)
    assert [row.step for row in first.rows] == list(range(18))
    made.write(
        folder, [e.RunStarted(step=10, resumed_from="step-000010"), *made.events(11, 30, shift=0.5), made.ended(30)]
    )
    second = Memory()
    second.can_rewind, second.rows = can_rewind, list(first.rows)
    done = sent_by(folder, second)
    assert [row.step for row in second.rows] == list(range(31))
    assert second.kept["id"] == "new"
    by_step = {row.step: row.values.get("batch/loss") for row in second.rows}
    assert by_step[20] == 2.5 / 20 + 0.5
    assert by_step[12] == 2.5 / 12 + (0.5 if can_rewind else 0.0), "steps that were done twice"
    assert done.repeated == (0 if can_rewind else 7)


def test_what_was_undone_is_not_sent_at_all_when_the_whole_record_is_there(tmp_path: Path):
    folder = tmp_path / "run"
    made.write(folder, [e.RunStarted(step=0), *made.around(0), *made.events(1, 17, shift=9.0)])
    made.write(folder, [e.RunStarted(step=0), *made.around(0), *made.events(1, 30), made.ended(30)])
    tracker = Memory()
    assert sent_by(folder, tracker).repeated == 0
    made.same(tracker.numbers, made.expected())


def test_tensorboard_forgets_what_was_undone(tmp_path: Path):
    pytest.importorskip("tensorboard")
    folder = tmp_path / "run"
    made.write(folder, [e.RunStarted(step=0), *made.around(0), *made.events(1, 17, shift=9.0)])
    send(str(folder), "tensorboard")
    made.write(folder, [e.RunStarted(step=0), *made.around(0), *made.events(1, 30), made.ended(30)])
    send(str(folder), "tensorboard")
    numbers, _ = read_back.tensorboard(folder / "tensorboard")
    kept = {key: value for key, value in numbers.items() if not key[1].startswith("summary/")}
    made.same(kept, made.expected(), FLOAT32)


def test_an_evaluation_told_after_the_resume_is_not_lost(tmp_path: Path):
    """Stopped inside the evaluation of step 10, which the next attempt does first of all."""
    folder = tmp_path / "run"
    made.write(
        folder, [e.RunStarted(step=0), *made.around(0), *made.events(1, 10, every=100), made.ended(10, "stopped")]
    )
    first = Memory()
    sent_by(folder, first)
    made.write(
        folder,
        [e.RunStarted(step=10, resumed_from="step-000010"), *made.around(10), *made.events(11, 12), made.ended(12)],
    )
    second = Memory()
    sent_by(folder, second)
    assert second.rows[0].step == 10 and second.rows[0].values["val/loss"] == pytest.approx(2.6)
    assert "batch/loss" not in second.rows[0].values and "sample" in second.rows[0].texts
    assert [row.step for row in second.rows] == [10, 11, 12]


def test_a_log_of_nanogpt_goes_to_tensorboard(tmp_path: Path):
    pytest.importorskip("tensorboard")
    lines = ["number of parameters: 10.65M"]
    for k in range(40):
        if k % 20 == 0:
            lines.append(f"step {k}: train loss {4 - k / 20:.4f}, val loss {4.1 - k / 20:.4f}")
        lines.append(f"iter {k}: loss {4 - k / 20:.4f}, time {30 + k:.2f}ms, mfu {10 + k / 10:.2f}%")
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
    sent = send("train.log", "tensorboard")
    assert sent.rows == 41 and sent.look == "tensorboard --logdir tensorboard/train"
    numbers, texts = read_back.tensorboard(tmp_path / "tensorboard" / "train")
    assert numbers[0, "val/loss"] == pytest.approx(4.1) and numbers[20, "train/loss"] == pytest.approx(3.0)
    assert numbers[1, "batch/loss"] == pytest.approx(4.0), "nanoGPT's iter 0 is our step 1"
    assert numbers[40, "speed/step_s"] == pytest.approx(0.069) and numbers[40, "mfu"] == pytest.approx(13.9)
    assert "findings" in texts and not any(math.isnan(value) for value in numbers.values())
    assert send("train.log", "tensorboard").rows == 0
    (tmp_path / "train.log").write_text("\n".join([*lines, "iter 40: loss 2.0000, time 70.00ms, mfu 14.00%"]) + "\n")
    assert send("train.log", "tensorboard").rows == 1, "the log has grown by a line"


def test_numbers_of_an_own_loop_keep_their_names(tmp_path: Path):
    folder = tmp_path / "run"
    told = [
        e.Logged(step=k, values={"loss": 3.0 / k, "lr": 0.1, "reward": float(k), "note": "x", "bad": "nan"}, at_s=1.0)
        for k in (1, 2)
    ]
    made.write(folder, [e.RunStarted(step=0), *told, made.ended(2)])
    tracker = Memory()
    sent_by(folder, tracker)
    assert set(tracker.rows[1].values) == {"batch/loss", "lr", "reward", "bad"}
    assert tracker.rows[1].values["reward"] == 2.0 and math.isnan(tracker.rows[1].values["bad"])


def test_a_run_is_followed_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A loop of one's own in this process, followed from a thread of it."""
    import threading

    import nanolens

    pytest.importorskip("tensorboard")
    monkeypatch.setattr(sending, "FOLLOWED_EVERY_S", 0.02)
    folder = nanolens.start_run(tmp_path / "run", config={"batch_size": 4})
    nanolens.log(step=1, loss=3.0)
    done: list = []
    follower = threading.Thread(target=lambda: done.append(send(str(folder), "tensorboard", follow=True)))
    follower.start()
    for k in range(2, 40):
        nanolens.log(step=k, loss=3.0 / k)
    assert follower.is_alive()
    nanolens.end_run()
    follower.join(30)
    assert done[0].rows == 39
    numbers, _ = read_back.tensorboard(folder / "tensorboard")
    assert numbers[39, "batch/loss"] == pytest.approx(3.0 / 39)


def test_what_was_sent_to_tensorboard_reads_back_as_the_run(tmp_path: Path):
    pytest.importorskip("tensorboardX")
    folder = made.made_run(tmp_path / "run")
    send(str(folder), "tensorboard")
    from nanolens.logs.open import open_run

    ours, back = read_run(folder), open_run(str(folder / "tensorboard"))
    assert back.steps.step.tolist() == ours.steps.step.tolist() and back.evals.step.tolist() == ours.evals.step.tolist()
    for name in ("loss", "lr", "grad_norm", "took_s", "tokens"):
        np.testing.assert_allclose(getattr(back.steps, name), getattr(ours.steps, name), rtol=FLOAT32, err_msg=name)
    np.testing.assert_allclose(back.evals.val, ours.evals.val, rtol=FLOAT32)
    np.testing.assert_allclose(back.evals.train, ours.evals.train, rtol=FLOAT32)
    assert back.conventions.trainer == "nanolens" and back.steps.mfu_frac[0] == pytest.approx(
        made.TOKENS / 0.011 * made.FLOPS / made.PEAK
    )
