"""The noise of residuals that all have the same one, whatever outliers are among them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from robustcp._util.quantiles import median, quantile_of_sorted
from robustcp.engines import Engine
from robustcp.engines.installed import numba_kernels
from robustcp.noise.settings import MIXTURE_SETTINGS, MixtureSettings

#: The quantile 0.35 of the magnitude of a standard normal variable.
NORMAL_LOW_QUANTILE = 0.45376
#: The median of the magnitude of a standard normal variable.
NORMAL_MEDIAN = 0.67449


@dataclass(frozen=True)
class ContaminatedNormal:
    """Residuals as a Gaussian of mean 0 on a floor of outliers, which may be one-sided.

    Attributes
    ----------
    sigma : float
    above, below : float
        The height of the floor on either side, relative to the peak of the Gaussian.
    clean : float
        The share of entries that belong to the Gaussian.
    rejected_share : float
        The share that is farther than 4.685 sigma from 0, where it has no influence.
    """

    sigma: float
    above: float
    below: float
    clean: float
    rejected_share: float


def fit_contaminated_normal(
    residuals: np.ndarray,
    min_sigma: float = 0.0,
    max_entries: int = 1 << 16,
    settings: MixtureSettings = MIXTURE_SETTINGS,
) -> ContaminatedNormal:
    """What noise residuals show, whatever outliers are among them.

    The median magnitude, 1.4 sigma with 20% outliers and 3 sigma with 40%, only begins; with more
    than half of them outliers it says nothing, and a lower quantile begins, if there is a peak
    within. Then sigma is the root of the mean square within 2 sigma, corrected for the cut, with
    what the outliers add there taken off. Their density is read beside the peak (see
    `MixtureSettings`), on each side by itself, and carried inwards.

    Parameters
    ----------
    residuals : array
    min_sigma : float
        Sigma is not below this: a rounding, or the smoothing of a loss.
    max_entries : int
        Of more residuals, every k-th is looked at.
    """
    ordered = _SortedResiduals.of(residuals, min_sigma, max_entries, settings)
    median_sigma = ordered.quantile(0.5) / NORMAL_MEDIAN
    wide = ordered.fit(median_sigma, (False, True))
    low_sigma = ordered.quantile(settings.low_share) / NORMAL_LOW_QUANTILE
    if 0 < low_sigma < settings.narrow_ratio * median_sigma:
        narrow = ordered.fit(low_sigma, (True,))
        floor = max(narrow.above, narrow.below)
        resolved = 2 * min_sigma < narrow.sigma < settings.narrow_ratio * wide.sigma
        if (
            resolved
            and narrow.clean > settings.min_narrow_share
            and floor < settings.max_floor_height
        ):
            return narrow
    return wide


@dataclass(frozen=True, eq=False)
class _SortedResiduals:
    """Residuals in a unit in which no square of an ordinary one vanishes."""

    unit: float
    min_sigma: float
    magnitudes: np.ndarray
    sides: tuple[np.ndarray, np.ndarray]
    settings: MixtureSettings

    @classmethod
    def of(
        cls, residuals: np.ndarray, min_sigma: float, max_entries: int, settings: MixtureSettings
    ) -> _SortedResiduals:
        r = residuals[:: -(-residuals.size // max_entries)] if residuals.size else np.zeros(1)
        r = np.sort(r)
        negative_count, first_positive = (
            int(r.searchsorted(0.0, side)) for side in ("left", "right")
        )
        magnitudes = np.sort(np.abs(r))
        unit = max(quantile_of_sorted(magnitudes, 0.5), min_sigma) or float(magnitudes[-1]) or 1.0
        magnitudes /= unit
        sides = r[first_positive:] / unit, r[:negative_count][::-1] / -unit
        return cls(unit, max(min_sigma / unit, 1e-100), magnitudes, sides, settings)

    def quantile(self, share: float) -> float:
        """Of the magnitudes."""
        return quantile_of_sorted(self.magnitudes, share)

    def _share_within(self, bound: float) -> float:
        """The share of residuals within a bound."""
        return int(self.magnitudes.searchsorted(bound)) / self.magnitudes.size

    def _mean_square_within(self, bound: float) -> float:
        """Their squares, by the number of all."""
        inside = self.magnitudes[: self.magnitudes.searchsorted(bound)]
        return float(inside @ inside) / self.magnitudes.size

    def _outlier_densities(self, sigma: float) -> tuple[float, float]:
        """The density of outliers above and below."""
        windows = list(pairwise(self.settings.outlier_edges))
        scaled_count, edges = self.magnitudes.size * sigma, sigma * self.settings.edges
        above, below = (
            min(
                (upper_count - lower_count) / (scaled_count * (high - low))
                for lower_count, upper_count, (low, high) in zip(
                    counts, counts[1:], windows, strict=False
                )
            )
            for counts in (side.searchsorted(edges).tolist() for side in self.sides)
        )
        return above, below

    def fit(self, initial_sigma: float, rounds: Sequence[bool]) -> ContaminatedNormal:
        """The core that is found from some sigma, in rounds with outliers taken off or not."""
        settings = self.settings
        iterate = self._iterate if numba_kernels() is None else self._iterate_compiled
        sigma, above, below = iterate(max(initial_sigma, self.min_sigma), rounds)
        count = self.magnitudes.size
        clean = (
            self._share_within(settings.truncation * sigma)
            - settings.truncation * sigma * (above + below)
        ) / settings.truncated_probability
        clean = min(1.0, max(clean, 1 / count))
        peak = clean / (sigma * math.sqrt(2 * math.pi))
        min_height = max(1e-4, 1 / count)
        rejected_share = 1.0 - self._share_within(4.685 * sigma)
        heights = [float(max(height / peak, min_height)) for height in (above, below)]
        return ContaminatedNormal(
            sigma * self.unit, heights[0], heights[1], float(clean), rejected_share
        )

    def _iterate(self, sigma: float, rounds: Sequence[bool]) -> tuple[float, float, float]:
        """Sigma after the rounds, and the density of outliers above and below."""
        settings, above, below = self.settings, 0.0, 0.0
        for subtract in rounds:
            for _ in range(100):
                if subtract:
                    above, below = self._outlier_densities(sigma)
                mass = self._share_within(
                    settings.truncation * sigma
                ) - settings.truncation * sigma * (above + below)
                square = self._mean_square_within(settings.truncation * sigma)
                square -= (settings.truncation * sigma) ** 3 / 3 * (above + below)
                if mass <= 0 or square <= 0:
                    break
                new = max(math.sqrt(square / mass / settings.truncated_variance), self.min_sigma)
                if abs(new - sigma) <= 1e-4 * sigma:
                    break
                sigma = new
        return sigma, above, below

    def _iterate_compiled(self, sigma: float, rounds: Sequence[bool]) -> tuple[float, float, float]:
        """The same by compiled code, in engines/passes/numba/noise.py."""
        code, result, settings = numba_kernels(), np.empty(3), self.settings
        numbers = np.array(
            (
                sigma,
                self.min_sigma,
                settings.truncation,
                settings.truncated_variance,
                *settings.outlier_edges,
            )
        )
        arrays = (self.magnitudes, *self.sides)
        pointers = [argument for x in arrays for argument in (code.address(x), x.size)]
        code.contaminated_scale_rounds().run(
            *pointers, code.address(numbers), len(rounds), code.address(result)
        )
        sigma, above, below = result.tolist()
        return sigma, above, below


def median_magnitude(residuals: np.ndarray) -> float:
    """The median magnitude, of every k-th of many residuals; of none, 0."""
    if not residuals.size:
        return 0.0
    return median(np.abs(residuals[:: -(-residuals.size // (1 << 15))]))


def degrees_of_freedom_correction(engine: Engine, rank: int, clean: float) -> float:
    """sqrt(n / (n - p)), for n clean entries and p free parameters.

    Residuals are smaller than the noise by this factor, since parameters were fitted to them.
    """
    shape, order = engine.shape, engine.order
    parameters = rank * (sum(shape) - (rank if order == 2 else order - 1))
    return math.sqrt(1 / (1 - min(parameters / (clean * engine.count), 0.75)))
