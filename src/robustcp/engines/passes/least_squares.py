"""The pass for half the square: sum (x - m)^2 = sum x^2 - 2 <x, m> + <m, m>.

So it needs only the product of the data with the factors of all modes but one. The data, multiplied
by the factors of one side of the matrix, serves all modes of the other side, until a factor
changes. Weights that are a vector per mode multiply the rows of the factors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from robustcp._util.typing import Array
from robustcp.engines.installed import numba_kernels
from robustcp.engines.normal_equations import NormalEquations
from robustcp.engines.passes.base import Pass
from robustcp.engines.storage import Storage
from robustcp.engines.tiles import Tile, khatri_rao, split_boxes, split_range
from robustcp.losses import Loss

#: A contraction of the data with at most so many entries is kept.
CACHED_ENTRIES = 1 << 20
#: A contraction with at most this share of the entries of the data is kept as well.
CACHED_SHARE = 0.03


class LeastSquaresPass(Pass):
    """Two matrix products instead of three; for whole modes of float64 data without gaps.

    Entries of weight 0, where weights are vectors of modes, are not gaps: they are multiplied by 0.
    """

    #: Of a value below this share of the squares of the data, most digits have cancelled.
    cancellation_share: ClassVar[float] = 1e-7

    def __init__(self, storage: Storage, plain: Pass, *, compiled: bool = False) -> None:
        super().__init__(storage)
        self.plain, self._compiled = plain, compiled
        self._contractions: dict[bool, tuple[list[Array], Array]] = {}

    def normal_equations(
        self, factors: Sequence[Array], n: int, loss: Loss, rows: slice
    ) -> NormalEquations:
        equations = self.equations_without_data_square(factors, n, rows)
        return replace(equations, value=self.complete_value(float(equations.value), factors, loss))

    def equations_without_data_square(
        self, factors: Sequence[Array], n: int, rows: slice
    ) -> NormalEquations:
        """The normal equations, with a value that lacks the squares of the data.

        The value is an array, which a GPU may still be computing.
        """
        storage, u = self.storage, factors[n]
        product = self.shared_gram(factors, n)
        mttkrp = self._mttkrp(storage.weight_rows(factors), n)
        fitted = u @ product
        w = storage.row_weights(n)
        if w is not None:
            mttkrp, fitted = w[:, None] * mttkrp, w[:, None] * fitted
        xp = storage.xp
        value = xp.sum((0.5 * fitted - mttkrp) * u, dtype=xp.float64)
        return NormalEquations(self.packed_grams(product, n, rows), mttkrp - fitted, value)

    def complete_value(self, value: float, factors: Sequence[Array], loss: Loss) -> float:
        """The value, given the value without the squares of the data: <m, m> / 2 - <x, m>."""
        total = self.half_data_square + value
        return total if self.is_accurate(total) else self.plain.value(factors, loss)

    def is_accurate(self, value: float) -> bool:
        """Whether enough digits of a value, and so of gradients, have not cancelled."""
        return value >= self.least_accurate_value

    def value(self, factors: Sequence[Array], loss: Loss) -> float:
        n = len(factors) - 1  # of the modes of the matrix's columns
        return float(self.normal_equations(factors, n, loss, slice(0, self.storage.shape[n])).value)

    @property
    def least_accurate_value(self) -> float:
        """Of a smaller value, and so of gradients, too many digits have cancelled."""
        return self.cancellation_share * self.half_data_square

    @cached_property
    def half_data_square(self) -> float:
        """Half the sum of the squares of the data."""
        storage = self.storage

        def tile_square(tile: Tile) -> float:
            x = storage.read(tile, storage.xp.float64)
            (square,) = storage.apply_weights(tile, x * x)
            return float(storage.xp.sum(square))

        return 0.5 * math.fsum(
            storage.map(tile_square, split_boxes(storage.shape, storage.tile_entries))
        )

    def _mttkrp(self, factors: Sequence[Array], n: int) -> Array:
        """The data times all factors but that of mode n."""
        storage, split = self.storage, self.storage.split
        own_rows = n < split
        lines = self._contract_side(factors, own_rows)
        if not self._compiled:
            all_rows = tuple(slice(0, size) for size in storage.shape)
            return storage.tile_factors(factors).contract(lines, n, all_rows, packed=False)
        side, position = (factors[:split], n) if own_rows else (factors[split:], n - split)
        ones = [np.ones((1, lines.shape[1]), lines.dtype)]
        left, right = (
            np.ascontiguousarray(khatri_rao(part or ones))
            for part in (side[:position], side[position + 1 :])
        )
        return numba_kernels().collapse_lines(lines, left, len(side[position]), right)

    def _contract_side(self, factors: Sequence[Array], own_rows: bool) -> Array:
        """The matrix times the Khatri-Rao product of the other side's factors."""
        storage = self.storage
        xp, split = storage.xp, storage.split
        others = factors[split:] if own_rows else factors[:split]
        cached = self._contractions.get(own_rows)
        if cached is not None and all(
            A is B or (A.shape == B.shape and storage.on_host and bool(xp.all(A == B)))
            for A, B in zip(others, cached[0], strict=True)
        ):
            return cached[1]
        rank = factors[0].shape[1]
        side = storage.shape[:split] if own_rows else storage.shape[split:]
        lines = math.prod(side)
        contract_tiles = self._compiled_lines if self._compiled else self._plain_lines
        total = None
        for first, part in contract_tiles(factors, own_rows):
            if total is None:
                if part.shape[0] == lines:
                    total = part
                    continue
                total = storage.zeros(lines, rank)
            total[first : first + part.shape[0], :] += part
        if lines * rank <= max(CACHED_ENTRIES, CACHED_SHARE * math.prod(storage.shape)):
            factor_copies = [xp.asarray(A, copy=True) if storage.on_host else A for A in others]
            self._contractions[own_rows] = factor_copies, total
        return total

    def _plain_lines(self, factors: Sequence[Array], own_rows: bool) -> Iterator[tuple[int, Array]]:
        """The product by tiles: the first line of each part, and the part."""
        storage, split = self.storage, self.storage.split
        tile_factors = storage.tile_factors(factors)
        side = slice(0, split) if own_rows else slice(split, None)

        def first_line(tile: Tile) -> int:
            first = 0
            for part, size in zip(tile[side], storage.shape[side], strict=True):
                first = first * size + part.start
            return first

        def contract_tile(tile: Tile) -> tuple[int, Array]:
            y, K = storage.unmasked_tile_matrix(tile), tile_factors.K(tile, columns=own_rows)
            return first_line(tile), (y if own_rows else y.T) @ K

        return storage.map(contract_tile, storage.pass_tiles())

    def _compiled_lines(
        self, factors: Sequence[Array], own_rows: bool
    ) -> Iterator[tuple[int, Array]]:
        storage, tiling = self.storage, self.storage.tiling
        matrix = storage.as_matrix
        assert matrix is not None
        split = storage.split
        K = np.ascontiguousarray(khatri_rao(factors[split:] if own_rows else factors[:split]))
        run = numba_kernels().contract_rows if own_rows else numba_kernels().contract_columns

        def contract_block(rows: slice) -> tuple[int, Array]:
            X = storage.convert(matrix[rows], storage.dtype)
            lines = np.empty((X.shape[0] if own_rows else X.shape[1], K.shape[1]), K.dtype)
            run(X, K if own_rows else K[rows], lines, tiling.block_entries // 2)
            return (rows.start if own_rows else 0), lines

        needs_no_conversion = storage.array.dtype == storage.dtype
        max_entries = tiling.compiled_entries if needs_no_conversion else storage.tile_entries
        return storage.map(
            contract_block, split_range(matrix.shape[0], max(1, max_entries // matrix.shape[1]))
        )


class MatrixLeastSquaresPass(LeastSquaresPass):
    """The pass by two products of the whole matrix, on a GPU; also in float32.

    Where the model is so close to the data that digits cancel, the pass over residuals is used.
    """

    cancellation_share = 1e-3

    def normal_equations(
        self, factors: Sequence[Array], n: int, loss: Loss, rows: slice
    ) -> NormalEquations:
        equations = super().normal_equations(factors, n, loss, rows)
        return (
            equations
            if self.is_accurate(equations.value)
            else self.plain.normal_equations(factors, n, loss, rows)
        )

    def complete_value(self, value: float, factors: Sequence[Array], loss: Loss) -> float:
        return self.half_data_square + value

    def _plain_lines(self, factors: Sequence[Array], own_rows: bool) -> Iterator[tuple[int, Array]]:
        storage, split = self.storage, self.storage.split
        X, unit = storage.device_matrix, math.ldexp(1.0, -storage.view.exponent)
        assert X is not None
        K = khatri_rao(factors[split:] if own_rows else factors[:split])
        yield 0, (X if own_rows else X.T) @ (K * unit)
