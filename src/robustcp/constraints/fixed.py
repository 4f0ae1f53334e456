"""Columns with known entries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from robustcp._util.typing import Array
from robustcp.constraints.base import Constraint, as_array_like, host_equations
from robustcp.constraints.nonnegative import OptionallyNonnegative
from robustcp.engines import to_host
from robustcp.engines.algebra import Algebra, algebra_for
from robustcp.engines.normal_equations import NormalEquations, pack_indices

#: What a component is worse, as a share of its square, for having the opposite sign.
OPPOSITE_SIGN = 1e-3


@dataclass(frozen=True, repr=False)
class Fixed(OptionallyNonnegative):
    """Known entries of some columns, such as known spectra, or zeros.

    Each known column belongs to the component that it fits best, whatever its number: components
    have no order, and further ones are free. Known entries hold up to a positive factor for each
    column, because the size of a component is shared out among the modes. The other entries of a
    row minimise its parabola.

    Parameters
    ----------
    values : array (I, K), or (I,) for one column
        The known entries; NaN where an entry is not known.
    nonnegative : bool
        Whether entries must not be negative either.

    Examples
    --------
    >>> import numpy as np, robustcp
    >>> sim = robustcp.simulate((12, 11, 10), 2, eta=0.1, gamma=1.0, rng=0)
    >>> known = sim.truth.factors[0][:, 1]
    >>> fit = robustcp.cp(sim.data, 2, constraints={0: robustcp.Fixed(known)})
    >>> unit = known / np.linalg.norm(known)
    >>> bool(np.isclose(fit.factors[0].T @ unit, 1, rtol=0, atol=1e-12).any())
    True
    """

    values: Any
    nonnegative: bool = False

    def __post_init__(self) -> None:
        self._check_nonnegative()
        given = self.values
        try:
            values = np.array(
                given if isinstance(given, list | tuple) else to_host(given), dtype=np.float64
            )
        except (TypeError, ValueError, AttributeError):
            raise ValueError(f"values: must be an array of numbers, got {self.values!r}") from None
        values = values[:, None] if values.ndim == 1 else values
        if values.ndim != 2 or np.isinf(values).any() or np.isnan(values).all():
            raise ValueError("values: must be columns of finite numbers, with NaN for free entries")
        if self.nonnegative and (values < 0).any():
            raise ValueError("values: some are negative, but nonnegative=True")
        plain = tuple(tuple(None if x != x else x for x in row) for row in values.tolist())
        object.__setattr__(self, "values", plain)  # which compares, and is saved as it is

    def __repr__(self) -> str:
        count, columns = self._known.shape
        mean = self._columns.sum() / self._known.sum()
        return (
            f"Fixed({self._known.sum()} of {count} x {columns} entries, mean {mean:.6g}"
            f"{', nonnegative' if self.nonnegative else ''})"
        )

    @cached_property
    def _known(self) -> np.ndarray:
        """Which entries are known."""
        return ~np.isnan(np.array(self.values, dtype=np.float64))

    @cached_property
    def _columns(self) -> np.ndarray:
        """The known entries, 0 elsewhere."""
        return np.nan_to_num(np.array(self.values, dtype=np.float64))

    @property
    def leaves_empty_rows(self) -> bool:
        return False

    @property
    def relaxed_at_start(self) -> bool:
        return True

    def bound(self, size: int, labels: Any) -> Fixed:
        if len(self.values) != size:
            raise ValueError(f"values: {len(self.values)} rows for a mode of size {size}")
        return self

    def on(self, indices: np.ndarray) -> Constraint:
        if not self._known[indices].any():
            return self.of_rows
        return replace(self, values=np.where(self._known, self._columns, np.nan)[indices])

    def project(self, factor: Array) -> Array:
        """The factor with its known entries, at the size that they had in each column."""
        A = np.array(to_host(factor), dtype=np.float64)
        if self.nonnegative:
            A = np.maximum(A, 0.0)
        for k, r in self._matches(A):
            known, column = self._known[:, k], self._columns[:, k]
            A[known, r] = _size_along(A[:, r], column) * column[known]
        return as_array_like(A, factor)

    def solve(
        self,
        equations: NormalEquations,
        rows: Array,
        mu: float,
        algebra: Algebra,
        penalty_weights: np.ndarray | None = None,
    ) -> Array:
        G, gradient, U = host_equations(equations, rows)
        rank = U.shape[1]
        free = np.ones(U.shape, dtype=bool)
        for k, r in self._matches(U):
            free[:, r] = ~self._known[:, k]
        G = np.broadcast_to(G, (len(U), rank, rank)) + mu * np.eye(rank)
        G = G * (free[:, :, None] & free[:, None, :] | np.eye(rank, dtype=bool))
        i, j = pack_indices(rank)
        restricted = NormalEquations(
            np.ascontiguousarray(G[:, i, j]), np.where(free, gradient - mu * U, 0.0), 0.0
        )
        host_algebra = algebra_for(np)
        if self.nonnegative:
            new = host_algebra.solve_nonnegative_rows(restricted, U, 0.0)
        else:
            new = host_algebra.solve_rows(restricted, U, 0.0)
        return as_array_like(np.where(free, new, U), rows)

    def _matches(self, A: np.ndarray) -> list[tuple[int, int]]:
        """Pairs of a known column and the component that it fits best; each at most once."""
        from scipy.optimize import linear_sum_assignment

        known, columns = self._known, self._columns
        squares = np.maximum(np.sum(columns**2, axis=0), 1e-300)[:, None]
        products, total = columns.T @ A, np.sum(A**2, axis=0)
        misfits = (known.T @ A**2 - products**2 / squares) / np.where(total > 0, total, 1.0)
        misfits = np.where(total > 0, misfits, 1.0) + OPPOSITE_SIGN * (products < 0)
        return list(zip(*map(np.ndarray.tolist, linear_sum_assignment(misfits)), strict=True))


def _size_along(a: np.ndarray, column: np.ndarray) -> float:
    """The positive size of a along a column, or else that of its entries where that is known."""
    square, product = float(column @ column), float(column @ a)
    if square == 0 or product > 0:
        return product / square if square else 0.0
    magnitude = float(np.linalg.norm(a[column != 0]))
    return magnitude / float(np.sqrt(square)) or 1.0
