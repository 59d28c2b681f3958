"""The tensors of one step: a flat batch of all chunks' tokens, decodes first, and where their K/V go."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tokenwire.engine.local.scheduler import Chunk


@dataclass(slots=True, frozen=True)
class Prefill:
    """One chunk of more than one token: rows start..stop of the flat batch, after `context` tokens in the cache."""

    start: int
    stop: int
    context: int
    slots: torch.Tensor
    """[context + stop - start], int64: cache slots of the whole sequence so far."""


@dataclass(slots=True)
class StepBatch:
    """One step, as tensors on the device. T tokens, D decodes (rows 0..D-1 of the batch)."""

    token_ids: torch.Tensor  # [T], int64
    positions: torch.Tensor  # [T], int64
    slots: torch.Tensor  # [T], int64: where each token's K/V are written
    num_decodes: int
    """Rows with one query each: the newest token of a sequence, or a guess of what follows it."""
    decode_tables: torch.Tensor  # [D, blocks], int32
    decode_lens: torch.Tensor  # [D], int32: context length, the new token included
    max_decode_len: int
    prefills: list[Prefill]
    logit_rows: torch.Tensor  # [R], int64: rows of the batch whose logits are needed
    sample_rows: list[tuple[Chunk, int]]
    """Chunks that sample, with their row among the logits; those of its guesses follow."""
    score_rows: list[tuple[Chunk, int, int]]
    """Chunks with prompt scores, with their half open range among the logits."""


def build_batch(chunks: Seq[Chunk], tables: NDArray[np.int32], block_size: int, device: torch.device) -> StepBatch:
    """Lay out `chunks`; `tables` [rows, blocks] are the scheduler's block tables."""
    decodes = [c for c in chunks if c.num_tokens == 1]
    others = [c for c in chunks if c.num_tokens > 1]
    rows = np.array([c.sequence.row for c in decodes], dtype=np.int64)
    starts = np.array([c.sequence.num_computed for c in decodes], dtype=np.int64)
    newest = [c.sequence.token_ids[c.sequence.num_computed] for c in decodes]
    if any(c.draft for c in decodes):
        rows, starts, newest = _with_guesses(decodes, rows, starts, newest)
    num_decodes = len(rows)
    total = num_decodes + sum(c.num_tokens for c in others)
    token_ids = np.empty(total, dtype=np.int64)
    positions = np.empty(total, dtype=np.int64)
    slots = np.empty(total, dtype=np.int64)
    token_ids[:num_decodes] = newest
    positions[:num_decodes] = starts
    slots[:num_decodes] = tables[rows, starts // block_size].astype(np.int64) * block_size + starts % block_size
    longest = int(starts.max()) + 1 if num_decodes else 0

    prefills = []
    at = num_decodes
    for chunk in others:
        prefills.append(_lay_out(chunk, at, tables, block_size, token_ids, positions, slots, device))
        at += chunk.num_tokens

    logit_rows, samples, scores = _logit_rows(decodes + others)
    return StepBatch(
        token_ids=torch.from_numpy(token_ids).to(device),
        positions=torch.from_numpy(positions).to(device),
        slots=torch.from_numpy(slots).to(device),
        num_decodes=num_decodes,
        decode_tables=torch.from_numpy(tables[rows, : -(-longest // block_size)]).to(device),
        decode_lens=torch.from_numpy((starts + 1).astype(np.int32)).to(device),
        max_decode_len=longest,
        prefills=prefills,
        logit_rows=torch.from_numpy(logit_rows).to(device),
        sample_rows=samples,
        score_rows=scores,
    )


def _with_guesses(
    decodes: Seq[Chunk], rows: NDArray[np.int64], starts: NDArray[np.int64], newest: list[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[int]]:
    """Rows, positions and ids with every decode's guesses behind it, one row each.

    Each row sees the rows before it, since K/V of a step are written before its attention runs.
    """
    widths = np.array([c.num_rows for c in decodes], dtype=np.int64)
    offsets = np.arange(widths.sum()) - (widths.cumsum() - widths).repeat(widths)
    ids: list[int] = []
    for chunk, token_id in zip(decodes, newest, strict=True):
        ids.append(token_id)
        ids += chunk.draft
    return rows.repeat(widths), starts.repeat(widths) + offsets, ids


def _lay_out(
    chunk: Chunk,
    at: int,
    tables: NDArray[np.int32],
    block_size: int,
    token_ids: NDArray[np.int64],
    positions: NDArray[np.int64],
    slots: NDArray[np.int64],
    device: torch.device,
) -> Prefill:
    """Write one prefill chunk into the flat arrays from row `at` on."""
    sequence = chunk.sequence
    start = sequence.num_computed
    stop = start + chunk.num_tokens
    end = at + chunk.num_tokens
    token_ids[at:end] = sequence.token_ids[start:stop]
    positions[at:end] = np.arange(start, stop)
    blocks = tables[sequence.row, : -(-stop // block_size)].astype(np.int64)
    all_slots = (blocks[:, None] * block_size + np.arange(block_size)).reshape(-1)[:stop]
    slots[at:end] = all_slots[start:]
    return Prefill(at, end, start, torch.from_numpy(all_slots).to(device))


def _logit_rows(
    chunks: Seq[Chunk],
) -> tuple[NDArray[np.int64], list[tuple[Chunk, int]], list[tuple[Chunk, int, int]]]:
    """Which batch rows need logits: those that sample first, then those that score prompts."""
    rows: list[int] = []
    samples: list[tuple[Chunk, int]] = []
    at = 0
    for chunk in chunks:
        last = at + chunk.num_tokens - 1
        at += chunk.num_rows
        if chunk.samples:
            samples.append((chunk, len(rows)))
            rows += range(last, at)
    scores: list[tuple[Chunk, int, int]] = []
    at = 0
    for chunk in chunks:
        count = chunk.score_stop - chunk.score_start
        if count:
            first = at + chunk.score_start - chunk.sequence.num_computed
            scores.append((chunk, len(rows), len(rows) + count))
            rows += range(first, first + count)
        at += chunk.num_rows
    return np.array(rows, dtype=np.int64), samples, scores
