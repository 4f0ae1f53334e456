"""Reasons to doubt a fit, as values: a finding, its numbers, and what to try."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from robustcp._util.typing import Factors
from robustcp.constraints import Constraints, Fixed, Orthogonal, Sparse
from robustcp.engines import Axes
from robustcp.model.kruskal import KruskalTensor, component_name, host_factors
from robustcp.model.metrics import concentration
from robustcp.noise import ResidualStructure
from robustcp.optimize.row_prior import PriorDominatedRows

#: A component may be localised if this share of the rows of a mode holds nearly all its squares.
LOCALISED_ROW_SHARE = 0.25
#: Nearly all squares of a component.
LOCALISED_ENERGY_SHARE = 0.99
#: Rows of a peak may hold the squares, unless the median of the other components has less there.
ORDINARY_ENERGY_SHARE = 0.9
#: Rows that span more than this multiple of their number are scattered; the rows of a peak do not.
SCATTER_RATIO = 2
#: A component on this share of the rows or less is localised, whatever the other components do.
FEW_ROWS_SHARE = 0.05
#: A component is localised if its rows are as few by chance with at most this probability, ...
MAX_LOCALISATION_CHANCE = 0.002
#: ... given the share of the rows that other components have in the mode, and one half of so many
#: rows more: in a short mode of sparse factors one row may be all that a component has.
PRIOR_ROWS = 10
#: A model that lowers the entropy of the data by less explains little.
MIN_ENTROPY_DROP = 0.25
#: A component is empty if its weight is at most this share of the largest.
EMPTY_WEIGHT_SHARE = 1e-9
#: Components are collinear if an eigenvalue of their columns' Gram matrices is below this,
COLLINEAR_EIGENVALUE = 0.01
#: and have a loading of at least this share of the largest in its eigenvector.
COLLINEAR_LOADING_SHARE = 0.3


@dataclass(frozen=True)
class FitWarning:
    """A reason to doubt a fit.

    Attributes
    ----------
    code : str
        For programs: "one_start", "search_limit", "ambiguous", "structured", "narrow", "prior",
        "rejected", "collinear", "empty", "idle", "weak", "outlying", "subsets", "unrefined",
        "unsolved", "unobserved", "units", "not_unique".
    sentence : str
        The finding, and what to try.
    numbers : dict
        The numbers of the sentence.

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
    """Warnings of empty and of collinear components of a model in canonical form.

    Components are collinear when, for some mode, the other modes' columns are so close to
    linear dependence that the data cannot tell the components apart in that mode.
    """
    w, *factors = host_factors((model.weights, *model.factors))
    empty = np.flatnonzero(w <= EMPTY_WEIGHT_SHARE * w.max(initial=0.0))
    nonempty = np.setdiff1d(np.arange(model.rank), empty)
    overlaps = [A[:, nonempty].T @ A[:, nonempty] for A in factors]
    collinear: set[int] = set()
    for mode in range(len(overlaps) if nonempty.size > 1 else 0):
        others = math.prod(G for m, G in enumerate(overlaps) if m != mode)
        values, vectors = np.linalg.eigh(others)
        for vector in np.abs(vectors[:, values < COLLINEAR_EIGENVALUE]).T:
            large = vector > COLLINEAR_LOADING_SHARE * vector.max()
            collinear.update(nonempty[large].tolist())
    return [
        *_lower_rank_warnings(
            "empty", empty.tolist(), "is empty", "are empty", model.rank - empty.size
        ),
        *_lower_rank_warnings(
            "collinear", sorted(collinear), "is collinear", "are collinear", model.rank - 1
        ),
    ]


def uniqueness_warnings(
    model: KruskalTensor, modes: Sequence[int], constraints: Constraints
) -> list[FitWarning]:
    """The warning that the components of a matrix are not unique; `modes` are those fitted.

    There is none for one component, for a given factor, one with known entries, or if constraints
    other than smoothness hold for both factors: these may make components unique, nonnegative ones
    with enough zeros.
    """
    if len(model.shape) != 2 or model.rank == 1 or len(modes) < 2:
        return []
    mixing = [c.symmetric and not isinstance(c, Orthogonal | Sparse) for c in constraints]
    if not any(mixing) or any(isinstance(constraint, Fixed) for constraint in constraints):
        return []
    sentence = (
        "the components of a matrix are not unique, only their sum is: any invertible mixture of "
        "them fits as well; try data of three modes, or nonnegative=True, which makes components "
        "unique if both factors have enough zeros"
    )
    return [FitWarning("not_unique", sentence, {"rank": model.rank})]


def _lower_rank_warnings(
    code: str, components: Sequence[int], singular: str, plural: str, rank: int
) -> list[FitWarning]:
    """A warning of components, with a lower rank to try; none without components."""
    if not components:
        return []
    if len(components) == 1:
        words = f"component {components[0] + 1} {singular}"
    else:
        *numbers, last = (str(r + 1) for r in components)
        words = f"components {', '.join(numbers)} and {last} {plural}"
    tip = f"try rank {rank}" if rank else "the data is zero, or nothing but outliers"
    return [FitWarning(code, f"{words}: {tip}", {"components": list(components)})]


