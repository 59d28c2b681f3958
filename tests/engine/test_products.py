"""Products with packed weights.

1. A weight is held in the shortest code that gives every number back, and in no shorter one.
2. A product is that of the numbers, for every code, any shape and any number of rows; with a bias, where there is one.
3. In 8 bits every number is within half a step of its own, and a product is that of the rounded numbers.
4. The vector functions are the mathematical ones: exponentials, gates, the largest number.
5. Attention of prompt blocks and of single tokens is softmax attention, with window and soft cap, for any head width.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from numpy.typing import NDArray

from tokenwire.engine.local import layers as table
from tokenwire.engine.local.gemm import MULTIPLY, SCRATCH
from tokenwire.engine.local.kernels import paged_decode
from tokenwire.engine.local.linear import Linear
from tokenwire.engine.local.packing import Arena, Packed, pack
from tokenwire.engine.local.prompt_kernel import QUERIES, attend_block
from tokenwire.engine.local.tiles import BLOCK, CODES, HAS_VNNI, I8, RECORD
from tokenwire.engine.local.vectors import call_at, exponential, gate_row, quantize_block

Floats = NDArray[np.float32]


@njit
def _multiply(multiply, code, x_at, x_stride, rows, weight, panels, panel_bytes, blocks, scratch, out, stride):  # type: ignore[no-untyped-def]
    for panel in range(panels):
        at = weight + panel * panel_bytes
        call_at(multiply, (code, x_at, x_stride, rows, at, blocks, scratch, out + panel * 128, stride, 0))


@njit
def _quantize(x_at, blocks, record_at):  # type: ignore[no-untyped-def]
    for i in range(blocks):
        quantize_block(x_at + i * 128, record_at + i * 40)


def product(x: Floats, packed: Packed) -> Floats:
    """x [rows, width] times the weight, [rows, columns]."""
    rows = len(x)
    padded = np.zeros((rows, packed.blocks * BLOCK), dtype=np.float32)
    padded[:, : x.shape[1]] = x
    source = padded
    if packed.code == I8:
        source = np.zeros((rows, packed.blocks * RECORD), dtype=np.uint8)
        for r in range(rows):
            _quantize(padded[r].ctypes.data, packed.blocks, source[r].ctypes.data)
    out = np.full((rows, packed.panels * 32), np.nan, dtype=np.float32)
    scratch = np.empty(SCRATCH, dtype=np.float32)
    _multiply(
        MULTIPLY,
        packed.code,
        source.ctypes.data,
        source.strides[0],
        rows,
        packed.data.ctypes.data,
        packed.panels,
        packed.data.strides[0],
        packed.blocks,
        scratch.ctypes.data,
        out.ctypes.data,
        out.strides[0],
    )
    return out[:, : packed.columns]


def weight_of(kind: str, columns: int, width: int, seed: int) -> torch.Tensor:
    """A weight that `kind` can hold; `width` whole blocks for the kinds made of blocks."""
    rnd = np.random.default_rng(seed)
    numbers = rnd.normal(size=(columns, width)).astype(np.float32)
    if kind == "bf16":
        return torch.from_numpy(numbers).bfloat16().float()
    if kind == "f32":
        return torch.from_numpy(numbers)
    blocks = numbers.reshape(columns, -1, BLOCK)
    if kind == "s8":
        scale = (np.abs(blocks).max(-1, keepdims=True) / 127).astype(np.float16).astype(np.float32)
        made = np.clip(np.rint(blocks / scale), -127, 127).astype(np.float32) * scale
    elif kind == "u4":
        low = blocks.min(-1, keepdims=True).astype(np.float16).astype(np.float32)
        scale = ((blocks.max(-1, keepdims=True) - low) / 15).astype(np.float16).astype(np.float32)
        steps = np.clip(np.rint((blocks - low) / scale), 0, 15)
        steps[..., 0], steps[..., 1] = 0, 15
        made = steps.astype(np.float32) * scale + low
    else:  # the blocks of GGUF's Q4_0: eight steps from the number of largest size to zero
        place = np.abs(blocks).argmax(-1, keepdims=True)
        scale = (np.take_along_axis(blocks, place, -1) / -8).astype(np.float16).astype(np.float32)
        steps = np.clip(np.rint(blocks / scale) + 8, 0, 15)
        np.put_along_axis(steps, place, 0, -1)
        made = scale * (steps.astype(np.float32) - 8)
    return torch.from_numpy(made.reshape(columns, width).astype(np.float32))


@pytest.mark.parametrize(("kind", "code"), [("f32", "f32"), ("bf16", "bf16"), ("s8", "s8"), ("u4", "u4"), ("q4", "u4")])
@pytest.mark.parametrize("seed", range(3))
def test_a_weight_is_held_in_the_shortest_code_that_gives_every_number_back(kind: str, code: str, seed: int) -> None:
    weight = weight_of(kind, 64, 96, seed)
    packed = pack(weight, Arena())
    assert CODES[packed.code] == code
    # Unit vectors read the numbers out one by one, so this is bit for bit.
    np.testing.assert_array_equal(product(np.eye(96, dtype=np.float32), packed), weight.numpy().T)


@pytest.mark.parametrize("kind", ["bf16", "s8", "u4"])
@pytest.mark.parametrize("place", [(0, 0), (63, 95), (37, 50)])
def test_one_number_that_a_code_cannot_hold_keeps_the_weight_from_it(kind: str, place: tuple[int, int]) -> None:
    weight = weight_of(kind, 64, 96, 1)
    weight[place] += float(weight[place]) * 2**-20 + 2**-30
    packed = pack(weight, Arena())
    assert CODES[packed.code] == "f32"
    np.testing.assert_array_equal(product(np.eye(96, dtype=np.float32), packed), weight.numpy().T)


@pytest.mark.parametrize("odd", [math.nan, math.inf, 0.0])
def test_numbers_that_are_none_and_blocks_of_zeros_are_kept(odd: float) -> None:
    weight = weight_of("u4", 32, 64, 2)
    weight[3] = odd
    packed = pack(weight, Arena())
    one = np.zeros((1, 64), dtype=np.float32)
    one[0, 5] = 1.0
    others = np.arange(32) != 3
    np.testing.assert_array_equal(product(one, packed)[0, others], weight[others, 5].numpy())
    if odd == 0.0:
        assert CODES[packed.code] == "u4"
        assert product(one, packed)[0, 3] == 0.0
    else:
        assert not np.isfinite(product(one, packed)[0, 3])


@settings(deadline=None, max_examples=60)
@given(
    kind=st.sampled_from(["f32", "bf16", "s8", "u4"]),
    rows=st.integers(1, 30),
    columns=st.integers(1, 70),
    blocks=st.integers(1, 40),
    narrower=st.integers(0, 31),
    seed=st.integers(0, 99),
)
def test_a_product_is_that_of_the_numbers(
    kind: str, rows: int, columns: int, blocks: int, narrower: int, seed: int
) -> None:
    width = blocks * BLOCK - (narrower if kind in ("f32", "bf16") else 0)
    weight = weight_of(kind, columns, width, seed)
    x = np.random.default_rng(seed + 1).normal(size=(rows, width)).astype(np.float32)
    expected = x.astype(np.float64) @ weight.double().numpy().T
    size = np.abs(x).astype(np.float64) @ weight.double().abs().numpy().T
    assert np.all(np.abs(product(x, pack(weight, Arena())) - expected) <= 1e-6 * size + 1e-30)


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 14),
    columns=st.integers(1, 70),
    width=st.integers(1, 200),
    size=st.sampled_from([1e-3, 1.0, 50.0]),
    seed=st.integers(0, 99),
)
def test_in_8_bits_a_product_is_that_of_the_rounded_numbers(
    rows: int, columns: int, width: int, size: float, seed: int
) -> None:
    rnd = np.random.default_rng(seed)
    weight = torch.from_numpy((rnd.normal(size=(columns, width)) * size).astype(np.float32))
    x = rnd.normal(size=(rows, width)).astype(np.float32)
    packed = pack(weight, Arena(), quantize=True)
    assert CODES[packed.code] == ("i8" if HAS_VNNI else "s8")

    def rounded(values: Floats, *, half: bool) -> NDArray[np.float64]:
        padded = np.pad(values, ((0, 0), (0, -values.shape[1] % BLOCK))).reshape(len(values), -1, BLOCK)
        scale = np.abs(padded).max(-1, keepdims=True) / np.float32(127)
        if half:
            scale = scale.astype(np.float16).astype(np.float32)
        steps = np.clip(np.rint(padded / np.where(scale == 0, np.float32(1), scale)), -127, 127)
        made = steps.astype(np.float64) * scale
        # Scales in half precision below its smallest normal number are coarse themselves.
        assert np.all(np.abs(made - padded) <= 0.51 * scale + (1e-3 if half else 1e-6) * np.abs(padded) + 1e-5)
        return made.reshape(len(values), -1)[:, : values.shape[1]]

    inputs = rounded(x, half=False) if HAS_VNNI else x.astype(np.float64)
    expected = inputs @ rounded(weight.numpy(), half=True).T
    # A number that lies between two steps may be rounded either way.
    slack = (np.abs(x).max() / 127) * np.abs(weight.numpy()).max() * 1.01
    np.testing.assert_allclose(product(x, packed), expected, rtol=1e-4, atol=slack + 1e-6)


def test_biases_are_added_and_panels_of_a_pair_alternate() -> None:
    torch.manual_seed(1)
    gate, up = torch.nn.Linear(32, 40), torch.nn.Linear(32, 40)
    weights = [m.weight.data.clone() for m in (gate, up)]
    linear = Linear.of_pair(gate, up, Arena(), quantize=False)
    assert linear.row()[table.PANELS] == 4
    assert linear.bias is not None
    x = torch.randn(3, 32)
    found = product(x.numpy(), linear.packed).reshape(3, 2, 2, 32) + linear.bias.reshape(2, 2, 32)
    for side, (module, weight) in enumerate(zip((gate, up), weights, strict=True)):
        expected = (x @ weight.T + module.bias).detach().numpy()
        np.testing.assert_allclose(found[:, :, side].reshape(3, 64)[:, :40], expected, atol=1e-5)
        assert module.weight.numel() == 0, "the original is let go"


@njit
def _exponentials(x, out):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        out[i] = exponential(x[i])


def test_exponentials_are_right_to_the_last_bits() -> None:
    x = np.concatenate([np.linspace(-86.9, 88, 100_003), [-1e9, -np.inf, np.nan, 0.0]]).astype(np.float32)
    out = np.empty_like(x)
    _exponentials(x, out)
    np.testing.assert_allclose(out[:-4], np.exp(x[:-4].astype(np.float64)), rtol=3e-7)
    np.testing.assert_array_equal(out[-4:], [0.0, 0.0, np.nan, 1.0])


@njit
def _gate(pair_at, out_at):  # type: ignore[no-untyped-def]
    gate_row(pair_at, out_at)


@pytest.mark.parametrize("size", [1.0, 30.0, 1e4])
def test_a_gate_is_silu_times_up(size: float) -> None:
    pair = (np.random.default_rng(0).normal(size=64) * size).astype(np.float32)
    out = np.empty(32, dtype=np.float32)
    _gate(pair.ctypes.data, out.ctypes.data)
    expected = torch.nn.functional.silu(torch.from_numpy(pair[:32]).double()) * torch.from_numpy(pair[32:]).double()
    np.testing.assert_allclose(out, expected.numpy(), rtol=1e-5, atol=1e-20)


def softmax_attention(q: Floats, k: Floats, v: Floats, position: int, scale: float, window: int, cap: float) -> Floats:
    """One query of one head at `position` over keys 0..position."""
    low = max(0, position + 1 - window) if window else 0
    scores = (k[low : position + 1].astype(np.float64) @ q) * scale
    if cap:
        scores = np.tanh(scores / cap) * cap
    weights = np.exp(scores - scores.max())
    return (weights @ v[low : position + 1] / weights.sum()).astype(np.float32)


@settings(deadline=None, max_examples=40)
@given(
    width=st.sampled_from([8, 16, 40, 64]),
    group=st.integers(1, 3),
    context=st.sampled_from([0, 1, 31, 130, 300]),
    count=st.sampled_from([2, 17, QUERIES]),
    window=st.sampled_from([0, 5, 140]),
    cap=st.sampled_from([0.0, 3.0]),
    seed=st.integers(0, 9),
)
def test_attention_of_a_block_of_queries_is_softmax_attention(
    width: int, group: int, context: int, count: int, window: int, cap: float, seed: int
) -> None:
    rnd = np.random.default_rng(seed)
    total, kv_heads = context + count, 2
    slots = rnd.permutation(total + 7)[:total].astype(np.int64)
    keys = rnd.normal(size=(total + 7, kv_heads, width)).astype(np.float32)
    values = rnd.normal(size=(total + 7, kv_heads, width)).astype(np.float32)
    unused = np.setdiff1d(np.arange(total + 7), slots)
    keys[unused] = values[unused] = np.nan
    heads = kv_heads * group
    qkv = rnd.normal(size=(count + 3, (heads + 2 * kv_heads) * width)).astype(np.float32)
    out = np.zeros((count + 3, heads * width), dtype=np.float32)
    for head in range(kv_heads):
        attend_block(
            MULTIPLY, qkv, 3, 0, count, context, slots.ctypes.data, head, heads, keys, values, 0.3, window, cap, out
        )
    for row in (0, count // 2, count - 1):
        for head in range(heads):
            q = qkv[3 + row, head * width : (head + 1) * width].astype(np.float64)
            k, v = keys[slots, head // group], values[slots, head // group]
            expected = softmax_attention(q, k, v, context + row, 0.3, window, cap)
            np.testing.assert_allclose(out[3 + row, head * width : (head + 1) * width], expected, atol=3e-6)
    assert not out[:3].any()


@settings(deadline=None, max_examples=40)
@given(
    width=st.sampled_from([8, 16, 64]),
    lens=st.lists(st.integers(1, 90), min_size=1, max_size=5),
    window=st.sampled_from([None, 5, 33]),
    cap=st.sampled_from([None, 3.0]),
    block_size=st.sampled_from([4, 16]),
)
def test_attention_of_single_tokens_is_softmax_attention(
    width: int, lens: list[int], window: int | None, cap: float | None, block_size: int
) -> None:
    rnd = np.random.default_rng(len(lens))
    blocks = -(-max(lens) // block_size)
    tables = rnd.permutation(blocks * len(lens)).reshape(len(lens), blocks).astype(np.int32)
    keys = rnd.normal(size=(tables.size * block_size, 2, width)).astype(np.float32)
    values = rnd.normal(size=(tables.size * block_size, 2, width)).astype(np.float32)
    query = rnd.normal(size=(len(lens), 4 * width)).astype(np.float32)
    out = np.empty_like(query)
    paged_decode(query, keys, values, tables, np.array(lens, np.int32), block_size, 4, 0.3, window, cap, out)
    for row, length in enumerate(lens):
        slots = (tables[row][:, None].astype(np.int64) * block_size + np.arange(block_size)).ravel()
        for head in range(4):
            q = query[row, head * width : (head + 1) * width].astype(np.float64)
            k, v = keys[slots, head // 2], values[slots, head // 2]
            expected = softmax_attention(q, k, v, length - 1, 0.3, window or 0, cap or 0.0)
            np.testing.assert_allclose(out[row, head * width : (head + 1) * width], expected, atol=3e-6)
