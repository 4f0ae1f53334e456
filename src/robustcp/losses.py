"""Losses: small frozen values that say what a residual costs.

A loss offers, elementwise on an array of residuals r = x - m,

- ``value(r)``: the cost,
- ``slope(r)``: its derivative,
- ``curvature(r)``: the second derivative of a parabola that touches the loss at r and lies
  above it everywhere. For a symmetric loss that is concave in r^2, curvature = slope / r.

and declares its traits (see `Loss`), so that nobody needs to know its type. An object that has
nothing but the three methods is a loss too: `as_loss` wraps it, once, at the front door.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace

from robustcp._util.checks import real_number
from robustcp._util.typing import Array


@dataclass(frozen=True)
class Tail:
    """How a loss grows far out: below |r| for negative r, above r for positive, plus log log|r|.

    `below` and `above` are the slopes at minus and plus infinity, as magnitudes. A tail of zeros
    is that of a bounded loss.
    """

    below: float = 0.0
    above: float = 0.0
    log: float = 0.0

    @property
    def flat(self) -> bool:
        return self.below == self.above == self.log == 0

    def excess(self, x: Array, limit: float) -> Array:
        """By how much entries cost more than if they were cut to a limit, if that is far out."""
        xp = array_namespace(x)
        magnitude = xp.abs(x)
        slope = self.above
        if self.below != self.above:
            slope = xp.where(x < 0, xp.full_like(x, self.below), xp.full_like(x, self.above))
        over = xp.clip(magnitude - limit, min=0.0)
        cost = slope * over
        if self.log:
            cost = cost + self.log * xp.log(xp.clip(magnitude, min=limit) / limit)
        return cost


class Loss:
    """The base of all losses: three methods and the traits that the rest of the package reads.

    Attributes
    ----------
    degree : int
        The power of a factor of the data by which the loss grows: rescaled(c).value(c r) =
        c^degree value(r).
    quadratic : bool
        Whether it is r^2 / 2: all rows of a factor then share one Gram matrix.
    likelihood : bool
        Whether its values have no natural zero, so that a fall can only be judged per entry.
    tail : Tail or None
        How it grows far out; None if faster than linearly, or if that is not known.
    reach : float
        The residual from which on the tail holds.
    rejects : float
        The residual beyond which an entry has next to no influence; infinity if there is none.

    Examples
    --------
    >>> import numpy as np, robustcp
    >>> class LogCosh(robustcp.Loss):
    ...     '''Like r^2 / 2 near 0, like |r| far out.'''
    ...
    ...     def value(self, r):
    ...         return np.logaddexp(r, -r) - np.log(2)
    ...
    ...     def slope(self, r):
    ...         return np.tanh(r)
    ...
    ...     def curvature(self, r):
    ...         return np.where(r == 0, 1.0, np.tanh(r) / np.where(r == 0, 1.0, r))
    >>> X = robustcp.simulate((10, 9, 8), 2, eta=0.1, gamma=1.0, rng=0)
    >>> fit = robustcp.cp(X.data, 2, loss=LogCosh())
    >>> robustcp.factor_match_score(fit, X.truth) > 0.8
    True
    """

    degree: ClassVar[int] = 0
    quadratic: ClassVar[bool] = False
    likelihood: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """A class that changes one of the three methods does not inherit the three together."""
        changed = {"value", "slope", "curvature"} & vars(cls).keys()
        if changed and "majorize" not in vars(cls):
            cls.majorize = Loss.majorize  # type: ignore[method-assign]

    @property
    def tail(self) -> Tail | None:
        return None

    @property
    def reach(self) -> float:
        return 0.0

    @property
    def rejects(self) -> float:
        return math.inf

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def original(self) -> Any:
        """The object that the user gave."""
        return self

    def value(self, r: Array) -> Array:
        raise NotImplementedError

    def slope(self, r: Array) -> Array:
        raise NotImplementedError

    def curvature(self, r: Array) -> Array:
        raise NotImplementedError

    def majorize(self, r: Array) -> tuple[Array, Array, Array]:
        """Value, slope and curvature together; r may be overwritten."""
        return self.value(r), self.slope(r), self.curvature(r)

    def rescaled(self, factor: float) -> Loss:
        """The same loss for data that is multiplied by a factor."""
        return self if factor == 1 else RescaledLoss(self, factor)


@dataclass(frozen=True)
class RescaledLoss(Loss):
    """A loss that knows only its own units, for data that was multiplied by a factor."""

    loss: Loss
    factor: float

    @property
    def name(self) -> str:
        return self.loss.name

    @property
    def likelihood(self) -> bool:  # type: ignore[override]
        return self.loss.likelihood

    @property
    def tail(self) -> Tail | None:
        tail, f = self.loss.tail, self.factor
        return None if tail is None else Tail(tail.below / f, tail.above / f, tail.log)

    @property
    def reach(self) -> float:
        return self.loss.reach * self.factor

    @property
    def rejects(self) -> float:
        return self.loss.rejects * self.factor

    def value(self, r: Array) -> Array:
        return self.loss.value(r / self.factor)

    def slope(self, r: Array) -> Array:
        return self.loss.slope(r / self.factor) / self.factor

    def curvature(self, r: Array) -> Array:
        return self.loss.curvature(r / self.factor) / self.factor**2

    def rescaled(self, factor: float) -> Loss:
        total_factor = self.factor * factor
        return self.loss if total_factor == 1 else RescaledLoss(self.loss, total_factor)


@dataclass(frozen=True)
class UserLoss(Loss):
    """A user's object with the three methods, and nothing known of its traits."""

    given: Any

    @property
    def name(self) -> str:
        return type(self.given).__name__

    @property
    def original(self) -> Any:
        return self.given

    def __repr__(self) -> str:
        return repr(self.given)

    def value(self, r: Array) -> Array:
        return self.given.value(r)

    def slope(self, r: Array) -> Array:
        return self.given.slope(r)

    def curvature(self, r: Array) -> Array:
        return self.given.curvature(r)


