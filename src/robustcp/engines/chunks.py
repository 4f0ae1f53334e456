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
from typing import Any

import numpy as np

from robustcp.engines.arrays import taken
from robustcp.engines.tiles import Tile, boxes, length

#: Entries of a group of neighbouring chunks, which is one task: a task costs some milliseconds.
GROUP = 1 << 23


class ChunkError(OSError):
    """A chunk of the data that cannot be read."""


def module_of(data: Any) -> str:
    """The library that data comes from, by name."""
    return type(data).__module__.partition(".")[0]


# Where an array is cut


@dataclass(frozen=True)
class Grid:
    """Where an array is cut, mode by mode.

    Attributes
    ----------
    edges : tuple of tuples of int, one for each mode
        From 0 to the size of the mode.

    Examples
    --------
    >>> Grid.of_chunks(((2, 2, 1), (4,))).boxes[1]
    (slice(2, 4, None), slice(0, 4, None))
    """

    edges: tuple[tuple[int, ...], ...]

    @classmethod
    def of_chunks(cls, chunks: Sequence[Sequence[int]]) -> Grid:
        """From the sizes of the chunks along each mode."""
        return cls(tuple((0, *itertools.accumulate(map(int, sizes))) for sizes in chunks))

    @classmethod
    def regular(cls, shape: Sequence[int], chunk: Sequence[int] | None) -> Grid:
        """From the size of one chunk; without one, boxes that are runs of a C-ordered array."""
        if chunk is None:
            found = boxes(shape, GROUP)
            each = [
                sorted({(box[n].start, box[n].stop) for box in found}) for n in range(len(shape))
            ]
            return cls(tuple((0, *(stop for _, stop in parts)) for parts in each))
        pairs = zip(shape, chunk, strict=True)
        return cls(tuple((*range(0, size, max(1, step)), size) for size, step in pairs))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(edges[-1] for edges in self.edges)

    @property
    def widths(self) -> tuple[int, ...]:
        """Of the largest box."""
        return tuple(int(np.diff(edges).max()) for edges in self.edges)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many intervals there are in each mode."""
        return tuple(len(edges) - 1 for edges in self.edges)

    @cached_property
    def boxes(self) -> list[Tile]:
        """All boxes, those of the last mode fastest."""
        each = [[slice(a, b) for a, b in itertools.pairwise(edges)] for edges in self.edges]
        return list(itertools.product(*each))

    @cached_property
    def largest(self) -> int:
        """The entries of the largest box."""
        return math.prod(self.widths)

    def coarser(self, most: int) -> Grid:
        """Neighbours taken together as long as boxes have at most so many entries.

        >>> Grid.regular((400, 400, 400), (100, 100, 100)).coarser(1 << 23).edges[0]
        (0, 200, 400)
        """
        grid = self
        while True:
            short = sorted(range(len(grid.edges)), key=lambda n: grid.edges[n][1])
            for mode in short:
                if grid.counts[mode] > 1 and (wider := grid._paired(mode)).largest <= most:
                    grid = wider
                    break
            else:
                return grid

    def _paired(self, mode: int) -> Grid:
        edges = self.edges[mode]
        kept = (*edges[:-1:2], edges[-1])
        return Grid((*self.edges[:mode], kept, *self.edges[mode + 1 :]))

    def whole(self, modes: Sequence[int], most: int) -> Grid:
        """Not cut along some modes; along the others so often that boxes are not larger."""
        edges = [(0, cut[-1]) if n in modes else cut for n, cut in enumerate(self.edges)]
        while True:
            grid = Grid(tuple(edges))
            widest = {n: int(np.diff(edges[n]).max()) for n in range(len(edges)) if n not in modes}
            if grid.largest <= most or max(widest.values(), default=1) == 1:
                return grid
            mode = max(widest, key=lambda n: widest[n])
            halves = [(a + b) // 2 for a, b in itertools.pairwise(edges[mode])]
            edges[mode] = tuple(sorted({*edges[mode], *halves}))

    def inside(self, box: Tile) -> Iterator[tuple[int, ...]]:
        """The numbers of the boxes, mode by mode, that have a part in another box."""
        each = []
        for edges, part in zip(self.edges, box, strict=True):
            first = int(np.searchsorted(edges, part.start, side="right")) - 1
            last = int(np.searchsorted(edges, part.stop, side="left"))
            each.append(range(first, last))
        return itertools.product(*each)

    def box(self, number: Sequence[int]) -> Tile:
        """The box of some number in each mode."""
        pairs = zip(self.edges, number, strict=True)
        return tuple(slice(edges[k], edges[k + 1]) for edges, k in pairs)

    def overlapped(self, indices: Sequence[np.ndarray], box: Tile) -> Iterator[Tile]:
        """The boxes that hold the indices of a box of `chosen`."""
        each = []
        for edges, at, part in zip(self.edges, indices, box, strict=True):
            low, high = int(at[part.start]), int(at[part.stop - 1])
            each.append([
                slice(a, b) for a, b in itertools.pairwise(edges) if a <= high and low < b
            ])  # fmt: skip
        return iter(itertools.product(*each))

    def chosen(self, indices: Sequence[np.ndarray | None]) -> Grid:
        """The grid of a part at some indices, in rising order, of each mode; empty boxes go."""
        found = []
        for edges, at in zip(self.edges, indices, strict=True):
            cut = edges if at is None else tuple(np.searchsorted(at, edges).tolist())
            found.append(tuple(sorted(set(cut))))
        return Grid(tuple(found))


# What stands for a block


class Readable(ABC):
    """What stands for a block of an array, and can be sent to where it is read."""

    @abstractmethod
    def read(self) -> np.ndarray: ...


@dataclass(frozen=True, eq=False)
class Region(Readable):
    """A block of an array that is read by indexing it."""

    array: Any
    at: Tile
    names: tuple[str, ...] = ()

    def read(self) -> np.ndarray:
        try:
            return self._read(self.at)
        except Exception as error:
            raise unreadable(self._bad(), error) from None

    def _read(self, at: Tile) -> np.ndarray:
        part = self.array[at]
        return np.asarray(part.values if self.names else part)

    def _bad(self) -> Tile:
        """The first chunk that cannot be read; all of the block if each can."""
        grid = Grid.regular(self.array.shape, _chunk(self.array))
        for number in grid.inside(self.at):
            try:
                self._read(grid.box(number))
            except Exception:
                return grid.box(number)
        return self.at


@dataclass(frozen=True, eq=False)
class Recipe(Readable):
    """A block that follows from a graph of Dask of its own."""

    graph: Mapping[Any, Any]
    key: Any
    at: Tile

    def read(self) -> np.ndarray:
        import dask

        try:
            return np.asarray(dask.get(self.graph, self.key))
        except Exception as error:
            raise unreadable(self.at, error) from None


@dataclass(frozen=True, eq=False)
class Block:
    """A block of an array.

    Attributes
    ----------
    at : Tile
        Where it is.
    data : Readable, array, or key of a graph
        What stands for it.
    pick : tuple of integer arrays, optional
        Which indices of what is read make the block; all without.
    """

    at: Tile
    data: Any
    pick: tuple[np.ndarray, ...] | None = None

    def taken(self, data: Any) -> np.ndarray:
        """The block from what stands for it: in C order, so that passes are the same everywhere."""
        found = data.read() if isinstance(data, Readable) else np.asarray(data)
        return np.ascontiguousarray(found if self.pick is None else found[np.ix_(*self.pick)])


def unreadable(at: Tile, error: BaseException) -> ChunkError:
    """An error that says where a block that cannot be read is."""
    text = " ".join(str(error).split()) or type(error).__name__
    return ChunkError(f"X: the chunk at {place(at)} cannot be read ({text[:200]})")


def place(at: Tile) -> str:
    """Where a block is, as one would index it.

    >>> place((slice(0, 2), slice(4, 6)))
    '[0:2, 4:6]'
    """
    return "[" + ", ".join(f"{part.start}:{part.stop}" for part in at) + "]"


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
    held : mapping from a key to a future
        The blocks that a cluster holds.
    """

    array: Any
    grid: Grid
    graph: Mapping[Any, Any] = MappingProxyType({})
    held: Mapping[Any, Any] = MappingProxyType({})

    @property
    def shape(self) -> tuple[int, ...]:
        return self.grid.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        found: np.dtype[Any] = np.dtype(self.array.dtype)
        return found

    @abstractmethod
    def blocks(self, group: Tile) -> list[Block]:
        """The blocks of a group, in order."""

    @abstractmethod
    def cut(self, most: int) -> Grid:
        """Groups of neighbouring chunks of at most so many entries, where chunks are not larger."""

    def check(self, group: Tile) -> None:  # noqa: B027 - most have nothing to check
        """Complain about what is missing in a box, and would be read as something else."""

    @abstractmethod
    def lazy(self) -> Any:
        """The same as an array of Dask; None if that is not installed."""


