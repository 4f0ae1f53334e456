"""Rows that are compositions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from robustcp._util.typing import Array
from robustcp.constraints.base import Constraint, as_array_like, host_equations
from robustcp.constraints.nonnegative import Nonnegative
from robustcp.engines import to_host
from robustcp.engines.algebra import Algebra, algebra_for, diagonal_shift
from robustcp.engines.normal_equations import NormalEquations, pack_indices


@dataclass(frozen=True)
class Simplex(Constraint):
    """Rows that are compositions: nonnegative shares of the components that sum to one.

    Known as closure or mass balance. The model says nothing of the units of components: columns
    may be multiplied, and the other modes divided, by numbers. So the factor A is allowed if it is
    nonnegative and there are positive d with A d = 1, one for each column; `compositions` returns
    A diag(d). Each row minimises its parabola on the simplex, with d held.

    Columns that sum to one are no constraint beyond `Nonnegative`: divide nonnegative columns by
    their sums, and multiply the weights by them. Scores of single samples, as of `Fit.project`,
    are nonnegative only: how much there is of a new sample is its own.

    Examples
    --------
    >>> import numpy as np, robustcp
    >>> rng = np.random.default_rng(0)
    >>> shares = rng.dirichlet(np.ones(3), 20)
    >>> others = rng.random((9, 3)), rng.random((8, 3))
    >>> truth = robustcp.KruskalTensor.from_factors([shares, *others])
    >>> X = truth.full() + 0.01 * rng.standard_normal((20, 9, 8))
    >>> fit = robustcp.cp(X, 3, constraints={0: robustcp.Simplex()})
    >>> bool(np.allclose(robustcp.Simplex().compositions(fit.factors[0]).sum(axis=1), 1))
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

    @property
    def relaxed_at_start(self) -> bool:
        return True

    def compositions(self, factor: Array) -> np.ndarray:
        """The rows of a factor in the units of components in which they sum to one."""
        A = np.asarray(to_host(factor), dtype=np.float64)
        return np.asarray(A * closing_units(A))

    def project(self, factor: Array) -> Array:
        """A near factor: rows on the simplex, in the units in which their sums vary least."""
        A = np.maximum(np.asarray(to_host(factor), dtype=np.float64), 0.0)
        d = closing_units(A)
        return as_array_like(nearest_on_simplex(A * d) / d, factor)

    def solve(
        self,
        equations: NormalEquations,
        rows: Array,
        mu: float,
        algebra: Algebra,
        penalty_weights: np.ndarray | None = None,
    ) -> Array:
        G, gradient, U = host_equations(equations, rows)
        d = closing_units(U)
        H = (G + mu * np.eye(len(d))) / np.outer(d, d)
        new = minimum_on_simplex(H, (gradient - mu * U) / d, nearest_on_simplex(U * d))
        return as_array_like(new / d, rows)


def closing_units(A: np.ndarray) -> np.ndarray:
    """The positive d for which A d is nearest to 1."""
    from scipy.optimize import nnls

    ones = np.ones(len(A))
    d = np.linalg.lstsq(A, ones)[0]
    if not (d > 0).all():
        d = nnls(A, ones)[0]
    unused = d <= 0
    if unused.all():
        return np.ones_like(d)
    d[unused] = np.exp(np.mean(np.log(d[~unused])))
    return np.asarray(d)


def nearest_on_simplex(A: np.ndarray) -> np.ndarray:
    """The nearest rows that are nonnegative and sum to one.

    >>> nearest_on_simplex(np.array([[0.2, 0.6], [3.0, 0.0]]))
    array([[0.3, 0.7],
           [1. , 0. ]])
    """
    falling = -np.sort(-A, axis=1)
    excess = (np.cumsum(falling, axis=1) - 1) / np.arange(1, A.shape[1] + 1)
    last = np.sum(falling > excess, axis=1) - 1
    return np.asarray(np.maximum(A - excess[np.arange(len(A)), last][:, None], 0.0))


def minimum_on_simplex(H: np.ndarray, gradient: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The rows w on the simplex that minimise (w - rows)'H(w - rows)/2 - gradient'(w - rows).

    On the simplex the function is w'Qw/2 and a constant, Q = H - b1' - 1b' + c 11' with
    b = H rows + gradient. With c such that Q is positive definite, w is v / sum(v) for the v >= 0
    that minimises v'Qv/2 - sum(v): both satisfy the same KKT conditions.
    """
    count, rank = rows.shape
    H = np.broadcast_to(H, (count, rank, rank)).copy()
    diagonal = np.einsum("irr->ir", H)  # a view
    raised = diagonal_shift(rows) * diagonal
    empty = ~diagonal.any(axis=1)
    diagonal += np.where(diagonal + raised > 0, raised, 1.0)
    b = np.einsum("irs,is->ir", H, rows) + gradient
    scale = diagonal.mean(axis=1)
    c = np.sum(b * np.linalg.solve(H, b[:, :, None])[:, :, 0], axis=1) + scale
    Q = (H - b[:, :, None] - b[:, None, :] + c[:, None, None]) / scale[:, None, None]
    i, j = pack_indices(rank)
    slope = 1 - np.einsum("irs,is->ir", Q, rows)
    equations = NormalEquations(np.ascontiguousarray(Q[:, i, j]), slope, 0.0)
    v = algebra_for(np).solve_nonnegative_rows(equations, rows, 0.0)
    new = v / v.sum(axis=1, keepdims=True)
    step = new - rows
    rise = np.sum(step * (0.5 * np.einsum("irs,is->ir", H, step) - gradient), axis=1)
    return np.asarray(np.where((empty | ~(rise <= 0))[:, None], rows, new))
