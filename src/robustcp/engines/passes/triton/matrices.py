# mypy: ignore-errors
"""Blocks of rows of factors, and products of blocks on the matrix units.

In single precision the matrix units take 11 bits of a number (TF32), so blocks are split in two
such parts, or rounded where that does no harm; see `pass_kernel`.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def round_to_tf32(x):
    """The nearest numbers with the 11 bits that the matrix units take."""
    bits = (x.to(tl.uint32, bitcast=True) + 0x1000) & 0xFFFFE000
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def matrix_product(left, right, real: tl.constexpr):
    """A matrix product of full precision."""
    if real == tl.float32:
        high, top = round_to_tf32(left), round_to_tf32(right)
        product = tl.dot(left - high, top, input_precision="tf32")
        product = tl.dot(high, right - top, product, input_precision="tf32")
        product = tl.dot(high, top, product, input_precision="tf32")
    else:
        product = tl.dot(left, right, input_precision="ieee", out_dtype=real)
    return product


@triton.jit
def contract_slopes(slope, q, real: tl.constexpr, split_slopes: tl.constexpr):
    """Slopes times the rows of a tile; slopes are rounded unless they are split."""
    if real == tl.float32:
        high, top = round_to_tf32(slope), round_to_tf32(q)
        product = tl.dot(high, q - top, input_precision="tf32")
        product = tl.dot(high, top, product, input_precision="tf32")
        if split_slopes:
            product = tl.dot(slope - high, top, product, input_precision="tf32")
    else:
        product = tl.dot(slope, q, input_precision="ieee", out_dtype=real)
    return product


@triton.jit
def contract_curvatures(curve, sq, real: tl.constexpr):
    """Curvatures times the packed rows of a tile, which are rounded already."""
    if real == tl.float32:
        product = tl.dot(curve, sq, input_precision="tf32")
    else:
        product = tl.dot(curve, sq, input_precision="ieee", out_dtype=real)
    return product


@triton.jit
def select_columns(q, columns, size: tl.constexpr, real: tl.constexpr):
    """Some columns of a block of rows: a product with ones where they are."""
    ones = tl.where(tl.arange(0, size)[:, None] == columns[None, :], 1.0, 0.0).to(real)
    if real == tl.float32:
        high = round_to_tf32(q)
        selected = tl.dot(q - high, ones, input_precision="tf32")
        selected = tl.dot(high, ones, selected, input_precision="tf32")
    else:
        selected = tl.dot(q, ones, input_precision="ieee", out_dtype=real)
    return selected


@triton.jit
def load_rows(FACTOR, at, inside, rank, size: tl.constexpr):
    """Some rows of a factor, in `size` columns; zeros where there are none."""
    r = tl.arange(0, size)
    mask = inside[:, None] & (r < rank)[None, :]
    return tl.load(FACTOR + at[:, None] * rank + r[None, :], mask=mask, other=0.0)


@triton.jit
def load_packed_rows(FACTOR, at, inside, rank, left, right):
    """Products of pairs of columns of some rows of a factor."""
    start, mask = FACTOR + at[:, None] * rank, inside[:, None]
    first = tl.load(start + left[None, :], mask=mask, other=0.0)
    return first * tl.load(start + right[None, :], mask=mask, other=0.0)


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
