"""Listed entries in the order of the rows of each mode, and passes over them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from robustcp._util.typing import Factors
from robustcp.engines.installed import loss_parameters, numba_kernels
from robustcp.engines.normal_equations import NormalEquations, pack_indices
from robustcp.engines.threads import TileExecutor
from robustcp.engines.tiles import split_range
from robustcp.losses import Loss

#: Entries that are worked on at a time: plainly, and by compiled code.
PLAIN_TILE_ENTRIES, COMPILED_TILE_ENTRIES = 1 << 14, 1 << 16


def index_dtype(shape: Sequence[int]) -> Any:
    """The smallest type of indices that all modes have room in, and compiled code is good with."""
    return np.uint32 if max(shape) <= 2**32 else np.int64


def stable_order(index: np.ndarray, size: int) -> np.ndarray:
    """Where the smallest indices are, equal ones in their order.

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
    """The entries by their rows in one mode.

    Attributes
    ----------
    permutation : integer array (count,), optional
        Where they are in the order of the listing; None if that is the same.
    other_indices : integer array (N - 1, count)
        Their indices in the other modes.
    row_starts : integer array (I_n + 1,)
        Where the entries of each row begin, and the last ones end.
    factor_offsets : integer array (N - 1,)
        Where the factors of the other modes begin if they are stacked.
    """

    permutation: np.ndarray | None
    other_indices: np.ndarray
    row_starts: np.ndarray
    factor_offsets: np.ndarray


