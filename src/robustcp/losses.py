"""Losses: small frozen values that say what a residual costs.

A loss offers, elementwise on an array of residuals r = x - m,

- ``value(r)``: the cost,
- ``slope(r)``: its derivative,
- ``curvature(r)``: the second derivative of a parabola that touches the loss at r and lies
  above it everywhere. For a symmetric loss that is concave in r^2, curvature = slope / r.

These three are all that an engine needs. A loss may also offer ``majorize(r)``, which returns
the three together, may share work between them and may overwrite r, and ``quadratic = True``,
which promises that value = r^2 / 2, so that all rows of a factor share one Gram matrix.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from array_api_compat import array_namespace

from robustcp._typing import Array


@runtime_checkable
class Loss(Protocol):
    """What a loss must offer (see the module's text)."""

    def value(self, r: Array) -> Array: ...
    def slope(self, r: Array) -> Array: ...
    def curvature(self, r: Array) -> Array: ...


def majorize(loss: Loss, r: Array) -> tuple[Array, Array, Array]:
    """Value, slope and curvature at r, in one go where the loss knows how."""
    fused = getattr(loss, "majorize", None)
    if fused is not None:
        value, slope, curvature = fused(r)
        return value, slope, curvature
    return loss.value(r), loss.slope(r), loss.curvature(r)


def rescaled(loss: Loss, factor: float) -> Loss:
    """The same loss for data that is multiplied by a factor, where the loss knows how."""
    method = getattr(loss, "rescaled", None)
    if method is None:
        return loss
    other: Loss = method(factor)
    return other


def is_quadratic(loss: Loss) -> bool:
    """Whether the loss is r^2 / 2, so that its curvature is 1 everywhere."""
    return bool(getattr(loss, "quadratic", False))


@dataclass(frozen=True)
class L1:
    """The paper's smoothed absolute value, sqrt(r^2 + epsilon).

    Its parabola at r has curvature (r^2 + epsilon)^(-1/2), the weight of the paper's eq. 5.

    >>> import numpy as np
    >>> L1(epsilon=1e-10).value(np.array([-2.0, 0.0, 3.0])).round(3)
    array([2., 0., 3.])
    """

    epsilon: float = 1e-10

    def value(self, r: Array) -> Array:
        xp = array_namespace(r)
        return xp.sqrt(r * r + self.epsilon)

    def slope(self, r: Array) -> Array:
        return r / self.value(r)

    def curvature(self, r: Array) -> Array:
        return 1.0 / self.value(r)

    def rescaled(self, factor: float) -> L1:
        return L1(min(self.epsilon * factor * factor, sys.float_info.max))

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
class LeastSquares:
    """Half the square, r^2 / 2: the loss of CPALS.

    >>> import numpy as np
    >>> LeastSquares().slope(np.array([-2.0, 3.0]))
    array([-2.,  3.])
    """

    quadratic: ClassVar[bool] = True

    def value(self, r: Array) -> Array:
        return 0.5 * r * r

    def slope(self, r: Array) -> Array:
        return r

    def curvature(self, r: Array) -> Array:
        xp = array_namespace(r)
        return xp.ones_like(r)
