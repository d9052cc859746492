"""Facts from the text, the user and what is published, each with its origin."""

from __future__ import annotations

import pytest

from nanolens.logs import Given, read_log

ROW = "iter 10: loss 2.5000, time 30.00ms, mfu 10.00%\n"


def known(text: str = ROW, **given):
    return read_log(text, Given(**given)).known


def test_a_config_that_nanogpt_dumps_is_read_line_by_line():
    text = (
        "Overriding config with config/my_own.py:\n# train a small model (~45M parameters)\n\nbatch_size = 16 # of "
        "1024 tokens\n"
        "gradient_accumulation_steps = 5 * 8\ndataset = 'fineweb'\ndecay_lr = True\n\nOverriding: learning_rate = "
        "0.0003\n" + ROW
    )
    facts = known(text)
    assert (
        facts["batch_size"].value == 16
        and facts["gradient_accumulation_steps"].value == 40
        and facts["dataset"].value == "fineweb"
    )
    assert facts["learning_rate"].value == 0.0003 and facts["decay_lr"].value is True
    assert facts["batch_size"].origin == "printed" and facts["batch_size"].where == "line 4"


def test_a_published_config_supplies_what_it_stands_for_marked_as_inferred():
    facts = known("Overriding config with config/train_shakespeare_char.py:\n" + ROW)
    assert (
        facts["n_layer"].value == 6
        and facts["n_layer"].origin == "inferred"
        and "train_shakespeare_char" in facts["n_layer"].where
    )
    assert facts["max_iters"].value == 5000 and facts["grad_clip"].value == 1.0
    assert (
        facts["vocab_size"].value == 65
        and facts["dataset_tokens"].value == 1_003_854
        and facts["val_tokens"].value == 111_540
    )
    assert known(config={"init": "config/train_gpt2.py"})["gradient_accumulation_steps"].value == 40


def test_a_config_of_the_users_own_supplies_nothing():
    assert "n_layer" not in known("Overriding config with config/train_my_thing.py:\n" + ROW)


def test_weights_of_gpt2_tell_the_shape():
    facts = known(config={"init_from": "gpt2-xl"})
    assert (facts["n_layer"].value, facts["n_embd"].value, facts["vocab_size"].value) == (48, 1600, 50257) and facts[
        "n_layer"
    ].origin == "inferred"


@pytest.mark.parametrize(
    ("name", "tokens"),
    [("openwebtext", 9_035_582_198), ("shakespeare_char", 1_003_854), ("tiny shakespeare (char)", 1_003_854)],
)
def test_well_known_datasets_have_known_sizes(name, tokens):
    assert known(config={"dataset": name})["dataset_tokens"].value == tokens
    assert "dataset_tokens" not in known(config={"dataset": "my own shakespeare mix"})


def test_what_the_user_types_counts_before_the_file_and_both_before_the_text():
    text = "n_layer = 6\nn_head = 6\nn_embd = 384\n" + ROW
    facts = known(
        text, config={"n_layer": 8, "n_head": 8}, config_where={"n_layer": "mine.toml line 1"}, facts={"n_layer": 12}
    )
    assert facts["n_layer"].value == 12 and facts["n_layer"].where == "--n_layer"
    assert facts["n_head"].value == 8 and facts["n_head"].origin == "given"
    assert facts["n_embd"].value == 384 and facts["n_embd"].origin == "printed"
    assert facts["printed_n_layer"].value == 6  # that they differ may be the diagnosis


def test_foreign_names_are_known_under_ours_too():
    facts = known(
        config={
            "lr": 1e-3,
            "num_iterations": 100,
            "seq_len": 512,
            "d_model": 256,
            "total_batch_size": 524288,
            "gpus": 8,
            "grad_accum_steps": 4,
        }
    )
    assert facts["learning_rate"].value == 1e-3 and facts["max_iters"].value == 100 and facts["block_size"].value == 512
    assert facts["n_embd"].value == 256 and facts["tokens_per_update"].value == 524288 and facts["devices"].value == 8
    assert facts["gradient_accumulation_steps"].value == 32  # theirs counts one process
    assert facts["lr"].value == 1e-3


def test_a_size_that_a_name_or_comment_claims_is_kept_as_a_claim():
    assert known(config={"wandb_run_name": "125M-single-parquet"})["claimed_parameters"].value == 125e6
    assert known(comments=["Model (~0.5B parameters)"])["claimed_parameters"].value == 0.5e9
    assert known(config={"params": "124M"})["claimed_parameters"].value == 124e6
    assert known(config={"params": 13443137})["parameters"].value == 13443137
    assert "claimed_parameters" not in known(comments=["trained on 10B tokens", "12 batch size * 1024"])
    assert "claimed_parameters" not in known(config={"wandb_run_name": "fineweb-10B"})


