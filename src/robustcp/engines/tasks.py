"""What is done with blocks of data that lie elsewhere: each is passed over as a dense array.

A task is a group of neighbouring blocks, or some of them. What is sums over blocks is added up in
their order, and then in that of the groups: where and when they are worked on makes no difference
to a bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from robustcp._typing import Array, Factors
from robustcp.engines.base import View
from robustcp.engines.chunks import Block, overlap
from robustcp.engines.dense import DenseEngine
from robustcp.engines.storage import Extent
from robustcp.engines.threads import single_blas_thread
from robustcp.engines.tiles import Tile, length
from robustcp.engines.weights import Weights
from robustcp.losses import Loss
from robustcp.normal import NormalEquations


@dataclass(frozen=True, eq=False)
class Piece:
    """A block with what belongs to it.

    Attributes
    ----------
    block : Block
    weights, slabs : Block, optional
        What stands for the parts of arrays of weights and of scales.
    extent : Extent, optional
        What is known to be in the block.
    places : tuple of integer arrays, optional
        Where the entries of a sample are in it.
    """

    block: Block
    weights: Block | None = None
    slabs: Block | None = None
    extent: Extent | None = None
    places: tuple[np.ndarray, ...] | None = None

    @property
    def inputs(self) -> list[Any]:
        """What stands for the arrays that it is made of."""
        each = (self.block, self.weights, self.slabs)
        return [None if block is None else block.data for block in each]

    def bare(self) -> Piece:
        """Without these."""
        each = (None if b is None else replace(b, data=None) for b in self._blocks)
        block, weights, slabs = each
        assert block is not None
        return replace(self, block=block, weights=weights, slabs=slabs)

    @property
    def _blocks(self) -> tuple[Block | None, ...]:
        return self.block, self.weights, self.slabs

    def taken(self, inputs: Sequence[Any]) -> list[np.ndarray | None]:
        """Those arrays."""
        pairs = zip(self._blocks, inputs, strict=True)
        return [None if block is None else block.taken(given) for block, given in pairs]


@dataclass(frozen=True, eq=False)
class Group:
    """Some blocks of a group of neighbours.

    Attributes
    ----------
    number : int
        Of the group.
    at : Tile
        The box of the whole group.
    pieces : list of Piece
    numbers : list of int
        Those of the pieces within the group.
    whole : bool
        Whether these are all of them: then they are added up.
    """

    number: int
    at: Tile
    pieces: list[Piece]
    numbers: list[int]
    whole: bool = True


class Action(ABC):
    """What is done with a block."""

    #: Whether the blocks of a group are put together first.
    together: bool = False
    #: Whether it is done with entries of weight 0 too.
    all_rows: bool = False

    @property
    def in_order(self) -> bool:
        """Whether listed entries must be in the order of the first mode's rows."""
        return True

    @abstractmethod
    def __call__(self, engine: DenseEngine, factors: Factors | None, piece: Piece) -> Any:
        """Of a block's engine and its rows of the factors."""

    def gathered(self, at: Tile, found: Any) -> Any:
        """What comes of blocks, one after the other, for the box that holds them."""
        return found


