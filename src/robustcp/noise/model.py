"""What the noise of each entry is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from robustcp._typing import Factors
from robustcp.engines import Arrangement, Listed, Scales, Signal, Weights, to_host


@dataclass(frozen=True)
class Kind:
    """What the noise depends on; on nothing if it is common to all entries.

    Attributes
    ----------
    modes : tuple of int
        Modes whose slabs have scales of their own.
    signal : bool
        Whether the variance depends on the model's entry.
    """

    modes: tuple[int, ...] = ()
    signal: bool = False

    def words(self, names: Sequence[str] = ()) -> str:
        """What it is, with the names of modes."""
        shown = [names[n] if names else f"mode {n}" for n in self.modes]
        slabs = "differs between the slabs of " + _listed(shown) if shown else ""
        signal = "grows with the signal" if self.signal else ""
        return " and ".join(filter(None, (signal, slabs))) or "common to all entries"


COMMON = Kind()


@dataclass(frozen=True, eq=False)
class Noise:
    """The standard deviation of each entry's noise, outliers left out.

    An entry's variance is a function of the model's entry m, times the squares of its slabs'
    scales; or what was known. It has a floor, the square of `least`.

    Attributes
    ----------
    sigma : float
        The typical standard deviation: the geometric mean over the entries.
    variance : (a, b, c)
        The variance function a + b |m| + c m^2, with m and the variance in units of `sigma`;
        b = c = 0 unless the noise depends on the signal.
    slabs : tuple of (array or None), one for each mode
        The relative scales of the slabs of a mode, of geometric mean 1; None if they have none.
    least : float
        The least standard deviation: half a quantisation step, or the size of roundings.
    above, below : float
        The height of the floor of outliers on either side, beside the peak of the noise.
    clean : float
        The share of entries that are not outliers.
    known : bool
        Whether the standard deviations were given.

    Examples
    --------
    >>> import robustcp
    >>> sim = robustcp.simulate((20, 20, 20), 2, eta=0.1, gamma=2.0, rng=0)
    >>> robustcp.cp(sim.data, 2).noise.kind
    Kind(modes=(), signal=False)
    """

    sigma: float
    variance: tuple[float, float, float]
    slabs: tuple[np.ndarray | None, ...]
    least: float = 0.0
    above: float = 1e-4
    below: float = 1e-4
    clean: float = 1.0
    #: Whether it was asked what the noise depends on.
    looked: bool = field(repr=False, default=True)
    #: Known standard deviations, in place of all that.
    given: Weights | Listed | None = field(repr=False, default=None)
    #: The share of entries that have no influence.
    beyond: float = field(repr=False, default=0.0)
    #: The model whose entries the variance depends on; in a `Fit` it is the fit's own.
    held: tuple[np.ndarray, ...] = field(repr=False, default=())

    @classmethod
    def common(cls, sigma: float, order: int, **options: Any) -> Noise:
        """Noise of one standard deviation, for data of so many modes."""
        return cls(sigma, (1.0, 0.0, 0.0), (None,) * order, **options)

    @property
    def known(self) -> bool:
        return self.given is not None

    @property
    def kind(self) -> Kind:
        modes = tuple(n for n, scales in enumerate(self.slabs) if scales is not None)
        return Kind(modes, self.variance[1] > 0 or self.variance[2] > 0)

    @property
    def even(self) -> bool:
        """Whether all entries have the same standard deviation."""
        return not self.known and self.kind == COMMON

    def words(self, names: Sequence[str] = ()) -> str:
        """What was found, in a sentence."""
        text = f"standard deviation {self.sigma:.3g}, "
        if self.known:
            return text + "known"
        text += self.kind.words(names)
        if self.kind.signal:
            (a, b, c), unit = self.variance, np.float64(self.sigma)
            with np.errstate(over="ignore"):
                parts = (a * unit * unit, "", a), (b * unit, " |m|", b), (c, " m^2", c)
            terms = " + ".join(
                f"{number:.3g}{power}" for number, power, part in parts if part > 1e-9
            )
            text += f" (variance {terms} at the model's entry m)" if terms else ""
        for n, scales in enumerate(self.slabs):
            if scales is not None:
                name = names[n] if names else f"mode {n}"
                text += f"; {name}: {scales.min():.3g} to {scales.max():.3g} times that"
        return text

    def __str__(self) -> str:
        return self.words()

    def scaled(self, factor: float) -> Noise:
        """The same noise of data that is multiplied by a factor; what was given stays."""
        root = factor ** (1 / max(len(self.held), 1))
        held = tuple(root * A for A in self.held)
        return replace(self, sigma=self.sigma * factor, least=self.least * factor, held=held)

    def holding(self, factors: Factors) -> Noise:
        """With the entries of these factors' model as the signal."""
        held = tuple(np.asarray(to_host(A), dtype=np.float64) for A in factors)
        return replace(self, held=held)

    def inflated(self, factor: float) -> Noise:
        """With standard deviations that are larger by a factor, but for known ones."""
        if self.known:
            return self
        a, b, c = self.variance
        return replace(self, sigma=self.sigma * factor, variance=(a, factor * b, factor**2 * c))

    def part(self, indices: Sequence[np.ndarray | None]) -> Noise:
        """The noise of a part of the data; see `Engine.subtensor`."""
        slabs = tuple(v if v is None or at is None else v[at]
                      for v, at in zip(self.slabs, indices, strict=True))  # fmt: skip
        held = tuple(A if at is None else A[at] for A, at in zip(self.held, indices, strict=False))
        return replace(self, slabs=slabs, held=held)

    def arranged(self, how: Arrangement) -> Noise:
        """The noise of the same data with its modes and indices in another order."""
        given = self.given.arranged(how) if isinstance(self.given, Weights) else self.given
        held = how.rows_of(self.held) if self.held else ()
        return replace(self, slabs=how.rows_of(self.slabs), held=held, given=given)

    def scales(self, shape: tuple[int, ...], held: Sequence[np.ndarray] = ()) -> Scales | None:
        """Each entry's standard deviation in units of `sigma`; None if they are all the same.

        `held` are the factors of the model whose entries the variance depends on, if they are
        not those that this noise holds itself.
        """
        if self.even:
            return None
        if self.given is not None:  # in the units that it was given in, whatever those of sigma
            return Scales(self.given, unit=1 / self.given.typical)
        least, unit = self.least / self.sigma, 1 / self.sigma
        slabs = Weights(shape, self.slabs) if self.kind.modes else None
        if not self.kind.signal:
            return Scales(slabs, least=least, unit=math.sqrt(self.variance[0]))
        a, b, c = self.variance
        signal = Signal(tuple(held or self.held), a, b * unit, c * unit**2)
        return Scales(slabs, signal, least)

    def without_outlying_slabs(self, beyond: float = 4.0, factor: float = 2.0) -> Noise:
        """With slabs whose scale is itself outlying at the median scale of their mode.

        Those are slabs whose log scale is above the mode's median by so many robust standard
        deviations, and by that factor: a bad sample does not hide behind its own spread.
        """
        slabs = list(self.slabs)
        for mode, at in self.outlying_slabs(beyond, factor).items():
            v = slabs[mode]
            assert v is not None
            slabs[mode] = np.where(np.isin(np.arange(v.size), at), np.median(v), v)
        return replace(self, slabs=tuple(slabs))

    def without_slabs(self, mode: int) -> Noise:
        """With all slabs of a mode at its median scale."""
        scales = self.slabs[mode]
        if scales is None:
            return self
        slabs = tuple(None if n == mode else v for n, v in enumerate(self.slabs))
        return replace(self.inflated(float(np.median(scales))), slabs=slabs)

    def outlying_slabs(self, beyond: float = 4.0, factor: float = 2.0) -> dict[int, np.ndarray]:
        """For each mode that has any, the slabs whose scale is itself outlying."""
        found = {}
        for mode, scales in enumerate(self.slabs):
            if scales is not None:
                logs = np.log(scales)
                middle = float(np.median(logs))
                spread = 1.4826 * float(np.median(np.abs(logs - middle)))
                limit = middle + max(beyond * spread, math.log(factor))
                if (logs > limit).any():
                    found[mode] = np.flatnonzero(logs > limit)
        return found


def _listed(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
