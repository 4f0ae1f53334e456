# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""What Numba compiles: the pass of each loss in `FORMULAS`, and small linear algebra.

To give a loss a compiled pass, write its formula for one row of residuals and add it to
`FORMULAS`, at the end. Where the data is NaN, value, slope and curvature must be 0; elsewhere all
three go through `weighed`. Exponential and logarithm are written out: a call would keep the loop
around it from becoming vector instructions.
"""

import math
import types
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numba import njit
from numba import types as numba_types
from numba.core.caching import FunctionCache
from numba.core.errors import NumbaError
from numba.extending import overload

from robustcp.losses import L1, Cauchy, Contaminated

#: Sums may be reordered, for vectors; NaN stays NaN.
_FAST = {"reassoc", "contract", "arcp", "nsz"}
_INLINE = {"inline": "always", "fastmath": _FAST, "error_model": "numpy"}
#: Entries that are standardized at once, so that the first level of the cache holds them.
_SCALED = 1 << 10
#: A variance that stands for none.
_TINY = 1e-80
_LN2, _SQRT_HALF_BITS = math.log(2.0), np.int64(0x3FE6A09E667F3BCD)
_ROOT_BITS = np.int64(0x5FE6EB50C7B537A9)


class _Cache(FunctionCache):  # type: ignore[misc]
    """Compiled code on disk; a damaged file is emptied and written anew, not an error."""

    def load_overload(self, sig, target_context):
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # whatever unpickling a damaged file raises
            with suppress(Exception):
                self.flush()
            return None

    def save_overload(self, sig, data):
        with suppress(Exception):  # a full or read-only disk
            super().save_overload(sig, data)


def _compiled(function, fastmath=_FAST, keep=True):
    """Compiled, without Python's lock, and kept on disk where there is a place for it."""
    dispatcher = njit(nogil=True, fastmath=fastmath, error_model="numpy")(function)
    if not keep:
        return dispatcher
    with suppress(RuntimeError, OSError, NumbaError):  # no folder to keep it in
        dispatcher._cache = _Cache(function)
    return dispatcher


def _exact(function):
    """The same, in the order of operations that is written: for very large and small numbers."""
    return _compiled(function, fastmath=False)


@njit(**_INLINE)
def _exp_of_minus(t):
    """exp(-t) for t >= 0, to 1e-14: 2^-n times a polynomial on half a power of two."""
    t = min(np.float64(t), 700.0)
    n = np.floor(t / _LN2 + 0.5)
    f = n * _LN2 - t
    p = f / 39916800.0 + 1 / 3628800.0
    p = p * f + 1 / 362880.0
    p = p * f + 1 / 40320.0
    p = p * f + 1 / 5040.0
    p = p * f + 1 / 720.0
    p = p * f + 1 / 120.0
    p = p * f + 1 / 24.0
    p = p * f + 1 / 6.0
    p = p * f + 1 / 2.0
    p = p * f + 1.0
    p = p * f + 1.0
    return p * np.int64((1023 - np.int64(n)) << 52).view(np.float64)


@njit(**_INLINE)
def _log(y):
    """log(y) for an ordinary y > 0: n log 2 + 2 artanh((z - 1) / (z + 1)), with y = 2^n z."""
    bits = np.float64(y).view(np.int64)
    n = (bits - _SQRT_HALF_BITS) >> 52
    z = np.int64(bits - (n << 52)).view(np.float64)
    s = (z - 1.0) / (z + 1.0)
    q = s * s
    p = q / 21.0 + 1 / 19.0
    p = p * q + 1 / 17.0
    p = p * q + 1 / 15.0
    p = p * q + 1 / 13.0
    p = p * q + 1 / 11.0
    p = p * q + 1 / 9.0
    p = p * q + 1 / 7.0
    p = p * q + 1 / 5.0
    p = p * q + 1 / 3.0
    p = p * q + 1.0
    return 2.0 * s * p + n * _LN2


@njit(**_INLINE)
def _inverse_root(y):
    """1 / sqrt(y), large for 0: Newton's method, faster than square root and division."""
    z = np.int64(_ROOT_BITS - (np.float64(y).view(np.int64) >> 1)).view(np.float64)
    half = 0.5 * y
    z *= 1.5 - half * z * z
    z *= 1.5 - half * z * z
    z *= 1.5 - half * z * z
    return z * (1.5 - half * z * z)


