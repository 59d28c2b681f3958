"""Runs a step's batch through the model: flat batch in, logits of the wanted rows out.

The generic path calls any transformers model as it is, with our attention in its layers. Where the architecture is
known, a fused path computes the same with fewer and larger operations.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from tokenwire.engine.local.attention import PagedAttention, UnsupportedAttentionError
from tokenwire.engine.local.batch import StepBatch, build_batch
from tokenwire.engine.local.fused import ARCHITECTURES, FusedModel, fuse
from tokenwire.engine.local.kernels import set_num_threads
from tokenwire.engine.local.kv_cache import KVCache
from tokenwire.engine.local.loader import choose_device, choose_num_blocks, load_model
from tokenwire.engine.local.options import LocalEngineOptions
from tokenwire.engine.local.scheduler import Chunk
from tokenwire.engine.local.transfer.fingerprint import sample_weights
from tokenwire.errors import EngineUnavailableError


class ModelRunner:
    """The model, its cache and its device."""

    def __init__(self, folder: Path, options: LocalEngineOptions, max_model_len: int) -> None:
        started = time.monotonic()
        if options.num_threads is not None:
            torch.set_num_threads(options.num_threads)
        set_num_threads(torch.get_num_threads())
        self.device = choose_device(options)
        self.attention = PagedAttention()
        self.attention.register()
        self.model: PreTrainedModel = load_model(folder, options, self.device)
        self.dtype: torch.dtype = self.model.dtype
        self.block_size = options.block_size
        self._record_shapes()
        # Before `fuse`, which packs weights and lets the originals go.
        self.weights_digest = b""
        if options.kv_transfer_port is not None:
            self.weights_digest = sample_weights(self.model) + options.quantization.encode()
        num_blocks = choose_num_blocks(options, self.attention.shapes, self.dtype, self.device, max_model_len)
        self.cache = KVCache(self.attention.shapes, num_blocks, options.block_size, self.dtype, self.device)
        self.attention.cache = self.cache
        self._fused = self._fuse(options)
        self.load_time_s = time.monotonic() - started

    def _fuse(self, options: LocalEngineOptions) -> FusedModel | None:
        quantize = options.quantization == "int8"
        if quantize and not options.fused:
            raise EngineUnavailableError("quantization='int8' is a part of the fast path, which fused=False turns off.")
        fused = fuse(self.model, self.attention, quantize=quantize) if options.fused else None
        if quantize and fused is None:
            raise EngineUnavailableError(
                f"quantization='int8' works for {', '.join(sorted(ARCHITECTURES))} with dtype float32 on a CPU; "
                f"this is {type(self.model).__name__} with {str(self.dtype).removeprefix('torch.')} on {self.device}."
            )
        return fused

    @property
    def weight_codes(self) -> list[str]:
        """How the fused path holds the weights (see `tiles`); empty without it."""
        return [] if self._fused is None else self._fused.codes

    @property
    def is_fused(self) -> bool:
        """Whether the fused path runs instead of the model's own modules."""
        return self._fused is not None

    @torch.inference_mode()
    def forward(self, chunks: Sequence[Chunk], tables: NDArray[np.int32]) -> tuple[torch.Tensor, StepBatch]:
        """Compute all chunks; logits [R, vocab] of the rows the batch names. K/V are in the cache afterwards."""
        batch = build_batch(chunks, tables, self.block_size, self.device)
        self.attention.batch = batch
        try:
            return self.logits(batch), batch
        finally:
            self.attention.batch = None

    def logits(self, batch: StepBatch) -> torch.Tensor:
        """[R, vocab] of the rows the batch names; writes K/V."""
        if self._fused is not None:
            return self._fused.logits(batch)
        output = self.model(
            input_ids=batch.token_ids.unsqueeze(0),
            position_ids=batch.positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=batch.logit_rows,
        )
        logits: torch.Tensor = output.logits[0]
        return logits

    @torch.inference_mode()
    def _record_shapes(self) -> None:
        """One pass without a cache: learns every layer's K/V shape, and refuses what attention cannot do."""
        ids = torch.zeros((1, 2), dtype=torch.int64, device=self.device)
        name = type(self.model).__name__
        try:
            self.model(input_ids=ids, position_ids=torch.arange(2, device=self.device).unsqueeze(0), use_cache=False)
        except UnsupportedAttentionError as exc:
            raise EngineUnavailableError(
                f"The local engine cannot run {name}: it needs {exc}. Serve it with the vllm engine."
            ) from exc
        expected = self.model.config.get_text_config().num_hidden_layers
        if len(self.attention.shapes) != expected:
            raise EngineUnavailableError(
                f"The local engine cannot run {name}: only {len(self.attention.shapes)} of its {expected} layers are "
                "ordinary attention. Serve it with the vllm engine."
            )
