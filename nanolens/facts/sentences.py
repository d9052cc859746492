"""One sentence per figure of a run: what explain, its story, the glossary and compare say of it, in the same words.

A sentence inside another passes its values on (`**inner.args`), so that `--json` has them all.
"""

from __future__ import annotations

import math

import numpy as np

from nanolens.facts.case import Case
from nanolens.facts.laws import FRESH_EPOCHS
from nanolens.message import Message, msg
from nanolens.sizing.memory import is_worth_chunking, memory
from nanolens.sizing.schedule import Schedule

TYPICAL_MFU = (0.30, 0.60)  # of small models on one GPU
LARGEST_FOR_PERPLEXITY = 20.0  # beyond this e^loss says nothing to anybody
FLAT_LR = 0.01  # of the learning rate's way down: at its peak or at its end as far as anybody can see
SAME_PEAK = 0.05  # printed and true MFU, or two peaks, that agree so far
TRAINER_NAMES = {
    "nanogpt": "nanoGPT",
    "hf-trainer": "Hugging Face Trainer",
    "lightning": "Lightning",
    "megatron": "Megatron-LM",
    "deepspeed": "DeepSpeed",
    "mingpt": "minGPT",
    "mlx": "MLX",
    "maxtext": "MaxText",
    "minimind": "MiniMind",
    "olmo": "OLMo",
    "composer": "Composer",
    "keras": "Keras",
    "wandb": "W&B",
    "tensorboard": "TensorBoard",
}


def trainer_name(case: Case) -> Message:
    trainer = case.run.conventions.trainer
    if trainer in ("", "unknown", "tqdm"):
        return msg("an unknown trainer")
    return msg("{name}", TRAINER_NAMES.get(trainer, trainer))


def unit_of(case: Case) -> Message:
    return msg("characters") if case.is_char else msg("tokens")


# --- the model and what a token costs


def model_words(case: Case) -> Message | None:
    shape, counted = case.shape, case.counted
    if shape is None or counted is None:
        if case.parameters is None:
            return None
        return msg("Model: {count:parameters} parameters ({how}).", case.parameters.value, case.parameters.how)
    values: dict[str, object] = {
        "layers": shape.n_layer,
        "heads": shape.n_head,
        "width": shape.n_embd,
        "block": shape.block_size,
        "vocab": shape.vocab_size,
        "total": counted.total,
        "inner": counted.without_embeddings,
    }
    if case.run.conventions.trainer == "nanogpt":
        return msg(
            "Model: {layers:count block|blocks}, {heads:count head|heads}, width {width:count}, context {block:count}, "
            "vocabulary {vocab:count}: {total:parameters} parameters in total, {inner:parameters} without "
            "embeddings; nanoGPT prints {printed:parameters} because it leaves out the position embeddings.",
            **values,
            printed=counted.as_nanogpt_prints,
        )
    return msg(
        "Model: {layers:count block|blocks}, {heads:count head|heads}, width {width:count}, context {block:count}, "
        "vocabulary {vocab:count}: {total:parameters} parameters in total, {inner:parameters} without embeddings.",
        **values,
    )


def flops_words(case: Case) -> Message | None:
    cost, shape, counted = case.flops_per_token, case.shape, case.counted
    if cost is None:
        return None
    if shape is None or counted is None or cost.origin != "inferred":
        return msg("Cost: {cost:flops} per token ({how}).", cost.value, cost.how)
    return msg(
        "Cost: {cost:flops} per token: 6 x {matmul:count} parameters that each token is multiplied with, and "
        "12 x {layers:count} x {width:count} x {block:count} for attention.",
        cost.value,
        counted.matmul,
        shape.n_layer,
        shape.n_embd,
        shape.block_size,
    )


def compute_words(case: Case, step: int) -> Message | None:
    tokens = case.tokens_at(step)
    if not tokens or case.flops_per_token is None:
        return None
    return msg("{work:flops} of compute.", tokens * case.flops_per_token.value)


