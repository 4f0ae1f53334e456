"""Tensors to files that `read` and other programs take, with names and labels."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from robustcp._util.optional import import_optional
from robustcp.engines import Axes
from robustcp.persist.errors import FileError
from robustcp.persist.formats.netcdf import dataset_bytes, is_valid_dimension
from robustcp.persist.labels import as_text, to_plain_labels
from robustcp.persist.writing import open_atomic, write_bytes

#: Arrays of the same shape by name.
Arrays = Mapping[str, np.ndarray]


def check_tensor_file(path: Path, *, several: bool) -> None:
    """Refuse a name that does not say how a tensor is to be written."""
    suffixes = [suffix for suffix, kind in _FORMATS.items() if kind.holds_several or not several]
    if path.suffix not in suffixes:
        what = "a tensor with its standard errors" if several else "a tensor"
        raise FileError(path, f"{what} is written as {', '.join(suffixes)}")


def write_tensors(path: Path, arrays: Arrays, axes: Axes) -> None:
    """Write arrays of the same shape, the data first; NaN is missing.

    A .npy file holds the first array, .npz all of them by name. A .mat file has vectors of labels
    beside them, .nc the names of the modes as dimensions with labels as coordinates. A .csv file
    has a row for each entry: an index or label for each mode, and a column for each array.
    """
    check_tensor_file(path, several=len(arrays) > 1)
    _FORMATS[path.suffix].write(path, arrays, axes)


def _write_npy(path: Path, arrays: Arrays, axes: Axes) -> None:
    with open_atomic(path) as file:
        np.save(file, next(iter(arrays.values())), allow_pickle=False)


def _write_npz(path: Path, arrays: Arrays, axes: Axes) -> None:
    with open_atomic(path) as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def _write_mat(path: Path, arrays: Arrays, axes: Axes) -> None:
    from scipy.io import savemat

    content = dict(arrays)
    for mode, labels in enumerate(axes.labels):
        name = re.sub(r"\W", "_", axes.modes[mode], flags=re.ASCII).strip("_")[:31]
        if labels is not None and name[:1].isalpha() and name not in content:
            plain = to_plain_labels(labels)
            numbers = all(isinstance(label, bool | int | float) for label in plain)
            content[name] = np.array(
                plain if numbers else list(map(str, plain)), float if numbers else object
            )
    buffer = io.BytesIO()
    savemat(buffer, content, do_compression=True, oned_as="column")
    write_bytes(path, buffer.getbuffer())


def _write_netcdf(path: Path, arrays: Arrays, axes: Axes) -> None:
    xarray = import_optional("xarray", "a .nc file")
    names = [
        name if is_valid_dimension(name) and name not in arrays else f"mode_{n}"
        for n, name in enumerate(axes.modes)
    ]
    coordinates = {
        name: (name, to_plain_labels(labels), {"units": unit} if unit else {})
        for name, labels, unit in zip(
            names, axes.labels, axes.units or [""] * len(names), strict=True
        )
        if labels is not None
    }
    variables = {name: (names, array) for name, array in arrays.items()}
    write_bytes(path, dataset_bytes(xarray.Dataset(variables, coordinates)))


def _write_csv(path: Path, arrays: Arrays, axes: Axes) -> None:
    stream = io.StringIO()
    table = csv.writer(stream, lineterminator="\n")
    table.writerow([*axes.modes, *("value" if k == 0 else name for k, name in enumerate(arrays))])
    shape = next(iter(arrays.values())).shape
    labels = [
        list(range(size)) if own is None else list(map(as_text, own))
        for size, own in zip(shape, axes.labels, strict=True)
    ]
    columns = [array.ravel().tolist() for array in arrays.values()]
    for index, *values in zip(np.ndindex(*shape), *columns, strict=True):
        places = [own[k] for own, k in zip(labels, index, strict=True)]
        table.writerow([*places, *("" if x != x else repr(x) for x in values)])
    write_bytes(path, stream.getvalue().encode())


@dataclass(frozen=True)
class _Format:
    """How arrays are written, and whether a file holds several."""

    write: Callable[[Path, Arrays, Axes], None]
    holds_several: bool = True


_FORMATS = {
    ".npy": _Format(_write_npy, holds_several=False),
    ".npz": _Format(_write_npz),
    ".mat": _Format(_write_mat),
    ".nc": _Format(_write_netcdf),
    ".csv": _Format(_write_csv),
}
