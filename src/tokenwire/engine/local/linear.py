"""Linear layers of the fused CPU path: packed weights, and their row in the table of layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tokenwire.engine.local.kernels import Floats
from tokenwire.engine.local.packing import Arena, Packed, pack
from tokenwire.engine.local.tiles import PANEL


@dataclass(slots=True, frozen=True)
class Linear:
    """One or more of a model's linear layers, one under another. Keeps what the addresses point to."""

    packed: Packed
    bias: Floats | None
    """[panels * PANEL]"""

    @staticmethod
    def of(modules: list[torch.nn.Linear], arena: Arena, *, quantize: bool, keep: bool = False) -> Linear:
        """The layers' columns one after another. They give up their weights, unless to `keep` (tied embeddings)."""
        weight = torch.cat([m.weight.data for m in modules]) if len(modules) > 1 else modules[0].weight.data
        linear = Linear(pack(weight, arena, quantize=quantize), _bias(torch.cat([_bias_of(m) for m in modules])))
        if not keep:
            _release(modules)
        return linear

    @staticmethod
    def of_pair(gate: torch.nn.Linear, up: torch.nn.Linear, arena: Arena, *, quantize: bool) -> Linear:
        """Two layers of one shape whose panels alternate."""
        weight, bias = _alternate(gate.weight.data, up.weight.data), _alternate(_bias_of(gate), _bias_of(up))
        linear = Linear(pack(weight, arena, quantize=quantize), _bias(bias))
        _release([gate, up])
        return linear

    def row(self) -> list[int]:
        """Code, weight, panels, blocks, bias."""
        packed = self.packed
        bias = 0 if self.bias is None else self.bias.ctypes.data
        return [packed.code, packed.data.ctypes.data, packed.panels, packed.blocks, bias]


def _bias_of(module: torch.nn.Linear) -> torch.Tensor:
    return module.bias.data if module.bias is not None else torch.zeros(module.out_features)


def _bias(values: torch.Tensor) -> Floats | None:
    if not values.any():
        return None
    padded: NDArray[np.float32] = torch.nn.functional.pad(values, (0, -len(values) % PANEL)).numpy()
    return padded


def _alternate(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Rows (or numbers) of both, padded to panels: a panel of the first, one of the second, and so on."""
    end = -len(first) % PANEL
    padding = (0, 0, 0, end) if first.dim() == 2 else (0, end)
    both = (torch.nn.functional.pad(t, padding) if end else t for t in (first, second))
    return torch.stack([t.reshape(-1, PANEL, *t.shape[1:]) for t in both], 1).view(-1, *first.shape[1:])


def _release(modules: list[torch.nn.Linear]) -> None:
    for module in modules:
        module.weight.data = torch.empty(0)
