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

from robustcp._util.typing import Array, Factors
from robustcp.engines.base import View
from robustcp.engines.blocks.chunks import Block, overlap
from robustcp.engines.dense import DenseEngine
from robustcp.engines.normal_equations import NormalEquations
from robustcp.engines.storage import DataSummary
from robustcp.engines.threads import single_blas_thread
from robustcp.engines.tiles import Tile, slice_length
from robustcp.losses import Loss


@dataclass(frozen=True, eq=False)
class Piece:
    """A block with what belongs to it.

    Attributes
    ----------
    block : Block
    weights, scales : Block, optional
        What stands for the parts of arrays of weights and of scales.
    summary : Extent, optional
        What is known to be in the block.
    sample_indices : tuple of integer arrays, optional
        Where the entries of a sample are in it.
    """

    block: Block
    weights: Block | None = None
    scales: Block | None = None
    summary: DataSummary | None = None
    sample_indices: tuple[np.ndarray, ...] | None = None

    @property
    def inputs(self) -> list[Any]:
        """What stands for the arrays that it is made of."""
        blocks = (self.block, self.weights, self.scales)
        return [None if block is None else block.data for block in blocks]

    def without_data(self) -> Piece:
        """Without these."""
        blocks = (None if b is None else replace(b, data=None) for b in self._blocks)
        block, weights, slabs = blocks
        assert block is not None
        return replace(self, block=block, weights=weights, scales=slabs)

    @property
    def _blocks(self) -> tuple[Block | None, ...]:
        return self.block, self.weights, self.scales

    def load(self, inputs: Sequence[Any]) -> list[np.ndarray | None]:
        """Those arrays."""
        pairs = zip(self._blocks, inputs, strict=True)
        return [None if block is None else block.load(data) for block, data in pairs]


@dataclass(frozen=True, eq=False)
class Group:
    """Some blocks of a group of neighbours.

    Attributes
    ----------
    number : int
        Of the group.
    box : Tile
        The box of the whole group.
    pieces : list of Piece
    piece_numbers : list of int
        Those of the pieces within the group.
    is_whole : bool
        Whether these are all of them: then they are added up.
    """

    number: int
    box: Tile
    pieces: list[Piece]
    piece_numbers: list[int]
    is_whole: bool = True


class BlockOperation(ABC):
    """What is done with a block."""

    #: Whether the blocks of a group are put together first.
    needs_whole_group: bool = False
    #: Whether it is done with entries of weight 0 too.
    includes_zero_weights: bool = False

    @property
    def needs_sorted_rows(self) -> bool:
        """Whether listed entries must be in the order of the first mode's rows."""
        return True

    @abstractmethod
    def __call__(self, engine: DenseEngine, factors: Factors | None, piece: Piece) -> Any:
        """Of a block's engine and its rows of the factors."""

    def combine(self, full_box: Tile, results: Any) -> Any:
        """What comes of blocks, one after the other, for the box that holds them."""
        return results


@dataclass(frozen=True, eq=False)
class Job:
    """What is done in one pass, the same for all blocks.

    Attributes
    ----------
    operation : Action
    view : View
        Of all data; arrays of weights and scales are left out.
    factors : tuple of arrays, optional
    compiled : bool
    """

    operation: BlockOperation
    view: View
    factors: Factors | None = field(repr=False, default=None)
    compiled: bool = True

    @property
    def nbytes(self) -> int:
        """The bytes of the factors."""
        return 0 if self.factors is None else sum(A.nbytes for A in self.factors)

    def run_group(self, group: Group, inputs: Sequence[Sequence[Any]]) -> list[Any]:
        """What comes of a group: of all its pieces together, or of each."""
        pairs = zip(group.pieces, inputs, strict=True)
        if self.operation.needs_whole_group:
            loaded = [(piece.block.box, piece.load(data)) for piece, data in pairs]
            arrays = [
                _assemble(group.box, [(box, block_arrays[k]) for box, block_arrays in loaded])
                for k in range(3)
            ]
            return [self.run_piece(Piece(Block(group.box, None)), arrays)]
        results = [
            (piece.block.box, self.run_piece(piece, piece.load(data))) for piece, data in pairs
        ]
        if group.is_whole:
            nonempty = [(box, result) for box, result in results if result is not None]
            return [self.operation.combine(group.box, nonempty) if nonempty else None]
        return results

    def run_piece(self, piece: Piece, arrays: Sequence[np.ndarray | None]) -> Any:
        """What comes of a piece, given the arrays that it is made of."""
        data, weights, scales = arrays
        view = self._block_view(piece.block.box, weights, scales)
        engine = DenseEngine(data, threads=1, compiled=self.compiled, view=view)
        if piece.summary is not None:
            engine = engine.with_summary(piece.summary)
        rows = None
        if self.factors is not None:
            pairs = zip(self.factors, piece.block.box, strict=True)
            rows = tuple(A[part] for A, part in pairs)
        return self.operation(engine, rows, piece)

    def _block_view(
        self, box: Tile, weight_array: np.ndarray | None, scale_array: np.ndarray | None
    ) -> View:
        return self.view.restrict(box).with_field_arrays(weight_array, scale_array)


