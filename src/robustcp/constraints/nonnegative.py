"""No negative entries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace, device

from robustcp._typing import Array
from robustcp.constraints.base import Constraint
from robustcp.engines.algebra import Algebra
from robustcp.normal import NormalEquations


@dataclass(frozen=True)
class Nonnegative(Constraint):
    """No negative entries: the rows that satisfy their KKT conditions.

    Examples
    --------
    >>> import robustcp
    >>> sim = robustcp.simulate((12, 11, 10), 2, eta=0.1, gamma=1.0, rng=0)
    >>> fit = robustcp.cp(sim.data, 2, constraints={1: robustcp.Nonnegative()})
    >>> bool((fit.factors[1] >= 0).all())
    True
    """

    @property
    def signed(self) -> bool:
        return False

    def project(self, factor: Array) -> Array:
        return array_namespace(factor).clip(factor, min=0.0)

    def solve(
        self,
        equations: NormalEquations,
        rows: Array,
        mu: float,
        algebra: Algebra,
        price: np.ndarray | None = None,
    ) -> Array:
        """By block principal pivoting, for all rows at once.

        Each row guesses which of its entries are positive, solves for those, and moves the
        entries that turn out wrong to the other side; if that does not lessen their number for a
        while it moves one at a time, which must end.
        """
        xp = array_namespace(rows)
        G, has_data = algebra.grams(equations, rows, mu)
        rank = rows.shape[1]
        b = equations.gradient - mu * rows + xp.sum(G * rows[:, None, :], axis=-1)  # G u = b, free
        G = xp.broadcast_to(G, (rows.shape[0], rank, rank))
        eye = xp.eye(rank, dtype=G.dtype, device=device(G))
        slack = 64 * rank * float(xp.finfo(G.dtype).eps)
        column = xp.arange(rank, device=device(rows))[None, :]
        positive = rows > 0
        fewest = xp.full((rows.shape[0],), rank + 1, device=device(rows))
        patience = xp.full((rows.shape[0],), 3, device=device(rows))
        u = rows
        for _ in range(10 + 4 * rank * rank):
            both = positive[:, :, None] & positive[:, None, :]
            masked = xp.where(both, G, xp.where(positive[:, :, None], xp.zeros_like(eye), eye))
            u = algebra.solve(masked, xp.where(positive, b, xp.zeros_like(b)))
            y = xp.sum(G * u[:, None, :], axis=-1) - b  # the gradient: >= 0 where u is 0
            size = xp.max(xp.abs(b), axis=1, keepdims=True)
            wrong = (positive & (u < 0)) | (~positive & (y < -slack * size))
            count = xp.sum(xp.astype(wrong, fewest.dtype), axis=1)
            if not bool(xp.any(count > 0)):
                break
            better = count < fewest
            fewest = xp.where(better, count, fewest)
            patience = xp.where(better, xp.full_like(patience, 3), patience - 1)
            last = xp.max(xp.where(wrong, column, xp.full_like(column, -1)), axis=1, keepdims=True)
            one = wrong & (column == last)
            positive = positive ^ xp.where((patience >= 0)[:, None], wrong, one)
        u = xp.clip(u, min=0.0)
        return u if has_data is None else rows + (u - rows) * has_data