class Transposed:
    """An array that is read by indexing, with its modes in reverse, as MATLAB writes them."""

    def __init__(self, array: Any) -> None:
        self.array, self.dtype = array, array.dtype
        self.shape: tuple[int, ...] = tuple(array.shape[::-1])
        self.ndim = len(self.shape)
        self.chunks = None if array.chunks is None else tuple(array.chunks[::-1])

    def __getitem__(self, at: Any) -> np.ndarray:
        at = at if isinstance(at, tuple) else (at,)
        at = (*at, *(slice(None),) * (self.ndim - len(at))) if Ellipsis not in at else (...,)
        return np.asarray(self.array[at[::-1]]).T


class IndexedSource(Source):
    """An array of Zarr, a data set of h5py, or a DataArray of xarray that is not in memory.

    A group is read at once.
    """

    def __init__(self, array: Any) -> None:
        self.array = array
        self._names = tuple(map(str, array.dims)) if module_of(array) == "xarray" else ()
        self.grid = Grid.regular(tuple(map(int, array.shape)), _chunk(array))

    def blocks(self, group: Tile) -> list[Block]:
        return [Block(group, Region(self.array, group, self._names))]

    def cut(self, most: int) -> Grid:
        return self.grid.coarser(most)

    def check(self, group: Tile) -> None:
        if module_of(self.array) == "zarr":
            _check_zarr(self.array, group)

    def lazy(self) -> Any:
        if find_spec("dask") is None:
            return None
        import dask.array

        sizes = tuple(tuple(np.diff(edges).tolist()) for edges in self.grid.edges)
        if self._names:
            return self.array.chunk(dict(zip(self.array.dims, sizes, strict=True))).data
        return dask.array.from_array(self.array, chunks=sizes)


