"""Tiles of data, and the products of factors that tiles need."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from array_api_compat import array_namespace

from robustcp._util.typing import Array

#: A part of a tensor: a slice of each mode, in storage order.
Tile = tuple[slice, ...]


@dataclass(frozen=True)
class Tiling:
    """The sizes of tiles and blocks of dense data.

    Attributes
    ----------
    entries : int
        Of a tile: its few temporaries fit the cache, and Python's share is small.
    rows : int
        A tile has at least so many rows, so that the products of its factor rows are cheap.
    min_entries : int
        A small tensor is cut in two, so that two threads have work, if tiles of this size
        are left.
    max_sweep_entries, max_least_squares_sweep_entries : int
        Whole sweeps are compiled, for one thread, for tensors of no more entries: there, to share
        passes among threads takes as long as it saves. The second is for least squares.
    device_entries : int
        Of a tile on an accelerator, where it must be large enough to fill the device.
    compiled_entries, max_columns, block_entries : int
        Of a tile of a compiled pass (in float64): its entries, its most columns, and the entries
        of the blocks that it is done in, whose slopes and curvatures a core's cache holds.
    sample_entries : int
        Entries of a sample; of a tensor that is not much larger it is all.
    """

    entries: int = 1 << 17
    rows: int = 64
    min_entries: int = 1 << 15
    max_sweep_entries: int = 1 << 17
    max_least_squares_sweep_entries: int = 1 << 18
    device_entries: int = 1 << 24
    compiled_entries: int = 1 << 19
    max_columns: int = 1 << 11
    block_entries: int = 1 << 16
    sample_entries: int = 1 << 16


def split_range(size: int, max_length: int) -> list[slice]:
    """Cut range(size) into even parts of at most a length."""
    parts = -(-size // max_length)
    edges = [size * k // parts for k in range(parts + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(edges)]


def split_boxes(
    shape: Sequence[int], max_entries: int, uncut_mode: int | None = None
) -> list[Tile]:
    """Cut a shape into boxes of at most a number of entries, where possible.

    Trailing modes stay whole, one mode is cut, those before it are taken one index at a time:
    the boxes of a C-ordered array are matrices without a copy. Mode `uncut_mode` is never cut.
    """
    budget = max_entries if uncut_mode is None else max(1, max_entries // shape[uncut_mode])
    cuts: list[list[slice]] = []
    for mode in range(len(shape) - 1, -1, -1):
        size = shape[mode]
        cuts.append(split_range(size, size if mode == uncut_mode else min(budget, size)))
        if mode != uncut_mode:
            budget = max(1, budget // shape[mode])
    return list(itertools.product(*reversed(cuts)))


def pass_tiles(
    shape: Sequence[int], split: int, n: int, rows: slice, tiling: Tiling, entries: int
) -> list[Tile]:
    """The tiles of a pass over some rows of mode n, for a matrix view that is split there.

    They are the same for any number of threads.
    """
    return _pass_tiles(tuple(shape), split, n, rows.start, rows.stop, tiling, entries)


@lru_cache(maxsize=64)
def _pass_tiles(
    shape: tuple[int, ...], split: int, n: int, start: int, stop: int, tiling: Tiling, entries: int
) -> list[Tile]:
    sizes = list(shape)
    sizes[n] = stop - start
    columns = split_boxes(sizes[split:], max(1, entries // tiling.rows))
    width = math.prod(slice_length(part) for part in columns[0])
    leading = split_boxes(sizes[:split], max(1, entries // width))
    tiles = [(*a, *b) for a in leading for b in columns]
    if start == 0:
        return tiles

    def shift(tile: Tile) -> Tile:
        part = slice(tile[n].start + start, tile[n].stop + start)
        return (*tile[:n], part, *tile[n + 1 :])

    return [shift(tile) for tile in tiles]


def even_split(shape: Sequence[int]) -> int:
    """The number of leading modes that are the rows of the most even matrix view."""

    def border(s: int) -> int:
        return int(math.prod(shape[:s]) + math.prod(shape[s:]))

    return min(range(len(shape) - 1, 0, -1), key=border)


def slice_length(part: slice) -> int:
    """The length of a slice with both ends."""
    return int(part.stop - part.start)


def khatri_rao(factors: Sequence[Array]) -> Array:
    """The Khatri-Rao product, rows of the last factor fastest."""
    product = factors[0]
    if len(factors) == 1:
        return product
    xp = array_namespace(product)
    for A in factors[1:]:
        product = xp.reshape(product[:, None, :] * A[None, :, :], (-1, A.shape[1]))
    return product


class TileFactors:
    """The factors of one pass, and their products for tiles. Modes are in storage order.

    `pack` holds the pairs of columns whose products make the packed Gram matrices, if any are
    wanted.
    """

    def __init__(
        self,
        xp: Any,
        factors: Sequence[Array],
        split: int,
        pack: tuple[Array, Array] | None = None,
    ) -> None:
        self._xp = xp
        self._factors = factors
        self._split = split
        self._pack = pack
        self._full_products: dict[bool, Array] = {}

    def K(self, tile: Tile, *, columns: bool, packed: bool = False) -> Array:
        """The Khatri-Rao product of one side's factor rows; of their self products if packed."""
        side = slice(self._split, None) if columns else slice(0, self._split)
        parts = tile[side]
        covers_columns = columns and all(
            part == slice(0, A.shape[0]) for part, A in zip(parts, self._factors[side], strict=True)
        )
        if covers_columns and packed in self._full_products:
            return self._full_products[packed]
        pairs = zip(parts, self._factors[side], strict=True)
        product = khatri_rao([self._rows(A, rows, packed) for rows, A in pairs])
        if covers_columns:
            self._full_products[packed] = product
        return product

    def negated_model(self, tile: Tile) -> Array:
        return (-self.K(tile, columns=False)) @ self.K(tile, columns=True).T

    def contract(self, Y: Array, n: int, tile: Tile, *, packed: bool) -> Array:
        """Contract every mode but n of n's own side, one factor at a time."""
        first, last = (self._split, len(tile)) if n >= self._split else (0, self._split)
        for m in range(first, last):
            if m == n:
                continue
            B = self._rows(self._factors[m], tile[m], packed)
            # Of the modes before m only n is left.
            remaining = slice_length(tile[n]) if m > n else 1
            Y = self._xp.reshape(Y, (remaining, B.shape[0], -1, B.shape[1]))
            Y = self._xp.sum(Y * B[None, :, None, :], axis=1)
        return self._xp.reshape(Y, (slice_length(tile[n]), -1))

    def _rows(self, A: Array, part: slice, packed: bool) -> Array:
        A = A[part, :]
        if not packed:
            return A
        assert self._pack is not None
        i, j = self._pack
        return self._xp.take(A, i, axis=1) * self._xp.take(A, j, axis=1)
