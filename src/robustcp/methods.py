"""The named estimators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from robustcp import _checks
from robustcp import init as starting
from robustcp._typing import Array, Factors
from robustcp.engines import Engine, as_engine, to_host
from robustcp.fit import Fit, diagnosis
from robustcp.kruskal import KruskalTensor
from robustcp.losses import L1, LeastSquares, rescaled
from robustcp.solver import (
    CONVERGED,
    STOPPED,
    Continuation,
    MajorizeMinimize,
    Single,
    Solver,
    Stage,
    State,
)

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
    tol = _checks.real_number("tol", tol, 0.0)

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
    tol = _checks.real_number("tol", tol, 0.0)

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
    tol = _checks.real_number("tol", tol, 0.0)
    max_sweeps = _checks.whole_number("max_sweeps", max_sweeps, 1)
    matrix, Y = (A if hasattr(A, "ndim") else np.asarray(A) for A in (M, Y))
    vector = Y.ndim == 1
    with _checks.about("M"):
        design, by = starting.unit_scaled(as_engine(matrix))
    with _checks.about("Y"):
        units = Units(as_engine(Y[:, None] if vector else Y))
    if len(design.shape) != 2 or len(units.engine.shape) != 2:
        raise ValueError(
            f"M, Y: must be a matrix and a vector or matrix, got shapes {matrix.shape}, {Y.shape}"
        )
    if matrix.shape[0] != Y.shape[0]:
        raise ValueError(f"Y: has {Y.shape[0]} rows, M has {matrix.shape[0]}")
    engine = units.engine
    size = float(np.median(design.magnitudes())) or design.largest or 1.0
    solver = Solver(
        engine,
        (Stage("L1", units.continuation(epsilon), tol, level_sweeps=max_sweeps),),
        mu * size**2 / units.scale,
        modes=(1,),
    )
    fixed = engine.asarray(to_host(matrix) * math.ldexp(1.0, -by))
    coefficients = engine.asarray(np.zeros((engine.shape[1], fixed.shape[1])))
    state, _ = solver.run(solver.start((fixed, coefficients)), max_sweeps, lambda _: None)
    found = state.factors[1].T * 2.0 ** (units.exponent - by)
    return found[:, 0] if vector else found


class Units:
    """The data in units where its squares neither overflow nor vanish, and its scale there.

    A fit of c * X must be c times the fit of X. Without touching X that takes, with s the scale
    of the data, epsilon s^2 for epsilon and mu s^(1 - 2/N) for mu. Data of extreme size is also
    multiplied by a power of 2, tile by tile; not magnified if `magnify` is False. Multiplying
    the data by c multiplies the objective by c**degree.
    """

    def __init__(self, engine: Engine, *, degree: int = 1, magnify: bool = True) -> None:
        self.engine, self.exponent = engine, 0
        if magnify or engine.largest > 1:
            self.engine, self.exponent = starting.unit_scaled(engine)
        self.order = len(engine.shape)
        self.degree = degree

    @cached_property
    def _nonzero(self) -> np.ndarray:
        sizes = self.engine.magnitudes()
        sizes = sizes[sizes > 0]
        return sizes if sizes.size else np.array([self.engine.largest or 1.0])

    @cached_property
    def scale(self) -> float:
        """The median magnitude of the nonzero entries."""
        return float(np.median(self._nonzero))

    @property
    def _least_epsilon(self) -> float:
        """Below the roundings of the data a residual is zero, however small epsilon is."""
        return (self.engine.precision * (self.engine.largest or 1.0)) ** 2

    def continuation(self, epsilon: float) -> Continuation:
        """From the size of the data down to epsilon.

        A first epsilon that is too small jams; one that is too large begins as least squares,
        and where the artifacts are strong that is a bad place to begin (at 30^3, rank 5, eta
        0.2, gamma 2, thirty times this one ended in a local minimum in 63% of trials, this in 7%).
        """
        last = max(epsilon * self.scale**2, self._least_epsilon)
        return Continuation(max(last, 0.03 * float(np.quantile(self._nonzero, 0.9)) ** 2), last)

    def relative_mu(self, mu: float) -> float:
        return float(mu * self.scale ** (1 - 2 / self.order))

    def raw_epsilon(self, epsilon: float) -> float:
        return max(epsilon * _power_of_two(-2 * self.exponent), self._least_epsilon)

    def raw_mu(self, mu: float) -> float:
        return mu * _power_of_two(self.exponent * (2 / self.order - self.degree))

    def in_data(self, objective: Any) -> Any:
        """An objective in the units of the data."""
        with np.errstate(over="ignore", under="ignore"):
            half = np.float64(2.0) ** (0.5 * self.degree * self.exponent)
            return objective * half * half

    def state(self, state: State) -> State:
        """A state in the units of the data."""
        if self.exponent == 0:
            return state
        return replace(
            state,
            factors=tuple(A * _power_of_two(self.exponent / self.order) for A in state.factors),
            objective=float(self.in_data(state.objective)),
        )


@dataclass(frozen=True)
class Plan:
    """What an estimator does with some data: its units, and stages and mu in those units."""

    units: Units
    stages: Sequence[Stage]
    mu: float


def _power_of_two(exponent: float) -> float:
    """2**exponent, kept within the range of float64."""
    return float(2.0 ** min(1000.0, max(-1000.0, exponent)))


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
    how = plan(as_engine(X))
    units = how.units
    solver = Solver(units.engine, how.stages, how.mu, modes=range(units.order))
    runs: list[_Run] = []
    for k in range(starts):
        factors = _first_factors(units, rank, init if k == 0 else "random", generator)
        runs.append(_run(solver, factors, max_sweeps, units, callback))
        if runs[-1].status == STOPPED:
            break
    return _fit(runs, units)


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

    def after_sweep(state: State) -> bool | None:
        trace.append(state.objective)
        names.append(state.name)
        return callback(units.state(state)) if callback else None

    state, status = solver.run(solver.start(factors), max_sweeps, after_sweep)
    return _Run(state, status, tuple(trace), tuple(names))


def _fit(runs: Sequence[_Run], units: Units) -> Fit:
    """The best run as a Fit, in the units of the data."""
    best = min(runs, key=lambda run: run.state.objective)
    state = best.state
    model = KruskalTensor.from_factors(state.factors).normalized()
    notes = [best.status, *map(_kept, state.kept), diagnosis(model)]
    nothing = units.engine.value(tuple(0.0 * A for A in state.factors), state.loss)
    return Fit(
        model=KruskalTensor(model.weights * 2.0**units.exponent, model.factors),
        trace=units.in_data(np.array(best.trace)),
        status="; ".join(note for note in notes if note),
        converged=best.status == CONVERGED,
        loss=rescaled(state.loss, _power_of_two(units.exponent)),
        stages=tuple((name, len(list(group))) for name, group in groupby(best.names)),
        explained=1.0 - state.objective / nothing if nothing > 0 else 0.0,
        starts=tuple(float(units.in_data(run.state.objective)) for run in runs),
    )


def _kept(rows_of_mode: tuple[int, tuple[int, ...]]) -> str:
    mode, rows = rows_of_mode
    shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
    return f"{len(rows)} rows of mode {mode} could not be solved and kept their value ({shown})"


def _first_factors(units: Units, rank: int, init: Any, rng: np.random.Generator) -> Factors:
    """Starting factors in the units of the fit."""
    engine = units.engine
    if not isinstance(init, str):
        shrink = _power_of_two(-units.exponent / units.order)
        return tuple(A * shrink for A in starting.given(engine, rank, init))
    _checks.choice("init", init, ("auto", "nvecs", "random"))
    if init == "random":
        factors = starting.random(engine, rank, rng)
    else:
        factors = tuple(starting.nvecs(engine, mode, rank, rng=rng) for mode in range(units.order))
    size = units.scale if engine.largest > 0 else 0.0  # all zeros: the model is zero at once
    return tuple(A * size ** (1 / units.order) for A in factors)
