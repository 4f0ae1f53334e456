"""The interface of data to the rest of the package: four abstract methods, and what they imply."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from robustcp._util import checks
from robustcp._util.typing import Array, Factors
from robustcp.engines.algebra import Algebra, algebra_for
from robustcp.engines.arrays import check_device, to_host
from robustcp.engines.axes import Axes
from robustcp.engines.entries import Entries, draw_positions, sample_size
from robustcp.engines.entry_field import EntryField, Indices, ListedField, as_weights
from robustcp.engines.fibres import Fibres
from robustcp.engines.limits import Limits
from robustcp.engines.normal_equations import NormalEquations
from robustcp.engines.preprocessing import ARGUMENT_NAME, Preprocessing, Transformation
from robustcp.engines.scales import Scales
from robustcp.engines.threads import TileExecutor
from robustcp.engines.tiles import split_range
from robustcp.losses import Loss, Tail

E = TypeVar("E", bound="Engine")

#: A function of the values of some entries, NaN where one is missing, that returns as many values.
Elementwise = Callable[[Array], Array]


#: For each mode, what a prior adds to the diagonals of Gram matrices; None for a mode without one.
Ridges = tuple[np.ndarray | None, ...]


@dataclass(frozen=True)
class SweepState:
    """What changes from sweep to sweep.

    Attributes
    ----------
    factors, swept_factors : tuple of arrays
        The current factors, and those at the end of the last sweep, before momentum.
    equations : NormalEquations
        The normal equations of the first mode at the current factors.
    objective, decrease : float
        The objective, and by how much the last sweep lowered it, relative to it.
    momentum : int
        How many extrapolated sweeps in a row were accepted.
    objectives : tuple of float
        The objective after each sweep so far.
    """

    factors: Factors
    swept_factors: Factors
    equations: NormalEquations
    objective: float
    decrease: float
    momentum: int
    objectives: tuple[float, ...] = ()


@dataclass(frozen=True)
class SweepRule:
    """What sweeps minimise beside the loss, how they are extrapolated, and when they end.

    Attributes
    ----------
    modes : tuple of int
        The modes that are updated, in the order of their turns.
    nonnegative : tuple of bool
        For each mode of the data, whether extrapolated factors are projected to be nonnegative.
    mu : float
        The weight of the squared norms of these factors.
    tol : float
        The relative decrease below which sweeps end, see `Objective.relative_decrease`.
    floor, total_weight, likelihood : float, float, bool
        What the decrease is relative to.
    momentum_weight : float
        Multiplies Nesterov's momentum; 0 for none.
    """

    modes: tuple[int, ...]
    nonnegative: tuple[bool, ...]
    mu: float
    tol: float
    floor: float
    total_weight: float
    likelihood: bool
    momentum_weight: float


class WholeSweep(ABC):
    """Runs whole sweeps over data, for one loss; each mode has a row solver."""

    @abstractmethod
    def update_factors(
        self,
        factors: Factors,
        modes: tuple[int, ...],
        mu: float,
        cached_equations: NormalEquations | None,
    ) -> Factors:
        """All factors, of which those of some modes are updated in turn.

        `mu` is the weight of the squared norms of factors, `cached_equations` are the normal
        equations of the first factor, if they are known.
        """

    @abstractmethod
    def normal_equations(self, factors: Factors, mode: int) -> NormalEquations:
        """As `Engine.normal_equations`."""

    def penalty(self, factors: Factors, modes: tuple[int, ...], mu: float) -> float | None:
        """The terms of the objective other than the loss; None if there is no code for them."""
        return None

    def advance(self, state: SweepState, rule: SweepRule, limit: int) -> SweepState | None:
        """The state after at most `limit` sweeps with momentum; None if there is no code for it.

        Sweeps end when the decrease is below the tolerance, or before an objective that cannot be
        computed accurately.
        """
        return None


@dataclass(frozen=True)
class View:
    """A transformation of data that is applied on the fly: times 2**-exponent, then clipped.

    Losses of entries are multiplied by their weights. Entries of weight 0 are missing, and so are
    magnitudes above `mask_limit` (before clipping). Residuals are divided by the scales. Entries
    are censored at the limits, which are in the units of the data as given. `axes` have the names
    of modes and the labels of indices.
    """

    exponent: int = 0
    clip_limit: float = math.inf
    weights: EntryField | ListedField | None = None
    mask_limit: float = math.inf
    scales: Scales | None = None
    limits: Limits | None = None
    axes: Axes = field(default=Axes(), compare=False)

    def apply(self, x: Array, xp: Any) -> Array:
        """Data under the view: scaled, masked and clipped."""
        if self.exponent:  # in two steps: 2^144 is beyond float32, which goes down to 2^-149
            half = self.exponent // 2
            x = x * math.ldexp(1.0, -half) * math.ldexp(1.0, half - self.exponent)
        if self.mask_limit < math.inf:
            x = xp.where(xp.abs(x) > self.mask_limit, xp.full_like(x, math.nan), x)
        return x if self.clip_limit == math.inf else xp.clip(x, -self.clip_limit, self.clip_limit)

    @property
    def is_identity(self) -> bool:
        """Whether values are unchanged; weights, scales and limits do not matter."""
        return self.exponent == 0 and self.clip_limit == self.mask_limit == math.inf

    def apply_to_magnitude(self, magnitude: float) -> float:
        """A magnitude under the view; of a masked one, the bound."""
        return min(math.ldexp(magnitude, -self.exponent), self.clip_limit, self.mask_limit)

    def masks(self, magnitude: float) -> bool:
        """Whether a magnitude counts as missing."""
        return math.ldexp(magnitude, -self.exponent) > self.mask_limit

    def subset(self, indices: Sequence[np.ndarray | None]) -> View:
        """The view of a part of the data; see `Engine.subtensor`."""
        view = self.restrict(indices)
        return replace(view, axes=self.axes.subset(indices))

    def restrict(self, indices: Sequence[Indices]) -> View:
        """The view with its fields at some indices of each mode, and all its names."""
        return replace(
            self,
            weights=self.weights and self.weights.subset(indices),
            scales=self.scales and self.scales.subset(indices),
            limits=self.limits and self.limits.subset(indices),
        )

    def map_fields(
        self, change: Callable[[EntryField | ListedField], EntryField | ListedField]
    ) -> View:
        """The view with other fields in place of those of its weights and of its scales."""
        weights = self.weights and change(self.weights)
        return replace(self, weights=weights, scales=self.scales and self.scales.map_field(change))

    @property
    def field_arrays(self) -> tuple[Array | None, Array | None]:
        """The array of its weights and the array of its scales, where it has any."""
        fields = self.weights, None if self.scales is None else self.scales.field
        weights_array, scales_array = (None if f is None else f.array for f in fields)
        return weights_array, scales_array

    def with_field_arrays(self, weights_array: Array | None, scales_array: Array | None) -> View:
        """The view with other arrays in place of these."""
        weights, scales = self.weights, self.scales
        return replace(
            self,
            weights=weights and weights.with_array(weights_array),
            scales=scales and scales.map_field(lambda field: field.with_array(scales_array)),
        )


class Engine(ABC):
    """Data of one kind, and passes over it.

    Arrays that go in or come out are of the library `xp`, on the engine's device, unless said
    otherwise. Sums over the data are additive over its parts.

    A new engine needs only the four abstract methods. The other methods are derived from these, by
    `entries` where nothing better is known, and may be overridden by faster ones.

    Attributes
    ----------
    shape : tuple of int
    xp : module
        The array namespace of factors and normal equations.
    dtype
        Their floating point type.
    view : View
        How the data is looked at.
    executor : Tiles
        The threads that passes over the data share.
    compiled : bool
        Whether compiled code may be used.
    max_equation_bytes : int
        The memory that the normal equations of a range of rows may take; see `row_blocks`.
    takes_weights : bool
        Whether the engine applies `view.weights`: losses and sums of losses are weighted; entries
        of weight 0 are missing, except in `map_residuals`.
    takes_scales : bool
        Whether the engine applies `view.scales`: with u the scale of an entry, methods with
        factors are about (x - model) / u, normal equations included; methods without, about x.
    takes_limits : bool
        Whether the engine applies `view.limits`: losses are one-sided where an entry is censored
        (see `OneSided`). Where the model is beyond the limit, residuals count as missing, but in
        `map_residuals` as 0; methods without factors take the entry at its value.
    """

    shape: tuple[int, ...]
    xp: Any
    dtype: Any
    view: View = View()
    executor: TileExecutor = TileExecutor(1)
    compiled: bool = True
    max_equation_bytes: int = 1 << 62
    takes_weights: bool = False
    takes_scales: bool = False
    takes_limits: bool = False

    # What an engine must have

    @abstractmethod
    def with_view(self: E, view: View) -> E:
        """The same data under another view; nothing is copied."""

    @abstractmethod
    def subtensor(self, indices: Sequence[np.ndarray | None]) -> Engine:
        """The data at some indices of each mode; None takes a mode whole."""

    @abstractmethod
    def map_residuals(self, work: Elementwise, factors: Factors) -> Array:
        """work(x - model) of every entry, in an array of the data's shape and library.

        Entries of weight 0 have residuals like any other.
        """

    @abstractmethod
    def normal_equations(
        self, factors: Factors, mode: int, loss: Loss, rows: slice | None = None
    ) -> NormalEquations:
        """The normal equations of a mode's factor, or of some of its rows."""

    # What is derived from that; engines override what they can do faster

    def asarray(self, array: Any) -> Array:
        """A host array as one of this engine's, on its device."""
        host = np.ascontiguousarray(array)
        return self.xp.asarray(host, dtype=self.dtype, device=self.device)

    def entries(self, factors: Factors | None = None) -> Entries:
        """x, or x - model, of all observed entries, which must fit into memory."""
        weights, scales, limits = self.view.weights, self.view.scales, self.view.limits
        data = self if factors is not None else self.standardized(None).censored(None)
        residuals = data.map_residuals(lambda r: r, factors or self._null_factors)
        values = np.asarray(to_host(residuals), dtype=np.float64)
        indices = np.nonzero(~np.isnan(values))
        entries = Entries(
            self.shape,
            values[indices],
            indices,
            None if weights is None else weights.values_at(indices),
            None if scales is None else scales.values_at(indices),
        )
        if limits is not None:
            as_given = self.with_view(View()).map_residuals(lambda x: x, self._null_factors)
            sides = limits.sides_at(np.asarray(to_host(as_given))[indices], indices)
            if factors is None:
                entries = replace(entries, sides=sides)
            else:
                entries = entries.select((sides == 0) | (entries.values != 0))
        if entries.weights is None or entries.weights.all():
            return entries
        return entries.select(entries.weights > 0)

    @property
    def _null_factors(self) -> Factors:
        """The factors of a model of zeros, of rank 1."""
        return tuple(self.asarray(np.zeros((size, 1))) for size in self.shape)

    def sample(self, factors: Factors | None = None) -> Entries:
        """x, or x - model, of a fixed sample of the observed entries (all of a small tensor)."""
        entries, size = self.entries(factors), sample_size(self.shape)
        if entries.values.size <= size:
            return entries
        return entries.select(draw_positions(entries.values.size, size))

    @cached_property
    def max_abs(self) -> float:
        """The largest magnitude of an observed entry."""
        return float(np.abs(self.entries().values).max())

    @property
    def complete(self) -> bool:
        """Whether no entry is missing."""
        return int(self._all_slab_counts[0].sum()) == math.prod(self.shape)

    def slab_sums(
        self, work: Elementwise, factors: Factors | None = None, *, weighted: bool = False
    ) -> list[np.ndarray]:
        """The sums of work(x), or work(x - model), over each slab of each mode, on the host.

        The results of `work`, numbers or truth values, are multiplied by the weights of the entries
        only if `weighted`.
        """
        entries = self.entries(factors)
        costs = np.asarray(to_host(work(self.asarray(entries.values))))
        if weighted and entries.weights is not None:
            costs = costs * entries.weights
        return [
            np.bincount(index, weights=costs, minlength=size)
            for index, size in zip(entries.indices, self.shape, strict=True)
        ]

    def fibre_sums(self, works: Sequence[Elementwise], factors: Factors) -> list[list[np.ndarray]]:
        """The sums of each work(x - model) over the fibres along each mode, on the host.

        Arrays of the data's shape, but of size 1 in the mode. Residuals of missing entries are NaN,
        or left out.
        """
        entries = self.entries(factors)
        residuals = self.asarray(entries.values)
        return [entries.fibre_sums(to_host(work(residuals))) for work in works]

    def fibre_locations(self, mode: int, location: str) -> np.ndarray:
        """The "median", "mean" or "skipped" mean of each fibre along a mode, on the host.

        An array of the data's shape, but of size 1 in the mode; NaN for fibres without entries.
        """
        return self.entries().fibre_locations(mode, location)

    def preprocessed(self, preprocessing: Preprocessing) -> Engine:
        """The same data after preprocessing, with its limits too; a copy of data in memory.

        Data in chunks, or parts, is preprocessed as it is read.
        """
        preprocessing.check(self.shape)
        if not preprocessing:
            return self
        if not self.view.is_identity or self.view.scales is not None:
            raise checks.ArgumentError(ARGUMENT_NAME, "is for data as given, before it is scaled")
        transformation = Transformation.of(preprocessing, self.view.limits)
        return self.censored(None).transformed(transformation).censored(transformation.limits)

    def values(self) -> Array:
        """x of every entry, as `map_residuals` returns them."""
        data = self.standardized(None).censored(None)
        return data.map_residuals(lambda x: x, self._null_factors)

    def locate(self, array: np.ndarray) -> np.ndarray:
        """The values of an array that broadcasts to the data, for what `map_residuals` returns."""
        return array

    def transformed(self, transformation: Transformation) -> Engine:
        """The same data with other entries."""
        raise checks.ArgumentError(ARGUMENT_NAME, f"{type(self).__name__} does not take any")

    def unfolding(self, mode: int, rows: slice) -> np.ndarray:
        """Some rows of the mode-n unfolding, with NaN where an entry is missing; host."""
        entries = self.entries()
        unfolded = np.moveaxis(entries.to_dense(entries.values), mode, 0)[rows]
        return unfolded.reshape(len(unfolded), -1)

    def without_fibres(self: E, fibres: Fibres) -> E:
        """The same data without some fibres, which count as missing."""
        if not fibres:
            return self
        return self._multiply_weights(fibres.weights)

    def without_slabs(self: E, mode: int, rows: np.ndarray) -> E:
        """The same data without some slabs of a mode, which count as missing."""
        keep = np.ones(self.shape[mode])
        keep[rows] = 0.0
        return self._multiply_weights(
            EntryField.from_vector(self.shape, mode, keep, has_zeros=True)
        )

    def _multiply_weights(self: E, factor: EntryField) -> E:
        """The same data with weights times a field."""
        weights = self.view.weights
        assert not isinstance(weights, ListedField)
        product = factor if weights is None else weights.times(factor)
        return self.with_view(replace(self.view, weights=product))

    @property
    def device(self) -> Any:
        """The device on which the data was given, and on which users expect results."""
        return "cpu"

    @property
    def in_memory(self) -> Engine:
        """The same data, in memory if it is small: for many small fits."""
        return self

    @property
    def off_device(self) -> Engine:
        """The same data, on the host if fits are faster there since it is small."""
        return self

    @property
    def entries_fit_in_memory(self) -> bool:
        """Whether the result of `entries` fits into memory."""
        return True

    def check_memory(self) -> None:
        """Raise an error if a fit would run out of the device's memory."""
        return

    # Views and queries

    @cached_property
    def order(self) -> int:
        """The number of modes."""
        return len(self.shape)

    @cached_property
    def machine_epsilon(self) -> float:
        """The machine epsilon of `dtype`."""
        return float(self.xp.finfo(self.dtype).eps)

    @property
    def algebra(self) -> Algebra:
        """Linear algebra on the rows of factors."""
        return algebra_for(self.xp, self.compiled, self.executor.threads)

    def scaled(self: E, exponent: int) -> E:
        """The same data times 2**-exponent; scales by signal must be set later."""
        view = self.view
        if view.scales is not None and view.scales.variance is not None:
            raise ValueError("scales: a signal is in the units of the data; scale the data first")
        clip, mask = (math.ldexp(limit, -exponent) for limit in (view.clip_limit, view.mask_limit))
        exponent += view.exponent
        return self.with_view(replace(view, exponent=exponent, clip_limit=clip, mask_limit=mask))

    def with_axes(self: E, axes: Axes) -> E:
        """The same data with names of its modes and labels of their indices."""
        return self.with_view(replace(self.view, axes=axes)) if axes != self.view.axes else self

    def clipped(self: E, limit: float) -> E:
        """The same data with larger magnitudes cut to a limit."""
        return self.with_view(replace(self.view, clip_limit=min(limit, self.view.clip_limit)))

    def masked_above(self: E, limit: float) -> E:
        """The same data with larger magnitudes counted as missing."""
        return self.with_view(replace(self.view, mask_limit=min(limit, self.view.mask_limit)))

    def weighted(self: E, weights: Any) -> E:
        """The same data with weights of the entries, in place of any that it has.

        Parameters
        ----------
        weights : array that broadcasts to the shape, or one vector (or None) for each mode
        """
        if not self.takes_weights:
            raise TypeError(f"entry_weights: {type(self).__name__} does not take any")
        for part in weights if isinstance(weights, list | tuple) else (weights,):
            check_device("entry_weights", part, self.device)
        return self.with_view(replace(self.view, weights=as_weights(weights, self.shape)))

    def standardized(self: E, scales: Scales | None) -> E:
        """The same data with residuals in units of scales, in place of any; None for none."""
        if scales is not None and not self.takes_scales:
            raise TypeError(f"scales: {type(self).__name__} does not take any")
        if scales is self.view.scales:
            return self
        return self.with_view(replace(self.view, scales=scales))

    def censored(self: E, limits: Any) -> E:
        """The same data with limits, in place of any: a pair (low, high), `Limits`, or None."""
        if limits is not None and not self.takes_limits:
            raise checks.ArgumentError("limits", f"{type(self).__name__} does not take any")
        parsed = Limits.of(limits, self.shape)
        if parsed is not None:
            parsed.check(self.shape)
        if parsed is self.view.limits:
            return self
        return self.with_view(replace(self.view, limits=parsed))

    def entry_scales(self) -> Array:
        """The scale of every entry, an array of the data's shape and library; 1 without any."""
        if self.view.scales is not None:
            indices = np.indices(self.shape).reshape(self.order, -1)
            return self.asarray(self.view.scales.values_at(indices).reshape(self.shape))
        return self.map_residuals(self.xp.ones_like, self._null_factors)

    def value(self, factors: Factors, loss: Loss) -> float:
        """The loss summed over the data."""
        return self._total_cost(loss.value, factors)

    def _total_cost(self, cost: Elementwise, factors: Factors | None = None) -> float:
        """The weighted sum of a cost of x, or of x - model, over the observed entries."""
        xp = self.xp

        def work(x: Array) -> Array:
            costs = cost(xp.astype(x, xp.float64))
            return xp.where(xp.isnan(x), xp.zeros_like(costs), costs)

        weighted = self.view.weights is not None
        return math.fsum(self.slab_sums(work, factors, weighted=weighted)[0])

    def whole_sweep(
        self,
        loss: Loss,
        row_solvers: tuple[str, ...] | None = None,
        ridges: Ridges | None = None,
    ) -> WholeSweep | None:
        """Whole sweeps, if they are faster than updates of single factors; else None.

        `row_solvers` names, for each mode, the method of `Algebra` that solves its rows; None is
        `solve_rows` for all. `ridges` are those of a prior.
        """
        return None

    def row_blocks(self, mode: int, rank: int, loss: Loss) -> Sequence[slice]:
        """Ranges of rows of a mode whose normal equations take little memory."""
        row_bytes = (rank * (rank + 1) // 2 + rank) * self.xp.finfo(self.dtype).bits // 8
        max_rows = max(1, self.max_equation_bytes // row_bytes)
        return split_range(self.shape[mode], max_rows)

    def excess(self, limit: float, tail: Tail) -> float:
        """The excess of the loss over its value at a limit, summed over larger entries."""
        if tail.flat or self.max_abs <= limit:
            return 0.0
        return self._total_cost(lambda x: tail.excess(x, limit))

    def slab_counts(self, mode: int) -> np.ndarray:
        """The number of observed entries in each slab of a mode; host."""
        if self.complete:
            return np.full(self.shape[mode], math.prod(self.shape) // self.shape[mode])
        return self._all_slab_counts[mode]

    @cached_property
    def _all_slab_counts(self) -> list[np.ndarray]:
        xp = self.xp
        return self.slab_sums(lambda x: ~xp.isnan(x))

    @cached_property
    def count(self) -> float:
        """The number of observed entries."""
        return float(self.slab_counts(0).sum())

    @cached_property
    def total_weight(self) -> float:
        """The sum of the weights of observed entries; their number without weights."""
        return self.count if self.view.weights is None else self._total_cost(self.xp.ones_like)

    def residual_counts(self, factors: Factors, mode: int) -> np.ndarray:
        """The number of residuals in each slab of a mode: of observed entries, but for those that
        are censored with the model beyond; host."""
        if self.view.limits is None:
            return self.slab_counts(mode)
        xp = self.xp
        return self.slab_sums(lambda r: ~xp.isnan(r), factors)[mode]

    @cached_property
    def censored_count(self) -> int:
        """The number of observed entries that are at a limit, or beyond."""
        if self.view.limits is None:
            return 0
        beyond = 0.0  # entries without a residual from a model far beyond the limits
        size = (4 * self.max_abs or 1.0) ** (1 / self.order)
        for sign in (-1.0, 1.0):
            model = [self.asarray(np.full((n, 1), size)) for n in self.shape]
            model[0] = sign * model[0]
            beyond += self.count - float(self.residual_counts(tuple(model), 0).sum())
        return round(beyond)

    def residual_slice(self, factors: Factors, fixed: Mapping[int, int]) -> np.ndarray:
        """x - model where some modes are fixed at an index; the others keep their order.

        On the host, float64, NaN where an entry is missing; entries of weight 0 have residuals
        like any other.
        """
        indices = [np.array([fixed[n]]) if n in fixed else None for n in range(self.order)]
        rows = tuple(
            A[fixed[n] : fixed[n] + 1, :] if n in fixed else A for n, A in enumerate(factors)
        )
        residuals = self.subtensor(indices).map_residuals(lambda r: r, rows)
        host = np.asarray(to_host(residuals), dtype=np.float64)
        return host.reshape([size for n, size in enumerate(self.shape) if n not in fixed])

    def count_large_residuals(self, factors: Factors, threshold: float) -> list[np.ndarray]:
        """The number of residuals above a threshold in each slab of each mode; host."""
        xp = self.xp
        return self.slab_sums(lambda r: xp.abs(r) > threshold, factors)

    # Products for the singular vectors of an unfolding X_n, missing entries taken as zero; host

    def gram(self, mode: int, basis: np.ndarray | None = None) -> np.ndarray:
        """X_n X_n', or its product with a basis."""
        X = self._zero_filled_unfolding(mode)
        return np.asarray(X @ X.T if basis is None else X @ (X.T @ basis))

    def cogram(self, mode: int) -> np.ndarray:
        """X_n' X_n, for a mode that is longer than all others together."""
        X = self._zero_filled_unfolding(mode)
        return np.asarray(X.T @ X)

    def project(self, mode: int, basis: np.ndarray) -> np.ndarray:
        """X_n times a basis of prod(other sizes) rows."""
        return np.asarray(self._zero_filled_unfolding(mode) @ basis)

    def _zero_filled_unfolding(self, mode: int) -> Any:
        return np.nan_to_num(self.unfolding(mode, slice(0, self.shape[mode])))