def test_hardware_says_how_many_devices():
    assert known(hardware="8x H100")["devices"].value == 8 and known(hardware="4 GPUs")["devices"].value == 4
    assert "devices" not in known(hardware="RTX 4070 12GB")


def test_an_out_of_memory_error_is_a_mark_and_tells_the_cards_memory():
    run = read_log(
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 0; 11.99 GiB total "
        "capacity; 10.67 GiB already allocated)\n"
    )
    assert [mark.kind for mark in run.marks] == ["out_of_memory"] and run.get("device_memory_bytes") == round(
        11.99 * 2**30
    )
    new = read_log(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of "
        "23.68 GiB of which 5.06 MiB is free.\n"
    )
    assert new.get("device_memory_bytes") == round(23.68 * 2**30)


def test_an_interrupt_is_an_end_and_no_error():
    run = read_log(
        ROW + 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\nKeyboardInterrupt\n'
    )
    assert [mark.kind for mark in run.marks] == ["ended"]


def test_a_traceback_of_another_rank_is_read_behind_its_prefix():
    run = read_log(
        ROW + '[rank1]: Traceback (most recent call last):\n[rank1]:   File "x.py", line 1\n[rank1]: ValueError: no\n'
    )
    assert run.marks[-1].kind == "error" and run.marks[-1].text == "ValueError: no"


def test_time_of_the_whole_run():
    assert known(ROW + "real\t59m48.600s\nuser\t1m0.000s\n")["wall_s"].value == pytest.approx(3588.6)
    assert known(ROW + "     3588.66 real        90.18 user        32.03 sys\n")["wall_s"].value == 3588.66


def test_nvidia_smi_tells_the_card():
    text = (
        "|   0  NVIDIA H100 80GB HBM3          On  | 00000000:61:00.0 Off |\n|   1  NVIDIA H100 80GB HBM3          "
        "On  | 00000000:62:00.0 Off |\n" + ROW
    )
    assert known(text)["hardware"].value == "NVIDIA H100 80GB HBM3" and known(text)["gpus_seen"].value == 2


def test_names_of_another_style_are_the_same_settings():
    facts = known("13443137 parameters\nlearningRate = 1.0E-4\nmaxIterations = 67000\n" + ROW)
    assert (
        facts["learning_rate"].value == 1e-4
        and facts["max_iters"].value == 67000
        and facts["parameters"].value == 13443137
    )


def test_a_command_line_in_the_log_is_what_was_meant():
    facts = known("$ torchrun --nproc_per_node=4 train.py config/train_gpt2.py --batch_size=8 --compile=False\n" + ROW)
    assert facts["devices"].value == 4 and facts["batch_size"].value == 8 and facts["compile"].value is False
    assert facts["n_layer"].origin == "inferred"


def test_nothing_that_is_not_finite_becomes_a_fact():
    assert "learning_rate" not in known("learning_rate = nan\n" + ROW)


def test_assignments_of_a_program_that_a_log_begins_with_are_not_its_settings():
    source = (
        "import torch\nblock_size = 128\nclass Hyperparameters:\n    batch_size : int = 8\ndef main():\n    "
        "learning_rate = 1\n"
    )
    facts = known(
        source
        + (
            "step:0/10 val_loss:10.8258 train_time:0ms step_avg:nanms\nstep:5/10 val_loss:9.8258 train_time:50ms "
            "step_avg:10.00ms\n"
        )
    )
    assert not {"block_size", "batch_size", "learning_rate"} & set(facts) and facts["max_iters"].value == 10


@pytest.mark.parametrize("row", ["iter {k}: loss 2.5000, time 30.00ms, mfu 10.00%\n", '{{"step": {k}, "loss": 2.5}}\n'])
def test_what_stands_between_long_stretches_of_rows_is_found_with_its_line(row: str):
    stretch = ["".join(row.format(k=k) for k in range(first, first + 150)) for first in (0, 150, 300)]
    text = f"{stretch[0]}number of parameters: 10.65M\n{stretch[1]}# a note\nvocab_size = 65\n{stretch[2]}"
    facts = known(text)
    assert facts["parameters"].value == 10_650_000 and facts["parameters"].where == "line 151"
    assert facts["vocab_size"].value == 65 and facts["vocab_size"].where == "line 303"
    assert len(read_log(text).steps) == 450
