"""Half the square."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from array_api_compat import array_namespace

from robustcp._util.typing import Array
from robustcp.losses.base import Loss
from robustcp.losses.formula import Formula

if TYPE_CHECKING:  # bound by the compilers, see `Formula`
    import triton.language as tl


def _numba(r: Any, n: Any) -> Any:
    return n[0] * r * r, r, type(r)(1)


def _triton(r, n, FAST):  # type: ignore[no-untyped-def]
    return 0.5 * r * r, r, tl.full(r.shape, 1.0, r.dtype)


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
    convex: ClassVar[bool] = True
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

    @property
    def numba_formula(self) -> Formula | None:
        return Formula(_numba, (0.5,))

    @property
    def triton_formula(self) -> Formula | None:
        return Formula(_triton, ())
