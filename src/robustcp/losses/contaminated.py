"""The likelihood of normal noise with a floor of outliers, and maybe a second peak."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from array_api_compat import array_namespace

from robustcp._util.checks import ArgumentError, real_number
from robustcp._util.typing import Array
from robustcp.losses.base import Loss, Tail
from robustcp.losses.formula import LN2, LOG2E, Formula, inverse_square

if TYPE_CHECKING:  # bound by the compilers, see `Formula`
    import triton.language as tl

    from robustcp.losses.numba_helpers import exp_negative, log, max_exponent
    from robustcp.losses.triton_helpers import exp2, log2, reciprocal


def _numba(r: Any, n: Any) -> Any:
    """The value in units of sigma^2.

    n: 1 / (2 sigma^2); the floors above and below; h and a of `extra_curvature_parameters`; the
    sign of the residuals whose curvature is raised.
    """
    e = exp_negative(r * r * n[0], max_exponent(r))
    k = n[1] if r >= 0 else n[2]
    inverse = 1 / (e + k)
    clean = e * inverse
    distance = n[4] + abs(r)
    rise = n[3] / (distance * distance)
    curvature = clean + (rise if r * n[5] >= 0 else type(r)(0))
    return log((1 + k) * inverse), r * clean, curvature


def _numba_two_peaks(r: Any, n: Any) -> Any:
    """The value in units of sigma^2.

    n: 1 / (2 sigma^2); the floor; the height of the second peak, and where it is; the sum of all
    three at 0.
    """
    d = r - n[3]
    e = exp_negative(r * r * n[0], max_exponent(r))
    g = n[2] * exp_negative(d * d * n[0], max_exponent(r))
    inverse = 1 / (e + g + n[1])
    return log(n[4] * inverse), (r * e + d * g) * inverse, (e + g) * inverse


def _triton_two_peaks(r, n, FAST):  # type: ignore[no-untyped-def]
    """n: -log2(e) / (2 sigma^2), then as for Numba; log(2) sigma^2."""
    d = r - n[3]
    e = exp2(r * r * n[0], FAST)
    g = n[2] * exp2(d * d * n[0], FAST)
    inverse = reciprocal(e + g + n[1], FAST)
    return n[5] * log2(n[4] * inverse, FAST), (r * e + d * g) * inverse, (e + g) * inverse


def _triton(r, n, FAST):  # type: ignore[no-untyped-def]
    """For floors of equal height k.

    n: -log2(e) / (2 sigma^2); k; 1 + k; 0; 0; log(2) sigma^2.
    """
    e = exp2(r * r * n[0], FAST)
    inverse = reciprocal(e + n[1], FAST)
    clean = e * inverse
    return n[5] * log2(n[2] * inverse, FAST), r * clean, clean


def _triton_unequal(r, n, FAST):  # type: ignore[no-untyped-def]
    """For floors of different heights.

    n: -log2(e) / (2 sigma^2); the floors above and below; h for r >= 0 and for r < 0;
    log(2) sigma^2; a. See `extra_curvature_parameters` for h and a.
    """
    e = exp2(r * r * n[0], FAST)
    above = r >= 0
    floor = tl.where(above, n[1], n[2])
    total, distance = e + floor, n[6] + tl.abs(r)
    both = reciprocal(total * distance, FAST)  # one division for both reciprocals
    inverse, inverse_distance = distance * both, total * both
    clean = e * inverse
    value = n[5] * log2((1.0 + floor) * inverse, FAST)
    return (
        value,
        r * clean,
        clean + tl.where(above, n[3], n[4]) * (inverse_distance * inverse_distance),
    )


@dataclass(frozen=True)
class Contaminated(Loss):
    """Negative log likelihood, times sigma^2, of Gaussian noise with uniform outliers.

    sigma^2 log((1 + k) / (exp(-r^2 / (2 sigma^2)) + k)), with k the floor, which is the density of
    the outliers relative to the peak of the Gaussian: `above` for positive residuals, `below` for
    negative ones. The slope is r times the probability that the entry is clean. Where outliers are
    one-sided this takes away the bias that a symmetric loss has.

    Entries that are all shifted by `shift` form a second peak, a Gaussian of the same sigma whose
    height relative to the first is `shifted`. The slope is then the sum of the distances from both
    peaks, each times the probability that the entry belongs to it, and the curvature the sum of
    these probabilities (EM). This takes floors of equal height.

    Examples
    --------
    >>> import numpy as np
    >>> from robustcp import Contaminated
    >>> Contaminated(1.0, above=0.1, below=0.001).slope(np.array([-2.0, 2.0])).round(2)
    array([-1.99,  1.15])
    """

    degree: ClassVar[int] = 2
    later_fields: ClassVar[tuple[str, ...]] = ("shifted", "shift")
    sigma: float = 1.0
    above: float = 1e-3
    below: float = 1e-3
    shifted: float = 0.0
    shift: float = 0.0

    def __post_init__(self) -> None:
        for name in ("sigma", "above", "below"):
            real_number(name, getattr(self, name), 0.0, strict=True)
        real_number("shifted", self.shifted, 0.0)
        real_number("shift", self.shift, -math.inf)
        if self.shifted and self.above != self.below:
            problem = f"must equal above where there is a second peak, got {self.below!r}"
            raise ArgumentError("below", problem)

    @property
    def tail(self) -> Tail:
        return Tail()

    @property
    def reach(self) -> float:
        return self.rejects

    @property
    def rejects(self) -> float:
        """The residual beyond which the probability that an entry is clean is below 0.15."""
        height = min(self.above, self.below)
        reach = self.sigma * max(4.685, math.sqrt(2 * math.log(max(1.0, 5.7 / height))))
        return reach + abs(self.shift) if self.shifted else reach

    @property
    def minimizer(self) -> float:
        """The residual of least cost: near the higher peak, where steps by the curvature end."""
        r = np.array([self.shift if self.shifted > 1 else 0.0])
        for _ in range(1000 if self.shifted else 0):
            _, slope, curvature = self.majorize(r)
            r = r - slope / curvature
            if abs(slope[0]) <= 1e-15 * self.sigma:
                break
        return float(r[0])

    def _mixture_terms(self, r: Array) -> tuple[Array, Array, Array]:
        """The heights of the Gaussian and of the floor, and the probability of being clean."""
        xp = array_namespace(r)
        e = xp.exp(r * r * (-0.5 / self.sigma**2))
        if self.above == self.below:
            k = self.above
        else:
            k = xp.where(r >= 0, xp.full_like(r, self.above), xp.full_like(r, self.below))
        return e, k, e / (e + k)

    def value(self, r: Array) -> Array:
        return self.majorize(r + 0.0)[0]

    def slope(self, r: Array) -> Array:
        return self.majorize(r + 0.0)[1]

    def curvature(self, r: Array) -> Array:
        return self.majorize(r + 0.0)[2]

    def majorize(self, r: Array) -> tuple[Array, Array, Array]:
        if self.shifted:
            return self._majorize_two_peaks(r)
        xp = array_namespace(r)
        e, k, clean = self._mixture_terms(r)
        value = self.sigma**2 * xp.log((1.0 + k) / (e + k))
        slope = r * clean
        return value, slope, clean + self._extra_curvature(r)

    def _majorize_two_peaks(self, r: Array) -> tuple[Array, Array, Array]:
        xp, rate, d = array_namespace(r), -0.5 / self.sigma**2, r - self.shift
        e, g = xp.exp(r * r * rate), self.shifted * xp.exp(d * d * rate)
        total = e + g + self.above
        value = self.sigma**2 * xp.log(self._total_at_zero / total)
        return value, (r * e + d * g) / total, (e + g) / total

    @property
    def _total_at_zero(self) -> float:
        """The height of the peaks and the floor at a residual of 0, where the value is 0."""
        second = self.shifted * math.exp(-0.5 * (self.shift / self.sigma) ** 2)
        return 1.0 + second + self.above

    def _extra_curvature(self, r: Array) -> Array | float:
        """What is added to slope / r where the floors differ, so that the parabola lies above."""
        height, reach = self.extra_curvature_parameters
        if height == 0:
            return 0.0
        xp = array_namespace(r)
        higher = r >= 0 if self.above > self.below else r <= 0
        return xp.where(higher, height / (reach + xp.abs(r)) ** 2, xp.zeros_like(r))

    @property
    def extra_curvature_parameters(self) -> tuple[float, float]:
        """h and a: on the side of the higher floor the curvature is raised by h / (a + |r|)^2.

        There a parabola with curvature slope / r, which is symmetric about 0, may cut the
        steeper loss of the other side. If G is the largest gap between the two sides and the
        gap at distance s from 0 is at most G (s/a)^2, then d/2 (s + |r|)^2 covers it for all s
        with d = 2 G / (a + |r|)^2.
        """
        if self.above == self.below:
            return 0.0, 1.0
        gap, reach = _floor_gap(max(self.above, self.below), min(self.above, self.below))
        return 2 * gap * self.sigma**2, reach * self.sigma

    def rescaled(self, factor: float) -> Contaminated:
        return replace(self, sigma=self.sigma * factor, shift=self.shift * factor)

    @property
    def numba_formula(self) -> Formula | None:
        if self.shifted:
            return Formula(_numba_two_peaks, self._peak_numbers(0.5), self.sigma**2)
        higher = 1.0 if self.above > self.below else -1.0
        rise = self.extra_curvature_parameters
        numbers = 0.5 * inverse_square(self.sigma), self.above, self.below, *rise, higher
        return Formula(_numba, numbers, self.sigma**2)

    @property
    def triton_formula(self) -> Formula | None:
        rate, value = -0.5 * LOG2E / self.sigma**2, LN2 * self.sigma**2
        if self.shifted:
            return Formula(_triton_two_peaks, (*self._peak_numbers(-0.5 * LOG2E), value))
        if self.above == self.below:
            return Formula(_triton, (rate, self.above, 1.0 + self.above, 0.0, 0.0, value))
        height, reach = self.extra_curvature_parameters
        rises = (height, 0.0) if self.above > self.below else (0.0, height)
        return Formula(_triton_unequal, (rate, self.above, self.below, *rises, value, reach))

    def _peak_numbers(self, rate: float) -> tuple[float, ...]:
        """The parameters of the formulas for two peaks; the first is `rate` over sigma^2."""
        rate *= inverse_square(self.sigma)
        return rate, self.above, self.shifted, self.shift, self._total_at_zero


@lru_cache
def _floor_gap(high: float, low: float) -> tuple[float, float]:
    """G and a of `Contaminated.extra_curvature_parameters`, for sigma 1.

    a is the least s sqrt(G / gap) on a grid of distances s, less 1%.
    """
    t = np.linspace(1e-3, 12.0, 4000) ** 2 / 2 * max(1.0, -math.log(low) / 20)
    e = np.exp(-t)
    gaps = np.log((1 + low) / (e + low)) - np.log((1 + high) / (e + high))
    gap = math.log1p(1 / low) - math.log1p(1 / high)
    return gap, 0.99 * float(np.min(np.sqrt(2 * t * gap / np.maximum(gaps, 1e-300))))
