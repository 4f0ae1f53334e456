# mypy: ignore-errors
"""What Triton compiles for a GPU: one pass over a dense array, and small linear algebra.

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

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

from robustcp.losses import triton_functions
from robustcp.losses.formula import bind

#: By how much Gram matrices are raised where curvatures were cut to 11 bits.
GRAM_INFLATION = tl.constexpr(1 + 2.0**-11)


# Small parts of the pass


@triton.jit
def _round_to_tf32(x):
    """To the 11 bits that the matrix units take."""
    bits = (x.to(tl.uint32, bitcast=True) + 0x1000) & 0xFFFFE000
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _matrix_product(left, right, real: tl.constexpr):
    """A matrix product of full precision."""
    if real == tl.float32:
        high, top = _round_to_tf32(left), _round_to_tf32(right)
        product = tl.dot(left - high, top, input_precision="tf32")
        product = tl.dot(high, right - top, product, input_precision="tf32")
        product = tl.dot(high, top, product, input_precision="tf32")
    else:
        product = tl.dot(left, right, input_precision="ieee", out_dtype=real)
    return product


@triton.jit(do_not_specialize=["count", "second", "rank", "width"])
def khatri_rao_rows(
    FIRST,
    SECOND,
    LEFT,
    RIGHT,
    OUT,
    count,
    second,
    rank,
    width,
    R: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Rows of a Khatri-Rao product of two factors, and then the products of pairs of columns."""
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, column = k // width, k % width
    inside = row < count
    i = tl.load(LEFT + column, mask=inside, other=0)
    j = tl.load(RIGHT + column, mask=inside, other=0)
    first, last = row // second * rank, row % second * rank
    product = tl.load(FIRST + first + i, mask=inside) * tl.load(SECOND + last + i, mask=inside)
    second_product = tl.load(FIRST + first + j, mask=inside) * tl.load(
        SECOND + last + j, mask=inside
    )
    product = tl.where(column < R, tl.where(column < rank, product, 0.0), product * second_product)
    tl.store(OUT + row.to(tl.int64) * width + column, product, mask=inside)


@triton.jit
def _load_rows(FACTOR, at, inside, rank, R: tl.constexpr):
    """Some rows of a factor; zeros where there are none."""
    r = tl.arange(0, R)
    mask = inside[:, None] & (r < rank)[None, :]
    return tl.load(FACTOR + at[:, None] * rank + r[None, :], mask=mask, other=0.0)


@triton.jit
def _load_packed_rows(FACTOR, at, inside, rank, left, right):
    """Products of pairs of their columns."""
    start, mask = FACTOR + at[:, None] * rank, inside[:, None]
    first = tl.load(start + left[None, :], mask=mask, other=0.0)
    return first * tl.load(start + right[None, :], mask=mask, other=0.0)


@triton.jit
def _select_columns(q, columns, R: tl.constexpr, real: tl.constexpr):
    """Some columns of a block of rows: a product with ones where they are."""
    ones = tl.where(tl.arange(0, R)[:, None] == columns[None, :], 1.0, 0.0).to(real)
    if real == tl.float32:
        high = _round_to_tf32(q)
        selected = tl.dot(q - high, ones, input_precision="tf32")
        selected = tl.dot(high, ones, selected, input_precision="tf32")
    else:
        selected = tl.dot(q, ones, input_precision="ieee", out_dtype=real)
    return selected


@triton.jit
def _apply_view(
    x,
    unit,
    shrink,
    limit,
    wild,
    GAPS: tl.constexpr,
    SHRUNK: tl.constexpr,
    CUT: tl.constexpr,
):
    """Data as it is seen; see `View.apply`."""
    if SHRUNK > 0:
        x = x * unit
    if SHRUNK > 1:
        x = x * shrink
    if GAPS:
        x = tl.where(tl.abs(x) > wild, float("nan"), x)
        x = tl.where(x > limit, limit, tl.where(x < -limit, -limit, x))
    elif CUT:
        x = tl.maximum(tl.minimum(x, limit), -limit)
    return x


