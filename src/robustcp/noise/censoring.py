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

    #: A ceiling holds at least this many of the entries that are looked at.
    min_entries: int = 20
    #: It holds at least this share of them.
    min_share: float = 0.005
    #: If each slab has a ceiling of its own, one holds at least this many entries.
    min_slab_entries: int = 5
    #: At most this share of the entries is at ceilings.
    max_share: float = 0.5
    #: At most this share is larger: spikes that are added to what the detector shows.
    max_share_above: float = 0.1
    #: A ceiling holds this many times as many entries as any other large value.
    repeat_ratio: float = 5.0
    #: Data with fewer levels below its ceiling is taken to be of categories.
    min_levels: int = 64
    #: Values below the ceiling that its distance to them is compared with.
    neighbours: int = 50
    #: The distance, in mean distances between these: beyond it, the largest value is a fill value.
    max_gap: float = 8.0
    #: The share of slabs with a ceiling of their own in which values come so close to it.
    min_close_share: float = 0.8
    #: How much more often than others the entries are censored that share a fibre with a censored
    #: one; of data whose fibres are divided by their largest entries they never are.
    min_shared: float = 0.5
    #: There are at least so many of these.
    min_shared_entries: float = 3.0
    #: Fibres with fewer entries, on average, are too thin to be looked at one by one.
    min_fibre_entries: float = 4.0
    #: The multiple correlation, over fibres, of the share of censored entries with the sizes of the
    #: others, in multiples of its standard error without any dependence.
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
    high = limits.arrays[1]
    assert high is not None
    ceilings = "the ceiling" if high.size == 1 else f"{np.isfinite(high).sum()} ceilings"
    count = engine.censored(limits).censored_count
    return (
        f"{count} entries at {ceilings} ({limits.describe().removeprefix('at least ')}) count as "
        "at least that; limits=None takes them at their value"
    )


