"""Softmax over few rows at a time, into one buffer that stays in the cache.

A whole batch of probabilities is tens of megabytes that nobody keeps; writing them costs more than computing them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from tokenwire.engine.local.sampling.row_kernels import block_sums

_ROWS = 16


def softmax_chunks(
    logits: torch.Tensor, rows: Sequence[int], temperatures: Sequence[float] | None = None
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Probabilities of `rows` of [B, V], over temperature, as (slice of `rows`, [n, V]).

    Each tensor is overwritten by the next one. A row without a finite largest value gives NaN.
    """
    buffer, scratch = torch.empty(2, min(_ROWS, len(rows)), logits.shape[1], device=logits.device)
    every = len(rows) == len(logits)
    for start in range(0, len(rows), _ROWS):
        part = slice(start, min(start + _ROWS, len(rows)))
        values = logits[part] if every else logits[torch.tensor(rows[part], device=logits.device)]
        probs = buffer[: len(values)]
        if temperatures is not None and any(t != 1.0 for t in temperatures[part]):
            values = torch.div(values, _column(temperatures[part], logits.device), out=scratch[: len(values)])
        yield part, torch.softmax(values, -1, out=probs)


def over_temperature(values: torch.Tensor, temperatures: Sequence[float]) -> torch.Tensor:
    """Each row of [R, V] divided by its temperature, as a new tensor."""
    return values / _column(temperatures, values.device)


def _column(temperatures: Sequence[float], device: torch.device) -> torch.Tensor:
    return torch.tensor(temperatures, dtype=torch.float32, device=device)[:, None]


def log_peaks(
    logits: torch.Tensor, rows: Sequence[int], temperatures: Sequence[float] | None = None
) -> NDArray[np.float32]:
    """The log-probability of each row's most likely id. It is -log(sum(exp(value - largest)))."""
    if logits.device.type == "cpu":
        sums, _ = block_sums(logits.numpy(), np.array(rows, dtype=np.int64), temperature_array(rows, temperatures))
        found: NDArray[np.float32] = -np.log(sums.sum(axis=1, dtype=np.float64)).astype(np.float32)
        return found
    found = np.empty(len(rows), dtype=np.float32)
    for part, probs in softmax_chunks(logits, rows, temperatures):
        found[part] = probs.amax(-1).log_().cpu().numpy()
    return found


def temperature_array(rows: Sequence[int], temperatures: Sequence[float] | None) -> NDArray[np.float32]:
    """[R]; ones where there are none."""
    return np.array(temperatures, np.float32) if temperatures is not None else np.ones(len(rows), np.float32)
