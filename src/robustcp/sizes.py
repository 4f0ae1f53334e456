"""How large the entries of some data are, whatever a few wild ones are."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from robustcp.engines import Engine
from robustcp.losses import Loss, Tail
from robustcp.quantiles import quantile
from robustcp.stuck import stuck_fibres
from robustcp.units import Units

#: Entries this many times larger than ordinary ones, or than the reach of the loss, are cut to
#: that size where its tail is known: this moves the objective by a constant, and the ordinary
#: entries keep their digits.
FAR = 2.0**27
#: What entries this many times larger cost is left out when the progress of a fit is measured.
BEYOND = 10.0
#: Entries are wild beyond a gap of this ratio, if they are so many times ordinary ones.
GAP, MUCH = 4.0, 20.0
#: Of fewer ordinary entries nobody knows what is far from all of them.
PLENTY = 100
#: Entries that sizes are taken from; of more, every k-th.
ENOUGH = 1 << 17
#: Counts are small if most are smaller than this.
SMALL_COUNTS = 16.0
#: Entries among which a quantisation step is looked for.
QUANTISED = 1 << 13


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
        return cls(quantile(sizes, 0.5), quantile(sizes, 0.9))


@dataclass(frozen=True)
class Resolution:
    """What is too small to be seen in some data.

    Attributes
    ----------
    least : float
        The least standard deviation of noise that all entries have in common: of roundings, and
        of what fits leave undone; half a quantisation step.
    entry : float
        That of one entry's noise, where it is not common: half a quantisation step, or 1e-3 of
        the median magnitude. Noise that vanishes on exact entries would have all the likelihood.
    step : float
        The quantisation step; 0 if there is none.
    counts : bool
        Whether the data is quantised and not negative.
    small : bool
        Whether it is counts that are so small that they are not like real numbers.
    """

    least: float
    entry: float
    step: float = 0.0
    counts: bool = False
    small: bool = False

    @classmethod
    def of(cls, engine: Engine, sizes: Sizes | None = None) -> Resolution:
        sizes = sizes or Sizes.of(engine)
        values = engine.sample().values
        step = quantisation_step(values)
        least = max(8 * engine.precision * sizes.high, 1e-5 * sizes.median, step / 2)
        counts = step > 0 and float(values.min()) >= 0
        small = counts and float(np.median(values)) < SMALL_COUNTS * step
        return cls(least, max(step / 2, 1e-3 * sizes.median), step, counts, small)

    def times(self, factor: float) -> Resolution:
        """That of the data times a factor."""
        least, entry, step = (factor * part for part in (self.least, self.entry, self.step))
        return replace(self, least=least, entry=entry, step=step)


def quantisation_step(values: np.ndarray) -> float:
    """The number that all differences of values are multiples of; 0 if there is none to speak of.

    Values that happen to be multiples of a number a million times smaller are not quantised.
    """
    if values.size < PLENTY:
        return 0.0
    some = values[:: -(-values.size // QUANTISED)]
    levels = np.unique(some)
    if levels.size < 2 or levels.size > some.size / 2:
        return 0.0
    step = float(np.diff(levels).min())
    if step <= 1e-6 * max(abs(levels[0]), abs(levels[-1])):
        return 0.0
    multiples = (levels - levels[0]) / step
    return step if float(np.abs(multiples - np.rint(multiples)).max()) < 1e-3 else 0.0


@dataclass(frozen=True)
class Wild:
    """Entries beyond a gap in the magnitudes of some data: fill values, glitches.

    The tail of data that is sparse or heavy-tailed by nature has no such gap, or beyond it only
    a few entries that are better left out.

    Attributes
    ----------
    beyond : float
        A size within the gap.
    count : int
    """

    beyond: float
    count: int

    @classmethod
    def of(cls, engine: Engine, sizes: Sizes) -> Wild | None:
        """None if there are none, or if they may be what is looked for.

        That is so if they are more than a quarter of the entries; or if they have two indices or
        more in each mode and fill half of the box that these make, as those of a strong component
        that is local would.
        """
        if engine.largest <= MUCH * sizes.median:
            return None
        edge = _last_before_a_gap(np.abs(engine.sample().values), sizes.median, engine.largest)
        if edge is None:
            return None
        beyond = 2.0 * edge
        while beyond < engine.largest / 2 and _any_between(engine, beyond, 2 * beyond):
            beyond *= 2  # there are entries that the sample does not hold
        xp = engine.xp
        hits = engine.slab_sums(lambda x: xp.abs(x) > beyond)
        count, box = int(hits[0].sum()), [int(np.count_nonzero(part)) for part in hits]
        local = min(box) > 1 and count >= 0.5 * math.prod(box)
        if count == 0 or local or count > 0.25 * engine.count:
            return None
        return cls(beyond, count)

    def note(self, units: Units) -> str:
        """What users should know, in the units of the data."""
        entries = "1 entry is" if self.count == 1 else f"{self.count} entries are"
        return f"{entries} left out: beyond {self.beyond * units.factor:.3g}, far from all others"


def _last_before_a_gap(magnitudes: np.ndarray, median: float, largest: float) -> float | None:
    """The last magnitude before the first gap beyond which all are wild; None if there is none."""
    tail = np.sort(magnitudes[magnitudes > GAP * median])
    edges = np.concatenate([[GAP * median], tail, [largest]])
    for k in np.flatnonzero(edges[1:] >= GAP * edges[:-1]):
        rest = magnitudes[(magnitudes > 0) & (magnitudes <= edges[k])]
        if rest.size >= PLENTY and edges[k + 1] >= MUCH * np.quantile(rest, 0.9):
            return float(edges[k])
    return None


def _any_between(engine: Engine, low: float, high: float) -> bool:
    """Whether any magnitude lies between two sizes."""
    xp = engine.xp
    hits = engine.slab_sums(lambda x: (xp.abs(x) > low) & (xp.abs(x) <= high))
    return bool(hits[0].any())


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
    notes : tuple of str
        What users should know about the data.
    absent : dict from a mode to an array of indices
        Slabs that were left out on purpose.
    """

    def __init__(
        self, engine: Engine, units: Units, sizes: Sizes | None = None, *, wild: bool = False
    ) -> None:
        self.engine, self.units, self.wild = engine, units, wild
        if sizes is not None:
            self.__dict__["sizes"] = sizes
        self.notes: tuple[str, ...] = ()
        self.absent: dict[int, np.ndarray] = {}
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

    @cached_property
    def _wild_entries(self) -> Wild | None:
        return Wild.of(self.engine, self.sizes) if self.engine.largest > 0 else None

    @property
    def without_wild(self) -> Problem:
        """The same data without wild entries: even the 1-norm would spend a component on one."""
        return self._rest_of_wild or self

    @cached_property
    def _rest_of_wild(self) -> Problem | None:
        found = self._wild_entries
        if found is None:
            return None
        rest = Problem(self.engine.without(found.beyond), self.units, wild=self.wild)
        rest.notes = (found.note(self.units),)
        rest.__dict__["_wild_entries"] = None
        return rest

    @property
    def without_stuck(self) -> Problem:
        """The same data without fibres that hold one value throughout."""
        return self._rest_of_stuck or self

    @cached_property
    def _rest_of_stuck(self) -> Problem | None:
        if self.engine.largest == 0 or self.resolution.step > 0:
            return None
        fibres = stuck_fibres(self.engine)
        if fibres is None:
            return None
        rest = Problem(self.engine.leaving_out(fibres), self.units, wild=self.wild)
        rest.notes = (*self.notes, f"{fibres.words} with one value throughout left out")
        rest.__dict__["_wild_entries"] = None
        return rest

    def on(self, part: Engine) -> Problem:
        """A part of the same data, in the same units, with the sizes of the whole."""
        if part is self.engine:
            return self
        found = Problem(part, self.units, self.sizes, wild=self.wild)
        found.__dict__["resolution"] = self.resolution
        return found

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

    @cached_property
    def resolution(self) -> Resolution:
        """What is too small to be seen."""
        return Resolution.of(self.engine, self.sizes)

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
