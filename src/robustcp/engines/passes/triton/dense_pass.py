# mypy: ignore-errors
"""One pass over a dense array.

A program holds a block of rows of one mode and a tile of another one, and walks over the indices
of all others. With a the block's factor rows, q the tile's, p the product of the others' rows at
an index, and packed columns S of each,

    model     = (a * p) q'
    gradient += (slope q) * p
    gram     += (curvature S(q)) * S(p)

so that an entry of the data is read once, and nothing of its size is written. Sums of programs are
written side by side and added in a fixed order: the same bits every time.

In single precision the matrix units take 11 bits of a number. Models are made of factors that are
split in two such parts, which leaves out less than single precision does. Slopes are rounded to 11
bits: the errors are independent and average out over the entries of a row (where those are few,
slopes are split too). The error of q would be the same for all of them, so q is split. Curvatures
are cut to 11 bits, and Gram matrices raised by as much, so that the parabola still lies above the
loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import triton
import triton.language as tl

from robustcp.engines.passes.triton.entries import (
    inverse_scales,
    majorize,
    mode_product,
    value_at_zero,
    view_entries,
)
from robustcp.engines.passes.triton.matrices import (
    contract_curvatures,
    contract_slopes,
    load_packed_rows,
    load_rows,
    matrix_product,
    round_to_tf32,
    select_columns,
)

#: By how much Gram matrices are raised where curvatures were cut to 11 bits.
GRAM_INFLATION = tl.constexpr(1 + 2.0**-11)


class Factors(NamedTuple):
    """Factors, and which of their columns make a packed column.

    Attributes
    ----------
    rows, tile : the factors of the modes that blocks of entries are cut from
    own : the factor of the own mode, read where it is not that of the rows
    outer : products of the rows of all other factors, followed by those of pairs of their columns
    left, right : the columns in row order, then the pairs of packed columns, in whole chunks
    """

    rows: Any
    own: Any
    outer: Any
    tile: Any
    left: Any
    right: Any


class Data(NamedTuple):
    """The data, where that of each outer index begins, and strides.

    The stride of the rows comes divided by `Layout.row_stride_divisor`.
    """

    array: Any
    offsets: Any
    row_stride: int
    tile_stride: int
    own_stride: int


class EntryWeights(NamedTuple):
    """Weights: vectors of rows, tile and outer indices; an array, its offsets and its strides."""

    rows: Any = None
    tile: Any = None
    outer: Any = None
    array: Any = None
    offsets: Any = None
    row_stride: int = 0
    tile_stride: int = 0
    own_stride: int = 0


class EntryScales(NamedTuple):
    """Scales: vectors of rows, tile and outer indices; the factors of the signal, and its rank."""

    rows: Any = None
    tile: Any = None
    outer: Any = None
    signal_rows: Any = None
    signal_outer: Any = None
    signal_tile: Any = None
    signal_rank: int = 0


class Inputs(NamedTuple):
    """What is read of the entries.

    `parameters` are 7 of the loss, 2 units, the limits of clipping and of masking, the floor of
    scales to the 4th power, and the constant, linear and quadratic part of the variance function.
    """

    parameters: Any
    data: Data
    weights: EntryWeights
    scales: EntryScales


class Sums(NamedTuple):
    """Where sums go: gradients beside Gram matrices, and values."""

    equations: Any
    costs: Any


@dataclass(frozen=True)
class Layout:
    """What a kernel is compiled for.

    Attributes
    ----------
    real : tl.dtype
        The type of the factors.
    fast : bool
        Whether the loss may be approximated, in single precision.
    row_block, tile_block : int
        Rows and columns of a block of entries.
    rank_block, pair_block, signal_block : int
        Columns of factors, packed columns of a chunk, columns of the factors of the signal.
    rows_divisor, row_stride_divisor, tile_divisor, offsets_divisor : int
        Powers of two that divide the number of rows, their stride, the size of the tile's mode and
        the offsets of outer indices. Numbers come divided by them (but offsets): so the compiler
        knows the divisor, and reads several numbers at once.
    gradient, gram : bool
        Which sums are wanted. Chunks of packed columns after the first come without the gradient.
    per_own_index : bool
        Whether rows are of another mode than the own one, of which each index has programs.
    has_missing, clipped : bool
        Whether entries are missing or masked; whether they are clipped.
    unit_steps : int
        By how many numbers data is multiplied.
    mode_weights, entry_weights, scaled, floored, signal : bool
        Which weights and scales there are.
    split_slopes : bool
        Whether slopes are split in two parts of 11 bits.
    pipeline_stages : int
    """

    real: Any
    fast: bool
    row_block: int
    tile_block: int
    rank_block: int
    pair_block: int
    signal_block: int
    rows_divisor: int
    row_stride_divisor: int
    tile_divisor: int
    offsets_divisor: int
    gradient: bool
    gram: bool
    per_own_index: bool
    has_missing: bool
    clipped: bool
    unit_steps: int
    mode_weights: bool
    entry_weights: bool
    scaled: bool
    floored: bool
    signal: bool
    split_slopes: bool
    pipeline_stages: int

    @property
    def weighted(self):
        return self.mode_weights or self.entry_weights


@triton.jit
def _write_sums(sums, factors, totals, pairs, a, first, rows, own, rank, layout: tl.constexpr):
    """Write the totals of a program: of each row, or of the own index."""
    g, h, v = totals
    s, left, right = pairs
    block, part, own_index = tl.program_id(0), tl.program_id(1), tl.program_id(2) % own
    i = block * layout.row_block + tl.arange(0, layout.row_block)
    r = tl.arange(0, layout.rank_block)
    packed = rank * (rank + 1) // 2 if layout.gram else 0
    inside, columns = i < rows, rank + packed
    if layout.per_own_index:
        row = (part * tl.num_programs(0) + block) * own + own_index
        if layout.gradient:
            tl.store(sums.equations + row * columns + r, tl.sum(g * a, 0), mask=r < rank)
            tl.store(sums.costs + row, tl.sum(tl.where(inside, v, 0.0), 0))
        if layout.gram:
            h *= load_packed_rows(factors.rows, first + i, inside, rank, left, right)
            tl.store(sums.equations + row * columns + rank + s, tl.sum(h, 0), mask=s < packed)
    else:
        row = part * rows + i
        to = sums.equations + row.to(tl.int64)[:, None] * columns
        if layout.gradient:
            tl.store(to + r[None, :], g, mask=inside[:, None] & (r < rank)[None, :])
            tl.store(sums.costs + row, v, mask=inside)
        if layout.gram:
            tl.store(to + rank + s[None, :], h, mask=inside[:, None] & (s < packed)[None, :])


@triton.jit(do_not_specialize=["rows", "first", "inner", "outer", "own", "rank", "splits"])
def pass_kernel(
    inputs,
    factors,
    sums,
    rows,
    first,
    inner,
    outer,
    own,
    rank,
    splits,
    formula: tl.constexpr,
    layout: tl.constexpr,
):
    """The sums of one program.

    rows, first : the rows, in units of their divisor, and the first one
    inner, outer : the size of the tile's mode, in units of its divisor; the outer indices
    own : the indices of the own mode that have programs of their own, or 1
    rank, splits : columns of factors; into how many parts the outer indices are split
    """
    rows, inner = rows * layout.rows_divisor, inner * layout.tile_divisor
    own_index = tl.program_id(2) % own
    real: tl.constexpr = layout.real
    R: tl.constexpr = layout.rank_block
    ROWS: tl.constexpr = layout.row_block  # in a shape Triton 3.6 takes only constants of its own
    PAIRS: tl.constexpr = layout.pair_block
    divisor: tl.constexpr = layout.offsets_divisor
    i = tl.program_id(0) * layout.row_block + tl.arange(0, layout.row_block)
    part, own_outer_index = tl.program_id(1), outer + own_index
    row_index, in_rows, own_range = first + i, i < rows, own_index + tl.arange(0, 1)
    a = load_rows(factors.rows, row_index, in_rows, rank, R)
    row_factors = a
    if layout.per_own_index:
        row_factors = a * load_rows(factors.own, own_range, own_range >= 0, rank, R)
    chunk, r = tl.program_id(2) // own, tl.arange(0, R)
    first_pair = 0 if layout.gradient else layout.pair_block
    s = first_pair + chunk * layout.pair_block + tl.arange(0, layout.pair_block)
    left, right = tl.load(factors.left + R + s), tl.load(factors.right + R + s)
    g, v = tl.zeros((ROWS, R), real), tl.zeros((ROWS,), tl.float64)
    h = tl.zeros((ROWS, PAIRS), real)
    data, weights, scales = inputs.data, inputs.weights, inputs.scales
    row_stride = data.row_stride * layout.row_stride_divisor
    row_pointers = data.array + row_index.to(tl.int64)[:, None] * row_stride
    if layout.per_own_index:
        row_pointers += own_range.to(tl.int64)[:, None] * data.own_stride
    unit, second_unit = tl.load(inputs.parameters + 7), tl.load(inputs.parameters + 8)
    view = unit, second_unit, tl.load(inputs.parameters + 9), tl.load(inputs.parameters + 10)
    padding_count, signal_a = 0, 0.0
    width = R + tl.cdiv(rank * (rank + 1) // 2, layout.pair_block) * layout.pair_block
    width = tl.zeros((), tl.int64) + width
    if layout.signal:
        RS: tl.constexpr = layout.signal_block
        signal_a = load_rows(scales.signal_rows, row_index, in_rows, scales.signal_rank, RS)
        if layout.per_own_index:
            own_outer = outer + own_range
            signal_a *= load_rows(scales.signal_outer, own_outer, own_range >= 0, RS, RS)
    tiles, outer_each = tl.cdiv(inner, layout.tile_block), tl.cdiv(outer, splits)
    tiles_each = tl.cdiv(tiles, tl.num_programs(1) // splits)
    begin, first_tile = part % splits * outer_each, part // splits * tiles_each
    end = tl.minimum(outer, begin + outer_each)
    for tile in range(first_tile, tl.minimum(tiles, first_tile + tiles_each)):
        t = tile * layout.tile_block + tl.arange(0, layout.tile_block)
        in_tile, signal_q = t < inner, 0.0
        q, inside = (
            load_rows(factors.tile, t, in_tile, rank, R),
            in_rows[:, None] & in_tile[None, :],
        )
        qt = tl.trans(q)
        tile_pointers = row_pointers + t.to(tl.int64)[None, :] * data.tile_stride
        block = row_index, t, inside
        if layout.gram:
            sq = select_columns(q, left, R, real) * select_columns(q, right, R, real)
            sq = round_to_tf32(sq) if real == tl.float32 else sq
        if layout.signal:
            rows_of_tile = load_rows(scales.signal_tile, t, in_tile, scales.signal_rank, RS)
            signal_q = tl.trans(rows_of_tile)
        for o in tl.range(begin, end, num_stages=layout.pipeline_stages):
            p, by, weight = tl.load(factors.outer + o * width + r), 1.0, 1.0
            offset = tl.multiple_of(tl.load(data.offsets + o), divisor)
            x = tl.load(tile_pointers + offset, mask=inside, other=0).to(real)
            x = view_entries(x, view, layout)
            e = x - matrix_product(row_factors * p[None, :], qt, real)
            if layout.scaled:
                by = inverse_scales(
                    scales, signal_a, signal_q, block, o, own_outer_index, inputs.parameters, layout
                )
            if layout.mode_weights:
                weight = mode_product(weights, block, o, own_outer_index, 0.0, layout.per_own_index)
            if layout.entry_weights:
                weight_pointers = (
                    weights.array
                    + row_index.to(tl.int64)[:, None] * weights.row_stride
                    + own_index * weights.own_stride
                )
                weight_pointers += t.to(tl.int64)[None, :] * weights.tile_stride
                weight_pointers += tl.load(weights.offsets + o)
                weight = tl.load(weight_pointers, mask=inside, other=0).to(real)
            value, slope, curve = majorize(e, by, weight, inputs.parameters, formula, layout)
            v += tl.sum(value, 1).to(tl.float64)
            if layout.gradient:
                g += contract_slopes(slope, q, real, layout.split_slopes) * p[None, :]
            if layout.gram:
                sp = tl.load(factors.outer + o * width + R + s)
                h += contract_curvatures(curve, sq, real) * sp[None, :]
        padding = tl.maximum(tile * layout.tile_block + layout.tile_block - inner, 0)
        padding_count += padding * (end - begin)  # residuals of 0 outside
    if not layout.weighted:
        v -= padding_count * value_at_zero(inputs.parameters, formula, layout)
    h *= GRAM_INFLATION if real == tl.float32 else 1.0
    _write_sums(sums, factors, (g, h, v), (s, left, right), a, first, rows, own, rank, layout)
