"""The units that a fit is done in, so that the size of the data does not matter."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from robustcp.engines import Engine
from robustcp.losses import L1, Loss, degree, rescaled
from robustcp.solver import Continuation, State

#: Entries this many times larger than ordinary ones are cut to that size: for a loss that grows
#: linearly this moves the objective by a constant, and the ordinary entries keep their digits.
FAR = 2.0**27
#: Entries this many times larger are left out when the progress of a fit is measured.
BEYOND = 10.0
#: Entries that sizes are taken from; of more, every so many-th.
ENOUGH = 1 << 17


@dataclass(frozen=True)
class Sizes:
    """The median of the nonzero magnitudes of some data, and their 0.9 quantile."""

    median: float
    high: float

    @classmethod
    def of(cls, engine: Engine) -> Sizes:
        sample = engine.sample()
        sizes = np.abs(sample[:: max(1, -(-sample.size // ENOUGH))])
        sizes = sizes[sizes > 0]
        if not sizes.size:
            return cls(engine.largest or 1.0, engine.largest or 1.0)
        return cls(*map(float, np.quantile(sizes, (0.5, 0.9))))

    def least_sigma(self, precision: float) -> float:
        """The size of roundings, and of what fits leave undone."""
        return max(8 * precision * self.high, 1e-5 * self.median)


class Units:
    """The data in units where its squares neither overflow nor vanish, and its scale there.

    A fit of c * X must be c times the fit of X. Without touching X that takes, with s the scale
    of the data, epsilon s^2 for epsilon and mu s^(1 - 2/N) for mu. Data of extreme size is also
    multiplied by a power of 2, tile by tile; not magnified if `magnify` is False. Wild entries
    are cut (see FAR) unless `saturate` is False, for losses that are not linear there.

    Multiplying the data by c multiplies the objective by c**degree. With degree 1, sizes are
    those of ordinary entries (a high quantile), whatever a few wild ones are; with degree 2,
    least squares, those wild entries are what counts.
    """

    def __init__(
        self, engine: Engine, *, degree: int = 1, magnify: bool = True, saturate: bool = True
    ) -> None:
        self.order, self.degree = len(engine.shape), degree
        self.engine, self.exponent, self.excess, self.baseline = engine, 0, 0.0, 0.0
        sizes = Sizes.of(engine) if degree == 1 and engine.largest > 0 else Sizes(0.0, 0.0)
        size = sizes.high if degree == 1 else engine.largest
        if magnify or size > 1:
            self.engine, self.exponent = unit_scaled(engine, size)
        if degree > 1:
            return
        if self.engine is engine and size > 0:
            self._sizes = sizes
        size = math.ldexp(size, -self.exponent)
        if saturate and self.engine.largest > FAR * size:
            self.excess = self.engine.excess(FAR * size)
            self.engine = self.engine.saturated(FAR * size)
        if self.engine.largest > BEYOND * size:
            self.baseline = self.engine.excess(BEYOND * size)

    @cached_property
    def _sizes(self) -> Sizes:
        return Sizes.of(self.engine)

    @cached_property
    def scale(self) -> float:
        """The median magnitude of the nonzero entries."""
        return self._sizes.median

    @cached_property
    def ordinary(self) -> float:
        """A high quantile of the nonzero magnitudes."""
        return self._sizes.high

    def on(self, part: Engine) -> Units:
        """The same units for a part of the same data."""
        if part is self.engine:
            return self
        units = copy(self)
        units.engine = part
        units.baseline = part.excess(BEYOND * self.ordinary) if self.baseline else 0.0
        for name in ("ordinary", "scale"):  # those of the whole, not of the part
            units.__dict__[name] = getattr(self, name)
        return units

    @property
    def _least_epsilon(self) -> float:
        """Below the roundings of the data a residual is zero, however small epsilon is."""
        return (self.engine.precision * self.ordinary) ** 2

    def continuation(self, epsilon: float, first: float = 0.03) -> Continuation:
        """From a share of the size of the data, squared, down to epsilon.

        A first epsilon that is too small jams; one that is too large begins as least squares,
        and where the artifacts are strong that is a bad place to begin (at 30^3, rank 5, eta
        0.2, gamma 2, a share of 1 ended in a local minimum in 63% of trials, 0.03 in 7%). For
        sparse data it is the other way round: there a large one is the better beginning.
        """
        last = max(epsilon * self.scale**2, self._least_epsilon)
        return Continuation(max(last, first * self.ordinary**2), last)

    def relative_mu(self, mu: float, degree: int = 1) -> float:
        """A mu that is relative to the scale of the data."""
        return float(mu * self.scale ** (degree - 2 / self.order))

    def raw_epsilon(self, epsilon: float) -> float:
        """An epsilon that is in the data's raw units."""
        return max(epsilon * power_of_two(-2 * self.exponent), self._least_epsilon)

    def raw_mu(self, mu: float) -> float:
        """A mu that is in the data's raw units."""
        return mu * power_of_two(self.exponent * (2 / self.order - self.degree))

    @property
    def least_sigma(self) -> float:
        """Residuals below this are roundings, or within the smoothing of the 1-norm."""
        return self._sizes.least_sigma(self.engine.precision)

    def in_data(self, objective: float, loss: Loss) -> float:
        """An objective in the units of the data."""
        power = degree(loss)
        if isinstance(loss, L1):
            objective += self.excess
        if self.exponent == 0:
            return objective
        with np.errstate(over="ignore", under="ignore"):
            half = np.float64(2.0) ** (0.5 * power * self.exponent)
            return float(objective * half * half)

    def in_fit(self, loss: Loss) -> Loss:
        """A loss that is in the data's units, in those of the fit."""
        return rescaled(loss, power_of_two(-self.exponent))

    def state(self, state: State) -> State:
        """A state in the units of the data."""
        if self.exponent == 0 and self.excess == 0:
            return state
        size = power_of_two(self.exponent / self.order)
        return replace(
            state,
            factors=tuple(A * size for A in state.factors),
            swept=tuple(A * size for A in state.swept),
            objective=self.in_data(state.objective, state.loss),
            loss=rescaled(state.loss, power_of_two(self.exponent)),
            ahead=None,
            before=None,
        )


def unit_scaled(engine: Engine, size: float) -> tuple[Engine, int]:
    """Data of some size times a power of 2 when squares could overflow or vanish; the exponent.

    A power of 2 changes no digit. Data of ordinary size is left alone.
    """
    ordinary = 2.0**200 if engine.precision < 1e-10 else 2.0**30
    if size == 0 or 1 / ordinary < size < ordinary:
        return engine, 0
    exponent = min(1000, max(-1000, math.frexp(size)[1]))
    return engine.scaled(exponent), exponent


def power_of_two(exponent: float) -> float:
    """2**exponent, kept within the range of float64."""
    return float(2.0 ** min(1000.0, max(-1000.0, exponent)))
