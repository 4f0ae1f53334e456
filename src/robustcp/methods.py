"""The named estimators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from robustcp import _checks
from robustcp._typing import Array, Factors
from robustcp.engines import (
    Engine,
    as_array,
    as_engine,
    names_and_labels,
    single_blas_thread,
    to_host,
)
from robustcp.fitted import Fit, diagnosis
from robustcp.kruskal import KruskalTensor
from robustcp.losses import (
    L1,
    Contaminated,
    LeastSquares,
    Loss,
    Tukey,
    is_quadratic,
    rescaled,
)
from robustcp.noise import Refinement, Unrefined, freedom, noise_of
from robustcp.search import AUTO, Starts, begin_on_part, blank, first_factors, search
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
from robustcp.units import Units, power_of_two

Callback = Callable[[State], bool | None]
Seed = int | np.random.Generator | None


def cp(
    X: Any,
    rank: int,
    *,
    loss: Loss | Sequence[Loss | Stage] | None = None,
    nonnegative: bool | Sequence[bool] = False,
    fixed: Sequence[int] = (),
    init: Any = "auto",
    starts: int | str = "auto",
    tol: float = 1e-5,
    max_sweeps: int = 1000,
    rng: Seed = None,
    callback: Callback | None = None,
) -> Fit:
    """CP of data with bad entries, as well as if somebody had told which entries are bad.

    The recommended estimator. Several starts are tried cheaply under the 1-norm; the best is
    fitted by the 1-norm (as `cpal1`), which outliers cannot pull away but which one-sided ones
    bias; then refined under Gaussian noise on a floor of outliers (`losses.Contaminated`), whose
    scale and height are estimated from the residuals, again after each round.

    Parameters
    ----------
    X : array, masked array, or Observed
        NaN and masked entries are missing. Arrays may be of any array API library.
    rank : int
        The number of components.
    loss : Loss, or sequence of losses and stages, optional
        In place of all that: the loss, in the data's units, that is minimised from the best
        start; of several, one after the other.
    nonnegative : bool, or one for each mode
        Which factors must not have negative entries.
    fixed : sequence of int
        Modes whose factors stay as they are in `init`, which must then be given.
    init : {"auto", "nvecs", "random"}, KruskalTensor, Fit, or list of factors
        "auto" begins with singular vectors of the data, cut at the size of ordinary entries and
        not, and goes on with random factors.
    starts : int or "auto"
        How many starts are tried. `fit.starts` tells how they ended.
    tol, max_sweeps, rng, callback
        As in `cpal1`.

    Returns
    -------
    Fit

    Examples
    --------
    >>> import robustcp
    >>> sim = robustcp.simulate((20, 20, 20), 2, eta=0.2, gamma=2.0, rng=0)
    >>> fit = robustcp.cp(sim.data, 2)
    >>> robustcp.factor_match_score(fit, sim.truth) > 0.98
    True
    """
    tol = _checks.real_number("tol", tol, 0.0, below=1.0)
    if starts != "auto":
        starts = _checks.whole_number("starts", starts, 1)
    _check_losses(loss)
    if not isinstance(fixed, Sequence):
        raise ValueError(f"fixed: must be a list of modes, got {fixed!r}")
    if len(fixed) and isinstance(init, str):
        raise ValueError(f"fixed: needs the factors to keep in init, got init={init!r}")

    def plan(engine: Engine) -> Plan:
        order = len(engine.shape)
        bounded = _each_mode("nonnegative", nonnegative, order)
        held = {_checks.whole_number("fixed", mode, 0, most=order - 1) for mode in fixed}
        if len(held) == order:
            raise ValueError(f"fixed: must leave a mode to solve for, got {tuple(fixed)!r}")
        units = Units(engine, saturate=_tails_are_linear(loss))
        solved = tuple(flag and mode not in held for mode, flag in enumerate(bounded))
        update = MajorizeMinimize(nonnegative=solved)
        if loss is None:
            stages = _to_the_noise(units, tol, update)
        else:
            listed = loss if isinstance(loss, Sequence) else [loss]
            stages = [_as_stage(item, units, tol, update) for item in listed]
        modes = [mode for mode in range(order) if mode not in held]
        return Plan(units, stages, modes, bounded)

    count = AUTO if starts == "auto" else int(starts)
    return estimate(X, rank, plan, init, count, max_sweeps, rng, callback, screened=True)


def _to_the_noise(units: Units, tol: float, update: MajorizeMinimize) -> list[Stage]:
    """The stages of `cp`: by the 1-norm to where the noise shows, then by what the noise is.

    The 1-norm goes on to its end only where the noise cannot be told from the outliers.
    """
    mu = 1e-8
    weight, weight_of_squares = units.relative_mu(mu), units.relative_mu(mu, degree=2)
    down = units.continuation(1e-8)
    least = units.least_sigma
    return [
        Stage("L1", replace(down, enough=0.001), 10 * tol, weight, update=update),
        Stage("refinement", Refinement(least), 0.1 * tol, weight_of_squares, update=update),
        Stage("L1", Unrefined(down.lowest), tol, weight, 1000, update=update),
    ]


def project(model: KruskalTensor, X: Any, mode: int, nonnegative: bool = False) -> Array:
    """The factor of new data in one mode, by the stages of `cp` with the other factors held."""
    mode = _checks.whole_number("mode", mode, 0, most=len(model.shape) - 1)
    with single_blas_thread:
        engine = as_engine(X)
        expected = tuple("any" if m == mode else size for m, size in enumerate(model.shape))
        if len(engine.shape) != len(model.shape) or any(
            size != engine.shape[m] for m, size in enumerate(model.shape) if m != mode
        ):
            raise ValueError(f"X: has shape {engine.shape}, the model needs {expected}")
        units = Units(engine)
        engine = units.engine
        rows = engine.asarray(np.zeros((engine.shape[mode], model.rank)))
        held = [engine.asarray(to_host(A)) for A in model.factors]
        # Columns of about the data's size, so that mu means what it does elsewhere.
        size = units.scale ** (1 / units.order) if engine.largest > 0 else 1.0
        factors = tuple(rows if m == mode else A * size for m, A in enumerate(held))
        update = MajorizeMinimize(nonnegative=(nonnegative,) * units.order)
        stages = _to_the_noise(units, 1e-6, update)
        solver = Solver(engine, stages, (mode,), units.baseline)
        factors = blank(engine, factors, (mode,))
        state, _ = solver.run(solver.start(factors), 500, lambda _: False)
        scores = state.factors[mode] * size ** (units.order - 1)
        return scores * power_of_two(units.exponent)


def _check_losses(loss: Any) -> None:
    """Refuse what is not a loss before any work."""
    listed = loss if isinstance(loss, list | tuple) else [loss]
    if not listed:
        raise ValueError("loss: an empty list of stages")
    for item in listed:
        if item is None and listed is not loss:
            continue
        if isinstance(item, type) or not isinstance(item, Loss | Stage):
            lacks = [name for name in ("value", "slope", "curvature") if not hasattr(item, name)]
            if isinstance(item, type) or not lacks:
                raise ValueError(f"loss: must be a loss such as Huber(1.0), got {item!r}")
            raise ValueError(f"loss: {item!r} has no {', '.join(lacks)}")


def _as_stage(item: Loss | Stage, units: Units, tol: float, update: MajorizeMinimize) -> Stage:
    if not isinstance(item, Stage):
        return Stage(type(item).__name__, Single(units.in_fit(item)), tol, update=update)
    schedule = item.schedule
    if isinstance(schedule, Single):
        schedule = Single(units.in_fit(schedule.loss))
    if isinstance(item.update, MajorizeMinimize):
        update = replace(item.update, nonnegative=update.nonnegative)
        return replace(item, schedule=schedule, update=update)
    return replace(item, schedule=schedule)


def _tails_are_linear(loss: Any) -> bool:
    """Whether cutting wild entries moves the objective by no more than a constant."""
    listed = loss if isinstance(loss, list | tuple) else [loss]
    losses = [s.schedule.loss if isinstance(s, Stage) and isinstance(s.schedule, Single) else s
              for s in listed]  # fmt: skip
    return all(item is None or isinstance(item, L1 | Tukey | Contaminated) for item in losses)


def _each_mode(name: str, value: bool | Sequence[bool], order: int) -> tuple[bool, ...]:
    if isinstance(value, bool | np.bool_):
        return (bool(value),) * order
    flags = tuple(value) if isinstance(value, Sequence) else ()
    if len(flags) != order or not all(isinstance(flag, bool | np.bool_) for flag in flags):
        raise ValueError(f"{name}: must be a bool or {order} of them, got {value!r}")
    return tuple(bool(flag) for flag in flags)


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
            stage = Stage("L1", units.continuation(epsilon), tol, units.relative_mu(mu))
            return Plan(units, (stage,))
        units = Units(engine, magnify=False)  # beside a raw epsilon, tiny data may vanish
        loss = L1(units.raw_epsilon(epsilon))
        update = MajorizeMinimize(inner, inner_tol)
        stage = Stage("L1", Single(loss), tol, units.raw_mu(mu), extrapolate=False, update=update)
        return Plan(units, (stage,))

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
        stage = Stage("least squares", Single(LeastSquares()), tol, units.raw_mu(mu))
        return Plan(units, (stage,))

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
        if not design.complete:
            raise ValueError("M: has NaN entries")
        M_host = (
            to_host(as_array(M)).astype(np.float64) if design.largest else np.zeros(design.shape)
        )
    with _checks.about("Y"):
        answers = as_array(Y)
        vector = answers.ndim == 1
        engine = as_engine(answers[:, None] if vector else answers)
        largest = engine.largest
        if not engine.complete:
            raise ValueError("Y: has NaN entries")
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
            (Stage("L1", units.continuation(epsilon), tol, mu / units.scale, max_sweeps),),
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
    """What an estimator does with some data: its units, its stages in those units, its modes.

    With `nonnegative`, which factors must not be negative.
    """

    units: Units
    stages: Sequence[Stage]
    modes: Sequence[int] | None = None
    nonnegative: tuple[bool, ...] = ()


def estimate(
    X: Any,
    rank: int,
    plan: Callable[[Engine], Plan],
    init: Any,
    starts: int,
    max_sweeps: int,
    rng: Seed,
    callback: Callback | None,
    *,
    screened: bool = False,
) -> Fit:
    """Run an estimator's stages and keep the lowest objective.

    Either from each start to the end, or, `screened`, from the start that a quick trial of all
    of them finds best.
    """
    rank = _checks.whole_number("rank", rank, 1)
    starts = _checks.whole_number("starts", starts, 1)
    max_sweeps = _checks.whole_number("max_sweeps", max_sweeps, 1)
    generator = _checks.generator(rng)
    if isinstance(init, str):
        _checks.choice("init", init, ("auto", "nvecs", "random"))
    if callback is not None and not callable(callback):
        raise ValueError(f"callback: must be a function of a State, got {callback!r}")
    with single_blas_thread:  # for the products outside of the engine: the same bits everywhere
        how = plan(as_engine(X))
        units, modes = how.units, how.modes if how.modes is not None else range(how.units.order)
        runs: list[_Run] = []
        tried: Starts | None = None
        for k in range(1 if screened else starts):
            start = init if k == 0 else "random"
            stages = how.stages
            if screened and isinstance(start, str) and units.engine.largest > 0:
                update = stages[0].update
                factors, tried = search(units, rank, start, starts, generator, update)
                stages = [stage.near(units.engine, factors) for stage in stages]
            else:
                begun = None
                if isinstance(start, str) and isinstance(stages[0].schedule, Continuation):
                    begun = begin_on_part(units, rank, start, generator, stages[0].update)
                factors = begun or first_factors(units, rank, start, generator)
                if begun or not isinstance(start, str):
                    stages = [stage.near(units.engine, factors) for stage in stages]
            solver = Solver(units.engine, stages, modes, units.baseline)
            factors = blank(units.engine, factors, modes)
            runs.append(_run(solver, factors, max_sweeps, units, callback))
            if runs[-1].status == STOPPED:
                break
        names, labels = names_and_labels(X)
        fit = _fit(runs, solver, units, tried, how.nonnegative)
        return replace(fit, modes=names, labels=labels) if names else fit


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
        del trace[state.sweep - 1 :], names[state.sweep - 1 :]  # of a stage that was undone
        trace.append(units.in_data(state.objective, state.loss))
        names.append(state.name)
        answer = callback(units.state(state)) if callback else False
        return isinstance(answer, bool | np.bool_) and bool(answer)

    state, status = solver.run(solver.start(factors), max_sweeps, after_sweep)
    # A stage that was undone is not part of the story.
    return _Run(state, status, tuple(trace[: state.sweep]), tuple(names[: state.sweep]))


def _fit(
    runs: Sequence[_Run],
    solver: Solver,
    units: Units,
    tried: Starts | None,
    nonnegative: tuple[bool, ...],
) -> Fit:
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
    state, engine = best.state, solver.engine
    free = [mode for mode in range(units.order) if not any(nonnegative[mode : mode + 1])]
    model = KruskalTensor.from_factors(state.factors).normalized(free[-1] if free else -1)
    loss = rescaled(state.loss, power_of_two(units.exponent))
    status = best.status
    if best.status != CONVERGED and not solver.last_level(state):
        status += f" in stage {state.name!r} at {loss}, before the last level"
    notes = [status, *state.notes, *map(_kept, state.kept), *_unheard(engine, state)]
    notes.append(diagnosis(model))
    measure = state.loss if is_quadratic(state.loss) else L1(max((1e-6 * units.scale) ** 2, 1e-300))
    nothing = engine.value(tuple(0.0 * A for A in state.factors), measure)
    left = engine.value(state.factors, measure)
    whole = nothing + (units.excess if not is_quadratic(measure) else 0.0)
    noise = noise_of(engine.sample(state.factors), units.least_sigma)
    return Fit(
        model=KruskalTensor(model.weights * 2.0**units.exponent, model.factors),
        trace=np.array(best.trace),
        status="; ".join(note for note in notes if note),
        converged=best.status == CONVERGED,
        loss=loss,
        stages=tuple((name, len(list(group))) for name, group in groupby(best.names)),
        explained=(nothing - left) / whole if whole > 0 else 0.0,
        starts=tried
        if tried is not None
        else Starts(units.in_data(objective, furthest.loss) for objective in objectives),
        scale=noise.sigma * freedom(engine, model.rank, noise.clean) * 2.0**units.exponent
        if engine.largest > 0
        else 0.0,
    )


def _unheard(engine: Engine, state: State) -> list[str]:
    """Rows that a loss which rejects outliers leaves where the stage before it put them."""
    reach = getattr(state.loss, "rejects", None)
    if reach is None:
        return []
    notes = []
    rank = state.factors[0].shape[1]  # so many entries of a row can be met by chance
    for mode, hits in enumerate(engine.flagged(state.factors, reach)):
        counts = engine.counts(mode)
        rows = np.flatnonzero((counts - hits <= rank) & (hits > 0))
        if rows.size:
            shown = ", ".join(map(str, rows[:5])) + (", ..." if rows.size > 5 else "")
            notes.append(
                f"{rows.size} rows of mode {mode} have no entry that fits and keep the values "
                f"of the stage before ({shown})"
            )
    return notes


def _kept(rows_of_mode: tuple[int, tuple[int, ...]]) -> str:
    mode, rows = rows_of_mode
    shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
    return f"{len(rows)} rows of mode {mode} could not be solved and kept their value ({shown})"
