"""Data on the host, of which slabs or entries can be left out."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from robustcp.engines.arrays import is_labelled, plain_array, to_host, working_dtype
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


def host_data(X: Any) -> HostData:
    """What `as_engine` takes, but for engines, on the host; names and labels are left behind.

    >>> host_data(np.ones((3, 4, 5))).taken(1, np.array([0, 2])).shape
    (3, 2, 5)
    """
    if is_labelled(X):
        X = X.data
    if isinstance(X, Observed):
        return _Listed(X)
    host = np.asarray(to_host(plain_array(X)))
    return _Array(host.astype(working_dtype(host), copy=False))


def on_host(X: Any) -> bool:
    """Whether data is in the host's memory."""
    if is_labelled(X):
        X = X.data
    return isinstance(X, Observed) or isinstance(plain_array(X), np.ndarray)