def redundancy_warnings(
    redundant: Sequence[int], sufficient_rank: int | None, rank: int
) -> list[FitWarning]:
    """A warning of components that the fit does not need, or of a lower rank that fits as well."""
    lower = rank - 1 if sufficient_rank is None else min(sufficient_rank, rank - 1)
    if redundant or sufficient_rank is None or sufficient_rank >= rank:
        words = "would not be missed"  # any of them; without one the others may be missed
        return _lower_rank_warnings("idle", redundant, words, f"{words}, any of them", lower)
    words = "1 component fits" if sufficient_rank == 1 else f"{sufficient_rank} components fit"
    sentence = f"{words} as well: try rank {sufficient_rank}"
    return [FitWarning("idle", sentence, {"components": [], "rank": sufficient_rank})]


def localisation_warnings(
    factors: Factors, axes: Axes, cases: int | None = None
) -> list[FitWarning]:
    """Warnings of components on a few entries, on one fibre, or on some of the slabs of a mode."""
    from scipy.special import bdtr

    host = host_factors(factors)
    energy_shares, warnings = [concentration(A, LOCALISED_ROW_SHARE) for A in host], []
    dominant_rows = [[_dominant_rows(column) for column in A.T] for A in host]
    for r in range(host[0].shape[1]):
        localised_rows: dict[int, list[int]] = {}
        chance = 1.0
        for mode, (A, shares) in enumerate(zip(host, energy_shares, strict=True)):
            rows, others = dominant_rows[mode][r], np.delete(shares, r)
            on_few_rows = len(rows) <= max(1, FEW_ROWS_SHARE * len(A))
            others_spread = not others.size or np.median(others) < ORDINARY_ENERGY_SHARE
            scattered = rows[-1] - rows[0] + 1 > SCATTER_RATIO * len(rows)
            if shares[r] >= LOCALISED_ENERGY_SHARE and (
                on_few_rows or (others_spread and scattered)
            ):
                localised_rows[mode] = rows
                count = sum(map(len, dominant_rows[mode])) - len(rows) + 0.5 * PRIOR_ROWS
                chance *= bdtr(len(rows), len(A), count / (len(A) * others.size + PRIOR_ROWS))
        if localised_rows and chance <= MAX_LOCALISATION_CHANCE:
            warnings.append(_localisation_warning(r, localised_rows, len(factors), axes, cases))
    return warnings


def _dominant_rows(column: np.ndarray) -> list[int]:
    """The fewest rows that hold nearly all squares of a column, ascending."""
    order = np.argsort(-np.abs(column), kind="stable")
    sums = np.cumsum(column[order] ** 2)
    return sorted(order[: int(np.sum(sums < LOCALISED_ENERGY_SHARE * sums[-1])) + 1].tolist())


def _localisation_warning(
    component: int, rows: dict[int, list[int]], order: int, axes: Axes, cases: int | None
) -> FitWarning:
    """The warning of a component on some rows of some modes."""
    single = [mode for mode, indices in rows.items() if len(indices) == 1]
    tip = "look at it, and try a lower rank"
    if len(single) == order:
        location = "one entry"
    elif len(single) == order - 1:
        (fibre_mode,) = set(range(order)) - set(single)
        location = f"one fibre along {axes.mode_name(fibre_mode)}"
    else:
        mode = min(rows, key=lambda n: len(rows[n]))
        indices = axes.list_indices(mode, rows[mode])
        location = f"{_count_slabs(rows[mode])} of {axes.mode_name(mode)} ({indices})"
        tip = "look at them"
        if _may_try_cases(axes, mode, cases):
            tip = f"if these may be bad samples, try cases={axes.argument_of(mode)}"
    numbers = {"component": component, "modes": list(rows), "rows": list(rows.values())}
    return FitWarning("narrow", f"{component_name(component)} lives on {location}: {tip}", numbers)


def noisy_slab_warnings(
    outlying: Mapping[int, np.ndarray], axes: Axes, cases: int | None = None
) -> list[FitWarning]:
    """Warnings of slabs with far more noise than the others of their mode, which weigh little."""
    warnings = []
    for mode, indices in outlying.items():
        sentence = (
            f"{_count_slabs(indices)} of {axes.mode_name(mode)} with far more noise than the "
            f"others ({axes.list_indices(mode, indices)})"
        )
        if _may_try_cases(axes, mode, cases):
            sentence += f": if they are bad samples, try cases={axes.argument_of(mode)}"
        numbers = {"mode": mode, "slabs": indices.tolist()}
        warnings.append(FitWarning("outlying", sentence, numbers))
    return warnings


def _may_try_cases(axes: Axes, mode: int, cases: int | None) -> bool:
    """Whether `cases` may help against bad slabs of a mode: not if it was given already."""
    return cases is None and axes.may_hold_samples(mode)


