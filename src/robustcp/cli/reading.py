"""Tensors that commands are given, and what may be asked of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from robustcp.cli.errors import fail

if TYPE_CHECKING:
    from robustcp.io.reading import Loaded


def read_tensor(file: Path, key: str | None, absent: str | None) -> Loaded:
    """The tensor in a file."""
    from robustcp.io.reading import read

    if absent not in (None, "missing", "zero"):
        fail(f"--absent {absent}: must be missing or zero")
    return read(file, key=key, absent=absent)


def check_rank(rank: int, loaded: Loaded) -> None:
    """A rank beyond what any tensor of this shape could need is a slip."""
    shape = loaded.data.shape
    if rank < 1:
        fail(f"--rank {rank}: must be at least 1")
    most = math.prod(shape) // max(shape)
    if rank > most:
        fail(f"--rank {rank}: a tensor of {'x'.join(map(str, shape))} has at most rank {most}")
