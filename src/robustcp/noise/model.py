"""Noise: the standard deviation of each entry, and its kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from robustcp._util.typing import Factors
from robustcp.engines import Arrangement, EntryField, ListedField, Scales, VarianceFunction, to_host


@dataclass(frozen=True)
class Kind:
    """What the noise depends on; by default it is common to all entries.

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
        """A phrase that describes the kind, with the names of modes."""
        mode_names = [names[n] if names else f"mode {n}" for n in self.modes]
        slabs = "differs between the slabs of " + _join_names(mode_names) if mode_names else ""
        signal = "grows with the signal" if self.signal else ""
        return " and ".join(filter(None, (signal, slabs))) or "common to all entries"


COMMON = Kind()


@dataclass(frozen=True, eq=False)
class Noise:
    """The standard deviation of the noise of each entry, without outliers.

    An entry's variance is a function of the model's entry m times the squares of its slabs'
    scales, unless it was known beforehand. It is at least the square of `least`.

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
        The height of the floor of outliers on either side, relative to the peak of the noise.
    clean : float
        The share of entries that are neither outliers nor shifted.
    shifted, shift : float
        The height, relative to the peak, of a second peak of shifted entries, and its distance in
        standard deviations (negative if it is below); 0 if there is none.
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
    shifted: float = 0.0
    shift: float = 0.0
    #: Whether the kind was selected or given; otherwise common noise is an assumption.
    kind_determined: bool = field(repr=False, default=True)
    #: Standard deviations that were known beforehand and replace the other parameters.
    known_sigmas: EntryField | ListedField | None = field(repr=False, default=None)
    #: The share of entries that are so far from the model that they have no influence.
    rejected_share: float = field(repr=False, default=0.0)
    #: The model whose entries the variance depends on; in a `Fit` it is the fit's own.
    signal_factors: tuple[np.ndarray, ...] = field(repr=False, default=())

    @classmethod
    def common(cls, sigma: float, order: int, **options: Any) -> Noise:
        """Noise of one standard deviation, for data with `order` modes."""
        return cls(sigma, (1.0, 0.0, 0.0), (None,) * order, **options)

    @property
    def known(self) -> bool:
        return self.known_sigmas is not None

    @property
    def kind(self) -> Kind:
        modes = tuple(n for n, scales in enumerate(self.slabs) if scales is not None)
        return Kind(modes, self.variance[1] > 0 or self.variance[2] > 0)

    @property
    def homoscedastic(self) -> bool:
        """Whether all entries have the same standard deviation."""
        return not self.known and self.kind == COMMON

    def words(self, names: Sequence[str] = ()) -> str:
        """A description of the noise, with the names of modes."""
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
        if self.shifted:
            share = self.shifted / (1 + self.shifted)
            text += f"; {share:.0%} shifted by {self.shift:.2g} standard deviations"
        return text

    def __str__(self) -> str:
        return self.words()

    def scaled(self, factor: float) -> Noise:
        """The noise of the data times a factor; known standard deviations stay as they are."""
        root = factor ** (1 / max(len(self.signal_factors), 1))
        signal_factors = tuple(root * A for A in self.signal_factors)
        return replace(
            self,
            sigma=self.sigma * factor,
            least=self.least * factor,
            signal_factors=signal_factors,
        )

    def with_signal(self, factors: Factors) -> Noise:
        """The same noise with the model of these factors as its signal."""
        signal_factors = tuple(np.asarray(to_host(A), dtype=np.float64) for A in factors)
        return replace(self, signal_factors=signal_factors)

    def inflated(self, factor: float) -> Noise:
        """The same noise with standard deviations times a factor, unless they are known."""
        if self.known:
            return self
        a, b, c = self.variance
        return replace(self, sigma=self.sigma * factor, variance=(a, factor * b, factor**2 * c))

    def subset(self, indices: Sequence[np.ndarray | None]) -> Noise:
        """The noise of a subtensor (see `Engine.subtensor`)."""
        slabs = tuple(
            v if v is None or index is None else v[index]
            for v, index in zip(self.slabs, indices, strict=True)
        )
        signal_factors = tuple(
            A if index is None else A[index]
            for A, index in zip(self.signal_factors, indices, strict=False)
        )
        return replace(self, slabs=slabs, signal_factors=signal_factors)

    def reorder(self, arrangement: Arrangement) -> Noise:
        """The noise of the same data with its modes and indices in another order."""
        known_sigmas = self.known_sigmas and self.known_sigmas.reorder(arrangement)
        signal_factors = (
            arrangement.reorder_rows(self.signal_factors) if self.signal_factors else ()
        )
        return replace(
            self,
            slabs=arrangement.reorder_rows(self.slabs),
            signal_factors=signal_factors,
            known_sigmas=known_sigmas,
        )

    def scales(
        self, shape: tuple[int, ...], signal_factors: Sequence[np.ndarray] = ()
    ) -> Scales | None:
        """Each entry's standard deviation in units of `sigma`; None if all are equal.

        `signal_factors` are the factors of the model that the variance depends on, by default those
        that this noise holds.
        """
        if self.homoscedastic:
            return None
        if self.known_sigmas is not None:  # in their own units, whatever the units of sigma
            return Scales(self.known_sigmas, unit=1 / self.known_sigmas.geometric_mean)
        least, unit = self.least / self.sigma, 1 / self.sigma
        slabs = EntryField(shape, self.slabs) if self.kind.modes else None
        if not self.kind.signal:
            return Scales(slabs, least=least, unit=math.sqrt(self.variance[0]))
        a, b, c = self.variance
        signal_factors = tuple(signal_factors or self.signal_factors)
        return Scales(slabs, VarianceFunction(signal_factors, a, b * unit, c * unit**2), least)

    def without_outlying_scales(self, threshold: float = 4.0, min_ratio: float = 2.0) -> Noise:
        """The same noise with outlying scales of slabs replaced by the median of their mode.

        So a bad sample cannot hide behind its own scale. See `outlying_slabs`.
        """
        slabs = list(self.slabs)
        for mode, indices in self.outlying_slabs(threshold, min_ratio).items():
            v = slabs[mode]
            assert v is not None
            slabs[mode] = np.where(np.isin(np.arange(v.size), indices), np.median(v), v)
        return replace(self, slabs=tuple(slabs))

    def without_slab_scales(self, mode: int) -> Noise:
        """The same noise with the median scale for all slabs of a mode."""
        scales = self.slabs[mode]
        if scales is None:
            return self
        slabs = tuple(None if n == mode else v for n, v in enumerate(self.slabs))
        return replace(self.inflated(float(np.median(scales))), slabs=slabs)

    def outlying_slabs(
        self, threshold: float = 4.0, min_ratio: float = 2.0
    ) -> dict[int, np.ndarray]:
        """For each mode that has any, the slabs whose scale is outlying.

        It exceeds the median of the mode by `threshold` robust standard deviations of log scales,
        and by the factor `min_ratio`.
        """
        outlying = {}
        for mode, scales in enumerate(self.slabs):
            if scales is not None:
                logs = np.log(scales)
                center = float(np.median(logs))
                spread = 1.4826 * float(np.median(np.abs(logs - center)))
                limit = center + max(threshold * spread, math.log(min_ratio))
                if (logs > limit).any():
                    outlying[mode] = np.flatnonzero(logs > limit)
        return outlying


def _join_names(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
