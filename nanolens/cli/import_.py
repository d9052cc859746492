"""nanolens import FOLDER | ckpt.pt | gpt2 [-o RUN] [--tokenizer=gpt2|FOLDER] [--key=value ...]"""

from __future__ import annotations

from argparse import Namespace

from nanolens.cli.arguments import Parser
from nanolens.message import msg

HELP = msg("make a run of a model from elsewhere: a Hugging Face folder, nanoGPT's ckpt.pt or its folder, or gpt2 from the hub")


def arguments(parser: Parser) -> None:
    parser.add_argument("source", metavar="FOLDER", help=msg("a folder or file, or gpt2, gpt2-medium, gpt2-large, gpt2-xl from the hub"))
    parser.add_argument("-o", "--out_dir", metavar="RUN", help=msg("the run folder to make; a new one below runs/ if not given"))
    parser.add_argument(
        "--tokenizer", metavar="gpt2|FOLDER", help=msg("what its tokens mean, where the model does not say: gpt2, or a prepared folder")
    )
    parser.takes_settings()


def run(given: Namespace) -> int:
    from nanolens.cli import say
    from nanolens.cli.export import shown_progress
    from nanolens.convert.importing import import_model
    from nanolens.record.store import as_typed

    with shown_progress(given.lang) as told:
        done = import_model(given.source, given.out_dir, given.overrides, given.tokenizer, told)
    name = as_typed(done.run)
    lines = [
        msg(
            "{source:code} ({kind}, {parameters:parameters} parameters, step {step:count}) is now the run {run:code}",
            source=given.source, kind=done.kind, parameters=done.parameters, step=done.step, run=name,
        ),
        *done.notes,
        msg("it writes: {command:code}", command=f"nanolens sample {name}"),
        msg("it goes on, with its optimizer: {command:code}", command=f"nanolens train --init_from=resume --out_dir={name} --max_iters=N")
        if done.with_optimizer
        else msg("it is fine-tuned: {command:code}", command=f"nanolens train --init_from={name} --dataset=NAME --max_iters=N"),
    ]  # fmt: skip
    for line in lines:
        print(say(line, given.lang))
    return 0
