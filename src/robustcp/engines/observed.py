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
from robustcp.engines.scales import Scales
from robustcp.engines.threads import Tiles, available_threads
from robustcp.engines.tiles import ranges
from robustcp.engines.weights import Listed, as_weights, listed_weights
from robustcp.losses import Loss
from robustcp.normal import NormalEquations, pack_indices

#: Observed entries that are worked on at a time, and those of a sample.
TILE_ENTRIES, SAMPLE_ENTRIES = 1 << 14, 1 << 16
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
        outside = ((at < 0) | (at >= np.array(self.shape))).any(axis=1)
        if outside.any():
            raise ValueError(f"indices: outside of {self.shape}: {_some(at, np.asarray(outside))}")
        order = np.lexsort(at.T[::-1])
        ordered = at[order]
        twice = np.zeros(len(at), dtype=bool)
        twice[1:] = (ordered[1:] == ordered[:-1]).all(axis=1)
        if twice.any():
            raise ValueError(f"indices: given more than once: {_some(ordered, twice)}")
        check_dtype(x)
        wild = np.asarray(~np.isfinite(x))
        if wild.any():
            raise ValueError(f"values: not finite at {_some(at, wild)}")
        self.indices = at.astype(np.int64)
        self.values = x.astype(working_dtype(x))
        # Sorted, so that the order in which entries are given makes no difference to a fit.
        self.sorting = order
        self.sorted_indices = np.ascontiguousarray(ordered.T.astype(np.int64))
        self.sorted_values = self.values[order]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def kept(self, keep: np.ndarray) -> Observed:
        """Some of the sorted entries, in their order."""
        part = copy(self)
        part.sorted_indices = np.ascontiguousarray(self.sorted_indices[:, keep])
        part.sorted_values = self.sorted_values[keep]
        part.indices, part.values = part.sorted_indices.T, part.sorted_values
        part.sorting = np.arange(part.values.size)
        return part

    def __repr__(self) -> str:
        size = "x".join(map(str, self.shape))
        share = self.values.size / math.prod(self.shape)
        return f"Observed({size}, {self.values.size} entries, {100 * share:.3g}% of all)"


def _some(indices: np.ndarray, bad: np.ndarray) -> str:
    """A few of the bad indices, in words."""
    rows = indices[bad]
    shown = ", ".join(str(tuple(row)) for row in rows[:3].tolist())
    return shown + (f" and {len(rows) - 3} more" if len(rows) > 3 else "")


def _seen(data: Observed, view: View) -> tuple[Observed, np.ndarray | None, np.ndarray | None]:
    """The entries that a view does not leave out; weights and scales of the sorted ones."""
    w, u = _weights(data, view), _scales(data, view)
    keep = np.ones(data.values.size, dtype=bool) if w is None else w > 0
    if not keep.any():
        raise ValueError("entry_weights: all observed entries have weight 0")
    if view.leaves_out(float(np.abs(data.sorted_values[keep]).max())):
        keep &= ~np.isnan(view.apply(data.sorted_values, np))
    if keep.all():
        return data, w, u
    return data.kept(keep), None if w is None else w[keep], None if u is None else u[keep]


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
    return w.astype(data.values.dtype)


