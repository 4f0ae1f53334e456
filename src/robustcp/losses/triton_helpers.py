# mypy: ignore-errors
"""Functions that formulas of losses for Triton may call.

FAST selects approximations in single precision, on a GPU.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def exp2(x, FAST: tl.constexpr):
    """2 to the power of x."""
    return libdevice.exp2(x) if FAST else tl.exp2(x)


@triton.jit
def log2(x, FAST: tl.constexpr):
    """The logarithm to base 2."""
    return libdevice.fast_log2f(x) if FAST else tl.log2(x)


@triton.jit
def reciprocal(x, FAST: tl.constexpr):
    """1 / x for x > 0."""
    if FAST:
        root = tl.rsqrt(x)
        result = root * root
    else:
        result = 1.0 / x
    return result
