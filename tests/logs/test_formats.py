"""Each door states how its trainer's step, loss, time, speed and MFU translate into our words. Here that is held
against a log."""

from __future__ import annotations

import math
import tomllib

import numpy as np
import pytest

from nanolens.errors import UserError
from nanolens.logs import Given, facts, read_log, read_logs
from nanolens.logs.rows import sentence_pattern, sentences_in
from nanolens.logs.trainers import TRAINERS
from nanolens.record.run import MARKS, RunRecord
from tests.logs import samples


def steps(run: RunRecord) -> list[int]:
    return run.steps.step.tolist()


def kinds(run: RunRecord) -> list[tuple[str, int | None]]:
    return [(mark.kind, mark.step) for mark in run.marks]


def test_nanogpt_counts_the_updates_before_its_iter_line_and_puts_an_evaluation_into_its_time():
    run = read_log(samples.NANOGPT)
    assert (
        run.conventions.trainer == "nanogpt"
        and run.conventions.loss == "last_micro_batch"
        and run.conventions.time == "with_eval"
    )
    assert run.conventions.peak_flops == 312e12 and run.conventions.mfu_is_smoothed
    assert steps(run) == [1, 11, 21, 31] and run.steps.printed.tolist() == [0, 10, 20, 30]
    assert (
        run.evals.step.tolist() == [0, 30]
        and run.evals.val.tolist() == [4.2820, 2.6702]
        and run.evals.train[1] == 2.6511
    )
    assert run.steps.took_s[3] == pytest.approx(4.10055) and run.steps.mfu_frac[1] == pytest.approx(0.1032)
    assert math.isnan(run.steps.mfu_frac[0])  # -100 % is a placeholder
    assert kinds(run) == [("compile", None), ("sentinel", 1), ("checkpoint", 30)]
    known = {name: fact.value for name, fact in run.known.items()}
    assert (
        known["tokens_per_update"] == 16384
        and known["parameters"] == 10_650_000
        and known["parameters_total"] == 10_745_088
    )
    assert known["vocab_size"] == 65 and known["dataset"] == "shakespeare_char" and known["fused_adamw"] is True


@pytest.mark.parametrize(
    "line",
    [
        "iter 500: loss 2.4049, time 929.71ms, mfu 16.59%",
        "iter 500: loss 2.4049, time 929.71ms",
        "2023-03-22 09:30:39 iter 500: loss 2.4049, time 929.71ms, mfu 16.59%",
        "[2023-02-28 08:54:42.109354] iter 500: lr 5.98e-4, loss 2.4049, time 929.71ms, mfu 16.59%;",
        "> iter 500: loss 2.4049, time 929.71ms, mfu 16.59%",
        "\x1b[32miter 500:\x1b[0m loss 2.4049, time 929.71ms, mfu 16.59%",
        "[rank0]: iter 500: loss 2.4049, time 929.71ms, mfu 16.59%",
        "iter 500: loss 2.4049, time 929.71ms, mfu 16.59%\r",
        "iter\u00a0500: loss\u00a02.4049, time 929.71ms, mfu 16.59%",
    ],
)
def test_every_variant_of_nanogpts_line_says_the_same(line):
    run = read_log(line + "\n")
    assert steps(run) == [501] and run.steps.loss[0] == 2.4049 and run.steps.took_s[0] == pytest.approx(0.92971)


def test_fields_that_forks_add_to_nanogpts_line_are_read():
    lines = [
        f"iter {k}: loss 2.{k:03d}0, time 30.00ms, mfu 9.00%, lr 1.{k:02d}e-03, grad_norm 0.5{k}\n"
        for k in range(10, 40)
    ]
    run = read_log("".join(lines))
    assert run.conventions.trainer == "nanogpt" and len(run.steps) == 30
    assert run.steps.lr[5] == pytest.approx(1.15e-3) and run.steps.grad_norm[5] == pytest.approx(0.515)


def test_llama2c_means_what_nanogpt_means():
    run = read_log(samples.LLAMA2C)
    assert (
        run.conventions.trainer == "llama2.c"
        and run.conventions.loss == "last_micro_batch"
        and run.conventions.time == "with_eval"
    )
    assert steps(run) == [1, 2, 11] and run.evals.step.tolist() == [0]
    assert run.steps.lr[2] == 5e-6 and run.steps.mfu_frac[2] == pytest.approx(0.2144)
    # Its accumulation counts one process; nanoGPT's name counts all of them.
    assert run.get("gradient_accumulation_steps") == 8 and run.get("devices") == 2 and run.get("batch_size") == 64


