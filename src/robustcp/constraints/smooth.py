"""Columns that change little from one index to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import Any

import numpy as np

from robustcp._util import checks
from robustcp._util.typing import Array
from robustcp.constraints.banded import BandedMatrix, nonnegative_minimum
from robustcp.constraints.base import as_array_like, host_equations
from robustcp.constraints.nonnegative import OptionallyNonnegative
from robustcp.engines import to_host
from robustcp.engines.algebra import Algebra, diagonal_shift
from robustcp.engines.normal_equations import NormalEquations


@dataclass(frozen=True)
class Smooth(OptionallyNonnegative):
    """Small second differences along the mode; rows without data follow from their neighbours.

    The objective gains, for each component r of the mode's factor,

        lambda |D a_r|^2 prod_m |b_r^(m)|^2,

    with D the second differences and b_r the columns of the other modes. It does not depend on
    how a component's size is shared out among the modes. Where the labels of the data (of an
    xarray.DataArray, or from a file) are numbers or dates, differences are divided by the
    distances between them, in units of their mean.

    Parameters
    ----------
    strength : float
        lambda, relative to the scale of the data, so that a fit of c * X is c times that of X.
        For least squares and complete data the columns are smoothed as by Whittaker's smoother
        with the parameter 2 * strength.
    nonnegative : bool
        Whether entries must not be negative either.
    coordinates : sequence of float, optional
        Where the indices of the mode are, in place of the data's labels.
    unit : float, optional
        The distance that counts as 1; by default the mean distance.

    Examples
    --------
    >>> import numpy as np, robustcp
    >>> x = np.linspace(0, 1, 40)
    >>> bumps = np.stack([np.exp(-((x - c) ** 2) / 0.02) for c in (0.3, 0.6)], axis=1)
    >>> rng = np.random.default_rng(0)
    >>> truth = robustcp.KruskalTensor.from_factors([rng.random((6, 2)), bumps, rng.random((5, 2))])
    >>> X = truth.full() + 0.1 * rng.standard_normal((6, 40, 5))
    >>> plain = robustcp.cp(X, 2)
    >>> smooth = robustcp.cp(X, 2, constraints={1: robustcp.Smooth(1.0)})
    >>> score = robustcp.factor_match_score
    >>> score(smooth, truth) > score(plain, truth)
    True
    """

    strength: float
    nonnegative: bool = False
    coordinates: Sequence[float] | None = field(default=None, repr=False, kw_only=True)
    unit: float | None = field(default=None, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "strength", checks.real_number("strength", self.strength, 0.0, strict=True))
        self._check_nonnegative()
        if self.unit is not None:
            set_(self, "unit", checks.real_number("unit", self.unit, 0.0, strict=True))
        if self.coordinates is not None:
            set_(self, "coordinates", _distinct_coordinates(self.coordinates))

    @property
    def symmetric(self) -> bool:
        return not self.nonnegative

    def bound(self, size: int, labels: Sequence[Any] | None) -> Smooth:
        coordinates = self.coordinates
        if coordinates is None:
            label_values = numeric_labels(labels)
            coordinates = (
                tuple(map(float, range(size)))
                if label_values is None
                else _distinct_coordinates(label_values)
            )
        if len(coordinates) != size:
            raise ValueError(f"coordinates: {len(coordinates)} of them for a mode of size {size}")
        spread = (max(coordinates) - min(coordinates)) / max(1, size - 1)
        return replace(self, coordinates=coordinates, unit=self.unit or spread or 1.0)

    def on(self, indices: np.ndarray) -> Smooth:
        if self.coordinates is None:
            return replace(self, coordinates=tuple(map(float, indices)), unit=self.unit or 1.0)
        return replace(self, coordinates=tuple(self.coordinates[k] for k in indices))

    def project(self, factor: Array) -> Array:
        return self.of_rows.project(factor)

    def penalty(self, factor: Array) -> np.ndarray:
        A = np.asarray(to_host(factor), dtype=np.float64)
        D = self._differences(len(A))
        penalties: np.ndarray = self.strength * np.sum(D.apply(A[D.order]) ** 2, axis=0)
        return penalties

    def solve(
        self,
        equations: NormalEquations,
        rows: Array,
        mu: float,
        algebra: Algebra,
        penalty_weights: np.ndarray | None = None,
    ) -> Array:
        """Solve for all rows at once, as a step from the current ones; the system is banded."""
        G, gradient, U = host_equations(equations, rows)
        count, rank = U.shape
        D = self._differences(count)
        weights = np.ones(rank) if penalty_weights is None else penalty_weights
        cost = 2 * self.strength * weights
        G = np.broadcast_to(G, (count, rank, rank))[D.order]
        u = U[D.order]
        penalty_gradient = cost * D.apply_transpose(D.apply(u))
        negative_gradient = (gradient[D.order] - mu * u - penalty_gradient).ravel()
        # A slightly larger diagonal keeps it from being singular by rounding; the step descends.
        H = BandedMatrix(_hessian_bands(G, mu, cost, D)).scale_diagonal(1 + diagonal_shift(rows))
        new = np.empty_like(U)
        new[D.order] = self._solve(H, negative_gradient, u.ravel()).reshape(count, rank)
        return as_array_like(new, rows)

    def _solve(self, H: BandedMatrix, negative_gradient: np.ndarray, u: np.ndarray) -> np.ndarray:
        for relative_ridge in (0.0, 1e-9, 1e-5, 1e-1):
            try:
                regularized = H.scale_diagonal(1 + relative_ridge)
                if self.nonnegative:
                    return nonnegative_minimum(
                        regularized, negative_gradient + regularized.multiply(u), u
                    )
                return np.asarray(u + regularized.solve(negative_gradient))
            except np.linalg.LinAlgError:
                continue
        return u

    def _differences(self, count: int) -> SecondDifferences:
        coordinates = np.arange(count) if self.coordinates is None else np.array(self.coordinates)
        spread = float(np.ptp(coordinates)) / max(1, count - 1) if self.unit is None else self.unit
        return SecondDifferences.from_coordinates(coordinates / (spread or 1.0))


@dataclass(frozen=True, eq=False)
class SecondDifferences:
    """The matrix D of second differences between positions.

    Attributes
    ----------
    order : array (count,)
        Indices in the order of their positions.
    weights : array (3, count - 2)
        The weights of each row and the two after it; 1, -2, 1 if neighbours are at distance 1.
    """

    order: np.ndarray
    weights: np.ndarray

    @classmethod
    def from_coordinates(cls, coordinates: np.ndarray) -> SecondDifferences:
        order = np.argsort(coordinates, kind="stable")
        h = np.diff(coordinates[order])
        left, right = h[:-1], h[1:]
        total = left + right
        return cls(order, np.stack([2 / (left * total), -2 / (left * right), 2 / (right * total)]))

    def apply(self, A: np.ndarray) -> np.ndarray:
        """D A, for rows in order."""
        p, q, r = self.weights[:, :, None]
        differences: np.ndarray = p * A[:-2] + q * A[1:-1] + r * A[2:]
        return differences

    def apply_transpose(self, B: np.ndarray) -> np.ndarray:
        """D' B."""
        p, q, r = self.weights[:, :, None]
        A = np.zeros((len(self.order), B.shape[1]))
        A[:-2] += p * B
        A[1:-1] += q * B
        A[2:] += r * B
        return A

    def gram_bands(self) -> list[np.ndarray]:
        """The diagonal of D'D, and the two below it."""
        p, q, r = self.weights
        count = len(self.order)
        diagonal, first = np.zeros(count), np.zeros(max(0, count - 1))
        diagonal[:-2] += p * p
        diagonal[1:-1] += q * q
        diagonal[2:] += r * r
        first[:-1] += p * q
        first[1:] += q * r
        return [diagonal, first, p * r]


