"""Engines: how data of one kind is passed over. Nothing outside this package looks at a type.

`as_engine` is the one front door; `Engine` says what the rest of the package may ask of data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import array_api_compat
import numpy as np

from robustcp._typing import Array, Factors
from robustcp.engines.arrays import check_dtype, to_host, working_dtype
from robustcp.engines.dense import DenseEngine
from robustcp.engines.observed import Observed, ObservedEngine
from robustcp.engines.threads import Tiles, single_blas_thread
from robustcp.losses import Loss
from robustcp.normal import NormalEquations

__all__ = [
    "DenseEngine",
    "Engine",
    "Observed",
    "ObservedEngine",
    "as_array",
    "as_engine",
    "names_and_labels",
    "single_blas_thread",
    "to_host",
]


@runtime_checkable
class Engine(Protocol):
    """All that the rest of the package may ask of data.

    Arrays that go in or come out are of the library `xp`, on the engine's device, unless said
    otherwise. Sums over the data are additive over its parts.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> Any:
        """The floating point type of factors and normal equations."""
        ...

    @property
    def xp(self) -> Any:
        """The array namespace of factors and normal equations."""
        ...

    @property
    def precision(self) -> float:
        """The machine epsilon of `dtype`."""
        ...

    @property
    def tiles(self) -> Tiles:
        """The threads that passes over the data share."""
        ...

    @property
    def largest(self) -> float:
        """The largest magnitude in the data."""
        ...

    def asarray(self, array: Any) -> Array:
        """A host array as one of this engine's, on its device."""
        ...

    def scaled(self, exponent: int) -> Engine:
        """The same data times 2**-exponent; nothing is copied."""
        ...

    def saturated(self, limit: float) -> Engine:
        """The same data with larger magnitudes cut to the limit; nothing is copied."""
        ...

    def excess(self, limit: float) -> float:
        """By how much magnitudes are above a limit, in all."""
        ...

    def normal(
        self, factors: Factors, mode: int, loss: Loss, rows: slice | None = None
    ) -> NormalEquations:
        """The normal equations of a mode's factor, or of some of its rows."""
        ...

    def value(self, factors: Factors, loss: Loss) -> float:
        """The loss summed over the data."""
        ...

    def row_blocks(self, mode: int, rank: int, loss: Loss) -> Sequence[slice]:
        """Parts of a mode whose normal equations are small beside the data."""
        ...

    def sample(self, factors: Factors | None = None) -> np.ndarray:
        """x, or x - model, on a fixed sample of the entries (all of a small tensor); host."""
        ...

    @property
    def complete(self) -> bool:
        """Whether no entry is missing."""
        ...

    def subtensor(self, indices: Sequence[np.ndarray | None]) -> Engine:
        """The part at some indices of each mode; None takes a mode whole."""
        ...

    def counts(self, mode: int) -> np.ndarray:
        """How many entries each slab of a mode holds, missing ones left out; host."""
        ...

    def flagged(self, factors: Factors, threshold: float) -> list[np.ndarray]:
        """How many residuals are larger than a threshold in each slab of each mode; host."""
        ...

    def unfolding(self, mode: int, rows: slice) -> np.ndarray:
        """Some rows of the mode-n unfolding, other modes in order, the last fastest; host."""
        ...

    def gram(self, mode: int, basis: np.ndarray | None = None) -> np.ndarray:
        """X_n X_n' of the mode-n unfolding X_n, or its product with a basis; host, float64."""
        ...

    def cogram(self, mode: int) -> np.ndarray:
        """X_n' X_n, for a mode that is longer than all others together; host, float64."""
        ...

    def project(self, mode: int, basis: np.ndarray) -> np.ndarray:
        """X_n times a basis of prod(other sizes) rows, for the same case; host, float64."""
        ...


def as_engine(data: Any, *, threads: int | None = None) -> Engine:
    """The engine for some data: the only place where the type of data is looked at.

    Parameters
    ----------
    data : array of any array API library, array-like, or an Engine
    threads : int, optional
        For NumPy data: how many threads share the tiles of a pass. By default as many as the
        BLAS library may use here, so that OMP_NUM_THREADS, threadpoolctl and joblib are
        honoured. Results are the same bits for any number.

    Examples
    --------
    >>> import numpy as np
    >>> as_engine(np.ones((3, 4, 5), dtype=np.uint8)).shape
    (3, 4, 5)
    """
    if isinstance(data, Engine):
        return data
    if isinstance(data, Observed):
        return ObservedEngine(data, threads=threads)
    return DenseEngine(as_array(data), threads=threads)


def names_and_labels(data: Any) -> tuple[tuple[str, ...], tuple[list[Any] | None, ...]]:
    """Names of the modes and labels of their indices, of an xarray.DataArray; else nothing."""
    if type(data).__module__.split(".")[0] != "xarray":
        return (), ()
    labels = tuple(
        _listed(data.coords[dim].values) if dim in data.coords else None for dim in data.dims
    )
    return tuple(map(str, data.dims)), labels


def _listed(values: np.ndarray) -> list[Any]:
    """Labels as a list; dates as dates, which nanoseconds would not be."""
    return list((values.astype("datetime64[us]") if values.dtype.kind == "M" else values).tolist())


def as_array(data: Any) -> Array:
    """Data that `as_engine` takes, as an array of one of the array API libraries."""
    if isinstance(data, DenseEngine):
        return data.array
    if array_api_compat.is_dask_array(data):
        raise TypeError("X: Dask arrays are not supported yet; pass X.compute()")
    if type(data).__module__.split(".")[0] in ("scipy", "sparse", "pyttb"):
        raise TypeError(
            f"X: {type(data).__name__} is not supported yet; pass a dense array of all entries"
        )
    if isinstance(data, np.ma.MaskedArray):
        if not np.ma.getmaskarray(data).any():
            return data.data
        check_dtype(data.data)
        return np.ma.filled(data.astype(working_dtype(data.data)), np.nan)
    if array_api_compat.is_torch_array(data):
        return data.detach()
    if array_api_compat.is_array_api_obj(data) and not isinstance(data, np.ndarray):
        return data
    try:
        return np.asarray(data)
    except ValueError as error:  # rows of different lengths, for one
        raise ValueError(f"X: is not an array ({error})") from None
