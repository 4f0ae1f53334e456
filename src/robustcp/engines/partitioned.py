"""The engine of listed entries in a table of many parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import array_api_compat.numpy as xp
import numpy as np

from robustcp import _checks
from robustcp._checks import ArgumentError
from robustcp._typing import Array, Factors
from robustcp.engines.algebra import Algebra, algebra
from robustcp.engines.base import Engine, Sample, View
from robustcp.engines.chunks import Block, Readable
from robustcp.engines.listing import stable_order
from robustcp.engines.memory import as_bytes, as_words, room_for
from robustcp.engines.observed import Observed, ObservedEngine
from robustcp.engines.schedulers import Graph, Placement, scheduler_for
from robustcp.engines.tables import Partitioned, Rows
from robustcp.engines.tasks import Action, Equations, Group, Job, Piece, SlabSums, Value
from robustcp.engines.threads import Tiles, available_threads
from robustcp.engines.tiles import Tile, ranges
from robustcp.engines.weights import Weights
from robustcp.losses import Loss
from robustcp.normal import NormalEquations

#: Entries that trials of starts are made with.
AT_HAND = 1 << 21
#: Bytes for each row of a part while it is passed over.
ROW_BYTES = 120
#: What this process needs beside, in bytes, and for a block of normal equations.
ITSELF, BLOCK_BYTES = 450 << 20, 1 << 25
#: Entries of a sample.
SAMPLE_ENTRIES = 1 << 16


# Passes


@dataclass(frozen=True, eq=False)
class _Part(Block):
    """A part of a table as a block: it lies in all of the tensor."""

    data_of: Partitioned | None = field(default=None, repr=False)

    def taken(self, data: Any) -> Any:
        columns: Any = data.read() if isinstance(data, Readable) else data
        assert self.data_of is not None
        return self.data_of.rows(columns)


class _Layout:
    """What is needed of a `Partitioned` where its parts are read."""

    def __init__(self, data: Partitioned) -> None:
        self.shape, self.names = data.shape, data.names

    rows = Partitioned.rows


@dataclass(frozen=True, eq=False)
class ListedJob(Job):
    """A job on parts of a table."""

    def of(self, piece: Piece, arrays: Sequence[Any]) -> Any:
        rows, shape = arrays[0], tuple(part.stop for part in piece.block.at)
        if not self.action.all_rows and not _any_seen(rows, self.view):
            return None
        data = object.__new__(Observed)
        data.shape, data.indices, data.values = shape, rows.at.T, rows.values
        data.sorting = np.arange(rows.values.size)
        data.sorted_indices, data.sorted_values = rows
        if self.action.in_order:
            data.sorting = stable_order(rows.at[0], shape[0])
            data.sorted_indices = np.take(rows.at, data.sorting, axis=1)
            data.sorted_values = rows.values[data.sorting]
        engine = ObservedEngine(data, threads=1, compiled=self.compiled, view=self.view)
        return self.action(engine, self.factors, piece)  # type: ignore[arg-type]


def _any_seen(rows: Rows, view: View) -> bool:
    """Whether a view leaves any of the entries."""
    seen = np.abs(view.apply(rows.values, xp)) >= 0
    if isinstance(view.weights, Weights) and view.weights.zeros:
        seen &= view.weights.at(rows.at) > 0
    return bool(seen.any())


@dataclass(frozen=True, eq=False)
class Largest(Action):
    """The largest magnitude of a part, as it is seen, and how many entries are."""

    def __call__(self, engine: Any, factors: Factors | None, piece: Piece) -> float:
        return float(engine.largest)

    def gathered(self, at: Tile, found: Any) -> float:
        return max(float(value) for _, value in found)


@dataclass(frozen=True, eq=False)
class Chosen(Action):
    """Entries at some places of a part, or at some indices of each mode."""

    places: dict[int, np.ndarray] | None = None
    indices: tuple[np.ndarray | None, ...] | None = None

    def __call__(self, engine: Any, factors: Factors | None, piece: Piece) -> Rows:
        data = engine.given
        keep = np.ones(data.values.size, dtype=bool)
        if self.places is not None:
            assert piece.places is not None
            return Rows(data.indices[piece.places[0]].T.copy(), data.values[piece.places[0]])
        for column, at in zip(data.indices.T, self.indices or (), strict=True):
            if at is not None:
                keep &= np.isin(column, at)
        return Rows(data.indices[keep].T.copy(), data.values[keep])

    def gathered(self, at: Tile, found: Any) -> Rows:
        return _stacked([rows for _, rows in found])


@dataclass(frozen=True, eq=False)
class Each(Action):
    """Something for each entry of a part, in the order of the table."""

    work: Callable[[Any], np.ndarray]
    all_rows = True

    def __call__(self, engine: Any, factors: Factors | None, piece: Piece) -> np.ndarray:
        return self.work(engine)

    def gathered(self, at: Tile, found: Any) -> np.ndarray:
        return np.concatenate([part for _, part in found])


def _stacked(parts: Sequence[Rows]) -> Rows:
    at = np.concatenate([rows.at for rows in parts], axis=1)
    return Rows(at, np.concatenate([rows.values for rows in parts]))


class PartitionedEngine(Engine):
    """Passes over a table, part by part.

    Starts are looked for with a random sample of its entries, which is held in memory.

    Parameters
    ----------
    data : Partitioned
    threads, compiled, memory
        As in `robustcp.as_engine`.
    """

    takes_weights = True
    takes_scales = True

    def __init__(
        self, data: Partitioned, *, threads: int | None = None, compiled: bool = True,
        memory: int | str | None = None,
    ) -> None:  # fmt: skip
        if threads is not None:
            threads = _checks.whole_number("threads", threads, 1)
        self._data, self._compiled = data, compiled
        self.shape, self.xp, self.dtype = data.shape, xp, np.dtype(np.float64)
        threads, self._memory = threads or available_threads(), memory
        if memory is not None:
            given, one = as_bytes(memory), ROW_BYTES * max(data.sizes)
            room = max(given - ITSELF, given // 4)
            if one > room:
                raise ArgumentError(
                    "memory",
                    f"{as_words(given)} is too little: a part of {max(data.sizes)} rows takes "
                    f"{as_words(one)}, and this process itself up to {as_words(ITSELF)}",
                )
            threads = max(1, min(threads, room // one))
        self.tiles = Tiles(threads)
        self._held: dict[str, Rows] = {}

    def __repr__(self) -> str:
        return f"PartitionedEngine({self._data!r})"

    # What the data is

    @cached_property
    def largest(self) -> float:
        return max(float(value) for _, value in self._over(Largest()))

    @property
    def complete(self) -> bool:
        return False

    @property
    def algebra(self) -> Algebra:
        return algebra(self.xp, self._compiled, self.tiles.threads)

    def asarray(self, array: Any) -> Array:
        return np.ascontiguousarray(array, dtype=self.dtype)

    def viewed(self, view: View) -> PartitionedEngine:
        other = copy(self)
        other.view = view
        for name in ("largest", "_observed", "count", "weight", "at_hand"):
            other.__dict__.pop(name, None)
        return other

    def _over(
        self, action: Action, factors: Factors | None = None,
        places: Sequence[np.ndarray] | None = None,
    ) -> Iterator[tuple[Tile, Any]]:  # fmt: skip
        """What comes of each part, in order."""
        whole = tuple(slice(0, size) for size in self.shape)
        layout: Any = _Layout(self._data)
        groups = []
        for number, part in enumerate(self._data.parts):
            at = None if places is None else (places[number],)
            piece = Piece(_Part(whole, part, None, layout), places=at)
            groups.append(Group(number, whole, [piece], [0]))
        job = ListedJob(action, self.view, factors, self._compiled)
        scheduler = scheduler_for(self.tiles, Placement(), by_dask=False)
        empty = True
        for found in scheduler.map(job, groups, Graph()):
            if found is not None:
                empty = False
                yield whole, found
        if empty:
            raise ValueError("entry_weights: all observed entries have weight 0")

    # Passes

    def normal(
        self, factors: Factors, mode: int, loss: Loss, rows: slice | None = None
    ) -> NormalEquations:
        rows = slice(0, self.shape[mode]) if rows is None else rows
        action = Equations(mode, loss, rows, shared=False)
        whole = tuple(rows if n == mode else slice(0, size) for n, size in enumerate(self.shape))
        return action.gathered(whole, self._over(action, factors))

    def value(self, factors: Factors, loss: Loss) -> float:
        return math.fsum(value for _, value in self._over(Value(loss), factors))

    def row_blocks(self, mode: int, rank: int, loss: Loss) -> Sequence[slice]:
        row = (rank * (rank + 1) // 2 + rank) * 8
        return ranges(self.shape[mode], max(1, BLOCK_BYTES // row))

    def slab_sums(
        self, work: Callable[[Array], Array], factors: Factors | None = None,
        *, weighted: bool = False,
    ) -> list[np.ndarray]:  # fmt: skip
        whole = tuple(slice(0, size) for size in self.shape)
        action = SlabSums(work, weighted)
        return list(action.gathered(whole, self._over(action, factors)))

    # Samples and parts

    def sample(self, factors: Factors | None = None) -> Sample:
        return self._sampled(SAMPLE_ENTRIES).entries(factors)

    @cached_property
    def at_hand(self) -> ObservedEngine:
        """A sample of the entries, for trials."""
        return self._sampled(AT_HAND)

    @property
    def held(self) -> Observed:
        """That sample as it was given."""
        return self.at_hand.given

    def _sampled(self, most: int) -> ObservedEngine:
        key = f"sample of {most}"
        if key not in self._held:
            picked: np.ndarray = np.arange(self._data.count)
            if self._data.count > most:
                rng = np.random.default_rng(0)
                picked = np.unique(rng.integers(self._data.count, size=most))
            edges = np.cumsum([0, *self._data.sizes])
            cuts = np.searchsorted(picked, edges)
            places = [
                picked[a:b] - first for a, b, first in zip(cuts[:-1], cuts[1:], edges, strict=False)
            ]
            plain = self.viewed(View())
            parts = [rows for _, rows in plain._over(Chosen(places={}), places=places)]
            self._held[key] = _stacked(parts)
        return self._engine(self._held[key], self.shape, self.view)

    def _engine(self, rows: Rows, shape: tuple[int, ...], view: View) -> ObservedEngine:
        data = Observed(rows.at.T, rows.values, shape)
        return ObservedEngine(data, threads=self.tiles.threads, compiled=self._compiled, view=view)

    def subtensor(self, indices: Sequence[np.ndarray | None]) -> ObservedEngine:
        parts = self.viewed(View())._over(Chosen(indices=tuple(indices)))
        found = _stacked([rows for _, rows in parts])
        at = found.at.copy()
        for n, chosen in enumerate(indices):
            if chosen is not None:
                place = np.zeros(self.shape[n], dtype=at.dtype)
                place[chosen] = np.arange(len(chosen), dtype=at.dtype)
                at[n] = place[at[n]]
        shape = tuple(
            size if chosen is None else len(chosen)
            for size, chosen in zip(self.shape, indices, strict=True)
        )
        return self._engine(Rows(at, found.values), shape, self.view.part(indices))

    def residual_slice(self, factors: Factors, fixed: Mapping[int, int]) -> np.ndarray:
        at = [np.array([fixed[n]]) if n in fixed else None for n in range(self.order)]
        rows = tuple(A if k is None else A[k] for A, k in zip(factors, at, strict=True))
        return self.subtensor(at).residual_slice(rows, dict.fromkeys(fixed, 0))

    @property
    def listable(self) -> bool:
        return room_for(self._data.count, self.order, self._memory)

    def entries(self, factors: Factors | None = None) -> Sample:
        if not self.listable:
            raise MemoryError(f"X: all {self._data.count} entries would have to be held")
        return self.subtensor([None] * self.order).entries(factors)

    def entrywise(self, work: Callable[[Array], Array], factors: Factors) -> Array:
        """One for each entry, in the order of the table."""
        found = self._over(Each(partial(_worked, work, factors)), factors)
        return np.concatenate([part for _, part in found])

    def entry_scales(self) -> Array:
        return np.concatenate([part for _, part in self._over(Each(_scales_of))])

    def unfolding(self, mode: int, rows: slice) -> np.ndarray:
        raise TypeError("X: this method needs all entries; an Observed tensor has only some")

    # Singular vectors are for starts: those of a sample will do

    def gram(self, mode: int, basis: np.ndarray | None = None) -> np.ndarray:
        return self.at_hand.gram(mode, basis)

    def cogram(self, mode: int) -> np.ndarray:
        return self.at_hand.cogram(mode)

    def project(self, mode: int, basis: np.ndarray) -> np.ndarray:
        return self.at_hand.project(mode, basis)


def _worked(work: Callable[[Array], Array], factors: Factors, engine: ObservedEngine) -> np.ndarray:
    return np.asarray(engine.entrywise(work, factors))


def _scales_of(engine: ObservedEngine) -> np.ndarray:
    return np.asarray(engine.entry_scales())
