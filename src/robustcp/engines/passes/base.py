"""What a pass is."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from robustcp._typing import Array
from robustcp.engines.storage import Storage
from robustcp.losses import Loss
from robustcp.normal import NormalEquations

#: What a tile adds to the rows of the own mode that it has a part in: those rows, gradients,
#: packed Gram matrices (None where all rows share one), and the value.
Part = tuple[slice, Array, Array | None, float]


class Pass(ABC):
    """One way to go over a stored array. Factors and modes are in storage order."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    @abstractmethod
    def normal(self, factors: Sequence[Array], n: int, loss: Loss, rows: slice) -> NormalEquations:
        """The normal equations of some rows of the factor of mode n."""

    @abstractmethod
    def value(self, factors: Sequence[Array], loss: Loss) -> float:
        """The loss summed over the data."""

    def shares_gram(self, loss: Loss) -> bool:
        """Whether all rows have the same Gram matrix."""
        return loss.quadratic and not self.storage.gaps

    def shared_gram(self, factors: Sequence[Array], n: int) -> Array:
        """The Gram matrix of all rows where the curvature is 1 everywhere."""
        return math.prod(A.T @ A for m, A in enumerate(factors) if m != n)

    def added(
        self, parts: Iterable[Part], rows: slice, rank: int, shared: Array | None = None
    ) -> NormalEquations:
        """The sum of the parts of all tiles, in their order."""
        storage, count = self.storage, rows.stop - rows.start
        gradient, value = storage.zeros(count, rank), 0.0
        if shared is None:
            gram = storage.zeros(count, rank * (rank + 1) // 2)
        else:
            gram = shared[storage.pack(rank)][None, :]
        for part, g, G, v in parts:
            here = slice(part.start - rows.start, part.stop - rows.start)
            gradient[here, :] += g
            if G is not None:
                gram[here, :] += G
            value += v
        return NormalEquations(gram, gradient, value)
