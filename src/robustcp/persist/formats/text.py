"""Fits as text: JSON, which holds all of a fit, and CSV, which holds factors and labels."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp.engines import to_host
from robustcp.persist.codec import array_from_lists, decode_array, encode_array
from robustcp.persist.errors import FileError
from robustcp.persist.formats.description import FitContent, fit_arrays, fit_metadata
from robustcp.persist.labels import as_text, to_plain_labels
from robustcp.persist.writing import write_bytes

if TYPE_CHECKING:
    from robustcp.results.fit import Fit

#: What a CSV file calls the row of the weights.
WEIGHTS_ROW = "weights"


# JSON


def write_json(fit: Fit, path: Path) -> None:
    """Write all of a fit: weights, each mode's name, labels and factor, and the rest by name."""
    arrays = fit_arrays(fit)
    modes = [
        {
            "name": as_text(name),
            "labels": None
            if labels is None
            else [_format_label(label) for label in to_plain_labels(labels)],
            "factor": _nested_lists(arrays.pop(f"factor_{n}")),
        }
        for n, (name, labels) in enumerate(zip(fit.modes, fit.labels, strict=True))
    ]
    document = {
        "weights": _nested_lists(arrays.pop("weights")),
        "modes": modes,
        "arrays": {name: encode_array(array) for name, array in arrays.items()},
        "types": [np.asarray(to_host(A)).dtype.str for A in (fit.weights, *fit.factors)],
        "robustcp": json.dumps(fit_metadata(fit)),  # in which numbers may be NaN
    }
    text = json.dumps(document, allow_nan=False)
    write_bytes(path, (text + "\n").encode())


def read_json(path: Path) -> FitContent:
    """What was written."""
    document = json.loads(path.read_text(encoding="utf-8"))
    types = iter(document["types"])
    arrays = {"weights": array_from_lists(document["weights"], next(types))}
    for n, (mode, type_name) in enumerate(zip(document["modes"], types, strict=True)):
        arrays[f"factor_{n}"] = array_from_lists(mode["factor"], type_name)
    arrays |= {name: decode_array(array) for name, array in document["arrays"].items()}
    return arrays, json.loads(document["robustcp"])


def _nested_lists(array: np.ndarray) -> Any:
    """Nested lists; numbers that are not finite as texts, such as "nan"."""
    if np.isfinite(array).all():
        return array.tolist()
    return (
        [_nested_lists(row) for row in array]
        if array.ndim > 1
        else [x if math.isfinite(x) else repr(x) for x in array.tolist()]
    )


def _format_label(label: Any) -> Any:
    if isinstance(label, np.datetime64):
        return str(label)
    if isinstance(label, float) and not math.isfinite(label):
        return repr(label)
    return label


# CSV


def write_csv(fit: Fit, path: Path) -> None:
    """Write the weights, and for each index of each mode its label and its row of the factor."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["mode", "index", "label", *(f"component {r + 1}" for r in range(fit.rank))])
    writer.writerow([WEIGHTS_ROW, "", "", *map(repr, _as_floats(fit.weights))])
    for name, labels, A in zip(fit.modes, fit.labels, fit.factors, strict=True):
        plain_labels = None if labels is None else to_plain_labels(labels)
        for k, row in enumerate(np.asarray(to_host(A))):
            label = "" if plain_labels is None else _format_label(plain_labels[k])
            writer.writerow([as_text(name), k, label, *map(repr, _as_floats(row))])
    write_bytes(path, stream.getvalue().encode())


def _as_floats(values: Any) -> list[float]:
    return [float(x) for x in np.asarray(to_host(values))]


def read_csv(path: Path) -> tuple[np.ndarray, list[np.ndarray]]:
    """The weights and factors that were written."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    if len(rows) < 3 or rows[0][:3] != ["mode", "index", "label"] or rows[1][0] != WEIGHTS_ROW:
        raise ValueError("its first lines are others")
    factors: list[list[list[float]]] = []
    for row in rows[2:]:
        if int(row[1]) == 0:  # another mode begins
            factors.append([])
        if int(row[1]) != len(factors[-1]):
            raise ValueError(f"rows of {row[0]} are missing")
        factors[-1].append([float(x) for x in row[3:]])
    return np.array([float(x) for x in rows[1][3:]]), [np.array(A) for A in factors]


def refuse_csv(path: Path) -> FitContent:
    """A CSV file holds no whole fit."""
    raise FileError(
        path, "holds the factors of a fit only, for other programs; load the fit itself"
    )
