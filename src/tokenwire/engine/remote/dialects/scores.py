"""Logprobs as workers send them, as arrays: packed ones are viewed in place, nested ones laid out row by row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from tokenwire.engine.base import Logprobs
from tokenwire.engine.score_rows import rows
from tokenwire.errors import GenerationError


class Packed(msgspec.Struct, kw_only=True):
    """`{"format": "packed", "k", "token_ids", "logprobs", "ranks", "candidate_ranks"}` (docs/wire.md)."""

    k: int = 0
    token_ids: bytes = b""
    logprobs: bytes = b""
    ranks: bytes = b""
    candidate_ranks: bytes | None = None


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
        given = packed.candidate_ranks
        candidate_ranks = None if given is None else np.frombuffer(given, "<i4").reshape(shape)
    except ValueError as exc:
        raise GenerationError(f"the worker's packed logprobs do not fit together: {exc}") from exc
    return Logprobs(token_ids, logprobs, ranks, candidate_ranks)


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
