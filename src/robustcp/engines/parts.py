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
from robustcp.engines.chunked import ChunkedEngine
from robustcp.engines.chunks import chunked_source
from robustcp.engines.labelled import unlabelled
from robustcp.engines.observed import Observed
from robustcp.engines.partitioned import PartitionedEngine
from robustcp.engines.tables import Partitioned


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
    def taken(self, mode: int, rows: np.ndarray) -> HostData:
        """The part at some indices of a mode."""

    @abstractmethod
    def without(self, hit: np.ndarray) -> HostData:
        """The same, some of the observed entries missing."""

    @property
    @abstractmethod
    def bytes(self) -> int:
        """Its size in memory."""

    @abstractmethod
    def _held(self) -> tuple[np.ndarray, ...]:
        """The arrays that it is made of."""

    @cached_property
    def digest(self) -> str:
        """What tells it from other data."""
        key = hashlib.sha256(repr(self.shape).encode())
        for array in self._held():
            key.update(str(array.dtype).encode())
            key.update(np.ascontiguousarray(array).data)
        return key.hexdigest()


class _Array(HostData):
    """An array, NaN where an entry is missing."""

    @cached_property
    def indices(self) -> tuple[np.ndarray, ...]:
        return np.nonzero(~np.isnan(self.data))

    @cached_property
    def values(self) -> np.ndarray:
        return np.asarray(self.data[self.indices], dtype=np.float64)

    def taken(self, mode: int, rows: np.ndarray) -> HostData:
        return _Array(np.take(self.data, rows, axis=mode))

    def without(self, hit: np.ndarray) -> HostData:
        rest = self.data.copy()
        rest[tuple(index[hit] for index in self.indices)] = np.nan
        return _Array(rest)

    @property
    def bytes(self) -> int:
        return int(self.data.nbytes)

    def _held(self) -> tuple[np.ndarray, ...]:
        return (self.data,)


class _Listed(HostData):
    """A list of observed entries."""

    @cached_property
    def indices(self) -> tuple[np.ndarray, ...]:
        return tuple(self.data.indices.T)

    @cached_property
    def values(self) -> np.ndarray:
        return np.asarray(self.data.values, dtype=np.float64)

    def taken(self, mode: int, rows: np.ndarray) -> HostData:
        place = np.full(self.shape[mode], -1, dtype=np.int64)
        place[rows] = np.arange(len(rows))
        at = self.data.indices.copy()
        at[:, mode] = place[at[:, mode]]
        keep = at[:, mode] >= 0
        shape = [len(rows) if n == mode else size for n, size in enumerate(self.shape)]
        return _Listed(Observed(at[keep], self.data.values[keep], shape))

    def without(self, hit: np.ndarray) -> HostData:
        return _Listed(Observed(self.data.indices[~hit], self.data.values[~hit], self.shape))

    @property
    def bytes(self) -> int:
        return int(self.data.values.nbytes + self.data.indices.nbytes)

    def _held(self) -> tuple[np.ndarray, ...]:
        return self.data.indices, self.data.values


#: Parts of data in chunks are read when they have no more entries.
PART = 1 << 24


class _InChunks(HostData):
    """A part of data in chunks that is too large to be held: parts of it are taken first."""

    @cached_property
    def _chosen(self) -> tuple[np.ndarray | None, ...]:
        return (None,) * len(self.data.shape)

    @property
    def count(self) -> int:
        return int(self.data.count * math.prod(self.shape) / math.prod(self.data.shape))

    @property
    def shape(self) -> tuple[int, ...]:
        pairs = zip(self.data.shape, self._chosen, strict=True)
        return tuple(size if at is None else len(at) for size, at in pairs)

    def taken(self, mode: int, rows: np.ndarray) -> HostData:
        other = _InChunks(self.data)
        chosen = list(self._chosen)
        before = chosen[mode]
        chosen[mode] = rows if before is None else before[rows]
        other.__dict__["_chosen"] = tuple(chosen)
        return other if math.prod(other.shape) > PART else _held(self.data, chosen)

    @cached_property
    def indices(self) -> tuple[np.ndarray, ...]:
        raise self._too_large()

    @cached_property
    def values(self) -> np.ndarray:
        raise self._too_large()

    def without(self, hit: np.ndarray) -> HostData:
        raise self._too_large()

    def _held(self) -> tuple[np.ndarray, ...]:
        raise self._too_large()

    @property
    def bytes(self) -> int:
        return 8 * math.prod(self.shape)

    def _too_large(self) -> ValueError:
        size = "x".join(map(str, self.shape))
        return ValueError(f"X: {size} is too large for this; pass a part that fits into memory")


def _held(engine: Any, chosen: Sequence[np.ndarray | None]) -> HostData:
    """A part of data in chunks, in memory."""
    array = np.asarray(engine.subtensor(chosen).array)
    return _Array(array.astype(working_dtype(array), copy=False))


def _of_engine(engine: ChunkedEngine | PartitionedEngine) -> HostData:
    if isinstance(engine, PartitionedEngine):
        return _Listed(engine.held)
    if math.prod(engine.shape) > PART:
        return _InChunks(engine)
    return _held(engine, [None] * engine.order)


def host_data(X: Any) -> HostData:
    """What `as_engine` takes on the host; names and labels are left behind.

    Of engines only those of data in chunks. Of a table in parts it is a sample of the entries.

    >>> host_data(np.ones((3, 4, 5))).taken(1, np.array([0, 2])).shape
    (3, 2, 5)
    """
    X = unlabelled(X)
    if isinstance(X, Observed):
        return _Listed(X)
    if isinstance(X, ChunkedEngine | PartitionedEngine):
        return _of_engine(X)
    if isinstance(X, Partitioned):
        return _of_engine(PartitionedEngine(X))
    source = chunked_source(X)
    if source is not None:
        return _of_engine(ChunkedEngine(source))
    host = np.asarray(to_host(plain_array(X)))
    return _Array(host.astype(working_dtype(host), copy=False))


def on_host(X: Any) -> bool:
    """Whether data is in the host's memory."""
    X = unlabelled(X)
    if isinstance(X, Partitioned | ChunkedEngine | PartitionedEngine) or chunked_source(X):
        return False
    return isinstance(X, Observed) or isinstance(plain_array(X), np.ndarray)
