"""Tensors with names and labels: from files, from xarray, from pandas."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from robustcp._util.checks import ArgumentError
from robustcp.engines.axes import Axes, Labels, format_labels
from robustcp.engines.base import Engine
from robustcp.engines.observed import Observed

#: Listed entries are kept as such where they are fewer than this share of all.
MAX_SPARSE_DENSITY = 0.5


@dataclass(frozen=True, eq=False)
class LabelledTensor:
    """A tensor with names of its modes and labels of their indices.

    Attributes
    ----------
    data : array or Observed
    modes : tuple of str
        Names of the modes.
    labels : tuple of (list or None)
        Labels of the indices of each mode.
    notes : tuple of str
        What should be known about the data; fits of it have them among their notes.
    units : tuple of str
        What the labels of each mode are measured in, "" if that is not known; or empty.
    """

    data: Any
    modes: tuple[str, ...]
    labels: tuple[Labels, ...]
    notes: tuple[str, ...] = ()
    units: tuple[str, ...] = ()

    @property
    def axes(self) -> Axes:
        return Axes(tuple(self.modes), tuple(self.labels), tuple(self.notes), tuple(self.units))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    def __repr__(self) -> str:
        sizes = zip(self.modes, self.shape, strict=True)
        parts = [" x ".join(f"{name} ({size})" for name, size in sizes)]
        if isinstance(self.data, Observed):
            parts.append(f"{self.data.values.size} entries listed")
        elif hasattr(self.data, "dtype"):
            parts.append(str(self.data.dtype))
        labelled_modes = [
            name for name, mode_labels in zip(self.modes, self.labels, strict=True) if mode_labels
        ]
        if labelled_modes:
            parts.append(f"labels of {', '.join(labelled_modes)}")
        return f"{type(self).__name__}({'; '.join((*parts, *self.notes))})"


def as_labelled(data: Any) -> Any:
    """Data as it is, or as a `LabelledTensor` if it comes from pandas or xarray."""
    if isinstance(data, LabelledTensor):
        return data
    library = type(data).__module__.split(".")[0]
    if library == "xarray":
        return _from_xarray(data)
    if library == "pandas" and type(data).__name__ in ("Series", "DataFrame"):
        return _from_pandas(data)
    return data


def without_labels(data: Any) -> Any:
    """The data alone."""
    data = as_labelled(data)
    return data.data if isinstance(data, LabelledTensor) else data


def axes_of(data: Any) -> Axes:
    """What the modes and indices of some data are called."""
    data = as_labelled(data)
    if isinstance(data, Engine):
        return data.view.axes
    return data.axes if isinstance(data, LabelledTensor) else Axes()


def align_to_axes(axes: Axes, other: Any) -> Any:
    """Weights or standard deviations for data with some names, in the order of its modes.

    Dimensions that they do not have get size 1. Their labels must be the data's, in any order.
    What has no names stays as it is.
    """
    other = as_labelled(other)
    if not isinstance(other, LabelledTensor):
        return other
    if not axes.has_names or not other.axes.has_names:
        return other.data
    unknown = [name for name in other.modes if name not in axes.modes]
    if unknown:
        raise ValueError(f"entry_weights: X has no dimension {unknown[0]!r}, only {axes.modes}")
    values = np.asarray(other.data)
    for k, name in enumerate(other.modes):
        n = axes.modes.index(name)
        own_axes = Axes((name,), (other.labels[k],))
        try:
            arrangement = own_axes.arrangement_for(Axes((name,), (axes.labels[n],)))
        except ArgumentError:
            raise ValueError(f"entry_weights: other labels than X in dimension {name!r}") from None
        if arrangement is not None and arrangement.rows[0] is not None:
            values = np.take(values, arrangement.rows[0], axis=k)
    shared = [name for name in axes.modes if name in other.modes]
    values = np.transpose(values, [other.modes.index(name) for name in shared])
    sizes = iter(values.shape)
    return values.reshape([next(sizes) if name in shared else 1 for name in axes.modes])


# xarray and pandas


def _from_xarray(array: Any) -> Any:
    """A DataArray, or the only variable of a Dataset."""
    if type(array).__name__ == "Dataset":
        names = list(array.data_vars)
        if len(names) != 1:
            raise TypeError(
                f"X: give one variable of the Dataset; there are {format_labels(names)}"
            )
        array = array[names[0]]
    if type(array).__name__ != "DataArray":
        return array
    labels = tuple(
        label_list(array.indexes[dim]) if dim in array.indexes else None for dim in array.dims
    )
    units = tuple(
        str(array.coords[dim].attrs.get("units", "")) if dim in array.coords else ""
        for dim in array.dims
    )
    has_array = array.chunks is not None or array.variable._in_memory
    modes = tuple(map(str, array.dims))
    return LabelledTensor(array.data if has_array else array, modes, labels, units=units)


def label_list(index: Any) -> list[Any]:
    """Labels as a list; dates and durations as such, and NumPy's where Python's are too coarse."""
    values = np.asarray(getattr(index, "values", index))
    kind = values.dtype.kind
    if kind not in "mM":
        return list(index.tolist())
    if getattr(getattr(index, "dtype", None), "tz", None) is not None:
        return list(index.tolist())
    coarse = values.astype(f"{kind}8[us]")
    exact = bool(np.all((coarse == values) | np.isnat(values)))
    return list(coarse.tolist() if exact else values)


def _from_pandas(table: Any) -> LabelledTensor:
    """A Series with an index of several levels, a long table, or a matrix.

    What a table does not list is missing, as it is to pandas.
    """
    series = long_series(table)
    if series is not None:
        return from_series(series)
    names = tuple(
        str(axis.name) if axis.name is not None else f"mode {n}"
        for n, axis in enumerate(table.axes)
    )
    return LabelledTensor(table.to_numpy(), names, tuple(label_list(axis) for axis in table.axes))


def long_series(table: Any) -> Any:
    """A table of pandas as a Series with a level of its index for each mode; None for a matrix."""
    import pandas

    multi_indexed = isinstance(table.index, pandas.MultiIndex)
    if table.ndim == 1:
        if not multi_indexed:
            raise TypeError(
                "X: a Series needs an index with a level for each mode, "
                "such as table.set_index(['sensor', 'day'])['value']"
            )
        return table
    if multi_indexed:
        if table.shape[1] != 1:
            raise TypeError(f"X: give one column of the DataFrame, such as X[{table.columns[0]!r}]")
        return table.iloc[:, 0]
    kinds = {getattr(kind, "kind", "O") for kind in table.dtypes}
    has_row_labels = table.index.name is not None or table.index.dtype.kind not in "iu"
    if kinds <= set("f") or (has_row_labels and kinds <= set("fiub")):
        return None
    if kinds <= set("iub"):
        raise TypeError(
            "X: is the DataFrame a matrix or a long table? Give X.to_numpy(), or "
            "X.set_index([...]) with the columns of the modes"
        )
    if table.shape[1] < 3:
        raise TypeError("X: a long table has a column for each of at least 2 modes, and values")
    return table.set_index(list(table.columns[:-1])).iloc[:, 0]


def from_series(series: Any) -> LabelledTensor:
    """The tensor of a Series with a level of its index for each mode; the rest is missing.

    Examples
    --------
    >>> import pandas
    >>> at = pandas.MultiIndex.from_product([["a", "b"], [0, 1]], names=["sensor", "hour"])
    >>> from_series(pandas.Series([1.0, 2.0, 3.0, 4.0], index=at))
    LabelledTensor(sensor (2) x hour (2); float64; labels of sensor, hour)
    """
    modes = tuple(
        f"mode {n}" if name is None else str(name) for n, name in enumerate(series.index.names)
    )
    values = numeric_values(series, "the values")
    codes, labels = table_positions(series, modes)
    observed = ~np.isnan(values)
    indices = np.stack(codes, axis=1)[observed]
    return from_entries(indices, values[observed], modes, labels)


def table_positions(
    series: Any, modes: Sequence[str]
) -> tuple[tuple[np.ndarray, ...], tuple[Labels, ...]]:
    """For each level of the index of a Series, the position of each row's label, and the labels."""
    levels = map(series.index.get_level_values, range(len(modes)))
    pairs = [
        factorize_column(level, f"the level {name!r}")
        for level, name in zip(levels, modes, strict=True)
    ]
    codes, labels = zip(*pairs, strict=True)
    return codes, labels


