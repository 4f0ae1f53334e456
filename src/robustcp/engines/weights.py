"""Weights of entries: what the loss of each one is multiplied by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np

from robustcp._util import checks
from robustcp._util.typing import Array
from robustcp.engines.arrays import check_dtype, is_lazy, plain_array, take_indices, to_host
from robustcp.engines.axes import Arrangement
from robustcp.engines.tiles import Tile, slice_length

_ARGUMENT_NAME = "entry_weights"


@dataclass(frozen=True, eq=False)
class Weights:
    """What the loss of each entry is multiplied by: 2 counts it twice, 0 means missing.

    An entry's weight is what `array` holds for it or, without one, the product of what
    `vectors` hold; they are never made up for all entries at once.

    Attributes
    ----------
    shape : tuple of int
        That of the data.
    vectors : tuple of (float64 array or None), one for each mode
        On the host.
    array : array, optional
        Of any library, with the modes of the data; a mode of size 1 stands for all its indices.
    has_zeros : bool
        Whether a weight may be 0.
    """

    shape: tuple[int, ...]
    vectors: tuple[np.ndarray | None, ...]
    array: Array | None = None
    has_zeros: bool = False

    def subset(self, indices: Sequence[np.ndarray | None]) -> Weights:
        """The weights at some indices of each mode; None takes a mode whole."""
        shape, vectors, array = [], [], self.array
        for mode, (size, vector, index) in enumerate(
            zip(self.shape, self.vectors, indices, strict=True)
        ):
            shape.append(size if index is None else len(index))
            vectors.append(vector if index is None or vector is None else vector[index])
            if index is not None and array is not None and array.shape[mode] > 1:
                array = take_indices(array, index, mode)
        return Weights(tuple(shape), tuple(vectors), array, self.has_zeros)

    def arranged(self, arrangement: Arrangement) -> Weights:
        """The weights of the same data with its modes and indices in another order."""
        array = self.array
        if array is not None:
            array = np.transpose(to_host(array), arrangement.order)
            for mode, index in enumerate(arrangement.rows):
                if index is not None and array.shape[mode] > 1:
                    array = np.take(array, index, axis=mode)
        return Weights(
            arrangement.reorder(self.shape),
            arrangement.reorder_rows(self.vectors),
            array,
            self.has_zeros,
        )

    def without_slabs(self, mode: int, rows: np.ndarray) -> Weights:
        """The same, but 0 in some slabs of a mode."""
        mask = np.ones(self.shape[mode])
        mask[rows] = 0.0
        if self.array is not None:
            xp = array_api_compat.array_namespace(self.array)
            device = array_api_compat.device(self.array)
            sizes = [-1 if n == mode else 1 for n in range(len(self.shape))]
            mask_array = xp.asarray(mask.reshape(sizes), dtype=self.array.dtype, device=device)
            return Weights(self.shape, self.vectors, self.array * mask_array, has_zeros=True)
        vectors = list(self.vectors)
        previous = vectors[mode]
        vectors[mode] = mask if previous is None else mask * previous
        return Weights(self.shape, tuple(vectors), has_zeros=True)

    @property
    def geometric_mean(self) -> float:
        """The geometric mean; none may be 0."""
        if self.array is not None:
            array = self.array if is_lazy(self.array) else to_host(self.array)
            return math.exp(float(np.mean(np.log(array))))
        return math.prod(math.exp(np.mean(np.log(w))) for w in self.vectors if w is not None)

    def values_at(self, indices: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """The weights of some entries, on the host."""
        if self.array is not None:
            return np.asarray(
                to_host(self.array)[_broadcast_indices(self.array, indices)], dtype=np.float64
            )
        product = np.ones(len(indices[0]))
        for vector, index in zip(self.vectors, indices, strict=True):
            if vector is not None:
                product *= vector[index]
        return product


@dataclass(frozen=True, eq=False)
class CoordinateWeights:
    """Weights of entries that are listed, in the order in which they were given."""

    values: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def geometric_mean(self) -> float:
        """The geometric mean; none may be 0."""
        return math.exp(float(np.mean(np.log(self.values))))


class TileWeights:
    """Weights as the tiles of a stored array need them: its modes, its library, its device."""

    def __init__(
        self, weights: Weights, order: Sequence[int], xp: Any, dtype: Any, device: Any
    ) -> None:
        self._xp, self.dtype = xp, dtype
        vectors = (weights.vectors[mode] for mode in order)
        self.vectors = [
            None if w is None else xp.asarray(np.array(w), dtype=dtype, device=device)
            for w in vectors
        ]
        self.array = None
        if weights.array is not None:
            self.array = xp.permute_dims(_to_device(weights.array, xp, device), tuple(order))
        self.has_zeros = weights.has_zeros

    def tile_values(self, tile: Tile) -> Array:
        """The weights of a tile, in its shape."""
        xp, order, sizes = self._xp, len(tile), tuple(map(slice_length, tile))
        if self.array is not None:
            array_box = tuple(
                part if size > 1 else slice(0, 1)
                for part, size in zip(tile, self.array.shape, strict=True)
            )
            return xp.broadcast_to(xp.astype(self.array[array_box], self.dtype), sizes)
        parts = [
            xp.reshape(w[part], (1,) * n + (-1,) + (1,) * (order - n - 1))
            for n, (w, part) in enumerate(zip(self.vectors, tile, strict=True))
            if w is not None
        ]
        return xp.broadcast_to(math.prod(parts[1:], start=parts[0]), sizes)

    def values_at(self, indices: Sequence[Array]) -> Array:
        """The weights of some entries."""
        if self.array is not None:
            values = self.array[_broadcast_indices(self.array, indices)]
            return self._xp.astype(values, self.dtype)
        parts = [
            self._xp.take(w, index, axis=0)
            for w, index in zip(self.vectors, indices, strict=True)
            if w is not None
        ]
        return math.prod(parts[1:], start=parts[0])


class MatrixWeights:
    """Weights as blocks of the matrix view need them, of a NumPy array; see `Storage`.

    `products` are the vectors, multiplied out for the rows and for the columns.
    """

    def __init__(self, weights: TileWeights, shape: Sequence[int], split: int) -> None:
        dtype, array = weights.dtype, weights.array
        sides = slice(0, split), slice(split, None)
        self.products = [_outer_product(weights.vectors[s], shape[s], dtype) for s in sides]
        self._dtype, self._matrix, self._flat = dtype, None, None
        if array is not None and array.shape == tuple(shape) and array.flags.c_contiguous:
            self._matrix = array.reshape(math.prod(shape[:split]), -1)
        elif array is not None:
            self._flat, steps = _flat_memory(array)
            self._offsets = [_outer_sum(steps[s], shape[s]) for s in sides]

    def block(self, rows: slice, columns: slice) -> np.ndarray:
        """The weights of a block, C-ordered."""
        if self._matrix is not None:
            return np.ascontiguousarray(self._matrix[rows, columns], self._dtype)
        if self._flat is not None:
            down, across = self._offsets
            values = self._flat.take(np.add.outer(down[rows], across[columns]))
            return np.asarray(values, dtype=self._dtype)
        left, right = self.products
        return np.asarray(np.multiply.outer(left[rows], right[columns]))


def _outer_product(vectors: Sequence[Array], shape: Sequence[int], dtype: Any) -> np.ndarray:
    """The outer product of vectors as one line; ones for None."""
    line = np.ones(1, dtype)
    for vector, size in zip(vectors, shape, strict=True):
        line = np.multiply.outer(line, np.ones(size, dtype) if vector is None else vector).ravel()
    return line


def _outer_sum(steps: Sequence[int], shape: Sequence[int]) -> np.ndarray:
    """Where the entries of an array are, from where it begins, as one line."""
    line = np.zeros(1, np.int64)
    for step, size in zip(steps, shape, strict=True):
        line = np.add.outer(line, step * np.arange(size)).ravel()
    return line


def _flat_memory(array: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """The memory of an array, in a line, and how far apart neighbours are in each mode of it."""
    width = array.itemsize
    if any(step < 0 or step % width for step in array.strides):
        array = np.ascontiguousarray(array)
    steps = [
        step // width if size > 1 else 0
        for step, size in zip(array.strides, array.shape, strict=True)
    ]
    last = sum(step * (size - 1) for step, size in zip(steps, array.shape, strict=True))
    line = np.lib.stride_tricks.as_strided(array, (last + 1,), (width,), writeable=False)
    return line, steps


def _broadcast_indices(array: Array, indices: Sequence[Array] | Array) -> tuple[Array, ...]:
    """Indices of entries, 0 where a mode of size 1 stands for all."""
    return tuple(
        index if size > 1 else 0 * index for index, size in zip(indices, array.shape, strict=True)
    )


def _to_device(array: Array, xp: Any, device: Any) -> Array:
    """An array in another library, or on another device; the same one where it is there already."""
    if array_api_compat.array_namespace(array) is not xp:
        host_array = to_host(array)  # a library may not take memory that it must not write to
        return xp.asarray(
            host_array if host_array.flags.writeable else host_array.copy(), device=device
        )
    if array_api_compat.device(array) == device:
        return array
    return array_api_compat.to_device(array, device)


# What users give


def as_weights(given: Any, shape: tuple[int, ...]) -> Weights | None:
    """Checked weights from an array that broadcasts to a shape, or from one vector per mode.

    None if there is nothing in them.
    """
    if isinstance(given, Weights):
        return given
    if isinstance(given, list | tuple):
        return _from_vectors(given, shape)
    array = _real_array(given)
    sizes = (1,) * (len(shape) - array.ndim) + tuple(array.shape)
    if len(sizes) > len(shape) or any(
        size not in (1, full_size) for size, full_size in zip(sizes, shape, strict=True)
    ):
        raise ValueError(
            f"{_ARGUMENT_NAME}: of shape {tuple(array.shape)} do not broadcast to that of X, "
            f"{shape}"
        )
    minimum = _checked_minimum(array)
    xp = array_api_compat.array_namespace(array)
    array = _collapse_repeats(xp.reshape(array, sizes))
    long_modes = [mode for mode, size in enumerate(array.shape) if size > 1]
    if len(long_modes) > 1:
        return Weights(shape, (None,) * len(shape), array, has_zeros=minimum == 0)
    # One mode: its vector, for which least squares has a Gram matrix that rows share.
    mode = long_modes[0] if long_modes else 0
    vector = np.asarray(to_host(array), dtype=np.float64).ravel()
    vectors = [None if m != mode else np.broadcast_to(vector, shape[m]) for m in range(len(shape))]
    return Weights(shape, tuple(vectors), has_zeros=minimum == 0)


def coordinate_weights(given: Any, count: int) -> CoordinateWeights | None:
    """Checked weights of listed entries; None if `given` is not a vector of so many."""
    if isinstance(given, Weights | list | tuple):
        return None
    array = _real_array(given)
    if tuple(array.shape) != (count,):
        return None
    _checked_minimum(array)
    return CoordinateWeights(np.array(to_host(array), dtype=np.float64))


def _from_vectors(given: Sequence[Any], shape: tuple[int, ...]) -> Weights | None:
    if len(given) != len(shape):
        raise ValueError(
            f"{_ARGUMENT_NAME}: a list must have a vector, or None, for each of {len(shape)} "
            f"modes, got {len(given)}"
        )
    vectors: list[np.ndarray | None] = []
    zeros, max_product = False, 1.0
    for mode, (w, size) in enumerate(zip(given, shape, strict=True)):
        if w is None:
            vectors.append(None)
            continue
        array = _real_array(w)
        if tuple(array.shape) != (size,):
            raise ValueError(
                f"{_ARGUMENT_NAME}: the vector of mode {mode} must have shape {(size,)}, "
                f"got {tuple(array.shape)}"
            )
        zeros = _checked_minimum(array, f" in mode {mode}") == 0 or zeros
        vector = np.array(to_host(array), dtype=np.float64)
        max_product *= float(vector.max())
        vectors.append(vector)
    if math.isinf(max_product):
        raise ValueError(f"{_ARGUMENT_NAME}: products of the vectors are infinite")
    if all(vector is None for vector in vectors):
        return None
    return Weights(shape, tuple(vectors), has_zeros=zeros)


def _real_array(given: Any) -> Array:
    """An array of real numbers."""
    with checks.name_in_errors(_ARGUMENT_NAME):
        array = plain_array(given)
        check_dtype(array)
    if 0 in array.shape:
        raise ValueError(f"{_ARGUMENT_NAME}: are empty (shape {tuple(array.shape)})")
    return array


def _checked_minimum(array: Array, location: str = "") -> float:
    """The least of some weights, which must be finite, none negative and not all 0."""
    xp = array_api_compat.array_namespace(array)
    if array.dtype == xp.bool:
        minimum, maximum = float(xp.all(array)), float(xp.any(array))
    else:
        with np.errstate(invalid="ignore"):
            minimum, maximum = float(xp.min(array)), float(xp.max(array))
    if math.isnan(minimum) or minimum < 0:
        problem = (
            "must not be NaN" if math.isnan(minimum) else f"must not be negative, got {minimum:g}"
        )
        index = np.unravel_index(int(xp.argmin(array)), tuple(array.shape))
        raise ValueError(f"{_ARGUMENT_NAME}: {problem}{location} at {tuple(map(int, index))}")
    if math.isinf(maximum):
        index = np.unravel_index(int(xp.argmax(array)), tuple(array.shape))
        raise ValueError(
            f"{_ARGUMENT_NAME}: must be finite, got inf{location} at {tuple(map(int, index))}"
        )
    if maximum == 0:
        raise ValueError(f"{_ARGUMENT_NAME}: are all 0{location}")
    return minimum


def _collapse_repeats(array: Array) -> Array:
    """Size 1 for modes along which an array repeats itself in memory (`np.broadcast_to`)."""
    if not isinstance(array, np.ndarray):
        return array
    return array[tuple(slice(0, None if step else 1) for step in array.strides)]
