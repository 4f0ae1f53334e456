"""Reasons to doubt a fit, as values: what was seen, in numbers, and what to try."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from robustcp._util.typing import Factors
from robustcp.engines import Axes, to_host
from robustcp.model.kruskal import KruskalTensor, component_name
from robustcp.model.metrics import concentration
from robustcp.noise import ResidualStructure
from robustcp.optimize.row_prior import PriorDominatedRows

#: A component is localised if this share of the rows of a mode
LOCALISED_ROW_SHARE = 0.25
#: holds this share of its squares,
LOCALISED_ENERGY_SHARE = 0.99
#: and the median of the other components has a smaller share there.
ORDINARY_ENERGY_SHARE = 0.9
#: Rows that are spread over so many times as many are not those of a peak.
SCATTER_RATIO = 2
#: So large a share of the rows is few in any case.
FEW_ROWS_SHARE = 0.05
#: A model that lowers the entropy of the data by less explains little.
MIN_ENTROPY_DROP = 0.25
#: Indices that are named.
MAX_INDICES_SHOWN = 5


@dataclass(frozen=True)
class FitWarning:
    """A reason to doubt a fit.

    Attributes
    ----------
    code : str
        For programs: "one_start", "ambiguous", "structured", "narrow", "prior", "rejected",
        "collinear", "empty", "idle", "weak", "outlying", "subsets", "unrefined", "unsolved".
    sentence : str
        What was seen, and what to try.
    numbers : dict
        What the sentence says, as numbers and lists of them.

    Examples
    --------
    >>> import robustcp
    >>> sim = robustcp.simulate((20, 20, 20), 3, eta=0.1, gamma=2.0, rng=0)
    >>> robustcp.cp(sim.data, 2).warnings[0].code
    'structured'
    >>> robustcp.cp(sim.data, 3).warnings
    ()
    """

    code: str
    sentence: str
    numbers: dict[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return self.sentence


def component_warnings(model: KruskalTensor) -> list[FitWarning]:
    """Empty and collinear components of a model in canonical form.

    Components are collinear when, for some mode, the other modes' columns are so close to
    linear dependence that the data cannot tell the components apart in that mode.
    """
    w = np.asarray(to_host(model.weights), dtype=np.float64)
    empty = np.flatnonzero(w <= 1e-9 * w.max(initial=0.0))
    nonempty = np.setdiff1d(np.arange(model.rank), empty)
    overlaps = []
    for A in model.factors:
        B = np.asarray(to_host(A), dtype=np.float64)[:, nonempty]
        overlaps.append(B.T @ B)
    collinear: set[int] = set()
    for mode in range(len(overlaps)):
        if nonempty.size < 2:
            break
        others = math.prod(G for m, G in enumerate(overlaps) if m != mode)
        values, vectors = np.linalg.eigh(others)
        for vector in vectors[:, values < 0.01].T:
            collinear.update(int(r) for r in nonempty[np.abs(vector) > 0.3 * np.abs(vector).max()])
    warnings = []
    if empty.size:
        words = _describe_components(empty.tolist(), "is empty", "are empty")
        rank = model.rank - empty.size
        warnings.append(_lower_rank_warning("empty", words, rank, components=empty.tolist()))
    if collinear:
        components = sorted(collinear)
        words = _describe_components(components, "is collinear", "are collinear")
        warnings.append(
            _lower_rank_warning("collinear", words, model.rank - 1, components=components)
        )
    return warnings


def _lower_rank_warning(code: str, words: str, rank: int, **numbers: Any) -> FitWarning:
    tip = f"try rank {rank}" if rank else "the data is zero, or nothing but outliers"
    return FitWarning(code, f"{words}: {tip}", numbers)


def redundancy_warnings(
    redundant: Sequence[int], sufficient_rank: int | None, rank: int
) -> list[FitWarning]:
    """Components that would not be missed; or fewer of them that fit as well."""
    lower = rank - 1 if sufficient_rank is None else min(sufficient_rank, rank - 1)
    if redundant:  # any of them; without one the others may be missed
        words = _describe_components(
            redundant, "would not be missed", "would not be missed, any of them"
        )
        return [_lower_rank_warning("idle", words, lower, components=list(redundant))]
    if sufficient_rank is not None and sufficient_rank < rank:
        words = "1 component fits" if sufficient_rank == 1 else f"{sufficient_rank} components fit"
        sentence = f"{words} as well: try rank {sufficient_rank}"
        return [FitWarning("idle", sentence, {"components": [], "rank": sufficient_rank})]
    return []


def localisation_warnings(
    factors: Factors, axes: Axes, cases: int | None = None
) -> list[FitWarning]:
    """Components that live on a few entries, on one fibre, or on a part of the slabs of a mode."""
    host = [np.asarray(to_host(A), dtype=np.float64) for A in factors]
    energy_shares, warnings = [concentration(A, LOCALISED_ROW_SHARE) for A in host], []
    for r in range(host[0].shape[1]):
        localised_rows: dict[int, list[int]] = {}
        for mode, (A, shares) in enumerate(zip(host, energy_shares, strict=True)):
            rows, others = _dominant_rows(A[:, r]), np.delete(shares, r)
            on_few_rows = len(rows) <= max(1, FEW_ROWS_SHARE * len(A))
            others_spread = not others.size or np.median(others) < ORDINARY_ENERGY_SHARE
            if shares[r] >= LOCALISED_ENERGY_SHARE and (
                on_few_rows or (others_spread and _are_scattered(rows))
            ):
                localised_rows[mode] = rows
        if localised_rows:
            warnings.append(_localisation_warning(r, localised_rows, len(factors), axes, cases))
    return warnings


def _dominant_rows(column: np.ndarray) -> list[int]:
    """The largest entries that hold nearly all squares."""
    order = np.argsort(-np.abs(column), kind="stable")
    sums = np.cumsum(column[order] ** 2)
    return sorted(order[: int(np.sum(sums < LOCALISED_ENERGY_SHARE * sums[-1])) + 1].tolist())


def _are_scattered(rows: list[int]) -> bool:
    """Whether rows are not next to each other, as those of a peak are."""
    return rows[-1] - rows[0] + 1 > SCATTER_RATIO * len(rows)


def _localisation_warning(
    component: int, rows: dict[int, list[int]], order: int, axes: Axes, cases: int | None
) -> FitWarning:
    numbers = {"component": component, "modes": list(rows), "rows": list(rows.values())}
    single = [mode for mode, indices in rows.items() if len(indices) == 1]
    if len(single) == order:
        location, tip = "one entry", "look at it, and try a lower rank"
    elif len(single) == order - 1:
        fibre_mode = next(mode for mode in range(order) if mode not in single)
        location = f"one fibre along {axes.mode_name(fibre_mode)}"
        tip = "look at it, and try a lower rank"
    else:
        mode = min(rows, key=lambda n: len(rows[n]))
        indices = rows[mode]
        slabs = "1 slab" if len(indices) == 1 else f"{len(indices)} slabs"
        location = f"{slabs} of {axes.mode_name(mode)} ({abbreviate_indices(indices)})"
        tip = "look at them" if cases == mode else f"if these may be bad samples, try cases={mode}"
    return FitWarning("narrow", f"{component_name(component)} lives on {location}: {tip}", numbers)


def noisy_slab_warnings(
    outlying: dict[int, np.ndarray], axes: Axes, cases: int | None = None
) -> list[FitWarning]:
    """Slabs with far more noise than the others of their mode: they have little say."""
    warnings = []
    for mode, indices in outlying.items():
        slabs = "1 slab" if indices.size == 1 else f"{indices.size} slabs"
        sentence = (
            f"{slabs} of {axes.mode_name(mode)} with far more noise than the others "
            f"({abbreviate_indices(indices)})"
        )
        if cases is None:
            sentence += f": if they are bad samples, try cases={mode}"
        warnings.append(FitWarning("outlying", sentence, {"mode": mode, "slabs": indices.tolist()}))
    return warnings


def single_start_warnings(reached: int, count: int) -> list[FitWarning]:
    """A model that no other start led to."""
    sentence = f"only {reached} of {count} starts reached this model: try starts={3 * count}"
    return [FitWarning("one_start", sentence, {"reached": reached, "starts": count})]


def ambiguity_warnings(score: float) -> list[FitWarning]:
    """A different model that fits as well."""
    sentence = (
        f"another model fits as well (factor match score {score:.2f} with this): try another rank, "
        "constraints, or more data"
    )
    return [FitWarning("ambiguous", sentence, {"score": score})]


def structure_warnings(structure: ResidualStructure, rank: int, axes: Axes) -> list[FitWarning]:
    """Residuals that are not noise."""
    tip = f"try rank {rank + 1}, more starts, or cases= if a mode holds samples"
    numbers = {
        "alike": list(structure.autocorrelations),
        "leading": list(structure.leading_eigenvalues),
    }
    return [
        FitWarning("structured", f"{note}: {tip}", numbers) for note in structure.describe(axes)
    ]


def prior_warnings(row_groups: Sequence[PriorDominatedRows], axes: Axes) -> list[FitWarning]:
    """Rows that a prior decides."""
    return [
        FitWarning(
            "prior",
            f"{group.describe(axes)}: do not read much into them, or give more data to try",
            {"mode": group.mode, "rows": group.count},
        )
        for group in row_groups
    ]


def rejection_warnings(clean: float) -> list[FitWarning]:
    """More outliers than entries that fit."""
    if clean >= 0.5:
        return []
    sentence = (
        f"more entries are rejected than kept ({1 - clean:.0%}): check that the rest is what you "
        "mean, and try another rank"
    )
    return [FitWarning("rejected", sentence, {"clean": clean})]


def skipped_stage_warnings(stages: Sequence[int]) -> list[FitWarning]:
    """A refinement that was left out."""
    if not stages:
        return []
    sentence = (
        "the noise could not be told from outliers, so that the 1-norm fit was kept: try another "
        "rank, or more starts"
    )
    return [FitWarning("unrefined", sentence)]


def weak_model_warnings(drop: float) -> list[FitWarning]:
    """Residuals that are hardly smaller than the data, by the drop of their entropy."""
    if drop > MIN_ENTROPY_DROP:
        return []
    ratio = math.exp(-drop)
    sentence = (
        f"residuals are {ratio:.0%} as large as the data: there may be no such components; try a "
        "lower rank, and see whether most entries are outliers"
    )
    return [FitWarning("weak", sentence, {"ratio": ratio})]


def bad_sample_warnings(bad: int, count: int, max_bad_share: float) -> list[FitWarning]:
    """More bad samples than can be told from good ones."""
    if bad <= max_bad_share * count:
        return []
    sentence = (
        f"{bad} of {count} samples are far from the model, which is not that of most of them: try "
        "another rank"
    )
    return [FitWarning("outlying", sentence, {"bad": bad, "samples": count})]


def subset_count_warnings(count: int, needed: int) -> list[FitWarning]:
    """Fewer subsets of samples than it takes."""
    if count >= needed:
        return []
    sentence = (
        f"{count} subsets of samples were tried, and {needed} would be needed to be sure of a good "
        f"one: try starts={needed}, or a smaller share of bad samples"
    )
    return [FitWarning("subsets", sentence, {"subsets": count, "wanted": needed})]


def describe_numbered(noun: str, numbers: Sequence[int], singular: str, plural: str) -> str:
    """Some numbered things, and what they are."""
    if len(numbers) == 1:
        return f"{noun} {numbers[0]} {singular}"
    *all_but_last, last = map(str, numbers)
    return f"{noun}s {', '.join(all_but_last)} and {last} {plural}"


def _describe_components(numbers: Sequence[int], singular: str, plural: str) -> str:
    """Some components, which texts count from 1."""
    return describe_numbered("component", [r + 1 for r in numbers], singular, plural)


def abbreviate_indices(rows: Sequence[int] | np.ndarray) -> str:
    """The first of some indices."""
    return ", ".join(map(str, rows[:MAX_INDICES_SHOWN])) + (
        ", ..." if len(rows) > MAX_INDICES_SHOWN else ""
    )
