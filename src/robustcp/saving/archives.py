"""Fits as NumPy's .npz files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from robustcp.files.writing import whole
from robustcp.saving.described import Held, about, arrays_of

if TYPE_CHECKING:
    from robustcp.fitted import Fit


def write(fit: Fit, path: Path) -> None:
    """Write a fit."""
    with whole(path) as file:
        np.savez(
            file, allow_pickle=False, **arrays_of(fit), robustcp=np.array(json.dumps(about(fit)))
        )


def read(path: Path) -> Held:
    """What was written."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        held = {name: archive[name] for name in archive.files}
    return held, json.loads(str(held["robustcp"]))
