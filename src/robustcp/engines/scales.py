"""Scales of entries: how large the noise of each one is, where it is not the same everywhere.

Data that is looked at with scales has residuals r = (x - m) / u. What a loss costs is the sum of
w rho(r), whose slope in m is rho'(r) / u and whose curvature is that of the loss over u^2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import array_api_compat
import numpy as np

from robustcp._util.checks import ArgumentError, real_number
from robustcp._util.typing import Array
from robustcp.engines.arrays import to_host
from robustcp.engines.entries import model_at
from robustcp.engines.installed import numba_kernels
from robustcp.engines.tiles import Tile, TileFactors, khatri_rao, slice_length
from robustcp.engines.weights import CoordinateWeights, MatrixWeights, TileWeights, Weights

_ARGUMENT_NAME = "scales"
#: Inverse scales of tensors with no more entries are kept for all compiled passes.
MAX_CACHED_ENTRIES = 1 << 21


@dataclass(frozen=True, eq=False)
class Signal:
    """Variance by signal: constant + linear |m| + quadratic m^2, with m a model that is held.

    Attributes
    ----------
    factors : tuple of float64 array (I_n, R)
        On the host, in the units of the data as it is seen; R need not be the rank of a fit.
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
        """That of the data."""
        return tuple(len(A) for A in self.factors)

    def subset(self, indices: Sequence[np.ndarray | None]) -> Signal:
        """The signal at some indices of each mode; None takes a mode whole."""
        rows = (
            A if index is None else A[index] for A, index in zip(self.factors, indices, strict=True)
        )
        return replace(self, factors=tuple(rows))

    def values_at(self, indices: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """The standard deviations of some entries, on the host."""
        return np.asarray(self.standard_deviation(model_at(self.factors, indices), np))

    def standard_deviation(self, model: Array, xp: Any) -> Array:
        """The standard deviation by a model of either sign, in float64: squares may be large."""
        magnitude = xp.astype(xp.abs(model), xp.float64)
        return xp.sqrt((self.quadratic * magnitude + self.linear) * magnitude + self.constant)


@dataclass(frozen=True, eq=False)
class Scales:
    """How large the noise of each entry is, relative to a common size.

    That is u = unit * slabs * sqrt(variance by signal), with a smooth floor: (u^4 + least^4)^(1/4).

    Attributes
    ----------
    slabs : Weights or Listed, optional
        One vector (or None) for each mode, an array that broadcasts, or a value for each entry of
        an `Observed` tensor in the order given; all positive.
    signal : Signal, optional
    least : float
        What no scale is below.
    unit : float
        So that values which are known need not be copied.

    Examples
    --------
    >>> import numpy as np
    >>> from robustcp.engines import Scales, Weights, as_engine
    >>> rows = Weights((2, 3), (np.array([1.0, 4.0]), None))
    >>> engine = as_engine(np.full((2, 3), 8.0)).standardized(Scales(rows))
    >>> engine.map_residuals(lambda r: r, (np.zeros((2, 1)), np.zeros((3, 1))))
    array([[8., 8., 8.],
           [2., 2., 2.]])
    """

    slabs: Weights | CoordinateWeights | None = None
    signal: Signal | None = None
    least: float = 0.0
    unit: float = 1.0

    def __post_init__(self) -> None:
        real_number(f"{_ARGUMENT_NAME}: least", self.least, 0.0)
        real_number(f"{_ARGUMENT_NAME}: unit", self.unit, 0.0, strict=True)
        if self.signal is not None and self.least == self.signal.constant == 0:
            raise ArgumentError(
                _ARGUMENT_NAME, "least must be > 0 where a signal of 0 has no variance"
            )
        if isinstance(self.slabs, Weights):
            arrays = (*self.slabs.vectors, self.slabs.array)
        else:
            arrays = (None if self.slabs is None else self.slabs.values,)
        for values in arrays:
            if values is not None:
                _check_positive(values)

    def check(self, shape: tuple[int, ...], entries_shape: tuple[int, ...] | None = None) -> None:
        """Complain if these are not for data of some shape, or of so many listed entries."""
        for part in (self.slabs, self.signal):
            expected = entries_shape if isinstance(part, CoordinateWeights) else shape
            if part is not None and part.shape != expected:
                raise ArgumentError(
                    _ARGUMENT_NAME, f"are of shape {part.shape}, the data of {expected or shape}"
                )

    def values_at(self, indices: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """The scales of some entries, on the host; those of listed entries have no indices."""
        if isinstance(self.slabs, CoordinateWeights):
            raise TypeError(f"{_ARGUMENT_NAME}: of listed entries are not known by indices")
        u = None if self.slabs is None else self.slabs.values_at(indices)
        if self.signal is not None:
            by_signal = self.signal.values_at(indices)
            u = by_signal if u is None else u * by_signal
        return self.apply_unit_and_floor(u, len(indices[0]))

    def apply_unit_and_floor(self, u: np.ndarray | None, count: int) -> np.ndarray:
        """So many scales, given slabs times signal; None if there is neither."""
        u = np.ones(count) if u is None else u
        return np.asarray(apply_floor(self.unit * u, self.least, np))

    def subset(self, indices: Sequence[np.ndarray | None]) -> Scales:
        """The scales at some indices of each mode; None takes a mode whole.

        Listed ones stay as they are: their engine knows which entries are left.
        """
        slabs, signal = self.slabs, self.signal
        if isinstance(slabs, Weights):
            slabs = slabs.subset(indices)
        return replace(self, slabs=slabs, signal=None if signal is None else signal.subset(indices))


def apply_floor(u: Array, least: float, xp: Any) -> Array:
    """Scales with a smooth floor."""
    return u if least == 0 else xp.sqrt(xp.hypot(u * u, xp.full_like(u, least * least)))


def _check_positive(values: Array) -> None:
    xp = array_api_compat.array_namespace(values)
    low, high = float(xp.min(values)), float(xp.max(values))
    if not (low > 0 and high < math.inf):
        bad = to_host(values)
        first = float(bad[~((bad > 0) & (bad < math.inf))].flat[0])
        raise ArgumentError(_ARGUMENT_NAME, f"must be positive and finite, got {first:g}")


class TileScales:
    """Scales as the tiles of a stored array need them: its modes, its library, its device.

    Attributes
    ----------
    slabs : TileWeights, optional
    signal_factors : list of arrays
        The factors of the signal, in storage order; none without a signal.
    parameters : (constant, linear, quadratic, least)
    unit : float
    """

    def __init__(
        self, scales: Scales, order: Sequence[int], split: int, xp: Any, dtype: Any, device: Any
    ) -> None:
        self._xp, self.dtype, self._device = xp, dtype, device
        slabs, signal = scales.slabs, scales.signal
        self.slabs = None
        if isinstance(slabs, Weights) and _has_values(slabs):
            self.slabs = TileWeights(slabs, order, xp, dtype, device)
        self._signal, self._least, self.unit = signal, scales.least, scales.unit
        self.signal_factors: list[Array] = []
        self.parameters: tuple[float, ...] = (1.0, 0.0, 0.0, float(scales.least))
        if signal is not None:
            self.signal_factors = [
                xp.asarray(np.array(signal.factors[mode]), dtype=dtype, device=device)
                for mode in order
            ]
            parameters = (signal.constant, signal.linear, signal.quadratic, scales.least)
            self.parameters = tuple(map(float, parameters))
        self._factors = TileFactors(xp, self.signal_factors, split)
        self._matrix_scales: MatrixScales | None = None

    def tile_values(self, tile: Tile) -> Array:
        """The scales of a tile, in its shape."""
        sizes = tuple(map(slice_length, tile))
        u = None if self.slabs is None else self.slabs.tile_values(tile)
        if self._signal is not None:  # minus a model is as good as the model
            by_signal = self._signal.standard_deviation(self._factors.negated_model(tile), self._xp)
            by_signal = self._xp.reshape(by_signal, sizes)
            u = by_signal if u is None else u * by_signal
        return self._apply_unit_and_floor(u, sizes)

    def values_at(self, indices: Sequence[Array]) -> Array:
        """The scales of some entries."""
        xp = self._xp
        u = None if self.slabs is None else self.slabs.values_at(indices)
        if self._signal is not None:
            by_signal = self._signal.standard_deviation(model_at(self.signal_factors, indices), xp)
            u = by_signal if u is None else u * by_signal
        return self._apply_unit_and_floor(u, tuple(indices[0].shape))

    def _apply_unit_and_floor(self, u: Array | None, shape: tuple[int, ...]) -> Array:
        xp = self._xp
        if u is None:
            u = xp.ones(shape, dtype=self.dtype, device=self._device)
        u = apply_floor(u if self.unit == 1 else self.unit * u, self._least, xp)
        return u if u.dtype == self.dtype else xp.astype(u, self.dtype)

    def as_matrix(self, shape: Sequence[int], split: int) -> MatrixScales:
        """As compiled passes need them, kept for those of all views with these scales."""
        if self._matrix_scales is None:
            self._matrix_scales = MatrixScales(self, shape, split)
        return self._matrix_scales


class MatrixScales:
    """Inverse scales as blocks of the matrix view need them, of a NumPy array; see `Storage`.

    Those of a small tensor are made once.
    """

    def __init__(self, scales: TileScales, shape: Sequence[int], split: int) -> None:
        signal_factors, dtype, self._parameters = (
            scales.signal_factors,
            scales.dtype,
            np.array(scales.parameters, float),
        )
        self._size = math.prod(shape[:split]), math.prod(shape[split:])
        self._dtype = dtype
        self._slabs: MatrixWeights | None = None
        self._unit = np.dtype(dtype).type(1 / scales.unit)
        self._outer = [np.ones(size, dtype) for size in self._size]
        if scales.slabs is not None:
            slabs = MatrixWeights(scales.slabs, shape, split)
            self._outer = [1 / product for product in slabs.products]
            self._slabs = None if scales.slabs.array is None else slabs
        self._outer[0] = self._outer[0] * self._unit
        sides = (signal_factors[:split], signal_factors[split:])
        self._signal_products = [
            np.ascontiguousarray(khatri_rao(side)) if signal_factors else np.empty((size, 0), dtype)
            for side, size in zip(sides, self._size, strict=True)
        ]
        self._full_matrix: np.ndarray | None = None
        if math.prod(self._size) <= MAX_CACHED_ENTRIES:
            self._full_matrix = self._compute_block(*(slice(0, size) for size in self._size))

    def block(self, rows: slice, columns: slice) -> tuple[np.ndarray, tuple[int, int]]:
        """A C-ordered matrix with the inverse scales of a block, and where it begins in it."""
        if self._full_matrix is not None:
            return self._full_matrix, (rows.start, columns.start)
        return self._compute_block(rows, columns), (0, 0)

    def _compute_block(self, rows: slice, columns: slice) -> np.ndarray:
        if self._slabs is None:
            h = np.empty((slice_length(rows), slice_length(columns)), self._dtype)
        else:
            h = self._unit / self._slabs.block(rows, columns)
        (down, across), (left, right) = self._outer, self._signal_products
        code, rank = numba_kernels(), left.shape[1]
        inputs = h, down[rows], across[columns], left[rows], right[columns]
        arrays = *(np.ascontiguousarray(A, h.dtype) for A in inputs), self._parameters
        code.inverse_scales(h.dtype).run(
            code.gemm(h.dtype),
            *h.shape,
            rank,
            self._slabs is None,
            *map(code.address, arrays),
        )
        return h


def _has_values(slabs: Weights) -> bool:
    return slabs.array is not None or any(vector is not None for vector in slabs.vectors)
