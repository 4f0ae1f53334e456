"""Cauchy's loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from array_api_compat import array_namespace

from robustcp._util.checks import real_number
from robustcp._util.typing import Array
from robustcp.losses.base import Loss, Tail
from robustcp.losses.formula import LN2, Formula, inverse_square

if TYPE_CHECKING:  # bound by the compilers, see `Formula`
    from robustcp.losses.numba_helpers import log
    from robustcp.losses.triton_helpers import log2, reciprocal


def _numba(r: Any, n: Any) -> Any:
    """The value in units of c^2 / 2; n: 1 / c^2."""
    one = type(r)(1)
    y = one + r * r * n[0]
    curvature = one / y
    return log(y), r * curvature, curvature


def _triton(r, n, FAST):  # type: ignore[no-untyped-def]
    y = 1.0 + r * r * n[0]
    curvature = reciprocal(y, FAST)
    return n[1] * log2(y, FAST), r * curvature, curvature


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

    @property
    def numba_formula(self) -> Formula | None:
        return Formula(_numba, (inverse_square(self.c),), self.c**2 / 2)

    @property
    def triton_formula(self) -> Formula | None:
        return Formula(_triton, (self.c**-2.0, 0.5 * LN2 * self.c**2))
