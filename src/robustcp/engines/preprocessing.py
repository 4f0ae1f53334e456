"""Preprocessing of entries: functions of them, centring across a mode, scaling within a mode.

A centring across a mode subtracts, for each combination of indices of the other modes, a location
over the mode. A scaling within a mode divides each slab of it by its size (Bro & Smilde 2003,
Journal of Chemometrics 17, 16-33). All steps are increasing functions of each entry.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import array_api_compat
import numpy as np

from robustcp._util import checks
from robustcp._util.checks import ArgumentError
from robustcp._util.typing import Array
from robustcp.engines.arrays import is_lazy, take_indices
from robustcp.engines.axes import Arrangement
from robustcp.engines.entry_field import Indices, broadcast_box, broadcast_indices
from robustcp.engines.limits import Limits
from robustcp.engines.tiles import Tile

ARGUMENT_NAME = "preprocess"
#: Takes from an array that broadcasts to the data the values of some entries.
Locate = Callable[[np.ndarray], np.ndarray]


class PreprocessingStep(ABC):
    """One step of preprocessing: an increasing function of each entry, which can be undone."""

    #: Whether the step adds or multiplies, so that residuals of data are multiples of residuals.
    affine: ClassVar[bool] = False

    @abstractmethod
    def apply(self, x: Array, value: Array | None, xp: Any) -> Array:
        """Preprocessed entries; NaN stays NaN."""

    @abstractmethod
    def undo(self, z: Array, value: Array | None, xp: Any) -> Array:
        """The entries that are preprocessed to some values."""

    @abstractmethod
    def describe(self, modes: Sequence[str]) -> str:
        """The step in words."""


@dataclass(frozen=True)
class Center(PreprocessingStep):
    """Subtract a location over a mode, for each combination of indices of the other modes.

    Parameters
    ----------
    mode : int or str
        The mode across which data is centred, such as the samples, by number or name.
    location : {"median", "skipped", "mean"}
        The median is not moved by bad samples as long as they are fewer than half. "skipped" is the
        mean of the values within 3 standard deviations of the median, as the median distance from
        it tells them. A mean over the same samples for all fibres takes components to components,
        as a median does only nearly: where the noise is far smaller than the differences between
        samples, centring by medians leaves a remainder that "skipped" does not, but for single
        skipped values.

    Examples
    --------
    >>> import numpy as np, robustcp
    >>> from robustcp.preprocess import Center
    >>> X = robustcp.simulate((12, 8, 6), 1, eta=0, gamma=0, rng=0).data + 5.0
    >>> fit = robustcp.cp(X, 1, preprocess=[Center(0)])
    >>> bool(np.allclose(fit.preprocessing.values[0][0], np.median(X, axis=0)))
    True
    """

    mode: int | str
    location: str = "median"
    affine: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.choice("location", self.location, ("median", "skipped", "mean"))

    def apply(self, x: Array, value: Array | None, xp: Any) -> Array:
        return x - value

    def undo(self, z: Array, value: Array | None, xp: Any) -> Array:
        return z + value

    def describe(self, modes: Sequence[str]) -> str:
        return f"centred across {modes[int(self.mode)]} ({self.location})"


@dataclass(frozen=True)
class Scale(PreprocessingStep):
    """Divide each slab of a mode by its size.

    Parameters
    ----------
    mode : int or str
        The mode within which data is scaled, such as the variables, by number or name.
    size : {"tau", "rms", "sd"}
        "tau" is a robust root mean square: the tau scale of Yohai and Zamar (1988) about 0, with a
        breakdown point of 50% and an efficiency of 95%. Entries that are exactly 0 do not count, so
        that sparse slabs are not blown up. "rms" is the root mean square, as in the N-way toolbox;
        "sd" the standard deviation about the mean of the slab.

    Examples
    --------
    >>> import numpy as np, robustcp
    >>> from robustcp.preprocess import Scale
    >>> X = robustcp.simulate((12, 3, 6), 1, eta=0, gamma=0, rng=0).data
    >>> units = np.array([1.0, 1000.0, 0.01])
    >>> plain, scaled = (
    ...     robustcp.cp(data, 1, preprocess=[Scale(1)]) for data in (X, X * units[:, None])
    ... )
    >>> bool(np.allclose(plain.full() * units[:, None], scaled.full(), rtol=1e-3))
    True
    """

    mode: int | str
    size: str = "tau"
    affine: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.choice("size", self.size, ("tau", "rms", "sd"))

    def apply(self, x: Array, value: Array | None, xp: Any) -> Array:
        return x / value

    def undo(self, z: Array, value: Array | None, xp: Any) -> Array:
        return z * value

    def describe(self, modes: Sequence[str]) -> str:
        return f"scaled within {modes[int(self.mode)]} ({self.size})"


@dataclass(frozen=True)
class Log(PreprocessingStep):
    """The natural logarithm of entries.

    Parameters
    ----------
    floor : float, optional
        Smaller entries count as this, such as half of the smallest count or of the limit of
        detection. Without one, entries that are not positive count as missing.
    shift : float
        What is added to entries before: ``Log(shift=1)`` is log(1 + x).

    Examples
    --------
    >>> import numpy as np, robustcp
    >>> from robustcp.preprocess import Log
    >>> X = np.exp(robustcp.simulate((12, 8, 6), 1, eta=0, gamma=0, rng=0).data)
    >>> fit = robustcp.cp(X, 1, preprocess=[Log()])
    >>> bool(np.median(np.abs(fit.full() / X - 1)) < 0.1)
    True
    """

    floor: float | None = None
    shift: float = 0.0

    def __post_init__(self) -> None:
        checks.real_number("shift", self.shift, 0.0)
        if self.floor is not None and not self.floor + self.shift > 0:
            raise ArgumentError("floor", f"must be positive, got {self.floor!r}")

    def apply(self, x: Array, value: Array | None, xp: Any) -> Array:
        if self.floor is not None:
            x = xp.where(x < self.floor, xp.full_like(x, self.floor), x)
        x = x + self.shift
        return xp.log(xp.where(x > 0, x, xp.full_like(x, np.nan)))

    def undo(self, z: Array, value: Array | None, xp: Any) -> Array:
        return xp.exp(z) - self.shift

    def describe(self, modes: Sequence[str]) -> str:
        shift = f" + {self.shift:g}" if self.shift else ""
        return f"log(x{shift})" + ("" if self.floor is None else f" of at least {self.floor:g}")


@dataclass(frozen=True)
class Sqrt(PreprocessingStep):
    """The square root of entries; negative ones count as missing.

    The variance of a square root of a count is about 1/4, whatever its mean, if that is large.

    Examples
    --------
    >>> import robustcp
    >>> from robustcp.preprocess import Sqrt
    >>> X = robustcp.simulate((12, 8, 6), 1, eta=0, gamma=0, rng=0).data ** 2
    >>> robustcp.cp(X, 1, preprocess=[Sqrt()]).preprocessing.describe()
    'square root'
    """

    def apply(self, x: Array, value: Array | None, xp: Any) -> Array:
        return xp.sqrt(xp.where(x >= 0, x, xp.full_like(x, np.nan)))

    def undo(self, z: Array, value: Array | None, xp: Any) -> Array:
        return z * xp.abs(z)

    def describe(self, modes: Sequence[str]) -> str:
        return "square root"


@dataclass(frozen=True)
class Anscombe(PreprocessingStep):
    """2 sqrt(x + 3/8): counts get a variance of about 1, from a mean of about 4 on.

    Examples
    --------
    >>> import numpy as np, robustcp
    >>> from robustcp.preprocess import Anscombe
    >>> rng = np.random.default_rng(0)
    >>> rates = np.einsum("i,j,k->ijk", *(2 + 2 * rng.random(size) for size in (20, 15, 10)))
    >>> fit = robustcp.cp(rng.poisson(rates), 1, preprocess=[Anscombe()])
    >>> bool(abs(fit.noise.sigma - 1) < 0.1)
    True
    """

    def apply(self, x: Array, value: Array | None, xp: Any) -> Array:
        x = x + 0.375
        return 2 * xp.sqrt(xp.where(x >= 0, x, xp.full_like(x, np.nan)))

    def undo(self, z: Array, value: Array | None, xp: Any) -> Array:
        return 0.25 * z * xp.abs(z) - 0.375

    def describe(self, modes: Sequence[str]) -> str:
        return "Anscombe's square root"


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """Steps of preprocessing with the centres and sizes that were estimated from data.

    Attributes
    ----------
    shape : tuple of int
        The shape of the data.
    steps : tuple of PreprocessingStep
        In the order in which they are applied, modes by number.
    values : tuple of (float64 array or None), one for each step
        The centres or the sizes, which broadcast to the data: of size 1 in a mode that they do not
        depend on. In the units of the data after the steps before. None for functions of entries.

    Examples
    --------
    >>> steps = (Center(0), Scale(1))
    >>> values = np.array([[1.0, 10.0]]), np.array([[2.0, 20.0]])
    >>> Preprocessing((2, 2), steps, values).apply(np.array([[3.0, 30.0], [1.0, 10.0]]))
    array([[1., 1.],
           [0., 0.]])
    """

    shape: tuple[int, ...]
    steps: tuple[PreprocessingStep, ...]
    values: tuple[np.ndarray | None, ...]

    def __bool__(self) -> bool:
        return bool(self.steps)

    def apply(self, x: Array, locate: Locate = np.asarray) -> Array:
        """Preprocessed entries; by default x broadcasts to all of the data."""
        xp = array_api_compat.array_namespace(x)
        for step, value in zip(self.steps, self.values, strict=True):
            x = step.apply(x, _like(value, locate, x, xp), xp)
        return x

    def undo(self, z: Array, locate: Locate = np.asarray) -> Array:
        """The entries that are preprocessed to some values, such as those of a model."""
        xp = array_api_compat.array_namespace(z)
        pairs = list(zip(self.steps, self.values, strict=True))
        for step, value in reversed(pairs):
            z = step.undo(z, _like(value, locate, z, xp), xp)
        return z

    @property
    def affine(self) -> bool:
        """Whether residuals in the units of the data are multiples of preprocessed ones."""
        return all(step.affine for step in self.steps)

    @property
    def complete(self) -> bool:
        """Whether all centres and sizes are known."""
        pairs = zip(self.steps, self.values, strict=True)
        return all(v is not None or not isinstance(step, Center | Scale) for step, v in pairs)

    @property
    def scales(self) -> bool:
        """Whether any step is a scaling."""
        return any(isinstance(step, Scale) for step in self.steps)

    def undo_difference(self, r: Array, locate: Locate = np.asarray) -> Array:
        """Differences of preprocessed entries in the units of the data; of affine steps only."""
        xp = array_api_compat.array_namespace(r)
        for step, value in zip(self.steps, self.values, strict=True):
            if isinstance(step, Scale):
                r = r * _like(value, locate, r, xp)
        return r

    def undo_errors(
        self, errors: Array, model: Callable[[], Array], locate: Locate = np.asarray
    ) -> Array:
        """Standard errors of preprocessed entries of a model in the units of the data.

        Half the distance between the model plus and minus one error.
        """
        if self.affine:
            return self.undo_difference(errors, locate)
        z = model()
        return 0.5 * (self.undo(z + errors, locate) - self.undo(z - errors, locate))

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse data of another shape."""
        if shape != self.shape:
            raise ArgumentError(ARGUMENT_NAME, f"is for data of shape {self.shape}, not {shape}")

    def subset(self, indices: Sequence[Indices]) -> Preprocessing:
        """The preprocessing of the entries at some indices of each mode."""
        values = list(self.values)
        shape = list(self.shape)
        for mode, index in enumerate(indices):
            if index is None:
                continue
            shape[mode] = len(np.arange(self.shape[mode])[index])
            values = [
                v if v is None or v.shape[mode] == 1 else take_indices(v, index, mode)
                for v in values
            ]
        return replace(self, shape=tuple(shape), values=tuple(values))

    def reorder(self, arrangement: Arrangement) -> Preprocessing:
        """The preprocessing of the same data with its modes and indices in another order."""
        steps = tuple(
            replace(step, mode=arrangement.order.index(int(step.mode)))
            if isinstance(step, Center | Scale)
            else step
            for step in self.steps
        )
        values = []
        for value in self.values:
            if value is not None:
                value = np.transpose(value, arrangement.order)
                for mode, index in enumerate(arrangement.rows):
                    if index is not None and value.shape[mode] > 1:
                        value = np.take(value, index, axis=mode)
            values.append(value)
        return Preprocessing(arrangement.reorder(self.shape), steps, tuple(values))

    def for_new_slabs(self, mode: int, size: int) -> Preprocessing:
        """The preprocessing of new slabs of a mode.

        What depends on the slab, such as its size or centres within it, is None: it is to be
        estimated from the slabs themselves.
        """
        shape = (*self.shape[:mode], size, *self.shape[mode + 1 :])
        values = (
            None if v is None or _depends_on(step, v, mode) else v
            for step, v in zip(self.steps, self.values, strict=True)
        )
        return Preprocessing(shape, self.steps, tuple(values))

    def describe(self, modes: Sequence[str] = ()) -> str:
        """The steps in words, such as "centred across sample (median)"."""
        names = modes or [f"mode {n}" for n in range(len(self.shape))]
        return ", ".join(step.describe(names) for step in self.steps)


