# mypy: ignore-errors
"""What launching a kernel takes: the sizes of blocks, the device, the formula of a loss."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

from robustcp.engines.passes.triton.matrices import round_to_tf32
from robustcp.losses import triton_helpers
from robustcp.losses.formula import bind

#: Larger ranks go through the array library.
MAX_RANK = 32
#: Triton's names of the types of factors.
TRITON_TYPES = {"torch.float32": tl.float32, "torch.float64": tl.float64}


@cache
def compile_formula(function: Callable[..., Any]) -> Any:
    """The formula of a loss, as the kernel calls it."""
    return triton.jit(bind(function, {**vars(triton_helpers), "tl": tl}))


def block_size(size: int) -> int:
    """The least power of two that holds a size, and that matrix units can work with."""
    return max(16, 1 << (size - 1).bit_length())


def on_device(device: Any) -> AbstractContextManager[Any]:
    """A context in which kernels run on a device, whichever GPU is the current one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def is_interpreted() -> bool:
    """Whether kernels run on the host, in Triton's interpreter."""
    return not isinstance(round_to_tf32, triton.runtime.JITFunction)
