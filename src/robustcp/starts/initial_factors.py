"""Initial factors: given ones, singular vectors, random, positive and spectral ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from robustcp._util.typing import Factors
from robustcp.constraints import Constraints, Free
from robustcp.engines import Engine, as_array, check_device, to_host
from robustcp.model.kruskal import KruskalTensor
from robustcp.noise import median_magnitude
from robustcp.optimize.problem import Problem
from robustcp.optimize.solver import Solver, Stage
from robustcp.starts.random import random_factors
from robustcp.starts.search_log import SearchLog
from robustcp.starts.spectral import spectral_factors
from robustcp.starts.start import Start, StartingPoint
from robustcp.starts.svd import nvecs


@dataclass(frozen=True)
class GivenStart(Start):
    """Factors that the user gives: matrices, a KruskalTensor or a Fit, in the units of the data."""

    init: Any

    def __call__(
        self,
        problem: Problem,
        rank: int,
        rng: np.random.Generator,
        constraints: Constraints,
        search_log: SearchLog | None = None,
    ) -> StartingPoint:
        factors = factors_from_init(problem.engine, rank, self.init)
        return StartingPoint(problem.units.factors_of_fit(factors), warm_start=True)


@dataclass(frozen=True)
class Initialization(Start):
    """Initial factors by name: "nvecs" (or "auto"), "clipped", "spectral", "random", "positive".

    "nvecs" are singular vectors of the data, "clipped" those of the data clipped at the magnitude
    of ordinary entries. "spectral" is for sparsely observed data, clipped at its median magnitude
    (see `spectral_factors`). "positive" are the magnitudes of random factors.
    """

    kind: str

    def __call__(
        self,
        problem: Problem,
        rank: int,
        rng: np.random.Generator,
        constraints: Constraints,
        search_log: SearchLog | None = None,
    ) -> StartingPoint:
        engine, order = problem.engine, problem.units.order
        if self.kind in ("random", "positive"):
            factors = random_factors(engine, rank, rng)
            if self.kind == "positive":
                factors = tuple(engine.xp.abs(A) for A in factors)
        elif self.kind == "spectral":  # clipped at the median: large entries have no leverage
            factors = spectral_factors(
                engine.clipped(median_magnitude(engine.sample().values)), rank, rng
            )
        else:
            clipped = self.kind == "clipped"
            source = engine.clipped(problem.ordinary_magnitude) if clipped else problem.clipped
            factors = tuple(nvecs(source, n, rank, rng=rng) for n in range(order))
        size = problem.scale if engine.max_abs > 0 else 0.0  # zero data: zero factors
        return StartingPoint(tuple(A * size ** (1 / order) for A in factors))


#: Sweeps without some constraints, before a fit from a single start.
RELAXED_SWEEPS = 50


@dataclass(frozen=True)
class RelaxedStart(Start):
    """A start, and some sweeps without the constraints that are relaxed at starts.

    They have local minima near starts that do not satisfy them: a known column may be taken for
    that of another component.
    """

    start: Start
    stage: Stage

    def __call__(
        self,
        problem: Problem,
        rank: int,
        rng: np.random.Generator,
        constraints: Constraints,
        search_log: SearchLog | None = None,
    ) -> StartingPoint:
        relaxed = tuple(Free() if c.relaxed_at_start else c for c in constraints)
        point = self.start(problem, rank, rng, relaxed, search_log)
        if point.warm_start or problem.engine.max_abs == 0:
            return point
        solver = Solver(problem, (self.stage,), constraints=relaxed)
        search_log = search_log or SearchLog()
        factors = search_log.run(solver, lambda: solver.start(point.factors), RELAXED_SWEEPS)
        return replace(point, factors=factors)


def make_starts(
    init: Any, count: int, start_type: Callable[[str], Start] = Initialization
) -> list[Start]:
    """The requested start, followed by `count - 1` random ones."""
    first = start_type(init) if isinstance(init, str) else GivenStart(init)
    return [first, *(start_type("random") for _ in range(count - 1))]


def zero_unobserved_rows(
    problem: Problem, factors: Factors, modes: Sequence[int], constraints: Constraints
) -> Factors:
    """Set rows that no entry tells anything about to zero; see `unobserved_rows`."""
    engine, new_factors = problem.engine, list(factors)
    for mode, rows in enumerate(unobserved_rows(engine, modes, constraints)):
        if rows.size:
            observed_mask = np.ones((engine.shape[mode], 1))
            observed_mask[rows] = 0.0
            new_factors[mode] = factors[mode] * engine.asarray(observed_mask)
    return tuple(new_factors)


def unobserved_rows(
    engine: Engine, modes: Sequence[int], constraints: Constraints
) -> list[np.ndarray]:
    """For each mode the rows without observed entries that nothing else determines.

    There are none in modes that are held fixed, nor where a constraint infers rows from others.
    """
    return [
        np.flatnonzero(engine.slab_counts(mode) == 0)
        if mode in modes and not constraints[mode].leaves_empty_rows and not engine.complete
        else np.array([], dtype=np.intp)
        for mode in range(engine.order)
    ]


def factors_from_init(engine: Engine, rank: int, init: Any) -> Factors:
    """Factors from a Kruskal tensor, a Fit, a pair (weights, factors) or a list of factors."""
    try:
        items = list(init)
        pair = len(items) == 2 and isinstance(items[1], list | tuple) and _array_order(items[0]) < 2
        weights, factors = items if pair else (None, items)
        if weights is not None:
            weights = engine.asarray(_real_array(weights))
        model = KruskalTensor.from_tensorly(
            (weights, [engine.asarray(_real_array(A)) for A in factors])
        )
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise ValueError(
            "init: must be 'nvecs', 'random', 'auto', a KruskalTensor, a Fit or a list of "
            f"factor matrices, got {type(init).__name__} ({error})"
        ) from None
    for factor in factors:
        check_device("init", factor, engine.device)
    shape = (*engine.shape, rank)
    if (*model.shape, model.rank) != shape:
        raise ValueError(
            f"init: has shape {model.shape} and rank {model.rank}, "
            f"the data has shape {engine.shape} and rank is {rank}"
        )
    initial_factors = model.absorbed()
    xp = engine.xp
    for mode, A in enumerate(initial_factors):
        if not bool(xp.all(xp.isfinite(A))):
            raise ValueError(f"init: the factor of mode {mode} has entries that are not finite")
        empty = [r for r in range(rank) if not bool(xp.any(A[:, r] != 0))]
        if empty:
            raise ValueError(f"init: column {empty[0]} of the factor of mode {mode} is zero")
    return initial_factors


def _array_order(array: Any) -> int:
    return 0 if array is None else len(as_array(array).shape)


def _real_array(array: Any) -> np.ndarray:
    """A matrix or vector on the host; complex numbers are refused."""
    host = to_host(as_array(array))
    if host.dtype.kind not in "fiub":
        raise TypeError(f"dtype {host.dtype} is not one of real numbers")
    return host
