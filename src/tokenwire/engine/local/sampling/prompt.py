"""Scores of prompt tokens. Rows of logits predict the token that follows, so row i scores prompt token i + 1.

They are log-probabilities of the plain logits in every one of the server's logprobs modes, as in vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from tokenwire.engine.base import Logprobs
from tokenwire.engine.local.sampling.scores import ScoreAsk, score

_CHUNK = 64


def score_prompt(logits: torch.Tensor, token_ids: Sequence[int] | NDArray[np.int64], k: int) -> Logprobs:
    """`prompt_logprobs`: T positions, from logits [T, V] and the ids [T] they should have predicted.

    k -1 means the whole vocabulary. Works in slices, so that memory beside the logits does not grow with T times V.
    """
    width = logits.shape[1]
    ask = ScoreAsk(width if k == -1 else k)
    ids = np.asarray(token_ids, dtype=np.int64)
    parts = []
    for start in range(0, len(ids), _CHUNK):
        chunk = ids[start : start + _CHUNK]
        values = logits[start : start + _CHUNK].float().contiguous()
        parts += score(values, chunk, [ask] * len(chunk), as_logits=False)
    if not parts:
        return Logprobs(np.empty((0, 1), np.int32), np.empty((0, 1), np.float32), np.empty(0, np.int32))
    return Logprobs.concat(parts)


def score_prompt_ids(logits: torch.Tensor, rows: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """`prompt_logprob_token_ids`: log-probabilities [T, n] of the ids asked for per position.

    NaN where an id is -1. Rows may have different lengths; short ones count as padded with -1.
    """
    width = max((len(row) for row in rows), default=0)
    table = np.full((len(rows), width), -1, dtype=np.int64)
    for i, row in enumerate(rows):
        table[i, : len(row)] = row
    result = np.full(table.shape, np.nan, dtype=np.float32)
    for start in range(0, len(rows), _CHUNK):
        ids = torch.from_numpy(table[start : start + _CHUNK]).to(logits.device)
        values = logits[start : start + _CHUNK].float()
        found = values.log_softmax(-1).gather(1, ids.clamp(min=0)).masked_fill_(ids < 0, float("nan"))
        result[start : start + _CHUNK] = found.cpu().numpy()
    return result
