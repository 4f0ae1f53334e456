"""Which entries a model does not account for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp._typing import Array, Factors
from robustcp.engines import Engine
from robustcp.noise import Noise

if TYPE_CHECKING:
    from robustcp.fitted import Fit


@dataclass(frozen=True, eq=False)
class Outliers:
    """Residuals in units of their noise; arrays are computed when asked for.

    Attributes
    ----------
    noise : Noise
        That of clean entries. A slab whose scale is itself outlying has the median scale of its
        mode, so that a bad sample does not hide behind its own spread. It is in units of
        `unit`, in which the engine sees the data.
    unit : float
    rate : float
        With control "each", the share of clean entries that `mask` flags by chance; with "fdr",
        the share of the flagged entries that may be clean.
    control : {"each", "fdr"}
    outlying_slabs : dict from a mode to an array of indices
        The slabs whose scale is itself outlying.
    threshold : float
        The score from which an entry is flagged.
    """

    fit: Fit = field(repr=False)
    data: Any = field(repr=False)
    engine: Engine = field(repr=False)
    factors: Factors = field(repr=False)
    noise: Noise
    unit: float
    rate: float
    control: str = "each"
    outlying_slabs: Mapping[int, np.ndarray] = field(repr=False, default_factory=dict)

    @cached_property
    def threshold(self) -> float:
        from scipy.special import ndtri

        if self.control == "each":
            return float(-ndtri(self.rate / 2))
        residuals = self.engine.sample(self.factors).values
        return _fdr_threshold(np.abs(residuals) / self._unit, self.rate)

    @property
    def scale(self) -> float:
        """The typical standard deviation of the clean entries' residuals."""
        return self.noise.sigma * self.unit

    @property
    def in_data(self) -> Noise:
        """The noise in the units of the data."""
        return self.noise.scaled(self.unit)

    @property
    def _unit(self) -> float:
        return self.noise.sigma or 1.0

    @property
    def scores(self) -> Array:
        """Residuals divided by their standard deviation; NaN where an entry is missing."""
        return self.engine.entrywise(lambda r: r / self._unit, self.factors)

    def scores_of(self, fixed: Mapping[int, int]) -> np.ndarray:
        """The scores of one slice, without those of the whole tensor.

        Modes are fixed at an index; the others keep their order. On the host, NaN where an entry
        is missing.

        Examples
        --------
        >>> import robustcp
        >>> X = robustcp.simulate((6, 7, 8), 2, eta=0.1, gamma=1.0, rng=0).data
        >>> robustcp.cp(X, 2).outliers(X).scores_of({1: 3}).shape
        (6, 8)
        """
        return self.engine.residual_slice(self.factors, fixed) / self._unit

    @property
    def mask(self) -> Array:
        """True where an entry is flagged."""
        xp, limit = self.engine.xp, self.threshold
        return self.engine.entrywise(lambda r: xp.abs(r / self._unit) > limit, self.factors)

    @cached_property
    def slabs(self) -> tuple[np.ndarray, ...]:
        """For each mode, the share of flagged entries in each of its slabs.

        A slab is all that goes with one index of a mode: a sample, a frame, a sensor. They are
        counted tile by tile, without scores of the whole tensor.
        """
        flagged = self.engine.flagged(self.factors, self.threshold * self._unit)
        return tuple(
            hits / np.maximum(self.engine.counts(mode), 1) for mode, hits in enumerate(flagged)
        )

    @cached_property
    def share(self) -> float:
        """The share of all entries that is flagged."""
        flagged = self.engine.flagged(self.factors, self.threshold * self._unit)[0]
        return float(flagged.sum() / self.engine.counts(0).sum())

    def worst(self, mode: int, count: int = 5) -> list[tuple[int, float]]:
        """The slabs of a mode with the largest share of flagged entries: (index, share)."""
        shares = self.slabs[mode]
        order = np.argsort(-shares, kind="stable")[:count]
        return [(int(k), float(shares[k])) for k in order]


def _fdr_threshold(scores: np.ndarray, rate: float) -> float:
    """The threshold of Benjamini and Hochberg for Gaussian scores."""
    from scipy.special import ndtr

    ordered = np.sort(scores)[::-1]
    chance = 2 * ndtr(-ordered)
    allowed = rate * np.arange(1, ordered.size + 1) / ordered.size
    passed = np.flatnonzero(chance <= allowed)
    if not passed.size:
        return math.inf
    return float(np.nextafter(ordered[passed[-1]], 0.0))
