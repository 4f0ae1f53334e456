"""Fibres that hold one value throughout: a sensor that was stuck, or a fill value."""

from __future__ import annotations

import math

import numpy as np

from robustcp import _checks
from robustcp.engines import BEYOND, Engine, Fibres, Sample, fibre_length, some_indices

#: Fibres with fewer entries may hold one value by chance.
FEW = 6
#: In data with a larger share of fibres that hold one value, that is how the data is.
MOST = 0.5
#: Other entries must not share their value with the one before along the mode, but for this share.
TIES = 0.01
#: Larger data is looked at in a part first.
PART = 1 << 18


def stuck_fibres(engine: Engine) -> Fibres | None:
    """Fibres that hold one value, other than 0, where others do not: there is no noise in them.

    A component could fit them exactly, which would make it look better than any other.
    """
    if engine.order < 3 or not engine.takes_weights or fibre_length(engine) < FEW / 2:
        return None
    if engine.count > PART:
        part = engine.subtensor(some_indices(engine.shape, PART))
        if not _found(part.entries(), part.shape):
            return None
    if not engine.listable:
        _checks.warn(BEYOND.format("hold one value throughout"))
        return None
    return _found(engine.entries(), engine.shape) or None


def _found(entries: Sample, shape: tuple[int, ...]) -> Fibres:
    along: list[tuple[int, np.ndarray]] = []
    ordered = np.sort(entries.values)
    if np.count_nonzero(ordered[1:] == ordered[:-1]) < FEW - 1:
        return Fibres(shape)
    for mode, size in enumerate(shape):
        if size < FEW or entries.values.size < FEW * math.prod(shape) / size / 4:
            continue
        hit = _along(entries, shape, mode)
        if hit is not None:
            along.append((mode, hit))
    return Fibres(shape, tuple(along))


def _along(entries: Sample, shape: tuple[int, ...], mode: int) -> np.ndarray | None:
    """Which fibres along a mode hold one value; None if none does, or too many."""
    number, sizes = Fibres.numbered(shape, mode, entries.indices)
    x = entries.values
    order = np.lexsort((entries.indices[mode], number))
    number, x = number[order], x[order]
    next_to = number[1:] == number[:-1]
    ties = next_to & (x[1:] == x[:-1]) & (x[1:] != 0)
    total = math.prod(sizes)
    pairs = np.bincount(number[1:][next_to], minlength=total)
    tied = np.bincount(number[1:][ties], minlength=total)
    hit = (pairs >= FEW - 1) & (tied == pairs)
    some = int(np.count_nonzero(pairs >= FEW - 1))
    rest = max(int(pairs[~hit].sum()), 1)
    if not hit.any() or hit.sum() > MOST * some or tied[~hit].sum() > TIES * rest:
        return None
    return np.asarray(hit.reshape(sizes))
