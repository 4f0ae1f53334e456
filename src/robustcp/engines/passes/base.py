"""The interface of passes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from robustcp._util.typing import Array
from robustcp.engines.normal_equations import NormalEquations
from robustcp.engines.storage import Storage
from robustcp.losses import Loss

#: What a tile adds to the normal equations: the rows that it contributes to, their gradients and
#: packed Gram matrices (None if these are known without the data), and the value.
TileSums = tuple[slice, Array, Array | None, float]


class Pass(ABC):
    """One way to go over a stored array. Factors and modes are in storage order."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    @abstractmethod
    def normal_equations(
        self, factors: Sequence[Array], n: int, loss: Loss, rows: slice
    ) -> NormalEquations:
        """The normal equations of some rows of the factor of mode n."""

    @abstractmethod
    def value(self, factors: Sequence[Array], loss: Loss) -> float:
        """The loss summed over the data."""

    def shares_gram(self, loss: Loss, n: int) -> bool:
        """Whether all rows of mode n have the same Gram matrix."""
        separable = loss.quadratic and self.storage.separable
        return separable and self.storage.row_weights(n) is None

    def shared_gram(self, factors: Sequence[Array], n: int) -> Array:
        """The Gram matrix of rows of weight 1 where the curvature is 1 everywhere."""
        pairs = zip(factors, self.storage.weight_rows(factors), strict=True)
        return math.prod(A.T @ B for m, (A, B) in enumerate(pairs) if m != n)

    def packed_grams(self, shared: Array, n: int, rows: slice) -> Array:
        """The shared Gram matrix, packed; of each row, if mode n has weights."""
        gram = shared[self.storage.packed_pairs(shared.shape[0])][None, :]
        w = self.storage.row_weights(n)
        return gram if w is None else w[rows][:, None] * gram

    def sum_tiles(
        self, parts: Iterable[TileSums], rows: slice, rank: int, gram: Array | None = None
    ) -> NormalEquations:
        """The sum of the parts of all tiles, in their order; `gram` is given if it is known."""
        storage, count = self.storage, rows.stop - rows.start
        gradient, value = storage.zeros(count, rank), 0.0
        if gram is None:
            gram = storage.zeros(count, rank * (rank + 1) // 2)
        for tile_rows, g, G, v in parts:
            target = slice(tile_rows.start - rows.start, tile_rows.stop - rows.start)
            gradient[target, :] += g
            if G is not None:
                gram[target, :] += G
            value += v
        return NormalEquations(gram, gradient, value)
