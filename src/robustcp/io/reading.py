"""Tensors from the files that people have, by content and suffix.

Each format is read by the library that its field uses; those beyond NumPy and SciPy are optional
(the extra `files`), and their absence is one line that says what to install. Whatever is wrong
with a file is a `FileError`, one line that names the file.
"""

from __future__ import annotations

import importlib
import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robustcp.engines import Observed, names_and_labels
from robustcp.files.errors import FileError, reason

__all__ = ["FileError", "Labels", "Loaded", "read"]

#: Labels of one mode: a list, or None where indices are all there is.
Labels = list[Any] | None


@dataclass(frozen=True, eq=False)
class Loaded:
    """A tensor from a file.

    Attributes
    ----------
    data : array or Observed
    modes : tuple of str
        Names of the modes.
    labels : tuple of (list or None)
        Labels of the indices of each mode.
    affine : array, optional
        Of a NIfTI image: from voxels to space.
    space : tuple of int, optional
        Of an image as voxel x time: its sizes in space.
    """

    data: Any
    modes: tuple[str, ...]
    labels: tuple[Labels, ...]
    affine: np.ndarray | None = None
    space: tuple[int, ...] | None = None

    @classmethod
    def plain(cls, data: Any) -> Loaded:
        """An array without names."""
        order = len(data.shape)
        return cls(data, tuple(f"mode {n}" for n in range(order)), (None,) * order)


