"""Tests of residuals for structure: correlated neighbours and remaining components."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from robustcp._util.typing import Factors
from robustcp.engines import Axes, Engine
from robustcp.noise.settings import STRUCTURE_SETTINGS


@dataclass(frozen=True)
class ResidualStructure:
    """Structure in residuals, which noise does not have.

    Attributes
    ----------
    autocorrelations : tuple of float, one for each mode
        The correlation of residuals that are neighbours in a mode.
    leading_eigenvalues : tuple of float, one for each mode
        The leading eigenvalue of the covariance between the slabs of a mode, where that of noise
        is 1.
    limits : tuple of (float, float), one for each mode
        The largest autocorrelation and eigenvalue that are taken as chance.
    """

    autocorrelations: tuple[float, ...]
    leading_eigenvalues: tuple[float, ...]
    limits: tuple[tuple[float, float], ...]

    def describe(self, axes: Axes) -> list[str]:
        """A sentence for users if there is structure."""
        strong = [
            mode
            for mode, (value, limit) in enumerate(
                zip(self.leading_eigenvalues, self.limits, strict=True)
            )
            if value > limit[1]
        ]
        findings = []
        if len(strong) == len(self.leading_eigenvalues):
            findings.append("they vary together in all modes, as a further component would")
        for mode, (autocorrelation, limit) in enumerate(
            zip(self.autocorrelations, self.limits, strict=True)
        ):
            if autocorrelation > limit[0]:
                findings.append(
                    f"neighbours along {axes.mode_name(mode)} correlate by {autocorrelation:.2f}"
                )
        return ["residuals are structured: " + " and ".join(findings)] if findings else []


def are_evenly_spread(outlying: np.ndarray, indices: Sequence[np.ndarray]) -> bool:
    """Whether outlying entries, a mask, are spread over the slabs of each mode as at random.

    By the sum of squared deviations of their numbers in slabs, in units of binomial variances.
    """
    share = float(np.mean(outlying)) if outlying.size else 0.0
    if share in (0.0, 1.0):
        return True
    for index in indices:
        counts = np.bincount(index)
        deviations = np.bincount(index, outlying) - share * counts
        squares = float(np.sum(deviations**2 / np.maximum(counts, 1))) / (share * (1 - share))
        degrees_of_freedom = np.count_nonzero(counts) - 1
        limit = STRUCTURE_SETTINGS.min_z_score * math.sqrt(2 * degrees_of_freedom)
        if squares > degrees_of_freedom + limit:
            return False
    return True


def measure_structure(
    engine: Engine,
    factors: Factors,
    sigma: float,
) -> ResidualStructure:
    """The structure of residuals over sigma, in a window of entries next to each other."""
    Z = _residual_window(engine, factors) / sigma
    valid = np.abs(Z) <= STRUCTURE_SETTINGS.outlier_limit
    count = int(valid.sum())
    order = Z.ndim
    if (
        count < STRUCTURE_SETTINGS.min_residuals
        or float(np.mean(Z[valid] ** 2)) < STRUCTURE_SETTINGS.exact_limit**2
    ):
        return ResidualStructure((0.0,) * order, (1.0,) * order, ((1.0, math.inf),) * order)
    Z = np.where(valid, Z - float(np.mean(Z[valid])), 0.0)
    variance = float(np.sum(Z * Z)) / count
    autocorrelations, leading_eigenvalues, limits = [], [], []
    for mode in range(order):
        z = np.moveaxis(Z, mode, 0).reshape(Z.shape[mode], -1)
        valid_rows = np.moveaxis(valid, mode, 0).reshape(z.shape)
        pairs = int(np.sum(valid_rows[1:] & valid_rows[:-1]))
        autocorrelations.append(
            float(np.sum(z[1:] * z[:-1])) / max(pairs, 1) / max(variance, 1e-300)
        )
        value, limit = _leading_eigenvalue(z, valid_rows, variance)
        leading_eigenvalues.append(value)
        error = 1 / math.sqrt(max(pairs, 1))
        limits.append(
            (
                max(STRUCTURE_SETTINGS.min_autocorrelation, STRUCTURE_SETTINGS.min_z_score * error),
                limit,
            )
        )
    return ResidualStructure(tuple(autocorrelations), tuple(leading_eigenvalues), tuple(limits))


def _leading_eigenvalue(z: np.ndarray, valid: np.ndarray, variance: float) -> tuple[float, float]:
    """The leading eigenvalue of the rows' covariance relative to that of noise, and its limit.

    For noise in n rows of m entries it is near (1 + sqrt(n / m))^2 times the variance (Marchenko
    and Pastur), give or take a share of n^(-2/3).
    """
    share = float(valid.mean())
    rows, entries = z.shape[0], max(z.shape[1] * share, 1.0)
    if rows < 3 or entries < 3:
        return 1.0, math.inf
    gram = z @ z.T if rows <= z.shape[1] else z.T @ z
    largest = float(np.linalg.eigvalsh(gram)[-1]) / entries
    edge = (1 + math.sqrt(rows / entries)) ** 2 * max(variance, 1e-300)
    return largest / edge, 1 + STRUCTURE_SETTINGS.min_eigenvalue_excess + 3 * min(
        gram.shape[0], entries
    ) ** (-2 / 3)


def _residual_window(engine: Engine, factors: Factors) -> np.ndarray:
    """Residuals of entries next to each other, in the middle of the data; NaN for missing ones."""
    sizes = list(engine.shape)
    while math.prod(sizes) > STRUCTURE_SETTINGS.window_entries:
        longest = sizes.index(max(sizes))
        sizes[longest] = -(-sizes[longest] // 2)
    Z = np.full(sizes, np.nan)
    if Z.shape != engine.shape:
        indices = [
            np.arange((whole - size) // 2, (whole - size) // 2 + size)
            for whole, size in zip(engine.shape, sizes, strict=True)
        ]
        if not all(int(engine.slab_counts(n)[index].sum()) for n, index in enumerate(indices)):
            return Z
        engine = engine.subtensor(indices)
        factors = tuple(A[k[0] : k[-1] + 1, :] for A, k in zip(factors, indices, strict=True))
    sample = engine.sample(factors)
    Z[sample.indices] = sample.values
    return Z
