"""The words of training, each in a few sentences; with a run at hand, in that run's own numbers."""

# ruff: noqa: E501  (a book of sentences: each stays whole, so that it can be searched for)

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nanolens.config.fields import as_text, settings
from nanolens.errors import fault
from nanolens.message import Message, msg

if TYPE_CHECKING:
    from nanolens.facts.case import Case


@dataclass(frozen=True)
class Term:
    name: str
    title: Message
    meaning: tuple[Message, ...]
    also: tuple[str, ...] = ()  # other names that people type
    see: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """A term as it is answered: the meaning, and what it is in the run at hand."""

    term: Term
    here: tuple[Message, ...] = ()


def look_up(word: str, case: Case | None = None) -> Entry:
    term = term_named(word)
    if term is None:
        near = nearest(word)
        raise fault(
            msg("the glossary has no term {word:code}", word=word),
            fix=msg("did you mean {nearest:code}?", nearest=near) if near else msg("the terms are {terms:code}", terms=names()),
        )
    if case is None:
        return Entry(term)
    from nanolens.analysis.glossary_numbers import here

    return Entry(term, here(term.name, case))


def names() -> list[str]:
    return [term.name for term in TERMS]


def term_named(word: str) -> Term | None:
    """By name or another name of it; a setting of a run is a term too."""
    plain = _plain(word)
    for term in TERMS:
        if plain in map(_plain, (term.name, *term.also)):
            return term
    known = {_plain(name): setting for name, setting in settings().items()}.get(plain)
    if known is None:
        return None
    default = msg("A setting of a run; its default is {default:code}.", default=as_text(known.default))
    return Term(known.name, msg("{name:code}: {meaning}", name=known.name, meaning=known.meaning), (default,))


def nearest(word: str) -> str | None:
    spelled = {_plain(name): term.name for term in TERMS for name in (term.name, *term.also)} | {_plain(name): name for name in settings()}
    near = difflib.get_close_matches(_plain(word), spelled, n=1, cutoff=0.6)
    return spelled[near[0]] if near else None


def _plain(word: str) -> str:
    return "".join(letter for letter in word.lower() if letter.isalnum())


def _term(name: str, title: Message, *meaning: Message, also: Sequence[str] = (), see: Sequence[str] = ()) -> Term:
    return Term(name, title, meaning, tuple(also), tuple(see))


