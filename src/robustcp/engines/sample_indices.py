"""The indices of a sample of the entries of a dense array."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from robustcp.engines.entries import draw_positions, sample_size
from robustcp.engines.tiles import Tile


class SampleIndices:
    """The indices of the entries of a sample, computed once for all views of an array.

    Parameters
    ----------
    shape : tuple of int
        Of the array as given.
    order : sequence of int
        Its modes in storage order.
    tiles : function
        Returns the tiles of the stored array; a sample of all entries is in their order.
    min_size : int
        The least number of entries of a sample (see `sample_size`). An array of up to three times
        as many entries as a sample is its own sample.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        order: Sequence[int],
        tiles: Callable[[], list[Tile]],
        min_size: int,
    ) -> None:
        self._shape, self._order, self._tiles = shape, order, tiles
        self._sample_size = sample_size(shape, min_size)

    @cached_property
    def flat_indices(self) -> np.ndarray | None:
        """Flat indices of the sampled entries; None for all."""
        total = math.prod(self._shape)
        if total <= 3 * self._sample_size:
            return None
        return draw_positions(total, self._sample_size)

    @cached_property
    def indices(self) -> tuple[np.ndarray, ...]:
        """The indices of the sampled entries, missing entries included."""
        flat = self._all_flat_indices if self.flat_indices is None else self.flat_indices
        return tuple(map(np.ascontiguousarray, np.unravel_index(flat, self._shape)))

    @cached_property
    def _all_flat_indices(self) -> np.ndarray:
        """Flat indices of all entries, in the order of the tiles."""
        positions = np.arange(math.prod(self._shape)).reshape(self._shape).transpose(self._order)
        return np.concatenate([positions[tile].ravel() for tile in self._tiles()])
