"""A term of the glossary in the numbers of the run at hand."""

# ruff: noqa: E501  (sentences stay whole, so that they can be searched for)

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from nanolens.analysis.explain.about import schedule_words, tokens_per_update_words
from nanolens.analysis.explain.evaluations import bits_per_byte
from nanolens.analysis.explain.updates import LARGEST_FOR_PERPLEXITY, seen_words, true_mfu_words
from nanolens.analysis.story import epochs_words, per_parameter_words
from nanolens.config.fields import settings
from nanolens.facts.case import Case
from nanolens.message import Message, msg
from nanolens.sizing import memory


def here(name: str, case: Case) -> tuple[Message, ...]:
    """Empty where the run says nothing of it."""
    about = _ABOUT.get(name)
    if about is not None:
        return tuple(about(case))
    return tuple(_setting(case, name)) if name in settings() else ()


def _setting(case: Case, name: str) -> Iterator[Message]:
    value = case.get(name)
    if value is not None:
        yield msg("In this run: {key:code} = {value:code}.", key=name, value=value)


def _loss(case: Case) -> Iterator[Message]:
    steps, losses = case.losses
    if len(losses):
        yield msg("In this run: {loss:nats} at update {step:count}, the last one told of.", loss=float(losses[-1]), step=int(steps[-1]))
    yield from _ln_v(case)


def _ln_v(case: Case) -> Iterator[Message]:
    if case.ln_vocab is not None and case.vocab_size is not None and not case.is_vocab_guessed:
        yield msg("In this run: ln {vocab:count} = {chance:nats}.", vocab=case.vocab_size.value, chance=case.ln_vocab)
    if case.first_loss is not None:
        yield msg("It started at {first:nats}.", first=case.first_loss)


def _unigram(case: Case) -> Iterator[Message]:
    if case.unigram_nats is not None:
        yield msg("On this text the unigram entropy is {level:rough_nats}.", level=case.unigram_nats)
    if case.bigram_nats is not None:
        yield msg("On this text the bigram entropy is {level:rough_nats}.", level=case.bigram_nats)


def _val_loss(case: Case) -> Iterator[Message]:
    steps, vals = case.vals
    if len(vals):
        best = int(np.argmin(vals))
        yield msg(
            "In this run: {last:nats} at step {step:count}; the lowest was {best:nats} at step {at:count}.",
            last=float(vals[-1]), step=int(steps[-1]), best=float(vals[best]), at=int(steps[best]),
        )  # fmt: skip


def _perplexity(case: Case) -> Iterator[Message]:
    loss = _latest(case)
    if loss is not None and loss < LARGEST_FOR_PERPLEXITY:
        yield msg("In this run: e^{loss:nats} = {ppl:about}.", loss=loss, ppl=math.exp(loss))


def _bits_per_byte(case: Case) -> Iterator[Message]:
    loss = _latest(case)
    if loss is None:
        return
    value = bits_per_byte(case, loss)
    if value is None:
        yield msg(
            "In this run it cannot be said: how many bytes a token has is not known. Give {option:code}.", option="--bytes_per_token=N"
        )
    else:
        yield msg("In this run: a loss of {loss:nats} is {value:about} bits per byte.", loss=loss, value=value)


def _latest(case: Case) -> float | None:
    """The last val loss, or the last batch loss where nothing was evaluated."""
    for values in (case.vals[1], case.losses[1]):
        if len(values):
            return float(values[-1])
    return None


def _gap(case: Case) -> Iterator[Message]:
    both = np.flatnonzero(np.isfinite(case.evals.train) & np.isfinite(case.evals.val) & (case.evals.step > 0))
    if len(both):
        i = int(both[-1])
        train, val = float(case.evals.train[i]), float(case.evals.val[i])
        yield msg(
            "In this run, at step {step:count}: train {train:nats}, val {val:nats}, so val - train = {gap:nats}.",
            step=int(case.evals.step[i]), train=train, val=val, gap=val - train,
        )  # fmt: skip
    yield from _val_loss(case)


def _standard_error(case: Case) -> Iterator[Message]:
    if case.eval_noise is not None:
        yield msg("In this run: about {noise:nats} for one evaluation ({how}).", noise=case.eval_noise.value, how=case.eval_noise.how)


def _step(case: Case) -> Iterator[Message]:
    end = case.whole("max_iters")
    if end:
        yield msg("This run: {step:count} of {end:count}.", step=case.last_step, end=end)
    elif case.last_step:
        yield msg("This run: {step:count} so far.", step=case.last_step)


def _epoch(case: Case) -> Iterator[Message]:
    if case.last_step and (seen := seen_words(case, case.last_step)) is not None:
        yield msg("In this run, at step {step:count}: {seen}", step=case.last_step, seen=seen)
        yield epochs_words(case, case.epochs_at(case.last_step))


def _token(case: Case) -> Iterator[Message]:
    if case.vocab_size is not None:
        yield msg("In this run: {vocab:count} different tokens ({how}).", vocab=case.vocab_size.value, how=case.vocab_size.how)
    per_token = case.number("bytes_per_token")
    if per_token:
        yield msg("One of them holds {bytes:about} bytes on average.", bytes=per_token)


def _tokens_per_update(case: Case) -> Iterator[Message]:
    if case.tokens_per_update is not None:
        yield tokens_per_update_words(case)


def _tokens_per_parameter(case: Case) -> Iterator[Message]:
    tokens = case.tokens_at(case.last_step)
    if tokens and case.parameters is not None:
        yield per_parameter_words(case, tokens, case.parameters.value, case.epochs_at(case.last_step))


