"""One slice of a data tensor on the host, without converting the rest of the tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import array_api_compat
import numpy as np

from robustcp.engines import Observed, as_array, to_host, without_labels
from robustcp.engines.arrays import working_dtype


def host_slice(X: Any, fixed: Mapping[int, int], shape: Sequence[int]) -> np.ndarray:
    """The entries of X where some modes are fixed at an index; the other modes keep their order.

    Parameters
    ----------
    X : array, array-like, xarray.DataArray, masked array or Observed
    fixed : mapping from a mode to its index
    shape : sequence of int
        The shape of the model, which X must have.

    Returns
    -------
    float64 NumPy array
        NaN where an entry is missing.

    Examples
    --------
    >>> X = Observed([[0, 0, 1], [1, 0, 0]], [2.5, 3.0], (2, 2, 2))
    >>> host_slice(X, {1: 0}, (2, 2, 2))
    array([[nan, 2.5],
           [3. , nan]])
    """
    X = without_labels(X)
    data = X if hasattr(X, "ndim") else as_array(X)  # a list or an engine cannot be indexed
    if tuple(data.shape) != tuple(shape):
        raise ValueError(f"X: has shape {tuple(data.shape)}, the model has shape {tuple(shape)}")
    if isinstance(data, Observed):
        return data.entries.dense_slice(data.entries.values, fixed)
    part = as_array(data[tuple(fixed.get(n, slice(None)) for n in range(len(shape)))])
    xp = array_api_compat.array_namespace(part)
    return np.asarray(to_host(xp.astype(part, working_dtype(part))), dtype=np.float64)
