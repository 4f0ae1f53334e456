"""Columns that only rise, or only fall."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from robustcp._util.typing import Array
from robustcp.constraints.base import as_array_like
from robustcp.constraints.columns import interpolate_unobserved, solve_columns
from robustcp.constraints.nonnegative import OptionallyNonnegative
from robustcp.engines import to_host
from robustcp.engines.algebra import Algebra
from robustcp.engines.normal_equations import NormalEquations


@dataclass(frozen=True)
class Monotone(OptionallyNonnegative):
    """No column falls from one index to the next; or, decreasing, none rises.

    With the other columns held, the majorizer of a column is a weighted least-squares problem,
    solved exactly by isotonic regression. The columns take turns. Rows without data lie between
    their neighbours.

    Parameters
    ----------
    increasing : bool
        False for columns that do not rise.
    nonnegative : bool
        Whether entries must not be negative either.

    Examples
    --------
    >>> import numpy as np, robustcp
    >>> rng = np.random.default_rng(0)
    >>> rising = np.cumsum(rng.random((20, 2)) ** 4, axis=0)
    >>> others = rng.random((8, 2)), rng.random((7, 2))
    >>> truth = robustcp.KruskalTensor.from_factors([others[0], rising, others[1]])
    >>> X = truth.full() + 0.1 * rng.standard_normal((8, 20, 7))
    >>> fit = robustcp.cp(X, 2, constraints={1: robustcp.Monotone()})
    >>> bool((np.diff(fit.factors[1], axis=0) >= 0).all())
    True
    """

    increasing: bool = True
    nonnegative: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.increasing, bool | np.bool_):
            raise ValueError(f"increasing: must be True or False, got {self.increasing!r}")
        object.__setattr__(self, "increasing", bool(self.increasing))
        self._check_nonnegative()

    @property
    def relaxed_at_start(self) -> bool:
        return True

    def project(self, factor: Array) -> Array:
        A = np.asarray(to_host(factor), dtype=np.float64)
        ones = np.ones(len(A))
        columns = [self._regression(column, ones) for column in A.T]
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
            lambda _, target, weights: interpolate_unobserved(self._regression, target, weights),
        )

    def _regression(self, target: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """The nearest monotone column; cut at 0, it is the nearest that is nonnegative too."""
        from scipy.optimize import isotonic_regression

        fitted = isotonic_regression(target, weights=weights, increasing=self.increasing)
        column: np.ndarray = fitted.x
        return np.maximum(column, 0.0) if self.nonnegative else column