def numeric_values(column: Any, description: str) -> np.ndarray:
    """A column of values as float64, NaN for gaps; text, dates and durations are refused."""
    import pandas

    if column.dtype.kind in "mM" or isinstance(column.dtype, pandas.DatetimeTZDtype):
        raise ValueError(
            f"X: {description} are {'durations' if column.dtype.kind == 'm' else 'dates'}"
        )
    values = pandas.to_numeric(column, errors="coerce")
    bad = np.asarray(values.isna() & column.notna())
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ValueError(f"X: {description} have {column.iloc[row]!r} in row {row}")
    return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))


def factorize_column(column: Any, description: str) -> tuple[np.ndarray, list[Any]]:
    """The number of each entry's label, and the labels, in order where they have one."""
    import pandas

    if (gaps := np.asarray(column.isna())).any():
        raise ValueError(f"X: {description} has a gap in row {int(np.flatnonzero(gaps)[0])}")
    try:
        code, labels = pandas.factorize(column, sort=True)
    except TypeError:  # text among numbers, say
        code, labels = pandas.factorize(column)
    return np.asarray(code, dtype=np.int64), label_list(labels)


def from_entries(
    indices: np.ndarray, values: np.ndarray, modes: tuple[str, ...], labels: tuple[Labels, ...]
) -> LabelledTensor:
    """Listed entries: an array with NaN for the others, or `Observed` where those are most."""
    shape = tuple(len(mode_labels or ()) for mode_labels in labels)
    duplicate = first_duplicate(indices, shape)
    if duplicate is not None:
        raise ValueError(f"X: given more than once: {describe_entry(duplicate, modes, labels)}")
    notes = note_constant_slabs(indices, values, modes, labels)
    if len(values) < MAX_SPARSE_DENSITY * math.prod(map(float, shape)):
        return LabelledTensor(Observed(indices, values, shape), modes, labels, notes)
    data = np.full(shape, np.nan)
    data[tuple(indices.T)] = values
    return LabelledTensor(data, modes, labels, notes)


