"""Request bodies. Prompt ids depend on seed, level and index alone, so a run can be repeated exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from tokenwire.bench.options import RequestShape

_PREFIX_STREAM = -1
WARMUP_OUTPUT_LEN = 8
"""Longest output of a warm-up request."""


def prompt_ids(shape: RequestShape, level: int, index: int) -> list[int]:
    """The prompt of request `index` of a level. Without a shared prefix no two prompts begin alike, but by chance."""
    shared = min(shape.shared_prefix_len, shape.prompt_len)
    own = _draw(shape, level, index, shape.prompt_len - shared)
    return (_draw(shape, _PREFIX_STREAM, 0, shared) + own) if shared else own


def _draw(shape: RequestShape, level: int, index: int, count: int) -> list[int]:
    # SeedSequence takes no negative numbers; levels and warm-ups are shifted to make room for the prefix.
    rng = np.random.default_rng((shape.seed, level + 1, index))
    ids: list[int] = rng.integers(shape.vocab_low, shape.vocab_high, count).tolist()
    return ids


def body(shape: RequestShape, level: int, index: int) -> bytes:
    sampling: dict[str, Any] = {
        "max_tokens": shape.output_len,
        "temperature": shape.temperature,
        "ignore_eos": shape.ignore_eos,
        "detokenize": False,
    }
    if shape.logprobs is not None:
        sampling["logprobs"] = shape.logprobs
    request: dict[str, Any] = {
        "token_ids": prompt_ids(shape, level, index),
        "sampling_params": sampling,
        "stream": shape.stream,
    }
    if shape.model is not None:
        request["model"] = shape.model
    return msgspec.json.encode(request)


def warmup_shape(shape: RequestShape) -> RequestShape:
    """The same requests, soon over."""
    return replace(shape, output_len=min(shape.output_len, WARMUP_OUTPUT_LEN))
