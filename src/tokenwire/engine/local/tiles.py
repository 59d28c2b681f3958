"""Vector code of the matrix kernels, written as LLVM IR and compiled by numba: one tile of a product, in registers.

A weight [columns, width] lies in panels of `PANEL` columns. Along the width a panel is a run of blocks of `BLOCK`
positions, and how a block holds its numbers is its code:

- `f32`: the numbers. `bf16`: their upper halves, where the lower ones are zero.
- `u4`: a scale and a base per column (half precision), then 4-bit steps: number = step * scale + base.
- `s8`: a scale per column (half precision), then 8-bit numbers of steps: number = step * scale.
- `i8`: the same, for products of 8-bit numbers: steps plus 128, four positions of a column side by side.

Blocks are read in order, once. Nothing here is particular to a processor but `i8`, which needs AVX-512 VNNI: there x is
8-bit, too, as one record a block: `BLOCK` steps, their scale (float32), and -128 times their sum (int32), which takes
the 128 of the weights out again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import binding
from numba import types

from tokenwire.engine.local import vector_ir as w
from tokenwire.engine.local.vector_ir import Builder, Value, Writer, intrinsic, number

PANEL = 32
BLOCK = 32
CODES = ("f32", "bf16", "s8", "u4", "i8")
BLOCK_BYTES = {"f32": 4096, "bf16": 2048, "s8": 64 + 1024, "u4": 128 + 512, "i8": 64 + 1024}
"""Bytes of one block of one panel."""
_UNROLL = 2
F32, BF16, S8, U4, I8 = range(5)
"""Numbers of the codes, as the kernels take them."""


def _has(feature: str) -> bool:
    """Whether the code is compiled for a processor with this feature."""
    if numba.config.CPU_FEATURES is not None:
        return f"+{feature}" in numba.config.CPU_FEATURES.split(",")
    return bool(binding.get_host_cpu_features().get(feature))


HAS_AVX512 = _has("avx512f")
HAS_VNNI = _has("avx512vnni")
RECORD = BLOCK + 8
"""Bytes of one block of one row of an 8-bit x."""
TILE_ROWS = (1, 2, 4, 8, 12) if HAS_AVX512 else (1, 2, 3)
"""Row counts of tiles; the sums of the largest just fit into registers beside the weights."""
TILE_ROWS_I8 = (1, 2, 4, 6)
"""The same for code `i8`, which has two sums."""


class _Reader:
    """Reads one block of a panel: `begin` once, then `row` for each of its positions."""

    def __init__(self, code: str) -> None:
        self._code = code
        self._scale: list[Value] = []
        self._base: list[Value] = []

    def begin(self, b: Builder, block: Value) -> None:
        if self._code in ("u4", "s8"):
            self._scale = w.halves(b, block, 0)
        if self._code == "u4":
            self._base = w.halves(b, block, 64)

    def row(self, b: Builder, block: Value, k: Value) -> list[Value]:
        """The panel's 32 numbers at position `k` (i64) of the block, as two vectors."""
        return getattr(self, f"_{self._code}")(b, block, k)  # type: ignore[no-any-return]

    def _f32(self, b: Builder, block: Value, k: Value) -> list[Value]:
        at = b.mul(k, number(128))
        return [w.load(b, block, b.add(at, number(64 * i)), w.VF) for i in range(2)]

    def _bf16(self, b: Builder, block: Value, k: Value) -> list[Value]:
        at = b.mul(k, number(64))
        pair = [w.load(b, block, b.add(at, number(32 * i)), w.V16) for i in range(2)]
        return [b.bitcast(b.shl(b.zext(v, w.V32), w.const(w.V32, 16)), w.VF) for v in pair]

    def _s8(self, b: Builder, block: Value, k: Value) -> list[Value]:
        at = b.add(b.mul(k, number(32)), number(64))
        pair = [w.load(b, block, b.add(at, number(16 * i)), w.V8) for i in range(2)]
        return [b.fmul(b.sitofp(b.sext(v, w.V32), w.VF), self._scale[i]) for i, v in enumerate(pair)]

    def _u4(self, b: Builder, block: Value, k: Value) -> list[Value]:
        at = b.add(b.mul(k, number(16)), number(128))
        both = b.zext(w.load(b, block, at, w.V8), w.V32)
        pair = [b.and_(both, w.const(w.V32, 15)), b.lshr(both, w.const(w.V32, 4))]
        return [w.multiply_add(b, b.sitofp(v, w.VF), self._scale[i], self._base[i]) for i, v in enumerate(pair)]


