"""Logprob arrays of an engine as the wire shows them: nested entries, or packed arrays."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from tokenwire.engine.base import Logprobs
from tokenwire.wire.arrays import RaggedIds
from tokenwire.wire.generate import (
    PackedLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenIdLogprob,
    TokenIdLogprobEntry,
    TokenIdLogprobs,
)

FLOOR = -9999.0
"""What stands for -inf, NaN and anything below on the JSON wire."""
FEW_CELLS = 64
"""Up to here a look at each value is cheaper than a call into numpy."""


def clamp(logprob: float) -> float:
    """A finite logprob: -inf, NaN and anything below the floor become -9999.0; +inf becomes 0."""
    if math.isnan(logprob):
        return FLOOR
    return min(max(logprob, FLOOR), 0.0) if math.isinf(logprob) else max(logprob, FLOOR)


def clamp_array(values: NDArray[np.float32]) -> list[list[float]]:
    """`clamp` over [T, K], as Python floats."""
    rows: list[list[float]] = values.tolist()
    if values.size <= FEW_CELLS:
        if all(min(row) >= FLOOR and sum(row) < math.inf for row in rows):  # a sum with NaN is NaN, which is false
            return rows
    elif values.min() >= FLOOR and values.max() < math.inf:  # false with NaN
        return rows
    clean = np.nan_to_num(values.astype(np.float64), nan=FLOOR, neginf=FLOOR, posinf=0.0)
    np.maximum(clean, FLOOR, out=clean)
    return clean.tolist()  # type: ignore[no-any-return]


def token_id_entries(scores: Logprobs, sampled: list[int], *, token_field: bool) -> TokenIdLogprobs:
    """One entry per sampled token: itself, then its candidates, each id once.

    A row whose first column is not the sampled token (the engine had no score for it) gets -9999.0, no rank
    and no candidates.
    """
    ids: list[list[int]] = scores.token_ids.tolist()
    values = clamp_array(scores.logprobs)
    ranks: list[int] = scores.ranks.tolist()
    given: list[list[int]] | None = None if scores.candidate_ranks is None else scores.candidate_ranks.tolist()
    content = []
    for t, token_id in enumerate(sampled):
        row = ids[t]
        if row[0] != token_id:
            content.append(_entry(token_id, FLOOR, None, [], token_field))
            continue
        own, row_ranks = ranks[t] or None, None if given is None else given[t]
        if token_field or row_ranks is not None:
            top = [_candidate(token_id, values[t][0], own, token_field)]
            for j in range(1, len(row)):
                if row[j] >= 0 and row[j] != token_id:
                    rank = j if row_ranks is None else row_ranks[j] or None
                    top.append(_candidate(row[j], values[t][j], rank, token_field))
        else:
            top = [
                TokenIdLogprob(candidate, value, rank)
                for candidate, value, rank in zip(row, values[t], _RANKS, strict=False)
                if candidate >= 0 and candidate != token_id
            ]
            top.insert(0, TokenIdLogprob(token_id, values[t][0], own))
        content.append(_entry(token_id, values[t][0], own, top, token_field))
    return TokenIdLogprobs(content)


_RANKS = range(1 << 31)
"""Column j of a row has rank j."""


def _candidate(token_id: int, logprob: float, rank: int | None, token_field: bool) -> TokenIdLogprob:
    if token_field:
        return TokenIdLogprob(token_id, logprob, rank, f"token_id:{token_id}")
    return TokenIdLogprob(token_id, logprob, rank)


def _entry(
    token_id: int, logprob: float, rank: int | None, top: list[TokenIdLogprob], token_field: bool
) -> TokenIdLogprobEntry:
    if token_field:
        return TokenIdLogprobEntry(token_id, logprob, rank, top, f"token_id:{token_id}")
    return TokenIdLogprobEntry(token_id, logprob, rank, top)


def prompt_entries(scores: Logprobs, texts_of: Callable[[list[list[int]]], list[list[str]]] | None) -> PromptLogprobs:
    """One map per prompt token, the first null: the prompt token itself, then the top candidates.

    `scores` has P-1 rows for prompt positions 1..P-1. `texts_of` gives the token strings of these rows; None: there
    is no tokenizer, and they are null.
    """
    ids: list[list[int]] = scores.token_ids.tolist()
    texts = [None] * len(ids) if texts_of is None else texts_of(ids)
    values = clamp_array(scores.logprobs)
    ranks: list[int] = scores.ranks.tolist()
    entries: PromptLogprobs = [None]
    for row, row_values, rank, row_texts in zip(ids, values, ranks, texts, strict=True):
        entry: dict[int, PromptLogprob] = {}
        for j, token_id in enumerate(row):
            if token_id >= 0 and token_id not in entry:
                text = None if row_texts is None else row_texts[j]
                entry[token_id] = PromptLogprob(row_values[j], (rank if j == 0 else j) or None, text)
        entries.append(entry)
    return entries


NO_SCORES = Logprobs(np.zeros((0, 1), np.int32), np.zeros((0, 1), np.float32), np.zeros(0, np.int32))


def packed(scores: Logprobs, sampled: Sequence[int] | None = None, *, binary: bool) -> PackedLogprobs:
    """Arrays as they are, NaN and infinities included; each candidate once per row, the sampled token first.

    A row that does not begin with its token of `sampled` (the engine had no score for it) is that token alone, with
    -inf and rank 0. None: every row begins with its token, as prompt scores do.
    """
    if sampled is not None:
        scores = _with_sampled(scores, np.asarray(sampled, np.int32))
    ids = scores.token_ids.astype("<i4")
    repeated = ids == ids[:, :1]
    repeated[:, 0] = False
    if repeated.any():
        ids = np.where(repeated, np.int32(-1), ids)
    ranks = scores.candidate_ranks
    return PackedLogprobs(
        k=ids.shape[1],
        token_ids=raw(ids, binary=binary),
        logprobs=raw(scores.logprobs.astype("<f4", copy=False), binary=binary),
        ranks=raw(scores.ranks.astype("<i4", copy=False), binary=binary),
        candidate_ranks=UNSET if ranks is None else raw(ranks.astype("<i4", copy=False), binary=binary),
    )


def _with_sampled(scores: Logprobs, sampled: NDArray[np.int32]) -> Logprobs:
    missing = scores.token_ids[:, 0] != sampled
    if not missing.any():
        return scores
    ids, logprobs, ranks = scores.token_ids.copy(), scores.logprobs.copy(), scores.ranks.copy()
    ids[missing], logprobs[missing], ranks[missing] = -1, -np.inf, 0
    ids[missing, 0] = sampled[missing]
    return Logprobs(ids, logprobs, ranks, scores.candidate_ranks)


def ragged(masks: Sequence[NDArray[np.int32]]) -> RaggedIds:
    """Sampling masks as two arrays."""
    counts = np.fromiter(map(len, masks), "<i4", len(masks))
    flat = np.concatenate(masks) if masks else np.zeros(0, np.int32)
    return RaggedIds(counts=counts.tobytes(), token_ids=flat.astype("<i4", copy=False).tobytes())


def raw(array: NDArray[Any], *, binary: bool) -> str | bytes:
    """The array's bytes in C order; base64 text unless `binary`."""
    data = np.ascontiguousarray(array).tobytes()
    return data if binary else base64.b64encode(data).decode("ascii")


def npy(array: NDArray[Any], *, binary: bool) -> str | bytes:
    """The array as a `.npy` file; base64 text unless `binary`."""
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(array), allow_pickle=False)
    data = buffer.getvalue()
    return data if binary else base64.b64encode(data).decode("ascii")
