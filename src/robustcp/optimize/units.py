"""The units of a fit, in which data of any magnitude is handled alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from robustcp._util.typing import Factors
from robustcp.losses import Loss


@dataclass(frozen=True)
class Units:
    """Conversion between the units of the data and the units of the fit.

    In the units of the fit the data is multiplied by 2**-exponent, which changes no digit.

    Attributes
    ----------
    order : int
        The number of modes.
    exponent : int
    """

    order: int
    exponent: int = 0

    @property
    def factor(self) -> float:
        """The factor that converts entries from the units of the fit to those of the data."""
        return power_of_two(self.exponent)

    def loss_of_fit(self, loss: Loss) -> Loss:
        return loss if self.exponent == 0 else loss.rescaled(power_of_two(-self.exponent))

    def loss_of_data(self, loss: Loss) -> Loss:
        return loss if self.exponent == 0 else loss.rescaled(self.factor)

    def factors_of_fit(self, factors: Factors) -> Factors:
        shrink = power_of_two(-self.exponent / self.order)
        return tuple(A * shrink for A in factors)

    def factors_of_data(self, factors: Factors) -> Factors:
        grow = power_of_two(self.exponent / self.order)
        return tuple(A * grow for A in factors)

    def epsilon_of_fit(self, epsilon: float) -> float:
        return epsilon * power_of_two(-2 * self.exponent)

    def mu_of_fit(self, mu: float, degree: int) -> float:
        return mu * power_of_two(self.exponent * (2 / self.order - degree))

    def objective_of_data(self, objective: float, degree: int) -> float:
        if self.exponent == 0:
            return objective
        with np.errstate(over="ignore", under="ignore"):
            half = np.float64(2.0) ** (0.5 * degree * self.exponent)
            return float(objective * half * half)


def power_of_two(exponent: float) -> float:
    """2**exponent, kept within the range of float64."""
    return float(2.0 ** min(1000.0, max(-1000.0, exponent)))
