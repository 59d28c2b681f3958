"""All decoder layers of a step as one compiled call: nothing of Python runs between two layers.

A layer is a row of numbers: addresses of its weights, norms and cache. A step goes through the layers in
stages; a stage is a number of tasks which the threads take one after another. Threads are woken once a step. One that
is slow takes less, and one that the system has put aside keeps the others waiting only if it holds a task.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import carray, prange
from numpy.typing import NDArray

from tokenwire.engine.local.gemm import SCRATCH
from tokenwire.engine.local.kernels import Floats, Ints, compiled, decode_one
from tokenwire.engine.local.packing import Bytes
from tokenwire.engine.local.prompt_kernel import QUERIES, attend_block
from tokenwire.engine.local.tiles import BLOCK, BLOCK_BYTES, CODES, I8, PANEL, RECORD
from tokenwire.engine.local.vectors import VECTOR, call_at, floats_at, gate_row, quantize_block, take_number, wait_for

Longs = NDArray[np.int64]


INPUT_NORM, Q_NORM, K_NORM, MLP_NORM, KEYS, VALUES, WINDOW = range(7)
"""Columns of the table of layers: addresses, or 0 where there is none."""
QKV, OUTPUT, GATE_UP, DOWN = 7, 12, 17, 22
"""First columns of the linear layers. Panels of gate and up projection alternate."""
CODE, WEIGHT, PANELS, BLOCKS, BIAS = range(5)
"""Columns of a linear layer, from its first one on."""
COLUMNS = 27


class Shape(NamedTuple):
    """What all layers share. `multiply`: `gemm.MULTIPLY`."""

    multiply: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden: int
    num_slots: int
    block_size: int
    eps: float
    scaling: float
    softcap: float


class Work(NamedTuple):
    """Memory of a step, T rows and more. Columns are padded to whole panels; what pads inputs of products is zero."""

    x: Floats
    delta: Floats
    normed: Floats
    qkv: Floats
    attended: Floats
    active: Floats
    records: Bytes
    """`normed` or `attended` in 8 bits, where the next product wants them so."""
    active_records: Bytes
    counters: Longs
    """[layers * stages, 2], zero when a step begins: tasks taken, and finished."""


class Positions(NamedTuple):
    """Where a step's tokens stand. T rows, decodes first."""

    cos: Floats
    sin: Floats
    slots: Longs  # [T]
    tables: Ints  # [decodes, blocks]
    lens: Ints  # [decodes]
    prefills: Longs
    """[prefills, 4]: first row, rows, tokens before, address of the sequence's slots."""
    prefill_tasks: Longs
    """[tasks, 2]: prefill and its first position."""


_SIZES = np.array([BLOCK_BYTES[code] for code in CODES], dtype=np.int64)
_NORM, _QKV, _ROPE, _ATTEND, _QUANTIZE, _OUTPUT, _MLP_NORM, _GATE_UP, _DOWN = range(9)
NUM_STAGES = 9
_ROWS = 8
"""Rows of a task that goes row by row."""
_FEW_ROWS, _FEW_TASKS = 16, 16


@compiled()
def _vector(address: int, count: int) -> Floats:
    """`count` floats at an address; none where it is 0."""
    return carray(floats_at(address), count if address != 0 else 0)  # type: ignore[no-any-return]


@compiled()
def _quantize_row(x_at: int, blocks: int, record_at: int) -> None:
    """A row of floats to its records."""
    for i in range(blocks):
        quantize_block(x_at + i * BLOCK * 4, record_at + i * RECORD)


@compiled()
def _norm_rows(
    first: int, last: int, hidden: int, weight_at: int, eps: float, quantize: bool, blocks: int, work: Work
) -> None:
    x, delta, normed = work.x, work.delta, work.normed
    weight = _vector(weight_at, hidden)
    for r in range(first, last):
        total = np.float32(0.0)
        for i in range(hidden):
            value = x[r, i] + delta[r, i]
            x[r, i] = value
            total += value * value
        scale = np.float32(1.0 / np.sqrt(total / hidden + eps))
        for i in range(hidden):
            normed[r, i] = x[r, i] * scale * weight[i]
        if quantize:
            _quantize_row(normed[r].ctypes.data, blocks, work.records[r].ctypes.data)


@compiled()
def _rotate(head: Floats, cos: Floats, sin: Floats, norm: Floats, eps: float) -> None:
    """Norm of one head, if there is one, and its rotation."""
    width = head.shape[0]
    half = width // 2
    if norm.shape[0] > 0:
        total = np.float32(0.0)
        for i in range(width):
            total += head[i] * head[i]
        scale = np.float32(1.0 / np.sqrt(total / width + eps))
        for i in range(width):
            head[i] = head[i] * scale * norm[i]
    for i in range(half):
        low, high = head[i], head[half + i]
        head[i] = low * cos[i] - high * sin[i]
        head[half + i] = high * cos[half + i] + low * sin[half + i]


