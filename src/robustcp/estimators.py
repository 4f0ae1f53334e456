"""The named estimators."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from robustcp._util import checks
from robustcp.constraints import Constraint, Constraints, Free, Nonnegative, constraints_by_mode
from robustcp.driver import Callback, Plan, Seed, estimate
from robustcp.engines import Axes, Engine
from robustcp.losses import L1, LeastSquares, Loss, as_loss
from robustcp.noise import is_kind, parse_noise
from robustcp.optimize.acceleration import NoAcceleration
from robustcp.optimize.problem import Problem
from robustcp.optimize.row_prior import RowPrior
from robustcp.optimize.schedules import Single
from robustcp.optimize.solver import Stage
from robustcp.optimize.stages import cp_stages, l1_continuation
from robustcp.optimize.updates import MajorizeMinimize
from robustcp.persist.checkpoint import CheckpointArgument, request_checkpoint
from robustcp.results.fit import Fit
from robustcp.starts.cases import Cases, SubsetStart, as_cases
from robustcp.starts.multistart import (
    GivenStart,
    Initialization,
    Multistart,
    Start,
    SubsampleStart,
    make_starts,
)

#: How many starts are begun anew, if they run off.
MAX_RESTARTS = 5


def cp(
    X: Any,
    rank: int,
    *,
    loss: Loss | Sequence[Loss | Stage] | None = None,
    noise: Any = "auto",
    cases: Cases | int | str | None = None,
    entry_weights: Any = None,
    nonnegative: bool | Sequence[bool] = False,
    constraints: Mapping[int | str, Constraint] | None = None,
    fixed: Sequence[int] = (),
    init: Any = "auto",
    starts: int | str = "auto",
    tol: float = 1e-5,
    max_sweeps: int = 1000,
    rng: Seed = None,
    callback: Callback | None = None,
    checkpoint: CheckpointArgument = None,
) -> Fit:
    """Robust CP: fit the components in spite of gross errors, and find out which entries are bad.

    The recommended estimator. Several starting points are screened cheaply and ranked by the
    entropy of their residuals, which a few huge residuals cannot dominate. The best are fitted by
    the 1-norm, which resists outliers but is biased by one-sided ones, and then refined under
    Gaussian noise with a floor for outliers (`Contaminated`); the scale of the noise and the
    height of the floor are estimated anew from the residuals after each round. The fit with the
    lowest objective is returned.

    Fibres that are outlying as a whole, or constant, are left out. Rows with few observed entries
    get a Gaussian prior and are given by their posterior means. `fit.status` says so. Up to 60% of
    the entries may be outliers, if the others follow the model. `fit.warnings` lists the reasons
    to doubt the result, if there are any.

    Parameters
    ----------
    X : array, masked array, Observed, what `read` returns, or of xarray or pandas
        NaN and masked entries are missing. Arrays may be of any array API library. A DataArray,
        a Series with a level of its index for each mode, and a long DataFrame (the values in
        its last column) give their names and labels to the fit.
    rank : int
        The number of components.
    loss : Loss, or sequence of losses and stages, optional
        Minimise this loss instead, in the units of the data, from the best start. Several losses
        are minimised one after the other.
    noise : str, modes, or standard deviations
        What the standard deviation of the noise depends on. "common": the same for all entries;
        "slabs": a scale for each slab of every mode, or of the modes whose numbers or names are
        given; "signal": a variance that grows with the model's entries, as in spectra and counts;
        "signal*slabs": both; "auto", the default: whatever the data shows. Known standard
        deviations are given as a number, as an array that broadcasts to X, or as a list with one
        vector (or None) per mode, whose outer product is used. `fit.noise` tells what was found.
    cases : int, str or Cases, optional
        The mode, by number or name, that holds samples, some of which may be bad as a whole. They
        may even agree with each other, by sharing a shift or a component that the others do not
        have. The search then fits small subsets of samples and follows those that describe most
        samples best; samples far from the model have no influence on the other factors, but keep
        their scores. Up to a quarter of the samples may be bad; ``Cases(mode, share=0.4)`` allows
        for more. `fit.cases` has the weight, residual distance and flag of each sample.
    entry_weights : array, or a list with one vector (or None) for each mode, optional
        What the loss of each entry is multiplied by: 2 counts an entry twice, 0 makes it missing.
        An array that broadcasts to X (matched by dimension if both are from xarray; for Observed
        also one weight for each entry, in the order given), or vectors whose outer product is
        used. The sizes of the data and of the noise are estimated from entries with a weight
        other than 0.
    nonnegative : bool, or one for each mode, or modes by number or name
        Which factors must not have negative entries.
    constraints : dict of constraints, optional
        For some modes, by number or by name, what their factors must be like:
        ``{1: Smooth(0.1), "sample": Nonnegative()}``. There are `Nonnegative`, `Smooth` and
        `Unimodal`, and a `Constraint` of your own. A mode's constraint does nothing while the
        mode is fixed.
    fixed : sequence of int or str
        Modes, by number or name, whose factors stay as they are in `init`, which must be given.
    init : {"auto", "nvecs", "random"}, KruskalTensor, Fit, or list of factors
        A Fit is turned so that the names of its modes and its labels agree with the data's.
        "auto" begins with singular vectors of the data, cut at the size of ordinary entries and
        not, and goes on with random factors.
    starts : int or "auto"
        How many starts to try. "auto" tries a few at a time, until two agree with the best and its
        residuals look like noise, or until many agree. Failing that, it tries starts for data in
        which most entries, or whole fibres, are outliers; this takes up to ten times as long, and
        the logger "robustcp.search" says why, at level INFO. `fit.starts` tells how they ended.
    tol, max_sweeps, rng, callback, checkpoint
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

    With the last slab of the second mode counted three times:

    >>> last = [1.0] * 19 + [3.0]
    >>> robustcp.cp(sim.data, 2, entry_weights=[None, last, None]).shape
    (20, 20, 20)
    """
    tol = checks.real_number("tol", tol, 0.0, below=1.0)
    count = None if starts == "auto" else checks.whole_number("starts", starts, 1)
    user_stages = _stages_from_loss(loss, tol)
    if user_stages and not (isinstance(noise, str) and noise == "auto"):
        raise ValueError("noise: is for the default loss of cp, and loss is given too")
    if not isinstance(fixed, Sequence):
        raise ValueError(f"fixed: must be a list of modes, got {fixed!r}")
    if cases is not None and (user_stages or len(fixed)):
        raise ValueError("cases: cannot be asked for together with loss or fixed")
    if len(fixed) and isinstance(init, str):
        raise ValueError(f"fixed: needs the factors to keep in init, got init={init!r}")

    def make_plan(engine: Engine) -> Plan:
        order = engine.order
        axes = engine.view.axes
        user_constraints = constraints_by_mode(constraints, axes.modes, order)
        mode_constraints = add_nonnegative(user_constraints, nonnegative, axes)
        fixed_modes = {axes.mode_number("fixed", mode, order) for mode in fixed}
        if len(fixed_modes) == order:
            raise ValueError(f"fixed: must leave a mode to solve for, got {tuple(fixed)!r}")
        noise_spec, engine = parse_noise(noise, engine)
        problem = Problem.of(engine)
        if not user_stages:
            problem = problem.without_gross_outliers.without_constant_fibres
        stages = [stage.in_units(problem.units) for stage in user_stages]
        solved_modes = tuple(mode for mode in range(order) if mode not in fixed_modes)
        if not stages:
            row_prior = RowPrior.of(mode_constraints, solved_modes)
            stages = cp_stages(problem, tol, noise_spec.in_units(problem.units), row_prior)
        case_spec = as_cases(cases, axes.modes, order)
        start: Start = (
            Multistart(init, count)
            if isinstance(init, str)
            else GivenStart(align_init(init, engine, fixed_modes))
        )
        if case_spec is not None:
            case_spec.check(engine.shape[int(case_spec.mode)], rank)
            start = SubsetStart(case_spec, count) if isinstance(init, str) else start
        return Plan(problem, stages, [start], solved_modes, mode_constraints, cases=case_spec)

    checkpoint_request = request_checkpoint(
        checkpoint, "cp", loss=loss, tol=tol, noise=_describe_noise(noise)
    )
    return estimate(
        X,
        rank,
        make_plan,
        init,
        max_sweeps,
        rng,
        callback,
        entry_weights=entry_weights,
        checkpoint=checkpoint_request,
    )


def _describe_noise(noise: Any) -> Any:
    """A noise as checkpoints compare it; standard deviations are told by the objective."""
    if not is_kind(noise):
        return "given"
    items = noise if isinstance(noise, list | tuple) else [noise]
    return ", ".join(map(str, items))


def _stages_from_loss(loss: Any, tol: float) -> list[Stage]:
    """Stages from what `cp` takes as its loss, in the units of the data; none for the default."""
    items = loss if isinstance(loss, list | tuple) else [] if loss is None else [loss]
    if not items and loss is not None:
        raise ValueError("loss: an empty list of stages")
    stages = []
    for item in items:
        if not isinstance(item, Stage):
            wrapped = as_loss(item)
            item = Stage(wrapped.name, Single(wrapped), tol)
        stages.append(item)
    return stages


def align_init(init: Any, engine: Engine, fixed: Collection[int] = ()) -> Any:
    """A fit to begin with, its modes and indices in the order of the data's; else as it is.

    Modes that are not fixed may have other labels.
    """
    if not isinstance(init, Fit):
        return init
    free = set(range(engine.order)) - set(fixed)
    names = engine.view.axes.modes if init.axes.has_names and engine.view.axes.has_names else ()
    free_in_init = {
        init.modes.index(names[n]) if names and names[n] in init.modes else n for n in free
    }
    return init.aligned_to(engine, free=free_in_init)


def add_nonnegative(
    constraints: Constraints, nonnegative: bool | Sequence[bool] | Sequence[int | str], axes: Axes
) -> Constraints:
    """Constraints, and `Nonnegative` for the free ones of the modes that must be so."""
    flags = _nonnegative_flags(nonnegative, axes, len(constraints))
    for mode, (constraint, flag) in enumerate(zip(constraints, flags, strict=True)):
        if flag and constraint.signed and constraint != Free():
            raise ValueError(
                f"nonnegative: mode {mode} has the constraint {constraint!r}, which allows "
                f"negative entries; got nonnegative={nonnegative!r}"
            )
    return tuple(
        Nonnegative() if flag and constraint == Free() else constraint
        for constraint, flag in zip(constraints, flags, strict=True)
    )


def _nonnegative_flags(nonnegative: Any, axes: Axes, order: int) -> tuple[bool, ...]:
    """Which modes are meant, by one flag, one for each, or their numbers and names."""
    if isinstance(nonnegative, bool | np.bool_):
        return (bool(nonnegative),) * order
    flags_or_modes = (nonnegative,) if isinstance(nonnegative, str) else nonnegative
    items = tuple(flags_or_modes) if isinstance(flags_or_modes, Sequence) else (None,)
    if all(isinstance(flag, bool | np.bool_) for flag in items) and len(items) == order:
        return tuple(map(bool, items))
    if any(flag is None or isinstance(flag, bool | np.bool_) for flag in items):
        raise ValueError(
            f"nonnegative: must be a bool or {order} of them, or modes, got {nonnegative!r}"
        )
    modes = {axes.mode_number("nonnegative", mode, order) for mode in items}
    return tuple(mode in modes for mode in range(order))


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
    constraints: Mapping[int | str, Constraint] | None = None,
    init: Any = "nvecs",
    starts: int = 1,
    tol: float = 1e-5,
    max_sweeps: int = 1000,
    rng: Seed = None,
    callback: Callback | None = None,
    checkpoint: CheckpointArgument = None,
) -> Fit:
    """CP by the smoothed 1-norm, which gross errors cannot pull away (Chi & Kolda 2010).

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
        "continuation" begins with a large epsilon and comes down to the one asked for; sweeps
        are carried on beyond their end when that lowers the objective. "fixed" is the algorithm
        as published, with epsilon and mu in the data's raw units.
    inner, inner_tol : int, float
        With "fixed": majorize-minimize steps for a factor before the next one's turn, and the
        relative fall of the loss below which they end early.
    entry_weights, constraints
        As in `cp`.
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
    count = checks.whole_number("starts", starts, 1)

    def continuation_plan(engine: Engine) -> Plan:
        mode_constraints = constraints_by_mode(constraints, engine.view.axes.modes, engine.order)
        problem = Problem.of(engine).without_gross_outliers
        stage = Stage("L1", l1_continuation(problem, epsilon), tol, problem.relative_mu(mu))
        return Plan(
            problem,
            [stage],
            make_starts(align_init(init, engine), count, SubsampleStart),
            constraints=mode_constraints,
        )

    def published_plan(engine: Engine) -> Plan:
        mode_constraints = constraints_by_mode(constraints, engine.view.axes.modes, engine.order)
        problem = Problem.of(engine, magnify=False)  # beside a raw epsilon, tiny data may vanish
        units = problem.units
        loss = L1(max(units.epsilon_of_fit(epsilon), problem.min_epsilon))
        stage = Stage(
            "L1",
            Single(loss),
            tol,
            units.mu_of_fit(mu, loss.degree),
            acceleration=NoAcceleration(),
            update=MajorizeMinimize(inner, inner_tol),
        )
        return Plan(
            problem,
            [stage],
            make_starts(align_init(init, engine), count),
            constraints=mode_constraints,
        )

    make_plan = continuation_plan if smoothing == "continuation" else published_plan
    checkpoint_request = request_checkpoint(
        checkpoint,
        "cpal1",
        epsilon=epsilon,
        mu=mu,
        smoothing=smoothing,
        inner=inner,
        inner_tol=inner_tol,
        tol=tol,
    )
    return estimate(
        X,
        rank,
        make_plan,
        init,
        max_sweeps,
        rng,
        callback,
        entry_weights=entry_weights,
        checkpoint=checkpoint_request,
    )


