# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Functions that formulas of losses for Numba may call.

Exponential and logarithm are written out: with calls of the C library, loops around them would not
become vector instructions.
"""

import math
from typing import Any

import numpy as np
from numba import njit
from numba.extending import overload

#: Sums may be reordered, for vectors; NaN stays NaN.
FAST_MATH = {"reassoc", "contract", "arcp", "nsz"}
OPTIONS: dict[str, Any] = {"fastmath": FAST_MATH, "error_model": "numpy"}
INLINE = {"inline": "always", **OPTIONS}
_LN2, _SQRT_HALF_BITS = math.log(2.0), np.int64(0x3FE6A09E667F3BCD)
_ROOT_BITS = np.int64(0x5FE6EB50C7B537A9)


@njit(**INLINE)
def exp_negative(t, most):
    """exp(-t) for t >= 0, to 1e-14: 2^-n times a polynomial.

    A t above `most` counts as `most`; see `max_exponent`.
    """
    t = min(np.float64(t), most)
    n = np.floor(t / _LN2 + 0.5)
    f = n * _LN2 - t
    p = f / 39916800.0 + 1 / 3628800.0
    p = p * f + 1 / 362880.0
    p = p * f + 1 / 40320.0
    p = p * f + 1 / 5040.0
    p = p * f + 1 / 720.0
    p = p * f + 1 / 120.0
    p = p * f + 1 / 24.0
    p = p * f + 1 / 6.0
    p = p * f + 1 / 2.0
    p = p * f + 1.0
    p = p * f + 1.0
    return p * np.int64((1023 - np.int64(n)) << 52).view(np.float64)


def max_exponent(r: Any) -> float:
    """The largest t for which exp(-t) is a normal number in the type of r.

    Arithmetic with subnormal numbers is a hundred times slower.
    """
    return 700.0 if r.itemsize == 8 else 80.0


@overload(max_exponent, inline="always")
def _max_exponent(r):
    limit = 700.0 if r.bitwidth == 64 else 80.0
    return lambda r: limit


@njit(**INLINE)
def log(y):
    """log(y) for a normal number y > 0: n log 2 + 2 artanh((z - 1) / (z + 1)), with y = 2^n z."""
    bits = np.float64(y).view(np.int64)
    n = (bits - _SQRT_HALF_BITS) >> 52
    z = np.int64(bits - (n << 52)).view(np.float64)
    s = (z - 1.0) / (z + 1.0)
    q = s * s
    p = q / 21.0 + 1 / 19.0
    p = p * q + 1 / 17.0
    p = p * q + 1 / 15.0
    p = p * q + 1 / 13.0
    p = p * q + 1 / 11.0
    p = p * q + 1 / 9.0
    p = p * q + 1 / 7.0
    p = p * q + 1 / 5.0
    p = p * q + 1 / 3.0
    p = p * q + 1.0
    return 2.0 * s * p + n * _LN2


@njit(**INLINE)
def exp(y):
    """exp(y). Freshly compiled and cached code give the same bits."""
    e = exp_negative(abs(y), 700.0)
    return 1 / e if y > 0 else e


@njit(**INLINE)
def inverse_sqrt(y):
    """1 / sqrt(y), large for 0: Newton's method, faster than square root and division."""
    z = np.int64(_ROOT_BITS - (np.float64(y).view(np.int64) >> 1)).view(np.float64)
    half = 0.5 * y
    z *= 1.5 - half * z * z
    z *= 1.5 - half * z * z
    z *= 1.5 - half * z * z
    return z * (1.5 - half * z * z)
