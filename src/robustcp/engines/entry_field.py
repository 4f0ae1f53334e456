"""Numbers over the entries of a tensor, such as weights and standard deviations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import mul
from typing import Any, ClassVar

import array_api_compat
import numpy as np

from robustcp._util import checks
from robustcp._util.typing import Array
from robustcp.engines.arrays import check_dtype, is_lazy, plain_array, take_indices, to_host
from robustcp.engines.axes import Arrangement
from robustcp.engines.tiles import Tile, slice_length

_ARGUMENT_NAME = "entry_weights"
#: Indices of a mode: an array of them, a range, or None for all.
Indices = np.ndarray | slice | None


@dataclass(frozen=True, eq=False)
class EntryField:
    """A number for each entry of a tensor: an outer product of vectors, or an array.

    The outer product is computed for a tile or for listed entries, never for all entries at once.

    Attributes
    ----------
    shape : tuple of int
        The shape of the data.
    vectors : tuple of (float64 array or None), one for each mode
        On the host; None stands for ones.
    array : array, optional
        Takes the place of the vectors. It may be of any library and has the modes of the data; a
        mode of size 1 stands for all indices of the mode.
    has_zeros : bool
        Whether a number may be 0.

    Examples
    --------
    >>> field = EntryField((2, 3), (np.array([1.0, 4.0]), None))
    >>> field.times(EntryField((2, 3), (None, np.array([1.0, 1.0, 0.5])))).values_at([[1], [2]])
    array([2.])
    """

    shape: tuple[int, ...]
    vectors: tuple[np.ndarray | None, ...]
    array: Array | None = None
    has_zeros: bool = False

    @classmethod
    def ones(cls, shape: tuple[int, ...]) -> EntryField:
        return cls(shape, (None,) * len(shape))

    @classmethod
    def from_array(
        cls, shape: tuple[int, ...], array: Array, *, has_zeros: bool = False
    ) -> EntryField:
        """The field of an array that broadcasts to a shape and has all its modes."""
        return cls(shape, (None,) * len(shape), array, has_zeros)

    @classmethod
    def from_vector(
        cls, shape: tuple[int, ...], mode: int, vector: np.ndarray, *, has_zeros: bool = False
    ) -> EntryField:
        """The field that depends on one mode alone; a vector of one number stands for all."""
        own = np.broadcast_to(vector, shape[mode])
        vectors = (own if n == mode else None for n in range(len(shape)))
        return cls(shape, tuple(vectors), None, has_zeros)

    def with_array(self, array: Array | None) -> EntryField:
        """The field with another array in place of its own."""
        return replace(self, array=array)

    def in_memory(self) -> EntryField:
        """The field with its array computed, if that is one of Dask."""
        return self.with_array(to_host(self.array)) if is_lazy(self.array) else self

    def subset(self, indices: Sequence[Indices]) -> EntryField:
        """The field of the entries at some indices of each mode."""
        shape, vectors, array = list(self.shape), list(self.vectors), self.array
        for mode, (vector, index) in enumerate(zip(self.vectors, indices, strict=True)):
            if index is None:
                continue
            shape[mode] = slice_length(index) if isinstance(index, slice) else len(index)
            vectors[mode] = None if vector is None else vector[index]
            if array is not None and array.shape[mode] > 1:
                array = take_indices(array, index, mode)
        return EntryField(tuple(shape), tuple(vectors), array, self.has_zeros)

    def reorder(self, arrangement: Arrangement) -> EntryField:
        """The field of the same data with its modes and indices in another order."""
        array = self.array
        if array is not None:
            array = np.transpose(to_host(array), arrangement.order)
            for mode, index in enumerate(arrangement.rows):
                if index is not None and array.shape[mode] > 1:
                    array = np.take(array, index, axis=mode)
        shape = arrangement.reorder(self.shape)
        vectors = arrangement.reorder_rows(self.vectors)
        return EntryField(shape, vectors, array, self.has_zeros)

    def times(self, other: EntryField) -> EntryField:
        """The product with another field; an array stays in its library and on its device."""
        has_zeros = self.has_zeros or other.has_zeros
        if self.array is None and other.array is None:
            pairs = zip(self.vectors, other.vectors, strict=True)
            vectors = (b if a is None else a if b is None else a * b for a, b in pairs)
            return EntryField(self.shape, tuple(vectors), None, has_zeros)
        if self.array is None:
            product = reduce(mul, self._broadcast_parts(), other.array)
        else:
            parts = (_like(part, self.array) for part in other._broadcast_parts())
            product = reduce(mul, parts, self.array)
        return EntryField.from_array(self.shape, product, has_zeros=has_zeros)

    def _broadcast_parts(self) -> list[Array]:
        """Arrays that broadcast to the field together: the array, or each of the vectors."""
        if self.array is not None:
            return [self.array]
        sizes = np.where(np.eye(len(self.shape), dtype=bool), -1, 1).tolist()
        pairs = zip(self.vectors, sizes, strict=True)
        return [vector.reshape(size) for vector, size in pairs if vector is not None]

    @property
    def geometric_mean(self) -> float:
        """The geometric mean over the entries; none of them may be 0."""
        if self.array is not None:
            array = self.array if is_lazy(self.array) else to_host(self.array)
            return math.exp(float(np.mean(np.log(array))))
        return math.prod(math.exp(np.mean(np.log(w))) for w in self.vectors if w is not None)

    def values_at(self, indices: Sequence[Any] | np.ndarray) -> np.ndarray:
        """The numbers of some entries, given by an array of indices for each mode; host."""
        if self.array is not None:
            index = broadcast_indices(self.array, indices)
            if is_lazy(self.array):
                return np.asarray(self.array.vindex[index].compute(), dtype=np.float64)
            return np.asarray(to_host(self.array)[index], dtype=np.float64)
        product = np.ones(len(indices[0]))
        for vector, index in zip(self.vectors, indices, strict=True):
            if vector is not None:
                product *= vector[index]
        return product

    def listed_values(self, indices: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """The numbers of listed entries with these indices, at these positions of the list."""
        return self.values_at(indices)


@dataclass(frozen=True, eq=False)
class ListedField:
    """A number for each entry of an `Observed` tensor, in the order in which they were given.

    It is restricted and reordered by the engine of the tensor, which knows where the entries are.
    """

    values: np.ndarray
    vectors: ClassVar[tuple[np.ndarray | None, ...]] = ()
    array: ClassVar[None] = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def has_zeros(self) -> bool:
        return not self.values.all()

    def with_array(self, array: Array | None) -> ListedField:
        return self

    def in_memory(self) -> ListedField:
        return self

    def subset(self, indices: Sequence[Indices]) -> ListedField:
        return self

    def reorder(self, arrangement: Arrangement) -> ListedField:
        return self

    @property
    def geometric_mean(self) -> float:
        """The geometric mean over the entries; none of them may be 0."""
        return math.exp(float(np.mean(np.log(self.values))))

    def values_at(self, indices: Sequence[Any] | np.ndarray) -> np.ndarray:
        raise TypeError("numbers of listed entries are not known by indices")

    def listed_values(self, indices: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """The numbers of listed entries with these indices, at these positions of the list."""
        return np.asarray(self.values[positions])


def check_shape(
    field: EntryField | ListedField,
    name: str,
    shape: tuple[int, ...],
    listed_shape: tuple[int, ...] | None = None,
) -> None:
    """Refuse a field that is not for data of some shape, or not for all its listed entries."""
    expected = listed_shape if isinstance(field, ListedField) else shape
    if field.shape != expected:
        raise checks.ArgumentError(
            name, f"are of shape {field.shape}, the data of {expected or shape}"
        )


class TileField:
    """A field in the storage order, the library and on the device of a stored array."""

    def __init__(
        self, field: EntryField, order: Sequence[int], xp: Any, dtype: Any, device: Any
    ) -> None:
        self._xp, self.dtype, self._device = xp, dtype, device
        vectors = (field.vectors[mode] for mode in order)
        self.vectors = [
            None if w is None else xp.asarray(np.array(w), dtype=dtype, device=device)
            for w in vectors
        ]
        self.array = None
        if field.array is not None:
            self.array = xp.permute_dims(_to_device(field.array, xp, device), tuple(order))
        self.has_zeros = field.has_zeros

    def tile_values(self, tile: Tile) -> Array:
        """The numbers of a tile, in its shape."""
        xp, order, sizes = self._xp, len(tile), tuple(map(slice_length, tile))
        if self.array is not None:
            values = xp.astype(self.array[broadcast_box(self.array, tile)], self.dtype)
            return xp.broadcast_to(values, sizes)
        parts = [
            xp.reshape(w[part], (1,) * n + (-1,) + (1,) * (order - n - 1))
            for n, (w, part) in enumerate(zip(self.vectors, tile, strict=True))
            if w is not None
        ]
        return xp.broadcast_to(self._product(parts, (1,) * order), sizes)

    def values_at(self, indices: Sequence[Array]) -> Array:
        """The numbers of some entries, given by an array of indices for each mode."""
        if self.array is not None:
            values = self.array[broadcast_indices(self.array, indices)]
            return self._xp.astype(values, self.dtype)
        parts = [
            self._xp.take(w, index, axis=0)
            for w, index in zip(self.vectors, indices, strict=True)
            if w is not None
        ]
        return self._product(parts, tuple(indices[0].shape))

    def _product(self, parts: Sequence[Array], shape: tuple[int, ...]) -> Array:
        """The product of some arrays; ones of a shape if there are none."""
        if not parts:
            return self._xp.ones(shape, dtype=self.dtype, device=self._device)
        return math.prod(parts[1:], start=parts[0])


class MatrixField:
    """A field by blocks of the matrix view of a NumPy array; see `Storage`.

    `products` are the outer products of the vectors of the rows' modes and of the columns' modes.
    """

    def __init__(self, field: TileField, shape: Sequence[int], split: int) -> None:
        dtype, array = field.dtype, field.array
        sides = slice(0, split), slice(split, None)
        self.products = [_outer_product(field.vectors[s], shape[s], dtype) for s in sides]
        self._dtype, self._matrix, self._flat = dtype, None, None
        if array is not None and array.shape == tuple(shape) and array.flags.c_contiguous:
            self._matrix = array.reshape(math.prod(shape[:split]), -1)
        elif array is not None:
            self._flat, steps = _flat_memory(array)
            self._offsets = [_outer_sum(steps[s], shape[s]) for s in sides]

    def block(self, rows: slice, columns: slice) -> np.ndarray:
        """The numbers of a block, C-ordered."""
        if self._matrix is not None:
            return np.ascontiguousarray(self._matrix[rows, columns], self._dtype)
        if self._flat is not None:
            down, across = self._offsets
            values = self._flat.take(np.add.outer(down[rows], across[columns]))
            return np.asarray(values, dtype=self._dtype)
        left, right = self.products
        return np.asarray(np.multiply.outer(left[rows], right[columns]))


def _outer_product(vectors: Sequence[Array], shape: Sequence[int], dtype: Any) -> np.ndarray:
    """The outer product of vectors, flattened; None stands for ones."""
    product = np.ones(1, dtype)
    for vector, size in zip(vectors, shape, strict=True):
        factor = np.ones(size, dtype) if vector is None else vector
        product = np.multiply.outer(product, factor).ravel()
    return product


def _outer_sum(steps: Sequence[int], shape: Sequence[int]) -> np.ndarray:
    """The offsets of all entries of an array in memory, as a vector."""
    offsets = np.zeros(1, np.int64)
    for step, size in zip(steps, shape, strict=True):
        offsets = np.add.outer(offsets, step * np.arange(size)).ravel()
    return offsets


def _flat_memory(array: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """The memory of an array as a vector, and the step in it between neighbours in each mode."""
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


def broadcast_box(array: Array, box: Tile) -> Tile:
    """The part of an array that broadcasts to a box; a mode of size 1 stands for all indices."""
    pairs = zip(box, array.shape, strict=True)
    return tuple(part if size > 1 else slice(0, 1) for part, size in pairs)


def broadcast_indices(array: Array, indices: Sequence[Any] | np.ndarray) -> tuple[Any, ...]:
    """Indices of entries, 0 where a mode of size 1 stands for all."""
    pairs = zip(indices, array.shape, strict=True)
    return tuple(index if size > 1 else 0 * index for index, size in pairs)


def _like(part: Array, array: Array) -> Array:
    """A part of a product in the library, on the device and in the precision of an array."""
    if is_lazy(array):
        return part
    xp = array_api_compat.array_namespace(array)
    moved = _to_device(part, xp, array_api_compat.device(array))
    return xp.astype(moved, array.dtype) if xp.isdtype(array.dtype, "real floating") else moved


def _to_device(array: Array, xp: Any, device: Any) -> Array:
    """An array in another library, or on another device; without a copy if it is there already."""
    if array_api_compat.array_namespace(array) is not xp:
        host = to_host(array)  # a library may refuse memory that is read-only
        return xp.asarray(host if host.flags.writeable else host.copy(), device=device)
    if array_api_compat.device(array) == device:
        return array
    return array_api_compat.to_device(array, device)


# What users give


def as_weights(
    given: Any, shape: tuple[int, ...], entries: int | None = None
) -> EntryField | ListedField | None:
    """Checked weights, or standard deviations, of entries.

    Parameters
    ----------
    given : array that broadcasts to the shape, or one vector (or None) for each mode
    shape : tuple of int
    entries : int, optional
        How many entries the data lists: a vector with a number for each may be given too.

    Returns
    -------
    EntryField, ListedField or None
        None if all vectors are None.
    """
    if isinstance(given, EntryField | ListedField):
        return given
    if isinstance(given, list | tuple):
        return _from_vectors(given, shape)
    array = _real_array(given)
    if entries is not None and tuple(array.shape) == (entries,):
        _checked_minimum(array)
        return ListedField(np.array(to_host(array), dtype=np.float64))
    sizes = (1,) * (len(shape) - array.ndim) + tuple(array.shape)
    broadcasts = len(sizes) == len(shape) and all(
        size in (1, full_size) for size, full_size in zip(sizes, shape, strict=True)
    )
    if not broadcasts:
        raise ValueError(
            f"{_ARGUMENT_NAME}: of shape {tuple(array.shape)} do not broadcast to that of X, "
            f"{shape}"
        )
    has_zeros = _checked_minimum(array) == 0
    xp = array_api_compat.array_namespace(array)
    array = _collapse_repeats(xp.reshape(array, sizes))
    long_modes = [mode for mode, size in enumerate(array.shape) if size > 1]
    if len(long_modes) > 1:
        return EntryField.from_array(shape, array, has_zeros=has_zeros)
    # One mode: its vector, for which least squares has a Gram matrix that rows share.
    mode = long_modes[0] if long_modes else 0
    vector = np.asarray(to_host(array), dtype=np.float64).ravel()
    return EntryField.from_vector(shape, mode, vector, has_zeros=has_zeros)


def _from_vectors(given: Sequence[Any], shape: tuple[int, ...]) -> EntryField | None:
    if len(given) != len(shape):
        raise ValueError(
            f"{_ARGUMENT_NAME}: a list must have a vector, or None, for each of {len(shape)} "
            f"modes, got {len(given)}"
        )
    vectors: list[np.ndarray | None] = [None] * len(shape)
    has_zeros, max_product = False, 1.0
    for mode, (w, size) in enumerate(zip(given, shape, strict=True)):
        if w is None:
            continue
        array = _real_array(w)
        if tuple(array.shape) != (size,):
            raise ValueError(
                f"{_ARGUMENT_NAME}: the vector of mode {mode} must have shape {(size,)}, "
                f"got {tuple(array.shape)}"
            )
        has_zeros |= _checked_minimum(array, f" in mode {mode}") == 0
        vector = vectors[mode] = np.array(to_host(array), dtype=np.float64)
        max_product *= float(vector.max())
    if math.isinf(max_product):
        raise ValueError(f"{_ARGUMENT_NAME}: products of the vectors are infinite")
    if all(vector is None for vector in vectors):
        return None
    return EntryField(shape, tuple(vectors), has_zeros=has_zeros)


def _real_array(given: Any) -> Array:
    """An array of real numbers."""
    with checks.name_in_errors(_ARGUMENT_NAME):
        array = plain_array(given)
        check_dtype(array)
    if 0 in array.shape:
        raise ValueError(f"{_ARGUMENT_NAME}: are empty (shape {tuple(array.shape)})")
    return array


def _checked_minimum(array: Array, location: str = "") -> float:
    """The minimum of weights, which must be finite, not negative and not all 0."""
    xp = array_api_compat.array_namespace(array)
    if array.dtype == xp.bool:
        minimum, maximum = float(xp.all(array)), float(xp.any(array))
    else:
        with np.errstate(invalid="ignore"):
            minimum, maximum = float(xp.min(array)), float(xp.max(array))
    problem, first = "", xp.argmin
    if math.isnan(minimum):
        problem = "must not be NaN"
    elif minimum < 0:
        problem = f"must not be negative, got {minimum:g}"
    elif math.isinf(maximum):
        problem, first = "must be finite, got inf", xp.argmax
    if problem:
        index = np.unravel_index(int(first(array)), tuple(array.shape))
        raise ValueError(f"{_ARGUMENT_NAME}: {problem}{location} at {tuple(map(int, index))}")
    if maximum == 0:
        raise ValueError(f"{_ARGUMENT_NAME}: are all 0{location}")
    return minimum


def _collapse_repeats(array: Array) -> Array:
    """Size 1 for modes along which an array repeats itself in memory (`np.broadcast_to`)."""
    if not isinstance(array, np.ndarray):
        return array
    return array[tuple(slice(0, None if step else 1) for step in array.strides)]
