"""What is computed from the blocks of data: tasks, and how their results are added up.

A task is a group of neighbouring blocks, or some of them. Results are added up in the order of the
blocks, and then in the order of the groups, so that the bits of a sum do not depend on where and
when tasks run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import array_api_compat
import numpy as np

from robustcp._util.typing import Array, Factors
from robustcp.engines.base import Engine, View
from robustcp.engines.blocks.chunks import Block, overlap, within
from robustcp.engines.dense import DenseEngine
from robustcp.engines.normal_equations import NormalEquations
from robustcp.engines.storage import DataSummary
from robustcp.engines.tiles import Tile, slice_length
from robustcp.losses import Loss

#: Results of blocks, each with the box of the block.
Results = Iterable[tuple[Tile, Any]]


@dataclass(frozen=True, eq=False)
class Piece:
    """A block of the data, with what belongs to it.

    Attributes
    ----------
    blocks : tuple of Block or None
        The block of the data, then where needed the blocks of the arrays of weights and of scales.
    summary : DataSummary, optional
        What is known of the entries of the block.
    sample_indices : optional
        Where the entries of a sample are in the block.
    """

    blocks: tuple[Block | None, ...]
    summary: DataSummary | None = None
    sample_indices: Any = None

    @property
    def block(self) -> Block:
        """The block of the data."""
        block = self.blocks[0]
        assert block is not None
        return block

    @property
    def box(self) -> Tile:
        return self.block.box

    @property
    def inputs(self) -> list[Any]:
        """What stands for the arrays of the blocks."""
        return [None if block is None else block.data for block in self.blocks]

    def without_inputs(self) -> Piece:
        """The piece without what stands for its arrays."""
        blocks = (None if block is None else replace(block, data=None) for block in self.blocks)
        return replace(self, blocks=tuple(blocks))

    def load(self, inputs: Sequence[Any]) -> list[Any]:
        """The arrays of the blocks."""
        pairs = zip(self.blocks, inputs, strict=True)
        return [None if block is None else block.load(data) for block, data in pairs]


@dataclass(frozen=True, eq=False)
class Group:
    """Neighbouring pieces, or some of them.

    Attributes
    ----------
    number : int
    box : Tile
        The box of the whole group.
    pieces : list of Piece
    piece_numbers : list of int, optional
        The numbers of the pieces within the group, if they are not all of them. Results of a whole
        group are added up by the task.
    """

    number: int
    box: Tile
    pieces: list[Piece]
    piece_numbers: list[int] | None = None


class BlockOperation(ABC):
    """What is computed from a block."""

    #: Whether the blocks of a group are put together first.
    needs_whole_group: bool = False
    #: Whether parts of a table of which all entries have weight 0 count too.
    includes_zero_weights: bool = False

    @property
    def needs_sorted_rows(self) -> bool:
        """Whether listed entries must be in the order of the first mode's rows."""
        return True

    @abstractmethod
    def __call__(self, engine: Any, factors: Any, piece: Piece) -> Any:
        """The result for the engine of a block and its rows of the factors."""

    @abstractmethod
    def combine(self, full_box: Tile, results: Results) -> Any:
        """The result for a box from the results of the blocks in it, in their order."""


