"""Posterior means of the rows, which replace the most likely rows at the end of a fit.

Where data says little of some rows their means are closer to the truth than the most likely rows,
for which each mode takes the others as known. They are not minimizers of the objective.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from robustcp._util.typing import Factors
from robustcp.constraints import Constraints
from robustcp.engines import Engine
from robustcp.losses import Loss
from robustcp.optimize.posterior import POSTERIOR, Posterior
from robustcp.optimize.solver import Solver, State


def move_to_posterior_means(solver: Solver, state: State) -> State:
    """The state at the posterior means of all rows, as one more stage, if all rows have a prior.

    Its objective is higher than before.
    """
    prior, noise, engine = state.prior, state.noise, solver.problem.engine
    if prior is None or noise is None or any(ridge is None for ridge in prior.ridges):
        return state
    if engine.max_abs == 0 or len(solver.modes) < len(state.factors):
        return state
    means = posterior_means(
        solver.objective_of(state).engine,
        solver.constraints,
        state.factors,
        state.loss,
        noise.sigma,
    )
    if means is None:
        return state
    factors = tuple(
        engine.xp.astype(engine.asarray(A), B.dtype)
        for A, B in zip(means, state.factors, strict=True)
    )
    return solver.move_to(state, factors, "posterior means")


def posterior_means(
    engine: Engine, constraints: Constraints, factors: Factors, loss: Loss, sigma: float
) -> tuple[np.ndarray, ...] | None:
    """The posterior means of the rows near some factors, on the host; None if a component vanishes.

    Entries are weighted by the curvature of the loss of residuals in units of the engine's scales,
    with noise of standard deviation `sigma`.
    """
    entries = engine.entries()
    posterior = Posterior.from_factors(entries, constraints, factors, sigma)
    pruned = posterior.pruned_components.size
    posterior = replace(
        posterior, squared_scale=sigma**2, degrees_of_freedom=POSTERIOR.gaussian_degrees_of_freedom
    )
    magnitudes = np.abs(entries.raw_residuals(posterior.means))
    for _ in range(POSTERIOR.reweightings):
        signs = np.sign(entries.raw_residuals(posterior.means))
        z = magnitudes if entries.scales is None else magnitudes / entries.scales
        precisions = entries.precisions * loss.curvature(signs * z)
        posterior = replace(posterior, entries=entries.with_precisions(precisions))
        posterior = posterior.fit(POSTERIOR.means_sweeps, POSTERIOR.means_tolerance)
        magnitudes = np.sqrt(posterior.squared_residuals)
    return None if posterior.pruned_components.size > pruned else posterior.means
