"""Tensors from the files that people have, by content and suffix.

Each format is read by its usual library (NIfTI by nibabel); those beyond NumPy and SciPy are
optional (the extra `files`). If one is missing, an error of one line says what to install. Any
problem with a file raises `FileError`, whose one-line message names the file.

To add a format, recognise it in `_detect_format`, name it in the error message there, and add an
entry to `_FORMATS`. Name it in docs/files.md and in the docstrings too; see docs/architecture.md.
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

from robustcp._util.checks import ArgumentError
from robustcp._util.optional import MissingLibraryError, import_optional
from robustcp.engines import LabelledTensor, as_labelled, open_parquet, reverse_modes
from robustcp.io.label_vectors import as_vector, axes_from_vectors
from robustcp.io.r_files import R_SUFFIXES, read_r_objects
from robustcp.io.selection import select as selected
from robustcp.io.selection import without_values
from robustcp.io.tables import (
    TEXT_SUFFIXES,
    Columns,
    Table,
    read_folder,
    read_matrix,
    read_parquet,
    read_text_table,
    read_workbook,
    table_of_frame,
    tensor_from_long_table,
)
from robustcp.io.tns import read_tns
from robustcp.persist.errors import FileError, reason

__all__ = ["FileError", "Loaded", "read"]


@dataclass(frozen=True, eq=False, repr=False)
class Loaded(LabelledTensor):
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
        For an image flattened to voxel x time: its spatial shape before.
    """

    affine: np.ndarray | None = None
    space: tuple[int, ...] | None = None

    @classmethod
    def from_array(cls, data: Any) -> Loaded:
        """An array without names."""
        order = len(data.shape)
        return cls(data, tuple(f"mode {n}" for n in range(order)), (None,) * order)