def test_our_own_piped_lines_keep_our_meanings():
    run = read_log(samples.NANOLENS)
    assert (
        run.conventions.trainer == "nanolens" and run.conventions.loss == "mean" and run.conventions.time == "step_only"
    )
    assert run.conventions.peak_flops == 210e9 and not run.conventions.mfu_is_smoothed
    assert steps(run) == [1, 2] and run.evals.step.tolist() == [0] and run.get("tokens_per_update") == 768


def test_nanochat_smooths_its_loss_and_leaves_evaluations_out_of_dt():
    run = read_log(samples.NANOCHAT_2025)
    assert (
        run.conventions.trainer == "nanochat"
        and run.conventions.loss == "smoothed"
        and run.conventions.time == "step_only"
    )
    assert run.conventions.peak_flops == 989e12  # whatever the card
    assert (
        steps(run) == [1, 2, 251]
        and run.steps.tokens_per_s[1] == 518_985
        and run.steps.mfu_frac[1] == pytest.approx(0.2287)
    )
    assert run.evals.step.tolist() == [0, 250] and run.evals.val_bits_per_byte.tolist() == [3.3012, 1.3312]
    assert np.isnan(run.evals.val).all() and not run.evals.not_finite.any()
    assert run.get("max_iters") == 21400 and run.get("tokens_per_update") == 524288 and run.get("vocab_size") == 65536


def test_nanochat_of_2026_divides_by_the_peak_of_its_card():
    run = read_log(samples.NANOCHAT_2026)
    assert run.conventions.trainer == "nanochat" and run.conventions.peak_flops is None
    assert steps(run) == [12, 13] and run.steps.mfu_frac[0] == pytest.approx(0.471)
    assert run.get("peak_flops") == 9.89e14 and run.get("hardware") == "NVIDIA H100 80GB HBM3"


def test_autoresearch_redraws_one_row_a_step_and_evaluates_at_its_end():
    run = read_log(samples.AUTORESEARCH)
    assert (
        run.conventions.trainer == "autoresearch"
        and run.conventions.loss == "smoothed"
        and run.conventions.peak_flops == 989.5e12
    )
    assert steps(run) == [12, 13] and run.steps.took_s.tolist() == pytest.approx([0.313, 0.312])
    assert run.evals.step.tolist() == [13] and run.evals.val_bits_per_byte[0] == 0.9979
    assert run.get("wall_s") == 325.9 and run.get("parameters_total") == 50.3e6


def test_autoresearch_says_fail_when_the_loss_is_no_number():
    assert ("error", 13) in kinds(read_log(samples.AUTORESEARCH + "FAIL\n"))


def test_llmc_counts_updates_from_one_on_its_console():
    run = read_log(samples.LLMC_CONSOLE)
    assert (
        run.conventions.trainer == "llm.c"
        and run.conventions.loss == "mean"
        and run.conventions.time == "step_only"
        and run.conventions.peak_flops is None
    )
    assert steps(run) == [1, 2, 20] and run.steps.grad_norm[2] == 2.1212 and run.steps.tokens_per_s[1] == 112_241
    assert run.evals.step.tolist() == [
        0,
        20,
    ]  # a val loss without a number is of the weights between the rows around it
    assert [mark.text for mark in run.marks if mark.kind == "sentinel"] == [
        "(+nanz)"
    ] * 2 and not run.steps.not_finite.any()
    assert run.get("peak_flops") == 312e12 and run.get("batch_size") == 4 and run.get("block_size") == 1024
    assert run.get("hardware") == "NVIDIA A100-SXM4-80GB" and run.get("max_iters") == 74


def test_llmc_counts_updates_from_zero_in_its_main_log():
    run = read_log(samples.LLMC_MAIN_LOG)
    assert (
        run.conventions.trainer == "llm.c" and steps(run) == [1, 2, 251] and run.steps.printed.tolist() == [0, 1, 250]
    )
    assert run.evals.step.tolist() == [0, 250] and run.evals.val.tolist() == [11.0112, 6.17]
    assert run.steps.lr[2] == 0.000215 and run.steps.grad_norm[0] == 15.37
    assert run.reading.not_understood == 0  # HellaSwag is known, and is no loss


