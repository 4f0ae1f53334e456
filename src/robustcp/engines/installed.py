"""Compiled code, if it is installed, and the parameters of a loss for it."""

from __future__ import annotations

import importlib
import importlib.util
import math
import warnings
from functools import cache, lru_cache
from typing import Any

import numpy as np

from robustcp.losses import Formula, Loss

#: Where Triton's kernels run; tests of them in its interpreter say "cpu".
KERNEL_DEVICE = "cuda"


@cache
def numba_kernels() -> Any:
    """The package of compiled code; None where Numba (the extra `fast`) is not installed."""
    return _import_passes("numba")


def triton_kernels(device: Any) -> Any:
    """The package of kernels for arrays of PyTorch on an NVIDIA GPU; None where there are none."""
    on_gpu = getattr(device, "type", "") == KERNEL_DEVICE
    return _import_passes("triton") if on_gpu else None


def compilation_seconds() -> float:
    """How long Numba has compiled in this process."""
    code = numba_kernels()
    return 0.0 if code is None else float(code.compile_seconds())


@cache
def _import_passes(package: str) -> Any:
    """Our package of what a compiler compiles; None where the compiler is not installed."""
    if importlib.util.find_spec(package) is None:
        return None
    try:
        return importlib.import_module(f"robustcp.engines.passes.{package}")
    except Exception as error:  # one that does not go with this NumPy or PyTorch, for one
        warnings.warn(f"{package} is installed but cannot be used ({error})", stacklevel=3)
        return None


def loss_parameters(loss: Loss, dtype: Any, *, one_sided: bool = False) -> np.ndarray | None:
    """The parameters of a loss as compiled code reads them, in the type of the factors.

    None if there is no compiled code for the loss, or if they are beyond the range of the type.
    Those of a loss that is one-sided end with its minimizer.
    """
    formula = loss.numba_formula
    parameters = None if formula is None else _formula_parameters(formula, dtype)
    if parameters is None or not one_sided:
        return parameters
    return np.append(parameters, loss.minimizer).astype(dtype)


@lru_cache
def _formula_parameters(formula: Formula, dtype: Any) -> np.ndarray | None:
    with np.errstate(over="ignore", under="ignore"):
        parameters = np.array(formula.numbers, dtype)
    in_range = parameters[0] != 0 and bool(np.all(parameters < math.inf))
    return parameters if in_range else None
