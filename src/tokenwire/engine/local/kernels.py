"""Compiled CPU kernels of the fused path: numpy arrays in, results written into arrays given. float32 only.

Every kernel is one body over a range of rows, columns or heads, compiled by numba once per installation and cached
beside this file. `_split` variants run the body's range in pieces on several threads; they are used when there are
several and the work is worth waking them.

Two OpenMP runtimes in one process make each other's threads wait for milliseconds. So numba's threads come from
PyTorch's runtime where `process.CoreProcess` has arranged that they can share it, else from numba's own pool.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numba import carray, njit, prange
from numpy.typing import NDArray

from tokenwire.engine.local.vectors import VECTOR, bits_of, exponentials, floats_at, largest, mix_values, score_keys

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Function = TypeVar("Function", bound=Callable[..., Any])

SHARED_OPENMP = "TOKENWIRE_SHARED_OPENMP"
"""Set in a process whose dynamic linker gives numba PyTorch's OpenMP."""
PIECES_PER_THREAD = 4
WORTH_THREADS = 1 << 16
"""Multiplications below which one thread is faster than waking another."""

numba.config.THREADING_LAYER = "omp" if os.environ.get(SHARED_OPENMP) else "workqueue"
_num_threads = 1


def set_num_threads(count: int) -> None:
    """Threads of the kernels; at most the machine's cores."""
    global _num_threads
    _num_threads = min(count, numba.config.NUMBA_NUM_THREADS)
    if _num_threads > 1:
        numba.set_num_threads(_num_threads)


def num_threads() -> int:
    """What `set_num_threads` has set."""
    return _num_threads


def compiled(*, parallel: bool = False, strict: bool = False) -> Callable[[Function], Function]:
    """Decorator. Sums may be reordered into vectors; NaN and infinity keep their meaning. `strict`: no reordering."""
    loose = False if strict else {"contract", "reassoc", "arcp", "nsz"}
    compiler: Callable[[Function], Function] = njit(parallel=parallel, fastmath=loose, nogil=True, cache=True)
    return compiler


def _pieces(work: int) -> int:
    """In how many pieces to split that many multiplications; 1: do not."""
    return _num_threads * PIECES_PER_THREAD if _num_threads > 1 and work >= WORTH_THREADS else 1


# --- attention of one new token per sequence --------------------------------------------------------------------


