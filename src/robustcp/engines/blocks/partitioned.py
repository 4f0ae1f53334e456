"""The engine of listed entries in a table of many parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import attrgetter, methodcaller
from typing import Any

import array_api_compat.numpy as xp
import numpy as np

from robustcp._util.typing import Array, Factors
from robustcp.engines.base import View
from robustcp.engines.blocks.block_engine import BlockEngine, concurrent_pieces, thread_count
from robustcp.engines.blocks.chunks import Block
from robustcp.engines.blocks.schedulers import Placement, Scheduler, scheduler_for
from robustcp.engines.blocks.tables import PartitionedTable, Rows, TableLayout
from robustcp.engines.blocks.tasks import (
    BlockOperation,
    Group,
    Job,
    Piece,
    call_engine,
    map_block_residuals,
)
from robustcp.engines.coordinates import stable_order
from robustcp.engines.entries import Entries, sample_size, subset_shape, subtensor_indices
from robustcp.engines.entry_field import broadcast_indices
from robustcp.engines.memory import fits_in_memory, format_bytes
from robustcp.engines.observed import Observed, ObservedEngine
from robustcp.engines.preprocessing import Transformation
from robustcp.engines.threads import TileExecutor
from robustcp.engines.tiles import Tile, split_range
from robustcp.losses import Loss

#: Entries that trials of starts are made with.
START_SAMPLE_ENTRIES = 1 << 21
#: Bytes for each row of a part while it is passed over.
ROW_BYTES = 120
#: Bytes for a block of normal equations.
BLOCK_BYTES = 1 << 25


@dataclass(frozen=True, eq=False)
class TableBlock(Block):
    """A part of a table as a block, whose box is all of the tensor."""

    layout: TableLayout | None = field(default=None, repr=False)
    transformations: tuple[Transformation, ...] = field(default=(), repr=False)

    def load(self, data: Any) -> Rows:
        assert self.layout is not None
        rows = self.layout.decode_rows(data.read())
        values = rows.values
        for transformation in self.transformations:
            values = transformation.entries(values, rows.indices)
        return Rows(rows.indices, values)

    def engine(self, arrays: Sequence[Rows], job: Job) -> ObservedEngine | None:
        (rows,) = arrays
        if not job.operation.includes_zero_weights and not _any_unmasked(rows, job.view):
            return None
        shape = tuple(part.stop for part in self.box)
        data = Observed.from_sorted(rows.indices, rows.values, shape)
        if job.operation.needs_sorted_rows:
            order = stable_order(rows.indices[0], shape[0])
            indices = np.take(rows.indices, order, axis=1)
            data = Observed.from_sorted(indices, rows.values[order], shape, order)
        return ObservedEngine(data, threads=1, compiled=job.compiled, view=job.view)


def _any_unmasked(rows: Rows, view: View) -> bool:
    """Whether any of the entries counts in a view."""
    unmasked = np.abs(view.apply(rows.values, xp)) >= 0
    if view.weights is not None and view.weights.has_zeros:
        unmasked &= view.weights.values_at(rows.indices) > 0
    return bool(unmasked.any())


# Functions of the engine of a part, for `BlockEngine._collect`


def _entries_at_positions(engine: ObservedEngine, factors: Factors | None, piece: Piece) -> Rows:
    positions, data = piece.sample_indices, engine.data
    return Rows(data.indices[positions].T.copy(), data.values[positions])


def _entries_at_indices(
    indices: Sequence[np.ndarray | None],
    engine: ObservedEngine,
    factors: Factors | None,
    piece: Piece,
) -> Rows:
    data = engine.data
    keep = np.ones(data.values.size, dtype=bool)
    for column, index in zip(data.indices.T, indices, strict=True):
        if index is not None:
            keep &= np.isin(column, index)
    return Rows(data.indices[keep].T.copy(), data.values[keep])


def _concatenate_rows(tables: Sequence[Rows]) -> Rows:
    indices = np.concatenate([rows.indices for rows in tables], axis=1)
    return Rows(indices, np.concatenate([rows.values for rows in tables]))


class PartitionedEngine(BlockEngine):
    """Passes over a table, part by part.

    Starts are fitted to a random sample of its entries, which is held in memory.

    Parameters
    ----------
    data : PartitionedTable
    threads, compiled, memory
        As in `robustcp.as_engine`.
    """

    def __init__(
        self,
        data: PartitionedTable,
        *,
        threads: int | None = None,
        compiled: bool = True,
        memory: int | str | None = None,
    ) -> None:
        threads = thread_count(threads)
        self._data, self.compiled, self._memory = data, compiled, memory
        self.shape, self.xp, self.dtype = data.shape, xp, np.dtype(np.float64)
        if memory is not None:
            most_rows = max(data.partition_sizes)
            size = ROW_BYTES * most_rows
            description = f": a part of {most_rows} rows takes {format_bytes(size)}"
            threads, _ = concurrent_pieces(memory, size, description, threads)
        self.executor = TileExecutor(threads)
        self._samples: dict[int, Rows] = {}
        self._transformations: tuple[Transformation, ...] = ()

    def __repr__(self) -> str:
        return f"PartitionedEngine({self._data!r})"

    def _groups(self, positions: Sequence[np.ndarray] | None = None) -> list[Group]:
        box, groups = self._full_box, []
        for number, partition in enumerate(self._data.partitions):
            block = TableBlock(
                box,
                partition,
                layout=self._data.layout,
                transformations=self._transformations,
            )
            own_positions = None if positions is None else positions[number]
            groups.append(Group(number, box, [Piece((block,), sample_indices=own_positions)]))
        return groups

    def _scheduler(self) -> Scheduler:
        return scheduler_for(self.executor, Placement(), by_dask=False)

    def _map(
        self,
        operation: BlockOperation,
        factors: Factors | None = None,
        groups: Sequence[Group] | None = None,
    ) -> Iterator[tuple[Tile, Any]]:
        empty = True
        for result in super()._map(operation, factors, groups):
            empty = False
            yield result
        if empty:
            raise ValueError("entry_weights: all observed entries have weight 0")

    @cached_property
    def max_abs(self) -> float:
        return max(float(value) for _, value in self._ask_engines(attrgetter("max_abs")))

    @property
    def complete(self) -> bool:
        return False

    def row_blocks(self, mode: int, rank: int, loss: Loss) -> Sequence[slice]:
        row = (rank * (rank + 1) // 2 + rank) * 8
        return split_range(self.shape[mode], max(1, BLOCK_BYTES // row))

    # Samples and parts

    def sample(self, factors: Factors | None = None) -> Entries:
        return self._sample_engine(sample_size(self.shape)).entries(factors)

    @cached_property
    def in_memory(self) -> ObservedEngine:
        """A sample of the entries, for trials."""
        return self._sample_engine(START_SAMPLE_ENTRIES)

    @property
    def sample_data(self) -> Observed:
        """The entries of that sample, as they were given."""
        return self.in_memory.data

    def _sample_engine(self, max_entries: int) -> ObservedEngine:
        if max_entries not in self._samples:
            selection: np.ndarray = np.arange(self._data.count)
            if self._data.count > max_entries:
                rng = np.random.default_rng(0)
                selection = np.unique(rng.integers(self._data.count, size=max_entries))
            edges = np.cumsum([0, *self._data.partition_sizes])
            cuts = np.searchsorted(selection, edges)
            bounds = zip(cuts[:-1], cuts[1:], edges, strict=False)
            groups = self._groups([selection[a:b] - first for a, b, first in bounds])
            self._samples[max_entries] = self._collect_rows(_entries_at_positions, groups)
        return self._observed_engine(self._samples[max_entries], self.shape, self.view)

    def _collect_rows(
        self, function: Callable[..., Rows], groups: Sequence[Group] | None = None
    ) -> Rows:
        """The entries that a function selects from each part, whatever the view."""
        results = self.with_view(View())._collect(function, groups=groups)
        return _concatenate_rows([rows for _, rows in results])

    def _observed_engine(self, rows: Rows, shape: tuple[int, ...], view: View) -> ObservedEngine:
        data = Observed(rows.indices.T, rows.values, shape)
        return ObservedEngine(
            data, threads=self.executor.threads, compiled=self.compiled, view=view
        )

    def subtensor(self, indices: Sequence[np.ndarray | None]) -> ObservedEngine:
        entries = self._collect_rows(partial(_entries_at_indices, tuple(indices)))
        _, sub_indices = subtensor_indices(entries.indices, self.shape, indices)
        rows, shape = Rows(np.stack(sub_indices), entries.values), subset_shape(self.shape, indices)
        return self._observed_engine(rows, shape, self.view.subset(indices))

    def residual_slice(self, factors: Factors, fixed: Mapping[int, int]) -> np.ndarray:
        indices = [np.array([fixed[n]]) if n in fixed else None for n in range(self.order)]
        rows = tuple(A if k is None else A[k] for A, k in zip(factors, indices, strict=True))
        return self.subtensor(indices).residual_slice(rows, dict.fromkeys(fixed, 0))

    def locate(self, array: np.ndarray) -> np.ndarray:
        rows = self._collect_rows(partial(_entries_at_indices, (None,) * self.order))
        return np.asarray(array[broadcast_indices(array, rows.indices)])

    def transformed(self, transformation: Transformation) -> PartitionedEngine:
        other = self._without_cached_values()
        other._transformations, other._samples = (*self._transformations, transformation), {}
        return other

    @property
    def entries_fit_in_memory(self) -> bool:
        return fits_in_memory(self._data.count, self.order, self._memory)

    def entries(self, factors: Factors | None = None) -> Entries:
        if not self.entries_fit_in_memory:
            raise MemoryError(f"X: all {self._data.count} entries would have to be held")
        return self.subtensor([None] * self.order).entries(factors)

    def map_residuals(self, work: Callable[[Array], Array], factors: Factors) -> Array:
        """work(x - model) of each entry, in the order of the table."""
        return self._map_rows(partial(map_block_residuals, work), factors)

    def entry_scales(self) -> Array:
        return self._map_rows(partial(call_engine, methodcaller("entry_scales")))

    def _map_rows(self, function: Callable[..., np.ndarray], factors: Any = None) -> np.ndarray:
        """A function of the parts with a number for each entry, entries of weight 0 included."""
        results = self._collect(function, factors, includes_zero_weights=True)
        return np.concatenate([part for _, part in results])

    def unfolding(self, mode: int, rows: slice) -> np.ndarray:
        raise TypeError("X: this method needs all entries; an Observed tensor has only some")

    # Singular vectors are for starts: those of a sample will do

    def gram(self, mode: int, basis: np.ndarray | None = None) -> np.ndarray:
        return self.in_memory.gram(mode, basis)

    def cogram(self, mode: int) -> np.ndarray:
        return self.in_memory.cogram(mode)

    def project(self, mode: int, basis: np.ndarray) -> np.ndarray:
        return self.in_memory.project(mode, basis)
