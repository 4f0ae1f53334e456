"""The noise of residuals that all have the same one, whatever outliers are among them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from robustcp.engines import Engine
from robustcp.engines.installed import compiled_code
from robustcp.quantiles import median, quantile_of_sorted

#: The core of the noise is looked at within this many sigmas.
CORE = 2.0
#: Outliers are looked for between these; their floor is the lower of the two densities. That of
#: the first alone would be taken for outliers where the noise itself has long tails, and the core
#: would shrink from one round of a fit to the next.
WINDOWS = ((3.0, 5.0), (5.0, 10.0))
EDGES = np.array([3.0, 5.0, 10.0])
#: Of a standard normal variable: the chance to lie in the core, and its mean square there.
#: Of its magnitude: a quantile that is low enough if most are outliers, and high enough not to see
#: the few that a model can fit exactly; and the median.
LOW = 0.35
NORMAL_LOW, NORMAL_MEDIAN = 0.45376, 0.67449
#: A core within another one is narrower by this, holds this share of the residuals, and its peak
#: is higher than what is beside it: the floor, relative to the peak, is below that.
NARROWER, FEWEST, HIGHEST = 0.6, 0.36, 0.5
CORE_CHANCE = math.erf(CORE / math.sqrt(2))
CORE_SQUARE = 1 - 2 * CORE * math.exp(-CORE * CORE / 2) / math.sqrt(2 * math.pi) / CORE_CHANCE


@dataclass(frozen=True)
class Core:
    """Residuals as a Gaussian of mean 0 on a floor of outliers, which may be one-sided.

    Attributes
    ----------
    sigma : float
    above, below : float
        The height of the floor on either side, relative to the peak of the Gaussian.
    clean : float
        The share of entries that belong to the Gaussian.
    beyond : float
        The share that is farther than 4.685 sigma from 0, where it has no influence.
    """

    sigma: float
    above: float
    below: float
    clean: float
    beyond: float


def core_of(residuals: np.ndarray, least: float = 0.0, enough: int = 1 << 16) -> Core:
    """What noise residuals show, whatever outliers are among them.

    The median magnitude, 1.4 sigma with 20% outliers and 3 sigma with 40%, only begins; with more
    than half of them outliers it says nothing, and a lower quantile begins, if there is a peak
    within. Then sigma is the root of the mean square within 2 sigma, corrected for the cut, with
    what the outliers add there taken off. Their density is read beside the core (see `WINDOWS`),
    on each side by itself, and carried inwards.

    Parameters
    ----------
    residuals : array
    least : float
        Sigma is not below this: a rounding, or the smoothing of a loss.
    enough : int
        Of more residuals, every k-th is looked at.
    """
    sorted_ones = _Sorted.of(residuals, least, enough)
    middle = sorted_ones.quantile(0.5) / NORMAL_MEDIAN
    found = sorted_ones.core(middle, (False, True))
    low = sorted_ones.quantile(LOW) / NORMAL_LOW
    if 0 < low < NARROWER * middle:
        narrow = sorted_ones.core(low, (True,))
        floor = max(narrow.above, narrow.below)
        resolved = 2 * least < narrow.sigma < NARROWER * found.sigma
        if resolved and narrow.clean > FEWEST and floor < HIGHEST:
            return narrow
    return found


@dataclass(frozen=True, eq=False)
class _Sorted:
    """Residuals in a unit in which no square of an ordinary one vanishes."""

    unit: float
    least: float
    magnitudes: np.ndarray
    sides: tuple[np.ndarray, np.ndarray]

    @classmethod
    def of(cls, residuals: np.ndarray, least: float, enough: int) -> _Sorted:
        r = residuals[:: -(-residuals.size // enough)] if residuals.size else np.zeros(1)
        r = np.sort(r)
        below, above = (int(r.searchsorted(0.0, side)) for side in ("left", "right"))
        magnitudes = np.sort(np.abs(r))
        unit = max(quantile_of_sorted(magnitudes, 0.5), least) or float(magnitudes[-1]) or 1.0
        magnitudes /= unit
        sides = r[above:] / unit, r[:below][::-1] / -unit
        return cls(unit, max(least / unit, 1e-100), magnitudes, sides)

    def quantile(self, share: float) -> float:
        """Of the magnitudes."""
        return quantile_of_sorted(self.magnitudes, share)

    def _within(self, bound: float) -> float:
        """The share of residuals within a bound."""
        return int(self.magnitudes.searchsorted(bound)) / self.magnitudes.size

    def _square_within(self, bound: float) -> float:
        """Their squares, by the number of all."""
        some = self.magnitudes[: self.magnitudes.searchsorted(bound)]
        return float(some @ some) / self.magnitudes.size

    def _beside(self, sigma: float) -> tuple[float, float]:
        """The density of outliers above and below."""
        size, edges = self.magnitudes.size * sigma, sigma * EDGES
        above, below = (
            min(
                (far - near) / (size * (high - low))
                for near, far, (low, high) in zip(at, at[1:], WINDOWS, strict=False)
            )
            for at in (side.searchsorted(edges).tolist() for side in self.sides)
        )
        return above, below

    def core(self, begin: float, rounds: Sequence[bool]) -> Core:
        """The core that is found from some sigma, in rounds with outliers taken off or not."""
        settled = self._settled if compiled_code() is None else self._compiled
        sigma, above, below = settled(max(begin, self.least), rounds)
        count = self.magnitudes.size
        clean = (self._within(CORE * sigma) - CORE * sigma * (above + below)) / CORE_CHANCE
        clean = min(1.0, max(clean, 1 / count))
        peak = clean / (sigma * math.sqrt(2 * math.pi))
        rare = max(1e-4, 1 / count)
        beyond = 1.0 - self._within(4.685 * sigma)
        heights = [float(max(height / peak, rare)) for height in (above, below)]
        return Core(sigma * self.unit, heights[0], heights[1], float(clean), beyond)

    def _settled(self, sigma: float, rounds: Sequence[bool]) -> tuple[float, float, float]:
        """Sigma after the rounds, and the density of outliers above and below."""
        above = below = 0.0
        for subtract in rounds:
            for _ in range(100):
                if subtract:
                    above, below = self._beside(sigma)
                mass = self._within(CORE * sigma) - CORE * sigma * (above + below)
                square = self._square_within(CORE * sigma)
                square -= (CORE * sigma) ** 3 / 3 * (above + below)
                if mass <= 0 or square <= 0:
                    break
                new = max(math.sqrt(square / mass / CORE_SQUARE), self.least)
                if abs(new - sigma) <= 1e-4 * sigma:
                    break
                sigma = new
        return sigma, above, below

    def _compiled(self, sigma: float, rounds: Sequence[bool]) -> tuple[float, float, float]:
        """The same by compiled code."""
        code, found = compiled_code(), np.empty(3)
        numbers = np.array((sigma, self.least, CORE, CORE_SQUARE, *EDGES))
        sorted_ones = (self.magnitudes, *self.sides)
        places = [given for x in sorted_ones for given in (code.address(x), x.size)]
        code.core_rounds().run(*places, code.address(numbers), len(rounds), code.address(found))
        sigma, above, below = found.tolist()
        return sigma, above, below


def typical(residuals: np.ndarray) -> float:
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