def as_loss(given: Any) -> Loss:
    """A loss from a `Loss`, or from any object with `value`, `slope` and `curvature`."""
    if isinstance(given, Loss):
        return given
    missing = [name for name in ("value", "slope", "curvature") if not hasattr(given, name)]
    if isinstance(given, type):
        raise ValueError(f"loss: must be a loss such as Huber(1.0), got {given!r}")
    if missing:
        raise ValueError(f"loss: {given!r} has no {', '.join(missing)}")
    return UserLoss(given)


@dataclass(frozen=True)
class L1(Loss):
    """The paper's smoothed absolute value, sqrt(r^2 + epsilon).

    Its parabola at r has curvature (r^2 + epsilon)^(-1/2), the weight of the paper's eq. 5.

    Examples
    --------
    >>> import numpy as np
    >>> from robustcp import L1
    >>> L1(epsilon=1e-10).value(np.array([-2.0, 0.0, 3.0])).round(3)
    array([2., 0., 3.])
    """

    degree: ClassVar[int] = 1
    epsilon: float = 1e-10

    def __post_init__(self) -> None:
        real_number("epsilon", self.epsilon, 0.0, strict=True)

    @property
    def tail(self) -> Tail:
        return Tail(1.0, 1.0)

    @property
    def reach(self) -> float:
        return math.sqrt(self.epsilon)

    def value(self, r: Array) -> Array:
        xp = array_namespace(r)
        return xp.sqrt(r * r + self.epsilon)

    def slope(self, r: Array) -> Array:
        return r / self.value(r)

    def curvature(self, r: Array) -> Array:
        return 1.0 / self.value(r)

    def rescaled(self, factor: float) -> L1:
        epsilon = self.epsilon * factor * factor
        return replace(self, epsilon=min(max(epsilon, sys.float_info.min), sys.float_info.max))

    def majorize(self, r: Array) -> tuple[Array, Array, Array]:
        xp = array_namespace(r)
        square = r * r
        square += self.epsilon
        value = xp.sqrt(square)
        del square  # its memory is taken again by the next line
        curvature = 1.0 / value
        r *= curvature
        return value, r, curvature


@dataclass(frozen=True)
class Huber(Loss):
    """r^2 / 2 near zero, delta |r| - delta^2 / 2 beyond delta.

    Examples
    --------
    >>> import numpy as np
    >>> from robustcp import Huber
    >>> Huber(1.0).slope(np.array([-3.0, 0.5]))
    array([-1. ,  0.5])
    """

    degree: ClassVar[int] = 2
    delta: float = 1.345

    def __post_init__(self) -> None:
        real_number("delta", self.delta, 0.0, strict=True)

    @property
    def tail(self) -> Tail:
        return Tail(self.delta, self.delta)

    @property
    def reach(self) -> float:
        return self.delta

    def value(self, r: Array) -> Array:
        xp = array_namespace(r)
        magnitude = xp.abs(r)
        return xp.where(
            magnitude <= self.delta, 0.5 * r * r, self.delta * (magnitude - 0.5 * self.delta)
        )

    def slope(self, r: Array) -> Array:
        return array_namespace(r).clip(r, -self.delta, self.delta)

    def curvature(self, r: Array) -> Array:
        xp = array_namespace(r)
        magnitude = xp.abs(r)
        far = magnitude > self.delta
        return xp.where(
            far, self.delta / xp.where(far, magnitude, xp.ones_like(magnitude)), xp.ones_like(r)
        )

    def rescaled(self, factor: float) -> Huber:
        return replace(self, delta=self.delta * factor)


