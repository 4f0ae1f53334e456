"""Scales of entries: the standard deviation of the noise of each entry, up to a common factor.

In an engine with scales u the residuals are r = (x - m) / u. The cost is the sum of w rho(r), whose
slope in m is -rho'(r) / u and whose curvature is the curvature of the loss over u^2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import array_api_compat
import numpy as np

from robustcp._util.checks import ArgumentError, real_number
from robustcp._util.typing import Array
from robustcp.engines.arrays import to_host
from robustcp.engines.entries import model_at
from robustcp.engines.entry_field import (
    EntryField,
    Indices,
    ListedField,
    MatrixField,
    TileField,
    check_shape,
)
from robustcp.engines.installed import numba_kernels
from robustcp.engines.tiles import Tile, TileFactors, khatri_rao, slice_length

_ARGUMENT_NAME = "scales"
#: Inverse scales of tensors with no more entries are kept for all compiled passes.
MAX_CACHED_ENTRIES = 1 << 21


@dataclass(frozen=True, eq=False)
class VarianceFunction:
    """The variance of an entry as a function of a fixed model m: constant + linear |m| +
    quadratic m^2.

    Attributes
    ----------
    factors : tuple of float64 array (I_n, R)
        The factors of m, on the host, in the units of the data as viewed; R need not be the rank of
        a fit.
    constant, linear, quadratic : float
        Not negative, and not all 0.
    """

    factors: tuple[np.ndarray, ...]
    constant: float
    linear: float
    quadratic: float

    def __post_init__(self) -> None:
        for name in ("constant", "linear", "quadratic"):
            real_number(f"{_ARGUMENT_NAME}: {name}", getattr(self, name), 0.0)
        if self.constant == self.linear == self.quadratic == 0:
            raise ArgumentError(_ARGUMENT_NAME, "a signal without any variance")
        if len({np.shape(A)[1:] for A in self.factors}) != 1 or np.ndim(self.factors[0]) != 2:
            shapes = ", ".join(str(np.shape(A)) for A in self.factors)
            raise ArgumentError(
                _ARGUMENT_NAME, f"factors of the signal must be (I_n, R), got {shapes}"
            )
        if not all(np.isfinite(A).all() for A in self.factors):
            raise ArgumentError(_ARGUMENT_NAME, "factors of the signal must be finite")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the data."""
        return tuple(len(A) for A in self.factors)

    def subset(self, indices: Sequence[Indices]) -> VarianceFunction:
        """The variance function of the entries at some indices of each mode."""
        pairs = zip(self.factors, indices, strict=True)
        return replace(self, factors=tuple(A if i is None else A[i] for A, i in pairs))

    def standard_deviations_at(self, indices: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """The standard deviations of some entries, on the host."""
        return np.asarray(self.standard_deviations(model_at(self.factors, indices), np))

    def standard_deviations(self, model: Array, xp: Any) -> Array:
        """Standard deviations at entries of +m or -m, in float64: squares may be large."""
        magnitude = xp.astype(xp.abs(model), xp.float64)
        return xp.sqrt((self.quadratic * magnitude + self.linear) * magnitude + self.constant)


@dataclass(frozen=True, eq=False)
class Scales:
    """The standard deviation of each entry in some unit, such as the median standard deviation.

    u = unit * field * sqrt(variance), with a smooth lower bound: (u^4 + least^4)^(1/4).

    Attributes
    ----------
    field : EntryField or ListedField, optional
        All positive; without one, ones.
    variance : VarianceFunction, optional
    least : float
        The lower bound of all scales.
    unit : float
        So that standard deviations that users give need not be copied.

    Examples
    --------
    >>> import numpy as np
    >>> from robustcp.engines import EntryField, Scales, as_engine
    >>> rows = EntryField((2, 3), (np.array([1.0, 4.0]), None))
    >>> engine = as_engine(np.full((2, 3), 8.0)).standardized(Scales(rows))
    >>> engine.map_residuals(lambda r: r, (np.zeros((2, 1)), np.zeros((3, 1))))
    array([[8., 8., 8.],
           [2., 2., 2.]])
    """

    field: EntryField | ListedField | None = None
    variance: VarianceFunction | None = None
    least: float = 0.0
    unit: float = 1.0

    def __post_init__(self) -> None:
        real_number(f"{_ARGUMENT_NAME}: least", self.least, 0.0)
        real_number(f"{_ARGUMENT_NAME}: unit", self.unit, 0.0, strict=True)
        if self.variance is not None and self.least == self.variance.constant == 0:
            raise ArgumentError(
                _ARGUMENT_NAME, "least must be > 0 where a signal of 0 has no variance"
            )
        if isinstance(self.field, ListedField):
            _check_positive(self.field.values)
        elif self.field is not None:
            for values in (*self.field.vectors, self.field.array):
                if values is not None:
                    _check_positive(values)

    def check(self, shape: tuple[int, ...], listed_shape: tuple[int, ...] | None = None) -> None:
        """Refuse scales that are not for data of some shape, or not for all its listed entries."""
        if self.field is not None:
            check_shape(self.field, _ARGUMENT_NAME, shape, listed_shape)
        if self.variance is not None and self.variance.shape != shape:
            raise ArgumentError(
                _ARGUMENT_NAME, f"are of shape {self.variance.shape}, the data of {shape}"
            )

    def map_field(
        self, change: Callable[[EntryField | ListedField], EntryField | ListedField]
    ) -> Scales:
        """The scales with another field in place of their own, if they have one."""
        return self if self.field is None else replace(self, field=change(self.field))

    def subset(self, indices: Sequence[Indices]) -> Scales:
        """The scales of the entries at some indices of each mode."""
        variance = None if self.variance is None else self.variance.subset(indices)
        return replace(self, variance=variance).map_field(lambda field: field.subset(indices))

    def values_at(self, indices: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """The scales of some entries, given by an array of indices for each mode; host."""
        values = np.ones(len(indices[0])) if self.field is None else self.field.values_at(indices)
        deviations = self.variance and self.variance.standard_deviations_at(indices)
        return np.asarray(self.combine(values, deviations, np))

    def combine(self, values: Array, deviations: Array | None, xp: Any) -> Array:
        """Scales from the field and from standard deviations by the variance function, if any."""
        u = values if deviations is None else values * deviations
        u = u if self.unit == 1 else self.unit * u
        if self.least == 0:
            return u
        return xp.sqrt(xp.hypot(u * u, xp.full_like(u, self.least * self.least)))


def _check_positive(values: Array) -> None:
    xp = array_api_compat.array_namespace(values)
    low, high = float(xp.min(values)), float(xp.max(values))
    if not (low > 0 and high < math.inf):
        bad = to_host(values)
        first = float(bad[~((bad > 0) & (bad < math.inf))].flat[0])
        raise ArgumentError(_ARGUMENT_NAME, f"must be positive and finite, got {first:g}")


class TileScales:
    """Scales in the storage order, the library and on the device of a stored array.

    Attributes
    ----------
    field : TileField
    signal_factors : list of arrays
        The factors of the variance function, in storage order; none without one.
    parameters : (constant, linear, quadratic, least)
    unit : float
    """

    def __init__(
        self, scales: Scales, order: Sequence[int], split: int, xp: Any, dtype: Any, device: Any
    ) -> None:
        self._xp, self.dtype, self._scales = xp, dtype, scales
        variance, self.unit = scales.variance, scales.unit
        field = EntryField.ones((1,) * len(order)) if scales.field is None else scales.field
        assert isinstance(field, EntryField)
        self.field = TileField(field, order, xp, dtype, device)
        self.signal_factors: list[Array] = []
        self.parameters: tuple[float, ...] = (1.0, 0.0, 0.0, float(scales.least))
        if variance is not None:
            self.signal_factors = [
                xp.asarray(np.array(variance.factors[mode]), dtype=dtype, device=device)
                for mode in order
            ]
            parameters = (variance.constant, variance.linear, variance.quadratic, scales.least)
            self.parameters = tuple(map(float, parameters))
        self._factors = TileFactors(xp, self.signal_factors, split)
        self._inverse_scales: InverseScales | None = None

    def tile_values(self, tile: Tile) -> Array:
        """The scales of a tile, in its shape."""
        model = self._factors.negated_model(tile) if self.signal_factors else None
        return self._combine(self.field.tile_values(tile), model)

    def values_at(self, indices: Sequence[Array]) -> Array:
        """The scales of some entries, given by an array of indices for each mode."""
        factors = self.signal_factors
        model = model_at(factors, indices) if factors else None
        return self._combine(self.field.values_at(indices), model)

    def _combine(self, values: Array, model: Array | None) -> Array:
        xp, variance = self._xp, self._scales.variance
        deviations = None
        if variance is not None:
            deviations = xp.reshape(variance.standard_deviations(model, xp), values.shape)
        u = self._scales.combine(values, deviations, xp)
        return u if u.dtype == self.dtype else xp.astype(u, self.dtype)

    def inverse_scales(self, shape: Sequence[int], split: int) -> InverseScales:
        """The inverse scales by blocks, shared by the compiled passes of all views."""
        if self._inverse_scales is None:
            self._inverse_scales = InverseScales(self, shape, split)
        return self._inverse_scales


class InverseScales:
    """Inverse scales by blocks of the matrix view of a NumPy array; see `Storage`.

    Those of a small tensor are computed once.
    """

    def __init__(self, scales: TileScales, shape: Sequence[int], split: int) -> None:
        dtype = self._dtype = scales.dtype
        self._parameters = np.array(scales.parameters, float)
        self._size = math.prod(shape[:split]), math.prod(shape[split:])
        self._unit = np.dtype(dtype).type(1 / scales.unit)
        field = MatrixField(scales.field, shape, split)
        self._field = None if scales.field.array is None else field
        down, across = (1 / product for product in field.products)
        self._outer = down * self._unit, across
        factors = scales.signal_factors
        self._signal_products = [
            np.ascontiguousarray(khatri_rao(side)) if side else np.empty((size, 0), dtype)
            for side, size in zip((factors[:split], factors[split:]), self._size, strict=True)
        ]
        self._full_matrix: np.ndarray | None = None
        if math.prod(self._size) <= MAX_CACHED_ENTRIES:
            self._full_matrix = self._compute_block(*(slice(0, size) for size in self._size))

    def block(self, rows: slice, columns: slice) -> tuple[np.ndarray, tuple[int, int]]:
        """A C-ordered matrix with the inverse scales of a block, and where the block begins."""
        if self._full_matrix is not None:
            return self._full_matrix, (rows.start, columns.start)
        return self._compute_block(rows, columns), (0, 0)

    def _compute_block(self, rows: slice, columns: slice) -> np.ndarray:
        if self._field is None:
            h = np.empty((slice_length(rows), slice_length(columns)), self._dtype)
        else:
            h = self._unit / self._field.block(rows, columns)
        (down, across), (left, right) = self._outer, self._signal_products
        code, rank = numba_kernels(), left.shape[1]
        inputs = h, down[rows], across[columns], left[rows], right[columns]
        arrays = *(np.ascontiguousarray(A, h.dtype) for A in inputs), self._parameters
        code.inverse_scales(h.dtype).run(
            code.gemm(h.dtype), *h.shape, rank, self._field is None, *map(code.address, arrays)
        )
        return h