def memory_words(case: Case) -> Message | None:
    batch = case.whole("batch_size")
    if case.shape is None or batch is None:
        return None
    dtype, chunked = case.dtype or "float32", case.get("chunked_head")
    if not isinstance(chunked, bool):  # only our own trainer chooses for itself
        worth = is_worth_chunking(batch * case.shape.block_size, case.shape.vocab_size)
        chunked = case.run.conventions.trainer == "nanolens" and worth
    parts = memory(
        case.shape,
        batch_size=batch,
        dtype=dtype,
        dropout=case.number("dropout") or 0.0,
        on_gpu=not case.is_cpu,
        optimizer=case.text("optimizer") or "adamw",
        chunked_head=chunked,
    )
    return msg(
        "Estimated memory in {dtype:code}: about {total:bytes}: weights, gradients and optimizer {state:bytes}, "
        "activations {activations:bytes}, logits {logits:bytes}.",
        dtype,
        parts.total,
        parts.state,
        parts.activations,
        parts.logits,
    )


# --- tokens


def tokens_per_update_words(case: Case) -> Message | None:
    per_update = case.tokens_per_update
    if per_update is None:
        return None
    batch, block = case.whole("batch_size") or 0, case.whole("block_size") or 0
    accumulation = case.whole("gradient_accumulation_steps") or 0
    values: dict[str, object] = {"batch": batch, "block": block, "tokens": per_update.value}
    if not batch * block * accumulation or batch * block * accumulation != per_update.value:
        return msg("One update: {tokens:tokens} tokens ({how}).", per_update.value, per_update.how)
    if accumulation == 1:
        return msg(
            "One update: {batch:count sequence|sequences} x {block:count} tokens = {tokens:count} tokens, in one "
            "batch.",
            **values,
        )
    return msg(
        "One update: {batch:count sequence|sequences} x {block:count} tokens x "
        "{accumulation:count micro-batch|micro-batches} = {tokens:count} tokens.",
        **values,
        accumulation=accumulation,
    )


def tokens_words(case: Case, step: int) -> Message | None:
    tokens = case.tokens_at(step)
    if tokens is None or case.tokens_per_update is None:
        return None
    each = case.tokens_per_update.value
    return msg("{steps:count update|updates} x {each:tokens} = {tokens:tokens} tokens.", step, each, tokens)


def seen_words(case: Case, step: int) -> Message | None:
    """Tokens and epochs at a step."""
    tokens = case.tokens_at(step)
    if tokens is None:
        return None
    if case.epochs_at(step) is None:
        return msg("Seen by then: {tokens:tokens} {unit}.", tokens, unit_of(case))
    passes = epochs_words(case, step)
    values = {**passes.args, "tokens": tokens, "unit": unit_of(case)}
    return msg("Seen by then: {tokens:tokens} {unit}. {passes}", **values, passes=passes)


def epochs_words(case: Case, step: int) -> Message:
    epochs, size = case.epochs_at(step), case.dataset_tokens
    if epochs is None or size is None:
        return msg("The number of epochs is not known: the log does not say how large the training text is.")
    if epochs < 1:
        return msg(
            "{share:share} of the {size:tokens} training tokens: less than one epoch, so nothing can be memorised.",
            epochs,
            size.value,
        )
    return msg("{epochs:about} epochs of {size:count} training {unit}.", epochs, size.value, unit_of(case))


def per_parameter_words(case: Case, step: int) -> Message | None:
    tokens, epochs, size = case.tokens_at(step), case.epochs_at(step), case.dataset_tokens
    if not tokens or case.parameters is None:
        return None
    parameters = case.parameters.value
    if epochs is not None and epochs >= FRESH_EPOCHS and size is not None:
        return msg(
            "{ratio:about} tokens seen per parameter ({count:parameters} parameters), but only {fresh:about} "
            "distinct ones: the rest is repetition.",
            tokens / parameters,
            parameters,
            size.value / parameters,
        )
    return msg(
        "{ratio:about} tokens seen per parameter ({count:parameters} parameters). About 20 makes the best use of a "
        "fixed compute budget; beyond that each further token brings less.",
        tokens / parameters,
        parameters,
    )


# --- losses


def perplexity_words(loss: float) -> Message | None:
    if not loss < LARGEST_FOR_PERPLEXITY:
        return None
    return msg(
        "Perplexity e^{loss:nats} = {ppl:about}: as uncertain as an equal choice among that many tokens.",
        loss,
        math.exp(loss),
    )


def units_words(case: Case, loss: float) -> Message | None:
    """A loss as perplexity and, where the text's bytes are known, in bits per byte."""
    if loss > LARGEST_FOR_PERPLEXITY:
        return None
    ppl, per_byte = math.exp(loss), bits_per_byte(case, loss)
    if per_byte is not None:
        return msg("In other units: perplexity {ppl:about}, {bpb:about} bits per byte.", ppl, per_byte)
    if not case.is_char and case.vocab_size is not None:
        return msg(
            "In other units: perplexity {ppl:about}. It is per token (a piece of a word), so it cannot be "
            "compared with a loss per character.",
            ppl,
        )
    return msg("In other units: perplexity {ppl:about}.", ppl)