def find_ceilings(engine: Engine) -> Limits | None:
    """The ceiling of a detector, or one for each slab of a mode, that entries show; else None.

    Many entries have exactly the largest value but for spikes, other values hardly repeat, and
    there are entries close below. They are not alone in their fibres, where the other entries are
    large too. So counts, rounded and sparse data, fill values, constant fibres, and fibres that are
    divided by their largest entry show none.
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
        if ceilings is not None:
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


def _ceilings_of_slabs(entries: Entries, sizes: tuple[int, ...]) -> np.ndarray | None:
    """The ceilings of the slabs of a mode, infinite for slabs without one, or of all of the data.

    An array of shape `sizes`; None if few entries are at ceilings, or if these are none.
    """
    settings, x, count = CEILING_SETTINGS, entries.values, math.prod(sizes)
    mode = int(np.argmax(sizes))
    slab = np.zeros(x.size, np.intp) if count == 1 else entries.indices[mode]
    tops = _most_frequent_values(x, slab, count)
    at_top, least = x == tops[slab], max(settings.min_entries, settings.min_share * x.size)
    if not least <= np.count_nonzero(at_top) <= settings.max_share * x.size:
        return None
    if np.count_nonzero(x > tops[slab]) > settings.max_share_above * x.size:
        return None
    if _fill_block(entries, at_top):
        return None
    at_top &= ~_in_constant_fibres(entries, at_top)
    ties, slab_sizes = (np.bincount(part, minlength=count) for part in (slab[at_top], slab))
    least_ties = settings.min_entries if count == 1 else settings.min_slab_entries
    has_ceiling = (ties >= least_ties) & (ties >= settings.min_share * slab_sizes)
    if (
        ties[has_ceiling].sum() < least
        or has_ceiling.sum() < (settings.min_slab_share * count if count > 1 else 1)
        or (count > 1 and np.unique(tops[has_ceiling]).size < 0.9 * has_ceiling.sum())
        or not _rises_to_ceilings(x, slab, tops, ties, has_ceiling)
        or not _are_clustered(entries, slab, tops, at_top & has_ceiling[slab], sizes)
    ):
        return None
    return np.where(has_ceiling, tops, math.inf).reshape(sizes)


def _most_frequent_values(x: np.ndarray, slab: np.ndarray, count: int) -> np.ndarray:
    """The most frequent value other than 0 of each slab, the largest of several; -inf if none."""
    order = np.lexsort((x, slab))
    x, slab = x[order], slab[order]
    starts = np.flatnonzero(np.r_[True, (x[1:] != x[:-1]) | (slab[1:] != slab[:-1])])
    lengths = np.diff(np.r_[starts, x.size]) * (x[starts] != 0)
    by_length = np.argsort(lengths, kind="stable")
    values = np.full(count, -math.inf)
    values[slab[starts][by_length]] = x[starts][by_length]  # the last one of each slab remains
    return values


def _fill_block(entries: Entries, at_top: np.ndarray) -> bool:
    """Whether the entries at the top are nearly all those of a block, and they alone."""
    inside = np.ones(at_top.size, dtype=bool)
    for index, size in zip(entries.indices, entries.shape, strict=True):
        hits = np.bincount(index[at_top], minlength=size)
        spanned = hits >= 0.5 * hits.max()
        inside &= spanned[index]
    both = float(np.count_nonzero(at_top & inside))
    return both > 0.9 * float(max(np.count_nonzero(at_top), np.count_nonzero(inside)))


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
    """Whether values come close to the ceilings, and none of the larger ones repeats as often.

    Of rounded data small values may repeat often.
    """
    settings, other = CEILING_SETTINGS, x != tops[slab]
    values, repeats = np.unique(x[other], return_counts=True)
    if values.size < settings.min_levels:
        return False
    large = values > 0.5 * (np.median(x) + np.median(tops[has_ceiling]))
    if settings.repeat_ratio * repeats[large].max(initial=0) > np.median(ties[has_ceiling]):
        return False
    order = np.lexsort((x, slab))
    ordered, ends = x[order], np.cumsum(np.bincount(slab, minlength=tops.size))
    close = []
    for k in np.flatnonzero(has_ceiling):
        own = np.unique(ordered[ends[k - 1] if k else 0 : ends[k]])
        near = own[own < tops[k]][-min(settings.neighbours, max(10, int(ties[k]))) :]
        if near.size > 1:
            spacing = (near[-1] - near[0]) / (near.size - 1)
            close.append(tops[k] - near[-1] <= settings.max_gap * spacing)
    return bool(close) and float(np.mean(close)) >= settings.min_close_share


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
    ranks = _ranks_within(x, slab, rest)
    # Of signed data the other entries of a fibre may be large with the other sign.
    predictors = ranks, np.where(rest, np.abs(ranks - 0.5), 0.0)
    censored_share, association = float(np.mean(censored)), -math.inf
    for mode, own_size in enumerate(sizes):
        if own_size > 1:
            continue  # its fibres cross slabs
        fibre, fibre_sizes = Fibres.fibre_numbers(shape, mode, entries.indices)
        group_count = math.prod(fibre_sizes)
        hits, lengths = (
            np.bincount(part, minlength=group_count) for part in (fibre[censored], fibre)
        )
        expected = censored_share * float(hits @ (lengths - 1))
        least = max(settings.min_shared * expected, settings.min_shared_entries)
        if float(hits @ (hits - 1)) < least:
            return False
        if x.size < settings.min_fibre_entries * group_count:  # slabs in place of thin fibres
            fibre, group_count = entries.indices[mode], shape[mode]
        hits, lengths, others = (
            np.bincount(part, minlength=group_count)
            for part in (fibre[censored], fibre, fibre[rest])
        )
        used = (others > 0) & (lengths > 2)
        if np.count_nonzero(used) < 3:
            continue
        share = hits[used] / lengths[used]
        means = [np.bincount(fibre, y, group_count)[used] / others[used] for y in predictors]
        association = max(association, _multiple_correlation(means, share) * math.sqrt(share.size))
    return association >= settings.min_association


def _ranks_within(x: np.ndarray, slab: np.ndarray, used: np.ndarray) -> np.ndarray:
    """The ranks of some entries within their slab, from 0 to 1; 0 for others."""
    ranks = np.zeros(x.size)
    order = np.flatnonzero(used)[np.lexsort((x[used], slab[used]))]
    counts = np.bincount(slab[used])
    starts = np.cumsum(counts) - counts
    own = slab[order]
    ranks[order] = (np.arange(order.size) - starts[own] + 0.5) / counts[own]
    return ranks


def _multiple_correlation(predictors: list[np.ndarray], y: np.ndarray) -> float:
    """The correlation of a variable with its best linear prediction without negative coefficients.

    Entries are not censored where the others are small.
    """
    from scipy.optimize import nnls

    if y.std() == 0:
        return 0.0
    design = np.stack([part - part.mean() for part in predictors], axis=1)
    _, rest = nnls(design, y - y.mean())
    return math.sqrt(max(0.0, 1 - float(rest**2 / (y.size * y.var()))))
