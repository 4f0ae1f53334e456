"""Fits as MATLAB's .mat files: weights, cells of factors, names and labels, and the rest."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp.files.labels import as_text, for_netcdf
from robustcp.files.writing import write_bytes
from robustcp.saving.described import Held, about, arrays_of

if TYPE_CHECKING:
    from robustcp.fitted import Fit


def write(fit: Fit, path: Path) -> None:
    """Write `weights`, the cells `factors`, `modes` and `labels`, and what else there is."""
    from scipy.io import savemat

    held = arrays_of(fit)
    factors = [held.pop(f"factor_{n}") for n in range(len(fit.shape))]
    labels = [np.empty((0, 0)) if each is None else _column(each) for each in fit.labels]
    shapes = {name: list(array.shape) for name, array in held.items()}
    told = json.dumps({"shapes": shapes, "robustcp": about(fit)})
    content = io.BytesIO()
    savemat(
        content,
        {
            "weights": held.pop("weights"), "factors": _cells(factors),
            "modes": _cells([as_text(name) for name in fit.modes]), "labels": _cells(labels),
            "rest": held, "robustcp": told,
        },
        do_compression=True, oned_as="column",
    )  # fmt: skip
    write_bytes(path, content.getbuffer())


def _cells(parts: list[Any]) -> np.ndarray:
    """A column of cells."""
    cells = np.empty((len(parts), 1), dtype=object)
    for k, part in enumerate(parts):
        cells[k, 0] = part
    return cells


def _column(labels: list[Any]) -> np.ndarray:
    """Labels as a column of numbers, or of cells of text."""
    shown = for_netcdf(labels)
    if all(isinstance(label, bool | int | float) for label in shown):
        return np.array(shown, dtype=np.float64)[:, None]
    return _cells([str(label) for label in shown])


def read(path: Path) -> Held:
    """What was written."""
    from scipy.io import loadmat

    with path.open("rb") as file:
        loaded = loadmat(file, chars_as_strings=True)
    told = json.loads(str(loaded["robustcp"].ravel()[0]))
    held = {"weights": loaded["weights"].ravel()}
    rest, shapes = loaded["rest"].ravel()[0], told["shapes"]
    for name, shape in shapes.items():
        array = held[name] if name in held else rest[name]
        held[name] = np.array(array, dtype=array.dtype.newbyteorder("=")).reshape(shape)
    for n, A in enumerate(loaded["factors"].ravel()):
        held[f"factor_{n}"] = np.array(A)
    if any(array.dtype.kind not in "biuf" for array in held.values()):
        raise ValueError("it holds other things than numbers")
    return held, told["robustcp"]
