"""Where the entries of a sample of a dense array are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from robustcp.engines.tiles import Tile


class Places:
    """Where the entries of a sample are, however the array is looked at: found once.

    Parameters
    ----------
    shape : tuple of int
        Of the array as given.
    order : sequence of int
        Its modes in storage order.
    tiles : function
        Gives the tiles of the stored array, in whose order all entries come.
    most : int
        The entries of a sample; of an array that is not much larger it is all.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        order: Sequence[int],
        tiles: Callable[[], list[Tile]],
        most: int,
    ) -> None:
        self._shape, self._order, self._tiles, self._most = shape, order, tiles, most

    @cached_property
    def sampled(self) -> np.ndarray | None:
        """Flat indices of the entries that a sample is made of; None for all."""
        total = math.prod(self._shape)
        if total <= 3 * self._most:
            return None
        flat = np.random.default_rng(0).integers(total, size=self._most)
        flat.sort()
        return flat

    @cached_property
    def located(self) -> tuple[np.ndarray, ...]:
        """The indices of the entries that a sample is made of, missing ones included."""
        at = self._all if self.sampled is None else self.sampled
        return tuple(map(np.ascontiguousarray, np.unravel_index(at, self._shape)))

    @cached_property
    def _all(self) -> np.ndarray:
        """Flat indices of all entries, in the order of the tiles."""
        at = np.arange(math.prod(self._shape)).reshape(self._shape).transpose(self._order)
        return np.concatenate([at[tile].ravel() for tile in self._tiles()])