def first_duplicate(indices: np.ndarray, shape: Sequence[int]) -> np.ndarray | None:
    """The first entry, in the order of indices, that is given twice."""
    order = np.lexsort(indices.T[::-1])
    repeats = np.flatnonzero((indices[order[1:]] == indices[order[:-1]]).all(axis=1))
    return indices[order[repeats[0]]] if repeats.size else None


def describe_entry(index: Iterable[int], modes: Sequence[str], labels: Sequence[Labels]) -> str:
    """Where an entry is, in words."""
    return ", ".join(
        f"{name} {k if mode_labels is None else mode_labels[k]}"
        for name, mode_labels, k in zip(modes, labels, index, strict=True)
    )


#: Slabs with fewer entries may hold one value by chance.
MIN_SLAB_ENTRIES = 6


def note_constant_slabs(
    indices: np.ndarray, values: np.ndarray, modes: Sequence[str], labels: Sequence[Labels]
) -> tuple[str, ...]:
    """What to say of slabs that hold one value throughout, such as a dead sensor."""
    notes = []
    for n, (name, mode_labels) in enumerate(zip(modes, labels, strict=True)):
        size = len(mode_labels or ())
        low, high = np.full(size, np.inf), np.full(size, -np.inf)
        np.minimum.at(low, indices[:, n], values)
        np.maximum.at(high, indices[:, n], values)
        count = np.bincount(indices[:, n], minlength=size)
        constant = np.flatnonzero((low == high) & (count >= MIN_SLAB_ENTRIES))
        if 0 < constant.size < size:
            names, first = format_labels([(mode_labels or [])[k] for k in constant]), constant[0]
            verb = "vary"
            if constant.size == 1:
                verb = f"varies ({low[first]:g} in all {count[first]} entries)"
            notes.append(f"{name} {names} never {verb}")
    return tuple(notes)