def weighed(value, weights, j):
    """A value times the weight of entry j; the value where there are no weights (None)."""
    return value if weights is None else value * weights[j]


@overload(weighed, inline="always")
def _weighed(value, weights, j):
    if isinstance(weights, numba_types.NoneType):
        return lambda value, weights, j: value
    return lambda value, weights, j: value * weights[j]


def _line(weights, first, count):
    """Some of the weights, if there are any."""
    return None if weights is None else weights[first : first + count]


@overload(_line, inline="always")
def _compiled_line(weights, first, count):
    if isinstance(weights, numba_types.NoneType):
        return lambda weights, first, count: None
    return lambda weights, first, count: weights[first : first + count]


def _scratch(scales, count):
    """A line that standardized data goes to, if there are scales."""
    return None if scales is None else np.empty(count, scales.dtype)


@overload(_scratch, inline="always")
def _compiled_scratch(scales, count):
    if isinstance(scales, numba_types.NoneType):
        return lambda scales, count: None
    return lambda scales, count: np.empty(count, scales.dtype)


def _together(scales, rows, columns):
    """How many rows of a block that follow each other are one line: with scales, a short one."""
    raise NotImplementedError


@overload(_together, inline="always")
def _compiled_together(scales, rows, columns):
    if isinstance(scales, numba_types.NoneType):
        return lambda scales, rows, columns: rows

    def few(scales, rows, columns):
        return max(1, min(rows, _SCALED // columns)) if scales.shape[1] == columns else 1

    return few


def _standardize(x, s, scales, row, column, scratch):
    """Data and model in units of the scales: the model in place, the data into a scratch line."""
    raise NotImplementedError


@overload(_standardize, inline="always")
def _compiled_standardize(x, s, scales, row, column, scratch):
    if isinstance(scales, numba_types.NoneType):
        return lambda x, s, scales, row, column, scratch: x

    def standardize(x, s, scales, row, column, scratch):
        first = row * scales.shape[1] + column
        h = scales.reshape(-1)[first : first + s.shape[0]]
        y = scratch[: s.shape[0]]
        for j in range(s.shape[0]):
            y[j] = x[j] * h[j]
            s[j] *= h[j]
        return y

    return standardize


def _restore(s, w, scales, row, column):
    """Slopes and curvatures in the units of the data again."""
    raise NotImplementedError


@overload(_restore, inline="always")
def _compiled_restore(s, w, scales, row, column):
    if isinstance(scales, numba_types.NoneType):
        return lambda s, w, scales, row, column: None

    def restore(s, w, scales, row, column):
        first = row * scales.shape[1] + column
        h = scales.reshape(-1)[first : first + s.shape[0]]
        for j in range(s.shape[0]):
            s[j] *= h[j]
            w[j] *= h[j] * h[j]

    return restore


@njit(**_INLINE)
def _l1(x, s, w, numbers, weights):
    """One row of the smoothed 1-norm; `s` holds the model and gets the slope."""
    # A plain 1 or 0 would make float64 of float32; a constant 0 keeps the loop from vectors.
    epsilon, one = numbers[0], s.dtype.type(1)
    zero, total = epsilon * s.dtype.type(0), 0.0
    for j in range(s.shape[0]):
        r = x[j] - s[j]
        seen = x[j] == x[j]
        root = math.sqrt(r * r + epsilon)
        inverse = one / root
        total += weighed(root, weights, j) if seen else zero
        w[j] = weighed(inverse, weights, j) if seen else zero
        s[j] = weighed(r * inverse, weights, j) if seen else zero
    return total


@njit(**_INLINE)
def _contaminated(x, s, w, numbers, weights):
    """One row of `Contaminated`, in units of sigma^2; `higher` is the sign of the raised side."""
    rate, above, below, height, reach, higher = numbers
    zero, total = rate * 0, 0.0
    for j in range(s.shape[0]):
        r = x[j] - s[j]
        seen = x[j] == x[j]
        e = _exp_of_minus(r * r * rate)
        k = above if r >= 0 else below
        inverse = 1 / (e + k)
        clean = e * inverse
        away = reach + abs(r)
        rise = height / (away * away)
        curvature = clean + (rise if r * higher >= 0 else zero)
        total += weighed(_log((1 + k) * inverse), weights, j) if seen else 0.0
        w[j] = weighed(curvature, weights, j) if seen else zero
        s[j] = weighed(r * clean, weights, j) if seen else zero
    return total


@njit(**_INLINE)
def _cauchy(x, s, w, numbers, weights):
    """One row of `Cauchy`, in units of c^2 / 2."""
    rate = numbers[0]
    zero, one, total = rate * 0, s.dtype.type(1), 0.0
    for j in range(s.shape[0]):
        r = x[j] - s[j]
        seen = x[j] == x[j]
        y = one + r * r * rate
        curvature = one / y
        total += weighed(_log(y), weights, j) if seen else 0.0
        w[j] = weighed(curvature, weights, j) if seen else zero
        s[j] = weighed(r * curvature, weights, j) if seen else zero
    return total


@njit(**_INLINE)
def _products(U, S):
    """The products of pairs of U's columns, packed as in `robustcp.normal`."""
    rank = U.shape[1]
    for i in range(U.shape[0]):
        u, s = U[i], S[i]
        p = 0
        for a in range(rank):
            for b in range(a, rank):
                s[p + b - a] = u[a] * u[b]
            p += rank - a


@njit(**_INLINE)
def _side(first, U, left, own, right):
    """Lines of one side's Khatri-Rao product, left x own x right."""
    rank, count, inner = own.shape[1], own.shape[0], right.shape[0]
    q, i, p = first % inner, (first // inner) % count, first // (inner * count)
    for k in range(U.shape[0]):
        for r in range(rank):
            U[k, r] = left[p, r] * right[q, r] * own[i, r]
        q += 1
        if q == inner:
            q, i = 0, i + 1
            if i == count:
                i, p = 0, p + 1


@njit(**_INLINE)
def _around(first, lines, left, right):
    """Of the modes beside the own one: rows of `right` and of pair products that lines need.

    Line k of those that begin at `first` finds them at k modulo the size of `right`.
    """
    inner, rank = right.shape
    size = min(inner, lines)
    rows = np.empty((size, rank), right.dtype)
    for k in range(size):
        rows[k] = right[(first + k) % inner]
    pairs = np.empty((size, rank * (rank + 1) // 2), right.dtype)
    _products(rows, pairs)
    return rows, pairs


@njit(**_INLINE)
def _collapse(begin, first, Y, Z, low, left, own, around, pairs, inner, gradient, gram):
    """Add the products of a side's lines to the rows of its own mode.

    The lines begin at `first`; `around` and `pairs` (see `_around`) at `begin`.
    """
    rank, count, packed = own.shape[1], own.shape[0], pairs.shape[1]
    q, i, p = first % inner, (first // inner) % count, first // (inner * count)
    at = (first - begin) % inner
    beside = np.empty((1, packed), pairs.dtype)
    _products(left[p : p + 1], beside)
    for k in range(Y.shape[0]):
        y, z, g, G = Y[k], Z[k], gradient[i - low], gram[i - low]
        beyond, beyond2, before, before2 = around[at], pairs[at], left[p], beside[0]
        for a in range(rank):
            g[a] += before[a] * beyond[a] * y[a]
        for a in range(packed):
            G[a] += before2[a] * beyond2[a] * z[a]
        q, at = q + 1, at + 1
        if at == inner:
            at = 0
        if q == inner:
            q, i = 0, i + 1
            if i == count:
                i, p = 0, p + 1
                if k + 1 < Y.shape[0]:
                    _products(left[p : p + 1], beside)


@njit(**_INLINE)
def _majorize(
    formula, numbers, X, weights, scales, row, column, at, first, slope, curvature, scratch
):
    """The loss on a block of X: a row at a time, or as one line if the rows follow each other.

    The weights, row after row of the tile, are those from `first` on; the inverse scales those
    from `at` on.
    """
    rows, columns = slope.shape
    s, w, x = slope.reshape(-1), curvature.reshape(-1), X.reshape(-1)
    begin, stride = row * X.shape[1] + column, X.shape[1]
    lines = _together(scales, rows, columns) if columns == stride else 1
    total = 0.0
    for i in range(0, rows, lines):
        here, there = i * columns, begin + i * stride
        size = min(lines, rows - i) * columns
        x_part = x[there : there + size]
        s_part, w_part = s[here : here + size], w[here : here + size]
        x_part = _standardize(x_part, s_part, scales, at[0] + i, at[1], scratch)
        total += formula(x_part, s_part, w_part, numbers, _line(weights, first + here, size))
        _restore(s_part, w_part, scales, at[0] + i, at[1])
    return total


#: The loss of a pass; `Formula` fills it in.
formula: Any = None


def rows_pass(
    numbers, X, weights, scales, inside, at, corner, end, low, block, left, own, right, K,
    gradient, gram,
):  # fmt: skip
    """Add a tile's part of the normal equations of a mode among those of the rows.

    The tile is [corner[0]:end[0], corner[1]:end[1]] of the matrix; in X it begins at `at`, and
    `weights` has a weight for each of its entries, in a line, or is None; `scales`, a matrix in
    which it begins at `inside`, has their inverse scales, or is None. Rows of the matrix run over
    left x own x right, columns over K's rows; `gradient` and `gram` begin at row `low` of the own
    mode. So that nothing leaves the cache, `block` entries are done at once. Returns the sum of
    the values; with an empty `gram` that is all.
    """
    rows, columns, rank = end[0] - corner[0], end[1] - corner[1], K.shape[1]
    packed = gram.shape[1]
    step = max(1, min(rows, block // columns))
    real = K.dtype
    K = K[corner[1] : end[1]]
    S = np.empty((columns if packed else 0, packed), real)
    if packed:
        _products(K, S)
    slope, curvature = np.empty((step, columns), real), np.empty((step, columns), real)
    scratch = _scratch(scales, max(columns, _SCALED))
    U, Y = np.empty((step, rank), real), np.empty((step, rank), real)
    around, pairs = _around(corner[0], rows if packed else 0, left, right)
    Z = np.empty((step, packed), real)
    total = 0.0
    for a in range(0, rows, step):
        size = min(step, rows - a)
        s, w, u = slope[:size], curvature[:size], U[:size]
        _side(corner[0] + a, u, left, own, right)
        np.dot(u, K.T, s)
        total += _majorize(
            formula, numbers, X, weights, scales, at[0] + a, at[1], (inside[0] + a, inside[1]),
            a * columns, s, w, scratch,
        )  # fmt: skip
        if packed:
            np.dot(s, K, Y[:size])
            np.dot(w, S, Z[:size])
            _collapse(
                corner[0], corner[0] + a, Y[:size], Z[:size], low, left, own, around, pairs,
                right.shape[0], gradient, gram,
            )  # fmt: skip
    return total


def columns_pass(
    numbers, X, weights, scales, inside, at, corner, end, low, block, left, own, right, K,
    gradient, gram,
):  # fmt: skip
    """The same for a mode among those of the columns; rows of the matrix run over K's rows."""
    rows, columns, rank = end[0] - corner[0], end[1] - corner[1], K.shape[1]
    packed = gram.shape[1]
    step = max(1, min(rows, block // columns))
    real = K.dtype
    U = np.empty((columns, rank), real)
    _side(corner[1], U, left, own, right)
    slope, curvature = np.empty((step, columns), real), np.empty((step, columns), real)
    scratch = _scratch(scales, max(columns, _SCALED))
    Y, Z = np.zeros((columns, rank), real), np.zeros((columns, packed), real)
    y, z = np.empty((columns, rank), real), np.empty((columns, packed), real)
    S = np.empty((step, packed), real)
    total = 0.0
    for a in range(0, rows, step):
        size = min(step, rows - a)
        s, w = slope[:size], curvature[:size]
        u = K[corner[0] + a : corner[0] + a + size]
        np.dot(u, U.T, s)
        total += _majorize(
            formula, numbers, X, weights, scales, at[0] + a, at[1], (inside[0] + a, inside[1]),
            a * columns, s, w, scratch,
        )  # fmt: skip
        _products(u, S[:size])
        np.dot(s.T, u, y)
        np.dot(w.T, S[:size], z)
        Y += y
        Z += z
    around, pairs = _around(corner[1], columns, left, right)
    _collapse(
        corner[1], corner[1], Y, Z, low, left, own, around, pairs, right.shape[0], gradient, gram
    )
    return total


@njit(**_INLINE)
def _floored(h, least):
    """The inverse of a scale with a smooth floor, from its inverse without."""
    q = min(h * least, 1e60)
    q = q * q
    root = _inverse_root(1.0 + q * q)
    return h * math.sqrt(root)


@_compiled
def inverse_scales(h, outer, down, across, left, right, numbers):
    """1 / (u^4 + least^4)^(1/4) of a block, into h, with u^2 the variance of each entry.

    That is constant + linear |m| + quadratic m^2 with m = left right', without columns just 1;
    divided by the square of the outer product of `down` and `across`, or of what h holds.
    """
    constant, linear, quadratic, least = numbers
    rows, columns = h.shape
    step = max(1, min(rows, 4 * _SCALED // columns))
    m = np.empty((step if left.shape[1] else 0, columns), h.dtype)
    for a in range(0, rows, step):
        size = min(step, rows - a)
        if outer:
            for i in range(a, a + size):
                for j in range(columns):
                    h[i, j] = down[i] * across[j]
        v = h[a : a + size].reshape(-1)
        if left.shape[1]:
            np.dot(left[a : a + size], right.T, m[:size])
            model = m[:size].reshape(-1)
            for j in range(v.shape[0]):
                t = abs(np.float64(model[j]))
                variance = max((quadratic * t + linear) * t + constant, _TINY)
                v[j] = _floored(v[j] * _inverse_root(variance), least)
        elif least > 0:
            for j in range(v.shape[0]):
                v[j] = _floored(np.float64(v[j]), least)


@_compiled
def solve_rows(gram, gradient, rows, mu, lift):
    """Each row's step, (gram + lift diag(gram) + mu I)^-1 (gradient - mu row), added to the row.

    By Cholesky's factorization of the packed triangles; where rounding makes a pivot negative
    its entry stays as it is. So does a row without data.
    """
    count, rank = rows.shape
    diagonal = np.empty(rank, np.int64)
    for j in range(rank):
        diagonal[j] = j * rank - j * (j - 1) // 2
    one = gram.shape[0] == 1 and count > 1
    new = np.empty_like(rows)
    L = np.empty((rank, rank), gram.dtype)
    b = np.empty(rank, gram.dtype)
    for i in range(count):
        if i == 0 or not one:
            p = 0
            for j in range(rank):
                for k in range(j, rank):
                    L[k, j] = gram[i, p]
                    p += 1
                L[j, j] += lift * L[j, j] + mu
            for j in range(rank):
                for m in range(j):
                    for k in range(j, rank):
                        L[k, j] -= L[k, m] * L[j, m]
                pivot = L[j, j]
                root = 1 / math.sqrt(pivot) if pivot > 0 else pivot * 0
                for k in range(j + 1, rank):
                    L[k, j] *= root
                L[j, j] = root  # its inverse
        has_data = one
        for j in range(rank):
            has_data = has_data or gram[i, diagonal[j]] != 0
        if not has_data:
            new[i] = rows[i]
            continue
        for j in range(rank):
            b[j] = gradient[i, j] - mu * rows[i, j]
            for k in range(j):
                b[j] -= L[j, k] * b[k]
            b[j] *= L[j, j]
        for j in range(rank - 1, -1, -1):
            for k in range(j + 1, rank):
                b[j] -= L[k, j] * b[k]
            b[j] *= L[j, j]
            new[i, j] = rows[i, j] + b[j]
    return new


@_compiled
def expected_equations(
    x, precisions, at, own, means, seconds, spread, freedom, gram, gradient, squares
):
    """Normal equations of the rows of one mode, if those of all modes are uncertain.

    For each entry the mean of (x - model)^2 goes to `squares`, and by it the entry is weighted as
    a t distribution would. `means` and `seconds` hold, for the rows of all modes, their means and
    packed second moments; `at` says which rows an entry has, and `own` which of them is solved for.
    """
    count, order = at.shape
    rank, pairs = means.shape[1], seconds.shape[1]
    first, product = np.empty(rank), np.empty(pairs)
    for i in range(count):
        first[:] = 1.0
        product[:] = 1.0
        for m in range(order):
            if m != own:
                row = at[i, m]
                for r in range(rank):
                    first[r] *= means[row, r]
                for q in range(pairs):
                    product[q] *= seconds[row, q]
        row = at[i, own]
        mean = 0.0
        for r in range(rank):
            mean += first[r] * means[row, r]
        square, q = 0.0, 0
        for r in range(rank):
            square += product[q] * seconds[row, q]
            q += 1
            for _ in range(r + 1, rank):
                square += 2.0 * product[q] * seconds[row, q]
                q += 1
        square = max(x[i] * x[i] - 2.0 * x[i] * mean + square, 0.0)
        squares[i] = square
        p = precisions[i]
        if p == 0:
            continue
        weight = p * (freedom + 1.0) / (freedom * spread + square * p)
        for q in range(pairs):
            gram[row, q] += weight * product[q]
        weight *= x[i]
        for r in range(rank):
            gradient[row, r] += weight * first[r]


@njit(**_INLINE)
def _touch(x):
    """Read a line from its beginning to its end: that brings it to the cache fastest by far."""
    total = x[0] * 0
    for k in range(x.shape[0]):
        total += x[k]
    return total


@_compiled
def contract_rows(X, K, lines, block):
    """lines = X K, by blocks that are in the cache when they are multiplied."""
    rows, columns = X.shape
    step, seen = max(1, block // columns), 0.0
    small = rows <= 4 * step  # it may be in the cache already
    for a in range(0, rows, step):
        b = min(a + step, rows)
        if not small:
            seen += _touch(X[a:b].reshape(-1))
        np.dot(X[a:b], K, lines[a:b])
    return seen


@_compiled
def contract_columns(X, U, lines, block):
    """lines = X' U, by blocks that are in the cache when they are multiplied."""
    rows, columns = X.shape
    step, seen = max(1, block // columns), 0.0
    small = rows <= 4 * step
    part = np.empty_like(lines)
    lines[:] = 0
    for a in range(0, rows, step):
        b = min(a + step, rows)
        if not small:
            seen += _touch(X[a:b].reshape(-1))
        np.dot(X[a:b].T, U[a:b], part)
        lines += part
    return seen


@_compiled
def collapse_lines(lines, left, count, right):
    """Contract the modes beside the own one away: the sum of left[p] right[q] lines[p, i, q]."""
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


@_exact
def column_norms(A):
    """Euclidean norms of the columns, also of very large or small ones."""
    rows, columns = A.shape
    norms = np.empty(columns, A.dtype)
    for j in range(columns):
        top = 0.0
        for i in range(rows):
            top = max(top, abs(np.float64(A[i, j])))
        total = 0.0
        for i in range(rows):
            x = A[i, j] / top if top > 0 else 0.0
            total += x * x
        norms[j] = top * math.sqrt(total)
    return norms


@dataclass(frozen=True)
class Formula:
    """How the pass of a loss is compiled.

    Attributes
    ----------
    name : str
    row : function of (x, s, w, numbers, weights)
        For one row: x holds the data, s the model, and gets the slopes; w gets the curvatures.
        Returns the sum of the values. All are `weighed` by the weights of the entries.
    numbers : function of a loss
        Its parameters, as `row` takes them. They must be finite, the first one not 0.
    weight : function of a loss
        What the sum of the values is to be multiplied by.
    """

    name: str
    row: Any
    numbers: Callable[[Any], tuple[float, ...]]
    weight: Callable[[Any], float] = lambda loss: 1.0

    @cached_property
    def rows_pass(self) -> Any:
        return self._specialised(rows_pass)

    @cached_property
    def columns_pass(self) -> Any:
        return self._specialised(columns_pass)

    def _specialised(self, template: Any) -> Any:
        """The template with this formula in it, compiled under a name of its own.

        What is kept on disk goes by the age of this file, so formulas from elsewhere are not.
        """
        special = types.FunctionType(template.__code__, {**globals(), "formula": self.row})
        special.__qualname__ = f"{template.__name__}_{self.name}"
        return _compiled(special, keep=self.row.py_func.__module__ == __name__)


def _contaminated_numbers(loss: Contaminated) -> tuple[float, ...]:
    square = loss.sigma**2
    rate = 0.5 / square if square > 0 else math.inf
    higher = 1.0 if loss.above > loss.below else -1.0
    return (rate, loss.above, loss.below, *loss.rise, higher)


def _cauchy_numbers(loss: Cauchy) -> tuple[float, ...]:
    return (1 / loss.c**2 if loss.c**2 > 0 else math.inf,)


#: Losses that have compiled passes; subclasses are not meant, they may cost something else.
FORMULAS: dict[type, Formula] = {
    L1: Formula("l1", _l1, lambda loss: (loss.epsilon,)),
    Contaminated: Formula(
        "contaminated", _contaminated, _contaminated_numbers, lambda loss: loss.sigma**2
    ),
    Cauchy: Formula("cauchy", _cauchy, _cauchy_numbers, lambda loss: loss.c**2 / 2),
}
