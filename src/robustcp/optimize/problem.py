"""The data in the units of the fit: gross outliers, clipping, magnitudes and resolution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from robustcp.engines import Engine
from robustcp.losses import Loss, Tail
from robustcp.noise.constant_fibres import find_constant_fibres
from robustcp.noise.resolution import MIN_ENTRIES, Magnitudes, Resolution
from robustcp.optimize.units import Units

#: Entries are clipped at this multiple of ordinary entries, or of the reach of the loss, if the
#: tail of the loss is known: the objective changes by a constant, and ordinary entries keep their
#: digits.
CLIP_RATIO = 2.0**27
#: The cost of entries beyond this multiple is left out when the progress of a fit is measured.
FLOOR_RATIO = 10.0
#: Gross outliers lie beyond a gap in the magnitudes of at least this ratio.
GAP_RATIO = 4.0
#: Gross outliers are at least this many times larger than ordinary entries.
GROSS_RATIO = 20.0


@dataclass(frozen=True)
class GrossOutliers:
    """Entries beyond a gap in the magnitudes of some data: fill values, glitches.

    The tail of data that is sparse or heavy-tailed by nature has no such gap, or beyond it only
    a few entries that are better left out.

    Attributes
    ----------
    threshold : float
        A size within the gap.
    count : int
    """

    threshold: float
    count: int

    @classmethod
    def of(cls, engine: Engine, magnitudes: Magnitudes) -> GrossOutliers | None:
        """The gross outliers of some data; None if it has none, or if they may be signal.

        They may be signal if they are more than a quarter of the entries. Or if they have at least
        two indices in each mode and fill half of the box that these span, as a strong localised
        component would.
        """
        if engine.max_abs <= GROSS_RATIO * magnitudes.median:
            return None
        edge = _last_magnitude_before_gap(
            np.abs(engine.sample().values), magnitudes.median, engine.max_abs
        )
        if edge is None:
            return None
        threshold = 2.0 * edge
        while threshold < engine.max_abs / 2 and _any_between(engine, threshold, 2 * threshold):
            threshold *= 2  # there are entries that the sample does not hold
        xp = engine.xp
        hits = engine.slab_sums(lambda x: xp.abs(x) > threshold)
        count, box = int(hits[0].sum()), [int(np.count_nonzero(slab_hits)) for slab_hits in hits]
        localised = min(box) > 1 and count >= 0.5 * math.prod(box)
        if count == 0 or localised or count > 0.25 * engine.count:
            return None
        return cls(threshold, count)

    def note(self, units: Units) -> str:
        """What users should know, in the units of the data."""
        entries = "1 entry is" if self.count == 1 else f"{self.count} entries are"
        return (
            f"{entries} left out: beyond {self.threshold * units.factor:.3g}, far from all others"
        )


def _last_magnitude_before_gap(
    magnitudes: np.ndarray, median: float, largest: float
) -> float | None:
    """The last magnitude before a gap beyond which all are outliers; None if there is no gap."""
    tail = np.sort(magnitudes[magnitudes > GAP_RATIO * median])
    edges = np.concatenate([[GAP_RATIO * median], tail, [largest]])
    for k in np.flatnonzero(edges[1:] >= GAP_RATIO * edges[:-1]):
        ordinary = magnitudes[(magnitudes > 0) & (magnitudes <= edges[k])]
        if ordinary.size >= MIN_ENTRIES and edges[k + 1] >= GROSS_RATIO * np.quantile(
            ordinary, 0.9
        ):
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
    keep_outliers : bool
        Whether gross outliers are treated like other entries.
    notes : tuple of str
        What users should know about the data.
    excluded_slabs : dict from a mode to an array of indices
        Slabs that are left out on purpose.
    """

    def __init__(
        self,
        engine: Engine,
        units: Units,
        magnitudes: Magnitudes | None = None,
        *,
        keep_outliers: bool = False,
    ) -> None:
        self.engine, self.units, self.keep_outliers = engine, units, keep_outliers
        if magnitudes is not None:
            self.__dict__["magnitudes"] = magnitudes
        self.notes: tuple[str, ...] = ()
        self.excluded_slabs: dict[int, np.ndarray] = {}
        self._clip_cache: dict[float, Engine] = {}
        self._excess_cache: dict[tuple[float, Tail], float] = {}

    @classmethod
    def of(cls, engine: Engine, *, keep_outliers: bool = False, magnify: bool = True) -> Problem:
        """The problem in units in which squares neither overflow nor underflow.

        The units follow from ordinary entries or, with `keep_outliers` (for least squares), from
        the largest. Without `magnify` small data stays as it is.
        """
        magnitudes = None if keep_outliers or engine.max_abs == 0 else Magnitudes.of(engine)
        reference = engine.max_abs if magnitudes is None else magnitudes.high_quantile
        exponent = unit_exponent(engine, reference) if magnify or reference > 1 else 0
        units = Units(engine.order, exponent)
        if exponent:
            return cls(engine.scaled(exponent), units, keep_outliers=keep_outliers)
        return cls(engine, units, magnitudes, keep_outliers=keep_outliers)

    @cached_property
    def _gross_outliers(self) -> GrossOutliers | None:
        return GrossOutliers.of(self.engine, self.magnitudes) if self.engine.max_abs > 0 else None

    @property
    def without_gross_outliers(self) -> Problem:
        """This problem without gross outliers: even the 1-norm would spend a component on one."""
        outliers = self._gross_outliers
        if outliers is None:
            return self
        return self._without(
            self.engine.masked_above(outliers.threshold), outliers.note(self.units)
        )

    @property
    def without_constant_fibres(self) -> Problem:
        """This problem without fibres that hold one value throughout."""
        if self.engine.max_abs == 0 or self.resolution.step > 0:
            return self
        fibres = find_constant_fibres(self.engine)
        if fibres is None:
            return self
        described = fibres.describe(self.engine.view.axes)
        note = f"{described} with one value throughout left out"
        return self._without(self.engine.without_fibres(fibres), note)

    def _without(self, engine: Engine, note: str) -> Problem:
        """The problem of the remaining data, with a further note; it has no gross outliers."""
        rest = Problem(engine, self.units, keep_outliers=self.keep_outliers)
        rest.notes = (*self.notes, note)
        rest.__dict__["_gross_outliers"] = None
        return rest

    def with_engine(self, engine: Engine) -> Problem:
        """The problem of a part of the data, in the same units and with the same magnitudes."""
        if engine is self.engine:
            return self
        problem = Problem(engine, self.units, self.magnitudes, keep_outliers=self.keep_outliers)
        problem.__dict__["resolution"] = self.resolution
        return problem

    @cached_property
    def magnitudes(self) -> Magnitudes:
        return Magnitudes.of(self.engine)

    @property
    def scale(self) -> float:
        """The median magnitude of the nonzero entries."""
        return self.magnitudes.median

    @property
    def ordinary_magnitude(self) -> float:
        """A high quantile of the nonzero magnitudes."""
        return self.magnitudes.high_quantile

    @property
    def min_epsilon(self) -> float:
        """The least epsilon that matters: the square of the roundings of the data."""
        return (self.engine.machine_epsilon * self.ordinary_magnitude) ** 2

    @cached_property
    def resolution(self) -> Resolution:
        """What is too small to be seen in the data."""
        return Resolution.of(self.engine, self.magnitudes)

    def relative_mu(self, mu: float, degree: int = 1) -> float:
        """mu in the units of the fit, from mu relative to the scale of the data."""
        return float(mu * self.scale ** (degree - 2 / self.units.order))

    def penalty_unit(self, degree: int) -> float:
        """The factor of quadratic penalties that makes them grow with the data as the loss does."""
        return float(max(self.scale, 1e-150) ** (degree - 2)) if degree != 2 else 1.0

    # Clipping

    def clipped_for(self, loss: Loss) -> Engine:
        """The data with large entries clipped, if the tail of the loss is known."""
        limit = self._clip_limit(loss)
        return self.engine if limit is None else self._clip(limit)

    @property
    def clipped(self) -> Engine:
        """The data with large entries clipped, unless outliers are kept."""
        limit = math.inf if self.keep_outliers else CLIP_RATIO * self.ordinary_magnitude
        return self.engine if self.engine.max_abs <= limit else self._clip(limit)

    def _clip(self, limit: float) -> Engine:
        if limit not in self._clip_cache:
            self._clip_cache[limit] = self.engine.clipped(limit)
        return self._clip_cache[limit]

    def excess(self, loss: Loss) -> float:
        """By how much clipping lowers the loss."""
        limit = self._clip_limit(loss)
        if limit is None or loss.tail is None:
            return 0.0
        return self._excess_beyond(self.engine, limit, loss.tail)

    def floor(self, loss: Loss) -> float:
        """The part of the loss of clipped data that no model of ordinary size can lower."""
        if loss.tail is None or loss.tail.flat:
            return 0.0
        low = FLOOR_RATIO * max(self.ordinary_magnitude, loss.reach)
        return self._excess_beyond(self.clipped_for(loss), low, loss.tail)

    def _clip_limit(self, loss: Loss) -> float | None:
        """The limit at which entries are clipped; None if none is."""
        if loss.tail is None:
            return None
        limit = CLIP_RATIO * max(self.ordinary_magnitude, loss.reach)
        return limit if self.engine.max_abs > limit else None

    def _excess_beyond(self, engine: Engine, limit: float, tail: Tail) -> float:
        if tail.flat or engine.max_abs <= limit:
            return 0.0
        key = limit, tail
        if key not in self._excess_cache:
            self._excess_cache[key] = engine.excess(limit, tail)
        return self._excess_cache[key]


def unit_exponent(engine: Engine, size: float) -> int:
    """The exponent of the power of 2 by which data is divided to keep its squares in range.

    It is 0 for data of ordinary magnitude (`size`).
    """
    safe_limit = 2.0**200 if engine.machine_epsilon < 1e-10 else 2.0**30
    if size == 0 or 1 / safe_limit < size < safe_limit:
        return 0
    return min(1000, max(-1000, math.frexp(size)[1]))
