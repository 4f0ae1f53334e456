"""The entries that a model does not account for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp._util import checks
from robustcp._util.typing import Array, Factors
from robustcp.engines import Engine
from robustcp.noise import Noise
from robustcp.results.runs import Run, find_runs, ordered_mode

if TYPE_CHECKING:
    from robustcp.results.fit import Fit

#: The usual share of clean entries that are flagged by chance.
FLAG_RATE = 1e-3


class Slab(tuple[int, float]):
    """A slab and its share of flagged entries: a pair (index, share).

    Attributes
    ----------
    label : object
        The label of the index; the index itself where there are no labels.

    Examples
    --------
    >>> slab = Slab(2, 0.25, "S02")
    >>> slab
    Slab(2, 0.25, 'S02')
    >>> index, share = slab
    """

    label: Any

    def __new__(cls, index: int, share: float, label: Any = None) -> Slab:
        slab = super().__new__(cls, (index, share))
        slab.label = index if label is None else label
        return slab

    def __getnewargs__(self) -> tuple[int, float, Any]:
        return self[0], self[1], self.label

    def __repr__(self) -> str:
        label = "" if self.label is self[0] else f", {self.label!r}"
        return f"Slab({self[0]}, {self[1]:.4g}{label})"


@dataclass(frozen=True, eq=False)
class Outliers:
    """Scores of entries (residuals in units of their noise), and which entries are flagged.

    Arrays are computed when they are read.

    Attributes
    ----------
    noise : Noise
        The noise of clean entries, in multiples of `unit`. A slab whose scale is itself outlying
        gets the median scale of its mode, so that a bad sample does not hide behind its own spread.
    unit : float
        The unit in which `engine` holds the data.
    rate : float
        With control "each", the share of clean entries that `mask` flags by chance; with "fdr",
        the share of the flagged entries that may be clean.
    control : {"each", "fdr"}
    outlying_slabs : dict from a mode to an array of indices
        The slabs whose scale is itself outlying.
    threshold : float
        The score from which an entry is flagged.

    Examples
    --------
    >>> import robustcp
    >>> X = robustcp.simulate((12, 11, 10), 2, eta=0, gamma=0, rng=0).data.copy()
    >>> X[3] += 5.0
    >>> found = robustcp.cp(X, 2).outliers(X)
    >>> found.worst(0, 1)[0].label
    3
    >>> found.mask.shape
    (12, 11, 10)
    """

    fit: Fit = field(repr=False)
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
        return _fdr_threshold(np.abs(residuals) / self._score_unit, self.rate)

    @property
    def by_chance(self) -> float:
        """The share of clean entries whose noise alone is beyond the threshold."""
        from scipy.special import ndtr

        return float(2 * ndtr(-self.threshold))

    @property
    def scale(self) -> float:
        """The typical standard deviation of the clean entries' residuals."""
        return self.noise.sigma * self.unit

    @property
    def in_data(self) -> Noise:
        """The noise in the units of the data."""
        return self.noise.scaled(self.unit)

    @property
    def _score_unit(self) -> float:
        return self.noise.sigma or 1.0

    @property
    def scores(self) -> Array:
        """Residuals divided by their standard deviation; NaN where an entry is missing."""
        unit = self._score_unit
        return self.engine.map_residuals(lambda r: r / unit, self.factors)

    def scores_of(self, fixed: Mapping[int, int] | Mapping[int | str, Any]) -> np.ndarray:
        """The scores of one slice, on the host; NaN where an entry is missing.

        `fixed` maps modes, by number or name, to indices, by position or label; the other modes
        keep their order. The scores of other entries are not computed.

        Examples
        --------
        >>> import robustcp
        >>> X = robustcp.simulate((6, 7, 8), 2, eta=0.1, gamma=1.0, rng=0).data
        >>> robustcp.cp(X, 2).outliers(X).scores_of({1: 3}).shape
        (6, 8)
        """
        axes, indices = self.fit.axes, {}
        for mode, index in fixed.items():
            n = axes.mode_number("fixed", mode)
            indices[n] = axes.index_position("fixed", n, index, self.fit.shape[n])
        return self.engine.residual_slice(self.factors, indices) / self._score_unit

    @property
    def mask(self) -> Array:
        """True where an entry is flagged."""
        xp, limit, unit = self.engine.xp, self.threshold, self._score_unit
        return self.engine.map_residuals(lambda r: xp.abs(r / unit) > limit, self.factors)

    @cached_property
    def slabs(self) -> tuple[np.ndarray, ...]:
        """For each mode, the share of flagged entries in each of its slabs.

        A slab is all entries with one index of a mode: a sample, a frame, a sensor. Flagged entries
        are counted tile by tile, without an array of all scores.
        """
        return tuple(
            hits / np.maximum(self.engine.slab_counts(mode), 1)
            for mode, hits in enumerate(self._flag_counts)
        )

    @cached_property
    def share(self) -> float:
        """The share of all entries that is flagged."""
        return float(self._flag_counts[0].sum() / self.engine.slab_counts(0).sum())

    @cached_property
    def _flag_counts(self) -> list[np.ndarray]:
        """The number of flagged entries in each slab of each mode: one pass."""
        return self.engine.count_large_residuals(self.factors, self.threshold * self._score_unit)

    def worst(self, mode: int | str, count: int = 5) -> list[Slab]:
        """The slabs of a mode with the largest share of flagged entries.

        Parameters
        ----------
        mode : int or str
            The mode by number or name.
        count : int
            The number of slabs.

        Returns
        -------
        list of Slab
            Pairs (index, share) with the attribute `label`.
        """
        n = self.fit.axes.mode_number("mode", mode)
        count = checks.whole_number("count", count, 0)
        shares, labels = self.slabs[n], self.fit.labels[n]
        order = np.argsort(-shares, kind="stable")[:count].tolist()
        return [Slab(k, float(shares[k]), None if labels is None else labels[k]) for k in order]

    def runs(self, along: int | str | None = None) -> list[Run]:
        """Flagged entries that follow each other along a mode, on the same side of the model.

        Missing entries do not interrupt a run.

        Parameters
        ----------
        along : int or str, optional
            The mode by number or name; by default one whose labels are dates, else one whose labels
            are rising numbers, else the longest.

        Returns
        -------
        list of Run
            The longest first; each prints as a sentence.

        Examples
        --------
        >>> import robustcp
        >>> X = robustcp.simulate((12, 11, 10), 2, eta=0, gamma=0, rng=0).data.copy()
        >>> X[3, 4, 2:6] += 5.0
        >>> print(robustcp.cp(X, 2).outliers(X).runs(2)[0])  # doctest: +ELLIPSIS
        mode 0 3, mode 1 4, mode 2 from 2 to 5, too high (4 entries, z up to ...)
        """
        axes, shape = self.fit.axes, self.fit.shape
        mode = ordered_mode(axes, shape) if along is None else axes.mode_number("along", along)
        residuals = self.engine.entries(self.factors)
        scores = replace(residuals, values=residuals.values / self._score_unit)
        return find_runs(scores, self.threshold, mode, axes)


def _fdr_threshold(scores: np.ndarray, rate: float) -> float:
    """The threshold of Benjamini and Hochberg for Gaussian scores."""
    from scipy.special import ndtr

    ordered = np.sort(scores)[::-1]
    chance = 2 * ndtr(-ordered)
    allowed = rate * np.arange(1, ordered.size + 1) / ordered.size
    accepted = np.flatnonzero(chance <= allowed)
    if not accepted.size:
        return math.inf
    return float(np.nextafter(ordered[accepted[-1]], 0.0))
