"""Compiled passes over rows of logits on a CPU: what sampling needs to know of 50,000 numbers, in one or two looks.

A row is cut into blocks of `BLOCK_IDS`, the last one shorter.
"""

from __future__ import annotations

import numpy as np
from numba import prange
from numpy.typing import NDArray

from tokenwire.engine.local.kernels import Floats, compiled, num_threads
from tokenwire.engine.local.vectors import VECTOR, exponential, exponential_sum_of_four, largest, largest_of_four

BLOCK_IDS = 4 * VECTOR
_WORTH_THREADS = 1 << 17
"""Logits below which one thread is faster than waking another."""


@compiled()
def _maxima_of(line: Floats, out: Floats) -> None:
    width = line.shape[0]
    whole = width // BLOCK_IDS
    for block in range(whole):
        out[block] = largest_of_four(line.ctypes.data + block * BLOCK_IDS * 4)
    if whole < out.shape[0]:
        found = line[whole * BLOCK_IDS]
        for i in range(whole * BLOCK_IDS + 1, width):
            if np.isnan(found):
                break
            found = line[i] if np.isnan(line[i]) else max(found, line[i])
        out[whole] = found


@compiled()
def _sums_of(line: Floats, factor: np.float32, rest: np.float32, out: Floats) -> np.float32:
    """Block sums of e ** ((x - largest) * (factor + rest)); returns the largest. NaN where there is no distribution."""
    width = line.shape[0]
    whole = width // BLOCK_IDS
    peak = np.float32(-np.inf)
    if width >= VECTOR:
        peak = largest(line.ctypes.data, width // VECTOR)
    for i in range(width // VECTOR * VECTOR, width):
        peak = max(peak, line[i])
    for block in range(whole):
        at = line.ctypes.data + block * BLOCK_IDS * 4
        out[block] = exponential_sum_of_four(at, peak, factor, rest)
    if whole < out.shape[0]:
        total = np.float32(0.0)
        for i in range(whole * BLOCK_IDS, width):
            depth = line[i] - peak
            if depth < -1e30:
                depth = np.float32(-1e30)
            total += exponential(depth * factor + depth * rest)
        out[whole] = total
    return peak


@compiled(parallel=True)
def _maxima_split(pieces: int, logits: Floats, out: Floats) -> None:
    rows = logits.shape[0]
    for p in prange(pieces):
        for r in range(p * rows // pieces, (p + 1) * rows // pieces):
            _maxima_of(logits[r], out[r])


@compiled(parallel=True)
def _sums_split(
    pieces: int, logits: Floats, rows: NDArray[np.int64], factors: Floats, rests: Floats, sums: Floats, peaks: Floats
) -> None:
    count = rows.shape[0]
    for p in prange(pieces):
        for i in range(p * count // pieces, (p + 1) * count // pieces):
            peaks[i] = _sums_of(logits[rows[i]], factors[i], rests[i], sums[i])


def _pieces(rows: int, width: int) -> int:
    return num_threads() if rows * width >= _WORTH_THREADS else 1


def block_maxima(logits: Floats) -> Floats:
    """[R, blocks]: the largest number of every block of [R, V]; NaN where a block has one."""
    rows, width = logits.shape
    out = np.empty((rows, -(-width // BLOCK_IDS)), dtype=np.float32)
    _maxima_split(_pieces(rows, width), logits, out)
    return out


def block_sums(logits: Floats, rows: NDArray[np.int64], temperatures: Floats) -> tuple[Floats, Floats]:
    """For `rows` of [B, V]: sums of e ** ((x - largest) / temperature) in every block, [R, blocks]; and largest, [R].

    The sums of a row without a distribution (a NaN or +inf among its numbers, or nothing but -inf) are NaN.
    """
    sums = np.empty((len(rows), -(-logits.shape[1] // BLOCK_IDS)), dtype=np.float32)
    peaks = np.empty(len(rows), dtype=np.float32)
    exact = 1.0 / temperatures.astype(np.float64)
    factors = exact.astype(np.float32)
    rests = (exact - factors).astype(np.float32)
    _sums_split(_pieces(len(rows), logits.shape[1]), logits, rows, factors, rests, sums, peaks)
    return sums, peaks