def cpals(
    X: Any,
    rank: int,
    *,
    mu: float = 0.0,
    entry_weights: Any = None,
    constraints: Mapping[int | str, Constraint] | None = None,
    init: Any = "nvecs",
    starts: int = 1,
    tol: float = 1e-7,
    max_sweeps: int = 1000,
    rng: Seed = None,
    callback: Callback | None = None,
    checkpoint: CheckpointArgument = None,
) -> Fit:
    """CP by alternating least squares: what everybody uses, and what gross errors break.

    Minimises sum_i r_i^2 / 2 + mu/2 sum_n |A_n|^2. The parameters are those of `cpal1`. Where
    entries are missing, a start may run off to infinity there; it is then begun anew at random.

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
    count = checks.whole_number("starts", starts, 1)

    def make_plan(engine: Engine) -> Plan:
        mode_constraints = constraints_by_mode(constraints, engine.view.axes.modes, engine.order)
        problem, loss = Problem.of(engine, keep_outliers=True), LeastSquares()
        stage = Stage("least squares", Single(loss), tol, problem.units.mu_of_fit(mu, loss.degree))
        restarts = [Initialization("random")] * MAX_RESTARTS if isinstance(init, str) else []
        return Plan(
            problem,
            [stage],
            make_starts(align_init(init, engine), count),
            constraints=mode_constraints,
            restarts=restarts,
        )

    checkpoint_request = request_checkpoint(checkpoint, "cpals", mu=mu, tol=tol)
    return estimate(
        X,
        rank,
        make_plan,
        init,
        max_sweeps,
        rng,
        callback,
        entry_weights=entry_weights,
        checkpoint=checkpoint_request,
    )