def _depends_on(step: PreprocessingStep, value: np.ndarray, mode: int) -> bool:
    """Whether the centres or sizes of a step differ between the slabs of a mode."""
    if isinstance(step, Center):
        return step.mode != mode
    return isinstance(step, Scale) and step.mode == mode


def locate_entries(indices: Sequence[np.ndarray] | np.ndarray) -> Locate:
    """Takes from an array that broadcasts to the data the values of entries at some indices."""
    return lambda value: np.asarray(value[broadcast_indices(value, indices)])


def _like(value: np.ndarray | None, locate: Locate, x: Array, xp: Any) -> Any:
    """The values of some entries in the library, on the device and in the precision of x."""
    if value is None:
        return None
    located = locate(value)
    if is_lazy(x):
        return located.astype(x.dtype)
    located = np.ascontiguousarray(located)
    return xp.asarray(located, dtype=x.dtype, device=array_api_compat.device(x))


@dataclass(frozen=True, eq=False)
class Transformation:
    """What an engine does with its entries: preprocessing, and limits in both units.

    Censored entries are put to their limit, also those that have no preprocessed value, such as the
    logarithm of 0 below a limit of detection.
    """

    preprocessing: Preprocessing
    given_limits: Limits | None = None
    limits: Limits | None = None

    @classmethod
    def of(cls, preprocessing: Preprocessing, limits: Limits | None) -> Transformation:
        if limits is None:
            return cls(preprocessing)
        low, high = (
            None if array is None else _preprocessed_limit(preprocessing, np.asarray(array))
            for array in limits.arrays
        )
        return cls(preprocessing, limits, Limits.of((low, high), preprocessing.shape))

    def box(self, x: Array, box: Tile) -> Array:
        """Preprocessed entries of a box."""
        return self._apply(x, lambda value: value[broadcast_box(value, box)])

    def entries(self, x: np.ndarray, indices: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """Preprocessed entries, given by an array of indices for each mode."""
        z = np.asarray(self._apply(x, locate_entries(indices)))
        if np.isnan(z).any():
            raise ArgumentError(
                ARGUMENT_NAME,
                f"{self.preprocessing.describe()}: {np.isnan(z).sum()} listed entries have no such "
                "value; leave them out, or give a floor",
            )
        return z

    def _apply(self, x: Array, locate: Locate) -> Array:
        xp = array_api_compat.array_namespace(x)
        z = self.preprocessing.apply(x, locate)
        if self.given_limits is None or self.limits is None:
            return z
        pairs = zip(self.given_limits.arrays, self.limits.arrays, strict=True)
        for (given, limit), side in zip(pairs, (-1, 1), strict=True):
            if given is not None and limit is not None:
                given, limit = (_like(array, locate, x, xp) for array in (given, limit))
                z = xp.where(x <= given if side < 0 else x >= given, limit, z)
        return z

    def subset(self, indices: Sequence[Indices]) -> Transformation:
        """The transformation of the entries at some indices of each mode."""
        given, limits = (part and part.subset(indices) for part in (self.given_limits, self.limits))
        return Transformation(self.preprocessing.subset(indices), given, limits)


def _preprocessed_limit(preprocessing: Preprocessing, limit: np.ndarray) -> np.ndarray | None:
    """A limit in preprocessed units, NaN where there is none; None if there is none at all."""
    with np.errstate(all="ignore"):
        z = preprocessing.apply(np.where(np.isinf(limit), np.nan, limit))
    return z if np.isfinite(z).any() else None
