"""Lines that no trainer's table describes: names, units and places alone say what their numbers are."""

from __future__ import annotations

import gzip
import json
import struct

import numpy as np
import pytest

from nanolens.api import diagnose, explain
from nanolens.errors import UserError
from nanolens.facts.case import Case
from nanolens.facts.reading import what_was_read
from nanolens.logs import read_log, read_logs
from tests.logs import samples

ROWS = (  # one row, with k for its number and x for its loss
    "step {k}: loss {x}",
    "Step={k} Loss={x}",
    "iteration {k} | nll {x} | lr 1.0e-03",
    "[{k}/5000] xent: {x}",
    "{k} | loss {x} | lr 1e-3 | 12.5 ms",
    "upd {k}; train loss = {x}; 3.1 it/s",
    "**step** {k}, **loss**: {x}",
    "{{'step': {k}, 'loss': '{x}'}}",
    '2024-05-01T12:00:05Z {{"iter": {k}, "train/loss": {x}}}',
    "loss: tensor({x}, device='cuda:0') at step {k}",
    "第 {k} 步，损失：{x}",
    "स्टेप {k}: हानि {x}",
    "3: host-7 INFO global_step={k} lm_loss={x}",
    "epoch 0 step {k} of 5000 loss {x} (7.1)",
)


@pytest.mark.parametrize("form", ROWS)
def test_a_row_in_any_form(form):
    losses = [round(4.0 - k / 50, 4) for k in range(0, 60, 10)]
    run = read_log("\n".join(form.format(k=k, x=x) for k, x in zip(range(0, 60, 10), losses, strict=True)) + "\n")
    assert run.steps.printed.tolist() == list(range(0, 60, 10))
    assert run.steps.loss.tolist() == losses


def test_a_loss_without_a_name_is_known_by_what_it_does():
    fall = [6.0 * 0.97**k + 0.05 * (-1) ** k for k in range(40)]
    run = read_log("".join(f"n={10 * k} q7={x:.4f} m={0.5 + k % 3}\n" for k, x in enumerate(fall)))
    assert run.steps.printed.tolist() == list(range(0, 400, 10))
    assert run.steps.loss == pytest.approx(fall, abs=1e-4)


def test_a_line_whose_only_number_is_nan_is_read():
    run = read_log("tensor(3.2207)\n" + "tensor(nan)\n" * 4)
    assert len(run.steps) == 5 and run.steps.not_finite.tolist() == [0, 1, 1, 1, 1]
    run = read_log("".join(f"loss: {x}\n" for x in (3.5, 3.25, "nan", "nan")))
    assert len(run.steps) == 4 and run.steps.not_finite.tolist() == [0, 0, 1, 1]


def test_another_loss_is_no_loss_of_the_run():
    run = read_log(
        "step 1 | lm loss: 2.5 | load_balancing_loss: 1.01\nstep 2 | load_balancing_loss: 1.02 | lm loss: 2.4\n"
    )
    assert run.steps.loss.tolist() == [2.5, 2.4]


def test_losses_in_bits_and_perplexities_become_nats_and_the_unit_is_named():
    bits = read_log("".join(f"iter {k}: loss {6 - k / 10:.4f} BPC, time 30.00ms\n" for k in range(5)))
    assert bits.steps.loss[0] == pytest.approx(6 * np.log(2)) and bits.reading.unit == "bits_per_char"
    assert bits.reading.first == {"step": 0, "loss": pytest.approx(6.0)}
    base_2 = read_log("".join(f"step {k} loss {x} ppl {2.0**x:.4f}\n" for k, x in enumerate((6.0, 5.5, 5.0))))
    assert base_2.reading.unit == "bits_per_token" and base_2.steps.loss[0] == pytest.approx(6 * np.log(2))
    alone = read_log("".join(f"step {k} ppl {np.exp(x):.4f}\n" for k, x in enumerate((6.0, 5.5, 5.0))))
    assert alone.reading.unit == "perplexity" and alone.steps.loss == pytest.approx([6.0, 5.5, 5.0], abs=1e-5)


def test_a_counter_that_restarts_with_each_epoch_becomes_absolute():
    rows = [(epoch, step) for epoch in (1, 2) for step in range(0, 200, 50)]
    run = read_log("".join(f"Epoch [{e}/2] ({s}/200) loss: {4 - e - s / 500:.3f}\n" for e, s in rows))
    assert run.steps.step.tolist() == [1, 51, 101, 151, 201, 251, 301, 351]
    assert run.reading.last == {"epoch": 2, "step": 150, "loss": pytest.approx(1.7)}


def test_losses_below_a_title_are_of_the_evaluation():
    text = "".join(f"step {k} loss {3 - k / 100:.2f}\n" for k in range(0, 50, 10))
    run = read_log(text + "Evaluation results:\n   Loss: 2.9\n")
    assert run.evals.val.tolist() == [2.9] and len(run.steps) == 5


def test_a_progress_of_an_evaluation_is_no_row():
    text = "Epoch 1/2\nTrain Loss: 3.5\nValid Loss: 3.6\nValidating:  50%|███  | 5/10 [00:01<00:01, 5.0it/s, val_loss=1.1]\n"
    run = read_log(text + text.replace("1/2", "2/2").replace("3.5", "3.1").replace("3.6", "3.2"))
    assert run.evals.val.tolist() == [3.6, 3.2] and run.evals.train.tolist() == [3.5, 3.1]


