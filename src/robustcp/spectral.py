"""A start for data of which few entries are known: eigenvectors of what they say in pairs.

The Gram matrix X_n X_n' of an unfolding, gaps taken as zero, has p times the true squares on its
diagonal but p^2 times the true products beside it, where p is the share of entries that are known.
So with few of them its eigenvectors are those of a nearly diagonal matrix. Without the diagonal
they tell where the factors are as soon as there are some sqrt(prod(shape)) entries, where random
factors lead nowhere. What the data is between these eigenvectors, its core, is as small as the
rank, and fitting it takes no time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from robustcp._typing import Factors
from robustcp.engines import Engine, as_engine
from robustcp.init import hollow, random
from robustcp.losses import LeastSquares
from robustcp.schedules import Single
from robustcp.sizes import Problem
from robustcp.solver import Solver, Stage

#: Of more entries, a sample makes the core.
MANY = 1 << 20
#: Entries that are worked on at once, times the columns of their products.
AT_ONCE = 1 << 20
#: Cores of more entries, times the rank, are not fitted.
LARGEST = 1 << 18
#: Starts of the fit of a core, and their sweeps.
STARTS, SWEEPS = 5, 100


def compressed(engine: Engine, rank: int, rng: np.random.Generator) -> Factors:
    """Factors from the core of the data; random ones, if that would be large."""
    sizes = [min(rank, size) for size in engine.shape]
    if rank * math.prod(sizes) > LARGEST:
        return random(engine, rank, rng)
    bases = [hollow(engine, mode, size, rng) for mode, size in enumerate(sizes)]
    core = _core(engine, bases)
    if not np.any(core):
        return random(engine, rank, rng)
    problem = Problem.of(as_engine(core), wild=True)
    stage = Stage("core", Single(LeastSquares()), 1e-4, problem.relative_mu(1e-8, 2))
    solver = Solver(problem, [stage])
    begun = (random(problem.engine, rank, rng) for _ in range(STARTS))
    ends = [solver.run(solver.start(factors), SWEEPS)[0] for factors in begun]
    best = min(ends, key=lambda state: state.objective)
    found = problem.units.factors_of_data(best.factors)
    return tuple(engine.asarray(U @ B) for U, B in zip(bases, found, strict=True))


def _core(engine: Engine, bases: Sequence[np.ndarray]) -> np.ndarray:
    """What the data is between some vectors of each mode, from the entries that are known."""
    some = engine.entries() if engine.count <= MANY else engine.sample()
    sizes = [U.shape[1] for U in bases]
    step = max(1, AT_ONCE // math.prod(sizes[1:]))
    core = np.zeros((sizes[0], math.prod(sizes[1:])))
    for begin in range(0, some.values.size, step):
        part = slice(begin, begin + step)
        rows = [U[index[part]] for U, index in zip(bases, some.indices, strict=True)]
        product = some.values[part, None]
        for other in rows[1:]:
            product = (product[:, :, None] * other[:, None, :]).reshape(len(other), -1)
        core += rows[0].T @ product
    return core.reshape(sizes) * (math.prod(engine.shape) / max(some.values.size, 1))
