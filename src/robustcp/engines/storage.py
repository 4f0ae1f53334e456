"""A dense array as passes see it: a matrix of tiles, read one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import cache, cached_property
from typing import Any

import array_api_compat
import numpy as np

from robustcp._typing import Array, Factors
from robustcp.engines.arrays import check_dtype, storage_order, to_host, working_dtype
from robustcp.engines.base import View
from robustcp.engines.threads import Tiles
from robustcp.engines.tiles import Tile, TileFactors, Tiling, boxes, even_split, pass_tiles
from robustcp.normal import pack_indices


@cache
def _settle_allocator() -> None:
    """Let the temporaries of tiles reuse memory that is already mapped.

    glibc hands freed memory back to the system above a threshold that starts low and rises with
    the largest block freed so far; a pass would then fault its temporaries in again for every
    tile and take up to three times as long. Freeing one larger block, never touched, raises the
    threshold. Elsewhere this does nothing.
    """
    np.empty(1 << 24, dtype=np.uint8)


class Storage:
    """An array of any array API library, viewed without a copy as a C-ordered one.

    Its modes are put into the order of their strides (`order`); the first `split` of them make
    the rows of a matrix, the others its columns.
    """

    def __init__(
        self,
        data: Array,
        tiling: Tiling,
        tiles: Tiles,
        view: View = View(),  # noqa: B008
    ) -> None:
        check_dtype(data)
        if data.ndim < 2:
            raise ValueError(f"X: must have at least 2 modes, got {data.ndim} (shape {data.shape})")
        if 0 in data.shape:
            raise ValueError(f"X: has an empty mode (shape {tuple(data.shape)})")
        self.array = data
        self.xp: Any = array_api_compat.array_namespace(data)
        self.dtype: Any = working_dtype(data)
        self.device = array_api_compat.device(data)
        self.view, self.tiling, self.tiles = view, tiling, tiles
        self.order = storage_order(data)
        self.stored = self.xp.permute_dims(data, self.order)
        self.shape: tuple[int, ...] = tuple(int(size) for size in self.stored.shape)
        self.split = even_split(self.shape)
        half = -(-math.prod(self.shape) // 2)
        self.tile_entries = (
            min(tiling.entries, max(tiling.smallest, half))
            if str(self.device) == "cpu"
            else tiling.device_entries
        )
        if array_api_compat.is_numpy_array(data):
            _settle_allocator()

    def viewed(self, view: View) -> Storage:
        """The same array, looked at in another way."""
        _ = self._extent  # so that the other one knows it too
        other = copy(self)
        other.view = view
        return other

    # What the data is

    @cached_property
    def _extent(self) -> tuple[float, bool]:
        """The largest magnitude, whatever the view, and whether there are gaps (NaN)."""
        xp = self.xp

        def work(tile: Tile) -> tuple[float, bool]:
            x = self.stored[tile]
            size = xp.abs(x if x.dtype == self.dtype else xp.astype(x, self.dtype))
            largest = float(xp.max(size))
            if not math.isnan(largest):
                return largest, False
            return float(xp.max(xp.where(xp.isnan(size), -xp.ones_like(size), size))), True

        found = list(self.tiles.map(work, boxes(self.shape, self.tile_entries)))
        largest, gaps = max(size for size, _ in found), any(gap for _, gap in found)
        if largest < 0:
            raise ValueError("X: all entries are missing (NaN)")
        if math.isinf(largest):
            raise ValueError(f"X: has infinite entries, {self._example(xp.isinf)}")
        return largest, gaps

    @property
    def largest(self) -> float:
        return self.view.size(self._extent[0])

    @property
    def gaps(self) -> bool:
        return self._extent[1]

    def _example(self, test: Callable[[Array], Array]) -> str:
        """The first entry that passes a test, in words."""
        for tile in boxes(self.shape, self.tile_entries):
            hits = np.argwhere(to_host(test(self.read(tile, self.dtype))))
            if hits.size:
                at = [0] * len(self.shape)
                for mode, part, index in zip(self.order, tile, hits[0], strict=True):
                    at[mode] = part.start + int(index)
                return f"the first in memory at {tuple(at)}"
        return "none"

    @cached_property
    def as_matrix(self) -> np.ndarray | None:
        """The matrix in C order, if the array is stored like that on the host."""
        data = self.stored
        if not isinstance(data, np.ndarray) or not data.flags.c_contiguous:
            return None
        return np.asarray(data).reshape(math.prod(data.shape[: self.split]), -1)

    # Tiles

    def map(self, work: Callable[[Any], Any], tiles: Sequence[Any]) -> Iterator[Any]:
        """Results of the tiles, in order. Gaps are looked for first: not by a tile's thread."""
        _ = self._extent
        return self.tiles.map(work, tiles)

    def pass_tiles(self, n: int = 0, rows: slice | None = None) -> list[Tile]:
        """The tiles of a pass over all, or over some rows of stored mode n."""
        rows = rows if rows is not None else slice(0, self.shape[n])
        return pass_tiles(self.shape, self.split, n, rows, self.tiling, self.tile_entries)

    def read(self, tile: Tile, dtype: Any) -> Array:
        return self.converted(self.stored[tile], dtype)

    def converted(self, x: Array, dtype: Any) -> Array:
        """Some of the data as it is seen, in a floating point type."""
        if x.dtype != dtype:
            x = self.xp.astype(x, dtype)
        return self.view.apply(x, self.xp)

    def matrix(self, tile: Tile) -> Array:
        x = self.read(tile, self.dtype)
        return self.xp.reshape(x, (math.prod(x.shape[: self.split]), -1))

    def residual(self, tile: Tile, factors: TileFactors) -> Array:
        r = factors.minus_model(tile)
        r += self.matrix(tile)
        return r

    def holes(self, x: Array) -> Array | None:
        return self.xp.isnan(x) if self.gaps else None

    def filled(self, x: Array, holes: Array | None) -> Array:
        """0 where the data has a gap."""
        return x if holes is None else self.xp.where(holes, self.xp.zeros_like(x), x)

    # Factors

    def in_order(self, factors: Factors) -> list[Array]:
        """Factors in storage order."""
        return [factors[m] for m in self.order]

    def tile_factors(self, stored: Sequence[Array]) -> TileFactors:
        """Factors in storage order, as tiles need them."""
        return TileFactors(self.xp, stored, self.split, self.pack(stored[0].shape[1]))

    def pack(self, rank: int) -> tuple[Array, Array]:
        """Rows and columns of the packed upper triangle, as arrays of the library."""
        return _pack(self.xp, self.device, rank)

    def zeros(self, *shape: int) -> Array:
        return self.xp.zeros(shape, dtype=self.dtype, device=self.device)


@cache
def _pack(xp: Any, device: Any, rank: int) -> tuple[Array, Array]:
    i, j = (xp.asarray(part, device=device) for part in pack_indices(rank))
    return i, j
