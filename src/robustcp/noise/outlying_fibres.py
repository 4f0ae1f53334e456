"""Fibres that are outlying as a whole: scatter in a spectrum, a stuck sensor's day, a burst.

A fibre holds the entries along one mode, with all other indices fixed. If a whole fibre is bad,
many of its entries may look like ordinary noise each by itself, and yet pull the model away
together. So fibres are tested by the mean and the mean square of their standardised residuals.
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
from robustcp.noise.settings import FIBRE_SETTINGS


def find_outlying_fibres(engine: Engine, factors: Factors, noise: Noise) -> Fibres | None:
    """The fibres of the data that are outlying given a model and its noise; None if none is.

    Large data is probed on a part first.
    """
    if (
        not engine.takes_weights
        or engine.order < 3
        or fibre_length(engine) < FIBRE_SETTINGS.min_entries
    ):
        return None
    if engine.count > FIBRE_SETTINGS.probe_entries:
        indices = sample_indices(engine.shape, FIBRE_SETTINGS.probe_entries)
        rows = tuple(A[engine.xp.asarray(k), :] for A, k in zip(factors, indices, strict=True))
        if not _flag_by_residuals(engine.subtensor(indices), rows, noise.subset(indices)):
            return None
    if not engine.entries_fit_in_memory:
        checks.warn(FIBRES_NOT_EXCLUDED.format("look outlying as a whole"))
        return None
    fibres = _flag_by_residuals(engine, factors, noise)
    return fibres or None


def _flag_by_residuals(engine: Engine, factors: Factors, noise: Noise) -> Fibres:
    if not noise.homoscedastic:
        engine = engine.standardized(noise.scales(engine.shape))
    residuals = engine.entries(factors)
    z = residuals.values / noise.sigma
    return flag_outlying_fibres(z, residuals.indices, engine.shape)


def flag_outlying_fibres(
    z: np.ndarray,
    indices: Sequence[np.ndarray],
    shape: tuple[int, ...],
) -> Fibres:
    """The outlying fibres, given standardised residuals of all or many entries.

    The mode whose fibres are most outlying comes first, and its outlying entries are left out for
    other modes. If outlying fibres hold too large a share of the entries, none is returned.
    """
    clipped = np.clip(z, -FIBRE_SETTINGS.clip_limit, FIBRE_SETTINGS.clip_limit)
    remaining = np.ones(z.size, dtype=bool)
    flagged: dict[int, np.ndarray] = {}
    for _ in range(len(shape)):
        scores = [
            _score_fibres(clipped, remaining, indices, shape, mode) for mode in range(len(shape))
        ]
        excess, mode = max((excess, -mode) for mode, (excess, _) in enumerate(scores))
        hits = scores[-mode][1]
        if excess <= 0:
            break
        flagged[-mode] = flagged.get(-mode, np.zeros_like(hits)) | hits
        remaining &= ~Fibres(shape, ((-mode, hits),)).contains(indices)
    if np.mean(remaining) < 1 - FIBRE_SETTINGS.max_outlying_share:
        return Fibres(shape)
    return Fibres(shape, tuple(sorted(flagged.items())))


def _score_fibres(
    z: np.ndarray,
    remaining: np.ndarray,
    indices: Sequence[np.ndarray],
    shape: tuple[int, ...],
    mode: int,
) -> tuple[float, np.ndarray]:
    """The sum of squares by which outlying fibres along a mode exceed the noise, and their mask."""
    fibre_numbers, sizes = Fibres.fibre_numbers(shape, mode, indices)
    total = math.prod(sizes)
    if not remaining.all():
        fibre_numbers, z = fibre_numbers[remaining], z[remaining]
    if z.size == math.prod(shape):
        count = np.full(total, shape[mode])
    else:
        count = np.bincount(fibre_numbers, minlength=total)
    long_enough = count >= FIBRE_SETTINGS.min_entries
    if int(long_enough.sum()) < FIBRE_SETTINGS.min_fibres:
        return 0.0, np.zeros(sizes, dtype=bool)
    entries = np.maximum(count, 1)
    mean = np.bincount(fibre_numbers, z, total) / entries
    square = np.bincount(fibre_numbers, z * z, total) / entries
    root = np.sqrt(entries)
    shifted = _far_from_median(mean * root, long_enough, 1.0) & (
        np.abs(mean) > FIBRE_SETTINGS.min_mean
    )
    large = _far_from_median(square * root, long_enough, math.sqrt(2)) & (
        square > FIBRE_SETTINGS.min_mean_square
    )
    large &= square > median(square[long_enough])
    hits = long_enough & (shifted | large)
    excess = count * np.maximum(square - 1, 0.0)
    return float(np.sum(excess[hits])), hits.reshape(sizes)


def _far_from_median(values: np.ndarray, valid: np.ndarray, min_spread: float) -> np.ndarray:
    """A mask of values far from the median, in units of a spread of at least `min_spread`."""
    center = median(values[valid])
    spread = max(min_spread, 1.4826 * median(np.abs(values[valid] - center)))
    return np.abs(values - center) > FIBRE_SETTINGS.min_distance * spread
