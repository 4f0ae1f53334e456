"""Tensors from the files that people have, by content and suffix.

Each format is read by the library that its field uses; those beyond NumPy and SciPy are optional
(the extra `files`), and their absence is one line that says what to install. Whatever is wrong
with a file is a `FileError`, one line that names the file.
"""

from __future__ import annotations

import math
import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from robustcp.engines import Labelled, in_parquet, labelled, transposed
from robustcp.files.errors import FileError, reason
from robustcp.files.optional import MissingError, library
from robustcp.io.beside import as_vector, names_beside
from robustcp.io.tables import TEXT, Columns, Table, folder, long_table, matrix, parquet, workbook
from robustcp.io.tables import text_table as text_of
from robustcp.io.tns import tns

__all__ = ["FileError", "Loaded", "read"]


@dataclass(frozen=True, eq=False, repr=False)
class Loaded(Labelled):
    """A tensor from a file.

    Attributes
    ----------
    data : array or Observed
    modes : tuple of str
        Names of the modes.
    labels : tuple of (list or None)
        Labels of the indices of each mode.
    notes : tuple of str
        What should be known about the data, such as sensors that never vary.
    units : tuple of str
        What the labels of each mode are measured in, "" if that is not known; or empty.
    affine : array, optional
        Of a NIfTI image: from voxels to space.
    space : tuple of int, optional
        Of an image as voxel x time: its sizes in space.
    """

    affine: np.ndarray | None = None
    space: tuple[int, ...] | None = None

    @classmethod
    def plain(cls, data: Any) -> Loaded:
        """An array without names."""
        order = len(data.shape)
        return cls(data, tuple(f"mode {n}" for n in range(order)), (None,) * order)


@dataclass(frozen=True)
class Asked:
    """What is said of a file: which array or sheet, which columns, and what is not listed."""

    key: str | None = None
    absent: str | None = None
    columns: Columns = field(default_factory=Columns)
    stack: bool = False
    lazy: bool = False


def read(
    path: str | Path,
    *,
    key: str | None = None,
    absent: str | None = None,
    modes: Sequence[int | str] | None = None,
    value: int | str | None = None,
    stack: bool = False,
    lazy: bool = False,
) -> Loaded:
    """The tensor in a file, or in a folder of tables.

    Parameters
    ----------
    path : str or Path
        NumPy (.npy, .npz), MATLAB (.mat), HDF5, NetCDF, Zarr, NIfTI (.nii, .nii.gz), FROSTT or
        Tensor Toolbox (.tns), or a long table (.csv, .parquet, .xlsx) with one column per mode
        and the value last. A folder of text files with a matrix in each, such as landscapes of
        fluorescence, is one tensor, whose first mode has the names of the files as labels.
    key : str, optional
        Which array, where a file holds several; fields of structs by dots, "X.data". Of a
        workbook, which sheet.
    absent : {"missing", "zero"}, optional
        What an index that is not listed in a .tns file or a table means. There is no default.
    modes, value : sequence of columns, and a column; by name or position, optional
        Of a long table: which columns are the modes, in their order, and which holds the values.
        With `stack`, `modes` names the modes.
    stack : bool
        Whether tables are matrices, with labels in their first row and column: one in a file, or
        one in each sheet of a workbook, which are stacked to one tensor.
    lazy : bool
        Whether data that is stored in chunks is left where it is, and read by chunks in every
        pass: Zarr, HDF5, NetCDF, and tables in a folder of Parquet files.

    Returns
    -------
    Loaded

    Notes
    -----
    Vectors that are kept beside an array, in the same struct of a .mat file or group of an HDF5
    file, become its labels, if they are as long as one mode and no other.

    Examples
    --------
    >>> import numpy as np, tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "x.npy"
    >>> np.save(path, np.ones((2, 3, 4)))
    >>> from robustcp import read
    >>> read(path)
    Loaded(mode 0 (2) x mode 1 (3) x mode 2 (4); float64)
    """
    path = Path(path)
    if absent not in (None, "missing", "zero"):
        raise ValueError(f"absent: must be 'missing' or 'zero', got {absent!r}")
    if not path.exists():
        raise FileError(path, "there is no such file")
    kind = _kind(path)
    named = None if modes is None else tuple([modes] if isinstance(modes, str) else modes)
    asked = Asked(key, absent, Columns(named, value), stack, lazy)
    wide = kind in _WIDE or (stack and kind in _TABLES)
    for option, given in (("modes", modes is not None), ("value", value is not None)):
        if given and kind not in _TABLES and not (wide and option == "modes"):
            raise FileError(path, f"is for tables, not for {kind}", option)
    if stack and kind not in (*_TABLES, *_WIDE):
        raise FileError(path, f"is for tables, not for {kind}", "stack")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = _READERS[kind](path, asked)
    except FileError:
        raise
    except ImportError:
        raise
    except MemoryError:
        raise FileError(path, "claims to hold more than memory has room for") from None
    except Exception as error:  # whatever a damaged file makes its library raise
        raise FileError(path, f"cannot be read as {kind} ({reason(error)})") from None
    if wide and named:
        loaded = _renamed(path, loaded, named)
    return loaded if kind in _LISTED else _checked(path, loaded)


