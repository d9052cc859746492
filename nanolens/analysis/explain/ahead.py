"""A config, explained before it is run: what it will see, what it will cost, what to expect."""

# ruff: noqa: E501  (sentences stay whole, so that they can be searched for)

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nanolens.analysis.explain.about import about
from nanolens.analysis.explanation import Explanation, Remark, Section
from nanolens.analysis.story import REPEATED
from nanolens.analysis.symptoms.repetition import worth
from nanolens.config.fields import Config, as_text, settings
from nanolens.config.preset import Preset
from nanolens.facts.case import Case
from nanolens.message import Message, msg
from nanolens.record.run import Known, Run, Words, evals_from, steps_from
from nanolens.sizing import memory
from nanolens.sizing.memory import is_worth_chunking

FACTS = frozenset("dataset_tokens val_tokens bytes_per_token unigram_nats bigram_nats peak_flops devices hardware flops_per_token".split())
"""What `--key=value` may say besides settings: of the data and the machine."""
TOO_MANY_TO_MEMORISE = 10  # different tokens for each parameter; at 72, GPT-2 124M on OpenWebText reads all 33 times and does not overfit
CHECKPOINT_BYTES = 12  # a parameter: float32 weights and Adam's two averages


def case_of(config: Config, came_from: Mapping[str, str], facts: Mapping[str, Known], name: str) -> Case:
    """A run that has not happened: all its facts, no rows."""
    known = {key: Known(value, "given", came_from.get(key, "")) for key in settings() if (value := getattr(config, key)) is not None}
    for key in ("device", "dtype"):
        if known[key].value == "auto":
            del known[key]
    return Case(Run(name, Words("nanolens"), steps_from({}, 0), evals_from({}, 0), {**known, **facts}))


def explain_ahead(case: Case, came_from: Mapping[str, str], preset: Preset | None) -> Explanation:
    sections = (
        Section("ahead", msg("What it will do"), tuple(_ahead(case))),
        Section("expected", msg("What to expect"), tuple(_expected(case, preset))),
        Section("settings", msg("Its settings, one by one"), tuple(_settings(case, came_from))),
    )
    from nanolens.analysis.explain import lacking

    return Explanation(case.run.name, about(case), (), None, tuple(section for section in sections if section.remarks), lacking(case))


def _ahead(case: Case) -> Iterator[Remark]:
    steps = case.whole("max_iters") or 0
    tokens, epochs = case.tokens_at(steps), case.epochs_at(steps)
    if tokens is not None and case.tokens_per_update is not None:
        words = msg(
            "{steps:count} updates x {each:tokens} = {tokens:tokens} tokens.", steps=steps, each=case.tokens_per_update.value, tokens=tokens
        )
        yield Remark("tokens_per_update", words)
    if epochs is not None and case.dataset_tokens is not None:
        yield Remark("epoch", _epochs(case, epochs, case.dataset_tokens.value))
    if tokens and case.flops_per_token is not None:
        yield Remark("flops", msg("{work:flops} of computing for the updates.", work=tokens * case.flops_per_token.value))
    if tokens and case.parameters is not None:
        yield Remark("tokens_per_parameter", msg("{ratio:about} tokens per parameter.", ratio=tokens / case.parameters.value))
    yield from _evaluations(case, steps)
    yield from _memory(case)
    if case.parameters is not None:
        size = CHECKPOINT_BYTES * case.parameters.value
        yield Remark("checkpoint", msg("A checkpoint takes about {size:bytes} on disk.", size=size))


def _epochs(case: Case, epochs: float, size: float) -> Message:
    if epochs < 1:
        return msg(
            "It will see {share:share} of the {size:tokens} training tokens once: overfitting is impossible, dropout would only cost.",
            share=epochs,
            size=size,
        )
    if epochs <= REPEATED:
        return msg(
            "That is {epochs:about} times through the {size:tokens} training tokens: nearly as good as new text each time.",
            epochs=epochs,
            size=size,
        )
    if case.parameters is not None and size > TOO_MANY_TO_MEMORISE * case.parameters.value:
        return msg(
            "That is {epochs:about} times through the {size:tokens} training tokens. They are {ratio:about} for each parameter, too many to be learned by heart; but a token is worth only {worth:share} of a new one by then.",
            epochs=epochs, size=size, ratio=size / case.parameters.value, worth=worth(epochs),
        )  # fmt: skip
    return msg(
        "That is {epochs:about} times through the {size:tokens} training tokens: expect the val loss to turn upwards on the way, and keep the best weights.",
        epochs=epochs, size=size,
    )  # fmt: skip