def _assemble(full_box: Tile, parts: Sequence[tuple[Tile, np.ndarray | None]]) -> np.ndarray | None:
    """One array from those of boxes within a box; modes of size 1 stand for all indices."""
    if len(parts) == 1 or parts[0][1] is None:
        return parts[0][1]
    broadcast = [
        any(part.shape[n] != slice_length(box[n]) for box, part in parts if part is not None)
        for n in range(len(full_box))
    ]
    sizes = [
        1 if is_broadcast else slice_length(part)
        for is_broadcast, part in zip(broadcast, full_box, strict=True)
    ]
    out = np.empty(sizes, parts[0][1].dtype)
    for box, part in parts:
        local_box = (
            slice(0, 1) if is_broadcast else slice(b.start - a.start, b.stop - a.start)
            for is_broadcast, a, b in zip(broadcast, full_box, box, strict=True)
        )
        out[tuple(local_box)] = part
    return out


def run_groups(job: Job, inputs: list[list[list[Any]]], groups: Sequence[Group]) -> list[Any]:
    """What comes of some groups; `inputs` are those of their pieces."""
    with single_blas_thread:
        return [job.run_group(group, data) for group, data in zip(groups, inputs, strict=True)]


# What is done


@dataclass(frozen=True)
class Inspection(BlockOperation):
    """What there is in a block, and its part of a sample."""

    def __call__(self, engine: DenseEngine, factors: Factors | None, piece: Piece) -> Any:
        values = (
            None if piece.sample_indices is None else np.array(engine.array[piece.sample_indices])
        )
        return engine.compute_summary(), values


