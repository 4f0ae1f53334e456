"""Sizes of memory, and how much of it a GPU has left."""

from __future__ import annotations

import re
from typing import Any

from robustcp._checks import ArgumentError

#: Bytes for all entries with their indices, where no size is asked for; of one entry for so many
#: modes.
LISTED, ENTRY = 1 << 32, 8
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def as_bytes(memory: Any) -> int:
    """A size such as 2_000_000, "500MB" or "16GB" in bytes.

    >>> as_bytes("1.5GB")
    1500000000
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([KMGT]?)i?B?\s*", str(memory), re.IGNORECASE)
    if found is None or float(found[1]) == 0:
        raise ArgumentError("memory", f'must be a size such as "16GB", got {memory!r}')
    return int(float(found[1]) * _UNITS[found[2].upper()])


def as_words(size: float) -> str:
    """A number of bytes in words."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def room_for(entries: float, order: int, memory: Any) -> bool:
    """Whether so many entries with their indices take no more than half of a size.

    >>> room_for(1e6, 3, "100MB"), room_for(1e6, 3, "10MB")
    (True, False)
    """
    most = LISTED if memory is None else as_bytes(memory) // 2
    return entries * ENTRY * (order + 1) <= most


def free_memory(device: Any) -> int:
    """Bytes of a GPU that are free, or that PyTorch holds and nobody uses."""
    import torch

    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + int(held)
