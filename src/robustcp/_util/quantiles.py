"""Quantiles of arrays without NaN: a few microseconds where NumPy's checks take a hundred."""

from __future__ import annotations

import numpy as np


def quantile(x: np.ndarray, share: float) -> float:
    """The quantile of a share, between two entries in proportion; x must not be empty.

    Examples
    --------
    >>> import numpy as np
    >>> quantile(np.array([4.0, 1.0, 3.0, 2.0]), 0.5)
    2.5
    """
    low, fraction = _interpolation_position(x.size, share)
    partitioned = x.ravel().copy()
    partitioned.partition(low)
    first = float(partitioned[low])
    return first + fraction * (float(partitioned[low + 1 :].min()) - first) if fraction else first


def median(x: np.ndarray) -> float:
    """The median; x must not be empty."""
    return quantile(x, 0.5)


def quantile_of_sorted(x: np.ndarray, share: float) -> float:
    """The same quantile of an array that is sorted."""
    low, fraction = _interpolation_position(x.size, share)
    first = float(x[low])
    return first + fraction * (float(x[low + 1]) - first) if fraction else first


def _interpolation_position(size: int, share: float) -> tuple[int, float]:
    """The entry, of those in order, that a quantile is at or beyond; and how far beyond."""
    position = share * (size - 1)
    low = int(position)
    return low, position - low
