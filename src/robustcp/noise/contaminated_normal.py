"""The scale of noise that is common to all residuals, in spite of outliers among them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from robustcp._util.quantiles import median, quantile_of_sorted
from robustcp.engines import Engine
from robustcp.engines.installed import numba_kernels
from robustcp.noise.settings import MIXTURE_SETTINGS

#: The quantile 0.35 of the magnitude of a standard normal variable.
NORMAL_LOW_QUANTILE = 0.45376
#: The median of the magnitude of a standard normal variable.
NORMAL_MEDIAN = 0.67449


@dataclass(frozen=True)
class ContaminatedNormal:
    """A distribution of residuals: a Gaussian of mean 0 on a floor of outliers, maybe one-sided.

    Attributes
    ----------
    sigma : float
        The standard deviation of the Gaussian.
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
    residuals: np.ndarray, min_sigma: float = 0.0, max_entries: int = 1 << 16
) -> ContaminatedNormal:
    """The noise among residuals that may contain outliers.

    The initial sigma is the scaled median magnitude (biased to 1.4 sigma at 20% outliers, 3 sigma
    at 40%). If more than half are outliers, a lower quantile is used, provided the residuals have
    a narrow peak. Sigma is then iterated: the root mean square within 2 sigma, corrected for the
    truncation, less what the outliers add there. Their density is measured beyond the peak (see
    `MixtureSettings`), separately on each side, and taken to be the same within it.

    Parameters
    ----------
    residuals : array
    min_sigma : float
        The least sigma, such as the size of roundings or the smoothing of a loss.
    max_entries : int
        Of more residuals, every k-th is used.
    """
    ordered = _SortedResiduals.of(residuals, min_sigma, max_entries)
    median_sigma = ordered.quantile(0.5) / NORMAL_MEDIAN
    wide = ordered.fit(median_sigma, (False, True))
    low_sigma = ordered.quantile(MIXTURE_SETTINGS.low_share) / NORMAL_LOW_QUANTILE
    if 0 < low_sigma < MIXTURE_SETTINGS.narrow_ratio * median_sigma:
        narrow = ordered.fit(low_sigma, (True,))
        if (
            2 * min_sigma < narrow.sigma < MIXTURE_SETTINGS.narrow_ratio * wide.sigma
            and narrow.clean > MIXTURE_SETTINGS.min_narrow_share
            and max(narrow.above, narrow.below) < MIXTURE_SETTINGS.max_floor_height
        ):
            return narrow
    return wide