@dataclass(frozen=True, eq=False)
class Job:
    """What is computed in one pass, the same for all blocks.

    Attributes
    ----------
    operation : BlockOperation
    view : View
        The view of all data; without arrays of weights and scales where pieces hold their blocks.
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

    def run_group(self, group: Group, inputs: Sequence[Sequence[Any]]) -> Any:
        """The combined result of a whole group, or a list with the results of some of its pieces.

        None for a group without any result.
        """
        pairs = zip(group.pieces, inputs, strict=True)
        if self.operation.needs_whole_group:
            loaded = [(piece.box, piece.load(data)) for piece, data in pairs]
            block_arrays = zip(*(arrays for _, arrays in loaded), strict=True)
            boxes = [box for box, _ in loaded]
            arrays = [_join_blocks(group.box, boxes, parts) for parts in block_arrays]
            results = [(group.box, self.run_piece(Piece((Block(group.box, None),)), arrays))]
        else:
            results = [
                (piece.box, self.run_piece(piece, piece.load(data))) for piece, data in pairs
            ]
            if group.piece_numbers is not None:
                return results
        nonempty = [(box, result) for box, result in results if result is not None]
        return self.operation.combine(group.box, nonempty) if nonempty else None

    def run_piece(self, piece: Piece, arrays: Sequence[Any]) -> Any:
        """The result of a piece, from the arrays of its blocks; None if no entry counts."""
        engine = piece.block.engine(arrays, self)
        if engine is None:
            return None
        if piece.summary is not None:
            assert isinstance(engine, DenseEngine)
            engine = engine.with_summary(piece.summary)
        rows = self.factors and tuple(
            A[part, :] for A, part in zip(self.factors, piece.box, strict=True)
        )
        return self.operation(engine, rows, piece)


def _join_blocks(
    full_box: Tile, boxes: Sequence[Tile], parts: Sequence[np.ndarray | None]
) -> np.ndarray | None:
    """One array from the arrays of boxes within a box."""
    first = parts[0]
    if len(parts) == 1 or first is None:
        return first
    out = np.empty(tuple(map(slice_length, full_box)), first.dtype)
    for box, part in zip(boxes, parts, strict=True):
        out[within(box, full_box)] = part
    return out


# Operations


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

    def __call__(self, engine: Engine, factors: Any, piece: Piece) -> NormalEquations:
        part = piece.box[self.mode]
        common = overlap(part, self.rows)
        local = slice(common.start - part.start, common.stop - part.start)
        if slice_length(local) <= 0:
            rank = factors[0].shape[1]
            empty = np.zeros((0, rank), engine.dtype)
            packed = np.zeros((1 if self.shared else 0, rank * (rank + 1) // 2), engine.dtype)
            return NormalEquations(packed, empty, 0.0)
        equations = engine.normal_equations(factors, self.mode, self.loss, local)
        return replace(equations, gram=equations.gram[:1, :]) if self.shared else equations

    def combine(self, full_box: Tile, results: Results) -> NormalEquations:
        rows = overlap(full_box[self.mode], self.rows)
        total: NormalEquations | None = None
        for box, part in results:
            if total is None:
                total = self._zeros(rows, part)
            common = overlap(box[self.mode], rows)
            local = slice(common.start - rows.start, common.stop - rows.start)
            total.gradient[local, :] += part.gradient
            if not self.shared:
                total.gram[local, :] += part.gram
            elif common.start == rows.start:  # the other rows have the same Gram matrix
                total.gram[:, :] += part.gram
            total = replace(total, value=total.value + part.value)
        assert total is not None
        return total

    def _zeros(self, rows: slice, like: NormalEquations) -> NormalEquations:
        gradient, gram = like.gradient, like.gram
        xp, device = array_api_compat.array_namespace(gram), array_api_compat.device(gram)
        count, options = slice_length(rows), {"dtype": gram.dtype, "device": device}
        gram_rows = 1 if self.shared else count
        return NormalEquations(
            xp.zeros((gram_rows, gram.shape[1]), **options),
            xp.zeros((count, gradient.shape[1]), **options),
            0.0,
        )


@dataclass(frozen=True, eq=False)
class LossValue(BlockOperation):
    """The loss summed over a block."""

    loss: Loss

    def __call__(self, engine: Engine, factors: Any, piece: Piece) -> float:
        return engine.value(factors, self.loss)

    def combine(self, full_box: Tile, results: Results) -> float:
        return float(sum(value for _, value in results))


@dataclass(frozen=True, eq=False)
class SlabSums(BlockOperation):
    """Sums over the slabs of each mode, see `Engine.slab_sums`."""

    function: Callable[[Array], Array]
    weighted: bool

    def __call__(self, engine: Engine, factors: Any, piece: Piece) -> list[np.ndarray]:
        return engine.slab_sums(self.function, factors, weighted=self.weighted)

    def combine(self, full_box: Tile, results: Results) -> list[np.ndarray]:
        totals: list[np.ndarray] = []
        for box, parts in results:
            totals = totals or [
                np.zeros(slice_length(full_range), sums.dtype)
                for full_range, sums in zip(full_box, parts, strict=True)
            ]
            for total, own_range, part in zip(totals, within(box, full_box), parts, strict=True):
                total[own_range] += part
        return totals


@dataclass(frozen=True, eq=False)
class Collection(BlockOperation):
    """The results of a function of each block's engine, factors and piece, in a list."""

    function: Callable[[Any, Any, Piece], Any]
    needs_whole_group: bool = False
    includes_zero_weights: bool = False

    def __call__(self, engine: Any, factors: Any, piece: Piece) -> Any:
        return self.function(engine, factors, piece)

    def combine(self, full_box: Tile, results: Results) -> list[tuple[Tile, Any]]:
        return list(results)


# Functions for collections


def call_engine(method: Callable[[Any], Any], engine: Any, factors: Any, piece: Piece) -> Any:
    """A method of the engine of a block."""
    return method(engine)


def map_block_residuals(
    work: Callable[[Array], Array], engine: Engine, factors: Any, piece: Piece
) -> np.ndarray:
    """work(x - model) of the entries of a block."""
    return np.asarray(engine.map_residuals(work, factors))
