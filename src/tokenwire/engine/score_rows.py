"""Scores that come as cells, one object per candidate, laid out as arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tokenwire.engine.base import Logprobs

Cell = tuple[int, float, int]
"""Token id, logprob, rank; rank 0: not told."""


def rows(cells: Sequence[Sequence[Cell]]) -> Logprobs:
    """Rows of cells, the sampled token first, each id once, as arrays.

    Column j holds the candidate of rank j, the sampled token again if that is its rank, so that ranks need not be
    kept. Where ranks do not allow it (candidates that were asked for by id), columns follow the order of the cells
    and ranks are kept beside.
    """
    widths = [_width(row) for row in cells]
    if None in widths:
        return _in_order(cells)
    width = max((w for w in widths if w is not None), default=1)
    token_ids = np.full((len(cells), width), -1, np.int32)
    logprobs = np.full((len(cells), width), -np.inf, np.float32)
    for t, row in enumerate(cells):
        for j, (token_id, logprob, rank) in enumerate(row):
            if j == 0:
                token_ids[t, 0], logprobs[t, 0] = token_id, logprob
            if 0 < rank < width:
                token_ids[t, rank], logprobs[t, rank] = token_id, logprob
    ranks = np.fromiter((row[0][2] if row else 0 for row in cells), np.int32, len(cells))
    return Logprobs(token_ids, logprobs, ranks)


def _width(row: Sequence[Cell]) -> int | None:
    """Columns that this row needs: one more than the worst rank of a candidate. None if its ranks are no columns."""
    ranks = [rank for _, _, rank in row[1:]]
    worst = max(ranks, default=0)
    if 0 in ranks or len(set(ranks)) < len(ranks) or worst > len(row):
        return None
    return worst + 1


def _in_order(cells: Sequence[Sequence[Cell]]) -> Logprobs:
    width = max((len(row) for row in cells), default=1)
    token_ids = np.full((len(cells), width), -1, np.int32)
    logprobs = np.full((len(cells), width), -np.inf, np.float32)
    ranks = np.zeros((len(cells), width), np.int32)
    for t, row in enumerate(cells):
        for j, (token_id, logprob, rank) in enumerate(row):
            token_ids[t, j], logprobs[t, j], ranks[t, j] = token_id, logprob, rank
    return Logprobs(token_ids, logprobs, ranks[:, 0].copy(), ranks)
