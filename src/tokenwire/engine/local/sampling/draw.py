"""The draw: one uniform number and a row of weights give one id, by inverse CDF."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

_BLOCK = 64


def draw_untruncated(
    scaled: torch.Tensor, uniforms: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """One id per row of [R, V] by inverse CDF, in two levels: find the block, then the id in it.

    A row without a distribution (NaN, or all -inf) gives its argmax. Also returns the log of each row's largest
    probability, which the scores need and which costs nothing here.
    """
    probs = scaled.softmax(-1)
    log_peaks = probs.amax(-1).log_().cpu().numpy()
    rows, width = probs.shape
    rest = -width % _BLOCK
    if rest:
        probs = torch.nn.functional.pad(probs, (0, rest))
    blocks = probs.view(rows, -1, _BLOCK)
    edges = blocks.sum(2).cpu().numpy().astype(np.float64).cumsum(axis=1)
    target = uniforms * edges[:, -1]
    block = np.minimum((edges <= target[:, None]).sum(axis=1), edges.shape[1] - 1)
    picked = np.arange(rows)
    before = np.where(block > 0, edges[picked, block - 1], 0.0)
    inside = blocks[torch.from_numpy(picked).to(probs.device), torch.from_numpy(block).to(probs.device)]
    fine = inside.cpu().numpy().astype(np.float64)
    ids = block * _BLOCK + pick(fine, target - before)
    broken = ~np.isfinite(target)
    if broken.any():
        ids[broken] = argmax(scaled[torch.from_numpy(np.flatnonzero(broken)).to(scaled.device)])
    return ids, log_peaks


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
