"""Logprobs as workers send them, as arrays: packed ones are viewed in place, nested ones laid out row by row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from tokenwire.engine.base import Logprobs
from tokenwire.errors import GenerationError

Cell = tuple[int, float, int]
"""Token id, logprob, rank; rank 0: not told."""


class Packed(msgspec.Struct, kw_only=True):
    """`{"format": "packed", "k", "token_ids", "logprobs", "ranks"}` (PROTOCOL 2.14)."""

    k: int = 0
    token_ids: bytes = b""
    logprobs: bytes = b""
    ranks: bytes = b""


class Candidate(msgspec.Struct):
    token_id: int
    logprob: float = -9999.0
    rank: int | None = None


class Entry(Candidate):
    top_logprobs: list[Candidate] = []


class PromptEntry(msgspec.Struct):
    logprob: float
    rank: int | None = None


def unpack(packed: Packed) -> Logprobs:
    """[T, K] views on the bytes. Raises `GenerationError` if sizes disagree."""
    ranks = np.frombuffer(packed.ranks, "<i4")
    shape = (len(ranks), packed.k)
    try:
        token_ids = np.frombuffer(packed.token_ids, "<i4").reshape(shape)
        logprobs = np.frombuffer(packed.logprobs, "<f4").reshape(shape)
    except ValueError as exc:
        raise GenerationError(f"the worker's packed logprobs do not fit together: {exc}") from exc
    return Logprobs(token_ids, logprobs, ranks)


def content_rows(content: Sequence[Entry]) -> Logprobs:
    """One row per entry: the sampled token, then its candidates.

    The sampled token is among its own candidates, except where the worker had no score for it: such a row has id -1.
    """
    return rows(
        [
            [
                (entry.token_id if entry.top_logprobs else -1, entry.logprob, entry.rank or 0),
                *((c.token_id, c.logprob, c.rank or 0) for c in entry.top_logprobs if c.token_id != entry.token_id),
            ]
            for entry in content
        ]
    )


def prompt_rows(scores: Iterable[dict[int, PromptEntry] | None] | Packed) -> Logprobs | None:
    """P-1 rows for prompt positions 1..P-1; None if nothing but the empty first position was sent."""
    if isinstance(scores, Packed):
        return unpack(scores)
    cells = [[(token_id, e.logprob, e.rank or 0) for token_id, e in row.items()] for row in scores if row]
    return rows(cells) if cells else None


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