@triton.jit
def _majorize(
    e,
    by,
    weight,
    NUMBERS,
    FORMULA: tl.constexpr,
    FAST: tl.constexpr,
    GAPS: tl.constexpr,
    SCALED: tl.constexpr,
    WEIGHED: tl.constexpr,
):
    """Values, slopes and curvatures of residuals, in units of 1/by, times their weights."""
    n0, n1, n2 = tl.load(NUMBERS), tl.load(NUMBERS + 1), tl.load(NUMBERS + 2)
    n3, n4, n5 = tl.load(NUMBERS + 3), tl.load(NUMBERS + 4), tl.load(NUMBERS + 5)
    observed = e == e
    if GAPS:
        e = tl.where(observed, e, 0.0)
    if SCALED:
        e = e * by
    value, slope, curve = FORMULA(e, (n0, n1, n2, n3, n4, n5, tl.load(NUMBERS + 6)), FAST)
    if SCALED:
        slope, curve = slope * by, curve * by * by
    if WEIGHED:
        observed = observed & (weight != 0)
        value, slope, curve = value * weight, slope * weight, curve * weight
    if GAPS or WEIGHED:
        value, slope = tl.where(observed, value, 0.0), tl.where(observed, slope, 0.0)
        curve = tl.where(observed, curve, 0.0)
    return value, slope, curve


@triton.jit
def _outer_product(ROW, TILE, OUTER, at, t, inside, o, mine, outside, TURNED: tl.constexpr):
    """The products of numbers of rows, of a tile and of an outer index; another one outside."""
    row_values = tl.load(ROW + at[:, None] + 0 * t[None, :], mask=inside, other=outside)
    product = row_values * tl.load(TILE + t[None, :] + 0 * at[:, None], mask=inside, other=outside)
    product *= tl.load(OUTER + o)
    if TURNED:
        product *= tl.load(OUTER + mine)
    return product


@triton.jit
def _inverse_scales(
    ROW,
    TILE,
    OUTER,
    P,
    a,
    q,
    at,
    t,
    inside,
    o,
    mine,
    NUMBERS,
    real: tl.constexpr,
    RS: tl.constexpr,
    TURNED: tl.constexpr,
    SIGNAL: tl.constexpr,
    FLOORED: tl.constexpr,
):
    """Those of slabs, by signal, and with a floor; see `Scales`."""
    scale = _outer_product(ROW, TILE, OUTER, at, t, inside, o, mine, 1.0, TURNED)
    if SIGNAL:
        p = tl.load(P + o * RS + tl.arange(0, RS))
        size = tl.abs(_matrix_product(a * p[None, :], q, real))
        constant, linear = tl.load(NUMBERS + 12), tl.load(NUMBERS + 13)
        scale *= tl.sqrt((tl.load(NUMBERS + 14) * size + linear) * size + constant)
    if FLOORED:
        square = scale * scale
        scale = tl.sqrt(tl.sqrt(square * square + tl.load(NUMBERS + 11)))
    return 1.0 / scale


@triton.jit
def _value_at_zero(
    NUMBERS, FORMULA: tl.constexpr, FAST: tl.constexpr, BI: tl.constexpr, real: tl.constexpr
):
    """The value of residuals that are 0."""
    zeros = tl.zeros((BI,), real)
    value, _, _ = _majorize(zeros, 1.0, 1.0, NUMBERS, FORMULA, FAST, False, False, False)
    return value.to(tl.float64)


@triton.jit
def _write_sums(
    OUT,
    VALUES,
    A,
    g,
    h,
    v,
    a,
    first,
    rows,
    own,
    rank,
    packed,
    s,
    left,
    right,
    BI: tl.constexpr,
    R: tl.constexpr,
    GRADIENT: tl.constexpr,
    GRAM: tl.constexpr,
    TURNED: tl.constexpr,
):
    """Write the sums of a program: of each row, or of the own index, if turned."""
    block, part, own_index = tl.program_id(0), tl.program_id(1), tl.program_id(2) % own
    i, r = block * BI + tl.arange(0, BI), tl.arange(0, R)
    inside, columns = i < rows, rank + packed
    if TURNED:
        row = (part * tl.num_programs(0) + block) * own + own_index
        if GRADIENT:
            tl.store(OUT + row * columns + r, tl.sum(g * a, 0), mask=r < rank)
            tl.store(VALUES + row, tl.sum(tl.where(inside, v, 0.0), 0))
        if GRAM:
            h *= _load_packed_rows(A, first + i, inside, rank, left, right)
            tl.store(OUT + row * columns + rank + s, tl.sum(h, 0), mask=s < packed)
    else:
        row = part * rows + i
        to = OUT + row.to(tl.int64)[:, None] * columns
        if GRADIENT:
            tl.store(to + r[None, :], g, mask=inside[:, None] & (r < rank)[None, :])
            tl.store(VALUES + row, v, mask=inside)
        if GRAM:
            tl.store(to + rank + s[None, :], h, mask=inside[:, None] & (s < packed)[None, :])


