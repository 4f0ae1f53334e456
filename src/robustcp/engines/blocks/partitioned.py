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

from robustcp._util import checks
from robustcp._util.checks import ArgumentError
from robustcp._util.typing import Array, Factors
from robustcp.engines.algebra import Algebra, algebra_for
from robustcp.engines.base import Engine, View
from robustcp.engines.blocks.chunks import Block, Readable
from robustcp.engines.blocks.schedulers import Graph, Placement, scheduler_for
from robustcp.engines.blocks.tables import PartitionedTable, Rows
from robustcp.engines.blocks.tasks import (
    BlockOperation,
    Group,
    Job,
    LossValue,
    ModeEquations,
    Piece,
    SlabSums,
)
from robustcp.engines.coordinates import stable_order
from robustcp.engines.entries import Entries, subset_shape, subtensor_indices
from robustcp.engines.memory import fits_in_memory, format_bytes, parse_bytes
from robustcp.engines.normal_equations import NormalEquations
from robustcp.engines.observed import Observed, ObservedEngine
from robustcp.engines.threads import TileExecutor, available_threads
from robustcp.engines.tiles import Tile, split_range
from robustcp.engines.weights import Weights
from robustcp.losses import Loss

#: Entries that trials of starts are made with.
START_SAMPLE_ENTRIES = 1 << 21
#: Bytes for each row of a part while it is passed over.
ROW_BYTES = 120
#: What this process needs beside, in bytes, and for a block of normal equations.
PROCESS_BYTES, BLOCK_BYTES = 450 << 20, 1 << 25
#: Entries of a sample.
SAMPLE_ENTRIES = 1 << 16


# Passes


@dataclass(frozen=True, eq=False)
class _TableBlock(Block):
    """A part of a table as a block: it lies in all of the tensor."""

    layout: PartitionedTable | None = field(default=None, repr=False)

    def load(self, data: Any) -> Any:
        columns: Any = data.read() if isinstance(data, Readable) else data
        assert self.layout is not None
        return self.layout.decode_rows(columns)


class _TableLayout:
    """What is needed of a `PartitionedTable` where its parts are read."""

    def __init__(self, data: PartitionedTable) -> None:
        self.shape, self.labels = data.shape, data.labels

    decode_rows = PartitionedTable.decode_rows


@dataclass(frozen=True, eq=False)
class CoordinateJob(Job):
    """A job on parts of a table."""

    def run_piece(self, piece: Piece, arrays: Sequence[Any]) -> Any:
        rows, shape = arrays[0], tuple(part.stop for part in piece.block.box)
        if not self.operation.includes_zero_weights and not _any_unmasked(rows, self.view):
            return None
        data = Observed.from_sorted(rows.indices, rows.values, shape)
        if self.operation.needs_sorted_rows:
            order = stable_order(rows.indices[0], shape[0])
            indices = np.take(rows.indices, order, axis=1)
            data = Observed.from_sorted(indices, rows.values[order], shape, order)
        engine = ObservedEngine(data, threads=1, compiled=self.compiled, view=self.view)
        return self.operation(engine, self.factors, piece)  # type: ignore[arg-type]


def _any_unmasked(rows: Rows, view: View) -> bool:
    """Whether a view leaves any of the entries."""
    unmasked = np.abs(view.apply(rows.values, xp)) >= 0
    if isinstance(view.weights, Weights) and view.weights.has_zeros:
        unmasked &= view.weights.values_at(rows.indices) > 0
    return bool(unmasked.any())


@dataclass(frozen=True, eq=False)
class MaxAbs(BlockOperation):
    """The largest magnitude of a part, as it is seen, and how many entries are."""

    def __call__(self, engine: Any, factors: Factors | None, piece: Piece) -> float:
        return float(engine.max_abs)

    def combine(self, full_box: Tile, results: Any) -> float:
        return max(float(value) for _, value in results)


@dataclass(frozen=True, eq=False)
class EntrySelection(BlockOperation):
    """Entries at some places of a part, or at some indices of each mode."""

    positions: dict[int, np.ndarray] | None = None
    indices: tuple[np.ndarray | None, ...] | None = None

    def __call__(self, engine: Any, factors: Factors | None, piece: Piece) -> Rows:
        data = engine.data
        keep = np.ones(data.values.size, dtype=bool)
        if self.positions is not None:
            assert piece.sample_indices is not None
            return Rows(
                data.indices[piece.sample_indices[0]].T.copy(), data.values[piece.sample_indices[0]]
            )
        for column, index in zip(data.indices.T, self.indices or (), strict=True):
            if index is not None:
                keep &= np.isin(column, index)
        return Rows(data.indices[keep].T.copy(), data.values[keep])

    def combine(self, full_box: Tile, results: Any) -> Rows:
        return _concatenate_rows([rows for _, rows in results])


