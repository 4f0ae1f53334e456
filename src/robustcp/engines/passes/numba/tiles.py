# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The pass over a tile of a matrix: the model, the loss, and what it adds to normal equations."""

from ctypes import c_int64

import numpy as np
from numba import carray

from robustcp.engines.passes.numba.intrinsics import (
    address,
    call,
    keep_alive,
    pointer,
    product,
    shift,
    transposed_left_product,
    transposed_right_product,
)
from robustcp.engines.passes.numba.runtime import REALS, Struct, c_function, internal_jit

#: Entries that are standardized at once, so that the first level of the cache holds them.
STANDARDIZED_ENTRIES = 1 << 10


class Functions(Struct):
    """What a pass calls, by address; see `lines.py`, and `gemm`.

    Attributes
    ----------
    loss, preparation, restoration : the loss of a line; what is done before and after it, or 0
    gemm : BLAS's product of matrices
    parameters : where the parameters of the loss are
    block_entries : how many entries are done at once, so that nothing leaves the cache
    """

    _fields_ = [  # noqa: RUF012
        (name, c_int64)
        for name in ("loss", "preparation", "restoration", "gemm", "parameters", "block_entries")
    ]


class Entries(Struct):
    """Where the entries of a tile are. Steps are in bytes, so that one code does for all types.

    Attributes
    ----------
    data, row_step, entry_step : where the data begins; from row to row; from entry to entry
    weights : where the weights begin, in one line; a loss without does not look
    scales, scale_row_step : where inverse scales begin, 0 for none; from row to row
    """

    _fields_ = [  # noqa: RUF012
        (name, c_int64)
        for name in ("data", "row_step", "entry_step", "weights", "scales", "scale_row_step")
    ]


class Tile(Struct):
    """A tile of the matrix, and the factors of a mode's normal equations.

    One side of the matrix, rows or columns, runs over left x own x right: the factors before the
    mode, of the mode, and after it, multiplied out. The other side runs over `other`.

    Attributes
    ----------
    row, column, rows, columns : where the tile begins in the matrix, and its size
    first_own : the row of the own mode with which the normal equations begin
    count, inner : the rows of `own` and of `right`
    rank, packed : columns of factors and of packed Gram matrices; 0 if only values are wanted
    left, own, right, other : where the factors are
    """

    _fields_ = [  # noqa: RUF012
        (name, c_int64)
        for name in (
            *("row", "column", "rows", "columns", "first_own", "count", "inner", "rank", "packed"),
            *("left", "own", "right", "other"),
        )
    ]


@internal_jit
def _pair_products(U, size, rank, first, count, S):
    """Products of pairs of columns, packed as in `robustcp.engines.normal_equations`, into S.

    Of `count` rows of U from `first` on; after its last comes row 0 again.
    """
    p = 0
    for i in range(count):
        k = (first + i) % size * rank
        for a in range(rank):
            for b in range(a, rank):
                S[p + b - a] = U[k + a] * U[k + b]
            p += rank - a


