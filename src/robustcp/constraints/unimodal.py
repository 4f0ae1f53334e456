"""Columns with one peak."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from robustcp._util.typing import Array
from robustcp.constraints.base import Constraint, as_array_like
from robustcp.constraints.columns import interpolate_unobserved, solve_columns
from robustcp.constraints.nonnegative import Nonnegative
from robustcp.engines import to_host
from robustcp.engines.algebra import Algebra
from robustcp.engines.normal_equations import NormalEquations


@dataclass(frozen=True)
class Unimodal(Constraint):
    """No negative entries, and one peak: no column falls before it or rises after it.

    With the other columns held, the majorizer of a column is a weighted least-squares problem,
    solved exactly by isotonic regression up to each possible peak and down from it (Bro &
    Sidiropoulos 1998, Stout 2008). The columns take turns.

    Examples
    --------
    >>> import numpy as np, robustcp
    >>> x = np.linspace(0, 1, 30)
    >>> bumps = np.stack([np.exp(-((x - c) ** 2) / 0.02) for c in (0.3, 0.6)], axis=1)
    >>> rng = np.random.default_rng(0)
    >>> A, C = rng.random((6, 2)), rng.random((5, 2))
    >>> X = np.einsum("ir,jr,kr->ijk", A, bumps, C) + 0.05 * rng.standard_normal((6, 30, 5))
    >>> fit = robustcp.cp(X, 2, constraints={1: robustcp.Unimodal()})
    >>> first = fit.factors[1][:, 0]
    >>> peak = first.argmax()
    >>> bool((np.diff(first[: peak + 1]) >= 0).all() and (np.diff(first[peak:]) <= 0).all())
    True
    """

    @property
    def signed(self) -> bool:
        return False

    @property
    def couples_rows(self) -> bool:
        return True

    @property
    def of_rows(self) -> Constraint:
        return Nonnegative()

    def project(self, factor: Array) -> Array:
        A = np.asarray(to_host(factor), dtype=np.float64)
        ones = np.ones(len(A))
        columns = [unimodal_regression(column, ones) for column in A.T]
        return as_array_like(np.stack(columns, axis=1), factor)

    def solve(
        self,
        equations: NormalEquations,
        rows: Array,
        mu: float,
        algebra: Algebra,
        penalty_weights: np.ndarray | None = None,
    ) -> Array:
        return solve_columns(
            equations,
            rows,
            mu,
            lambda _, target, weights: interpolate_unobserved(unimodal_regression, target, weights),
        )


def unimodal_regression(target: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The nonnegative v with one peak that minimises sum_i weights_i (v_i - target_i)^2.

    >>> unimodal_regression(np.array([1.0, 3.0, 2.0, 4.0, -1.0]), np.ones(5))
    array([1. , 2.5, 2.5, 4. , 0. ])
    """
    rising_errors = isotonic_regression(target, weights)[1]
    falling_errors = isotonic_regression(target[::-1], weights[::-1])[1][::-1]
    top = int(np.argmin(rising_errors + falling_errors))
    rising = isotonic_regression(target[:top], weights[:top])[0]
    falling = isotonic_regression(target[top:][::-1], weights[top:][::-1])[0][::-1]
    return np.concatenate([rising, falling])


def isotonic_regression(target: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nonnegative nondecreasing v nearest to the target, and the error of every prefix.

    By pooling adjacent violators. The pools of a prefix are known once it has been passed, so that
    one pass gives all errors: errors[k] is the error for the first k entries. SciPy's function of
    the same name gives none.
    """
    errors = [0.0]
    means: list[float] = []
    sizes: list[float] = []
    spreads: list[float] = []
    counts: list[int] = []
    for mean, size in zip(target.tolist(), weights.tolist(), strict=True):
        spread, count = 0.0, 1
        while means and means[-1] >= mean:
            pool_mean, pool_weight = means.pop(), sizes.pop()
            spread += (
                spreads.pop() + size * pool_weight / (size + pool_weight) * (mean - pool_mean) ** 2
            )
            mean += pool_weight / (size + pool_weight) * (pool_mean - mean)
            size += pool_weight
            count += counts.pop()
        means.append(mean)
        sizes.append(size)
        spreads.append(spread)
        counts.append(count)
        errors.append(errors[-count] + spread + size * min(mean, 0.0) ** 2)
    return np.repeat(np.maximum(means, 0.0), np.array(counts, dtype=int)), np.array(errors)