def test_llmcs_pytorch_and_c_programs():
    torch = read_log(samples.LLMC_TORCH)
    assert torch.conventions.trainer == "llm.c" and steps(torch) == [1, 2] and torch.steps.tokens_per_s[1] == 622_541
    c = read_log(samples.LLMC_C)
    assert c.conventions.trainer == "llm.c" and steps(c) == [1, 2] and c.steps.took_s[0] == pytest.approx(1.412103)
    assert c.evals.step.tolist() == [0]


def test_llmc_with_a_real_nan_is_told_from_its_placeholder():
    text = "".join(
        f"step   {k}/74 | loss     nan (+nanz)| norm    nan (+nanz)| lr 3.00e-04 | 36.58 ms | 9.2% bf16 MFU | 112241 "
        f"tok/s\n"
        for k in (5, 6)
    )
    assert read_log(text).steps.not_finite.tolist() == [3.0, 3.0]


def test_modded_nanogpt_tells_time_by_a_clock_that_starts_anew():
    run = read_log(samples.MODDED)
    assert (
        run.conventions.trainer == "modded-nanogpt"
        and run.conventions.time == "average"
        and run.conventions.loss == "last_micro_batch"
    )
    assert steps(run) == [1, 2, 11, 13, 14, 114, 214]
    took = run.steps.took_s
    assert took[0] == pytest.approx(24.0) and took[1] == pytest.approx(0.6)  # differences of the clock
    assert math.isnan(took[2])  # the clock was set back
    assert took[3] == pytest.approx(0.09)  # the first average after that
    assert took[4] == pytest.approx(0.092)
    assert took[5] == pytest.approx(0.095) and took[6] == pytest.approx(0.1)  # the rows of evaluations tell it too
    assert run.evals.step.tolist() == [0, 114, 214] and run.get("max_iters") == 1770
    assert np.isnan(run.steps.loss).all() and not run.steps.not_finite.any()
    assert {mark.text for mark in run.marks} == {"step_avg:nanms"}


def test_modded_nanogpt_of_2024_prints_a_train_loss():
    run = read_log(samples.MODDED_2024)
    assert (
        steps(run) == [1, 2, 3]
        and run.steps.loss.tolist() == [10.9712, 10.1012, 9.4012]
        and run.evals.step.tolist() == [3]
    )


def test_build_nanogpt_averages_its_loss_and_times_the_evaluation_too():
    run = read_log(samples.BUILD_NANOGPT)
    assert (
        run.conventions.trainer == "build-nanogpt"
        and run.conventions.loss == "mean"
        and run.conventions.time == "with_eval"
    )
    assert (
        steps(run) == [1, 2, 251] and run.steps.lr[0] == pytest.approx(8.3916e-7) and run.steps.grad_norm[2] == 0.9431
    )
    assert run.evals.step.tolist() == [0, 250] and run.evals.val.tolist() == [10.9512, 6.4012]
    assert run.get("tokens_per_update") == 524288
    log = read_log(samples.BUILD_NANOGPT_LOG)
    assert (
        log.conventions.trainer == "build-nanogpt" and steps(log) == [1, 2, 251] and log.evals.step.tolist() == [0, 250]
    )


def test_litgpt_counts_micro_batches_and_updates_apart():
    run = read_log(samples.LITGPT)
    assert run.conventions.trainer == "litgpt" and run.conventions.loss == "mean"
    assert steps(run) == [1, 2, 3] and run.evals.step.tolist() == [
        2,
        3,
    ]  # iter 16 of 8 a step; the final one after the last
    assert run.evals.val.tolist() == [10.511, 9.9] and run.evals.took_s[0] == pytest.approx(9.02011)
    assert np.isnan(run.steps.took_s).all()  # the time of one micro-batch is not that of an update
    assert ("checkpoint", 2) in kinds(run) and run.get("parameters_total") == 162_322_944
    one = read_log(
        samples.LITGPT.replace("iter 8 ", "iter 1 ").replace("iter 16 ", "iter 2 ").replace("iter 24 ", "iter 3 ")
    )
    assert one.steps.took_s[0] == pytest.approx(0.40271)