def _chunk(array: Any) -> tuple[int, ...] | None:
    """The shape of the chunks in which an array is stored; shards are read as a whole."""
    found = getattr(array, "shards", None) or getattr(array, "chunks", None)
    if module_of(array) == "xarray":
        names = ("chunksizes", "chunks")
        found = next((array.encoding[n] for n in names if array.encoding.get(n)), None)
    return None if found is None else tuple(map(int, found))


def _check_zarr(array: Any, group: Tile) -> None:
    """Zarr takes a chunk that is not in the store for its fill value, whatever became of it."""
    if array.fill_value is not None and np.isnan(np.float64(array.fill_value)):
        return  # missing entries
    for number in Grid.regular(array.shape, _chunk(array)).inside(group):
        if not _stored(array, number):
            at = Grid.regular(array.shape, _chunk(array)).box(number)
            raise ChunkError(
                f"X: chunk {number} at {place(at)} is not in the store {array.store}; Zarr would "
                f"take it for {array.fill_value}. If that is meant, pass dask.array.from_zarr(...)"
            )


def _stored(array: Any, number: tuple[int, ...]) -> bool:
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
        self.grid = Grid.of_chunks(array.chunks)
        (optimized,) = dask.optimize(array)
        self._name = optimized.name
        keys = [(self._name, *number) for number in np.ndindex(self.grid.counts)]
        given = array.__dask_graph__()
        held = {key: node for key, node in given.items() if _is_future(node)}
        whole = {**optimized.__dask_graph__(), **held}
        own = None if held else own_graphs(whole, keys)
        self._recipes: dict[Any, Recipe] = {}
        if own is None:
            self.graph, self.held = whole, held if set(keys) <= set(held) else {}
        else:
            self._recipes = {
                key: Recipe(part, key, self.grid.box(key[1:])) for key, part in own.items()
            }

    def blocks(self, group: Tile) -> list[Block]:
        found = []
        for number in self.grid.inside(group):
            key, chunk = (self._name, *number), self.grid.box(number)
            data = self._recipes.get(key, key)
            here = tuple(overlap(a, b) for a, b in zip(chunk, group, strict=True))
            pick = None
            if here != chunk:
                pairs = zip(here, chunk, strict=True)
                pick = tuple(np.arange(a.start - b.start, a.stop - b.start) for a, b in pairs)
            found.append(Block(here, data, pick))
        return found

    def cut(self, most: int) -> Grid:
        return self.grid.coarser(most)

    def lazy(self) -> Any:
        return self.array


