"""The fused CPU path for Llama-like models in float32: same weights, same cache, all layers in one compiled call.

Chosen by what the model is made of, never by its name alone: every layer must be RMS norm, rotary q/k, gated SiLU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from tokenwire.engine.local import layers as table
from tokenwire.engine.local.attention import AttentionCall, PagedAttention
from tokenwire.engine.local.batch import StepBatch
from tokenwire.engine.local.gemm import MULTIPLY
from tokenwire.engine.local.kernels import Floats, num_threads
from tokenwire.engine.local.layers import COLUMNS, NUM_STAGES, Positions, Shape, Work, run_layers
from tokenwire.engine.local.linear import Linear
from tokenwire.engine.local.packing import Arena
from tokenwire.engine.local.prompt_kernel import QUERIES
from tokenwire.engine.local.rotary import Rotary
from tokenwire.engine.local.tiles import CODES, PANEL, RECORD

ARCHITECTURES = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
"""Classes whose decoder layer is norm, attention, add, norm, gated MLP, add, with nothing else in between."""
_HEAD_STAGES = 2
"""The last norm and the head are the first two stages of a layer: norm and product."""
_SPARE_ROWS = 16


class FusedModel:
    """Runs a batch like the model it was made from. Build it with `fuse`."""

    def __init__(self, model: PreTrainedModel, attention: PagedAttention, *, quantize: bool) -> None:
        base: Any = model.model
        cache = attention.cache
        assert cache is not None
        arena = Arena()
        _take_off_the_file(model)
        self._embedding: torch.Tensor = base.embed_tokens.weight.data
        self._rotary = Rotary(base.rotary_emb, self._embedding[:1])
        self._kept: list[object] = [cache]
        """What the addresses in the table point to."""
        self._table = np.zeros((len(base.layers), COLUMNS), dtype=np.int64)
        for index, layer in enumerate(base.layers):
            self._enter(index, layer, attention, arena, quantize=quantize)
        self._head = np.zeros((1, COLUMNS), dtype=np.int64)
        tied = model.lm_head.weight is base.embed_tokens.weight
        self._vocab_size: int = model.lm_head.out_features
        self._head[0, table.INPUT_NORM] = self._address(base.norm.weight.data)
        self._put(self._head[0], table.QKV, Linear.of([model.lm_head], arena, quantize=quantize, keep=tied))
        shape, call = attention.shapes[0], attention.calls[0]
        self._shape = Shape(
            multiply=MULTIPLY,
            num_heads=model.config.num_attention_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.key_dim,
            hidden=self._embedding.shape[1],
            num_slots=cache.num_blocks * cache.block_size,
            block_size=cache.block_size,
            eps=float(base.norm.variance_epsilon),
            scaling=float(call.scaling),
            softcap=float(call.softcap or 0.0),
        )
        self._work = self._make_work(0)
        self._logits: Floats = np.empty((0, 0), dtype=np.float32)

    @property
    def codes(self) -> list[str]:
        """How the weights are held, most bytes first."""
        columns = [table.QKV, table.OUTPUT, table.GATE_UP, table.DOWN]
        numbers = {*self._table[:, columns].ravel().tolist(), int(self._head[0, table.QKV])}
        return [CODES[number] for number in sorted(numbers)]

    @torch.inference_mode()
    def logits(self, batch: StepBatch) -> torch.Tensor:
        """[R, vocab] of the rows the batch names, good until the next call; writes K/V."""
        rows = len(batch.token_ids)
        if rows > len(self._work.x):
            self._work = self._make_work(rows)
        work = self._work
        np.take(self._embedding.numpy(), batch.token_ids.numpy(), axis=0, out=work.x[:rows])
        work.delta[:rows] = 0.0
        positions = self._positions(batch)
        run_layers(num_threads(), NUM_STAGES, rows, self._table, self._shape, work, positions)
        return self._scores(batch.logit_rows.numpy(), positions)

    def _scores(self, rows: Any, positions: Positions) -> torch.Tensor:
        """The last norm and the head, for some rows."""
        count = len(rows)
        if not count:
            return torch.empty((0, self._vocab_size))
        if count > len(self._logits):
            columns = int(self._head[0, table.QKV + table.PANELS]) * PANEL
            self._logits = np.empty((count, columns), dtype=np.float32)
        work = self._work
        chosen = work._replace(x=work.x[rows], delta=work.delta[rows], qkv=self._logits)
        run_layers(num_threads(), _HEAD_STAGES, count, self._head, self._shape, chosen, positions)
        return torch.from_numpy(self._logits[:count, : self._vocab_size])

    def _positions(self, batch: StepBatch) -> Positions:
        cos, sin = self._rotary.of(batch.positions)
        prefills = [(p.start, p.stop - p.start, p.context, p.slots.data_ptr()) for p in batch.prefills]
        tasks = [(i, first) for i, prefill in enumerate(prefills) for first in range(0, prefill[1], QUERIES)]
        return Positions(
            cos=cos,
            sin=sin,
            slots=batch.slots.numpy(),
            tables=np.ascontiguousarray(batch.decode_tables.numpy()),
            lens=batch.decode_lens.numpy(),
            prefills=np.array(prefills, dtype=np.int64).reshape(-1, 4),
            # The last blocks of a prompt see most keys; begun first, they keep no thread waiting in the end.
            prefill_tasks=np.array(tasks[::-1], dtype=np.int64).reshape(-1, 2),
        )

    def _make_work(self, rows: int) -> Work:
        """Memory for `rows` rows and a few more."""
        capacity = rows + _SPARE_ROWS

        def floats(linear: int, column: int, unit: int) -> Floats:
            width = int(self._table[:, linear + column].max()) * unit
            return np.zeros((capacity, width), dtype=np.float32)

        def records(*linears: int) -> Any:
            blocks = max(int(self._table[:, linear + table.BLOCKS].max()) for linear in linears)
            return np.zeros((capacity, blocks * RECORD), dtype=np.uint8)

        return Work(
            x=np.zeros((capacity, self._shape.hidden), dtype=np.float32),
            delta=floats(table.DOWN, table.PANELS, PANEL),
            normed=floats(table.QKV, table.BLOCKS, PANEL),
            qkv=floats(table.QKV, table.PANELS, PANEL),
            attended=floats(table.OUTPUT, table.BLOCKS, PANEL),
            active=floats(table.DOWN, table.BLOCKS, PANEL),
            records=records(table.QKV, table.OUTPUT, table.GATE_UP),
            active_records=records(table.DOWN),
            counters=np.zeros((len(self._table) * NUM_STAGES, 2), dtype=np.int64),
        )

    # --- the table ------------------------------------------------------------------------------------------------

    def _enter(self, index: int, module: Any, attention: PagedAttention, arena: Arena, *, quantize: bool) -> None:
        """Fill a layer's row."""
        line, own, mlp, cache = self._table[index], module.self_attn, module.mlp, attention.cache
        assert cache is not None
        line[table.INPUT_NORM] = self._address(module.input_layernorm.weight.data)
        line[table.MLP_NORM] = self._address(module.post_attention_layernorm.weight.data)
        if hasattr(own, "q_norm"):
            line[table.Q_NORM] = self._address(own.q_norm.weight.data)
            line[table.K_NORM] = self._address(own.k_norm.weight.data)
        line[table.KEYS], line[table.VALUES] = cache.keys[index].data_ptr(), cache.values[index].data_ptr()
        line[table.WINDOW] = attention.calls[index].window or 0
        self._put(line, table.QKV, Linear.of([own.q_proj, own.k_proj, own.v_proj], arena, quantize=quantize))
        self._put(line, table.OUTPUT, Linear.of([own.o_proj], arena, quantize=quantize))
        self._put(line, table.GATE_UP, Linear.of_pair(mlp.gate_proj, mlp.up_proj, arena, quantize=quantize))
        self._put(line, table.DOWN, Linear.of([mlp.down_proj], arena, quantize=quantize))

    def _address(self, vector: torch.Tensor) -> int:
        kept = vector.contiguous()
        self._kept.append(kept)
        return kept.data_ptr()

    def _put(self, line: Any, column: int, linear: Linear) -> None:
        self._kept.append(linear)
        line[column : column + 5] = linear.row()


def fuse(model: PreTrainedModel, attention: PagedAttention, *, quantize: bool = False) -> FusedModel | None:
    """The fused twin of `model`, or None if it is not of the kind. `attention` has its cache and knows its calls."""
    if type(model).__name__ not in ARCHITECTURES or model.dtype != torch.float32 or model.device.type != "cpu":
        return None
    if getattr(model.config, "hidden_act", None) != "silu":
        return None
    shapes = {(s.num_kv_heads, s.key_dim, s.value_dim) for s in attention.shapes.values()}
    if len(shapes) != 1 or any(key != value for _, key, value in shapes):
        return None
    if len({_without_window(call) for call in attention.calls.values()}) != 1:
        return None
    return FusedModel(model, attention, quantize=quantize)


def _take_off_the_file(model: PreTrainedModel) -> None:
    """Copy what is not packed. Loaded tensors are views of the mapped file, and one of them would keep all of it."""
    for parameter in model.parameters():
        if parameter.dim() == 1 or parameter is model.get_input_embeddings().weight:
            parameter.data = parameter.data.clone()


def _without_window(call: AttentionCall) -> tuple[float, float | None]:
    return call.scaling, call.softcap