@triton.jit
def _contract_slopes(slope, q, real: tl.constexpr, SPLIT: tl.constexpr):
    """Slopes times the rows of a tile."""
    if real == tl.float32:
        high, top = _round_to_tf32(slope), _round_to_tf32(q)
        product = tl.dot(high, q - top, input_precision="tf32")
        product = tl.dot(high, top, product, input_precision="tf32")
        if SPLIT:
            product = tl.dot(slope - high, top, product, input_precision="tf32")
    else:
        product = tl.dot(slope, q, input_precision="ieee", out_dtype=real)
    return product


@triton.jit
def _contract_curvatures(curve, sq, real: tl.constexpr):
    """Curvatures times the packed rows of a tile, which are rounded already."""
    if real == tl.float32:
        product = tl.dot(curve, sq, input_precision="tf32")
    else:
        product = tl.dot(curve, sq, input_precision="ieee", out_dtype=real)
    return product


@triton.jit(
    do_not_specialize=[
        "rows",
        "first",
        "inner",
        "outer",
        "own",
        "rank",
        "packed",
        "width",
        "signals",
        "own_stride",
        "weight_row",
        "weight_tile",
        "weight_own",
        "tiles_each",
        "outer_each",
        "splits",
        "column",
    ]
)
def pass_kernel(
    X,
    A,
    TURN,
    P,
    Q,
    LEFT,
    RIGHT,
    NUMBERS,
    PLACES,
    OUT,
    VALUES,
    ROW_WEIGHTS,
    TILE_WEIGHTS,
    OUTER_WEIGHTS,
    WEIGHTS,
    WEIGHT_PLACES,
    ROW_SCALES,
    TILE_SCALES,
    OUTER_SCALES,
    SIGNAL_A,
    SIGNAL_P,
    SIGNAL_Q,
    rows,
    first,
    inner,
    outer,
    own,
    rank,
    packed,
    width,
    signals,
    row_stride,
    tile_stride,
    own_stride,
    weight_row,
    weight_tile,
    weight_own,
    tiles_each,
    outer_each,
    splits,
    column,
    FORMULA: tl.constexpr,
    real: tl.constexpr,
    FAST: tl.constexpr,
    BI: tl.constexpr,
    BT: tl.constexpr,
    R: tl.constexpr,
    S: tl.constexpr,
    RS: tl.constexpr,
    ROWS_BY: tl.constexpr,
    ROW_BY: tl.constexpr,
    INNER_BY: tl.constexpr,
    PLACES_BY: tl.constexpr,
    GRADIENT: tl.constexpr,
    GRAM: tl.constexpr,
    TURNED: tl.constexpr,
    GAPS: tl.constexpr,
    SHRUNK: tl.constexpr,
    CUT: tl.constexpr,
    OUTER_WEIGHTED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    SCALED: tl.constexpr,
    FLOORED: tl.constexpr,
    SIGNAL: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The sums of one program; see `TritonPass` for what the arguments are.

    Sizes and strides come divided by a power of two that they are multiples of: the compiler then
    knows it, and reads several numbers at once.
    """
    rows, inner, program = rows * ROWS_BY, inner * INNER_BY, tl.program_id(2)
    chunk, own_index = program // own, program % own  # of packed columns; the own index, if turned
    i, part, own_outer_index = (
        tl.program_id(0) * BI + tl.arange(0, BI),
        tl.program_id(1),
        outer + own_index,
    )
    row_index, in_rows, own_range = first + i, i < rows, own_index + tl.arange(0, 1)
    a = _load_rows(A, row_index, in_rows, rank, R)
    row_factors = a * _load_rows(TURN, own_range, own_range >= 0, rank, R) if TURNED else a
    s, r = column + chunk * S + tl.arange(0, S), tl.arange(0, R)
    left, right = tl.load(LEFT + R + s), tl.load(RIGHT + R + s)  # beyond the last: the first
    g, h, v = tl.zeros((BI, R), real), tl.zeros((BI, S), real), tl.zeros((BI,), tl.float64)
    unit, shrink = tl.load(NUMBERS + 7), tl.load(NUMBERS + 8)
    limit, outlier_limit = tl.load(NUMBERS + 9), tl.load(NUMBERS + 10)
    data = X + row_index.to(tl.int64)[:, None] * (row_stride * ROW_BY)
    if TURNED:
        data += own_range.to(tl.int64)[:, None] * own_stride
    padding_count, signal_a, width = 0, 0.0, tl.zeros((), tl.int64) + width
    if SIGNAL:
        signal_a = _load_rows(SIGNAL_A, row_index, in_rows, signals, RS)
        signal_a *= (
            _load_rows(SIGNAL_P, outer + own_range, own_range >= 0, RS, RS) if TURNED else 1.0
        )
    begin, first_tile = part % splits * outer_each, part // splits * tiles_each
    end = tl.minimum(outer, begin + outer_each)
    for tile in range(first_tile, tl.minimum(tl.cdiv(inner, BT), first_tile + tiles_each)):
        t = tile * BT + tl.arange(0, BT)
        in_tile, signal_q = t < inner, 0.0
        q, inside = _load_rows(Q, t, in_tile, rank, R), in_rows[:, None] & in_tile[None, :]
        qt, tile_pointers = tl.trans(q), data + t.to(tl.int64)[None, :] * tile_stride
        if GRAM:
            sq = _select_columns(q, left, R, real) * _select_columns(q, right, R, real)
            sq = _round_to_tf32(sq) if real == tl.float32 else sq
        if SIGNAL:
            signal_q = tl.trans(_load_rows(SIGNAL_Q, t, in_tile, signals, RS))
        for o in tl.range(begin, end, num_stages=STAGES):
            p, by, weight = tl.load(P + o * width + r), 1.0, 1.0
            offset = tl.multiple_of(tl.load(PLACES + o), PLACES_BY)
            x = tl.load(tile_pointers + offset, mask=inside, other=0).to(real)
            x = _apply_view(x, unit, shrink, limit, outlier_limit, GAPS, SHRUNK, CUT)
            e = x - _matrix_product(row_factors * p[None, :], qt, real)
            if SCALED:
                by = _inverse_scales(
                    ROW_SCALES,
                    TILE_SCALES,
                    OUTER_SCALES,
                    SIGNAL_P,
                    signal_a,
                    signal_q,
                    row_index,
                    t,
                    inside,
                    o,
                    own_outer_index,
                    NUMBERS,
                    real,
                    RS,
                    TURNED,
                    SIGNAL,
                    FLOORED,
                )
            if OUTER_WEIGHTED:
                weight = _outer_product(
                    ROW_WEIGHTS,
                    TILE_WEIGHTS,
                    OUTER_WEIGHTS,
                    row_index,
                    t,
                    inside,
                    o,
                    own_outer_index,
                    0.0,
                    TURNED,
                )
            if WEIGHTED:
                weight_pointers = (
                    WEIGHTS + row_index.to(tl.int64)[:, None] * weight_row + own_index * weight_own
                )
                weight_pointers += t.to(tl.int64)[None, :] * weight_tile + tl.load(
                    WEIGHT_PLACES + o
                )
                weight = tl.load(weight_pointers, mask=inside, other=0).to(real)
            value, slope, curve = _majorize(
                e, by, weight, NUMBERS, FORMULA, FAST, GAPS, SCALED, OUTER_WEIGHTED or WEIGHTED
            )
            v += tl.sum(value, 1).to(tl.float64)
            if GRADIENT:
                g += _contract_slopes(slope, q, real, SPLIT) * p[None, :]
            if GRAM:
                h += _contract_curvatures(curve, sq, real) * tl.load(P + o * width + R + s)[None, :]
        padding_count += tl.maximum(tile * BT + BT - inner, 0) * (
            end - begin
        )  # residuals of 0 outside
    if not (OUTER_WEIGHTED or WEIGHTED):
        v -= padding_count * _value_at_zero(NUMBERS, FORMULA, FAST, BI, real)
    h *= GRAM_INFLATION if real == tl.float32 else 1.0
    _write_sums(
        OUT,
        VALUES,
        A,
        g,
        h,
        v,
        a,
        first,
        rows,
        own,
        rank,
        packed,
        s,
        left,
        right,
        BI,
        R,
        GRADIENT,
        GRAM,
        TURNED,
    )


# Linear algebra: each program solves for one row of a factor.


@triton.jit
def _solve_gauss_jordan(G, b, R: tl.constexpr):
    """The solution of G u = b for a positive definite matrix, by Gauss and Jordan."""
    k = tl.arange(0, R)
    for step in range(R):
        row = tl.sum(tl.where(k[:, None] == step, G, 0.0), 0)
        column = tl.sum(tl.where(k[None, :] == step, G, 0.0), 1)
        pivot = tl.sum(tl.where(k == step, row, 0.0), 0)
        ratio = tl.where(k == step, 0.0, column / pivot)
        b -= ratio * tl.sum(tl.where(k == step, b, 0.0), 0)
        G -= ratio[:, None] * row[None, :]
    return b / tl.sum(tl.where(k[:, None] == k[None, :], G, 0.0), 1)


@triton.jit(do_not_specialize=["gram_stride", "gradient_stride", "rank"])
def solve_rows(
    GRAMS,
    GRADIENTS,
    ROWS,
    NUMBERS,
    OUT,
    gram_stride,
    gradient_stride,
    rank,
    R: tl.constexpr,
    SHARED: tl.constexpr,
    NONNEGATIVE: tl.constexpr,
):
    """A row of `Algebra.solved`, or of `Algebra.nonnegative`."""
    row = tl.program_id(0).to(tl.int64)
    mu, lift = tl.load(NUMBERS), tl.load(NUMBERS + 1)
    k = tl.arange(0, R)
    valid, square = k < rank, (k < rank)[:, None] & (k < rank)[None, :]
    low, high = tl.minimum(k[:, None], k[None, :]), tl.maximum(k[:, None], k[None, :])
    packed = low * (2 * rank - low - 1) // 2 + high
    G = tl.load(GRAMS + row * gram_stride + packed, mask=square, other=0.0)
    u = tl.load(ROWS + row * rank + k, mask=valid, other=0.0)
    gradient = tl.load(GRADIENTS + row * gradient_stride + k, mask=valid, other=0.0) - mu * u
    eye = k[:, None] == k[None, :]
    diagonal = tl.sum(tl.where(eye, G, 0.0), 1)
    raised = lift * diagonal + mu
    raised = tl.where(diagonal + raised <= 0, 1.0, raised)
    G += tl.where(eye, raised[:, None], 0.0)  # 1 for columns beyond the last
    if NONNEGATIVE:
        b = gradient + tl.sum(tl.where(square, G, 0.0) * u[None, :], 1)
        slack = 2 * lift * tl.max(tl.abs(b), 0)
        positive = u > 0
        new = u
        fewest, patience, iterations_left = R + 1, 3, 10 + 4 * rank * rank
        while iterations_left > 0:
            both = positive[:, None] & positive[None, :]
            masked = tl.where(both, G, tl.where(eye, 1.0, 0.0))
            new = _solve_gauss_jordan(masked, tl.where(positive, b, 0.0), R)
            y = tl.sum(G * new[None, :], 1) - b  # the gradient: >= 0 where u is 0
            violated = valid & ((positive & (new < 0)) | ((positive == 0) & (y < -slack)))
            count = tl.sum(violated.to(tl.int32), 0)
            patience = tl.where(count < fewest, 3, patience - 1)
            fewest = tl.minimum(count, fewest)
            last = tl.max(tl.where(violated, k, -1), 0)
            change = tl.where(patience >= 0, violated, violated & (k == last))
            positive = positive ^ change
            iterations_left = tl.where(count == 0, 0, iterations_left - 1)
        new = tl.maximum(new, 0.0)
    else:
        new = u + _solve_gauss_jordan(G, gradient, R)
    if not SHARED:
        new = tl.where(tl.sum(diagonal, 0) == 0, u, new)
    tl.store(OUT + row * rank + k, new, mask=valid)


@cache
def compile_formula(function: Callable[..., Any]) -> Any:
    """The formula of a loss, as the kernel calls it."""
    return triton.jit(bind(function, {**vars(triton_functions), "tl": tl}))


#: Larger ranks go through the array library.
MAX_RANK = 32
#: Triton's names of the types of factors.
TRITON_TYPES = {"torch.float32": tl.float32, "torch.float64": tl.float64}


def block_size(size: int) -> int:
    """The least power of two that holds a size, and that matrix units can work with."""
    return max(16, 1 << (size - 1).bit_length())


def on_device(device: Any) -> AbstractContextManager[Any]:
    """Kernels that are launched here run where their arrays are, whichever GPU is the current."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def is_interpreted() -> bool:
    """Whether kernels run on the host, in Triton's interpreter."""
    return not isinstance(pass_kernel, triton.runtime.JITFunction)