@dataclass(frozen=True)
class Cauchy(Loss):
    """c^2/2 log(1 + (r/c)^2): the influence of a residual falls beyond c, slowly.

    Examples
    --------
    >>> import numpy as np
    >>> from robustcp import Cauchy
    >>> Cauchy(1.0).slope(np.array([0.0, 1.0]))
    array([0. , 0.5])
    """

    degree: ClassVar[int] = 2
    c: float = 2.385

    def __post_init__(self) -> None:
        real_number("c", self.c, 0.0, strict=True)

    @property
    def tail(self) -> Tail:
        return Tail(log=self.c**2)

    @property
    def reach(self) -> float:
        return self.c

    def value(self, r: Array) -> Array:
        return 0.5 * self.c**2 * array_namespace(r).log1p((r / self.c) ** 2)

    def slope(self, r: Array) -> Array:
        return r * self.curvature(r)

    def curvature(self, r: Array) -> Array:
        return 1.0 / (1.0 + (r / self.c) ** 2)

    def rescaled(self, factor: float) -> Cauchy:
        return replace(self, c=self.c * factor)


@dataclass(frozen=True)
class Welsch(Loss):
    """c^2/2 (1 - exp(-(r/c)^2)): residuals far beyond c have no influence.

    Examples
    --------
    >>> import numpy as np
    >>> from robustcp import Welsch
    >>> Welsch(1.0).curvature(np.array([0.0, 10.0])).round(6)
    array([1., 0.])
    """

    degree: ClassVar[int] = 2
    c: float = 2.985

    def __post_init__(self) -> None:
        real_number("c", self.c, 0.0, strict=True)

    @property
    def tail(self) -> Tail:
        return Tail()

    @property
    def reach(self) -> float:
        return 6 * self.c

    def value(self, r: Array) -> Array:
        return -0.5 * self.c**2 * array_namespace(r).expm1(-((r / self.c) ** 2))

    def slope(self, r: Array) -> Array:
        return r * self.curvature(r)

    def curvature(self, r: Array) -> Array:
        return array_namespace(r).exp(-((r / self.c) ** 2))

    def rescaled(self, factor: float) -> Welsch:
        return replace(self, c=self.c * factor)


@dataclass(frozen=True)
class Tukey(Loss):
    """The biweight, c^2/6 (1 - (1 - (r/c)^2)^3) up to c and flat beyond: it rejects outright.

    With c = 4.685 sigma it is 95% as efficient as least squares under Gaussian noise.

    Examples
    --------
    >>> import numpy as np
    >>> from robustcp import Tukey
    >>> Tukey(1.0).curvature(np.array([0.0, 2.0]))
    array([1., 0.])
    """

    degree: ClassVar[int] = 2
    c: float = 4.685

    def __post_init__(self) -> None:
        real_number("c", self.c, 0.0, strict=True)

    @property
    def tail(self) -> Tail:
        return Tail()

    @property
    def reach(self) -> float:
        return self.c

    @property
    def rejects(self) -> float:
        return self.c

    def _inside(self, r: Array) -> Array:
        """1 - (r/c)^2, or 0 beyond c."""
        t = r / self.c
        t = 1.0 - t * t
        return array_namespace(r).clip(t, min=0.0)

    def value(self, r: Array) -> Array:
        t = self._inside(r)
        return (self.c**2 / 6) * (1.0 - t * t * t)

    def slope(self, r: Array) -> Array:
        return r * self.curvature(r)

    def curvature(self, r: Array) -> Array:
        t = self._inside(r)
        return t * t

    def majorize(self, r: Array) -> tuple[Array, Array, Array]:
        t = self._inside(r)
        curvature = t * t
        t *= curvature
        t -= 1.0
        t *= -(self.c**2) / 6
        r *= curvature
        return t, r, curvature

    def rescaled(self, factor: float) -> Tukey:
        return replace(self, c=self.c * factor)


