"""What the rest of the package may ask of data, and what follows from little of it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from robustcp._util.typing import Array, Factors
from robustcp.engines.algebra import Algebra, algebra_for
from robustcp.engines.arrays import check_device, to_host
from robustcp.engines.axes import Axes
from robustcp.engines.entry_field import EntryField, Indices, ListedField, as_weights
from robustcp.engines.fibres import Fibres
from robustcp.engines.normal_equations import NormalEquations
from robustcp.engines.scales import Scales
from robustcp.engines.threads import TileExecutor
from robustcp.losses import Loss, Tail

E = TypeVar("E", bound="Engine")


class WholeSweep(ABC):
    """Whole sweeps over data, for one loss and without constraints."""

    @abstractmethod
    def update_factors(
        self,
        factors: Factors,
        modes: tuple[int, ...],
        mu: float,
        cached_equations: NormalEquations | None,
    ) -> Factors:
        """All factors, with those of some modes updated in turn.

        `mu` is the weight of their squared norms, `cached_equations` are the first one's normal
        equations, if they are known.
        """

    @abstractmethod
    def normal_equations(self, factors: Factors, mode: int) -> NormalEquations:
        """As `Engine.normal_equations`."""


@dataclass(frozen=True)
class View:
    """How data is looked at, without a copy: times 2**-exponent, then cut to a limit.

    Entries count by their weights, those of weight 0 as missing; so do magnitudes beyond
    `mask_limit`, before the cut. Residuals are in units of the scales. `axes` say what modes and
    indices are called.
    """

    exponent: int = 0
    clip_limit: float = math.inf
    weights: EntryField | ListedField | None = None
    mask_limit: float = math.inf
    scales: Scales | None = None
    axes: Axes = field(default=Axes(), compare=False)

    def apply(self, x: Array, xp: Any) -> Array:
        """Data as it is seen."""
        if self.exponent:  # in two steps: 2^144 is beyond float32, which goes down to 2^-149
            half = self.exponent // 2
            x = x * math.ldexp(1.0, -half) * math.ldexp(1.0, half - self.exponent)
        if self.mask_limit < math.inf:
            x = xp.where(xp.abs(x) > self.mask_limit, xp.full_like(x, math.nan), x)
        return x if self.clip_limit == math.inf else xp.clip(x, -self.clip_limit, self.clip_limit)

    @property
    def is_identity(self) -> bool:
        """Whether the data is seen as it is, but for weights and scales."""
        return self.exponent == 0 and self.clip_limit == self.mask_limit == math.inf

    def apply_to_magnitude(self, magnitude: float) -> float:
        """A magnitude as it is seen, or what bounds it."""
        return min(math.ldexp(magnitude, -self.exponent), self.clip_limit, self.mask_limit)

    def masks(self, magnitude: float) -> bool:
        """Whether a magnitude counts as missing."""
        return math.ldexp(magnitude, -self.exponent) > self.mask_limit

    def subset(self, indices: Sequence[np.ndarray | None]) -> View:
        """The view of a part of the data; see `Engine.subtensor`."""
        view = self.restrict(indices)
        return replace(view, axes=self.axes.subset(indices))

    def restrict(self, indices: Sequence[Indices]) -> View:
        """The view with the weights and scales at some indices of each mode, and all its names."""
        weights = self.weights and self.weights.subset(indices)
        return replace(self, weights=weights, scales=self.scales and self.scales.subset(indices))

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


@dataclass(frozen=True, eq=False)
class Sample:
    """Some entries of the data, or their residuals, and where they are.

    Attributes
    ----------
    values : float64 array (count,)
    indices : tuple of integer arrays (count,), one for each mode; found when asked for
    weights, scales : float64 array (count,), optional
        Those of the entries, where all were asked for and have any.
    """

    values: np.ndarray
    locate: Callable[[], tuple[np.ndarray, ...]] = field(repr=False)
    weights: np.ndarray | None = field(repr=False, default=None)
    scales: np.ndarray | None = field(repr=False, default=None)

    @cached_property
    def indices(self) -> tuple[np.ndarray, ...]:
        return self.locate()


class Engine(ABC):
    """Data of one kind, and how it is passed over.

    Arrays that go in or come out are of the library `xp`, on the engine's device, unless said
    otherwise. Sums over the data are additive over its parts.

    A new engine needs the abstract methods; the others follow from them, and may be overridden
    where there is a faster way.

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
    takes_weights : bool
        Whether the engine heeds `view.weights`: losses and what is made of them count by the
        weights; an entry of weight 0 is missing, in everything but `map_residuals`.
    takes_scales : bool
        Whether the engine heeds `view.scales`: with u the scale of an entry, whatever is asked
        with factors is about (x - model) / u, normal equations included; the rest about x.
    """

    shape: tuple[int, ...]
    xp: Any
    dtype: Any
    view: View = View()
    executor: TileExecutor = TileExecutor(1)
    takes_weights: bool = False
    takes_scales: bool = False

    # What an engine must say

    @property
    @abstractmethod
    def max_abs(self) -> float:
        """The largest magnitude in the data."""

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether no entry is missing."""

    @abstractmethod
    def asarray(self, array: Any) -> Array:
        """A host array as one of this engine's, on its device."""

    @abstractmethod
    def with_view(self: E, view: View) -> E:
        """The same data, looked at in another way; nothing is copied."""

    @abstractmethod
    def normal_equations(
        self, factors: Factors, mode: int, loss: Loss, rows: slice | None = None
    ) -> NormalEquations:
        """The normal equations of a mode's factor, or of some of its rows."""

    @abstractmethod
    def sample(self, factors: Factors | None = None) -> Sample:
        """x, or x - model, on a fixed sample of the entries (all of a small tensor)."""

    def entries(self, factors: Factors | None = None) -> Sample:
        """x, or x - model, of all entries that were observed; for data that is not large."""
        if factors is None:
            values = self.unfolding(0, slice(0, self.shape[0])).reshape(self.shape)
        else:
            values = np.array(to_host(self.map_residuals(lambda r: r, factors)), dtype=np.float64)
        weights, scales = self.view.weights, self.view.scales
        entry_weights = None
        if weights is not None:
            all_weights = weights.values_at(np.indices(self.shape).reshape(self.order, -1))
            entry_weights = all_weights.reshape(self.shape)
            values[entry_weights == 0] = np.nan
        indices = np.nonzero(~np.isnan(values))
        return Sample(
            values[indices],
            lambda: indices,
            None if entry_weights is None else entry_weights[indices],
            None if scales is None else scales.values_at(indices),
        )

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

    @abstractmethod
    def slab_sums(
        self,
        work: Callable[[Array], Array],
        factors: Factors | None = None,
        *,
        weighted: bool = False,
    ) -> list[np.ndarray]:
        """The sum over each slab of each mode of work(x), or work(x - model); host.

        `work` takes an array of some entries, NaN where one is missing, and returns as many
        numbers or truth values. They are multiplied by the entries' weights only if `weighted`,
        which is asked only of data that has weights.
        """

    @abstractmethod
    def map_residuals(self, work: Callable[[Array], Array], factors: Factors) -> Array:
        """work(x - model) of every entry, an array of the data's shape and library.

        Entries of weight 0 have residuals like any other.
        """

    @abstractmethod
    def subtensor(self, indices: Sequence[np.ndarray | None]) -> Engine:
        """The part at some indices of each mode; None takes a mode whole."""

    @abstractmethod
    def unfolding(self, mode: int, rows: slice) -> np.ndarray:
        """Some rows of the mode-n unfolding, other modes in order, the last fastest.

        On the host, float64, NaN where an entry is missing.
        """

    @property
    def device(self) -> Any:
        """Where the data was given, and so where users expect results."""
        return "cpu"

    @property
    def in_memory(self) -> Engine:
        """The same data where many small fits of it are fastest: small data is in memory."""
        return self

    @property
    def off_device(self) -> Engine:
        """The same data on the host, if it is so small that fits are faster there."""
        return self

    @property
    def entries_fit_in_memory(self) -> bool:
        """Whether there is room for all entries with their indices, as `entries` gives them."""
        return True

    def check_memory(self) -> None:
        """Refuse to begin a fit that would run out of the device's memory."""
        return

    # What follows

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
        return algebra_for(self.xp)

    def scaled(self: E, exponent: int) -> E:
        """The same data times 2**-exponent, before any scales by signal."""
        view = self.view
        if view.scales is not None and view.scales.variance is not None:
            raise ValueError("scales: a signal is in the units of the data; scale the data first")
        clip_limit, mask_limit = (
            math.ldexp(magnitude, -exponent) for magnitude in (view.clip_limit, view.mask_limit)
        )
        return self.with_view(
            replace(
                view,
                exponent=view.exponent + exponent,
                clip_limit=clip_limit,
                mask_limit=mask_limit,
            )
        )

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

    def entry_scales(self) -> Array:
        """The scale of every entry, an array of the data's shape and library; 1 without any."""
        if self.view.scales is not None:
            indices = np.indices(self.shape).reshape(self.order, -1)
            return self.asarray(self.view.scales.values_at(indices).reshape(self.shape))
        zeros = tuple(self.asarray(np.zeros((size, 1))) for size in self.shape)
        return self.map_residuals(self.xp.ones_like, zeros)

    def value(self, factors: Factors, loss: Loss) -> float:
        """The loss summed over the data."""
        return self._total_cost(loss.value, factors)

    def _total_cost(self, cost: Callable[[Array], Array], factors: Factors | None = None) -> float:
        """An elementwise cost of x, or of x - model, summed over the data by its weights."""
        work = self._ignore_missing(cost)
        weights = {} if self.view.weights is None else {"weighted": True}
        return math.fsum(self.slab_sums(work, factors, **weights)[0])

    def _ignore_missing(self, cost: Callable[[Array], Array]) -> Callable[[Array], Array]:
        """An elementwise cost in float64, with 0 for missing entries."""
        xp = self.xp

        def work(x: Array) -> Array:
            costs = cost(xp.astype(x, xp.float64))
            return xp.where(xp.isnan(x), xp.zeros_like(costs), costs)

        return work

    def whole_sweep(self, loss: Loss) -> WholeSweep | None:
        """Whole sweeps, where they are faster than the updates of one factor after the other."""
        return None

    def row_blocks(self, mode: int, rank: int, loss: Loss) -> Sequence[slice]:
        """Parts of a mode whose normal equations are small beside the data."""
        return [slice(0, self.shape[mode])]

    def excess(self, limit: float, tail: Tail) -> float:
        """What entries beyond a limit cost more, under a loss of some tail, than the limit."""
        if tail.flat or self.max_abs <= limit:
            return 0.0
        return self._total_cost(lambda x: tail.excess(x, limit))

    def slab_counts(self, mode: int) -> np.ndarray:
        """How many entries each slab of a mode holds, missing ones left out; host."""
        if self.complete:
            return np.full(self.shape[mode], math.prod(self.shape) // self.shape[mode])
        return self._all_slab_counts[mode]

    @cached_property
    def _all_slab_counts(self) -> list[np.ndarray]:
        xp = self.xp
        return self.slab_sums(lambda x: ~xp.isnan(x))

    @cached_property
    def count(self) -> float:
        """How many entries there are, missing ones left out."""
        return float(self.slab_counts(0).sum())

    @cached_property
    def total_weight(self) -> float:
        """The sum of the entries' weights: without any, how many entries there are."""
        return self.count if self.view.weights is None else self._total_cost(self.xp.ones_like)

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
        """How many residuals are larger than a threshold in each slab of each mode; host."""
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
