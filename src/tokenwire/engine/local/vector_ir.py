"""Words for writing LLVM IR by hand: vectors of 16 numbers, loads, loops. What `tiles` and `vectors` are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic as numba_intrinsic

intrinsic: Callable[[Callable[..., Any]], Callable[..., Any]] = numba_intrinsic

LANES = 16

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
V8, V16, V32, VF = (ir.VectorType(kind, LANES) for kind in (I8, I16, I32, F32))
BYTES = ir.VectorType(I8, 64)

Builder = Any
Value = Any
Writer = Callable[[Builder, list[Value]], None]
"""Writes the body of a function of i64 arguments."""


def const(kind: Any, value: float) -> Value:
    return ir.Constant(kind, [ir.Constant(kind.element, value)] * kind.count)


def load(b: Builder, base: Value, offset: Value | int, kind: Any) -> Value:
    """One value of `kind` from `base` (i8*) plus bytes."""
    at = b.gep(base, [offset if isinstance(offset, ir.Value) else ir.Constant(I64, offset)])
    return b.load(b.bitcast(at, kind.as_pointer()), align=1 if kind in (V8, BYTES) else 2 if kind == V16 else 4)


def store(b: Builder, value: Value, base: Value, offset: Value | int, *, align: int = 4) -> None:
    at = b.gep(base, [offset if isinstance(offset, ir.Value) else ir.Constant(I64, offset)])
    b.store(value, b.bitcast(at, value.type.as_pointer()), align=align)


def splat(b: Builder, scalar: Value, kind: Any) -> Value:
    one = b.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(I32, 0))
    mask = ir.Constant(ir.VectorType(I32, kind.count), [0] * kind.count)
    return b.shuffle_vector(one, ir.Constant(kind, ir.Undefined), mask)


def call(b: Builder, name: str, result: Any, arguments: list[Value]) -> Value:
    kind = ir.FunctionType(result, [a.type for a in arguments])
    return b.call(cgutils.get_or_insert_function(b.module, kind, name), arguments)


def multiply_add(b: Builder, x: Value, y: Value, z: Value) -> Value:
    return call(b, "llvm.fmuladd.v16f32", VF, [x, y, z])


def halves(b: Builder, base: Value, offset: int) -> list[Value]:
    """32 half precision numbers as two vectors."""
    pair = [load(b, base, offset + 32 * i, V16) for i in range(2)]
    return [b.fpext(b.bitcast(v, ir.VectorType(F16, LANES)), VF) for v in pair]


def loop(
    b: Builder, count: Value, start: list[Value], body: Callable[[Value, list[Value]], list[Value]]
) -> list[Value]:
    """`count` (at least 1) turns of `body(index, values) -> values`; returns the last values."""
    before = b.block
    inside = b.append_basic_block("turn")
    after = b.append_basic_block("done")
    b.branch(inside)
    b.position_at_end(inside)
    index = b.phi(I64)
    values = [b.phi(v.type) for v in start]
    results = body(index, list(values))
    following = b.add(index, ir.Constant(I64, 1))
    end = b.block
    b.cbranch(b.icmp_signed("<", following, count), inside, after)
    index.add_incoming(ir.Constant(I64, 0), before)
    index.add_incoming(following, end)
    for phi, first, last in zip(values, start, results, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(last, end)
    b.position_at_end(after)
    return results


def function(b: Builder, name: str, num_arguments: int, write: Writer) -> Value:
    """The module's function `name` of i64 arguments, written if it is not there yet."""
    module = b.module
    if name in module.globals:
        return module.globals[name]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * num_arguments), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    inner = ir.IRBuilder(function.append_basic_block("entry"))
    write(inner, list(function.args))
    inner.ret_void()
    return function


def choose(b: Builder, selector: Value, cases: dict[int, Callable[[Builder], None]]) -> None:
    """Run the case that `selector` (i64) names; none: nothing."""
    after = b.append_basic_block("chosen")
    switch = b.switch(selector, after)
    for number, write in cases.items():
        block = b.append_basic_block(f"case{number}")
        switch.add_case(ir.Constant(I64, number), block)
        b.position_at_end(block)
        write(b)
        b.branch(after)
    b.position_at_end(after)


def pointers(b: Builder, *addresses: Value) -> list[Value]:
    return [b.inttoptr(a, I8.as_pointer()) for a in addresses]


def entry(b: Builder, base: Value, index: Value, size: int) -> Value:
    return b.gep(base, [b.mul(index, ir.Constant(I64, size))])


def number(value: int) -> Value:
    """An i64."""
    return ir.Constant(I64, value)


def shifted(b: Builder, base: Value, offset: Value) -> Value:
    """`base` (i8*) plus bytes."""
    return b.gep(base, [offset])


def nothing() -> Value:
    """What a kernel without a result returns."""
    return ir.Constant(I8.as_pointer(), None)


def calls(name: str, write: Writer) -> Callable[..., Value]:
    """The code generator of a kernel that calls its function of i64 arguments."""

    def generate(_: Any, b: Builder, signature: Any, arguments: list[Value]) -> Value:
        b.call(function(b, f"tokenwire_{name}", len(arguments), write), arguments)
        return nothing()

    return generate


def exponential(b: Builder, x: Value) -> Value:
    """e ** x of floats of at most 88, to the last bit or two; 0 below -87, NaN stays NaN.

    2 ** n times a polynomial in the rest (Cephes' coefficients).
    """
    is_vector = isinstance(x.type, ir.VectorType)
    whole = V32 if is_vector else I32
    suffix = "v16f32" if is_vector else "f32"

    def constant(value: float, kind: Any = x.type) -> Value:
        return const(kind, value) if is_vector else ir.Constant(kind, value)

    def fma(x: Value, y: Value, z: Value) -> Value:
        return call(b, f"llvm.fmuladd.{suffix}", x.type, [x, y, z])

    low = b.fcmp_ordered("<", x, constant(-87.0))
    x = b.select(low, constant(-87.0), x)
    n = call(b, f"llvm.rint.{suffix}", x.type, [b.fmul(x, constant(1.44269504088896341))])
    rest = fma(n, constant(2.12194440e-4), fma(n, constant(-0.693359375), x))
    total = constant(1.9875691500e-4)
    for factor in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        total = fma(total, rest, constant(factor))
    total = b.fadd(fma(total, b.fmul(rest, rest), rest), constant(1.0))
    power = b.shl(b.add(b.fptosi(n, whole), constant(127, whole)), constant(23, whole))
    return b.select(low, constant(0.0), b.fmul(total, b.bitcast(power, x.type)))


def sum_of(b: Builder, vector: Value) -> Value:
    """The sum of a float vector's numbers, in any order."""
    kind = ir.FunctionType(F32, [F32, vector.type])
    reduce = cgutils.get_or_insert_function(b.module, kind, "llvm.vector.reduce.fadd.v16f32")
    return b.call(reduce, [ir.Constant(F32, 0.0), vector], fastmath=("reassoc",))


def larger(b: Builder, x: Value, y: Value) -> Value:
    """The larger of two, as vectors."""
    return b.select(b.fcmp_ordered(">", x, y), x, y)


def largest_of(b: Builder, vector: Value) -> Value:
    return call(b, "llvm.vector.reduce.fmax.v16f32", F32, [vector])
