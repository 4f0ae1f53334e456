"""Medians of groups of residuals, and the shrinkage of log scales of slabs.

`shrink_log_scales` has a compiled copy, `_shrink_effects` in engines/passes/numba/noise.py. Make
every change in both.
"""

from __future__ import annotations

import numpy as np

from robustcp._util.quantiles import median


def shrink_log_scales(
    logs: np.ndarray, count: np.ndarray, sampling_variance: float
) -> tuple[np.ndarray, float]:
    """Log scales of slabs, shrunk and centered at 0, and the center that was subtracted.

    Estimates from few entries are shrunk towards the mean, according to the variance between slabs
    in excess of the sampling variance (`sampling_variance` divided by the count).
    """
    count = np.maximum(count, 1e-9)
    weights = np.minimum(count, median(count))
    mean = float(logs @ weights / weights.sum())
    variances, centered = sampling_variance / count, logs - mean
    excess_variance = max(0.0, float(np.mean(centered * centered - np.minimum(variances, 1.0))))
    if excess_variance:
        shrunk = centered * (excess_variance / (excess_variance + variances))
    else:
        shrunk = 0.0 * centered
    shrunk_mean = float(shrunk.mean())
    return shrunk - shrunk_mean, mean + shrunk_mean


def group_medians(x: np.ndarray, group: np.ndarray, size: int) -> np.ndarray:
    """The median of each group; for an empty group, the median of the other groups' medians.

    In a group of an even number of values, the larger of the two in the middle is taken.
    """
    order = np.argsort(x)
    keys = group.astype(np.uint16) if size <= 1 << 16 else group  # sorted by radix, in linear time
    order = order[np.argsort(keys[order], kind="stable")]
    count = np.bincount(group, minlength=size)
    first = np.cumsum(count) - count
    medians = x[order][np.minimum(first + count // 2, x.size - 1)]
    nonempty = count > 0
    return np.asarray(np.where(nonempty, medians, np.median(medians[nonempty])))
