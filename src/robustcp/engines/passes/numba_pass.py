"""Passes by code that Numba compiles, for NumPy arrays and losses that have a `numba_formula`.

For the few operations of a loss, NumPy would read and write memory seven times, and it would need
some twenty calls for a tile.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from robustcp._util.typing import Array
from robustcp.engines.entry_field import MatrixField
from robustcp.engines.installed import loss_parameters, numba_kernels
from robustcp.engines.limits import MatrixSides
from robustcp.engines.normal_equations import NormalEquations
from robustcp.engines.passes.base import Pass, TileSums
from robustcp.engines.scales import InverseScales
from robustcp.engines.tiles import Tiling, khatri_rao, split_range
from robustcp.losses import Loss


@dataclass(frozen=True)
class Block:
    """A block of the matrix.

    Attributes
    ----------
    corner, end : (row, column)
    rows : slice
        The rows of the own mode that it contributes to.
    """

    corner: tuple[int, int]
    end: tuple[int, int]
    rows: slice


class CompiledPass(Pass):
    """Compiled code, block by block of the matrix."""

    def supports(self, loss: Loss) -> bool:
        """Whether there is compiled code for a loss with such parameters."""
        return loss_parameters(loss, self.storage.dtype) is not None

    def normal_equations(
        self, factors: Sequence[Array], n: int, loss: Loss, rows: slice
    ) -> NormalEquations:
        sides = _SideProducts(factors, self.storage.split, n, self.storage.dtype)
        rank, dtype = factors[0].shape[1], self.storage.dtype
        run, packed = self._block_function(loss, sides), rank * (rank + 1) // 2
        blocks = sides.blocks(rows, self.storage.tiling)

        def sum_block(block: Block) -> TileSums:
            count = block.rows.stop - block.rows.start
            gradient, gram = np.zeros((count, rank), dtype), np.zeros((count, packed), dtype)
            return block.rows, gradient, gram, run(block, gradient, gram)

        if any(a.rows.stop > b.rows.start for a, b in itertools.pairwise(blocks)):
            return self.sum_tiles(self.storage.map(sum_block, blocks), rows, rank)
        count = rows.stop - rows.start
        gradient, gram = np.zeros((count, rank), dtype), np.zeros((count, packed), dtype)

        def add_block(block: Block) -> float:
            target = slice(block.rows.start - rows.start, block.rows.stop - rows.start)
            value: float = run(block, gradient[target], gram[target])  # no other block's rows
            return value

        return NormalEquations(gram, gradient, sum(self.storage.map(add_block, blocks)))

    def value(self, factors: Sequence[Array], loss: Loss) -> float:
        sides = _SideProducts(factors, self.storage.split, 0, self.storage.dtype)
        run, empty = self._block_function(loss, sides), np.empty((0, 0), self.storage.dtype)
        blocks = sides.blocks(slice(0, self.storage.shape[0]), self.storage.tiling)
        return float(sum(self.storage.map(lambda block: run(block, empty, empty), blocks)))

    def _block_function(self, loss: Loss, sides: _SideProducts) -> Any:
        """A function that adds a block's part to two arrays, and returns the block's value."""
        code, functions, value_factor = numba_kernels(), *self.functions(loss)
        address, read_block, products = code.address, self._read_block, sides.products
        run, own_rows = code.tile_pass(self.storage.dtype).run, sides.own_rows
        sizes = len(products[1]), len(products[2]), products[3].shape[1]
        addresses = [address(part) for part in products]

        def run_block(block: Block, gradient: np.ndarray, gram: np.ndarray) -> float:
            assert products  # held while they are read
            entries, (row, column), end = read_block(block), block.corner, block.end
            size = end[0] - row, end[1] - column
            first_own, packed = block.rows.start, gram.shape[1]
            tile = code.Tile(row, column, *size, own_rows, first_own, *sizes, packed, *addresses)
            value = run(functions, entries, tile, address(gradient), address(gram))
            return float(value_factor * value)

        return run_block

    def functions(self, loss: Loss) -> tuple[Any, float]:
        """What compiled code calls for a line of entries, and the factor of the loss's values."""
        code, real, formula = numba_kernels(), self.storage.dtype, loss.numba_formula
        censored = self._sides is not None
        parameters = loss_parameters(loss, real, one_sided=censored)
        assert formula is not None
        assert parameters is not None
        data = self.storage.array.dtype if self._reads_in_place else real
        weighted, scaled = self._weights is not None, self._scales is not None
        functions = code.Functions(
            code.formula_line(
                formula.function,
                real,
                len(formula.numbers),
                weighted,
                censored,
                censored and loss.convex,
            ),
            code.line_preparation(data, real, scaled),
            code.line_restoration(real, scaled),
            code.gemm(real),
            code.address(parameters),
            self.storage.tiling.block_entries,
        )
        functions.arrays = parameters
        return functions, formula.value_factor

    def read_all(self) -> Any:
        """Where all the data is, as compiled code takes it."""
        assert self.storage.as_matrix is not None
        return self._read_block(Block((0, 0), self.storage.as_matrix.shape, slice(0, 0)))

    @cached_property
    def _reads_in_place(self) -> bool:
        """Whether the compiled code can read the data itself."""
        dtype = self.storage.array.dtype
        native = (
            self.storage.array.flags.aligned
            and dtype.isnative
            and (dtype.kind in "iu" or dtype in (np.float32, np.float64))
        )
        weights = self.storage.weights
        has_zeros = weights is not None and weights.has_zeros
        return native and not has_zeros and self.storage.view.is_identity

    def _read_block(self, block: Block) -> Any:
        """Where the data of a block is, and its fields, as compiled code takes it."""
        matrix, storage, code = self.storage.as_matrix, self.storage, numba_kernels()
        assert matrix is not None
        window = tuple(slice(a, b) for a, b in zip(block.corner, block.end, strict=True))
        w = None if self._weights is None else np.ascontiguousarray(self._weights.block(*window))
        sides = None if self._sides is None else self._sides.block(*window)
        scales, scale_corner = (
            (None, (0, 0)) if self._scales is None else self._scales.block(*window)
        )
        data, corner = matrix, block.corner
        if not self._reads_in_place:
            values = storage.convert(matrix[window], storage.dtype)
            if w is not None and storage.weights is not None and storage.weights.has_zeros:
                values = np.where(w == 0, values.dtype.type(np.nan), values)
            data, corner = np.ascontiguousarray(values), (0, 0)
        entries = code.Entries(
            *_locate(data, corner),
            data.itemsize,
            0 if w is None else code.address(w),
            0 if sides is None else code.address(sides),
            *((0, 0) if scales is None else _locate(scales, scale_corner)),
        )
        entries.arrays = data, w, sides, scales
        return entries

    @cached_property
    def _scales(self) -> InverseScales | None:
        scales, storage = self.storage.scales, self.storage
        return None if scales is None else scales.inverse_scales(storage.shape, storage.split)

    @cached_property
    def _sides(self) -> MatrixSides | None:
        limits, storage = self.storage.limits, self.storage
        if limits is None or storage.as_matrix is None:
            return None
        return limits.matrix_sides(storage.as_matrix, storage.shape, storage.split)

    @cached_property
    def _weights(self) -> MatrixField | None:
        weights, storage = self.storage.weights, self.storage
        return None if weights is None else MatrixField(weights, storage.shape, storage.split)


