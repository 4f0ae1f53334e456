# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Least squares: contractions of the data with factors, passes and whole sweeps over small data.

Stacked factors are in storage order; begins are the first rows of all modes there, and the end.
"""

import numpy as np
from numba import njit

from robustcp.engines.passes.numba.intrinsics import (
    address,
    call,
    keep_alive,
    pointer,
    product,
    transposed_left_product,
)
from robustcp.engines.passes.numba.runtime import cached_jit, internal_jit
from robustcp.engines.passes.numba.sweeps import khatri_rao
from robustcp.losses.numba_helpers import INLINE


@internal_jit
def _khatri_rao(stack, begins, first, last):
    """The Khatri-Rao product of modes first to last."""
    rank, count = stack.shape[1], 1
    for m in range(first, last):
        count *= begins[m + 1] - begins[m]
    K = np.empty((count, rank), stack.dtype)
    factors, offsets = pointer(address(stack), stack), pointer(address(begins), begins)
    khatri_rao(factors, rank, offsets, first, last, pointer(address(K), K))
    keep_alive(stack)
    keep_alive(begins)
    return K


@internal_jit
def _contract_side(gemm, X, stack, begins, split, own_rows):
    """X times the Khatri-Rao product of the columns' factors, or X' times that of the rows'."""
    (rows, columns), rank = X.shape, stack.shape[1]
    first, last = (split, begins.shape[0] - 1) if own_rows else (0, split)
    K = _khatri_rao(stack, begins, first, last)
    lines = np.empty((rows if own_rows else columns, rank), X.dtype)
    x, k, y = pointer(address(X), X), pointer(address(K), K), pointer(address(lines), lines)
    if own_rows:
        product(gemm, x, k, y, rows, columns, rank, False)
    else:
        transposed_left_product(gemm, x, k, y, columns, rows, rank, False)
    keep_alive(X)
    keep_alive(K)
    return lines


@internal_jit
def _least_squares_equations(lines, stack, begins, split, n, gradient, gram):
    """The normal equations of mode n for half the square, from what `_contract_side` returns.

    Returns the value without the half sum of squares of the data.
    """
    order, rank, value = begins.shape[0] - 1, stack.shape[1], 0.0
    product = np.ones((rank, rank), stack.dtype)
    for m in range(order):
        if m != n:
            for a in range(rank):
                for b in range(a, rank):
                    total = 0.0
                    for i in range(begins[m], begins[m + 1]):
                        total += stack[i, a] * stack[i, b]
                    product[a, b] *= total
    p = 0
    for a in range(rank):
        for b in range(a, rank):
            product[b, a] = product[a, b]
            gram[0, p] = product[a, b]
            p += 1
    first, last = (0, split) if n < split else (split, order)
    left = _khatri_rao(stack, begins, first, n)
    right = _khatri_rao(stack, begins, n + 1, last)
    begin, count = begins[n], begins[n + 1] - begins[n]
    projected = collapse_lines(lines, left, count, right)
    for i in range(count):
        for r in range(rank):
            fitted = 0.0
            for s in range(rank):
                fitted += stack[begin + i, s] * product[s, r]
            gradient[i, r] = projected[i, r] - fitted
            value += (0.5 * fitted - projected[i, r]) * stack[begin + i, r]
    return value


@cached_jit
def least_squares_pass(gemm, X, split, begins, n, stack, gradient, gram):
    """The normal equations of mode n for half the square, from the whole matrix X.

    Returns the value without the half sum of squares of X, and the contraction with the factors of
    the other side.
    """
    lines = _contract_side(gemm, X, stack, begins, split, n < split)
    return _least_squares_equations(lines, stack, begins, split, n, gradient, gram), lines


@cached_jit
def least_squares_sweep(
    gemm, solve, X, split, begins, turns, stack, gradient, gram, parameters, lines, contracted_side
):
    """Update the factors of some modes in turn and in place, for half the square.

    What is contracted over one side of the matrix serves all modes of the other side, until a
    factor of it changes. `gradient` and `gram` are those of the first turn, or empty. `lines` are
    contracted already for the modes of a side: 1 for those of the rows, 2 for those of the columns,
    0 for none.
    """
    rank = stack.shape[1]
    for t in range(turns.shape[0]):
        n = turns[t]
        first, last, side = begins[n], begins[n + 1], 1 if n < split else 2
        if t > 0 or gram.shape[0] == 0:
            if contracted_side != side:
                lines = _contract_side(gemm, X, stack, begins, split, n < split)
                contracted_side = side
            gradient = np.empty((last - first, rank), stack.dtype)
            gram = np.empty((1, rank * (rank + 1) // 2), stack.dtype)
            _least_squares_equations(lines, stack, begins, split, n, gradient, gram)
        own, count = address(stack) + first * rank * stack.itemsize, last - first
        call(solve, (gram, gradient, own, parameters, count > 1, 0, count, rank, own))
        keep_alive(gram)
        keep_alive(gradient)
        if contracted_side != side:
            contracted_side = 0
    keep_alive(stack)
    keep_alive(parameters)


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
