"""The models, one readable page each, and the small contract that a model of your own keeps.

Your own model (`--arch=my_model.py`) is a class called `Model` in that file:

    class Model(torch.nn.Module):
        def __init__(self, config, vocab_size): ...  # config.n_layer, n_head, n_embd, block_size, dropout, ...
        def forward(self, idx): ...  # (B, T) ids -> (B, T, vocab_size) logits

That is enough to train, resume, evaluate and sample. Each of these may be added, and is used where it is there:

        def hidden(self, idx): ...   # (B, T) -> (B, T, d), what goes into `self.head`; with it the loss can be computed
        self.head = nn.Linear(d, V, bias=False)   # in chunks, which never hold all logits (`chunked_head`)
        self.softcap = 15.0   # logits are 15 * tanh(head(hidden) / 15); without `hidden`, do this in `forward` yourself
        def hidden(self, idx, cache=None)   # a `model.kernels.Cache`: sampling then reads each token once (see gpt2.py)
        def optimizer_groups(self, config)  # a list of {"params": [...], ...} in place of decayed and non-decayed
        cropped_by_block_size = ("position.weight",)  # their first dimension may be cut when block_size shrinks

Position t of the logits may depend on ids 0..t only; this is tested before the first step."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from torch import nn

from nanolens.config.fields import Config
from nanolens.errors import fault
from nanolens.message import msg
from nanolens.model.gpt2 import GPT2
from nanolens.model.modern import Modern

ARCHITECTURES = {"gpt2": GPT2, "modern": Modern}


def build(config: Config, vocab_size: int) -> nn.Module:
    """The model that `config.arch` names, with freshly drawn weights."""
    if config.arch in ARCHITECTURES:
        return ARCHITECTURES[config.arch](config, vocab_size)
    if config.arch.endswith(".py"):
        return own_model_class(Path(config.arch))(config, vocab_size)
    raise fault(
        msg("arch = {arch:code} is not an architecture", config.arch),
        fix=msg("use {one:code}, {other:code}, or the path of a .py file with a custom model", "gpt2", "modern"),
    )


def own_model_class(path: Path) -> type[nn.Module]:
    """The class `Model` of a user's file. The file is run: its owner named it on the command line."""
    if not path.is_file():
        fix = msg("give the path of a file that defines a class Model")
        raise fault(msg("there is no model file {path:code}", str(path)), fix=fix)
    name = f"nanolens_own_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    model = getattr(module, "Model", None)
    if not (isinstance(model, type) and issubclass(model, nn.Module)):
        raise fault(
            msg("{path:code} does not define a class Model that is a torch.nn.Module", str(path)),
            fix=msg("see the top of nanolens/model/__init__.py for what such a class needs"),
        )
    return model
