"""Fibres of the data that are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from robustcp.engines.arrays import to_host
from robustcp.engines.weights import Weights


@dataclass(frozen=True, eq=False)
class Fibres:
    """Fibres that are left out.

    Attributes
    ----------
    shape : tuple of int
        That of the data.
    along : tuple of (mode, array of bool)
        For some modes which fibres along them: an array of the data's shape, but of size 1 in
        that mode.
    """

    shape: tuple[int, ...]
    along: tuple[tuple[int, np.ndarray], ...] = field(repr=False, default=())

    def __bool__(self) -> bool:
        return bool(self.along)

    @property
    def count(self) -> int:
        return sum(int(np.count_nonzero(hit)) for _, hit in self.along)

    def at(self, indices: Sequence[np.ndarray]) -> np.ndarray:
        """Whether some entries are in one of the fibres."""
        inside = np.zeros(len(indices[0]), dtype=bool)
        for mode, hit in self.along:
            inside |= hit[tuple(0 * k if n == mode else k for n, k in enumerate(indices))]
        return inside

    @property
    def words(self) -> str:
        """What they are, in a sentence."""
        parts = []
        for mode, hit in self.along:
            count = int(np.count_nonzero(hit))
            parts.append(f"{count} fibre{'s' * (count != 1)} along mode {mode}")
        return " and ".join(parts)

    def weights(self, others: Weights | None) -> Weights:
        """Weights that are 0 in the fibres, and elsewhere as others say, or 1."""
        kept = np.ones((1,) * len(self.shape), dtype=np.float32)
        for _, hit in self.along:
            kept = kept * ~hit
        if others is not None:
            array = np.float64(1.0) if others.array is None else to_host(others.array)
            for n, vector in enumerate(others.vectors):
                if vector is not None:
                    array = array * vector.reshape([-1 if m == n else 1 for m in range(kept.ndim)])
            kept = kept * array
        return Weights(self.shape, (None,) * kept.ndim, kept, zeros=True)
