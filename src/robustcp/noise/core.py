"""The noise of residuals that all have the same one, whatever outliers are among them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from robustcp.engines import Engine

#: The core of the noise is looked at within this many sigmas.
CORE = 2.0
#: Outliers are looked for between these; their floor is the lower of the two densities. That of
#: the first alone would be taken for outliers where the noise itself has long tails, and the core
#: would shrink from one round of a fit to the next.
WINDOWS = ((3.0, 5.0), (5.0, 10.0))
#: Of a standard normal variable: the chance to lie in the core, and its mean square there.
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

    The median magnitude, 1.4 sigma with 20% outliers and 3 sigma with 40%, only begins: then
    sigma is the root of the mean square within 2 sigma, corrected for the cut, with what the
    outliers add there taken off. Their density is read beside the core (see `WINDOWS`), on each
    side by itself, and carried inwards.

    Parameters
    ----------
    residuals : array
    least : float
        Sigma is not below this: a rounding, or the smoothing of a loss.
    enough : int
        Of more residuals, every k-th is looked at.
    """
    r = residuals[:: -(-residuals.size // enough)] if residuals.size else np.zeros(1)
    median = float(np.median(np.abs(r)))
    unit = max(median, least) or float(np.abs(r).max()) or 1.0
    r, least = r / unit, least / unit  # so that no square of an ordinary one vanishes
    size, sides = np.sort(np.abs(r)), (np.sort(r[r > 0]), np.sort(-r[r < 0]))
    with np.errstate(over="ignore"):
        squares = np.concatenate([[0.0], np.cumsum(size * size)])

    def below_bound(bound: float) -> int:
        return int(np.searchsorted(size, bound))

    def core(sigma: float) -> tuple[float, float]:
        """The share of residuals within 2 sigma, and their squares, by the number of all."""
        count = below_bound(CORE * sigma)
        return count / r.size, float(squares[count]) / r.size

    def beside(sigma: float) -> list[float]:
        """The density of outliers above and below."""
        bounds = sigma * np.array(WINDOWS)
        widths = r.size * np.diff(bounds)[:, 0]
        counts = (np.diff(np.searchsorted(side, bounds))[:, 0] for side in sides)
        return [float(np.min(count / widths)) for count in counts]

    tiny = max(least, 1e-100)
    sigma = max(1.4826 * median / unit, tiny)
    above = below = 0.0
    floors = 0.0
    for subtract in (False, True):
        for _ in range(100):
            if subtract:
                above, below = beside(sigma)
                floors = above + below
            share, square = core(sigma)
            mass = share - CORE * sigma * floors
            square -= (CORE * sigma) ** 3 / 3 * floors
            if mass <= 0 or square <= 0:
                break
            new = max(math.sqrt(square / mass / CORE_SQUARE), tiny)
            if abs(new - sigma) <= 1e-4 * sigma:
                break
            sigma = new
    core_share = core(sigma)[0]
    clean = (core_share - CORE * sigma * floors) / CORE_CHANCE
    clean = min(1.0, max(clean, 1 / r.size))
    peak = clean / (sigma * math.sqrt(2 * math.pi))
    rare = max(1e-4, 1 / r.size)
    beyond = 1.0 - below_bound(4.685 * sigma) / r.size
    floor_above, floor_below = (float(max(height / peak, rare)) for height in (above, below))
    return Core(sigma * unit, floor_above, floor_below, float(clean), beyond)


def typical(residuals: np.ndarray) -> float:
    """The median magnitude, of every k-th of many residuals; of none, 0."""
    if not residuals.size:
        return 0.0
    return float(np.median(np.abs(residuals[:: -(-residuals.size // (1 << 15))])))


def degrees_of_freedom_correction(engine: Engine, rank: int, clean: float) -> float:
    """sqrt(n / (n - p)), for n clean entries and p free parameters.

    Residuals are smaller than the noise by this factor, since parameters were fitted to them.
    """
    shape, order = engine.shape, engine.order
    parameters = rank * (sum(shape) - (rank if order == 2 else order - 1))
    return math.sqrt(1 / (1 - min(parameters / (clean * engine.count), 0.75)))
