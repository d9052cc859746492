"""What the transformers library itself makes of our exports, and we of its files. Heavy: the library takes seconds to
import."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from nanolens.convert.exporting import export_model
from nanolens.convert.hf_folder import write_hugging_face
from nanolens.convert.importing import import_model
from nanolens.loaded import load
from nanolens.model.loss import logits_of
from nanolens.record.read import read_run
from nanolens.session.job import plan_job, run_job
from nanolens.training.checkpoint import tensors_of
from tests.convert.made_models import SHAPE, TEXT, TOKENIZERS, made_run, random_model, some_ids, tokenizer

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def transformers() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library = pytest.importorskip("transformers")
    library.utils.logging.disable_progress_bar()
    library.logging.set_verbosity_error()
    return library


def apart(transformers: Any, folder: Path, module: torch.nn.Module, rows: int) -> float:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = some_ids(rows)
    with torch.no_grad():
        found = float((theirs(ids).logits - logits_of(module, ids)[..., :rows]).abs().max())
    print(f"largest difference {found:.2g}")
    return found


@pytest.mark.parametrize("padding", [0, 47])
@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize(
    "changes",
    [
        {"arch": "gpt2"},
        {"arch": "gpt2", "bias": True, "gelu": "tanh"},
        {"arch": "modern"},
        {"arch": "modern", "softcap": 0.0},
    ],
)
def test_random_weights_have_the_same_logits(
    transformers: Any, changes: dict[str, Any], kind: str, padding: int, tmp_path: Path
):
    words = tokenizer(kind)
    config = dataclasses.replace(SHAPE, **changes)
    model = random_model(config, words.vocab_size + padding)
    write_hugging_face(tmp_path, config, tensors_of(model), words, words.vocab_size)
    assert apart(transformers, tmp_path, model, words.vocab_size) < 1e-4
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = theirs(TEXT)["input_ids"]
    assert ids == words.encode(TEXT) and theirs.decode(ids) == TEXT


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("changes", [{"arch": "gpt2"}, {"arch": "modern", "optimizer": "muon"}])
def test_trained_weights_have_the_same_logits_and_write_the_same(
    transformers: Any, changes: dict[str, Any], kind: str, tmp_path: Path
):
    run = made_run(tmp_path / "run", kind, **changes)
    export_model(run, "hf", tmp_path / "out")
    model = load(run, device="cpu")
    assert apart(transformers, tmp_path / "out", model.module, model.tokenizer.vocab_size) < 1e-4
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    written = theirs.generate(**words("The doors", return_tensors="pt"), max_new_tokens=16, do_sample=False)
    assert words.decode(written[0]) == model.generate("The doors", max_new_tokens=16, temperature=0)


@pytest.mark.parametrize("activation", ["gelu_new", "gelu"])
def test_a_gpt2_of_theirs_is_ours_and_goes_back_byte_for_byte(transformers: Any, activation: str, tmp_path: Path):
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=32, n_positions=64, activation_function=activation)
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    imported = import_model(str(tmp_path / "theirs"), str(tmp_path / "run"))
    model = load(imported.run, device="cpu")
    ids = some_ids(50257)
    with torch.no_grad():
        assert float((theirs(ids).logits - logits_of(model.module, ids)).abs().max()) < 1e-4
    export_model(imported.run, "hf", tmp_path / "back")
    assert (tmp_path / "theirs" / "model.safetensors").read_bytes() == (
        tmp_path / "back" / "model.safetensors"
    ).read_bytes()
    back = transformers.AutoConfig.from_pretrained(tmp_path / "back")
    assert back.activation_function == activation and back.n_positions == 64


def test_it_is_fine_tuned_as_nanogpt_does(transformers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """init_from names the folder; the context is shorter than the model's, the rate small and constant, and the loss
    falls."""
    from nanolens.data.prepare import prepare

    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=2, n_head=2, n_embd=32, n_positions=64)
    ).save_pretrained("gpt2-small")
    Path("text.txt").write_text(TEXT * 3, encoding="utf-8")
    prepare(["text.txt"], "gpt2", Path("data/made"))
    Path("finetune.py").write_text(
        "dataset = 'made'\nbatch_size = 2\ngradient_accumulation_steps = 2\nblock_size = 32\nmax_iters = "
        "12\nlearning_rate = 3e-3\n"
        "decay_lr = False\neval_interval = 12\neval_iters = 2\ndevice = 'cpu'\ncompile = False\nout_dir = 'tuned'\n"
    )
    run_job(plan_job("finetune.py", [("init_from", "gpt2-small"), ("sample_interval", "0"), ("threads", "1")]))
    evals = read_run(Path("tuned")).evals
    assert evals.val[-1] < evals.val[0] - 0.5
    assert load("tuned").config.gelu == "tanh" and load("tuned").module.position.weight.shape == (32, 32)
