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

from robustcp._util.typing import Factors
from robustcp.engines import Engine, as_engine
from robustcp.losses import LeastSquares
from robustcp.optimize.problem import Problem
from robustcp.optimize.schedules import Single
from robustcp.optimize.solver import Solver, Stage
from robustcp.starts.initial_factors import hollow_gram_eigenvectors, random_factors

#: Of more entries, a sample makes the core.
MAX_CORE_DATA_ENTRIES = 1 << 20
#: Entries that are worked on at once, times the columns of their products.
BLOCK_ENTRIES = 1 << 20
#: Cores of more entries, times the rank, are not fitted.
MAX_CORE_SIZE = 1 << 18
#: Starts of the fit of a core.
CORE_STARTS = 5
#: Sweeps of each.
CORE_SWEEPS = 100


def spectral_factors(engine: Engine, rank: int, rng: np.random.Generator) -> Factors:
    """Factors from the core of the data; random ones, if that would be large."""
    sizes = [min(rank, size) for size in engine.shape]
    if rank * math.prod(sizes) > MAX_CORE_SIZE:
        return random_factors(engine, rank, rng)
    bases = [hollow_gram_eigenvectors(engine, mode, size, rng) for mode, size in enumerate(sizes)]
    core = _core_tensor(engine, bases)
    if not np.any(core):
        return random_factors(engine, rank, rng)
    problem = Problem.of(as_engine(core), keep_outliers=True)
    stage = Stage("core", Single(LeastSquares()), 1e-4, problem.relative_mu(1e-8, 2))
    solver = Solver(problem, [stage])
    starts = (random_factors(problem.engine, rank, rng) for _ in range(CORE_STARTS))
    states = [solver.run(solver.start(factors), CORE_SWEEPS)[0] for factors in starts]
    best = min(states, key=lambda state: state.objective)
    core_factors = problem.units.factors_of_data(best.factors)
    return tuple(engine.asarray(U @ B) for U, B in zip(bases, core_factors, strict=True))


def _core_tensor(engine: Engine, bases: Sequence[np.ndarray]) -> np.ndarray:
    """What the data is between some vectors of each mode, from the entries that are known."""
    sample = engine.entries() if engine.count <= MAX_CORE_DATA_ENTRIES else engine.sample()
    sizes = [U.shape[1] for U in bases]
    step = max(1, BLOCK_ENTRIES // math.prod(sizes[1:]))
    core = np.zeros((sizes[0], math.prod(sizes[1:])))
    for begin in range(0, sample.values.size, step):
        block = slice(begin, begin + step)
        rows = [U[index[block]] for U, index in zip(bases, sample.indices, strict=True)]
        product = sample.values[block, None]
        for other in rows[1:]:
            product = (product[:, :, None] * other[:, None, :]).reshape(len(other), -1)
        core += rows[0].T @ product
    return core.reshape(sizes) * (math.prod(engine.shape) / max(sample.values.size, 1))
