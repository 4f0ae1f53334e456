"""Fibres of the data that are left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp.engines.axes import Axes
from robustcp.engines.entry_field import EntryField

if TYPE_CHECKING:
    from robustcp.engines.base import Engine

#: What is said of fibres in data of which not all entries can be listed.
FIBRES_NOT_EXCLUDED = (
    "X: some fibres {}; they are not left out, since that would take all entries in memory at "
    "once (as_engine(X, memory=...) may allow more)"
)


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

    def __or__(self, other: Fibres) -> Fibres:
        """Those and others."""
        masks = dict(self.along)
        for mode, mask in other.along:
            masks[mode] = masks[mode] | mask if mode in masks else mask
        return Fibres(self.shape, tuple(sorted(masks.items())))

    @property
    def count(self) -> int:
        return sum(int(np.count_nonzero(mask)) for _, mask in self.along)

    @staticmethod
    def fibre_numbers(
        shape: tuple[int, ...], mode: int, indices: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, tuple[int, ...]]:
        """In which fibre along a mode each entry is, and the shape of an array of those fibres."""
        sizes = tuple(1 if n == mode else size for n, size in enumerate(shape))
        number: Any = 0
        for n, (size, index) in enumerate(zip(sizes, indices, strict=True)):
            if n != mode:
                number = number * size + index
        return np.asarray(number), sizes

    def contains(self, indices: Sequence[np.ndarray]) -> np.ndarray:
        """Whether some entries are in one of the fibres."""
        inside = np.zeros(len(indices[0]), dtype=bool)
        for mode, mask in self.along:
            inside |= mask.ravel()[self.fibre_numbers(self.shape, mode, indices)[0]]
        return inside

    def describe(self, axes: Axes) -> str:
        """How many there are along which modes."""
        parts = []
        for mode, mask in self.along:
            count = int(np.count_nonzero(mask))
            parts.append(f"{count} fibre{'s' * (count != 1)} along {axes.mode_name(mode)}")
        return " and ".join(parts)

    @property
    def weights(self) -> EntryField:
        """Weights that are 0 in the fibres and 1 elsewhere."""
        product = np.ones((1,) * len(self.shape), dtype=np.float32)
        for _, mask in self.along:
            product = product * ~mask
        return EntryField.from_array(self.shape, product, has_zeros=True)


def fibre_length(engine: Engine) -> float:
    """How many entries the fibres along the longest mode have, missing ones left out."""
    return engine.count * max(engine.shape) / math.prod(engine.shape)


def sample_indices(shape: Sequence[int], max_entries: int) -> list[np.ndarray]:
    """Random indices of each mode, of not more entries together; long modes are cut first."""
    sizes = list(shape)
    while math.prod(sizes) > max_entries:
        longest = sizes.index(max(sizes))
        sizes[longest] = sizes[longest] * 3 // 4
    rng = np.random.default_rng(0)
    pairs = zip(shape, sizes, strict=True)
    return [np.sort(rng.permutation(full_size)[:size]) for full_size, size in pairs]
