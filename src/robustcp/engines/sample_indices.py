"""The indices of a sample of the entries of a dense array."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from robustcp.engines.entries import sample_size
from robustcp.engines.tiles import Tile

#: Modes of one size are exchanged in a sample if they can be exchanged in at most so many ways.
MAX_EXCHANGES = 720


def draw_flat_indices(shape: tuple[int, ...], count: int) -> np.ndarray:
    """Sorted flat indices of a random sample of at least `count` entries, the same in every call.

    The sample has the same entries for any order of the modes: indices are drawn for the modes in
    the order of their sizes, and with the indices of an entry those are in the sample that result
    if modes of one size are exchanged.
    """
    sizes = sorted(shape, reverse=True)
    exchanges = [
        exchange
        for exchange in itertools.permutations(range(len(shape)))
        if [sizes[n] for n in exchange] == sizes
    ]
    exchanges = exchanges if len(exchanges) <= MAX_EXCHANGES else exchanges[:1]
    rng, drawn = np.random.default_rng(0), -(-count // len(exchanges))
    indices = np.stack([rng.integers(size, size=drawn) for size in sizes])
    indices = np.concatenate([indices[list(exchange)] for exchange in exchanges], axis=1)
    position = np.argsort(np.argsort(-np.array(shape), kind="stable"), kind="stable")
    return np.sort(np.ravel_multi_index(tuple(indices[position]), shape))


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
        if math.prod(self._shape) <= 3 * self._sample_size:
            return None
        return draw_flat_indices(self._shape, self._sample_size)

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