@dataclass(frozen=True, eq=False)
class ModeEquations(BlockOperation):
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
    def needs_sorted_rows(self) -> bool:
        return self.mode == 0

    def __call__(
        self, engine: DenseEngine, factors: Factors | None, piece: Piece
    ) -> NormalEquations:
        assert factors is not None
        part = piece.block.box[self.mode]
        common = overlap(part, self.rows)
        local = slice(common.start - part.start, common.stop - part.start)
        if slice_length(local) <= 0:
            rank = factors[0].shape[1]
            empty = np.zeros((0, rank), engine.dtype)
            packed = np.zeros((1 if self.shared else 0, rank * (rank + 1) // 2), engine.dtype)
            return NormalEquations(packed, empty, 0.0)
        equations = engine.normal_equations(factors, self.mode, self.loss, local)
        return replace(equations, gram=equations.gram[:1]) if self.shared else equations

    def combine(
        self, full_box: Tile, results: Iterable[tuple[Tile, NormalEquations]]
    ) -> NormalEquations:
        rows = overlap(full_box[self.mode], self.rows)
        value = 0.0
        gram: Any = None
        for box, part in results:
            if gram is None:
                rank, packed, dtype = part.gradient.shape[1], part.gram.shape[1], part.gram.dtype
                gradient = np.zeros((slice_length(rows), rank), dtype)
                gram = np.zeros((1 if self.shared else slice_length(rows), packed), dtype)
            common = overlap(box[self.mode], rows)
            local = slice(common.start - rows.start, common.stop - rows.start)
            gradient[local] += part.gradient
            value += part.value
            if not self.shared:
                gram[local] += part.gram
            elif common.start == rows.start:  # other rows have the same one
                gram += part.gram
        return NormalEquations(gram, gradient, value)


@dataclass(frozen=True, eq=False)
class LossValue(BlockOperation):
    """The loss of a block."""

    loss: Loss

    def __call__(self, engine: DenseEngine, factors: Factors | None, piece: Piece) -> float:
        assert factors is not None
        return engine.value(factors, self.loss)

    def combine(self, full_box: Tile, results: Iterable[tuple[Tile, float]]) -> float:
        return sum(value for _, value in results)


@dataclass(frozen=True, eq=False)
class SlabSums(BlockOperation):
    """Sums over the slabs of each mode, see `Engine.slab_sums`."""

    function: Callable[[Array], Array]
    weighted: bool

    def __call__(
        self, engine: DenseEngine, factors: Factors | None, piece: Piece
    ) -> list[np.ndarray]:
        return engine.slab_sums(self.function, factors, weighted=self.weighted)

    def combine(self, full_box: Tile, results: Iterable[tuple[Tile, list[np.ndarray]]]) -> Any:
        totals: list[np.ndarray] = []
        for box, parts in results:
            totals = totals or [
                np.zeros(slice_length(full_range), sums.dtype)
                for full_range, sums in zip(full_box, parts, strict=True)
            ]
            for full_range, own_range, total, part in zip(
                full_box, box, totals, parts, strict=True
            ):
                total[own_range.start - full_range.start : own_range.stop - full_range.start] += (
                    part
                )
        return totals


@dataclass(frozen=True, eq=False)
class Subset(BlockOperation):
    """The entries at some indices of each mode, in rising order, of all data."""

    indices: tuple[np.ndarray, ...]

    def __call__(self, engine: DenseEngine, factors: Factors | None, piece: Piece) -> np.ndarray:
        pairs = zip(self.indices, piece.block.box, strict=True)
        local_indices = [index[_index_range(index, part)] - part.start for index, part in pairs]
        return np.ascontiguousarray(engine.array[np.ix_(*local_indices)])

    def combine(self, full_box: Tile, results: Sequence[tuple[Tile, np.ndarray]]) -> np.ndarray:
        return self.assemble(full_box, results)

    def assemble(self, full_box: Tile, results: Sequence[tuple[Tile, np.ndarray]]) -> np.ndarray:
        """One array from those of some boxes within a box."""
        if len(results) == 1 and results[0][0] == full_box:
            return results[0][1]
        edges = [
            _index_range(index, part) for index, part in zip(self.indices, full_box, strict=True)
        ]
        out = np.empty(tuple(map(slice_length, edges)), results[0][1].dtype)
        for box, values in results:
            inner = (
                _index_range(index, part) for index, part in zip(self.indices, box, strict=True)
            )
            local_box = tuple(
                slice(part.start - edge.start, part.stop - edge.start)
                for part, edge in zip(inner, edges, strict=True)
            )
            out[local_box] = values
        return out


@dataclass(frozen=True, eq=False)
class UnfoldingProduct(BlockOperation):
    """A product of the unfolding of a mode, see `Engine.gram`; in float64."""

    function: Callable[[DenseEngine], np.ndarray]
    needs_whole_group = True

    def __call__(self, engine: DenseEngine, factors: Factors | None, piece: Piece) -> np.ndarray:
        return self.function(engine)

    def combine(self, full_box: Tile, results: Sequence[tuple[Tile, np.ndarray]]) -> np.ndarray:
        return np.asarray(sum(part for _, part in results))


@dataclass(frozen=True, eq=False)
class EntryMap(BlockOperation):
    """Something for each entry."""

    function: Callable[[DenseEngine, Factors], np.ndarray]

    def __call__(self, engine: DenseEngine, factors: Factors | None, piece: Piece) -> np.ndarray:
        assert factors is not None
        return self.function(engine, factors)


def _index_range(index: np.ndarray, part: slice) -> slice:
    """Which of some rising indices are in a slice."""
    first, last = np.searchsorted(index, (part.start, part.stop))
    return slice(int(first), int(last))
