"""How a weight is laid out for `tiles`: in the shortest code that holds each of its numbers exactly, or in 8 bits.

What a step with few rows waits for is the reading of the weights. Checkpoints are often stored in fewer bits than
float32 has: bfloat16, or blocks of a GGUF file. The codes keep them that short, and the numbers are float32's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numba import prange
from numpy.typing import NDArray

from tokenwire.engine.local.kernels import Floats, compiled
from tokenwire.engine.local.tiles import BF16, BLOCK, BLOCK_BYTES, CODES, F32, HAS_VNNI, I8, PANEL, S8, U4

Bytes = NDArray[np.uint8]
_PROBE_ROWS = 4
"""Rows that are looked at before the whole weight is."""
_ARENA_BYTES = 32 << 20


@dataclass(slots=True, frozen=True)
class Packed:
    """One weight [columns, width], padded with zeros to whole panels and blocks."""

    code: int
    columns: int
    width: int
    data: Bytes
    """[panels, blocks, bytes of a block]"""

    @property
    def panels(self) -> int:
        return int(self.data.shape[0])

    @property
    def blocks(self) -> int:
        return int(self.data.shape[1])


class Arena:
    """Memory in large pieces, which the system can map with large pages."""

    def __init__(self) -> None:
        self._rest: Bytes = np.empty(0, dtype=np.uint8)

    def take(self, count: int) -> Bytes:
        """`count` bytes, on a border of 64."""
        size = -(-count // 64) * 64
        if len(self._rest) < size:
            piece = np.empty(max(size, _ARENA_BYTES) + 64, dtype=np.uint8)
            self._rest = piece[-piece.ctypes.data % 64 :]
        taken, self._rest = self._rest[:count], self._rest[size:]
        return taken


def pack(weight: torch.Tensor, arena: Arena, *, quantize: bool = False) -> Packed:
    """`weight` [columns, width], float32. `quantize`: 8 bits, whatever the numbers are."""
    columns, width = weight.shape
    missing = (0, -width % BLOCK, 0, -columns % PANEL)
    whole = torch.nn.functional.pad(weight, missing) if any(missing) else weight.contiguous()
    table: Floats = whole.numpy()
    code, scale, base = _quantized(table) if quantize else _exact(table)
    panels, blocks = table.shape[0] // PANEL, table.shape[1] // BLOCK
    size = BLOCK_BYTES[CODES[code]]
    data = arena.take(panels * blocks * size).reshape(panels, blocks, size)
    if code in (U4, S8, I8):
        _write_halves(data[:, :, :64], scale)
    if code == U4:
        _write_halves(data[:, :, 64:128], base)
    _fill(table, code, scale, base, data)
    return Packed(code, columns, width, data)


def _write_halves(target: Bytes, values: Floats) -> None:
    """[columns, blocks] into the [panels, blocks, 64] bytes of the blocks."""
    halves = torch.from_numpy(values).half().view(-1, PANEL, values.shape[1]).transpose(1, 2).contiguous()
    target[...] = halves.numpy().view(np.uint8)


def _exact(table: Floats) -> tuple[int, Floats, Floats]:
    """The shortest code that gives every number back, with its scales and bases [columns, blocks]."""
    for code in (U4, S8, BF16):
        for rows in (table[:_PROBE_ROWS], table):
            scale, base = _candidates(rows, code)
            fits = _fits(rows, code, scale, base)
            if not fits:
                break
        if fits:
            return code, scale, base
    none = np.zeros((0, 0), dtype=np.float32)
    return F32, none, none


def _candidates(table: Floats, code: int) -> tuple[Floats, Floats]:
    """Scale and base with which each block would have been made."""
    if code == BF16:
        none = np.zeros((0, 0), dtype=np.float32)
        return none, none
    blocks = torch.from_numpy(table).view(len(table), -1, BLOCK)
    low, high = blocks.aminmax(dim=2)
    if code == S8:
        return _half(torch.maximum(-low, high) / 127), np.zeros((0, 0), dtype=np.float32)
    # From the smallest number to the largest in 15 steps, or 8 steps from the one of largest size to zero.
    spread = _half((high - low) / 15)
    if _fits(table[:_PROBE_ROWS], U4, spread[:_PROBE_ROWS], low.numpy()[:_PROBE_ROWS]):
        return spread, low.numpy()
    extreme = torch.where(-low > high, low, high)
    return _half(extreme / -8), extreme.numpy()


def _half(values: torch.Tensor) -> Floats:
    rounded: Floats = values.half().float().numpy()
    return rounded


def _quantized(table: Floats) -> tuple[int, Floats, Floats]:
    code = I8 if HAS_VNNI else S8
    scale, base = _candidates(table, S8)
    return code, scale, base


@compiled()
def _inverse(scale: np.float32) -> np.float32:
    return np.float32(1.0) / scale if scale != 0 and np.isfinite(scale) else np.float32(0.0)


@compiled(strict=True)
def _fits_rows(table: Floats, code: int, scale: Floats, base: Floats) -> bool:
    bits = table.view(np.uint32)
    low, high = np.float32(0 if code == U4 else -127), np.float32(15 if code == U4 else 127)
    for r in range(table.shape[0]):
        misses = 0
        for block in range(table.shape[1] // BLOCK):
            start = block * BLOCK
            if code == BF16:
                for k in range(start, start + BLOCK):
                    misses += (bits[r, k] & np.uint32(0xFFFF)) != 0
                continue
            size = scale[r, block]
            zero = base[r, block] if code == U4 else np.float32(0.0)
            inverse = _inverse(size)
            for k in range(start, start + BLOCK):
                step = min(max(np.rint((table[r, k] - zero) * inverse), low), high)
                misses += step * size + zero != table[r, k]
        if misses:
            return False
    return True


def _fits(table: Floats, code: int, scale: Floats, base: Floats) -> bool:
    if code == U4 and not np.array_equal(base, _half(torch.from_numpy(base))):
        return False
    return bool(_fits_rows(table, code, scale, base))


@compiled()
def _place_steps(code: int, c: int, steps: NDArray[np.int32], place: Bytes) -> None:
    """The steps of column `c` of a panel's block."""
    if code == U4 and c < 16:
        for k in range(BLOCK):
            place[128 + k * 16 + c] = steps[k]
    elif code == U4:
        for k in range(BLOCK):
            place[112 + k * 16 + c] |= steps[k] << 4
    elif code == S8:
        for k in range(BLOCK):
            place[64 + k * PANEL + c] = steps[k] & 255
    else:
        for k in range(BLOCK):
            place[64 + (k // 4) * 128 + c * 4 + k % 4] = steps[k] + 128


@compiled()
def _place_numbers(code: int, c: int, numbers: NDArray[np.uint32], place: Bytes) -> None:
    if code == F32:
        words = place.view(np.uint32)
        for k in range(BLOCK):
            words[k * PANEL + c] = numbers[k]
    else:
        halves = place.view(np.uint16)
        for k in range(BLOCK):
            halves[k * PANEL + c] = numbers[k] >> np.uint32(16)


@compiled(parallel=True)
def _fill(table: Floats, code: int, scale: Floats, base: Floats, data: Bytes) -> None:
    bits = table.view(np.uint32)
    low, high = np.float32(0 if code == U4 else -127), np.float32(15 if code == U4 else 127)
    for panel in prange(data.shape[0]):
        steps = np.empty(BLOCK, dtype=np.int32)
        for block in range(data.shape[1]):
            start = block * BLOCK
            for c in range(PANEL):
                row = panel * PANEL + c
                if code in (F32, BF16):
                    _place_numbers(code, c, bits[row, start : start + BLOCK], data[panel, block])
                    continue
                zero = base[row, block] if code == U4 else np.float32(0.0)
                inverse = _inverse(scale[row, block])
                for k in range(BLOCK):
                    steps[k] = np.int32(min(max(np.rint((table[row, start + k] - zero) * inverse), low), high))
                _place_steps(code, c, steps, data[panel, block])
