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
    low, beyond = _place(x.size, share)
    parted = x.ravel().copy()
    parted.partition(low)
    first = float(parted[low])
    return first + beyond * (float(parted[low + 1 :].min()) - first) if beyond else first


def median(x: np.ndarray) -> float:
    """The median; x must not be empty."""
    return quantile(x, 0.5)


def quantile_of_sorted(x: np.ndarray, share: float) -> float:
    """The same quantile of an array that is sorted."""
    low, beyond = _place(x.size, share)
    first = float(x[low])
    return first + beyond * (float(x[low + 1]) - first) if beyond else first


def _place(size: int, share: float) -> tuple[int, float]:
    """The entry, of those in order, that a quantile is at or beyond; and how far beyond."""
    at = share * (size - 1)
    low = int(at)
    return low, at - low