def _hessian_bands(G: np.ndarray, mu: float, cost: np.ndarray, D: SecondDifferences) -> np.ndarray:
    """blockdiag(G_i + mu I) + D'D (x) diag(cost), entries of a row side by side."""
    count, rank, _ = G.shape
    bands = np.zeros((2 * rank + 1, count, rank))
    for k in range(rank):
        for r in range(rank - k):
            bands[k, :, r] = G[:, r + k, r]
    bands[0] += mu
    for k, band in enumerate(D.gram_bands()):
        bands[k * rank, : len(band), :] += band[:, None] * cost
    return bands.reshape(2 * rank + 1, count * rank)


def _distinct_coordinates(coordinates: Any) -> tuple[float, ...]:
    """Coordinates as finite numbers that differ; else an error."""
    try:
        numbers = np.array(coordinates, dtype=np.float64).ravel()
    except (TypeError, ValueError):
        raise ValueError(f"coordinates: must be numbers, got {coordinates!r}") from None
    if not np.isfinite(numbers).all() or np.unique(numbers).size < numbers.size:
        raise ValueError("coordinates: a smooth mode needs finite labels that differ")
    return tuple(map(float, numbers))


def numeric_labels(labels: Sequence[Any] | None) -> np.ndarray | None:
    """Labels as numbers, where they are numbers, dates or durations; else None.

    >>> numeric_labels(["2024-01-01", "2024-01-02"]) is None
    True
    >>> import datetime
    >>> numeric_labels([datetime.date(2024, 1, 1), datetime.date(2024, 1, 3)])
    array([     0., 172800.])
    """
    if labels is None or not len(labels):
        return None
    if all(isinstance(x, int | float | np.integer | np.floating) for x in labels):
        if any(isinstance(x, bool) for x in labels):
            return None
        return np.array(labels, dtype=np.float64)
    if not all(isinstance(x, date | timedelta | np.datetime64 | np.timedelta64) for x in labels):
        return None
    try:
        return np.array([_seconds(x - labels[0]) for x in labels])
    except (TypeError, ValueError):  # times with a zone and without
        return None


def _seconds(span: Any) -> float:
    if isinstance(span, np.timedelta64):
        return float(span / np.timedelta64(1, "s"))
    return float(span.total_seconds())
