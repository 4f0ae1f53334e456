"""Fits as NetCDF files, which show names and labels to every reader of such files."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp._util.optional import import_optional
from robustcp.persist.formats.description import FitContent, fit_arrays, fit_metadata
from robustcp.persist.labels import to_plain_labels
from robustcp.persist.writing import write_bytes

if TYPE_CHECKING:
    from robustcp.results.fit import Fit


def write(fit: Fit, path: Path) -> None:
    """Write a fit, names and labels included."""
    write_bytes(path, netcdf_bytes(fit))


def read(path: Path) -> FitContent:
    """What was written."""
    xarray = import_optional("xarray", "reading it")
    with xarray.open_dataset(path, engine="h5netcdf", decode_cf=False) as dataset:
        arrays = {name: np.array(dataset[name].values) for name in dataset.data_vars}
        return arrays, json.loads(dataset.attrs["robustcp"])


def netcdf_bytes(fit: Fit) -> memoryview:
    """A fit as the content of a NetCDF file.

    It is made in memory: HDF5 crashes where it cannot write. Names and labels that NetCDF cannot
    hold have others in their place; the exact ones are in the attribute `robustcp`.
    """
    plain_labels = [None if labels is None else to_plain_labels(labels) for labels in fit.labels]
    dataset = replace(
        fit, modes=_dimension_names(fit.modes), labels=tuple(plain_labels)
    ).to_xarray()
    dataset["trace"] = ("sweep", np.asarray(fit.trace))
    arrays = fit_arrays(fit)
    for name in arrays.keys() - set(map(str, dataset.data_vars)):
        array = arrays[name]
        prefix = name
        while any(str(dimension).startswith(prefix) for dimension in dataset.dims):
            prefix += "_"
        dataset[name] = tuple(f"{prefix}_{n}" for n in range(array.ndim)), array
    dataset.attrs["robustcp"] = json.dumps(fit_metadata(fit))
    return dataset_bytes(dataset)


def dataset_bytes(dataset: Any) -> memoryview:
    """A data set of xarray as the content of a NetCDF file."""
    from xarray.backends import H5NetCDFStore

    buffer = io.BytesIO()
    with import_optional("h5netcdf", "a .nc file").File(buffer, "w") as file:
        dataset.dump_to_store(H5NetCDFStore(file))
    return buffer.getbuffer()


def _dimension_names(modes: Sequence[Any]) -> tuple[str, ...]:
    """Names of dimensions: those of the modes, where a NetCDF file can have them."""
    mode_names = [str(mode) for mode in modes]
    array_names = (
        f"{prefix}_{n}"
        for prefix in ("factor", "noise", "known", "preprocess")
        for n in range(len(mode_names) + 1)
    )
    used_names = {"component", "sweep", "weights", "trace", "known_listed", *array_names}
    names: list[str] = []
    for n, name in enumerate(mode_names):
        if name in used_names or not is_valid_dimension(name):
            name = f"mode_{n}"
            while name in used_names or name in mode_names:
                name += "_"
        used_names.add(name)
        names.append(name)
    return tuple(names)


def is_valid_dimension(name: str) -> bool:
    """Whether a dimension of a NetCDF file may have a name."""
    is_printable = name.isprintable() and name == name.strip() and len(name.encode()) <= 256
    return is_printable and "/" not in name and name not in ("", ".", "..")
