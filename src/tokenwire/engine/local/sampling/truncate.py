"""Truncation by min-p, top-k and top-p, and the draw among what survives.

The rules are vLLM's: min-p first, against the largest probability; then top-k, where ids that tie with the k-th stay;
then top-p over what is left, the smallest set of best ids whose share reaches p (of equal ids the lower ones first).

Each row takes one of two ways, decided by that row alone so that its neighbours cannot change its result: a short
sorted list of its best ids when what survives fits into it, else one look at the whole row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tokenwire.engine.local.sampling.best import best_lists, take_rows
from tokenwire.engine.local.sampling.draw import pick
from tokenwire.engine.local.sampling.softmax import log_peaks
from tokenwire.engine.local.sampling.state import SequenceSampler

_LIST_SIZES = (32, 64, 256)
_SLICES_PER_NAT, _SLICES = 32, 2048
_NUCLEUS_LIST = 64  # most nuclei of a language model fit


@dataclass(slots=True, frozen=True)
class Draw:
    """The outcome of one row; `survivors` in rising order of id, only where asked for."""

    token_id: int
    survivors: NDArray[np.int32] | None = None


@dataclass(slots=True, frozen=True)
class _Row:
    index: int
    sampler: SequenceSampler
    uniform: float
    wants: bool
    mass: float
    """Sum of exp(value - max) over the whole row where top-p stands alone; else 0, and survivors are summed."""


def draw_truncated(
    logits: torch.Tensor,
    samplers: Sequence[SequenceSampler],
    uniforms: NDArray[np.float64],
    wants_survivors: Sequence[bool],
) -> list[Draw]:
    """One draw per row of [R, V]. A row without a distribution gives its argmax."""
    masses = _full_masses(logits, samplers)
    parts = zip(samplers, uniforms.tolist(), wants_survivors, masses.tolist(), strict=True)
    rows = [_Row(i, *part) for i, part in enumerate(parts)]
    draws: dict[int, Draw] = {}
    for size in _LIST_SIZES:
        listed = [row for row in rows if row.index not in draws and _tries(row.sampler, size, logits.shape[1])]
        if listed:
            draws |= _from_lists(logits, listed, size)
    for row in rows:
        if row.index not in draws:
            draws[row.index] = _from_row(logits[row.index].cpu().numpy(), row)
    return [draws[row.index] for row in rows]


def _tries(sampler: SequenceSampler, size: int, width: int) -> bool:
    """Whether to look for a row's survivors in a list of `size`: the shortest that holds top-k, or both for nuclei."""
    if not sampler.top_k:
        return _NUCLEUS_LIST <= size < width
    return size == next((size for size in _LIST_SIZES if sampler.top_k <= size < width), 0)


def _full_masses(logits: torch.Tensor, samplers: Sequence[SequenceSampler]) -> NDArray[np.float64]:
    masses = np.zeros(len(samplers))
    rows = [i for i, s in enumerate(samplers) if s.top_p < 1.0 and not s.top_k and not s.min_p]
    if rows:
        peaks = log_peaks(logits, rows, [samplers[i].temperature for i in rows])
        masses[rows] = np.exp(-peaks.astype(np.float64))
    return masses


# --- a short list of the best ids ---------------------------------------------------------------------------------


def _from_lists(logits: torch.Tensor, rows: Sequence[_Row], size: int) -> dict[int, Draw]:
    """Draws of those `rows` whose survivors are certainly all in their lists of about `size` best ids."""
    lists = best_lists(take_rows(logits, [row.index for row in rows]), size)
    if not lists.values.shape[1]:
        return {}
    temperatures = np.array([row.sampler.temperature for row in rows], dtype=np.float32)
    values = lists.values / temperatures[:, None].astype(np.float64)
    # The next number up, since ids just below the floor may have been rounded to it by the division.
    with np.errstate(over="ignore"):  # the floor of a list that holds the whole row is the smallest float
        floor = np.nextafter(lists.floor / temperatures, np.float32(np.inf))
    limits = _limits(values, rows)
    with np.errstate(invalid="ignore"):
        alive = (values >= limits[:, None]) & (values > -np.inf)
        weights = np.where(alive, np.exp(values - values[:, :1]), 0.0)
    masses = np.array([row.mass for row in rows])
    shares = np.array([row.sampler.top_p for row in rows]) * np.where(masses > 0, masses, weights.sum(axis=1))
    whole = np.array([row.sampler.top_p >= 1.0 for row in rows])
    nucleus = alive & ((weights.cumsum(axis=1) - weights < shares[:, None]) | whole[:, None])
    # A list holds the whole row, or all that min-p and top-k leave, or at least one id after the end of the nucleus.
    complete = lists.floor <= np.finfo(np.float32).min
    last = np.where(nucleus, values, np.inf).min(axis=1)
    ends_inside = (nucleus.sum(axis=1) < (values > -np.inf).sum(axis=1)) & (last >= floor)
    sure = complete | np.where(masses > 0, ends_inside, limits >= floor)
    sure &= np.isfinite(lists.floor) & np.isfinite(values[:, 0])
    weights[~nucleus] = 0.0
    columns = pick(weights, np.array([row.uniform for row in rows]) * weights.sum(axis=1))
    return {
        row.index: Draw(int(lists.ids[j, columns[j]]), _sorted_ids(lists.ids[j, nucleus[j]]) if row.wants else None)
        for j, row in enumerate(rows)
        if sure[j]
    }


