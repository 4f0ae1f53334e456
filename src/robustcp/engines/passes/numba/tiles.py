# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The pass over a tile of a matrix: the model, the loss, and what it adds to normal equations."""

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
from robustcp.engines.passes.numba.runtime import (
    REALS,
    Struct,
    c_function,
    integer_fields,
    internal_jit,
)

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

    _fields_ = integer_fields("loss preparation restoration gemm parameters block_entries")


class Entries(Struct):
    """Where the entries of a tile are. Steps are in bytes, so that one code does for all types.

    Attributes
    ----------
    data, row_step, entry_step : where the data begins; from row to row; from entry to entry
    weights, sides : where the weights, and the sides on which entries are censored, begin, each in
        one line; a loss without does not look
    scales, scale_row_step : where inverse scales begin, 0 for none; from row to row
    """

    _fields_ = integer_fields("data row_step entry_step weights sides scales scale_row_step")


class Tile(Struct):
    """A tile of the matrix, and the factors of a mode's normal equations.

    One side of the matrix, rows or columns, runs over left x own x right: the factors before the
    mode, of the mode, and after it, multiplied out. The other side runs over `other`.

    Attributes
    ----------
    row, column, rows, columns : where the tile begins in the matrix, and its size
    own_rows : 1 if the mode is on the side of the rows, else 0
    first_own : the row of the own mode with which the normal equations begin
    count, inner : the rows of `own` and of `right`
    rank, packed : columns of factors and of packed Gram matrices; 0 if only values are wanted
    left, own, right, other : where the factors are
    """

    _fields_ = integer_fields(
        "row column rows columns own_rows first_own count inner rank packed left own right other"
    )


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
        first = (row + i) * columns
        lines_read = functions.parameters, entries.weights + first * width, entries.sides + first
        total += call(functions.loss, (data, slope, curvature, *lines_read, size))
        if functions.restoration != 0:
            call(functions.restoration, (data, slope, curvature, u, 0, size))
    return total


@c_function(Functions, Entries, Tile, REALS, REALS)
def tile_pass(functions, entries, tile, gradient, gram):
    """Add a tile's part of the normal equations of a mode; returns the sum of the values.

    If `packed` is 0 that is all. Rows are done some at a time. Their lines of both sides make the
    model; what slopes and curvatures are multiplied by is the other side.
    """
    real, gemm, own_rows = carray(gradient, 1).dtype, functions.gemm, tile.own_rows != 0
    row, column, rows, columns = tile.row, tile.column, tile.rows, tile.columns
    rank, packed, line = tile.rank, tile.packed, max(columns, STANDARDIZED_ENTRIES)
    step = max(1, min(rows, functions.block_entries // columns))
    own_lines, other_lines = (step, columns) if own_rows else (columns, step)
    first_line, right_rows = (row, rows) if own_rows else (column, columns)
    right_rows, entry_count = min(tile.inner, right_rows), step * columns
    pair_lines = 1 + right_rows + other_lines
    work = np.empty(
        2 * entry_count + line + own_lines * (2 * rank + packed) + pair_lines * packed, real
    )
    s = pointer(address(work), gradient)  # model, then slopes
    w = shift(s, entry_count)  # curvatures
    y = shift(w, entry_count)  # a line for data that is not read where it is
    u = shift(y, line)  # the own side's lines
    v = shift(u, own_lines * rank)  # slopes times the other side
    z = shift(v, own_lines * rank)  # curvatures times products of its columns
    pairs = shift(z, own_lines * packed)  # see `_accumulate_lines`
    S = shift(pairs, (right_rows + 1) * packed)  # products of the other side's columns
    k = shift(pointer(tile.other, gradient), (column if own_rows else tile.row) * rank)
    right = pointer(tile.right, gradient)
    if packed:
        _pair_products(right, tile.inner, rank, first_line, right_rows, shift(pairs, packed))
    if packed and own_rows:
        _pair_products(k, columns, rank, 0, columns, S)
    if not own_rows:
        _khatri_rao_lines(tile, column, columns, u)
    total = 0.0
    for a in range(0, rows, step):
        size = min(step, rows - a)
        if own_rows:
            _khatri_rao_lines(tile, row + a, size, u)
            transposed_right_product(gemm, u, k, s, size, rank, columns, False)
        else:
            transposed_right_product(gemm, shift(k, a * rank), u, s, size, rank, columns, False)
        total += _majorize_rows(functions, entries, a, size, columns, s, w, y)
        if packed and own_rows:
            product(gemm, s, k, v, size, columns, rank, False)
            product(gemm, w, S, z, size, columns, packed, False)
            _accumulate_lines(tile, row, row + a, size, pairs, v, z, gradient, gram)
        elif packed:
            other = shift(k, a * rank)
            _pair_products(other, size, rank, 0, size, S)
            transposed_left_product(gemm, s, other, v, columns, size, rank, a > 0)
            transposed_left_product(gemm, w, S, z, columns, size, packed, a > 0)
    if packed and not own_rows:
        _accumulate_lines(tile, column, column, columns, pairs, v, z, gradient, gram)
    keep_alive(work)
    return total
