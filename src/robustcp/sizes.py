"""How large the entries of some data are, whatever a few wild ones are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from robustcp.engines import Engine
from robustcp.losses import Loss, Tail
from robustcp.units import Units

#: Entries this many times larger than ordinary ones, or than the reach of the loss, are cut to
#: that size where its tail is known: this moves the objective by a constant, and the ordinary
#: entries keep their digits.
FAR = 2.0**27
#: What entries this many times larger cost is left out when the progress of a fit is measured.
BEYOND = 10.0
#: Entries that sizes are taken from; of more, every k-th.
ENOUGH = 1 << 17


@dataclass(frozen=True)
class Sizes:
    """The median of the nonzero magnitudes of some data, and their 0.9 quantile."""

    median: float
    high: float

    @classmethod
    def of(cls, engine: Engine) -> Sizes:
        sample = engine.sample().values
        sizes = np.abs(sample[:: max(1, -(-sample.size // ENOUGH))])
        sizes = sizes[sizes > 0]
        if not sizes.size:
            return cls(engine.largest or 1.0, engine.largest or 1.0)
        return cls(*map(float, np.quantile(sizes, (0.5, 0.9))))

    def least_sigma(self, precision: float) -> float:
        """The size of roundings, and of what fits leave undone."""
        return max(8 * precision * self.high, 1e-5 * self.median)


class Problem:
    """Data in the units of a fit, and the sizes of its entries there.

    A fit of c * X must be c times the fit of X. Without touching X that takes, with s the scale
    of the data, epsilon s^2 for epsilon and mu s^(1 - 2/N) for mu.

    Attributes
    ----------
    engine : Engine
        The data in the units of the fit.
    units : Units
    wild : bool
        Whether wild entries count like any other.
    """

    def __init__(
        self, engine: Engine, units: Units, sizes: Sizes | None = None, *, wild: bool = False
    ) -> None:
        self.engine, self.units, self.wild = engine, units, wild
        if sizes is not None:
            self.__dict__["sizes"] = sizes
        self._cut: dict[float, Engine] = {}
        self._excess: dict[tuple[float, Tail], float] = {}

    @classmethod
    def of(cls, engine: Engine, *, wild: bool = False, magnify: bool = True) -> Problem:
        """In units where squares neither overflow nor vanish; not magnified if so wished.

        They go by ordinary entries; with `wild`, for least squares, by the largest.
        """
        sizes = None if wild or engine.largest == 0 else Sizes.of(engine)
        size = engine.largest if sizes is None else sizes.high
        exponent = unit_exponent(engine, size) if magnify or size > 1 else 0
        units = Units(engine.order, exponent)
        if exponent:
            return cls(engine.scaled(exponent), units, wild=wild)
        return cls(engine, units, sizes, wild=wild)

    def on(self, part: Engine) -> Problem:
        """A part of the same data, in the same units, with the sizes of the whole."""
        if part is self.engine:
            return self
        return Problem(part, self.units, self.sizes, wild=self.wild)

    @cached_property
    def sizes(self) -> Sizes:
        return Sizes.of(self.engine)

    @property
    def scale(self) -> float:
        """The median magnitude of the nonzero entries."""
        return self.sizes.median

    @property
    def ordinary(self) -> float:
        """A high quantile of the nonzero magnitudes."""
        return self.sizes.high

    @property
    def least_epsilon(self) -> float:
        """Below the roundings of the data a residual is zero, however small epsilon is."""
        return (self.engine.precision * self.ordinary) ** 2

    @property
    def least_sigma(self) -> float:
        """Residuals below this are roundings, or within the smoothing of the 1-norm."""
        return self.sizes.least_sigma(self.engine.precision)

    def relative_mu(self, mu: float, degree: int = 1) -> float:
        """A mu that is relative to the scale of the data."""
        return float(mu * self.scale ** (degree - 2 / self.units.order))

    def penalty_unit(self, degree: int) -> float:
        """What quadratic penalties are multiplied by, to grow with the data as the loss does."""
        return float(max(self.scale, 1e-150) ** (degree - 2)) if degree != 2 else 1.0

    # Wild entries

    def seen_by(self, loss: Loss) -> Engine:
        """The data with wild entries cut, if the loss allows it."""
        limit = self._limit(loss)
        return self.engine if limit is None else self._saturated(limit)

    @property
    def tame(self) -> Engine:
        """The data with wild entries cut, unless they count."""
        limit = math.inf if self.wild else FAR * self.ordinary
        return self.engine if self.engine.largest <= limit else self._saturated(limit)

    def _saturated(self, limit: float) -> Engine:
        if limit not in self._cut:
            self._cut[limit] = self.engine.saturated(limit)
        return self._cut[limit]

    def excess(self, loss: Loss) -> float:
        """What wild entries cost beyond what they cost when cut."""
        limit = self._limit(loss)
        if limit is None or loss.tail is None:
            return 0.0
        return self._beyond(self.engine, limit, loss.tail)

    def floor(self, loss: Loss) -> float:
        """The part of the loss, wild entries cut, that no model of ordinary size can lower."""
        if loss.tail is None or loss.tail.flat:
            return 0.0
        low = BEYOND * max(self.ordinary, loss.reach)
        return self._beyond(self.seen_by(loss), low, loss.tail)

    def _limit(self, loss: Loss) -> float | None:
        """Where wild entries are cut; None if none is."""
        if loss.tail is None:
            return None
        limit = FAR * max(self.ordinary, loss.reach)
        return limit if self.engine.largest > limit else None

    def _beyond(self, engine: Engine, limit: float, tail: Tail) -> float:
        if tail.flat or engine.largest <= limit:
            return 0.0
        key = limit, tail
        if key not in self._excess:
            self._excess[key] = engine.excess(limit, tail)
        return self._excess[key]


def unit_exponent(engine: Engine, size: float) -> int:
    """The power of 2 by which data of some size is divided, so that its squares are in range.

    Data of ordinary size is left alone.
    """
    ordinary = 2.0**200 if engine.precision < 1e-10 else 2.0**30
    if size == 0 or 1 / ordinary < size < ordinary:
        return 0
    return min(1000, max(-1000, math.frexp(size)[1]))
