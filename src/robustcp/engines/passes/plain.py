"""The pass by the array library of the data, for any loss.

On a tile

    r = x - K_rows K_columns'                    K: Khatri-Rao product of the tile's factor rows
    value, slope, curvature of the loss at r
    gradient = slope times K of the other side   I_n x R          after the rest of the own
    gram     = curvature times S of that side    I_n x R(R+1)/2   side is contracted away

where S, the "self Khatri-Rao" product, holds the products of pairs of K's columns. So a pass is
three thin matrix products around one elementwise formula, whatever the mode. If entries have
scales u, residuals and slopes are divided by u, curvatures by u^2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from robustcp._typing import Array
from robustcp.engines.passes.base import Part, Pass
from robustcp.engines.tiles import Tile, TileFactors
from robustcp.losses import Loss
from robustcp.normal import NormalEquations


class PlainPass(Pass):
    """Three thin matrix products around the loss, tile by tile."""

    def normal(self, factors: Sequence[Array], n: int, loss: Loss, rows: slice) -> NormalEquations:
        storage = self.storage
        held = storage.tile_factors(factors)
        own_rows = n < storage.split
        known = None
        if loss.quadratic and storage.separable:
            known = self.grams(self.shared_gram(factors, n), n, rows)

        def work(tile: Tile) -> Part:
            def reduce(y: Array, packed: bool) -> Array:
                K = held.K(tile, columns=own_rows, packed=packed)
                with np.errstate(invalid="ignore"):  # OpenBLAS reads beyond small float32 matrices
                    product = (y if own_rows else y.T) @ K
                return held.collapse(product, n, tile, packed=packed)

            value, slope, curvature = self._majorize(loss, tile, held)
            gram = reduce(curvature, True) if known is None else None
            return tile[n], reduce(slope, False), gram, value

        parts = storage.map(work, storage.pass_tiles(n, rows))
        return self.added(parts, rows, factors[0].shape[1], known)

    def value(self, factors: Sequence[Array], loss: Loss) -> float:
        storage = self.storage
        held = storage.tile_factors(factors)

        def work(tile: Tile) -> float:
            r = storage.residual(tile, held, storage.scale(tile))
            cost = storage.filled(loss.value(r), storage.holes(r))
            (cost,) = storage.weighed(tile, cost)
            return float(storage.xp.sum(cost, dtype=storage.xp.float64))

        return float(sum(storage.map(work, storage.pass_tiles())))

    def _majorize(self, loss: Loss, tile: Tile, factors: TileFactors) -> tuple[float, Array, Array]:
        """The sum of the values, slopes and curvatures, by their weights; 0 where X has a gap."""
        storage = self.storage
        scale = storage.scale(tile)
        r = storage.residual(tile, factors, scale)
        holes = storage.holes(r)
        parts = loss.majorize(storage.filled(r, holes))
        parts = tuple(storage.filled(part, holes) for part in parts)
        value, slope, curvature = storage.weighed(tile, *parts)
        if scale is not None:
            slope, curvature = slope / scale, curvature / (scale * scale)
        return float(storage.xp.sum(value, dtype=storage.xp.float64)), slope, curvature
