"""Redraws, ranks, copies, cut rows, crashed attempts, resumes, several runs in one text: understood or counted, never
guessed."""

from __future__ import annotations

import pytest

import nanolens
from nanolens.errors import UserError
from nanolens.logs import Given, read_log, read_logs
from nanolens.logs.reader import LogReader
from nanolens.logs.text import clean, decode
from tests.logs import samples


def iters(first: int, last: int, by: int = 10, loss: float = 3.0) -> str:
    return "".join(
        f"iter {k}: loss {loss + k / 10000:.4f}, time 30.0{k % 7}ms, mfu 10.00%\n" for k in range(first, last + 1, by)
    )


def test_redraws_of_one_line_are_one_row():
    text = (
        "iter 10: loss 2.5000, ti\riter 10: loss 2.5000, time 30.00ms, mfu 10.00%\riter 10: loss 2.5000, time "
        "30.00ms, mfu 10.00%\n"
    )
    run = read_log(text)
    assert run.steps.step.tolist() == [11] and run.steps.took_s[0] == pytest.approx(0.03)
    assert run.reading.duplicates == 2


def test_rows_glued_together_are_all_read():
    text = "iter 10: loss 2.5000, time 30.00ms, mfu 10.00%iter 20: loss 2.4000, time 30.00ms, mfu 10.00%\n"
    run = read_log(text)
    assert run.steps.step.tolist() == [11, 21] and run.reading.glued == 1


def test_a_number_in_which_a_line_was_cut_is_left_out():
    text = iters(0, 100) + "iter 110: loss 2.9"
    run = read_log(text)
    assert run.steps.step.max() == 101 and run.reading.cut == 1


def test_a_cut_behind_a_whole_number_costs_only_what_is_missing():
    run = read_log(iters(0, 300) + "iter 310: loss 2.9310, ti\n" + iters(320, 400))
    assert 311 in run.steps.step and run.reading.cut == 0  # something follows the number: it is whole
    run = read_log(iters(0, 300) + "iter 310: loss 2.9310\n" + iters(320, 400))
    assert run.steps.loss[run.steps.step == 311] == 2.931 and run.reading.cut == 1


def test_a_cut_in_the_last_number_of_an_evaluation():
    run = read_log("step 0: train loss 4.2871, val loss 4.2820\nstep 250: train loss 2.1000, val loss 2.3")
    assert run.evals.step.tolist() == [0, 250] and run.evals.train[1] == 2.1 and run.evals.val[1] != 2.3


def test_a_piece_that_was_pasted_twice_counts_once():
    run = read_log(iters(0, 50) + iters(30, 50) + iters(60, 90))
    assert run.steps.printed.tolist() == list(range(0, 91, 10))
    assert run.reading.duplicates == 3 and run.reading.attempts == 1


@pytest.mark.parametrize("prefix", ["[rank{r}]: ", "[Rank {r}] ", "rank={r} ", "[default{r}]:"])
def test_of_several_ranks_the_lowest_speaks(prefix):
    text = "".join(
        f"{prefix.format(r=r)}iter {k}: loss {3 + r / 10:.4f}, time 30.00ms, mfu 10.00%\n"
        for k in range(0, 50, 10)
        for r in (1, 0, 2)
    )
    run = read_log(text)
    assert run.steps.printed.tolist() == [0, 10, 20, 30, 40] and set(run.steps.loss) == {3.0}
    assert run.reading.ranks == 3 and run.reading.duplicates == 10


def test_ranks_that_do_not_say_their_number_are_still_one_run():
    text = "".join(
        f"iter {k}: loss {3 + r / 10:.4f}, time 30.00ms, mfu 10.00%\n" for k in range(0, 90, 10) for r in range(2)
    )
    run = read_log(text)
    assert len(run.steps) == 9 and set(run.steps.loss) == {3.0} and run.reading.ranks == 2


def test_a_crashed_attempt_gives_way_to_the_one_after_it():
    text = (
        iters(0, 80, loss=3.0)
        + 'Traceback (most recent call last):\n  File "train.py", line 3\nRuntimeError: boom\n'
        + iters(0, 50, loss=4.0)
    )
    run = read_log(text)
    assert run.steps.printed.tolist() == [0, 10, 20, 30, 40, 50] and run.steps.loss.min() >= 4.0
    assert run.reading.attempts == 2 and [mark.kind for mark in run.marks] == ["error", "attempt"]
    assert run.marks[0].text == "RuntimeError: boom"


