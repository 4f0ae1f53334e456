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

from robustcp import _checks
from robustcp._typing import Array, Factors
from robustcp.engines.algebra import Algebra, algebra
from robustcp.engines.arrays import check_dtype, working_dtype
from robustcp.engines.base import Engine, Sample, View
from robustcp.engines.fibres import Fibres
from robustcp.engines.listing import (
    Column,
    Entries,
    ListedPass,
    ListedPasses,
    Listing,
    index_type,
    lexicographic_order,
)
from robustcp.engines.scales import Scales
from robustcp.engines.tables import Partitioned, in_frame, in_parquet
from robustcp.engines.threads import Tiles, available_threads
from robustcp.engines.tiles import ranges
from robustcp.engines.weights import Listed, as_weights, listed_weights
from robustcp.losses import Loss
from robustcp.normal import NormalEquations

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
        at, x = np.asarray(indices), np.asarray(values)
        if not x.size:
            raise ValueError("values: all entries are missing")
        if not isinstance(shape, Sequence) or any(int(size) != size for size in shape):
            raise ValueError(f"shape: must be a sequence of whole numbers, got {shape!r}")
        self.shape: tuple[int, ...] = tuple(int(size) for size in shape)
        if len(self.shape) < 2 or min(self.shape) < 1:
            raise ValueError(f"shape: must have at least 2 modes, none empty, got {shape!r}")
        if at.ndim != 2 or at.shape[1] != len(self.shape) or at.dtype.kind not in "iu":
            raise ValueError(
                f"indices: must be integers of shape (count, {len(self.shape)}), "
                f"got {at.dtype} of shape {at.shape}"
            )
        if x.shape != at.shape[:1]:
            raise ValueError(f"values: must have shape {at.shape[:1]}, got {x.shape}")
        columns = np.ascontiguousarray(at.T)
        outside = np.zeros(len(at), dtype=bool)
        for column, size in zip(columns, self.shape, strict=True):
            outside |= (column < 0) | (column >= size)
        if outside.any():
            raise ValueError(f"indices: outside of {self.shape}: {_some(at, outside)}")
        columns = columns.astype(index_type(self.shape), copy=False)
        order = lexicographic_order(columns, self.shape)
        ordered = np.take(columns, order, axis=1)
        twice = np.zeros(len(at), dtype=bool)
        twice[1:] = (ordered[:, 1:] == ordered[:, :-1]).all(axis=0)
        if twice.any():
            raise ValueError(f"indices: given more than once: {_some(ordered.T, twice)}")
        check_dtype(x)
        wild = np.asarray(~np.isfinite(x))
        if wild.any():
            raise ValueError(f"values: not finite at {_some(at, wild)}")
        self.indices = at.astype(np.int64)
        self.values = x.astype(working_dtype(x))
        # Sorted, so that the order in which entries are given makes no difference to a fit.
        self.sorting = order
        self.sorted_indices = ordered
        self.sorted_values = self.values[order]

    @staticmethod
    def from_parquet(
        path: Any, shape: Sequence[int] | None = None, columns: Sequence[str] | None = None
    ) -> Partitioned:
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
        return in_parquet(path, shape, columns)

    @staticmethod
    def from_dask(
        frame: Any, shape: Sequence[int] | None = None, columns: Sequence[str] | None = None
    ) -> Partitioned:
        """Entries that are listed in a DataFrame of Dask, one partition after the other.

        As `from_parquet`.
        """
        return in_frame(frame, shape, columns)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def kept(self, places: np.ndarray) -> Observed:
        """Some of the sorted entries, in their order."""
        at = np.take(self.sorted_indices, places, axis=1)
        return self.like(at, self.sorted_values[places], self.shape)

    def like(self, at: np.ndarray, values: np.ndarray, shape: Sequence[int]) -> Observed:
        """Other entries, which are in order; `at` has an array of indices for each mode."""
        other = copy(self)
        other.shape = tuple(shape)
        other.sorted_indices, other.sorted_values = at, values
        other.indices, other.values, other.sorting = at.T, values, np.arange(values.size)
        return other

    def __repr__(self) -> str:
        size = "x".join(map(str, self.shape))
        share = self.values.size / math.prod(self.shape)
        return f"Observed({size}, {self.values.size} entries, {100 * share:.3g}% of all)"


def _some(indices: np.ndarray, bad: np.ndarray) -> str:
    """A few of the bad indices, in words."""
    rows = indices[bad]
    shown = ", ".join(str(tuple(row)) for row in rows[:3].tolist())
    return shown + (f" and {len(rows) - 3} more" if len(rows) > 3 else "")