def test_blocks_of_a_page_that_do_not_go_on_are_runs_of_their_own():
    block = "```\nstep 10 loss {}\nstep 20 loss {}\n```\nand with the other setting:\n"
    first, second = read_logs(block.format(3.5, 3.4) + block.format(3.2, 3.1))
    assert first.steps.loss.tolist() == [3.5, 3.4] and second.steps.loss.tolist() == [3.2, 3.1]
    assert first.reading.notes[0].args["spans"] == "2-3, 7-8"


def test_rows_that_go_on_in_another_block_are_one_run():
    assert len(read_logs("```\nstep 10 loss 3.5\n```\nlater:\n```\nstep 20 loss 3.4\n```\n")) == 1


def test_prose_is_no_row():
    text = "".join(f"step {k} loss {3 - k / 100:.2f}\n" for k in range(0, 50, 10))
    run = read_log(
        text + "I got the loss down to 2.1802 on a CPU, and at batch size 16 it runs out of memory but 8 fits.\n"
    )
    assert len(run.steps) == 5 and not len(run.evals)


def test_a_table_anywhere_and_lines_between_its_rows():
    text = "Some words.\n\n| Step | Training Loss | Validation Loss |\n|---|---|---|\n| 100 | 3.5 | 3.6 |\nsaved\n| 200 | 3.1 | 3.3 |\n"
    run = read_log(text)
    assert run.evals.step.tolist() == [100, 200] and run.evals.train.tolist() == [3.5, 3.1]


@pytest.mark.parametrize(
    "document",
    [
        [{"step": 10, "loss": 3.5}, {"step": 20, "loss": 3.25}],
        {"step": [10, 20], "loss": [3.5, 3.25]},
        {"train_loss": [[10, 3.5], [20, 3.25]]},
        {"log_history": [{"loss": 3.5, "epoch": 0.1, "step": 10}, {"loss": 3.25, "step": 20}], "max_steps": 20},
    ],
)
def test_a_json_document(document, tmp_path):
    path = tmp_path / "log.json"
    path.write_text(json.dumps(document, indent=2))
    run = read_log(path)
    assert run.steps.step.tolist() == [10, 20] and run.steps.loss.tolist() == [3.5, 3.25]
    assert '"step": 20' in explain(str(path)).text()  # the record is quoted, not a brace of the file


def test_a_compressed_log(tmp_path):
    path = tmp_path / "train.log.gz"
    path.write_bytes(gzip.compress(samples.NANOGPT.encode()))
    assert len(read_log(path).steps) == 4


def test_a_database_of_weights_and_biases(tmp_path):
    proto = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    about, rows = proto.Record(), []
    about.run.config.update.add(key="n_layer", value_json="3")
    for step, values in ((0, {"train/loss": 4.0}), (10, {"train/loss": 3.5, "val/loss": 3.75})):
        row = proto.Record()
        for key, value in {**values, "_step": step, "notes": "x" * 20_000}.items():
            row.history.item.add(key=key, value_json=json.dumps(value))
        rows.append(row)
    raw = b":W&B\xe1\xbe\x00"
    for record in (message.SerializeToString() for message in (about, *rows)):
        part, kind = record, 1
        while len(part) > (room := 32768 - len(raw) % 32768 - 7):  # a record may go on in the next block
            raw += struct.pack("<IHB", 0, room, 2 if kind == 1 else 3) + part[:room]
            part, kind = part[room:], 4
        raw += struct.pack("<IHB", 0, len(part), kind) + part
    (tmp_path / "run-1.wandb").write_bytes(raw)
    run = read_log(tmp_path)
    assert run.steps.printed.tolist() == [0, 10] and run.evals.val.tolist() == [3.75] and run.get("n_layer") == 3


@pytest.mark.parametrize(
    "text", ["", "  \n\n", "Dear Sir,\nnothing of that kind.\n", "n_layer = 12\nlearning_rate = 3e-4\n"]
)
def test_text_without_a_loss_is_an_error_and_no_clean_bill(text, tmp_path):
    path = tmp_path / "train.log"
    path.write_text(text)
    for command in (diagnose, explain):
        with pytest.raises(UserError, match=r"no loss could be read|is empty"):
            command(str(path))


def test_every_answer_begins_with_what_was_read(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(samples.MLX + "something else\n")
    first = " ".join(diagnose(str(path)).text().split("\n\n", 1)[0].split())
    read = "Read 2 updates (step 10 to 20) and 1 evaluation of one run written by MLX; 1 of 4 lines not understood."
    assert first == f"{read} No fault was found in what was read; that is too little to call the run healthy."
    assert read in " ".join(explain(str(path)).text().split())
    reading = diagnose(str(path)).data()["run"]["reading"]
    assert reading["updates"] == 2 and reading["last_eval"] == {"step": 1, "val": 2.48} and reading["unit"] == "nats"


def test_the_batch_is_worked_out_from_what_rows_count():
    assert what_was_read(Case(read_log(samples.NANOTRON))).tokens_per_update == 640  # 20 sequences of 32
    assert what_was_read(Case(read_log(samples.LLMC_CONSOLE))).tokens_per_update == 4096
