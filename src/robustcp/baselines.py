"""The older ways to fit CP by the 1-norm (Vorobyov, Rong, Sidiropoulos & Gershman 2005).

Both alternate over the factors as `cpal1` does, in the same loop, and differ only in how a
factor's rows are updated: exactly, by linear programming, or one coordinate after the other, by
weighted medians. Neither smooths the 1-norm. They serve for comparison.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace

from robustcp._util import checks
from robustcp._util.typing import Array, Factors
from robustcp.engines import Engine, khatri_rao, to_host
from robustcp.engines.normal_equations import NormalEquations
from robustcp.estimators.driver import Callback, Seed, estimate
from robustcp.estimators.spec import FitSpec, Method
from robustcp.losses import Loss, Tail
from robustcp.optimize.acceleration import NoAcceleration
from robustcp.optimize.objective import Objective
from robustcp.optimize.problem import Problem
from robustcp.optimize.row_prior import RowPrior
from robustcp.optimize.schedules import Single
from robustcp.optimize.solver import Stage
from robustcp.optimize.updates import FactorUpdate, Update
from robustcp.persist.checkpoint import CheckpointArgument, request_checkpoint
from robustcp.results.fit import Fit

#: Entries of the unfolding that are processed at a time.
BLOCK_ENTRIES = 1 << 20


def linear_program(
    X: Any,
    rank: int,
    *,
    init: Any = "nvecs",
    starts: int = 1,
    tol: float = 1e-5,
    max_sweeps: int = 100,
    rng: Seed = None,
    callback: Callback | None = None,
    checkpoint: CheckpointArgument = None,
    jobs: int = 1,
) -> Fit:
    """CP by the 1-norm, each row's l1 regression solved exactly by linear programming.

    Parameters
    ----------
    X, rank, init, starts, tol, max_sweeps, rng, callback, checkpoint
        As in `robustcp.cpal1`.
    jobs : int
        How many processes share the rows of a factor.

    Returns
    -------
    Fit
        Its `status` names rows that the solver (HiGHS) gave up on; they keep their last value.

    Examples
    --------
    >>> import robustcp
    >>> sim = robustcp.simulate((8, 7, 6), 1, eta=0.1, gamma=1.0, rng=0)
    >>> fit = robustcp.baselines.linear_program(sim.data, 1)
    >>> robustcp.factor_match_score(fit, sim.truth) > 0.9
    True
    """
    jobs = checks.whole_number("jobs", jobs, 1)
    tol = checks.real_number("tol", tol, 0.0, below=1.0)
    method = UnsmoothedL1("linear programs", LinearProgram(jobs), tol)
    spec = FitSpec(method, rank, init=init, starts=starts, max_sweeps=max_sweeps)
    request = request_checkpoint(checkpoint, method.name, tol=tol)
    return estimate(X, spec, rng=rng, callback=callback, checkpoint=request)


def weighted_median(
    X: Any,
    rank: int,
    *,
    init: Any = "nvecs",
    starts: int = 1,
    tol: float = 1e-5,
    max_sweeps: int = 1000,
    rng: Seed = None,
    callback: Callback | None = None,
    checkpoint: CheckpointArgument = None,
) -> Fit:
    """CP by the 1-norm, each entry of a factor in turn set to its optimum, a weighted median.

    The parameters are those of `robustcp.cpal1`. Cyclic coordinate descent on the 1-norm can
    stop where no single coordinate helps although several together would.

    Examples
    --------
    >>> import robustcp
    >>> sim = robustcp.simulate((8, 7, 6), 1, eta=0.1, gamma=1.0, rng=0)
    >>> fit = robustcp.baselines.weighted_median(sim.data, 1)
    >>> robustcp.factor_match_score(fit, sim.truth) > 0.9
    True
    """
    tol = checks.real_number("tol", tol, 0.0, below=1.0)
    method = UnsmoothedL1("weighted medians", WeightedMedian(), tol)
    spec = FitSpec(method, rank, init=init, starts=starts, max_sweeps=max_sweeps)
    request = request_checkpoint(checkpoint, method.name, tol=tol)
    return estimate(X, spec, rng=rng, callback=callback, checkpoint=request)


@dataclass(frozen=True)
class UnsmoothedL1(Method):
    """The 1-norm without smoothing, by an update that needs no majorizer."""

    name: str
    update: Update
    tol: float

    def stages(self, engine: Engine, row_prior: RowPrior) -> tuple[Problem, list[Stage]]:
        stage = Stage(
            self.name,
            Single(Absolute()),
            self.tol,
            acceleration=NoAcceleration(),
            update=self.update,
        )
        return Problem.of(engine), [stage]


@dataclass(frozen=True)
class Absolute(Loss):
    """|r| without smoothing: it has no quadratic majorizer at 0, and these updates need none."""

    degree: ClassVar[int] = 1

    @property
    def tail(self) -> Tail:
        return Tail(1.0, 1.0)

    def value(self, r: Array) -> Array:
        return array_namespace(r).abs(r)

    def slope(self, r: Array) -> Array:
        return array_namespace(r).sign(r)

    def curvature(self, r: Array) -> Array:
        return 1.0 / self.value(r)

    def rescaled(self, factor: float) -> Absolute:
        return self


class _RowUpdate(Update):
    """An update that uses the data of each row rather than normal equations."""

    def evaluate(
        self, objective: Objective, factors: Factors
    ) -> tuple[float, NormalEquations | None]:
        return objective.value(factors), None

    def update_factor(
        self,
        objective: Objective,
        factors: Factors,
        mode: int,
        cached_equations: NormalEquations | None = None,
    ) -> FactorUpdate:
        engine = objective.engine
        host = [np.asarray(to_host(A), dtype=np.float64) for A in factors]
        M = khatri_rao([A for m, A in enumerate(host) if m != mode])
        U, unsolved_rows = host[mode].copy(), []
        for rows in _row_blocks(U.shape[0], M.shape[0]):
            new_rows, failed = self.solve_rows(M, engine.unfolding(mode, rows), U[rows])
            U[rows] = new_rows
            unsolved_rows += [rows.start + k for k in failed]
        return FactorUpdate(engine.asarray(U), tuple(unsolved_rows))

    @abstractmethod
    def solve_rows(
        self, M: np.ndarray, Y: np.ndarray, U: np.ndarray
    ) -> tuple[np.ndarray, list[int]]:
        """New rows u for sum |y - M u| given old ones, and which could not be solved."""


@dataclass(frozen=True)
class LinearProgram(_RowUpdate):
    """Each row's optimum, from the dual of its linear program.

    The l1 regression min_u sum |y - M u| has the dual max y'd over |d| <= 1 with M'd = 0: one
    constraint per component however long the row, and u are its multipliers.
    """

    jobs: int = 1

    def solve_rows(
        self, M: np.ndarray, Y: np.ndarray, U: np.ndarray
    ) -> tuple[np.ndarray, list[int]]:
        solve = partial(_least_absolute, M)
        if self.jobs == 1:
            solutions = list(map(solve, Y))
        else:
            chunk_size = -(-len(Y) // self.jobs)
            with ProcessPoolExecutor(self.jobs) as pool:
                solutions = list(pool.map(solve, Y, chunksize=chunk_size))
        failed = [k for k, u in enumerate(solutions) if u is None]
        new = np.array([old if u is None else u for u, old in zip(solutions, U, strict=True)])
        return new, failed


def _least_absolute(M: np.ndarray, y: np.ndarray) -> np.ndarray | None:
    """The u that minimises sum |y - M u|; None if HiGHS does not find it."""
    from scipy.optimize import linprog

    size = float(np.abs(y).max())
    if size == 0:
        return np.zeros(M.shape[1])
    sizes = np.abs(M).max(axis=0)
    nonzero = sizes > 0
    solution = linprog(
        -y / size,
        A_eq=(M[:, nonzero] / sizes[nonzero]).T,
        b_eq=np.zeros(int(nonzero.sum())),
        bounds=(-1, 1),
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if solution.status != 0 or not np.isfinite(solution.eqlin.marginals).all():
        return None
    u = np.zeros(M.shape[1])
    u[nonzero] = -solution.eqlin.marginals * size / sizes[nonzero]
    return u


@dataclass(frozen=True)
class WeightedMedian(_RowUpdate):
    """One cycle over the coordinates of each row, each set to its optimum.

    In coordinate r the loss is sum_j |m_jr| |e_j / m_jr - u_r|, with e the residual without
    component r: its optimum is the median of e / m_r with weights |m_r|.
    """

    def solve_rows(
        self, M: np.ndarray, Y: np.ndarray, U: np.ndarray
    ) -> tuple[np.ndarray, list[int]]:
        U = U.copy()
        R = Y - U @ M.T
        for r in range(M.shape[1]):
            m = M[:, r]
            nonzero = m != 0
            if not nonzero.any():
                continue
            R += np.outer(U[:, r], m)
            U[:, r] = _weighted_medians(R[:, nonzero] / m[nonzero], np.abs(m[nonzero]))
            R -= np.outer(U[:, r], m)
        return U, []


def _weighted_medians(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """For each row of values the smallest one at which half of the weight is reached."""
    order = np.argsort(values, axis=1)
    reached = np.cumsum(weights[order], axis=1) >= 0.5 * weights.sum()
    median = np.take_along_axis(order, reached.argmax(axis=1)[:, None], axis=1)
    return np.take_along_axis(values, median, axis=1)[:, 0]


def _row_blocks(count: int, width: int) -> Iterator[slice]:
    step = max(1, BLOCK_ENTRIES // width)
    for k in range(math.ceil(count / step)):
        yield slice(k * step, min(count, (k + 1) * step))