def test_a_resumed_run_keeps_what_came_before_its_checkpoint():
    text = (
        iters(0, 80, loss=3.0)
        + "Resuming training from out\nstep 50: train loss 3.1000, val loss 3.2000\n"
        + iters(50, 90, loss=4.0)
    )
    run = read_log(text)
    assert run.steps.printed.tolist() == list(range(0, 91, 10))
    assert (run.steps.loss[run.steps.printed < 50] < 4).all() and (run.steps.loss[run.steps.printed >= 50] >= 4).all()
    assert [(mark.kind, mark.step) for mark in run.marks] == [("resume", 50)]


def test_a_run_that_goes_on_from_its_middle_without_a_word_is_the_same_run():
    run = read_log(iters(0, 1000) + iters(800, 1500, loss=3.01))
    assert run.reading.attempts == 2 and run.reading.runs == 1 and len(run.steps) == 151


def test_two_whole_runs_in_one_text_are_two_runs():
    runs = read_logs(iters(0, 500, loss=3.0) + iters(0, 500, loss=4.0))
    assert len(runs) == 2 and runs[0].steps.loss.max() < 4 <= runs[1].steps.loss.min()
    assert all(run.reading.runs == 2 for run in runs)
    assert any("2 runs" in str(note) for note in read_log(iters(0, 500) + iters(0, 500, loss=4.0)).reading.notes)


def test_a_run_that_came_to_its_end_is_not_an_attempt_of_the_next():
    runs = read_logs(iters(0, 200) + iters(0, 500, loss=4.0), Given(facts={"max_iters": 200}))
    assert len(runs) == 2


def test_settings_that_differ_between_them_make_two_runs():
    text = (
        "Overriding: learning_rate = 0.001\n"
        + iters(0, 200)
        + "Overriding: learning_rate = 0.01\n"
        + iters(0, 500, loss=4.0)
    )
    runs = read_logs(text)
    assert [run.get("learning_rate") for run in runs] == [0.001, 0.01]


def test_headings_name_the_runs_and_speak_for_them():
    text = (
        "# run A: --compile=False, float32\n"
        + iters(0, 50)
        + "      60.5 real        1.0 user        0.5 sys\n# run B (n_embd 768, lr 3e-4)\n"
        + iters(100, 150)
    )
    config = {"A": {"batch_size": 16}, "B": {"batch_size": 8}, "n_layer": 12}
    first, second = read_logs(text, Given(config, hardware="A: a laptop; B: 1x RTX 4070"))
    assert first.name == "A: --compile=False, float32" and second.name == "B (n_embd 768, lr 3e-4)"
    assert first.get("compile") is False and first.get("dtype") == "float32" and first.get("wall_s") == 60.5
    assert second.get("n_embd") == 768 and second.get("learning_rate") == 3e-4 and second.get("wall_s") is None
    assert first.get("batch_size") == 16 and second.get("batch_size") == 8 and first.get("n_layer") == 12
    assert (
        first.get("hardware") == "a laptop" and second.get("hardware") == "1x RTX 4070" and second.get("devices") == 1
    )


def test_the_run_that_got_furthest_stands_for_a_log_of_several():
    text = "03:22 step: 289, loss: 0.4310, mfu: 337.59\n03:26 step: 8, loss: 975.9991, mfu: 42.46\n"
    assert len(read_logs(text)) == 2 and read_log(text).steps.step.tolist() == [289]


def test_a_row_out_of_order_is_put_in_its_place():
    run = read_log(iters(0, 30) + iters(50, 50) + iters(40, 40) + iters(60, 90))
    assert run.steps.printed.tolist() == list(range(0, 91, 10)) and run.reading.attempts == 1


def test_gaps_are_no_restart():
    run = read_log(iters(0, 50) + iters(25000, 25050))
    assert run.reading.attempts == 1 and len(run.steps) == 12


def test_a_series_quoted_in_a_note_becomes_evaluations_and_yields_to_real_ones():
    text = "step 500: train loss 3.5555, val loss 3.6666\n# val loss by step: 0: 10.87, 100: 5.03, 500: 3.67\n"
    run = read_log(text)
    assert run.evals.step.tolist() == [0, 100, 500] and run.evals.val.tolist() == [10.87, 5.03, 3.6666]
    assert any("quoted" in str(note) for note in run.reading.notes)


def test_numbers_that_do_not_rise_are_no_steps():
    run = read_log("step 500: train loss 3.5555, val loss 3.6666\n# val loss by seed: 3: 3.1, 1: 3.2, 2: 3.3\n")
    assert run.evals.step.tolist() == [500]


