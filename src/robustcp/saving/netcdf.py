"""Fits as NetCDF files, which show names and labels to every reader of such files."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp.files.labels import for_netcdf
from robustcp.files.optional import library
from robustcp.files.writing import write_bytes
from robustcp.saving.described import Held, about, arrays_of

if TYPE_CHECKING:
    from robustcp.fitted import Fit


def write(fit: Fit, path: Path) -> None:
    """Write a fit, names and labels included."""
    write_bytes(path, content(fit))


def read(path: Path) -> Held:
    """What was written."""
    xarray = library("xarray", "reading it")
    with xarray.open_dataset(path, engine="h5netcdf", decode_cf=False) as opened:
        held = {name: np.array(opened[name].values) for name in opened.data_vars}
        return held, json.loads(opened.attrs["robustcp"])


def content(fit: Fit) -> memoryview:
    """A fit as the content of a NetCDF file.

    It is made in memory: HDF5 crashes where it cannot write. Names and labels that NetCDF cannot
    hold have others in their place; the exact ones are in the attribute `robustcp`.
    """
    from xarray.backends import H5NetCDFStore

    shown = [None if labels is None else for_netcdf(labels) for labels in fit.labels]
    dataset = replace(fit, modes=_dimensions(fit.modes), labels=tuple(shown)).to_xarray()
    dataset["trace"] = ("sweep", np.asarray(fit.trace))
    held = arrays_of(fit)
    for name in held.keys() - set(map(str, dataset.data_vars)):
        array = held[name]
        prefix = name
        while any(str(dimension).startswith(prefix) for dimension in dataset.dims):
            prefix += "_"
        dataset[name] = tuple(f"{prefix}_{n}" for n in range(array.ndim)), array
    dataset.attrs["robustcp"] = json.dumps(about(fit))
    content = io.BytesIO()
    with library("h5netcdf", "a .nc file").File(content, "w") as file:
        dataset.dump_to_store(H5NetCDFStore(file))
    return content.getbuffer()


def _dimensions(modes: Sequence[Any]) -> tuple[str, ...]:
    """Names of dimensions: those of the modes, where a NetCDF file can have them."""
    wanted = [str(mode) for mode in modes]
    parts = (f"{part}_{n}" for part in ("factor", "noise", "known") for n in range(len(wanted) + 1))
    taken = {"component", "sweep", "weights", "trace", "known_listed", *parts}
    names: list[str] = []
    for n, name in enumerate(wanted):
        if name in taken or not _is_dimension(name):
            name = f"mode_{n}"
            while name in taken or name in wanted:
                name += "_"
        taken.add(name)
        names.append(name)
    return tuple(names)


def _is_dimension(name: str) -> bool:
    plain = name.isprintable() and name == name.strip() and len(name.encode()) <= 256
    return plain and "/" not in name and name not in ("", ".", "..")
