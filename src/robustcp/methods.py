"""The named estimators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from robustcp import _checks
from robustcp import init as starting
from robustcp._typing import Array, Factors
from robustcp.engines import Engine, as_array, as_engine, single_blas_thread, to_host
from robustcp.fit import Fit, diagnosis
from robustcp.kruskal import KruskalTensor
from robustcp.losses import L1, LeastSquares, rescaled
from robustcp.solver import (
    CONVERGED,
    STOPPED,
    MajorizeMinimize,
    Single,
    Solver,
    Stage,
    State,
)
from robustcp.units import Units, power_of_two

Callback = Callable[[State], bool | None]
Seed = int | np.random.Generator | None


def cpal1(
    X: Any,
    rank: int,
    *,
    epsilon: float = 1e-10,
    mu: float = 1e-8,
    smoothing: str = "continuation",
    inner: int = 1,
    inner_tol: float = 1e-4,
    init: Any = "nvecs",
    starts: int = 1,
    tol: float = 1e-5,
    max_sweeps: int = 1000,
    rng: Seed = None,
    callback: Callback | None = None,
) -> Fit:
    """CP by the smoothed 1-norm, which gross errors cannot pull away (Chi & Kolda 2010).

    Minimises sum_i sqrt(r_i^2 + epsilon) + mu/2 sum_n |A_n|^2 over the factors A_n, where r is
    the residual, by majorization-minimization: in turn for each factor, each row solves a small
    reweighted least-squares problem.

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
        "continuation" begins with a large epsilon and comes down to the one asked for; sweeps
        are extrapolated when that lowers the objective. "fixed" is the algorithm as published,
        with epsilon and mu in the data's raw units.
    inner, inner_tol : int, float
        With "fixed": majorize-minimize steps for a factor before the next one's turn, and the
        relative fall of the loss below which they end early.
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
    epsilon = _checks.real_number("epsilon", epsilon, 0.0, above=True)
    mu = _checks.real_number("mu", mu, 0.0)
    _checks.choice("smoothing", smoothing, ("continuation", "fixed"))
    inner = _checks.whole_number("inner", inner, 1)
    inner_tol = _checks.real_number("inner_tol", inner_tol, 0.0)
    tol = _checks.real_number("tol", tol, 0.0, below=1.0)

    def plan(engine: Engine) -> Plan:
        if smoothing == "continuation":
            units = Units(engine)
            stage = Stage("L1", units.continuation(epsilon), tol)
            return Plan(units, (stage,), units.relative_mu(mu))
        units = Units(engine, magnify=False)  # beside a raw epsilon, tiny data may vanish
        loss = L1(units.raw_epsilon(epsilon))
        update = MajorizeMinimize(inner, inner_tol)
        stage = Stage("L1", Single(loss), tol, extrapolate=False, update=update)
        return Plan(units, (stage,), units.raw_mu(mu))

    return estimate(X, rank, plan, init, starts, max_sweeps, rng, callback)


def cpals(
    X: Any,
    rank: int,
    *,
    mu: float = 0.0,
    init: Any = "nvecs",
    starts: int = 1,
    tol: float = 1e-7,
    max_sweeps: int = 1000,
    rng: Seed = None,
    callback: Callback | None = None,
) -> Fit:
    """CP by alternating least squares: what everybody uses, and what gross errors break.

    Minimises sum_i r_i^2 / 2 + mu/2 sum_n |A_n|^2. The parameters are those of `cpal1`.

    Examples
    --------
    >>> import robustcp
    >>> sim = robustcp.simulate((20, 20, 20), 2, eta=0.0, gamma=0.0, rng=0)
    >>> robustcp.factor_match_score(robustcp.cpals(sim.data, 2), sim.truth) > 0.99
    True
    """
    mu = _checks.real_number("mu", mu, 0.0)
    tol = _checks.real_number("tol", tol, 0.0, below=1.0)

    def plan(engine: Engine) -> Plan:
        units = Units(engine, degree=2)
        stage = Stage("least squares", Single(LeastSquares()), tol)
        return Plan(units, (stage,), units.raw_mu(mu))

    return estimate(X, rank, plan, init, starts, max_sweeps, rng, callback)


