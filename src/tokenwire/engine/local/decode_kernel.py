"""Attention of one new token per sequence over its blocks, for all sequences at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tokenwire.engine.local.kernels import paged_decode

if TYPE_CHECKING:
    from tokenwire.engine.local.attention import AttentionCall
    from tokenwire.engine.local.batch import StepBatch


def decode_attention(
    out: torch.Tensor,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    batch: StepBatch,
    block_size: int,
    call: AttentionCall,
) -> None:
    """query [D, heads, width], keys and values [slots, kv heads, width]; writes `out` [D, heads, value width]."""
    if query.device.type == "cpu" and query.dtype == torch.float32:
        paged_decode(
            query.reshape(len(query), -1).numpy(),
            keys.numpy(),
            values.numpy(),
            batch.decode_tables.numpy(),
            batch.decode_lens.numpy(),
            block_size,
            query.shape[1],
            call.scaling,
            call.window,
            call.softcap,
            out.view(len(out), -1).numpy(),
        )
        return
    out.copy_(_by_gathering(query, keys, values, batch, block_size, call))


def _by_gathering(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    batch: StepBatch,
    block_size: int,
    call: AttentionCall,
) -> torch.Tensor:
    """Any device and dtype: gathers every sequence's K/V, padded to the longest."""
    num_rows, num_heads, width = query.shape
    num_kv_heads = keys.shape[1]
    group = num_heads // num_kv_heads
    offsets = torch.arange(block_size, device=query.device)
    slots = (batch.decode_tables.long().unsqueeze(-1) * block_size + offsets).view(num_rows, -1)
    slots = slots[:, : batch.max_decode_len]
    columns = torch.arange(slots.shape[1], device=query.device)
    lens = batch.decode_lens.unsqueeze(1)
    seen = columns < lens
    if call.window is not None:
        seen &= columns >= lens - call.window
    k = keys[slots]  # [D, L, kv heads, width]
    v = values[slots]
    q = query.view(num_rows, num_kv_heads, group, width)
    scores = torch.einsum("dhgw,dlhw->dhgl", q, k).float() * call.scaling
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    scores.masked_fill_(~seen[:, None, None, :], float("-inf"))
    weights = torch.softmax(scores, dim=-1).to(v.dtype)
    v = v.masked_fill(~seen[:, :, None, None], 0)  # what lies there may be anything, NaN too
    return torch.einsum("dhgl,dlhw->dhgw", weights, v).reshape(num_rows, num_heads, -1)