@compiled()
def _rope_rows(first: int, last: int, line: Longs, shape: Shape, work: Work, at: Positions) -> None:
    """Rotate q and k heads, write k and v into the cache."""
    width, kv_heads = shape.head_dim, shape.num_kv_heads
    place = (shape.num_slots, kv_heads, width)
    keys = carray(floats_at(line[KEYS]), place)
    values = carray(floats_at(line[VALUES]), place)
    q_norm, k_norm = _vector(line[Q_NORM], width), _vector(line[K_NORM], width)
    for r in range(first, last):
        row, slot = work.qkv[r], at.slots[r]
        for h in range(shape.num_heads + kv_heads):
            norm = q_norm if h < shape.num_heads else k_norm
            _rotate(row[h * width : (h + 1) * width], at.cos[r], at.sin[r], norm, shape.eps)
        k_at = shape.num_heads * width
        v_at = k_at + kv_heads * width
        for h in range(kv_heads):
            for i in range(width):
                keys[slot, h, i] = row[k_at + h * width + i]
                values[slot, h, i] = row[v_at + h * width + i]


@compiled()
def _attend(task: int, line: Longs, shape: Shape, work: Work, at: Positions, scores: Floats) -> None:
    """Decodes come first, then blocks of prompts; a task is one K/V head of one of them."""
    kv_heads = shape.num_kv_heads
    place = (shape.num_slots, kv_heads, shape.head_dim)
    keys = carray(floats_at(line[KEYS]), place)
    values = carray(floats_at(line[VALUES]), place)
    window, heads = line[WINDOW], shape.num_heads
    item, head = task // kv_heads, task % kv_heads
    num_decodes = at.lens.shape[0]
    if item < num_decodes:
        decode_one(
            item, head, work.qkv, keys, values, at.tables, at.lens, shape.block_size, heads, shape.scaling, window,
            shape.softcap, scores, work.attended,
        )  # fmt: skip
        return
    prefill = at.prefills[at.prefill_tasks[item - num_decodes, 0]]
    first = at.prefill_tasks[item - num_decodes, 1]
    last = min(first + QUERIES, prefill[1])
    attend_block(
        shape.multiply,
        work.qkv,
        prefill[0],
        first,
        last,
        prefill[2],
        prefill[3],
        head,
        heads,
        keys,
        values,
        shape.scaling,
        window,
        shape.softcap,
        work.attended,
    )


@compiled()
def _product(
    multiply: int,
    line: Longs,
    linear: int,
    index: int,
    rows: int,
    x: Floats,
    records: Bytes,
    scratch: Floats,
    out_at: int,
    stride: int,
) -> None:
    """Panel `index` of a linear layer for all rows, to an address; `stride` bytes from row to row."""
    code, blocks = line[linear + CODE], line[linear + BLOCKS]
    panel = line[linear + WEIGHT] + index * blocks * _SIZES[code]
    x_at, x_stride = x.ctypes.data, x.strides[0]
    if code == I8:
        x_at, x_stride = records.ctypes.data, records.strides[0]
    call_at(multiply, (code, x_at, x_stride, rows, panel, blocks, scratch.ctypes.data, out_at, stride, 0))
    if line[linear + BIAS] != 0:
        bias = _vector(line[linear + BIAS] + index * PANEL * 4, PANEL)
        for r in range(rows):
            out = carray(floats_at(out_at + r * stride), PANEL)
            for c in range(PANEL):
                out[c] += bias[c]


@compiled()
def _gated(multiply: int, line: Longs, index: int, rows: int, work: Work, scratch: Floats, pair: Floats) -> None:
    """One panel of gate and up projection, and what they become; 8-bit, too, where the next product wants it."""
    for side in range(2):
        place, stride = pair.ctypes.data + side * PANEL * 4, pair.strides[0]
        _product(
            multiply, line, GATE_UP, 2 * index + side, rows, work.normed, work.records, scratch, place, stride
        )  # fmt: skip
    active = work.active.ctypes.data + index * PANEL * 4
    for r in range(rows):
        out = active + r * work.active.strides[0]
        gate_row(pair[r].ctypes.data, out)
        if line[DOWN + CODE] == I8:
            quantize_block(out, work.active_records[r].ctypes.data + index * RECORD)


@compiled()
def _linear_of(stage: int) -> int:
    if stage == _QKV:
        return QKV
    if stage == _OUTPUT:
        return OUTPUT
    return GATE_UP if stage == _GATE_UP else DOWN