@internal_jit
def _khatri_rao_lines(tile, first, lines, U):
    """Lines of the own side's Khatri-Rao product from `first` on, into U."""
    rank, count, inner = tile.rank, tile.count, tile.inner
    left, own, right = pointer(tile.left, U), pointer(tile.own, U), pointer(tile.right, U)
    q, i, p = first % inner, (first // inner) % count, first // (inner * count)
    for k in range(lines):
        for r in range(rank):
            U[k * rank + r] = left[p * rank + r] * right[q * rank + r] * own[i * rank + r]
        q += 1
        if q == inner:
            q, i = 0, i + 1
            if i == count:
                i, p = 0, p + 1


@internal_jit
def _accumulate_lines(tile, begin, first, lines, pairs, Y, Z, gradient, gram):
    """Add lines of the own side, already multiplied by the other side, to the rows of the mode.

    Y holds the slopes times the other factors from line `first` on, Z the curvatures times the
    products of their columns. `pairs` has room for a row of products of left's columns, followed
    by those of right's columns, from line `begin` on.
    """
    rank, packed, count, inner = tile.rank, tile.packed, tile.count, tile.inner
    left, right, low = pointer(tile.left, Y), pointer(tile.right, Y), tile.first_own
    left_pairs, right_pairs = pairs, shift(pairs, packed)
    q, i, p = first % inner, (first // inner) % count, first // (inner * count)
    pair_row, left_row = (first - begin) % inner, -1
    for k in range(lines):
        if p != left_row:
            _pair_products(left, p + 1, rank, p, 1, left_pairs)
            left_row = p
        g, G = (i - low) * rank, (i - low) * packed
        for a in range(rank):
            gradient[g + a] += left[p * rank + a] * right[q * rank + a] * Y[k * rank + a]
        for a in range(packed):
            gram[G + a] += left_pairs[a] * right_pairs[pair_row * packed + a] * Z[k * packed + a]
        q, pair_row = q + 1, pair_row + 1
        if pair_row == inner:
            pair_row = 0
        if q == inner:
            q, i = 0, i + 1
            if i == count:
                i, p = 0, p + 1


@internal_jit
def _majorize_rows(functions, entries, row, rows, columns, s, w, y):
    """The loss on some rows of a tile; returns the sum of its values.

    s holds the model and gets slopes, w curvatures; y is a line for data that is not read where it
    is. Rows are done one at a time, or as one line if they follow each other; as short lines if
    there is anything to do beside the loss.
    """
    width = carray(s, 1).itemsize
    x_step, h, h_step = entries.row_step, entries.scales, entries.scale_row_step
    lines, preparation = 1, functions.preparation
    if x_step == columns * entries.entry_step and (h == 0 or h_step == columns * width):
        lines = rows if preparation == 0 else max(1, min(rows, STANDARDIZED_ENTRIES // columns))
    total = 0.0
    for i in range(0, rows, lines):
        size, offset = min(lines, rows - i) * columns, i * columns
        slope, curvature = shift(s, offset), shift(w, offset)
        data, u = entries.data + (row + i) * x_step, h + (row + i) * h_step
        if functions.preparation != 0:  # read again: known, it would make a loop for each case
            call(functions.preparation, (data, slope, y, u, 0, size))
            data = address(y)
        weight = entries.weights + (row + i) * columns * width
        total += call(functions.loss, (data, slope, curvature, functions.parameters, weight, size))
        if functions.restoration != 0:
            call(functions.restoration, (data, slope, curvature, u, 0, size))
    return total


@c_function(Functions, Entries, Tile, REALS, REALS)
def rows_tile(functions, entries, tile, gradient, gram):
    """Add a tile's part of the normal equations of a mode among those of the rows.

    Returns the sum of the values; if `packed` is 0 that is all.
    """
    real, gemm = carray(gradient, 1).dtype, functions.gemm
    row, rows, columns, rank, packed = tile.row, tile.rows, tile.columns, tile.rank, tile.packed
    step = max(1, min(rows, functions.block_entries // columns))
    right_rows, line = min(tile.inner, rows) if packed else 0, max(columns, STANDARDIZED_ENTRIES)
    entry_count, pair_columns = step * columns, columns if packed else 0
    work = np.empty(
        2 * entry_count
        + line
        + step * (2 * rank + packed)
        + (pair_columns + right_rows + 1) * packed,
        real,
    )
    s = pointer(address(work), gradient)
    w = shift(s, entry_count)
    y = shift(w, entry_count)
    u = shift(y, line)
    v = shift(u, step * rank)
    z = shift(v, step * rank)
    pairs = shift(z, step * packed)
    S = shift(pairs, (right_rows + 1) * packed)
    k = shift(pointer(tile.other, gradient), tile.column * rank)
    if packed:
        right = pointer(tile.right, gradient)
        _pair_products(k, columns, rank, 0, columns, S)
        _pair_products(right, tile.inner, rank, row, right_rows, shift(pairs, packed))
    total = 0.0
    for a in range(0, rows, step):
        size = min(step, rows - a)
        _khatri_rao_lines(tile, row + a, size, u)
        transposed_right_product(gemm, u, k, s, size, rank, columns, False)
        total += _majorize_rows(functions, entries, a, size, columns, s, w, y)
        if packed:
            product(gemm, s, k, v, size, columns, rank, False)
            product(gemm, w, S, z, size, columns, packed, False)
            _accumulate_lines(tile, row, row + a, size, pairs, v, z, gradient, gram)
    keep_alive(work)
    return total


@c_function(Functions, Entries, Tile, REALS, REALS)
def columns_tile(functions, entries, tile, gradient, gram):
    """As `rows_tile`, for a mode among those of the columns."""
    real, gemm = carray(gradient, 1).dtype, functions.gemm
    rows, column, columns = tile.rows, tile.column, tile.columns
    rank, packed = tile.rank, tile.packed
    step = max(1, min(rows, functions.block_entries // columns))
    right_rows, line = min(tile.inner, columns), max(columns, STANDARDIZED_ENTRIES)
    entry_count = step * columns
    work = np.empty(
        2 * entry_count + line + columns * (2 * rank + packed) + (step + right_rows + 1) * packed,
        real,
    )
    s = pointer(address(work), gradient)
    w = shift(s, entry_count)
    y = shift(w, entry_count)
    u = shift(y, line)
    v = shift(u, columns * rank)
    z = shift(v, columns * rank)
    pairs = shift(z, columns * packed)
    S = shift(pairs, (right_rows + 1) * packed)
    right = pointer(tile.right, gradient)
    _pair_products(right, tile.inner, rank, column, right_rows, shift(pairs, packed))
    _khatri_rao_lines(tile, column, columns, u)
    total = 0.0
    for a in range(0, rows, step):
        size = min(step, rows - a)
        k = shift(pointer(tile.other, gradient), (tile.row + a) * rank)
        transposed_right_product(gemm, k, u, s, size, rank, columns, False)
        total += _majorize_rows(functions, entries, a, size, columns, s, w, y)
        _pair_products(k, size, rank, 0, size, S)
        transposed_left_product(gemm, s, k, v, columns, size, rank, a > 0)
        transposed_left_product(gemm, w, S, z, columns, size, packed, a > 0)
    _accumulate_lines(tile, column, column, columns, pairs, v, z, gradient, gram)
    keep_alive(work)
    return total
