"""Small random decoder-only models of several architectures, made by transformers from a fixed seed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM as Auto
from transformers import (
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

VOCAB = 97
EOS = 3
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": EOS,
    "pad_token_id": 0,
    "initializer_range": 0.4,
}

CONFIGS: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": lambda: LlamaConfig(**SHAPE),
    "llama-tied-bias": lambda: LlamaConfig(**SHAPE, tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    "qwen2": lambda: Qwen2Config(**SHAPE),
    "qwen3": lambda: Qwen3Config(**SHAPE),
    "mistral-window": lambda: MistralConfig(**SHAPE, sliding_window=7),
    "gemma2-capped": lambda: Gemma2Config(**SHAPE, sliding_window=6, query_pre_attn_scalar=8),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCAB, n_embd=32, n_layer=3, n_head=4, n_positions=128, bos_token_id=1, eos_token_id=EOS
    ),
}


def make_model(name: str, folder: Path) -> Path:
    """Write the model `name` of `CONFIGS` into `folder` as safetensors; returns the folder."""
    torch.manual_seed(7)
    model = Auto.from_config(CONFIGS[name]())
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias") or "norm" in parameter_name or "ln_" in parameter_name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(str(folder))
    return folder