def bits_per_byte(case: Case, loss: float) -> float | None:
    """loss / ln 2 x tokens / bytes. The characters of Shakespeare are one byte each."""
    per_token = case.number("bytes_per_token")
    if per_token is None and case.corpus is not None and case.corpus.name == "shakespeare_char":
        per_token = 1.0
    return None if not per_token else loss / math.log(2) / per_token


def landmark_words(case: Case) -> Message | None:
    """The losses of random guessing, of token frequencies and of token pairs."""
    chance, unigram, bigram = case.ln_vocab, case.unigram_nats, case.bigram_nats
    if chance is None or case.vocab_size is None:
        return None
    values: dict[str, object] = {"vocab": case.vocab_size.value, "chance": chance}
    if case.is_vocab_guessed:
        return msg(
            "The vocabulary size is not stated. If it is {vocab:count} tokens, whose ln is near the first loss, "
            "random guessing gives {chance:nats}.",
            **values,
        )
    if unigram is not None and bigram is not None:
        return msg(
            "For comparison: random guessing gives ln {vocab:count} = {chance:nats}, knowing only token frequencies "
            "{unigram:nats}, knowing only the previous token {bigram:nats}.",
            **values,
            unigram=unigram,
            bigram=bigram,
        )
    if unigram is not None:
        return msg(
            "For comparison: random guessing gives ln {vocab:count} = {chance:nats}, knowing only token frequencies "
            "about {unigram:rough_nats}.",
            **values,
            unigram=unigram,
        )
    return msg("For comparison: random guessing gives ln {vocab:count} = {chance:nats}.", **values)


def start_words(case: Case) -> Message | None:
    first, chance = case.first_loss, case.ln_vocab
    if first is None:
        return None
    if chance is None or case.is_vocab_guessed:
        return msg("It starts at {first:nats}.", first)
    return msg("It starts at {first:nats}; random guessing gives {chance:nats}.", first, chance)


def course_words(case: Case) -> tuple[bool, Message] | None:
    """(whether it has turned upwards, the last val loss against the lowest)."""
    steps, vals = case.vals
    if not len(vals):
        return None
    best, last = int(np.argmin(vals)), float(vals[-1])
    at = {"val": last, "step": int(steps[-1])}
    rise = last - float(vals[best])
    noise = case.eval_noise.value if case.eval_noise is not None else 0.0
    if len(vals) == 1:
        return False, msg("Its only evaluation with a val loss is {val:nats}, at step {step:count}.", **at)
    if best == len(vals) - 1:
        return False, msg("The last val loss, {val:nats} at step {step:count}, is the lowest.", **at)
    if rise <= 2 * math.sqrt(2) * noise:
        return False, msg(
            "The last val loss, {val:nats} at step {step:count}, is {rise:nats} above the lowest (step "
            "{best:count}): within the scatter of the evaluations.",
            **at,
            rise=rise,
            best=int(steps[best]),
        )
    return True, msg(
        "Turning point: the val loss was lowest at step {step:count}, {best:nats}, and has risen by {rise:nats} since.",
        int(steps[best]),
        float(vals[best]),
        rise,
    )


def gap_words(case: Case, i: int) -> Message | None:
    """Val against train loss of evaluation `i`."""
    evals = case.evals
    gap, error = float(evals.val[i]) - float(evals.train[i]), math.hypot(evals.train_se[i], evals.val_se[i])
    if not math.isfinite(gap):
        return None
    if not math.isfinite(error):
        error = math.sqrt(2) * case.eval_noise.value if case.eval_noise is not None else 0.0
    if gap == 0:
        return msg("Val and train are equal: nothing has been memorised.")
    if gap < 0:
        return msg("Val is {gap:nats} below train: nothing has been memorised.", -gap)
    if gap <= 2 * error:
        return msg(
            "Val is {gap:nats} above train, within the scatter of the evaluations: nothing has been memorised so far.",
            gap,
        )
    return msg(
        "Val is {gap:nats} above train: that is how much better the model knows its training text than new text.", gap
    )


