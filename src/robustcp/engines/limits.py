"""Limits of measurement: entries at or beyond one are censored.

A detector shows no more than its ceiling, an assay nothing below its detection limit. Of an entry
x >= high all that is known is that the true value is at least `high`; so it costs nothing where the
model is beyond the limit, and as usual otherwise. Its residual there counts as 0, or as missing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import array_api_compat.numpy as host_xp
import numpy as np

from robustcp._util.checks import ArgumentError
from robustcp._util.typing import Array
from robustcp.engines.arrays import plain_array, to_host
from robustcp.engines.axes import Arrangement
from robustcp.engines.entry_field import EntryField, Indices, MatrixField, TileField
from robustcp.engines.tiles import Tile

_ARGUMENT_NAME = "limits"
#: The sides of tensors with no more entries are kept for all compiled passes.
MAX_CACHED_ENTRIES = 1 << 21


@dataclass(frozen=True, eq=False)
class Limits:
    """The limits of entries, in the units of the data as given.

    Attributes
    ----------
    low, high : EntryField, optional
        Entries at most `low` and at least `high` are censored. Infinite where there is no limit.

    Examples
    --------
    >>> import numpy as np
    >>> limits = Limits.of((None, [5.0, np.inf]), (3, 2))
    >>> limits.sides_at(np.array([5.0, 4.0, 9.0]), np.array([[0, 1, 2], [0, 0, 1]]))
    array([1, 0, 0], dtype=int8)
    """

    low: EntryField | None = None
    high: EntryField | None = None

    @classmethod
    def of(cls, given: Any, shape: tuple[int, ...]) -> Limits | None:
        """Checked limits from a pair (low, high) of numbers, arrays that broadcast, or None."""
        if given is None or isinstance(given, Limits):
            return given
        if not isinstance(given, list | tuple) or len(given) != 2:
            raise ArgumentError(_ARGUMENT_NAME, f"must be a pair (low, high), got {given!r}")
        limits = cls(
            *(
                None if limit is None else _limit_field(limit, shape, absent)
                for limit, absent in zip(given, (-math.inf, math.inf), strict=True)
            )
        )
        low, high = limits.arrays
        if low is not None and high is not None and not np.all(low < high):
            raise ArgumentError(_ARGUMENT_NAME, "low must be below high")
        return None if low is high is None else limits

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse limits that are not for data of some shape."""
        for field in (self.low, self.high):
            if field is not None and field.shape != shape:
                raise ArgumentError(
                    _ARGUMENT_NAME, f"are of shape {field.shape}, the data of {shape}"
                )

    def subset(self, indices: Sequence[Indices]) -> Limits:
        """The limits of the entries at some indices of each mode."""
        return Limits(*(field and field.subset(indices) for field in (self.low, self.high)))

    def reorder(self, arrangement: Arrangement) -> Limits:
        """The limits of the same data with its modes and indices in another order."""
        return Limits(*(field and field.reorder(arrangement) for field in (self.low, self.high)))

    def for_new_slabs(self, mode: int, size: int) -> Limits | None:
        """The limits of new slabs of a mode: None if those of the mode's slabs differ."""
        if any(array is not None and array.shape[mode] > 1 for array in self.arrays):
            return None
        low, high = (
            field and replace(field, shape=(*field.shape[:mode], size, *field.shape[mode + 1 :]))
            for field in (self.low, self.high)
        )
        return Limits(low, high)

    @property
    def arrays(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Both limits as arrays that broadcast to the data."""
        low, high = (None if field is None else field.array for field in (self.low, self.high))
        return low, high

    def sides_at(self, x: np.ndarray, indices: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """The sides of some entries of the data as given, of some indices; on the host."""
        low, high = (
            None if field is None else field.values_at(indices).astype(x.dtype)
            for field in (self.low, self.high)
        )
        return np.asarray(_sides(x, low, high, host_xp))

    def describe(self) -> str:
        """The limits in words, such as "below 0.5 or above 4095"."""
        words = []
        for word, array in zip(("at most", "at least"), self.arrays, strict=True):
            if array is not None:
                finite = array[np.isfinite(array)]
                least, most = finite.min(), finite.max()
                span = f"{least:.6g}" if least == most else f"{least:.6g} to {most:.6g}"
                words.append(f"{word} {span}")
        return " or ".join(words)


def _limit_field(given: Any, shape: tuple[int, ...], absent: float) -> EntryField:
    """A limit as a field; NaN stands for no limit."""
    try:
        array = np.asarray(to_host(plain_array(given)), dtype=np.float64)
    except (TypeError, ValueError):
        raise ArgumentError(
            _ARGUMENT_NAME, f"must be numbers or arrays of them, got {given!r}"
        ) from None
    sizes = (1,) * (len(shape) - array.ndim) + array.shape
    if len(sizes) != len(shape) or any(a not in (1, b) for a, b in zip(sizes, shape, strict=True)):
        raise ArgumentError(
            _ARGUMENT_NAME, f"of shape {array.shape} do not broadcast to that of X, {shape}"
        )
    array = np.where(np.isnan(array), absent, array).reshape(sizes)
    if not np.isfinite(array).any():
        raise ArgumentError(_ARGUMENT_NAME, f"hold no finite number, got {given!r}")
    if np.any(array == -absent):
        raise ArgumentError(_ARGUMENT_NAME, f"a limit of {-absent:g} would censor everything")
    return EntryField.from_array(shape, array)


def _sides(x: Array, low: Array | None, high: Array | None, xp: Any) -> Array:
    """1 for entries at their upper limit or beyond, -1 at their lower limit, else 0."""
    if high is None:
        return -xp.astype(x <= low, xp.int8)
    above = xp.astype(x >= high, xp.int8)
    return above if low is None else above - xp.astype(x <= low, xp.int8)


class TileLimits:
    """Limits in the storage order, the library and on the device of a stored array."""

    def __init__(
        self, limits: Limits, order: Sequence[int], xp: Any, dtype: Any, device: Any
    ) -> None:
        self._xp = xp
        self._matrix_sides: MatrixSides | None = None
        self._low, self._high = (
            None if field is None else TileField(field, order, xp, dtype, device)
            for field in (limits.low, limits.high)
        )

    def tile_sides(self, x: Array, tile: Tile) -> Array:
        """The sides of a tile of the data as given, converted to the type of factors."""
        low, high = (
            None if field is None else field.tile_values(tile) for field in (self._low, self._high)
        )
        return _sides(x, low, high, self._xp)

    def sides_at(self, x: Array, indices: Sequence[Array]) -> Array:
        """The sides of some entries, given by an array of indices for each mode."""
        low, high = (
            None if field is None else field.values_at(indices) for field in (self._low, self._high)
        )
        return _sides(x, low, high, self._xp)

    def matrix_sides(self, matrix: np.ndarray, shape: Sequence[int], split: int) -> MatrixSides:
        """The sides by blocks of the matrix of the data, shared by the passes of all views."""
        if self._matrix_sides is None:
            low, high = (
                None if field is None else MatrixField(field, shape, split)
                for field in (self._low, self._high)
            )
            dtype = next(field.dtype for field in (self._low, self._high) if field is not None)
            self._matrix_sides = MatrixSides(matrix, dtype, low, high)
        return self._matrix_sides


class MatrixSides:
    """Sides by blocks of the matrix view of a NumPy array; those of a small one computed once."""

    def __init__(
        self, matrix: np.ndarray, dtype: Any, low: MatrixField | None, high: MatrixField | None
    ) -> None:
        self._matrix, self._dtype, self._low, self._high = matrix, dtype, low, high
        self._all: np.ndarray | None = None
        if matrix.size <= MAX_CACHED_ENTRIES:
            self._all = self._compute_block(*(slice(0, size) for size in matrix.shape))

    def block(self, rows: slice, columns: slice) -> np.ndarray:
        """The sides of a block, C-ordered."""
        if self._all is not None:
            return np.ascontiguousarray(self._all[rows, columns])
        return self._compute_block(rows, columns)

    def _compute_block(self, rows: slice, columns: slice) -> np.ndarray:
        low, high = (
            None if field is None else field.block(rows, columns)
            for field in (self._low, self._high)
        )
        x = self._matrix[rows, columns].astype(self._dtype, copy=False)
        return np.ascontiguousarray(_sides(x, low, high, host_xp))


def drop_satisfied(r: Array, sides: Array | None, fill: float, xp: Any) -> Array:
    """Residuals, with a value in place of those of censored entries with the model beyond."""
    if sides is None:
        return r
    satisfied = xp.astype(sides, r.dtype) * r < 0
    return xp.where(satisfied, xp.full_like(r, fill), r)
