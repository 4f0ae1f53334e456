"""Limits of measurement: those that are given, and ceilings that the data shows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from robustcp._util import checks
from robustcp.engines import (
    Engine,
    Entries,
    EntryField,
    Fibres,
    Limits,
    align_to_axes,
    sample_indices,
)


@dataclass(frozen=True)
class CeilingSettings:
    """The constants by which ceilings are found."""

    #: A ceiling holds at least this many sampled entries, and this share of them, ...
    min_entries: int = 20
    min_share: float = 0.005
    #: ... or of the entries of a slab, if each has a ceiling of its own.
    min_slab_entries: int = 5
    #: It holds at most this share of the entries.
    max_share: float = 0.5
    #: A ceiling holds this many times as many entries as any other value.
    repeat_ratio: float = 5.0
    #: Data with fewer levels below its ceiling is taken to be of categories.
    min_levels: int = 64
    #: Values below the ceiling that its distance to them is compared with.
    neighbours: int = 50
    #: The distance, in mean distances between these: beyond it, the largest value is a fill value.
    max_gap: float = 8.0
    #: The share of censored entries with others of their fibre; of data whose fibres are divided by
    #: their largest entries it is 0.
    min_shared: float = 0.25
    #: The correlation, over fibres, of the share of censored entries with the size of the others,
    #: in multiples of its standard error without any dependence.
    min_association: float = 5.0
    #: Large data is probed on a part of at most so many entries.
    probe_entries: int = 1 << 17
    #: Slabs have ceilings of their own if at least this share of them does.
    min_slab_share: float = 0.25


CEILING_SETTINGS = CeilingSettings()


def parse_limits(given: Any, engine: Engine) -> tuple[Limits | None, tuple[str, ...]]:
    """Limits from the argument of an estimator, and notes on those that were found.

    "auto" looks for ceilings: many entries at exactly the largest value.
    """
    if isinstance(given, str):
        checks.choice("limits", given, ("auto",))
        limits = find_ceilings(engine)
        return limits, () if limits is None else (_note(limits, engine),)
    if isinstance(given, list | tuple) and len(given) == 2:
        try:
            given = tuple(align_to_axes(engine.view.axes, limit) for limit in given)
        except ValueError as error:
            problem = str(error).partition("entry_weights: ")[2] or str(error)
            raise checks.ArgumentError("limits", problem) from None
    return Limits.of(given, engine.shape), ()


def _note(limits: Limits, engine: Engine) -> str:
    low, high = limits.arrays
    assert high is not None
    ceilings = "the ceiling" if high.size == 1 else f"{np.isfinite(high).sum()} ceilings"
    count = engine.censored(limits).censored_count
    return (
        f"{count} entries at {ceilings} ({limits.describe().removeprefix('at least ')}) count as "
        "at least that; limits=None takes them at their value"
    )


def find_ceilings(engine: Engine) -> Limits | None:
    """The ceiling of a detector, or one for each slab of a mode, that entries show; else None.

    Many entries have exactly the largest value, other values hardly repeat, and there are entries
    close below. They are not alone in their fibres, where the other entries are large too. So
    counts, rounded and sparse data, fill values, constant fibres, and fibres that are divided by
    their largest entry show none.
    """
    settings = CEILING_SETTINGS
    if not engine.takes_limits or engine.max_abs == 0:
        return None
    ordered = np.sort(engine.sample().values)
    repeats = np.count_nonzero(ordered[1:] == ordered[:-1])
    if repeats < max(settings.min_entries, settings.min_share * ordered.size) / 2:
        return None
    order = engine.order
    for mode in (None, *range(order)):
        sizes = tuple(size if n == mode else 1 for n, size in enumerate(engine.shape))
        ceilings = _ceilings_of_slabs(_probe(engine, mode), sizes)
        if ceilings is not None and not _any_beyond(engine, ceilings):
            array = math.ldexp(1.0, engine.view.exponent) * ceilings
            return Limits(high=EntryField.from_array(engine.shape, array))
    return None


def _probe(engine: Engine, mode: int | None) -> Entries:
    """All entries, or those of a part of large data, with all slabs of a mode."""
    shape, most = engine.shape, CEILING_SETTINGS.probe_entries
    if engine.count <= most and engine.entries_fit_in_memory:
        return engine.entries()
    others = [n for n in range(engine.order) if n != mode]
    parts = sample_indices([shape[n] for n in others], most // (1 if mode is None else shape[mode]))
    indices: list[np.ndarray | None] = [None] * engine.order
    for n, part in zip(others, parts, strict=True):
        indices[n] = part
    return engine.subtensor(indices).entries()


def _any_beyond(engine: Engine, ceilings: np.ndarray) -> bool:
    """Whether any entry is larger than the ceiling of its slab."""
    if ceilings.size == 1:
        return _any_above(engine, float(ceilings.item()))
    mode = int(np.argmax(ceilings.shape))
    for k in np.flatnonzero(np.isfinite(ceilings)):
        indices = [np.array([k]) if n == mode else None for n in range(engine.order)]
        if _any_above(engine.subtensor(indices), float(ceilings.ravel()[k])):
            return True
    return False


def _any_above(engine: Engine, top: float) -> bool:
    return bool(engine.slab_sums(lambda x: x > top)[0].any())


def _ceilings_of_slabs(entries: Entries, sizes: tuple[int, ...]) -> np.ndarray | None:
    """The ceilings of the slabs of a mode, infinite for slabs without one, or of all of the data.

    An array of shape `sizes`; None if few entries are at ceilings, or if these are none.
    """
    settings, x, count = CEILING_SETTINGS, entries.values, math.prod(sizes)
    mode = int(np.argmax(sizes))
    slab = np.zeros(x.size, np.intp) if count == 1 else entries.indices[mode]
    tops = np.full(count, -math.inf)
    np.maximum.at(tops, slab, x)
    at_top = (x == tops[slab]) & (x != 0)
    least, total = max(settings.min_entries, settings.min_share * x.size), np.count_nonzero(at_top)
    if not least <= total <= settings.max_share * x.size:
        return None
    at_top &= ~_in_constant_fibres(entries, at_top)
    ties, slab_sizes = (np.bincount(part, minlength=count) for part in (slab[at_top], slab))
    least_ties = settings.min_entries if count == 1 else settings.min_slab_entries
    has_ceiling = (ties >= least_ties) & (ties >= settings.min_share * slab_sizes)
    if (
        ties[has_ceiling].sum() < least
        or has_ceiling.sum() < (settings.min_slab_share * count if count > 1 else 1)
        or not _rises_to_ceilings(x, slab, tops, ties, has_ceiling)
        or not _are_clustered(entries, slab, tops, at_top & has_ceiling[slab], sizes)
    ):
        return None
    return np.where(has_ceiling, tops, math.inf).reshape(sizes)


def _in_constant_fibres(entries: Entries, at_top: np.ndarray) -> np.ndarray:
    """Which entries are in fibres that are at the top throughout, such as a stuck sensor's."""
    constant = np.zeros(at_top.size, dtype=bool)
    for mode in range(len(entries.shape)):
        fibre, sizes = Fibres.fibre_numbers(entries.shape, mode, entries.indices)
        total = math.prod(sizes)
        counts = np.bincount(fibre, minlength=total)
        tops = np.bincount(fibre[at_top], minlength=total)
        constant |= ((tops == counts) & (counts > 2))[fibre]
    return constant


