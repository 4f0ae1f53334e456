"""Products of the unfoldings of a stored array, tile by tile, in float64; missing entries are 0."""

from __future__ import annotations

import math

import numpy as np

from robustcp._util.typing import Array
from robustcp.engines.arrays import to_host
from robustcp.engines.storage import Storage
from robustcp.engines.tiles import Tile, split_boxes, split_range


class UnfoldingProducts:
    """Products of the mode-n unfolding X_n, which is never formed; see `Engine.gram`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def gram(self, mode: int, basis: np.ndarray | None = None) -> np.ndarray:
        storage, n = self._storage, self._storage.order.index(mode)
        size = storage.shape[n]
        if basis is not None and size * size > math.prod(storage.shape):
            return self.project(mode, self._coproject(mode, basis))
        V = None if basis is None else self._to_working_array(basis)

        def work(tile: Tile) -> Array:
            T = self._unfold(tile, mode)
            product = T @ T.T if V is None else T @ (T.T @ V)
            return storage.xp.astype(product, storage.xp.float64)

        tiles = split_boxes(storage.shape, storage.tile_entries, uncut_mode=n)
        return to_host(sum(storage.map(work, tiles)))

    def cogram(self, mode: int) -> np.ndarray:
        def work(tile: Tile) -> Array:
            T = self._unfold(tile, mode)
            return self._storage.xp.astype(T.T @ T, self._storage.xp.float64)

        return to_host(sum(self._storage.map(work, self._row_tiles(mode))))

    def project(self, mode: int, basis: np.ndarray) -> np.ndarray:
        V = self._to_working_array(basis)

        def work(tile: Tile) -> Array:
            return self._unfold(tile, mode) @ V

        parts = self._storage.map(work, self._row_tiles(mode))
        return np.concatenate([to_host(part) for part in parts])

    def _coproject(self, mode: int, basis: np.ndarray) -> np.ndarray:
        """X_n' times a basis of as many rows as the mode."""
        V, n = self._to_working_array(basis), self._storage.order.index(mode)

        def work(tile: Tile) -> Array:
            product = self._unfold(tile, mode).T @ V[tile[n], :]
            return self._storage.xp.astype(product, self._storage.xp.float64)

        return to_host(sum(self._storage.map(work, self._row_tiles(mode))))

    def _to_working_array(self, array: np.ndarray) -> Array:
        storage, host = self._storage, np.ascontiguousarray(array)
        dtype = storage.xp.float64 if storage.on_host else storage.dtype
        return storage.xp.asarray(host, dtype=dtype, device=storage.device)

    def _row_tiles(self, mode: int) -> list[Tile]:
        """Tiles that hold whole rows of an unfolding."""
        n, shape = self._storage.order.index(mode), self._storage.shape
        row = math.prod(shape) // shape[n]
        full_box = [slice(0, size) for size in shape]
        return [
            (*full_box[:n], part, *full_box[n + 1 :])
            for part in split_range(shape[n], max(1, self._storage.tile_entries // row))
        ]

    def _unfold(self, tile: Tile, mode: int) -> Array:
        storage = self._storage
        # On a device products are summed up in float64, and made as the data is.
        x = storage.read_masked(tile, storage.xp.float64 if storage.on_host else storage.dtype)
        x = storage.xp.moveaxis(
            storage.fill_missing(x, storage.missing_mask(x)), storage.order.index(mode), 0
        )
        return storage.xp.reshape(x, (x.shape[0], -1))