def test_torchtitan_counts_from_one_and_its_speed_is_of_one_device():
    run = read_log(samples.TORCHTITAN)
    assert run.conventions.trainer == "torchtitan" and run.conventions.loss == "mean"
    assert steps(run) == [1, 10] and run.steps.grad_norm[1] == 1.1345 and run.steps.mfu_frac[1] == pytest.approx(0.132)
    assert np.isnan(run.steps.tokens_per_s).all() and run.steps.memory_bytes[0] == pytest.approx(30.12 * 2**30)
    assert run.evals.step.tolist() == [10] and run.evals.val[0] == 7.0123
    assert run.steps.at_s[1] - run.steps.at_s[0] == pytest.approx(10.0)


def test_hf_trainer_takes_its_steps_from_the_bar_and_averages_between_lines():
    run = read_log(samples.HF_TRAINER)
    assert run.conventions.trainer == "hf-trainer" and run.conventions.loss == "smoothed"
    assert steps(run) == [10, 20, 30] and run.steps.lr[0] == 4.9e-5 and run.evals.step.tolist() == [20]
    assert run.evals.took_s[0] == 2.5 and run.get("max_iters") == 500 and run.get("wall_s") == 101.5
    # A loss of 0 beside a gradient norm of nan is what the NaN filter leaves.
    assert run.steps.loss[2] == 0.0 and run.steps.not_finite.tolist() == [0.0, 0.0, 2.0]


def test_hf_trainer_without_a_bar_numbers_its_rows():
    lines = [line[line.index("{") :] for line in samples.HF_TRAINER.splitlines() if "{" in line]
    run = read_log("\n".join(lines))
    assert steps(run) == [1, 2, 3] and run.evals.step.tolist() == [2]
    assert any("counted" in str(note) for note in run.reading.notes)


def test_hf_trainers_new_form_prints_its_numbers_in_quotes():
    run = read_log("{'loss': '3.201', 'grad_norm': '1.234', 'learning_rate': '4.583e-05', 'epoch': '0.25'}\n" * 1)
    assert (
        run.conventions.trainer == "hf-trainer" and run.steps.loss.tolist() == [3.201] and run.steps.lr[0] == 4.583e-5
    )


def test_hf_trainers_state_has_the_steps():
    run = read_log(samples.HF_STATE)
    assert run.conventions.trainer == "hf-trainer" and steps(run) == [10, 20] and run.evals.step.tolist() == [20]
    assert run.get("max_iters") == 500 and run.get("log_interval") == 10


def test_a_progress_bar_counts_batches_over_epochs():
    run = read_log(samples.LIGHTNING)
    assert (
        run.conventions.trainer == "tqdm"
        and run.conventions.loss == "last_micro_batch"
        and run.conventions.time == "average"
    )
    assert steps(run) == [2, 4, 202] and run.steps.loss.tolist() == [10.9, 10.1, 8.1]
    assert run.steps.took_s.tolist() == pytest.approx([0.5, 0.5, 2.0])


def test_what_a_script_prints_behind_a_bar_is_read_with_it():
    text = "".join(
        f"\rEpoch 0:   0%|  | {k}/900 [00:02<10:20,  1.19it/s, v_num=12, train_loss=10.90]lr=[0.0] mean=-0.1"
        for k in (1, 2, 3)
    )
    assert read_log(text).steps.lr.tolist() == [0.0, 0.0, 0.0]


def test_names_and_numbers_of_an_unknown_trainer_are_read_without_a_meaning_being_made_up():
    run = read_log(samples.KEY_VALUE)
    assert (
        run.conventions.trainer == "unknown"
        and run.conventions.loss == "unknown"
        and run.conventions.time == "unknown"
        and run.conventions.peak_flops is None
    )
    assert steps(run) == [10, 20, 30] and run.steps.tokens_per_s[0] == 76477.73
    assert run.steps.mfu_frac[0] == pytest.approx(0.3759)  # above 1, so per cent


def test_a_loss_at_step_zero_tells_that_updates_are_counted_before_the_row():
    run = read_log(samples.PLAIN_LINES)
    assert run.conventions.updates_before_printed == 1 and steps(run) == [1, 11, 21] and run.evals.step.tolist() == [20]
    assert run.steps.took_s[1] == pytest.approx(0.2105) and run.steps.grad_norm[2] == 1.1


def test_another_loss_is_not_taken_for_the_loss():
    run = read_log("step 10 aux loss 0.01 loss 3.5\nstep 20 aux loss 0.02 loss 3.25\n")
    assert run.steps.loss.tolist() == [3.5, 3.25]


