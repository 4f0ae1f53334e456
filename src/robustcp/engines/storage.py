"""A dense array as passes see it: a matrix of tiles, read one by one."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import cache, cached_property, partial
from typing import Any, NamedTuple

import array_api_compat
import numpy as np

from robustcp._typing import Array, Factors
from robustcp.engines.arrays import check_dtype, storage_order, to_host, working_dtype
from robustcp.engines.base import View
from robustcp.engines.places import Places
from robustcp.engines.scales import TileScales
from robustcp.engines.threads import Tiles
from robustcp.engines.tiles import Tile, TileFactors, Tiling, boxes, even_split, pass_tiles, ranges
from robustcp.engines.weights import TileWeights, Weights
from robustcp.normal import pack_indices

#: M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc.
_MALLOC_THRESHOLDS = -1, -3


@cache
def _settle_allocator() -> None:
    """Let the temporaries of tiles reuse memory that is already mapped.

    glibc hands freed memory back to the system above a threshold that starts low and rises with
    the largest block freed so far; a pass would then fault its temporaries in again for every
    tile and take up to three times as long. Freeing one larger block, never touched, raises the
    threshold. Elsewhere this does nothing.

    Where the environment fixes the thresholds, as Dask does for its workers, they do not rise by
    themselves.
    """
    if "MALLOC_TRIM_THRESHOLD_" in os.environ and sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "gnu_get_libc_version"):
            for parameter in _MALLOC_THRESHOLDS:
                libc.mallopt(parameter, 1 << 24)
    np.empty(1 << 24, dtype=np.uint8)


class Extent(NamedTuple):
    """What there is in an array, whatever its scaling.

    Attributes
    ----------
    largest : float
        The largest magnitude.
    gaps : bool
        Whether entries are missing: NaN, or of weight 0.
    holes : bool
        Whether there is NaN where the weight is not 0.
    of_all : float
        The largest magnitude, entries of weight 0 included; NaN if there is NaN.
    """

    largest: float
    gaps: bool
    holes: bool
    of_all: float


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
        self._packs: dict[int, tuple[Array, Array]] = {}
        self._sampled: list[list[Array]] = []
        self.order = storage_order(data)
        self.weights = self._weights(view)
        self.stored = self.xp.permute_dims(data, self.order)
        self.shape: tuple[int, ...] = tuple(int(size) for size in self.stored.shape)
        self.split = even_split(self.shape)
        self.scales = self._scales(view)
        half = -(-math.prod(self.shape) // 2)
        self.tile_entries = (
            min(tiling.entries, max(tiling.smallest, half))
            if self.on_host
            else tiling.device_entries
        )
        shape, every = tuple(int(size) for size in data.shape), slice(0, self.shape[0])
        tiles_of = partial(
            pass_tiles, self.shape, self.split, 0, every, tiling, self.tile_entries
        )  # not a method: that would keep the array
        self.places = Places(shape, self.order, tiles_of, tiling.sample)
        if array_api_compat.is_numpy_array(data):
            _settle_allocator()

    def viewed(self, view: View) -> Storage:
        """The same array, looked at in another way."""
        same = view.weights is self.view.weights
        if same:
            _ = self.extent  # so that the other one knows it too
        other = copy(self)
        other.view = view
        if not same:
            other.weights = self._weights(view)
            other.__dict__.pop("extent", None)
        if view.scales is not self.view.scales:
            other.scales = self._scales(view)
        return other

    def _weights(self, view: View) -> TileWeights | None:
        weights, shape = view.weights, tuple(self.array.shape)
        if weights is None:
            return None
        if not isinstance(weights, Weights) or weights.shape != shape:
            raise ValueError(f"entry_weights: are of shape {weights.shape}, the data of {shape}")
        return TileWeights(weights, self.order, self.xp, self.dtype, self.device)

    def _scales(self, view: View) -> TileScales | None:
        if view.scales is None:
            return None
        view.scales.check(tuple(self.array.shape))
        return TileScales(view.scales, self.order, self.split, self.xp, self.dtype, self.device)

    # What the data is

    @cached_property
    def extent(self) -> Extent:
        whole = self.looked_at()
        if whole.largest < 0:
            weightless = "" if self.weights is None else " or of weight 0"
            raise ValueError(f"X: all entries are missing (NaN){weightless}")
        if math.isinf(whole.largest):
            raise ValueError(f"X: has infinite entries, {self._example(self.xp.isinf)}")
        return whole

    def looked_at(self) -> Extent:
        """The same, whatever is found."""
        xp = self.xp

        def work(tile: Tile) -> Extent:
            x = self.stored[tile]
            size = xp.abs(x if x.dtype == self.dtype else xp.astype(x, self.dtype))
            of_all = float(xp.max(size))
            zeros = self.weights is not None and self.weights.zeros
            if not zeros and not math.isnan(of_all):
                return Extent(of_all, False, False, of_all)
            missing, holes = xp.isnan(size), True
            if self.weights is not None and zeros:
                ignored = self.weights.box(tile) == 0
                holes = bool(xp.any(missing & ~ignored))
                missing = missing | ignored
            seen = xp.where(missing, -xp.ones_like(size), size)
            return Extent(float(xp.max(seen)), bool(xp.any(missing)), holes, of_all)

        found = list(self.tiles.map(work, boxes(self.shape, self.tile_entries)))
        return Extent(
            max(part.largest for part in found),
            any(part.gaps for part in found),
            any(part.holes for part in found),
            float(np.max([part.of_all for part in found])),
        )

    @property
    def largest(self) -> float:
        return self.view.size(self.extent.largest)

    @property
    def gaps(self) -> bool:
        """Whether entries are missing."""
        return self.extent.gaps or self._wild

    @property
    def _wild(self) -> bool:
        return self.view.leaves_out(self.extent.largest)

    @property
    def separable(self) -> bool:
        """Whether the weights of squares, 0 for missing entries, are an outer product."""
        outer = self.scales is None and (self.weights is None or self.weights.array is None)
        return outer and not self.extent.holes and not self._wild

    @property
    def harmless(self) -> bool:
        """Whether even entries of weight 0 are numbers that may be multiplied by 0."""
        return self.extent.of_all <= 2.0**100 * self.extent.largest

    def _example(self, test: Callable[[Array], Array]) -> str:
        """The first entry that passes a test, in words."""
        for tile in boxes(self.shape, self.tile_entries):
            hits = np.argwhere(to_host(test(self.seen(tile, self.dtype))))
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

    @property
    def on_host(self) -> bool:
        return str(self.device) == "cpu"

    @cached_property
    def one_matrix(self) -> Array | None:
        """The matrix without a copy, if the array is like that, of the working type and as it is
        seen but for a power of two that factors may be multiplied by instead.
        """
        data, view = self.stored, self.view
        plain = view.limit == view.wild == math.inf and abs(view.exponent) <= 60
        if not plain or data.dtype != self.dtype or not data.is_contiguous():
            return None
        return self.xp.reshape(data, (math.prod(data.shape[: self.split]), -1))

    # Tiles

    def map(self, work: Callable[[Any], Any], tiles: Sequence[Any]) -> Iterator[Any]:
        """Results of the tiles, in order. Gaps are looked for first: not by a tile's thread."""
        _ = self.extent
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

    def seen(self, tile: Tile, dtype: Any) -> Array:
        """The same, with NaN also where the weight is 0."""
        x = self.read(tile, dtype)
        if self.weights is None or not self.weights.zeros:
            return x
        return self.xp.where(self.weights.box(tile) == 0, self.xp.full_like(x, math.nan), x)

    def matrix(self, tile: Tile) -> Array:
        return self._flat(self.seen(tile, self.dtype))

    def whole_matrix(self, tile: Tile) -> Array:
        """The same, with entries of weight 0."""
        return self._flat(self.read(tile, self.dtype))

    def _flat(self, x: Array) -> Array:
        return self.xp.reshape(x, (math.prod(x.shape[: self.split]), -1))

    def scale(self, tile: Tile) -> Array | None:
        """The scales of a tile's entries, as a matrix."""
        return None if self.scales is None else self._flat(self.scales.box(tile))

    def residual(
        self, tile: Tile, factors: TileFactors, scale: Array | None, *, whole: bool = False
    ) -> Array:
        r = factors.minus_model(tile)
        r += self.whole_matrix(tile) if whole else self.matrix(tile)
        return r if scale is None else r / scale

    def weighed(self, tile: Tile, *parts: Array) -> Sequence[Array]:
        """What there is of a tile's entries, times their weights."""
        if self.weights is None:
            return parts
        w = self.xp.reshape(self.weights.box(tile), parts[0].shape)
        if w.dtype != parts[0].dtype:
            w = self.xp.astype(w, parts[0].dtype)
        return [part * w for part in parts]

    def holes(self, x: Array) -> Array | None:
        return self.xp.isnan(x) if self.gaps else None

    def filled(self, x: Array, holes: Array | None) -> Array:
        """0 where the data has a gap."""
        return x if holes is None else self.xp.where(holes, self.xp.zeros_like(x), x)

    # Factors

    def in_order(self, factors: Factors) -> list[Array]:
        """Factors in storage order."""
        return [factors[m] for m in self.order]

    def times_vectors(self, stored: Sequence[Array]) -> list[Array]:
        """Factors in storage order, rows times the weights of their mode."""
        if self.weights is None:
            return list(stored)
        return [
            A if w is None else w[:, None] * A
            for w, A in zip(self.weights.vectors, stored, strict=True)
        ]

    def row_weights(self, n: int) -> Array | None:
        """The vector of weights of stored mode n, if there is one."""
        return None if self.weights is None else self.weights.vectors[n]

    def tile_factors(self, stored: Sequence[Array]) -> TileFactors:
        """Factors in storage order, as tiles need them."""
        return TileFactors(self.xp, stored, self.split, self.pack(stored[0].shape[1]))

    def sampled(self, flat: np.ndarray) -> Iterator[list[Array]]:
        """Indices of the sampled entries: in pieces on the host, kept on a device."""
        if self.on_host:
            for piece in ranges(len(flat), max(1, len(flat) // 4)):
                at = np.unravel_index(flat[piece], self.array.shape)
                yield [self.xp.asarray(index, device=self.device) for index in at]
            return
        if not self._sampled:
            at = np.unravel_index(flat, self.array.shape)
            self._sampled.append([self.xp.asarray(index, device=self.device) for index in at])
        yield from self._sampled

    def pack(self, rank: int) -> tuple[Array, Array]:
        """Rows and columns of the packed upper triangle, as arrays of the library."""
        if rank not in self._packs:
            i, j = (self.xp.asarray(part, device=self.device) for part in pack_indices(rank))
            self._packs[rank] = i, j
        return self._packs[rank]

    def zeros(self, *shape: int) -> Array:
        return self.xp.zeros(shape, dtype=self.dtype, device=self.device)
