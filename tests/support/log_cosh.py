"""A loss as a user would add one: all that the package needs to know of it is in this file."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from array_api_compat import array_namespace

from robustcp.losses import Formula, Loss, Tail

if TYPE_CHECKING:
    import triton.language as tl

    from robustcp.losses.triton_helpers import exp2, log2


def for_numba(r, n):
    t = abs(r) / n[0]
    slope = math.tanh(t)
    value = t + math.log1p(math.exp(-2 * t)) - math.log(2.0)
    curvature = slope / t if t > 0 else 1.0
    return value, r * curvature, curvature


def for_triton(r, n, FAST):
    t = tl.abs(r) * n[0]
    e = exp2(t * n[1], FAST)
    value = n[2] * (t + n[3] * log2(1.0 + e, FAST) - n[3])
    curvature = tl.where(t > 1e-4, (1.0 - e) / ((1.0 + e) * tl.maximum(t, 1e-4)), 1.0 - t * t / 3)
    return value, r * curvature, curvature


@dataclass(frozen=True)
class LogCosh(Loss):
    """c^2 log cosh(r / c)."""

    degree = 2
    c: float = 1.0

    @property
    def tail(self):
        return Tail(self.c, self.c)

    @property
    def reach(self):
        return 20 * self.c

    def value(self, r):
        xp = array_namespace(r)
        t = xp.abs(r) / self.c
        return self.c**2 * (t + xp.log1p(xp.exp(-2 * t)) - math.log(2.0))

    def slope(self, r):
        return r * self.curvature(r)

    def curvature(self, r):
        xp = array_namespace(r)
        t = xp.abs(r) / self.c
        far = t > 1e-6
        return xp.where(far, xp.tanh(t) / xp.where(far, t, xp.ones_like(t)), xp.ones_like(t))

    def rescaled(self, factor):
        return replace(self, c=self.c * factor)

    @property
    def numba_formula(self):
        return Formula(for_numba, (self.c,), self.c**2)

    @property
    def triton_formula(self):
        return Formula(for_triton, (1 / self.c, -2 * math.log2(math.e), self.c**2, math.log(2.0)))