def _scales(data: Observed, view: View) -> np.ndarray | None:
    """The scales of the sorted entries."""
    scales = view.scales
    if scales is None:
        return None
    scales.check(data.shape, data.values.shape)
    if isinstance(scales.slabs, Listed):
        u = scales.by_signal(scales.slabs.values[data.sorting], data.sorted_indices)
    else:
        u = scales.at(data.sorted_indices)
    return u.astype(data.values.dtype)


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
    ) -> None:
        if threads is not None:
            threads = _checks.whole_number("threads", threads, 1)
        self._given: dict[str, Any] = {"threads": threads, "compiled": compiled}
        self._whole, self.view = data, view
        self._data, self._w, self._u = _seen(data, view)
        data = self._data
        self.xp: Any = xp
        self.shape = data.shape
        self.dtype: Any = data.sorted_values.dtype
        self._x = view.apply(data.sorted_values, np).astype(self.dtype)
        self.tiles = Tiles(threads or available_threads())
        self._orders: dict[int, np.ndarray] = {}

    def __repr__(self) -> str:
        return f"ObservedEngine({self._whole!r}, {self.tiles.threads} threads)"

    @cached_property
    def largest(self) -> float:
        return float(np.abs(self._x).max())

    @property
    def complete(self) -> bool:
        return False

    @property
    def algebra(self) -> Algebra:
        return algebra(self.xp, self._given["compiled"], self.tiles.threads)

    def asarray(self, array: Any) -> Array:
        return np.ascontiguousarray(array, dtype=self.dtype)

    def viewed(self, view: View) -> ObservedEngine:
        return ObservedEngine(self._whole, **self._given, view=view)

    def weighted(self, weights: Any) -> ObservedEngine:
        """The same data with weights of the entries; also one for each, in the order given."""
        listed = listed_weights(weights, self._whole.values.size)
        found = as_weights(weights, self.shape) if listed is None else listed
        return self.viewed(replace(self.view, weights=found))

    # Samples and reductions

    def sample(self, factors: Factors | None = None) -> Sample:
        picked = self._sampled
        r = self._x[picked].astype(np.float64)
        if factors is not None:
            for piece in ranges(r.size, TILE_ENTRIES):
                r[piece] -= self._model(factors, picked[piece])
            r = r if self._u is None else r / self._u[picked]
        return Sample(r, lambda: tuple(index[picked] for index in self._data.sorted_indices))

    def entries(self, factors: Factors | None = None) -> Sample:
        values = self._residuals(factors).astype(np.float64)
        weights = None if self._w is None else self._w.astype(np.float64)
        scales = None if self._u is None else self._u.astype(np.float64)
        return Sample(values, lambda: tuple(self._data.sorted_indices), weights, scales)

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

    @cached_property
    def _sampled(self) -> np.ndarray:
        """Which of the sorted entries a sample is made of."""
        if self._x.size <= SAMPLE_ENTRIES:
            return np.asarray(np.arange(self._x.size))
        picked = np.random.default_rng(0).integers(self._x.size, size=SAMPLE_ENTRIES)
        return np.asarray(np.sort(picked))

    def _residuals(self, factors: Factors | None) -> np.ndarray:
        """Residuals, or data, of all entries in sorted order."""
        if factors is None:
            return np.asarray(self._x)

        def work(tile: slice) -> np.ndarray:
            return self._residual(factors, tile)

        return np.concatenate(list(self.tiles.map(work, ranges(self._x.size, 4 * TILE_ENTRIES))))

    def slab_sums(
        self,
        work: Callable[[Array], Array],
        factors: Factors | None = None,
        *,
        weighted: bool = False,
    ) -> list[np.ndarray]:
        cost = work(self._residuals(factors))
        if weighted and self._w is not None:
            cost = cost * self._w
        return [
            np.bincount(index, weights=cost, minlength=size)
            for index, size in zip(self._data.sorted_indices, self.shape, strict=True)
        ]

    def entrywise(self, work: Callable[[Array], Array], factors: Factors) -> Array:
        """One for each entry, in the order in which they were given."""
        if self._whole is not self._data:
            every = self.viewed(replace(self.view, weights=None, wild=math.inf))
            return every.entrywise(work, factors)
        found = work(self._residuals(factors))
        return self._as_given(found)

    def residual_slice(self, factors: Factors, fixed: Mapping[int, int]) -> np.ndarray:
        r = self.entrywise(lambda r: r, factors)
        return dense_slice(self._whole.indices, np.asarray(r), self.shape, fixed)

    def entry_scales(self) -> Array:
        """One for each entry, in the order in which they were given."""
        u = _scales(self._whole, self.view)
        return np.ones(self._whole.values.size, self.dtype) if u is None else self._as_given(u)

    def _as_given(self, found: np.ndarray) -> np.ndarray:
        """What there is for all sorted entries, in the order in which they were given."""
        given = np.empty_like(found)
        given[self._whole.sorting] = found
        return given

    def counts(self, mode: int) -> np.ndarray:
        return np.bincount(self._data.sorted_indices[mode], minlength=self.shape[mode])

    def _residual(self, factors: Factors, tile: slice) -> np.ndarray:
        """Residuals of some of the sorted entries."""
        r = self._x[tile] - self._model(factors, tile).astype(self.dtype)
        return np.asarray(r if self._u is None else r / self._u[tile])

    def _model(self, factors: Factors, picked: Any) -> np.ndarray:
        product: Any = 1.0
        for A, index in zip(factors, self._data.sorted_indices, strict=True):
            product = product * np.take(A, index[picked], axis=0)
        return np.asarray(product.sum(axis=1))

    # The pass

    def _sorted(self, mode: int) -> np.ndarray:
        """The entries in the order of their index in a mode."""
        if mode not in self._orders:
            self._orders[mode] = np.argsort(self._data.sorted_indices[mode], kind="stable")
        return self._orders[mode]

    def normal(
        self, factors: Factors, mode: int, loss: Loss, rows: slice | None = None
    ) -> NormalEquations:
        rows = rows if rows is not None else slice(0, self.shape[mode])
        rank = factors[0].shape[1]
        i, j = pack_indices(rank)
        order = self._sorted(mode)
        own = self._data.sorted_indices[mode]
        first, last = np.searchsorted(own, (rows.start, rows.stop), sorter=order)
        gram = np.zeros((rows.stop - rows.start, i.size), dtype=self.dtype)
        gradient = np.zeros((rows.stop - rows.start, rank), dtype=self.dtype)
        value = 0.0

        def work(tile: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
            entries = order[first + tile.start : first + tile.stop]
            row = own[entries]
            K = np.ones((entries.size, rank), dtype=self.dtype)
            for m, (A, index) in enumerate(zip(factors, self._data.sorted_indices, strict=True)):
                if m != mode:
                    K *= np.take(A, index[entries], axis=0)
            r = self._x[entries] - np.einsum("er,er->e", K, np.take(factors[mode], row, axis=0))
            u = None if self._u is None else self._u[entries]
            cost, slope, curvature = loss.majorize(r if u is None else r / u)
            if u is not None:
                slope, curvature = slope / u, curvature / (u * u)
            if self._w is not None:
                cost, slope, curvature = (x * self._w[entries] for x in (cost, slope, curvature))
            begins = np.flatnonzero(np.diff(row, prepend=-1))
            S = K[:, i] * K[:, j]
            S *= curvature[:, None]
            K *= slope[:, None]
            return (
                row[begins] - rows.start,
                np.add.reduceat(S, begins, axis=0),
                np.add.reduceat(K, begins, axis=0),
                float(cost.sum(dtype=np.float64)),
            )

        if last > first:
            for at, G, g, v in self.tiles.map(work, ranges(int(last - first), TILE_ENTRIES)):
                gram[at] += G
                gradient[at] += g
                value += v
        return NormalEquations(gram, gradient, value)

    def value(self, factors: Factors, loss: Loss) -> float:
        def work(tile: slice) -> float:
            cost = loss.value(self._residual(factors, tile))
            if self._w is not None:
                cost = cost * self._w[tile]
            return float(np.sum(cost, dtype=np.float64))

        return sum(self.tiles.map(work, ranges(self._x.size, 4 * TILE_ENTRIES)))

    def row_blocks(self, mode: int, rank: int, loss: Loss) -> Sequence[slice]:
        row = (rank * (rank + 1) // 2 + rank) * self.dtype.itemsize
        return ranges(self.shape[mode], max(1, BLOCK_BYTES // row))

    # Parts

    def subtensor(self, indices: Sequence[np.ndarray | None]) -> ObservedEngine:
        keep = np.ones(self._x.size, dtype=bool)
        columns, shape = [], []
        for index, chosen, size in zip(self._data.sorted_indices, indices, self.shape, strict=True):
            if chosen is None:
                columns.append(index)
                shape.append(size)
                continue
            place = np.full(size, -1, dtype=np.int64)
            place[chosen] = np.arange(len(chosen))
            columns.append(place[index])
            keep &= place[index] >= 0
            shape.append(len(chosen))
        part = Observed(np.stack(columns, axis=1)[keep], self._data.sorted_values[keep], shape)
        view = self.view.part(indices)
        if self._w is not None:
            view = replace(view, weights=Listed(self._w[keep]))
        if self._u is not None and view.scales and isinstance(view.scales.slabs, Listed):
            view = replace(view, scales=Scales(Listed(self._u[keep])))
        return ObservedEngine(part, **self._given, view=view)

    # Singular vectors of an unfolding, missing entries taken as zero

    def _unfolded(self, mode: int) -> Any:
        import scipy.sparse

        others = [m for m in range(len(self.shape)) if m != mode]
        shape = [self.shape[m] for m in others]
        if math.prod(shape) >= 2**62:
            raise ValueError("init: this tensor is too large for singular vectors; use 'random'")
        column = np.ravel_multi_index([self._data.sorted_indices[m] for m in others], shape)
        # Only columns that hold something matter for the products.
        column = np.unique(column, return_inverse=True)[1]
        x = self._x.astype(np.float64)
        return scipy.sparse.csr_array(
            (x, (self._data.sorted_indices[mode], column)),
            shape=(self.shape[mode], int(column.max()) + 1),
        )

    def gram(self, mode: int, basis: np.ndarray | None = None) -> np.ndarray:
        X = self._unfolded(mode)
        return np.asarray((X @ X.T).toarray() if basis is None else X @ (X.T @ basis))

    def cogram(self, mode: int) -> np.ndarray:
        X = self._unfolded(mode)
        return np.asarray((X.T @ X).toarray())

    def unfolding(self, mode: int, rows: slice) -> np.ndarray:
        raise TypeError("X: this method needs all entries; an Observed tensor has only some")
