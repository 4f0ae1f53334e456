"""From the 1-norm to the efficiency of least squares: what the noise is, and a loss made for it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from robustcp._typing import Factors
from robustcp.engines import Engine
from robustcp.losses import Contaminated, Loss
from robustcp.solver import Skip

#: The core of the noise is looked at within this many sigmas, the outliers beside it.
CORE, NEAR, FAR = 2.0, 3.0, 5.0
#: Of a standard normal variable: the chance to lie in the core, and its mean square there.
CORE_CHANCE = math.erf(CORE / math.sqrt(2))
CORE_SQUARE = 1 - 2 * CORE * math.exp(-CORE * CORE / 2) / math.sqrt(2 * math.pi) / CORE_CHANCE
#: Residuals that are looked at.
ENOUGH = 1 << 18


@dataclass(frozen=True)
class Noise:
    """Residuals as a Gaussian of mean 0 on a floor of outliers, which may be one-sided.

    Attributes
    ----------
    sigma : float
    above, below : float
        The height of the floor on either side, relative to the peak of the Gaussian.
    clean : float
        The share of entries that belong to the Gaussian.
    beyond : float
        The share that is farther than 4.685 sigma from 0, where it has no say.
    """

    sigma: float
    above: float
    below: float
    clean: float
    beyond: float


def noise_of(residuals: np.ndarray, least: float = 0.0) -> Noise:
    """What noise residuals show, whatever outliers are among them.

    The median magnitude, 1.4 sigma with 20% outliers and 3 sigma with 40%, only begins: then
    sigma is the root of the mean square within 2 sigma, corrected for the cut, with what the
    outliers add there taken off. Their density is read beside the core, between 3 and 5 sigma,
    on each side by itself, and carried inwards.

    Parameters
    ----------
    residuals : array
    least : float
        Sigma is not below this: a rounding, or the smoothing of a loss.
    """
    r = residuals[:: -(-residuals.size // ENOUGH)] if residuals.size else np.zeros(1)
    unit = float(np.median(np.abs(r))) or float(np.abs(r).max()) or 1.0
    r, least = r / unit, least / unit  # so that no square overflows or vanishes
    size = np.abs(r)
    tiny = max(least, 1e-100)
    sigma = max(1.4826 * float(np.median(size)), tiny)
    above = below = 0.0
    floors = 0.0
    for subtract in (False, True):
        for _ in range(100):
            core = size < CORE * sigma
            if subtract:
                beside = (size > NEAR * sigma) & (size < FAR * sigma)
                width = (FAR - NEAR) * sigma * r.size
                above = np.count_nonzero(beside & (r > 0)) / width
                below = np.count_nonzero(beside & (r < 0)) / width
                floors = above + below
            mass = float(np.count_nonzero(core)) / r.size - CORE * sigma * floors
            square = float(np.sum(r[core] ** 2)) / r.size - (CORE * sigma) ** 3 / 3 * floors
            if mass <= 0 or square <= 0:
                break
            new = max(math.sqrt(square / mass / CORE_SQUARE), tiny)
            if abs(new - sigma) <= 1e-4 * sigma:
                break
            sigma = new
    core_share = float(np.count_nonzero(size < CORE * sigma)) / r.size
    clean = (core_share - CORE * sigma * floors) / CORE_CHANCE
    clean = min(1.0, max(clean, 1 / r.size))
    peak = clean / (sigma * math.sqrt(2 * math.pi))
    rare = max(1e-4, 1 / r.size)
    beyond = float(np.count_nonzero(size > 4.685 * sigma)) / r.size
    floor_above, floor_below = (float(max(height / peak, rare)) for height in (above, below))
    return Noise(sigma * unit, floor_above, floor_below, float(clean), beyond)


@dataclass(frozen=True)
class Refinement:
    """Levels of `Contaminated`, with the noise estimated anew before each, to a fixed point.

    Attributes
    ----------
    least : float
        The least sigma.
    rounds : int
        The most levels.
    """

    least: float
    rounds: int = 8

    def __call__(
        self, level: int, engine: Engine, factors: Factors, loss: Loss | None
    ) -> Loss | None:
        if level >= self.rounds:
            return None
        noise = noise_of(engine.sample(factors), self.least)
        if noise.beyond > 0.5:
            raise Skip(
                f"refinement would reject {noise.beyond:.0%} of the entries: the L1 fit is kept"
            )
        if isinstance(loss, Contaminated) and abs(noise.sigma / loss.sigma - 1) < 0.002:
            return None
        return Contaminated(noise.sigma, noise.above, noise.below)

    def last(self, level: int) -> bool:
        return False

    def near(self, engine: Engine, factors: Factors) -> Refinement:
        return self


def freedom(engine: Engine, rank: int, clean: float) -> float:
    """What a residual's standard deviation must be multiplied by for the fitted parameters."""
    shape, order = engine.shape, len(engine.shape)
    parameters = rank * (sum(shape) - (rank if order == 2 else order - 1))
    entries = clean * float(engine.counts(0).sum())
    return math.sqrt(1 / (1 - min(parameters / entries, 0.75)))
