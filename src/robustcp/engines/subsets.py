"""Data on the host, of which slabs or entries can be left out."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from robustcp.engines.arrays import plain_array, to_host, working_dtype
from robustcp.engines.base import Engine
from robustcp.engines.blocks.chunked import ChunkedEngine
from robustcp.engines.blocks.chunks import chunked_source
from robustcp.engines.blocks.partitioned import PartitionedEngine
from robustcp.engines.blocks.tables import PartitionedTable
from robustcp.engines.dense import DenseEngine
from robustcp.engines.entries import Entries, subset_shape, subtensor_indices
from robustcp.engines.labelled import without_labels
from robustcp.engines.limits import Limits
from robustcp.engines.observed import Observed, ObservedEngine

#: Data in chunks is read into memory if it has no more entries.
MAX_LOADED_ENTRIES = 1 << 24


@dataclass(frozen=True, eq=False)
class HostData:
    """Data that can be cut, sent to other processes, and identified by its content.

    Attributes
    ----------
    data : NumPy array (NaN where an entry is missing), Observed or ChunkedEngine
        What estimators take. An engine is for data in chunks that does not fit into memory: only
        its subtensors can be used.
    limits : Limits, optional
        The limits beyond which entries are censored.
    """

    data: Any
    limits: Limits | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    @property
    def count(self) -> int:
        """The number of observed entries."""
        if isinstance(self.data, ChunkedEngine):
            return int(self.data.count)
        return int(self.entries.values.size)

    @cached_property
    def entries(self) -> Entries:
        """The observed entries."""
        if isinstance(self.data, Observed):
            given, entries = self.data.values, self.data.entries
        else:
            (array,) = self._arrays()
            indices = np.nonzero(~np.isnan(array))
            given = array[indices]
            entries = Entries(self.shape, np.asarray(given, dtype=np.float64), indices)
        if self.limits is None:
            return entries
        return replace(entries, sides=self.limits.sides_at(given, entries.indices))

    def take(self, mode: int, rows: np.ndarray) -> HostData:
        """The part at some indices of a mode."""
        subset = [rows if n == mode else None for n in range(len(self.shape))]
        limits = None if self.limits is None else self.limits.subset(subset)
        if isinstance(self.data, ChunkedEngine):
            return replace(_from_engine(self.data.subtensor(subset)), limits=limits)
        if not isinstance(self.data, Observed):
            return HostData(np.take(self.data, rows, axis=mode), limits)
        inside, indices = subtensor_indices(self.data.indices.T, self.shape, subset)
        shape, values = subset_shape(self.shape, subset), self.data.values[inside]
        return HostData(Observed(np.stack(indices, axis=1), values, shape), limits)

    def without_entries(self, mask: np.ndarray) -> HostData:
        """The same data with some of the observed entries missing."""
        if isinstance(self.data, Observed):
            indices, values = self.data.indices[~mask], self.data.values[~mask]
            return HostData(Observed(indices, values, self.shape), self.limits)
        (remaining,) = (array.copy() for array in self._arrays())
        remaining[self.entries.select(mask).indices] = np.nan
        return HostData(remaining, self.limits)

    @property
    def nbytes(self) -> int:
        """The size in memory."""
        return sum(int(array.nbytes) for array in self._arrays())

    @cached_property
    def digest(self) -> str:
        """A hash of the content."""
        key = hashlib.sha256(repr(self.shape).encode())
        for array in self._arrays():
            key.update(str(array.dtype).encode())
            key.update(np.ascontiguousarray(array).data)
        for limit in () if self.limits is None else self.limits.arrays:
            key.update(repr(None if limit is None else limit.tolist()).encode())
        return key.hexdigest()

    def _arrays(self) -> tuple[np.ndarray, ...]:
        if isinstance(self.data, Observed):
            return self.data.indices, self.data.values
        if isinstance(self.data, ChunkedEngine):
            size = "x".join(map(str, self.shape))
            raise ValueError(f"X: {size} is too large for this; pass a part that fits into memory")
        return (self.data,)


def _from_engine(engine: Engine) -> HostData:
    if isinstance(engine, PartitionedEngine):
        return HostData(engine.sample_data)
    if isinstance(engine, ChunkedEngine):
        if math.prod(engine.shape) > MAX_LOADED_ENTRIES:
            return HostData(engine)
        engine = engine.subtensor([None] * engine.order)
    assert isinstance(engine, DenseEngine)
    array = np.asarray(engine.array)
    return HostData(array.astype(working_dtype(array), copy=False))


def host_data(X: Any) -> HostData:
    """What `as_engine` takes on the host; names and labels are left behind.

    Of an engine it is the data without its view. Of a table in parts it is a sample of the entries.

    >>> host_data(np.ones((3, 4, 5))).take(1, np.array([0, 2])).shape
    (3, 2, 5)
    """
    X = without_labels(X)
    if isinstance(X, Observed):
        return HostData(X)
    if isinstance(X, ObservedEngine):
        return HostData(X.data)
    if isinstance(X, DenseEngine):
        X = X.array
    if isinstance(X, ChunkedEngine | PartitionedEngine):
        return _from_engine(X)
    if isinstance(X, PartitionedTable):
        return _from_engine(PartitionedEngine(X))
    source = chunked_source(X)
    if source is not None:
        return _from_engine(ChunkedEngine(source))
    host = np.asarray(to_host(plain_array(X)))
    return HostData(host.astype(working_dtype(host), copy=False))


def is_on_host(X: Any) -> bool:
    """Whether data is in the host's memory."""
    X = without_labels(X)
    if isinstance(X, PartitionedTable | ChunkedEngine | PartitionedEngine) or chunked_source(X):
        return False
    return isinstance(X, Observed) or isinstance(plain_array(X), np.ndarray)
