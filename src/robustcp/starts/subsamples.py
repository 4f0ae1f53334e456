"""Subsamples of large tensors, and models of the whole from those of a subsample."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from robustcp._util.typing import Factors
from robustcp.constraints import Constraints
from robustcp.engines import Engine
from robustcp.optimize.problem import Problem
from robustcp.optimize.schedules import Continuation, NarrowWelsch, Schedule, most_are_outliers
from robustcp.optimize.solver import Solver, Stage
from robustcp.starts.search_log import SearchLog, transfer_factors
from robustcp.starts.settings import SEARCH_SETTINGS, SearchSettings

#: Indices of each mode; None takes a mode whole.
Indices = list[np.ndarray | None]


def draw_indices(
    shape: tuple[int, ...], entry_limit: int, rank: int, rng: np.random.Generator
) -> Indices | None:
    """Random indices of each mode that select at most `entry_limit` entries; None: take all."""
    if math.prod(shape) <= entry_limit:
        return None
    min_sizes = [min(size, max(20, 4 * rank)) for size in shape]
    sizes = [float(size) for size in shape]
    for _ in range(20):  # long modes are cut first, short ones stay whole
        excess = math.prod(sizes) / entry_limit
        if excess <= 1:
            break
        reducible = [n for n, size in enumerate(sizes) if size > min_sizes[n]]
        if not reducible:
            break
        reduction = excess ** (1 / len(reducible))
        for n in reducible:
            sizes[n] = max(float(min_sizes[n]), sizes[n] / reduction)
    return [
        None if round(size) >= full_size else np.sort(rng.permutation(full_size)[: round(size)])
        for size, full_size in zip(sizes, shape, strict=True)
    ]


def draw_first_subsample(
    engine: Engine,
    rank: int,
    rng: np.random.Generator,
    settings: SearchSettings = SEARCH_SETTINGS,
) -> Indices | None:
    """Indices of a small part of a tensor of middle size, which may be enough; else None."""
    count, share = math.prod(engine.shape), observed_share(engine)
    if (
        not settings.min_first_subsample_entries < engine.count <= settings.max_full_search_entries
        or share <= 0.4
    ):
        return None
    limit = min(count // 4, round(settings.first_subsample_entries / share))
    return draw_indices(engine.shape, limit, rank, rng)


def draw_subsample(
    engine: Engine,
    rank: int,
    rng: np.random.Generator,
    settings: SearchSettings = SEARCH_SETTINGS,
) -> Indices | None:
    """Indices of a subsample of a large tensor for the search; None for smaller tensors."""
    limit = settings.max_full_search_entries
    if engine.complete:
        limit = settings.max_complete_search_entries
    if math.prod(engine.shape) <= limit or observed_share(engine) <= 0.4:
        return None
    return draw_indices(engine.shape, settings.subsample_entries, rank, rng)


def observed_share(engine: Engine) -> float:
    """The share of entries that are observed."""
    return 1.0 if engine.complete else engine.count / math.prod(engine.shape)


def restrict_constraints(constraints: Constraints, subsample: Indices) -> Constraints:
    """The constraints of a subsample."""
    return tuple(
        constraint if indices is None else constraint.on(indices)
        for constraint, indices in zip(constraints, subsample, strict=True)
    )


def extend_factors(
    problem: Problem,
    subsample: Indices,
    factors: Factors,
    constraints: Constraints,
    search_log: SearchLog,
    settings: SearchSettings = SEARCH_SETTINGS,
) -> Factors:
    """Factors of all data from those of a subsample: the rows of a mode by robust regression on the
    subsample of the others."""
    engine, full_factors = problem.engine, []
    factors = transfer_factors(engine, factors)
    mostly_outliers = most_are_outliers(engine.subtensor(subsample), factors, problem.resolution)
    for mode, indices in enumerate(subsample):
        if indices is None:
            full_factors.append(factors[mode])
            continue
        slabs = engine.subtensor(
            [None if m == mode else other_indices for m, other_indices in enumerate(subsample)]
        )
        rows = engine.asarray(np.zeros((engine.shape[mode], factors[0].shape[1])))
        rows[engine.xp.asarray(indices), :] = factors[mode]
        size = problem.ordinary_magnitude**2
        lowest = max(settings.lowest_epsilon_share * size, (problem.resolution.step / 2) ** 2)
        schedule: Schedule = Continuation(max(lowest, 0.03 * size), lowest)
        if mostly_outliers:
            schedule = NarrowWelsch(problem.resolution)
        stage = Stage("rows", schedule, 1e-3, 0.0, 8)
        solver = Solver(problem.with_engine(slabs), (stage,), (mode,), constraints)
        initial_factors = (*factors[:mode], rows, *factors[mode + 1 :])
        fitted_factors = search_log.run(solver, partial(solver.start, initial_factors), 40)
        full_factors.append(fitted_factors[mode])
    return tuple(full_factors)
