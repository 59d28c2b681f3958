"""The K/V tensors of all layers, addressed by slot: block * block_size + offset."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(slots=True, frozen=True)
class LayerShape:
    """K/V of one token in one layer: heads, and the width of a key and of a value head."""

    num_kv_heads: int
    key_dim: int
    value_dim: int

    def num_bytes(self, dtype: torch.dtype) -> int:
        return self.num_kv_heads * (self.key_dim + self.value_dim) * dtype.itemsize


class KVCache:
    """`keys[layer]` and `values[layer]` are [num_blocks * block_size, kv heads, width]."""

    def __init__(
        self,
        shapes: dict[int, LayerShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        slots = num_blocks * block_size
        self.block_size = block_size
        self.num_blocks = num_blocks
        self._device = device
        self.keys = {i: _zeros((slots, s.num_kv_heads, s.key_dim), dtype, device) for i, s in shapes.items()}
        self.values = {i: _zeros((slots, s.num_kv_heads, s.value_dim), dtype, device) for i, s in shapes.items()}

    def copy_block(self, source: int, target: int) -> None:
        """The content of one block into another, in all layers."""
        size = self.block_size
        for tensors in (self.keys, self.values):
            for tensor in tensors.values():
                tensor[target * size : (target + 1) * size] = tensor[source * size : (source + 1) * size]

    # On a CPU what follows goes through numpy: torch would give every thread that copies a team of threads of its own.

    @torch.inference_mode()
    def read(self, blocks: Sequence[int]) -> NDArray[np.uint8]:
        """A copy of blocks, [n, block bytes]: per block its keys, then its values, of every layer in order."""
        on_cpu = self._device.type == "cpu"
        rows = torch.tensor([] if on_cpu else blocks, dtype=torch.int64, device=self._device)
        parts = [t.numpy()[blocks] if on_cpu else t[rows].cpu().numpy() for t in self._bytes_by_block()]
        return np.concatenate(parts, axis=1)

    @torch.inference_mode()
    def write(self, blocks: Sequence[int], data: NDArray[np.uint8]) -> None:
        """The inverse of `read`."""
        at = 0
        for tensor in self._bytes_by_block():
            part = data[:, at : at + tensor.shape[1]]
            at += tensor.shape[1]
            if self._device.type == "cpu":
                tensor.numpy()[blocks] = part
            else:
                rows = torch.tensor(blocks, dtype=torch.int64, device=self._device)
                tensor.index_copy_(0, rows, torch.from_numpy(np.ascontiguousarray(part)).to(self._device))

    def _bytes_by_block(self) -> Iterator[torch.Tensor]:
        """Views [num_blocks, bytes], keys and values of every layer in order."""
        for layer in sorted(self.keys):
            for tensor in (self.keys[layer], self.values[layer]):
                yield tensor.view(self.num_blocks, -1).view(torch.uint8)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """On CPU through numpy, whose zeros take no memory before they are written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8)).view(dtype).view(shape)


def block_bytes(shapes: dict[int, LayerShape], block_size: int, dtype: torch.dtype) -> int:
    """Memory of one block over all layers."""
    return block_size * sum(shape.num_bytes(dtype) for shape in shapes.values())
