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
from robustcp.files.errors import FileError
from robustcp.files.labels import as_text, for_netcdf
from robustcp.files.writing import write_bytes
from robustcp.saving.described import Held, about, arrays_of

if TYPE_CHECKING:
    from robustcp.fitted import Fit

#: What a CSV file calls the row of the weights.
WEIGHTS = "weights"


# JSON


def write_json(fit: Fit, path: Path) -> None:
    """Write all of a fit: weights, each mode's name, labels and factor, and the rest by name."""
    held = arrays_of(fit)
    modes = [
        {
            "name": as_text(name),
            "labels": None if labels is None else [_shown(label) for label in for_netcdf(labels)],
            "factor": _listed(held.pop(f"factor_{n}")),
        }
        for n, (name, labels) in enumerate(zip(fit.modes, fit.labels, strict=True))
    ]
    told = {
        "weights": _listed(held.pop("weights")), "modes": modes,
        "arrays": {name: tagged(array) for name, array in held.items()},
        "types": [np.asarray(to_host(A)).dtype.str for A in (fit.weights, *fit.factors)],
        "robustcp": json.dumps(about(fit)),  # in which numbers may be NaN
    }  # fmt: skip
    text = json.dumps(told, allow_nan=False)
    write_bytes(path, (text + "\n").encode())


def read_json(path: Path) -> Held:
    """What was written."""
    told = json.loads(path.read_text(encoding="utf-8"))
    types = iter(told["types"])
    held = {"weights": _array(told["weights"], next(types))}
    for n, (mode, kind) in enumerate(zip(told["modes"], types, strict=True)):
        held[f"factor_{n}"] = _array(mode["factor"], kind)
    held |= {name: untagged(array) for name, array in told["arrays"].items()}
    return held, json.loads(told["robustcp"])


def _listed(array: np.ndarray) -> Any:
    """Nested lists, None for what is not finite."""
    if np.isfinite(array).all():
        return array.tolist()
    return [_listed(part) for part in array] if array.ndim > 1 else [
        x if math.isfinite(x) else repr(x) for x in array.tolist()
    ]  # fmt: skip


def _array(listed: Any, kind: str) -> np.ndarray:
    dtype = np.dtype(kind)
    if dtype.kind not in "biuf":
        raise ValueError(f"no arrays are of type {kind}")
    return np.array(listed, dtype=dtype)


def tagged(array: np.ndarray) -> dict[str, Any]:
    """An array as JSON can hold it, with its type and shape."""
    flat = _listed(np.ascontiguousarray(array).ravel())
    return {"type": array.dtype.str, "shape": list(array.shape), "values": flat}


def untagged(told: dict[str, Any]) -> np.ndarray:
    """The array that `tagged` described."""
    return _array(told["values"], told["type"]).reshape(told["shape"])


def _shown(label: Any) -> Any:
    if isinstance(label, np.datetime64):
        return str(label)
    if isinstance(label, float) and not math.isfinite(label):
        return repr(label)
    return label


# CSV


def write_csv(fit: Fit, path: Path) -> None:
    """Write the weights, and for each index of each mode its label and its row of the factor."""
    stream = io.StringIO()
    out = csv.writer(stream, lineterminator="\n")
    out.writerow(["mode", "index", "label", *(f"component {r + 1}" for r in range(fit.rank))])
    out.writerow([WEIGHTS, "", "", *map(repr, _numbers(fit.weights))])
    for name, labels, A in zip(fit.modes, fit.labels, fit.factors, strict=True):
        shown = None if labels is None else for_netcdf(labels)
        for k, row in enumerate(np.asarray(to_host(A))):
            label = "" if shown is None else _shown(shown[k])
            out.writerow([as_text(name), k, label, *map(repr, _numbers(row))])
    write_bytes(path, stream.getvalue().encode())


def _numbers(values: Any) -> list[float]:
    return [float(x) for x in np.asarray(to_host(values))]


def read_csv(path: Path) -> tuple[np.ndarray, list[np.ndarray]]:
    """The weights and factors that were written."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    if len(rows) < 3 or rows[0][:3] != ["mode", "index", "label"] or rows[1][0] != WEIGHTS:
        raise ValueError("its first lines are others")
    factors: list[list[list[float]]] = []
    for row in rows[2:]:
        if int(row[1]) == 0:  # another mode begins
            factors.append([])
        if int(row[1]) != len(factors[-1]):
            raise ValueError(f"rows of {row[0]} are missing")
        factors[-1].append([float(x) for x in row[3:]])
    return np.array([float(x) for x in rows[1][3:]]), [np.array(A) for A in factors]


def refuse_csv(path: Path) -> Held:
    """A CSV file holds no whole fit."""
    raise FileError(
        path, "holds the factors of a fit only, for other programs; load the fit itself"
    )