@dataclass(frozen=True)
class Contaminated(Loss):
    """Minus the log likelihood of Gaussian noise on a flat floor of outliers, times sigma^2.

    sigma^2 log((1 + k) / (exp(-r^2 / (2 sigma^2)) + k), with k the height of the floor beside
    the peak of the Gaussian: `above` for positive residuals, `below` for negative ones. The
    slope is r times the probability that the entry is clean. Where outliers are one-sided this
    takes away the bias that a symmetric loss has.

    Examples
    --------
    >>> import numpy as np
    >>> from robustcp import Contaminated
    >>> Contaminated(1.0, above=0.1, below=0.001).slope(np.array([-2.0, 2.0])).round(2)
    array([-1.99,  1.15])
    """

    degree: ClassVar[int] = 2
    sigma: float = 1.0
    above: float = 1e-3
    below: float = 1e-3

    def __post_init__(self) -> None:
        for name in ("sigma", "above", "below"):
            real_number(name, getattr(self, name), 0.0, strict=True)

    @property
    def tail(self) -> Tail:
        return Tail()

    @property
    def reach(self) -> float:
        return self.rejects

    @property
    def rejects(self) -> float:
        """From there on the probability of being clean is below 0.15."""
        height = min(self.above, self.below)
        return self.sigma * max(4.685, math.sqrt(2 * math.log(max(1.0, 5.7 / height))))

    def _mixture_terms(self, r: Array) -> tuple[Array, Array, Array]:
        """The Gaussian's height, the floor's, and the probability of being clean."""
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
        return r * self._mixture_terms(r)[2]

    def curvature(self, r: Array) -> Array:
        return self.majorize(r + 0.0)[2]

    def majorize(self, r: Array) -> tuple[Array, Array, Array]:
        xp = array_namespace(r)
        e, k, clean = self._mixture_terms(r)
        value = self.sigma**2 * xp.log((1.0 + k) / (e + k))
        slope = r * clean
        return value, slope, clean + self._extra_curvature(r)

    def _extra_curvature(self, r: Array) -> Array | float:
        """What the curvature needs beyond slope / r where the floors differ."""
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
        return replace(self, sigma=self.sigma * factor)


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


@dataclass(frozen=True)
class Quantile(Loss):
    """The smoothed check loss, sqrt(r^2 + epsilon)/2 + (tau - 1/2) r: fits the tau-quantile.

    Examples
    --------
    >>> import numpy as np
    >>> from robustcp import Quantile
    >>> Quantile(0.9).value(np.array([-1.0, 1.0])).round(3)
    array([0.1, 0.9])
    """

    degree: ClassVar[int] = 1
    tau: float = 0.5
    epsilon: float = 1e-10

    def __post_init__(self) -> None:
        real_number("tau", self.tau, 0.0, strict=True, below=1.0)
        real_number("epsilon", self.epsilon, 0.0, strict=True)

    @property
    def tail(self) -> Tail:
        return Tail(1 - self.tau, self.tau)

    @property
    def reach(self) -> float:
        return math.sqrt(self.epsilon)

    def _root(self, r: Array) -> Array:
        return array_namespace(r).sqrt(r * r + self.epsilon)

    def value(self, r: Array) -> Array:
        return 0.5 * self._root(r) + (self.tau - 0.5) * r

    def slope(self, r: Array) -> Array:
        return 0.5 * r / self._root(r) + (self.tau - 0.5)

    def curvature(self, r: Array) -> Array:
        return 0.5 / self._root(r)

    def rescaled(self, factor: float) -> Quantile:
        return replace(self, epsilon=min(self.epsilon * factor * factor, sys.float_info.max))


@dataclass(frozen=True)
class LeastSquares(Loss):
    """Half the square, r^2 / 2: the loss of CPALS.

    Examples
    --------
    >>> import numpy as np
    >>> from robustcp import LeastSquares
    >>> LeastSquares().slope(np.array([-2.0, 3.0]))
    array([-2.,  3.])
    """

    degree: ClassVar[int] = 2
    quadratic: ClassVar[bool] = True

    def value(self, r: Array) -> Array:
        return 0.5 * r * r

    def slope(self, r: Array) -> Array:
        return r

    def rescaled(self, factor: float) -> LeastSquares:
        return self

    def curvature(self, r: Array) -> Array:
        xp = array_namespace(r)
        return xp.ones_like(r)