@dataclass(frozen=True)
class ReadOptions:
    """The options of `read`."""

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
    missing: Sequence[float] = (),
    select: Mapping[int | str, str] | None = None,
    lazy: bool = False,
) -> Loaded:
    """The tensor in a file, or in a folder of tables.

    Parameters
    ----------
    path : str or Path
        NumPy (.npy, .npz), MATLAB (.mat), HDF5, NetCDF, Zarr, NIfTI (.nii, .nii.gz), R (.rda,
        .rds), FROSTT or Tensor Toolbox (.tns), or a long table (.csv, .parquet, .xlsx) with one
        column per mode and the value last. A folder of text files with a matrix in each, such as
        landscapes of fluorescence, is one tensor, whose first mode has the names of the files as
        labels.
    key : str, optional
        Which array, where a file holds several; fields of structs by dots, "X.data". Of a
        workbook, which sheet.
    absent : {"missing", "zero"}, optional
        What an index that is not listed in a .tns file or a table means.
        By default a file that does not list all entries is refused.
    modes, value : sequence of columns, and a column; by name or position, optional
        Of a long table: which columns are the modes, in their order, and which holds the values.
        Otherwise `modes` names the modes.
    stack : bool
        Whether tables are matrices, with labels in their first row and column: one in a file, or
        one in each sheet of a workbook, which are stacked to one tensor.
    missing : sequence of float
        Values that stand for missing entries, such as 0 or -999.
    select : dict from a mode, by number or name, to text
        Which part of the tensor is taken: ``{"emission": "250:450"}``, by labels, ends included,
        or by positions where a mode has no labels; see `robustcp.io.selection.select`.
    lazy : bool
        Whether data that is stored in chunks is left where it is, and read by chunks in every
        pass: Zarr, HDF5, NetCDF, and tables in a folder of Parquet files.

    Returns
    -------
    Loaded

    Notes
    -----
    A vector that is stored with the array, in the same struct of a .mat file or the same group of
    an HDF5 file, labels and names a mode if its length is that of exactly one mode and its values
    are all different. If several vectors fit a mode, the text vector is used if there is one only;
    if none is text, the monotone vector, if there is one only; otherwise the mode gets no labels.

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
    file_format = _detect_format(path)
    mode_names = None if modes is None else tuple([modes] if isinstance(modes, str) else modes)
    options = ReadOptions(key, absent, Columns(mode_names, value), stack, lazy)
    traits = _FORMATS[file_format]
    if value is not None and not traits.is_table:
        raise FileError(path, f"is for tables, not for {file_format}", "value")
    if stack and not (traits.is_table or traits.always_matrix):
        raise FileError(path, f"is for tables, not for {file_format}", "stack")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = traits.read(path, options)
    except MissingLibraryError as error:
        raise FileError(path, str(error)) from None
    except (FileError, ImportError):
        raise
    except MemoryError:
        raise FileError(path, "claims to hold more than memory has room for") from None
    except Exception as error:  # whatever a damaged file makes its library raise
        raise FileError(path, f"cannot be read as {file_format} ({reason(error)})") from None
    loaded = loaded if traits.lists_entries else _check_tensor(path, loaded)
    if mode_names and (stack or not traits.is_table):
        loaded = _rename_modes(path, loaded, mode_names)
    try:
        return without_values(_select(loaded, select or {}), missing)
    except ArgumentError as error:
        raise FileError(path, error.problem, error.argument) from None


def _select(loaded: Loaded, ranges: Mapping[int | str, str]) -> Loaded:
    """A part of a tensor; of an image, without its place in space."""
    return replace(selected(loaded, ranges), affine=None) if ranges else loaded


def _rename_modes(path: Path, loaded: Loaded, modes: tuple[int | str, ...]) -> Loaded:
    """With other names of modes."""
    if len(modes) != len(loaded.modes):
        raise FileError(path, f"must be {len(loaded.modes)} names, got {len(modes)}", "modes")
    return replace(loaded, modes=tuple(map(str, modes)))


def _check_tensor(path: Path, loaded: Loaded) -> Loaded:
    data = loaded.data
    if data.dtype.kind not in "fiub":
        raise FileError(path, f"holds {data.dtype} entries, not real numbers")
    if data.ndim < 2:
        raise FileError(path, f"holds an array of shape {data.shape}; a tensor has 2 modes or more")
    if 0 in data.shape:
        raise FileError(path, f"holds an empty array (shape {data.shape})")
    return loaded


# What kind of file it is

#: Suffixes of formats that are recognised by their content.
_SUFFIXES_DETECTED_BY_CONTENT = (
    ".npy", ".npz", ".mat", ".h5", ".hdf5", ".nc", ".parquet", ".xlsx",
)  # fmt: skip

#: Formats that are recognised by their suffixes.
_FORMATS_OF_SUFFIXES = {
    (".nii", ".nii.gz"): "NIfTI",
    R_SUFFIXES: "R",
    (".tns",): "FROSTT .tns",
    TEXT_SUFFIXES: "CSV",
}


def _detect_format(path: Path) -> str:
    """The name of a file's format in `_FORMATS`."""
    name = path.name.lower()
    if path.is_dir():
        if name.endswith(".zarr") or any(
            (path / marker).exists() for marker in (".zgroup", ".zarray", "zarr.json")
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
    for suffixes, file_format in _FORMATS_OF_SUFFIXES.items():
        if name.endswith(suffixes):
            return file_format
    if path.suffix.lower() in _SUFFIXES_DETECTED_BY_CONTENT:
        raise FileError(path, "its content is not what its suffix says")
    raise FileError(
        path,
        "unknown kind of file; there are .npy, .npz, .mat, .h5, .nc, .nii, .nii.gz, .rda, .rds, "
        ".tns, .csv, .tsv, .txt, .dat, .asc, .parquet, .xlsx, and folders: .zarr, and of .csv or "
        ".parquet",
    )


def _choose_array(path: Path, arrays: Mapping[str, Any], key: str | None) -> tuple[str, Any]:
    """The array named `key`, or else the only one of numbers with at least 2 modes."""
    if key is not None:
        if key not in arrays:
            listing = ", ".join(sorted(arrays)) or "none"
            raise FileError(path, f"holds no array {key!r}; there are: {listing}")
        return key, arrays[key]
    candidates = {
        name: a for name, a in arrays.items() if len(a.shape) >= 2 and a.dtype.kind in "fiub"
    }
    if len(candidates) == 1:
        return next(iter(candidates.items()))
    if not candidates:
        raise FileError(path, "holds no array of numbers with 2 modes or more")
    listing = ", ".join(
        f"{name} ({'x'.join(map(str, a.shape))})" for name, a in sorted(candidates.items())
    )
    raise FileError(path, f"must name one of several arrays: {listing}", "key")


# Arrays


def _read_npy(path: Path, options: ReadOptions) -> Loaded:
    return Loaded.from_array(np.load(path, mmap_mode="c", allow_pickle=False))


@dataclass(frozen=True)
class _ArrayHeader:
    """An array of an archive that is not read yet."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def _read_npz(path: Path, options: ReadOptions) -> Loaded:
    """Read the chosen array; of the others only the headers."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(".npy")]
        if not names:
            raise FileError(path, "is a zip archive without NumPy arrays")
        members = {name.removesuffix(".npy"): _read_array_header(archive, name) for name in names}
        chosen_name, _ = _choose_array(path, members, options.key)
        with archive.open(f"{chosen_name}.npy") as file:
            return Loaded.from_array(np.lib.format.read_array(file, allow_pickle=False))


def _read_array_header(archive: zipfile.ZipFile, name: str) -> _ArrayHeader:
    with archive.open(name) as file:
        version = np.lib.format.read_magic(file)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read_header is None:  # the third version is the second in UTF-8, for names of fields
            return _ArrayHeader((), np.dtype(object))
        shape, _, dtype = read_header(file)
        return _ArrayHeader(shape, dtype)


def _read_mat(path: Path, options: ReadOptions) -> Loaded:
    from scipy.io import loadmat

    variables = loadmat(path, squeeze_me=True, struct_as_record=False)
    arrays = dict(_iterate_arrays(variables))
    name, data = _choose_array(path, arrays, options.key)
    return _attach_axes(np.asarray(data), name, arrays)


def _iterate_arrays(
    variables: Mapping[str, Any], prefix: str = "", depth: int = 0
) -> Iterable[tuple[str, Any]]:
    """Arrays with their names; of arrays in structs, `struct.field`."""
    for name, value in variables.items():
        if name.startswith("__"):
            continue
        if isinstance(value, np.ndarray):
            yield prefix + name, value
        elif hasattr(value, "_fieldnames") and depth < 8:
            fields = {field: getattr(value, field) for field in value._fieldnames}
            yield from _iterate_arrays(fields, f"{prefix}{name}.", depth + 1)


def _attach_axes(data: Any, name: str, arrays: Mapping[str, Any]) -> Loaded:
    """An array with labels from the vectors in the same struct or group."""
    group = name.rpartition(".")[0]
    vectors = {
        other: vector
        for other, array in arrays.items()
        if other != name
        and other.rpartition(".")[0] == group
        and (vector := as_vector(array)) is not None
    }
    modes, labels = axes_from_vectors(tuple(data.shape), vectors)
    return Loaded(data, modes, labels)


def _read_hdf5(path: Path, options: ReadOptions) -> Loaded:
    """An array. With the option `lazy` it is not read yet, and the file stays open."""
    h5py = import_optional("h5py", "reading it")
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
        name, dataset = _choose_array(path, arrays, options.key)
        is_matlab, group = "MATLAB_class" in dataset.attrs, name.rpartition(".")[0]
        vectors = {
            other: _read_vector(file, item, h5py)
            for other, item in arrays.items()
            if other.rpartition(".")[0] == group and item.size <= max(dataset.shape, default=0)
        }
        if options.lazy:
            return _attach_axes(reverse_modes(dataset) if is_matlab else dataset, name, vectors)
        data = np.asarray(dataset[()])
        return _attach_axes(data.T if is_matlab else data, name, vectors)
    finally:
        if not options.lazy:
            file.close()


def _read_vector(file: Any, item: Any, h5py: Any) -> Any:
    """A vector of a group; cells of text of MATLAB are followed."""
    if h5py.check_ref_dtype(item.dtype) is not None:
        cells = [file[cell] for cell in item[()].ravel() if cell]
        return np.array(["".join(map(chr, np.asarray(cell[()]).ravel())) for cell in cells])
    is_text = h5py.check_string_dtype(item.dtype) is not None
    return np.array(item.asstr()[()]) if is_text else item[()]


def _read_xarray(path: Path, options: ReadOptions) -> Loaded:
    """A variable with its coordinates.

    With the option `lazy` it is not read yet, and the file stays open.
    """
    dataset = import_optional("xarray", "reading it").open_dataset(path, cache=not options.lazy)
    if options.lazy:
        return _from_data_array(_choose_array(path, dict(dataset.data_vars), options.key)[1])
    with dataset:
        variable = _choose_array(path, dict(dataset.data_vars), options.key)[1].load()
        return replace(_from_data_array(variable), data=np.asarray(variable.values))


def _from_data_array(array: Any) -> Loaded:
    """A DataArray with its names and labels."""
    labelled_array = as_labelled(array)
    return Loaded(array, labelled_array.modes, labelled_array.labels, units=labelled_array.units)


def _read_zarr(path: Path, options: ReadOptions) -> Loaded:
    stored = _open_zarr(path, options.key)
    return stored if options.lazy else replace(stored, data=np.asarray(stored.data[...]))


def _open_zarr(path: Path, key: str | None) -> Loaded:
    """A Zarr array as stored, or xarray's decoded variable if the stored numbers are encoded
    (scale, offset, fill value)."""
    zarr = import_optional("zarr", "reading it")
    node = zarr.open(path, mode="r")
    if not isinstance(node, zarr.Group):
        names = getattr(node.metadata, "dimension_names", None) or (None,) * node.ndim
        unlabelled = Loaded.from_array(node)
        pairs = zip(names, unlabelled.modes, strict=True)
        return replace(unlabelled, modes=tuple(name or number for name, number in pairs))
    try:
        dataset = import_optional("xarray", "reading it").open_zarr(path, chunks=None)
    except (KeyError, ValueError):  # dimensions have no names
        members = dict(node.members(None))
        arrays = {
            n.replace("/", "."): a for n, a in members.items() if not isinstance(a, zarr.Group)
        }
        return Loaded.from_array(_choose_array(path, arrays, key)[1])
    name, variable = _choose_array(path, dict(dataset.data_vars), key)
    array, loaded = node[name], _from_data_array(variable)
    return (
        replace(loaded, data=array)
        if array.dtype == variable.dtype and _is_unencoded(variable)
        else loaded
    )


def _is_unencoded(variable: Any) -> bool:
    """Whether the stored numbers are the values: no scale, no offset, no fill value."""
    fill = variable.encoding.get("_FillValue")
    has_fill_value = fill is not None and not np.isnan(np.float64(fill))
    return not has_fill_value and not {"scale_factor", "add_offset"} & set(variable.encoding)


def _read_nifti(path: Path, options: ReadOptions) -> Loaded:
    nibabel = import_optional("nibabel", "reading it")
    image = nibabel.load(path)
    data = np.asanyarray(image.dataobj)
    names = ("x", "y", "z", "time", "mode 4", "mode 5", "mode 6")[: data.ndim]
    return Loaded(data, names, (None,) * data.ndim, affine=np.asarray(image.affine))


# Listed entries and tables


def _as_loaded(tensor: LabelledTensor) -> Loaded:
    return Loaded(tensor.data, tensor.modes, tensor.labels, tensor.notes)


def _read_text(path: Path, options: ReadOptions) -> Loaded:
    if options.stack:
        return _as_loaded(read_matrix(path))
    return _load_long_table(read_text_table(path, options.columns), options)


def _load_long_table(table: Table, options: ReadOptions) -> Loaded:
    return _as_loaded(tensor_from_long_table(table, options.columns, options.absent))


def _read_workbook(path: Path, options: ReadOptions) -> Loaded:
    sheet_content = read_workbook(path, options.key, options.stack)
    return (
        _load_long_table(sheet_content, options)
        if isinstance(sheet_content, Table)
        else _as_loaded(sheet_content)
    )


def _read_parquet(path: Path, options: ReadOptions) -> Loaded:
    if options.stack:
        raise FileError(path, "is for text files and workbooks", "stack")
    return _load_long_table(read_parquet(path), options)


def _read_parquet_folder(path: Path, options: ReadOptions) -> Loaded:
    """A table in a folder of files, which are read in every pass."""
    import_optional("pyarrow", "reading it")
    data = open_parquet(path, by_name=True)
    if options.absent != "missing" and data.count < math.prod(data.shape):
        raise FileError(
            path,
            f"must be 'missing': {math.prod(data.shape) - data.count} entries are not listed, and "
            "a table in parts cannot be filled up with zeros",
            "absent",
        )
    labels = tuple(None if names is None else list(names.tolist()) for names in data.labels)
    return Loaded(data, data.modes, labels)


def _read_r(path: Path, options: ReadOptions) -> Loaded:
    """An array, with its dimnames, or a data frame as a long table."""
    if options.stack:
        raise FileError(path, "is for text files and workbooks", "stack")
    objects, columns = read_r_objects(path), options.columns
    frames = {name: value for name, value in objects.items() if hasattr(value, "dtypes")}
    arrays = {name: value for name, value in objects.items() if name not in frames}
    if options.key in frames or (options.key is None and not arrays and len(frames) == 1):
        frame = frames[options.key or next(iter(frames))]
        return _load_long_table(table_of_frame(path, frame), options)
    array = _choose_array(path, arrays, options.key)[1]
    if columns.value is not None:
        raise FileError(path, "is for data frames, not for arrays", "value")
    loaded = _from_data_array(array) if hasattr(array, "dims") else Loaded.from_array(array)
    loaded = _check_tensor(path, replace(loaded, data=np.asarray(loaded.data)))
    return _rename_modes(path, loaded, columns.modes) if columns.modes else loaded


def _read_tns(path: Path, options: ReadOptions) -> Loaded:
    return _as_loaded(read_tns(path, options.absent))


def _read_folder(path: Path, options: ReadOptions) -> Loaded:
    return _as_loaded(read_folder(path))


@dataclass(frozen=True)
class _Format:
    """How a format is read, and which options of `read` it has.

    Attributes
    ----------
    read : function of a path and `ReadOptions`
    lists_entries : bool
        Whether a file may list only some entries. Its reader checks them; `_check_tensor` is for
        arrays.
    is_table : bool
        Whether a file may be one table: a long one or, with `stack`, a matrix.
    always_matrix : bool
        Whether tables are matrices also without `stack`.
    """

    read: Callable[[Path, ReadOptions], Loaded]
    lists_entries: bool = False
    is_table: bool = False
    always_matrix: bool = False


#: All formats, by the names that messages use.
_FORMATS = {
    "NumPy .npy": _Format(_read_npy),
    "NumPy .npz": _Format(_read_npz),
    "MATLAB .mat": _Format(_read_mat),
    "HDF5": _Format(_read_hdf5),
    "NetCDF": _Format(_read_xarray),
    "Zarr": _Format(_read_zarr),
    "NIfTI": _Format(_read_nifti),
    "R": _Format(_read_r, lists_entries=True, is_table=True),
    "FROSTT .tns": _Format(_read_tns, lists_entries=True),
    "CSV": _Format(_read_text, lists_entries=True, is_table=True),
    "Parquet": _Format(_read_parquet, lists_entries=True, is_table=True),
    "Parquet, in parts": _Format(_read_parquet_folder, lists_entries=True),
    "Excel .xlsx": _Format(_read_workbook, lists_entries=True, is_table=True),
    "a folder of tables": _Format(_read_folder, always_matrix=True),
}
