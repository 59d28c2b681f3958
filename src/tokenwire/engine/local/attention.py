"""Attention over the paged cache, in the shape that transformers' models call it.

A model built with `attn_implementation=NAME` calls it once per layer with the flat batch [1, heads, T, width]. New
K/V go into the cache, then decodes (one query each) run together by block table and every prefill chunk runs by
itself. What a model asks beyond causal, grouped-query, sliding-window and soft-capped attention is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from tokenwire.engine.local.batch import Prefill, StepBatch
from tokenwire.engine.local.decode_kernel import decode_attention
from tokenwire.engine.local.kv_cache import KVCache, LayerShape

NAME = "tokenwire_paged"
IGNORED = frozenset({"dropout", "is_causal", "position_ids", "use_cache", "cache", "past_key_values", "cache_position"})
"""Arguments without influence on the result here."""
CARELESS = frozenset({"output_attentions", "output_hidden_states", "output_router_logits", "return_dict", "num_items"})


class UnsupportedAttentionError(Exception):
    """The model asks for attention that is not implemented; the message names it."""


@dataclass(slots=True, frozen=True)
class AttentionCall:
    """How one layer wants its attention."""

    scaling: float
    window: int | None
    softcap: float | None


class PagedAttention:
    """Holds the step's batch and the cache for the layers' calls. Without a cache it records the layers' shapes."""

    def __init__(self) -> None:
        self.cache: KVCache | None = None
        self.batch: StepBatch | None = None
        self.shapes: dict[int, LayerShape] = {}
        self.calls: dict[int, AttentionCall] = {}

    def register(self) -> None:
        """Make transformers call this object for attention implementation `NAME`."""
        from transformers import AttentionInterface

        AttentionInterface.register(NAME, self._from_transformers)

    def _from_transformers(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        """transformers' signature: query [1, heads, T, width] and so on; returns [1, T, heads, width]."""
        _refuse_unknown(attention_mask, kwargs)
        layer: int = module.layer_idx  # type: ignore[assignment]
        if self.cache is None:
            self.shapes[layer] = LayerShape(key.shape[1], key.shape[3], value.shape[3])
        scale = scaling if scaling is not None else 1.0 / math.sqrt(query.shape[-1])
        call = AttentionCall(scale, sliding_window, softcap)
        self.calls[layer] = call
        out = self.attend(layer, query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1), call)
        return out.unsqueeze(0), None

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: AttentionCall
    ) -> torch.Tensor:
        """query [T, heads, width], key and value [T, kv heads, width] -> [T, heads, value width]."""
        if self.cache is None or self.batch is None:
            return chunk_attention(query, key, value, 0, call)
        batch = self.batch
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        keys.index_copy_(0, batch.slots, key)
        values.index_copy_(0, batch.slots, value)
        out = torch.empty((*query.shape[:2], value.shape[2]), dtype=query.dtype, device=query.device)
        if batch.num_decodes:
            decode_attention(
                out[: batch.num_decodes], query[: batch.num_decodes], keys, values, batch, self.cache.block_size, call
            )
        for prefill in batch.prefills:
            rows = slice(prefill.start, prefill.stop)
            whole = prefill.context == 0
            k = key[rows] if whole else keys[prefill.slots]
            v = value[rows] if whole else values[prefill.slots]
            out[rows] = chunk_attention(query[rows], k, v, prefill.context, call)
        return out


def _refuse_unknown(mask: torch.Tensor | None, kwargs: dict[str, Any]) -> None:
    if mask is not None:
        raise UnsupportedAttentionError("an attention mask of the model's own")
    for name, value in kwargs.items():
        if value is None or value is False or name in IGNORED or name in CARELESS:
            continue
        raise UnsupportedAttentionError(f"attention argument {name!r}")


def chunk_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, context: int, call: AttentionCall
) -> torch.Tensor:
    """Causal attention of rows context..context+C over keys 0..context+C: [C, heads, width] -> [C, heads, width]."""
    num_rows, num_heads, _ = query.shape
    group = num_heads // key.shape[1]
    q = query.transpose(0, 1).unsqueeze(0)
    k = key.transpose(0, 1).repeat_interleave(group, 0).unsqueeze(0)
    v = value.transpose(0, 1).repeat_interleave(group, 0).unsqueeze(0)
    plain = context == 0 and call.softcap is None and (call.window is None or num_rows <= call.window)
    if plain:
        out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=call.scaling)
    else:
        mask = _mask(num_rows, context, call.window, query.device)
        if call.softcap is None:
            out = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=call.scaling)
        else:
            out = _capped(q, k, v, mask, call.scaling, call.softcap)
    return out[0].transpose(0, 1)


def _mask(num_rows: int, context: int, window: int | None, device: torch.device) -> torch.Tensor:
    """[rows, context + rows], True where a row may look."""
    rows = torch.arange(context, context + num_rows, device=device).unsqueeze(1)
    columns = torch.arange(context + num_rows, device=device).unsqueeze(0)
    mask = columns <= rows
    return mask if window is None else mask & (columns > rows - window)


def _capped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scaling: float, softcap: float
) -> torch.Tensor:
    scores = torch.tanh(q @ k.transpose(-1, -2) * (scaling / softcap)) * softcap
    scores = scores.masked_fill(~mask, float("-inf"))
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype) @ v


__all__ = ["NAME", "AttentionCall", "PagedAttention", "Prefill", "UnsupportedAttentionError"]
