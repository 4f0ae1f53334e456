"""Listed entries in the order of the rows of each mode, and passes over them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import array_api_compat.numpy as xp
import numpy as np

from robustcp._util.typing import Factors
from robustcp.engines.entries import model_at, row_products
from robustcp.engines.installed import loss_parameters, numba_kernels
from robustcp.engines.limits import drop_satisfied
from robustcp.engines.normal_equations import NormalEquations, pack_indices
from robustcp.engines.threads import TileExecutor
from robustcp.engines.tiles import split_range
from robustcp.losses import Loss, OneSided

#: Entries of a tile, for NumPy and for compiled code.
PLAIN_TILE_ENTRIES, COMPILED_TILE_ENTRIES = 1 << 14, 1 << 16


def index_dtype(shape: Sequence[int]) -> Any:
    """The type of indices: unsigned and short for compiled code, if all modes allow it."""
    return np.uint32 if max(shape) <= 2**32 else np.int64


def stable_order(index: np.ndarray, size: int) -> np.ndarray:
    """Stable argsort of indices below `size`.

    Sixteen bits at a time: NumPy sorts those without comparisons.
    """
    order = np.argsort(index.astype(np.uint16), kind="stable")
    for shift in range(16, max(size - 1, 1).bit_length(), 16):
        digits = (index >> index.dtype.type(shift)).astype(np.uint16)
        order = order[np.argsort(digits[order], kind="stable")]
    return order


def lexicographic_order(indices: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """The order of entries by their indices in the first mode, then the second, and so on."""
    order = stable_order(indices[-1], shape[-1])
    for index, size in zip(indices[-2::-1], shape[-2::-1], strict=True):
        order = order[stable_order(index[order], size)]
    return order


@dataclass(frozen=True)
class RowOrder:
    """The entries in the order of their indices in one mode.

    Attributes
    ----------
    permutation : integer array (count,), optional
        Positions in the lexicographic order; None if both orders are equal.
    other_indices : integer array (N - 1, count)
        Indices in the other modes.
    row_starts : integer array (I_n + 1,)
        The position of the first entry of each row, and the number of all entries.
    factor_offsets : integer array (N - 1,)
        The first rows of the factors of the other modes, if those are stacked.
    """

    permutation: np.ndarray | None
    other_indices: np.ndarray
    row_starts: np.ndarray
    factor_offsets: np.ndarray


class CoordinateList:
    """Indices of entries in lexicographic order. Row orders are made when a mode first needs one.

    A row order takes 4 N bytes for each entry, but none for the first mode.

    Attributes
    ----------
    indices : integer array (N, count)
    shape : tuple of int
    """

    def __init__(self, indices: np.ndarray, shape: Sequence[int]) -> None:
        self.indices, self.shape = indices, tuple(shape)
        self._row_orders: dict[int, RowOrder] = {}

    def take(self, positions: np.ndarray) -> CoordinateList:
        """Some of the entries, in their order."""
        return CoordinateList(np.take(self.indices, positions, axis=1), self.shape)

    def row_order(self, mode: int) -> RowOrder:
        if mode not in self._row_orders:
            counts = np.bincount(self.indices[mode], minlength=self.shape[mode])
            row_starts = np.concatenate(([0], np.cumsum(counts)))
            others = [m for m in range(len(self.shape)) if m != mode]
            factor_offsets = np.cumsum([0, *(self.shape[m] for m in others[:-1])])
            permutation, other_indices = None, self.indices[1:]
            if mode:
                permutation = stable_order(self.indices[mode], self.shape[mode])
                other_indices = np.stack([self.indices[m][permutation] for m in others])
                permutation = permutation.astype(index_dtype((permutation.size,)))
            self._row_orders[mode] = RowOrder(
                permutation, other_indices, row_starts, factor_offsets
            )
        return self._row_orders[mode]


class EntryValues:
    """A number for each entry of a list; also in the row orders of its modes."""

    def __init__(self, coordinates: CoordinateList, values: np.ndarray) -> None:
        self.coordinates, self.values = coordinates, np.ascontiguousarray(values)
        self._by_mode: dict[int, np.ndarray] = {}

    def in_row_order(self, mode: int) -> np.ndarray:
        if mode not in self._by_mode:
            permutation = self.coordinates.row_order(mode).permutation
            self._by_mode[mode] = self.values if permutation is None else self.values[permutation]
        return self._by_mode[mode]

    def take(self, positions: np.ndarray, coordinates: CoordinateList) -> EntryValues:
        """The values of some entries, whose indices are `coordinates`."""
        return EntryValues(coordinates, self.values[positions])


@dataclass(frozen=True, eq=False)
class CoordinatePasses:
    """Listed entries, and the passes over them.

    Attributes
    ----------
    coordinates : CoordinateList
    executor : TileExecutor
    compiled : bool
        Whether compiled passes may be used.
    x : EntryValues
        The data as seen in a view.
    w, h, sides : EntryValues, optional
        Weights, inverse scales, and the sides on which entries are censored.
    """

    coordinates: CoordinateList
    executor: TileExecutor = field(repr=False)
    compiled: bool
    x: EntryValues
    w: EntryValues | None = None
    h: EntryValues | None = None
    sides: EntryValues | None = None

    @property
    def dtype(self) -> Any:
        return self.x.values.dtype

    @cached_property
    def any_pass(self) -> CoordinatePass:
        """A pass for residuals, which need no loss."""
        if self.compiled and numba_kernels() is not None:
            return CompiledCoordinatePass(self)
        return PlainCoordinatePass(self)

    def for_loss(self, loss: Loss) -> CoordinatePass:
        """The pass for a loss."""
        if loss_parameters(loss, self.dtype) is None:
            return PlainCoordinatePass(self)
        return self.any_pass


class RowSums(NamedTuple):
    """Sums over the entries of some rows of a mode, of which `first_row` is the first.

    Attributes
    ----------
    first_row : int
    gradient : array (rows, R)
    gram : array (rows, R(R+1)/2)
        Packed; empty if only the value of the loss is computed.
    """

    first_row: int
    gradient: np.ndarray
    gram: np.ndarray

    @classmethod
    def empty(cls, dtype: Any) -> RowSums:
        return cls(0, np.empty((0, 0), dtype), np.empty((0, 0), dtype))


#: Processes a tile: a range of entries, the row of its first entry, and a vector to which sums for
#: that row are added (gradient, then Gram matrix). Returns the sum of the loss.
TileFunction = Callable[[slice, int, np.ndarray], float]


class CoordinatePass(ABC):
    """A pass over listed entries."""

    #: Entries of a tile.
    tile_entries: int

    def __init__(self, entries: CoordinatePasses) -> None:
        self.entries, self.coordinates = entries, entries.coordinates

    def normal_equations(
        self, factors: Factors, mode: int, loss: Loss, rows: slice
    ) -> NormalEquations:
        """The normal equations of some rows of a mode.

        Tiles are cut by the number of entries, so that threads share a row with most entries.
        Sums for the first row of a tile are added last, in the order of the tiles; no other row
        of a tile has entries in an earlier one.
        """
        starts, rank = self.coordinates.row_order(mode).row_starts, factors[0].shape[1]
        count, packed, dtype = rows.stop - rows.start, rank * (rank + 1) // 2, self.entries.dtype
        sums = RowSums(rows.start, np.zeros((count, rank), dtype), np.zeros((count, packed), dtype))
        work = self.tile_function(factors, mode, loss, sums)
        first, last = int(starts[rows.start]), int(starts[rows.stop])
        value = 0.0
        for row, edge, tile_value in self._map_tiles(work, starts, first, last, rank + packed):
            sums.gradient[row - rows.start] += edge[:rank]
            sums.gram[row - rows.start] += edge[rank:]
            value += tile_value
        return NormalEquations(sums.gram, sums.gradient, value)

    def value(self, factors: Factors, loss: Loss) -> float:
        """The loss summed over the entries."""
        work = self.tile_function(factors, 0, loss, RowSums.empty(self.entries.dtype))
        return sum(value for _, _, value in self._map_all_tiles(work))

    def residuals(self, factors: Factors, fill: float = 0.0) -> np.ndarray:
        """x - model of all entries, divided by their scales; `fill` where it is beyond a limit."""
        residuals = np.empty_like(self.entries.x.values)
        self._map_all_tiles(self.residual_function(factors, residuals))
        if self.entries.sides is None:
            return residuals
        return np.asarray(drop_satisfied(residuals, self.entries.sides.values, fill, xp))

    def _map_all_tiles(self, work: TileFunction) -> list[tuple[int, np.ndarray, float]]:
        starts = self.coordinates.row_order(0).row_starts
        return self._map_tiles(work, starts, 0, int(starts[-1]), 0)

    def _map_tiles(
        self, work: TileFunction, starts: np.ndarray, first: int, last: int, size: int
    ) -> list[tuple[int, np.ndarray, float]]:
        """The first row of each tile, the sums for that row, and the value."""
        if last == first:
            return []
        cuts = [
            slice(first + t.start, first + t.stop)
            for t in split_range(last - first, self.tile_entries)
        ]
        first_rows = np.searchsorted(starts, [cut.start for cut in cuts], side="right") - 1

        def tile(item: tuple[slice, int]) -> tuple[int, np.ndarray, float]:
            cut, row = item
            edge = np.zeros(size, self.entries.dtype)
            return row, edge, work(cut, row, edge)

        items = list(zip(cuts, first_rows.tolist(), strict=True))
        return list(self.entries.executor.map(tile, items))

    @abstractmethod
    def tile_function(self, factors: Factors, mode: int, loss: Loss, sums: RowSums) -> TileFunction:
        """Adds gradients and Gram matrices of all rows but the first of a tile to `sums`."""

    @abstractmethod
    def residual_function(self, factors: Factors, residuals: np.ndarray) -> TileFunction:
        """Writes residuals into an array; values are 0."""


class PlainCoordinatePass(CoordinatePass):
    """By NumPy, for any loss."""

    tile_entries = PLAIN_TILE_ENTRIES

    def tile_function(self, factors: Factors, mode: int, loss: Loss, sums: RowSums) -> TileFunction:
        order, entries = self.coordinates.row_order(mode), self.entries
        others = [A for m, A in enumerate(factors) if m != mode]
        i, j = pack_indices(factors[0].shape[1])
        x = entries.x.in_row_order(mode)
        w, h, sides = (
            None if column is None else column.in_row_order(mode)
            for column in (entries.w, entries.h, entries.sides)
        )

        def work(cut: slice, row: int, edge: np.ndarray) -> float:
            last = int(np.searchsorted(order.row_starts, cut.stop))
            edges = np.clip(order.row_starts[row : last + 1], cut.start, cut.stop)
            K = row_products(others, order.other_indices[:, cut])
            own_rows = np.repeat(factors[mode][row:last], np.diff(edges), axis=0)
            r = x[cut] - np.einsum("er,er->e", K, own_rows)
            if h is not None:
                r *= h[cut]
            tile_loss = loss if sides is None else OneSided(loss, sides[cut])
            if not sums.gram.size:
                cost = tile_loss.value(r)
                return float(np.sum(cost if w is None else cost * w[cut], dtype=np.float64))
            cost, slope, curvature = tile_loss.majorize(r)
            if h is not None:
                slope, curvature = slope * h[cut], curvature * (h[cut] * h[cut])
            if w is not None:
                cost, slope, curvature = (part * w[cut] for part in (cost, slope, curvature))
            S = K[:, i] * K[:, j]
            S *= curvature[:, None]
            K *= slope[:, None]
            nonempty = np.flatnonzero(np.diff(edges))
            row_sums = [np.add.reduceat(P, edges[nonempty] - cut.start, axis=0) for P in (K, S)]
            edge += np.concatenate([part[0] for part in row_sums])
            rows = row + nonempty[1:] - sums.first_row
            sums.gradient[rows] += row_sums[0][1:]
            sums.gram[rows] += row_sums[1][1:]
            return float(cost.sum(dtype=np.float64))

        return work

    def residual_function(self, factors: Factors, residuals: np.ndarray) -> TileFunction:
        entries = self.entries

        def work(cut: slice, row: int, edge: np.ndarray) -> float:
            model = model_at(factors, self.coordinates.indices[:, cut])
            residuals[cut] = entries.x.values[cut] - model
            if entries.h is not None:
                residuals[cut] *= entries.h.values[cut]
            return 0.0

        return work


class CompiledCoordinatePass(CoordinatePass):
    """By compiled code, for losses with a formula."""

    tile_entries = COMPILED_TILE_ENTRIES

    def tile_function(self, factors: Factors, mode: int, loss: Loss, sums: RowSums) -> TileFunction:
        real, w, sides = self.entries.dtype, self.entries.w, self.entries.sides
        censored, formula = sides is not None, loss.numba_formula
        parameters = loss_parameters(loss, real, one_sided=censored)
        assert parameters is not None
        assert formula is not None
        size, variant = len(formula.numbers), (w is not None, censored, censored and loss.convex)
        line = numba_kernels().formula_line(formula.function, real, size, *variant)
        weights, factor = None if w is None else w.in_row_order(mode), formula.value_factor
        run = self._bind_pass(factors, mode, line, parameters, weights, sums)
        return lambda cut, row, edge: float(factor * run(cut, row, edge))

    def residual_function(self, factors: Factors, residuals: np.ndarray) -> TileFunction:
        real = residuals.dtype
        sums, line = RowSums.empty(real), numba_kernels().residuals(real).address
        return self._bind_pass(factors, 0, line, sums.gram, residuals, sums)

    def _bind_pass(
        self,
        factors: Factors,
        mode: int,
        line: int,
        parameters: np.ndarray,
        auxiliary: np.ndarray | None,
        sums: RowSums,
    ) -> TileFunction:
        """The pass with a line function, its parameters, and its array besides the data."""
        entries, order, code = self.entries, self.coordinates.row_order(mode), numba_kernels()
        real, scaled = entries.dtype, entries.h is not None
        h = None if entries.h is None else entries.h.in_row_order(mode)
        sides = None if entries.sides is None else entries.sides.in_row_order(mode)
        arrays = entries.x.in_row_order(mode), auxiliary, h, sides
        addresses = [0 if array is None else array.ctypes.data for array in arrays]
        calls = code.LineCalls(
            line,
            code.line_preparation(real, real, scaled),
            code.line_restoration(real, scaled),
            parameters.ctypes.data,
        )
        inputs = (
            code.EntryOrder(order.other_indices, order.factor_offsets, order.row_starts),
            np.ascontiguousarray(factors[mode], dtype=real),
            np.concatenate([A for m, A in enumerate(factors) if m != mode], dtype=real),
        )

        def run(cut: slice, row: int, edge: np.ndarray, held: Any = (parameters, *arrays)) -> float:
            # `held` keeps the memory at the addresses.
            part = code.Cut(cut.start, cut.stop, row, sums.first_row)
            outputs = edge, sums.gradient, sums.gram
            arguments = calls, code.EntryAddresses(*addresses), part, *inputs, *outputs
            return float(code.coordinate_pass(*arguments))

        return run
