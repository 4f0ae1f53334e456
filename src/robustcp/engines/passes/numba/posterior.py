# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Normal equations of uncertain factors; `robustcp.optimize.posterior` has them without Numba."""

import numpy as np

from robustcp.engines.passes.numba.runtime import cached_jit


@cached_jit
def expected_equations(
    x, precisions, at, own, means, seconds, spread, freedom, gram, gradient, squares
):
    """Add to the expected normal equations of the rows of one mode, given moments of all rows.

    The expectation of (x - model)^2 of each entry goes to `squares`; the entry gets the weight that
    it has under a t distribution. `means` and `seconds` hold the means and packed second moments of
    the rows of all modes; `at` has the rows of each entry, of which row `own` is solved for.
    """
    count, order = at.shape
    rank, pairs = means.shape[1], seconds.shape[1]
    first, product = np.empty(rank), np.empty(pairs)
    for i in range(count):
        for r in range(rank):
            first[r] = 1.0
        for q in range(pairs):
            product[q] = 1.0
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