@dataclass(frozen=True, eq=False)
class Job:
    """What is done in one pass, the same for all blocks.

    Attributes
    ----------
    action : Action
    view : View
        Of all data; arrays of weights and scales are left out.
    factors : tuple of arrays, optional
    compiled : bool
    """

    action: Action
    view: View
    factors: Factors | None = field(repr=False, default=None)
    compiled: bool = True

    @property
    def size(self) -> int:
        """The bytes of the factors."""
        return 0 if self.factors is None else sum(A.nbytes for A in self.factors)

    def on(self, group: Group, inputs: Sequence[Sequence[Any]]) -> list[Any]:
        """What comes of a group: of all its pieces together, or of each."""
        pairs = zip(group.pieces, inputs, strict=True)
        if self.action.together:
            every = [(piece.block.at, piece.taken(given)) for piece, given in pairs]
            arrays = [_assembled(group.at, [(at, held[k]) for at, held in every]) for k in range(3)]
            return [self.of(Piece(Block(group.at, None)), arrays)]
        found = [(piece.block.at, self.of(piece, piece.taken(given))) for piece, given in pairs]
        if group.whole:
            some = [(at, part) for at, part in found if part is not None]
            return [self.action.gathered(group.at, some) if some else None]
        return found

    def of(self, piece: Piece, arrays: Sequence[np.ndarray | None]) -> Any:
        """What comes of a piece, given the arrays that it is made of."""
        data, weights, slabs = arrays
        view = self._view(piece.block.at, weights, slabs)
        engine = DenseEngine(data, threads=1, compiled=self.compiled, view=view)
        if piece.extent is not None:
            engine = engine.known_to_be(piece.extent)
        rows = None
        if self.factors is not None:
            pairs = zip(self.factors, piece.block.at, strict=True)
            rows = tuple(A[part] for A, part in pairs)
        return self.action(engine, rows, piece)

    def _view(self, at: Tile, weights: np.ndarray | None, slabs: np.ndarray | None) -> View:
        indices = [np.arange(part.start, part.stop) for part in at]
        view = self.view.part(indices)
        if weights is not None:
            assert isinstance(view.weights, Weights)
            view = replace(view, weights=replace(view.weights, array=weights))
        if slabs is not None:
            assert view.scales is not None
            assert isinstance(view.scales.slabs, Weights)
            held = replace(view.scales.slabs, array=slabs)
            view = replace(view, scales=replace(view.scales, slabs=held))
        return view


def _assembled(at: Tile, parts: Sequence[tuple[Tile, np.ndarray | None]]) -> np.ndarray | None:
    """One array from those of boxes within a box; modes of size 1 stand for all indices."""
    if len(parts) == 1 or parts[0][1] is None:
        return parts[0][1]
    flat = [
        any(part.shape[n] != length(box[n]) for box, part in parts if part is not None)
        for n in range(len(at))
    ]
    sizes = [1 if one else length(part) for one, part in zip(flat, at, strict=True)]
    out = np.empty(sizes, parts[0][1].dtype)
    for box, part in parts:
        here = (
            slice(0, 1) if one else slice(b.start - a.start, b.stop - a.start)
            for one, a, b in zip(flat, at, box, strict=True)
        )
        out[tuple(here)] = part
    return out


def perform(job: Job, inputs: list[list[list[Any]]], groups: Sequence[Group]) -> list[Any]:
    """What comes of some groups; `inputs` are those of their pieces."""
    with single_blas_thread:
        return [job.on(group, given) for group, given in zip(groups, inputs, strict=True)]


# What is done


@dataclass(frozen=True)
class Look(Action):
    """What there is in a block, and its part of a sample."""

    def __call__(self, engine: DenseEngine, factors: Factors | None, piece: Piece) -> Any:
        values = None if piece.places is None else np.array(engine.array[piece.places])
        return engine.looked_at(), values


