"""Huber's loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from array_api_compat import array_namespace

from robustcp._util.checks import real_number
from robustcp._util.typing import Array
from robustcp.losses.base import Loss, Tail
from robustcp.losses.formula import Formula

if TYPE_CHECKING:  # bound by the compilers, see `Formula`
    import triton.language as tl

    from robustcp.losses.triton_helpers import reciprocal


def _numba(r: Any, n: Any) -> Any:
    delta, half = n[0], type(r)(0.5)
    magnitude = abs(r)
    clipped = min(magnitude, delta)
    curvature = delta / max(magnitude, delta)
    return clipped * (magnitude - half * clipped), r * curvature, curvature


def _triton(r, n, FAST):  # type: ignore[no-untyped-def]
    magnitude = tl.abs(r)
    inverse = reciprocal(tl.maximum(magnitude, n[0]), FAST)
    clipped = tl.minimum(magnitude, n[0])
    return clipped * (magnitude - 0.5 * clipped), n[0] * r * inverse, n[0] * inverse


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
    convex: ClassVar[bool] = True
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

    @property
    def numba_formula(self) -> Formula | None:
        return Formula(_numba, (self.delta,))

    @property
    def triton_formula(self) -> Formula | None:
        return Formula(_triton, (self.delta,))