def test_what_a_time_without_a_unit_is_shows_its_size():
    form = "step 1 loss 3.5 dt {}\nstep 2 loss 3.25 dt {}\n"
    assert read_log(form.format(0.21, 0.22)).steps.took_s.tolist() == [0.21, 0.22]
    assert read_log(form.format(1210.5, 1211.0)).steps.took_s == pytest.approx([1.2105, 1.211])
    assert np.isnan(read_log(form.format(210.5, 211.0)).steps.took_s).all()  # either is possible


def test_json_lines():
    run = read_log(samples.JSON_LINES)
    assert steps(run) == [10, 20, 30] and run.evals.step.tolist() == [20] and run.evals.val[0] == 4.125
    assert run.steps.mfu_frac[0] == 0.41  # none above 1: a share
    assert run.steps.not_finite.tolist() == [0.0, 0.0, 1.0]


def test_a_table():
    run = read_log(samples.CSV)
    assert steps(run) == [49, 99] and run.evals.step.tolist() == [99] and run.evals.val[0] == 4.125


def test_a_train_loss_that_only_comes_with_a_val_loss_is_an_evaluation():
    run = read_log("step,train_loss,val_loss\n0,4.2,4.3\n500,2.1,2.5\n")
    assert len(run.steps) == 0 and run.evals.train.tolist() == [4.2, 2.1] and run.evals.val.tolist() == [4.3, 2.5]


def test_an_export_of_weights_and_biases_holds_a_run_in_each_column():
    runs = read_logs(samples.WANDB_EXPORT)
    assert [run.name for run in runs] == ["big", "small"]
    assert runs[1].steps.loss.tolist() == [10.25, 6.25] and steps(runs[0]) == [1, 101]


def test_a_folder_of_weights_and_biases(tmp_path):
    files = tmp_path / "offline-run-1" / "files"
    files.mkdir(parents=True)
    (files / "output.log").write_text(samples.NANOGPT)
    (files / "config.yaml").write_text(
        "wandb_version: 1\n\nbatch_size:\n    desc: null\n    value: 64\nlearning_rate:\n    value: 0.001\n"
    )
    (files / "wandb-metadata.json").write_text('{"gpu": "NVIDIA GeForce RTX 4070", "gpu_count": 1}')
    run = read_log(files.parent)
    assert steps(run) == [1, 11, 21, 31] and run.get("batch_size") == 64 and run.get("learning_rate") == 0.001
    assert run.get("hardware") == "NVIDIA GeForce RTX 4070" and run.known["batch_size"].where == "config.yaml"


def test_a_damaged_database_of_weights_and_biases_is_an_error():
    with pytest.raises(UserError, match="no loss could be read"):
        read_log(b":W&B\x00\x01\x02" + b"rest" * 20)


def test_event_files_of_tensorboard(tmp_path):
    tensorboard = pytest.importorskip("tensorboardX")
    writer = tensorboard.SummaryWriter(str(tmp_path))
    for k in (10, 20, 30):
        writer.add_scalar("train/loss", 4.0 - k / 100, k)
        writer.add_scalar("lr", 1e-3, k)
    writer.add_scalar("val/loss", 3.75, 30)
    writer.close()
    run = read_log(tmp_path)
    assert run.conventions.trainer == "tensorboard" and steps(run) == [10, 20, 30] and run.evals.step.tolist() == [30]
    assert run.steps.loss[0] == pytest.approx(3.9) and run.steps.lr[0] == pytest.approx(1e-3)
    assert np.isfinite(run.steps.at_s).all()
    file = next(tmp_path.glob("events*"))
    torn = tmp_path / "torn"
    torn.write_bytes(file.read_bytes()[:-5])
    assert steps(read_log(torn))[:2] == [10, 20]


@pytest.mark.parametrize("name", samples.ALL)
def test_every_format_is_recognised_and_hardly_a_line_is_lost(name):
    run = read_log(samples.ALL[name])
    assert len(run.steps) + len(run.evals) >= 1
    assert run.reading.not_understood <= 4, run.reading.examples


def test_rows_of_two_trainers_in_one_text_are_two_runs():
    first, second = read_logs(samples.NANOGPT + samples.NANOCHAT_2025)
    assert first.steps.printed.tolist() == [0, 10, 20, 30] and second.steps.printed.tolist() == [0, 1, 250]
    asked = read_logs(samples.NANOGPT + samples.NANOCHAT_2025, Given(facts={"log_format": "nanochat"}))
    assert asked[0].conventions.trainer == "nanochat"


