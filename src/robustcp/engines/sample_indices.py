"""Where the entries of a sample of a dense array are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from robustcp.engines.tiles import Tile


class SampleIndices:
    """Where the entries of a sample are, however the array is looked at: found once.

    Parameters
    ----------
    shape : tuple of int
        Of the array as given.
    order : sequence of int
        Its modes in storage order.
    tiles : function
        Gives the tiles of the stored array, in whose order all entries come.
    sample_size : int
        The entries of a sample; of an array that is not much larger it is all.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        order: Sequence[int],
        tiles: Callable[[], list[Tile]],
        sample_size: int,
    ) -> None:
        self._shape, self._order, self._tiles, self._sample_size = shape, order, tiles, sample_size

    @cached_property
    def flat_indices(self) -> np.ndarray | None:
        """Flat indices of the entries that a sample is made of; None for all."""
        total = math.prod(self._shape)
        if total <= 3 * self._sample_size:
            return None
        flat = np.random.default_rng(0).integers(total, size=self._sample_size)
        flat.sort()
        return flat

    @cached_property
    def indices(self) -> tuple[np.ndarray, ...]:
        """The indices of the entries that a sample is made of, missing ones included."""
        flat = self._all_flat_indices if self.flat_indices is None else self.flat_indices
        return tuple(map(np.ascontiguousarray, np.unravel_index(flat, self._shape)))

    @cached_property
    def _all_flat_indices(self) -> np.ndarray:
        """Flat indices of all entries, in the order of the tiles."""
        positions = np.arange(math.prod(self._shape)).reshape(self._shape).transpose(self._order)
        return np.concatenate([positions[tile].ravel() for tile in self._tiles()])
