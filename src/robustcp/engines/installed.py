"""Whether there is compiled code, and where."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from functools import cache
from typing import Any

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
