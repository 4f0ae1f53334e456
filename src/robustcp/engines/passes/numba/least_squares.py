# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Least squares: contractions of the data with factors, and sweeps over small data."""

import math

import numpy as np
from numba import njit

from robustcp.engines.passes.numba.intrinsics import (
    call,
    pointer,
    product,
    shift,
    transposed_left_product,
)
from robustcp.engines.passes.numba.runtime import (
    INTS,
    REALS,
    Struct,
    c_function,
    cached_jit,
    integer_fields,
    internal_jit,
)
from robustcp.engines.passes.numba.sweeps import Turns, khatri_rao
from robustcp.losses.numba_helpers import INLINE


class LeastSquaresData(Struct):
    """What does not change between sweeps of least squares.

    Attributes
    ----------
    gemm, matrix, squares : addresses: BLAS's product, the matrix, and two numbers, half the sum of
        its squares and the least value that is accurate
    rows, columns, split, order : of the matrix; see `SweepData`
    """

    _fields_ = integer_fields("gemm matrix squares rows columns split order")


@internal_jit
def _contract_side(data, offsets, own_rows, rank, stack, lines, K):
    """The matrix times the Khatri-Rao product of the columns' factors, or its transpose times that
    of the rows'; into `lines`. K has room for the Khatri-Rao product."""
    first, last = (data.split, data.order) if own_rows else (0, data.split)
    khatri_rao(stack, rank, offsets, first, last, K)
    X, rows, columns = pointer(data.matrix, stack), data.rows, data.columns
    if own_rows:
        product(data.gemm, X, K, lines, rows, columns, rank, False)
    else:
        transposed_left_product(data.gemm, X, K, lines, columns, rows, rank, False)


@internal_jit
def _collapse(lines, left, before, count, right, inner, rank, rows):
    """Contract the other modes of a side away, as `collapse_lines`."""
    for j in range(count * rank):
        rows[j] = 0
    k = 0
    for p in range(before):
        for i in range(count):
            for q in range(inner):
                for r in range(rank):
                    rows[i * rank + r] += left[p * rank + r] * right[q * rank + r] * lines[k]
                    k += 1


@internal_jit
def _shared_gram(offsets, order, n, rank, stack, gram):
    """The product of the Gram matrices of all factors but that of mode n, packed."""
    p = 0
    for a in range(rank):
        for b in range(a, rank):
            gram[p] = 1
            for m in range(order):
                if m != n:
                    total = 0.0
                    for i in range(offsets[m], offsets[m + 1]):
                        total += stack[i * rank + a] * stack[i * rank + b]
                    gram[p] *= total
            p += 1


@internal_jit
def _least_squares_equations(data, turns, offsets, n, stack, gradient, gram, work):
    """The normal equations of mode n for half the square.

    Returns the value without the half sum of squares of the data. `work` begins with a contraction
    of the matrix, which is computed only if it is not there already.
    """
    rank, split, order, value = turns.rank, data.split, data.order, 0.0
    own_rows = n < split
    side, sides = 1 if own_rows else 2, max(data.rows, data.columns)
    K = shift(work, sides * rank)
    if turns.contracted != side:
        _contract_side(data, offsets, own_rows, rank, stack, work, K)
        turns.contracted = side
    first, last = (0, split) if own_rows else (split, order)
    before = khatri_rao(stack, rank, offsets, first, n, K)
    right = shift(K, before * rank)
    inner = khatri_rao(stack, rank, offsets, n + 1, last, right)
    begin, count = offsets[n], offsets[n + 1] - offsets[n]
    _collapse(work, K, before, count, right, inner, rank, gradient)
    _shared_gram(offsets, order, n, rank, stack, gram)
    for i in range(begin, begin + count):
        fitted, p = shift(work, 3 * sides * rank), 0
        for r in range(rank):
            fitted[r] = 0
        for a in range(rank):
            fitted[a] += stack[i * rank + a] * gram[p]
            p += 1
            for b in range(a + 1, rank):
                fitted[b] += stack[i * rank + a] * gram[p]
                fitted[a] += stack[i * rank + b] * gram[p]
                p += 1
        own = shift(gradient, (i - begin) * rank)
        for r in range(rank):
            value += (0.5 * fitted[r] - own[r]) * stack[i * rank + r]
            own[r] -= fitted[r]
    return value


@c_function(LeastSquaresData, Turns, INTS, INTS, INTS, *[REALS] * 5)
def least_squares_sweep(
    data, turns, modes, solvers, offsets, parameters, stack, gradient, gram, work
):
    """As `formula_sweep`, for half the square. The modes of a side share a contraction.

    All rows share one Gram matrix. Where the value has lost too many digits, NaN is returned.
    """
    rank = turns.rank
    for t in range(turns.count):
        n = modes[t]
        if t > 0 or turns.known == 0:
            _least_squares_equations(data, turns, offsets, n, stack, gradient, gram, work)
        rows, own = offsets[n + 1] - offsets[n], shift(stack, offsets[n] * rank)
        call(solvers[t], (gram, gradient, own, parameters, rows > 1, 0, rows, rank, own))
        if turns.contracted != (1 if n < data.split else 2):
            turns.contracted = 0
    if turns.last < 0:
        return 0.0
    squares = pointer(data.squares, stack)
    value = squares[0] + _least_squares_equations(
        data, turns, offsets, turns.last, stack, gradient, gram, work
    )
    return value if value >= squares[1] else math.nan


@njit(**INLINE)
def _prefetch(x):
    """Read a line from its beginning to its end: that brings it to the cache fastest by far."""
    total = x[0] * 0
    for k in range(x.shape[0]):
        total += x[k]
    return total


@cached_jit
def contract_rows(X, K, lines, block):
    """lines = X K, by blocks that are in the cache when they are multiplied."""
    rows, columns = X.shape
    step, checksum = max(1, block // columns), 0.0
    small = rows <= 4 * step  # it may be in the cache already
    for a in range(0, rows, step):
        b = min(a + step, rows)
        if not small:
            checksum += _prefetch(X[a:b].reshape(-1))
        np.dot(X[a:b], K, lines[a:b])
    return checksum


@cached_jit
def contract_columns(X, U, lines, block):
    """lines = X' U, by blocks that are in the cache when they are multiplied."""
    rows, columns = X.shape
    step, checksum = max(1, block // columns), 0.0
    small = rows <= 4 * step
    part = np.empty_like(lines)
    lines[:] = 0
    for a in range(0, rows, step):
        b = min(a + step, rows)
        if not small:
            checksum += _prefetch(X[a:b].reshape(-1))
        np.dot(X[a:b].T, U[a:b], part)
        lines += part
    return checksum


@cached_jit
def collapse_lines(lines, left, count, right):
    """Contract the other modes of a side away: row i is sum_pq left[p] right[q] lines[p, i, q]."""
    rank, inner = lines.shape[1], right.shape[0]
    rows = np.zeros((count, rank), lines.dtype)
    k = 0
    for p in range(left.shape[0]):
        for i in range(count):
            for q in range(inner):
                for r in range(rank):
                    rows[i, r] += left[p, r] * right[q, r] * lines[k, r]
                k += 1
    return rows
