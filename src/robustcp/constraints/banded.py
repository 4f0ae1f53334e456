"""Symmetric banded systems on the host, by which coupled rows are solved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: The most rounds of pivoting in a row in which the number of wrong entries does not fall.
PIVOTING_PATIENCE = 10
#: Gradients below this share of the largest are taken as roundings.
GRADIENT_SLACK = 1e-12


@dataclass(frozen=True, eq=False)
class BandedMatrix:
    """A symmetric positive definite matrix: bands[k, j] is its entry (j + k, j)."""

    bands: np.ndarray

    def solve(self, b: np.ndarray) -> np.ndarray:
        from scipy.linalg import solveh_banded

        solution: np.ndarray = solveh_banded(self.bands, b, lower=True, check_finite=False)
        return solution

    def multiply(self, v: np.ndarray) -> np.ndarray:
        out: np.ndarray = self.bands[0] * v
        for k in range(1, min(len(self.bands), v.size)):
            band = self.bands[k, :-k]
            out[k:] += band * v[:-k]
            out[:-k] += band * v[k:]
        return out

    def restrict(self, active: np.ndarray) -> BandedMatrix:
        """The matrix with the rows and columns of the other entries those of the identity."""
        bands = self.bands * active
        for k in range(1, min(len(bands), active.size)):
            bands[k, :-k] *= active[k:]
        bands[0, ~active] = 1.0
        return BandedMatrix(bands)

    def scale_diagonal(self, factor: float) -> BandedMatrix:
        """The matrix with its diagonal times a factor; 1 where it is 0."""
        bands = self.bands.copy()
        bands[0] *= factor
        bands[0, bands[0] <= 0] = 1.0
        return BandedMatrix(bands)


def nonnegative_minimum(H: BandedMatrix, b: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The v >= 0 that minimises v'Hv/2 - b'v, where its KKT conditions hold.

    By block principal pivoting, which is fast but may cycle; if it does not converge, by an active
    set that changes one entry at a time from `start` on.
    """
    minimum = _pivot_blocks(H, b, start > 0)
    return _descend_active_set(H, b, start) if minimum is None else minimum


def _pivot_blocks(H: BandedMatrix, b: np.ndarray, positive: np.ndarray) -> np.ndarray | None:
    """The minimum by block principal pivoting; None if it does not converge.

    It solves for the entries taken as positive, and exchanges those that violate KKT conditions.
    """
    fewest_wrong, patience = b.size + 1, PIVOTING_PATIENCE
    slack = GRADIENT_SLACK * float(np.abs(b).max(initial=0.0))
    while patience > 0:
        v = H.restrict(positive).solve(np.where(positive, b, 0.0))
        y = H.multiply(v) - b
        wrong = np.where(positive, v < 0, y < -slack)
        count = int(wrong.sum())
        if count == 0:
            return v
        patience = PIVOTING_PATIENCE if count < fewest_wrong else patience - 1
        fewest_wrong = min(fewest_wrong, count)
        positive = positive ^ wrong
    return None


def _descend_active_set(H: BandedMatrix, b: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The minimum by the active set of Lawson and Hanson: nonnegative, never above the start."""
    v, positive = start.copy(), start > 0
    slack = GRADIENT_SLACK * float(np.abs(b).max(initial=0.0))
    for _ in range(3 * b.size + 10):
        v, positive = _move_to_minimum(H, b, v, positive)
        negative_gradient = np.where(positive, -np.inf, b - H.multiply(v))
        best = int(np.argmax(negative_gradient))
        if negative_gradient[best] <= slack:
            break
        positive[best] = True
    return v


def _move_to_minimum(
    H: BandedMatrix, b: np.ndarray, v: np.ndarray, positive: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The minimum over the positive entries; entries that reach 0 on the way stay there."""
    while True:
        z = H.restrict(positive).solve(np.where(positive, b, 0.0))
        below = np.flatnonzero(positive & (z < 0))
        if not below.size:
            return z, positive
        shares = v[below] / (v[below] - z[below])
        first = shares <= shares.min()
        v = np.maximum(v + shares.min() * (z - v), 0.0)
        positive = positive.copy()
        positive[below[first]] = False
        v[~positive] = 0.0
