"""Passes compiled by Numba, for the losses in `kernels.FORMULAS` and NumPy arrays.

NumPy goes through memory seven times for the one line of arithmetic of a loss, and a tile costs
it some twenty calls.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from robustcp._typing import Array
from robustcp.engines.installed import compiled_code, numbers_of
from robustcp.engines.passes.base import Part, Pass
from robustcp.engines.scales import MatrixScales
from robustcp.engines.tiles import Tiling, khatri_rao, ranges
from robustcp.engines.weights import MatrixWeights
from robustcp.losses import Loss
from robustcp.normal import NormalEquations


@dataclass(frozen=True)
class Block:
    """A part of the matrix.

    Attributes
    ----------
    corner, end : (row, column)
    rows : slice
        The rows of the own mode that it has a part in.
    """

    corner: tuple[int, int]
    end: tuple[int, int]
    rows: slice


#: A C-ordered matrix and where in it a block begins.
Within = tuple[np.ndarray, tuple[int, int]]


@dataclass(frozen=True)
class Entries:
    """What compiled code reads of a block; it must be held as long as the addresses are used.

    Attributes
    ----------
    data : Within
    weights : array, optional
        Those of the block alone.
    scales : Within, optional
        Inverse ones.
    """

    data: Within
    weights: np.ndarray | None
    scales: Within | None

    @property
    def places(self) -> tuple[tuple[int, int, int], int, tuple[int, int]]:
        """Where they are, as in `kernels._rows_tile`."""
        weights = 0 if self.weights is None else compiled_code().address(self.weights)
        scales = (0, 0) if self.scales is None else _place(*self.scales)[:2]
        return _place(*self.data), weights, scales


@dataclass(frozen=True)
class Lines:
    """What a pass does to a line of entries: addresses as in `kernels._rows_tile`.

    The array of the loss's parameters must be held as long as its address is used.
    """

    calls: tuple[int, int, int, int]
    at: int
    numbers: np.ndarray
    weight: float

    def frame(self, entries: Entries, block: int, *more: int) -> tuple[int, ...]:
        """As `kernels._rows_tile` takes it, of some entries; more is for `kernels._sweep`."""
        X, weights, scales = entries.places
        return *self.calls, self.at, *X, weights, *scales, block, *more


class CompiledPass(Pass):
    """Compiled code, block by block of the matrix."""

    def takes(self, loss: Loss) -> bool:
        """Whether there is compiled code for a loss with such parameters."""
        known = type(loss) in compiled_code().FORMULAS
        return known and numbers_of(loss, self.storage.dtype) is not None

    def normal(self, factors: Sequence[Array], n: int, loss: Loss, rows: slice) -> NormalEquations:
        sides = _Sides(factors, self.storage.split, n, self.storage.dtype)
        rank, dtype = factors[0].shape[1], self.storage.dtype
        run, packed = self._run(loss, sides), rank * (rank + 1) // 2
        blocks = sides.blocks(rows, self.storage.tiling)

        def work(block: Block) -> Part:
            count = block.rows.stop - block.rows.start
            gradient, gram = np.zeros((count, rank), dtype), np.zeros((count, packed), dtype)
            return block.rows, gradient, gram, run(block, gradient, gram)

        if any(a.rows.stop > b.rows.start for a, b in itertools.pairwise(blocks)):
            return self.added(self.storage.map(work, blocks), rows, rank)
        count = rows.stop - rows.start
        gradient, gram = np.zeros((count, rank), dtype), np.zeros((count, packed), dtype)

        def add(block: Block) -> float:
            part = slice(block.rows.start - rows.start, block.rows.stop - rows.start)
            value: float = run(block, gradient[part], gram[part])  # of no other block
            return value

        return NormalEquations(gram, gradient, sum(self.storage.map(add, blocks)))

    def value(self, factors: Sequence[Array], loss: Loss) -> float:
        sides = _Sides(factors, self.storage.split, 0, self.storage.dtype)
        run, nothing = self._run(loss, sides), np.empty((0, 0), self.storage.dtype)
        blocks = sides.blocks(slice(0, self.storage.shape[0]), self.storage.tiling)
        return float(sum(self.storage.map(lambda block: run(block, nothing, nothing), blocks)))

    def _run(self, loss: Loss, sides: _Sides) -> Any:
        """A function of a block, and of arrays to add to, that returns the block's value."""
        code, real = compiled_code(), self.storage.dtype
        tile = (code.rows_tile if sides.own_rows else code.columns_tile)(real).address
        run, address, lines = code.on_tile().run, code.address, self.lines(loss)
        size, read, weight = self.storage.tiling.block, self._read, lines.weight
        parts = sides.parts
        sizes = len(parts[1]), len(parts[2]), parts[3].shape[1]
        places = [address(part) for part in parts]

        def work(block: Block, gradient: np.ndarray, gram: np.ndarray) -> float:
            assert parts  # held while they are read, as entries and lines are
            entries, (row, column), end = read(block), block.corner, block.end
            given = np.array((
                tile, row, column, end[0] - row, end[1] - column, block.rows.start, *sizes,
                gram.shape[1], *places, address(gradient), address(gram),
                *lines.frame(entries, size),
            ))  # fmt: skip
            return float(weight * run(address(given)))

        return work

    def lines(self, loss: Loss) -> Lines:
        """What a pass does to a line of entries."""
        numbers = numbers_of(loss, self.storage.dtype)
        assert numbers is not None
        code = compiled_code()
        weight = code.FORMULAS[type(loss)].weight(loss)
        return Lines(self._calls(loss, numbers), code.address(numbers), numbers, weight)

    def whole(self) -> Entries:
        """All the data, as one block."""
        assert self.storage.as_matrix is not None
        return self._read(Block((0, 0), self.storage.as_matrix.shape, slice(0, 0)))

    def _calls(self, loss: Loss, numbers: np.ndarray) -> tuple[int, int, int, int]:
        """See `kernels._rows_tile`."""
        code, real = compiled_code(), self.storage.dtype
        data = self.storage.array.dtype if self._as_it_is else real
        weighted, scaled = self._weights is not None, self._scales is not None
        formula = code.FORMULAS[type(loss)].line(real, weighted, len(numbers))
        return formula, code.before(data, real, scaled), code.after(real, scaled), code.gemm(real)

    @cached_property
    def _as_it_is(self) -> bool:
        """Whether the compiled code can read the data itself."""
        kind = self.storage.array.dtype
        native = (
            self.storage.array.flags.aligned
            and kind.isnative
            and (kind.kind in "iu" or kind in (np.float32, np.float64))
        )
        weights = self.storage.weights
        zeros = weights is not None and weights.zeros
        return native and not zeros and self.storage.view.plain

    def _read(self, block: Block) -> Entries:
        """The data, weights and inverse scales of a block."""
        whole, storage = self.storage.as_matrix, self.storage
        assert whole is not None
        here = tuple(slice(a, b) for a, b in zip(block.corner, block.end, strict=True))
        w = None if self._weights is None else np.ascontiguousarray(self._weights.block(*here))
        scales = None if self._scales is None else self._scales.block(*here)
        if self._as_it_is:
            return Entries((whole, block.corner), w, scales)
        part = storage.converted(whole[here], storage.dtype)
        if w is not None and storage.weights is not None and storage.weights.zeros:
            part = np.where(w == 0, part.dtype.type(np.nan), part)
        return Entries((np.ascontiguousarray(part), (0, 0)), w, scales)

    @cached_property
    def _scales(self) -> MatrixScales | None:
        scales, storage = self.storage.scales, self.storage
        return None if scales is None else scales.as_matrix(storage.shape, storage.split)

    @cached_property
    def _weights(self) -> MatrixWeights | None:
        weights, storage = self.storage.weights, self.storage
        return None if weights is None else MatrixWeights(weights, storage.shape, storage.split)


