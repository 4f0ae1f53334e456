# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The inverse scales of the entries of a block; see `robustcp.engines.scales`."""

import math

import numpy as np
from numba import carray, njit

from robustcp.engines.passes.numba.intrinsics import (
    address,
    keep_alive,
    pointer,
    shift,
    transposed_right_product,
)
from robustcp.engines.passes.numba.runtime import FLOATS, INT, REALS, c_function
from robustcp.engines.passes.numba.tiles import STANDARDIZED_ENTRIES
from robustcp.losses.numba_helpers import INLINE, inverse_sqrt

#: Stands for variances of 0.
_MIN_VARIANCE = 1e-80


@njit(**INLINE)
def _apply_floor(h, floor):
    """The inverse of a scale with a smooth floor, from its inverse without."""
    q = min(h * floor, 1e60)
    q = q * q
    root = inverse_sqrt(1.0 + q * q)
    return h * math.sqrt(root)


@c_function(*[INT] * 5, *[REALS] * 5, FLOATS)
def inverse_scales(gemm, rows, columns, rank, outer, h, down, across, left, right, parameters):
    """1 / (u^4 + floor^4)^(1/4) of a block, into h, with u^2 the variance of each entry.

    The variance is constant + linear |m| + quadratic m^2 with m = left right' (1 if they have no
    columns), divided by the square of the outer product of `down` and `across`, or of what h holds.
    Parameters are constant, linear, quadratic and floor.
    """
    constant, linear, quadratic = parameters[0], parameters[1], parameters[2]
    floor, real = parameters[3], carray(h, 1).dtype
    step = max(1, min(rows, 4 * STANDARDIZED_ENTRIES // columns))
    signal = np.empty(step * columns if rank else 0, real)
    m = pointer(address(signal), h)
    for a in range(0, rows, step):
        size, offset = min(step, rows - a), a * columns
        if outer:
            for i in range(size):
                for j in range(columns):
                    h[offset + i * columns + j] = down[a + i] * across[j]
        if rank:
            block = shift(left, a * rank)
            transposed_right_product(gemm, block, right, m, size, rank, columns, False)
            for j in range(size * columns):
                t = abs(np.float64(m[j]))
                h[offset + j] *= inverse_sqrt(
                    max((quadratic * t + linear) * t + constant, _MIN_VARIANCE)
                )
        if floor > 0:
            for j in range(size * columns):
                h[offset + j] = _apply_floor(np.float64(h[offset + j]), floor)
    keep_alive(signal)
    return 0.0
