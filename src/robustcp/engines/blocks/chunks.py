"""Arrays that are cut into chunks and lie elsewhere: in a store, in a file, on other machines.

What stands for a block of such an array is read where the block is worked on.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp.engines.arrays import take_indices, working_dtype
from robustcp.engines.base import Engine
from robustcp.engines.dense import DenseEngine
from robustcp.engines.preprocessing import Transformation
from robustcp.engines.tiles import Tile, slice_length, split_boxes

if TYPE_CHECKING:
    from robustcp.engines.blocks.tasks import Job

#: Entries of a group of neighbouring chunks, which is one task: a task costs some milliseconds.
GROUP_ENTRIES = 1 << 23


class ChunkError(OSError):
    """A chunk of the data that cannot be read."""


def library_of(data: Any) -> str:
    """The library that data comes from, by name."""
    return type(data).__module__.partition(".")[0]


# Where an array is cut


@dataclass(frozen=True)
class Grid:
    """Where an array is cut along each mode.

    Attributes
    ----------
    edges : tuple of tuples of int, one for each mode
        From 0 to the size of the mode.

    Examples
    --------
    >>> Grid.from_chunks(((2, 2, 1), (4,))).boxes[1]
    (slice(2, 4, None), slice(0, 4, None))
    """

    edges: tuple[tuple[int, ...], ...]

    @classmethod
    def from_chunks(cls, chunks: Sequence[Sequence[int]]) -> Grid:
        """From the sizes of the chunks along each mode."""
        return cls(tuple((0, *itertools.accumulate(map(int, sizes))) for sizes in chunks))

    @classmethod
    def regular(cls, shape: Sequence[int], chunk: Sequence[int] | None) -> Grid:
        """From the size of one chunk; without one, boxes that are runs of a C-ordered array."""
        if chunk is None:
            parts_of_modes = zip(*split_boxes(shape, GROUP_ENTRIES), strict=True)
            return cls(tuple((0, *sorted({p.stop for p in parts})) for parts in parts_of_modes))
        pairs = zip(shape, chunk, strict=True)
        return cls(tuple((*range(0, size, max(1, step)), size) for size, step in pairs))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(edges[-1] for edges in self.edges)

    @property
    def widths(self) -> tuple[int, ...]:
        """The size of the largest interval of each mode."""
        return tuple(int(np.diff(edges).max()) for edges in self.edges)

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of intervals of each mode."""
        return tuple(len(edges) - 1 for edges in self.edges)

    @cached_property
    def boxes(self) -> list[Tile]:
        """All boxes, those of the last mode fastest."""
        intervals = [[slice(a, b) for a, b in itertools.pairwise(edges)] for edges in self.edges]
        return list(itertools.product(*intervals))

    @cached_property
    def max_box_entries(self) -> int:
        """The number of entries of the largest box."""
        return math.prod(self.widths)

    def coarsen(self, max_entries: int) -> Grid:
        """A coarser grid: neighbours are merged while boxes have at most `max_entries`.

        >>> Grid.regular((400, 400, 400), (100, 100, 100)).coarsen(1 << 23).edges[0]
        (0, 200, 400)
        """
        for mode in sorted(range(len(self.edges)), key=lambda n: self.edges[n][1]):
            if self.counts[mode] > 1:
                coarser = self._merge_pairs(mode)
                if coarser.max_box_entries <= max_entries:
                    return coarser.coarsen(max_entries)
        return self

    def _merge_pairs(self, mode: int) -> Grid:
        edges = self.edges[mode]
        merged = (*edges[:-1:2], edges[-1])
        return Grid((*self.edges[:mode], merged, *self.edges[mode + 1 :]))

    def uncut_along(self, modes: Sequence[int], max_entries: int) -> Grid:
        """A grid without cuts along some modes, with boxes of at most `max_entries` if possible."""
        edges = [(0, cut[-1]) if n in modes else cut for n, cut in enumerate(self.edges)]
        while True:
            grid = Grid(tuple(edges))
            widest = {n: int(np.diff(edges[n]).max()) for n in range(len(edges)) if n not in modes}
            if grid.max_box_entries <= max_entries or max(widest.values(), default=1) == 1:
                return grid
            mode = max(widest, key=lambda n: widest[n])
            halves = [(a + b) // 2 for a, b in itertools.pairwise(edges[mode])]
            edges[mode] = tuple(sorted({*edges[mode], *halves}))

    def overlapping_numbers(self, box: Tile) -> Iterator[tuple[int, ...]]:
        """The numbers, for each mode, of the boxes that overlap another box."""
        ranges = []
        for edges, part in zip(self.edges, box, strict=True):
            first = int(np.searchsorted(edges, part.start, side="right")) - 1
            last = int(np.searchsorted(edges, part.stop, side="left"))
            ranges.append(range(first, last))
        return itertools.product(*ranges)

    def box(self, number: Sequence[int]) -> Tile:
        """The box with this number in each mode."""
        pairs = zip(self.edges, number, strict=True)
        return tuple(slice(edges[k], edges[k + 1]) for edges, k in pairs)

    def subset(self, indices: Sequence[np.ndarray | None]) -> Grid:
        """The grid of the entries at some rising indices of each mode, without empty boxes."""
        new_edges = []
        for edges, index in zip(self.edges, indices, strict=True):
            cut = edges if index is None else tuple(np.searchsorted(index, edges).tolist())
            new_edges.append(tuple(sorted(set(cut))))
        return Grid(tuple(new_edges))


# Blocks


class Readable(ABC):
    """Stands for a block, and can be sent to where the block is read."""

    def read(self) -> Any:
        """What the block holds; a `ChunkError` if it cannot be read."""
        try:
            return self._read()
        except Exception as error:
            raise unreadable_error(self._name(), error) from None

    @abstractmethod
    def _read(self) -> Any: ...

    @abstractmethod
    def _name(self) -> str:
        """What messages call the block that cannot be read."""


@dataclass(frozen=True, eq=False)
class Region(Readable):
    """A block of an array that is read by indexing it."""

    array: Any
    box: Tile
    names: tuple[str, ...] = ()

    def _read(self) -> np.ndarray:
        return self._read_box(self.box)

    def _read_box(self, box: Tile) -> np.ndarray:
        part = self.array[box]
        return np.asarray(part.values if self.names else part)

    def _name(self) -> str:
        """The first chunk that cannot be read; the whole block if each of them can."""
        grid = Grid.regular(self.array.shape, _chunk_shape(self.array))
        for number in grid.overlapping_numbers(self.box):
            try:
                self._read_box(grid.box(number))
            except Exception:
                return f"the chunk at {format_box(grid.box(number))}"
        return f"the chunk at {format_box(self.box)}"


@dataclass(frozen=True, eq=False)
class GraphBlock(Readable):
    """A block that is computed from a graph of Dask of its own."""

    graph: Mapping[Any, Any]
    key: Any
    box: Tile

    def _read(self) -> np.ndarray:
        import dask

        return np.asarray(dask.get(self.graph, self.key))

    def _name(self) -> str:
        return f"the chunk at {format_box(self.box)}"


def unreadable_error(name: str, error: BaseException) -> ChunkError:
    """An error that says what cannot be read."""
    text = " ".join(str(error).split()) or type(error).__name__
    return ChunkError(f"X: {name} cannot be read ({text[:200]})")


@dataclass(frozen=True, eq=False)
class Block:
    """A block of an array.

    Attributes
    ----------
    box : Tile
        Where the block is.
    data : Readable, array, or key of a graph
        What stands for the block.
    selection : index, optional
        The index of the block in the array that is read, if it is not all of it.
    """

    box: Tile
    data: Any
    selection: tuple[Any, ...] | None = None

    def load(self, data: Any) -> Any:
        """The block from what stands for it: in C order, so that passes are the same everywhere."""
        array = data.read() if isinstance(data, Readable) else np.asarray(data)
        return np.ascontiguousarray(array if self.selection is None else array[self.selection])

    def engine(self, arrays: Sequence[Any], job: Job) -> Engine | None:
        """The engine of the block, given the arrays of its piece; None if no entry counts."""
        data, *field_arrays = arrays
        view = job.view.restrict(self.box)
        if field_arrays:
            view = view.with_field_arrays(*field_arrays)
        return DenseEngine(data, threads=1, compiled=job.compiled, view=view)


def format_box(box: Tile) -> str:
    """A box as text, like an index.

    >>> format_box((slice(0, 2), slice(4, 6)))
    '[0:2, 4:6]'
    """
    return "[" + ", ".join(f"{part.start}:{part.stop}" for part in box) + "]"


# What arrays are cut into chunks


class Source(ABC):
    """An array that is cut into chunks.

    Attributes
    ----------
    array
        As given.
    grid : Grid
        Of its chunks.
    graph : mapping
        A graph of Dask, in which keys stand for blocks that are not `Readable`.
    futures : mapping from a key to a future
        The blocks that a cluster holds.
    """

    array: Any
    grid: Grid
    graph: Mapping[Any, Any] = MappingProxyType({})
    futures: Mapping[Any, Any] = MappingProxyType({})

    @property
    def shape(self) -> tuple[int, ...]:
        return self.grid.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = np.dtype(self.array.dtype)
        return dtype

    @abstractmethod
    def blocks(self, group: Tile) -> list[Block]:
        """The blocks of a group, in order."""

    def group_grid(self, max_entries: int) -> Grid:
        """Groups of neighbouring chunks of at most so many entries, where chunks are not larger."""
        return self.grid.coarsen(max_entries)

    def check(self, group: Tile) -> None:  # noqa: B027 - most have nothing to check
        """Refuse a box with chunks that are not stored and would be read as a fill value."""

    def subset(self, indices: Sequence[np.ndarray | None]) -> Source:
        """The entries at some rising indices of each mode; None stands for all."""
        return SubsetSource(self, indices)

    @abstractmethod
    def as_dask(self) -> Any:
        """The data as an array of Dask; None if Dask is not installed."""


class ReversedModesArray:
    """An array that is read by indexing, with its modes in reverse, as MATLAB writes them."""

    def __init__(self, array: Any) -> None:
        self.array, self.dtype = array, array.dtype
        self.shape: tuple[int, ...] = tuple(array.shape[::-1])
        self.ndim = len(self.shape)
        self.chunks = None if array.chunks is None else tuple(array.chunks[::-1])

    def __getitem__(self, index: Any) -> np.ndarray:
        index = index if isinstance(index, tuple) else (index,)
        index = (
            (*index, *(slice(None),) * (self.ndim - len(index)))
            if Ellipsis not in index
            else (...,)
        )
        return np.asarray(self.array[index[::-1]]).T


class IndexedSource(Source):
    """An array of Zarr, a data set of h5py, or a DataArray of xarray that is not in memory.

    A group is read at once.
    """

    def __init__(self, array: Any) -> None:
        self.array = array
        self._names = tuple(map(str, array.dims)) if library_of(array) == "xarray" else ()
        self.grid = Grid.regular(tuple(map(int, array.shape)), _chunk_shape(array))

    def blocks(self, group: Tile) -> list[Block]:
        return [Block(group, Region(self.array, group, self._names))]

    def check(self, group: Tile) -> None:
        if library_of(self.array) == "zarr":
            _check_zarr(self.array, group)

    def as_dask(self) -> Any:
        if find_spec("dask") is None:
            return None
        import dask.array

        sizes = tuple(tuple(np.diff(edges).tolist()) for edges in self.grid.edges)
        if self._names:
            return self.array.chunk(dict(zip(self.array.dims, sizes, strict=True))).data
        return dask.array.from_array(self.array, chunks=sizes)


def _chunk_shape(array: Any) -> tuple[int, ...] | None:
    """The shape of the chunks in which an array is stored; shards are read as a whole."""
    chunk = getattr(array, "shards", None) or getattr(array, "chunks", None)
    if library_of(array) == "xarray":
        names = ("chunksizes", "chunks")
        chunk = next((array.encoding[n] for n in names if array.encoding.get(n)), None)
    return None if chunk is None else tuple(map(int, chunk))


def _check_zarr(array: Any, group: Tile) -> None:
    """Refuse chunks that are not in the store: Zarr reads them as the fill value."""
    if array.fill_value is not None and np.isnan(np.float64(array.fill_value)):
        return  # missing entries
    grid = Grid.regular(array.shape, _chunk_shape(array))
    for number in grid.overlapping_numbers(group):
        if not _is_stored(array, number):
            raise ChunkError(
                f"X: chunk {number} at {format_box(grid.box(number))} is not in the store "
                f"{array.store}; Zarr would take it for {array.fill_value}. If that is meant, pass "
                "dask.array.from_zarr(...)"
            )


def _is_stored(array: Any, number: tuple[int, ...]) -> bool:
    key = array.metadata.encode_chunk_key(number)
    root = getattr(array.store, "root", None)
    if isinstance(root, Path):
        return bool((root / array.path / key).exists())
    from zarr.core.sync import sync

    path = f"{array.path}/{key}" if array.path else key
    return bool(sync(array.store.exists(path)))


class DaskSource(Source):
    """An array of Dask, chunk by chunk.

    Chunks that share no work with others stand by themselves: they are computed within a task.
    """

    def __init__(self, array: Any) -> None:
        import dask

        if any(math.isnan(size) for sizes in array.chunks for size in sizes):
            raise ValueError(
                "X: has chunks of unknown size; X.compute_chunk_sizes() finds them out"
            )
        self.array = array
        self.grid = Grid.from_chunks(array.chunks)
        (optimized,) = dask.optimize(array)
        self._name = optimized.name
        keys = [(self._name, *number) for number in np.ndindex(self.grid.counts)]
        nodes = array.__dask_graph__()
        futures = {key: node for key, node in nodes.items() if _is_future(node)}
        full_graph = {**optimized.__dask_graph__(), **futures}
        graphs = None if futures else independent_graphs(full_graph, keys)
        self._recipes: dict[Any, GraphBlock] = {}
        if graphs is None:
            self.graph, self.futures = full_graph, futures if set(keys) <= set(futures) else {}
        else:
            self._recipes = {
                key: GraphBlock(graph, key, self.grid.box(key[1:])) for key, graph in graphs.items()
            }

    def blocks(self, group: Tile) -> list[Block]:
        blocks = []
        for number in self.grid.overlapping_numbers(group):
            key, chunk = (self._name, *number), self.grid.box(number)
            data = self._recipes.get(key, key)
            common = tuple(overlap(a, b) for a, b in zip(chunk, group, strict=True))
            selection = None if common == chunk else within(common, chunk)
            blocks.append(Block(common, data, selection))
        return blocks

    def as_dask(self) -> Any:
        return self.array


def _is_future(node: Any) -> bool:
    return library_of(node) == "distributed"


def independent_graphs(
    graph: Mapping[Any, Any], keys: Sequence[Any]
) -> dict[Any, dict[Any, Any]] | None:
    """For each key the part of a graph that it depends on; None if two keys share a task."""
    from dask.core import istask

    visited: set[Any] = set()
    graphs = {}
    for key in keys:
        own_nodes, pending = {}, [key]
        while pending:
            name = pending.pop()
            if name in own_nodes:
                continue
            node = own_nodes[name] = graph[name]
            if istask(node):
                if name in visited:
                    return None
                visited.add(name)
            pending += _dependencies(graph, node)
        graphs[key] = own_nodes
    return graphs


def _dependencies(graph: Mapping[Any, Any], node: Any) -> Iterable[Any]:
    dependencies = getattr(node, "dependencies", None)
    if dependencies is not None:
        return list(dependencies)
    from dask.core import get_dependencies

    return list(get_dependencies(graph, task=node))


class SubsetSource(Source):
    """Another source at some rising indices of each mode; None stands for all."""

    def __init__(self, source: Source, indices: Sequence[np.ndarray | None]) -> None:
        self.array, self._source = source.array, source
        self._indices = [
            np.arange(size) if index is None else np.asarray(index)
            for size, index in zip(source.shape, indices, strict=True)
        ]
        self._source_grid = source.group_grid(GROUP_ENTRIES)
        self.grid = self._source_grid.subset(self._indices)
        self.graph, self.futures = source.graph, source.futures

    def blocks(self, group: Tile) -> list[Block]:
        blocks, grid = [], self._source_grid
        pairs = zip(self._indices, group, strict=True)
        span = tuple(slice(index[part.start], index[part.stop - 1] + 1) for index, part in pairs)
        for number in grid.overlapping_numbers(span):
            for block in self._source.blocks(grid.box(number)):
                own_box, local_indices = indices_within(self._indices, block.box)
                if volume(own_box):
                    blocks.append(Block(own_box, block.data, np.ix_(*local_indices)))
        return blocks

    def group_grid(self, max_entries: int) -> Grid:
        return self.grid

    def as_dask(self) -> Any:
        array = self._source.as_dask()
        for mode, index in enumerate(self._indices):
            array = None if array is None else take_indices(array, index, mode)
        return array


@dataclass(frozen=True, eq=False)
class TransformedBlock(Block):
    """A block whose entries are changed, in several steps, after they are read."""

    transformations: tuple[Transformation, ...] = ()

    def load(self, data: Any) -> Any:
        return _transform(super().load(data), self.transformations)


def _transform(entries: np.ndarray, transformations: Sequence[Transformation]) -> np.ndarray:
    """The entries of a block after its transformations, in C order."""
    whole = tuple(slice(0, size) for size in entries.shape)
    values = entries.astype(working_dtype(entries), copy=False)
    for transformation in transformations:
        values = transformation.box(values, whole)
    return np.ascontiguousarray(values)


@dataclass(frozen=True, eq=False)
class _LazyTransformation:
    """Changes the entries of a chunk of an array of Dask."""

    transformation: Transformation

    def __call__(self, entries: np.ndarray, block_info: Any = None) -> np.ndarray:
        box = tuple(slice(a, b) for a, b in block_info[0]["array-location"])
        return _transform(np.asarray(entries), [self.transformation.subset(box)])


class TransformedSource(Source):
    """Another source whose entries are changed whenever they are read."""

    def __init__(self, source: Source, transformation: Transformation) -> None:
        self.array, self._source, self._transformation = source.array, source, transformation
        self.grid, self.graph, self.futures = source.grid, source.graph, source.futures

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = np.dtype(working_dtype(np.empty(0, self._source.dtype)))
        return dtype

    def blocks(self, group: Tile) -> list[Block]:
        blocks: list[Block] = []
        for block in self._source.blocks(group):
            earlier = block.transformations if isinstance(block, TransformedBlock) else ()
            own = self._transformation.subset(block.box)
            blocks.append(TransformedBlock(block.box, block.data, block.selection, (*earlier, own)))
        return blocks

    def group_grid(self, max_entries: int) -> Grid:
        return self._source.group_grid(max_entries)

    def check(self, group: Tile) -> None:
        self._source.check(group)

    def subset(self, indices: Sequence[np.ndarray | None]) -> Source:
        part = self._source.subset(indices)
        return TransformedSource(part, self._transformation.subset(indices))

    def as_dask(self) -> Any:
        lazy = self._source.as_dask()
        if lazy is None:
            return None
        return lazy.map_blocks(
            _LazyTransformation(self._transformation),
            dtype=self.dtype,
            meta=np.empty((0,) * len(self.shape), self.dtype),
        )


def chunked_source(data: Any) -> Source | None:
    """The source of data that is cut into chunks; None for any other."""
    library = library_of(data)
    if library == "xarray":
        if data.chunks is not None:
            return chunked_source(data.data)
        return None if data.variable._in_memory else IndexedSource(data)
    if library == "dask" and hasattr(data, "to_delayed") and hasattr(data, "dtype"):
        return DaskSource(data)
    if isinstance(data, ReversedModesArray) or (
        library in ("zarr", "h5py") and hasattr(data, "shape") and hasattr(data, "dtype")
    ):
        return IndexedSource(data)
    return None


def overlap(first_range: slice, second_range: slice) -> slice:
    """The range that two ranges have in common."""
    first = max(first_range.start, second_range.start)
    return slice(first, max(first, min(first_range.stop, second_range.stop)))


def within(box: Tile, full_box: Tile) -> Tile:
    """A box as an index into the array of a box that holds it."""
    pairs = zip(box, full_box, strict=True)
    return tuple(slice(a.start - b.start, a.stop - b.start) for a, b in pairs)


def indices_within(indices: Sequence[np.ndarray], box: Tile) -> tuple[Tile, list[np.ndarray]]:
    """Which of some rising indices of each mode are in a box, and where they are in it."""
    pairs = list(zip(indices, box, strict=True))
    ends = [np.searchsorted(index, (part.start, part.stop)) for index, part in pairs]
    own_box = tuple(slice(int(a), int(b)) for a, b in ends)
    triples = zip(indices, own_box, box, strict=True)
    return own_box, [index[own] - part.start for index, own, part in triples]


def volume(box: Tile) -> int:
    """The entries of a box."""
    return math.prod(map(slice_length, box))
