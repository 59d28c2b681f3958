"""Small vector kernels, written as LLVM IR and compiled by numba: what loops over numbers would do, 16 at a time.

Addresses are integers. What is read and written may lie at any address.
"""

from __future__ import annotations

import sys
from typing import Any

from llvmlite import ir
from numba import types

from tokenwire.engine.local import vector_ir as w
from tokenwire.engine.local.tiles import BLOCK
from tokenwire.engine.local.vector_ir import LANES, Builder, Value, intrinsic, number

VECTOR = LANES
"""Numbers of a vector."""
_PATIENCE = 4096
"""Looks at a number (some microseconds) before a waiting thread offers its core to others."""


@intrinsic
def exponential(context: Any, x: Any) -> Any:
    """e ** x of a float32 of at most 88, to its last bit or two. 0 below -87, NaN stays NaN."""

    def generate(_: Any, b: Builder, __: Any, arguments: list[Value]) -> Value:
        return w.exponential(b, arguments[0])

    return types.float32(types.float32), generate


def _write_gate(b: Builder, arguments: list[Value]) -> None:
    pair, out = w.pointers(b, *arguments)
    one = w.const(w.VF, 1.0)
    for i in range(2):
        value, factor = w.load(b, pair, 64 * i, w.VF), w.load(b, pair, 128 + 64 * i, w.VF)
        negative = b.fneg(value)
        # Beyond 80 the share is 0 to the last bit.
        small = b.select(b.fcmp_ordered("<", negative, w.const(w.VF, 80.0)), negative, w.const(w.VF, 80.0))
        share = b.fdiv(value, b.fadd(one, w.exponential(b, small)))
        w.store(b, b.fmul(share, factor), out, 64 * i)


@intrinsic
def gate_row(context: Any, pair: Any, out: Any) -> Any:
    """silu(first 32 floats) * next 32 floats, into 32 floats."""
    return types.void(types.int64, types.int64), w.calls("gate", _write_gate)


def _write_quantize(b: Builder, arguments: list[Value]) -> None:
    x, record = w.pointers(b, *arguments)
    values = [w.load(b, x, 64 * i, w.VF) for i in range(2)]
    sizes = [w.call(b, "llvm.fabs.v16f32", w.VF, [v]) for v in values]
    largest = w.largest_of(b, w.larger(b, *sizes))
    zero, top = ir.Constant(w.F32, 0.0), ir.Constant(w.F32, 127.0)
    inverse = b.select(b.fcmp_ordered(">", largest, zero), b.fdiv(top, largest), zero)
    total = w.const(w.V32, 0)
    for i, value in enumerate(values):
        near = w.call(b, "llvm.rint.v16f32", w.VF, [b.fmul(value, w.splat(b, inverse, w.VF))])
        steps = b.fptosi(near, w.V32)
        total = b.add(total, steps)
        w.store(b, b.trunc(steps, w.V8), record, 16 * i, align=1)
    w.store(b, b.fdiv(largest, top), record, BLOCK)
    whole = w.call(b, "llvm.vector.reduce.add.v16i32", w.I32, [total])
    w.store(b, b.mul(whole, ir.Constant(w.I32, -128)), record, BLOCK + 4)


@intrinsic
def quantize_block(context: Any, x: Any, record: Any) -> Any:
    """BLOCK floats to one record (see `tiles`): the nearest of 255 steps, whose size the largest float gives."""
    return types.void(types.int64, types.int64), w.calls("quantize", _write_quantize)


def _write_score(b: Builder, arguments: list[Value]) -> None:
    query, key, stride, count, vectors, scale, out = arguments
    qp, kp, op = w.pointers(b, query, key, out)
    factor = b.bitcast(b.trunc(scale, w.I32), w.F32)

    def of_key(j: Value, nothing: list[Value]) -> list[Value]:
        line = w.shifted(b, kp, b.mul(j, stride))

        def part(i: Value, sums: list[Value]) -> list[Value]:
            at = b.mul(i, number(64))
            return [w.multiply_add(b, w.load(b, qp, at, w.VF), w.load(b, line, at, w.VF), sums[0])]

        (total,) = w.loop(b, vectors, [w.const(w.VF, 0.0)], part)
        w.store(b, b.fmul(w.sum_of(b, total), factor), op, b.mul(j, number(4)))
        return nothing

    w.loop(b, count, [], of_key)


