"""Compiled attention of a prefill chunk over the paged cache: a block of queries against the keys they may see.

Scores and values are products of `tiles`, over 128 keys at a time; a running maximum and sum per row make the softmax
(as in flash attention), so the memory does not grow with the context.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from tokenwire.engine.local.kernels import Floats, compiled
from tokenwire.engine.local.tiles import BLOCK, F32, PANEL
from tokenwire.engine.local.vectors import VECTOR, call_at, exponential, exponentials, largest, longs_at

QUERIES = 64
"""Positions in a block; each has as many rows as there are query heads to a K/V head."""
_KEYS = 4 * BLOCK


@compiled()
def _pack_keys(keys: Floats, slots: object, first: int, last: int, head: int, panel: Floats) -> None:
    """Keys first..last (half open, at most PANEL) as columns of a panel of code `f32`; zeros where there is none."""
    width = keys.shape[2]
    for c in range(PANEL):
        if first + c < last:
            slot = slots[first + c]  # type: ignore[index]
            for i in range(width):
                panel[i, c] = keys[slot, head, i]
        else:
            for i in range(width):
                panel[i, c] = np.float32(0.0)


@compiled()
def _pack_values(values: Floats, slots: object, first: int, last: int, head: int, panels: Floats) -> None:
    """Values first..last (half open, at most _KEYS) as the rows of panels of code `f32`; zeros where there is none."""
    width = values.shape[2]
    for r in range(-(-(last - first) // BLOCK) * BLOCK):
        if first + r < last:
            slot = slots[first + r]  # type: ignore[index]
            for i in range(width):
                panels[i // PANEL, r, i % PANEL] = values[slot, head, i]
        else:
            for i in range(width):
                panels[i // PANEL, r, i % PANEL] = np.float32(0.0)


@compiled()
def _weigh(
    line: Floats, low: int, high: int, softcap: float, peaks: Floats, sums: Floats, row: int, out: Floats
) -> None:
    """A row's scores to weights, 0 outside low..high (half open); what was summed before is rescaled."""
    if softcap > 0.0:
        for j in range(low, high):
            line[j] = np.float32(np.tanh(line[j] / softcap) * softcap)
    line[:low] = -np.inf
    line[max(low, high) :] = -np.inf
    vectors = line.shape[0] // VECTOR
    peak = max(peaks[row], largest(line.ctypes.data, vectors))
    if peak == -np.inf:  # nothing to see so far
        line[:] = 0.0
        return
    total = exponentials(line.ctypes.data, vectors, peak)
    if peak > peaks[row]:
        factor = exponential(np.float32(peaks[row] - peak))
        sums[row] *= factor
        for i in range(out.shape[1]):
            out[row, i] *= factor
        peaks[row] = peak
    sums[row] += total


@compiled()
def attend_block(
    multiply: int,
    qkv: Floats,
    row: int,
    first: int,
    last: int,
    context: int,
    slots_at: int,
    kv_head: int,
    num_heads: int,
    keys: Floats,
    values: Floats,
    scaling: float,
    window: int,
    softcap: float,
    out: Floats,
) -> None:
    """Attention of chunk positions first..last (half open, at most QUERIES) by the query heads of one K/V head.

    The chunk begins at `row` of qkv and out, after `context` positions; `slots_at` is the address of the sequence's
    slots (int64), `multiply` that of `gemm.MULTIPLY`. `window` 0 and `softcap` 0: none.
    """
    width, group = keys.shape[2], num_heads // keys.shape[1]
    blocks = -(-width // BLOCK)
    padded = blocks * BLOCK
    count = last - first
    rows = count * group
    slots = carray(longs_at(slots_at), context + last)
    query = np.zeros((rows, padded), dtype=np.float32)
    result = np.zeros((rows, padded), dtype=np.float32)
    scores = np.empty((rows, _KEYS), dtype=np.float32)
    key_panel = np.zeros((padded, PANEL), dtype=np.float32)
    value_panels = np.zeros((blocks, _KEYS, PANEL), dtype=np.float32)
    peaks = np.full(rows, -np.inf, dtype=np.float32)
    sums = np.zeros(rows, dtype=np.float32)
    for g in range(group):
        at = (kv_head * group + g) * width
        for q in range(count):
            for i in range(width):
                query[g * count + q, i] = qkv[row + first + q, at + i] * np.float32(scaling)
    stop = context + last
    start = max(0, context + first + 1 - window) if window > 0 else 0
    for begin in range(start, stop, _KEYS):
        end = min(begin + _KEYS, stop)
        pieces = -(-(end - begin) // PANEL)
        for piece in range(pieces):
            _pack_keys(keys, slots, begin + piece * PANEL, end, kv_head, key_panel)
            out_at = scores.ctypes.data + piece * PANEL * 4
            panel = key_panel.ctypes.data
            call_at(multiply, (F32, query.ctypes.data, padded * 4, rows, panel, blocks, 0, out_at, _KEYS * 4, 0))
        for g in range(group):
            for q in range(count):
                position = context + first + q
                low = max(0, position + 1 - window - begin) if window > 0 else 0
                high = min(end, position + 1) - begin
                row_scores = scores[g * count + q, : pieces * PANEL]
                _weigh(row_scores, low, high, softcap, peaks, sums, g * count + q, result)
        _pack_values(values, slots, begin, end, kv_head, value_panels)
        for block in range(blocks):
            out_at = result.ctypes.data + block * PANEL * 4
            panel = value_panels[block].ctypes.data
            call_at(multiply, (F32, scores.ctypes.data, _KEYS * 4, rows, panel, pieces, 0, out_at, padded * 4, 1))
    for g in range(group):
        at = (kv_head * group + g) * width
        for q in range(count):
            share = np.float32(1.0) / sums[g * count + q]
            for i in range(width):
                out[row + first + q, at + i] = result[g * count + q, i] * share
