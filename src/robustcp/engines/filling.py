"""Data with missing entries as an array, and data of the same kind with other entries in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import array_api_compat
import numpy as np

from robustcp._util.typing import Array
from robustcp.engines.arrays import is_lazy, plain_array, to_host
from robustcp.engines.base import Engine
from robustcp.engines.blocks.chunked import ChunkedEngine
from robustcp.engines.blocks.chunks import chunked_source
from robustcp.engines.blocks.partitioned import PartitionedEngine
from robustcp.engines.blocks.streamed import StreamedEngine
from robustcp.engines.blocks.tables import PartitionedTable
from robustcp.engines.dense import DenseEngine
from robustcp.engines.labelled import (
    LabelledTensor,
    long_series,
    table_positions,
    without_labels,
)
from robustcp.engines.memory import fits_in_memory
from robustcp.engines.observed import Observed, ObservedEngine

#: The indices of some entries: an array for each mode.
Indices = Sequence[np.ndarray]
#: A function of the indices of some entries, with a number for each of them.
IndexFunction = Callable[[Indices], np.ndarray]


def all_entries(data: Any) -> Array:
    """All entries of some data as an array of its library, NaN where one is missing.

    Data in chunks becomes an array of Dask, which is computed when it is asked for; without Dask
    it is read. Entries of weight 0 are missing.

    Examples
    --------
    >>> all_entries(Observed([[0, 1], [1, 0]], [2.0, 3.0], (2, 2)))
    array([[nan,  2.],
           [ 3., nan]])
    """
    data = without_labels(data)
    if isinstance(data, PartitionedTable | PartitionedEngine):
        raise TypeError(
            "X: is a table in parts, which cannot be filled; fit.at(indices) has the model there"
        )
    if isinstance(data, Engine):
        return _drop_weightless(data, all_entries(_data_of(data)))
    if isinstance(data, Observed):
        if not fits_in_memory(math.prod(map(float, data.shape)), len(data.shape), None):
            raise ValueError(
                f"X: has {math.prod(data.shape):.3g} entries, too many to list; fit.at(indices) "
                "has the model's entries that are needed"
            )
        return spread_over(data, data.values, math.nan)
    source = chunked_source(data)
    if source is None:
        return plain_array(data)
    lazy = source.as_dask()
    return np.asarray(data[...]) if lazy is None else lazy


def _data_of(engine: Engine) -> Any:
    """The data that an engine was made of."""
    if isinstance(engine, ObservedEngine):
        return engine.data
    assert isinstance(engine, DenseEngine | StreamedEngine | ChunkedEngine)
    return engine.array


def _drop_weightless(engine: Engine, entries: Array) -> Array:
    """Entries with NaN in place of those of weight 0."""
    weights = engine.view.weights
    if weights is None or not weights.has_zeros:
        return entries
    if is_lazy(entries):
        raise TypeError("X: has entry weights; fill data in chunks without them")
    if isinstance(engine, ObservedEngine):
        own = weights.listed_values(engine.data.indices.T, np.arange(len(engine.data.values)))
        used = spread_over(engine.data, own, 1.0) > 0
    else:
        indices = np.indices(entries.shape).reshape(entries.ndim, -1)
        used = (weights.values_at(indices) > 0).reshape(entries.shape)
    xp, device = array_api_compat.array_namespace(entries), array_api_compat.device(entries)
    if not xp.isdtype(entries.dtype, "real floating"):
        entries = xp.astype(entries, xp.float64)
    return xp.where(xp.asarray(used, device=device), entries, xp.full_like(entries, math.nan))


def spread_over(data: Any, values: Any, elsewhere: Any) -> Array:
    """Numbers of entries as an array of all: they are one for each listed entry, or all already."""
    data = without_labels(data)
    data = data.data if isinstance(data, ObservedEngine) else data
    if not isinstance(data, Observed):
        return values
    values = np.asarray(values)
    entries = np.full(data.shape, elsewhere, dtype=values.dtype)
    entries[tuple(data.indices.T)] = values
    return entries


def values_where(mask: Array, function: IndexFunction) -> Array:
    """Numbers for the entries of a mask, and NaN for all others: an array of the mask's library."""
    if is_lazy(mask):
        return mask.map_blocks(
            _block_values, function, dtype=np.float64, meta=np.empty((0,) * mask.ndim)
        )
    xp, device = array_api_compat.array_namespace(mask), array_api_compat.device(mask)
    return xp.asarray(_values_at(to_host(mask), function, (0,) * mask.ndim), device=device)


