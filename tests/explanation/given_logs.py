"""Logs of nanoGPT, as they were printed, with what is known of them besides."""

from __future__ import annotations

from dataclasses import dataclass, field

from nanolens.facts.case import Case
from nanolens.logs import Given, read_log


@dataclass(frozen=True)
class GivenLog:
    text: str
    config: dict[str, object] = field(default_factory=dict)
    hardware: str | None = None

    @property
    def case(self) -> Case:
        return Case(read_log(self.text, Given(config=self.config, hardware=self.hardware)))

    def quote(self, line: int) -> str:
        lines = self.text.splitlines()
        return lines[line - 1] if 0 < line <= len(lines) else ""


SHAKESPEARE = GivenLog(
    """\
iter 4980: loss 0.8010, time 33.22ms, mfu 11.07%
iter 4990: loss 0.8212, time 33.23ms, mfu 11.09%
step 5000: train loss 0.6224, val loss 1.7044
iter 5000: loss 0.8236, time 4446.83ms, mfu 9.99%
""",
    {
        "dataset": "shakespeare_char",
        "batch_size": 64,
        "block_size": 256,
        "gradient_accumulation_steps": 1,
        "n_layer": 6,
        "n_head": 6,
        "n_embd": 384,
        "dropout": 0.2,
        "learning_rate": 1e-3,
        "max_iters": 5000,
        "lr_decay_iters": 5000,
        "min_lr": 1e-4,
        "beta2": 0.99,
        "warmup_iters": 100,
        "eval_interval": 250,
        "eval_iters": 200,
        "log_interval": 10,
    },
    "1x RTX 4070 Ti 12GB",
)

FINEWEB = GivenLog(
    """\
step 0: train loss 10.8700, val loss 10.8700
iter 10000: loss 4.1096, time 3900.00ms, mfu 12.00%
step 14500: train loss 3.6415, val loss 3.5696
""",
    {
        "dataset": "fineweb",
        "batch_size": 16,
        "gradient_accumulation_steps": 32,
        "block_size": 1024,
        "n_layer": 12,
        "n_head": 12,
        "n_embd": 384,
        "vocab_size": 50304,
        "dropout": 0.1,
        "bias": False,
        "learning_rate": 1e-3,
        "min_lr": 1e-4,
        "max_iters": 20000,
        "lr_decay_iters": 20000,
        "warmup_iters": 500,
        "beta2": 0.99,
        "weight_decay": 0.1,
        "eval_iters": 200,
        "wandb_run_name": "125M-single-parquet-4070",
    },
    "1x RTX 4070 12GB",
)

EVERY_500TH = GivenLog(
    """\
step 0: train loss 10.8200, val loss 10.8200
iter 0: loss 10.8300, time 12543.00ms, mfu -100.00%
iter 100: loss 7.1000, time 168.00ms, mfu 8.00%
iter 200: loss 6.5000, time 170.00ms, mfu 8.00%
iter 400: loss 6.1000, time 169.00ms, mfu 8.00%
step 500: train loss 5.9000, val loss 5.9000
saving checkpoint to out
iter 500: loss 5.9000, time 5985.00ms, mfu 7.22%
iter 600: loss 5.8000, time 169.00ms, mfu 7.30%
iter 900: loss 5.6000, time 168.00ms, mfu 7.49%
step 1000: train loss 5.5000, val loss 5.5000
saving checkpoint to out
iter 1000: loss 5.5000, time 5726.00ms, mfu 6.77%
""",
    {"eval_interval": 500, "log_interval": 100},
)


def long_log(updates: int, *, interval: int = 250, step_ms: float = 33.0, eval_ms: float = 4400.0) -> str:
    """A log with a line for every tenth update and an evaluation at every `interval`th."""
    lines = []
    for k in range(0, updates, 10):
        loss = 1.4 + 2.8 * 2.718 ** (-k / 400)
        if k % interval == 0:
            lines.append(f"step {k}: train loss {loss:.4f}, val loss {loss + 0.05:.4f}")
        took = step_ms + (eval_ms if k % interval == 0 else 0.0)
        lines.append(f"iter {k}: loss {loss + 0.01 * (-1) ** (k // 10):.4f}, time {took:.2f}ms, mfu 11.07%")
    return "\n".join(lines) + "\n"
