"""Whether there is compiled code, and where; what it is told of a loss."""

from __future__ import annotations

import importlib
import importlib.util
import math
import warnings
from functools import cache, lru_cache
from typing import Any

import numpy as np

from robustcp.losses import Loss

#: Where Triton's kernels run; tests of them in its interpreter say "cpu".
KERNELS_RUN_ON = "cuda"


@cache
def compiled_code() -> Any:
    """The module of compiled code; None where Numba (the extra `fast`) is not installed."""
    if importlib.util.find_spec("numba") is None:
        return None
    try:
        return importlib.import_module("robustcp.engines.passes.kernels")
    except Exception as error:  # a Numba that does not go with this NumPy, for one
        warnings.warn(f"Numba is installed but cannot be used ({error})", stacklevel=2)
        return None


def fused_code(device: Any) -> Any:
    """The module of kernels for arrays of PyTorch on an NVIDIA GPU; None where there are none."""
    return _kernels() if getattr(device, "type", "") == KERNELS_RUN_ON else None


@cache
def _kernels() -> Any:
    if importlib.util.find_spec("triton") is None:
        return None
    try:
        return importlib.import_module("robustcp.engines.passes.fused_kernels")
    except Exception as error:  # a Triton that does not go with this PyTorch, for one
        warnings.warn(f"Triton is installed but cannot be used ({error})", stacklevel=2)
        return None


@lru_cache
def numbers_of(loss: Loss, dtype: Any) -> np.ndarray | None:
    """The parameters of a loss that has a formula, in the type of the factors.

    None if they are beyond its range.
    """
    formula = compiled_code().LISTED_FORMULAS[type(loss)]
    with np.errstate(over="ignore", under="ignore"):
        numbers = np.array(formula.numbers(loss), dtype)
    in_range = numbers[0] != 0 and bool(np.all(numbers < math.inf))
    return numbers if in_range else None
