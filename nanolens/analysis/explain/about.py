"""What is trained, on what, and what one update costs: the figures that the lines are read against."""

# ruff: noqa: E501  (sentences stay whole, so that they can be searched for)

from __future__ import annotations

from collections.abc import Iterator

from nanolens.analysis.explanation import Remark, Section
from nanolens.facts.case import Case
from nanolens.message import Message, msg
from nanolens.sizing import Schedule

CLAIM_SLACK = 0.15  # "124M" for 123.6M is no mismatch
TRAINERS = {
    "nanogpt": "nanoGPT",
    "hf-trainer": "Hugging Face Trainer",
    "lightning": "Lightning",
    "tqdm": "tqdm",
    "wandb": "W&B",
    "tensorboard": "TensorBoard",
}


def about(case: Case) -> Section:
    remarks = [*_reading(case), *_model(case), *_data(case), *_update(case), *_schedule(case), *_device(case)]
    return Section("about", msg("What is trained"), tuple(remarks))


def _reading(case: Case) -> Iterator[Remark]:
    run = case.run
    if len(run.steps) or len(run.evals):
        words = msg(
            "Written by {trainer}, up to step {last:count}. Rows of updates: {updates:count}; evaluations: {evals:count}.",
            trainer=trainer_name(case, msg("an unknown trainer")), updates=len(run.steps), evals=len(run.evals), last=case.last_step,
        )  # fmt: skip
        yield Remark("step", words)
    if run.reading.not_understood:
        yield Remark("step", msg("Lines not understood, and left out: {count:count}.", count=run.reading.not_understood))


def trainer_name(case: Case, unknown: Message | None = None) -> Message:
    trainer = case.run.words.trainer
    if trainer in ("", "unknown", "csv", "jsonl"):
        return unknown or msg("this trainer")
    return msg("{name}", name=TRAINERS.get(trainer, trainer))


def _model(case: Case) -> Iterator[Remark]:
    shape, counted = case.shape, case.counted
    if shape is not None and counted is not None:
        values = {
            "layers": shape.n_layer, "heads": shape.n_head, "width": shape.n_embd, "block": shape.block_size, "vocab": shape.vocab_size,
            "total": counted.total, "inner": counted.without_embeddings,
        }  # fmt: skip
        words = msg(
            "Model: {layers:count} blocks, {heads:count} heads, width {width:count}, context {block:count}, vocabulary {vocab:count}: {total:parameters} parameters in all, {inner:parameters} without the embeddings.",
            **values,
        )
        if case.run.words.trainer == "nanogpt":
            words = msg(
                "Model: {layers:count} blocks, {heads:count} heads, width {width:count}, context {block:count}, vocabulary {vocab:count}: {total:parameters} parameters in all, {inner:parameters} without the embeddings; nanoGPT prints {printed:parameters}, it leaves out the position table.",
                **values, printed=counted.as_nanogpt_prints,
            )  # fmt: skip
        yield Remark("parameters", words)
    elif case.parameters is not None:
        yield Remark(
            "parameters", msg("Model: {count:parameters} parameters ({how}).", count=case.parameters.value, how=case.parameters.how)
        )
    claimed = case.number("claimed_parameters")
    if claimed and case.parameters is not None and abs(case.parameters.value / claimed - 1) > CLAIM_SLACK:
        yield Remark(
            "parameters",
            msg(
                "Its name or comment claims {claimed:parameters}. That is not this model: the shapes make {total:parameters}.",
                claimed=claimed, total=case.parameters.value,
            ),
        )  # fmt: skip


def _data(case: Case) -> Iterator[Remark]:
    tokens, name = case.dataset_tokens, case.text("dataset")
    if tokens is not None:
        if name:
            words = msg("Data: {name:code}, {count:count} {unit} for training.", name=name, count=tokens.value, unit=unit_of(case))
        else:
            words = msg("Data: {count:count} {unit} for training.", count=tokens.value, unit=unit_of(case))
        yield Remark("epoch", words)
    elif name:
        yield Remark("epoch", msg("Data: {name:code}; how many tokens it has is not known, so epochs cannot be counted.", name=name))


