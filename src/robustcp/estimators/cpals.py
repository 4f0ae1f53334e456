"""`cpals`: CP by alternating least squares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from robustcp._util import checks
from robustcp.constraints import Constraint
from robustcp.engines import Engine
from robustcp.estimators.driver import Callback, Seed, estimate
from robustcp.estimators.spec import FitSpec, Method
from robustcp.losses import LeastSquares
from robustcp.optimize.problem import Problem
from robustcp.optimize.row_prior import RowPrior
from robustcp.optimize.schedules import Single
from robustcp.optimize.solver import Stage
from robustcp.persist.checkpoint import CheckpointArgument, request_checkpoint
from robustcp.results.fit import Fit
from robustcp.starts.initial_factors import Initialization
from robustcp.starts.start import Start

#: How many starts are replaced, if they diverge where entries are missing.
MAX_RESTARTS = 5


def cpals(
    X: Any,
    rank: int,
    *,
    mu: float = 0.0,
    entry_weights: Any = None,
    limits: Any = None,
    preprocess: Any = None,
    nonnegative: bool | Sequence[bool] = False,
    constraints: Mapping[int | str, Constraint] | None = None,
    fixed: Sequence[int | str] = (),
    init: Any = "nvecs",
    starts: int = 1,
    tol: float = 1e-7,
    max_sweeps: int = 1000,
    rng: Seed = None,
    callback: Callback | None = None,
    checkpoint: CheckpointArgument = None,
) -> Fit:
    """CP by alternating least squares: the standard method, not robust to gross errors.

    Minimises sum_i r_i^2 / 2 + mu/2 sum_n |A_n|^2. The parameters are those of `cpal1`. Where
    entries are missing, a start may diverge there; a random one then replaces it.

    Examples
    --------
    >>> import robustcp
    >>> sim = robustcp.simulate((20, 20, 20), 2, eta=0.0, gamma=0.0, rng=0)
    >>> robustcp.factor_match_score(robustcp.cpals(sim.data, 2), sim.truth) > 0.99
    True

    Entries that are known to be bad get weight 0:

    >>> sim = robustcp.simulate((20, 20, 20), 2, eta=0.2, gamma=2.0, rng=0)
    >>> robustcp.factor_match_score(robustcp.cpals(sim.data, 2), sim.truth) > 0.9
    False
    >>> told = robustcp.cpals(sim.data, 2, entry_weights=~sim.artifacts)
    >>> robustcp.factor_match_score(told, sim.truth) > 0.99
    True
    """
    mu = checks.real_number("mu", mu, 0.0)
    tol = checks.real_number("tol", tol, 0.0, below=1.0)
    spec = FitSpec(
        AlternatingLeastSquares(mu, tol),
        rank,
        init=init,
        starts=starts,
        max_sweeps=max_sweeps,
        entry_weights=entry_weights,
        limits=limits,
        preprocess=preprocess,
        constraints=constraints,
        nonnegative=nonnegative,
        fixed=fixed,
    )
    request = request_checkpoint(checkpoint, "cpals", mu=mu, tol=tol)
    return estimate(X, spec, rng=rng, callback=callback, checkpoint=request)


@dataclass(frozen=True)
class AlternatingLeastSquares(Method):
    """Least squares with a ridge, in the data's raw units."""

    mu: float
    tol: float

    def stages(self, engine: Engine, row_prior: RowPrior) -> tuple[Problem, list[Stage]]:
        problem, loss = Problem.of(engine, keep_outliers=True), LeastSquares()
        mu = problem.units.mu_of_fit(self.mu, loss.degree)
        return problem, [Stage("least squares", Single(loss), self.tol, mu)]

    def restarts(self, init: Any) -> list[Start]:
        return [Initialization("random")] * MAX_RESTARTS if isinstance(init, str) else []
