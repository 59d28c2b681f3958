"""The sampling rules once more, as plainly as possible: one row, float64, full sorts, no tricks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tokenwire.wire.sampling import SamplingParams

Row = NDArray[np.float64]


def adjust(
    logits: Row,
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    eos: Sequence[int] = (),
    bad_words: Sequence[Sequence[int]] = (),
) -> Row:
    """allowed ids, bad words, min_tokens, bias, penalties: in this order."""
    row = logits.astype(np.float64).copy()
    if params.allowed_token_ids:
        for token_id in range(len(row)):
            if token_id not in params.allowed_token_ids:
                row[token_id] = -np.inf
    for word in bad_words:
        prefix = list(word[:-1])
        if len(prefix) <= len(output) and list(output[len(output) - len(prefix) :]) == prefix:
            row[word[-1]] = -np.inf
    if len(output) < params.min_tokens:
        for token_id in {*eos, *(params.stop_token_ids or ())}:
            row[token_id] = -np.inf
    for token_id, bias in (params.logit_bias or {}).items():
        row[token_id] += bias
    counts = Counter(output)
    for token_id in {*prompt, *output}:
        if row[token_id] > 0:
            row[token_id] /= params.repetition_penalty
        else:
            row[token_id] *= params.repetition_penalty
    for token_id, count in counts.items():
        row[token_id] -= params.frequency_penalty * count + params.presence_penalty
    return row


def truncate(row: Row, params: SamplingParams) -> Row:
    """Over temperature, then -inf for what min-p, top-k and top-p cut."""
    row = row / (params.temperature or 1.0)
    if params.min_p > 0:
        probs = softmax(row)
        row = np.where(probs < params.min_p * probs.max() * (1 - 1e-9), -np.inf, row)
    if params.top_k > 0:
        kth = np.sort(row)[::-1][min(params.top_k, len(row)) - 1]
        row = np.where(row < kth, -np.inf, row)
    if params.top_p < 1:
        probs = softmax(row)
        before = 0.0
        order = sorted(range(len(row)), key=lambda i: (-row[i], i))
        cut = row.copy()
        for token_id in order:
            if before >= params.top_p:
                cut[token_id] = -np.inf
            before += probs[token_id]
        row = cut
    return row


def softmax(row: Row) -> Row:
    weights = np.exp(row - row.max())
    return weights / weights.sum()


def log_softmax(row: Row) -> Row:
    shifted = row - row.max()
    return shifted - np.log(np.exp(shifted).sum())


def rank(row: Row, token_id: int) -> int:
    return int(sum(value >= row[token_id] for value in row.tolist()))
