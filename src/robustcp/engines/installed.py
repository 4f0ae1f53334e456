"""Whether there is compiled code, and where."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from functools import cache
from typing import Any


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
