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
    return _module("numba", "kernels")


def fused_code(device: Any) -> Any:
    """The module of kernels for arrays of PyTorch on an NVIDIA GPU; None where there are none."""
    on_gpu = getattr(device, "type", "") == KERNELS_RUN_ON
    return _module("triton", "fused_kernels") if on_gpu else None


def seconds_compiling() -> float:
    """How long Numba has compiled in this process."""
    code = compiled_code()
    return 0.0 if code is None else float(code.CLOCK.seconds)


@cache
def _module(needs: str, name: str) -> Any:
    """A module of passes; None where the package that it needs is not installed."""
    if importlib.util.find_spec(needs) is None:
        return None
    try:
        return importlib.import_module(f"robustcp.engines.passes.{name}")
    except Exception as error:  # one that does not go with this NumPy or PyTorch, for one
        warnings.warn(f"{needs} is installed but cannot be used ({error})", stacklevel=3)
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
