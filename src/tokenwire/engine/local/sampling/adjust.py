"""Adjustments of logits that can change even a greedy choice, in vLLM's order.

That is: allowed ids, bad words, min_tokens, logit bias, penalties, thinking budget. Each works on all its rows at once;
its cost follows the number of ids that are touched, not the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from tokenwire.engine.local.sampling.state import SequenceSampler

Rows = Sequence[tuple[int, SequenceSampler]]
"""(row of the logits, its sequence) for the rows to treat."""

NEG_INF = float("-inf")
FORCED = 1e9  # vLLM's value; it shows in processed scores


def adjust(logits: torch.Tensor, rows: Rows) -> None:
    """Apply every adjustment in place to `logits` [B, V] float32."""
    keep_allowed(logits, [(r, s) for r, s in rows if s.allowed is not None])
    forbid_bad_words(logits, [(r, s) for r, s in rows if s.bad_words])
    forbid_early_stop(logits, [(r, s) for r, s in rows if s.num_output_tokens < s.min_tokens and len(s.stop_ids)])
    add_bias(logits, [(r, s) for r, s in rows if len(s.bias_ids)])
    penalize(logits, [(r, s) for r, s in rows if s.counts is not None])
    end_thinking(logits, [(r, s) for r, s in rows if s.thinking is not None])


def keep_allowed(logits: torch.Tensor, rows: Rows) -> None:
    """Everything but `allowed_token_ids` becomes -inf."""
    for row, sampler in rows:
        assert sampler.allowed is not None
        ids = torch.from_numpy(sampler.allowed).to(logits.device)
        kept = logits[row, ids]
        logits[row] = NEG_INF
        logits[row, ids] = kept


def forbid_bad_words(logits: torch.Tensor, rows: Rows) -> None:
    """The last id of a bad word becomes -inf where the output ends with the word's other ids."""
    _put(logits, [(row, np.array(sampler.forbidden_now(), dtype=np.int64)) for row, sampler in rows], NEG_INF)


def forbid_early_stop(logits: torch.Tensor, rows: Rows) -> None:
    """EOS and stop ids become -inf before `min_tokens`.

    A grammar may allow nothing but a stop id; then the stop ids stay, since a row without any finite logit has no
    right answer (vLLM does the same, for structured outputs only).
    """
    bound = [(row, sampler) for row, sampler in rows if sampler.grammar is not None]
    saved = [
        (row, sampler, logits[row, torch.from_numpy(sampler.stop_ids).to(logits.device)]) for row, sampler in bound
    ]
    _put(logits, [(row, sampler.stop_ids) for row, sampler in rows], NEG_INF)
    for row, sampler, values in saved:
        if bool(logits[row].amax() == NEG_INF):
            logits[row, torch.from_numpy(sampler.stop_ids).to(logits.device)] = values


def add_bias(logits: torch.Tensor, rows: Rows) -> None:
    """`logit_bias` is added to its ids."""
    if rows:
        index = _index(logits, [(row, sampler.bias_ids) for row, sampler in rows])
        values = np.concatenate([sampler.bias_values for _, sampler in rows])
        logits[index] += torch.from_numpy(values).to(logits.device)


def penalize(logits: torch.Tensor, rows: Rows) -> None:
    """Repetition penalty over prompt and output, then frequency and presence penalty over the output."""
    if not rows:
        return
    counts = [sampler.counts for _, sampler in rows]
    index = _index(logits, [(row, c.ids) for (row, _), c in zip(rows, counts, strict=True) if c is not None])
    seen = np.concatenate([c.counts for c in counts if c is not None])
    lengths = [len(c.ids) for c in counts if c is not None]
    penalties = np.array(
        [(s.repetition_penalty, s.frequency_penalty, s.presence_penalty) for _, s in rows], dtype=np.float32
    ).repeat(lengths, axis=0)
    repetition = torch.from_numpy(np.ascontiguousarray(penalties[:, 0])).to(logits.device)
    subtract = penalties[:, 1] * seen
    values = logits[index]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= torch.from_numpy(subtract).to(logits.device)
    values -= torch.from_numpy(penalties[:, 2] * (seen > 0)).to(logits.device)
    logits[index] = values


def end_thinking(logits: torch.Tensor, rows: Rows) -> None:
    """A spent thinking budget lifts the forced id above everything; last, so that nothing can weaken it."""
    forced = [(row, s.thinking.forced_now()) for row, s in rows if s.thinking is not None]
    _put(logits, [(row, np.array([i], dtype=np.int64)) for row, i in forced if i is not None], FORCED)


def _index(logits: torch.Tensor, picks: Sequence[tuple[int, NDArray[np.int64]]]) -> tuple[torch.Tensor, torch.Tensor]:
    rows = np.repeat(np.array([row for row, _ in picks], dtype=np.int64), [len(ids) for _, ids in picks])
    ids = np.concatenate([ids for _, ids in picks])
    return torch.from_numpy(rows).to(logits.device), torch.from_numpy(ids).to(logits.device)


def _put(logits: torch.Tensor, picks: Sequence[tuple[int, NDArray[np.int64]]], value: float) -> None:
    picks = [(row, ids) for row, ids in picks if len(ids)]
    if picks:
        logits[_index(logits, picks)] = value