def reference_words(case: Case, step: int, val: float) -> Message | None:
    """A val loss against the published run of this model and data: at this step, at its best or at its end."""
    known = case.reference
    if known is None or not math.isfinite(val):
        return None
    values: dict[str, object] = {"name": known.name, "val": val}
    same_batch = case.tokens_per_update is not None and known.tokens_per_update == case.tokens_per_update.value
    before = [point for point in known.val_by_step if point[0] <= step] if same_batch else []
    after = [point for point in known.val_by_step if point[0] >= step] if same_batch else []
    if before and before[-1][0] == step:
        return msg(
            "The reference run of this model and data ({name}) had {theirs:nats} here; this one has {val:nats}.",
            **values,
            theirs=before[-1][1],
        )
    if before and after:
        return msg(
            "The reference run of this model and data ({name}) had {high:nats} at step {left:count} and {low:nats} "
            "at step {right:count}; this one has {val:nats}.",
            **values,
            high=before[-1][1],
            left=before[-1][0],
            low=after[0][1],
            right=after[0][0],
        )
    if known.best_val is not None and known.best_step is not None:
        best = {"name": known.name, "best": known.best_val, "step": known.best_step}
        if val <= known.best_val + known.spread:
            return msg(
                "The reference run of this model and data ({name}) has its best val loss, {best:rough_nats}, near "
                "iteration {step:count}. This run is as good.",
                **best,
            )
        return msg(
            "The reference run of this model and data ({name}) has its best val loss, {best:rough_nats}, near "
            "iteration {step:count}. This run is {off:rough_nats} above it.",
            **best,
            off=val - known.best_val,
        )
    if known.end_val is None or known.end_step is None:
        return None
    return msg(
        "The reference run of this model and data ({name}) ends at {end:rough_nats} after update {steps:count}; this "
        "one has {val:nats} after update {step:count}.",
        **values,
        end=known.end_val,
        steps=known.end_step,
        step=step,
    )


# --- the learning rate


def schedule_words(plan: Schedule) -> Message:
    course = lr_course(plan)
    return msg("Learning rate: {schedule}.", **course.args, schedule=course)


def lr_course(plan: Schedule) -> Message:
    """The whole schedule, to stand inside a sentence."""
    if not plan.decay_lr or plan.min_lr == plan.learning_rate:
        return msg("{peak:rate} throughout", plan.learning_rate)
    rise = msg("{peak:rate} from the first update on", plan.learning_rate)
    if plan.warmup_iters:
        rise = msg("up to {peak:rate} over {warmup:count update|updates}", plan.learning_rate, plan.warmup_iters)
    values: dict[str, object] = {"rise": rise, "least": plan.min_lr, "ends": plan.decay_ends}
    if plan.shape == "wsd":
        return msg(
            "{rise}, constant until {begins:count}, then linearly down to {least:rate} at {ends:count}",
            **values,
            begins=plan.decay_begins,
        )
    if plan.shape == "linear":
        return msg("{rise}, then linearly down to {least:rate} at {ends:count}", **values)
    return msg("{rise}, then cosine decay to {least:rate} at {ends:count}", **values)


def lr_words(plan: Schedule | None, step: int, lr: float) -> Message:
    """Where on its schedule the learning rate is at a step."""
    if plan is None:
        return msg("Learning rate: {lr:rate}.", lr)
    if not plan.decay_lr:
        return schedule_words(plan)
    values: dict[str, object] = {"lr": lr, "least": plan.min_lr, "ends": plan.decay_ends}
    peak, warm = plan.learning_rate, plan.warmup_iters
    done = (peak - lr) / (peak - plan.min_lr) if peak > plan.min_lr else 1.0
    if step < warm:
        return msg("Learning rate: {lr:rate}, still warming up to {peak:rate} (update {until:count}).", lr, peak, warm)
    if step < plan.decay_begins:
        return msg("Learning rate: {lr:rate}, its peak; decay starts at update {begins:count}.", lr, plan.decay_begins)
    if step >= plan.decay_ends:
        return msg("Learning rate: {lr:rate}, the end of its decay.", lr)
    if done < FLAT_LR:
        return msg(
            "Learning rate: {lr:rate}, still near its peak; it decays to {least:rate} by update {ends:count}.", **values
        )
    if done > 1 - FLAT_LR:
        return msg(
            "Learning rate: {lr:rate}, almost at the end of its decay (update {ends:count}).", lr, plan.decay_ends
        )
    return msg(
        "Learning rate: about {lr:rough_rate}, decaying from {peak:rate} to {least:rate} at update {ends:count}.",
        **values,
        peak=peak,
    )


