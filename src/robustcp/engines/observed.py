"""The engine for tensors of which only some entries were observed: cost follows their number."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any

import array_api_compat.numpy as xp
import numpy as np

from robustcp._util import checks
from robustcp._util.typing import Array, Factors
from robustcp.engines.algebra import Algebra, algebra_for
from robustcp.engines.arrays import check_dtype, working_dtype
from robustcp.engines.base import Engine, Sample, View
from robustcp.engines.blocks.tables import PartitionedTable, open_dask_frame, open_parquet
from robustcp.engines.coordinates import (
    CoordinateEntries,
    CoordinateList,
    CoordinatePass,
    CoordinatePasses,
    EntryValues,
    index_dtype,
    lexicographic_order,
)
from robustcp.engines.entry_field import ListedField, as_weights, check_shape
from robustcp.engines.fibres import Fibres
from robustcp.engines.normal_equations import NormalEquations
from robustcp.engines.scales import Scales
from robustcp.engines.threads import TileExecutor, available_threads
from robustcp.engines.tiles import split_range
from robustcp.losses import Loss

#: Entries of a sample.
SAMPLE_ENTRIES = 1 << 16
#: Normal equations of one block of rows may take this many bytes.
BLOCK_BYTES = 1 << 25


class Observed:
    """A tensor of which some entries are known; the others are missing, not zero.

    Parameters
    ----------
    indices : integer array (count, N)
        One row per entry, in any order, none twice.
    values : array (count,)
    shape : sequence of int
        The sizes of the N modes.

    Examples
    --------
    >>> import robustcp
    >>> X = robustcp.Observed([[0, 0, 1], [1, 0, 0]], [2.5, 3.0], (2, 2, 2))
    >>> X
    Observed(2x2x2, 2 entries, 25% of all)
    """

    def __init__(self, indices: Any, values: Any, shape: Sequence[int]) -> None:
        if np.ma.is_masked(values) or np.ma.is_masked(indices):
            raise ValueError("values: masked entries; leave them out of indices and values")
        index_array, x = np.asarray(indices), np.asarray(values)
        if not x.size:
            raise ValueError("values: all entries are missing")
        if not isinstance(shape, Sequence) or any(int(size) != size for size in shape):
            raise ValueError(f"shape: must be a sequence of whole numbers, got {shape!r}")
        self.shape: tuple[int, ...] = tuple(int(size) for size in shape)
        if len(self.shape) < 2 or min(self.shape) < 1:
            raise ValueError(f"shape: must have at least 2 modes, none empty, got {shape!r}")
        if (
            index_array.ndim != 2
            or index_array.shape[1] != len(self.shape)
            or index_array.dtype.kind not in "iu"
        ):
            raise ValueError(
                f"indices: must be integers of shape (count, {len(self.shape)}), "
                f"got {index_array.dtype} of shape {index_array.shape}"
            )
        if x.shape != index_array.shape[:1]:
            raise ValueError(f"values: must have shape {index_array.shape[:1]}, got {x.shape}")
        columns = np.ascontiguousarray(index_array.T)
        outside = np.zeros(len(index_array), dtype=bool)
        for column, size in zip(columns, self.shape, strict=True):
            outside |= (column < 0) | (column >= size)
        if outside.any():
            raise ValueError(
                f"indices: outside of {self.shape}: {_format_indices(index_array, outside)}"
            )
        columns = columns.astype(index_dtype(self.shape), copy=False)
        order = lexicographic_order(columns, self.shape)
        ordered = np.take(columns, order, axis=1)
        duplicate = np.zeros(len(index_array), dtype=bool)
        duplicate[1:] = (ordered[:, 1:] == ordered[:, :-1]).all(axis=0)
        if duplicate.any():
            raise ValueError(
                f"indices: given more than once: {_format_indices(ordered.T, duplicate)}"
            )
        check_dtype(x)
        not_finite = np.asarray(~np.isfinite(x))
        if not_finite.any():
            raise ValueError(f"values: not finite at {_format_indices(index_array, not_finite)}")
        self.indices = index_array.astype(np.int64)
        self.values = x.astype(working_dtype(x))
        # Sorted, so that the order in which entries are given makes no difference to a fit.
        self.sorting = order
        self.sorted_indices = ordered
        self.sorted_values = self.values[order]

    @staticmethod
    def from_parquet(
        path: Any, shape: Sequence[int] | None = None, columns: Sequence[str] | None = None
    ) -> PartitionedTable:
        """Entries that are listed in Parquet files, and are read part by part in every pass.

        Parameters
        ----------
        path : str or Path
            A file, or a folder of them.
        shape : sequence of int, optional
            By default as large as the indices say.
        columns : sequence of str, optional
            Those of the modes, and that of the values last; by default all in their order. Whole
            numbers are indices, from 0 on; anything else is sorted and numbered. Rows without a
            value are left out.

        Returns
        -------
        Partitioned
            What estimators take as they do an `Observed`.
        """
        return open_parquet(path, shape, columns)

    @staticmethod
    def from_dask(
        frame: Any, shape: Sequence[int] | None = None, columns: Sequence[str] | None = None
    ) -> PartitionedTable:
        """Entries that are listed in a DataFrame of Dask, one partition after the other.

        As `from_parquet`.
        """
        return open_dask_frame(frame, shape, columns)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def take(self, positions: np.ndarray) -> Observed:
        """Some of the sorted entries, in their order."""
        indices = np.take(self.sorted_indices, positions, axis=1)
        return self.with_sorted_entries(indices, self.sorted_values[positions], self.shape)

    def with_sorted_entries(
        self, indices: np.ndarray, values: np.ndarray, shape: Sequence[int]
    ) -> Observed:
        """Other entries, which are in order; `indices` has an array of indices for each mode."""
        other = copy(self)
        other.shape = tuple(shape)
        other.sorted_indices, other.sorted_values = indices, values
        other.indices, other.values, other.sorting = indices.T, values, np.arange(values.size)
        return other

    def __repr__(self) -> str:
        size = "x".join(map(str, self.shape))
        share = self.values.size / math.prod(self.shape)
        return f"Observed({size}, {self.values.size} entries, {100 * share:.3g}% of all)"


def _format_indices(indices: np.ndarray, bad: np.ndarray) -> str:
    """A few of the bad indices, in words."""
    rows = indices[bad]
    text = ", ".join(str(tuple(row)) for row in rows[:3].tolist())
    return text + (f" and {len(rows) - 3} more" if len(rows) > 3 else "")


def _sorted_weights(data: Observed, view: View) -> np.ndarray | None:
    """The weights of the sorted entries."""
    if view.weights is None:
        return None
    check_shape(view.weights, "entry_weights", data.shape, data.values.shape)
    w = view.weights.listed_values(data.sorted_indices, data.sorting)
    return w.astype(data.values.dtype)


#: Scales of the entries, and their inverses, if there are any.
_EntryScales = tuple[np.ndarray | None, EntryValues | None]


class _UnmaskedEntries:
    """The entries that a view does not leave out: small magnitudes of positive weight.

    Attributes
    ----------
    positions : integer array, optional
        Where they are among the sorted ones; None if that is all.
    data : Observed
        Those alone.
    w : Column, optional
        Their weights.
    """

    def __init__(self, full_data: Observed, view: View) -> None:
        w = _sorted_weights(full_data, view)
        keep = np.ones(full_data.values.size, dtype=bool) if w is None else w > 0
        if not keep.any():
            raise ValueError("entry_weights: all observed entries have weight 0")
        if view.masks(float(np.abs(full_data.sorted_values[keep]).max())):
            keep &= ~np.isnan(view.apply(full_data.sorted_values, np))
        self.positions = None if keep.all() else np.flatnonzero(keep)
        self.data = full_data if self.positions is None else full_data.take(self.positions)
        self.coordinates = CoordinateList(self.data.sorted_indices, self.data.shape)
        w = w if w is None or self.positions is None else w[self.positions]
        self.w = None if w is None else EntryValues(self.coordinates, w)

    @cached_property
    def sample_positions(self) -> np.ndarray | None:
        """Which of the entries a sample is made of; None for all."""
        size = self.data.values.size
        if size <= SAMPLE_ENTRIES:
            return None
        return np.sort(np.random.default_rng(0).integers(size, size=SAMPLE_ENTRIES))

    @cached_property
    def sample_coordinates(self) -> CoordinateList:
        """Where the entries of a sample are."""
        return (
            self.coordinates
            if self.sample_positions is None
            else self.coordinates.take(self.sample_positions)
        )


def dense_slice(
    indices: np.ndarray, values: np.ndarray, shape: Sequence[int], fixed: Mapping[int, int]
) -> np.ndarray:
    """What listed entries hold where some modes are fixed, float64; NaN where there is none."""
    inside = np.ones(len(values), dtype=bool)
    for n, index in fixed.items():
        inside &= indices[:, n] == index
    free = [n for n in range(len(shape)) if n not in fixed]
    part = np.full([shape[n] for n in free], np.nan)
    part[tuple(indices[inside][:, free].T)] = values[inside]
    return part


def values_at_entries(data: Any, values: np.ndarray) -> np.ndarray:
    """Positive values for the entries of data on the host, from an array that broadcasts to it.

    Of an array of the same shape, those of listed entries, in the order given; or all, where
    those of missing entries may be anything and become a usual one.
    """
    if values.shape != data.shape:
        return values
    if isinstance(data, Observed):
        return np.asarray(values[tuple(data.indices.T)])
    not_positive = np.nonzero(~(values > 0))
    missing = np.isnan(data[not_positive])
    if missing.any() and missing.size < values.size:
        values = values.astype(np.float64)
        median = float(np.median(values[values > 0]))
        values[tuple(index[missing] for index in not_positive)] = median
    return values


class ObservedEngine(Engine):
    """Passes over the observed entries.

    Parameters
    ----------
    data : Observed
    threads : int, optional
        As in `robustcp.as_engine`.
    compiled : bool
        Whether rows are solved by compiled code where there is any.
    view : View
        Weights and scales are those of entries as given, or of any entry of the shape.
    other_view : ObservedEngine, optional
        Another view of the same data: what both have in common is made once.
    """

    takes_weights = True
    takes_scales = True

    def __init__(
        self,
        data: Observed,
        *,
        threads: int | None = None,
        compiled: bool = True,
        view: View = View(),  # noqa: B008 - it is frozen
        other_view: ObservedEngine | None = None,
    ) -> None:
        if threads is not None:
            threads = checks.whole_number("threads", threads, 1)
        self._options: dict[str, Any] = {"threads": threads, "compiled": compiled}
        self._full_data, self.view = data, view
        self.xp: Any = xp
        self.shape = data.shape
        self.dtype: Any = data.values.dtype
        self.executor = TileExecutor(threads or available_threads())
        unmasked, x, u = self._reusable_parts(view, other_view)
        self._unmasked = unmasked if unmasked is not None else _UnmaskedEntries(data, view)
        self._data, self._coordinates = self._unmasked.data, self._unmasked.coordinates
        if x is None:
            viewed_values = view.apply(self._data.sorted_values, np).astype(self.dtype, copy=False)
            x = EntryValues(self._coordinates, viewed_values)
        self._x = x
        self._u, self._h = u if u is not None else self._compute_scales()
        self._entries = CoordinateEntries(
            self._coordinates, self._x, self._unmasked.w, self._h, self.executor
        )
        self._passes = CoordinatePasses(self._entries, compiled=compiled)
        self._last_split_gram: tuple[int, np.ndarray, Any] | None = None

    @staticmethod
    def _reusable_parts(
        view: View, other_view: ObservedEngine | None
    ) -> tuple[_UnmaskedEntries | None, EntryValues | None, _EntryScales | None]:
        """Entries, data and scales of another view of the same, None where they differ."""
        if other_view is None or view.weights is not other_view.view.weights:
            return None, None, None
        same_magnitudes = (view.exponent, view.mask_limit) == (
            other_view.view.exponent,
            other_view.view.mask_limit,
        )
        if not same_magnitudes and not view.mask_limit == other_view.view.mask_limit == math.inf:
            return None, None, None
        x = (
            other_view._x
            if same_magnitudes and view.clip_limit == other_view.view.clip_limit
            else None
        )
        same_scales = view.scales is other_view.view.scales
        return other_view._unmasked, x, (other_view._u, other_view._h) if same_scales else None

    def _compute_scales(self) -> _EntryScales:
        """The scales of the entries, and their inverses."""
        scales, data = self.view.scales, self._data
        if scales is None:
            return None, None
        scales.check(self.shape, self._full_data.values.shape)
        positions, u = self._unmasked.positions, np.ones(data.values.size)
        if scales.field is not None:
            sorting = self._full_data.sorting
            sorting = sorting if positions is None else sorting[positions]
            u = scales.field.listed_values(data.sorted_indices, sorting)
        deviations = None
        if scales.variance is not None:
            signal_factors = tuple(self.asarray(A) for A in scales.variance.factors)
            zeros = EntryValues(self._coordinates, np.zeros(data.values.size, self.dtype))
            entries = CoordinateEntries(self._coordinates, zeros, None, None, self.executor)
            passes = CoordinatePasses(entries, compiled=self._options["compiled"])
            negated_model = passes.any_pass.residuals(signal_factors)
            deviations = scales.variance.standard_deviations(negated_model, np)
        u = np.asarray(scales.combine(u, deviations, np)).astype(self.dtype, copy=False)
        return u, EntryValues(self._coordinates, 1 / u)

    def __repr__(self) -> str:
        return f"ObservedEngine({self._full_data!r}, {self.executor.threads} threads)"

    @property
    def data(self) -> Observed:
        """The data as given."""
        return self._full_data

    @cached_property
    def max_abs(self) -> float:
        return float(np.abs(self._x.values).max())

    @property
    def complete(self) -> bool:
        return False

    @property
    def algebra(self) -> Algebra:
        return algebra_for(self.xp, self._options["compiled"], self.executor.threads)

    def asarray(self, array: Any) -> Array:
        return np.ascontiguousarray(array, dtype=self.dtype)

    def with_view(self, view: View) -> ObservedEngine:
        return ObservedEngine(self._full_data, **self._options, view=view, other_view=self)

    def weighted(self, weights: Any) -> ObservedEngine:
        """The same data with weights of the entries; also one for each, in the order given."""
        new_weights = as_weights(weights, self.shape, self._full_data.values.size)
        return self.with_view(replace(self.view, weights=new_weights))

    # Samples and reductions

    def sample(self, factors: Factors | None = None) -> Sample:
        sample_pass = self._sample_pass
        r = sample_pass.entries.x.values if factors is None else sample_pass.residuals(factors)
        indices = sample_pass.coordinates.indices
        return Sample(r.astype(np.float64), lambda: tuple(indices.astype(np.int64)))

    @cached_property
    def _sample_pass(self) -> CoordinatePass:
        """Over the entries that a sample is made of."""
        positions, coordinates = self._unmasked.sample_positions, self._unmasked.sample_coordinates
        if positions is None:
            return self._passes.any_pass
        x = EntryValues(coordinates, self._x.values[positions])
        h = None if self._h is None else EntryValues(coordinates, self._h.values[positions])
        entries = CoordinateEntries(coordinates, x, None, h, self.executor)
        return CoordinatePasses(entries, compiled=self._options["compiled"]).any_pass

    def entries(self, factors: Factors | None = None) -> Sample:
        values = self._residuals(factors).astype(np.float64)
        w, indices = self._unmasked.w, self._coordinates.indices
        weights = None if w is None else w.values.astype(np.float64)
        scales = None if self._u is None else self._u.astype(np.float64)
        return Sample(values, lambda: tuple(indices.astype(np.int64)), weights, scales)

    def without_fibres(self, fibres: Fibres) -> ObservedEngine:
        return (
            self._without_entries(fibres.contains(tuple(self._full_data.indices.T)))
            if fibres
            else self
        )

    def without_slabs(self, mode: int, rows: np.ndarray) -> ObservedEngine:
        return self._without_entries(np.isin(self._full_data.indices[:, mode], rows))

    def _without_entries(self, mask: np.ndarray) -> ObservedEngine:
        """Without some of the entries, in the order given."""
        weights, values = self.view.weights, np.ones(mask.size)
        if weights is not None:
            values = weights.listed_values(self._full_data.indices.T, np.arange(mask.size))
        return self.with_view(replace(self.view, weights=ListedField(values * ~mask)))

    def _residuals(self, factors: Factors | None) -> np.ndarray:
        """Residuals, or data, of all entries in sorted order."""
        return self._x.values if factors is None else self._passes.any_pass.residuals(factors)

    def slab_sums(
        self,
        work: Callable[[Array], Array],
        factors: Factors | None = None,
        *,
        weighted: bool = False,
    ) -> list[np.ndarray]:
        cost = work(self._residuals(factors))
        if weighted and self._unmasked.w is not None:
            cost = cost * self._unmasked.w.values
        return [
            np.bincount(index, weights=cost, minlength=size)
            for index, size in zip(self._data.sorted_indices, self.shape, strict=True)
        ]

    def map_residuals(self, work: Callable[[Array], Array], factors: Factors) -> Array:
        """One for each entry, in the order in which they were given."""
        if self._unmasked.positions is not None:
            unmasked_engine = self.with_view(replace(self.view, weights=None, mask_limit=math.inf))
            return unmasked_engine.map_residuals(work, factors)
        values = work(self._residuals(factors))
        return self._in_given_order(values)

    def residual_slice(self, factors: Factors, fixed: Mapping[int, int]) -> np.ndarray:
        r = self.map_residuals(lambda r: r, factors)
        return dense_slice(self._full_data.indices, np.asarray(r), self.shape, fixed)

    def entry_scales(self) -> Array:
        """One for each entry, in the order in which they were given."""
        if self._unmasked.positions is not None:
            return self.with_view(
                replace(self.view, weights=None, mask_limit=math.inf)
            ).entry_scales()
        return (
            np.ones_like(self._full_data.values)
            if self._u is None
            else self._in_given_order(self._u)
        )

    def _in_given_order(self, values: np.ndarray) -> np.ndarray:
        """What there is for all sorted entries, in the order in which they were given."""
        reordered = np.empty_like(values)
        reordered[self._full_data.sorting] = values
        return reordered

    def slab_counts(self, mode: int) -> np.ndarray:
        return np.diff(self._coordinates.row_order(mode).row_starts)

    # The pass

    def normal_equations(
        self, factors: Factors, mode: int, loss: Loss, rows: slice | None = None
    ) -> NormalEquations:
        rows = rows if rows is not None else slice(0, self.shape[mode])
        return self._passes.for_loss(loss).normal_equations(factors, mode, loss, rows)

    def value(self, factors: Factors, loss: Loss) -> float:
        return self._passes.for_loss(loss).value(factors, loss)

    def row_blocks(self, mode: int, rank: int, loss: Loss) -> Sequence[slice]:
        row = (rank * (rank + 1) // 2 + rank) * self.dtype.itemsize
        return split_range(self.shape[mode], max(1, BLOCK_BYTES // row))

    # Parts

    def subtensor(self, indices: Sequence[np.ndarray | None]) -> ObservedEngine:
        keep = np.ones(self._x.values.size, dtype=bool)
        new_indices: list[np.ndarray | None] = []
        for index, selection, size in zip(
            self._coordinates.indices, indices, self.shape, strict=True
        ):
            new_index = None
            if selection is not None:
                new_index = np.full(size, -1, dtype=np.int64)
                new_index[selection] = np.arange(len(selection))
                keep &= (new_index >= 0)[index]
            new_indices.append(new_index)
        sub_indices = np.take(self._coordinates.indices, np.flatnonzero(keep), axis=1)
        for index, new_index in zip(sub_indices, new_indices, strict=True):
            if new_index is not None:
                index[:] = new_index[index]
        shape = [
            size if sub_indices is None else len(sub_indices)
            for size, sub_indices in zip(self.shape, indices, strict=True)
        ]
        values = self._data.sorted_values[keep]
        if (
            all(sub_indices is None or np.all(np.diff(sub_indices) > 0) for sub_indices in indices)
            and values.size
        ):
            subset = self._data.with_sorted_entries(sub_indices, values, shape)
        else:
            subset = Observed(sub_indices.T, values, shape)
        view = self.view.subset(indices)
        if self._unmasked.w is not None:
            view = replace(view, weights=ListedField(self._unmasked.w.values[keep]))
        if self._u is not None and view.scales and isinstance(view.scales.field, ListedField):
            view = replace(view, scales=Scales(ListedField(self._u[keep])))
        return ObservedEngine(subset, **self._options, view=view)

    # Singular vectors of an unfolding, missing entries taken as zero

    def _zero_filled_unfolding(self, mode: int) -> Any:
        """The unfolding, without columns that hold nothing."""
        import scipy.sparse

        order, others = (
            self._coordinates.row_order(mode),
            [*self.shape[:mode], *self.shape[mode + 1 :]],
        )
        by_column = lexicographic_order(order.other_indices, others)
        column_indices = np.take(order.other_indices, by_column, axis=1)
        is_new_column = np.concatenate(
            ([False], (column_indices[:, 1:] != column_indices[:, :-1]).any(axis=0))
        )
        column_number = np.cumsum(
            is_new_column, dtype=np.int32 if is_new_column.size < 2**31 else np.int64
        )
        column = np.empty_like(column_number)
        column[by_column] = column_number
        x, starts = (
            self._x.in_row_order(mode).astype(np.float64),
            order.row_starts.astype(column.dtype),
        )
        shape = self.shape[mode], int(column_number[-1]) + 1
        return scipy.sparse.csr_array((x, column, starts), shape=shape)

    def _split_gram(self, mode: int) -> tuple[np.ndarray, Any]:
        """X_n X_n' as d and Y, so that it is diag(d) + Y Y'; those of the last mode are kept.

        Most columns of sparse data hold one entry, and give something to the diagonal alone.
        """
        if self._last_split_gram is None or self._last_split_gram[0] != mode:
            X = self._zero_filled_unfolding(mode)
            single_entry = np.bincount(X.indices, minlength=X.shape[1]) == 1
            self._last_split_gram = (
                mode,
                X.multiply(X) @ single_entry.astype(np.float64),
                X[:, ~single_entry],
            )
        return self._last_split_gram[1:]

    def gram(self, mode: int, basis: np.ndarray | None = None) -> np.ndarray:
        d, Y = self._split_gram(mode)
        if basis is None:
            return np.asarray((Y @ Y.T).toarray() + np.diag(d))
        return np.asarray(Y @ (Y.T @ basis) + d[:, None] * basis)

    def cogram(self, mode: int) -> np.ndarray:
        X = self._zero_filled_unfolding(mode)
        return np.asarray((X.T @ X).toarray())

    def unfolding(self, mode: int, rows: slice) -> np.ndarray:
        raise TypeError("X: this method needs all entries; an Observed tensor has only some")
