"""The variance function: how the variance of an entry depends on the model's value there."""

from __future__ import annotations

import math
from itertools import chain, combinations

import numpy as np

from robustcp.noise.residuals import Residuals, Variance


def fit_variance_function(residuals: Residuals, squares: np.ndarray, count: np.ndarray) -> Variance:
    """The nonnegative a, b and c for which a + b |m| + c m^2 fits the mean squares of the groups.

    By least squares, with the groups weighted by their counts and by inverse fitted variances.
    """
    floor = residuals.resolution.min_entry_sigma**2
    nonempty = count > 0
    terms = residuals.mean_signal_powers[nonempty]
    squares, root_count = squares[nonempty], np.sqrt(count[nonempty])
    fitted, coefficients = np.hypot(squares, floor), np.zeros(3)
    for _ in range(8):
        weights = root_count / fitted
        coefficients = _nonnegative_least_squares(terms * weights[:, None], squares * weights)
        fitted = np.hypot(terms @ coefficients, floor)
    a, b, c = coefficients.tolist()
    return a, b, c


def _nonnegative_least_squares(terms: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The nonnegative coefficients of least squares, from all subsets of the few terms.

    Of subsets that fit equally well, the smallest is selected; SciPy's `nnls` selects any.
    """
    norms = np.sqrt(np.sum(terms**2, axis=0))
    columns = np.flatnonzero(norms)
    best, least_error = np.zeros(norms.size), math.inf
    for subset in chain.from_iterable(combinations(columns, k + 1) for k in range(columns.size)):
        used = list(subset)
        scaled = terms[:, used] / norms[used]
        coefficients = np.linalg.lstsq(scaled, targets, rcond=None)[0]
        error = float(np.sum((scaled @ coefficients - targets) ** 2))
        if not np.any(coefficients < 0) and error < least_error * (1 - 1e-9):
            best, least_error = np.zeros(norms.size), error
            best[used] = coefficients / norms[used]
    return best
