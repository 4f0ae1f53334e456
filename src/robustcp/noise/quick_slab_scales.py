"""A quick estimate of the scales of slabs, by main effects of the logarithms of residuals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from robustcp._util.quantiles import median
from robustcp.engines.installed import numba_kernels
from robustcp.noise.group_statistics import shrink_log_scales
from robustcp.noise.residuals import Residuals, SlabScales
from robustcp.noise.settings import NOISE_SETTINGS

#: The smallest magnitude that a logarithm is taken of.
SMALLEST_MAGNITUDE = 1e-300


def estimate_main_effects(
    residuals: Residuals, modes: Sequence[int], min_magnitude: float
) -> tuple[SlabScales, np.ndarray]:
    """Scales for the slabs of some modes, and the residuals divided by them.

    The scale of a slab is the geometric mean of the magnitudes of its residuals, of which smaller
    ones count as `min_magnitude`, then centred and shrunk. The scale of an entry is the product of
    those of its slabs, so log scales are main effects of an analysis of variance. A mode whose log
    scales have a small spread has no scales: None.
    """
    if not modes:
        return (None,) * len(residuals.shape), residuals.values
    compute = _main_effects if numba_kernels() is None else _compiled_main_effects
    return compute(residuals, modes, max(min_magnitude, SMALLEST_MAGNITUDE))


def _main_effects(
    residuals: Residuals, modes: Sequence[int], min_magnitude: float
) -> tuple[SlabScales, np.ndarray]:
    """The main effects by NumPy."""
    logs = np.log(np.maximum(np.abs(residuals.values), min_magnitude))
    slabs: list[np.ndarray | None] = [None] * len(residuals.shape)
    for mode in modes:
        count = residuals.counts(mode)
        effects = residuals.sums_by_slab(mode, logs) / np.maximum(count, 1)
        if not count.all():
            effects[count == 0] = float(logs.mean())
        log_scales, _ = shrink_log_scales(effects, count, NOISE_SETTINGS.mean_log_sampling_variance)
        if log_scales.std() >= NOISE_SETTINGS.min_log_spread:
            slabs[mode] = np.exp(log_scales)
            logs = logs - log_scales[residuals.indices[mode]]
    return slabs, residuals.values / residuals.sigmas((1.0, 0.0, 0.0), slabs, 0.0)


def _compiled_main_effects(
    residuals: Residuals, modes: Sequence[int], min_magnitude: float
) -> tuple[SlabScales, np.ndarray]:
    """The main effects by compiled code, in engines/passes/numba/noise.py."""
    code, settings = numba_kernels(), NOISE_SETTINGS
    values = np.ascontiguousarray(residuals.values)
    counts = [residuals.counts(mode).astype(np.float64) for mode in modes]
    indices = [np.ascontiguousarray(residuals.indices[mode], np.int64) for mode in modes]
    all_counts, sizes = np.concatenate(counts), np.array([count.size for count in counts])
    index_addresses = np.array([code.address(index) for index in indices])
    max_weights = (max(median(count), 1e-9) for count in counts)
    numbers = np.array(
        (min_magnitude, settings.mean_log_sampling_variance, settings.min_log_spread, *max_weights)
    )
    scales, z = np.empty(all_counts.size), np.empty(values.size)
    pointers = map(code.address, (index_addresses, sizes, all_counts, numbers, scales, z))
    mode_bits = code.main_effects().run(code.address(values), values.size, len(modes), *pointers)
    slabs: list[np.ndarray | None] = [None] * len(residuals.shape)
    for n, mode_scales in enumerate(np.split(scales, sizes.cumsum()[:-1])):
        if int(mode_bits) >> n & 1:
            slabs[modes[n]] = mode_scales
    return slabs, z
