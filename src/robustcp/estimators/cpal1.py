"""`cpal1`: CP by the smoothed 1-norm (Chi & Kolda 2010)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from robustcp._util import checks
from robustcp.constraints import Constraint
from robustcp.engines import Engine
from robustcp.estimators.driver import Callback, Seed, estimate
from robustcp.estimators.spec import FitSpec, Method
from robustcp.losses import L1
from robustcp.optimize.acceleration import NoAcceleration
from robustcp.optimize.problem import Problem
from robustcp.optimize.row_prior import RowPrior
from robustcp.optimize.schedules import Single
from robustcp.optimize.solver import Stage
from robustcp.optimize.stages import l1_continuation
from robustcp.optimize.updates import MajorizeMinimize
from robustcp.persist.checkpoint import CheckpointArgument, request_checkpoint
from robustcp.results.fit import Fit
from robustcp.starts.cases import Cases
from robustcp.starts.initial_factors import make_starts
from robustcp.starts.multistart import SubsampleStart
from robustcp.starts.start import Start


def cpal1(
    X: Any,
    rank: int,
    *,
    epsilon: float = 1e-10,
    mu: float = 1e-8,
    smoothing: str = "continuation",
    inner: int = 1,
    inner_tol: float = 1e-4,
    entry_weights: Any = None,
    limits: Any = None,
    preprocess: Any = None,
    nonnegative: bool | Sequence[bool] = False,
    constraints: Mapping[int | str, Constraint] | None = None,
    fixed: Sequence[int | str] = (),
    init: Any = "nvecs",
    starts: int = 1,
    tol: float = 1e-5,
    max_sweeps: int = 1000,
    rng: Seed = None,
    callback: Callback | None = None,
    checkpoint: CheckpointArgument = None,
) -> Fit:
    """CP by the smoothed 1-norm, robust to gross errors (Chi & Kolda 2010).

    Minimises sum_i sqrt(r_i^2 + epsilon) + mu/2 sum_n |A_n|^2 over the factors A_n, where r is
    the residual, by majorization-minimization: in turn for each factor, each row solves a small
    reweighted least-squares problem.

    Even the 1-norm would spend a component on a single entry that is large enough. So entries
    beyond a gap in the magnitudes of the data (fill values, glitches) are left out, and
    `fit.status` says how many; objective and trace are those of the rest. Not with "fixed".

    Parameters
    ----------
    X : array with at least two modes
        Of any array API library; results come back in the same library, on the same device.
    rank : int
        The number of components.
    epsilon, mu : float
        Smoothing of the 1-norm, and the weight of the factors' norms. With continuation they
        are relative to the data's scale, so that a fit of c * X is c times the fit of X.
    smoothing : {"continuation", "fixed"}
        "continuation" begins with a large epsilon and comes down to the one asked for; sweeps are
        extrapolated when that lowers the objective. "fixed" is the algorithm
        as published, with epsilon and mu in the data's raw units.
    inner, inner_tol : int, float
        With "fixed": majorize-minimize steps for a factor before the next one's turn, and the
        relative fall of the loss below which they end early.
    entry_weights, limits, preprocess, nonnegative, constraints, fixed
        As in `cp`, but limits of "auto" must be asked for.
    init : {"nvecs", "random", "auto"}, KruskalTensor, Fit, or list of factors
    starts : int
        How many starts; those after the first are random. The lowest objective wins.
    tol : float
        A level ends when a sweep lowers the objective by less than this, relatively; 0 goes on
        to `max_sweeps`.
    max_sweeps : int
        The most sweeps of one start, over all levels.
    rng : None, seed or Generator
        For whatever is random. None is a fixed seed.
    callback : function of a State, called after each sweep
        Return True to stop; the fit so far is returned.
    checkpoint : path or Checkpoint, optional
        A file that holds the fit while it runs. The same call goes on from it.

    Returns
    -------
    Fit

    Examples
    --------
    >>> import robustcp
    >>> sim = robustcp.simulate((20, 20, 20), 2, eta=0.2, gamma=2.0, rng=0)
    >>> fit = robustcp.cpal1(sim.data, 2)
    >>> robustcp.factor_match_score(fit, sim.truth) > 0.95
    True
    """
    epsilon = checks.real_number("epsilon", epsilon, 0.0, strict=True)
    mu = checks.real_number("mu", mu, 0.0)
    checks.choice("smoothing", smoothing, ("continuation", "fixed"))
    inner = checks.whole_number("inner", inner, 1)
    inner_tol = checks.real_number("inner_tol", inner_tol, 0.0)
    tol = checks.real_number("tol", tol, 0.0, below=1.0)
    spec = FitSpec(
        ContinuedL1(epsilon, mu, tol)
        if smoothing == "continuation"
        else PublishedL1(epsilon, mu, tol, inner, inner_tol),
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
    request = request_checkpoint(
        checkpoint,
        "cpal1",
        epsilon=epsilon,
        mu=mu,
        smoothing=smoothing,
        inner=inner,
        inner_tol=inner_tol,
        tol=tol,
    )
    return estimate(X, spec, rng=rng, callback=callback, checkpoint=request)


@dataclass(frozen=True)
class ContinuedL1(Method):
    """The 1-norm by continuation in epsilon; epsilon and mu are relative to the data's scale."""

    epsilon: float
    mu: float
    tol: float

    def stages(self, engine: Engine, row_prior: RowPrior) -> tuple[Problem, list[Stage]]:
        problem = Problem.of(engine).without_gross_outliers
        schedule, mu = l1_continuation(problem, self.epsilon), problem.relative_mu(self.mu)
        return problem, [Stage("L1", schedule, self.tol, mu)]

    def starts(self, init: Any, count: int | None, cases: Cases | None) -> list[Start]:
        return make_starts(init, count or 1, SubsampleStart)


@dataclass(frozen=True)
class PublishedL1(Method):
    """The algorithm as published: one epsilon and mu in the data's raw units, no acceleration."""

    epsilon: float
    mu: float
    tol: float
    inner: int
    inner_tol: float

    def stages(self, engine: Engine, row_prior: RowPrior) -> tuple[Problem, list[Stage]]:
        problem = Problem.of(engine, magnify=False)  # beside a raw epsilon, tiny data may vanish
        units = problem.units
        loss = L1(max(units.epsilon_of_fit(self.epsilon), problem.min_epsilon))
        stage = Stage(
            "L1",
            Single(loss),
            self.tol,
            units.mu_of_fit(self.mu, loss.degree),
            acceleration=NoAcceleration(),
            update=MajorizeMinimize(self.inner, self.inner_tol),
        )
        return problem, [stage]
