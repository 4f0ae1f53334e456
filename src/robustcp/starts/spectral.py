"""Initial factors for sparsely observed data: eigenvectors of hollow Gram matrices.

Let p be the share of observed entries. The Gram matrix X_n X_n' of an unfolding, with missing
entries as zero, has p times the true squares on its diagonal but only p^2 times the true products
off it, so for small p its eigenvectors are those of a nearly diagonal matrix. Without its diagonal
the eigenvectors are informative from about sqrt(prod(shape)) observed entries on, where random
factors do not lead to a solution. The data projected on these eigenvectors is a Tucker core of the
size of the rank, to which a CP model is fitted at little cost.
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
from robustcp.starts.random import random_factors
from robustcp.starts.svd import hollow_gram_eigenvectors

#: The core is computed from a sample of the entries if there are more than this.
MAX_CORE_DATA_ENTRIES = 1 << 20
#: Numbers in one block of products of rows of the bases.
BLOCK_ENTRIES = 1 << 20
#: Cores of more entries, times the rank, are not fitted: factors are random then.
MAX_CORE_SIZE = 1 << 18
#: Random starts of the fit of a core.
CORE_STARTS = 5
#: Sweeps of each of these fits.
CORE_SWEEPS = 100


def spectral_factors(engine: Engine, rank: int, rng: np.random.Generator) -> Factors:
    """Factors from a CP model of the Tucker core; random factors where the core would be large."""
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
    """The data projected on some vectors of each mode, estimated from the observed entries."""
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