class CoordinateList:
    """Indices of entries, in lexicographic order. What modes need beside is made when asked for.

    That takes 4 N bytes for each entry and mode but the first, and `EntryValues` those of its
    values.

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
                permutation = permutation.astype(
                    np.uint32 if permutation.size <= 2**32 else np.int64
                )
            self._row_orders[mode] = RowOrder(
                permutation, other_indices, row_starts, factor_offsets
            )
        return self._row_orders[mode]


class EntryValues:
    """A number for each entry of a listing, as the orders of all modes have them."""

    def __init__(self, coordinates: CoordinateList, values: np.ndarray) -> None:
        self.coordinates, self.values = coordinates, np.ascontiguousarray(values)
        self._by_mode: dict[int, np.ndarray] = {}

    def in_row_order(self, mode: int) -> np.ndarray:
        if mode not in self._by_mode:
            permutation = self.coordinates.row_order(mode).permutation
            self._by_mode[mode] = self.values if permutation is None else self.values[permutation]
        return self._by_mode[mode]


@dataclass(frozen=True, eq=False)
class CoordinateEntries:
    """Listed entries with what they hold.

    Attributes
    ----------
    x : Column
        The data as it is seen.
    w, h : Column, optional
        Weights, and inverse scales.
    """

    coordinates: CoordinateList
    x: EntryValues
    w: EntryValues | None
    h: EntryValues | None
    executor: TileExecutor = field(repr=False)


class CoordinatePass(ABC):
    """One way to go over listed entries."""

    #: Of a tile.
    tile_entries: int

    def __init__(self, entries: CoordinateEntries) -> None:
        self.entries, self.coordinates = entries, entries.coordinates

    def normal_equations(
        self, factors: Factors, mode: int, loss: Loss, rows: slice
    ) -> NormalEquations:
        """The normal equations of some rows of a mode.

        Tiles are cut by the number of entries, so that threads share a row that has most of them.
        What the first row of a tile gets is added in the end, in the order of the tiles; the
        others get nothing from earlier ones.
        """
        starts, rank = self.coordinates.row_order(mode).row_starts, factors[0].shape[1]
        count, packed = rows.stop - rows.start, rank * (rank + 1) // 2
        dtype = self.entries.x.values.dtype
        gram, gradient = np.zeros((count, packed), dtype), np.zeros((count, rank), dtype)
        work = self.tile_function(factors, mode, loss, rows.start, gradient, gram)
        first, last = int(starts[rows.start]), int(starts[rows.stop])
        value = 0.0
        for row, edge, tile_value in self._map_tiles(work, starts, first, last, rank + packed):
            gradient[row - rows.start] += edge[:rank]
            gram[row - rows.start] += edge[rank:]
            value += tile_value
        return NormalEquations(gram, gradient, value)

    def value(self, factors: Factors, loss: Loss) -> float:
        """The loss summed over the entries."""
        empty = np.empty((0, 0), self.entries.x.values.dtype)
        starts = self.coordinates.row_order(0).row_starts
        work = self.tile_function(factors, 0, loss, 0, empty, empty)
        return sum(
            tile_value for _, _, tile_value in self._map_tiles(work, starts, 0, int(starts[-1]), 0)
        )

    def residuals(self, factors: Factors) -> np.ndarray:
        """x - model of all entries, in units of their scales."""
        starts, residuals = (
            self.coordinates.row_order(0).row_starts,
            np.empty_like(self.entries.x.values),
        )
        self._map_tiles(self.residual_function(factors, residuals), starts, 0, residuals.size, 0)
        return residuals

    def _map_tiles(
        self, work: Any, starts: np.ndarray, first: int, last: int, size: int
    ) -> list[tuple[int, np.ndarray, float]]:
        """For each tile its first row, what that one gets, and the value."""
        if last == first:
            return []
        cuts = [
            slice(first + t.start, first + t.stop)
            for t in split_range(last - first, self.tile_entries)
        ]
        first_rows = np.searchsorted(starts, [cut.start for cut in cuts], side="right") - 1
        dtype = self.entries.x.values.dtype

        def tile(item: tuple[slice, int]) -> tuple[int, np.ndarray, float]:
            cut, row = item
            edge = np.zeros(size, dtype)
            return row, edge, work(cut, row, edge)

        return list(
            self.entries.executor.map(tile, list(zip(cuts, first_rows.tolist(), strict=True)))
        )

    @abstractmethod
    def tile_function(
        self,
        factors: Factors,
        mode: int,
        loss: Loss,
        first_row: int,
        gradient: np.ndarray,
        gram: np.ndarray,
    ) -> Any:
        """A function of a range of entries, the row of the first of them, and its edge.

        It adds to the gradients and Gram matrices, which begin at row `first_row`, what the other
        rows get, and to the edge what that one gets. It returns the value; if they are empty, that
        is all.
        """

    @abstractmethod
    def residual_function(self, factors: Factors, residuals: np.ndarray) -> Any:
        """The same for residuals, which go to an array."""


class PlainCoordinatePass(CoordinatePass):
    """By NumPy, for any loss."""

    tile_entries = PLAIN_TILE_ENTRIES

    def tile_function(
        self,
        factors: Factors,
        mode: int,
        loss: Loss,
        first_row: int,
        gradient: np.ndarray,
        gram: np.ndarray,
    ) -> Any:
        order, entries = self.coordinates.row_order(mode), self.entries
        others = [A for m, A in enumerate(factors) if m != mode]
        rank = factors[0].shape[1]
        i, j = pack_indices(rank)
        x = entries.x.in_row_order(mode)
        w, h = (
            None if column is None else column.in_row_order(mode)
            for column in (entries.w, entries.h)
        )

        def work(cut: slice, row: int, edge: np.ndarray) -> float:
            last = int(np.searchsorted(order.row_starts, cut.stop))
            edges = np.clip(order.row_starts[row : last + 1], cut.start, cut.stop)
            K = _row_products(others, order.other_indices[:, cut])
            own_rows = np.repeat(factors[mode][row:last], np.diff(edges), axis=0)
            r = x[cut] - np.einsum("er,er->e", K, own_rows)
            if h is not None:
                r *= h[cut]
            if not gram.size:
                cost = loss.value(r)
                return float(np.sum(cost if w is None else cost * w[cut], dtype=np.float64))
            cost, slope, curvature = loss.majorize(r)
            if h is not None:
                slope, curvature = slope * h[cut], curvature * (h[cut] * h[cut])
            if w is not None:
                cost, slope, curvature = (part * w[cut] for part in (cost, slope, curvature))
            S = K[:, i] * K[:, j]
            S *= curvature[:, None]
            K *= slope[:, None]
            nonempty = np.flatnonzero(np.diff(edges))
            sums = [np.add.reduceat(P, edges[nonempty] - cut.start, axis=0) for P in (K, S)]
            edge += np.concatenate([part[0] for part in sums])
            rows = row + nonempty[1:] - first_row
            gradient[rows] += sums[0][1:]
            gram[rows] += sums[1][1:]
            return float(cost.sum(dtype=np.float64))

        return work

    def residual_function(self, factors: Factors, residuals: np.ndarray) -> Any:
        entries = self.entries

        def work(cut: slice, row: int, edge: np.ndarray) -> float:
            model = _row_products(factors, self.coordinates.indices[:, cut]).sum(axis=1)
            residuals[cut] = entries.x.values[cut] - model
            if entries.h is not None:
                residuals[cut] *= entries.h.values[cut]
            return 0.0

        return work


def _row_products(factors: Sequence[np.ndarray], indices: np.ndarray) -> np.ndarray:
    """Products of the rows of some entries."""
    product: np.ndarray = np.take(factors[0], indices[0], axis=0)
    for A, index in zip(factors[1:], indices[1:], strict=True):
        product *= np.take(A, index, axis=0)
    return product


class CompiledCoordinatePass(CoordinatePass):
    """By compiled code, for losses that have a formula."""

    tile_entries = COMPILED_TILE_ENTRIES

    def supports(self, loss: Loss) -> bool:
        """Whether there is compiled code for a loss with such parameters."""
        return loss_parameters(loss, self.entries.x.values.dtype) is not None

    def tile_function(
        self,
        factors: Factors,
        mode: int,
        loss: Loss,
        first_row: int,
        gradient: np.ndarray,
        gram: np.ndarray,
    ) -> Any:
        real, w = self.entries.x.values.dtype, self.entries.w
        parameters, formula = loss_parameters(loss, real), loss.numba_formula
        assert parameters is not None
        assert formula is not None
        line = numba_kernels().formula_line(formula.function, real, w is not None, len(parameters))
        weights, factor = None if w is None else w.in_row_order(mode), formula.value_factor
        run = self._bind_pass(factors, mode, line, parameters, weights)

        def work(cut: slice, row: int, edge: np.ndarray) -> float:
            return float(factor * run(cut, row, first_row, edge, gradient, gram))

        return work

    def residual_function(self, factors: Factors, residuals: np.ndarray) -> Any:
        real = residuals.dtype
        empty, line = np.empty((0, 0), real), numba_kernels().residuals(real).address
        run = self._bind_pass(factors, 0, line, empty, residuals)
        return lambda cut, row, edge: run(cut, row, 0, edge, empty, empty)

    def _bind_pass(
        self,
        factors: Factors,
        mode: int,
        line: int,
        parameters: np.ndarray,
        auxiliary: np.ndarray | None,
    ) -> Any:
        """The pass with a line function, which is given numbers, and an array beside the data."""
        entries, order, code = self.entries, self.coordinates.row_order(mode), numba_kernels()
        real, scaled = entries.x.values.dtype, entries.h is not None
        h = None if entries.h is None else entries.h.in_row_order(mode)
        arrays = entries.x.in_row_order(mode), auxiliary, h
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

        def run(
            cut: slice,
            row: int,
            first_row: int,
            *sums: np.ndarray,
            held: Any = (parameters, *arrays),
        ) -> float:
            part = code.Cut(cut.start, cut.stop, row, first_row)
            entry_addresses = code.EntryAddresses(*addresses)
            return float(code.coordinate_pass(calls, entry_addresses, part, *inputs, *sums))

        return run


class CoordinatePasses:
    """The passes over some entries; compiled ones if that is allowed and can be had."""

    def __init__(self, entries: CoordinateEntries, *, compiled: bool) -> None:
        self._plain = PlainCoordinatePass(entries)
        self._compiled = None
        if compiled and numba_kernels() is not None:
            self._compiled = CompiledCoordinatePass(entries)

    def for_loss(self, loss: Loss) -> CoordinatePass:
        """The pass for a loss."""
        if self._compiled is not None and self._compiled.supports(loss):
            return self._compiled
        return self._plain

    @cached_property
    def any_pass(self) -> CoordinatePass:
        """A pass for what needs no loss."""
        return self._compiled or self._plain
