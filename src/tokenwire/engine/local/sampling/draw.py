"""The draw: one uniform number and a row of weights give one id, by inverse CDF."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from tokenwire.engine.local.sampling.softmax import softmax_chunks

_BLOCK = 64


def draw_untruncated(
    logits: torch.Tensor, rows: Sequence[int], temperatures: Sequence[float], uniforms: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """One id for each of `rows` of [B, V], from the whole vocabulary.

    A row without a distribution (NaN, or all -inf) gives its argmax. Also returns the log of each row's largest
    probability, which scores need and which costs nothing here.
    """
    ids = np.empty(len(rows), dtype=np.int64)
    log_peaks = np.empty(len(rows), dtype=np.float32)
    for part, probs in softmax_chunks(logits, rows, temperatures):
        ids[part] = _draw(probs, uniforms[part])
        log_peaks[part] = probs.amax(-1).log_().cpu().numpy()
    for i in np.flatnonzero(np.isnan(log_peaks)).tolist():
        ids[i] = argmax(logits[rows[i]])
    return ids, log_peaks


def _draw(probs: torch.Tensor, uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
    """In two levels: find the block by the sums of blocks, then the id in it. NaN rows give some id."""
    width = probs.shape[1]
    if width % _BLOCK:
        probs = torch.nn.functional.pad(probs, (0, -width % _BLOCK))
    blocks = probs.view(len(probs), -1, _BLOCK)
    edges = blocks.sum(2).cpu().numpy().astype(np.float64).cumsum(axis=1)
    target = uniforms * edges[:, -1]
    block = np.minimum((edges <= target[:, None]).sum(axis=1), edges.shape[1] - 1)
    row = np.arange(len(probs))
    before = np.where(block > 0, edges[row, block - 1], 0.0)
    inside = blocks[torch.from_numpy(row).to(probs.device), torch.from_numpy(block).to(probs.device)]
    ids: NDArray[np.int64] = block * _BLOCK + pick(inside.cpu().numpy().astype(np.float64), target - before)
    return np.minimum(ids, width - 1)


def pick(weights: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.int64]:
    """Per row the first column whose running sum passes `target`, and never one of weight zero."""
    sums = weights.cumsum(axis=1)
    column = (sums <= target[:, None]).sum(axis=1)
    # Rounding may leave the target at or past the last sum: take the last column that has any weight.
    last = weights.shape[1] - 1 - (weights[:, ::-1] > 0).argmax(axis=1)
    chosen: NDArray[np.int64] = np.minimum(column, last)
    return chosen


def argmax(values: torch.Tensor) -> NDArray[np.int64]:
    """The first largest id per row; NaN counts as the largest. numpy's is the vectorised one on a CPU."""
    if values.device.type == "cpu":
        first: NDArray[np.int64] = values.numpy().argmax(axis=-1)
        return first
    chosen: NDArray[np.int64] = values.argmax(-1).cpu().numpy()
    return chosen
