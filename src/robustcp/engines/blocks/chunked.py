"""The engine of arrays that are cut into chunks and need not fit into memory, or one machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import methodcaller
from typing import Any

import array_api_compat.numpy as xp
import numpy as np

from robustcp._util.typing import Array, Factors
from robustcp.engines.arrays import is_lazy, to_host, working_dtype
from robustcp.engines.base import Engine, View
from robustcp.engines.blocks.block_engine import (
    BoxKey,
    DenseBlockEngine,
    box_key,
    concurrent_pieces,
    thread_count,
)
from robustcp.engines.blocks.chunks import (
    GROUP_ENTRIES,
    Block,
    DaskSource,
    Source,
    TransformedSource,
    format_box,
    indices_within,
    volume,
)
from robustcp.engines.blocks.schedulers import Graph, Placement, Scheduler, scheduler_for
from robustcp.engines.blocks.tasks import (
    Collection,
    Group,
    Job,
    Piece,
    call_engine,
    map_block_residuals,
)
from robustcp.engines.dense import BLOCK_BYTES, BLOCK_SHARE, DenseEngine
from robustcp.engines.entries import Entries, model_at
from robustcp.engines.entry_field import broadcast_box
from robustcp.engines.limits import drop_satisfied
from robustcp.engines.memory import fits_in_memory, format_bytes
from robustcp.engines.preprocessing import Transformation
from robustcp.engines.sample_indices import SampleIndices
from robustcp.engines.storage import DataSummary
from robustcp.engines.threads import TileExecutor
from robustcp.engines.tiles import Tile, Tiling, even_split, pass_tiles
from robustcp.losses import Loss

#: Parts with no more entries are held in this process; so are the parts that were loaded last.
MAX_CACHED_ENTRIES = 1 << 25
#: Data with no more entries is held for trials, which are many small fits.
MAX_IN_MEMORY_ENTRIES = 1 << 20
#: The memory that reading a block takes, in units of the block.
READ_OVERHEAD = 3


@dataclass(eq=False)
class _SharedState:
    """What all views of the same data have in common.

    Attributes
    ----------
    source : Source
    groups : list of (box, blocks)
    sample_indices : SampleIndices
    sample_values : array, optional
        The entries of a sample as they are stored.
    loaded_subsets : dict
        The parts that were loaded last.
    placement : Placement
        Where the chunks are that a cluster holds.
    """

    source: Source
    groups: list[tuple[Tile, list[Block]]]
    sample_indices: SampleIndices
    sample_values: np.ndarray | None = None
    loaded_subsets: dict[bytes, np.ndarray] = field(default_factory=dict)
    placement: Placement = field(default_factory=Placement)

    @classmethod
    def of(cls, source: Source, boxes: Iterable[Tile]) -> _SharedState:
        groups = [(box, source.blocks(box)) for box in boxes]
        return cls(source, groups, _sample_indices(source.shape))


class ChunkedEngine(DenseBlockEngine):
    """Passes over an array in chunks: tasks are groups of neighbouring ones.

    Parameters
    ----------
    source : Source
    threads : int, optional
        The threads of this process, where it does the tasks.
    compiled : bool
    memory : int or str, optional
        How much memory this process may use.
    group : int
        The entries of a group of chunks, if chunks are not larger.
    """

    def __init__(
        self,
        source: Source,
        *,
        threads: int | None = None,
        compiled: bool = True,
        memory: int | str | None = None,
        group: int = GROUP_ENTRIES,
    ) -> None:
        threads = thread_count(threads)
        _check_source(source)
        self.shape, self.xp = source.shape, xp
        self.dtype: Any = working_dtype(np.empty(0, source.dtype))
        self.compiled, self._memory = compiled, memory
        max_concurrent, max_entries = _group_limits(source, threads, memory, group)
        self.executor, self._read_executor = TileExecutor(threads), TileExecutor(max_concurrent)
        self._shared = _SharedState.of(source, source.group_grid(max_entries).boxes)
        self._block_summaries = {}
        self._by_dask = isinstance(source, DaskSource)

    def __repr__(self) -> str:
        size = "x".join(map(str, self.shape))
        count = len(self._shared.groups)
        return f"ChunkedEngine({size}, {self._source.dtype}, {count} tasks a pass)"

    @property
    def _source(self) -> Source:
        return self._shared.source

    @property
    def array(self) -> Any:
        """The data as given."""
        return self._source.array

    # Pieces

    def _groups(
        self,
        boxes: Sequence[tuple[Tile, list[Block]]] | None = None,
        sample_places: dict[BoxKey, Any] | None = None,
    ) -> list[Group]:
        """The blocks of some boxes, by default all, with the blocks of weights and scales."""
        summaries, places, groups = self._block_summaries, sample_places or {}, []
        for number, (box, blocks) in enumerate(boxes or self._shared.groups):
            keys = [box_key(block.box) for block in blocks]
            pieces = [
                Piece(self._with_field_blocks(block), summaries.get(key), places.get(key))
                for block, key in zip(blocks, keys, strict=True)
            ]
            groups.append(Group(number, box, pieces))
        return groups

    def _scheduler(self) -> Scheduler:
        return scheduler_for(self._read_executor, self._shared.placement, by_dask=self._by_dask)

    @cached_property
    def _job_view(self) -> View:
        return super()._job_view.with_field_arrays(None, None)

    @cached_property
    def _graph(self) -> Graph:
        return Graph(dict(self._source.graph), dict(self._source.futures))

    def _with_field_blocks(self, block: Block) -> tuple[Block | None, ...]:
        """A block with those of the arrays of weights and of scales."""
        return block, *(self._field_block(array, block.box) for array in self.view.field_arrays)

    def _field_block(self, array: Any, box: Tile) -> Block | None:
        if array is None:
            return None
        array_box = broadcast_box(array, box)
        if not is_lazy(array):
            return Block(box, to_host(array)[array_box])
        source = DaskSource(array[array_box].rechunk(-1))
        self._graph.nodes.update(source.graph)
        self._graph.futures.update(source.futures)
        (block,) = source.blocks(tuple(slice(0, size) for size in source.shape))
        return replace(block, box=box)

    # What the data is

    def _refuse(self, summary: DataSummary) -> None:
        if summary.max_abs < 0:
            weightless = "" if self.view.weights is None else " or of weight 0"
            raise ValueError(f"X: all entries are missing (NaN){weightless}")
        summaries = self._block_summaries.items()
        key = next(key for key, part in summaries if math.isinf(part.max_abs))
        location = format_box(tuple(slice(*part) for part in key))
        raise ValueError(f"X: has infinite entries, the first in the chunk at {location}")

    def _inspect_blocks(self) -> None:
        """Summarize the entries of each block, and take the sample on the way."""
        shared = self._shared
        if shared.sample_values is not None:
            return super()._inspect_blocks()
        for box, _ in shared.groups:
            shared.source.check(box)
        sample = _sample_by_block(shared)
        groups = self._groups(sample_places={key: indices for key, (_, indices) in sample.items()})
        sample_values = np.empty(len(shared.sample_indices.indices[0]), self._source.dtype)
        for box, (summary, values) in self._collect(_inspect, groups=groups):
            self._block_summaries[box_key(box)] = summary
            if values is not None:
                sample_values[sample[box_key(box)][0]] = values
        shared.sample_values = sample_values

    def row_blocks(self, mode: int, rank: int, loss: Loss) -> Sequence[slice]:
        if self._shares_gram(loss, mode):
            return [slice(0, self.shape[mode])]
        itemsize = np.dtype(self.dtype).itemsize
        row = (rank * (rank + 1) // 2 + rank) * itemsize
        limit = max(BLOCK_BYTES, int(BLOCK_SHARE * math.prod(self.shape) * itemsize))
        starts = sorted({box[mode].start for box, _ in self._shared.groups})
        blocks, first = [], 0
        for start, stop in zip(starts, [*starts[1:], self.shape[mode]], strict=True):
            if (stop - first) * row > limit and start > first:
                blocks.append(slice(first, start))
                first = start
        return [*blocks, slice(first, self.shape[mode])]

    # Parts and samples

    def subtensor(self, indices: Sequence[np.ndarray | None]) -> Engine:
        shape = tuple(
            n if index is None else len(index) for n, index in zip(self.shape, indices, strict=True)
        )
        increasing = all(index is None or bool(np.all(np.diff(index) > 0)) for index in indices)
        view = self.view.subset(indices)
        if not increasing or math.prod(shape) <= MAX_CACHED_ENTRIES:
            view = view.map_fields(lambda field: field.in_memory())
            data, threads = self._load_subset(indices), self.executor.threads
            return DenseEngine(data, threads=threads, compiled=self.compiled, view=view)
        source = self._source.subset(indices)
        subset = self._without_cached_values()
        subset.shape, subset.view = shape, view
        subset._shared, subset._block_summaries = _SharedState.of(source, source.grid.boxes), {}
        return subset

    @property
    def in_memory(self) -> Engine:
        return self if math.prod(self.shape) > MAX_IN_MEMORY_ENTRIES else self._load_all()

    def _load_all(self) -> DenseEngine:
        """All of the data in this process."""
        view = self.view.map_fields(lambda field: field.in_memory())
        data, threads = self._load_subset([None] * self.order), self.executor.threads
        return DenseEngine(data, threads=threads, compiled=self.compiled, view=view)

    def _load_subset(self, indices: Sequence[np.ndarray | None]) -> np.ndarray:
        """The entries at some indices of each mode; the parts that were loaded last are kept."""
        full_indices = [
            np.arange(n) if index is None else np.asarray(index, dtype=np.int64)
            for n, index in zip(self.shape, indices, strict=True)
        ]
        key = b"|".join(index.tobytes() for index in full_indices)
        cache = self._shared.loaded_subsets
        if key not in cache:
            sorted_indices = [np.unique(index, return_inverse=True) for index in full_indices]
            entries = self._load_box([index for index, _ in sorted_indices])
            order = [inverse for _, inverse in sorted_indices]
            if any(
                len(inverse) != size or np.any(np.diff(inverse) != 1)
                for inverse, size in zip(order, entries.shape, strict=True)
            ):
                entries = entries[np.ix_(*order)]
            while cache and sum(p.size for p in cache.values()) + entries.size > MAX_CACHED_ENTRIES:
                del cache[next(iter(cache))]
            cache[key] = entries
        return cache[key]

    def _load_box(self, indices: Sequence[np.ndarray]) -> np.ndarray:
        """The entries at some rising indices of each mode."""
        groups = [g for g in self._groups() if volume(indices_within(indices, g.box)[0])]
        results = list(self._collect(partial(_entries_at_indices, indices), groups=groups))
        if len(results) == 1:
            return np.asarray(results[0][1])
        entries = np.empty(tuple(map(len, indices)), self._source.dtype)
        for box, values in results:
            entries[indices_within(indices, box)[0]] = values
        return entries

    def sample(self, factors: Factors | None = None) -> Entries:
        self._check_data()
        stored, view = self._shared.sample_values, self.view
        assert stored is not None
        indices = self._shared.sample_indices.indices
        r = view.apply(stored.astype(self.dtype), self.xp)
        if factors is not None:
            r = r - model_at(factors, indices)
            if view.scales is not None:
                r = r / view.scales.values_at(indices)
            if view.limits is not None:
                sides = view.limits.sides_at(stored.astype(self.dtype), indices)
                r = drop_satisfied(r, sides, math.nan, self.xp)
        if view.weights is not None and view.weights.has_zeros:
            r = np.where(view.weights.values_at(indices) == 0, np.nan, r)
        values = np.asarray(r, dtype=np.float64)
        observed = ~np.isnan(values)
        if observed.all():
            return Entries(self.shape, values, indices)
        return Entries(self.shape, values, indices).select(observed)

    @property
    def entries_fit_in_memory(self) -> bool:
        return fits_in_memory(math.prod(self.shape), self.order, self._memory)

    def entries(self, factors: Factors | None = None) -> Entries:
        """x, or x - model, of all of the data, which must fit into the memory of this process."""
        if not self.entries_fit_in_memory:
            raise MemoryError(f"X: all of {'x'.join(map(str, self.shape))} would have to be held")
        return self._load_all().entries(factors)

    def transformed(self, transformation: Transformation) -> ChunkedEngine:
        source = TransformedSource(self._source, transformation)
        other = self._without_cached_values()
        boxes = [box for box, _ in self._shared.groups]
        other._shared, other._block_summaries = _SharedState.of(source, boxes), {}
        return other

    def fibre_locations(self, mode: int, location: str) -> np.ndarray:
        out = np.empty([1 if n == mode else size for n, size in enumerate(self.shape)])
        locations = methodcaller("fibre_locations", mode, location)
        grid = self._source.grid.uncut_along([mode], 4 * GROUP_ENTRIES)
        groups = self._groups([(box, self._source.blocks(box)) for box in grid.boxes])
        for box, part in self._ask_engines(locations, groups, needs_whole_group=True):
            out[(*box[:mode], slice(0, 1), *box[mode + 1 :])] = part
        return out

    # Arrays of the data's shape

    def map_residuals(self, work: Callable[[Array], Array], factors: Factors) -> Array:
        return self._map_entries(partial(map_block_residuals, work), factors)

    def entry_scales(self) -> Array:
        zeros = tuple(np.zeros((size, 1), self.dtype) for size in self.shape)
        return self._map_entries(partial(call_engine, methodcaller("entry_scales")), zeros)

    def _map_entries(self, function: Callable[..., np.ndarray], factors: Factors) -> Array:
        """An array of Dask with a number for each entry, which is computed when it is asked for."""
        lazy = self._source.as_dask()
        if lazy is None:
            return np.asarray(function(self._load_all(), factors, None))
        entry = np.zeros((1,) * self.order, self._source.dtype)
        template = function(
            DenseEngine(entry, threads=1, compiled=False), tuple(A[:1] for A in factors), None
        )
        job = Job(Collection(function), self._job_view, factors, self.compiled)
        _, scales = self.view.field_arrays
        return lazy.map_blocks(
            _BlockFunction(job, scales),
            dtype=template.dtype,
            meta=np.empty((0,) * self.order, template.dtype),
        )

    # Unfoldings

    def unfolding(self, mode: int, rows: slice) -> np.ndarray:
        indices = [
            np.arange(rows.start, rows.stop) if n == mode else None for n in range(self.order)
        ]
        subset = self.subtensor(indices)
        return subset.unfolding(mode, slice(0, subset.shape[mode]))

    def gram(self, mode: int, basis: np.ndarray | None = None) -> np.ndarray:
        products = self._unfolding_products(methodcaller("gram", mode, basis), [mode])
        return np.asarray(sum(products[1:], start=products[0]))

    def cogram(self, mode: int) -> np.ndarray:
        products = self._unfolding_products(methodcaller("cogram", mode), self._other_modes(mode))
        return np.asarray(sum(products[1:], start=products[0]))

    def project(self, mode: int, basis: np.ndarray) -> np.ndarray:
        projection = methodcaller("project", mode, basis)
        return np.concatenate(self._unfolding_products(projection, self._other_modes(mode)))

    def _other_modes(self, mode: int) -> list[int]:
        return [n for n in range(self.order) if n != mode]

    def _unfolding_products(
        self, method: Callable[[Any], np.ndarray], uncut_modes: Sequence[int]
    ) -> list[np.ndarray]:
        """A method of boxes that some modes are whole in; chunks of these must come together."""
        boxes = self._source.grid.uncut_along(uncut_modes, 4 * GROUP_ENTRIES).boxes
        groups = self._groups([(box, self._source.blocks(box)) for box in boxes])
        results = self._ask_engines(method, groups, needs_whole_group=True)
        return [product for _, product in results]


# Functions of the engine of a block, its factors and its piece, for `ChunkedEngine._collect`


def _inspect(
    engine: DenseEngine, factors: Factors | None, piece: Piece
) -> tuple[DataSummary, np.ndarray | None]:
    """The summary of a block, and its part of a sample."""
    places = piece.sample_indices
    return engine.compute_summary(), None if places is None else np.array(engine.array[places])


def _entries_at_indices(
    indices: Sequence[np.ndarray], engine: DenseEngine, factors: Factors | None, piece: Piece
) -> np.ndarray:
    _, local_indices = indices_within(indices, piece.box)
    return np.ascontiguousarray(engine.array[np.ix_(*local_indices)])


@dataclass(frozen=True, eq=False)
class _BlockFunction:
    """The job of each block of an array that is computed when it is asked for."""

    job: Job
    scales: Any

    def __call__(self, data: np.ndarray, block_info: Any = None) -> np.ndarray:
        box = tuple(slice(a, b) for a, b in block_info[0]["array-location"])
        scales = self.scales
        if scales is not None:
            scales = to_host(scales[broadcast_box(scales, box)])
        return np.asarray(self.job.run_piece(Piece((Block(box, None),)), [data, None, scales]))


def _check_source(source: Source) -> None:
    """Refuse what is not a tensor of real numbers."""
    if source.dtype.kind not in "fiub":
        raise TypeError(f"X: dtype {source.dtype} is not one of real numbers")
    shape = source.shape
    if len(shape) < 2:
        raise ValueError(f"X: must have at least 2 modes, got {len(shape)} (shape {shape})")
    if 0 in shape:
        raise ValueError(f"X: has an empty mode (shape {shape})")


def _group_limits(
    source: Source, threads: int, memory: int | str | None, max_entries: int
) -> tuple[int, int]:
    """How many groups are worked on at a time, and the entries of a group, for some memory.

    There are more groups than threads: some are read while others are passed over.
    """
    max_concurrent = threads if threads == 1 else 2 * threads
    if memory is None:
        return max_concurrent, max_entries
    itemsize = source.dtype.itemsize
    chunk_bytes = source.grid.max_box_entries * itemsize
    description = (
        f" for chunks of {format_bytes(chunk_bytes)} "
        f"({'x'.join(map(str, source.grid.widths))}): reading one takes {READ_OVERHEAD} times that"
    )
    max_concurrent, available = concurrent_pieces(
        memory, READ_OVERHEAD * chunk_bytes, description, max_concurrent
    )
    most_entries = available // (max_concurrent * READ_OVERHEAD * itemsize)
    return max_concurrent, min(max_entries, most_entries)


def _sample_indices(shape: tuple[int, ...]) -> SampleIndices:
    """Where the entries of a sample are: as in an array in memory, so that fits are the same."""
    tiling, half = Tiling(), -(-math.prod(shape) // 2)
    entries = min(tiling.entries, max(tiling.min_entries, half))
    split, all_rows = even_split(shape), slice(0, shape[0])
    tiles = partial(pass_tiles, shape, split, 0, all_rows, tiling, entries)
    return SampleIndices(shape, range(len(shape)), tiles, tiling.sample_entries)


def _sample_by_block(
    shared: _SharedState,
) -> dict[BoxKey, tuple[np.ndarray, tuple[np.ndarray, ...]]]:
    """For each block which entries of the sample are in it, and their indices in the block."""
    indices = shared.sample_indices.indices
    boxes = [block.box for _, blocks in shared.groups for block in blocks]
    edges = [np.unique([part.start for part in parts]) for parts in zip(*boxes, strict=True)]
    counts = tuple(map(len, edges))

    def block_numbers(indices: Iterable[Any]) -> Any:
        pairs = zip(edges, indices, strict=True)
        numbers = [np.searchsorted(cuts, index, side="right") - 1 for cuts, index in pairs]
        return np.ravel_multi_index(numbers, counts)

    numbers = block_numbers(indices)
    order = np.argsort(numbers, kind="stable")
    sorted_numbers, entries_of_block = numbers[order], {}
    for box in boxes:
        number = block_numbers(part.start for part in box)
        first, last = np.searchsorted(sorted_numbers, (number, number + 1))
        if first < last:
            own = order[first:last]
            local = (index[own] - part.start for index, part in zip(indices, box, strict=True))
            entries_of_block[box_key(box)] = own, tuple(local)
    return entries_of_block