@dataclass(frozen=True, eq=False)
class _SortedResiduals:
    """Sorted residuals, in a unit in which the squares of ordinary ones do not underflow.

    Attributes
    ----------
    unit : float
    min_sigma : float
    magnitudes : array
        In ascending order.
    sides : pair of arrays
        The magnitudes of positive and of negative residuals, in ascending order.
    """

    unit: float
    min_sigma: float
    magnitudes: np.ndarray
    sides: tuple[np.ndarray, np.ndarray]

    @classmethod
    def of(cls, residuals: np.ndarray, min_sigma: float, max_entries: int) -> _SortedResiduals:
        r = residuals[:: -(-residuals.size // max_entries)] if residuals.size else np.zeros(1)
        r = np.sort(r)
        negative_count, first_positive = r.searchsorted(0.0), r.searchsorted(0.0, "right")
        magnitudes = np.sort(np.abs(r))
        unit = max(quantile_of_sorted(magnitudes, 0.5), min_sigma) or float(magnitudes[-1]) or 1.0
        magnitudes /= unit
        sides = r[first_positive:] / unit, r[:negative_count][::-1] / -unit
        return cls(unit, max(min_sigma / unit, 1e-100), magnitudes, sides)

    def quantile(self, share: float) -> float:
        """A quantile of the magnitudes."""
        return quantile_of_sorted(self.magnitudes, share)

    def _share_within(self, bound: float) -> float:
        """The share of residuals within a bound."""
        return int(self.magnitudes.searchsorted(bound)) / self.magnitudes.size

    def fit(self, initial_sigma: float, rounds: Sequence[bool]) -> ContaminatedNormal:
        """The mixture that is reached from a sigma, in rounds that subtract outliers or do not."""
        settings, count = MIXTURE_SETTINGS, self.magnitudes.size
        iterate = self._iterate if numba_kernels() is None else self._iterate_compiled
        sigma, above, below = iterate(max(initial_sigma, self.min_sigma), rounds)
        core = settings.truncation * sigma
        clean = (self._share_within(core) - core * (above + below)) / settings.truncated_probability
        clean = min(1.0, max(clean, 1 / count))
        peak = clean / (sigma * math.sqrt(2 * math.pi))
        above, below = (float(max(height / peak, 1e-4, 1 / count)) for height in (above, below))
        rejected_share = 1.0 - self._share_within(4.685 * sigma)
        return ContaminatedNormal(sigma * self.unit, above, below, float(clean), rejected_share)

    def _iterate(self, sigma: float, rounds: Sequence[bool]) -> tuple[float, float, float]:
        """Sigma after the rounds, and the density of outliers above and below."""
        settings, above, below = MIXTURE_SETTINGS, 0.0, 0.0
        for subtract in rounds:
            for _ in range(100):
                if subtract:
                    above, below = (self._outlier_density(side, sigma) for side in self.sides)
                core = settings.truncation * sigma
                mass = self._share_within(core) - core * (above + below)
                inside = self.magnitudes[: self.magnitudes.searchsorted(core)]
                square = float(inside @ inside) / self.magnitudes.size
                square -= core**3 / 3 * (above + below)
                if mass <= 0 or square <= 0:
                    break
                new = max(math.sqrt(square / mass / settings.truncated_variance), self.min_sigma)
                if abs(new - sigma) <= 1e-4 * sigma:
                    break
                sigma = new
        return sigma, above, below

    def _outlier_density(self, side: np.ndarray, sigma: float) -> float:
        """The density of outliers on one side: the lowest in any of the windows."""
        edges = sigma * MIXTURE_SETTINGS.edges
        counts, widths = np.diff(side.searchsorted(edges)), np.diff(MIXTURE_SETTINGS.edges)
        return float(np.min(counts / (self.magnitudes.size * sigma * widths)))

    def _iterate_compiled(self, sigma: float, rounds: Sequence[bool]) -> tuple[float, float, float]:
        """As `_iterate`, by compiled code in engines/passes/numba/noise.py."""
        code, result, settings = numba_kernels(), np.empty(3), MIXTURE_SETTINGS
        constants = settings.truncation, settings.truncated_variance, *settings.outlier_edges
        numbers = np.array((sigma, self.min_sigma, *constants))
        arrays = (self.magnitudes, *self.sides)
        pointers = [argument for x in arrays for argument in (code.address(x), x.size)]
        code.contaminated_scale_rounds().run(
            *pointers, code.address(numbers), len(rounds), code.address(result)
        )
        sigma, above, below = result.tolist()
        return sigma, above, below


def median_magnitude(residuals: np.ndarray) -> float:
    """The median magnitude of residuals (of many, of every k-th); 0 if there are none."""
    if not residuals.size:
        return 0.0
    return median(np.abs(residuals[:: -(-residuals.size // (1 << 15))]))


def degrees_of_freedom_correction(engine: Engine, rank: int, clean: float) -> float:
    """sqrt(n / (n - p)), for n clean entries and p free parameters of a CP model.

    Residuals are smaller than the noise by this factor, since parameters were fitted to them.
    """
    shape, order = engine.shape, engine.order
    parameters = rank * (sum(shape) - (rank if order == 2 else order - 1))
    return math.sqrt(1 / (1 - min(parameters / (clean * engine.count), 0.75)))