@intrinsic
def score_keys(context: Any, query: Any, key: Any, stride: Any, count: Any, vectors: Any, scale: Any, out: Any) -> Any:
    """out[j] = query . key j * scale, for `count` keys, `stride` bytes apart, of `vectors` vectors.

    `count` and `vectors` are at least 1; `scale` are the bits of a float32.
    """
    return types.void(*[types.int64] * 7), w.calls("score", _write_score)


def _write_mix(b: Builder, arguments: list[Value]) -> None:
    weights, value, stride, count, vectors, out = arguments
    wp, vp, op = w.pointers(b, weights, value, out)

    def part(i: Value, nothing: list[Value]) -> list[Value]:
        at = b.mul(i, number(64))
        column = w.shifted(b, vp, at)

        def of_value(j: Value, sums: list[Value]) -> list[Value]:
            weight = w.splat(b, w.load(b, wp, b.mul(j, number(4)), w.F32), w.VF)
            return [w.multiply_add(b, weight, w.load(b, column, b.mul(j, stride), w.VF), sums[0])]

        (total,) = w.loop(b, count, [w.load(b, op, at, w.VF)], of_value)
        w.store(b, total, op, at)
        return nothing

    w.loop(b, vectors, [], part)


@intrinsic
def mix_values(context: Any, weights: Any, value: Any, stride: Any, count: Any, vectors: Any, out: Any) -> Any:
    """out += sum of weights[j] * value j, for `count` values, `stride` bytes apart, of `vectors` vectors; both >= 1."""
    return types.void(*[types.int64] * 6), w.calls("mix", _write_mix)


@intrinsic
def largest(context: Any, line: Any, vectors: Any) -> Any:
    """The largest number of `vectors` (at least 1) vectors; NaN does not count."""

    def generate(_: Any, b: Builder, __: Any, arguments: list[Value]) -> Value:
        (line,) = w.pointers(b, arguments[0])

        def turn(i: Value, peaks: list[Value]) -> list[Value]:
            return [w.larger(b, w.load(b, line, b.mul(i, number(64)), w.VF), peaks[0])]

        (peak,) = w.loop(b, arguments[1], [w.const(w.VF, float("-inf"))], turn)
        return w.largest_of(b, peak)

    return types.float32(types.int64, types.int64), generate


@intrinsic
def exponentials(context: Any, line: Any, vectors: Any, peak: Any) -> Any:
    """Each number x of `vectors` (at least 1) vectors becomes e ** (x - peak); returns their sum."""

    def generate(_: Any, b: Builder, __: Any, arguments: list[Value]) -> Value:
        (line,) = w.pointers(b, arguments[0])
        peak = w.splat(b, arguments[2], w.VF)

        def turn(i: Value, sums: list[Value]) -> list[Value]:
            at = b.mul(i, number(64))
            weight = w.exponential(b, b.fsub(w.load(b, line, at, w.VF), peak))
            w.store(b, weight, line, at)
            return [b.fadd(sums[0], weight)]

        (total,) = w.loop(b, arguments[1], [w.const(w.VF, 0.0)], turn)
        return w.sum_of(b, total)

    return types.float32(types.int64, types.int64, types.float32), generate


def _four(b: Builder, line: Value) -> list[Value]:
    """The four vectors at an address."""
    (place,) = w.pointers(b, line)
    return [w.load(b, place, 64 * i, w.VF) for i in range(4)]


@intrinsic
def exponential_sum_of_four(context: Any, line: Any, peak: Any, factor: Any, rest: Any) -> Any:
    """The sum of e ** ((x - peak) * (factor + rest)) over the numbers of four vectors.

    `rest` is what the factor lacks as a float32: its error would be that of all terms, in one direction.
    """

    def generate(_: Any, b: Builder, __: Any, arguments: list[Value]) -> Value:
        peak, factor, rest = (w.splat(b, argument, w.VF) for argument in arguments[1:])
        bottom = w.const(w.VF, -1e30)  # -inf times a rest of zero would be NaN
        depths = [b.fsub(x, peak) for x in _four(b, arguments[0])]
        depths = [b.select(b.fcmp_ordered("<", depth, bottom), bottom, depth) for depth in depths]
        depths = [w.multiply_add(b, depth, rest, b.fmul(depth, factor)) for depth in depths]
        first, second, third, fourth = (w.exponential(b, depth) for depth in depths)
        return w.sum_of(b, b.fadd(b.fadd(first, second), b.fadd(third, fourth)))

    return types.float32(types.int64, types.float32, types.float32, types.float32), generate


