"""The engine of dense arrays, of any array API library."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import array_api_compat
import numpy as np

from robustcp import _checks
from robustcp._typing import Array, Factors
from robustcp.engines.algebra import Algebra, FusedAlgebra, algebra
from robustcp.engines.arrays import to_host
from robustcp.engines.base import Engine, Sample, Sweeping, View
from robustcp.engines.memory import as_words, free_memory
from robustcp.engines.passes import Passes
from robustcp.engines.storage import Extent, Storage
from robustcp.engines.threads import Tiles, available_threads
from robustcp.engines.tiles import Tile, Tiling, length, ranges
from robustcp.engines.unfolded import Unfolded
from robustcp.losses import Loss
from robustcp.normal import NormalEquations

#: Normal equations of one block of rows may take this many bytes, or this share of the data.
BLOCK_BYTES, BLOCK_SHARE = 1 << 23, 0.02
#: Data on a device with no more entries is faster on the host, where calls cost less.
AT_HAND = 1 << 19
#: What a fit takes of a GPU's memory, as a share of the data; of small data more, up to a bound.
NEEDED, NEEDED_SMALL, NEEDED_MOST = 0.1, 7.0, 250e6


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
        The sizes of the pieces that it is worked on in.
    view : View
        How it is looked at.
    """

    takes_weights = True
    takes_scales = True
    #: Where the data was given, if it was brought here from there.
    _home: Any

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
            threads = _checks.whole_number("threads", threads, 1)
        on_host = array_api_compat.is_numpy_array(data)
        tiles = Tiles((threads or available_threads()) if on_host else 1)
        self._compiled, self._home = compiled, None
        self._look(Storage(data, tiling, tiles, view))

    def _look(self, storage: Storage) -> None:
        """Look at a stored array."""
        self._storage = storage
        self._passes = Passes(storage, compiled=self._compiled)
        self.xp, self.dtype, self.view = storage.xp, storage.dtype, storage.view
        self.shape = tuple(int(size) for size in storage.array.shape)
        self.tiles = storage.tiles

    def _like(self, storage: Storage) -> DenseEngine:
        other = object.__new__(type(self))
        other._compiled, other._home = self._compiled, self._home
        other._look(storage)
        return other

    def __repr__(self) -> str:
        size = "x".join(map(str, self.shape))
        return f"DenseEngine({size}, {self.array.dtype}, {self.tiles.threads} threads)"

    # What the data is

    @property
    def array(self) -> Array:
        """The data as given."""
        return self._storage.array

    @property
    def largest(self) -> float:
        return self._storage.largest

    @property
    def complete(self) -> bool:
        return not self._storage.gaps

    @property
    def algebra(self) -> Algebra:
        if self._passes.fused:
            return FusedAlgebra()
        return algebra(self.xp, self._compiled, self._storage.tiles.threads)

    @property
    def extent(self) -> Extent:
        """What there is in the data, whatever its scaling; an error if it cannot be fitted."""
        return self._storage.extent

    def looked_at(self) -> Extent:
        """The same, whatever is found."""
        return self._storage.looked_at()

    def known_to_be(self, extent: Extent) -> DenseEngine:
        """This, which need not look at its data any more."""
        self._storage.extent = extent
        return self

    @property
    def device(self) -> Any:
        return self._home or self._storage.device

    def asarray(self, array: Any) -> Array:
        host = np.ascontiguousarray(array)
        return self.xp.asarray(host, dtype=self.dtype, device=self._storage.device)

    def viewed(self, view: View) -> DenseEngine:
        return self._like(self._storage.viewed(view))

    def subtensor(self, indices: Sequence[np.ndarray | None]) -> DenseEngine:
        storage = self._storage
        part = storage.array
        if isinstance(part, np.ndarray):  # at once: taking mode by mode makes larger arrays first
            grid = [
                np.arange(n) if at is None else at
                for n, at in zip(self.shape, indices, strict=True)
            ]
            part = part[np.ix_(*grid)]
        else:
            for mode, chosen in enumerate(indices):
                if chosen is not None:
                    at = self.xp.asarray(chosen, device=storage.device)
                    part = self.xp.take(part, at, axis=mode)
        view = storage.view.part(indices)
        return self._like(Storage(part, storage.tiling, storage.tiles, view))

    @property
    def at_hand(self) -> DenseEngine:
        return self.off_device

    @property
    def off_device(self) -> DenseEngine:
        storage = self._storage
        if storage.on_host or math.prod(self.shape) > AT_HAND:
            return self
        data = to_host(self.array)
        if data.dtype.kind == "f":  # there, single precision saves nothing
            data = data.astype(np.float64)
        host = DenseEngine(data, compiled=self._compiled, tiling=storage.tiling)
        host._home = storage.device
        return host.viewed(self.view)

    def check_memory(self) -> None:
        if not self._passes.fused or self.device.type != "cuda":
            return
        data = math.prod(self.shape) * self._storage.array.element_size()
        needed, free = (
            max(NEEDED * data, min(NEEDED_SMALL * data, NEEDED_MOST)),
            free_memory(self.device),
        )
        if free < needed:
            raise _checks.ArgumentError(
                "X",
                f"a fit takes about {as_words(needed)} of {self.device} beside the data, "
                f"and {as_words(free)} are free",
            )

    # Passes

    def normal(
        self, factors: Factors, mode: int, loss: Loss, rows: slice | None = None
    ) -> NormalEquations:
        every = slice(0, self.shape[mode])
        rows = every if rows is None else rows
        how = self._passes.of(loss, whole=rows == every)
        n = self._storage.order.index(mode)
        return how.normal(self._storage.in_order(factors), n, loss, rows)

    def value(self, factors: Factors, loss: Loss) -> float:
        return self._passes.of(loss).value(self._storage.in_order(factors), loss)

    def sweep(self, loss: Loss) -> Sweeping | None:
        return self._passes.sweep(loss)

    def row_blocks(self, mode: int, rank: int, loss: Loss) -> Sequence[slice]:
        if self._passes.of(loss).shares_gram(loss, self._storage.order.index(mode)):
            return [slice(0, self.shape[mode])]
        itemsize = self.xp.finfo(self.dtype).bits // 8
        row = (rank * (rank + 1) // 2 + rank) * itemsize
        data = math.prod(self.shape) * itemsize
        limit = max(BLOCK_BYTES, int(BLOCK_SHARE * data))
        return ranges(self.shape[mode], max(1, limit // row))

    # Samples and reductions

    def sample(self, factors: Factors | None = None) -> Sample:
        places = self._storage.places
        flat = places.sampled
        parts = self._all(factors) if flat is None else self._some(factors, flat)
        values = np.concatenate([np.asarray(to_host(r), dtype=np.float64) for r in parts])
        known = ~np.isnan(values) if self._storage.gaps else None

        def locate() -> tuple[np.ndarray, ...]:
            every = places.located
            return every if known is None else tuple(index[known] for index in every)

        return Sample(values if known is None else values[known], locate)

    def entries(self, factors: Factors | None = None) -> Sample:
        plain = self._storage.weights is None and self.view.scales is None
        if plain and self._storage.places.sampled is None:  # a sample is all of them
            return self.sample(factors)
        return super().entries(factors)

    def _all(self, factors: Factors | None) -> Iterator[Array]:
        read = self._reader(factors)
        for tile in self._storage.pass_tiles():
            yield self.xp.reshape(read(tile), (-1,))

    def _some(self, factors: Factors | None, flat: np.ndarray) -> Iterator[Array]:
        xp, storage = self.xp, self._storage
        for here in storage.sampled(flat):
            r = storage.converted(storage.array[tuple(here)], self.dtype)
            if factors is not None:
                rows = (xp.take(A, i, axis=0) for A, i in zip(factors, here, strict=True))
                r = r - xp.sum(math.prod(rows, start=1.0), axis=-1)
            if factors is not None and storage.scales is not None:
                r = r / storage.scales.at([here[mode] for mode in storage.order])
            if storage.weights is not None and storage.weights.zeros:
                w = storage.weights.at([here[mode] for mode in storage.order])
                r = xp.where(w == 0, xp.full_like(r, math.nan), r)
            yield r

    def _reader(self, factors: Factors | None, *, whole: bool = False) -> Callable[[Tile], Array]:
        storage = self._storage
        if factors is None:
            return storage.matrix
        held = storage.tile_factors(storage.in_order(factors))
        return lambda tile: storage.residual(tile, held, storage.scale(tile), whole=whole)

    def slab_sums(
        self,
        work: Callable[[Array], Array],
        factors: Factors | None = None,
        *,
        weighted: bool = False,
    ) -> list[np.ndarray]:
        xp, storage = self.xp, self._storage
        shape, read = storage.shape, self._reader(factors)

        def sums(tile: Tile) -> tuple[Tile, list[np.ndarray]]:
            box = xp.reshape(work(read(tile)), tuple(map(length, tile)))
            counted = xp.isdtype(box.dtype, "bool") and not weighted
            box = xp.astype(box, xp.int64 if counted else xp.float64)
            (box,) = storage.weighed(tile, box) if weighted else (box,)
            every = range(len(shape))
            return tile, [to_host(xp.sum(box, axis=tuple(set(every) - {n}))) for n in every]

        totals: list[np.ndarray] = []
        for tile, parts in storage.map(sums, storage.pass_tiles()):
            totals = totals or [
                np.zeros(size, dtype=part.dtype) for size, part in zip(shape, parts, strict=True)
            ]
            for total, at, part in zip(totals, tile, parts, strict=True):
                total[at] += part
        return [totals[storage.order.index(mode)] for mode in range(self.order)]

    def entrywise(self, work: Callable[[Array], Array], factors: Factors) -> Array:
        read = self._reader(factors, whole=True)
        return self._gathered(lambda tile: work(read(tile)))

    def entry_scales(self) -> Array:
        storage = self._storage
        if storage.scales is None:
            return self.xp.ones(self.shape, dtype=self.dtype, device=storage.device)
        return self._gathered(storage.scales.box)

    def _gathered(self, part_of: Callable[[Tile], Array]) -> Array:
        """An array of the data's shape from what there is for each tile."""
        xp, storage = self.xp, self._storage

        def box(tile: Tile) -> tuple[Tile, Array]:
            return tile, xp.reshape(part_of(tile), tuple(map(length, tile)))

        out = None
        for tile, part in storage.tiles.map(box, storage.pass_tiles()):  # whatever gaps there are
            if out is None:
                out = xp.empty(storage.shape, dtype=part.dtype, device=storage.device)
            out[tile] = part
        return xp.permute_dims(out, tuple(storage.order.index(n) for n in range(self.order)))

    # Unfoldings

    def unfolding(self, mode: int, rows: slice) -> np.ndarray:
        storage = self._storage
        tile = tuple(rows if m == mode else slice(0, self.shape[m]) for m in storage.order)
        x = storage.seen(tile, self.dtype)
        x = self.xp.permute_dims(x, tuple(storage.order.index(m) for m in range(self.order)))
        x = self.xp.reshape(self.xp.moveaxis(x, mode, 0), (x.shape[mode], -1))
        return np.asarray(to_host(x), dtype=np.float64)

    @cached_property
    def _products(self) -> Unfolded:
        return Unfolded(self._storage)

    def gram(self, mode: int, basis: np.ndarray | None = None) -> np.ndarray:
        return self._products.gram(mode, basis)

    def cogram(self, mode: int) -> np.ndarray:
        return self._products.cogram(mode)

    def project(self, mode: int, basis: np.ndarray) -> np.ndarray:
        return self._products.project(mode, basis)