TERMS: tuple[Term, ...] = (
    # --- how good the model is
    _term(
        "loss",
        msg("Loss: how surprised the model is by the next token"),
        msg("For each position the model gives every token of its vocabulary a probability. The loss is minus the natural logarithm of the probability that it gave to the token that really came next, averaged over all positions. Its unit is nats per token."),
        msg("0 would be certainty. ln(vocabulary) is plain guessing: 4.174 for 65 characters, 10.825 for GPT-2's 50,257 tokens. An untrained model starts there."),
        msg("Losses can be set side by side only for the same tokenizer and the same text: 1.47 nats per character is not better than 2.85 nats per GPT-2 token."),
        also=("cross_entropy", "crossentropy", "nats", "train_loss", "batch_loss", "training_loss"), see=("perplexity", "bits_per_byte", "val_loss", "ln_v"),
    ),
    _term(
        "val_loss",
        msg("Val loss: the loss on text that the model is not trained on"),
        msg("An evaluation stops training, switches dropout off and measures the loss on a few batches of both splits. The val loss says how well the model does on new text; the train loss of the same evaluation is its partner for comparison."),
        msg("The loss printed at each update is not that partner: it is of one batch, with dropout on, and it scatters."),
        also=("validation_loss", "validation", "eval_loss", "valloss", "evaluation", "eval"), see=("standard_error", "overfitting", "loss"),
    ),
    _term(
        "perplexity",
        msg("Perplexity: the loss as a number of choices"),
        msg("Perplexity is e to the power of the loss: among how many equally likely tokens the model is still hesitating. A loss of 1.4697 is a perplexity of 4.35; a loss of 0 is a perplexity of 1."),
        msg("It depends on the tokenizer just as the loss does."),
        also=("ppl",), see=("loss", "bits_per_byte"),
    ),
    _term(
        "bits_per_byte",
        msg("Bits per byte: the loss that can be compared across tokenizers"),
        msg("loss / ln 2 x tokens / bytes of the same text: how many bits the model would need to store one byte of it. It counts the text and not the tokens, so a model on characters and a model on GPT-2 tokens can be compared, on the same raw text only."),
        msg("Typical: 2.1 for nanoGPT's character model of Shakespeare, 0.9 for GPT-2 124M on web text."),
        also=("bpb", "bits_per_character", "bpc"), see=("loss", "tokenizer"),
    ),
    _term(
        "ln_v",
        msg("ln V: the loss of pure guessing"),
        msg("A model that gives all V tokens the same probability has the loss ln V. A freshly initialised GPT does just that, so the first evaluation should be near it: well above means a bad initialisation, well below means that the model sees the answer."),
        also=("lnv", "initial_loss", "uniform", "chance"), see=("loss", "unigram"),
    ),
    _term(
        "unigram",
        msg("Unigram and bigram entropy: two landmarks on the way down"),
        msg("The unigram entropy is the best loss that is possible with knowing only how frequent each token is; the bigram entropy with knowing only the token before. A model passes the first within its first hundred updates or so. One that stays at either has not learned to use its context."),
        also=("bigram", "entropy", "unigram_entropy", "bigram_entropy"), see=("loss", "ln_v"),
    ),
    _term(
        "overfitting",
        msg("Overfitting: learning the training text by heart"),
        msg("The val loss has a minimum and rises again while the train loss goes on falling: from there on the model stores its training text instead of learning the language. It needs many passes over the same text; within the first pass it is impossible."),
        msg("Two losses that are close together and both still falling are the opposite of it, whatever their values are."),
        msg("Against it: stop at the minimum, take more text, then dropout and weight decay."),
        also=("overfit", "memorising", "memorizing", "generalisation_gap", "gap"), see=("epoch", "dropout", "underfitting", "val_loss"),
    ),
    _term(
        "underfitting",
        msg("Underfitting: more could be learned than was"),
        msg("Train loss and val loss are close together and higher than the text allows. The model is too small, or it was trained too briefly, or with a wrong learning rate. Dropout makes it worse."),
        also=("underfit", "capacity"), see=("overfitting", "tokens_per_parameter"),
    ),
    _term(
        "standard_error",
        msg("Standard error: how far a measured loss may be off"),
        msg("An evaluation sees a sample of the text. With K batches whose losses have the standard deviation s, its mean is uncertain by s / sqrt(K). Two evaluations on different batches differ for certain only when they are more than 2 x sqrt(SE1^2 + SE2^2) apart; on the same batches the differences are compared batch by batch, which is several times sharper."),
        msg("The best of many evaluations is partly luck: the lowest of 20 is about 1.9 standard errors too good."),
        also=("se", "noise", "error_bar", "confidence", "uncertainty"), see=("val_loss", "seed"),
    ),
    _term(
        "plateau",
        msg("Plateau: a loss that hardly moves"),
        msg("With a constant learning rate the loss looks flat long before the model has stopped learning: the last part, 0.1 nats and more, comes while the learning rate falls. Flat before the decay is expected; flat at the end of the decay is the limit of this model, this text and this time."),
        also=("stalled", "flat"), see=("learning_rate", "wsd", "underfitting"),
    ),
    _term(
        "spike",
        msg("Spike: the loss jumps up within a few updates"),
        msg("A spike that is gone within a hundred updates needs nothing. One that leaves the loss higher calls for going back to a checkpoint before it. Usual causes: learning rate too high or warm-up too short, beta2 = 0.999 where 0.95 is safer, float16 overflow, a stretch of garbage in the data."),
        also=("loss_spike", "divergence", "explosion"), see=("gradient_norm", "clipping", "nan"),
    ),
    _term(
        "nan",
        msg("NaN: the arithmetic has broken"),
        msg("Not a number: the result of infinity minus infinity, or 0 / 0. Once it is in the weights nothing mends them; the run has to go back to a checkpoint. Causes are float16 overflow, a learning rate far too high, or a broken kernel. Placeholders are no NaN: nanoGPT prints mfu -100.00% before it has measured."),
        also=("inf", "infinity", "non_finite"), see=("loss_scale", "spike", "dtype"),
    ),
    # --- how much it has seen
    _term(
        "step",
        msg("Step, iteration, update: the weights changed once"),
        msg("One update takes a batch, computes the loss, the gradients, and changes all weights once. In nanolens, step k means: k updates are done. nanoGPT counts from 0: its `iter k` is the update from step k to k + 1, its `step k` an evaluation at step k."),
        also=("iter", "iteration", "update", "max_iters"), see=("tokens_per_update", "epoch"),
    ),
    _term(
        "epoch",
        msg("Epoch: once through the training text"),
        msg("Epochs seen = updates x tokens per update / tokens of the training text. Repeating text up to about 4 times is nearly as good as new text (93% of its worth), 16 times about 66%, 64 times 25%. Small models on small texts begin to overfit somewhere on that way."),
        also=("epochs", "passes", "repeat", "repeated_data"), see=("overfitting", "tokens_per_update"),
    ),
    _term(
        "token",
        msg("Token: the unit of text that the model reads"),
        msg("A character, or a piece of a word: GPT-2's tokens hold about 4.5 bytes of English. The vocabulary is the list of all tokens. A tokenizer turns text into tokens and back."),
        also=("tokenizer", "vocabulary", "vocab", "vocab_size", "bpe", "char", "characters"), see=("loss", "bits_per_byte"),
    ),
    _term(
        "batch_size",
        msg("Batch size: sequences that are computed at once"),
        msg("batch_size x block_size tokens go through the device together; this micro-batch decides how much memory the activations and logits need. What decides how the model learns is the number of tokens per update, which counts gradient accumulation too."),
        also=("batch", "micro_batch", "microbatch"), see=("tokens_per_update", "gradient_accumulation", "memory"),
    ),
    _term(
        "tokens_per_update",
        msg("Tokens per update: the real batch size"),
        msg("batch_size x block_size x gradient_accumulation_steps, over all devices together. More tokens give a less noisy gradient, up to the critical batch; beyond it they are mostly wasted. Halve batch_size and double the accumulation, and the model learns the same in less memory."),
        also=("global_batch", "tokens_per_iteration", "tokens_per_iter", "effective_batch", "total_batch_size"), see=("gradient_accumulation", "critical_batch"),
    ),
    _term(
        "gradient_accumulation",
        msg("Gradient accumulation: a large batch in small pieces"),
        msg("The gradients of several micro-batches are added up before the weights change once. It needs the memory of one micro-batch and the time of all of them. The loss that nanoGPT prints is that of the last micro-batch alone, so it scatters more than the update does."),
        also=("gradient_accumulation_steps", "grad_accum", "accumulation", "gas"), see=("tokens_per_update", "batch_size"),
    ),
    _term(
        "critical_batch",
        msg("Critical batch size: where more tokens per update stop paying"),
        msg("Below it, twice the tokens per update need about half the updates. Above it, they save few updates and cost twice the computing. It is small at the start and grows with the amount of text: for runs of 100M to 1B tokens, 20,000 to 130,000 tokens per update are about right, not the half million of GPT-2's recipe."),
        also=("critical_batch_size", "gradient_noise_scale", "noise_scale", "gns", "cbs"), see=("tokens_per_update", "learning_rate"),
    ),
    _term(
        "block_size",
        msg("Block size, context: how far back the model can look"),
        msg("The number of tokens that it sees at once, in training and afterwards. A longer context lowers the loss somewhat, because later positions know more; so losses with different contexts are not quite comparable. Attention costs 12 x n_layer x n_embd x block_size FLOP per token."),
        also=("context", "context_length", "sequence_length", "seq_len", "window"), see=("flops", "tokens_per_update"),
    ),
    _term(
        "tokens_per_parameter",
        msg("Tokens per parameter: how thoroughly a model of this size was trained"),
        msg("Tokens seen / parameters. About 20 spends a fixed amount of computing best (published fits say 20 to 32); beyond it the model still improves, ever more slowly. Small models that will be used much are trained with hundreds."),
        also=("chinchilla", "tokens_per_param", "compute_optimal"), see=("scaling_law", "parameters"),
    ),
    _term(
        "scaling_law",
        msg("Scaling law: loss from size and data"),
        msg("L = E + A / N^a + B / D^b: what the text leaves open, what the size N costs, what the shortage of tokens D costs. Fits: E 1.82, A 482, a 0.348, B 2085, b 0.366 (Besiroglu 2024). The constants belong to one corpus and tokenizer: use differences, not the absolute loss, and give a range."),
        also=("scaling_laws", "kaplan", "hoffmann"), see=("tokens_per_parameter",),
    ),
    # --- the model
    _term(
        "parameters",
        msg("Parameters: the numbers that are learned"),
        msg("In a GPT: n_layer blocks of 12 x n_embd^2, a table of vocab_size x n_embd for the tokens (it also serves as the output layer) and one of block_size x n_embd for the positions. nanoGPT prints the count without the position table. In small models with a large vocabulary the token table is a large part."),
        also=("params", "parameter_count", "size", "n_params", "weights"), see=("flops", "memory"),
    ),
    _term(
        "n_embd",
        msg("n_embd, n_layer, n_head: the shape of a GPT"),
        msg("n_embd is the width: how many numbers stand for one token inside the model. n_layer is the number of blocks, each with attention (looking back at other tokens) and an MLP (working on one token). n_head is how many things each attention looks for; it divides n_embd and does not change the number of parameters."),
        also=("n_layer", "n_head", "width", "depth", "heads", "layers", "attention", "transformer"), see=("parameters", "block_size"),
    ),
    _term(
        "dropout",
        msg("Dropout: parts of the model switched off at random while it trains"),
        msg("It makes learning by heart harder. It helps when a small text is repeated many times, and only costs when the text is seen once or twice. It is off in evaluations, so the loss printed at updates stands above the evaluation's train loss: that is dropout, not noise."),
        see=("overfitting", "weight_decay", "val_loss"),
    ),
    _term(
        "weight_decay",
        msg("Weight decay: each update pulls the weights a little to zero"),
        msg("The pull is learning rate x weight_decay. 0.1 is customary. In runs of many epochs, stronger decay (up to 1.0) is a good means against overfitting."),
        also=("l2", "regularisation", "regularization"), see=("overfitting", "adamw"),
    ),
    _term(
        "seed",
        msg("Seed: the start of all random numbers"),
        msg("It decides the initial weights, the order of the data and the dropout. Two seeds of the same run end at slightly different losses: standard deviation 0.002 nats for a 124M model at 3.28. A difference between two configs counts only when it is clearly larger than that spread."),
        also=("random_seed", "reproducibility", "seed_noise"), see=("standard_error",),
    ),
    _term(
        "label_smoothing",
        msg("Label smoothing: targets that are not quite certain"),
        msg("A share of each target is spread over all tokens. It keeps the model from being too sure. nanolens reports the plain loss in any case, so runs with and without it can be compared."),
        see=("loss", "overfitting"),
    ),
    # --- the optimizer
    _term(
        "learning_rate",
        msg("Learning rate: how far each update moves the weights"),
        msg("The setting that matters most. Too high and the loss jumps or diverges; too low and it creeps. A run warms it up, holds or lowers it, and ends at a tenth of the peak or at zero. The last fall brings a loss that no waiting at a constant rate would bring."),
        msg("Smaller models take larger rates: 1e-3 for 10M parameters, 6e-4 for 124M. With Adam, twice the tokens per update go with about 1.4 times the rate."),
        also=("lr", "rate", "step_size", "min_lr"), see=("warmup", "cosine", "wsd"),
    ),
    _term(
        "warmup",
        msg("Warm-up: the learning rate rises from nearly 0 at the start"),
        msg("Adam's averages know nothing at first, and the first gradients are large and all alike. Warm-up keeps the steps short meanwhile: 100 to 2,000 updates, one to five per cent of the run."),
        also=("warm_up", "warmup_iters", "warmup_steps"), see=("learning_rate",),
    ),
    _term(
        "cosine",
        msg("Cosine schedule: the learning rate falls along half a cosine wave"),
        msg("From the peak after warm-up to min_lr at lr_decay_iters: slowly, then fast, then slowly. The length has to be known beforehand: a run that is stopped early has never had its low rates, and its loss stands higher than a shorter run would have reached."),
        also=("cosine_decay", "schedule", "lr_schedule", "lr_decay_iters", "decay"), see=("learning_rate", "wsd"),
    ),
    _term(
        "wsd",
        msg("WSD: warm-up, stable, decay"),
        msg("The learning rate stays at its peak and falls only over the last 10 to 20% of the run. As good as cosine, and the length can be decided late. The loss looks flat in the stable part and drops in the decay: never stop before it."),
        also=("warmup_stable_decay", "trapezoidal", "cooldown", "linear"), see=("cosine", "plateau"),
    ),
    _term(
        "gradient_norm",
        msg("Gradient norm: how steep the loss is just now"),
        msg("The length of all gradients taken as one vector. High in the first updates, then steady, between 0.1 and 2 for most GPTs. It often rises before the loss does, so a jump is an early sign of trouble."),
        also=("grad_norm", "gradnorm", "gradient", "norm"), see=("clipping", "spike"),
    ),
    _term(
        "clipping",
        msg("Gradient clipping: steps that would be too long are shortened"),
        msg("When the gradient norm is above grad_clip (1.0 as a rule), all gradients are scaled down to that length. Now and then is fine. If nearly every update is clipped, the direction is kept but the learning rate no longer says how far the step goes."),
        also=("grad_clip", "gradient_clipping", "clip"), see=("gradient_norm",),
    ),
    _term(
        "adamw",
        msg("AdamW: the usual optimizer"),
        msg("It keeps two running averages for each weight, of the gradient (beta1) and of its square (beta2), and moves each weight by learning rate x first / square root of the second. So each weight has its own step size, at the price of 8 bytes a parameter. beta2 = 0.95 to 0.99 for language models; 0.999 reacts too slowly."),
        also=("adam", "optimizer", "beta1", "beta2", "momentum"), see=("muon", "weight_decay"),
    ),
    _term(
        "muon",
        msg("Muon: an optimizer for matrices"),
        msg("It replaces the update of each weight matrix by the nearest matrix that stretches all directions equally. Small GPTs reach the same loss in clearly fewer updates. Embeddings, the head and single numbers stay with Adam. It keeps one average instead of two."),
        also=("newton_schulz", "matrix_learning_rate"), see=("adamw",),
    ),
    # --- speed and machine
    _term(
        "flops",
        msg("FLOP: one addition or multiplication of two numbers"),
        msg("Training costs 6 FLOP per token for each parameter that a token is multiplied with (2 forward, 4 backward), and 12 x n_layer x n_embd x block_size for attention. Looking up an embedding costs none, the output layer does. Evaluation and sampling cost a third. FLOP/s is the speed; nanolens writes FLOP for the amount."),
        also=("flop", "flops_per_token", "tflops", "compute"), see=("mfu", "parameters"),
    ),
    _term(
        "mfu",
        msg("MFU: model FLOP utilisation, the share of the device's peak that the training uses"),
        msg("tokens/s x FLOP per token / peak FLOP/s of the device. The peak has to be that of this device in this precision, dense and with float32 accumulation: 58.3 TFLOP/s for an RTX 4070, 165.2 for an RTX 4090, 312 for an A100, in bfloat16."),
        msg("nanoGPT divides by the A100's 312 TFLOP/s whatever the device is, and smooths: each printed value is 0.9 x the one before + 0.1 x this line's. So its number is too low on smaller cards and sags for some lines after an evaluation. It prints -100.00% before it has measured."),
        msg("30 to 60% is common for small models on one GPU. Above 100% the peak or the FLOP count is wrong."),
        also=("model_flops_utilization", "model_flops_utilisation", "utilisation", "utilization", "peak"), see=("flops", "hfu", "tokens_per_s"),
    ),
    _term(
        "hfu",
        msg("HFU: hardware FLOP utilisation"),
        msg("Like MFU, but it also counts what is computed twice to save memory: with full activation checkpointing 4/3 of it. It says how busy the device is; MFU says how much of that serves the training."),
        also=("hardware_flops_utilization", "recompute", "activation_checkpointing"), see=("mfu",),
    ),
    _term(
        "tokens_per_s",
        msg("Tokens per second: the speed of the training"),
        msg("Tokens per update / seconds per update, over all devices, evaluations left out. The number to compare two machines by, for one model. Between models of different size, compare FLOP/s instead."),
        also=("speed", "throughput", "tok_per_sec", "tps", "time"), see=("mfu", "step"),
    ),
    _term(
        "memory",
        msg("Memory: what fills the device"),
        msg("Weights, gradients and Adam's averages are 16 bytes a parameter. Activations grow with batch_size x block_size x n_embd x n_layer. Logits are batch_size x block_size x vocab_size x 10 to 16 bytes: with a small model and 50,000 tokens they are the largest part. Out of memory: halve batch_size and double gradient_accumulation_steps, and the training stays the same."),
        also=("vram", "oom", "out_of_memory", "activations", "logits"), see=("batch_size", "gradient_accumulation", "parameters"),
    ),
    _term(
        "checkpoint",
        msg("Checkpoint: all that is needed to go on, on disk"),
        msg("Weights, optimizer, random numbers and the place in the data: about 12 bytes a parameter. Saving takes time, which nanoGPT counts into the iteration that follows. Which checkpoint is kept matters: the newest is not the best after overfitting has begun."),
        also=("checkpoints", "save", "saving", "resume", "ckpt", "always_save_checkpoint"), see=("overfitting",),
    ),
    _term(
        "compile",
        msg("torch.compile: the model translated to faster code"),
        msg("The first iteration takes half a minute to some minutes for it, all later ones are faster, on a GPU often by 1.3 to 2 times. For a run of a minute it is not worth it; on some devices it is slower."),
        also=("torch_compile", "torchcompile", "compilation", "jit"), see=("tokens_per_s",),
    ),
    _term(
        "dtype",
        msg("Precision: float32, bfloat16, float16"),
        msg("How many bits a number has in the large multiplications. bfloat16 has the range of float32 with fewer digits and is safe. float16 has more digits and a small range: it needs a loss scale, and can overflow. GPUs from RTX 30 on are fast at both; V100, T4 and RTX 20 only at float16; most CPUs are fastest in float32."),
        also=("bfloat16", "bf16", "float16", "fp16", "half", "float32", "fp32", "tf32", "precision", "autocast", "mixed_precision"), see=("loss_scale", "mfu"),
    ),
    _term(
        "loss_scale",
        msg("Loss scale: how float16 keeps small gradients"),
        msg("The loss is multiplied by a large number before the backward pass and the gradients are divided by it afterwards. When something overflows, the update is skipped and the scale is halved. A few skips at the start are normal; a scale that falls without end means NaN."),
        also=("grad_scaler", "gradscaler", "scaler", "loss_scaling"), see=("dtype", "nan"),
    ),
    _term(
        "rank",
        msg("Rank: one of several processes that train together"),
        msg("Each device has its own process; all hold the same weights, see different data, and average their gradients before each update. nanoGPT divides gradient_accumulation_steps among them, so the tokens per update stay the same."),
        also=("ddp", "ranks", "world_size", "distributed", "data_parallel"), see=("tokens_per_update",),
    ),
    # --- evaluation habits
    _term(
        "eval_interval",
        msg("eval_interval, eval_iters: how often and how thoroughly the model is tested"),
        msg("Every eval_interval updates, eval_iters batches of each split are evaluated. A batch of an evaluation costs a third of a training micro-batch. Fewer batches are quicker and scatter more; a larger interval is quicker and shows turning points later."),
        also=("eval_iters", "evaluation_interval"), see=("val_loss", "standard_error"),
    ),
    # --- writing text
    _term(
        "temperature",
        msg("Temperature: how daring the sampling is"),
        msg("The model's scores are divided by it before a token is drawn. Below 1 likely tokens become likelier, near 0 the text repeats itself; above 1 rarer ones get their chance, and mistakes too. 0.8 is a good start."),
        see=("top_k", "top_p"),
    ),
    _term(
        "top_k",
        msg("top_k: draw only from the k likeliest tokens"),
        msg("It cuts off the long tail of tokens that are each improbable but together are not. 200 is nanoGPT's value; with a vocabulary of 65 characters that cuts nothing off."),
        see=("top_p", "temperature"),
    ),
    _term(
        "top_p",
        msg("top_p: draw from the fewest tokens that together have the probability p"),
        msg("Where the model is sure it leaves one or two tokens, where it hesitates many; so it adapts, which top_k does not. 0.9 to 0.95 is usual."),
        also=("nucleus", "nucleus_sampling"), see=("top_k", "temperature"),
    ),
    _term(
        "kv_cache",
        msg("KV cache: earlier tokens are not computed again"),
        msg("For each new token, attention needs the keys and values of all tokens before it. Keeping them makes each token cost the same instead of more and more. It uses 2 x n_layer x n_embd numbers for each token."),
        also=("kvcache", "cache", "key_value_cache"), see=("block_size",),
    ),
)  # fmt: skip
"""In the order of the questions that a newcomer asks: how good, how much, what, how, how fast."""
