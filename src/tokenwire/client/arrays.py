"""Scores and routed experts of a reply as numpy arrays. Packed arrays are viewed in place, never walked by token."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenwire.client.errors import BadReplyError
from tokenwire.wire.arrays import RaggedIds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenwire.client.replies import LogprobEntry, PromptLogprob, ReplyLogprobs


@dataclass(slots=True, frozen=True)
class LogprobArrays:
    """Scores of T positions with K candidates each.

    Column 0 is the sampled token, column j the candidate of rank j; the sampled token's own place among those is empty.
    An empty cell has id -1. Candidates that were asked for by id stand in that order, with their `candidate_ranks`.
    """

    token_ids: NDArray[np.int32]  # [T, K]; -1 throughout when a reply gave texts instead of ids
    logprobs: NDArray[np.float32]  # [T, K], natural log
    ranks: NDArray[np.int32]  # [T], 1 = best of the whole vocabulary; 0 = unknown
    candidate_ranks: NDArray[np.int32] | None = None  # [T, K], where column j has not rank j

    def __len__(self) -> int:
        return len(self.ranks)

    @property
    def sampled(self) -> NDArray[np.float32]:
        """[T]: the score of the token that was sampled."""
        return self.logprobs[:, 0] if self.logprobs.shape[1] else np.zeros(len(self), np.float32)


def unpack(packed: ReplyLogprobs) -> LogprobArrays:
    """View the bytes of packed logprobs as arrays. Raises `BadReplyError` if sizes disagree."""
    if len(packed.ranks) % 4:
        raise BadReplyError(f"packed ranks have {len(packed.ranks)} bytes, which is no whole number of int32")
    ranks = np.frombuffer(packed.ranks, "<i4")
    shape, size = (len(ranks), packed.k), 4 * len(ranks) * packed.k
    given = packed.candidate_ranks
    if len(packed.token_ids) != size or len(packed.logprobs) != size or (given is not None and len(given) != size):
        raise BadReplyError(
            f"packed logprobs do not fit together: {len(ranks)} ranks, k={packed.k}, "
            f"{len(packed.token_ids)} bytes of token_ids and {len(packed.logprobs)} of logprobs (want {size})"
        )
    return _trimmed(
        np.frombuffer(packed.token_ids, "<i4").reshape(shape),
        np.frombuffer(packed.logprobs, "<f4").reshape(shape),
        ranks,
        None if given is None else np.frombuffer(given, "<i4").reshape(shape),
    )


def _trimmed(
    token_ids: NDArray[np.int32],
    logprobs: NDArray[np.float32],
    ranks: NDArray[np.int32],
    candidate_ranks: NDArray[np.int32] | None,
) -> LogprobArrays:
    """Without the columns at the end that are empty throughout; what is left are views."""
    width = token_ids.shape[1]
    while width > 1 and (token_ids[:, width - 1] < 0).all():
        width -= 1
    if candidate_ranks is not None:
        candidate_ranks = candidate_ranks[:, :width]
    return LogprobArrays(token_ids[:, :width], logprobs[:, :width], ranks, candidate_ranks)


class _Cell(NamedTuple):
    token_id: int | None
    logprob: float
    rank: int | None


def from_content(content: list[LogprobEntry]) -> LogprobArrays:
    """Arrays of entry objects."""
    return _from_rows(
        [
            [
                _Cell(entry.known_token_id, entry.logprob, entry.rank),
                *(_Cell(c.known_token_id, c.logprob, c.rank) for c in entry.top_logprobs if not c.is_same_token(entry)),
            ]
            for entry in content
        ]
    )


def from_prompt(scores: Sequence[dict[int, PromptLogprob] | None]) -> LogprobArrays:
    """Arrays of prompt scores: rows for the positions that have any, which are all but the first."""
    return _from_rows(
        [[_Cell(token_id, s.logprob, s.rank) for token_id, s in row.items()] for row in scores if row is not None]
    )


def _from_rows(rows: list[list[_Cell]]) -> LogprobArrays:
    """The first cell of a row is the sampled token; candidates go where their ranks say, else in order."""
    places = [_places(row) for row in rows]
    width = 1 + max((max(row, default=0) for row in places), default=0)
    token_ids = np.full((len(rows), width), -1, np.int32)
    logprobs = np.full((len(rows), width), -np.inf, np.float32)
    by_rank = True
    ranks = np.zeros((len(rows), width), np.int32)
    for at, (row, columns) in enumerate(zip(rows, places, strict=True)):
        to = [0, *columns]
        own = row[0].rank or 0
        if 0 < own < width and own not in columns:
            logprobs[at, own] = row[0].logprob  # as packed arrays have it: the place is empty, its score is known
        token_ids[at, to] = [-1 if cell.token_id is None else cell.token_id for cell in row]
        logprobs[at, to] = [cell.logprob for cell in row]
        ranks[at, to] = [cell.rank or 0 for cell in row]
        by_rank = by_rank and all(cell.rank in (None, column) for cell, column in zip(row[1:], columns, strict=True))
    return LogprobArrays(token_ids, logprobs, ranks[:, 0].copy(), None if by_rank else ranks)


def _places(row: list[_Cell]) -> list[int]:
    """The column of each candidate."""
    ranks = [cell.rank or 0 for cell in row[1:]]
    if len(set(ranks)) == len(ranks) and all(0 < rank <= len(row) for rank in ranks):
        return ranks
    return list(range(1, len(row)))


def ids_array(raw: list[int] | bytes) -> NDArray[np.int32]:
    """[T]: a view where the ids came as bytes. Raises `BadReplyError`."""
    if not isinstance(raw, bytes):
        return np.array(raw, np.int32)
    if len(raw) % 4:
        raise BadReplyError(f"token_ids: {len(raw)} bytes are not a whole number of int32")
    return np.frombuffer(raw, "<i4")


def mask_arrays(raw: list[list[int]] | RaggedIds) -> list[NDArray[np.int32]]:
    """One array per token. Raises `BadReplyError` if sizes disagree."""
    if not isinstance(raw, RaggedIds):
        return [np.array(ids, np.int32) for ids in raw]
    ends, flat = np.cumsum(ids_array(raw.counts)), ids_array(raw.token_ids)
    if (ends[-1] if len(ends) else 0) != len(flat):
        raise BadReplyError(f"sampling_mask: counts do not add up to its {len(flat)} ids")
    return np.split(flat, ends[:-1]) if len(ends) else []


_HEADERS: dict[tuple[int, int], Any] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_npy(data: bytes) -> NDArray[np.generic]:
    """The array of `.npy` bytes, as a view; object arrays are refused. Raises `BadReplyError`."""
    try:
        file = io.BytesIO(data)
        read = _HEADERS[np.lib.format.read_magic(file)]  # type: ignore[no-untyped-call]
        shape, is_fortran, dtype = read(file)
        if dtype.hasobject:
            raise ValueError("an array of objects")
        flat: NDArray[np.generic] = np.frombuffer(data, dtype, offset=file.tell())
        return flat.reshape(shape, order="F" if is_fortran else "C")
    except (ValueError, KeyError, EOFError) as exc:
        raise BadReplyError(f"not a .npy array: {exc}") from exc


def read_raw(data: bytes, shape: list[int], dtype: str) -> NDArray[np.generic]:
    """The array of raw bytes. Raises `BadReplyError` if shape, dtype and size disagree."""
    try:
        return np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).reshape(shape)
    except (ValueError, TypeError) as exc:
        raise BadReplyError(f"{len(data)} bytes are no array of shape {shape} and dtype {dtype!r}: {exc}") from exc
