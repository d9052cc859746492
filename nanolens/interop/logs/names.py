"""What other people call things: their names for columns and settings, and ours.

Only names with one meaning are here. `gradient_accumulation_steps` of Hugging Face counts for one device and nanoGPT's for all: such a
name is left as it stands, and the door of that trainer says what it means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

STEP = frozenset(
    """step iter iteration global_step _step iters steps step_num iter_num n_iter it update updates num_updates train_step
    current_steps current_step""".split()
)

COLUMNS: Mapping[str, str] = {
    **dict.fromkeys(
        """loss train_loss training_loss loss_train trl lm_loss train_lm_loss train_loss_step reduced_train_loss train_ce_loss ce_loss
        train_cross_entropy train_cross_entropy_loss
        batch_loss avg_loss avr_loss mean_loss cross_entropy language_cross_entropy metrics_train_language_cross_entropy""".split(),
        "loss",
    ),
    **dict.fromkeys(
        """val val_loss validation_loss valid_loss eval_loss loss_val tel test_loss val_loss_epoch dev_loss loss_eval loss_valid
        eval_ce_loss
        val_ce_loss validation_ce_loss val_lm_loss lm_loss_validation""".split(),
        "val",
    ),
    **dict.fromkeys("lr learning_rate train_lr train_learning_rate lr_adamw lr_adam lr_group0 base_lr current_lr".split(), "rate"),
    **dict.fromkeys(
        """grad_norm gnorm norm gradnorm train_grad_norm gradient_norm global_norm global_grad_norm total_grad_norm grad_l2
        train_gnorm""".split(),
        "grad_norm",
    ),
    **dict.fromkeys(
        """tok_s tok_sec tokens_s tokens_sec tokens_per_s tokens_per_sec tokens_per_second tok_per_sec tok_per_s train_tok_per_sec
        train_tokens_per_second
        train_tokens_per_sec toks_s toks_per_sec""".split(),
        "tokens_per_s",
    ),
    **dict.fromkeys("mfu train_mfu bf16_mfu mfu_percent".split(), "mfu"),
    **dict.fromkeys("val_bpb bpb validation_bpb eval_bpb val_bits_per_byte bits_per_byte".split(), "val_bits_per_byte"),
    **dict.fromkeys("loss_scale grad_scale scale scaler_scale".split(), "loss_scale"),
    **dict.fromkeys(
        """time dt took step_time iter_time time_per_step time_per_iter elapsed_time_per_iteration step_time_s elapsed_per_step
        batch_time""".split(),
        "took",
    ),
    **dict.fromkeys("took_s step_time_sec step_time_seconds sec_per_step seconds_per_step s_per_step s_it time_s dt_s".split(), "took_s"),
    **dict.fromkeys("took_ms step_time_ms time_ms dt_ms iter_time_ms ms_per_step ms_step time_per_step_ms".split(), "took_ms"),
    **dict.fromkeys("mem memory peak_mem peak_memory gpu_mem gpu_memory max_mem vram".split(), "memory"),
}
"""Normalised names of what a row may say. `mfu`, `took` and `memory` still need the unit that is printed beside them."""

SETTINGS: Mapping[str, str] = {
    **dict.fromkeys(
        "max_iterations max_steps num_iterations total_steps train_iters max_iter num_steps total_optimization_steps".split(), "max_iters"
    ),
    **dict.fromkeys("lr max_lr peak_lr base_lr learning_rate_lr".split(), "learning_rate"),
    **dict.fromkeys("min_learning_rate".split(), "min_lr"),
    **dict.fromkeys("warmup_steps warmup_iterations num_warmup_steps lr_warmup_steps lr_warmup_iters".split(), "warmup_iters"),
    **dict.fromkeys(
        """max_seq_len seq_len sequence_len sequence_length context_length ctx_len n_ctx n_positions max_seq_length
        sequence_length_t t""".split(),
        "block_size",
    ),
    **dict.fromkeys("b micro_batch_size device_batch_size per_device_train_batch_size micro_batch_size_b".split(), "batch_size"),
    **dict.fromkeys("n_layers num_layers num_hidden_layers num_layers_l depth".split(), "n_layer"),
    **dict.fromkeys("n_heads num_heads num_attention_heads num_heads_nh".split(), "n_head"),
    **dict.fromkeys("d_model dim hidden_size model_dim channels channels_c embed_dim n_embed embedding_dim".split(), "n_embd"),
    **dict.fromkeys("padded_vocab_size padded_vocab_size_vp n_vocab".split(), "vocab_size"),
    **dict.fromkeys("gpus n_gpus num_gpus world_size nproc_per_node num_processes ddp_world_size n_devices num_devices".split(), "devices"),
    **dict.fromkeys("tokens_per_iter tokens_per_iteration tokens_per_step global_batch_tokens batch_tokens".split(), "tokens_per_update"),
    **dict.fromkeys("max_norm max_grad_norm gradient_clip_val clip_grad grad_clip_norm".split(), "grad_clip"),
    **dict.fromkeys("wd".split(), "weight_decay"),
    **dict.fromkeys("eval_every val_loss_every eval_steps val_every".split(), "eval_interval"),
    **dict.fromkeys("val_max_steps val_steps eval_batches val_iters".split(), "eval_iters"),
    **dict.fromkeys("logging_steps log_every".split(), "log_interval"),
    **dict.fromkeys("checkpoint_every save_every save_steps save_interval".split(), "checkpoint_interval"),
    **dict.fromkeys("gpu device_name gpu_name".split(), "hardware"),
    **dict.fromkeys("precision".split(), "dtype"),
    **dict.fromkeys("train_tokens".split(), "dataset_tokens"),
}
"""Normalised foreign names of settings and facts, and what `Run.known` calls them."""

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_OTHERS = re.compile(r"[^a-z0-9_]+")


@lru_cache(maxsize=4096)
def normalised(name: str) -> str:
    """`learningRate`, `Learning rate` and `learning-rate` are one name; so are `train/loss` and `train loss`."""
    return _OTHERS.sub("_", _CAMEL.sub("_", name.strip()).lower()).strip("_") or name.strip()


def column_of(name: str) -> str:
    """Our column for somebody's name, or "" where its meaning is not plain."""
    plain = normalised(name)
    if plain in STEP or plain.endswith("_global_step"):
        return "step"
    if plain in COLUMNS or "/" not in name:
        return COLUMNS.get(plain, "")
    if "/device/" in name:
        return ""  # of one device; our speed is that of all
    # In `perf/mfu` the last part says what it is; in `aux/loss` it does not say which.
    last = COLUMNS.get(normalised(name.rpartition("/")[2]), "")
    return last if last in ("mfu", "rate", "grad_norm", "tokens_per_s", "loss_scale") else ""


def setting_of(name: str) -> str:
    """Our name of a setting; the name itself where we have no other."""
    plain = normalised(name)
    return SETTINGS.get(plain, plain)
