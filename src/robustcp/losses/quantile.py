"""The smoothed check loss of quantile regression."""

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
    half, tilt = type(r)(0.5), n[1]
    root = math.sqrt(r * r + n[0])
    curvature = half / root
    return half * root + tilt * r, r * curvature + tilt, curvature


def _triton(r, n, FAST):  # type: ignore[no-untyped-def]
    square = r * r + n[0]
    half = 0.5 * tl.rsqrt(square)
    return square * half + n[1] * r, r * half + n[1], half


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
    convex: ClassVar[bool] = True
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

    @property
    def minimizer(self) -> float:
        return (0.5 - self.tau) * math.sqrt(self.epsilon / (self.tau * (1 - self.tau)))

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

    @property
    def numba_formula(self) -> Formula | None:
        return Formula(_numba, (self.epsilon, self.tau - 0.5))

    @property
    def triton_formula(self) -> Formula | None:
        return Formula(_triton, (self.epsilon, self.tau - 0.5))