def _write_multiply(code: str, rows: int) -> Writer:
    def write(b: Builder, arguments: list[Value]) -> None:
        x, x_stride, panel, num_blocks, out, out_stride, add = arguments
        xp, wp, op = w.pointers(b, x, panel, out)
        x_rows = [b.gep(xp, [b.mul(x_stride, number(r))]) for r in range(rows)]
        places = [
            b.gep(op, [b.add(b.mul(out_stride, number(r)), number(64 * i))]) for r in range(rows) for i in range(2)
        ]

        def block_turn(index: Value, sums: list[Value]) -> list[Value]:
            block = w.entry(b, wp, index, BLOCK_BYTES[code])
            reader = _Reader(code)
            reader.begin(b, block)
            x_at = b.mul(index, number(BLOCK * 4))

            def turn(k: Value, sums: list[Value]) -> list[Value]:
                for step in range(_UNROLL):
                    position = b.add(b.mul(k, number(_UNROLL)), number(step))
                    weights = reader.row(b, block, position)
                    x_offset = b.add(x_at, b.mul(position, number(4)))
                    for r in range(rows):
                        value = w.splat(b, w.load(b, x_rows[r], x_offset, w.F32), w.VF)
                        for i in range(2):
                            sums[2 * r + i] = w.multiply_add(b, value, weights[i], sums[2 * r + i])
                return sums

            return w.loop(b, number(BLOCK // _UNROLL), sums, turn)

        entry = b.block
        load, begin = b.append_basic_block("load"), b.append_basic_block("begin")
        b.cbranch(b.icmp_signed("!=", add, number(0)), load, begin)
        b.position_at_end(load)
        there = [w.load(b, place, 0, w.VF) for place in places]
        b.branch(begin)
        b.position_at_end(begin)
        start = []
        for value in there:
            phi = b.phi(w.VF)
            phi.add_incoming(w.const(w.VF, 0.0), entry)
            phi.add_incoming(value, load)
            start.append(phi)
        for place, value in zip(places, w.loop(b, num_blocks, start, block_turn), strict=True):
            w.store(b, value, place, 0)

    return write


def _write_multiply_i8(rows: int) -> Writer:
    def write(b: Builder, arguments: list[Value]) -> None:
        x, x_stride, panel, num_blocks, out, out_stride, _ = arguments
        xp, wp, op = w.pointers(b, x, panel, out)
        x_rows = [b.gep(xp, [b.mul(x_stride, number(r))]) for r in range(rows)]

        def block_turn(index: Value, sums: list[Value]) -> list[Value]:
            block = w.entry(b, wp, index, BLOCK_BYTES["i8"])
            scales = w.halves(b, block, 0)
            records = [w.entry(b, row, index, RECORD) for row in x_rows]
            steps = []
            for record in records:
                steps += [w.splat(b, w.load(b, record, BLOCK + 4, w.I32), w.V32)] * 2
            for k in range(BLOCK // 4):
                weights = [w.load(b, block, 64 + 128 * k + 64 * i, w.V32) for i in range(2)]
                for r, record in enumerate(records):
                    four = w.splat(b, w.load(b, record, 4 * k, w.I32), w.V32)
                    for i in range(2):
                        arguments = [steps[2 * r + i], weights[i], four]
                        steps[2 * r + i] = w.call(b, "llvm.x86.avx512.vpdpbusd.512", w.V32, arguments)
            for r, record in enumerate(records):
                scale = w.splat(b, w.load(b, record, BLOCK, w.F32), w.VF)
                for i in range(2):
                    value = b.fmul(b.sitofp(steps[2 * r + i], w.VF), scales[i])
                    sums[2 * r + i] = w.multiply_add(b, value, scale, sums[2 * r + i])
            return sums

        sums = w.loop(b, num_blocks, [w.const(w.VF, 0.0)] * (2 * rows), block_turn)
        for r in range(rows):
            for i in range(2):
                w.store(b, sums[2 * r + i], op, b.add(b.mul(out_stride, number(r)), number(64 * i)))

    return write


def _write_decode(code: str) -> Writer:
    def write(b: Builder, arguments: list[Value]) -> None:
        panel, num_blocks, out = arguments
        wp, op = w.pointers(b, panel, out)

        def block_turn(index: Value, nothing: list[Value]) -> list[Value]:
            block = w.entry(b, wp, index, BLOCK_BYTES[code])
            target = w.entry(b, op, index, BLOCK_BYTES["f32"])
            reader = _Reader(code)
            reader.begin(b, block)

            def turn(k: Value, nothing: list[Value]) -> list[Value]:
                for i, numbers in enumerate(reader.row(b, block, k)):
                    w.store(b, numbers, target, b.add(b.mul(k, number(128)), number(64 * i)))
                return nothing

            return w.loop(b, number(BLOCK), nothing, turn)

        w.loop(b, num_blocks, [], block_turn)

    return write


@intrinsic
def multiply_tile(
    context: Any,
    code: Any,
    rows: Any,
    x: Any,
    x_stride: Any,
    panel: Any,
    blocks: Any,
    out: Any,
    out_stride: Any,
    add: Any,
) -> Any:
    """out [rows, PANEL] = x [rows, blocks * BLOCK] @ panel, or += where `add` is not 0. `rows` is one of TILE_ROWS.

    Addresses are integers, strides are in bytes. `blocks` is at least 1.
    """

    def generate(_: Any, b: Builder, __: Any, arguments: list[Value]) -> Value:
        code, rows, *rest = arguments

        def case(name: str, count: int) -> Callable[[Builder], None]:
            write = _write_multiply_i8(count) if name == "i8" else _write_multiply(name, count)
            function = w.function(b, f"tokenwire_multiply_{name}_{count}", 7, write)
            return lambda b: b.call(function, rest)

        def of_code(name: str) -> Callable[[Builder], None]:
            counts = TILE_ROWS_I8 if name == "i8" else TILE_ROWS
            return lambda b: w.choose(b, rows, {count: case(name, count) for count in counts})

        known = CODES if HAS_VNNI else CODES[:-1]
        w.choose(b, code, {number: of_code(name) for number, name in enumerate(known)})
        return w.nothing()

    return types.void(*[types.int64] * 9), generate


@intrinsic
def decode_panel(context: Any, code: Any, panel: Any, blocks: Any, out: Any) -> Any:
    """Write `blocks` blocks of a panel as code `f32`. `blocks` is at least 1."""

    def generate(_: Any, b: Builder, __: Any, arguments: list[Value]) -> Value:
        def case(name: str) -> Callable[[Builder], None]:
            function = w.function(b, f"tokenwire_decode_{name}", 3, _write_decode(name))
            return lambda b: b.call(function, arguments[1:])

        w.choose(b, arguments[0], {number: case(name) for number, name in enumerate(CODES[:-1])})
        return w.nothing()

    return types.void(*[types.int64] * 4), generate
