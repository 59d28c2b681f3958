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

from tokenwire.engine.local.sampling.draw import pick
from tokenwire.engine.local.sampling.state import SequenceSampler
from tokenwire.engine.local.sampling.top import top_values

_LIST_SIZES = (64, 256)
_SPARE = 8  # a list must reach past the last survivor, to show that no tie with it is missing


@dataclass(slots=True, frozen=True)
class Draw:
    """The outcome of one row; `survivors` in rising order of id, only where asked for."""

    token_id: int
    survivors: NDArray[np.int32] | None = None


def draw_truncated(
    scaled: torch.Tensor,
    samplers: Sequence[SequenceSampler],
    uniforms: NDArray[np.float64],
    wants_survivors: Sequence[bool],
) -> list[Draw]:
    """One draw per row of [R, V] (logits over temperature). A row without a distribution gives its argmax."""
    draws: dict[int, Draw] = {}
    full_mass = _full_mass(scaled, samplers)
    sizes = np.array([_list_size(sampler, scaled.shape[1]) for sampler in samplers])
    for size in sorted(set(sizes.tolist()) - {0}):
        rows = np.flatnonzero(sizes == size)
        draws |= _from_lists(scaled, samplers, uniforms, wants_survivors, full_mass, rows, size)
    for i, sampler in enumerate(samplers):
        if i not in draws:
            line = scaled[i].cpu().numpy()
            draws[i] = _from_row(line, sampler, float(uniforms[i]), wants_survivors[i], float(full_mass[i]))
    return [draws[i] for i in range(len(samplers))]


def _list_size(sampler: SequenceSampler, width: int) -> int:
    """How long a list to try; 0: none. Most nuclei of a language model fit into the shortest."""
    needed = sampler.top_k + _SPARE if sampler.top_k else 0
    return next((size for size in _LIST_SIZES if needed <= size < width), 0)


def _full_mass(scaled: torch.Tensor, samplers: Sequence[SequenceSampler]) -> NDArray[np.float64]:
    """Sum of exp(value - max) over the whole row, for the rows where top-p stands alone; else 0."""
    mass = np.zeros(len(samplers))
    rows = [i for i, s in enumerate(samplers) if s.top_p < 1.0 and not s.top_k and not s.min_p]
    if rows:
        part = scaled if len(rows) == len(samplers) else scaled[torch.tensor(rows, device=scaled.device)]
        mass[rows] = 1.0 / part.softmax(-1).amax(-1).cpu().numpy().astype(np.float64)
    return mass


def _column(values: list[float]) -> NDArray[np.float64]:
    return np.array(values, dtype=np.float64)[:, None]


def _from_lists(
    scaled: torch.Tensor,
    samplers: Sequence[SequenceSampler],
    uniforms: NDArray[np.float64],
    wants_survivors: Sequence[bool],
    full_mass: NDArray[np.float64],
    rows: NDArray[np.int64],
    size: int,
) -> dict[int, Draw]:
    """Draws of those `rows` whose survivors are certainly all among their `size` best ids."""
    part = scaled if len(rows) == len(samplers) else scaled[torch.from_numpy(rows).to(scaled.device)]
    found, found_ids = top_values(part, size)
    values, ids = found.cpu().numpy().astype(np.float64), found_ids.cpu().numpy()
    chosen = [samplers[i] for i in rows.tolist()]
    largest, smallest = values[:, :1], values[:, -1:]
    with np.errstate(invalid="ignore", divide="ignore"):
        floor = largest + np.log(_column([s.min_p for s in chosen]))
        k = np.array([s.top_k for s in chosen], dtype=np.int64)[:, None]
        kth = np.where(k > 0, np.take_along_axis(values, np.maximum(k - 1, 0), axis=1), -np.inf)
        alive = (values >= np.maximum(floor, kth)) & (values > -np.inf)
        weights = np.where(alive, np.exp(values - largest), 0.0)
    p = _column([s.top_p for s in chosen])
    alone = full_mass[rows][:, None] > 0
    mass = np.where(alone, full_mass[rows][:, None], weights.sum(axis=1, keepdims=True))
    sums = weights.cumsum(axis=1)
    nucleus = alive & ((sums - weights < p * mass) | (p >= 1.0))
    # Top-p alone needs only its own survivors in the list; behind another filter it needs all of that one's.
    needed = np.where(alone, nucleus, alive)
    last = np.where(needed, values, np.inf).min(axis=1)
    inside = np.isfinite(largest[:, 0]) & (last > smallest[:, 0])
    weights[~nucleus] = 0.0
    columns = pick(weights, uniforms[rows] * weights.sum(axis=1))
    return {
        row: Draw(int(ids[j, columns[j]]), _sorted_ids(ids[j, nucleus[j]]) if wants_survivors[row] else None)
        for j, row in enumerate(rows.tolist())
        if inside[j]
    }


def _from_row(line: NDArray[np.float32], sampler: SequenceSampler, uniform: float, wants: bool, mass: float) -> Draw:
    largest = float(line.max())
    if not np.isfinite(largest):
        first = int(line.argmax())
        return Draw(first, np.array([first], dtype=np.int32) if wants else None)
    floor = _floor(line, sampler, largest, mass)
    ids = np.flatnonzero((line >= floor) & (line > -np.inf))
    values = line[ids].astype(np.float64)
    if sampler.top_p < 1.0:
        keep = _nucleus(values, largest, sampler.top_p, mass)
        ids, values = ids[keep], values[keep]
    weights = np.exp(values - largest)[None]
    column = int(pick(weights, uniform * weights.sum(axis=1))[0])
    return Draw(int(ids[column]), _sorted_ids(ids) if wants else None)


def _floor(line: NDArray[np.float32], sampler: SequenceSampler, largest: float, mass: float) -> float:
    """No id below this value survives."""
    floor = -np.inf
    if sampler.min_p > 0.0:
        floor = largest + np.log(sampler.min_p)
    if sampler.top_k:
        floor = max(floor, float(np.partition(line, len(line) - sampler.top_k)[len(line) - sampler.top_k]))
    if mass > 0.0:
        # Whoever survives top-p has, with all below it, more than 1 - p; so alone more than a V-th of that. The
        # slack covers rounding.
        floor = largest + np.log((1.0 - sampler.top_p) * mass / len(line)) - 1e-3
    return floor


def _nucleus(values: NDArray[np.float64], largest: float, p: float, mass: float) -> NDArray[np.bool_]:
    """Which of `values` (in rising order of id) top-p keeps; `mass` 0 means the sum of their own weights."""
    falling = np.sort(values)[::-1]
    weights = np.exp(falling - largest)
    sums = weights.cumsum()
    kept = int(np.count_nonzero(sums - weights < p * (mass or sums[-1])))
    border = falling[kept - 1]
    keep: NDArray[np.bool_] = values > border
    ties = np.flatnonzero(values == border)
    keep[ties[: kept - int(keep.sum())]] = True
    return keep


def _sorted_ids(ids: NDArray[np.int64]) -> NDArray[np.int32]:
    return np.sort(ids).astype(np.int32)
