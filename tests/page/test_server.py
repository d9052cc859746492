"""What the server answers: the right numbers, few of them, in the reader's language."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from nanolens.record.read import read_run
from tests.page.runs import NANOGPT_LOG, write_run


def test_the_list_tells_state_loss_speed_and_findings(door) -> None:
    while door.store.catch_up():
        pass
    rows = {row["name"]: row for row in door.get("/api/runs").json()["runs"]}
    assert set(rows) == {"one", "two"}
    one = rows["one"]
    assert (one["state"], one["step"], one["max_iters"]) == ("finished", 400, 400)
    assert one["tokens_per_s"] == pytest.approx(768 / 0.02)
    assert one["mfu"] == pytest.approx(768 * 5e6 / 0.02 / 1e11)
    assert one["findings"] >= 1 and 20 < len(one["spark"]) < 120
    assert one["best_val"] == pytest.approx(np.nanmin(read_run(door.store.root / "one").evals.val))


def test_before_a_run_is_read_its_last_words_are_shown(door) -> None:
    one = next(row for row in door.get("/api/runs").json()["runs"] if row["name"] == "one")
    assert one["is_partial"] and one["step"] == 400 and one["state"] == "finished"


@pytest.mark.parametrize(
    ("axis", "end"), [("step", 400), ("tokens", 400 * 768), ("flops", 400 * 768 * 5e6), ("time", 400 * 0.02 + 7 * 0.4)]
)
def test_the_axes_end_where_the_run_ended(door, axis: str, end: float) -> None:
    found = door.get(f"/api/runs/{door.id_of('one')}/series?x={axis}").json()
    assert found["axis"] == axis and found["series"]["loss"]["x"][-1] == pytest.approx(end, rel=0.01)
    assert found["series"]["loss"]["step"][-1] == 400


def test_a_curve_of_many_points_is_thinned_and_a_zoom_brings_each_of_them(tmp_path: Path, open_door) -> None:
    write_run(tmp_path / "long", steps=6000)
    door = open_door(tmp_path)
    name = door.id_of("long")
    whole = door.get(f"/api/runs/{name}/series?buckets=100&names=loss").json()["series"]["loss"]
    losses = read_run(tmp_path / "long").steps.loss
    assert len(whole["x"]) <= 400
    assert min(whole["y"]) == losses.min() and max(whole["y"]) == losses.max()
    near = door.get(f"/api/runs/{name}/series?buckets=100&names=loss&from=1000&to=1200").json()["series"]["loss"]
    assert near["step"] == list(range(999, 1202))
    assert near["y"] == losses[998:1201].tolist()


def test_smoothing_is_made_of_all_points_and_not_of_the_thinned(tmp_path: Path, open_door) -> None:
    write_run(tmp_path / "long", steps=3000)
    door = open_door(tmp_path)
    found = door.get(f"/api/runs/{door.id_of('long')}/series?buckets=20&smooth=500").json()["series"]["smoothed"]
    losses = read_run(tmp_path / "long").steps.loss
    assert found["y"][-1] == pytest.approx(losses[-500:].mean())


def test_nan_is_told_as_nan_and_not_as_a_gap_in_the_data(tmp_path: Path, open_door) -> None:
    write_run(tmp_path / "sick", nan_from=300)
    door = open_door(tmp_path)
    name = door.id_of("sick")
    found = door.get(f"/api/runs/{name}/series").json()
    assert found["not_finite"] == [{"from": 300, "to": 400, "is": "nan"}]
    assert found["series"]["loss"]["y"][-1] is None
    findings = door.get(f"/api/runs/{name}/findings").json()["findings"]
    nan = next(each for each in findings if each["code"] == "nan_divergence")
    assert nan["is_fault"] and nan["from_step"] == pytest.approx(300, abs=1)


def test_a_page_holds_levels_bars_samples_and_settings_with_meanings(door) -> None:
    view = door.get(f"/api/runs/{door.id_of('one')}").json()
    levels = {line["key"]: line["y"] for line in view["lines"]}
    assert levels["chance"] == pytest.approx(math.log(65)) and levels["bigram"] == pytest.approx(2.452)
    assert view["reference"]["step"][-1] == 2000 and view["reference"]["y"][-1] == pytest.approx(1.92, abs=0.02)
    parts = {part["key"]: sum(part["seconds"]) for part in view["time"]["parts"]}
    assert parts["eval"] == pytest.approx(9 * 0.4) and parts["train"] == pytest.approx(400 * 0.019)
    assert view["samples"][-1] == {"step": 400, "text": "To be, or not (400)"}
    rows = {row["key"]: row for group in view["config"] for row in group["rows"]}
    assert rows["n_layer"]["value"] == "4" and "blocks" in rows["n_layer"]["meaning"]


def test_a_comparison_speaks_in_words(door) -> None:
    ids = f"{door.id_of('one')},{door.id_of('two')}"
    found = door.get(f"/api/compare?ids={ids}").json()
    assert [side["name"] for side in found["sides"]] == ["one", "two"]
    assert "learning_rate" in {each["key"] for each in found["differences"]}
    assert found["verdicts"] and all(each["words"] for each in found["verdicts"])


def test_a_log_is_read_in_memory_and_nothing_is_stored(door, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    (name,) = door.post("/api/log?name=train.log", NANOGPT_LOG).json()["ids"]
    found = door.get(f"/api/runs/{name}/series").json()
    assert found["last"] == 2001 and len(found["evals"]["step"]) == 9
    bars = {part["key"]: sum(part["seconds"]) for part in door.get(f"/api/runs/{name}").json()["time"]["parts"]}
    assert bars["eval"] == pytest.approx(8 * 0.4, rel=0.1)
    assert door.get(f"/api/runs/{name}/findings").json()["findings"]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_text_without_a_training_is_refused_with_a_remedy(door) -> None:
    answer = door.post("/api/log", "hello\nworld\n")
    assert answer.status_code == 400 and "training printed" in answer.json()["faults"][0]["fix"]


def test_a_log_that_is_too_large_is_not_taken(door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanolens.page.server.LARGEST_LOG", 1000)
    assert door.post("/api/log", NANOGPT_LOG).status_code == 400


def test_the_page_speaks_hindi(door) -> None:
    words = door.get("/api/words?lang=hi").json()
    assert words["lang"] == "hi" and any("\u0900" <= letter <= "\u097f" for letter in words["words"]["findings.title"])


def test_a_run_without_a_checkpoint_cannot_write(door) -> None:
    name = door.id_of("one")
    assert door.get(f"/api/runs/{name}").json()["can_write"] is False
    assert door.post(f"/api/runs/{name}/write", '{"prompt": "a"}').status_code == 400


@pytest.mark.parametrize(
    "wish",
    [
        "",
        "{",
        "[]",
        '{"prompt": 3}',
        '{"prompt": "a", "max_new_tokens": 99999999}',
        '{"prompt": "a", "temperature": "hot"}',
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(door, wish: str) -> None:
    assert door.post(f"/api/runs/{door.id_of('one')}/write", wish).status_code == 400


def test_new_rows_are_told_from_where_the_page_stands(door) -> None:
    from nanolens.page.series import SeriesQuery, tail_of

    columns = door.store.columns(door.id_of("one"))
    tail = tail_of(columns, SeriesQuery(smooth=10), 395)
    assert tail["step"] == [396, 397, 398, 399, 400] and len(tail["series"]["smoothed"]) == 5
    assert tail["series"]["loss"] == read_run(door.store.root / "one").steps.loss[395:].tolist()


def test_news_of_a_run_that_grows(tmp_path: Path, open_door) -> None:
    from nanolens.record import events as e
    from nanolens.record.write import Recorder

    write_run(tmp_path / "live", steps=20, ends=False)
    door = open_door(tmp_path)
    name = door.id_of("live")
    door.store.news()
    assert door.store.news() == set()
    record = Recorder(tmp_path / "live")
    record(e.StepTaken(step=21, loss=2.0, lr=1e-3, grad_norm=1.0, tokens=768, took_s=0.02))
    record.close()
    assert door.store.news() == {name}
    assert door.store.columns(name).step[-1] == 21
