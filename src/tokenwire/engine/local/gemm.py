"""Products of few or many rows with one panel of a packed weight: the loops around `tiles`."""

from __future__ import annotations

import numpy as np
from numba import cfunc, types

from tokenwire.engine.local.tiles import (
    BLOCK,
    BLOCK_BYTES,
    CODES,
    F32,
    I8,
    PANEL,
    TILE_ROWS,
    TILE_ROWS_I8,
    decode_panel,
    multiply_tile,
)

_SIZES = np.array([BLOCK_BYTES[code] for code in CODES], dtype=np.int64)
_TILES = np.array(TILE_ROWS[::-1], dtype=np.int64)
_TILES_I8 = np.array(TILE_ROWS_I8[::-1], dtype=np.int64)
_DIRECT_ROWS = max(TILE_ROWS)
"""Up to so many rows, numbers are decoded in registers; beyond, once for all rows into memory near the core."""
_CHUNK = 16
"""Blocks decoded at a time: 64 KiB."""
SCRATCH = _CHUNK * BLOCK * PANEL
"""Floats that a product needs to work in."""


@cfunc(types.void(*[types.int64] * 10), cache=True)
def _multiply(code, x_at, x_stride, rows, panel, blocks, scratch, out_at, out_stride, add):  # type: ignore[no-untyped-def]
    size = _SIZES[code]
    direct = code in (F32, I8) or rows <= _DIRECT_ROWS
    chunk = blocks if direct else _CHUNK
    for start in range(0, blocks, chunk):
        count = min(chunk, blocks - start)
        part, part_code = panel + start * size, code
        if not direct:
            decode_panel(code, part, count, scratch)
            part, part_code = scratch, F32
        done = 0
        for tile in _TILES_I8 if code == I8 else _TILES:
            while rows - done >= tile:
                x, out = x_at + done * x_stride + start * BLOCK * 4, out_at + done * out_stride
                multiply_tile(part_code, tile, x, x_stride, part, count, out, out_stride, add + start)
                done += tile


MULTIPLY: int = _multiply.address
"""Address of the C function (code, x, x stride, rows, panel, blocks, scratch, out, out stride, add), all int64.

out [rows, PANEL] = x [rows, blocks * BLOCK] @ panel, or += where `add` is not 0. Addresses, and strides in bytes; `x`
are floats, or records for code `i8`. `scratch` are SCRATCH floats, unused for code `f32`.

Kernels get the address as an argument and call it by `vectors.call_at`: the tiles are much code, which numba would else
compile again for every function above them.
"""
