"""Columns with few entries other than 0."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from robustcp._util import checks
from robustcp._util.typing import Array
from robustcp.constraints.base import as_array_like
from robustcp.constraints.columns import solve_columns
from robustcp.constraints.nonnegative import OptionallyNonnegative
from robustcp.engines import to_host
from robustcp.engines.algebra import Algebra
from robustcp.engines.normal_equations import NormalEquations


@dataclass(frozen=True)
class Sparse(OptionallyNonnegative):
    """Columns in which few entries differ from 0: by an l1 penalty, or at most some number.

    With `l1`, the objective gains, for each component r of the mode's factor,

        l1 / (2 I) (sum_i |a_ir|)^2 prod_m |b_r^(m)|^2,

    with I the number of rows and b_r the columns of the other modes. It does not depend on how a
    component's size is shared out among the modes, and moves entries towards 0: for least squares
    and complete data by `l1` times the mean magnitude of the column's entries. With `cardinality`,
    at most that many entries of each column differ from 0; this is not convex, so that starts
    matter. With the other columns held each column is solved for exactly. The columns take turns.

    Parameters
    ----------
    l1 : float, optional
        The weight of the penalty, relative to the scale of the data. Try 0.01 in `cp`, which takes
        what a large penalty leaves unexplained for outliers, and 0.1 in `cpal1` and `cpals`.
    cardinality : int, optional
        The most entries of a column that are not 0. Either this or `l1` is given.
    nonnegative : bool
        Whether entries must not be negative either.

    Examples
    --------
    >>> import numpy as np, robustcp
    >>> rng = np.random.default_rng(0)
    >>> A = np.zeros((20, 2))
    >>> A[3:8, 0] = A[12:15, 1] = 1.0
    >>> truth = robustcp.KruskalTensor.from_factors([A, rng.random((8, 2)), rng.random((7, 2))])
    >>> X = truth.full() + 0.1 * rng.standard_normal((20, 8, 7))
    >>> fit = robustcp.cp(X, 2, constraints={0: robustcp.Sparse(cardinality=5)})
    >>> np.count_nonzero(fit.factors[0], axis=0).max()
    np.int64(5)
    """

    l1: float | None = None
    cardinality: int | None = None
    nonnegative: bool = False

    def __post_init__(self) -> None:
        if (self.l1 is None) == (self.cardinality is None):
            raise ValueError("l1: either l1 or cardinality must be given, not both")
        set_ = object.__setattr__
        if self.l1 is not None:
            set_(self, "l1", checks.real_number("l1", self.l1, 0.0, strict=True))
        else:
            set_(self, "cardinality", checks.whole_number("cardinality", self.cardinality, 1))
        self._check_nonnegative()

    @property
    def symmetric(self) -> bool:
        return not self.nonnegative

    @property
    def leaves_empty_rows(self) -> bool:
        return False

    @property
    def relaxed_at_start(self) -> bool:
        return self.cardinality is not None

    def project(self, factor: Array) -> Array:
        A = np.asarray(to_host(factor), dtype=np.float64)
        if self.nonnegative:
            A = np.maximum(A, 0.0)
        if self.cardinality is not None:
            A = np.stack([_largest(column, np.abs(column), self.cardinality) for column in A.T], 1)
        return as_array_like(A, factor)

    def penalty(self, factor: Array) -> np.ndarray | None:
        if self.l1 is None:
            return None
        A = np.asarray(to_host(factor), dtype=np.float64)
        penalties: np.ndarray = self.l1 / (2 * len(A)) * np.sum(np.abs(A), axis=0) ** 2
        return penalties

    def solve(
        self,
        equations: NormalEquations,
        rows: Array,
        mu: float,
        algebra: Algebra,
        penalty_weights: np.ndarray | None = None,
    ) -> Array:
        count, rank = rows.shape
        costs = np.ones(rank) if penalty_weights is None else penalty_weights

        def solve_column(r: int, target: np.ndarray, weights: np.ndarray) -> np.ndarray:
            if self.nonnegative:
                target = np.maximum(target, 0.0)
            if self.l1 is not None:
                return shrink(target, weights, self.l1 / count * costs[r])
            assert self.cardinality is not None
            return _largest(target, weights * target**2, self.cardinality)

        return solve_columns(equations, rows, mu, solve_column)


def shrink(target: np.ndarray, weights: np.ndarray, cost: float) -> np.ndarray:
    """The v that minimises sum_i weights_i (v_i - target_i)^2 / 2 + cost/2 (sum_i |v_i|)^2.

    It is target, moved towards 0 by t / weights, where t = cost sum_i |v_i|. An entry is not 0 if
    t is less than its weight times its magnitude, so that t follows from a sorted list.

    >>> shrink(np.array([3.0, -1.0, 0.1]), np.ones(3), 0.5)
    array([ 2., -0.,  0.])
    """
    sizes, slopes = np.abs(target), weights * np.abs(target)
    order = np.argsort(-slopes, kind="stable")
    order = order[slopes[order] > 0]
    if not order.size:
        return np.zeros_like(target)
    thresholds = cost * np.cumsum(sizes[order]) / (1 + cost * np.cumsum(1 / weights[order]))
    last = int(np.flatnonzero(thresholds < slopes[order])[-1])
    shifts = np.full_like(target, np.inf)
    np.divide(thresholds[last], weights, out=shifts, where=weights > 0)
    return np.asarray(np.sign(target) * np.maximum(sizes - shifts, 0.0))


def _largest(column: np.ndarray, gains: np.ndarray, count: int) -> np.ndarray:
    """A column without all entries but some of largest gain."""
    kept = np.argsort(-gains, kind="stable")[:count]
    out = np.zeros_like(column)
    out[kept] = column[kept]
    return out