def _locate(matrix: np.ndarray, offset: tuple[int, int]) -> tuple[int, int]:
    """Where an entry of a C-ordered matrix is, and how far it is to the next row, in bytes."""
    step = matrix.shape[1] * matrix.itemsize
    return numba_kernels().address(matrix) + offset[0] * step + offset[1] * matrix.itemsize, step


class _SideProducts:
    """The factors of a pass for one mode, multiplied out.

    The own mode is on one side of the matrix, where lines run over left x own x right: the modes
    before and after it. The other side is multiplied out as a whole.
    """

    def __init__(self, factors: Sequence[np.ndarray], split: int, n: int, dtype: Any) -> None:
        self.own_rows = n < split
        first, last = (0, split) if self.own_rows else (split, len(factors))
        other = factors[split:] if self.own_rows else factors[:split]
        groups = (factors[first:n], factors[n : n + 1], factors[n + 1 : last], other)
        ones = [_ones(factors[0].shape[1], factors[0].dtype)]
        self.products = tuple(
            np.ascontiguousarray(khatri_rao(part or ones), dtype) for part in groups
        )

    def blocks(self, rows: slice, tiling: Tiling) -> list[Block]:
        """Blocks that cover some rows of the own mode; the same for any number of threads."""
        left, _, right, other = (len(part) for part in self.products)
        half_entries = -(-left * (rows.stop - rows.start) * right * other // 2)
        entry_limit = tiling.compiled_entries * 8 // self.products[3].itemsize
        block_entries = min(entry_limit, max(tiling.min_entries, half_entries))
        if self.own_rows:
            other_cuts = split_range(other, tiling.max_columns)
            own_cuts = self._cut_own_side(rows, max(1, block_entries // other_cuts[0].stop))
        else:
            own_cuts = self._cut_own_side(rows, tiling.max_columns)
            other_cuts = split_range(
                other, max(1, block_entries // max(b - a for a, b, _ in own_cuts))
            )
        return [
            Block((a, c.start), (b, c.stop), own)
            if self.own_rows
            else Block((c.start, a), (c.stop, b), own)
            for (a, b, own), c in itertools.product(own_cuts, other_cuts)
        ]

    def _cut_own_side(self, rows: slice, max_lines: int) -> list[tuple[int, int, slice]]:
        """Cuts of at most `max_lines` of the own side: first line, end, and the own mode's rows.

        A cut is a part of one run (the lines of one index of the modes before) or several whole
        runs. So it contributes to few rows of the own mode, or many of its lines to each row.
        """
        left, own, right = (len(part) for part in self.products[:3])
        run_lines, used_lines = own * right, (rows.stop - rows.start) * right
        if used_lines == run_lines <= max_lines:
            return [
                (g.start * run_lines, g.stop * run_lines, rows)
                for g in split_range(left, max_lines // run_lines)
            ]
        cuts = []
        for begin in range(rows.start * right, left * run_lines, run_lines):
            for cut in split_range(used_lines, max_lines):
                low, high = cut.start // right, -(-cut.stop // right)
                own_rows = slice(rows.start + low, rows.start + high)
                cuts.append((begin + cut.start, begin + cut.stop, own_rows))
        return cuts


@lru_cache
def _ones(rank: int, dtype: Any) -> np.ndarray:
    return np.ones((1, rank), dtype)