def l1_regression(
    M: Array,
    Y: Array,
    *,
    epsilon: float = 1e-10,
    mu: float = 1e-8,
    tol: float = 1e-9,
    max_sweeps: int = 5000,
) -> Array:
    """Least absolute deviations: the b that minimises sum |Y - M b| (section 2.1 of the paper).

    It is the sweep loop of `cpal1` on a matrix, with M as the factor that is not solved for.

    Parameters
    ----------
    M : array (I, J)
    Y : array (I,) or (I, k)
        One or several responses.
    epsilon, mu : float
        Smoothing and ridge, relative to the scales of Y and M.
    tol, max_sweeps
        As in `cpal1`.

    Returns
    -------
    array (J,) or (J, k)

    Examples
    --------
    >>> import numpy as np
    >>> t = np.arange(10.0)
    >>> y = 3 + 2 * t
    >>> y[4] = 1000.0
    >>> l1_regression(np.stack([np.ones(10), t], axis=1), y).round(3)
    array([3., 2.])
    """
    epsilon = _checks.real_number("epsilon", epsilon, 0.0, above=True)
    mu = _checks.real_number("mu", mu, 0.0)
    tol = _checks.real_number("tol", tol, 0.0, below=1.0)
    max_sweeps = _checks.whole_number("max_sweeps", max_sweeps, 1)
    with _checks.about("M"):
        design = as_engine(M)
        M_host = (
            to_host(as_array(M)).astype(np.float64) if design.largest else np.zeros(design.shape)
        )
    with _checks.about("Y"):
        answers = as_array(Y)
        vector = answers.ndim == 1
        engine = as_engine(answers[:, None] if vector else answers)
        largest = engine.largest
    if len(design.shape) != 2 or len(engine.shape) != 2:
        raise ValueError(
            f"M, Y: must be a matrix and a vector or matrix, got shapes {design.shape}, "
            f"{tuple(answers.shape)}"
        )
    if design.shape[0] != engine.shape[0]:
        raise ValueError(f"Y: has {engine.shape[0]} rows, M has {design.shape[0]}")
    # Each column of M and of Y in units of its own: they are separate measurements.
    by = np.array([_exponent(column) for column in M_host.T])
    host = to_host(answers[:, None] if vector else answers).astype(np.float64)
    of = np.array([_exponent(column[column != 0]) for column in host.T])
    with single_blas_thread:
        scaled = engine.asarray(np.ldexp(host, -of)) if largest else engine.asarray(host)
        units = Units(as_engine(scaled))
        solver = Solver(
            units.engine,
            (Stage("L1", units.continuation(epsilon), tol, level_sweeps=max_sweeps),),
            mu / units.scale,
            modes=(1,),
            baseline=units.baseline,
        )
        fixed = engine.asarray(np.ldexp(M_host, -by))
        zero = engine.asarray(np.zeros((engine.shape[1], design.shape[1])))
        state, _ = solver.run(solver.start((fixed, zero)), max_sweeps, lambda _: False)
    found = np.ldexp(to_host(state.factors[1]).T.astype(np.float64), of[None, :] - by[:, None])
    result = engine.asarray(found)
    return result[:, 0] if vector else result


def _exponent(column: np.ndarray) -> int:
    """The power of 2 next to the median magnitude of a column, or to the largest."""
    if not column.size:
        return 0
    sizes = np.abs(column)
    return math.frexp(float(np.median(sizes)) or float(sizes.max()))[1]


@dataclass(frozen=True)
class Plan:
    """What an estimator does with some data: its units, and stages and mu in those units."""

    units: Units
    stages: Sequence[Stage]
    mu: float


