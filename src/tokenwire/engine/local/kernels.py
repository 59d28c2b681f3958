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
from typing import Any

import numba
import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Kernel = Callable[..., None]

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


def _compiled(*, parallel: bool = False) -> Callable[[Kernel], Kernel]:
    """Decorator. Sums may be reordered into vectors; NaN and infinity keep their meaning."""
    compiler: Callable[[Kernel], Kernel] = njit(
        parallel=parallel, fastmath={"contract", "reassoc", "arcp", "nsz"}, nogil=True, cache=True
    )
    return compiler


def _pieces(work: int) -> int:
    """In how many pieces to split that many multiplications; 1: do not."""
    return _num_threads * PIECES_PER_THREAD if _num_threads > 1 and work >= WORTH_THREADS else 1


# --- rows -------------------------------------------------------------------------------------------------------


@_compiled()
def _add_norm(start: int, stop: int, x: Floats, delta: Floats, weight: Floats, eps: float, out: Floats) -> None:
    width = x.shape[1]
    for r in range(start, stop):
        total = np.float32(0.0)
        for i in range(width):
            value = x[r, i] + delta[r, i]
            x[r, i] = value
            total += value * value
        scale = np.float32(1.0 / np.sqrt(total / width + eps))
        for i in range(width):
            out[r, i] = x[r, i] * scale * weight[i]


@_compiled(parallel=True)
def _add_norm_split(pieces: int, x: Floats, delta: Floats, weight: Floats, eps: float, out: Floats) -> None:
    rows = x.shape[0]
    for p in prange(pieces):
        _add_norm(p * rows // pieces, (p + 1) * rows // pieces, x, delta, weight, eps, out)


def add_norm(x: Floats, delta: Floats, weight: Floats, eps: float, out: Floats) -> None:
    """x += delta, then out = RMS norm of x. All [rows, width]."""
    pieces = _pieces(4 * x.size)
    if pieces == 1:
        _add_norm(0, len(x), x, delta, weight, eps, out)
    else:
        _add_norm_split(pieces, x, delta, weight, eps, out)


@_compiled()
def _rope_store(
    start: int,
    stop: int,
    qkv: Floats,
    cos: Floats,
    sin: Floats,
    q_norm: Floats,
    k_norm: Floats,
    eps: float,
    num_heads: int,
    slots: NDArray[np.int64],
    keys: Floats,
    values: Floats,
) -> None:
    num_kv_heads, width = keys.shape[1], keys.shape[2]
    half = width // 2
    for r in range(start, stop):
        slot = slots[r]
        for h in range(num_heads + num_kv_heads):
            at = h * width
            norm = q_norm if h < num_heads else k_norm
            if norm.shape[0] > 0:
                total = np.float32(0.0)
                for i in range(width):
                    total += qkv[r, at + i] * qkv[r, at + i]
                scale = np.float32(1.0 / np.sqrt(total / width + eps))
                for i in range(width):
                    qkv[r, at + i] = qkv[r, at + i] * scale * norm[i]
            for i in range(half):
                low, high = qkv[r, at + i], qkv[r, at + half + i]
                qkv[r, at + i] = low * cos[r, i] - high * sin[r, i]
                qkv[r, at + half + i] = high * cos[r, half + i] + low * sin[r, half + i]
        k_at = num_heads * width
        v_at = k_at + num_kv_heads * width
        for h in range(num_kv_heads):
            for i in range(width):
                keys[slot, h, i] = qkv[r, k_at + h * width + i]
                values[slot, h, i] = qkv[r, v_at + h * width + i]


@_compiled(parallel=True)
def _rope_store_split(
    pieces: int,
    qkv: Floats,
    cos: Floats,
    sin: Floats,
    q_norm: Floats,
    k_norm: Floats,
    eps: float,
    num_heads: int,
    slots: NDArray[np.int64],
    keys: Floats,
    values: Floats,
) -> None:
    rows = qkv.shape[0]
    for p in prange(pieces):
        start, stop = p * rows // pieces, (p + 1) * rows // pieces
        _rope_store(start, stop, qkv, cos, sin, q_norm, k_norm, eps, num_heads, slots, keys, values)


def rope_store(qkv: Floats, *rest: Any) -> None:
    """Rotate q and k heads of qkv [rows, (q + 2 kv heads) * width] in place, write k and v into the cache.

    `q_norm` and `k_norm` [width] are applied per head before the rotation; empty: no norm. Rows have distinct slots.
    """
    pieces = _pieces(4 * qkv.size)
    if pieces == 1:
        _rope_store(0, len(qkv), qkv, *rest)
    else:
        _rope_store_split(pieces, qkv, *rest)


# --- attention of one new token per sequence --------------------------------------------------------------------


@_compiled()
def _decode_one(
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
    """The query heads of one row that share a K/V head, block by block: a block serves the whole group."""
    width, value_width = keys.shape[2], values.shape[2]
    group = num_heads // keys.shape[1]
    stop = lens[row]
    start = max(0, stop - window) if window > 0 else 0
    count = stop - start
    first_block, last_block = start // block_size, (stop - 1) // block_size
    for block in range(first_block, last_block + 1):
        base = np.int64(tables[row, block]) * block_size - block * block_size
        low, high = max(start, block * block_size), min(stop, (block + 1) * block_size)
        for g in range(group):
            at = (kv_head * group + g) * width
            head = query[row, at : at + width]
            line = scores[g]
            for j in range(low, high):
                key = keys[base + j, kv_head]
                dot = np.float32(0.0)
                for i in range(width):
                    dot += head[i] * key[i]
                line[j - start] = dot * np.float32(scale)
    for g in range(group):
        line = scores[g]
        if softcap > 0.0:
            for j in range(count):
                line[j] = np.float32(np.tanh(line[j] / softcap) * softcap)
        highest = line[0]
        for j in range(count):
            highest = max(highest, line[j])
        total = np.float32(0.0)
        for j in range(count):
            weight = np.exp(line[j] - highest)
            line[j] = weight
            total += weight
        share = np.float32(1.0) / total
        at = (kv_head * group + g) * value_width
        result = out[row, at : at + value_width]
        for i in range(value_width):
            result[i] = np.float32(0.0)
        for block in range(first_block, last_block + 1):
            base = np.int64(tables[row, block]) * block_size - block * block_size
            low, high = max(start, block * block_size), min(stop, (block + 1) * block_size)
            for j in range(low, high):
                weight = line[j - start] * share
                value = values[base + j, kv_head]
                for i in range(value_width):
                    result[i] += weight * value[i]


@_compiled()
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
    scores = np.empty((num_heads // num_kv_heads, tables.shape[1] * block_size), dtype=np.float32)
    for task in range(first, last):
        _decode_one(
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


@_compiled(parallel=True)
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
