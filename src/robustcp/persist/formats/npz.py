"""Fits as NumPy's .npz files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from robustcp.persist.formats.description import FitContent, fit_arrays, fit_metadata
from robustcp.persist.writing import open_atomic

if TYPE_CHECKING:
    from robustcp.results.fit import Fit


def write(fit: Fit, path: Path) -> None:
    """Write a fit."""
    with open_atomic(path) as file:
        np.savez(
            file,
            allow_pickle=False,
            **fit_arrays(fit),
            robustcp=np.array(json.dumps(fit_metadata(fit))),
        )


def read(path: Path) -> FitContent:
    """What was written."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    return arrays, json.loads(str(arrays["robustcp"]))