def _weights(data: Observed, view: View) -> np.ndarray | None:
    """The weights of the sorted entries."""
    weights = view.weights
    if weights is None:
        return None
    shape = data.values.shape if isinstance(weights, Listed) else data.shape
    if weights.shape != shape:
        raise ValueError(f"entry_weights: are of shape {weights.shape}, the data of {shape}")
    if isinstance(weights, Listed):
        w = weights.values[data.sorting]
    else:
        w = weights.at(data.sorted_indices)
    return np.asarray(w).astype(data.values.dtype)


#: Scales of the entries, and their inverses, if there are any.
_InUnits = tuple[np.ndarray | None, Column | None]


class _Kept:
    """The entries that a view does not leave out: small magnitudes of positive weight.

    Attributes
    ----------
    places : integer array, optional
        Where they are among the sorted ones; None if that is all.
    data : Observed
        Those alone.
    w : Column, optional
        Their weights.
    """

    def __init__(self, whole: Observed, view: View) -> None:
        w = _weights(whole, view)
        keep = np.ones(whole.values.size, dtype=bool) if w is None else w > 0
        if not keep.any():
            raise ValueError("entry_weights: all observed entries have weight 0")
        if view.leaves_out(float(np.abs(whole.sorted_values[keep]).max())):
            keep &= ~np.isnan(view.apply(whole.sorted_values, np))
        self.places = None if keep.all() else np.flatnonzero(keep)
        self.data = whole if self.places is None else whole.kept(self.places)
        self.listing = Listing(self.data.sorted_indices, self.data.shape)
        w = w if w is None or self.places is None else w[self.places]
        self.w = None if w is None else Column(self.listing, w)

    @cached_property
    def sampled(self) -> np.ndarray | None:
        """Which of the entries a sample is made of; None for all."""
        size = self.data.values.size
        if size <= SAMPLE_ENTRIES:
            return None
        return np.sort(np.random.default_rng(0).integers(size, size=SAMPLE_ENTRIES))

    @cached_property
    def sample(self) -> Listing:
        """Where the entries of a sample are."""
        return self.listing if self.sampled is None else self.listing.taken(self.sampled)


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


