"""Listed entries of a tensor, and the entries of a CP model at given indices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from robustcp._util.typing import Array
from robustcp.engines.fibres import Fibres
from robustcp.engines.tiles import split_range

#: An integer array (count,) for each mode.
Indices = Sequence[Any] | np.ndarray

#: Entries of a sample.
SAMPLE_ENTRIES = 1 << 16
#: Entries of a sample for each slab of the longest mode, on average.
SLAB_SAMPLE_ENTRIES = 64
#: The most entries of a sample, however long modes are.
MAX_SAMPLE_ENTRIES = 1 << 20
#: A skipped mean leaves out values that are further from the median than this many median
#: distances (3 standard deviations of normal values).
SKIPPED_BEYOND = 4.45
#: Entries whose products of factor rows are held at a time.
BLOCK_ENTRIES = 1 << 16


def row_products(factors: Sequence[Array], indices: Indices) -> Array:
    """The elementwise products over the modes of the rows of factors at some indices."""
    xp = array_namespace(factors[0])
    product = xp.take(factors[0], indices[0], axis=0)
    for A, index in zip(factors[1:], indices[1:], strict=True):
        product *= xp.take(A, index, axis=0)
    return product


def model_at(factors: Sequence[Array], indices: Indices) -> Array:
    """The entries of a CP model at some indices: sums of products of factor rows."""
    xp, count = array_namespace(factors[0]), int(indices[0].shape[0])
    blocks = split_range(count, BLOCK_ENTRIES) if count else [slice(0, 0)]
    parts = [
        xp.sum(row_products(factors, [index[block] for index in indices]), axis=-1)
        for block in blocks
    ]
    return parts[0] if len(parts) == 1 else xp.concat(parts)


def sample_size(shape: Sequence[int], min_size: int = SAMPLE_ENTRIES) -> int:
    """The number of entries of a sample: more if a long mode has slabs with few of them otherwise,
    but not if that takes too many."""
    by_slabs = SLAB_SAMPLE_ENTRIES * max(shape)
    return max(min_size, by_slabs) if by_slabs <= MAX_SAMPLE_ENTRIES else min_size


def select_by_index(indices: Iterable[np.ndarray], count: int) -> np.ndarray:
    """Sorted positions of `count` entries that look random, the same entries for any order of the
    modes and of the entries: those with the smallest hashes of their indices."""
    keys: Any = np.uint64(0)
    for index in indices:
        keys = keys + _mix(index.astype(np.uint64) + np.uint64(1))
    return np.asarray(np.sort(np.argpartition(_mix(keys), count)[:count]))


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64, a hash of whole numbers of 64 bits."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(x ^ (x >> np.uint64(31)))


def draw_positions(count: int, sample_size: int) -> np.ndarray:
    """Sorted random positions of a sample of entries, the same in every call."""
    return np.sort(np.random.default_rng(0).integers(count, size=sample_size))


def subtensor_indices(
    indices: Indices, shape: Sequence[int], subset: Sequence[np.ndarray | None]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Which entries are in a subtensor (bool), and the indices of those entries in it.

    `subset` has the selected indices of each mode; None selects all.
    """
    inside = np.ones(len(indices[0]), dtype=bool)
    new_indices = []
    for index, selection, size in zip(indices, subset, shape, strict=True):
        if selection is not None:
            selected, new_index = np.zeros(size, dtype=bool), np.zeros(size, dtype=index.dtype)
            selected[selection] = True
            new_index[selection] = np.arange(len(selection))
            inside &= selected[index]
            index = new_index[index]
        new_indices.append(index)
    return inside, [index[inside] for index in new_indices]


def subset_shape(shape: Sequence[int], subset: Sequence[np.ndarray | None]) -> tuple[int, ...]:
    """The shape of a subtensor."""
    pairs = zip(shape, subset, strict=True)
    return tuple(size if selection is None else len(selection) for size, selection in pairs)