@dataclass(frozen=True, eq=False)
class Equations(Action):
    """Normal equations of some rows of a mode, of all data.

    Attributes
    ----------
    shared : bool
        Whether all rows have one Gram matrix.
    """

    mode: int
    loss: Loss
    rows: slice
    shared: bool

    @property
    def in_order(self) -> bool:
        return self.mode == 0

    def __call__(
        self, engine: DenseEngine, factors: Factors | None, piece: Piece
    ) -> NormalEquations:
        assert factors is not None
        part = piece.block.at[self.mode]
        here = overlap(part, self.rows)
        local = slice(here.start - part.start, here.stop - part.start)
        if length(local) <= 0:
            rank = factors[0].shape[1]
            nothing = np.zeros((0, rank), engine.dtype)
            packed = np.zeros((1 if self.shared else 0, rank * (rank + 1) // 2), engine.dtype)
            return NormalEquations(packed, nothing, 0.0)
        found = engine.normal(factors, self.mode, self.loss, local)
        return replace(found, gram=found.gram[:1]) if self.shared else found

    def gathered(self, at: Tile, found: Iterable[tuple[Tile, NormalEquations]]) -> NormalEquations:
        rows = overlap(at[self.mode], self.rows)
        value = 0.0
        gram: Any = None
        for box, part in found:
            if gram is None:
                rank, packed, dtype = part.gradient.shape[1], part.gram.shape[1], part.gram.dtype
                gradient = np.zeros((length(rows), rank), dtype)
                gram = np.zeros((1 if self.shared else length(rows), packed), dtype)
            here = overlap(box[self.mode], rows)
            local = slice(here.start - rows.start, here.stop - rows.start)
            gradient[local] += part.gradient
            value += part.value
            if not self.shared:
                gram[local] += part.gram
            elif here.start == rows.start:  # other rows have the same one
                gram += part.gram
        return NormalEquations(gram, gradient, value)


@dataclass(frozen=True, eq=False)
class Value(Action):
    """The loss of a block."""

    loss: Loss

    def __call__(self, engine: DenseEngine, factors: Factors | None, piece: Piece) -> float:
        assert factors is not None
        return engine.value(factors, self.loss)

    def gathered(self, at: Tile, found: Iterable[tuple[Tile, float]]) -> float:
        return sum(value for _, value in found)


@dataclass(frozen=True, eq=False)
class SlabSums(Action):
    """Sums over the slabs of each mode, see `Engine.slab_sums`."""

    work: Callable[[Array], Array]
    weighted: bool

    def __call__(
        self, engine: DenseEngine, factors: Factors | None, piece: Piece
    ) -> list[np.ndarray]:
        return engine.slab_sums(self.work, factors, weighted=self.weighted)

    def gathered(self, at: Tile, found: Iterable[tuple[Tile, list[np.ndarray]]]) -> Any:
        totals: list[np.ndarray] = []
        for box, parts in found:
            totals = totals or [
                np.zeros(length(whole), sums.dtype) for whole, sums in zip(at, parts, strict=True)
            ]
            for whole, here, total, part in zip(at, box, totals, parts, strict=True):
                total[here.start - whole.start : here.stop - whole.start] += part
        return totals


@dataclass(frozen=True, eq=False)
class Part(Action):
    """The entries at some indices of each mode, in rising order, of all data."""

    indices: tuple[np.ndarray, ...]

    def __call__(self, engine: DenseEngine, factors: Factors | None, piece: Piece) -> np.ndarray:
        pairs = zip(self.indices, piece.block.at, strict=True)
        at = [index[_within(index, part)] - part.start for index, part in pairs]
        return np.ascontiguousarray(engine.array[np.ix_(*at)])

    def gathered(self, at: Tile, found: Sequence[tuple[Tile, np.ndarray]]) -> np.ndarray:
        return self.put(at, found)

    def put(self, at: Tile, found: Sequence[tuple[Tile, np.ndarray]]) -> np.ndarray:
        """One array from those of some boxes within a box."""
        if len(found) == 1 and found[0][0] == at:
            return found[0][1]
        edges = [_within(index, part) for index, part in zip(self.indices, at, strict=True)]
        out = np.empty(tuple(map(length, edges)), found[0][1].dtype)
        for box, values in found:
            inner = (_within(index, part) for index, part in zip(self.indices, box, strict=True))
            here = tuple(
                slice(part.start - edge.start, part.stop - edge.start)
                for part, edge in zip(inner, edges, strict=True)
            )
            out[here] = values
        return out


@dataclass(frozen=True, eq=False)
class Product(Action):
    """A product of the unfolding of a mode, see `Engine.gram`; in float64."""

    work: Callable[[DenseEngine], np.ndarray]
    together = True

    def __call__(self, engine: DenseEngine, factors: Factors | None, piece: Piece) -> np.ndarray:
        return self.work(engine)

    def gathered(self, at: Tile, found: Sequence[tuple[Tile, np.ndarray]]) -> np.ndarray:
        return np.asarray(sum(part for _, part in found))


@dataclass(frozen=True, eq=False)
class Apply(Action):
    """Something for each entry."""

    work: Callable[[DenseEngine, Factors], np.ndarray]

    def __call__(self, engine: DenseEngine, factors: Factors | None, piece: Piece) -> np.ndarray:
        assert factors is not None
        return self.work(engine, factors)


def _within(index: np.ndarray, part: slice) -> slice:
    """Which of some rising indices are in a slice."""
    first, last = np.searchsorted(index, (part.start, part.stop))
    return slice(int(first), int(last))
