"""The draw: one uniform number and a row of weights give one id, by inverse CDF."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from tokenwire.engine.local.sampling.row_kernels import BLOCK_IDS, block_sums
from tokenwire.engine.local.sampling.softmax import softmax_chunks


def draw_untruncated(
    logits: torch.Tensor, rows: Sequence[int], temperatures: Sequence[float], uniforms: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """One id for each of `rows` of [B, V], from the whole vocabulary.

    A row without a distribution (NaN, or all -inf) gives its argmax. Also returns the log of each row's largest
    probability, which scores need and which costs nothing here.
    """
    if logits.device.type == "cpu":
        return _draw_on_cpu(logits.numpy(), rows, temperatures, uniforms)
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
    if width % BLOCK_IDS:
        probs = torch.nn.functional.pad(probs, (0, -width % BLOCK_IDS))
    blocks = probs.view(len(probs), -1, BLOCK_IDS)
    block, rest = _pick_block(blocks.sum(2).cpu().numpy(), uniforms)
    row = np.arange(len(probs))
    inside = blocks[torch.from_numpy(row).to(probs.device), torch.from_numpy(block).to(probs.device)]
    ids: NDArray[np.int64] = block * BLOCK_IDS + pick(inside.cpu().numpy().astype(np.float64), rest)
    return np.minimum(ids, width - 1)


def _draw_on_cpu(
    logits: NDArray[np.float32], rows: Sequence[int], temperatures: Sequence[float], uniforms: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The same without a table of probabilities: only the blocks that are drawn are looked at again."""
    lines, heat = np.array(rows, dtype=np.int64), np.array(temperatures, dtype=np.float32)
    sums, peaks = block_sums(logits, lines, heat)
    block, rest = _pick_block(sums, uniforms)
    columns = np.minimum(block[:, None] * BLOCK_IDS + np.arange(BLOCK_IDS), logits.shape[1] - 1)
    with np.errstate(invalid="ignore"):
        weights = np.exp(((logits[lines[:, None], columns] - peaks[:, None]) / heat[:, None]).astype(np.float64))
        log_peaks = -np.log(sums.sum(axis=1, dtype=np.float64)).astype(np.float32)
    weights[block[:, None] * BLOCK_IDS + np.arange(BLOCK_IDS) >= logits.shape[1]] = 0.0
    ids = np.minimum(block * BLOCK_IDS + pick(weights, rest), logits.shape[1] - 1)
    for i in np.flatnonzero(np.isnan(log_peaks)).tolist():
        ids[i] = logits[rows[i]].argmax()
    return ids, log_peaks


def _pick_block(
    sums: NDArray[np.float32], uniforms: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Per row of sums of blocks: the block in which the draw falls, and how far into it."""
    edges = sums.astype(np.float64).cumsum(axis=1)
    target = uniforms * edges[:, -1]
    block = np.minimum((edges <= target[:, None]).sum(axis=1), edges.shape[1] - 1)
    before = np.where(block > 0, edges[np.arange(len(edges)), block - 1], 0.0)
    return block, target - before


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