def _place(matrix: np.ndarray, at: tuple[int, int]) -> tuple[int, int, int]:
    """Where an entry of a matrix is, and how far it is to the next row and entry, in bytes."""
    step, width = matrix.shape[1] * matrix.itemsize, matrix.itemsize
    return compiled_code().address(matrix) + at[0] * step + at[1] * width, step, width


class _Sides:
    """The factors of a pass for one mode, multiplied out.

    The own mode is on one side of the matrix, where lines run over left x own x right: the modes
    before and after it. The other side is multiplied out as a whole.
    """

    def __init__(self, factors: Sequence[np.ndarray], split: int, n: int, dtype: Any) -> None:
        self.own_rows = n < split
        first, last = (0, split) if self.own_rows else (split, len(factors))
        other = factors[split:] if self.own_rows else factors[:split]
        parts = (factors[first:n], factors[n : n + 1], factors[n + 1 : last], other)
        ones = [_ones(factors[0].shape[1], factors[0].dtype)]
        self.parts = tuple(np.ascontiguousarray(khatri_rao(part or ones), dtype) for part in parts)

    def blocks(self, rows: slice, tiling: Tiling) -> list[Block]:
        """Blocks that cover some rows of the own mode; the same for any number of threads."""
        left, _, right, other = (len(part) for part in self.parts)
        half = -(-left * (rows.stop - rows.start) * right * other // 2)
        room = tiling.compiled_entries * 8 // self.parts[3].itemsize
        most = min(room, max(tiling.smallest, half))
        if self.own_rows:
            across = ranges(other, tiling.columns)
            along = self._along(rows, max(1, most // across[0].stop))
        else:
            along = self._along(rows, tiling.columns)
            across = ranges(other, max(1, most // max(b - a for a, b, _ in along)))
        return [
            Block((a, c.start), (b, c.stop), own)
            if self.own_rows
            else Block((c.start, a), (c.stop, b), own)
            for (a, b, own), c in itertools.product(along, across)
        ]

    def _along(self, rows: slice, most: int) -> list[tuple[int, int, slice]]:
        """Cuts of the own side, at most so long: first line, end, and the own mode's rows.

        A cut is a part of one run (the lines of one index of the modes before) or several whole
        ones; so it has a part in few rows of the own mode, or each row many lines in it.
        """
        left, own, right = (len(part) for part in self.parts[:3])
        run, length = own * right, (rows.stop - rows.start) * right
        if length == run <= most:
            return [(g.start * run, g.stop * run, rows) for g in ranges(left, most // run)]
        found = []
        for begin in range(rows.start * right, left * run, run):
            for cut in ranges(length, most):
                low, high = cut.start // right, -(-cut.stop // right)
                own_rows = slice(rows.start + low, rows.start + high)
                found.append((begin + cut.start, begin + cut.stop, own_rows))
        return found


@lru_cache
def _ones(rank: int, dtype: Any) -> np.ndarray:
    return np.ones((1, rank), dtype)