def test_a_format_that_does_not_exist_is_named():
    with pytest.raises(UserError, match="no log format"):
        read_log(samples.NANOGPT, format="nanogtp")


@pytest.mark.parametrize(
    "text",
    [
        "| step | train loss | val loss |\n|---|---|---|\n| 0 | 4.25 | 4.5 |\n| 250 | 2.25 | 2.5 |\n",
        "Step\tTraining Loss\tValidation Loss\n0\t4.25\t4.5\n250\t2.25\t2.5\n",
        "Step   Training Loss   Validation Loss\n0      4.25            4.5\n250    2.25            2.5\n",
        "step train_loss val_loss\n0 4.25 4.5\n250 2.25 2.5",
        "step;train_loss;val_loss\r\n0;4.25;4.5\r\n250;2.25;2.5\r\n",
    ],
)
def test_a_table_in_any_dress(text):
    run = read_log(text)
    assert (
        run.evals.step.tolist() == [0, 250]
        and run.evals.train.tolist() == [4.25, 2.25]
        and run.evals.val.tolist() == [4.5, 2.5]
    )


def test_megatrons_line_is_names_and_numbers():
    form = (
        " iteration {k:8d}/     100 | consumed samples: {k:12d} | elapsed time per iteration (ms): 1234.5 | learning "
        "rate: 1.500E-04 |"
        " lm loss: 9.123456E+00 | loss scale: 65536.0 | grad norm: 3.456 | number of nan iterations:   0 |\n"
    )
    run = read_log("".join(form.format(k=k) for k in (1, 2, 3)))
    assert steps(run) == [1, 2, 3] and run.steps.loss[0] == 9.123456 and run.steps.lr[0] == 1.5e-4
    assert (
        run.steps.took_s[0] == pytest.approx(1.2345)
        and run.steps.grad_norm[0] == 3.456
        and run.steps.loss_scale[0] == 65536
    )


def test_a_letter_behind_a_number_scales_it():
    run = read_log(
        "Step: 1 | Loss: 10.5 | Tokens/s: 16.8K | MFU: 39.5%\nStep: 2 | Loss: 10.25 | Tokens/s: 16.9K | MFU: 39.6%\n"
    )
    assert run.steps.tokens_per_s.tolist() == [16800.0, 16900.0] and run.steps.mfu_frac[0] == pytest.approx(0.395)


def test_one_line_of_a_fork_is_enough_to_see_its_fields():
    run = read_log("iter 10: loss 2.5000, time 30.00ms, mfu 9.00%, lr 1.0e-03, grad_norm 0.5\n")
    assert run.conventions.trainer == "nanogpt" and run.steps.lr[0] == 1e-3 and run.steps.grad_norm[0] == 0.5


def test_an_mfu_may_be_padded():
    rows = "".join(f"{k} | loss 2.{9 - k}000 | lr 1.000000e-04 | 12.00ms | mfu  0.0{k}%\n" for k in range(1, 6))
    assert read_log("step 0: train loss 3.0000, val loss 3.0000\n" + rows).steps.mfu_frac[-1] == pytest.approx(0.0005)


def test_bars_with_epochs_are_read_as_bars():
    text = "".join(
        f"\rEpoch 0:   0%|          | {k}/900 [00:02<10:20,  1.19it/s, v_num=12, train_loss=10.{k}]"
        for k in range(10, 40)
    )
    assert read_log(text).conventions.trainer == "tqdm"


def test_litgpt_of_2023_prints_every_micro_batch_and_the_last_of_an_update_counts():
    run = read_log(samples.LITGPT_2023)
    assert run.conventions.trainer == "litgpt" and steps(run) == [7, 8] and run.steps.loss.tolist() == [6.1511, 6.1042]
    assert run.evals.step.tolist() == [8] and run.evals.val.tolist() == [6.0110]
    assert run.reading.duplicates == 0 and run.reading.ranks == 1 and run.reading.not_understood == 0


