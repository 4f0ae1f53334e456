"""Fits as files, in the formats that other programs read; `persist.fits.load` reads them.

A new format of fits is a module with `write` and `read`, and a `Format` in `FORMATS`.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from robustcp.persist.errors import FileError
from robustcp.persist.formats import matlab, netcdf, npz, text, xlsx
from robustcp.persist.formats.description import FitContent

if TYPE_CHECKING:
    from robustcp.results.fit import Fit


@dataclass(frozen=True)
class Format:
    """A kind of file: how a fit is written and read, and which libraries that needs.

    `whole` says whether it holds all of a fit, so that `load` can read it.
    """

    write: Callable[[Fit, Path], None]
    read: Callable[[Path], FitContent]
    libraries: tuple[str, ...] = ()
    whole: bool = True


#: The formats of fits, by suffix.
FORMATS = {
    ".npz": Format(npz.write, npz.read),
    ".nc": Format(netcdf.write, netcdf.read, ("xarray", "h5netcdf")),
    ".json": Format(text.write_json, text.read_json),
    ".mat": Format(matlab.write, matlab.read),
    ".xlsx": Format(xlsx.write, xlsx.read, ("openpyxl",)),
    ".csv": Format(text.write_csv, text.refuse_csv, whole=False),
}


def save(fit: Fit, path: str | Path, *, overwrite: bool = False) -> None:
    """Write a fit to a file, in the format of its suffix. If that fails, no partial file is left.

    A file that exists is replaced only with `overwrite=True`, or else raises a FileExistsError.

    `.npz`, `.nc` (NetCDF), `.json`, `.mat` and `.xlsx` hold all of a fit but the models of its
    starts, and `load` returns it with the same bits (from .xlsx to 15 digits). Losses and
    constraints of your own that cannot be described by numbers are loaded as their names. `.csv`
    holds weights, factors and labels. None of them holds a pickle.

    - .nc: variables `weights`, `factor_0`, ... with the names and labels of the modes.
    - .xlsx: a sheet for each mode, with labels in its first column, and one of the weights.
    - .mat: `weights`, and cells `factors`, `modes` and `labels`.
    - .json: `weights`, and for each of `modes` its `name`, `labels` and `factor`.
    - .csv: a row for each index of each mode: mode, index, label, components; first the weights.

    Examples
    --------
    >>> import robustcp, tempfile, pathlib
    >>> sim = robustcp.simulate((8, 8, 8), 2, eta=0.1, gamma=1.0, rng=0)
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "fit.npz"
    >>> fit = robustcp.cpals(sim.data, 2)
    >>> robustcp.save(fit, path)
    >>> robustcp.load(path).status == fit.status
    True
    """
    path = check_suffix(path)
    if path.exists() and not overwrite:
        raise FileExistsError(f"path: {path} exists; overwrite=True replaces it")
    FORMATS[path.suffix].write(fit, path)


def save_to_temporary_folder(fit: Fit) -> Path:
    """Save a fit that could not be written where it should be, in the temporary folder."""
    handle, name = tempfile.mkstemp(prefix="robustcp-", suffix=".npz")
    os.close(handle)
    try:
        save(fit, name, overwrite=True)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(name)


def list_suffixes(*, whole: bool = False) -> str:
    """The suffixes of the formats, in words; with `whole`, only of those that hold all of a fit."""
    *suffixes, last = (name for name, kind in FORMATS.items() if kind.whole or not whole)
    return f"{', '.join(suffixes)} or {last}"


def check_suffix(path: str | Path) -> Path:
    """Raise FileError if no format has this suffix, or if the library of its format is missing."""
    path = Path(path)
    if path.suffix not in FORMATS:
        raise FileError(path, f"a fit is written as {', '.join(FORMATS)}")
    for name in FORMATS[path.suffix].libraries:
        if importlib.util.find_spec(name) is None:
            raise FileError(
                path, f"writing it needs {name}; install it with: pip install 'robustcp[files]'"
            )
    return path
