"""Scores of tokens: log-probability or logit, true rank, and the best candidates or named ids beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tokenwire.engine.base import Logprobs
from tokenwire.engine.local.sampling.best import take_rows, top_k
from tokenwire.engine.local.sampling.softmax import log_peaks as find_log_peaks

_SHARED_K = 64


@dataclass(slots=True, frozen=True)
class ScoreAsk:
    """What to tell of one row: the best `k` ids, or `token_ids` when given."""

    k: int
    token_ids: NDArray[np.int64] | None = None


def score(
    values: torch.Tensor,
    chosen: NDArray[np.int64],
    asks: Sequence[ScoreAsk],
    *,
    as_logits: bool,
    log_peaks: NDArray[np.float32] | None = None,
) -> list[Logprobs]:
    """One `Logprobs` of one position per row of `values` [R, V] (logits, float32).

    The rank of an id is the number of ids with a value at least its own (vLLM's count, so ties share the worst rank);
    0 if its value is NaN. Ranks are counted on logits, which order ids as log-probabilities do. `log_peaks` [R] are
    log-probabilities of each row's largest value where somebody knows them already, else NaN.
    """
    scale = _Scale.of(values, log_peaks, as_logits)
    found: list[Logprobs | None] = [None] * len(asks)
    named = [i for i, ask in enumerate(asks) if ask.token_ids is not None]
    for i in named:
        found[i] = _named(values[i].cpu().numpy(), int(chosen[i]), asks[i], scale.rows([i]))
    # Rows that ask for much would make the others pay for it, so they go by themselves.
    short = [i for i, ask in enumerate(asks) if ask.token_ids is None and ask.k <= _SHARED_K]
    long = [[i] for i, ask in enumerate(asks) if ask.token_ids is None and ask.k > _SHARED_K]
    for rows in [short, *long] if short else long:
        tables = _tables(take_rows(values, rows), chosen[rows], max(asks[i].k for i in rows), scale.rows(rows))
        for j, i in enumerate(rows):
            width = 1 + asks[i].k
            found[i] = Logprobs(
                tables.token_ids[j : j + 1, :width], tables.logprobs[j : j + 1, :width], tables.ranks[j : j + 1]
            )
    return [logprobs for logprobs in found if logprobs is not None]


@dataclass(slots=True, frozen=True)
class _Scale:
    """Turns logits into scores, per row: (logit - largest) + log_peak; zeros where logits are the scores."""

    largest: NDArray[np.float32]  # [R, 1]
    log_peak: NDArray[np.float32]  # [R, 1]

    @staticmethod
    def of(values: torch.Tensor, log_peaks: NDArray[np.float32] | None, as_logits: bool) -> _Scale:
        if as_logits:
            zeros = np.zeros((len(values), 1), dtype=np.float32)
            return _Scale(zeros, zeros)
        known = np.full(len(values), np.nan, dtype=np.float32) if log_peaks is None else log_peaks.copy()
        unknown = np.flatnonzero(np.isnan(known)).tolist()
        if unknown:
            known[unknown] = find_log_peaks(values, unknown)
        return _Scale(values.amax(-1, keepdim=True).cpu().numpy(), known[:, None])

    def rows(self, rows: Sequence[int]) -> _Scale:
        return _Scale(self.largest[rows], self.log_peak[rows])

    def apply(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        with np.errstate(invalid="ignore"):  # a row without any finite logit has NaN for scores
            return (logits - self.largest) + self.log_peak


def _tables(values: torch.Tensor, chosen: NDArray[np.int64], k: int, scale: _Scale) -> Logprobs:
    """Scores of the chosen id and the best k, for all rows at once."""
    rows = torch.arange(len(chosen), device=values.device)
    own = values[rows, torch.from_numpy(chosen).to(values.device)].cpu().numpy()
    best, ids = top_k(values, min(k, values.shape[1]))
    table_ids = np.concatenate([chosen[:, None], ids], axis=1).astype(np.int32)
    table = scale.apply(np.concatenate([own[:, None], best], axis=1))
    return Logprobs(table_ids, table, _ranks(values, own, best))


def _ranks(values: torch.Tensor, own: NDArray[np.float32], best: NDArray[np.float32]) -> NDArray[np.int32]:
    """Counts of values >= own. Only rows whose token is not clearly among `best` look at the whole row."""
    ranks: NDArray[np.int32] = (best >= own[:, None]).sum(axis=1, dtype=np.int32)
    if best.shape[1] < values.shape[1]:
        unsure = np.flatnonzero(~(own > best[:, -1])) if best.shape[1] else np.arange(len(own))
        lines = take_rows(values, unsure.tolist()).cpu().numpy()
        # Row by row: numpy counts a contiguous run of booleans many times faster than along an axis.
        for row, line in zip(unsure.tolist(), lines, strict=True):
            ranks[row] = np.count_nonzero(line >= own[row])
    return ranks


def _named(line: NDArray[np.float32], chosen: int, ask: ScoreAsk, scale: _Scale) -> Logprobs:
    """Scores of given ids, with the true rank of each."""
    assert ask.token_ids is not None
    ids = np.concatenate([[chosen], ask.token_ids])
    own = line[ids]
    ranks = np.array([np.count_nonzero(line >= value) for value in own], dtype=np.int32)
    return Logprobs(ids.astype(np.int32)[None], scale.apply(own[None]), ranks[:1], ranks[None])
