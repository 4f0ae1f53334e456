"""Engines: how data of one kind is passed over. Nothing outside this package looks at a type.

`as_engine` is the one front door; `Engine` says what the rest of the package may ask of data.
"""

from __future__ import annotations

from typing import Any

from robustcp._util.checks import ArgumentError
from robustcp._util.typing import Array
from robustcp.engines.arrays import (
    check_device,
    plain_array,
    to_host,
)
from robustcp.engines.axes import Arrangement, Axes
from robustcp.engines.base import Engine, SweepRule, SweepState, View, WholeSweep
from robustcp.engines.blocks.chunked import ChunkedEngine
from robustcp.engines.blocks.chunks import ChunkError, ReversedModesArray, chunked_source
from robustcp.engines.blocks.partitioned import PartitionedEngine
from robustcp.engines.blocks.schedulers import SchedulerError, connect
from robustcp.engines.blocks.streamed import StreamedEngine, engine_on_device
from robustcp.engines.blocks.tables import PartitionedTable, open_parquet
from robustcp.engines.dense import DenseEngine
from robustcp.engines.entries import (
    SAMPLE_ENTRIES,
    Entries,
    model_at,
    row_products,
    sample_size,
    select_by_index,
)
from robustcp.engines.entry_field import EntryField, ListedField, as_weights
from robustcp.engines.fibres import FIBRES_NOT_EXCLUDED, Fibres, fibre_length, sample_indices
from robustcp.engines.filling import (
    IndexFunction,
    Indices,
    all_entries,
    same_kind,
    spread_over,
    values_where,
)
from robustcp.engines.labelled import (
    LabelledTensor,
    align_to_axes,
    as_labelled,
    axes_of,
    without_labels,
)
from robustcp.engines.limits import Limits
from robustcp.engines.observed import Observed, ObservedEngine, values_at_entries
from robustcp.engines.preprocessing import (
    Anscombe,
    Center,
    Log,
    Preprocessing,
    PreprocessingStep,
    Scale,
    Sqrt,
    Transformation,
    locate_entries,
)
from robustcp.engines.scales import Scales, VarianceFunction
from robustcp.engines.selection import drop_values, select_indices
from robustcp.engines.subsets import HostData, host_data, is_on_host
from robustcp.engines.threads import single_blas_thread
from robustcp.engines.tiles import Tiling, khatri_rao

__all__ = [
    "FIBRES_NOT_EXCLUDED",
    "SAMPLE_ENTRIES",
    "Anscombe",
    "Arrangement",
    "Axes",
    "Center",
    "ChunkError",
    "ChunkedEngine",
    "DenseEngine",
    "Engine",
    "Entries",
    "EntryField",
    "Fibres",
    "HostData",
    "IndexFunction",
    "Indices",
    "LabelledTensor",
    "Limits",
    "ListedField",
    "Log",
    "Observed",
    "ObservedEngine",
    "PartitionedEngine",
    "PartitionedTable",
    "Preprocessing",
    "PreprocessingStep",
    "Scale",
    "Scales",
    "SchedulerError",
    "Sqrt",
    "SweepRule",
    "SweepState",
    "Tiling",
    "Transformation",
    "VarianceFunction",
    "View",
    "WholeSweep",
    "align_to_axes",
    "all_entries",
    "as_array",
    "as_engine",
    "as_labelled",
    "as_weights",
    "axes_of",
    "check_device",
    "connect",
    "drop_values",
    "fibre_length",
    "host_data",
    "is_chunked",
    "is_on_host",
    "khatri_rao",
    "locate_entries",
    "model_at",
    "open_parquet",
    "reverse_modes",
    "row_products",
    "same_kind",
    "sample_indices",
    "sample_size",
    "select_by_index",
    "select_indices",
    "single_blas_thread",
    "spread_over",
    "to_host",
    "values_at_entries",
    "values_where",
    "without_labels",
]


def as_engine(
    data: Any,
    *,
    threads: int | None = None,
    compiled: bool = True,
    device: Any = None,
    memory: int | str | None = None,
) -> Engine:
    """The engine for some data: the only place where the type of data is looked at.

    Parameters
    ----------
    data : array of any array API library, array-like, Observed, what `read` returns, or an Engine
        Also from xarray (a DataArray) and pandas: a Series with a level of its index for each
        mode, or a long DataFrame with the values in its last column.
        Also data in chunks: an array of Dask or Zarr, a data set of h5py, an xarray.DataArray of
        any of these. Its passes are tasks of the scheduler of Dask that is active.
    threads : int, optional
        For data on the host: how many threads share the tiles of a pass. By default as many as the
        BLAS library may use here, so that OMP_NUM_THREADS, threadpoolctl and joblib are
        honoured. Results are the same bits for any number.
    compiled : bool
        Whether passes compiled by Numba or Triton are used, where those are installed.
    device : str or torch.device, optional
        For dense data: where passes are done, such as "cuda". By default where the data is.
    memory : int or str, optional
        How much of the device's memory may be used, such as "16GB"; by default most of what is
        free. Data that is larger stays on the host and is copied slab by slab in every pass.
        Without a device, for data in chunks, how much memory this process may use.

    Examples
    --------
    >>> import numpy as np
    >>> from robustcp import as_engine
    >>> as_engine(np.ones((3, 4, 5), dtype=np.uint8)).shape
    (3, 4, 5)
    """
    if isinstance(data, Engine):
        return data
    tensor = as_labelled(data)
    has_axes = isinstance(tensor, LabelledTensor)
    engine = _engine_for(tensor.data if has_axes else tensor, threads, compiled, device, memory)
    return engine.with_axes(tensor.axes) if has_axes else engine


def _engine_for(
    data: Any, threads: int | None, compiled: bool, device: Any, memory: int | str | None
) -> Engine:
    """The engine for data without names."""
    if isinstance(data, Engine):
        return data
    if isinstance(data, PartitionedTable):
        if device is not None:
            raise ArgumentError("device", "is for dense data; listed entries stay on the host")
        return PartitionedEngine(data, threads=threads, compiled=compiled, memory=memory)
    source = chunked_source(data)
    if source is not None:
        if device is not None:
            raise ArgumentError("device", "chunked data is passed over on the host")
        return ChunkedEngine(source, threads=threads, compiled=compiled, memory=memory)
    on_device = device is not None or memory is not None
    if isinstance(data, Observed):
        if on_device:
            raise TypeError("device: is for dense data; listed entries stay on the host")
        return ObservedEngine(data, threads=threads, compiled=compiled)
    if on_device:
        return engine_on_device(plain_array(data), device, memory, compiled=compiled)
    return DenseEngine(plain_array(data), threads=threads, compiled=compiled)


def is_chunked(data: Any) -> bool:
    """Whether passes read data by chunks, or parts, from where it is."""
    return isinstance(data, PartitionedTable) or chunked_source(data) is not None


def reverse_modes(array: Any) -> Any:
    """A data set of h5py with its modes in reverse, read when it is asked for."""
    return ReversedModesArray(array)


def as_array(data: Any) -> Array:
    """Data as an array of all its entries, of one of the array API libraries."""
    data = without_labels(data)
    if isinstance(data, DenseEngine | StreamedEngine):
        return data.array
    if isinstance(data, Observed | ObservedEngine):
        raise TypeError("X: needs an array of all entries; put NaN where Observed has none")
    return plain_array(data)
