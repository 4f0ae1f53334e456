"""The engine of arrays that are cut into chunks and need not fit into memory, or one machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import methodcaller
from typing import Any

import array_api_compat.numpy as xp
import numpy as np

from robustcp._util import checks
from robustcp._util.checks import ArgumentError
from robustcp._util.typing import Array, Factors
from robustcp.engines.algebra import Algebra, algebra_for
from robustcp.engines.arrays import is_lazy, to_host, working_dtype
from robustcp.engines.base import Engine, View
from robustcp.engines.blocks.chunks import (
    GROUP_ENTRIES,
    Block,
    DaskSource,
    Source,
    SubsetSource,
    format_box,
)
from robustcp.engines.blocks.schedulers import Graph, Placement, scheduler_for
from robustcp.engines.blocks.tasks import (
    BlockOperation,
    EntryMap,
    Group,
    Inspection,
    Job,
    LossValue,
    ModeEquations,
    Piece,
    SlabSums,
    Subset,
    UnfoldingProduct,
)
from robustcp.engines.dense import BLOCK_BYTES, BLOCK_SHARE, DenseEngine
from robustcp.engines.entries import Entries, model_at
from robustcp.engines.memory import fits_in_memory, format_bytes, parse_bytes
from robustcp.engines.normal_equations import NormalEquations
from robustcp.engines.sample_indices import SampleIndices
from robustcp.engines.storage import DataSummary
from robustcp.engines.threads import TileExecutor, available_threads
from robustcp.engines.tiles import Tile, Tiling, even_split, pass_tiles
from robustcp.engines.weights import Weights
from robustcp.losses import Loss

#: A box: first index and end in each mode.
BoxKey = tuple[tuple[int, int], ...]
#: Parts with no more entries are held in this process; so are the parts that were asked for last.
MAX_CACHED_ENTRIES = 1 << 25
#: Data with no more entries is held for trials, which are many small fits.
MAX_IN_MEMORY_ENTRIES = 1 << 20
#: What this process needs beside the data, in bytes, and how much more than a block reading it.
PROCESS_BYTES, READ_OVERHEAD = 450 << 20, 3


@dataclass(eq=False)
class _SharedState:
    """What all views of the same data have in common.

    Attributes
    ----------
    source : Source
    groups : list of (box, blocks)
    sample_values : array, optional
        The entries of a sample as they are stored.
    loaded_subsets : dict
        Parts that were asked for.
    placement : Placement
        Where the chunks are that a cluster holds.
    """

    source: Source
    groups: list[tuple[Tile, list[Block]]]
    sample_indices: SampleIndices
    sample_values: np.ndarray | None = None
    loaded_subsets: dict[bytes, np.ndarray] = field(default_factory=dict)
    placement: Placement = field(default_factory=Placement)


class ChunkedEngine(Engine):
    """Passes over an array in chunks: tasks are groups of neighbouring ones.

    Parameters
    ----------
    source : Source
    threads : int, optional
        Of this process, where tasks are done by it.
    compiled : bool
    memory : int or str, optional
        How much memory this process may use.
    group : int
        The entries of a group of chunks, if chunks are not larger.
    """

    takes_weights = True
    takes_scales = True

    def __init__(
        self,
        source: Source,
        *,
        threads: int | None = None,
        compiled: bool = True,
        memory: int | str | None = None,
        group: int = GROUP_ENTRIES,
    ) -> None:
        if threads is not None:
            threads = checks.whole_number("threads", threads, 1)
        _check_source(source)
        self.shape, self.xp = source.shape, xp
        self.dtype: Any = working_dtype(np.empty(0, source.dtype))
        self._compiled = compiled
        threads = threads or available_threads()
        max_concurrent, max_entries = _group_limits(source, threads, memory, group)
        self._memory = memory
        self.executor, self._read_executor = TileExecutor(threads), TileExecutor(max_concurrent)
        groups = [(box, source.blocks(box)) for box in source.group_grid(max_entries).boxes]
        self._shared = _SharedState(source, groups, _sample_indices(self.shape))
        self._block_summaries: dict[BoxKey, DataSummary] = {}
        self._by_dask = isinstance(source, DaskSource)

    def __repr__(self) -> str:
        size = "x".join(map(str, self.shape))
        count = len(self._shared.groups)
        return f"ChunkedEngine({size}, {self._source.dtype}, {count} tasks a pass)"

    # What the data is

    @property
    def _source(self) -> Source:
        return self._shared.source

    @property
    def array(self) -> Any:
        """The data as given."""
        return self._source.array

    @property
    def max_abs(self) -> float:
        return self.view.apply_to_magnitude(self._summary.max_abs)

    @property
    def complete(self) -> bool:
        return not (self._summary.has_missing or self.view.masks(self._summary.max_abs))

    @property
    def algebra(self) -> Algebra:
        return algebra_for(self.xp, self._compiled, self.executor.threads)

    @cached_property
    def _summary(self) -> DataSummary:
        """Of all blocks; each is looked at once."""
        self._inspect_blocks()
        summaries = list(self._block_summaries.values())
        max_abs = max(summary.max_abs for summary in summaries)
        if max_abs < 0:
            weightless = "" if self.view.weights is None else " or of weight 0"
            raise ValueError(f"X: all entries are missing (NaN){weightless}")
        if math.isinf(max_abs):
            key = next(
                key for key, summary in self._block_summaries.items() if math.isinf(summary.max_abs)
            )
            location = format_box(tuple(slice(*part) for part in key))
            raise ValueError(f"X: has infinite entries, the first in the chunk at {location}")
        max_abs_unweighted = float(np.max([summary.max_abs_unweighted for summary in summaries]))
        has_missing, has_nan = (
            any(e.has_missing for e in summaries),
            any(e.has_nan for e in summaries),
        )
        return DataSummary(max_abs, has_missing, has_nan, max_abs_unweighted)

    def _inspect_blocks(self) -> None:
        """Find out what there is in the blocks, and take the sample on the way."""
        shared = self._shared
        needs_sample = shared.sample_values is None
        for box, _ in shared.groups if needs_sample else ():
            shared.source.check(box)
        sample_places = _sample_by_block(shared) if needs_sample else {}
        sample_values = (
            np.empty(len(shared.sample_indices.indices[0]), self._source.dtype)
            if needs_sample
            else None
        )
        for _, results in self._map_groups(
            Inspection(), sample_places={b: indices for b, (_, indices) in sample_places.items()}
        ):
            for box, (summary, values) in results:
                self._block_summaries[_box_key(box)] = summary
                if sample_values is not None and values is not None:
                    sample_values[sample_places[_box_key(box)][0]] = values
        if sample_values is not None:
            shared.sample_values = sample_values

    def with_view(self, view: View) -> ChunkedEngine:
        other = copy(self)
        other.view = view
        for name in ("_all_slab_counts", "count", "total_weight", "_view_arrays"):
            other.__dict__.pop(name, None)
        if view.weights is not self.view.weights:
            other._block_summaries = {}
            other.__dict__.pop("_summary", None)
        return other

    def subtensor(self, indices: Sequence[np.ndarray | None]) -> Engine:
        sizes = [
            n if index is None else len(index) for n, index in zip(self.shape, indices, strict=True)
        ]
        increasing = all(index is None or bool(np.all(np.diff(index) > 0)) for index in indices)
        if increasing and math.prod(sizes) > MAX_CACHED_ENTRIES:
            subset = copy(self)
            subset.shape = tuple(sizes)
            source = SubsetSource(self._source, indices)
            groups = [(box, source.blocks(box)) for box in source.grid.boxes]
            subset._shared = _SharedState(source, groups, _sample_indices(subset.shape))
            subset._block_summaries = {}
            for name in [n for n in subset.__dict__ if n in _VIEW_CACHE]:
                del subset.__dict__[name]
            subset.view = _view_subset(self.view, indices)
            return subset
        view = _view_subset(self.view, indices, in_memory=True)
        threads, compiled = self.executor.threads, self._compiled
        return DenseEngine(
            self._load_subset(indices), threads=threads, compiled=compiled, view=view
        )

    @property
    def in_memory(self) -> Engine:
        if math.prod(self.shape) > MAX_IN_MEMORY_ENTRIES:
            return self
        return self.subtensor([None] * self.order)

    def _load_subset(self, indices: Sequence[np.ndarray | None]) -> np.ndarray:
        """The entries at some indices of each mode; the last parts are remembered."""
        full_indices = [
            np.arange(n) if index is None else np.asarray(index, dtype=np.int64)
            for n, index in zip(self.shape, indices, strict=True)
        ]
        key = b"|".join(index.tobytes() for index in full_indices)
        cache = self._shared.loaded_subsets
        if key not in cache:
            sorted_ = [np.unique(index, return_inverse=True) for index in full_indices]
            action = Subset(tuple(index for index, _ in sorted_))
            full_box = tuple(slice(0, n) for n in self.shape)
            groups = [
                g
                for g in self._make_groups()
                if all(
                    np.searchsorted(index, p.start) < np.searchsorted(index, p.stop)
                    for index, p in zip(action.indices, g.box, strict=True)
                )
            ]
            entries = action.assemble(full_box, list(_with_boxes(self._map_groups(action, groups))))
            if any(
                len(inverse) != len(index) or np.any(np.diff(inverse) != 1)
                for index, inverse in sorted_
            ):
                entries = entries[np.ix_(*(inverse for _, inverse in sorted_))]
            while cache and sum(p.size for p in cache.values()) + entries.size > MAX_CACHED_ENTRIES:
                del cache[next(iter(cache))]
            cache[key] = entries
        return cache[key]

    # Tasks

    def _make_groups(
        self,
        boxes: Sequence[tuple[Tile, list[Block]]] | None = None,
        sample_places: dict[BoxKey, Any] | None = None,
    ) -> list[Group]:
        sample_places = sample_places or {}
        groups = []
        for number, (box, blocks) in enumerate(boxes or self._shared.groups):
            pieces = [
                Piece(
                    block,
                    *self._view_arrays.blocks_for(block.box),
                    self._block_summaries.get(_box_key(block.box)),
                    sample_places.get(_box_key(block.box)),
                )
                for block in blocks
            ]
            groups.append(Group(number, box, pieces, list(range(len(pieces)))))
        return groups

    @cached_property
    def _view_arrays(self) -> _ViewArrays:
        return _ViewArrays.from_view(self.view, self._source)

    def _map_groups(
        self,
        action: BlockOperation,
        groups: Sequence[Group] | None = None,
        factors: Factors | None = None,
        sample_places: dict[BoxKey, Any] | None = None,
    ) -> Iterator[tuple[Group, Any]]:
        """What comes of each group, in order."""
        groups = self._make_groups(sample_places=sample_places) if groups is None else groups
        arrays = self._view_arrays
        job = Job(action, arrays.view, factors, self._compiled)
        scheduler = scheduler_for(
            self._read_executor, self._shared.placement, by_dask=self._by_dask
        )
        return zip(groups, scheduler.map(job, groups, arrays.graph), strict=True)

    # Passes

    def normal_equations(
        self, factors: Factors, mode: int, loss: Loss, rows: slice | None = None
    ) -> NormalEquations:
        rows = slice(0, self.shape[mode]) if rows is None else rows
        _ = self._summary
        action = ModeEquations(mode, loss, rows, self._shares_gram(loss, mode))
        groups = [
            group
            for group in self._make_groups()
            if group.box[mode].start < rows.stop and rows.start < group.box[mode].stop
        ]
        full_box = tuple(rows if n == mode else slice(0, size) for n, size in enumerate(self.shape))
        return action.combine(full_box, _with_boxes(self._map_groups(action, groups, factors)))

    def _shares_gram(self, loss: Loss, mode: int) -> bool:
        """Whether all rows of a mode have the same Gram matrix."""
        weights, view = self.view.weights, self.view
        separable_weights = weights is None or (
            isinstance(weights, Weights) and weights.array is None and weights.vectors[mode] is None
        )
        complete = not self._summary.has_nan and not view.masks(self._summary.max_abs)
        return loss.quadratic and separable_weights and view.scales is None and complete

    def value(self, factors: Factors, loss: Loss) -> float:
        _ = self._summary
        return math.fsum(value for _, value in self._map_groups(LossValue(loss), factors=factors))

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

    # Samples and reductions

    def sample(self, factors: Factors | None = None) -> Entries:
        _ = self._summary
        shared = self._shared
        if shared.sample_values is None:
            self._inspect_blocks()
        assert shared.sample_values is not None
        indices, view = shared.sample_indices.indices, self.view
        r = view.apply(shared.sample_values.astype(self.dtype), self.xp)
        if factors is not None:
            r = r - model_at(factors, indices)
            if view.scales is not None:
                r = r / self._view_arrays.scales_at(view, indices)
        if isinstance(view.weights, Weights) and view.weights.has_zeros:
            r = np.where(self._view_arrays.weights_at(view, indices) == 0, np.nan, r)
        values = np.asarray(r, dtype=np.float64)
        observed = ~np.isnan(values)
        if observed.all():
            return Entries(self.shape, values, indices)
        return Entries(self.shape, values, indices).select(observed)

    def slab_sums(
        self,
        work: Callable[[Array], Array],
        factors: Factors | None = None,
        *,
        weighted: bool = False,
    ) -> list[np.ndarray]:
        _ = self._summary
        action = SlabSums(work, weighted)
        full_box = tuple(slice(0, size) for size in self.shape)
        return list(
            action.combine(full_box, _with_boxes(self._map_groups(action, factors=factors)))
        )

    @property
    def entries_fit_in_memory(self) -> bool:
        return fits_in_memory(math.prod(self.shape), self.order, self._memory)

    def entries(self, factors: Factors | None = None) -> Entries:
        """Of all of the data, which must fit into the memory of this process."""
        if not self.entries_fit_in_memory:
            raise MemoryError(f"X: all of {'x'.join(map(str, self.shape))} would have to be held")
        dense = DenseEngine(self._load_subset([None] * self.order), compiled=self._compiled)
        return dense.with_view(
            _view_subset(self.view, [None] * self.order, in_memory=True)
        ).entries(factors)

    def map_residuals(self, work: Callable[[Array], Array], factors: Factors) -> Array:
        return self._map_blocks(partial(_block_residuals, work), factors)

    def entry_scales(self) -> Array:
        zeros = tuple(np.zeros((size, 1), self.dtype) for size in self.shape)
        return self._map_blocks(_block_scales, zeros)

    def _map_blocks(
        self, function: Callable[[DenseEngine, Factors], np.ndarray], factors: Factors
    ) -> Array:
        """An array of Dask of the data's shape, which is computed when it is asked for."""
        lazy = self._source.as_dask()
        if lazy is None:
            dense = self.subtensor([None] * self.order)
            assert isinstance(dense, DenseEngine)
            return function(dense, factors)
        template = function(self._single_entry_engine(), tuple(A[:1] for A in factors))
        block_function = _BlockFunction(
            function, self._view_arrays.view, factors, self._view_arrays.scales, self._compiled
        )
        return lazy.map_blocks(
            block_function, dtype=template.dtype, meta=np.empty((0,) * self.order, template.dtype)
        )

    def _single_entry_engine(self) -> DenseEngine:
        """One entry, for the type of what comes of it."""
        entry = np.zeros((1,) * self.order, self._source.dtype)
        return DenseEngine(entry, threads=1, compiled=False)

    # Unfoldings

    def unfolding(self, mode: int, rows: slice) -> np.ndarray:
        indices = [
            np.arange(rows.start, rows.stop) if n == mode else None for n in range(self.order)
        ]
        subset = self.subtensor(indices)
        return subset.unfolding(mode, slice(0, subset.shape[mode]))

    def gram(self, mode: int, basis: np.ndarray | None = None) -> np.ndarray:
        parts = self._unfolding_products(methodcaller("gram", mode, basis), [mode])
        return np.asarray(sum(parts[1:], start=parts[0]))

    def cogram(self, mode: int) -> np.ndarray:
        parts = self._unfolding_products(methodcaller("cogram", mode), self._other_modes(mode))
        return np.asarray(sum(parts[1:], start=parts[0]))

    def project(self, mode: int, basis: np.ndarray) -> np.ndarray:
        products = self._unfolding_products(
            methodcaller("project", mode, basis), self._other_modes(mode)
        )
        return np.concatenate(products)

    def _other_modes(self, mode: int) -> list[int]:
        return [n for n in range(self.order) if n != mode]

    def _unfolding_products(
        self, work: Callable[[DenseEngine], np.ndarray], uncut_modes: Sequence[int]
    ) -> list[np.ndarray]:
        """Of boxes that some modes are whole in; chunks of these must come together."""
        boxes = self._source.grid.uncut_along(uncut_modes, 4 * GROUP_ENTRIES).boxes
        groups = self._make_groups([(box, self._source.blocks(box)) for box in boxes])
        return [product for _, product in self._map_groups(UnfoldingProduct(work), groups)]


