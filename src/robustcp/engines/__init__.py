"""Engines: how data of one kind is passed over. Nothing outside this package looks at a type.

`as_engine` is the one front door; `Engine` says what the rest of the package may ask of data.
"""

from __future__ import annotations

from typing import Any

from robustcp._typing import Array
from robustcp.engines.arrays import (
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


def as_engine(data: Any, *, threads: int | None = None, compiled: bool = True) -> Engine:
    """The engine for some data: the only place where the type of data is looked at.

    Parameters
    ----------
    data : array of any array API library, array-like, Observed, what `read` returns, or an Engine
    threads : int, optional
        For NumPy data: how many threads share the tiles of a pass. By default as many as the
        BLAS library may use here, so that OMP_NUM_THREADS, threadpoolctl and joblib are
        honoured. Results are the same bits for any number.
    compiled : bool
        Whether passes compiled by Numba are used, where it is installed.

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
    if isinstance(data, Observed):
        return ObservedEngine(data, threads=threads, compiled=compiled)
    return DenseEngine(plain_array(data), threads=threads, compiled=compiled)


def as_array(data: Any) -> Array:
    """Data as an array of all its entries, of one of the array API libraries."""
    if is_labelled(data):
        data = data.data
    if isinstance(data, DenseEngine):
        return data.array
    if isinstance(data, Observed | ObservedEngine):
        raise TypeError("X: needs an array of all entries; put NaN where Observed has none")
    return plain_array(data)