def test_a_list_of_final_losses_is_a_fact():
    run = read_log("final val_loss of five seeds: 3.2806, 3.2771, 3.2829, 3.2813, 3.2789\n")
    assert run.get("final_val_losses") == (3.2806, 3.2771, 3.2829, 3.2813, 3.2789)


def test_text_of_powershell_is_read():
    raw = b"\xff\xfe" + samples.NANOGPT.replace("\n", "\r\n").encode("utf-16-le")
    assert read_log(raw).steps.step.tolist() == [1, 11, 21, 31]


def test_bytes_that_are_no_text_cost_their_line_only():
    raw = samples.NANOGPT.encode().replace(b"Initializing", b"\xff\xfe\x00\x80")
    assert read_log(raw).steps.step.tolist() == [1, 11, 21, 31]
    assert "�" in decode(b"ab\xff")


def test_cleaning_keeps_the_number_of_lines():
    text = "\x1b[1;31ma\x1b[0m\n\x1b]0;title\x07b\nc[0m\r\nd\x08\x08e\n"
    assert clean(text).split("\n") == ["a", "b", "c", "d\re", ""]


def test_lines_are_those_of_the_file():
    run = read_log(samples.NANOGPT)
    lines = samples.NANOGPT.splitlines()
    assert all(lines[line - 1].startswith("iter") for line in run.steps.line) and all(
        lines[line - 1].startswith("step") for line in run.evals.line
    )


def test_a_text_without_a_row_says_what_was_looked_for():
    with pytest.raises(UserError, match="no training rows found") as nothing:
        read_log("Dear Sir,\nnothing of that kind.\n")
    assert "nanogpt" in str(nothing.value.faults[0].fix)


def test_an_empty_text_is_a_run_of_which_only_the_config_is_known():
    run = read_log("", Given({"n_layer": 48, "learning_rate": "default 6e-4"}))
    assert len(run.steps) == 0 and run.get("n_layer") == 48 and run.get("learning_rate") == 6e-4


def test_reading_a_log_as_it_grows_comes_to_the_same(tmp_path):
    for name, text in samples.ALL.items():
        if name in ("hf state", "csv", "wandb export", "epoch table"):
            continue
        reader = LogReader()
        for at in range(0, len(text), 97):
            reader.feed(text[at : at + 97])
            reader.runs(whole=False)
        grown, whole = reader.runs()[-1], read_logs(text)[-1]
        assert grown.steps.step.tolist() == whole.steps.step.tolist(), name
        assert grown.evals.step.tolist() == whole.evals.step.tolist(), name
        assert grown.steps.line.tolist() == whole.steps.line.tolist(), name
        assert grown.conventions == whole.conventions, name


def test_a_path_is_read_as_a_file(tmp_path):
    path = tmp_path / "my run.log"
    path.write_text(samples.NANOGPT)
    assert read_log(path).name == "my run" and len(read_log(str(path)).steps) == 4
    with pytest.raises(UserError, match="cannot be read"):
        read_log(tmp_path / "nowhere.log")
    with pytest.raises(UserError, match="neither a run nor a recognised log"):
        read_log(tmp_path)


def test_what_the_attempt_before_said_of_a_step_is_kept_with_the_resume():
    before = iters(180, 200) + "step 200: train loss 3.1000, val loss 3.2000\n" + iters(210, 220)
    after = "Resuming training from out\nstep 200: train loss 4.5000, val loss 4.6000\n" + iters(200, 260, loss=4.5)
    run = read_log(before + after)
    [mark] = [mark for mark in run.marks if mark.kind == "resume"]
    assert (mark.was, mark.now, mark.is_eval) == (3.2, 4.6, True)


@pytest.mark.parametrize(
    "words",
    [
        "resuming from checkpoint-700",
        "  Continuing training from global step 700",
        "RESUMED FROM CKPT 7",
        "  Continuing training from epoch 0",
    ],
)
def test_a_resume_stands_where_its_words_stand(words):
    row = "{{'loss': {}, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.{}}}\n"
    text = (
        "".join(row.format(2 - k / 10, k) for k in range(1, 5))
        + words
        + "\n"
        + "".join(row.format(3 - k / 10, k) for k in range(5, 9))
    )
    [mark] = [mark for mark in read_log(text).marks if mark.kind == "resume"]
    assert mark.step == 4