def _parameters(case: Case) -> Iterator[Message]:
    counted = case.counted
    if counted is None:
        if case.parameters is not None:
            yield msg("In this run: {count:parameters} ({how}).", count=case.parameters.value, how=case.parameters.how)
        return
    yield msg(
        "In this run: {total:count}; {inner:count} of them in the blocks; nanoGPT prints {printed:parameters}.",
        total=counted.total, inner=counted.without_embeddings, printed=counted.as_nanogpt_prints,
    )  # fmt: skip


def _learning_rate(case: Case) -> Iterator[Message]:
    if case.schedule is not None:
        yield schedule_words(case.schedule)
    rate = case.rate_at(case.last_step)
    if rate is not None and case.last_step:
        yield msg("At step {step:count} it is {rate:rate}.", step=case.last_step, rate=rate)


def _gradient_norm(case: Case) -> Iterator[Message]:
    norms = case.steps.grad_norm[np.isfinite(case.steps.grad_norm)]
    if len(norms):
        low, high = np.percentile(norms, [5, 95])
        yield msg(
            "In this run: {middle:about} in the middle, nine tenths between {low:about} and {high:about}.",
            middle=float(np.median(norms)),
            low=float(low),
            high=float(high),
        )


def _clipping(case: Case) -> Iterator[Message]:
    clipped = case.steps.clipped[np.isfinite(case.steps.clipped)]
    if len(clipped):
        yield msg("In this run {share:share} of the updates were clipped.", share=float(clipped.mean()))
    else:
        norms, clip = case.steps.grad_norm[np.isfinite(case.steps.grad_norm)], case.number("grad_clip")
        if len(norms) and clip:
            yield msg(
                "In this run {share:share} of the gradient norms are above grad_clip = {clip:number}.",
                share=float((norms > clip).mean()),
                clip=clip,
            )


def _flops(case: Case) -> Iterator[Message]:
    cost = case.flops_per_token
    if cost is None:
        return
    yield msg("In this run: {cost:flops} per token ({how}).", cost=cost.value, how=cost.how)
    tokens = case.tokens_at(case.last_step)
    if tokens:
        yield msg("{tokens:tokens} tokens make {work:flops}.", tokens=tokens, work=tokens * cost.value)


def _mfu(case: Case) -> Iterator[Message]:
    printed = case.steps.mfu_frac[np.isfinite(case.steps.mfu_frac)]
    if len(printed):
        yield msg("In this run it prints {printed:percent} in the middle.", printed=float(np.median(printed)))
    if case.step_time is not None and (words := true_mfu_words(case, case.step_time.value)) is not None:
        yield words


def _tokens_per_s(case: Case) -> Iterator[Message]:
    if case.step_time is None:
        return
    if case.tokens_per_update is not None:
        yield msg(
            "In this run: {tokens:count} tokens / {took:seconds} = {speed:tokens_per_s}.",
            tokens=case.tokens_per_update.value, took=case.step_time.value, speed=case.tokens_per_update.value / case.step_time.value,
        )  # fmt: skip
    else:
        yield msg("In this run an update takes {took:seconds}.", took=case.step_time.value)


def _memory(case: Case) -> Iterator[Message]:
    batch = case.whole("batch_size")
    if case.shape is None or batch is None:
        return
    parts = memory(
        case.shape, batch_size=batch, dtype=case.dtype or "float32", dropout=case.number("dropout") or 0.0, on_gpu=not case.is_cpu
    )
    yield msg(
        "In this run, by formula: weights, gradients and optimizer {state:bytes}, activations {activations:bytes}, logits {logits:bytes}, about {total:bytes} in all.",
        state=parts.state, activations=parts.activations, logits=parts.logits, total=parts.total,
    )  # fmt: skip
    measured = case.steps.memory_bytes[np.isfinite(case.steps.memory_bytes)]
    if len(measured):
        yield msg("Measured: {measured:bytes} at most.", measured=float(measured.max()))


def _settings(*names: str) -> Callable[[Case], Iterator[Message]]:
    def words(case: Case) -> Iterator[Message]:
        for name in names:
            yield from _setting(case, name)

    return words


_ABOUT: dict[str, Callable[[Case], Iterator[Message]]] = {
    "loss": _loss, "val_loss": _val_loss, "perplexity": _perplexity, "bits_per_byte": _bits_per_byte, "ln_v": _ln_v, "unigram": _unigram,
    "overfitting": _gap, "underfitting": _gap, "standard_error": _standard_error, "step": _step, "epoch": _epoch, "token": _token,
    "batch_size": _settings("batch_size", "block_size", "gradient_accumulation_steps"), "tokens_per_update": _tokens_per_update,
    "gradient_accumulation": _tokens_per_update, "critical_batch": _tokens_per_update, "block_size": _settings("block_size"),
    "tokens_per_parameter": _tokens_per_parameter, "scaling_law": _tokens_per_parameter, "parameters": _parameters,
    "n_embd": _settings("n_layer", "n_head", "n_embd"), "dropout": _settings("dropout"), "weight_decay": _settings("weight_decay"),
    "seed": _settings("seed"), "learning_rate": _learning_rate, "warmup": _learning_rate, "cosine": _learning_rate, "wsd": _learning_rate,
    "plateau": _learning_rate, "gradient_norm": _gradient_norm, "clipping": _clipping, "adamw": _settings("optimizer", "beta1", "beta2", "weight_decay"),
    "muon": _settings("optimizer", "matrix_learning_rate"), "flops": _flops, "mfu": _mfu, "hfu": _mfu, "tokens_per_s": _tokens_per_s,
    "memory": _memory, "compile": _settings("compile"), "dtype": _settings("dtype"), "eval_interval": _settings("eval_interval", "eval_iters"),
    "checkpoint": _settings("always_save_checkpoint", "checkpoint_interval"), "rank": _settings("devices"),
    "label_smoothing": _settings("label_smoothing"),
}  # fmt: skip