@intrinsic
def largest_of_four(context: Any, line: Any) -> Any:
    """The largest number of four vectors, or NaN if there is one."""

    def generate(_: Any, b: Builder, __: Any, arguments: list[Value]) -> Value:
        first, second, third, fourth = vectors = _four(b, arguments[0])
        peak = w.largest_of(b, w.larger(b, w.larger(b, first, second), w.larger(b, third, fourth)))
        odd = [b.fcmp_unordered("uno", x, x) for x in vectors]
        any_odd = b.or_(b.or_(odd[0], odd[1]), b.or_(odd[2], odd[3]))
        found = w.call(b, "llvm.vector.reduce.or.v16i1", ir.IntType(1), [any_odd])
        return b.select(found, ir.Constant(w.F32, float("nan")), peak)

    return types.float32(types.int64), generate


@intrinsic
def bits_of(context: Any, x: Any) -> Any:
    """The bits of a float32 as an int64."""

    def generate(_: Any, b: Builder, __: Any, arguments: list[Value]) -> Value:
        return b.zext(b.bitcast(arguments[0], w.I32), w.I64)

    return types.int64(types.float32), generate


@intrinsic
def take_number(context: Any, address: Any) -> Any:
    """The int64 at `address`, which is one more afterwards; no two threads get the same one."""

    def generate(_: Any, b: Builder, __: Any, arguments: list[Value]) -> Value:
        place = b.inttoptr(arguments[0], w.I64.as_pointer())
        return b.atomic_rmw("add", place, number(1), "acq_rel")

    return types.int64(types.int64), generate


def _write_wait(b: Builder, arguments: list[Value]) -> None:
    address, target = arguments
    place = b.inttoptr(address, w.I64.as_pointer())
    look, again, give_way, done = (b.append_basic_block(name) for name in ("look", "again", "give_way", "done"))
    start = b.block
    b.branch(look)
    b.position_at_end(look)
    turns = b.phi(w.I64)
    turns.add_incoming(number(0), start)
    b.cbranch(b.icmp_signed(">=", b.load_atomic(place, "acquire", 8), target), done, again)
    b.position_at_end(again)
    more = b.add(turns, number(1))
    turns.add_incoming(more, again)
    b.cbranch(b.icmp_signed(">", more, number(_PATIENCE)), give_way, look)
    b.position_at_end(give_way)
    if sys.platform != "win32":
        w.call(b, "sched_yield", w.I32, [])
    turns.add_incoming(more, give_way)
    b.branch(look)
    b.position_at_end(done)


@intrinsic
def wait_for(context: Any, address: Any, target: Any) -> Any:
    """Until the int64 at `address` has reached `target`, which other threads see to; gives way when it takes long."""
    return types.void(types.int64, types.int64), w.calls("wait", _write_wait)


@intrinsic
def call_at(context: Any, address: Any, arguments: Any) -> Any:
    """Call the C function of int64 arguments that lies at `address`; `arguments` is a tuple of them."""

    def generate(context: Any, b: Builder, signature: Any, values: list[Value]) -> Value:
        numbers = [b.extract_value(values[1], i) for i in range(len(arguments))]
        kind = ir.FunctionType(ir.VoidType(), [w.I64] * len(numbers))
        b.call(b.inttoptr(values[0], kind.as_pointer()), numbers)
        return w.nothing()

    return types.void(types.int64, types.UniTuple(types.int64, len(arguments))), generate


def _pointer_to(kind: Any) -> Any:
    def tile(context: Any, address: Any) -> Any:
        def generate(context: Any, b: Builder, signature: Any, arguments: list[Value]) -> Value:
            return b.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64), generate

    return intrinsic(tile)


floats_at = _pointer_to(types.float32)
"""An address as what `numba.carray` takes."""
longs_at = _pointer_to(types.int64)