@dataclass(frozen=True, eq=False)
class RowMap(BlockOperation):
    """Something for each entry of a part, in the order of the table."""

    function: Callable[[Any], np.ndarray]
    includes_zero_weights = True

    def __call__(self, engine: Any, factors: Factors | None, piece: Piece) -> np.ndarray:
        return self.function(engine)

    def combine(self, full_box: Tile, results: Any) -> np.ndarray:
        return np.concatenate([part for _, part in results])


def _concatenate_rows(tables: Sequence[Rows]) -> Rows:
    indices = np.concatenate([rows.indices for rows in tables], axis=1)
    return Rows(indices, np.concatenate([rows.values for rows in tables]))


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
        self,
        data: PartitionedTable,
        *,
        threads: int | None = None,
        compiled: bool = True,
        memory: int | str | None = None,
    ) -> None:
        if threads is not None:
            threads = checks.whole_number("threads", threads, 1)
        self._data, self._compiled = data, compiled
        self.shape, self.xp, self.dtype = data.shape, xp, np.dtype(np.float64)
        threads, self._memory = threads or available_threads(), memory
        if memory is not None:
            budget, partition_bytes = parse_bytes(memory), ROW_BYTES * max(data.partition_sizes)
            available = max(budget - PROCESS_BYTES, budget // 4)
            if partition_bytes > available:
                raise ArgumentError(
                    "memory",
                    f"{format_bytes(budget)} is too little: a part of {max(data.partition_sizes)} "
                    f"rows takes {format_bytes(partition_bytes)}, and this process itself up to "
                    f"{format_bytes(PROCESS_BYTES)}",
                )
            threads = max(1, min(threads, available // partition_bytes))
        self.executor = TileExecutor(threads)
        self._samples: dict[str, Rows] = {}

    def __repr__(self) -> str:
        return f"PartitionedEngine({self._data!r})"

    # What the data is

    @cached_property
    def max_abs(self) -> float:
        return max(float(value) for _, value in self._map_partitions(MaxAbs()))

    @property
    def complete(self) -> bool:
        return False

    @property
    def algebra(self) -> Algebra:
        return algebra_for(self.xp, self._compiled, self.executor.threads)

    def with_view(self, view: View) -> PartitionedEngine:
        other = copy(self)
        other.view = view
        for name in ("max_abs", "_all_slab_counts", "count", "total_weight", "in_memory"):
            other.__dict__.pop(name, None)
        return other

    def _map_partitions(
        self,
        action: BlockOperation,
        factors: Factors | None = None,
        positions: Sequence[np.ndarray] | None = None,
    ) -> Iterator[tuple[Tile, Any]]:
        """What comes of each part, in order."""
        full_box = tuple(slice(0, size) for size in self.shape)
        layout: Any = _TableLayout(self._data)
        groups = []
        for number, partition in enumerate(self._data.partitions):
            own_positions = None if positions is None else (positions[number],)
            piece = Piece(
                _TableBlock(full_box, partition, None, layout), sample_indices=own_positions
            )
            groups.append(Group(number, full_box, [piece], [0]))
        job = CoordinateJob(action, self.view, factors, self._compiled)
        scheduler = scheduler_for(self.executor, Placement(), by_dask=False)
        empty = True
        for result in scheduler.map(job, groups, Graph()):
            if result is not None:
                empty = False
                yield full_box, result
        if empty:
            raise ValueError("entry_weights: all observed entries have weight 0")

    # Passes

    def normal_equations(
        self, factors: Factors, mode: int, loss: Loss, rows: slice | None = None
    ) -> NormalEquations:
        rows = slice(0, self.shape[mode]) if rows is None else rows
        action = ModeEquations(mode, loss, rows, shared=False)
        full_box = tuple(rows if n == mode else slice(0, size) for n, size in enumerate(self.shape))
        return action.combine(full_box, self._map_partitions(action, factors))

    def value(self, factors: Factors, loss: Loss) -> float:
        return math.fsum(value for _, value in self._map_partitions(LossValue(loss), factors))

    def row_blocks(self, mode: int, rank: int, loss: Loss) -> Sequence[slice]:
        row = (rank * (rank + 1) // 2 + rank) * 8
        return split_range(self.shape[mode], max(1, BLOCK_BYTES // row))

    def slab_sums(
        self,
        work: Callable[[Array], Array],
        factors: Factors | None = None,
        *,
        weighted: bool = False,
    ) -> list[np.ndarray]:
        full_box = tuple(slice(0, size) for size in self.shape)
        action = SlabSums(work, weighted)
        return list(action.combine(full_box, self._map_partitions(action, factors)))

    # Samples and parts

    def sample(self, factors: Factors | None = None) -> Entries:
        return self._sample_engine(SAMPLE_ENTRIES).entries(factors)

    @cached_property
    def in_memory(self) -> ObservedEngine:
        """A sample of the entries, for trials."""
        return self._sample_engine(START_SAMPLE_ENTRIES)

    @property
    def sample_data(self) -> Observed:
        """That sample as it was given."""
        return self.in_memory.data

    def _sample_engine(self, max_entries: int) -> ObservedEngine:
        key = f"sample of {max_entries}"
        if key not in self._samples:
            selection: np.ndarray = np.arange(self._data.count)
            if self._data.count > max_entries:
                rng = np.random.default_rng(0)
                selection = np.unique(rng.integers(self._data.count, size=max_entries))
            edges = np.cumsum([0, *self._data.partition_sizes])
            cuts = np.searchsorted(selection, edges)
            positions = [
                selection[a:b] - first
                for a, b, first in zip(cuts[:-1], cuts[1:], edges, strict=False)
            ]
            plain = self.with_view(View())
            tables = [
                rows
                for _, rows in plain._map_partitions(
                    EntrySelection(positions={}), positions=positions
                )
            ]
            self._samples[key] = _concatenate_rows(tables)
        return self._observed_engine(self._samples[key], self.shape, self.view)

    def _observed_engine(self, rows: Rows, shape: tuple[int, ...], view: View) -> ObservedEngine:
        data = Observed(rows.indices.T, rows.values, shape)
        return ObservedEngine(
            data, threads=self.executor.threads, compiled=self._compiled, view=view
        )

    def subtensor(self, indices: Sequence[np.ndarray | None]) -> ObservedEngine:
        results = self.with_view(View())._map_partitions(EntrySelection(indices=tuple(indices)))
        entries = _concatenate_rows([rows for _, rows in results])
        _, sub_indices = subtensor_indices(entries.indices, self.shape, indices)
        return self._observed_engine(
            Rows(np.stack(sub_indices), entries.values),
            subset_shape(self.shape, indices),
            self.view.subset(indices),
        )

    def residual_slice(self, factors: Factors, fixed: Mapping[int, int]) -> np.ndarray:
        indices = [np.array([fixed[n]]) if n in fixed else None for n in range(self.order)]
        rows = tuple(A if k is None else A[k] for A, k in zip(factors, indices, strict=True))
        return self.subtensor(indices).residual_slice(rows, dict.fromkeys(fixed, 0))

    @property
    def entries_fit_in_memory(self) -> bool:
        return fits_in_memory(self._data.count, self.order, self._memory)

    def entries(self, factors: Factors | None = None) -> Entries:
        if not self.entries_fit_in_memory:
            raise MemoryError(f"X: all {self._data.count} entries would have to be held")
        return self.subtensor([None] * self.order).entries(factors)

    def map_residuals(self, work: Callable[[Array], Array], factors: Factors) -> Array:
        """One for each entry, in the order of the table."""
        results = self._map_partitions(RowMap(partial(_mapped_residuals, work, factors)), factors)
        return np.concatenate([part for _, part in results])

    def entry_scales(self) -> Array:
        return np.concatenate([part for _, part in self._map_partitions(RowMap(_entry_scales))])

    def unfolding(self, mode: int, rows: slice) -> np.ndarray:
        raise TypeError("X: this method needs all entries; an Observed tensor has only some")

    # Singular vectors are for starts: those of a sample will do

    def gram(self, mode: int, basis: np.ndarray | None = None) -> np.ndarray:
        return self.in_memory.gram(mode, basis)

    def cogram(self, mode: int) -> np.ndarray:
        return self.in_memory.cogram(mode)

    def project(self, mode: int, basis: np.ndarray) -> np.ndarray:
        return self.in_memory.project(mode, basis)


def _mapped_residuals(
    function: Callable[[Array], Array], factors: Factors, engine: ObservedEngine
) -> np.ndarray:
    return np.asarray(engine.map_residuals(function, factors))


def _entry_scales(engine: ObservedEngine) -> np.ndarray:
    return np.asarray(engine.entry_scales())
