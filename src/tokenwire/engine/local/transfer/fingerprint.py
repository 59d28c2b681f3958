"""What two engines must have in common before one may use the other's blocks: model, weights, type, block layout."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import torch

from tokenwire.engine.local.kv_cache import LayerShape

SAMPLES = 64
"""Values looked at per tensor: training moves nearly all of them, so two checkpoints differ in many."""


@torch.inference_mode()
def sample_weights(model: torch.nn.Module) -> bytes:
    """A digest of names, shapes, types and sampled values of all parameters and buffers."""
    digest = hashlib.blake2b(type(model).__name__.encode(), digest_size=16)
    tensors: Iterable[tuple[str, torch.Tensor]] = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in tensors:
        digest.update(repr((name, tuple(tensor.shape), str(tensor.dtype))).encode())
        flat = tensor.detach().reshape(-1)
        digest.update(flat[:: max(1, len(flat) // SAMPLES)].to("cpu", torch.float64).numpy().tobytes())
    return digest.digest()


def fingerprint(
    weights: bytes, shapes: Mapping[int, LayerShape], dtype: torch.dtype, block_size: int, attention: object
) -> str:
    """Hex. `attention` is anything whose repr tells how layers attend."""
    facts = (sorted(shapes.items()), str(dtype), block_size, attention)
    return hashlib.blake2b(weights + repr(facts).encode(), digest_size=16).hexdigest()