def _update(case: Case) -> Iterator[Remark]:
    per_update = case.tokens_per_update
    if per_update is not None:
        yield Remark("tokens_per_update", tokens_per_update_words(case))
    cost = case.flops_per_token
    if cost is None:
        return
    shape, counted = case.shape, case.counted
    if shape is not None and counted is not None and cost.origin == "inferred":
        yield Remark(
            "flops",
            msg(
                "Cost: {cost:flops} per token: 6 x {matmul:count} parameters that a token is multiplied with, and 12 x {layers:count} x {width:count} x {block:count} for attention.",
                cost=cost.value, matmul=counted.matmul, layers=shape.n_layer, width=shape.n_embd, block=shape.block_size,
            ),
        )  # fmt: skip
    else:
        yield Remark("flops", msg("Cost: {cost:flops} per token ({how}).", cost=cost.value, how=cost.how))


def tokens_per_update_words(case: Case) -> Message:
    per_update = case.tokens_per_update
    assert per_update is not None
    batch, block, accumulation = case.whole("batch_size"), case.whole("block_size"), case.whole("gradient_accumulation_steps")
    if batch and block and accumulation == 1 and batch * block == per_update.value:
        return msg(
            "One update: {batch:count} sequences x {block:count} tokens = {tokens:count} tokens, in one batch.",
            batch=batch, block=block, tokens=per_update.value,
        )  # fmt: skip
    if batch and block and accumulation and batch * block * accumulation == per_update.value:
        return msg(
            "One update: {batch:count} sequences x {block:count} tokens x {accumulation:count} micro-batches = {tokens:count} tokens.",
            batch=batch, block=block, accumulation=accumulation, tokens=per_update.value,
        )  # fmt: skip
    return msg("One update: {tokens:tokens} tokens ({how}).", tokens=per_update.value, how=per_update.how)


def _schedule(case: Case) -> Iterator[Remark]:
    plan = case.schedule
    if plan is None:
        return
    yield Remark("learning_rate", schedule_words(plan))


def schedule_words(plan: Schedule) -> Message:
    if not plan.decay_lr:
        return msg("Learning rate: {rate:rate} throughout.", rate=plan.learning_rate)
    rise = (
        msg("up to {peak:rate} over {warmup:count} updates", peak=plan.learning_rate, warmup=plan.warmup_iters)
        if plan.warmup_iters
        else msg("{peak:rate} from the first update on", peak=plan.learning_rate)
    )
    if plan.shape == "wsd":
        return msg(
            "Learning rate: {rise}, constant until {begins:count}, then in a straight line down to {least:rate} at {ends:count}.",
            rise=rise, begins=plan.decay_begins, least=plan.min_lr, ends=plan.decay_ends,
        )  # fmt: skip
    if plan.shape == "linear":
        return msg(
            "Learning rate: {rise}, then in a straight line down to {least:rate} at {ends:count}.",
            rise=rise, least=plan.min_lr, ends=plan.decay_ends,
        )  # fmt: skip
    return msg(
        "Learning rate: {rise}, then along a cosine down to {least:rate} at {ends:count}.",
        rise=rise, least=plan.min_lr, ends=plan.decay_ends,
    )  # fmt: skip


def _device(case: Case) -> Iterator[Remark]:
    if case.peak is not None:
        yield Remark("mfu", msg("Device: can do {peak:flops_per_s} at best ({how}).", peak=case.peak.value, how=case.peak.how))
    elif case.text("hardware"):
        yield Remark("mfu", msg("Device: {name:code}; its peak is not known, so nothing is said of its use.", name=case.text("hardware")))


def unit_of(case: Case) -> Message:
    return msg("characters") if case.is_char else msg("tokens")