def test_a_step_in_brackets_or_before_its_epoch():
    run = read_log(samples.BRACKETS)
    assert steps(run) == [500, 1000] and run.steps.loss.tolist() == [7.93, 7.81]
    assert run.steps.grad_norm.tolist() == [0.38, 0.60] and run.steps.lr.tolist() == [0.000196] * 2
    run = read_log(samples.OF_ALL)
    assert steps(run) == [1, 26] and run.steps.loss.tolist() == [4.19766416, 3.10144325]


def test_names_below_a_step_belong_to_it():
    run = read_log(samples.BLOCKS)
    assert (
        steps(run) == [10, 20]
        and run.steps.loss.tolist() == [10.2510, 9.1250]
        and run.steps.grad_norm.tolist() == [12.5, 4.25]
    )
    assert np.isnan(run.steps.tokens_per_s).all()  # of one device
    assert run.reading.not_understood == 0


def test_two_lines_that_each_say_something_of_a_step_are_one_row():
    run = read_log(samples.TWO_LINES)
    assert steps(run) == [10, 20, 30] and run.steps.loss.tolist() == [10.45, 9.25, 8.5]
    assert run.steps.loss_scale.tolist() == [65536, 65536, 32768] and run.steps.lr[0] == 6e-6
    assert run.reading.duplicates == 0 and run.reading.ranks == 1


def test_a_table_of_epochs_is_counted_in_epochs():
    run = read_log(samples.EPOCH_TABLE)
    assert run.evals.step.tolist() == [1, 2] and run.evals.train.tolist() == [2.760716, 6.228361]
    assert run.get("steps_are_epochs") is True


def test_llama_factorys_own_record():
    lines = '{"current_steps": 1, "total_steps": 42, "loss": 1.4653, "learning_rate": 0.0}\n{"current_steps": 2, "loss": 1.5467, "learning_rate": 0.0}\n'
    run = read_log(lines)
    assert steps(run) == [1, 2] and run.steps.loss.tolist() == [1.4653, 1.5467] and run.steps.lr.tolist() == [0.0, 0.0]


def test_fairseq_speaks_in_bits_and_counts_updates_behind_its_loss():
    run = read_log(samples.FAIRSEQ)
    assert run.conventions.trainer == "fairseq" and steps(run) == [100, 200] and run.evals.step.tolist() == [200]
    assert run.steps.loss.tolist() == pytest.approx(
        [14.75 * math.log(2), 12 * math.log(2)]
    )  # without the label smoothing
    assert run.evals.val[0] == pytest.approx(11.5 * math.log(2))
    assert run.steps.tokens_per_s[0] == 120345.1 and run.steps.grad_norm[1] == 2.125 and run.steps.loss_scale[0] == 128


def test_composer_and_mmengine():
    run = read_log(samples.COMPOSER)
    assert steps(run) == [1, 2] and run.steps.loss.tolist() == [10.951, 9.812] and run.reading.not_understood == 0
    run = read_log(samples.MMENGINE)
    assert steps(run) == [734, 745] and run.steps.loss.tolist() == [2.7522, 2.6150] and run.steps.grad_norm[1] == 2.7647
    by_iteration = samples.MMENGINE.replace("Epoch(train) [1][734/735]", "Iter(train) [  734/40000]").replace(
        "Epoch(train) [2][ 10/735]", "Iter(train) [  745/40000]"
    )
    assert steps(read_log(by_iteration)) == [734, 745]


def test_a_step_of_all_in_one_field():
    line = '{"loss": 0.5, "learning_rate": 4e-05, "global_step/max_steps": "601/2161", "memory(GiB)": 87.6}\n'
    run = read_log(line + line.replace("601", "602"))
    assert steps(run) == [601, 602] and run.steps.loss.tolist() == [0.5, 0.5]


def test_every_sentence_of_the_tables_is_a_regular_expression_and_every_mark_a_known_kind():
    sentences = [*sentences_in(tomllib.loads(facts.TABLE.read_text("utf-8")))]
    sentences += [sentence for trainer in TRAINERS for sentence in trainer.sentences]
    assert len(sentences) > 40
    for sentence in sentences:
        groups = sentence_pattern(sentence.pattern).groupindex
        assert groups or sentence.mark, sentence
        assert not sentence.mark or sentence.mark in MARKS
        assert sentence.word


def test_every_trainer_of_the_table_is_recognised_by_a_sample():
    names = {read_log(text).conventions.trainer for text in samples.ALL.values()}
    assert names >= {trainer.conventions.trainer for trainer in TRAINERS}
