"""Welsch's loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from array_api_compat import array_namespace

from robustcp._util.checks import real_number
from robustcp._util.typing import Array
from robustcp.losses.base import Loss, Tail
from robustcp.losses.formula import LOG2E, Formula, inverse_square

if TYPE_CHECKING:  # bound by the compilers, see `Formula`
    from robustcp.losses.numba_helpers import exp_negative, max_exponent
    from robustcp.losses.triton_helpers import exp2


def _numba(r: Any, n: Any) -> Any:
    """The value in units of c^2 / 2; n: 1 / c^2."""
    e = exp_negative(r * r * n[0], max_exponent(r))
    return 1 - e, r * e, e


def _triton(r, n, FAST):  # type: ignore[no-untyped-def]
    e = exp2(r * r * n[0], FAST)
    return n[1] - n[1] * e, r * e, e


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

    @property
    def numba_formula(self) -> Formula | None:
        return Formula(_numba, (inverse_square(self.c),), self.c**2 / 2)

    @property
    def triton_formula(self) -> Formula | None:
        return Formula(_triton, (-LOG2E * self.c**-2.0, 0.5 * self.c**2))
