"""The pass that uses the array library of the data, for any loss.

On a tile

    r = x - K_rows K_columns'                    K: Khatri-Rao product of the tile's factor rows
    value, slope, curvature of the loss at r
    gradient = slope times K of the other side       I_n x R          after the rest of the own
    gram     = curvature times S of the other side   I_n x R(R+1)/2   side is contracted away

where S, the "self Khatri-Rao" product, holds the products of pairs of K's columns. So a pass is
three thin matrix products around one elementwise formula, whatever the mode. If entries have
scales u, residuals and slopes are divided by u, curvatures by u^2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from robustcp._util.typing import Array
from robustcp.engines.normal_equations import NormalEquations
from robustcp.engines.passes.base import Pass, TileSums
from robustcp.engines.tiles import Tile, TileFactors
from robustcp.losses import Loss


class PlainPass(Pass):
    """Three thin matrix products around the loss, tile by tile."""

    def normal_equations(
        self, factors: Sequence[Array], n: int, loss: Loss, rows: slice
    ) -> NormalEquations:
        storage = self.storage
        tile_factors = storage.tile_factors(factors)
        own_rows = n < storage.split
        shared_grams = None
        if loss.quadratic and storage.separable:
            shared_grams = self.packed_grams(self.shared_gram(factors, n), n, rows)

        def sum_tile(tile: Tile) -> TileSums:
            def reduce(y: Array, packed: bool) -> Array:
                K = tile_factors.K(tile, columns=own_rows, packed=packed)
                with np.errstate(invalid="ignore"):  # OpenBLAS reads beyond small float32 matrices
                    product = (y if own_rows else y.T) @ K
                return tile_factors.contract(product, n, tile, packed=packed)

            value, slope, curvature = self._majorize(loss, tile, tile_factors)
            gram = reduce(curvature, True) if shared_grams is None else None
            return tile[n], reduce(slope, False), gram, value

        parts = storage.map(sum_tile, storage.pass_tiles(n, rows))
        return self.sum_tiles(parts, rows, factors[0].shape[1], shared_grams)

    def value(self, factors: Sequence[Array], loss: Loss) -> float:
        storage = self.storage
        tile_factors = storage.tile_factors(factors)

        def tile_value(tile: Tile) -> float:
            r = storage.residual(tile, tile_factors, storage.tile_scales(tile))
            cost = storage.loss_of_tile(loss, tile).value(r)
            cost = storage.fill_missing(cost, storage.missing_mask(r))
            (cost,) = storage.apply_weights(tile, cost)
            return float(storage.xp.sum(cost, dtype=storage.xp.float64))

        return float(sum(storage.map(tile_value, storage.pass_tiles())))

    def _majorize(self, loss: Loss, tile: Tile, factors: TileFactors) -> tuple[float, Array, Array]:
        """The sum of the values, slopes, and curvatures, weighted; 0 where X has a gap."""
        storage = self.storage
        scale = storage.tile_scales(tile)
        r = storage.residual(tile, factors, scale)
        missing = storage.missing_mask(r)
        tile_loss = storage.loss_of_tile(loss, tile)
        majorizer = tile_loss.majorize(storage.fill_missing(r, missing))
        majorizer = tuple(storage.fill_missing(part, missing) for part in majorizer)
        value, slope, curvature = storage.apply_weights(tile, *majorizer)
        if scale is not None:
            slope, curvature = slope / scale, curvature / (scale * scale)
        return float(storage.xp.sum(value, dtype=storage.xp.float64)), slope, curvature
