# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Functions of a line of entries that passes call by their addresses.

What prepares a line, or restores it, has the same arguments, of which some leave one unused: the
data, the model, which is overwritten, another line to write to, and two more lines to read. The
loss reads a further line with the sides on which entries are censored.
"""

from functools import cache
from types import FunctionType
from typing import Any

import numpy as np
from numba import carray, njit
from numba.np.unsafe.ndarray import to_fixed_tuple

from robustcp.engines.passes.numba.intrinsics import or_zero
from robustcp.engines.passes.numba.runtime import INT, REALS, c_function, compile_c_function
from robustcp.losses import numba_helpers
from robustcp.losses.formula import bind
from robustcp.losses.numba_helpers import INLINE

#: Of `_formula_line`, for `formula_line` to fill in: the formula of a loss, how many parameters it
#: takes, whether entries have weights, whether some are censored, and whether the loss is convex.
formula: Any = None
size, weighted, censored, convex = 0, False, False, False


def _formula_line(x, s, w, parameters, weights, sides, count):
    """The loss: `s` holds the model and gets slopes, `w` curvatures; the sum of the values.

    Of censored entries it is one-sided, see `OneSided`; the residual of least cost then follows
    the parameters.
    """
    n = to_fixed_tuple(carray(parameters, size), size)
    total = 0.0
    if censored:
        minimizer = parameters[size]
        least, _, peak = formula(minimizer, n)
    for j in range(count):
        value, slope, curvature = formula(x[j] - s[j], n)
        if censored:
            decided = sides[j] * (x[j] - s[j] - minimizer) >= 0
            value, slope = value if decided else least, or_zero(decided, slope)
            if not convex:
                curvature = curvature if decided else peak
        observed = x[j] == x[j]
        value, slope = or_zero(observed, value), or_zero(observed, slope)
        curvature = or_zero(observed, curvature)
        if weighted:
            value, slope, curvature = value * weights[j], slope * weights[j], curvature * weights[j]
        total += value
        s[j] = slope
        w[j] = curvature
    return total


@cache
def formula_line(function, real, size, weighted, censored=False, convex=False):
    """The address of the line function of a loss, given the function of its formula."""
    compiled = njit(**INLINE)(bind(function, vars(numba_helpers)))
    bound = {**globals(), "formula": compiled, "size": size, "weighted": weighted}
    bound |= {"censored": censored, "convex": convex}
    specialized = FunctionType(_formula_line.__code__, bound)
    name = f"{function.__module__.removeprefix('robustcp.losses.')}.{function.__qualname__}"
    variant = "_weighted" * weighted + "_censored" * censored
    specialized.__qualname__ = f"{variant}_formula_line_{name}"
    sources, kinds = (function.__code__.co_filename,), (*[REALS] * 5, np.int8, INT)
    return compile_c_function(specialized, kinds, real, sources=sources).address


def _convert(x, s, y, h, unused, count):
    """Data in the type of the factors."""
    for j in range(count):
        y[j] = x[j]
    return 0.0


def _standardize(x, s, y, h, unused, count):
    """Data and model in units of the scales: the model in place, the data in another line."""
    for j in range(count):
        y[j] = x[j] * h[j]
        s[j] *= h[j]
    return 0.0


@cache
def line_preparation(data, real, scaled):
    """The address of what prepares data of some type for the loss; 0 for nothing to do."""
    if data == real and not scaled:
        return 0
    function = _standardize if scaled else _convert
    return compile_c_function(function, (data, *[REALS] * 4, INT), real).address


@c_function(*[REALS] * 5, INT)
def _restore_units(x, s, w, h, unused, count):
    """Slopes and curvatures in the units of the data again."""
    for j in range(count):
        s[j] *= h[j]
        w[j] *= h[j] * h[j]
    return 0.0


def line_restoration(real, scaled):
    """The address of the line function that undoes the scales; 0 for none."""
    return _restore_units(real).address if scaled else 0


@c_function(*[REALS] * 5, INT, INT)
def residuals(x, s, w, unused, r, sides, count):
    """Residuals, where a loss would look for weights."""
    for j in range(count):
        r[j] = x[j] - s[j]
    return 0.0
