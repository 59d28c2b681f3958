"""Scores and routed experts of a reply as numpy arrays. Packed arrays are viewed in place, never walked by token."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tokenwire.client.errors import BadReplyError

if TYPE_CHECKING:
    from tokenwire.client.replies import LogprobEntry, ReplyLogprobs


@dataclass(slots=True, frozen=True)
class LogprobArrays:
    """Scores of T positions with K candidates each; column 0 is the sampled token. A missing cell has id -1."""

    token_ids: NDArray[np.int32]  # [T, K]; -1 throughout when a reply gave texts instead of ids
    logprobs: NDArray[np.float32]  # [T, K], natural log
    ranks: NDArray[np.int32]  # [T], 1 = best of the whole vocabulary; 0 = unknown

    def __len__(self) -> int:
        return len(self.ranks)

    @property
    def sampled(self) -> NDArray[np.float32]:
        """[T]: the score of the token that was sampled."""
        return self.logprobs[:, 0] if self.logprobs.shape[1] else np.zeros(len(self), np.float32)


def unpack(packed: ReplyLogprobs) -> LogprobArrays:
    """View the bytes of packed logprobs as arrays. Raises `BadReplyError` if sizes disagree."""
    ranks = np.frombuffer(packed.ranks, "<i4")
    rows, cells = len(ranks), len(ranks) * packed.k
    if len(packed.token_ids) != 4 * cells or len(packed.logprobs) != 4 * cells:
        raise BadReplyError(
            f"packed logprobs do not fit together: {rows} ranks, k={packed.k}, "
            f"{len(packed.token_ids)} bytes of token_ids and {len(packed.logprobs)} of logprobs (want {4 * cells})"
        )
    shape = (rows, packed.k)
    return LogprobArrays(
        np.frombuffer(packed.token_ids, "<i4").reshape(shape),
        np.frombuffer(packed.logprobs, "<f4").reshape(shape),
        ranks,
    )


def from_content(content: list[LogprobEntry]) -> LogprobArrays:
    """Arrays of entry objects: the sampled token, then the candidates that are not the sampled token again."""
    rows = [[entry, *(c for c in entry.top_logprobs if not c.is_same_token(entry))] for entry in content]
    width = max((len(row) for row in rows), default=1)
    token_ids = np.full((len(rows), width), -1, np.int32)
    logprobs = np.full((len(rows), width), -np.inf, np.float32)
    for at, row in enumerate(rows):
        token_ids[at, : len(row)] = [-1 if (i := cell.known_token_id) is None else i for cell in row]
        logprobs[at, : len(row)] = [cell.logprob for cell in row]
    return LogprobArrays(token_ids, logprobs, np.array([entry.rank or 0 for entry in content], np.int32))


def read_npy(data: bytes) -> NDArray[np.generic]:
    """The array of `.npy` bytes; object arrays are refused. Raises `BadReplyError`."""
    try:
        array: NDArray[np.generic] = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError) as exc:
        raise BadReplyError(f"not a .npy array: {exc}") from exc
    return array


def read_raw(data: bytes, shape: list[int], dtype: str) -> NDArray[np.generic]:
    """The array of raw bytes. Raises `BadReplyError` if shape, dtype and size disagree."""
    try:
        return np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).reshape(shape)
    except (ValueError, TypeError) as exc:
        raise BadReplyError(f"{len(data)} bytes are no array of shape {shape} and dtype {dtype!r}: {exc}") from exc