def test_a_row_with_names_below_it_is_read_when_it_is_whole():
    block = "INFO [step={k}/500,epoch=0]\n    optim/total_grad_norm=0.5\n    train/CrossEntropyLoss={x}\n"
    text = "".join(block.format(k=k, x=5 - k / 100) for k in range(1, 60))
    reader = LogReader()
    for line in text.splitlines(keepends=True):
        reader.feed(line)
        reader.runs(whole=False)
    assert reader.runs()[-1].steps.loss.tolist() == [5 - k / 100 for k in range(1, 60)]


TWO_RUNS = """\
# run A: float32
step 0: train loss 4.2874, val loss 4.2823
iter 0: loss 4.2649, time 51.03ms, mfu -100.00%
iter 10: loss 3.2441, time 25.12ms, mfu 14.83%
iter 20: loss 2.7901, time 25.33ms, mfu 14.81%
step 30: train loss 2.6612, val loss 2.6508
# run B: float16
step 0: train loss 4.2874, val loss 4.2823
iter 0: loss 4.2649, time 51.03ms, mfu -100.00%
iter 10: loss nan, time 25.12ms, mfu 14.83%
step 30: train loss nan, val loss nan
"""


def test_each_run_of_a_text_is_judged_and_named_by_its_lines(tmp_path):
    log = tmp_path / "two.log"
    log.write_text(TWO_RUNS)
    answer = nanolens.diagnose(log)
    assert "the run in lines 2-6, one of 2 in this text" in answer.text()
    (other,) = answer.value.others
    assert other.run.name == "B: float16" and "nan_divergence" in [finding.code for finding in other.findings]
    assert answer.text().index("nan_divergence") > answer.text().index("B: float16, lines 8-11")
    (data,) = answer.data()["others"]
    assert data["lines"] == "8-11" and data["reading"]["evaluations"] == 2


def test_compare_and_forecast_begin_with_what_was_read(tmp_path):
    log = tmp_path / "two.log"
    log.write_text(TWO_RUNS)
    assert "A: Read 3 updates" in nanolens.compare(log).text() and "B: Read 2 updates" in nanolens.compare(log).text()
    assert nanolens.forecast(log).text().split("\n\n")[1].startswith("Read 3 updates")


def test_runs_of_two_trainers_do_not_share_conventions():
    records = "".join(f"{{'loss': {2.5 - k / 10}, 'learning_rate': 1e-4, 'epoch': 0.{k}}}\n" for k in range(1, 6))
    one, other = read_logs(records + "\nand with nanoGPT:\n\n" + iters(0, 30))
    assert (one.conventions.trainer, one.steps.step.tolist()) == ("hf-trainer", [1, 2, 3, 4, 5])
    assert (other.conventions.trainer, other.steps.step.tolist()) == ("nanogpt", [1, 11, 21, 31])
    assert other.steps.line.tolist() == [9, 10, 11, 12]


def test_the_speed_of_a_micro_batch_becomes_that_of_the_update():
    rows = "".join(
        f"step 0000{k}/21400 (0.00%) | loss: 1{k}.1 | lrm: 1.00 | dt: 8000.00ms | tok/sec: 8,192 | mfu: 22.87\n"
        for k in range(3)
    )
    run = read_log("Total batch size 524,288 => gradient accumulation steps: 8\n" + rows)
    assert run.steps.tokens_per_s.tolist() == [65536.0] * 3


@pytest.mark.parametrize(
    ("text", "step_s"),
    [
        ('{{"current_steps": {n}0, "loss": {loss}, "elapsed_time": "0:00:{n}0"}}\n', 1.0),
        ("Training epoch 0, iteration {n}/999 | global_step: {n} | train_loss: {loss} | timing in s: 6.5\n", 6.5),
        ("| epoch 1 | {n}00/ 2983 batches | lr 20.00 | ms/batch 12.5 | loss {loss}\n", 0.0125),
        ("Schritt {n}: Verlust {comma}, Zeit 0,25 s\n", None),
    ],
)
def test_times_and_decimals_as_people_write_them(text, step_s):
    losses = [f"{5 - n / 10:.3f}" for n in range(1, 6)]
    rows = (text.format(n=n, loss=loss, comma=loss.replace(".", ",")) for n, loss in enumerate(losses, 1))
    run = read_log("".join(rows))
    assert run.steps.loss.tolist() == [float(loss) for loss in losses]
    assert step_s is None or run.steps.took_s[-1] == pytest.approx(step_s)