# --- speed


def speed_words(case: Case, took: float) -> Message:
    if case.tokens_per_update is None:
        return msg("time {took:ms}: one whole update (forward, backward, optimizer step).", took)
    speed = case.tokens_per_update.value / took
    return msg(
        "time {took:ms}: one whole update (forward, backward, optimizer step): {speed:tokens_per_s}.", took, speed
    )


def device_words(case: Case) -> Message | None:
    if case.peak is not None:
        return msg("Device: {peak:flops_per_s} at most ({how}).", case.peak.value, case.peak.how)
    if not case.text("hardware"):
        return None
    return msg("Device: {name:code}; its peak is not known, so its utilisation cannot be given.", case.text("hardware"))


def printed_mfu_words(case: Case, printed: float, took: float = math.nan) -> Message:
    meaning = mfu_meaning(case, printed, took)
    return msg("mfu {printed:percent}: {meaning}.", **meaning.args, printed=printed, meaning=meaning)


def mfu_meaning(case: Case, printed: float, took: float = math.nan) -> Message:
    """What the trainer's printed MFU is a fraction of; `took` is the time of the update it is printed for."""
    assumed, trainer = case.run.conventions.peak_flops, trainer_name(case)
    true = share_of_peak(case, took)
    if assumed is None:
        return msg("the fraction of the device's peak that training uses, as computed by {trainer}", trainer)
    if case.peak is not None and true is not None and printed > 0 and abs(true / printed - 1) < SAME_PEAK:
        return msg("the fraction of this hardware's peak, {peak:flops_per_s}, that training uses", case.peak.value)
    if case.run.conventions.mfu_is_smoothed:
        return msg(
            "a fraction of {peak:flops_per_s}, the peak of an A100, because {trainer} assumes that for every device; "
            "and a moving average (0.9 x the previous value + 0.1 x this line's)",
            assumed,
            trainer,
        )
    return msg("a fraction of {peak:flops_per_s}, which {trainer} assumes for every device", assumed, trainer)


def assumes_another_peak(case: Case) -> bool:
    """Whether the printed MFU is relative to a peak that this device does not have."""
    assumed = case.run.conventions.peak_flops
    return bool(assumed and case.peak is not None and abs(case.peak.value / assumed - 1) > SAME_PEAK)


def share_of_peak(case: Case, took: float) -> float | None:
    per_token, per_update = case.flops_per_token, case.tokens_per_update
    if per_token is None or per_update is None or case.peak is None or not case.devices or not took > 0:
        return None
    return per_token.value * per_update.value / took / (case.peak.value * case.devices)


def achieved_words(case: Case, took: float) -> Message | None:
    """What an update of that length achieves, and the share of this hardware's own peak."""
    per_token, per_update = case.flops_per_token, case.tokens_per_update
    if per_token is None or per_update is None or not took > 0:
        return None
    values: dict[str, object] = {"cost": per_token.value, "tokens": per_update.value, "took": took}
    values["achieved"] = per_token.value * per_update.value / took
    share = share_of_peak(case, took)
    if share is None or case.peak is None:
        return msg(
            "Achieved: {cost:flops} per token x {tokens:tokens} tokens / {took:ms} = {achieved:flops_per_s}.", **values
        )
    values |= {"share": share, "peak": case.peak.value * (case.devices or 1)}
    if case.is_cpu and share <= 1:  # what is typical is known of GPUs only
        return msg(
            "Achieved: {cost:flops} per token x {tokens:tokens} tokens / {took:ms} = {achieved:flops_per_s}, which "
            "is {share:share} of this hardware's peak of {peak:flops_per_s}.",
            **values,
        )
    return msg(
        "Achieved: {cost:flops} per token x {tokens:tokens} tokens / {took:ms} = {achieved:flops_per_s}, which is "
        "{share:share} of this hardware's peak of {peak:flops_per_s}. {verdict}",
        **values,
        verdict=_typical_mfu(share),
    )


def _typical_mfu(share: float) -> Message:
    low, high = TYPICAL_MFU
    if share > 1:
        return msg(
            "More than 100% is impossible: the peak, the FLOP count or the tokens per update do not match this run."
        )
    if share < low:
        return msg("Small models on one GPU usually reach 30 to 60%.")
    if share <= high:
        return msg("That is typical: small models on one GPU reach 30 to 60%.")
    return msg("That is high: small models on one GPU usually reach 30 to 60%.")