@compiled()
def _stage_size(stage: int, rows: int, line: Longs, shape: Shape, at: Positions) -> tuple[int, int]:
    """(tasks, items of a task); an item is a row, a panel, a panel of both gate and up, or a K/V head of one query."""
    if stage == _ATTEND:
        decodes, blocks = at.tables.shape[0], at.prefill_tasks.shape[0]
        return (decodes + blocks) * shape.num_kv_heads, 1
    if stage in (_NORM, _MLP_NORM, _ROPE, _QUANTIZE):
        if stage == _QUANTIZE and line[OUTPUT + CODE] != I8:
            return 0, 1
        return -(-rows // _ROWS), _ROWS
    linear = _linear_of(stage)
    panels = line[linear + PANELS]
    if stage == _GATE_UP:
        panels //= 2
    # With few rows a panel takes less time than threads need to agree on who takes it.
    items = 1 if rows > _FEW_ROWS else max(1, panels // _FEW_TASKS)
    return -(-panels // items), items


@compiled()
def _do_rows(stage: int, first: int, last: int, line: Longs, shape: Shape, work: Work, at: Positions) -> None:
    if stage == _NORM:
        quantize = line[QKV + CODE] == I8
        _norm_rows(first, last, shape.hidden, line[INPUT_NORM], shape.eps, quantize, line[QKV + BLOCKS], work)
    elif stage == _MLP_NORM:
        quantize = line[GATE_UP + CODE] == I8
        _norm_rows(first, last, shape.hidden, line[MLP_NORM], shape.eps, quantize, line[GATE_UP + BLOCKS], work)
    elif stage == _ROPE:
        _rope_rows(first, last, line, shape, work, at)
    else:
        for r in range(first, last):
            _quantize_row(work.attended[r].ctypes.data, line[OUTPUT + BLOCKS], work.records[r].ctypes.data)


@compiled()
def _do_panels(
    multiply: int, stage: int, first: int, last: int, rows: int, line: Longs, work: Work, scratch: Floats, pair: Floats
) -> None:
    if stage == _GATE_UP:
        for panel in range(first, last):
            _gated(multiply, line, panel, rows, work, scratch, pair)
        return
    x, records, out = work.normed, work.records, work.qkv
    if stage == _OUTPUT:
        x, out = work.attended, work.delta
    elif stage == _DOWN:
        x, records, out = work.active, work.active_records, work.delta
    for panel in range(first, last):
        place = out.ctypes.data + panel * PANEL * 4
        _product(multiply, line, _linear_of(stage), panel, rows, x, records, scratch, place, out.strides[0])


@compiled()
def _go_through(stages: int, rows: int, table: Longs, shape: Shape, work: Work, at: Positions) -> None:
    """One thread's way through all stages: take tasks while there are any, then wait for those that others took."""
    scratch = np.empty(SCRATCH, dtype=np.float32)
    pair = np.empty((rows, 2 * PANEL), dtype=np.float32)
    longest = at.tables.shape[1] * shape.block_size + VECTOR
    scores = np.empty((shape.num_heads // shape.num_kv_heads, longest), dtype=np.float32)
    for layer in range(table.shape[0]):
        line = table[layer]
        for stage in range(stages):
            tasks, items = _stage_size(stage, rows, line, shape, at)
            taken = work.counters.ctypes.data + (layer * NUM_STAGES + stage) * 16
            finished = taken + 8
            task = take_number(taken)
            while task < tasks:
                first = task * items
                if stage == _ATTEND:
                    _attend(task, line, shape, work, at, scores)
                elif stage in (_QKV, _OUTPUT, _GATE_UP, _DOWN):
                    panels = line[_linear_of(stage) + PANELS] // (2 if stage == _GATE_UP else 1)
                    last = min(first + items, panels)
                    _do_panels(shape.multiply, stage, first, last, rows, line, work, scratch, pair)
                else:
                    _do_rows(stage, first, min(first + items, rows), line, shape, work, at)
                take_number(finished)
                task = take_number(taken)
            wait_for(finished, tasks)


@compiled(parallel=True)
def _go_through_together(
    threads: int, stages: int, rows: int, table: Longs, shape: Shape, work: Work, at: Positions
) -> None:
    for _ in prange(threads):
        _go_through(stages, rows, table, shape, work, at)


def run_layers(threads: int, stages: int, rows: int, table: Longs, shape: Shape, work: Work, at: Positions) -> None:
    """The first `stages` stages of every layer of `table`, for the first `rows` rows of `work`."""
    work.counters[:] = 0
    if threads == 1:
        _go_through(stages, rows, table, shape, work, at)
    else:
        _go_through_together(threads, stages, rows, table, shape, work, at)
