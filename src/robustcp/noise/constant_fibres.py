"""Fibres that hold one value throughout, such as a stuck sensor's or a fill value."""

from __future__ import annotations

import math

import numpy as np

from robustcp._util import checks
from robustcp.engines import (
    FIBRES_NOT_EXCLUDED,
    Engine,
    Entries,
    Fibres,
    fibre_length,
    sample_indices,
)
from robustcp.noise.settings import FIBRE_SETTINGS


def find_constant_fibres(engine: Engine) -> Fibres | None:
    """The fibres that hold one value other than 0; None if there are none, or if that is regular.

    They have no noise: a component that fits them exactly would have the lowest cost of all.
    """
    if (
        engine.order < 3
        or not engine.takes_weights
        or fibre_length(engine) < FIBRE_SETTINGS.min_constant_entries / 2
    ):
        return None
    if engine.count > FIBRE_SETTINGS.constant_probe_entries:
        probe = engine.subtensor(
            sample_indices(engine.shape, FIBRE_SETTINGS.constant_probe_entries)
        )
        if not _constant_fibres(probe.entries(), probe.shape):
            return None
    if not engine.entries_fit_in_memory:
        checks.warn(FIBRES_NOT_EXCLUDED.format("hold one value throughout"))
        return None
    return _constant_fibres(engine.entries(), engine.shape) or None


def _constant_fibres(entries: Entries, shape: tuple[int, ...]) -> Fibres:
    along: list[tuple[int, np.ndarray]] = []
    ordered = np.sort(entries.values)
    if np.count_nonzero(ordered[1:] == ordered[:-1]) < FIBRE_SETTINGS.min_constant_entries - 1:
        return Fibres(shape)
    for mode, size in enumerate(shape):
        if (
            size < FIBRE_SETTINGS.min_constant_entries
            or entries.values.size
            < FIBRE_SETTINGS.min_constant_entries * math.prod(shape) / size / 4
        ):
            continue
        hits = _constant_fibres_along(entries, shape, mode)
        if hits is not None:
            along.append((mode, hits))
    return Fibres(shape, tuple(along))


def _constant_fibres_along(
    entries: Entries, shape: tuple[int, ...], mode: int
) -> np.ndarray | None:
    """The mask of fibres along a mode that hold one value; None if none does, or too many."""
    fibre_numbers, sizes = Fibres.fibre_numbers(shape, mode, entries.indices)
    x = entries.values
    order = np.lexsort((entries.indices[mode], fibre_numbers))
    fibre_numbers, x = fibre_numbers[order], x[order]
    adjacent = fibre_numbers[1:] == fibre_numbers[:-1]
    ties = adjacent & (x[1:] == x[:-1]) & (x[1:] != 0)
    if entries.sides is not None:  # censored entries only seem to be equal
        ties &= entries.sides[order][1:] == 0
    total = math.prod(sizes)
    pairs = np.bincount(fibre_numbers[1:][adjacent], minlength=total)
    tied = np.bincount(fibre_numbers[1:][ties], minlength=total)
    hits = (pairs >= FIBRE_SETTINGS.min_constant_entries - 1) & (tied == pairs)
    long_fibres = int(np.count_nonzero(pairs >= FIBRE_SETTINGS.min_constant_entries - 1))
    other_pairs = max(int(pairs[~hits].sum()), 1)
    if (
        not hits.any()
        or hits.sum() > FIBRE_SETTINGS.max_constant_share * long_fibres
        or tied[~hits].sum() > FIBRE_SETTINGS.max_tie_share * other_pairs
    ):
        return None
    return np.asarray(hits.reshape(sizes))
