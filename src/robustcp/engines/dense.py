"""The engine of dense arrays, of any array API library."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import array_api_compat
import numpy as np

from robustcp._util import checks
from robustcp._util.typing import Array, Factors
from robustcp.engines.algebra import Algebra, TritonAlgebra
from robustcp.engines.arrays import to_host
from robustcp.engines.base import Elementwise, Engine, Ridges, View, WholeSweep
from robustcp.engines.entries import SKIPPED_BEYOND, Entries, model_at
from robustcp.engines.limits import drop_satisfied
from robustcp.engines.memory import format_bytes, free_memory
from robustcp.engines.normal_equations import NormalEquations
from robustcp.engines.passes import Passes
from robustcp.engines.preprocessing import Transformation
from robustcp.engines.storage import DataSummary, Storage
from robustcp.engines.threads import TileExecutor, available_threads
from robustcp.engines.tiles import Tile, Tiling, slice_length, split_boxes
from robustcp.engines.unfoldings import UnfoldingProducts
from robustcp.losses import Loss

#: Normal equations of a range of rows may take this many bytes, or this share of the data.
BLOCK_BYTES, BLOCK_SHARE = 1 << 23, 0.02
#: Fits of data with at most this many entries are faster on the host than on a device.
MAX_HOST_ENTRIES = 1 << 19
#: The memory of a fit on a GPU as a share of the data; the share of small data, and its bound.
FIT_MEMORY_SHARE, SMALL_FIT_MEMORY_SHARE, MAX_SMALL_FIT_BYTES = 0.1, 7.0, 250e6


class DenseEngine(Engine):
    """Passes over a dense array, tile by tile.

    Parameters
    ----------
    data : array
        NaN is a missing entry.
    threads : int, optional
        How many threads share the tiles of a pass; see `robustcp.as_engine`.
    compiled : bool
        Whether compiled passes are used where there are any.
    tiling : Tiling
        The sizes of tiles and blocks.
    view : View
    """

    takes_weights = True
    takes_scales = True
    takes_limits = True
    #: The device on which the data was given, if it was copied from there.
    _given_device: Any

    def __init__(
        self,
        data: Array,
        *,
        threads: int | None = None,
        compiled: bool = True,
        tiling: Tiling = Tiling(),  # noqa: B008 - it is frozen
        view: View = View(),  # noqa: B008
    ) -> None:
        if threads is not None:
            threads = checks.whole_number("threads", threads, 1)
        on_host = array_api_compat.is_numpy_array(data)
        tiles = TileExecutor((threads or available_threads()) if on_host else 1)
        self.compiled, self._given_device = compiled, None
        self._set_storage(Storage(data, tiling, tiles, view))

    def _set_storage(self, storage: Storage) -> None:
        """Set the array and the attributes that depend on it."""
        self._storage = storage
        self._passes = Passes(storage, compiled=self.compiled)
        self.xp, self.dtype, self.view = storage.xp, storage.dtype, storage.view
        self.shape = tuple(int(size) for size in storage.array.shape)
        self.executor = storage.executor
        data_bytes = math.prod(self.shape) * self.xp.finfo(self.dtype).bits // 8
        self.max_equation_bytes = max(BLOCK_BYTES, int(BLOCK_SHARE * data_bytes))

    def _with_storage(self, storage: Storage) -> DenseEngine:
        other = object.__new__(type(self))
        other.compiled, other._given_device = self.compiled, self._given_device
        other._set_storage(storage)
        return other

    def __repr__(self) -> str:
        size = "x".join(map(str, self.shape))
        return f"DenseEngine({size}, {self.array.dtype}, {self.executor.threads} threads)"

    # What the data is

    @property
    def array(self) -> Array:
        """The data as given."""
        return self._storage.array

    @property
    def max_abs(self) -> float:
        return self._storage.max_abs

    @property
    def complete(self) -> bool:
        return not self._storage.has_missing

    @property
    def algebra(self) -> Algebra:
        if self._passes.uses_triton:
            return TritonAlgebra()
        return super().algebra

    @property
    def summary(self) -> DataSummary:
        """Magnitudes and missing entries before scaling; an error if there is nothing to fit."""
        return self._storage.summary

    def compute_summary(self) -> DataSummary:
        """The summary, without errors."""
        return self._storage.compute_summary()

    def with_summary(self, summary: DataSummary) -> DenseEngine:
        """This engine with a known summary, so that it need not read the data for it."""
        self._storage.summary = summary
        return self

    @property
    def device(self) -> Any:
        return self._given_device or self._storage.device

    def asarray(self, array: Any) -> Array:
        host = np.ascontiguousarray(array)
        return self.xp.asarray(host, dtype=self.dtype, device=self._storage.device)

    def with_view(self, view: View) -> DenseEngine:
        return self._with_storage(self._storage.with_view(view))

    def subtensor(self, indices: Sequence[np.ndarray | None]) -> DenseEngine:
        storage = self._storage
        subset = storage.array
        if isinstance(subset, np.ndarray):  # at once: taking mode by mode makes larger arrays first
            grid = [
                np.arange(n) if index is None else index
                for n, index in zip(self.shape, indices, strict=True)
            ]
            subset = subset[np.ix_(*grid)]
        else:
            for mode, selection in enumerate(indices):
                if selection is not None:
                    index = self.xp.asarray(selection, device=storage.device)
                    subset = self.xp.take(subset, index, axis=mode)
        view = storage.view.subset(indices)
        return self._with_storage(Storage(subset, storage.tiling, storage.executor, view))

    @property
    def in_memory(self) -> DenseEngine:
        return self.off_device

    @property
    def off_device(self) -> DenseEngine:
        storage = self._storage
        if storage.on_host or math.prod(self.shape) > MAX_HOST_ENTRIES:
            return self
        data = to_host(self.array)
        if data.dtype.kind == "f":  # there, single precision saves nothing
            data = data.astype(np.float64)
        host = DenseEngine(data, compiled=self.compiled, tiling=storage.tiling)
        host._given_device = storage.device
        return host.with_view(self.view)

    def check_memory(self) -> None:
        if not self._passes.uses_triton or self.device.type != "cuda":
            return
        data_bytes = math.prod(self.shape) * self._storage.array.element_size()
        small_fit_bytes = min(SMALL_FIT_MEMORY_SHARE * data_bytes, MAX_SMALL_FIT_BYTES)
        needed, free = max(FIT_MEMORY_SHARE * data_bytes, small_fit_bytes), free_memory(self.device)
        if free < needed:
            raise checks.ArgumentError(
                "X",
                f"a fit takes about {format_bytes(needed)} of {self.device} beside the data, "
                f"and {format_bytes(free)} are free",
            )

    # Passes

    def normal_equations(
        self, factors: Factors, mode: int, loss: Loss, rows: slice | None = None
    ) -> NormalEquations:
        all_rows = slice(0, self.shape[mode])
        rows = all_rows if rows is None else rows
        selected_pass = self._passes.for_loss(loss, whole_mode=rows == all_rows)
        stored_factors, n = self._storage.in_storage_order(factors), self._storage.order.index(mode)
        return selected_pass.normal_equations(stored_factors, n, loss, rows)

    def value(self, factors: Factors, loss: Loss) -> float:
        return self._passes.value(factors, loss)

    def whole_sweep(
        self,
        loss: Loss,
        row_solvers: tuple[str, ...] | None = None,
        ridges: Ridges | None = None,
    ) -> WholeSweep | None:
        return self._passes.whole_sweep(loss, row_solvers or ("solve_rows",) * self.order, ridges)

    def row_blocks(self, mode: int, rank: int, loss: Loss) -> Sequence[slice]:
        if self._passes.for_loss(loss).shares_gram(loss, self._storage.order.index(mode)):
            return [slice(0, self.shape[mode])]
        return super().row_blocks(mode, rank, loss)

    # Samples and reductions

    def sample(self, factors: Factors | None = None) -> Entries:
        sample_indices = self._storage.sample_indices
        flat = sample_indices.flat_indices
        parts = self._all_values(factors) if flat is None else self._sampled_values(factors, flat)
        values = np.concatenate([np.asarray(to_host(r), dtype=np.float64) for r in parts])
        some_missing = self._storage.has_missing or self._storage.limits is not None
        observed = ~np.isnan(values) if some_missing else None

        def locate() -> tuple[np.ndarray, ...]:
            indices = sample_indices.indices
            return indices if observed is None else tuple(index[observed] for index in indices)

        return Entries(self.shape, values if observed is None else values[observed], locate)

    def entries(self, factors: Factors | None = None) -> Entries:
        view = self.view
        plain = view.weights is None and view.scales is None and view.limits is None
        if plain and self._storage.sample_indices.flat_indices is None:  # a sample is all of them
            return self.sample(factors)
        return super().entries(factors)

    def _all_values(self, factors: Factors | None) -> Iterator[Array]:
        read = self._tile_reader(factors)
        for tile in self._storage.pass_tiles():
            yield self.xp.reshape(read(tile), (-1,))

    def _sampled_values(self, factors: Factors | None, flat: np.ndarray) -> Iterator[Array]:
        xp, storage = self.xp, self._storage
        for indices in storage.sample_positions(flat):
            given, stored_indices = (
                storage.array[tuple(indices)],
                [indices[m] for m in storage.order],
            )
            r = storage.convert(given, self.dtype)
            if factors is not None:
                r = r - model_at(factors, indices)
            if factors is not None and storage.scales is not None:
                r = r / storage.scales.values_at(stored_indices)
            if factors is not None and storage.limits is not None:
                x = xp.astype(given, self.dtype, copy=False)
                r = drop_satisfied(r, storage.limits.sides_at(x, stored_indices), math.nan, xp)
            if storage.weights is not None and storage.weights.has_zeros:
                w = storage.weights.values_at(stored_indices)
                r = xp.where(w == 0, xp.full_like(r, math.nan), r)
            yield r

    def _tile_reader(
        self, factors: Factors | None, *, unmasked: bool = False
    ) -> Callable[[Tile], Array]:
        storage = self._storage
        if factors is None:
            return storage.tile_matrix
        tile_factors = storage.tile_factors(storage.in_storage_order(factors))
        return lambda tile: storage.observed_residual(tile, tile_factors, unmasked=unmasked)

    def slab_sums(
        self, work: Elementwise, factors: Factors | None = None, *, weighted: bool = False
    ) -> list[np.ndarray]:
        xp, storage = self.xp, self._storage
        shape, read = storage.shape, self._tile_reader(factors)

        def sums(tile: Tile) -> tuple[Tile, list[np.ndarray]]:
            box = xp.reshape(work(read(tile)), tuple(map(slice_length, tile)))
            is_count = xp.isdtype(box.dtype, "bool") and not weighted
            box = xp.astype(box, xp.int64 if is_count else xp.float64)
            (box,) = storage.apply_weights(tile, box) if weighted else (box,)
            modes = range(len(shape))
            return tile, [to_host(xp.sum(box, axis=tuple(set(modes) - {n}))) for n in modes]

        totals: list[np.ndarray] = []
        for tile, parts in storage.map(sums, storage.pass_tiles()):
            totals = totals or [
                np.zeros(size, dtype=part.dtype) for size, part in zip(shape, parts, strict=True)
            ]
            for total, rows, part in zip(totals, tile, parts, strict=True):
                total[rows] += part
        return [totals[storage.order.index(mode)] for mode in range(self.order)]

    def fibre_sums(self, works: Sequence[Elementwise], factors: Factors) -> list[list[np.ndarray]]:
        xp, storage = self.xp, self._storage
        shape, read, modes = storage.shape, self._tile_reader(factors), range(self.order)

        def sums(tile: Tile) -> tuple[Tile, list[list[np.ndarray]]]:
            residuals = xp.reshape(read(tile), tuple(map(slice_length, tile)))
            boxes = [xp.astype(work(residuals), xp.float64) for work in works]
            return tile, [[to_host(xp.sum(b, axis=n, keepdims=True)) for n in modes] for b in boxes]

        totals = [[np.zeros((*shape[:n], 1, *shape[n + 1 :])) for n in modes] for _ in works]
        for tile, parts in storage.map(sums, storage.pass_tiles()):
            for own_totals, own_parts in zip(totals, parts, strict=True):
                for n, (total, part) in enumerate(zip(own_totals, own_parts, strict=True)):
                    total[(*tile[:n], slice(0, 1), *tile[n + 1 :])] += part
        axes = [storage.order.index(mode) for mode in modes]
        return [[own_totals[n].transpose(axes) for n in axes] for own_totals in totals]

    def map_residuals(self, work: Elementwise, factors: Factors) -> Array:
        read = self._tile_reader(factors, unmasked=True)
        return self._assemble_tiles(lambda tile: work(read(tile)))

    def entry_scales(self) -> Array:
        storage = self._storage
        if storage.scales is None:
            return self.xp.ones(self.shape, dtype=self.dtype, device=storage.device)
        return self._assemble_tiles(storage.scales.tile_values)

    def fibre_locations(self, mode: int, location: str) -> np.ndarray:
        storage, n = self._storage, self._storage.order.index(mode)

        def locations(tile: Tile) -> tuple[Tile, np.ndarray]:
            x = storage.read_masked(tile, self.dtype)
            return tile, to_host(_LOCATIONS[location](x, n, self.xp))

        out = np.empty([1 if m == n else size for m, size in enumerate(storage.shape)])
        boxes = split_boxes(storage.shape, storage.tile_entries, n)
        # By the executor: a block of data in chunks may have no entries.
        for tile, part in storage.executor.map(locations, boxes):
            out[(*tile[:n], slice(0, 1), *tile[n + 1 :])] = part
        return np.transpose(out, [storage.order.index(m) for m in range(self.order)])

    def transformed(self, transformation: Transformation) -> DenseEngine:
        storage, xp = self._storage, self.xp

        def values(tile: Tile) -> Array:
            box = tuple(tile[storage.order.index(m)] for m in range(self.order))
            x = xp.astype(storage.array[box], self.dtype, copy=False)
            return xp.permute_dims(transformation.box(x, box), storage.order)

        array = self._assemble_tiles(values)
        return self._with_storage(Storage(array, storage.tiling, storage.executor, self.view))

    def _assemble_tiles(self, tile_values: Callable[[Tile], Array]) -> Array:
        """An array of the data's shape from the values of each tile."""
        xp, storage = self.xp, self._storage

        def box(tile: Tile) -> tuple[Tile, Array]:
            return tile, xp.reshape(tile_values(tile), tuple(map(slice_length, tile)))

        out = None
        # By the executor: the data need not have been looked at for missing entries.
        for tile, part in storage.executor.map(box, storage.pass_tiles()):
            if out is None:
                out = xp.empty(storage.shape, dtype=part.dtype, device=storage.device)
            out[tile] = part
        return xp.permute_dims(out, tuple(storage.order.index(n) for n in range(self.order)))

    # Unfoldings

    def unfolding(self, mode: int, rows: slice) -> np.ndarray:
        storage = self._storage
        tile = tuple(rows if m == mode else slice(0, self.shape[m]) for m in storage.order)
        x = storage.read_masked(tile, self.dtype)
        x = self.xp.permute_dims(x, tuple(storage.order.index(m) for m in range(self.order)))
        x = self.xp.reshape(self.xp.moveaxis(x, mode, 0), (x.shape[mode], -1))
        return np.asarray(to_host(x), dtype=np.float64)

    @cached_property
    def _unfolding_products(self) -> UnfoldingProducts:
        return UnfoldingProducts(self._storage)

    def gram(self, mode: int, basis: np.ndarray | None = None) -> np.ndarray:
        return self._unfolding_products.gram(mode, basis)

    def cogram(self, mode: int) -> np.ndarray:
        return self._unfolding_products.cogram(mode)

    def project(self, mode: int, basis: np.ndarray) -> np.ndarray:
        return self._unfolding_products.project(mode, basis)


