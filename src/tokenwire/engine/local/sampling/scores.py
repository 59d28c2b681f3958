"""Scores of tokens: log-probability or logit, true rank, and the best candidates or named ids beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tokenwire.engine.base import Logprobs
from tokenwire.engine.local.sampling.top import top_values


@dataclass(slots=True, frozen=True)
class ScoreAsk:
    """What to tell of one row: the best `k` ids, or `token_ids` when given."""

    k: int
    token_ids: NDArray[np.int64] | None = None


def score(
    values: torch.Tensor, chosen: NDArray[np.int64], asks: Sequence[ScoreAsk], *, as_logits: bool
) -> list[Logprobs]:
    """One `Logprobs` of one position per row of `values` [R, V] (logits, float32).

    The rank of an id is the number of ids with a value at least its own (vLLM's count, so ties share the worst rank);
    0 if its value is NaN. Ranks are counted on logits, which order ids as log-probabilities do.
    """
    if as_logits:
        offset = np.zeros((len(asks), 1), dtype=np.float32)
        top_value = offset
    else:
        top_value, offset = _normalizer(values)
    shared_k = max(ask.k for ask in asks if ask.token_ids is None) if any(a.token_ids is None for a in asks) else 0
    rows = torch.arange(len(asks), device=values.device)
    own = values[rows, torch.from_numpy(chosen).to(values.device)].cpu().numpy()
    width = values.shape[1]
    best, ids = _best(values, min(shared_k, width))
    table_ids = np.concatenate([chosen[:, None], ids], axis=1).astype(np.int32)
    table = (np.concatenate([own[:, None], best], axis=1) - top_value) + offset
    ranks = _ranks(values, own, best)
    return [
        _named(values[i], int(chosen[i]), ask.token_ids, float(top_value[i, 0]), float(offset[i, 0]))
        if ask.token_ids is not None
        else Logprobs(table_ids[i : i + 1, : 1 + ask.k], table[i : i + 1, : 1 + ask.k], ranks[i : i + 1])
        for i, ask in enumerate(asks)
    ]


def _normalizer(values: torch.Tensor) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(max, log of the largest probability), each [R, 1]: log-probability = (value - max) + log p_max."""
    largest = values.amax(-1, keepdim=True)
    # The fused softmax is the fastest full pass there is; its largest entry is 1 / sum(exp(value - max)).
    log_p = values.softmax(-1).amax(-1, keepdim=True).log_()
    return largest.cpu().numpy(), log_p.cpu().numpy()


def _best(values: torch.Tensor, k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    if k == 0:
        empty = (len(values), 0)
        return np.empty(empty, np.float32), np.empty(empty, np.int64)
    found, ids = top_values(values, k)
    return found.cpu().numpy(), ids.cpu().numpy()


def _ranks(values: torch.Tensor, own: NDArray[np.float32], best: NDArray[np.float32]) -> NDArray[np.int32]:
    """Counts of values >= own. Only rows whose token is not clearly among `best` look at the whole row."""
    ranks: NDArray[np.int32] = (best >= own[:, None]).sum(axis=1, dtype=np.int32)
    if best.shape[1] < values.shape[1]:
        unsure = np.flatnonzero(~(own > best[:, -1])) if best.shape[1] else np.arange(len(own))
        for row in unsure.tolist():
            ranks[row] = np.count_nonzero(values[row].cpu().numpy() >= own[row])
    return ranks


def _named(row: torch.Tensor, chosen: int, token_ids: NDArray[np.int64], top_value: float, offset: float) -> Logprobs:
    """Scores of given ids, with the true rank of each."""
    line = row.cpu().numpy()
    ids = np.concatenate([[chosen], token_ids])
    own = line[ids]
    rising = np.sort(line)  # NaN sorts to the end and would be counted as larger
    numbers = len(line) - int(np.count_nonzero(np.isnan(line)))
    ranks = (numbers - np.searchsorted(rising[:numbers], own, side="left")).astype(np.int32)
    ranks[np.isnan(own)] = 0
    scores = (own - np.float32(top_value)) + np.float32(offset)
    return Logprobs(ids.astype(np.int32)[None], scores[None].astype(np.float32), ranks[:1], ranks[None])
