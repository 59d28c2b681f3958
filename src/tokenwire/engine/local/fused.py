"""The fused CPU path for Llama-like models in float32: same weights, same cache, fewer and larger operations.

Chosen by what the model is made of, never by its name alone: every layer must be RMS norm, rotary q/k, gated SiLU.
Linear layers have packed weights; what stands between them is a few compiled kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import PreTrainedModel

from tokenwire.engine.local.attention import AttentionCall, PagedAttention, chunk_attention
from tokenwire.engine.local.batch import StepBatch
from tokenwire.engine.local.kernels import add_norm, paged_decode, rope_store
from tokenwire.engine.local.linear import Floats, Linear

ARCHITECTURES = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
"""Classes whose decoder layer is norm, attention, add, norm, gated MLP, add, with nothing else in between."""
_NO_NORM = np.empty(0, dtype=np.float32)


@dataclass(slots=True, frozen=True)
class _Layer:
    index: int
    input_norm: Floats
    qkv: Linear
    q_norm: Floats
    k_norm: Floats
    output: Linear
    mlp_norm: Floats
    gate_up: Linear
    down: Linear
    call: AttentionCall


class FusedModel:
    """Runs a batch like the model it was made from. Build it with `fuse`."""

    def __init__(self, model: PreTrainedModel, attention: PagedAttention) -> None:
        base: Any = model.model
        self._attention = attention
        self._embedding: torch.Tensor = base.embed_tokens.weight.data
        self._rotary = base.rotary_emb
        self._final_norm: Floats = base.norm.weight.data.numpy()
        self._head = Linear([model.lm_head], keep=model.lm_head.weight is base.embed_tokens.weight)
        self._eps = float(base.norm.variance_epsilon)
        self._num_heads: int = model.config.num_attention_heads
        self._layers = [_layer(i, layer, attention.calls[i]) for i, layer in enumerate(base.layers)]

    def logits(self, batch: StepBatch) -> torch.Tensor:
        """[R, vocab] of the rows the batch names; writes K/V."""
        x: Floats = self._embedding[batch.token_ids].numpy()
        cos, sin = self._rotary(self._embedding[:1], batch.positions.unsqueeze(0))
        cos_np, sin_np = cos[0].contiguous().numpy(), sin[0].contiguous().numpy()
        delta = np.zeros_like(x)
        normed = np.empty_like(x)
        for layer in self._layers:
            add_norm(x, delta, layer.input_norm, self._eps, normed)
            delta = layer.output(self._attend(layer, layer.qkv(normed), cos_np, sin_np, batch))
            add_norm(x, delta, layer.mlp_norm, self._eps, normed)
            delta = layer.down(_gated(layer.gate_up(normed)))
        rows = batch.logit_rows.numpy()
        x, delta = x[rows], delta[rows]
        normed = np.empty_like(x)
        if len(rows):
            add_norm(x, delta, self._final_norm, self._eps, normed)
        return torch.from_numpy(self._head(normed)) if len(rows) else torch.empty((0, len(self._embedding)))

    def _attend(self, layer: _Layer, qkv: Floats, cos: Floats, sin: Floats, batch: StepBatch) -> Floats:
        cache = self._attention.cache
        assert cache is not None
        keys, values = cache.keys[layer.index], cache.values[layer.index]
        keys_np, values_np = keys.numpy(), values.numpy()
        slots = batch.slots.numpy()
        heads = self._num_heads
        rope_store(qkv, cos, sin, layer.q_norm, layer.k_norm, self._eps, heads, slots, keys_np, values_np)
        width = keys.shape[2]
        out = np.empty((len(qkv), heads * width), dtype=np.float32)
        call = layer.call
        if batch.num_decodes:
            paged_decode(
                qkv[: batch.num_decodes],
                keys_np,
                values_np,
                batch.decode_tables.numpy(),
                batch.decode_lens.numpy(),
                cache.block_size,
                heads,
                call.scaling,
                call.window,
                call.softcap,
                out,
            )
        if batch.prefills:
            flat = torch.from_numpy(qkv).view(len(qkv), -1, width)
            result = torch.from_numpy(out).view(len(qkv), heads, width)
            for prefill in batch.prefills:
                rows = slice(prefill.start, prefill.stop)
                result[rows] = chunk_attention(
                    flat[rows, :heads], keys[prefill.slots], values[prefill.slots], prefill.context, call
                )
        return out


def fuse(model: PreTrainedModel, attention: PagedAttention) -> FusedModel | None:
    """The fused twin of `model`, or None if it is not of the kind. `attention.calls` must be known."""
    if type(model).__name__ not in ARCHITECTURES or model.dtype != torch.float32 or model.device.type != "cpu":
        return None
    if getattr(model.config, "hidden_act", None) != "silu":
        return None
    shapes = {(s.key_dim, s.value_dim) for s in attention.shapes.values()}
    if len(shapes) != 1 or any(key != value for key, value in shapes):
        return None
    return FusedModel(model, attention)


def _layer(index: int, module: Any, call: AttentionCall) -> _Layer:
    attention, mlp = module.self_attn, module.mlp
    return _Layer(
        index=index,
        input_norm=module.input_layernorm.weight.data.numpy(),
        qkv=Linear([attention.q_proj, attention.k_proj, attention.v_proj]),
        q_norm=attention.q_norm.weight.data.numpy() if hasattr(attention, "q_norm") else _NO_NORM,
        k_norm=attention.k_norm.weight.data.numpy() if hasattr(attention, "k_norm") else _NO_NORM,
        output=Linear([attention.o_proj]),
        mlp_norm=module.post_attention_layernorm.weight.data.numpy(),
        gate_up=Linear([mlp.gate_proj, mlp.up_proj]),
        down=Linear([mlp.down_proj]),
        call=call,
    )


def _gated(gate_up: Floats) -> Floats:
    """silu(gate) * up: [rows, 2 * width] -> [rows, width]."""
    gate, up = torch.from_numpy(gate_up).chunk(2, dim=1)
    out: Floats = functional.silu(gate).mul_(up).numpy()
    return out