def _renamed(path: Path, loaded: Loaded, modes: tuple[int | str, ...]) -> Loaded:
    """With other names of modes."""
    if len(modes) != len(loaded.modes):
        raise FileError(path, f"must be {len(loaded.modes)} names, got {len(modes)}", "modes")
    return replace(loaded, modes=tuple(map(str, modes)))


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
        if any(path.rglob("*.parquet")):
            return "Parquet, in parts"
        return "a folder of tables"
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
        return "Excel .xlsx" if name.endswith((".xlsx", ".xlsm")) else "NumPy .npz"
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
    if name.endswith(TEXT):
        return "CSV"
    known = {".npy": "NumPy .npy", ".npz": "NumPy .npz", ".mat": "MATLAB .mat"}
    if path.suffix.lower() in (*known, ".h5", ".hdf5", ".nc", ".parquet", ".xlsx"):
        raise FileError(path, "its content is not what its suffix says")
    raise FileError(
        path,
        "unknown kind of file; there are .npy, .npz, .mat, .h5, .nc, .zarr, .nii, "
        ".nii.gz, .tns, .csv, .parquet, .xlsx, and folders of .csv",
    )


def _library(name: str, path: Path) -> Any:
    try:
        return library(name, "reading it")
    except MissingError as error:
        raise FileError(path, str(error)) from None


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


def _npy(path: Path, asked: Asked) -> Loaded:
    return Loaded.plain(np.load(path, mmap_mode="c", allow_pickle=False))


@dataclass(frozen=True)
class _Member:
    """An array of an archive that is not read yet."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def _npz(path: Path, asked: Asked) -> Loaded:
    """Only the array that is meant is read; of the others, what they are."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(".npy")]
        if not names:
            raise FileError(path, "is a zip archive without NumPy arrays")
        members = {name.removesuffix(".npy"): _member(archive, name) for name in names}
        chosen, _ = _one(path, members, asked.key)
        with archive.open(f"{chosen}.npy") as file:
            return Loaded.plain(np.lib.format.read_array(file, allow_pickle=False))


def _member(archive: zipfile.ZipFile, name: str) -> _Member:
    with archive.open(name) as file:
        version = np.lib.format.read_magic(file)
        header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if header is None:  # the third version is the second in UTF-8, for names of fields
            return _Member((), np.dtype(object))
        shape, _, dtype = header(file)
        return _Member(shape, dtype)


def _mat(path: Path, asked: Asked) -> Loaded:
    from scipy.io import loadmat

    held = loadmat(path, squeeze_me=True, struct_as_record=False)
    arrays = dict(_inside(held))
    chosen, data = _one(path, arrays, asked.key)
    return _with_axes(np.asarray(data), chosen, arrays)


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


def _with_axes(data: Any, name: str, arrays: Mapping[str, Any]) -> Loaded:
    """An array with the labels that are kept beside it, in the same struct or group."""
    inside = name.rpartition(".")[0]
    vectors = {
        other: vector
        for other, each in arrays.items()
        if other != name
        and other.rpartition(".")[0] == inside
        and (vector := as_vector(each)) is not None
    }
    modes, labels = names_beside(tuple(data.shape), vectors)
    return Loaded(data, modes, labels)


def _hdf5(path: Path, asked: Asked) -> Loaded:
    """An array; lazily as it lies in the file, which stays open."""
    h5py = _library("h5py", path)
    file = h5py.File(path, "r")
    try:
        arrays: dict[str, Any] = {}
        file.visititems(
            lambda name, item: (
                arrays.update({name.replace("/", "."): item})
                if isinstance(item, h5py.Dataset) and item.shape is not None
                else None
            )
        )
        arrays = {name: item for name, item in arrays.items() if not name.startswith("#refs#")}
        name, chosen = _one(path, arrays, asked.key)
        matlab, beside = "MATLAB_class" in chosen.attrs, name.rpartition(".")[0]
        small = {
            other: _texts(file, item, h5py)
            for other, item in arrays.items()
            if other.rpartition(".")[0] == beside and item.size <= max(chosen.shape, default=0)
        }
        if asked.lazy:
            return _with_axes(transposed(chosen) if matlab else chosen, name, small)
        data = np.asarray(chosen[()])
        return _with_axes(data.T if matlab else data, name, small)
    finally:
        if not asked.lazy:
            file.close()


def _texts(file: Any, item: Any, h5py: Any) -> Any:
    """A vector of a group; cells of text of MATLAB are followed."""
    if h5py.check_ref_dtype(item.dtype) is not None:
        cells = [file[cell] for cell in item[()].ravel() if cell]
        return np.array(["".join(map(chr, np.asarray(cell[()]).ravel())) for cell in cells])
    text = h5py.check_string_dtype(item.dtype) is not None
    return np.array(item.asstr()[()]) if text else item[()]


