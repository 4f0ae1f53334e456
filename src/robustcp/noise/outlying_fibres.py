"""Fibres that are outlying as a whole: scatter in a spectrum, a stuck sensor's day, a burst.

A fibre holds the entries along one mode, with all other indices fixed. If a whole fibre is bad,
many of its entries may look like ordinary noise each by itself, and yet pull the model away
together. So fibres are tested by the mean and the mean square of their standardised residuals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from robustcp._util import checks
from robustcp._util.quantiles import median
from robustcp._util.typing import Array, Factors
from robustcp.engines import (
    FIBRES_NOT_EXCLUDED,
    Engine,
    Entries,
    Fibres,
    fibre_length,
    sample_indices,
)
from robustcp.noise.model import Noise
from robustcp.noise.settings import FIBRE_SETTINGS

#: For each of several terms and each mode, the sums over the fibres along the mode.
FibreSums = Sequence[Sequence[np.ndarray]]


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
    xp, limit = engine.xp, FIBRE_SETTINGS.clip_limit

    def clipped(r: Array) -> Array:
        z = xp.clip(r / noise.sigma, -limit, limit)
        return xp.where(xp.isnan(z), xp.zeros_like(z), z)

    def squared(r: Array) -> Array:
        return xp.where(xp.isnan(r), xp.zeros_like(r), r * r)

    terms = (lambda r: ~xp.isnan(r), clipped, lambda r: clipped(r) ** 2)
    null_model = tuple(0.0 * A for A in factors)
    squares, data_squares = (engine.fibre_sums([squared], A)[0] for A in (factors, null_model))
    limit_share = FIBRE_SETTINGS.max_misfit_share**2
    is_explained = [
        rest < limit_share * data for rest, data in zip(squares, data_squares, strict=True)
    ]

    def sums_without(fibres: Fibres) -> FibreSums:
        return engine.without_fibres(fibres).fibre_sums(terms, factors)

    return _flag_by_sums(sums_without, engine.shape, is_explained)


def flag_outlying_fibres(
    z: np.ndarray,
    indices: Sequence[np.ndarray],
    shape: tuple[int, ...],
) -> Fibres:
    """The outlying fibres, given standardised residuals of all or many entries."""
    entries = Entries(
        shape, np.clip(z, -FIBRE_SETTINGS.clip_limit, FIBRE_SETTINGS.clip_limit), indices
    )

    def sums_without(fibres: Fibres) -> FibreSums:
        used = ~fibres.contains(indices)
        return [
            entries.fibre_sums(used * term) for term in (1.0, entries.values, entries.values**2)
        ]

    return _flag_by_sums(sums_without, shape)


def _flag_by_sums(
    sums_without: Callable[[Fibres], FibreSums],
    shape: tuple[int, ...],
    is_explained: Sequence[np.ndarray] = (),
) -> Fibres:
    """The outlying fibres, given a function of the fibres that are left out.

    The function returns, for each fibre along each mode, the number of its remaining entries and
    the sums of their standardised residuals and of their squares. The mode whose fibres are most
    outlying comes first, and its outlying entries are left out for other modes. If outlying fibres
    hold too large a share of the entries, none is returned. Fibres that the model explains, given
    by a mask for each mode, cannot be outlying.
    """
    fibres, total, remaining = Fibres(shape), 0.0, 0.0
    for flagged_count in range(len(shape) + 1):
        counts, sums, squares = sums_without(fibres)
        remaining = float(np.sum(counts[0]))
        total = total or remaining
        if flagged_count == len(shape):
            break
        explained = is_explained or [np.zeros(count.shape, dtype=bool) for count in counts]
        scores = list(map(_score_fibres, counts, sums, squares, explained))
        mode = int(np.argmax([excess for excess, _ in scores]))
        if scores[mode][0] <= 0:
            break
        fibres |= Fibres(shape, ((mode, scores[mode][1]),))
    if remaining < (1 - FIBRE_SETTINGS.max_outlying_share) * total:
        return Fibres(shape)
    return fibres


def _score_fibres(
    count: np.ndarray, sums: np.ndarray, squares: np.ndarray, explained: np.ndarray
) -> tuple[float, np.ndarray]:
    """The sum of squares by which outlying fibres along a mode exceed the noise, and their mask."""
    long_enough = count >= FIBRE_SETTINGS.min_entries
    if int(long_enough.sum()) < FIBRE_SETTINGS.min_fibres:
        return 0.0, np.zeros(count.shape, dtype=bool)
    entries = np.maximum(count, 1)
    mean, square, root = sums / entries, squares / entries, np.sqrt(entries)
    shifted = _far_from_median(mean * root, long_enough, 1.0) & (
        np.abs(mean) > FIBRE_SETTINGS.min_mean
    )
    large = _far_from_median(square * root, long_enough, math.sqrt(2)) & (
        square > FIBRE_SETTINGS.min_mean_square
    )
    large &= square > median(square[long_enough])
    hits = long_enough & (shifted | large) & ~explained
    excess = count * np.maximum(square - 1, 0.0)
    return float(np.sum(excess[hits])), hits


def _far_from_median(values: np.ndarray, valid: np.ndarray, min_spread: float) -> np.ndarray:
    """A mask of values far from the median, in units of a spread of at least `min_spread`."""
    center = median(values[valid])
    spread = max(min_spread, 1.4826 * median(np.abs(values[valid] - center)))
    return np.abs(values - center) > FIBRE_SETTINGS.min_distance * spread
