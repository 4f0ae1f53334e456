"""Fibres that are outlying as a whole: scatter in a spectrum, a stuck sensor's day, a burst.

A fibre holds the entries along one mode, with all other indices fixed. If a whole fibre is bad,
many of its entries may look like ordinary noise each by itself, and yet pull the model away
together. So fibres are judged by the mean and the mean square of their standardised residuals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from robustcp import _checks
from robustcp._typing import Factors
from robustcp.engines import BEYOND, Engine, Fibres, fibre_length, some_indices
from robustcp.noise.model import Noise
from robustcp.quantiles import median

#: Residuals are cut at this many standard deviations: a single entry makes no outlying fibre.
LIMIT = 3.0
#: How far a fibre must be from the others of its mode, in robust standard deviations; and how
#: large its mean or mean square must be in any case.
FAR, MEAN, SQUARE = 5.0, 0.5, 2.0
#: Fibres with fewer entries than this cannot be judged, nor can fewer fibres than that.
FEW, FEWEST = 4, 10
#: Entries that a first look is at, and the share of them that fibres may hold.
PART, MOST = 1 << 16, 0.5


def fibres_of(engine: Engine, factors: Factors, noise: Noise) -> Fibres | None:
    """Which fibres of the data are outlying, beside a model and its noise; None if none is.

    Of much data a part is looked at first.
    """
    if not engine.takes_weights or engine.order < 3 or fibre_length(engine) < FEW:
        return None
    if engine.count > PART:
        at = some_indices(engine.shape, PART)
        rows = tuple(A[engine.xp.asarray(k), :] for A, k in zip(factors, at, strict=True))
        if not _found(engine.subtensor(at), rows, noise.part(at)):
            return None
    if not engine.listable:
        _checks.warn(BEYOND.format("look outlying as a whole"))
        return None
    found = _found(engine, factors, noise)
    return found or None


def _found(engine: Engine, factors: Factors, noise: Noise) -> Fibres:
    if not noise.even:
        engine = engine.standardized(noise.scales(engine.shape))
    residuals = engine.entries(factors)
    return outlying_fibres(residuals.values / noise.sigma, residuals.indices, engine.shape)


def outlying_fibres(z: np.ndarray, indices: Sequence[np.ndarray], shape: tuple[int, ...]) -> Fibres:
    """Which fibres are outlying, given standardised residuals of all entries, or of many.

    The mode whose fibres stand out most comes first, and what they hold does not count for others.
    If most of the entries were in them they would not be outlying: then there are none.
    """
    clipped = np.clip(z, -LIMIT, LIMIT)
    left = np.ones(z.size, dtype=bool)
    found: dict[int, np.ndarray] = {}
    for _ in range(len(shape)):
        judged = [_judged(clipped, left, indices, shape, mode) for mode in range(len(shape))]
        gain, mode = max((gain, -mode) for mode, (gain, _) in enumerate(judged))
        hit = judged[-mode][1]
        if gain <= 0:
            break
        found[-mode] = found.get(-mode, np.zeros_like(hit)) | hit
        left &= ~Fibres(shape, ((-mode, hit),)).at(indices)
    if np.mean(left) < 1 - MOST:
        return Fibres(shape)
    return Fibres(shape, tuple(sorted(found.items())))


def _judged(
    z: np.ndarray,
    left: np.ndarray,
    indices: Sequence[np.ndarray],
    shape: tuple[int, ...],
    mode: int,
) -> tuple[float, np.ndarray]:
    """By how much the outlying fibres along a mode exceed the noise, and which they are."""
    number, sizes = Fibres.numbered(shape, mode, indices)
    total = math.prod(sizes)
    if not left.all():
        number, z = number[left], z[left]
    if z.size == math.prod(shape):
        count = np.full(total, shape[mode])
    else:
        count = np.bincount(number, minlength=total)
    some = count >= FEW
    if int(some.sum()) < FEWEST:
        return 0.0, np.zeros(sizes, dtype=bool)
    entries = np.maximum(count, 1)
    mean = np.bincount(number, z, total) / entries
    square = np.bincount(number, z * z, total) / entries
    root = np.sqrt(entries)
    off = _outlying(mean * root, some, 1.0) & (np.abs(mean) > MEAN)
    large = _outlying(square * root, some, math.sqrt(2)) & (square > SQUARE)
    large &= square > median(square[some])
    hit = some & (off | large)
    excess = count * np.maximum(square - 1, 0.0)
    return float(np.sum(excess[hit])), hit.reshape(sizes)


def _outlying(values: np.ndarray, some: np.ndarray, least: float) -> np.ndarray:
    """Which values are far from the median, for a spread that is not below the least."""
    middle = median(values[some])
    spread = max(least, 1.4826 * median(np.abs(values[some] - middle)))
    return np.abs(values - middle) > FAR * spread
