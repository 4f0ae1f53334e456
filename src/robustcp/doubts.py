"""Reasons to doubt a fit, as values: what was seen, in numbers, and what to try."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from robustcp._typing import Factors
from robustcp.engines import to_host
from robustcp.kruskal import KruskalTensor, component_name
from robustcp.metrics import held_by_few
from robustcp.noise import Structure
from robustcp.priors import Decided

#: A component lives on a part of the rows of a mode if this share of them holds that share of its
#: squares, and that of an ordinary component is smaller.
PART, HELD, ORDINARY = 0.25, 0.99, 0.9
#: Rows that are spread over so many times as many are not those of a peak.
APART = 2
#: So large a share of the rows is few in any case.
FEW = 0.05
#: A model that lowers the entropy of the data by less explains little.
LITTLE = 0.25
#: Indices that are named.
NAMED = 5


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


def of_components(model: KruskalTensor) -> list[FitWarning]:
    """Empty and collinear components of a model in canonical form.

    Components are collinear when, for some mode, the other modes' columns are so close to
    linear dependence that the data cannot tell the components apart in that mode.
    """
    w = np.asarray(to_host(model.weights), dtype=np.float64)
    empty = np.flatnonzero(w <= 1e-9 * w.max(initial=0.0))
    full = np.setdiff1d(np.arange(model.rank), empty)
    overlaps = []
    for A in model.factors:
        B = np.asarray(to_host(A), dtype=np.float64)[:, full]
        overlaps.append(B.T @ B)
    together: set[int] = set()
    for mode in range(len(overlaps)):
        if full.size < 2:
            break
        others = math.prod(G for m, G in enumerate(overlaps) if m != mode)
        values, vectors = np.linalg.eigh(others)
        for vector in vectors[:, values < 0.01].T:
            together.update(int(r) for r in full[np.abs(vector) > 0.3 * np.abs(vector).max()])
    found = []
    if empty.size:
        words = _components(empty.tolist(), "is empty", "are empty")
        rank = model.rank - empty.size
        found.append(_lower_rank("empty", words, rank, components=empty.tolist()))
    if together:
        alike = sorted(together)
        words = _components(alike, "is collinear", "are collinear")
        found.append(_lower_rank("collinear", words, model.rank - 1, components=alike))
    return found


def _lower_rank(code: str, words: str, rank: int, **numbers: Any) -> FitWarning:
    tip = f"try rank {rank}" if rank else "the data is zero, or nothing but outliers"
    return FitWarning(code, f"{words}: {tip}", numbers)


def of_idle(idle: Sequence[int], enough: int | None, rank: int) -> list[FitWarning]:
    """Components that would not be missed; or fewer of them that fit as well."""
    lower = rank - 1 if enough is None else min(enough, rank - 1)
    if idle:  # any of them; without one the others may be missed
        words = _components(idle, "would not be missed", "would not be missed, any of them")
        return [_lower_rank("idle", words, lower, components=list(idle))]
    if enough is not None and enough < rank:
        words = "1 component fits" if enough == 1 else f"{enough} components fit"
        sentence = f"{words} as well: try rank {enough}"
        return [FitWarning("idle", sentence, {"components": [], "rank": enough})]
    return []


def of_narrow(factors: Factors, cases: int | None = None) -> list[FitWarning]:
    """Components that live on a few entries, on one fibre, or on a part of the slabs of a mode."""
    host = [np.asarray(to_host(A), dtype=np.float64) for A in factors]
    held, found = [held_by_few(A, PART) for A in host], []
    for r in range(host[0].shape[1]):
        narrow: dict[int, list[int]] = {}
        for mode, (A, shares) in enumerate(zip(host, held, strict=True)):
            rows, others = _rows_of(A[:, r]), np.delete(shares, r)
            few = len(rows) <= max(1, FEW * len(A))
            alone = not others.size or np.median(others) < ORDINARY
            if shares[r] >= HELD and (few or (alone and _scattered(rows))):
                narrow[mode] = rows
        if narrow:
            found.append(_narrow(r, narrow, len(factors), cases))
    return found


def _rows_of(column: np.ndarray) -> list[int]:
    """The largest entries that hold nearly all squares."""
    order = np.argsort(-np.abs(column), kind="stable")
    sums = np.cumsum(column[order] ** 2)
    return sorted(order[: int(np.sum(sums < HELD * sums[-1])) + 1].tolist())


def _scattered(rows: list[int]) -> bool:
    """Whether rows are not next to each other, as those of a peak are."""
    return rows[-1] - rows[0] + 1 > APART * len(rows)


def _narrow(
    component: int, rows: dict[int, list[int]], order: int, cases: int | None
) -> FitWarning:
    numbers = {"component": component, "modes": list(rows), "rows": list(rows.values())}
    single = [mode for mode, at in rows.items() if len(at) == 1]
    if len(single) == order:
        where, tip = "one entry", "look at it, and try a lower rank"
    elif len(single) == order - 1:
        along = next(mode for mode in range(order) if mode not in single)
        where, tip = f"one fibre along mode {along}", "look at it, and try a lower rank"
    else:
        mode = min(rows, key=lambda n: len(rows[n]))
        at = rows[mode]
        slabs = "1 slab" if len(at) == 1 else f"{len(at)} slabs"
        where = f"{slabs} of mode {mode} ({some(at)})"
        tip = "look at them" if cases == mode else f"if these may be bad samples, try cases={mode}"
    return FitWarning("narrow", f"{component_name(component)} lives on {where}: {tip}", numbers)


def of_slabs(outlying: dict[int, np.ndarray], cases: int | None = None) -> list[FitWarning]:
    """Slabs with far more noise than the others of their mode: they have little say."""
    found = []
    for mode, at in outlying.items():
        slabs = "1 slab" if at.size == 1 else f"{at.size} slabs"
        sentence = f"{slabs} of mode {mode} with far more noise than the others ({some(at)})"
        if cases is None:
            sentence += f": if they are bad samples, try cases={mode}"
        found.append(FitWarning("outlying", sentence, {"mode": mode, "slabs": at.tolist()}))
    return found


def of_starts(reached: int, count: int) -> list[FitWarning]:
    """A model that no other start led to."""
    sentence = f"only {reached} of {count} starts reached this model: try starts={3 * count}"
    return [FitWarning("one_start", sentence, {"reached": reached, "starts": count})]


def of_another(score: float) -> list[FitWarning]:
    """A different model that fits as well."""
    sentence = (
        f"another model fits as well (factor match score {score:.2f} with this): try another rank, "
        "constraints, or more data"
    )
    return [FitWarning("ambiguous", sentence, {"score": score})]


def of_structure(structure: Structure, rank: int) -> list[FitWarning]:
    """Residuals that are not noise."""
    tip = f"try rank {rank + 1}, more starts, or cases= if a mode holds samples"
    numbers = {"alike": list(structure.alike), "leading": list(structure.leading)}
    return [FitWarning("structured", f"{note}: {tip}", numbers) for note in structure.notes]


def of_priors(decided: Sequence[Decided]) -> list[FitWarning]:
    """Rows that a prior decides."""
    return [
        FitWarning(
            "prior", f"{one.words}: do not read much into them, or give more data to try",
            {"mode": one.mode, "rows": one.rows},
        )
        for one in decided
    ]  # fmt: skip


def of_rejected(clean: float) -> list[FitWarning]:
    """More outliers than entries that fit."""
    if clean >= 0.5:
        return []
    sentence = (
        f"more entries are rejected than kept ({1 - clean:.0%}): check that the rest is what you "
        "mean, and try another rank"
    )
    return [FitWarning("rejected", sentence, {"clean": clean})]


def of_skipped(stages: Sequence[int]) -> list[FitWarning]:
    """A refinement that was left out."""
    if not stages:
        return []
    sentence = (
        "the noise could not be told from outliers, so that the 1-norm fit was kept: try another "
        "rank, or more starts"
    )
    return [FitWarning("unrefined", sentence)]


def of_little(drop: float) -> list[FitWarning]:
    """Residuals that are hardly smaller than the data, by the drop of their entropy."""
    if drop > LITTLE:
        return []
    ratio = math.exp(-drop)
    sentence = (
        f"residuals are {ratio:.0%} as large as the data: there may be no such components; try a "
        "lower rank, and see whether most entries are outliers"
    )
    return [FitWarning("weak", sentence, {"ratio": ratio})]


def of_cases(bad: int, count: int, most: float) -> list[FitWarning]:
    """More bad samples than can be told from good ones."""
    if bad <= most * count:
        return []
    sentence = (
        f"{bad} of {count} samples are far from the model, which is not that of most of them: try "
        "another rank"
    )
    return [FitWarning("outlying", sentence, {"bad": bad, "samples": count})]


def of_subsets(count: int, wanted: int) -> list[FitWarning]:
    """Fewer subsets of samples than it takes."""
    if count >= wanted:
        return []
    sentence = (
        f"{count} subsets of samples were tried, and {wanted} would be needed to be sure of a good "
        f"one: try starts={wanted}, or a smaller share of bad samples"
    )
    return [FitWarning("subsets", sentence, {"subsets": count, "wanted": wanted})]


def named(what: str, numbers: Sequence[int], one: str, many: str) -> str:
    """Some numbered things, and what they are."""
    if len(numbers) == 1:
        return f"{what} {numbers[0]} {one}"
    *most, last = map(str, numbers)
    return f"{what}s {', '.join(most)} and {last} {many}"


def _components(numbers: Sequence[int], one: str, many: str) -> str:
    """Some components, which texts count from 1."""
    return named("component", [r + 1 for r in numbers], one, many)


def some(rows: Sequence[int] | np.ndarray) -> str:
    """The first of some indices."""
    return ", ".join(map(str, rows[:NAMED])) + (", ..." if len(rows) > NAMED else "")
