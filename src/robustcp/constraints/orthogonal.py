"""Columns that are orthogonal to each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from robustcp._util.typing import Array
from robustcp.constraints.base import Constraint, Free, as_array_like, host_equations
from robustcp.engines import to_host
from robustcp.engines.algebra import Algebra
from robustcp.engines.normal_equations import NormalEquations

#: Procrustes steps in one update of the factor, and in a projection.
STEPS = 5
#: A step that changes directions by less than this is the last.
STEP_TOL = 1e-10


@dataclass(frozen=True)
class Orthogonal(Constraint):
    """Columns that are orthogonal to each other, of any length.

    The factor is Q diag(d) with Q'Q = I. Lengths d solve their least-squares problem; directions Q
    take a Procrustes step (Kiers 1990): the majorizer is raised to one whose Gram matrix is
    the same for all rows, which orthogonal columns minimise at the polar factor of a matrix. For
    least squares and complete data that is exact. A mode with fewer rows than components has some
    columns of 0.

    Scores of single samples, as of `Fit.project` and in subsamples, are free.

    Examples
    --------
    >>> import numpy as np, robustcp
    >>> rng = np.random.default_rng(0)
    >>> Q = np.linalg.qr(rng.standard_normal((20, 3)))[0]
    >>> truth = robustcp.KruskalTensor.from_factors(
    ...     [Q, rng.standard_normal((9, 3)), rng.standard_normal((8, 3))]
    ... )
    >>> X = truth.full() + 0.1 * rng.standard_normal((20, 9, 8))
    >>> fit = robustcp.cp(X, 3, constraints={0: robustcp.Orthogonal()})
    >>> bool(np.allclose(fit.factors[0].T @ fit.factors[0], np.eye(3)))
    True
    """

    @property
    def symmetric(self) -> bool:
        return True

    @property
    def couples_rows(self) -> bool:
        return True

    @property
    def leaves_empty_rows(self) -> bool:
        return False

    @property
    def relaxed_at_start(self) -> bool:
        return True

    def on(self, indices: np.ndarray) -> Constraint:
        return Free()

    def project(self, factor: Array) -> Array:
        """The nearest factor, by turns for lengths and directions."""
        A = np.asarray(to_host(factor), dtype=np.float64)
        lengths = np.linalg.norm(A, axis=0)
        for _ in range(STEPS):
            Q = polar_factor(A * lengths)
            lengths = np.sum(Q * A, axis=0)
        return as_array_like(Q * lengths, factor)

    def solve(
        self,
        equations: NormalEquations,
        rows: Array,
        mu: float,
        algebra: Algebra,
        penalty_weights: np.ndarray | None = None,
    ) -> Array:
        """Lengths and directions by turns, a few times."""
        G, gradient, U = host_equations(equations, rows)
        G = G + mu * np.eye(U.shape[1])
        b = gradient - mu * U + _multiply(G, U)
        bound = common_bound(G)
        lengths = np.linalg.norm(U, axis=0)
        Q = polar_factor(U * (1 / np.where(lengths > 0, lengths, 1.0)))
        for _ in range(STEPS):
            scaled = Q * lengths
            moved = lengths * (b - _multiply(G, scaled)) + scaled @ (bound * lengths)
            previous, Q = Q, polar_factor(moved)
            products = G * (Q.T @ Q) if len(G) == 1 else G * Q[:, :, None] * Q[:, None, :]
            curvature, slope = products.sum(axis=0), np.sum(Q * b, axis=0)
            lengths = lengths + np.linalg.lstsq(curvature, slope - curvature @ lengths)[0]
            if np.abs(Q - previous).max() < STEP_TOL:
                break
        return as_array_like(Q * lengths, rows)


def polar_factor(A: np.ndarray) -> np.ndarray:
    """The matrix of orthonormal columns for which the trace of Q'A is largest.

    With fewer rows than columns, for which there is none, the shortest columns become 0.

    >>> polar_factor(np.array([[0.0, 2.0], [-3.0, 0.0]])).round(12)
    array([[ 0.,  1.],
           [-1.,  0.]])
    """
    Q: np.ndarray = np.zeros_like(A)
    longest = np.sort(np.argsort(-np.linalg.norm(A, axis=0), kind="stable")[: len(A)])
    left, _, right = np.linalg.svd(A[:, longest], full_matrices=False)
    Q[:, longest] = left @ right
    return Q


def common_bound(G: np.ndarray) -> np.ndarray:
    """A matrix that is nowhere below any of some Gram matrices: a multiple of their mean."""
    mean = G.mean(axis=0)
    if len(G) == 1 or not mean.any():
        return np.asarray(mean)
    mean = mean + 1e-10 * np.trace(mean) / len(mean) * np.eye(len(mean))
    root = np.linalg.inv(np.linalg.cholesky(mean))
    largest = np.linalg.eigvalsh(root @ G @ root.T)[:, -1].max()
    return np.asarray((1 + 1e-10) * largest * mean)


def _multiply(G: np.ndarray, U: np.ndarray) -> np.ndarray:
    """G_i u_i for each row."""
    products: np.ndarray = U @ G[0] if len(G) == 1 else (G @ U[:, :, None])[:, :, 0]
    return products
