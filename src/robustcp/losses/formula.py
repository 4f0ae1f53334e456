"""The formula of a loss as a function of one residual, to be compiled by Numba or by Triton."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

LOG2E, LN2 = math.log2(math.e), math.log(2.0)


@dataclass(frozen=True)
class Formula:
    """A plain Python function that computes a loss, and the parameters of the loss.

    The function is compiled when it is first used. It may use some names without importing them:
    for Numba the functions of `numba_helpers`, for Triton those of `triton_helpers` and
    `triton.language` as `tl`. They are bound at compilation, so the module can be imported without
    Numba or Triton. For Triton, arguments have no annotations.

    Attributes
    ----------
    function : callable
        Returns value, slope and curvature. For Numba a function of a residual r and the tuple n of
        the parameters, in the type of r. For Triton a function of a tile of residuals r, the tuple
        n and FAST, which allows approximations in single precision.
    numbers : tuple of float
        The parameters n, at most 7. If a parameter is too large for the type of r, or the first one
        is rounded to 0 in it, the loss is computed by the array library instead of Numba.
    value_factor : float
        The sum of the values is multiplied by it (Numba only).
    """

    function: Callable[..., Any]
    numbers: tuple[float, ...]
    value_factor: float = 1.0


def bind(function: Callable[..., Any], names: Mapping[str, Any]) -> FunctionType:
    """A copy of a function with additional globals."""
    assert isinstance(function, FunctionType)
    bound = FunctionType(function.__code__, {**names, **function.__globals__}, function.__name__)
    bound.__qualname__ = function.__qualname__
    return bound


def inverse_square(width: float) -> float:
    """1 / width^2; infinite where the square is 0."""
    square = width**2
    return 1 / square if square > 0 else math.inf
