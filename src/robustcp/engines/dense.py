"""The dense engine: one tiled pass over an array of any array API library.

The data is viewed as a matrix whose rows run over the leading modes and whose columns run over
the trailing ones (`_split`), and cut into tiles that stay in cache. On a tile

    r = x - K_rows K_columns'                    K: Khatri-Rao product of the tile's factor rows
    value, slope, curvature of the loss at r
    gradient = slope times K of the other side   I_n x R          after the rest of the own
    gram     = curvature times S of that side    I_n x R(R+1)/2   side is contracted away

where S, the "self Khatri-Rao" product, holds the products of pairs of K's columns. So a pass is
three thin matrix products around one elementwise formula, whatever the mode.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from typing import Any

import array_api_compat
import numpy as np

from robustcp._typing import Array, Factors
from robustcp.engines.arrays import check_dtype, storage_order, to_host, working_dtype
from robustcp.engines.fused import TILE_ENTRIES as FAST_TILE_ENTRIES
from robustcp.engines.fused import (
    FusedPass,
    FusedTile,
    collapse,
    compiled,
    contract,
    installed,
    khatri_rao,
    ranges,
)
from robustcp.engines.threads import Tiles, available_threads
from robustcp.losses import Loss, is_quadratic, majorize
from robustcp.normal import NormalEquations, pack_indices

Tile = tuple[slice, ...]

#: Entries of a tile: its few temporaries fit the cache, and Python's share is small. A small
#: tensor is cut in two, if that leaves tiles of some size, so that two threads have work.
TILE_ENTRIES, SMALLEST_TILE_ENTRIES = 1 << 17, 1 << 15
#: The same on accelerators, where a tile must be large enough to fill the device.
DEVICE_TILE_ENTRIES = 1 << 24
#: A tile has at least this many rows, so that the products of K are cheap beside it.
TILE_ROWS = 64
#: How many entries a sample has; of a tensor that is not much larger it is all.
SAMPLE_ENTRIES = 1 << 16
#: Normal equations of one block of rows may take this many bytes, or this share of the data.
BLOCK_BYTES, BLOCK_SHARE = 1 << 23, 0.02
#: A contraction of the data is kept if it has no more entries than this, or this share.
CACHED_ENTRIES, CACHED_SHARE = 1 << 20, 0.03


@cache
def _settle_allocator() -> None:
    """Let the temporaries of tiles reuse memory that is already mapped.

    glibc hands freed memory back to the system above a threshold that starts low and rises with
    the largest block freed so far; a pass would then fault its temporaries in again for every
    tile and take up to three times as long. Freeing one larger block, never touched, raises the
    threshold. Elsewhere this does nothing.
    """
    np.empty(1 << 24, dtype=np.uint8)


class DenseEngine:
    """Passes over a dense array, tile by tile; see `robustcp.engines.Engine`."""

    def __init__(
        self,
        data: Array,
        *,
        threads: int | None = None,
        exponent: int = 0,
        limit: float = math.inf,
    ) -> None:
        check_dtype(data)
        if data.ndim < 2:
            raise ValueError(f"X: must have at least 2 modes, got {data.ndim} (shape {data.shape})")
        if 0 in data.shape:
            raise ValueError(f"X: has an empty mode (shape {tuple(data.shape)})")
        if threads is not None and threads < 1:
            raise ValueError(f"threads: must be at least 1, got {threads}")
        self.xp: Any = array_api_compat.array_namespace(data)
        self.shape: tuple[int, ...] = tuple(int(size) for size in data.shape)
        self.dtype: Any = working_dtype(data)
        self.precision = float(self.xp.finfo(self.dtype).eps)
        self._given: dict[str, Any] = {"threads": threads, "exponent": exponent, "limit": limit}
        self.exponent, self.limit = exponent, limit
        self._data = data
        self._order = storage_order(data)
        self._stored = self.xp.permute_dims(data, self._order)
        self._device = array_api_compat.device(data)
        on_host = isinstance(data, np.ndarray)
        if on_host:
            _settle_allocator()
        half = -(-math.prod(self.shape) // 2)
        self._tile_entries = (
            min(TILE_ENTRIES, max(SMALLEST_TILE_ENTRIES, half))
            if str(self._device) == "cpu"
            else DEVICE_TILE_ENTRIES
        )
        self._packs: dict[int, tuple[Array, Array]] = {}
        self._partial: dict[bool, tuple[list[Array], Array]] = {}
        self.tiles = Tiles((threads or available_threads()) if on_host else 1)

    def __repr__(self) -> str:
        size = "x".join(map(str, self.shape))
        return f"DenseEngine({size}, {self._data.dtype}, {self.tiles.threads} threads)"

    # What the data is

    @property
    def array(self) -> Array:
        """The data as given."""
        return self._data

    def asarray(self, array: Any) -> Array:
        host = np.ascontiguousarray(array)
        return self.xp.asarray(host, dtype=self.dtype, device=self._device)

    def scaled(self, exponent: int) -> DenseEngine:
        return DenseEngine(self._data, **{**self._given, "exponent": self.exponent + exponent})

    def saturated(self, limit: float) -> DenseEngine:
        return DenseEngine(self._data, **{**self._given, "limit": limit})

    def excess(self, limit: float) -> float:
        xp = self.xp

        def work(tile: Tile) -> float:
            over = xp.abs(self._read(tile, xp.float64)) - limit
            return float(xp.sum(xp.where(over > 0, over, xp.zeros_like(over))))

        return math.fsum(self._map(work, _boxes(self._stored.shape, self._tile_entries)))

    @cached_property
    def _extent(self) -> tuple[float, bool]:
        """The largest magnitude, and whether there are gaps (NaN)."""
        xp = self.xp

        def work(tile: Tile) -> tuple[float, bool]:
            size = xp.abs(self._read(tile, self.dtype))
            largest = float(xp.max(size))
            if not math.isnan(largest):
                return largest, False
            return float(xp.max(xp.where(xp.isnan(size), -xp.ones_like(size), size))), True

        found = list(self.tiles.map(work, _boxes(self._stored.shape, self._tile_entries)))
        largest, gaps = max(size for size, _ in found), any(gap for _, gap in found)
        if largest < 0:
            raise ValueError("X: all entries are missing (NaN)")
        if math.isinf(largest):
            raise ValueError(f"X: has infinite entries, {self._example(xp.isinf)}")
        return largest, gaps

    @property
    def largest(self) -> float:
        return self._extent[0]

    @property
    def complete(self) -> bool:
        return not self._gaps

    @property
    def _gaps(self) -> bool:
        return self._extent[1]

    def _example(self, test: Any) -> str:
        """The first entry that passes a test, in words."""
        for tile in _boxes(self._stored.shape, self._tile_entries):
            hits = np.argwhere(to_host(test(self._read(tile, self.dtype))))
            if hits.size:
                at = [0] * len(self.shape)
                for mode, part, index in zip(self._order, tile, hits[0], strict=True):
                    at[mode] = part.start + int(index)
                return f"the first in memory at {tuple(at)}"
        return "none"

    @cached_property
    def _half_square(self) -> float:
        def work(tile: Tile) -> float:
            x = self._read(tile, self.xp.float64)
            return float(self.xp.sum(x * x))

        tiles = _boxes(self._stored.shape, self._tile_entries)
        return 0.5 * math.fsum(self._map(work, tiles))

    def sample(self, factors: Factors | None = None) -> np.ndarray:
        parts = self._all(factors) if self._sampled is None else self._some(factors, self._sampled)
        values = np.concatenate([np.asarray(to_host(r), dtype=np.float64) for r in parts])
        return values[~np.isnan(values)] if self._gaps else values

    @cached_property
    def _sampled(self) -> np.ndarray | None:
        """Flat indices of the entries that a sample is made of; None for all."""
        total = math.prod(self.shape)
        if total <= 2 * SAMPLE_ENTRIES:
            return None
        flat = np.random.default_rng(0).integers(total, size=SAMPLE_ENTRIES)
        flat.sort()
        return flat

    def _all(self, factors: Factors | None) -> Iterator[Array]:
        if factors is None:
            yield self.xp.reshape(self._convert(self._stored, self.dtype), (-1,))
            return
        view = self._view([factors[m] for m in self._order])
        for tile in self._pass_tiles(0, slice(0, self._stored.shape[0])):
            yield self.xp.reshape(self._residual(tile, view), (-1,))

    def _some(self, factors: Factors | None, flat: np.ndarray) -> Iterator[Array]:
        for piece in ranges(len(flat), SAMPLE_ENTRIES // 4):
            here = [
                self.xp.asarray(index, device=self._device)
                for index in np.unravel_index(flat[piece], self.shape)
            ]
            r = self._convert(self._data[tuple(here)], self.dtype)
            if factors is not None:
                rows = (self.xp.take(A, i, axis=0) for A, i in zip(factors, here, strict=True))
                r = r - self.xp.sum(math.prod(rows, start=1.0), axis=-1)
            yield r

    # The pass

    def normal(
        self, factors: Factors, mode: int, loss: Loss, rows: slice | None = None
    ) -> NormalEquations:
        xp = self.xp
        stored = [factors[m] for m in self._order]
        n = self._order.index(mode)
        rows = rows if rows is not None else slice(0, self.shape[mode])
        shared = is_quadratic(loss) and not self._gaps
        if shared and rows == slice(0, self.shape[mode]) and self.dtype == xp.float64:
            return self._least_squares(stored, n, loss)
        rank = stored[0].shape[1]
        view = self._view(stored)
        own_rows = n < self._split

        def work(tile: Tile) -> tuple[slice, Array, Array, float]:
            def reduce(y: Array, packed: bool) -> Array:
                K = view.K(tile, columns=own_rows, packed=packed)
                return view.collapse((y if own_rows else y.T) @ K, n, tile, packed=packed)

            value, slope, curvature = self._majorize(loss, self._residual(tile, view))
            gram = None if shared else reduce(curvature, True)
            return tile[n], reduce(slope, False), gram, value

        fast = self._fused(loss, stored, n)
        if fast is None:
            sums = self._map(work, self._pass_tiles(n, rows))
        else:
            sums = self._map(fast.normal, fast.tiles(rows))
        count = rows.stop - rows.start
        gradient = xp.zeros((count, rank), dtype=self.dtype, device=self._device)
        if shared:
            gram = self._shared_gram(stored, n)[self._pack(rank)][None, :]
        else:
            packed = rank * (rank + 1) // 2
            gram = xp.zeros((count, packed), dtype=self.dtype, device=self._device)
        value = 0.0
        for part, g, G, v in sums:
            here = slice(part.start - rows.start, part.stop - rows.start)
            gradient[here, :] += g
            if not shared:
                gram[here, :] += G
            value += v
        return NormalEquations(gram, gradient, value)

    def _least_squares(self, stored: Sequence[Array], n: int, loss: Loss) -> NormalEquations:
        """The pass for half the square: sum (x - m)^2 = sum x^2 - 2 <x, m> + <m, m>.

        So it is the product of the data with the other factors. What is contracted over one side
        of the matrix view serves all modes of the other side, until a factor of it changes.
        """
        xp, u = self.xp, stored[n]
        product = self._shared_gram(stored, n)
        own_rows, split = n < self._split, self._split
        lines = self._contracted(stored, own_rows)
        if isinstance(lines, np.ndarray) and installed():
            side, at = (stored[:split], n) if own_rows else (stored[split:], n - split)
            projected = collapse(lines, side, at)
        else:
            whole = tuple(slice(0, size) for size in self._stored.shape)
            projected = self._view(stored).collapse(lines, n, whole, packed=False)
        fitted = u @ product
        value = self._half_square + float(xp.sum((0.5 * fitted - projected) * u))
        if value < 1e-7 * self._half_square:  # most digits have cancelled
            value = self.value(
                tuple(stored[self._order.index(m)] for m in range(len(stored))), loss
            )
        gram = product[self._pack(u.shape[1])][None, :]
        return NormalEquations(gram, projected - fitted, value)

    def _shared_gram(self, stored: Sequence[Array], n: int) -> Array:
        """The Gram matrix of all rows where the curvature is 1 everywhere."""
        return math.prod(A.T @ A for m, A in enumerate(stored) if m != n)

    def _contracted(self, stored: Sequence[Array], own_rows: bool) -> Array:
        """The matrix view times the Khatri-Rao product of the other side's factors."""
        xp, split = self.xp, self._split
        others = stored[split:] if own_rows else stored[:split]
        known = self._partial.get(own_rows)
        if known is not None and all(
            A.shape == B.shape and bool(xp.all(A == B))
            for A, B in zip(others, known[0], strict=True)
        ):
            return known[1]
        rank = stored[0].shape[1]
        sides = math.prod(self._stored.shape[:split]), math.prod(self._stored.shape[split:])
        lines = sides[0] if own_rows else sides[1]
        matrix = self._as_matrix
        side = slice(0, split) if own_rows else slice(split, None)

        def work(tile: Tile) -> tuple[int, Array]:
            y, K = self._matrix(tile), view.K(tile, columns=own_rows)
            return self._first_line(tile, side), (y if own_rows else y.T) @ K

        def fast_work(rows: slice) -> tuple[int, Array]:
            assert matrix is not None
            x = self._convert(matrix[rows], self.dtype)
            part = contract(x, K if own_rows else K[rows], own_rows)
            return (rows.start if own_rows else 0), part

        if matrix is not None and installed():
            K = khatri_rao(others)
            most = FAST_TILE_ENTRIES if self._data.dtype == self.dtype else self._tile_entries
            parts = self._map(fast_work, ranges(sides[0], max(1, most // sides[1])))
        else:
            view, whole = self._view(stored), slice(0, self._stored.shape[0])
            parts = self._map(work, self._pass_tiles(0, whole))
        total = None
        for first, part in parts:
            if total is None:
                if part.shape[0] == lines:
                    total = part
                    continue
                total = xp.zeros((lines, rank), dtype=self.dtype, device=self._device)
            total[first : first + part.shape[0], :] += part
        if lines * rank <= max(CACHED_ENTRIES, CACHED_SHARE * math.prod(self.shape)):
            self._partial[own_rows] = [xp.asarray(A, copy=True) for A in others], total
        return total

    def _first_line(self, tile: Tile, side: slice) -> int:
        """Where a tile begins among the rows or the columns of the matrix view."""
        first = 0
        for part, size in zip(tile[side], self._stored.shape[side], strict=True):
            first = first * size + part.start
        return first

    def value(self, factors: Factors, loss: Loss) -> float:
        stored = [factors[m] for m in self._order]
        view = self._view(stored)

        def work(tile: Tile) -> float:
            r = self._residual(tile, view)
            cost = self._filled(loss.value(r), self._holes(r))
            return float(self.xp.sum(cost, dtype=self.xp.float64))

        whole = slice(0, self._stored.shape[0])
        fast = self._fused(loss, stored, 0)
        if fast is None:
            return float(sum(self._map(work, self._pass_tiles(0, whole))))
        return float(sum(self._map(fast.value, fast.tiles(whole))))

    def row_blocks(self, mode: int, rank: int, loss: Loss) -> Sequence[slice]:
        if is_quadratic(loss) and not self._gaps:
            return [slice(0, self.shape[mode])]
        itemsize = self.xp.finfo(self.dtype).bits // 8
        row = (rank * (rank + 1) // 2 + rank) * itemsize
        data = math.prod(self.shape) * itemsize
        limit = max(BLOCK_BYTES, int(BLOCK_SHARE * data))
        return ranges(self.shape[mode], max(1, limit // row))

    # Parts and counts

    def subtensor(self, indices: Sequence[np.ndarray | None]) -> DenseEngine:
        part = self._data
        if isinstance(part, np.ndarray):  # at once: taking mode by mode makes larger arrays first
            grid = [
                np.arange(n) if at is None else at
                for n, at in zip(self.shape, indices, strict=True)
            ]
            return DenseEngine(part[np.ix_(*grid)], **self._given)
        for mode, chosen in enumerate(indices):
            if chosen is not None:
                at = self.xp.asarray(chosen, device=self._device)
                part = self.xp.take(part, at, axis=mode)
        return DenseEngine(part, **self._given)

    def counts(self, mode: int) -> np.ndarray:
        if not self._gaps:
            return np.full(self.shape[mode], math.prod(self.shape) // self.shape[mode])
        return self._observed[mode]

    @cached_property
    def _observed(self) -> list[np.ndarray]:
        return self._slab_sums(lambda tile: ~self.xp.isnan(self._matrix(tile)))

    def flagged(self, factors: Factors, threshold: float) -> list[np.ndarray]:
        stored = [factors[m] for m in self._order]
        view = self._view(stored)
        return self._slab_sums(
            lambda tile: self.xp.abs(self._residual(tile, view)) > threshold  # a gap is not over
        )

    def _slab_sums(self, hits: Callable[[Tile], Array]) -> list[np.ndarray]:
        """How many entries of each slab of each mode pass a test."""
        xp, shape = self.xp, self._stored.shape

        def work(tile: Tile) -> tuple[Tile, list[np.ndarray]]:
            box = xp.reshape(hits(tile), tuple(_size(part) for part in tile))
            box = xp.astype(box, xp.int64)
            sums = []
            for n in range(len(shape)):
                others = tuple(m for m in range(len(shape)) if m != n)
                sums.append(to_host(xp.sum(box, axis=others)))
            return tile, sums

        totals = [np.zeros(size, dtype=np.int64) for size in shape]
        for tile, sums in self._map(work, self._pass_tiles(0, slice(0, shape[0]))):
            for total, part, count in zip(totals, tile, sums, strict=True):
                total[part] += count
        return [totals[self._order.index(mode)] for mode in range(len(shape))]

    def unfolding(self, mode: int, rows: slice) -> np.ndarray:
        x = self.xp.moveaxis(self._data, mode, 0)[rows, ...]
        x = self._convert(self.xp.reshape(x, (x.shape[0], -1)), self.dtype)
        return np.asarray(to_host(x), dtype=np.float64)

    # Products for the singular vectors of an unfolding, in float64

    def gram(self, mode: int, basis: np.ndarray | None = None) -> np.ndarray:
        size = self.shape[mode]
        if basis is not None and size * size > math.prod(self.shape):
            return self.project(mode, self._coproject(mode, basis))
        V = None if basis is None else self._double(basis)
        tiles = _boxes(self._stored.shape, self._tile_entries, keep=self._order.index(mode))

        def work(tile: Tile) -> Array:
            T = self._unfold(tile, mode)
            return T @ T.T if V is None else T @ (T.T @ V)

        return to_host(sum(self._map(work, tiles)))

    def cogram(self, mode: int) -> np.ndarray:
        def work(tile: Tile) -> Array:
            T = self._unfold(tile, mode)
            return T.T @ T

        return to_host(sum(self._map(work, self._row_tiles(mode))))

    def _coproject(self, mode: int, basis: np.ndarray) -> np.ndarray:
        """X_n' times a basis of as many rows as the mode."""
        V, n = self._double(basis), self._order.index(mode)

        def work(tile: Tile) -> Array:
            return self._unfold(tile, mode).T @ V[tile[n], :]

        return to_host(sum(self._map(work, self._row_tiles(mode))))

    def project(self, mode: int, basis: np.ndarray) -> np.ndarray:
        V = self._double(basis)

        def work(tile: Tile) -> Array:
            return self._unfold(tile, mode) @ V

        parts = [to_host(part) for part in self._map(work, self._row_tiles(mode))]
        return np.concatenate(parts)

    def _double(self, array: np.ndarray) -> Array:
        host = np.ascontiguousarray(array)
        return self.xp.asarray(host, dtype=self.xp.float64, device=self._device)

    def _row_tiles(self, mode: int) -> list[Tile]:
        """Tiles that hold whole rows of an unfolding."""
        n, shape = self._order.index(mode), self._stored.shape
        row = math.prod(shape) // shape[n]
        whole = [slice(0, size) for size in shape]
        return [
            (*whole[:n], part, *whole[n + 1 :])
            for part in ranges(shape[n], max(1, self._tile_entries // row))
        ]

    def _unfold(self, tile: Tile, mode: int) -> Array:
        n = self._order.index(mode)
        x = self._read(tile, self.xp.float64)
        x = self.xp.moveaxis(self._filled(x, self._holes(x)), n, 0)
        return self.xp.reshape(x, (x.shape[0], -1))

    # Tiles

    @cached_property
    def _split(self) -> int:
        """How many leading modes make the rows of the matrix view: the most even split."""
        shape = self._stored.shape

        def border(s: int) -> int:
            return int(math.prod(shape[:s]) + math.prod(shape[s:]))

        return min(range(len(shape) - 1, 0, -1), key=border)

    def _pass_tiles(self, n: int, rows: slice) -> list[Tile]:
        """The tiles of a pass over some rows of stored mode n; the same for any thread count."""
        shape = list(self._stored.shape)
        shape[n] = rows.stop - rows.start
        columns = _boxes(shape[self._split :], max(1, self._tile_entries // TILE_ROWS))
        width = math.prod(part.stop - part.start for part in columns[0])
        leading = _boxes(shape[: self._split], max(1, self._tile_entries // width))
        tiles = [(*a, *b) for a in leading for b in columns]
        if rows.start == 0:
            return tiles

        def shift(tile: Tile) -> Tile:
            part = slice(tile[n].start + rows.start, tile[n].stop + rows.start)
            return (*tile[:n], part, *tile[n + 1 :])

        return [shift(tile) for tile in tiles]

    def _map(self, work: Callable[[Any], Any], tiles: Sequence[Any]) -> Iterator[Any]:
        """Results of the tiles, in order. Gaps are looked for first: not by a tile's thread."""
        _ = self._extent
        return self.tiles.map(work, tiles)

    def _read(self, tile: Tile, dtype: Any) -> Array:
        return self._convert(self._stored[tile], dtype)

    def _convert(self, x: Array, dtype: Any) -> Array:
        if x.dtype != dtype:
            x = self.xp.astype(x, dtype)
        if self.exponent:  # in two steps: 2^144 is beyond float32, which goes down to 2^-149
            half = self.exponent // 2
            x = x * math.ldexp(1.0, -half) * math.ldexp(1.0, half - self.exponent)
        return x if self.limit == math.inf else self.xp.clip(x, -self.limit, self.limit)

    def _matrix(self, tile: Tile) -> Array:
        x = self._read(tile, self.dtype)
        return self.xp.reshape(x, (math.prod(x.shape[: self._split]), -1))

    def _view(self, stored: Sequence[Array]) -> _TileView:
        return _TileView(self.xp, stored, self._split, self._pack(stored[0].shape[1]))

    def _residual(self, tile: Tile, view: _TileView) -> Array:
        r = view.minus_model(tile)
        r += self._matrix(tile)
        return r

    def _majorize(self, loss: Loss, r: Array) -> tuple[float, Array, Array]:
        """The sum of the values, slopes and curvatures; all zero where the data has a gap."""
        holes = self._holes(r)
        parts = majorize(loss, self._filled(r, holes))
        value, slope, curvature = (self._filled(part, holes) for part in parts)
        return float(self.xp.sum(value, dtype=self.xp.float64)), slope, curvature

    def _fused(self, loss: Loss, stored: Sequence[Array], n: int) -> FusedPass | None:
        """The pass as compiled code, where the data can be read and the loss is known to it."""
        data, whole = self._stored, self._as_matrix
        if whole is None:
            return None
        fast = compiled(loss, self.dtype)
        if fast is None:
            return None
        as_it_is = (
            data.dtype.isnative
            and (data.dtype.kind in "iu" or data.dtype in (np.float32, np.float64))
            and (self.exponent, self.limit) == (0, math.inf)
        )

        def read(tile: FusedTile) -> tuple[np.ndarray, tuple[int, int]]:
            if as_it_is:
                return whole, tile.corner
            part = whole[tile.corner[0] : tile.end[0], tile.corner[1] : tile.end[1]]
            return np.ascontiguousarray(self._convert(part, self.dtype)), (0, 0)

        return FusedPass(fast, read, stored, self._split, n)

    @cached_property
    def _as_matrix(self) -> np.ndarray | None:
        """The data as its matrix view in C order, if it is stored like that on the host."""
        data = self._stored
        if not isinstance(data, np.ndarray) or not data.flags.c_contiguous:
            return None
        return np.asarray(data).reshape(math.prod(data.shape[: self._split]), -1)

    def _holes(self, r: Array) -> Array | None:
        return self.xp.isnan(r) if self._gaps else None

    def _filled(self, x: Array, holes: Array | None) -> Array:
        return x if holes is None else self.xp.where(holes, self.xp.zeros_like(x), x)

    def _pack(self, rank: int) -> tuple[Array, Array]:
        if rank not in self._packs:
            i, j = (self.xp.asarray(part, device=self._device) for part in pack_indices(rank))
            self._packs[rank] = i, j
        return self._packs[rank]


class _TileView:
    """The factors of one pass, as tiles need them. Modes are in storage order."""

    def __init__(self, xp: Any, factors: Sequence[Array], split: int, pack: tuple[Array, Array]):
        self._xp = xp
        self._factors = factors
        self._split = split
        self._pack = pack
        self._whole: dict[bool, Array] = {}

    def K(self, tile: Tile, *, columns: bool, packed: bool = False) -> Array:
        """The Khatri-Rao product of one side's factor rows; of their self products if packed."""
        side = slice(self._split, None) if columns else slice(0, self._split)
        parts = tile[side]
        whole = columns and all(
            part == slice(0, A.shape[0]) for part, A in zip(parts, self._factors[side], strict=True)
        )
        if whole and packed in self._whole:
            return self._whole[packed]
        product = None
        for part, A in zip(parts, self._factors[side], strict=True):
            B = self._rows(A, part, packed)
            if product is None:
                product = B
            else:
                product = product[:, None, :] * B[None, :, :]
                product = self._xp.reshape(product, (-1, B.shape[1]))
        if whole:
            self._whole[packed] = product
        return product

    def minus_model(self, tile: Tile) -> Array:
        return (-self.K(tile, columns=False)) @ self.K(tile, columns=True).T

    def collapse(self, Y: Array, n: int, tile: Tile, *, packed: bool) -> Array:
        """Contract every mode but n of n's own side, one factor at a time."""
        first, last = (self._split, len(tile)) if n >= self._split else (0, self._split)
        for m in range(first, last):
            if m == n:
                continue
            B = self._rows(self._factors[m], tile[m], packed)
            kept = _size(tile[n]) if m > n else 1  # the modes before m are gone, but for n
            Y = self._xp.reshape(Y, (kept, B.shape[0], -1, B.shape[1]))
            Y = self._xp.sum(Y * B[None, :, None, :], axis=1)
        return self._xp.reshape(Y, (_size(tile[n]), -1))

    def _rows(self, A: Array, part: slice, packed: bool) -> Array:
        A = A[part, :]
        if not packed:
            return A
        i, j = self._pack
        return self._xp.take(A, i, axis=1) * self._xp.take(A, j, axis=1)


def _size(part: slice) -> int:
    return int(part.stop - part.start)


def _boxes(shape: Sequence[int], most: int, keep: int | None = None) -> list[Tile]:
    """Cut a shape into boxes of at most so many entries where possible.

    Trailing modes stay whole, one mode is cut, those before it are taken one index at a time:
    the boxes of a C-ordered array are matrices without a copy. Mode `keep` is never cut.
    """
    room = most if keep is None else max(1, most // shape[keep])
    cuts: list[list[slice]] = []
    for mode in range(len(shape) - 1, -1, -1):
        part = ranges(shape[mode], shape[mode] if mode == keep else min(room, shape[mode]))
        cuts.append(part)
        if mode != keep:
            room = max(1, room // shape[mode])
    return list(itertools.product(*reversed(cuts)))