def unobserved_slab_warnings(slabs: Sequence[Sequence[int]], axes: Axes) -> list[FitWarning]:
    """Warnings of slabs without observed entries, given those of each mode."""
    return [
        FitWarning(
            "unobserved",
            f"{_count_slabs(rows)} of {axes.mode_name(mode)} without any observed entry "
            f"({axes.list_indices(mode, rows)}), of which the model says nothing (rows of the "
            "factor are 0, fit.full() is NaN): try to leave them out",
            {"mode": mode, "slabs": list(rows)},
        )
        for mode, rows in enumerate(slabs)
        if len(rows)
    ]


def single_start_warnings(reached: int, count: int) -> list[FitWarning]:
    """The warning that no other start, or too few others, led to the model."""
    sentence = f"only {reached} of {count} starts reached this model: try starts={3 * count}"
    return [FitWarning("one_start", sentence, {"reached": reached, "starts": count})]


def search_limit_warnings(reached: int, count: int) -> list[FitWarning]:
    """The warning that the search for starts ended at its price limit."""
    sentence = (
        f"the search for starts ended at its price limit, when {reached} of {count} starts had "
        f"reached this model: try starts={3 * count}"
    )
    return [FitWarning("search_limit", sentence, {"reached": reached, "starts": count})]


def ambiguity_warnings(score: float) -> list[FitWarning]:
    """The warning that a different model fits as well."""
    sentence = (
        f"another model fits as well (factor match score {score:.2f} with this): try another rank, "
        "constraints, or more data"
    )
    return [FitWarning("ambiguous", sentence, {"score": score})]


def structure_warnings(
    structure: ResidualStructure, rank: int, axes: Axes, cases: int | None = None
) -> list[FitWarning]:
    """Warnings of residuals that are not noise."""
    tips = [f"rank {rank + 1}", "more starts"]
    sample_modes = [
        mode for mode in range(len(structure.autocorrelations)) if _may_try_cases(axes, mode, cases)
    ]
    if sample_modes and axes.has_names:
        tips.append(f"cases={axes.argument_of(sample_modes[0])} if some of these may be bad")
    elif sample_modes:
        tips.append("cases= if a mode holds samples")
    tip = f"try {', '.join(tips[:-1])}{',' * (len(tips) > 2)} or {tips[-1]}"
    numbers = {
        "alike": list(structure.autocorrelations),
        "leading": list(structure.leading_eigenvalues),
    }
    return [
        FitWarning("structured", f"{note}: {tip}", numbers) for note in structure.describe(axes)
    ]


def prior_warnings(row_groups: Sequence[PriorDominatedRows], axes: Axes) -> list[FitWarning]:
    """Warnings of rows for which the prior outweighs the data."""
    tip = "do not read much into them, or give more data to try"
    return [
        FitWarning(
            "prior", f"{group.describe(axes)}: {tip}", {"mode": group.mode, "rows": group.count}
        )
        for group in row_groups
    ]


def rejection_warnings(clean: float) -> list[FitWarning]:
    """A warning if more entries are outliers than not."""
    sentence = (
        f"more entries are rejected than kept ({1 - clean:.0%}): check that the rest is what you "
        "mean, and try another rank"
    )
    return [] if clean >= 0.5 else [FitWarning("rejected", sentence, {"clean": clean})]


def skipped_stage_warnings(stages: Sequence[int]) -> list[FitWarning]:
    """A warning if a refinement was left out."""
    sentence = (
        "the noise could not be told from outliers, so that the 1-norm fit was kept: try another "
        "rank, or more starts"
    )
    return [FitWarning("unrefined", sentence)] if stages else []


def weak_model_warnings(drop: float) -> list[FitWarning]:
    """A warning if the model hardly lowers the entropy of the data."""
    ratio = math.exp(-drop)
    sentence = (
        f"residuals are {ratio:.0%} as large as the data: there may be no such components; try a "
        "lower rank, and see whether most entries are outliers"
    )
    return [] if drop > MIN_ENTROPY_DROP else [FitWarning("weak", sentence, {"ratio": ratio})]


def bad_sample_warnings(bad: int, count: int, max_bad_share: float) -> list[FitWarning]:
    """A warning if too many samples are bad for a majority of good ones."""
    sentence = (
        f"{bad} of {count} samples are far from the model, which is not that of most of them: try "
        "another rank"
    )
    numbers = {"bad": bad, "samples": count}
    return [FitWarning("outlying", sentence, numbers)] if bad > max_bad_share * count else []


def subset_count_warnings(count: int, needed: int) -> list[FitWarning]:
    """A warning if fewer subsets of samples were tried than a good one takes."""
    sentence = (
        f"{count} subsets of samples were tried, and {needed} would be needed to be sure of a good "
        f"one: try starts={needed}, or a smaller share of bad samples"
    )
    numbers = {"subsets": count, "wanted": needed}
    return [FitWarning("subsets", sentence, numbers)] if count < needed else []


def _count_slabs(indices: Sequence[int] | np.ndarray) -> str:
    return "1 slab" if len(indices) == 1 else f"{len(indices)} slabs"
