"""The smoothed absolute value."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from array_api_compat import array_namespace

from robustcp._util.checks import real_number
from robustcp._util.typing import Array
from robustcp.losses.base import Loss, Tail
from robustcp.losses.formula import Formula

if TYPE_CHECKING:  # bound by the compilers, see `Formula`
    import triton.language as tl


def _numba(r: Any, n: Any) -> Any:
    root = math.sqrt(r * r + n[0])
    inverse = type(r)(1) / root
    return root, r * inverse, inverse


def _triton(r, n, FAST):  # type: ignore[no-untyped-def]
    square = r * r + n[0]
    inverse = tl.rsqrt(square)
    return square * inverse, r * inverse, inverse


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
    convex: ClassVar[bool] = True
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

    @property
    def numba_formula(self) -> Formula | None:
        return Formula(_numba, (self.epsilon,))

    @property
    def triton_formula(self) -> Formula | None:
        return Formula(_triton, (self.epsilon,))