def _block_values(block: np.ndarray, function: IndexFunction, block_info: Any = None) -> np.ndarray:
    return _values_at(block, function, [first for first, _ in block_info[0]["array-location"]])


def _values_at(mask: np.ndarray, function: IndexFunction, first: Any) -> np.ndarray:
    values = np.full(mask.shape, np.nan)
    indices = np.nonzero(mask)
    if indices[0].size:
        values[indices] = function(tuple(k + n for k, n in zip(indices, first, strict=True)))
    return values


# Data of the same kind


def same_kind(data: Any, entries: Array, *others: Array) -> list[Any]:
    """Arrays of all entries as data of the kind of some data, with its names and labels.

    Lists and tables keep their rows; what they do not list and `entries` has is appended. Lists
    leave out what is not finite.

    Examples
    --------
    >>> masked = np.ma.masked_equal([[1.0, 0.0], [0.0, 4.0]], 0)
    >>> same_kind(masked, np.array([[1.0, 2.0], [np.nan, 4.0]]))[0]
    masked_array(
      data=[[1.0, 2.0],
            [--, 4.0]],
      mask=[[False, False],
            [ True, False]],
      fill_value=0.0)
    """
    arrays = (entries, *others)
    library, kind = type(data).__module__.split(".")[0], type(data).__name__
    if library == "xarray":
        if kind != "Dataset":
            return [data.copy(data=array) for array in arrays]
        (name,) = data.data_vars
        return [data.assign({name: data[name].copy(data=array)}) for array in arrays]
    if library == "pandas":
        return _tables(data, arrays)
    if isinstance(data, LabelledTensor):
        pieces = same_kind(data.data, *arrays)
        return [replace(data, data=piece) for piece in pieces]
    if isinstance(data, Observed):
        return [_list_entries(data, np.asarray(array)) for array in arrays]
    if isinstance(data, np.ma.MaskedArray):
        fill = data.fill_value
        return [
            np.ma.MaskedArray(array, np.isnan(np.asarray(array)), fill_value=fill)
            for array in arrays
        ]
    return list(arrays)


def _list_entries(data: Observed, array: np.ndarray) -> Observed:
    """Finite entries as a list: those that some data lists in its order, then the others."""
    listed = tuple(data.indices.T)
    finite = np.isfinite(array)
    own = data.indices[finite[listed]]
    finite[listed] = False
    indices = np.concatenate([own, np.argwhere(finite)])
    return Observed(indices, array[tuple(indices.T)], data.shape)


def _tables(table: Any, arrays: tuple[Array, ...]) -> list[Any]:
    """Tables of pandas with the rows of some table, and those that the first array has beside."""
    import pandas

    series = long_series(table)
    if series is None:
        return [
            pandas.DataFrame(np.asarray(array), index=table.index, columns=table.columns)
            for array in arrays
        ]
    codes, _ = table_positions(series, list(map(str, series.index.names)))
    unlisted = ~np.isnan(np.asarray(arrays[0]))
    unlisted[codes] = False
    other = np.nonzero(unlisted)
    levels = []
    for n, (code, index) in enumerate(zip(codes, other, strict=True)):
        level, first_row = series.index.get_level_values(n), np.zeros(unlisted.shape[n], np.intp)
        first_row[code[::-1]] = np.arange(len(series))[::-1]
        levels.append(level.append(level[first_row[index]]))
    columns = [
        _as_column(np.concatenate([array[codes], array[other]]), series.dtype)
        for array in map(np.asarray, arrays)
    ]
    return [_long_table(table, levels, column) for column in columns]


def _as_column(values: np.ndarray, dtype: Any) -> np.ndarray:
    """Values with the type of a column, if that can hold them."""
    whole = getattr(dtype, "kind", "O") in "iu" and bool(np.all(np.mod(values, 1) == 0))
    return values.astype(dtype) if whole or dtype.kind == "f" else values


def _long_table(table: Any, levels: list[Any], values: np.ndarray) -> Any:
    """A table like another, with other levels and values."""
    import pandas

    if isinstance(table.index, pandas.MultiIndex):
        index = pandas.MultiIndex.from_arrays(levels, names=table.index.names)
        if table.ndim == 1:
            return pandas.Series(values, index=index, name=table.name)
        return pandas.DataFrame({table.columns[0]: values}, index=index)
    frame = pandas.DataFrame(dict(zip(table.columns, [*levels, values], strict=True)))
    return frame.set_axis(table.index) if len(frame) == len(table) else frame
