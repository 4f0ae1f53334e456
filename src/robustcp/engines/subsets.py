"""Data on the host, of which slabs or entries can be left out."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from robustcp.engines.arrays import plain_array, to_host, working_dtype
from robustcp.engines.blocks.chunked import ChunkedEngine
from robustcp.engines.blocks.chunks import chunked_source
from robustcp.engines.blocks.partitioned import PartitionedEngine
from robustcp.engines.blocks.tables import PartitionedTable
from robustcp.engines.labelled import without_labels
from robustcp.engines.observed import Observed


@dataclass(frozen=True, eq=False)
class HostData(ABC):
    """Data that can be cut, sent to other processes, and named by what it holds.

    Attributes
    ----------
    data : array or Observed
        What estimators take.
    """

    data: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    @property
    def count(self) -> int:
        """How many entries were observed."""
        return int(self.values.size)

    @cached_property
    @abstractmethod
    def indices(self) -> tuple[np.ndarray, ...]:
        """Where the observed entries are: one array for each mode."""

    @cached_property
    @abstractmethod
    def values(self) -> np.ndarray:
        """Those entries, in float64."""

    @abstractmethod
    def take(self, mode: int, rows: np.ndarray) -> HostData:
        """The part at some indices of a mode."""

    @abstractmethod
    def without_entries(self, mask: np.ndarray) -> HostData:
        """The same, some of the observed entries missing."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Its size in memory."""

    @abstractmethod
    def _arrays(self) -> tuple[np.ndarray, ...]:
        """The arrays that it is made of."""

    @cached_property
    def digest(self) -> str:
        """What tells it from other data."""
        key = hashlib.sha256(repr(self.shape).encode())
        for array in self._arrays():
            key.update(str(array.dtype).encode())
            key.update(np.ascontiguousarray(array).data)
        return key.hexdigest()


class _DenseData(HostData):
    """An array, NaN where an entry is missing."""

    @cached_property
    def indices(self) -> tuple[np.ndarray, ...]:
        return np.nonzero(~np.isnan(self.data))

    @cached_property
    def values(self) -> np.ndarray:
        return np.asarray(self.data[self.indices], dtype=np.float64)

    def take(self, mode: int, rows: np.ndarray) -> HostData:
        return _DenseData(np.take(self.data, rows, axis=mode))

    def without_entries(self, mask: np.ndarray) -> HostData:
        remaining = self.data.copy()
        remaining[tuple(index[mask] for index in self.indices)] = np.nan
        return _DenseData(remaining)

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)

    def _arrays(self) -> tuple[np.ndarray, ...]:
        return (self.data,)


class _CoordinateData(HostData):
    """A list of observed entries."""

    @cached_property
    def indices(self) -> tuple[np.ndarray, ...]:
        return tuple(self.data.indices.T)

    @cached_property
    def values(self) -> np.ndarray:
        return np.asarray(self.data.values, dtype=np.float64)

    def take(self, mode: int, rows: np.ndarray) -> HostData:
        new_index = np.full(self.shape[mode], -1, dtype=np.int64)
        new_index[rows] = np.arange(len(rows))
        indices = self.data.indices.copy()
        indices[:, mode] = new_index[indices[:, mode]]
        keep = indices[:, mode] >= 0
        shape = [len(rows) if n == mode else size for n, size in enumerate(self.shape)]
        return _CoordinateData(Observed(indices[keep], self.data.values[keep], shape))

    def without_entries(self, mask: np.ndarray) -> HostData:
        return _CoordinateData(
            Observed(self.data.indices[~mask], self.data.values[~mask], self.shape)
        )

    @property
    def nbytes(self) -> int:
        return int(self.data.values.nbytes + self.data.indices.nbytes)

    def _arrays(self) -> tuple[np.ndarray, ...]:
        return self.data.indices, self.data.values


#: Parts of data in chunks are read when they have no more entries.
MAX_LOADED_ENTRIES = 1 << 24


class _ChunkedData(HostData):
    """A part of data in chunks that is too large to be held: parts of it are taken first."""

    @cached_property
    def _selection(self) -> tuple[np.ndarray | None, ...]:
        return (None,) * len(self.data.shape)

    @property
    def count(self) -> int:
        return int(self.data.count * math.prod(self.shape) / math.prod(self.data.shape))

    @property
    def shape(self) -> tuple[int, ...]:
        pairs = zip(self.data.shape, self._selection, strict=True)
        return tuple(size if index is None else len(index) for size, index in pairs)

    def take(self, mode: int, rows: np.ndarray) -> HostData:
        other = _ChunkedData(self.data)
        selection = list(self._selection)
        previous = selection[mode]
        selection[mode] = rows if previous is None else previous[rows]
        other.__dict__["_selection"] = tuple(selection)
        return (
            other
            if math.prod(other.shape) > MAX_LOADED_ENTRIES
            else _load_subset(self.data, selection)
        )

    @cached_property
    def indices(self) -> tuple[np.ndarray, ...]:
        raise self._too_large_error()

    @cached_property
    def values(self) -> np.ndarray:
        raise self._too_large_error()

    def without_entries(self, mask: np.ndarray) -> HostData:
        raise self._too_large_error()

    def _arrays(self) -> tuple[np.ndarray, ...]:
        raise self._too_large_error()

    @property
    def nbytes(self) -> int:
        return 8 * math.prod(self.shape)

    def _too_large_error(self) -> ValueError:
        size = "x".join(map(str, self.shape))
        return ValueError(f"X: {size} is too large for this; pass a part that fits into memory")


def _load_subset(engine: Any, selection: Sequence[np.ndarray | None]) -> HostData:
    """A part of data in chunks, in memory."""
    array = np.asarray(engine.subtensor(selection).array)
    return _DenseData(array.astype(working_dtype(array), copy=False))


def _from_engine(engine: ChunkedEngine | PartitionedEngine) -> HostData:
    if isinstance(engine, PartitionedEngine):
        return _CoordinateData(engine.sample_data)
    if math.prod(engine.shape) > MAX_LOADED_ENTRIES:
        return _ChunkedData(engine)
    return _load_subset(engine, [None] * engine.order)


def host_data(X: Any) -> HostData:
    """What `as_engine` takes on the host; names and labels are left behind.

    Of engines only those of data in chunks. Of a table in parts it is a sample of the entries.

    >>> host_data(np.ones((3, 4, 5))).take(1, np.array([0, 2])).shape
    (3, 2, 5)
    """
    X = without_labels(X)
    if isinstance(X, Observed):
        return _CoordinateData(X)
    if isinstance(X, ChunkedEngine | PartitionedEngine):
        return _from_engine(X)
    if isinstance(X, PartitionedTable):
        return _from_engine(PartitionedEngine(X))
    source = chunked_source(X)
    if source is not None:
        return _from_engine(ChunkedEngine(source))
    host = np.asarray(to_host(plain_array(X)))
    return _DenseData(host.astype(working_dtype(host), copy=False))


def is_on_host(X: Any) -> bool:
    """Whether data is in the host's memory."""
    X = without_labels(X)
    if isinstance(X, PartitionedTable | ChunkedEngine | PartitionedEngine) or chunked_source(X):
        return False
    return isinstance(X, Observed) or isinstance(plain_array(X), np.ndarray)