def read(path: str | Path, *, key: str | None = None, absent: str | None = None) -> Loaded:
    """The tensor in a file.

    Parameters
    ----------
    path : str or Path
        NumPy (.npy, .npz), MATLAB (.mat), HDF5, NetCDF, Zarr, NIfTI (.nii, .nii.gz), FROSTT
        (.tns), or a long table (.csv, .parquet) with one column per mode and the value last.
    key : str, optional
        Which array, where a file holds several; fields of structs by dots, "X.data".
    absent : {"missing", "zero"}, optional
        What an index that is not listed in a .tns file or a table means. There is no default.

    Returns
    -------
    Loaded

    Examples
    --------
    >>> import numpy as np, tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "x.npy"
    >>> np.save(path, np.ones((2, 3, 4)))
    >>> read(path).data.shape
    (2, 3, 4)
    """
    path = Path(path)
    if absent not in (None, "missing", "zero"):
        raise ValueError(f"absent: must be 'missing' or 'zero', got {absent!r}")
    if not path.exists():
        raise FileError(path, "there is no such file")
    kind = _kind(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if kind in _LISTED:
                return _LISTED[kind](path, absent)
            loaded = _DENSE[kind](path, key)
    except FileError:
        raise
    except ImportError:
        raise
    except MemoryError:
        raise FileError(path, "claims to hold more than memory has room for") from None
    except Exception as error:  # whatever a damaged file makes its library raise
        raise FileError(path, f"cannot be read as {kind} ({reason(error)})") from None
    return _checked(path, loaded)


def _checked(path: Path, loaded: Loaded) -> Loaded:
    data = loaded.data
    if data.dtype.kind not in "fiub":
        raise FileError(path, f"holds {data.dtype} entries, not real numbers")
    if data.ndim < 2:
        raise FileError(path, f"holds an array of shape {data.shape}; a tensor has 2 modes or more")
    if 0 in data.shape:
        raise FileError(path, f"holds an empty array (shape {data.shape})")
    return loaded


# What kind of file it is


def _kind(path: Path) -> str:
    name = path.name.lower()
    if path.is_dir():
        if name.endswith(".zarr") or any(
            (path / mark).exists() for mark in (".zgroup", ".zarray", "zarr.json")
        ):
            return "Zarr"
        raise FileError(path, "is a folder")
    try:
        with path.open("rb") as file:
            head = file.read(352)
    except OSError as error:
        raise FileError(path, f"cannot be opened ({error.strerror})") from None
    if not head:
        raise FileError(path, "is empty")
    if head.startswith(b"\x93NUMPY"):
        return "NumPy .npy"
    if head.startswith(b"PK\x03\x04"):
        return "NumPy .npz"
    if head.startswith(b"\x89HDF\r\n\x1a\n") or b"MATLAB 7.3" in head[:128]:
        return "NetCDF" if name.endswith((".nc", ".nc4", ".cdf")) else "HDF5"
    if head.startswith(b"MATLAB 5.0"):
        return "MATLAB .mat"
    if head.startswith((b"CDF\x01", b"CDF\x02", b"CDF\x05")):
        return "NetCDF"
    if head.startswith(b"PAR1"):
        return "Parquet"
    if name.endswith((".nii", ".nii.gz")):
        return "NIfTI"
    if name.endswith(".tns"):
        return "FROSTT .tns"
    if name.endswith((".csv", ".tsv", ".txt")):
        return "CSV"
    known = {".npy": "NumPy .npy", ".npz": "NumPy .npz", ".mat": "MATLAB .mat"}
    if path.suffix.lower() in (*known, ".h5", ".hdf5", ".nc", ".parquet"):
        raise FileError(path, "its content is not what its suffix says")
    raise FileError(
        path,
        "unknown kind of file; there are .npy, .npz, .mat, .h5, .nc, .zarr, .nii, "
        ".nii.gz, .tns, .csv, .parquet",
    )


def _library(name: str, path: Path) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise FileError(
            path, f"reading it needs {name}; install it with: pip install 'robustcp[files]'"
        ) from None


def _one(path: Path, arrays: Mapping[str, Any], key: str | None) -> tuple[str, Any]:
    """The array that is meant, of those that a file holds."""
    if key is not None:
        if key not in arrays:
            shown = ", ".join(sorted(arrays)) or "none"
            raise FileError(path, f"holds no array {key!r}; there are: {shown}")
        return key, arrays[key]
    large = {name: a for name, a in arrays.items() if len(a.shape) >= 2 and a.dtype.kind in "fiub"}
    if len(large) == 1:
        return next(iter(large.items()))
    if not large:
        raise FileError(path, "holds no array of numbers with 2 modes or more")
    shown = ", ".join(
        f"{name} ({'x'.join(map(str, a.shape))})" for name, a in sorted(large.items())
    )
    raise FileError(path, f"must name one of several arrays: {shown}", "key")


# Arrays


def _npy(path: Path, key: str | None) -> Loaded:
    return Loaded.plain(np.load(path, mmap_mode="c", allow_pickle=False))


def _npz(path: Path, key: str | None) -> Loaded:
    with zipfile.ZipFile(path) as archive:
        if not any(name.endswith(".npy") for name in archive.namelist()):
            raise FileError(path, "is a zip archive without NumPy arrays")
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        arrays = {}
        for name in archive.files:
            try:
                arrays[name] = archive[name]
            except ValueError as error:
                if "pickle" not in str(error) or name == key:
                    raise
        return Loaded.plain(_one(path, arrays, key)[1])


def _mat(path: Path, key: str | None) -> Loaded:
    from scipy.io import loadmat

    held = loadmat(path, squeeze_me=True, struct_as_record=False)
    return Loaded.plain(_one(path, dict(_inside(held)), key)[1])


def _inside(held: Mapping[str, Any], before: str = "", depth: int = 0) -> Iterable[tuple[str, Any]]:
    """Arrays and those in structs, with their names."""
    for name, value in held.items():
        if name.startswith("__"):
            continue
        if isinstance(value, np.ndarray):
            yield before + name, value
        elif hasattr(value, "_fieldnames") and depth < 8:
            fields = {field: getattr(value, field) for field in value._fieldnames}
            yield from _inside(fields, f"{before}{name}.", depth + 1)


def _hdf5(path: Path, key: str | None) -> Loaded:
    h5py = _library("h5py", path)
    with h5py.File(path, "r") as file:
        arrays: dict[str, Any] = {}
        file.visititems(
            lambda name, item: (
                arrays.update({name.replace("/", "."): item})
                if isinstance(item, h5py.Dataset)
                else None
            )
        )
        arrays = {name: item for name, item in arrays.items() if not name.startswith("#refs#")}
        _, chosen = _one(path, arrays, key)
        matlab = "MATLAB_class" in chosen.attrs
        data = chosen[()]
    return Loaded.plain(np.asarray(data).T if matlab else np.asarray(data))


def _xarray(path: Path, key: str | None) -> Loaded:
    xarray = _library("xarray", path)
    if path.is_dir():
        _library("zarr", path)
        opened = xarray.open_zarr(path, chunks=None)
    else:
        opened = xarray.open_dataset(path)
    with opened:
        _, chosen = _one(path, dict(opened.data_vars), key)
        chosen = chosen.load()
        return Loaded(np.asarray(chosen.values), *names_and_labels(chosen))


def _nifti(path: Path, key: str | None) -> Loaded:
    nibabel = _library("nibabel", path)
    image = nibabel.load(path)
    data = np.asanyarray(image.dataobj)
    names = ("x", "y", "z", "time", "mode 4", "mode 5", "mode 6")[: data.ndim]
    return Loaded(data, names, (None,) * data.ndim, np.asarray(image.affine))


# Listed entries


def _tns(path: Path, absent: str | None) -> Loaded:
    rows: list[list[float]] = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            text = line.split("#")[0].split()
            if not text:
                continue
            if rows and len(text) != len(rows[0]):
                raise FileError(path, f"line {number} has {len(text)} numbers, not {len(rows[0])}")
            try:
                rows.append([float(part) for part in text])
            except ValueError:
                raise FileError(path, f"line {number} is not numbers") from None
    table = np.array(rows)
    if table.ndim != 2 or table.shape[1] < 3:
        raise FileError(path, "must have at least 2 indices and a value in each line")
    at = table[:, :-1]
    if not np.array_equal(at, np.round(at)) or at.min() < 1 or at.max() > 2**53:
        raise FileError(path, "indices must be whole numbers from 1 on")
    indices = at.astype(np.int64) - 1
    shape = tuple(int(size) for size in indices.max(axis=0) + 1)
    modes = tuple(f"mode {n}" for n in range(len(shape)))
    return _listed(path, indices, table[:, -1], shape, modes, (None,) * len(shape), absent)


def _table(path: Path, absent: str | None) -> Loaded:
    pandas = _library("pandas", path)
    if _kind(path) == "Parquet":
        _library("pyarrow", path)
        table = pandas.read_parquet(path)
    else:
        table = pandas.read_csv(path, sep=None, engine="python")
    if table.shape[1] < 3:
        raise FileError(path, "must have a column for each of at least 2 modes, and one of values")
    if not len(table):
        raise FileError(path, "has no rows")
    *modes, last = table.columns
    values = pandas.to_numeric(table[last], errors="coerce")
    bad = values.isna() & table[last].notna()
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise FileError(
            path, f"the column of values, {last!r}, has {table[last].iloc[row]!r} in row {row}"
        )
    known = values.notna().to_numpy()
    if table[modes].isna().any(axis=None):
        raise FileError(path, "a column of a mode has gaps")
    codes, labels = [], []
    for mode in modes:
        code, unique = pandas.factorize(table[mode], sort=True)
        codes.append(code)
        labels.append(list(unique.tolist()))
    indices = np.stack(codes, axis=1).astype(np.int64)
    shape = tuple(len(names) for names in labels)
    found = np.asarray(values, dtype=np.float64)
    return _listed(
        path, indices[known], found[known], shape, tuple(map(str, modes)), tuple(labels), absent
    )


def _listed(
    path: Path,
    indices: np.ndarray,
    values: np.ndarray,
    shape: tuple[int, ...],
    modes: tuple[str, ...],
    labels: tuple[Labels, ...],
    absent: str | None,
) -> Loaded:
    """A tensor of listed entries: observed ones, or a whole array where the rest is 0."""
    size = int(np.prod([float(n) for n in shape]))
    if absent is None and len(values) < size:
        raise FileError(
            path,
            "must say what the entries that are not listed are, 'missing' or 'zero' "
            f"({size - len(values)} of {size})",
            "absent",
        )
    try:
        observed = Observed(indices, values, shape)
    except ValueError as error:
        text = str(error).replace("indices: given more than once", "repeated coordinates")
        raise FileError(path, text) from None
    if absent == "missing" and len(values) < 0.5 * size:
        return Loaded(observed, modes, labels)
    data = np.full(shape, np.nan if absent == "missing" else 0.0)
    data[tuple(indices.T)] = values
    return Loaded(data, modes, labels)


_DENSE: dict[str, Callable[[Path, str | None], Loaded]] = {
    "NumPy .npy": _npy,
    "NumPy .npz": _npz,
    "MATLAB .mat": _mat,
    "HDF5": _hdf5,
    "NetCDF": _xarray,
    "Zarr": _xarray,
    "NIfTI": _nifti,
}
_LISTED: dict[str, Callable[[Path, str | None], Loaded]] = {
    "FROSTT .tns": _tns,
    "CSV": _table,
    "Parquet": _table,
}