def at_entries_of(data: Any, values: np.ndarray) -> np.ndarray:
    """Positive values for the entries of data on the host, from an array that broadcasts to it.

    Of an array of the same shape, those of listed entries, in the order given; or all, where
    those of missing entries may be anything and become a usual one.
    """
    if values.shape != data.shape:
        return values
    if isinstance(data, Observed):
        return np.asarray(values[tuple(data.indices.T)])
    none = np.nonzero(~(values > 0))
    missing = np.isnan(data[none])
    if missing.any() and missing.size < values.size:
        values = values.astype(np.float64)
        usual = float(np.median(values[values > 0]))
        values[tuple(index[missing] for index in none)] = usual
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
    like : ObservedEngine, optional
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
        like: ObservedEngine | None = None,
    ) -> None:
        if threads is not None:
            threads = _checks.whole_number("threads", threads, 1)
        self._given: dict[str, Any] = {"threads": threads, "compiled": compiled}
        self._whole, self.view = data, view
        self.xp: Any = xp
        self.shape = data.shape
        self.dtype: Any = data.values.dtype
        self.tiles = Tiles(threads or available_threads())
        kept, x, u = self._shared(view, like)
        self._kept = kept if kept is not None else _Kept(data, view)
        self._data, self._listing = self._kept.data, self._kept.listing
        if x is None:
            seen = view.apply(self._data.sorted_values, np).astype(self.dtype, copy=False)
            x = Column(self._listing, seen)
        self._x = x
        self._u, self._h = u if u is not None else self._scales()
        self._entries = Entries(self._listing, self._x, self._kept.w, self._h, self.tiles)
        self._passes = ListedPasses(self._entries, compiled=compiled)
        self._last: tuple[int, np.ndarray, Any] | None = None

    @staticmethod
    def _shared(
        view: View, like: ObservedEngine | None
    ) -> tuple[_Kept | None, Column | None, _InUnits | None]:
        """Entries, data and scales of another view of the same, None where they differ."""
        if like is None or view.weights is not like.view.weights:
            return None, None, None
        cut = (view.exponent, view.wild) == (like.view.exponent, like.view.wild)
        if not cut and not view.wild == like.view.wild == math.inf:
            return None, None, None
        x = like._x if cut and view.limit == like.view.limit else None
        same = view.scales is like.view.scales
        return like._kept, x, (like._u, like._h) if same else None

    def _scales(self) -> _InUnits:
        """The scales of the entries, and their inverses."""
        scales, data = self.view.scales, self._data
        if scales is None:
            return None, None
        scales.check(self.shape, self._whole.values.shape)
        slabs, u = scales.slabs, None
        if isinstance(slabs, Listed):
            places = self._kept.places
            u = slabs.values[self._whole.sorting if places is None else self._whole.sorting[places]]
        elif slabs is not None:
            u = slabs.at(data.sorted_indices)
        if scales.signal is not None:
            held = tuple(self.asarray(A) for A in scales.signal.factors)
            nothing = Column(self._listing, np.zeros(data.values.size, self.dtype))
            entries = Entries(self._listing, nothing, None, None, self.tiles)
            passes = ListedPasses(entries, compiled=self._given["compiled"])
            # Minus a model is as good as the model.
            by_signal = scales.signal.deviation(passes.any.residuals(held), np)
            u = by_signal if u is None else u * by_signal
        u = scales.settled(u, data.values.size).astype(self.dtype, copy=False)
        return u, Column(self._listing, 1 / u)

    def __repr__(self) -> str:
        return f"ObservedEngine({self._whole!r}, {self.tiles.threads} threads)"

    @property
    def given(self) -> Observed:
        """The data as given."""
        return self._whole

    @cached_property
    def largest(self) -> float:
        return float(np.abs(self._x.values).max())

    @property
    def complete(self) -> bool:
        return False

    @property
    def algebra(self) -> Algebra:
        return algebra(self.xp, self._given["compiled"], self.tiles.threads)

    def asarray(self, array: Any) -> Array:
        return np.ascontiguousarray(array, dtype=self.dtype)

    def viewed(self, view: View) -> ObservedEngine:
        return ObservedEngine(self._whole, **self._given, view=view, like=self)

    def weighted(self, weights: Any) -> ObservedEngine:
        """The same data with weights of the entries; also one for each, in the order given."""
        listed = listed_weights(weights, self._whole.values.size)
        found = as_weights(weights, self.shape) if listed is None else listed
        return self.viewed(replace(self.view, weights=found))

    # Samples and reductions

    def sample(self, factors: Factors | None = None) -> Sample:
        passes = self._sample
        r = passes.entries.x.values if factors is None else passes.residuals(factors)
        at = passes.listing.at
        return Sample(r.astype(np.float64), lambda: tuple(at.astype(np.int64)))

    @cached_property
    def _sample(self) -> ListedPass:
        """Over the entries that a sample is made of."""
        picked, listing = self._kept.sampled, self._kept.sample
        if picked is None:
            return self._passes.any
        x = Column(listing, self._x.values[picked])
        h = None if self._h is None else Column(listing, self._h.values[picked])
        entries = Entries(listing, x, None, h, self.tiles)
        return ListedPasses(entries, compiled=self._given["compiled"]).any

    def entries(self, factors: Factors | None = None) -> Sample:
        values = self._residuals(factors).astype(np.float64)
        w, at = self._kept.w, self._listing.at
        weights = None if w is None else w.values.astype(np.float64)
        scales = None if self._u is None else self._u.astype(np.float64)
        return Sample(values, lambda: tuple(at.astype(np.int64)), weights, scales)

    def leaving_out(self, fibres: Fibres) -> ObservedEngine:
        return self._leaving_out(fibres.at(tuple(self._whole.indices.T))) if fibres else self

    def leaving_out_slabs(self, mode: int, rows: np.ndarray) -> ObservedEngine:
        return self._leaving_out(np.isin(self._whole.indices[:, mode], rows))

    def _leaving_out(self, hit: np.ndarray) -> ObservedEngine:
        """Without some of the entries, in the order given."""
        weights = self.view.weights
        if weights is None:
            values: Any = 1.0
        else:
            at = tuple(self._whole.indices.T)
            values = weights.values if isinstance(weights, Listed) else weights.at(at)
        return self.viewed(replace(self.view, weights=Listed(values * ~hit)))

    def _residuals(self, factors: Factors | None) -> np.ndarray:
        """Residuals, or data, of all entries in sorted order."""
        return self._x.values if factors is None else self._passes.any.residuals(factors)

    def slab_sums(
        self,
        work: Callable[[Array], Array],
        factors: Factors | None = None,
        *,
        weighted: bool = False,
    ) -> list[np.ndarray]:
        cost = work(self._residuals(factors))
        if weighted and self._kept.w is not None:
            cost = cost * self._kept.w.values
        return [
            np.bincount(index, weights=cost, minlength=size)
            for index, size in zip(self._data.sorted_indices, self.shape, strict=True)
        ]

    def entrywise(self, work: Callable[[Array], Array], factors: Factors) -> Array:
        """One for each entry, in the order in which they were given."""
        if self._kept.places is not None:
            every = self.viewed(replace(self.view, weights=None, wild=math.inf))
            return every.entrywise(work, factors)
        found = work(self._residuals(factors))
        return self._as_given(found)

    def residual_slice(self, factors: Factors, fixed: Mapping[int, int]) -> np.ndarray:
        r = self.entrywise(lambda r: r, factors)
        return dense_slice(self._whole.indices, np.asarray(r), self.shape, fixed)

    def entry_scales(self) -> Array:
        """One for each entry, in the order in which they were given."""
        if self._kept.places is not None:
            return self.viewed(replace(self.view, weights=None, wild=math.inf)).entry_scales()
        return np.ones_like(self._whole.values) if self._u is None else self._as_given(self._u)

    def _as_given(self, found: np.ndarray) -> np.ndarray:
        """What there is for all sorted entries, in the order in which they were given."""
        given = np.empty_like(found)
        given[self._whole.sorting] = found
        return given

    def counts(self, mode: int) -> np.ndarray:
        return np.diff(self._listing.order(mode).starts)

    # The pass

    def normal(
        self, factors: Factors, mode: int, loss: Loss, rows: slice | None = None
    ) -> NormalEquations:
        rows = rows if rows is not None else slice(0, self.shape[mode])
        return self._passes.of(loss).normal(factors, mode, loss, rows)

    def value(self, factors: Factors, loss: Loss) -> float:
        return self._passes.of(loss).value(factors, loss)

    def row_blocks(self, mode: int, rank: int, loss: Loss) -> Sequence[slice]:
        row = (rank * (rank + 1) // 2 + rank) * self.dtype.itemsize
        return ranges(self.shape[mode], max(1, BLOCK_BYTES // row))

    # Parts

    def subtensor(self, indices: Sequence[np.ndarray | None]) -> ObservedEngine:
        keep = np.ones(self._x.values.size, dtype=bool)
        places: list[np.ndarray | None] = []
        for index, chosen, size in zip(self._listing.at, indices, self.shape, strict=True):
            place = None
            if chosen is not None:
                place = np.full(size, -1, dtype=np.int64)
                place[chosen] = np.arange(len(chosen))
                keep &= (place >= 0)[index]
            places.append(place)
        at = np.take(self._listing.at, np.flatnonzero(keep), axis=1)
        for index, place in zip(at, places, strict=True):
            if place is not None:
                index[:] = place[index]
        shape = [
            size if at is None else len(at) for size, at in zip(self.shape, indices, strict=True)
        ]
        values = self._data.sorted_values[keep]
        if all(at is None or np.all(np.diff(at) > 0) for at in indices) and values.size:
            part = self._data.like(at, values, shape)
        else:
            part = Observed(at.T, values, shape)
        view = self.view.part(indices)
        if self._kept.w is not None:
            view = replace(view, weights=Listed(self._kept.w.values[keep]))
        if self._u is not None and view.scales and isinstance(view.scales.slabs, Listed):
            view = replace(view, scales=Scales(Listed(self._u[keep])))
        return ObservedEngine(part, **self._given, view=view)

    # Singular vectors of an unfolding, missing entries taken as zero

    def _unfolded(self, mode: int) -> Any:
        """The unfolding, without columns that hold nothing."""
        import scipy.sparse

        order, others = self._listing.order(mode), [*self.shape[:mode], *self.shape[mode + 1 :]]
        by_column = lexicographic_order(order.at, others)
        at = np.take(order.at, by_column, axis=1)
        new = np.concatenate(([False], (at[:, 1:] != at[:, :-1]).any(axis=0)))
        number = np.cumsum(new, dtype=np.int32 if new.size < 2**31 else np.int64)
        column = np.empty_like(number)
        column[by_column] = number
        x, starts = self._x.of(mode).astype(np.float64), order.starts.astype(column.dtype)
        shape = self.shape[mode], int(number[-1]) + 1
        return scipy.sparse.csr_array((x, column, starts), shape=shape)

    def _squared(self, mode: int) -> tuple[np.ndarray, Any]:
        """X_n X_n' as d and Y, so that it is diag(d) + Y Y'; those of the last mode are kept.

        Most columns of sparse data hold one entry, and give something to the diagonal alone.
        """
        if self._last is None or self._last[0] != mode:
            X = self._unfolded(mode)
            alone = np.bincount(X.indices, minlength=X.shape[1]) == 1
            self._last = mode, X.multiply(X) @ alone.astype(np.float64), X[:, ~alone]
        return self._last[1:]

    def gram(self, mode: int, basis: np.ndarray | None = None) -> np.ndarray:
        d, Y = self._squared(mode)
        if basis is None:
            return np.asarray((Y @ Y.T).toarray() + np.diag(d))
        return np.asarray(Y @ (Y.T @ basis) + d[:, None] * basis)

    def cogram(self, mode: int) -> np.ndarray:
        X = self._unfolded(mode)
        return np.asarray((X.T @ X).toarray())

    def unfolding(self, mode: int, rows: slice) -> np.ndarray:
        raise TypeError("X: this method needs all entries; an Observed tensor has only some")
