"""Fits as MATLAB's .mat files: weights, cells of factors, names and labels, and the rest."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp.persist.formats.description import FitContent, fit_arrays, fit_metadata
from robustcp.persist.labels import as_text, to_plain_labels
from robustcp.persist.writing import write_bytes

if TYPE_CHECKING:
    from robustcp.results.fit import Fit


def write(fit: Fit, path: Path) -> None:
    """Write `weights`, the cells `factors`, `modes` and `labels`, and what else there is."""
    from scipy.io import savemat

    arrays = fit_arrays(fit)
    factors = [arrays.pop(f"factor_{n}") for n in range(len(fit.shape))]
    labels = [
        np.empty((0, 0)) if mode_labels is None else _label_column(mode_labels)
        for mode_labels in fit.labels
    ]
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    description = json.dumps({"shapes": shapes, "robustcp": fit_metadata(fit)})
    content = io.BytesIO()
    savemat(
        content,
        {
            "weights": arrays.pop("weights"),
            "factors": _cell_column(factors),
            "modes": _cell_column([as_text(name) for name in fit.modes]),
            "labels": _cell_column(labels),
            "rest": arrays,
            "robustcp": description,
        },
        do_compression=True,
        oned_as="column",
    )
    write_bytes(path, content.getbuffer())


def _cell_column(values: list[Any]) -> np.ndarray:
    """A column of cells."""
    cells = np.empty((len(values), 1), dtype=object)
    for k, value in enumerate(values):
        cells[k, 0] = value
    return cells


def _label_column(labels: list[Any]) -> np.ndarray:
    """Labels as a column of numbers, or of cells of text."""
    plain_labels = to_plain_labels(labels)
    if all(isinstance(label, bool | int | float) for label in plain_labels):
        return np.array(plain_labels, dtype=np.float64)[:, None]
    return _cell_column([str(label) for label in plain_labels])


def read(path: Path) -> FitContent:
    """What was written."""
    from scipy.io import loadmat

    with path.open("rb") as file:
        loaded = loadmat(file, chars_as_strings=True)
    description = json.loads(str(loaded["robustcp"].ravel()[0]))
    arrays = {"weights": loaded["weights"].ravel()}
    other_arrays, shapes = loaded["rest"].ravel()[0], description["shapes"]
    for name, shape in shapes.items():
        array = arrays[name] if name in arrays else other_arrays[name]
        arrays[name] = np.array(array, dtype=array.dtype.newbyteorder("=")).reshape(shape)
    for n, A in enumerate(loaded["factors"].ravel()):
        arrays[f"factor_{n}"] = np.array(A)
    if any(array.dtype.kind not in "biuf" for array in arrays.values()):
        raise ValueError("it holds other things than numbers")
    return arrays, description["robustcp"]
