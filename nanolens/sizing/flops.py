"""Floating-point operations per token.

The convention (PaLM, appendix B; nanoGPT, nanochat and torchtitan count the same): 6 for each parameter a token is multiplied with, plus
12 x layers x width x context for attention, as if every token saw the whole context; recomputation is not counted. `causal` counts only
the half of the attention that a causal mask leaves.
"""

from __future__ import annotations

from dataclasses import dataclass

from nanolens.sizing.parameters import matmul_parameters
from nanolens.sizing.shape import Shape

CONVENTION = "6*N_matmul + 12*n_layer*n_embd*block_size"


@dataclass(frozen=True)
class Flops:
    """Per token."""

    matmul: float  # forward and backward, 6 per parameter
    attention: float  # forward and backward, the whole context

    @property
    def training(self) -> float:
        return self.matmul + self.attention

    @property
    def training_causal(self) -> float:
        return self.matmul + self.attention / 2

    @property
    def forward(self) -> float:
        """Evaluation and sampling: the backward pass costs twice the forward one."""
        return self.training / 3


def flops_per_token(shape: Shape) -> Flops:
    return Flops(matmul=6.0 * matmul_parameters(shape), attention=12.0 * shape.n_layer * shape.n_embd * shape.block_size)


def flops_of(matmul: float, n_layer: int, n_embd: int, block_size: int) -> Flops:
    """The same from a printed parameter count, where the shape is known only in part."""
    return Flops(matmul=6.0 * matmul, attention=12.0 * n_layer * n_embd * block_size)
