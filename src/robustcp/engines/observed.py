"""The engine for tensors of which only some entries were observed: cost follows their number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import array_api_compat.numpy as xp
import numpy as np

from robustcp._util import checks
from robustcp._util.typing import Array, Factors
from robustcp.engines.arrays import check_dtype, working_dtype
from robustcp.engines.base import Elementwise, Engine, View
from robustcp.engines.blocks.tables import PartitionedTable, open_dask_frame, open_parquet
from robustcp.engines.coordinates import (
    CoordinateList,
    CoordinatePasses,
    EntryValues,
    index_dtype,
    lexicographic_order,
)
from robustcp.engines.entries import (
    Entries,
    sample_size,
    select_by_index,
    subset_shape,
    subtensor_indices,
)
from robustcp.engines.entry_field import ListedField, as_weights, broadcast_indices, check_shape
from robustcp.engines.fibres import Fibres
from robustcp.engines.normal_equations import NormalEquations
from robustcp.engines.preprocessing import Transformation
from robustcp.engines.scales import Scales
from robustcp.engines.threads import TileExecutor, available_threads
from robustcp.losses import Loss


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

    @classmethod
    def from_sorted(
        cls,
        indices: np.ndarray,
        values: np.ndarray,
        shape: Sequence[int],
        sorting: np.ndarray | None = None,
    ) -> Observed:
        """Entries that need no checks, listed in lexicographic order.

        Parameters
        ----------
        indices : integer array (N, count)
        sorting : integer array (count,), optional
            The position of each entry in the order in which the entries were given.
        """
        data = object.__new__(cls)
        data.shape, data.sorted_indices, data.sorted_values = tuple(shape), indices, values
        data.sorting = np.arange(values.size) if sorting is None else sorting
        if sorting is None:
            data.indices, data.values = indices.T, values
        return data

    @cached_property
    def indices(self) -> np.ndarray:
        """The indices of the entries, (count, N), in the order in which they were given."""
        return self.in_given_order(self.sorted_indices.T)

    @cached_property
    def values(self) -> np.ndarray:
        """The values of the entries, in the order in which they were given."""
        return self.in_given_order(self.sorted_values)

    def in_given_order(self, sorted_values: np.ndarray) -> np.ndarray:
        """An array that has the entries in lexicographic order, in the given order."""
        values = np.empty_like(sorted_values)
        values[self.sorting] = sorted_values
        return values

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @cached_property
    def entries(self) -> Entries:
        """The entries in the order in which they were given, values in float64."""
        return Entries(self.shape, self.values.astype(np.float64), tuple(self.indices.T))

    def __repr__(self) -> str:
        size = "x".join(map(str, self.shape))
        share = self.sorting.size / math.prod(self.shape)
        return f"Observed({size}, {self.sorting.size} entries, {100 * share:.3g}% of all)"


def _format_indices(indices: np.ndarray, bad: np.ndarray) -> str:
    """A few of the bad indices, in words."""
    rows = indices[bad]
    text = ", ".join(str(tuple(row)) for row in rows[:3].tolist())
    return text + (f" and {len(rows) - 3} more" if len(rows) > 3 else "")


class _UnmaskedEntries:
    """The entries that a view does not leave out: small magnitudes of positive weight.

    Attributes
    ----------
    positions : integer array, optional
        Their positions among all entries in lexicographic order; None if none is left out.
    coordinates : CoordinateList
    values : array
        Their values as they were given.
    w : EntryValues, optional
        Their weights.
    """

    def __init__(self, data: Observed, view: View) -> None:
        w = self._weights(data, view)
        keep = np.ones(data.sorted_values.size, dtype=bool) if w is None else w > 0
        if not keep.any():
            raise ValueError("entry_weights: all observed entries have weight 0")
        if view.masks(float(np.abs(data.sorted_values[keep]).max())):
            keep &= ~np.isnan(view.apply(data.sorted_values, np))
        self.positions, self._sorting = None, data.sorting
        self.values = data.sorted_values
        self.coordinates = CoordinateList(data.sorted_indices, data.shape)
        if not keep.all():
            self.positions = np.flatnonzero(keep)
            self.values = self.values[self.positions]
            self.coordinates = self.coordinates.take(self.positions)
            w = None if w is None else w[self.positions]
        self.w = None if w is None else EntryValues(self.coordinates, w)

    @staticmethod
    def _weights(data: Observed, view: View) -> np.ndarray | None:
        """The weights of all entries in lexicographic order."""
        if view.weights is None:
            return None
        check_shape(view.weights, "entry_weights", data.shape, data.sorting.shape)
        w = view.weights.listed_values(data.sorted_indices, data.sorting)
        return w.astype(data.sorted_values.dtype)

    @property
    def given_positions(self) -> np.ndarray:
        """Their positions in the order in which the entries were given."""
        return self._sorting if self.positions is None else self._sorting[self.positions]

    @cached_property
    def sample(self) -> tuple[np.ndarray, CoordinateList] | None:
        """The positions and the indices of the entries of a sample; None for all."""
        size = sample_size(self.coordinates.shape)
        if self.values.size <= size:
            return None
        positions = select_by_index(self.coordinates.indices, size)
        return positions, self.coordinates.take(positions)


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


#: Scales of the entries, and their inverses, if there are any.
_EntryScales = tuple[np.ndarray | None, EntryValues | None]


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
    takes_limits = True
    max_equation_bytes = 1 << 25

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
        self._threads, self.compiled = threads, compiled
        self.data, self.view, self.shape = data, view, data.shape
        self.xp: Any = xp
        self.dtype: Any = data.sorted_values.dtype
        self.executor = TileExecutor(threads or available_threads())
        self._unmasked, x, scales = self._shared_parts(other_view)
        self._coordinates = self._unmasked.coordinates
        if x is None:
            viewed_values = view.apply(self._unmasked.values, np).astype(self.dtype, copy=False)
            x = EntryValues(self._coordinates, viewed_values)
        self._u, self._h = scales or self._compute_scales()
        self._sides = self._censored_sides(other_view)
        self._passes = self._passes_over(x, self._unmasked.w, self._h, self._sides)
        self._last_split_gram: tuple[int, np.ndarray, Any] | None = None

    def _passes_over(
        self,
        x: EntryValues,
        w: EntryValues | None = None,
        h: EntryValues | None = None,
        sides: EntryValues | None = None,
    ) -> CoordinatePasses:
        return CoordinatePasses(x.coordinates, self.executor, self.compiled, x, w, h, sides)

    def _censored_sides(self, other: ObservedEngine | None) -> EntryValues | None:
        """The sides on which entries are censored, from another view where it has the same."""
        limits, entries = self.view.limits, self._unmasked
        if limits is None:
            return None
        if other is not None and other._unmasked is entries and other.view.limits is limits:
            return other._sides
        limits.check(self.shape)
        sides = limits.sides_at(entries.values, entries.coordinates.indices)
        return EntryValues(entries.coordinates, sides)

    def _shared_parts(
        self, other: ObservedEngine | None
    ) -> tuple[_UnmaskedEntries, EntryValues | None, _EntryScales | None]:
        """Entries, values and scales, from another view where it has the same."""
        view = self.view
        if other is None or view.weights is not other.view.weights:
            return _UnmaskedEntries(self.data, view), None, None
        same_unit = view.exponent == other.view.exponent
        same_mask = view.mask_limit == other.view.mask_limit
        if not same_mask or not (same_unit or view.mask_limit == math.inf):
            return _UnmaskedEntries(self.data, view), None, None
        same_values = same_unit and view.clip_limit == other.view.clip_limit
        return (
            other._unmasked,
            other._passes.x if same_values else None,
            (other._u, other._h) if view.scales is other.view.scales else None,
        )

    def _compute_scales(self) -> _EntryScales:
        """The scales of the entries, and their inverses."""
        scales, entries, count = self.view.scales, self._unmasked, self._unmasked.values.size
        if scales is None:
            return None, None
        scales.check(self.shape, self.data.sorting.shape)
        u, deviations = np.ones(count), None
        if scales.field is not None:
            u = scales.field.listed_values(entries.coordinates.indices, entries.given_positions)
        if scales.variance is not None:
            signal_factors = tuple(self.asarray(A) for A in scales.variance.factors)
            zeros = EntryValues(entries.coordinates, np.zeros(count, self.dtype))
            negated_model = self._passes_over(zeros).any_pass.residuals(signal_factors)
            deviations = scales.variance.standard_deviations(negated_model, np)
        u = np.asarray(scales.combine(u, deviations, np)).astype(self.dtype, copy=False)
        return u, EntryValues(entries.coordinates, 1 / u)

    def __repr__(self) -> str:
        return f"ObservedEngine({self.data!r}, {self.executor.threads} threads)"

    @cached_property
    def max_abs(self) -> float:
        return float(np.abs(self._passes.x.values).max())

    @property
    def complete(self) -> bool:
        return False

    def with_view(self, view: View) -> ObservedEngine:
        return self._engine_for(self.data, view, self)

    def _engine_for(
        self, data: Observed, view: View, other_view: ObservedEngine | None = None
    ) -> ObservedEngine:
        """An engine with the same options."""
        return ObservedEngine(
            data, threads=self._threads, compiled=self.compiled, view=view, other_view=other_view
        )

    def weighted(self, weights: Any) -> ObservedEngine:
        """The same data with weights of the entries; also one for each, in the order given."""
        new_weights = as_weights(weights, self.shape, self.data.sorting.size)
        return self.with_view(replace(self.view, weights=new_weights))

    # Samples and reductions

    def sample(self, factors: Factors | None = None) -> Entries:
        return self._to_entries(self._sample_passes, factors)

    @cached_property
    def _sample_passes(self) -> CoordinatePasses:
        """Passes over the entries of a sample."""
        if self._unmasked.sample is None:
            return self._passes
        x, h, sides = (
            None if column is None else column.take(*self._unmasked.sample)
            for column in (self._passes.x, self._h, self._sides)
        )
        assert x is not None
        return self._passes_over(x, h=h, sides=sides)

    def entries(self, factors: Factors | None = None) -> Entries:
        w, u = self._unmasked.w, self._u
        weights = None if w is None else w.values.astype(np.float64)
        scales = None if u is None else u.astype(np.float64)
        return self._to_entries(self._passes, factors, weights, scales)

    def _to_entries(
        self,
        passes: CoordinatePasses,
        factors: Factors | None,
        weights: np.ndarray | None = None,
        scales: np.ndarray | None = None,
    ) -> Entries:
        values = passes.x.values
        sides = None if passes.sides is None else passes.sides.values
        if factors is not None:
            values = passes.any_pass.residuals(factors, math.nan)
        indices = passes.coordinates.indices
        entries = Entries(
            self.shape,
            values.astype(np.float64),
            lambda: tuple(indices.astype(np.int64)),
            weights,
            scales,
            sides if factors is None else None,
        )
        if factors is None or sides is None:
            return entries
        return entries.select(~np.isnan(values))

    def without_fibres(self, fibres: Fibres) -> ObservedEngine:
        if not fibres:
            return self
        return self._without_entries(fibres.contains(tuple(self.data.indices.T)))

    def without_slabs(self, mode: int, rows: np.ndarray) -> ObservedEngine:
        return self._without_entries(np.isin(self.data.indices[:, mode], rows))

    def _without_entries(self, mask: np.ndarray) -> ObservedEngine:
        """Without some of the entries, in the order given."""
        weights, values = self.view.weights, np.ones(mask.size)
        if weights is not None:
            values = weights.listed_values(self.data.indices.T, np.arange(mask.size))
        return self.with_view(replace(self.view, weights=ListedField(values * ~mask)))

    def map_residuals(self, work: Elementwise, factors: Factors) -> Array:
        """One for each entry, in the order in which they were given."""
        everything = self._without_mask
        return self.data.in_given_order(work(everything._passes.any_pass.residuals(factors)))

    def residual_slice(self, factors: Factors, fixed: Mapping[int, int]) -> np.ndarray:
        r = self.map_residuals(lambda r: r, factors)
        return self.data.entries.dense_slice(np.asarray(r), fixed)

    def entry_scales(self) -> Array:
        """One for each entry, in the order in which they were given."""
        everything = self._without_mask
        if everything._u is None:
            return np.ones_like(self.data.sorted_values)
        return self.data.in_given_order(everything._u)

    @property
    def _without_mask(self) -> ObservedEngine:
        """The same data with all entries."""
        if self._unmasked.positions is None:
            return self
        return self.with_view(replace(self.view, weights=None, mask_limit=math.inf))

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

    # Parts

    def locate(self, array: np.ndarray) -> np.ndarray:
        return np.asarray(array[broadcast_indices(array, self.data.indices.T)])

    def transformed(self, transformation: Transformation) -> ObservedEngine:
        data = self.data
        values = transformation.entries(data.sorted_values, data.sorted_indices)
        transformed = Observed.from_sorted(data.sorted_indices, values, data.shape, data.sorting)
        return self._engine_for(transformed, self.view)

    def subtensor(self, indices: Sequence[np.ndarray | None]) -> ObservedEngine:
        inside, new_indices = subtensor_indices(self._coordinates.indices, self.shape, indices)
        values, shape = self._unmasked.values[inside], subset_shape(self.shape, indices)
        increasing = all(rows is None or np.all(np.diff(rows) > 0) for rows in indices)
        subset = (
            Observed.from_sorted(np.stack(new_indices), values, shape)
            if increasing and values.size
            else Observed(np.stack(new_indices, axis=1), values, shape)
        )
        view = self.view.subset(indices)
        if self._unmasked.w is not None:
            view = replace(view, weights=ListedField(self._unmasked.w.values[inside]))
        if self._u is not None and view.scales and isinstance(view.scales.field, ListedField):
            view = replace(view, scales=Scales(ListedField(self._u[inside])))
        return self._engine_for(subset, view)

    # Singular vectors of an unfolding, missing entries taken as zero

    def _zero_filled_unfolding(self, mode: int) -> Any:
        """The unfolding, without columns that hold nothing."""
        import scipy.sparse

        order = self._coordinates.row_order(mode)
        others = [*self.shape[:mode], *self.shape[mode + 1 :]]
        by_column = lexicographic_order(order.other_indices, others)
        column_indices = np.take(order.other_indices, by_column, axis=1)
        differs = (column_indices[:, 1:] != column_indices[:, :-1]).any(axis=0)
        dtype = np.int32 if differs.size < 2**31 - 1 else np.int64
        column_number = np.cumsum(np.concatenate(([False], differs)), dtype=dtype)
        column = np.empty_like(column_number)
        column[by_column] = column_number
        x = self._passes.x.in_row_order(mode).astype(np.float64)
        shape = self.shape[mode], int(column_number[-1]) + 1
        return scipy.sparse.csr_array((x, column, order.row_starts.astype(dtype)), shape=shape)

    def _split_gram(self, mode: int) -> tuple[np.ndarray, Any]:
        """X_n X_n' as d and Z, so that it is diag(d) + Z' Z; those of the last mode are kept.

        Most columns of sparse data hold one entry, and give something to the diagonal alone. The
        other columns are the rows of Z: sparse products with Z and Z' take half as long so.
        """
        if self._last_split_gram is None or self._last_split_gram[0] != mode:
            X = self._zero_filled_unfolding(mode)
            single_entry = np.bincount(X.indices, minlength=X.shape[1]) == 1
            diagonal = X.multiply(X) @ single_entry.astype(np.float64)
            self._last_split_gram = mode, diagonal, X[:, ~single_entry].T.tocsr()
        return self._last_split_gram[1:]

    def gram(self, mode: int, basis: np.ndarray | None = None) -> np.ndarray:
        d, Z = self._split_gram(mode)
        if basis is None:
            return np.asarray((Z.T @ Z).toarray() + np.diag(d))
        return np.asarray(Z.T @ (Z @ basis) + d[:, None] * basis)

    def cogram(self, mode: int) -> np.ndarray:
        X = self._zero_filled_unfolding(mode)
        return np.asarray((X.T @ X).toarray())

    def unfolding(self, mode: int, rows: slice) -> np.ndarray:
        raise TypeError("X: this method needs all entries; an Observed tensor has only some")