def _evaluations(case: Case, steps: int) -> Iterator[Remark]:
    interval, batches, accumulation = case.whole("eval_interval"), case.whole("eval_iters"), case.whole("gradient_accumulation_steps")
    if not interval or not batches or not accumulation:
        return
    # An evaluation batch is a forward pass, a third of a training micro-batch.
    share = (2 * batches / 3) / (2 * batches / 3 + interval * accumulation)
    yield Remark(
        "eval_interval",
        msg(
            "Evaluations: every {interval:count} updates, {times:count} in all, 2 x {batches:count} batches each: about {share:share} of the computing.",
            interval=interval, times=steps // interval + 1, batches=batches, share=share,
        ),
    )  # fmt: skip


def _memory(case: Case) -> Iterator[Remark]:
    batch = case.whole("batch_size")
    if case.shape is None or batch is None:
        return
    dtype, chunked = case.dtype or "float32", case.get("chunked_head")
    if not isinstance(chunked, bool):
        chunked = is_worth_chunking(batch * case.shape.block_size, case.shape.vocab_size)
    parts = memory(
        case.shape, batch_size=batch, dtype=dtype, dropout=case.number("dropout") or 0.0,
        on_gpu=not case.is_cpu, optimizer=case.text("optimizer") or "adamw", chunked_head=chunked,
    )  # fmt: skip
    yield Remark(
        "memory",
        msg(
            "Memory by formula, in {dtype:code}: about {total:bytes}: weights, gradients and optimizer {state:bytes}, activations {activations:bytes}, logits {logits:bytes}.",
            dtype=dtype, total=parts.total, state=parts.state, activations=parts.activations, logits=parts.logits,
        ),
    )  # fmt: skip


def _expected(case: Case, preset: Preset | None) -> Iterator[Remark]:
    if case.ln_vocab is not None and case.vocab_size is not None and not case.is_pretrained:
        yield Remark(
            "ln_v",
            msg("The first loss should be about ln {vocab:count} = {chance:nats}.", vocab=case.vocab_size.value, chance=case.ln_vocab),
        )
    if preset is not None and preset.val_loss is not None:
        if preset.val_loss_source is not None:
            words = msg("Val loss to expect: {val:nats} ({source}).", val=preset.val_loss, source=preset.val_loss_source)
        else:
            words = msg("Val loss to expect: {val:nats}.", val=preset.val_loss)
        yield Remark("val_loss", words)
    elif (known := case.reference) is not None:
        if known.best_val is not None and known.best_step is not None:
            words = msg(
                "The known run of this model and data ({name}) was best at {val:rough_nats}, near update {step:count}.",
                name=known.name,
                val=known.best_val,
                step=known.best_step,
            )
            yield Remark("val_loss", words)
        elif known.end_val is not None and known.end_step is not None:
            words = msg(
                "The known run of this model and data ({name}) ends at {val:rough_nats} after {step:count} updates.",
                name=known.name,
                val=known.end_val,
                step=known.end_step,
            )
            yield Remark("val_loss", words)
    for step, mean, spread in preset.curve if preset is not None else ():
        yield Remark("val_loss", msg("At step {step:count}: {mean:nats} ± {spread:nats} over seeds.", step=step, mean=mean, spread=spread))
    if preset is not None and preset.took is not None and preset.was_run:
        yield Remark("tokens_per_s", msg("It took {took}.", took=preset.took))
    if preset is not None and not preset.was_run:
        yield Remark("plateau", msg("Nobody has run this preset yet: it is made from arithmetic."))
    yield Remark(
        "tokens_per_s", msg("{command:code} says how long it would take on this machine.", command=f"nanolens plan {case.run.name}")
    )


def _settings(case: Case, came_from: Mapping[str, str]) -> Iterator[Remark]:
    for name, known in settings().items():
        if came_from.get(name, "default") != "default":
            value = as_text(case.run.get(name))
            yield Remark(name, msg("{setting:code}: {meaning}.", setting=f"{name} = {value}", meaning=known.meaning))