#: What follows from a view.
_VIEW_CACHE = ("_summary", "_all_slab_counts", "count", "total_weight", "_view_arrays")


def _with_boxes(results: Iterator[tuple[Group, Any]]) -> Iterator[tuple[Tile, Any]]:
    """With the boxes of the groups."""
    return ((group.box, result) for group, result in results)


def _box_key(box: Tile) -> BoxKey:
    """A box as a key: slices have no hash."""
    return tuple((part.start, part.stop) for part in box)


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
    source: Source, threads: int, memory: int | str | None, group: int
) -> tuple[int, int]:
    """How many groups are worked on at a time, and their entries, for so much memory.

    More than there are threads: some are read while others are passed over.
    """
    max_concurrent = threads if threads == 1 else 2 * threads
    if memory is None:
        return max_concurrent, group
    budget = parse_bytes(memory)
    available = max(budget - PROCESS_BYTES, budget // 4)
    chunk = source.grid.max_box_entries * source.dtype.itemsize
    if chunk * READ_OVERHEAD > available:
        raise ArgumentError(
            "memory",
            f"{format_bytes(budget)} is too little for chunks of {format_bytes(chunk)} "
            f"({'x'.join(map(str, source.grid.widths))}): reading one takes {READ_OVERHEAD} times "
            f"that, and this process itself up to {format_bytes(PROCESS_BYTES)}",
        )
    max_concurrent = max(1, min(max_concurrent, available // (chunk * READ_OVERHEAD)))
    return max_concurrent, min(
        group, available // (max_concurrent * READ_OVERHEAD * source.dtype.itemsize)
    )


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
    """For each block which entries of the sample are in it, and where."""
    indices, order = shared.sample_indices.indices, len(shared.source.shape)
    boxes = [block.box for _, blocks in shared.groups for block in blocks]
    edges = [np.unique([box[n].start for box in boxes]) for n in range(order)]
    block_number = np.zeros(len(indices[0]), dtype=np.int64)
    for index, cuts in zip(indices, edges, strict=True):
        block_number = block_number * len(cuts) + np.searchsorted(cuts, index, side="right") - 1
    sort_order = np.argsort(block_number, kind="stable")
    sorted_numbers, entries_of_block = block_number[sort_order], {}
    for box in boxes:
        own_number = 0
        for part, cuts in zip(box, edges, strict=True):
            own_number = own_number * len(cuts) + int(np.searchsorted(cuts, part.start))
        first, last = np.searchsorted(sorted_numbers, (own_number, own_number + 1))
        own_entries = sort_order[first:last]
        if own_entries.size:
            pairs = zip(indices, box, strict=True)
            entries_of_block[_box_key(box)] = (
                own_entries,
                tuple(index[own_entries] - part.start for index, part in pairs),
            )
    return entries_of_block


def _view_subset(
    view: View, indices: Sequence[np.ndarray | None], *, in_memory: bool = False
) -> View:
    """The view of a part; arrays that are computed when asked for are, if it is to be here."""
    subset = view.subset(indices)
    if not in_memory:
        return subset
    weights, scales = subset.weights, subset.scales
    if isinstance(weights, Weights) and is_lazy(weights.array):
        subset = replace(subset, weights=replace(weights, array=to_host(weights.array)))
    if scales is not None and isinstance(scales.slabs, Weights) and is_lazy(scales.slabs.array):
        slabs = replace(scales.slabs, array=to_host(scales.slabs.array))
        subset = replace(subset, scales=replace(scales, slabs=slabs))
    return subset


@dataclass(frozen=True, eq=False)
class _ViewArrays:
    """What a view has beside the data: arrays of weights and of scales, by blocks.

    Attributes
    ----------
    view : View
        Without these arrays.
    weights, scales : array, optional
    graph : Graph
        That of the data, and of those that are computed when asked for.
    """

    view: View
    weights: Any
    scales: Any
    graph: Graph

    @classmethod
    def from_view(cls, view: View, source: Source) -> _ViewArrays:
        weights, scales = view.weights, view.scales
        weight_array: Any = None
        scale_array: Any = None
        if isinstance(weights, Weights) and weights.array is not None:
            weight_array = weights.array
            view = replace(view, weights=replace(weights, array=None))
        if (
            scales is not None
            and isinstance(scales.slabs, Weights)
            and scales.slabs.array is not None
        ):
            scale_array = scales.slabs.array
            without_array = replace(scales, slabs=replace(scales.slabs, array=None))
            view = replace(view, scales=without_array)
        return cls(view, weight_array, scale_array, Graph(dict(source.graph), dict(source.futures)))

    def blocks_for(self, box: Tile) -> tuple[Block | None, Block | None]:
        """What stands for the parts of both arrays that belong to a block."""
        return self._block_for(self.weights, box), self._block_for(self.scales, box)

    def _block_for(self, array: Any, box: Tile) -> Block | None:
        if array is None:
            return None
        array_box = _broadcast_box(array, box)
        if not is_lazy(array):
            return Block(box, to_host(array)[array_box])
        source = DaskSource(array[array_box].rechunk(-1))
        self.graph.nodes.update(source.graph)
        self.graph.futures.update(source.futures)
        (block,) = source.blocks(tuple(slice(0, size) for size in source.shape))
        return replace(block, box=box)

    def weights_at(self, view: View, indices: Sequence[np.ndarray]) -> np.ndarray:
        """The weights of some entries."""
        assert isinstance(view.weights, Weights)
        return _weights_at(view.weights, indices)

    def scales_at(self, view: View, indices: Sequence[np.ndarray]) -> np.ndarray:
        """The scales of some entries."""
        scales = view.scales
        assert scales is not None
        slabs = scales.slabs
        if not isinstance(slabs, Weights) or not is_lazy(slabs.array):
            return scales.values_at(indices)
        u = _weights_at(slabs, indices)
        if scales.signal is not None:
            u = u * scales.signal.values_at(indices)
        return scales.apply_unit_and_floor(u, len(indices[0]))


def _broadcast_box(array: Any, box: Tile) -> Tile:
    """A box, where modes of size 1 stand for all indices."""
    pairs = zip(box, array.shape, strict=True)
    return tuple(part if size > 1 else slice(0, 1) for part, size in pairs)


def _weights_at(weights: Weights, indices: Sequence[np.ndarray]) -> np.ndarray:
    array = weights.array
    if not is_lazy(array):
        return weights.values_at(indices)
    assert array is not None
    index = (i if size > 1 else 0 * i for i, size in zip(indices, array.shape, strict=True))
    return np.asarray(array.vindex[tuple(index)].compute(), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class _BlockFunction:
    """What is done with each block of an array that is computed when it is asked for."""

    function: Callable[[DenseEngine, Factors], np.ndarray]
    view: View
    factors: Factors
    scales: Any
    compiled: bool

    def __call__(self, block: np.ndarray, block_info: Any = None) -> np.ndarray:
        box = tuple(slice(a, b) for a, b in block_info[0]["array-location"])
        scales = (
            None if self.scales is None else to_host(self.scales[_broadcast_box(self.scales, box)])
        )
        job = Job(EntryMap(self.function), self.view, self.factors, self.compiled)
        piece = Piece(Block(box, block), None, None if scales is None else Block(box, scales))
        return np.asarray(job.run_piece(piece, [block, None, scales]))


def _block_residuals(
    work: Callable[[Array], Array], engine: DenseEngine, factors: Factors
) -> np.ndarray:
    return np.asarray(engine.map_residuals(work, factors))


def _block_scales(engine: DenseEngine, factors: Factors) -> np.ndarray:
    return np.asarray(engine.entry_scales())
