"""Sizes of memory, and the free memory of a GPU."""

from __future__ import annotations

import re
from typing import Any

from robustcp._util.checks import ArgumentError

#: The memory for all entries with their indices, if no size is given.
DEFAULT_ENTRIES_BYTES = 1 << 32
#: The size of a value, and of an index.
BYTES_PER_NUMBER = 8
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def parse_bytes(memory: Any) -> int:
    """A size such as 2_000_000, "500MB" or "16GB" in bytes.

    >>> parse_bytes("1.5GB")
    1500000000
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([KMGT]?)i?B?\s*", str(memory), re.IGNORECASE)
    if match is None or float(match[1]) == 0:
        raise ArgumentError("memory", f'must be a size such as "16GB", got {memory!r}')
    return int(float(match[1]) * _UNITS[match[2].upper()])


def format_bytes(size: float) -> str:
    """A number of bytes in words."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def fits_in_memory(entries: float, order: int, memory: Any) -> bool:
    """Whether a number of entries with their indices takes at most half of a size.

    >>> fits_in_memory(1e6, 3, "100MB"), fits_in_memory(1e6, 3, "10MB")
    (True, False)
    """
    limit = DEFAULT_ENTRIES_BYTES if memory is None else parse_bytes(memory) // 2
    return entries * BYTES_PER_NUMBER * (order + 1) <= limit


def free_memory(device: Any) -> int:
    """The bytes of a GPU that are free, or cached by PyTorch and unused."""
    import torch

    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + int(cached)
