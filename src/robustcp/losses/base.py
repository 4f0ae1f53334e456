"""The interface of losses: immutable functions of a residual.

A loss offers, elementwise on an array of residuals r = x - m,

- ``value(r)``: the cost,
- ``slope(r)``: its derivative,
- ``curvature(r)``: the second derivative of a parabola that touches the loss at r and lies
  above it everywhere. For a symmetric loss that is concave in r^2, curvature = slope / r.

and declares its properties (see `Loss`), so that no code tests its type. An object with only the
three methods is accepted too: `as_loss` wraps it.

A loss that names its formulas for compiled code (`numba_formula`, `triton_formula`) gets compiled
passes. A loss that is a frozen dataclass of numbers can be saved in files and checkpoints. The
package imports its losses in `losses/__init__.py`; public ones also in `robustcp/__init__.py`.
Files, checkpoints and `robustcp.warm` find losses as subclasses of `Loss`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar

from array_api_compat import array_namespace

from robustcp._util.typing import Array
from robustcp.losses.formula import Formula

#: The annotations of fields that hold numbers.
_NUMBERS = (int, float, "int", "float")


@dataclass(frozen=True)
class Tail:
    """The growth of a loss for large |r|: linear, logarithmic, both or (all zeros) bounded.

    Attributes
    ----------
    below, above : float
        The loss grows by `below` |r| towards minus infinity and by `above` r towards plus infinity.
    log : float
        On both sides it also grows by `log` times log |r|.
    """

    below: float = 0.0
    above: float = 0.0
    log: float = 0.0

    @property
    def flat(self) -> bool:
        """Whether the loss is bounded."""
        return self.below == self.above == self.log == 0

    def excess(self, x: Array, limit: float) -> Array:
        """By how much the loss of entries exceeds the loss of entries clipped at a limit."""
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
        The degree of homogeneity d: rescaled(c).value(c r) = c^d value(r).
    quadratic : bool
        Whether the loss is r^2 / 2: all rows of a factor then share one Gram matrix.
    convex : bool
        Whether the loss is convex.
    minimizer : float
        The residual of least cost, on either side of which the loss does not fall.
    likelihood : bool
        Whether the zero of `value` is arbitrary, as for log likelihoods. A relative decrease then
        means nothing, so `tol` is a decrease per entry.
    later_fields : tuple of str
        The fields that files of earlier versions lack; they have default values.
    tail : Tail or None
        The growth for large residuals; None if it is faster than linear, or not known.
    reach : float
        The magnitude of residuals beyond which the loss grows, at least roughly, as `tail` says; 0
        if it does so everywhere.
    rejects : float
        The rejection point: residuals of larger magnitude have almost no influence. Infinity for a
        loss without one.

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
    convex: ClassVar[bool] = False
    likelihood: ClassVar[bool] = False
    later_fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        """A subclass that overrides one of the three methods does not inherit what they imply."""
        if {"value", "slope", "curvature"} & vars(cls).keys():
            implied = "majorize", "numba_formula", "triton_formula", "convex", "minimizer"
            for name in implied:
                if name not in vars(cls):
                    setattr(cls, name, vars(Loss)[name])

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
    def minimizer(self) -> float:
        return 0.0

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def original(self) -> Any:
        """The object that the user passed: this loss, unless it wraps another object."""
        return self

    @property
    def numba_formula(self) -> Formula | None:
        """The formula that Numba compiles; None if the array library computes the loss."""
        return None

    @property
    def triton_formula(self) -> Formula | None:
        """The formula that Triton compiles; None if the array library computes the loss."""
        return None

    def value(self, r: Array) -> Array:
        raise NotImplementedError

    def slope(self, r: Array) -> Array:
        raise NotImplementedError

    def curvature(self, r: Array) -> Array:
        raise NotImplementedError

    def majorize(self, r: Array) -> tuple[Array, Array, Array]:
        """Value, slope and curvature; r may be overwritten."""
        return self.value(r), self.slope(r), self.curvature(r)

    def rescaled(self, factor: float) -> Loss:
        """The loss for data multiplied by a factor: its scale parameters are multiplied too."""
        return self if factor == 1 else RescaledLoss(self, factor)


@dataclass(frozen=True)
class RescaledLoss(Loss):
    """Wraps a loss without a method `rescaled`, for data multiplied by a factor.

    Its value is loss.value(r / factor).
    """

    loss: Loss
    factor: float

    @property
    def name(self) -> str:
        return self.loss.name

    @property
    def likelihood(self) -> bool:  # type: ignore[override]
        return self.loss.likelihood

    @property
    def convex(self) -> bool:  # type: ignore[override]
        return self.loss.convex

    @property
    def minimizer(self) -> float:
        return self.loss.minimizer * self.factor

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
    """A user's object that has the three methods but declares no traits."""

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


def loss_types() -> dict[str, Any]:
    """The losses that a file may name, by name: dataclasses whose fields are numbers.

    Of two classes with one name, the first that was defined counts; the package's own come first.
    """
    types: dict[str, Any] = {}
    level = Loss.__subclasses__()
    while level:
        for kind in level:
            if _is_dataclass_of_numbers(kind):
                types.setdefault(kind.__name__, kind)
        level = [subclass for kind in level for subclass in kind.__subclasses__()]
    return types


def _is_dataclass_of_numbers(kind: Any) -> bool:
    return is_dataclass(kind) and all(field.type in _NUMBERS for field in fields(kind))