def estimate(
    X: Any,
    rank: int,
    plan: Callable[[Engine], Plan],
    init: Any,
    starts: int,
    max_sweeps: int,
    rng: Seed,
    callback: Callback | None,
) -> Fit:
    """Run an estimator's stages from each start and keep the lowest objective."""
    rank = _checks.whole_number("rank", rank, 1)
    starts = _checks.whole_number("starts", starts, 1)
    max_sweeps = _checks.whole_number("max_sweeps", max_sweeps, 1)
    generator = _checks.generator(rng)
    if callback is not None and not callable(callback):
        raise ValueError(f"callback: must be a function of a State, got {callback!r}")
    with single_blas_thread:  # for the products outside of the engine: the same bits everywhere
        how = plan(as_engine(X))
        units = how.units
        runs: list[_Run] = []
        for k in range(starts):
            start = init if k == 0 else "random"
            factors = _first_factors(units, rank, start, generator)
            stages = how.stages
            if not isinstance(start, str):
                stages = [s.near(units.engine, factors) for s in stages]
            solver = Solver(units.engine, stages, how.mu, range(units.order), units.baseline)
            runs.append(_run(solver, factors, max_sweeps, units, callback))
            if runs[-1].status == STOPPED:
                break
        return _fit(runs, solver, units)


@dataclass(frozen=True)
class _Run:
    """What came of one start."""

    state: State
    status: str
    trace: tuple[float, ...]
    names: tuple[str, ...]


def _run(
    solver: Solver, factors: Factors, max_sweeps: int, units: Units, callback: Callback | None
) -> _Run:
    trace: list[float] = []
    names: list[str] = []

    def after_sweep(state: State) -> bool:
        trace.append(state.objective)
        names.append(state.name)
        answer = callback(units.state(state)) if callback else False
        return isinstance(answer, bool | np.bool_) and bool(answer)

    state, status = solver.run(solver.start(factors), max_sweeps, after_sweep)
    return _Run(state, status, tuple(trace), tuple(names))


def _fit(runs: Sequence[_Run], solver: Solver, units: Units) -> Fit:
    """The best run as a Fit, in the units of the data."""
    # Runs that were cut short may stand at different losses; compare them under the last one.
    furthest = max((run.state for run in runs), key=lambda s: (s.stage, s.level))
    objectives = [
        run.state.objective
        if run.state.loss == furthest.loss
        else solver.objective(run.state, furthest.loss)
        for run in runs
    ]
    best = runs[int(np.argmin(objectives))]
    state = best.state
    model = KruskalTensor.from_factors(state.factors).normalized()
    loss = rescaled(state.loss, power_of_two(units.exponent))
    status = best.status
    if not solver.last_level(state):
        status += f" at {loss}, before the last level"
    notes = [status, *map(_kept, state.kept), diagnosis(model)]
    nothing = units.engine.value(tuple(0.0 * A for A in state.factors), state.loss)
    size = nothing + units.excess
    return Fit(
        model=KruskalTensor(model.weights * 2.0**units.exponent, model.factors),
        trace=units.in_data(np.array(best.trace)),
        status="; ".join(note for note in notes if note),
        converged=best.status == CONVERGED,
        loss=loss,
        stages=tuple((name, len(list(group))) for name, group in groupby(best.names)),
        explained=(nothing - state.objective) / size if size > 0 else 0.0,
        starts=tuple(float(units.in_data(objective)) for objective in objectives),
    )


def _kept(rows_of_mode: tuple[int, tuple[int, ...]]) -> str:
    mode, rows = rows_of_mode
    shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
    return f"{len(rows)} rows of mode {mode} could not be solved and kept their value ({shown})"


def _first_factors(units: Units, rank: int, init: Any, rng: np.random.Generator) -> Factors:
    """Starting factors in the units of the fit."""
    engine = units.engine
    if not isinstance(init, str):
        shrink = power_of_two(-units.exponent / units.order)
        return tuple(A * shrink for A in starting.given(engine, rank, init))
    _checks.choice("init", init, ("auto", "nvecs", "random"))
    if init == "random":
        factors = starting.random(engine, rank, rng)
    else:
        factors = tuple(starting.nvecs(engine, mode, rank, rng=rng) for mode in range(units.order))
    size = units.scale if engine.largest > 0 else 0.0  # all zeros: the model is zero at once
    return tuple(A * size ** (1 / units.order) for A in factors)
