"""Fibres that are outlying as a whole: scatter in a spectrum, a stuck sensor's day, a burst.

A fibre holds the entries along one mode, with all other indices fixed. If a whole fibre is bad,
many of its entries may look like ordinary noise each by itself, and yet pull the model away
together. So fibres are judged by the mean and the mean square of their standardised residuals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from robustcp._util import checks
from robustcp._util.quantiles import median
from robustcp._util.typing import Factors
from robustcp.engines import FIBRES_NOT_EXCLUDED, Engine, Fibres, fibre_length, sample_indices
from robustcp.noise.model import Noise
from robustcp.noise.settings import FIBRE_SETTINGS, FibreSettings


def find_outlying_fibres(
    engine: Engine, factors: Factors, noise: Noise, settings: FibreSettings = FIBRE_SETTINGS
) -> Fibres | None:
    """Which fibres of the data are outlying, beside a model and its noise; None if none is.

    Of much data a part is looked at first.
    """
    if not engine.takes_weights or engine.order < 3 or fibre_length(engine) < settings.min_entries:
        return None
    if engine.count > settings.probe_entries:
        indices = sample_indices(engine.shape, settings.probe_entries)
        rows = tuple(A[engine.xp.asarray(k), :] for A, k in zip(factors, indices, strict=True))
        if not _flag_by_residuals(engine.subtensor(indices), rows, noise.subset(indices), settings):
            return None
    if not engine.entries_fit_in_memory:
        checks.warn(FIBRES_NOT_EXCLUDED.format("look outlying as a whole"))
        return None
    fibres = _flag_by_residuals(engine, factors, noise, settings)
    return fibres or None


def _flag_by_residuals(
    engine: Engine, factors: Factors, noise: Noise, settings: FibreSettings
) -> Fibres:
    if not noise.homoscedastic:
        engine = engine.standardized(noise.scales(engine.shape))
    residuals = engine.entries(factors)
    z = residuals.values / noise.sigma
    return flag_outlying_fibres(z, residuals.indices, engine.shape, settings)


def flag_outlying_fibres(
    z: np.ndarray,
    indices: Sequence[np.ndarray],
    shape: tuple[int, ...],
    settings: FibreSettings = FIBRE_SETTINGS,
) -> Fibres:
    """Which fibres are outlying, given standardised residuals of all entries, or of many.

    The mode whose fibres stand out most comes first, and what they hold does not count for others.
    If most of the entries were in them they would not be outlying: then there are none.
    """
    clipped = np.clip(z, -settings.clip_limit, settings.clip_limit)
    remaining = np.ones(z.size, dtype=bool)
    flagged: dict[int, np.ndarray] = {}
    for _ in range(len(shape)):
        scores = [
            _score_fibres(clipped, remaining, indices, shape, mode, settings)
            for mode in range(len(shape))
        ]
        excess, mode = max((excess, -mode) for mode, (excess, _) in enumerate(scores))
        hits = scores[-mode][1]
        if excess <= 0:
            break
        flagged[-mode] = flagged.get(-mode, np.zeros_like(hits)) | hits
        remaining &= ~Fibres(shape, ((-mode, hits),)).contains(indices)
    if np.mean(remaining) < 1 - settings.max_outlying_share:
        return Fibres(shape)
    return Fibres(shape, tuple(sorted(flagged.items())))


def _score_fibres(
    z: np.ndarray,
    remaining: np.ndarray,
    indices: Sequence[np.ndarray],
    shape: tuple[int, ...],
    mode: int,
    settings: FibreSettings,
) -> tuple[float, np.ndarray]:
    """By how much the outlying fibres along a mode exceed the noise, and which they are."""
    fibre_numbers, sizes = Fibres.fibre_numbers(shape, mode, indices)
    total = math.prod(sizes)
    if not remaining.all():
        fibre_numbers, z = fibre_numbers[remaining], z[remaining]
    if z.size == math.prod(shape):
        count = np.full(total, shape[mode])
    else:
        count = np.bincount(fibre_numbers, minlength=total)
    long_enough = count >= settings.min_entries
    if int(long_enough.sum()) < settings.min_fibres:
        return 0.0, np.zeros(sizes, dtype=bool)
    entries = np.maximum(count, 1)
    mean = np.bincount(fibre_numbers, z, total) / entries
    square = np.bincount(fibre_numbers, z * z, total) / entries
    root = np.sqrt(entries)
    shifted = _far_from_median(mean * root, long_enough, 1.0, settings) & (
        np.abs(mean) > settings.min_mean
    )
    large = _far_from_median(square * root, long_enough, math.sqrt(2), settings) & (
        square > settings.min_mean_square
    )
    large &= square > median(square[long_enough])
    hits = long_enough & (shifted | large)
    excess = count * np.maximum(square - 1, 0.0)
    return float(np.sum(excess[hits])), hits.reshape(sizes)


def _far_from_median(
    values: np.ndarray, valid: np.ndarray, min_spread: float, settings: FibreSettings
) -> np.ndarray:
    """Which values are far from the median, for a spread that is not below the least."""
    center = median(values[valid])
    spread = max(min_spread, 1.4826 * median(np.abs(values[valid] - center)))
    return np.abs(values - center) > settings.min_distance * spread
