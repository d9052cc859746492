import pytest

from tests.diagnosis.rules.build import GPT2, found, make


def test_a_name_that_promises_three_times_the_size():
    run = make(
        n_layer=12, n_head=12, n_embd=384, block_size=1024, vocab_size=50304, wandb_run_name="125M-single-parquet-4070"
    )
    finding = found(run, "param_count_mismatch")["param_count_mismatch"]
    assert finding.evidence[0].seen == 40_953_216 and finding.evidence[0].usual == 125e6
    assert finding.change.new == 768


@pytest.mark.parametrize(
    "name",
    ["gpt2-124M", "125M", "gpt2-117M-run3", "fineweb-10B", "sample-100BT", "run7-5e9", "owt-300B tokens", "4070"],
)
def test_names_that_fit_or_mean_something_else(name):
    assert not found(make(wandb_run_name=name, **GPT2), "param_count_mismatch")


def test_a_comment_counts_too():
    run = make(
        comments=("Model (~125M parameters)",), n_layer=12, n_head=12, n_embd=384, block_size=1024, vocab_size=50304
    )
    assert "param_count_mismatch" in found(run, "param_count_mismatch")


def test_an_untied_head_explains_162_million():
    run = make(parameters=162_201_636, vocab_size=50304, n_embd=768, n_layer=12, tied_embeddings=False)
    finding = found(run, "param_count_mismatch")["param_count_mismatch"]
    assert finding.sureness == "certain"
    assert "config_log_mismatch" not in found(run)


def test_the_printed_count_of_the_shape_itself_is_fine():
    assert not found(make(parameters=123_590_000, **GPT2), "param_count_mismatch")
