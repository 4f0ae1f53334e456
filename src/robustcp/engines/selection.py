"""Data at some indices of its modes, and with some values taken for missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from robustcp._util.checks import ArgumentError
from robustcp.engines.arrays import is_lazy, take_indices
from robustcp.engines.blocks.chunks import chunked_source
from robustcp.engines.blocks.tables import PartitionedTable
from robustcp.engines.observed import Observed


def select_indices(data: Any, indices: Sequence[np.ndarray | None]) -> Any:
    """Data at some indices of each mode; None takes a mode whole. Chunks become those of Dask."""
    data = _sliceable(data, "select")
    if isinstance(data, Observed):
        kept, columns = np.ones(len(data.values), dtype=bool), data.indices.copy()
        shape = list(data.shape)
        for mode, index in enumerate(indices):
            if index is not None:
                position = np.full(shape[mode], -1)
                position[index], shape[mode] = np.arange(len(index)), len(index)
                columns[:, mode] = position[columns[:, mode]]
                kept &= columns[:, mode] >= 0
        if not kept.any():
            raise ArgumentError("select", "leaves no entry")
        return Observed(columns[kept], data.values[kept], shape)
    for mode, index in enumerate(indices):
        data = data if index is None else take_indices(data, index, mode)
    return data


def drop_values(data: Any, values: Sequence[float]) -> Any:
    """Data with entries of some values missing; integers become floats where there are any."""
    data = _sliceable(data, "missing")
    if isinstance(data, Observed):
        kept = ~_equals_any(data.values, values)
        if not kept.any():
            raise ArgumentError("missing", "leaves no entry")
        return Observed(data.indices[kept], data.values[kept], data.shape)
    if is_lazy(data):
        dtype = data.dtype if data.dtype.kind == "f" else np.dtype(np.float64)
        return data.map_blocks(_drop_from_array, values, dtype, dtype=dtype)
    dtype = data.dtype if data.dtype.kind == "f" else np.dtype(np.float64)
    return _drop_from_array(data, values, dtype) if _equals_any(data, values).any() else data


def _drop_from_array(array: np.ndarray, values: Sequence[float], dtype: Any) -> np.ndarray:
    return np.where(_equals_any(array, values), np.array(np.nan, dtype), array.astype(dtype))


def _equals_any(array: np.ndarray, values: Sequence[float]) -> np.ndarray:
    """Which numbers are one of some values, in the precision of the numbers."""
    if array.dtype.kind == "f":
        return np.isin(array, np.asarray(values, dtype=array.dtype))
    return np.isin(array, values)


def _sliceable(data: Any, argument: str) -> Any:
    """Data that can be indexed: a list of entries, or an array of Dask or, without it, NumPy."""
    if isinstance(data, PartitionedTable):
        raise ArgumentError(argument, "is not for tables in parts")
    source = chunked_source(data)
    if source is None:
        return data
    lazy = source.as_dask()
    return np.asarray(data[...]) if lazy is None else lazy