@dataclass(frozen=True, eq=False)
class Entries:
    """Some entries of a tensor, or their residuals, on the host.

    Attributes
    ----------
    shape : tuple of int
        The shape of the tensor.
    values : float64 array (count,)
    index_source : tuple of integer arrays (count,), one for each mode, or a function
        The function returns the arrays; it is called when `indices` are read.
    weights, scales : float64 array (count,), optional
        The weights of the entries, and the scales of their noise; None if all are 1.
    sides : int8 array (count,), optional
        1 for data at an upper limit or beyond, -1 at a lower one, else 0; None without limits.
    """

    shape: tuple[int, ...]
    values: np.ndarray
    index_source: Indices | Callable[[], Indices] = field(repr=False)
    weights: np.ndarray | None = field(repr=False, default=None)
    scales: np.ndarray | None = field(repr=False, default=None)
    sides: np.ndarray | None = field(repr=False, default=None)

    @cached_property
    def indices(self) -> tuple[np.ndarray, ...]:
        source = self.index_source
        return tuple(source() if callable(source) else source)

    def __reduce__(self) -> tuple[Any, ...]:
        """Functions cannot be pickled; indices can."""
        return Entries, (
            self.shape,
            self.values,
            self.indices,
            self.weights,
            self.scales,
            self.sides,
        )

    def select(self, selection: np.ndarray) -> Entries:
        """Some of the entries, given by positions or a mask."""

        def part(values: np.ndarray | None) -> np.ndarray | None:
            return None if values is None else values[selection]

        return Entries(
            self.shape,
            self.values[selection],
            lambda: tuple(index[selection] for index in self.indices),
            part(self.weights),
            part(self.scales),
            part(self.sides),
        )

    def take(self, mode: int, rows: np.ndarray) -> Entries:
        """The entries of the subtensor at some indices of a mode."""
        subset = [rows if n == mode else None for n in range(len(self.shape))]
        inside, indices = subtensor_indices(self.indices, self.shape, subset)
        shape = subset_shape(self.shape, subset)
        return replace(self.select(inside), shape=shape, index_source=tuple(indices))

    def model(self, factors: Sequence[np.ndarray]) -> np.ndarray:
        """The entries of a CP model at the same indices."""
        return np.asarray(model_at(factors, self.indices))

    def residuals(self, factors: Sequence[np.ndarray]) -> np.ndarray:
        """The residuals of a CP model, divided by the scales; 0 if the model is beyond a limit."""
        r = self.raw_residuals(factors)
        return np.asarray(r if self.scales is None else r / self.scales)

    def raw_residuals(self, factors: Sequence[np.ndarray]) -> np.ndarray:
        """The residuals of a CP model; 0 where it is beyond the limit of a censored entry."""
        r = self.values - self.model(factors)
        return r if self.sides is None else np.where(self.sides * r < 0, 0.0, r)

    def decided(self, factors: Sequence[np.ndarray]) -> np.ndarray | None:
        """A mask of the entries but those censored with the model beyond; None for all."""
        return (
            None if self.sides is None else (self.sides == 0) | (self.raw_residuals(factors) != 0)
        )

    def to_dense(self, values: np.ndarray, missing: float = math.nan) -> np.ndarray:
        """An array of the tensor's shape with one value for each of the entries."""
        array = np.full(self.shape, missing)
        array[self.indices] = values
        return array

    def fibre_sums(self, terms: np.ndarray) -> list[np.ndarray]:
        """For each mode the sums of some terms, one per entry, over the fibres along the mode.

        Arrays of the tensor's shape, but of size 1 in the mode.
        """
        sums = []
        for mode in range(len(self.shape)):
            numbers, sizes = Fibres.fibre_numbers(self.shape, mode, self.indices)
            sums.append(np.bincount(numbers, terms, math.prod(sizes)).reshape(sizes))
        return sums

    def fibre_locations(self, mode: int, location: str) -> np.ndarray:
        """A location of the values in each fibre along a mode, NaN without entries.

        The "median", the "mean", or the "skipped" mean of values not far from the median. An array
        of the tensor's shape, but of size 1 in the mode.
        """
        numbers, sizes = Fibres.fibre_numbers(self.shape, mode, self.indices)
        counts, values = np.bincount(numbers, minlength=math.prod(sizes)), self.values
        with np.errstate(invalid="ignore"):
            if location != "mean":
                locations = _group_medians(values, numbers, counts)
            if location == "skipped":
                distances = np.abs(values - locations[numbers])
                limits = SKIPPED_BEYOND * _group_medians(distances, numbers, counts)
                keep = distances <= limits[numbers]
                numbers, values = numbers[keep], values[keep]
                counts = np.bincount(numbers, minlength=counts.size)
            if location != "median":
                locations = np.bincount(numbers, values, counts.size) / counts
        return np.asarray(locations.reshape(sizes))

    def dense_slice(self, values: np.ndarray, fixed: Mapping[int, int]) -> np.ndarray:
        """An array as `to_dense` makes it, where some modes are fixed at an index."""
        inside = np.ones(len(values), dtype=bool)
        for n, index in fixed.items():
            inside &= self.indices[n] == index
        free = [n for n in range(len(self.shape)) if n not in fixed]
        part = np.full([self.shape[n] for n in free], math.nan)
        part[tuple(self.indices[n][inside] for n in free)] = values[inside]
        return part

    @cached_property
    def row_numbers(self) -> np.ndarray:
        """The rows of each entry if the rows of all modes are numbered consecutively."""
        offsets = np.cumsum((0, *self.shape[:-1]))
        return np.stack([index + k for index, k in zip(self.indices, offsets, strict=True)], axis=1)

    @cached_property
    def precisions(self) -> np.ndarray:
        """Weights over squared scales."""
        weights = np.ones(self.values.size) if self.weights is None else self.weights
        return weights if self.scales is None else weights / self.scales**2

    def with_precisions(self, precisions: np.ndarray) -> Entries:
        """The same entries with other precisions in place of weights and scales."""
        return replace(self, weights=precisions, scales=None)

    @cached_property
    def typical_magnitude(self) -> float:
        """The root mean square of the values, cut at five times their median magnitude."""
        x = np.abs(self.values)
        limit = 5 * float(np.median(x)) or float(x.max())
        return math.sqrt(float(np.mean(np.minimum(x, limit) ** 2)))


def _group_medians(values: np.ndarray, numbers: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The median of the values with each number; NaN where there are none."""
    ordered = values[np.lexsort((values, numbers))]
    first, last = np.cumsum(counts) - counts, max(ordered.size - 1, 0)
    lower, upper = (ordered[np.minimum(first + k, last)] for k in ((counts - 1) // 2, counts // 2))
    return np.where(counts > 0, lower + 0.5 * (upper - lower), np.nan)
