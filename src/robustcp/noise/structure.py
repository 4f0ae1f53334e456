"""Whether residuals are noise: neighbours that are alike, and what is left of a component."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from robustcp._typing import Factors
from robustcp.engines import Engine

#: Entries that are looked at, next to each other.
WINDOW = 1 << 16
#: Residuals beyond this many standard deviations are outliers, and not looked at.
OUTLYING = 4.0
#: The correlation of neighbours that is reported, if it is so many times as large as by chance.
ALIKE, SURE = 0.1, 5.0
#: The leading eigenvalue of noise is reported if it is larger by this share than it should be.
LEADING = 0.3
#: Fewer residuals tell nothing, nor do such that are this small in units of the noise: where the
#: model is exact, they are roundings.
PLENTY, EXACT = 500, 0.01


@dataclass(frozen=True)
class Structure:
    """What is not noise in residuals.

    Attributes
    ----------
    alike : tuple of float, one for each mode
        The correlation of residuals that are neighbours in a mode.
    leading : tuple of float, one for each mode
        The leading eigenvalue of the covariance between the slabs of a mode, where that of noise
        is 1.
    by_chance : tuple of (float, float), one for each mode
        How large they may be by chance.
    """

    alike: tuple[float, ...]
    leading: tuple[float, ...]
    by_chance: tuple[tuple[float, float], ...]

    @property
    def notes(self) -> list[str]:
        """What users should know."""
        strong = [
            mode
            for mode, (value, limit) in enumerate(zip(self.leading, self.by_chance, strict=True))
            if value > limit[1]
        ]
        found = []
        if len(strong) == len(self.leading):
            found.append("they vary together in all modes, as a further component would")
        for mode, (alike, limit) in enumerate(zip(self.alike, self.by_chance, strict=True)):
            if alike > max(ALIKE, limit[0]):
                found.append(f"neighbours along mode {mode} correlate by {alike:.2f}")
        return ["residuals are structured: " + " and ".join(found)] if found else []


def structure_of(engine: Engine, factors: Factors, sigma: float) -> Structure:
    """The structure of residuals over sigma, in a window of entries next to each other."""
    Z = _window(engine, factors) / sigma
    seen = np.abs(Z) <= OUTLYING
    count = int(seen.sum())
    order = Z.ndim
    if count < PLENTY or float(np.mean(Z[seen] ** 2)) < EXACT**2:
        return Structure((0.0,) * order, (1.0,) * order, ((1.0, math.inf),) * order)
    Z = np.where(seen, Z - float(np.mean(Z[seen])), 0.0)
    variance = float(np.sum(Z * Z)) / count
    alike, leading, limits = [], [], []
    for mode in range(order):
        z = np.moveaxis(Z, mode, 0).reshape(Z.shape[mode], -1)
        there = np.moveaxis(seen, mode, 0).reshape(z.shape)
        pairs = int(np.sum(there[1:] & there[:-1]))
        alike.append(float(np.sum(z[1:] * z[:-1])) / max(pairs, 1) / max(variance, 1e-300))
        value, limit = _leading(z, there, variance)
        leading.append(value)
        limits.append((SURE / math.sqrt(max(pairs, 1)), limit))
    return Structure(tuple(alike), tuple(leading), tuple(limits))


def _leading(z: np.ndarray, there: np.ndarray, variance: float) -> tuple[float, float]:
    """The leading eigenvalue of the rows' covariance beside that of noise, and what it may be.

    For noise in n rows of m entries it is near (1 + sqrt(n / m))^2 times the variance (Marchenko
    and Pastur), give or take a share of n^(-2/3).
    """
    share = float(there.mean())
    rows, entries = z.shape[0], max(z.shape[1] * share, 1.0)
    if rows < 3 or entries < 3:
        return 1.0, math.inf
    small = z @ z.T if rows <= z.shape[1] else z.T @ z
    largest = float(np.linalg.eigvalsh(small)[-1]) / entries
    edge = (1 + math.sqrt(rows / entries)) ** 2 * max(variance, 1e-300)
    return largest / edge, 1 + LEADING + 3 * min(small.shape[0], entries) ** (-2 / 3)


def _window(engine: Engine, factors: Factors) -> np.ndarray:
    """Residuals of entries next to each other, in the middle of the data; NaN for missing ones."""
    sizes = list(engine.shape)
    while math.prod(sizes) > WINDOW:
        longest = sizes.index(max(sizes))
        sizes[longest] = -(-sizes[longest] // 2)
    first = [(whole - size) // 2 for whole, size in zip(engine.shape, sizes, strict=True)]
    at = [np.arange(begin, begin + size) for begin, size in zip(first, sizes, strict=True)]
    whole = tuple(sizes) == engine.shape
    if not whole and not all(int(engine.counts(n)[k].sum()) for n, k in enumerate(at)):
        return np.full(sizes, np.nan)
    part = engine if whole else engine.subtensor(at)
    rows = (
        factors
        if whole
        else tuple(
            A[begin : begin + size, :] for A, begin, size in zip(factors, first, sizes, strict=True)
        )
    )
    sample = part.sample(rows)
    Z = np.full(sizes, np.nan)
    Z[sample.indices] = sample.values
    return Z
