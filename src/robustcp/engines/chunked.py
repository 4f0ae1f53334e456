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

from robustcp import _checks
from robustcp._checks import ArgumentError
from robustcp._typing import Array, Factors
from robustcp.engines.algebra import Algebra, algebra
from robustcp.engines.arrays import is_lazy, to_host, working_dtype
from robustcp.engines.base import Engine, Sample, View
from robustcp.engines.chunks import (
    GROUP,
    Block,
    DaskSource,
    PickedSource,
    Source,
    place,
)
from robustcp.engines.dense import BLOCK_BYTES, BLOCK_SHARE, DenseEngine
from robustcp.engines.memory import as_bytes, as_words, room_for
from robustcp.engines.places import Places
from robustcp.engines.schedulers import Graph, Placement, scheduler_for
from robustcp.engines.storage import Extent
from robustcp.engines.tasks import (
    Action,
    Apply,
    Equations,
    Group,
    Job,
    Look,
    Part,
    Piece,
    Product,
    SlabSums,
    Value,
)
from robustcp.engines.threads import Tiles, available_threads
from robustcp.engines.tiles import Tile, Tiling, even_split, pass_tiles
from robustcp.engines.weights import Weights
from robustcp.losses import Loss
from robustcp.normal import NormalEquations

#: A box: first index and end in each mode.
Key = tuple[tuple[int, int], ...]
#: Parts with no more entries are held in this process; so are the parts that were asked for last.
HELD = 1 << 25
#: Data with no more entries is held for trials, which are many small fits.
AT_HAND = 1 << 20
#: What this process needs beside the data, in bytes, and how much more than a block reading it.
ITSELF, READING = 450 << 20, 3