def _fibre_medians(x: Array, axis: int, xp: Any) -> Array:
    """The medians along an axis, NaN left out."""
    missing = xp.isnan(x)
    ordered = xp.sort(xp.where(missing, xp.full_like(x, math.inf), x), axis=axis)
    count = xp.sum(xp.astype(~missing, xp.int64), axis=axis, keepdims=True)
    sizes = [1] * x.ndim
    sizes[axis] = -1
    device = array_api_compat.device(x)
    rank = xp.reshape(xp.arange(x.shape[axis], device=device), tuple(sizes))
    zero = xp.zeros_like(ordered)
    middle = (
        xp.sum(xp.where(rank == position, ordered, zero), axis=axis, keepdims=True)
        for position in ((count - 1) // 2, count // 2)
    )
    lower, upper = middle
    median = lower + 0.5 * (upper - lower)
    return xp.where(count > 0, median, xp.full_like(median, math.nan))


def _fibre_means(x: Array, axis: int, xp: Any) -> Array:
    """The means along an axis, NaN left out."""
    missing = xp.isnan(x)
    total = xp.sum(
        xp.where(missing, xp.zeros_like(x), x), axis=axis, keepdims=True, dtype=xp.float64
    )
    count = xp.sum(xp.astype(~missing, xp.float64), axis=axis, keepdims=True)
    mean = total / xp.where(count > 0, count, xp.ones_like(count))
    return xp.where(count > 0, mean, xp.full_like(mean, math.nan))


def _fibre_skipped_means(x: Array, axis: int, xp: Any) -> Array:
    """The means along an axis of the values that are not far from the median."""
    distance = xp.abs(x - _fibre_medians(x, axis, xp))
    far = distance > SKIPPED_BEYOND * _fibre_medians(distance, axis, xp)
    return _fibre_means(xp.where(far, xp.full_like(x, math.nan), x), axis, xp)


_LOCATIONS = {
    "median": _fibre_medians,
    "mean": _fibre_means,
    "skipped": _fibre_skipped_means,
}
