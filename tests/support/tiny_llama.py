"""A Llama of a few hundred kilobytes with random weights: a real model for tests that need no sense in its words."""

from __future__ import annotations

from pathlib import Path


def make_tiny_llama(folder: Path, *, vocab_size: int = 320, max_model_len: int = 512, seed: int = 0) -> Path:
    """Write config and safetensors into `folder`; no tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_model_len,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=True,
    )
    torch.manual_seed(seed)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