@dataclass(eq=False)
class _Shared:
    """What all views of the same data have in common.

    Attributes
    ----------
    source : Source
    groups : list of (box, blocks)
    sampled : array, optional
        The entries of a sample as they are stored.
    parts : dict
        Parts that were asked for.
    placed : Placement
        Where the chunks are that a cluster holds.
    """

    source: Source
    groups: list[tuple[Tile, list[Block]]]
    places: Places
    sampled: np.ndarray | None = None
    parts: dict[bytes, np.ndarray] = field(default_factory=dict)
    placed: Placement = field(default_factory=Placement)


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
        group: int = GROUP,
    ) -> None:
        if threads is not None:
            threads = _checks.whole_number("threads", threads, 1)
        _check(source)
        self.shape, self.xp = source.shape, xp
        self.dtype: Any = working_dtype(np.empty(0, source.dtype))
        self._compiled = compiled
        threads = threads or available_threads()
        at_once, most = _room(source, threads, memory, group)
        self._memory = memory
        self.tiles, self._readers = Tiles(threads), Tiles(at_once)
        groups = [(box, source.blocks(box)) for box in source.cut(most).boxes]
        self._shared = _Shared(source, groups, _places(self.shape))
        self._extents: dict[Key, Extent] = {}
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
    def largest(self) -> float:
        return self.view.size(self._extent.largest)

    @property
    def complete(self) -> bool:
        return not (self._extent.gaps or self.view.leaves_out(self._extent.largest))

    @property
    def algebra(self) -> Algebra:
        return algebra(self.xp, self._compiled, self.tiles.threads)

    @cached_property
    def _extent(self) -> Extent:
        """Of all blocks; each is looked at once."""
        self._look()
        every = list(self._extents.values())
        largest = max(extent.largest for extent in every)
        if largest < 0:
            weightless = "" if self.view.weights is None else " or of weight 0"
            raise ValueError(f"X: all entries are missing (NaN){weightless}")
        if math.isinf(largest):
            key = next(key for key, extent in self._extents.items() if math.isinf(extent.largest))
            at = place(tuple(slice(*part) for part in key))
            raise ValueError(f"X: has infinite entries, the first in the chunk at {at}")
        of_all = float(np.max([extent.of_all for extent in every]))
        gaps, holes = any(e.gaps for e in every), any(e.holes for e in every)
        return Extent(largest, gaps, holes, of_all)

    def _look(self) -> None:
        """Find out what there is in the blocks, and take the sample on the way."""
        shared = self._shared
        wanted = shared.sampled is None
        for box, _ in shared.groups if wanted else ():
            shared.source.check(box)
        places = _by_block(shared) if wanted else {}
        sampled = np.empty(len(shared.places.located[0]), self._source.dtype) if wanted else None
        for _, found in self._over(Look(), places={b: at for b, (_, at) in places.items()}):
            for box, (extent, values) in found:
                self._extents[_key(box)] = extent
                if sampled is not None and values is not None:
                    sampled[places[_key(box)][0]] = values
        if sampled is not None:
            shared.sampled = sampled

    def asarray(self, array: Any) -> Array:
        return np.ascontiguousarray(array, dtype=self.dtype)

    def viewed(self, view: View) -> ChunkedEngine:
        other = copy(self)
        other.view = view
        for name in ("_observed", "count", "weight", "_beside"):
            other.__dict__.pop(name, None)
        if view.weights is not self.view.weights:
            other._extents = {}
            other.__dict__.pop("_extent", None)
        return other

    def subtensor(self, indices: Sequence[np.ndarray | None]) -> Engine:
        sizes = [n if at is None else len(at) for n, at in zip(self.shape, indices, strict=True)]
        rising = all(at is None or bool(np.all(np.diff(at) > 0)) for at in indices)
        if rising and math.prod(sizes) > HELD:
            part = copy(self)
            part.shape = tuple(sizes)
            source = PickedSource(self._source, indices)
            groups = [(box, source.blocks(box)) for box in source.grid.boxes]
            part._shared = _Shared(source, groups, _places(part.shape))
            part._extents = {}
            for name in [n for n in part.__dict__ if n in _CACHED]:
                del part.__dict__[name]
            part.view = _part_of(self.view, indices)
            return part
        view = _part_of(self.view, indices, here=True)
        threads, compiled = self.tiles.threads, self._compiled
        return DenseEngine(self._taken(indices), threads=threads, compiled=compiled, view=view)

    @property
    def at_hand(self) -> Engine:
        if math.prod(self.shape) > AT_HAND:
            return self
        return self.subtensor([None] * self.order)

    def _taken(self, indices: Sequence[np.ndarray | None]) -> np.ndarray:
        """The entries at some indices of each mode; the last parts are remembered."""
        every = [
            np.arange(n) if at is None else np.asarray(at, dtype=np.int64)
            for n, at in zip(self.shape, indices, strict=True)
        ]
        key = b"|".join(at.tobytes() for at in every)
        parts = self._shared.parts
        if key not in parts:
            sorted_ = [np.unique(at, return_inverse=True) for at in every]
            action = Part(tuple(at for at, _ in sorted_))
            whole = tuple(slice(0, n) for n in self.shape)
            groups = [g for g in self._groups() if all(
                np.searchsorted(at, p.start) < np.searchsorted(at, p.stop)
                for at, p in zip(action.indices, g.at, strict=True))]  # fmt: skip
            found = action.put(whole, list(_boxed(self._over(action, groups))))
            if any(len(back) != len(at) or np.any(np.diff(back) != 1) for at, back in sorted_):
                found = found[np.ix_(*(back for _, back in sorted_))]
            while parts and sum(p.size for p in parts.values()) + found.size > HELD:
                del parts[next(iter(parts))]
            parts[key] = found
        return parts[key]

    # Tasks

    def _groups(
        self,
        boxes: Sequence[tuple[Tile, list[Block]]] | None = None,
        places: dict[Key, Any] | None = None,
    ) -> list[Group]:
        places = places or {}
        found = []
        for number, (box, blocks) in enumerate(boxes or self._shared.groups):
            pieces = [
                Piece(
                    block, *self._beside.of(block.at),
                    self._extents.get(_key(block.at)), places.get(_key(block.at)),
                )
                for block in blocks
            ]  # fmt: skip
            found.append(Group(number, box, pieces, list(range(len(pieces)))))
        return found

    @cached_property
    def _beside(self) -> _Beside:
        return _Beside.of_view(self.view, self._source)

    def _over(
        self,
        action: Action,
        groups: Sequence[Group] | None = None,
        factors: Factors | None = None,
        places: dict[Key, Any] | None = None,
    ) -> Iterator[tuple[Group, Any]]:
        """What comes of each group, in order."""
        groups = self._groups(places=places) if groups is None else groups
        beside = self._beside
        job = Job(action, beside.view, factors, self._compiled)
        scheduler = scheduler_for(self._readers, self._shared.placed, by_dask=self._by_dask)
        return zip(groups, scheduler.map(job, groups, beside.graph), strict=True)

    # Passes

    def normal(
        self, factors: Factors, mode: int, loss: Loss, rows: slice | None = None
    ) -> NormalEquations:
        rows = slice(0, self.shape[mode]) if rows is None else rows
        _ = self._extent
        action = Equations(mode, loss, rows, self._shares_gram(loss, mode))
        groups = [
            group
            for group in self._groups()
            if group.at[mode].start < rows.stop and rows.start < group.at[mode].stop
        ]
        whole = tuple(rows if n == mode else slice(0, size) for n, size in enumerate(self.shape))
        return action.gathered(whole, _boxed(self._over(action, groups, factors)))

    def _shares_gram(self, loss: Loss, mode: int) -> bool:
        """Whether all rows of a mode have the same Gram matrix."""
        weights, view = self.view.weights, self.view
        outer = weights is None or (
            isinstance(weights, Weights) and weights.array is None and weights.vectors[mode] is None
        )
        whole = not self._extent.holes and not view.leaves_out(self._extent.largest)
        return loss.quadratic and outer and view.scales is None and whole

    def value(self, factors: Factors, loss: Loss) -> float:
        _ = self._extent
        return math.fsum(value for _, value in self._over(Value(loss), factors=factors))

    def row_blocks(self, mode: int, rank: int, loss: Loss) -> Sequence[slice]:
        if self._shares_gram(loss, mode):
            return [slice(0, self.shape[mode])]
        itemsize = np.dtype(self.dtype).itemsize
        row = (rank * (rank + 1) // 2 + rank) * itemsize
        limit = max(BLOCK_BYTES, int(BLOCK_SHARE * math.prod(self.shape) * itemsize))
        starts = sorted({box[mode].start for box, _ in self._shared.groups})
        found, first = [], 0
        for start, stop in zip(starts, [*starts[1:], self.shape[mode]], strict=True):
            if (stop - first) * row > limit and start > first:
                found.append(slice(first, start))
                first = start
        return [*found, slice(first, self.shape[mode])]

    # Samples and reductions

    def sample(self, factors: Factors | None = None) -> Sample:
        _ = self._extent
        shared = self._shared
        if shared.sampled is None:
            self._look()
        assert shared.sampled is not None
        at, view = shared.places.located, self.view
        r = view.apply(shared.sampled.astype(self.dtype), self.xp)
        if factors is not None:
            rows = [np.take(A, index, axis=0) for A, index in zip(factors, at, strict=True)]
            r = r - np.sum(math.prod(rows[1:], start=rows[0]), axis=-1)
            if view.scales is not None:
                r = r / self._beside.scales_at(view, at)
        if isinstance(view.weights, Weights) and view.weights.zeros:
            r = np.where(self._beside.weights_at(view, at) == 0, np.nan, r)
        values = np.asarray(r, dtype=np.float64)
        known = ~np.isnan(values)
        if known.all():
            return Sample(values, lambda: at)
        return Sample(values[known], lambda: tuple(index[known] for index in at))

    def slab_sums(
        self,
        work: Callable[[Array], Array],
        factors: Factors | None = None,
        *,
        weighted: bool = False,
    ) -> list[np.ndarray]:
        _ = self._extent
        action = SlabSums(work, weighted)
        whole = tuple(slice(0, size) for size in self.shape)
        return list(action.gathered(whole, _boxed(self._over(action, factors=factors))))

    @property
    def listable(self) -> bool:
        return room_for(math.prod(self.shape), self.order, self._memory)

    def entries(self, factors: Factors | None = None) -> Sample:
        """Of all of the data, which must fit into the memory of this process."""
        if not self.listable:
            raise MemoryError(f"X: all of {'x'.join(map(str, self.shape))} would have to be held")
        whole = DenseEngine(self._taken([None] * self.order), compiled=self._compiled)
        return whole.viewed(_part_of(self.view, [None] * self.order, here=True)).entries(factors)

    def entrywise(self, work: Callable[[Array], Array], factors: Factors) -> Array:
        return self._blockwise(partial(_entrywise, work), factors)

    def entry_scales(self) -> Array:
        zeros = tuple(np.zeros((size, 1), self.dtype) for size in self.shape)
        return self._blockwise(_scales, zeros)

    def _blockwise(
        self, work: Callable[[DenseEngine, Factors], np.ndarray], factors: Factors
    ) -> Array:
        """An array of Dask of the data's shape, which is computed when it is asked for."""
        lazy = self._source.lazy()
        if lazy is None:
            whole = self.subtensor([None] * self.order)
            assert isinstance(whole, DenseEngine)
            return work(whole, factors)
        like = work(self._tiny(), tuple(A[:1] for A in factors))
        held = _Held(work, self._beside.view, factors, self._beside.slabs, self._compiled)
        return lazy.map_blocks(held, dtype=like.dtype, meta=np.empty((0,) * self.order, like.dtype))

    def _tiny(self) -> DenseEngine:
        """One entry, for the type of what comes of it."""
        one = np.zeros((1,) * self.order, self._source.dtype)
        return DenseEngine(one, threads=1, compiled=False)

    # Unfoldings

    def unfolding(self, mode: int, rows: slice) -> np.ndarray:
        at = [np.arange(rows.start, rows.stop) if n == mode else None for n in range(self.order)]
        part = self.subtensor(at)
        return part.unfolding(mode, slice(0, part.shape[mode]))

    def gram(self, mode: int, basis: np.ndarray | None = None) -> np.ndarray:
        parts = self._products(methodcaller("gram", mode, basis), [mode])
        return np.asarray(sum(parts[1:], start=parts[0]))

    def cogram(self, mode: int) -> np.ndarray:
        parts = self._products(methodcaller("cogram", mode), self._others(mode))
        return np.asarray(sum(parts[1:], start=parts[0]))

    def project(self, mode: int, basis: np.ndarray) -> np.ndarray:
        found = self._products(methodcaller("project", mode, basis), self._others(mode))
        return np.concatenate(found)

    def _others(self, mode: int) -> list[int]:
        return [n for n in range(self.order) if n != mode]

    def _products(
        self, work: Callable[[DenseEngine], np.ndarray], whole: Sequence[int]
    ) -> list[np.ndarray]:
        """Of boxes that some modes are whole in; chunks of these must come together."""
        boxes = self._source.grid.whole(whole, 4 * GROUP).boxes
        groups = self._groups([(box, self._source.blocks(box)) for box in boxes])
        return [found for _, found in self._over(Product(work), groups)]


#: What follows from a view.
_CACHED = ("_extent", "_observed", "count", "weight", "_beside")


def _boxed(found: Iterator[tuple[Group, Any]]) -> Iterator[tuple[Tile, Any]]:
    """With the boxes of the groups."""
    return ((group.at, part) for group, part in found)


def _key(box: Tile) -> Key:
    """A box as a key: slices have no hash."""
    return tuple((part.start, part.stop) for part in box)


def _check(source: Source) -> None:
    """Refuse what is not a tensor of real numbers."""
    if source.dtype.kind not in "fiub":
        raise TypeError(f"X: dtype {source.dtype} is not one of real numbers")
    shape = source.shape
    if len(shape) < 2:
        raise ValueError(f"X: must have at least 2 modes, got {len(shape)} (shape {shape})")
    if 0 in shape:
        raise ValueError(f"X: has an empty mode (shape {shape})")


def _room(source: Source, threads: int, memory: int | str | None, group: int) -> tuple[int, int]:
    """How many groups are worked on at a time, and their entries, for so much memory.

    More than there are threads: some are read while others are passed over.
    """
    at_once = threads if threads == 1 else 2 * threads
    if memory is None:
        return at_once, group
    given = as_bytes(memory)
    room = max(given - ITSELF, given // 4)
    chunk = source.grid.largest * source.dtype.itemsize
    if chunk * READING > room:
        raise ArgumentError(
            "memory",
            f"{as_words(given)} is too little for chunks of {as_words(chunk)} "
            f"({'x'.join(map(str, source.grid.widths))}): reading one takes {READING} times that, "
            f"and this process itself up to {as_words(ITSELF)}",
        )
    at_once = max(1, min(at_once, room // (chunk * READING)))
    return at_once, min(group, room // (at_once * READING * source.dtype.itemsize))


def _places(shape: tuple[int, ...]) -> Places:
    """Where the entries of a sample are: as in an array in memory, so that fits are the same."""
    tiling, half = Tiling(), -(-math.prod(shape) // 2)
    entries = min(tiling.entries, max(tiling.smallest, half))
    split, every = even_split(shape), slice(0, shape[0])
    tiles = partial(pass_tiles, shape, split, 0, every, tiling, entries)
    return Places(shape, range(len(shape)), tiles, tiling.sample)


def _by_block(shared: _Shared) -> dict[Key, tuple[np.ndarray, tuple[np.ndarray, ...]]]:
    """For each block which entries of the sample are in it, and where."""
    at, order = shared.places.located, len(shared.source.shape)
    boxes = [block.at for _, blocks in shared.groups for block in blocks]
    edges = [np.unique([box[n].start for box in boxes]) for n in range(order)]
    number = np.zeros(len(at[0]), dtype=np.int64)
    for index, cuts in zip(at, edges, strict=True):
        number = number * len(cuts) + np.searchsorted(cuts, index, side="right") - 1
    sorting = np.argsort(number, kind="stable")
    ordered, found = number[sorting], {}
    for box in boxes:
        own = 0
        for part, cuts in zip(box, edges, strict=True):
            own = own * len(cuts) + int(np.searchsorted(cuts, part.start))
        first, last = np.searchsorted(ordered, (own, own + 1))
        mine = sorting[first:last]
        if mine.size:
            pairs = zip(at, box, strict=True)
            found[_key(box)] = mine, tuple(index[mine] - part.start for index, part in pairs)
    return found


def _part_of(view: View, indices: Sequence[np.ndarray | None], *, here: bool = False) -> View:
    """The view of a part; arrays that are computed when asked for are, if it is to be here."""
    part = view.part(indices)
    if not here:
        return part
    weights, scales = part.weights, part.scales
    if isinstance(weights, Weights) and is_lazy(weights.array):
        part = replace(part, weights=replace(weights, array=to_host(weights.array)))
    if scales is not None and isinstance(scales.slabs, Weights) and is_lazy(scales.slabs.array):
        slabs = replace(scales.slabs, array=to_host(scales.slabs.array))
        part = replace(part, scales=replace(scales, slabs=slabs))
    return part


@dataclass(frozen=True, eq=False)
class _Beside:
    """What a view has beside the data: arrays of weights and of scales, by blocks.

    Attributes
    ----------
    view : View
        Without these arrays.
    weights, slabs : array, optional
    graph : Graph
        That of the data, and of those that are computed when asked for.
    """

    view: View
    weights: Any
    slabs: Any
    graph: Graph

    @classmethod
    def of_view(cls, view: View, source: Source) -> _Beside:
        weights, scales = view.weights, view.scales
        first: Any = None
        second: Any = None
        if isinstance(weights, Weights) and weights.array is not None:
            first = weights.array
            view = replace(view, weights=replace(weights, array=None))
        if (
            scales is not None
            and isinstance(scales.slabs, Weights)
            and scales.slabs.array is not None
        ):
            second = scales.slabs.array
            bare = replace(scales, slabs=replace(scales.slabs, array=None))
            view = replace(view, scales=bare)
        return cls(view, first, second, Graph(dict(source.graph), dict(source.held)))

    def of(self, at: Tile) -> tuple[Block | None, Block | None]:
        """What stands for the parts of both arrays that belong to a block."""
        return self._block(self.weights, at), self._block(self.slabs, at)

    def _block(self, array: Any, at: Tile) -> Block | None:
        if array is None:
            return None
        here = _clipped(array, at)
        if not is_lazy(array):
            return Block(at, to_host(array)[here])
        part = DaskSource(array[here].rechunk(-1))
        self.graph.nodes.update(part.graph)
        self.graph.held.update(part.held)
        (block,) = part.blocks(tuple(slice(0, size) for size in part.shape))
        return replace(block, at=at)

    def weights_at(self, view: View, at: Sequence[np.ndarray]) -> np.ndarray:
        """The weights of some entries."""
        assert isinstance(view.weights, Weights)
        return _at(view.weights, at)

    def scales_at(self, view: View, at: Sequence[np.ndarray]) -> np.ndarray:
        """The scales of some entries."""
        scales = view.scales
        assert scales is not None
        slabs = scales.slabs
        if not isinstance(slabs, Weights) or not is_lazy(slabs.array):
            return scales.at(at)
        u = _at(slabs, at)
        if scales.signal is not None:
            u = u * scales.signal.at(at)
        return scales.settled(u, len(at[0]))


def _clipped(array: Any, at: Tile) -> Tile:
    """A box, where modes of size 1 stand for all indices."""
    pairs = zip(at, array.shape, strict=True)
    return tuple(part if size > 1 else slice(0, 1) for part, size in pairs)


def _at(weights: Weights, at: Sequence[np.ndarray]) -> np.ndarray:
    array = weights.array
    if not is_lazy(array):
        return weights.at(at)
    assert array is not None
    index = (i if size > 1 else 0 * i for i, size in zip(at, array.shape, strict=True))
    return np.asarray(array.vindex[tuple(index)].compute(), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class _Held:
    """What is done with each block of an array that is computed when it is asked for."""

    work: Callable[[DenseEngine, Factors], np.ndarray]
    view: View
    factors: Factors
    slabs: Any
    compiled: bool

    def __call__(self, block: np.ndarray, block_info: Any = None) -> np.ndarray:
        at = tuple(slice(a, b) for a, b in block_info[0]["array-location"])
        slabs = None if self.slabs is None else to_host(self.slabs[_clipped(self.slabs, at)])
        job = Job(Apply(self.work), self.view, self.factors, self.compiled)
        piece = Piece(Block(at, block), None, None if slabs is None else Block(at, slabs))
        return np.asarray(job.of(piece, [block, None, slabs]))


def _entrywise(work: Callable[[Array], Array], engine: DenseEngine, factors: Factors) -> np.ndarray:
    return np.asarray(engine.entrywise(work, factors))


def _scales(engine: DenseEngine, factors: Factors) -> np.ndarray:
    return np.asarray(engine.entry_scales())
