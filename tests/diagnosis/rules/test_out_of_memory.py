from tests.diagnosis.rules.build import GPT2, found, make, mark, sure

OOM = "CUDA out of memory. Tried to allocate 100.00 MiB (GPU 0; 23.68 GiB total capacity; 21.67 GiB already allocated)"


def test_the_state_of_gpt2_xl_fills_a_24_gb_card():
    run = make(marks=[mark("out_of_memory", None, OOM)], init_from="gpt2-xl", batch_size=1)
    finding = found(run, "oom_logits")["oom_optimizer_state"]
    assert finding.evidence[0].seen == 16 * 1_557_611_200
    assert finding.change.new == "gpt2-large"


def test_logits_of_a_small_model_with_a_large_vocabulary():
    run = make(marks=[mark("out_of_memory", None, OOM)], **{**GPT2, "n_embd": 384, "batch_size": 32})
    assert sure(run, "oom_logits") == {"oom_logits"}


def test_without_an_error_there_is_no_finding():
    assert not found(make(init_from="gpt2-xl", batch_size=1, hardware="24GB GPU"), "oom_logits")
