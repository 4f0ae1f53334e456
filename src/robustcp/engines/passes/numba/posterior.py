# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Sweeps of a variational posterior: a compiled copy of `Posterior` in `robustcp.optimize`.

There `_plain_sweep` and the steps that it calls are the same without Numba; a change must be made
in both versions.

The moments of a row are an array of its packed second moments, then its means, both filled up with
zeros to whole vectors. Rows of all modes are numbered consecutively.
"""

import math

import numpy as np

from robustcp.engines.passes.numba.intrinsics import (
    VECTOR,
    add_multiple,
    address,
    call,
    inner_product,
    keep_alive,
    multiply,
    pointer,
    shift,
)
from robustcp.engines.passes.numba.runtime import (
    FLOATS,
    INTS,
    Struct,
    c_function,
    integer_fields,
    internal_jit,
)


class PosteriorEntries(Struct):
    """The entries of a tensor, and its modes.

    Attributes
    ----------
    values, precisions : of the entries
    row_numbers : of each entry, one for each mode
    solvers : for each mode the address of the function that solves for its rows
    count, used : how many entries there are, and how many of a precision that is not 0
    order, rank : how many modes and components there are
    """

    _fields_ = integer_fields("values precisions row_numbers solvers count used order rank")


class PosteriorTurns(Struct):
    """What is updated.

    Attributes
    ----------
    sweeps : how many sweeps there are
    first, last : their first mode, and the end of their modes
    fixed_noise : 1 if noise and priors are left as they are, else 0
    balance : 1 if each sweep ends with components rescaled to equal prior variances, else 0
    """

    _fields_ = integer_fields("sweeps first last fixed_noise balance")


@internal_jit
def _whole_vectors(size):
    return (size + VECTOR - 1) // VECTOR * VECTOR


@internal_jit
def _compute_moments(
    means, covariances, first, last, rank, multiplicity, least_prior_variance, moments
):
    """The moments of rows first to last, with a multiplicity of entries beside the diagonal.

    Tiny ones of pruned components count as 0: arithmetic with subnormal products is slow.
    """
    negligible = 1e-30 * least_prior_variance
    packed = _whole_vectors(rank * (rank + 1) // 2)
    width = packed + _whole_vectors(rank)
    for i in range(first, last):
        q = i * width
        for r in range(rank):
            mean = means[i * rank + r]
            moments[i * width + packed + r] = mean if mean * mean > negligible else 0.0
            for s in range(r, rank):
                second = mean * means[i * rank + s] + covariances[(i * rank + r) * rank + s]
                if abs(second) <= negligible:
                    second = 0.0
                moments[q] = second if s == r else multiplicity * second
                q += 1


@internal_jit
def _add_entries(
    entries, own, need_squares, offsets, parameters, moments, own_moments, equations, squares
):
    """Add to the expected normal equations of the rows of mode `own`, laid out as moments.

    Each entry has the weight of a t distribution, given the expectation of its squared residual,
    which goes to `squares` if these are needed. Returns the sum of these expectations times the
    weights.
    """
    order, rank = entries.order, entries.rank
    packed = _whole_vectors(rank * (rank + 1) // 2)
    width = packed + _whole_vectors(rank)
    x, precisions = pointer(entries.values, moments), pointer(entries.precisions, moments)
    rows = pointer(entries.row_numbers, offsets)
    squared_scale, freedom = parameters[2], parameters[4]
    work = np.empty(width)
    products = pointer(address(work), moments)
    other, total = 1 if own == 0 else 0, 0.0
    for i in range(entries.count):
        p = precisions[i]
        if p == 0 and not need_squares:
            continue
        product = shift(moments, rows[i * order + other] * width)
        for m in range(other + 1, order):
            if m != own:
                multiply(products, product, shift(moments, rows[i * order + m] * width), width)
                product = products
        row = rows[i * order + own] * width
        row_moments, row_equations = shift(own_moments, row), shift(equations, row)
        mean_product = shift(product, packed)
        mean = inner_product(mean_product, shift(row_moments, packed), width - packed)
        second = inner_product(product, row_moments, packed)
        square = max(x[i] * x[i] - 2.0 * x[i] * mean + second, 0.0)
        if need_squares:
            squares[i] = square
        if p != 0:
            weight = p * (freedom + 1.0) / (freedom * squared_scale + square * p)
            total += weight * square
            add_multiple(row_equations, weight, product, packed)
            add_multiple(shift(row_equations, packed), weight * x[i], mean_product, width - packed)
    keep_alive(work)
    return total


@internal_jit
def _add_prior(equations, first, last, rank, prior_variances, means, gram, gradient):
    """Packed Gram matrices, with the precisions of the prior, and gradients at the means."""
    pairs = rank * (rank + 1) // 2
    packed = _whole_vectors(pairs)
    width = packed + _whole_vectors(rank)
    for i in range(first, last):
        for r in range(rank):
            gradient[i * rank + r] = equations[i * width + packed + r]
        q = 0
        for r in range(rank):
            for s in range(r, rank):
                g = equations[i * width + q]
                if s == r:
                    g += 1.0 / prior_variances[r]
                else:
                    gradient[i * rank + s] -= g * means[i * rank + r]
                gradient[i * rank + r] -= g * means[i * rank + s]
                gram[i * pairs + q] = g
                q += 1


@internal_jit
def _invert(gram, first, last, rank, inverses, A):
    """The inverses of packed positive definite matrices; A has room for one and a column.

    By Gauss-Jordan elimination; rows are divided by their pivots in the end.
    """
    width, q = _whole_vectors(rank), first * (rank * (rank + 1) // 2)
    inverse_pivots = shift(A, rank * width)
    for i in range(first, last):
        for r in range(rank):
            for s in range(r, rank):
                A[r * width + s] = A[s * width + r] = gram[q]
                q += 1
        for k in range(rank):
            pivot_row = shift(A, k * width)
            inverse_pivots[k] = 1.0 / pivot_row[k]
            pivot_row[k] = 1.0
            for r in range(rank):
                if r != k:
                    multiplier = -A[r * width + k] * inverse_pivots[k]
                    A[r * width + k] = 0.0
                    add_multiple(shift(A, r * width), multiplier, pivot_row, width)
        inverse = shift(inverses, i * rank * rank)
        for r in range(rank):
            for s in range(rank):
                inverse[r * rank + s] = A[r * width + s] * inverse_pivots[r]


@internal_jit
def _update_prior(means, covariances, first, last, rank, least, prior_variances):
    """The prior variances of a mode from its rows."""
    for r in range(rank):
        total = 0.0
        for i in range(first, last):
            total += means[i * rank + r] * means[i * rank + r]
            total += covariances[(i * rank + r) * rank + r]
        prior_variances[r] = max(total / (last - first), least)


@internal_jit
def _balance(means, covariances, offsets, order, rank, prior_variances):
    """Rescale the components to equal prior variances in all modes."""
    for r in range(rank):
        mean = 1.0
        for n in range(order):
            mean *= prior_variances[n * rank + r] ** (1.0 / order)
        for n in range(order):
            multiplier = math.sqrt(mean / prior_variances[n * rank + r])
            for i in range(offsets[n], offsets[n + 1]):
                means[i * rank + r] *= multiplier
                for s in range(rank):
                    covariances[(i * rank + r) * rank + s] *= multiplier
                    covariances[(i * rank + s) * rank + r] *= multiplier
            prior_variances[n * rank + r] = mean


@c_function(PosteriorEntries, PosteriorTurns, INTS, *[FLOATS] * 5)
def posterior_sweeps(
    entries, turns, offsets, means, covariances, prior_variances, parameters, squares
):
    """Sweep over some modes: new means, covariances and, unless fixed, priors and noise, in place.

    offsets : the first rows of all modes, and the end
    parameters : those of row solves, mu and lift; the squared scale of the noise, which is updated;
        the least one; the degrees of freedom; the least prior variance
    squares : gets the expected squares of the residuals before the last update of a mode
    """
    order, rank, least = entries.order, entries.rank, parameters[5]
    pairs = rank * (rank + 1) // 2
    width, rows = _whole_vectors(pairs) + _whole_vectors(rank), offsets[order]
    solvers = pointer(entries.solvers, offsets)
    work = np.zeros(rows * (3 * width + pairs + rank) + (rank + 1) * _whole_vectors(rank))
    moments = pointer(address(work), means)
    own_moments = shift(moments, rows * width)
    equations = shift(own_moments, rows * width)
    gram = shift(equations, rows * width)
    gradient = shift(gram, rows * pairs)
    A = shift(gradient, rows * rank)
    for k in range(turns.sweeps):
        _compute_moments(means, covariances, 0, rows, rank, 1.0, least, moments)
        for n in range(turns.first, turns.last):
            first, last, tau = offsets[n], offsets[n + 1], shift(prior_variances, n * rank)
            _compute_moments(means, covariances, first, last, rank, 2.0, least, own_moments)
            for q in range(first * width, last * width):
                equations[q] = 0.0
            is_last = k + 1 == turns.sweeps and n + 1 == turns.last
            total = _add_entries(
                entries, n, is_last, offsets, parameters, moments, own_moments, equations, squares
            )
            _add_prior(equations, first, last, rank, tau, means, gram, gradient)
            inputs = gram, gradient, means, parameters
            call(solvers[n], (*inputs, 0, first, last, rank, means))
            _invert(gram, first, last, rank, covariances, A)
            _compute_moments(means, covariances, first, last, rank, 1.0, least, moments)
            if turns.fixed_noise == 0:
                if n == 0:
                    estimate = parameters[2] * total / max(entries.used, 1)
                    parameters[2] = max(estimate, parameters[3])
                _update_prior(means, covariances, first, last, rank, least, tau)
        if turns.balance != 0:
            _balance(means, covariances, offsets, order, rank, prior_variances)
    keep_alive(work)
    return 0.0