def _xarray(path: Path, asked: Asked) -> Loaded:
    """A variable with its coordinates; lazily as it lies in the file, which stays open."""
    opened = _library("xarray", path).open_dataset(path, cache=not asked.lazy)
    if asked.lazy:
        return _named(_one(path, dict(opened.data_vars), asked.key)[1])
    with opened:
        chosen = _one(path, dict(opened.data_vars), asked.key)[1].load()
        return replace(_named(chosen), data=np.asarray(chosen.values))


def _named(array: Any) -> Loaded:
    """A DataArray with its names and labels."""
    found = labelled(array)
    return Loaded(array, found.modes, found.labels, units=found.units)


def _zarr(path: Path, asked: Asked) -> Loaded:
    stored = _stored_zarr(path, asked.key)
    return stored if asked.lazy else replace(stored, data=np.asarray(stored.data[...]))


def _stored_zarr(path: Path, key: str | None) -> Loaded:
    """An array of Zarr; of xarray, where that makes other numbers of what is stored."""
    zarr = _library("zarr", path)
    opened = zarr.open(path, mode="r")
    if not isinstance(opened, zarr.Group):
        names = getattr(opened.metadata, "dimension_names", None) or (None,) * opened.ndim
        plain = Loaded.plain(opened)
        pairs = zip(names, plain.modes, strict=True)
        return replace(plain, modes=tuple(name or number for name, number in pairs))
    try:
        held = _library("xarray", path).open_zarr(path, chunks=None)
    except (KeyError, ValueError):  # dimensions have no names
        members = dict(opened.members(None))
        arrays = {
            n.replace("/", "."): a for n, a in members.items() if not isinstance(a, zarr.Group)
        }
        return Loaded.plain(_one(path, arrays, key)[1])
    name, chosen = _one(path, dict(held.data_vars), key)
    array, loaded = opened[name], _named(chosen)
    return replace(loaded, data=array) if array.dtype == chosen.dtype and _as_is(chosen) else loaded


def _as_is(chosen: Any) -> bool:
    """Whether what is stored is what is meant: no scale, no offset, no value for missing ones."""
    fill = chosen.encoding.get("_FillValue")
    missing = fill is not None and not np.isnan(np.float64(fill))
    return not missing and not {"scale_factor", "add_offset"} & set(chosen.encoding)


def _nifti(path: Path, asked: Asked) -> Loaded:
    nibabel = _library("nibabel", path)
    image = nibabel.load(path)
    data = np.asanyarray(image.dataobj)
    names = ("x", "y", "z", "time", "mode 4", "mode 5", "mode 6")[: data.ndim]
    return Loaded(data, names, (None,) * data.ndim, affine=np.asarray(image.affine))


# Listed entries and tables


def _loaded(named: Labelled) -> Loaded:
    return Loaded(named.data, named.modes, named.labels, named.notes)


def _text(path: Path, asked: Asked) -> Loaded:
    if asked.stack:
        return _loaded(matrix(path))
    _library("pandas", path)
    return _long(text_of(path, asked.columns), asked)


def _long(table: Table, asked: Asked) -> Loaded:
    return _loaded(long_table(table, asked.columns, asked.absent))


def _workbook(path: Path, asked: Asked) -> Loaded:
    found = workbook(path, asked.key, asked.stack)
    return _long(found, asked) if isinstance(found, Table) else _loaded(found)


def _parquet(path: Path, asked: Asked) -> Loaded:
    if asked.stack:
        raise FileError(path, "is for text files and workbooks", "stack")
    return _long(parquet(path), asked)


def _parts(path: Path, asked: Asked) -> Loaded:
    """A table in a folder of files, which are read in every pass."""
    _library("pyarrow", path)
    data = in_parquet(path, by_name=True)
    if asked.absent != "missing" and data.count < math.prod(data.shape):
        raise FileError(
            path,
            "must say that the entries that are not listed are 'missing'; a table in parts is not "
            f"filled up with zeros ({math.prod(data.shape) - data.count} entries)",
            "absent",
        )
    labels = tuple(None if names is None else list(names.tolist()) for names in data.names)
    return Loaded(data, data.modes, labels)


_READERS: dict[str, Callable[[Path, Asked], Loaded]] = {
    "NumPy .npy": _npy,
    "NumPy .npz": _npz,
    "MATLAB .mat": _mat,
    "HDF5": _hdf5,
    "NetCDF": _xarray,
    "Zarr": _zarr,
    "NIfTI": _nifti,
    "FROSTT .tns": lambda path, asked: _loaded(tns(path, asked.absent)),
    "CSV": _text,
    "Parquet": _parquet,
    "Parquet, in parts": _parts,
    "Excel .xlsx": _workbook,
    "a folder of tables": lambda path, asked: _loaded(folder(path)),
}
#: Those that are tables, those whose tables are matrices, and those that may list few entries.
_LISTED = ("FROSTT .tns", "CSV", "Parquet", "Parquet, in parts", "Excel .xlsx")
_TABLES = ("CSV", "Parquet", "Excel .xlsx")
_WIDE = ("a folder of tables",)