def _is_future(node: Any) -> bool:
    return module_of(node) == "distributed"


def own_graphs(graph: Mapping[Any, Any], keys: Sequence[Any]) -> dict[Any, dict[Any, Any]] | None:
    """For each key the part of a graph that it follows from; None if work is shared."""
    from dask.core import istask

    seen: set[Any] = set()
    found = {}
    for key in keys:
        part, open_ = {}, [key]
        while open_:
            one = open_.pop()
            if one in part:
                continue
            node = part[one] = graph[one]
            if istask(node):
                if one in seen:
                    return None
                seen.add(one)
            open_ += _dependencies(graph, node)
        found[key] = part
    return found


def _dependencies(graph: Mapping[Any, Any], node: Any) -> Iterable[Any]:
    known = getattr(node, "dependencies", None)
    if known is not None:
        return list(known)
    from dask.core import get_dependencies

    return list(get_dependencies(graph, task=node))


class PickedSource(Source):
    """Some indices, in rising order, of each mode of another source; None takes a mode whole."""

    def __init__(self, source: Source, indices: Sequence[np.ndarray | None]) -> None:
        self.array, self._source = source.array, source
        self._indices = [
            np.arange(size) if at is None else np.asarray(at)
            for size, at in zip(source.shape, indices, strict=True)
        ]
        self._whole = source.cut(GROUP)
        self.grid = self._whole.chosen(self._indices)
        self.graph, self.held = source.graph, source.held

    def blocks(self, group: Tile) -> list[Block]:
        found = []
        for whole in self._whole.overlapped(self._indices, group):
            for block in self._source.blocks(whole):
                pairs = list(zip(self._indices, block.at, strict=True))
                ends = [np.searchsorted(at, (part.start, part.stop)) for at, part in pairs]
                here = tuple(slice(int(a), int(b)) for a, b in ends)
                if volume(here):
                    pick = tuple(
                        at[part] - inside.start
                        for at, part, inside in zip(self._indices, here, block.at, strict=True)
                    )
                    found.append(Block(here, block.data, pick))
        return found

    def cut(self, most: int) -> Grid:
        return self.grid

    def lazy(self) -> Any:
        whole = self._source.lazy()
        for mode, at in enumerate(self._indices):
            whole = None if whole is None else taken(whole, at, mode)
        return whole


def chunked_source(data: Any) -> Source | None:
    """The source of data that is cut into chunks; None for any other."""
    library = module_of(data)
    if library == "xarray":
        if data.chunks is not None:
            return chunked_source(data.data)
        return None if data.variable._in_memory else IndexedSource(data)
    if library == "dask" and hasattr(data, "to_delayed") and hasattr(data, "dtype"):
        return DaskSource(data)
    if isinstance(data, Transposed) or (
        library in ("zarr", "h5py") and hasattr(data, "shape") and hasattr(data, "dtype")
    ):
        return IndexedSource(data)
    return None


def overlap(part: slice, rows: slice) -> slice:
    """What two slices have in common."""
    first = max(part.start, rows.start)
    return slice(first, max(first, min(part.stop, rows.stop)))


def volume(box: Tile) -> int:
    """The entries of a box."""
    return math.prod(map(length, box))
