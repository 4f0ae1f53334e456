"""Fibres that hold one value throughout: a sensor that was stuck, or a fill value."""

from __future__ import annotations

import math

import numpy as np

from robustcp._util import checks
from robustcp.engines import (
    FIBRES_NOT_EXCLUDED,
    Engine,
    Fibres,
    Sample,
    fibre_length,
    sample_indices,
)

#: Fibres with fewer entries may hold one value by chance.
MIN_ENTRIES_PER_FIBRE = 6
#: In data with a larger share of fibres that hold one value, that is how the data is.
MAX_CONSTANT_SHARE = 0.5
#: Other entries must not share their value with the one before along the mode, but for this share.
MAX_TIE_SHARE = 0.01
#: Larger data is looked at in a part first.
PROBE_ENTRIES = 1 << 18


def find_constant_fibres(engine: Engine) -> Fibres | None:
    """Fibres that hold one value, other than 0, where others do not: there is no noise in them.

    A component could fit them exactly, which would make it look better than any other.
    """
    if (
        engine.order < 3
        or not engine.takes_weights
        or fibre_length(engine) < MIN_ENTRIES_PER_FIBRE / 2
    ):
        return None
    if engine.count > PROBE_ENTRIES:
        probe = engine.subtensor(sample_indices(engine.shape, PROBE_ENTRIES))
        if not _constant_fibres(probe.entries(), probe.shape):
            return None
    if not engine.entries_fit_in_memory:
        checks.warn(FIBRES_NOT_EXCLUDED.format("hold one value throughout"))
        return None
    return _constant_fibres(engine.entries(), engine.shape) or None


def _constant_fibres(entries: Sample, shape: tuple[int, ...]) -> Fibres:
    along: list[tuple[int, np.ndarray]] = []
    ordered = np.sort(entries.values)
    if np.count_nonzero(ordered[1:] == ordered[:-1]) < MIN_ENTRIES_PER_FIBRE - 1:
        return Fibres(shape)
    for mode, size in enumerate(shape):
        if (
            size < MIN_ENTRIES_PER_FIBRE
            or entries.values.size < MIN_ENTRIES_PER_FIBRE * math.prod(shape) / size / 4
        ):
            continue
        hits = _constant_fibres_along(entries, shape, mode)
        if hits is not None:
            along.append((mode, hits))
    return Fibres(shape, tuple(along))


def _constant_fibres_along(entries: Sample, shape: tuple[int, ...], mode: int) -> np.ndarray | None:
    """Which fibres along a mode hold one value; None if none does, or too many."""
    fibre_numbers, sizes = Fibres.fibre_numbers(shape, mode, entries.indices)
    x = entries.values
    order = np.lexsort((entries.indices[mode], fibre_numbers))
    fibre_numbers, x = fibre_numbers[order], x[order]
    adjacent = fibre_numbers[1:] == fibre_numbers[:-1]
    ties = adjacent & (x[1:] == x[:-1]) & (x[1:] != 0)
    total = math.prod(sizes)
    pairs = np.bincount(fibre_numbers[1:][adjacent], minlength=total)
    tied = np.bincount(fibre_numbers[1:][ties], minlength=total)
    hits = (pairs >= MIN_ENTRIES_PER_FIBRE - 1) & (tied == pairs)
    long_fibres = int(np.count_nonzero(pairs >= MIN_ENTRIES_PER_FIBRE - 1))
    other_pairs = max(int(pairs[~hits].sum()), 1)
    if (
        not hits.any()
        or hits.sum() > MAX_CONSTANT_SHARE * long_fibres
        or tied[~hits].sum() > MAX_TIE_SHARE * other_pairs
    ):
        return None
    return np.asarray(hits.reshape(sizes))
