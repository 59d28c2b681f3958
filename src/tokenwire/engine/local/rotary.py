"""Cosines and sines of positions, from transformers' own rotary embedding; computed once where they never change."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tokenwire.engine.local.kernels import Floats

FIXED = frozenset({"default", "linear", "llama3", "yarn"})
"""Kinds whose angles depend on the position alone, not on how long the sequence is."""


class Rotary:
    """Looks positions up."""

    def __init__(self, module: Any, like: torch.Tensor) -> None:
        """`like`: a tensor of the wanted device and dtype."""
        self._module = module
        self._like = like
        self._is_fixed = getattr(module, "rope_type", None) in FIXED
        self._cos, self._sin = self._compute(torch.arange(1))

    def of(self, positions: torch.Tensor) -> tuple[Floats, Floats]:
        """(cos, sin), each [positions, head width]."""
        if not self._is_fixed:
            return self._compute(positions)
        longest = int(positions.max())
        if longest >= len(self._cos):
            self._cos, self._sin = self._compute(torch.arange(max(1024, 2 * longest)))
        index = positions.numpy()
        return self._cos[index], self._sin[index]

    def _compute(self, positions: torch.Tensor) -> tuple[Floats, Floats]:
        cos, sin = self._module(self._like, positions.unsqueeze(0))
        return np.ascontiguousarray(cos[0].numpy()), np.ascontiguousarray(sin[0].numpy())
