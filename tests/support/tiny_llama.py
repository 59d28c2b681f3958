"""A Llama of a few hundred kilobytes with random weights: a real model for tests that need no sense in its words."""

from __future__ import annotations

from pathlib import Path


def make_tiny_llama(
    folder: Path, *, vocab_size: int = 320, max_model_len: int = 512, seed: int = 0, num_kv_heads: int = 2
) -> Path:
    """Write config and safetensors into `folder`; no tokenizer. A token has 128 bytes of K/V for each KV head."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = max(4, num_kv_heads)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=8 * heads,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=num_kv_heads,
        max_position_embeddings=max_model_len,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=True,
    )
    torch.manual_seed(seed)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