def _limits(values: NDArray[np.float64], rows: Sequence[_Row]) -> NDArray[np.float64]:
    """The value below which min-p or top-k leaves nothing, from sorted lists; -inf where neither is set."""
    k = np.array([row.sampler.top_k for row in rows])
    reachable = np.minimum(k, values.shape[1])
    kth = np.where(k > 0, values[np.arange(len(rows)), reachable - 1], -np.inf)
    kth[k > reachable] = -np.inf
    with np.errstate(divide="ignore", invalid="ignore"):
        limits: NDArray[np.float64] = np.maximum(values[:, 0] + np.log([row.sampler.min_p for row in rows]), kth)
    return limits


# --- the whole row ------------------------------------------------------------------------------------------------


def _from_row(logits: NDArray[np.float32], row: _Row) -> Draw:
    heat = np.float32(row.sampler.temperature)
    line: NDArray[np.float32] = np.divide(logits, heat, dtype=np.float32)
    largest = float(line.max())
    if not np.isfinite(largest):
        first = int(line.argmax())
        return Draw(first, np.array([first], dtype=np.int32) if row.wants else None)
    ids = np.flatnonzero(line >= max(_floor(line, row, largest), float(np.finfo(np.float32).min)))
    # As exactly as the mass is known: the rounding of the largest number would be that of all.
    depth = (float(logits.max()) - logits[ids].astype(np.float64)) / float(heat)
    weights = np.exp(-depth)
    if row.sampler.top_p < 1.0:
        keep = _nucleus(depth, weights, row.sampler.top_p * (row.mass or float(weights.sum())))
        ids, weights = ids[keep], weights[keep]
    column = int(pick(weights[None], row.uniform * weights.sum(keepdims=True))[0])
    return Draw(int(ids[column]), _sorted_ids(ids) if row.wants else None)


def _floor(line: NDArray[np.float32], row: _Row, largest: float) -> float:
    """No id below this value survives."""
    floor = -np.inf
    if row.sampler.min_p > 0.0:
        floor = largest + float(np.log(row.sampler.min_p))
    if row.sampler.top_k:
        place = len(line) - row.sampler.top_k
        floor = max(floor, float(np.partition(line, place)[place]))
    if row.mass > 0.0:
        # Whoever survives top-p has, with all below it, more than 1 - p; so alone more than a V-th of that. The
        # slack covers rounding.
        floor = largest + float(np.log((1.0 - row.sampler.top_p) * row.mass / len(line))) - 1e-3
    return floor


def _nucleus(depth: NDArray[np.float64], weights: NDArray[np.float64], share: float) -> NDArray[np.bool_]:
    """Which ids top-p keeps: the best ones until their weights reach `share`. `depth` is the distance from the best.

    Sorting everything would take most of a step. So weights are summed in slices of depth, and only the slice in which
    the sum reaches the share is sorted.
    """
    slices = np.minimum(depth * _SLICES_PER_NAT, _SLICES).astype(np.int64)
    sums = np.bincount(slices, weights=weights).cumsum()
    border = int(np.searchsorted(sums, share))  # the first slice at whose end the share is reached
    if border == len(sums):
        return np.ones(len(depth), dtype=np.bool_)
    keep: NDArray[np.bool_] = slices < border
    inner = np.flatnonzero(slices == border)
    inner = inner[np.argsort(depth[inner], kind="stable")]
    before = (sums[border - 1] if border else 0.0) + weights[inner].cumsum() - weights[inner]
    keep[inner[before < share]] = True
    return keep


def _sorted_ids(ids: NDArray[np.int64]) -> NDArray[np.int32]:
    return np.sort(ids).astype(np.int32)
