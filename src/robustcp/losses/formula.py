"""How compiled code computes a loss: a formula of one residual, for Numba and for Triton."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

LOG2E, LN2 = math.log2(math.e), math.log(2.0)


@dataclass(frozen=True)
class Formula:
    """A loss as compiled code computes it.

    The function is a plain Python function, which is compiled when it is first used. Besides what
    its module imports it may call, without importing them, the functions of `numba_functions`, or
    those of `triton_functions` and of `triton.language` (as `tl`): Numba and Triton need not be
    installed. Triton takes no annotations that it does not know.

    Attributes
    ----------
    function : callable
        Value, slope and curvature of a residual: for Numba a function of (r, n) with a tuple n of
        the numbers in the type of r; for Triton of (r, n, FAST) with a tile of residuals r
        and a tuple n, where FAST allows approximations in single precision.
    numbers : tuple of float
        The parameters of the loss, at most 7. For Numba they must be finite and the first one
        not 0, in the type of the residuals; a loss for which they are not is done by the array
        library.
    value_factor : float
        What the sum of the values is multiplied by (Numba only).
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
