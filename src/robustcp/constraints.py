"""Constraints: how a factor is solved from its normal equations."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from array_api_compat import array_namespace, device

from robustcp._typing import Array, Factors
from robustcp.engines.algebra import Algebra
from robustcp.normal import NormalEquations


class Constraint:
    """What the factor of one mode must be like. This one: like anything.

    A factor is solved row by row: `solve` gets the rows' normal equations and their current
    values, and must not raise the majorizer plus mu/2 |u|^2. `project` gives the nearest factor
    that is allowed, for starts and extrapolated steps.
    """

    def solve(self, equations: NormalEquations, rows: Array, mu: float, algebra: Algebra) -> Array:
        return algebra.solved(equations, rows, mu)

    def project(self, factor: Array) -> Array:
        return factor

    @property
    def signed(self) -> bool:
        """Whether entries may be negative."""
        return True


@dataclass(frozen=True)
class Free(Constraint):
    """No constraint."""


@dataclass(frozen=True)
class Nonnegative(Constraint):
    """No negative entries: the rows that satisfy their KKT conditions."""

    @property
    def signed(self) -> bool:
        return False

    def project(self, factor: Array) -> Array:
        return array_namespace(factor).clip(factor, min=0.0)

    def solve(self, equations: NormalEquations, rows: Array, mu: float, algebra: Algebra) -> Array:
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


#: One constraint for each mode.
Constraints = tuple[Constraint, ...]


def feasible(factors: Factors, constraints: Constraints, modes: Collection[int]) -> Factors:
    """The nearest factors that are allowed; those of other modes stay as they are."""
    return tuple(
        constraints[mode].project(A) if mode in modes else A for mode, A in enumerate(factors)
    )
