"""Listed entries in the order of the rows of each mode, and passes over them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from robustcp._typing import Factors
from robustcp.engines.installed import compiled_code, numbers_of
from robustcp.engines.threads import Tiles
from robustcp.engines.tiles import ranges
from robustcp.losses import Loss
from robustcp.normal import NormalEquations, pack_indices

#: Entries that are worked on at a time: plainly, and by compiled code.
TILE_ENTRIES, COMPILED_ENTRIES = 1 << 14, 1 << 16


def index_type(shape: Sequence[int]) -> Any:
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


def lexicographic_order(at: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """The order of entries by their indices in the first mode, then the second, and so on."""
    order = stable_order(at[-1], shape[-1])
    for index, size in zip(at[-2::-1], shape[-2::-1], strict=True):
        order = order[stable_order(index[order], size)]
    return order


@dataclass(frozen=True)
class Order:
    """The entries by their rows in one mode.

    Attributes
    ----------
    places : integer array (count,), optional
        Where they are in the order of the listing; None if that is the same.
    at : integer array (N - 1, count)
        Their indices in the other modes.
    starts : integer array (I_n + 1,)
        Where the entries of each row begin, and the last ones end.
    begins : integer array (N - 1,)
        Where the factors of the other modes begin if they are stacked.
    """

    places: np.ndarray | None
    at: np.ndarray
    starts: np.ndarray
    begins: np.ndarray


class Listing:
    """Indices of entries, in lexicographic order. What modes need beside is made when asked for.

    That takes 4 N bytes for each entry and mode but the first, and `Column` those of its values.

    Attributes
    ----------
    at : integer array (N, count)
    shape : tuple of int
    """

    def __init__(self, at: np.ndarray, shape: Sequence[int]) -> None:
        self.at, self.shape = at, tuple(shape)
        self._orders: dict[int, Order] = {}

    def taken(self, places: np.ndarray) -> Listing:
        """Some of the entries, in their order."""
        return Listing(np.take(self.at, places, axis=1), self.shape)

    def order(self, mode: int) -> Order:
        if mode not in self._orders:
            counts = np.bincount(self.at[mode], minlength=self.shape[mode])
            starts = np.concatenate(([0], np.cumsum(counts)))
            others = [m for m in range(len(self.shape)) if m != mode]
            begins = np.cumsum([0, *(self.shape[m] for m in others[:-1])])
            places, at = None, self.at[1:]
            if mode:
                places = stable_order(self.at[mode], self.shape[mode])
                at = np.stack([self.at[m][places] for m in others])
                places = places.astype(np.uint32 if places.size <= 2**32 else np.int64)
            self._orders[mode] = Order(places, at, starts, begins)
        return self._orders[mode]


class Column:
    """A number for each entry of a listing, as the orders of all modes have them."""

    def __init__(self, listing: Listing, values: np.ndarray) -> None:
        self.listing, self.values = listing, np.ascontiguousarray(values)
        self._known: dict[int, np.ndarray] = {}

    def of(self, mode: int) -> np.ndarray:
        if mode not in self._known:
            places = self.listing.order(mode).places
            self._known[mode] = self.values if places is None else self.values[places]
        return self._known[mode]


@dataclass(frozen=True, eq=False)
class Entries:
    """Listed entries with what they hold.

    Attributes
    ----------
    x : Column
        The data as it is seen.
    w, h : Column, optional
        Weights, and inverse scales.
    """

    listing: Listing
    x: Column
    w: Column | None
    h: Column | None
    tiles: Tiles = field(repr=False)


class ListedPass(ABC):
    """One way to go over listed entries."""

    #: Of a tile.
    most: int

    def __init__(self, entries: Entries) -> None:
        self.entries, self.listing = entries, entries.listing

    def normal(self, factors: Factors, mode: int, loss: Loss, rows: slice) -> NormalEquations:
        """The normal equations of some rows of a mode.

        Tiles are cut by the number of entries, so that threads share a row that has most of them.
        What the first row of a tile gets is added in the end, in the order of the tiles; the
        others get nothing from earlier ones.
        """
        starts, rank = self.listing.order(mode).starts, factors[0].shape[1]
        count, packed = rows.stop - rows.start, rank * (rank + 1) // 2
        dtype = self.entries.x.values.dtype
        gram, gradient = np.zeros((count, packed), dtype), np.zeros((count, rank), dtype)
        work = self.work(factors, mode, loss, rows.start, gradient, gram)
        first, last = int(starts[rows.start]), int(starts[rows.stop])
        value = 0.0
        for row, edge, part in self._over(work, starts, first, last, rank + packed):
            gradient[row - rows.start] += edge[:rank]
            gram[row - rows.start] += edge[rank:]
            value += part
        return NormalEquations(gram, gradient, value)

    def value(self, factors: Factors, loss: Loss) -> float:
        """The loss summed over the entries."""
        nothing = np.empty((0, 0), self.entries.x.values.dtype)
        starts = self.listing.order(0).starts
        work = self.work(factors, 0, loss, 0, nothing, nothing)
        return sum(part for _, _, part in self._over(work, starts, 0, int(starts[-1]), 0))

    def residuals(self, factors: Factors) -> np.ndarray:
        """x - model of all entries, in units of their scales."""
        starts, found = self.listing.order(0).starts, np.empty_like(self.entries.x.values)
        self._over(self.differences(factors, found), starts, 0, found.size, 0)
        return found

    def _over(
        self, work: Any, starts: np.ndarray, first: int, last: int, size: int
    ) -> list[tuple[int, np.ndarray, float]]:
        """For each tile its first row, what that one gets, and the value."""
        if last == first:
            return []
        cuts = [slice(first + t.start, first + t.stop) for t in ranges(last - first, self.most)]
        begins = np.searchsorted(starts, [cut.start for cut in cuts], side="right") - 1
        dtype = self.entries.x.values.dtype

        def tile(item: tuple[slice, int]) -> tuple[int, np.ndarray, float]:
            cut, row = item
            edge = np.zeros(size, dtype)
            return row, edge, work(cut, row, edge)

        return list(self.entries.tiles.map(tile, list(zip(cuts, begins.tolist(), strict=True))))

    @abstractmethod
    def work(
        self, factors: Factors, mode: int, loss: Loss, low: int,
        gradient: np.ndarray, gram: np.ndarray,
    ) -> Any:  # fmt: skip
        """A function of a range of entries, the row of the first of them, and its edge.

        It adds to the gradients and Gram matrices, which begin at row `low`, what the other rows
        get, and to the edge what that one gets. It returns the value; if they are empty, that
        is all.
        """

    @abstractmethod
    def differences(self, factors: Factors, found: np.ndarray) -> Any:
        """The same for residuals, which go to an array."""


class PlainListed(ListedPass):
    """By NumPy, for any loss."""

    most = TILE_ENTRIES

    def work(
        self, factors: Factors, mode: int, loss: Loss, low: int,
        gradient: np.ndarray, gram: np.ndarray,
    ) -> Any:  # fmt: skip
        order, entries = self.listing.order(mode), self.entries
        others = [A for m, A in enumerate(factors) if m != mode]
        rank = factors[0].shape[1]
        i, j = pack_indices(rank)
        x = entries.x.of(mode)
        w, h = (None if column is None else column.of(mode) for column in (entries.w, entries.h))

        def work(cut: slice, row: int, edge: np.ndarray) -> float:
            last = int(np.searchsorted(order.starts, cut.stop))
            edges = np.clip(order.starts[row : last + 1], cut.start, cut.stop)
            K = _product(others, order.at[:, cut])
            own = np.repeat(factors[mode][row:last], np.diff(edges), axis=0)
            r = x[cut] - np.einsum("er,er->e", K, own)
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
            filled = np.flatnonzero(np.diff(edges))
            sums = [np.add.reduceat(P, edges[filled] - cut.start, axis=0) for P in (K, S)]
            edge += np.concatenate([part[0] for part in sums])
            at = row + filled[1:] - low
            gradient[at] += sums[0][1:]
            gram[at] += sums[1][1:]
            return float(cost.sum(dtype=np.float64))

        return work

    def differences(self, factors: Factors, found: np.ndarray) -> Any:
        entries = self.entries

        def work(cut: slice, row: int, edge: np.ndarray) -> float:
            model = _product(factors, self.listing.at[:, cut]).sum(axis=1)
            found[cut] = entries.x.values[cut] - model
            if entries.h is not None:
                found[cut] *= entries.h.values[cut]
            return 0.0

        return work


def _product(factors: Sequence[np.ndarray], at: np.ndarray) -> np.ndarray:
    """Products of the rows of some entries."""
    product: np.ndarray = np.take(factors[0], at[0], axis=0)
    for A, index in zip(factors[1:], at[1:], strict=True):
        product *= np.take(A, index, axis=0)
    return product


class CompiledListed(ListedPass):
    """By compiled code, for losses that have a formula."""

    most = COMPILED_ENTRIES

    def takes(self, loss: Loss) -> bool:
        """Whether there is compiled code for a loss with such parameters."""
        known = type(loss) in compiled_code().LISTED_FORMULAS
        return known and numbers_of(loss, self.entries.x.values.dtype) is not None

    def work(
        self, factors: Factors, mode: int, loss: Loss, low: int,
        gradient: np.ndarray, gram: np.ndarray,
    ) -> Any:  # fmt: skip
        real, w = self.entries.x.values.dtype, self.entries.w
        numbers, formula = numbers_of(loss, real), compiled_code().LISTED_FORMULAS[type(loss)]
        assert numbers is not None
        line = formula.line(real, w is not None, len(numbers))
        weights, weight = None if w is None else w.of(mode), formula.weight(loss)
        run = self._run(factors, mode, line, numbers, weights)

        def work(cut: slice, row: int, edge: np.ndarray) -> float:
            return float(weight * run(cut, row, low, edge, gradient, gram))

        return work

    def differences(self, factors: Factors, found: np.ndarray) -> Any:
        real = found.dtype
        nothing, line = np.empty((0, 0), real), compiled_code().differences(real)
        run = self._run(factors, 0, line, nothing, found)
        return lambda cut, row, edge: run(cut, row, 0, edge, nothing, nothing)

    def _run(
        self, factors: Factors, mode: int, line: int, numbers: np.ndarray,
        beside: np.ndarray | None,
    ) -> Any:  # fmt: skip
        """The pass with a line function, which is given numbers, and an array beside the data."""
        from robustcp.engines.passes.listed import listed_pass

        entries, order, code = self.entries, self.listing.order(mode), compiled_code()
        real, scaled = entries.x.values.dtype, entries.h is not None
        calls = line, code.before(real, real, scaled), code.after(real, scaled)
        h = None if entries.h is None else entries.h.of(mode)
        held = numbers, entries.x.of(mode), beside, h
        places = [0 if array is None else array.ctypes.data for array in held]
        own = np.ascontiguousarray(factors[mode], dtype=real)
        rows = np.concatenate([A for m, A in enumerate(factors) if m != mode], dtype=real)

        def run(
            cut: slice, row: int, low: int, edge: np.ndarray, *sums: np.ndarray, held: Any = held
        ) -> float:
            total = listed_pass(
                calls, *places, order.at, order.begins, order.starts, cut.start, cut.stop, row, low,
                own, rows, edge, *sums,
            )  # fmt: skip
            return float(total)

        return run


class ListedPasses:
    """The passes over some entries; compiled ones if that is allowed and can be had."""

    def __init__(self, entries: Entries, *, compiled: bool) -> None:
        self._plain = PlainListed(entries)
        self._compiled = None
        if compiled and compiled_code() is not None:
            self._compiled = CompiledListed(entries)

    def of(self, loss: Loss) -> ListedPass:
        """The pass for a loss."""
        if self._compiled is not None and self._compiled.takes(loss):
            return self._compiled
        return self._plain

    @cached_property
    def any(self) -> ListedPass:
        """A pass for what needs no loss."""
        return self._compiled or self._plain