@compiled()
def _score_block(
    query: Floats, keys: Floats, first: int, count: int, kv_head: int, scale: np.float32, out_at: int
) -> None:  # fmt: skip
    """out[j] = query . key * scale, for the slots first..first + count."""
    width = query.shape[0]
    if width % VECTOR == 0:
        at = keys.ctypes.data + first * keys.strides[0] + kv_head * keys.strides[1]
        score_keys(query.ctypes.data, at, keys.strides[0], count, width // VECTOR, bits_of(scale), out_at)
        return
    out = carray(floats_at(out_at), count)
    for j in range(count):
        dot = np.float32(0.0)
        for i in range(width):
            dot += query[i] * keys[first + j, kv_head, i]
        out[j] = dot * scale


@compiled()
def _mix_block(weights_at: int, values: Floats, first: int, count: int, kv_head: int, out: Floats) -> None:
    """out += sum of weights[j] * value, for the slots first..first + count."""
    width = out.shape[0]
    if width % VECTOR == 0:
        at = values.ctypes.data + first * values.strides[0] + kv_head * values.strides[1]
        mix_values(weights_at, at, values.strides[0], count, width // VECTOR, out.ctypes.data)
        return
    weights = carray(floats_at(weights_at), count)
    for j in range(count):
        for i in range(width):
            out[i] += weights[j] * values[first + j, kv_head, i]


@compiled()
def decode_one(
    row: int,
    kv_head: int,
    query: Floats,
    keys: Floats,
    values: Floats,
    tables: Ints,
    lens: Ints,
    block_size: int,
    num_heads: int,
    scale: float,
    window: int,
    softcap: float,
    scores: Floats,
    out: Floats,
) -> None:
    """The query heads of one row that share a K/V head, block by block: a block serves the whole group.

    `scores` [group, context and more, whole vectors] is memory to work in.
    """
    width, value_width = keys.shape[2], values.shape[2]
    group = num_heads // keys.shape[1]
    stop = lens[row]
    start = max(0, stop - window) if window > 0 else 0
    count = stop - start
    first_block, last_block = start // block_size, (stop - 1) // block_size
    for block in range(first_block, last_block + 1):
        base = int(tables[row, block]) * block_size - block * block_size
        low, high = max(start, block * block_size), min(stop, (block + 1) * block_size)
        for g in range(group):
            at = (kv_head * group + g) * width
            place = scores[g].ctypes.data + (low - start) * 4
            _score_block(query[row, at : at + width], keys, base + low, high - low, kv_head, np.float32(scale), place)
    vectors = -(-count // VECTOR)
    for g in range(group):
        line = scores[g]
        if softcap > 0.0:
            for j in range(count):
                line[j] = np.float32(np.tanh(line[j] / softcap) * softcap)
        line[count : vectors * VECTOR] = -np.inf
        peak = largest(line.ctypes.data, vectors)
        share = np.float32(1.0) / exponentials(line.ctypes.data, vectors, peak)
        at = (kv_head * group + g) * value_width
        result = out[row, at : at + value_width]
        result[:] = np.float32(0.0)
        for block in range(first_block, last_block + 1):
            base = int(tables[row, block]) * block_size - block * block_size
            low, high = max(start, block * block_size), min(stop, (block + 1) * block_size)
            _mix_block(line.ctypes.data + (low - start) * 4, values, base + low, high - low, kv_head, result)
        for i in range(value_width):
            result[i] *= share


@compiled()
def _decode(
    first: int,
    last: int,
    query: Floats,
    keys: Floats,
    values: Floats,
    tables: Ints,
    lens: Ints,
    block_size: int,
    num_heads: int,
    scale: float,
    window: int,
    softcap: float,
    out: Floats,
) -> None:
    """Tasks first..last (half open); task t is row t // K/V heads and K/V head t % K/V heads."""
    num_kv_heads = keys.shape[1]
    scores = np.empty((num_heads // num_kv_heads, tables.shape[1] * block_size + VECTOR), dtype=np.float32)
    for task in range(first, last):
        decode_one(
            task // num_kv_heads,
            task % num_kv_heads,
            query,
            keys,
            values,
            tables,
            lens,
            block_size,
            num_heads,
            scale,
            window,
            softcap,
            scores,
            out,
        )


@compiled(parallel=True)
def _decode_split(
    pieces: int,
    query: Floats,
    keys: Floats,
    values: Floats,
    tables: Ints,
    lens: Ints,
    block_size: int,
    num_heads: int,
    scale: float,
    window: int,
    softcap: float,
    out: Floats,
) -> None:
    tasks = lens.shape[0] * keys.shape[1]
    for p in prange(pieces):
        _decode(
            p * tasks // pieces,
            (p + 1) * tasks // pieces,
            query,
            keys,
            values,
            tables,
            lens,
            block_size,
            num_heads,
            scale,
            window,
            softcap,
            out,
        )


def paged_decode(
    query: Floats,
    keys: Floats,
    values: Floats,
    tables: Ints,
    lens: Ints,
    block_size: int,
    num_heads: int,
    scale: float,
    window: int | None,
    softcap: float | None,
    out: Floats,
) -> None:
    """Attention of one query per row over its blocks.

    `query` [rows, >= heads * width]: the heads lie first in a row. `tables` [rows, blocks], `lens` [rows]: tokens to
    see, the new one included. Writes `out` [rows, heads * value width]. Reads nothing but those tokens' slots.
    """
    arguments = (query, keys, values, tables, lens, block_size, num_heads, scale, window or 0, softcap or 0.0, out)
    pieces = _pieces(tables.shape[1] * block_size * out.size)
    if pieces == 1:
        _decode(0, len(lens) * keys.shape[1], *arguments)
    else:
        _decode_split(pieces, *arguments)