def _rises_to_ceilings(
    x: np.ndarray, slab: np.ndarray, tops: np.ndarray, ties: np.ndarray, has_ceiling: np.ndarray
) -> bool:
    """Whether values come close to the ceilings, and no other value repeats as often."""
    settings, below = CEILING_SETTINGS, x < tops[slab]
    values, repeats = np.unique(x[below], return_counts=True)
    if values.size < settings.min_levels:
        return False
    if settings.repeat_ratio * repeats.max() > np.median(ties[has_ceiling]):
        return False
    order = np.lexsort((x, slab))
    ordered, ends = x[order], np.cumsum(np.bincount(slab, minlength=tops.size))
    close = []
    for k in np.flatnonzero(has_ceiling):
        own = np.unique(ordered[ends[k - 1] if k else 0 : ends[k]])
        near = own[:-1][-settings.neighbours :]
        if near.size > 1:
            spacing = (near[-1] - near[0]) / (near.size - 1)
            close.append(own[-1] - near[-1] <= settings.max_gap * spacing)
    return bool(close) and float(np.mean(close)) >= 0.9


def _are_clustered(
    entries: Entries,
    slab: np.ndarray,
    tops: np.ndarray,
    censored: np.ndarray,
    sizes: tuple[int, ...],
) -> bool:
    """Whether censored entries share fibres, and the other entries there are large."""
    settings, x, shape = CEILING_SETTINGS, entries.values, entries.shape
    rest = x < tops[slab]
    counts = np.maximum(np.bincount(slab[rest], minlength=tops.size), 1)
    gaps = np.where(rest, tops[slab] - x, 0.0)
    mean_gaps = np.bincount(slab, gaps, tops.size) / counts
    nearness = 1 - gaps / np.maximum(mean_gaps, 1e-300)[slab]
    # Of signed data the other entries of a fibre may be large with the other sign.
    sizes_of_rest = [np.where(rest, y, 0.0) for y in (nearness, np.abs(nearness))]
    shared, association = math.inf, -math.inf
    for mode, own_size in enumerate(sizes):
        if own_size > 1:
            continue  # its fibres cross slabs
        fibre, fibre_sizes = Fibres.fibre_numbers(shape, mode, entries.indices)
        total = math.prod(fibre_sizes)
        hits, others = (np.bincount(fibre[part], minlength=total) for part in (censored, rest))
        shared = min(shared, float(hits[hits > 1].sum() / max(hits.sum(), 1)))
        used = (others > 0) & (hits + others > 2)
        if np.count_nonzero(used) < 3:
            continue
        share = hits[used] / (hits + others)[used]
        for y in sizes_of_rest:
            mean = np.bincount(fibre, y, total)[used] / others[used]
            if mean.std() > 0 and share.std() > 0:
                correlation = float(np.corrcoef(mean, share)[0, 1])
                association = max(association, correlation * math.sqrt(mean.size))
    return shared >= settings.min_shared and association >= settings.min_association
