"""The best ids of each row without a sort of the vocabulary.

On a CPU a row is cut into blocks. The n-th largest block maximum is a value that at least n ids reach; only blocks
whose maximum reaches it can hold such ids, so a vectorised maximum and a look at few blocks find them all. Other
devices have a good top-k of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tokenwire.engine.local.sampling.row_kernels import BLOCK_IDS, block_maxima

_CROWDED = 4  # a row with this many times the blocks one would expect has masses of ties; it is left out


@dataclass(slots=True, frozen=True)
class BestLists:
    """Per row a list of its best ids, best first, equal values by rising id; shorter rows end in -inf."""

    values: NDArray[np.float32]  # [R, W]
    ids: NDArray[np.int64]  # [R, W]; 0 where padded
    floor: NDArray[np.float32]  # [R]
    """Every finite value at least this large is in the list; +inf: the row is left out (NaN, masses of ties)."""


def take_rows(values: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Some rows of [B, V] in rising order; no copy if they are all rows."""
    return values if len(rows) == len(values) else values[torch.tensor(rows, dtype=torch.int64, device=values.device)]


def best_lists(values: torch.Tensor, size: int) -> BestLists:
    """Lists of about `size` ids per row of [R, V], never fewer while there are finite values."""
    if values.device.type != "cpu":
        return _by_topk(values, size)
    width = values.shape[1]
    if width % BLOCK_IDS:
        values = torch.nn.functional.pad(values, (0, -width % BLOCK_IDS), value=float("-inf"))
    maxima = block_maxima(values.numpy())
    cut = max(maxima.shape[1] - size, 0)
    reach = np.partition(maxima, cut, axis=1)[:, cut]
    return _collect(values.numpy().reshape(-1, BLOCK_IDS), maxima, reach, size)


def _collect(
    blocks: NDArray[np.float32], maxima: NDArray[np.float32], reach: NDArray[np.float32], size: int
) -> BestLists:
    """All finite values that are at least `reach` [R], from the blocks [R * B, BLOCK_IDS] and their maxima [R, B]."""
    promising = (maxima >= reach[:, None]) & (maxima > -np.inf)
    left_out = np.isnan(maxima).any(axis=1) | (promising.sum(axis=1) > _CROWDED * size)
    promising[left_out] = False
    block_row, block = np.nonzero(promising)
    candidates = blocks.take(block_row * maxima.shape[1] + block, axis=0)  # [P, BLOCK_IDS]
    bound = np.maximum(reach, np.finfo(np.float32).min)
    hit, offset = np.nonzero(candidates >= bound[block_row][:, None])
    row, ids = block_row[hit], block[hit] * BLOCK_IDS + offset  # rising by row, then by id
    counts = np.bincount(row, minlength=len(maxima))
    column = np.arange(len(row)) - (counts.cumsum() - counts)[row]
    table = np.full((len(maxima), int(counts.max(initial=0))), -np.inf, dtype=np.float32)
    table_ids = np.zeros(table.shape, dtype=np.int64)
    table[row, column] = candidates[hit, offset]
    table_ids[row, column] = ids
    order = np.argsort(-table, axis=1, kind="stable")
    return BestLists(
        np.take_along_axis(table, order, axis=1),
        np.take_along_axis(table_ids, order, axis=1),
        np.where(left_out, np.float32(np.inf), bound),
    )


def _by_topk(values: torch.Tensor, size: int) -> BestLists:
    size = min(size, values.shape[1])
    found, ids = values.topk(size, dim=-1)
    ids, by_id = ids.sort(dim=-1)
    found, order = found.gather(1, by_id).sort(dim=-1, descending=True, stable=True)
    best = found.cpu().numpy()
    # Ids that tie with the last one may be missing, so only what lies above it is sure to be complete.
    floor = np.nextafter(best[:, -1], np.float32(np.inf)) if size < values.shape[1] else np.full(len(best), -np.inf)
    floor = np.where(np.isnan(best[:, 0]), np.inf, np.maximum(floor, np.finfo(np.float32).min)).astype(np.float32)
    return BestLists(best, ids.gather(1, order).cpu().numpy(), floor)


def top_k(values: torch.Tensor, k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """(values, ids) [R, k] of the k largest per row of [R, V], largest first, equal values by rising id.

    NaN counts as the largest value. Rows whose k-th value is -inf list some ids of -inf in the end.
    """
    rows, width = values.shape
    if k == 0:
        return np.empty((rows, 0), np.float32), np.empty((rows, 0), np.int64)
    found = np.empty((rows, k), dtype=np.float32)
    ids = np.empty((rows, k), dtype=np.int64)
    todo = np.arange(rows)
    if k * BLOCK_IDS <= width:
        lists = best_lists(values, k)
        if lists.values.shape[1] >= k:
            enough = lists.values[:, k - 1] > -np.inf
            found[enough], ids[enough] = lists.values[enough, :k], lists.ids[enough, :k]
            todo = np.flatnonzero(~enough)
    for row in todo.tolist():
        line = values[row].cpu().numpy()
        ids[row] = np.argsort(-np.where(np.isnan(line), np.float32(np.inf), line), kind="stable")[:k]
        found[row] = line[ids[row]]
    return found, ids
