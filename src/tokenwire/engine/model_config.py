"""Names in a model's own configuration files that every reader of them looks for."""

from __future__ import annotations

CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length", "max_sequence_length")
"""Where `config.json` may say how many tokens the context holds."""
SAMPLING_KEYS = ("repetition_penalty", "temperature", "top_k", "top_p", "min_p", "max_new_tokens")
"""What `generation_config.json` may say about sampling, as vLLM reads it."""
