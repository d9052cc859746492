"""Bytes by part, as a prior: a measured micro-batch always knows better.

State: float32 weights, gradients and Adam's two moments are 16 bytes a parameter. Activations: Korthikanti et al.
(arXiv 2205.05198), with the squared term gone where attention is fused. Logits: eager training holds batch x context x
vocabulary elements several times over, and for a small model with a large vocabulary they are most of the memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nanolens.config.fields import Config
from nanolens.sizing.shape import Shape, parameters

AUTOCAST_FACTOR = 1.3  # residual stream and norms stay float32 under autocast: 1.2 to 1.6 times the 16-bit formula
# logits, float32 copy, log-softmax and both gradients, at the peak: 10 to 16
LOGIT_BYTES = {"float32": 16.0, "bfloat16": 14.0, "float16": 14.0}
CHUNK_TOKENS = 1024  # of whose logits a chunked head computes loss and gradients at once
GRADIENT_BUCKETS = 8  # pieces in which ranks send gradients: fewer overlap no computing, more cost round trips
CUDA_CONTEXT = 0.45e9  # 0.3 to 0.6 GB
FRAGMENTATION = 0.05


@dataclass(frozen=True)
class Memory:
    weights: float
    gradients: float
    optimizer: float
    low_precision_copies: float  # autocast's 16-bit weights
    activations: float
    logits: float
    overhead: float  # CUDA context, fragmentation

    @property
    def state(self) -> float:
        """What is there before any activation, whatever the batch."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        return self.state + self.low_precision_copies + self.activations + self.logits + self.overhead


def memory(
    shape: Shape,
    *,
    batch_size: int,
    dtype: str = "float32",
    dropout: float = 0.0,
    fused_attention: bool = True,
    chunked_head: bool = False,
    on_gpu: bool = True,
    optimizer: str = "adamw",
) -> Memory:
    counted = parameters(shape)
    is_16_bit = dtype in ("bfloat16", "float16")
    tokens = batch_size * shape.block_size
    logit_rows = min(tokens, CHUNK_TOKENS) if chunked_head else tokens
    linear = (34 if dropout > 0 else 32) * tokens * shape.n_embd
    # float32 log-sum-exp of each row, or all scores of it
    scores_of_row = 4 if fused_attention else (5 if dropout > 0 else 2) * shape.block_size
    scores = scores_of_row * shape.n_head * tokens
    moments = 8 * counted.total
    if optimizer == "muon":  # one moment for the matrices of the blocks
        moments -= 4 * (counted.by_part["attention"] + counted.by_part["mlp"])
    parts = Memory(
        weights=4 * counted.total,
        gradients=4 * counted.total,
        optimizer=moments,
        low_precision_copies=2 * counted.matmul if is_16_bit else 0,
        activations=shape.n_layer * ((linear + scores) * (AUTOCAST_FACTOR if is_16_bit else 2.0)),
        logits=logit_rows * shape.vocab_size * LOGIT_BYTES.get(dtype, 16.0),
        overhead=0,
    )
    return replace(parts, overhead=(CUDA_CONTEXT if on_gpu else 0) + FRAGMENTATION * parts.total)


LOGITS_WORTH_CHUNKING = 256 << 20  # bytes of float32 logits: below, a chunked head wins nothing
PADDED_FROM = 1000  # tokens; from here on a vocabulary is rounded up to a multiple of 64, which is faster in matmuls


def is_head_chunked(config: Config, vocab_size: int) -> bool:
    if config.chunked_head is not None:
        return config.chunked_head
    return is_worth_chunking(config.batch_size * config.block_size, vocab_size)


def is_worth_chunking(tokens: int, vocab_size: int) -> bool:
    return 4 * tokens * vocab_size > LOGITS_WORTH_CHUNKING


def padded_vocab(tokens: int) -> int:
    """What `vocab_size = auto` comes to for data with so many different tokens."""
    return tokens if tokens < PADDED_FROM or tokens % 64 == 0 else -(-tokens // 64) * 64
