"""Updates of one column after the other, for constraints on whole columns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from robustcp._util.typing import Array
from robustcp.constraints.base import as_array_like, host_equations
from robustcp.engines.normal_equations import NormalEquations

#: Rounds over the columns in one update of the factor.
COLUMN_CYCLES = 5

#: The best column, given its number, the column without constraint, and the weights of its entries.
ColumnSolver = Callable[[int, np.ndarray, np.ndarray], np.ndarray]


def solve_columns(
    equations: NormalEquations, rows: Array, mu: float, solve_column: ColumnSolver
) -> Array:
    """Move each column in turn to its optimum, a few times.

    With the other columns held, the majorizer of column v is sum_i weights_i (v_i - target_i)^2 / 2
    and a constant. The weights are 0 for rows without data, whose target is the current value.
    """
    G, gradient, U = host_equations(equations, rows)
    rank = U.shape[1]
    G = G + mu * np.eye(rank)
    negative_gradient = gradient - mu * U
    for _ in range(COLUMN_CYCLES):
        previous = U.copy()
        for r in range(rank):
            weights = np.broadcast_to(G[:, r, r], len(U))
            observed = weights > 0
            if not observed.any():
                continue
            target = U[:, r].copy()
            target[observed] += negative_gradient[observed, r] / weights[observed]
            new = solve_column(r, target, weights)
            negative_gradient -= G[:, :, r] * (new - U[:, r])[:, None]
            U[:, r] = new
        if np.array_equal(U, previous):
            break
    return as_array_like(U, rows)


def interpolate_unobserved(
    regression: Callable[[np.ndarray, np.ndarray], np.ndarray],
    target: np.ndarray,
    weights: np.ndarray,
) -> np.ndarray:
    """A regression of the entries with weight; the others lie between their neighbours."""
    observed = np.flatnonzero(weights > 0)
    column = regression(target[observed], weights[observed])
    return np.asarray(np.interp(np.arange(len(target)), observed, column))
