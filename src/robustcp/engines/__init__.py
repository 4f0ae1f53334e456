"""Engines: how data of one kind is passed over. Nothing outside this package looks at a type.

`as_engine` is the one front door; `Engine` says what the rest of the package may ask of data.
"""

from __future__ import annotations

from typing import Any

from robustcp._typing import Array
from robustcp.engines.arrays import (
    check_device,
    in_modes_of,
    is_labelled,
    names_and_labels,
    plain_array,
    to_host,
)
from robustcp.engines.base import Engine, Sample, Sweeping, View
from robustcp.engines.dense import DenseEngine
from robustcp.engines.fibres import Fibres, fibre_length, some_indices
from robustcp.engines.observed import Observed, ObservedEngine, at_entries_of
from robustcp.engines.parts import HostData, host_data, on_host
from robustcp.engines.scales import Scales, Signal
from robustcp.engines.streamed import StreamedEngine, engine_on
from robustcp.engines.threads import single_blas_thread
from robustcp.engines.tiles import Tiling, khatri_rao
from robustcp.engines.weights import Listed, Weights, as_weights

__all__ = [
    "DenseEngine",
    "Engine",
    "Fibres",
    "HostData",
    "Listed",
    "Observed",
    "ObservedEngine",
    "Sample",
    "Scales",
    "Signal",
    "Sweeping",
    "Tiling",
    "View",
    "Weights",
    "as_array",
    "as_engine",
    "as_weights",
    "at_entries_of",
    "check_device",
    "fibre_length",
    "host_data",
    "in_modes_of",
    "khatri_rao",
    "names_and_labels",
    "on_host",
    "single_blas_thread",
    "some_indices",
    "to_host",
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
    threads : int, optional
        For NumPy data: how many threads share the tiles of a pass. By default as many as the
        BLAS library may use here, so that OMP_NUM_THREADS, threadpoolctl and joblib are
        honoured. Results are the same bits for any number.
    compiled : bool
        Whether passes compiled by Numba or Triton are used, where those are installed.
    device : str or torch.device, optional
        For dense data: where passes are done, such as "cuda". By default where the data is.
    memory : int or str, optional
        How much of the device's memory may be used, such as "16GB"; by default most of what is
        free. Data that is larger stays on the host and is copied slab by slab in every pass.

    Examples
    --------
    >>> import numpy as np
    >>> as_engine(np.ones((3, 4, 5), dtype=np.uint8)).shape
    (3, 4, 5)
    """
    if isinstance(data, Engine):
        return data
    if is_labelled(data):
        data = data.data
    on_device = device is not None or memory is not None
    if isinstance(data, Observed):
        if on_device:
            raise TypeError("device: is for dense data; listed entries stay on the host")
        return ObservedEngine(data, threads=threads, compiled=compiled)
    if on_device:
        return engine_on(plain_array(data), device, memory, compiled=compiled)
    return DenseEngine(plain_array(data), threads=threads, compiled=compiled)


def as_array(data: Any) -> Array:
    """Data as an array of all its entries, of one of the array API libraries."""
    if is_labelled(data):
        data = data.data
    if isinstance(data, DenseEngine | StreamedEngine):
        return data.array
    if isinstance(data, Observed | ObservedEngine):
        raise TypeError("X: needs an array of all entries; put NaN where Observed has none")
    return plain_array(data)
