"""Tukey's biweight."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from array_api_compat import array_namespace

from robustcp._util.checks import real_number
from robustcp._util.typing import Array
from robustcp.losses.base import Loss, Tail
from robustcp.losses.formula import Formula, inverse_square

if TYPE_CHECKING:  # bound by the compilers, see `Formula`
    import triton.language as tl


def _numba(r: Any, n: Any) -> Any:
    """The value in units of c^2 / 6; n: 1 / c^2."""
    one = type(r)(1)
    inside = max(one - r * r * n[0], type(r)(0))
    curvature = inside * inside
    return one - curvature * inside, r * curvature, curvature


def _triton(r, n, FAST):  # type: ignore[no-untyped-def]
    inside = tl.maximum(1.0 - r * r * n[0], 0.0)
    curvature = inside * inside
    return n[1] - n[1] * curvature * inside, r * curvature, curvature


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

    @property
    def numba_formula(self) -> Formula | None:
        return Formula(_numba, (inverse_square(self.c),), self.c**2 / 6)

    @property
    def triton_formula(self) -> Formula | None:
        return Formula(_triton, (self.c**-2.0, self.c**2 / 6))
