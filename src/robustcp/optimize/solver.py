"""The one sweep loop.

A fit is a list of stages; a stage is a list of levels, each with a loss; a level is a number of
sweeps; a sweep updates each factor in turn. `Solver.advance` maps a `State` to the next one, a
sweep further on, `Solver.next_level` to the beginning of the next level, and `Solver.run` repeats
the two. Whatever wants to look in (stopping, callbacks, tests) looks at states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from robustcp._util.typing import Factors
from robustcp.constraints import Constraints, Free, project_factors
from robustcp.engines import Engine, Fibres
from robustcp.engines.normal_equations import NormalEquations
from robustcp.losses import LeastSquares, Loss
from robustcp.noise import Noise
from robustcp.optimize.acceleration import Acceleration, JointStep, SweepStep
from robustcp.optimize.objective import Objective
from robustcp.optimize.outcome import CONVERGED, STOPPED, Outcome, max_sweeps_outcome
from robustcp.optimize.posterior import posterior_means
from robustcp.optimize.problem import Problem
from robustcp.optimize.row_prior import Prior
from robustcp.optimize.schedules import Level, Schedule, Skip
from robustcp.optimize.units import Units
from robustcp.optimize.updates import MajorizeMinimize, SweepResult, UnsolvedRows, Update

#: Where rows are badly determined, sweeps go slowly along valleys: what ends a level, relatively.
PRIOR_TOL_FACTOR = 0.01
#: With fewer entries a sweep costs less than a joint step,
CHEAP_SWEEP_ENTRIES = 1 << 15
#: with fewer than this one of least squares does;
CHEAP_LEAST_SQUARES_ENTRIES = 1 << 18
#: joint steps then begin after so many sweeps of a level.
JOINT_STEP_AFTER_SWEEPS = 30
#: The level of a state that has not begun.
NOT_STARTED = -1


@dataclass(frozen=True)
class Stage:
    """A part of a fit.

    Attributes
    ----------
    name : str
    schedule : Schedule
        The losses of its levels.
    tol : float
        A level ends when a sweep lowers the objective by less than this (see
        `Objective.relative_decrease`).
    mu : float
        The weight of the factors' squared norms.
    level_sweeps : int
        A level other than the stage's last ends after so many sweeps at the latest.
    acceleration : Acceleration
        How sweeps are carried on, where that lowers the objective.
    update : Update
        How each factor is updated in its turn.
    fallback : Stage, optional
        What is done in its place if its schedule says that it is not for this data.
    """

    name: str
    schedule: Schedule
    tol: float
    mu: float = 0.0
    level_sweeps: int = 30
    acceleration: Acceleration = JointStep()  # noqa: RUF009 - it is frozen
    update: Update = MajorizeMinimize()  # noqa: RUF009 - it is frozen
    fallback: Stage | None = None

    def for_warm_start(self, engine: Engine, factors: Factors) -> Stage:
        """This stage for a fit that begins at factors which may be good already."""
        return replace(self, schedule=self.schedule.for_warm_start(engine, factors))

    def in_units(self, units: Units) -> Stage:
        """This stage, given in the units of the data, in those of the fit."""
        return replace(
            self,
            schedule=self.schedule.in_units(units),
            mu=units.mu_of_fit(self.mu, self.schedule.degree),
            fallback=self.fallback and self.fallback.in_units(units),
        )


@dataclass(frozen=True, eq=False)
class State:
    """All that a fit is after a sweep.

    Attributes
    ----------
    factors : tuple of arrays
        The current factors, with column norms balanced over the modes.
    objective : float
        The objective at these factors, for the loss of this level.
    decrease : float
        By how much the last sweep lowered it (see `Objective.relative_decrease`).
    sweep : int
        Sweeps of this start so far, over all levels and stages.
    trace : tuple of float
        The objective after each of them, in the units of the data.
    start : int
        Which start this is.
    stage, level : int
    name : str
        Of the stage.
    stages : tuple of (name, sweeps)
        The stages so far.
    skipped : tuple of int
        Stages in whose place another one is done.
    loss : Loss
    noise : Noise, optional
        What residuals are measured in, if their entries have noise of different size.
    prior : Prior, optional
        Of the rows, where the data says little of some.
    fibres : Fibres, optional
        What is left out of the data.
    level_sweep : int
        Sweeps in this level.
    notes : tuple of str
        What users should know about the fit so far.
    generator : dict
        The state of the random generator, from which the next start is drawn.
    """

    factors: Factors
    objective: float
    decrease: float
    sweep: int
    stage: int
    level: int
    name: str
    loss: Loss
    level_sweep: int
    start: int = 0
    noise: Noise | None = field(repr=False, default=None)
    prior: Prior | None = field(repr=False, default=None)
    fibres: Fibres | None = field(repr=False, default=None)
    notes: tuple[str, ...] = ()
    trace: tuple[float, ...] = field(repr=False, default=())
    stages: tuple[tuple[str, int], ...] = ()
    skipped: tuple[int, ...] = ()
    generator: dict[str, Any] = field(repr=False, default_factory=dict)
    #: Rows that the last sweep could not solve, for each mode that has any.
    unsolved_rows: UnsolvedRows = field(repr=False, default=())
    #: Where the last sweep led, before momentum; how often in a row the way beyond its end was
    #: taken; and the damping of the next joint step (see `Acceleration`).
    swept_factors: Factors = field(repr=False, default=())
    momentum: int = field(repr=False, default=0)
    damping: float = field(repr=False, default=1.0)
    #: The first factor's normal equations, where they came out of evaluating the objective.
    cached_equations: NormalEquations | None = field(repr=False, default=None)
    #: The state before this stage.
    before_stage: State | None = field(repr=False, default=None)

    @property
    def level_spec(self) -> Level:
        """What residuals cost in this level."""
        return Level(self.loss, self.noise, self.prior, self.fibres)

    def replace_fields(self, **changes: Any) -> State:
        """As `replace`, in a third of its time: nothing here is made from the other fields."""
        other = object.__new__(State)
        other.__dict__.update(self.__dict__, **changes)
        return other

    def stages_after_sweep(self) -> tuple[tuple[str, int], ...]:
        """The stages so far, with one more sweep of the last."""
        name, sweeps = self.stages[-1]
        return (*self.stages[:-1], (name, sweeps + 1))


@dataclass(frozen=True)
class Solver:
    """Block majorization-minimization over stages.

    Attributes
    ----------
    problem : Problem
        The data in the units of the fit.
    stages : sequence of Stage
    modes : sequence of int, optional
        Which factors are solved for, in the order of their turns; the others stay as given. By
        default all.
    constraints : tuple of Constraint, one for each mode; by default all are free
    """

    problem: Problem
    stages: Sequence[Stage]
    modes: tuple[int, ...] = ()
    constraints: Constraints = ()
    #: The stage, loss and noise that were asked for last, and their objective.
    _objective_cache: list[Any] = field(init=False, repr=False, compare=False, default_factory=list)

    def __post_init__(self) -> None:
        order = self.problem.units.order
        object.__setattr__(self, "modes", tuple(self.modes) or tuple(range(order)))
        object.__setattr__(self, "constraints", self.constraints or (Free(),) * order)

    def start(
        self,
        factors: Factors,
        start: int = 0,
        generator: dict[str, Any] | None = None,
        fibres: Fibres | None = None,
    ) -> State:
        """The state before the first sweep; fibres are what is left out to begin with."""
        factors = self._balance_norms(project_factors(factors, self.constraints, self.modes))
        before_first_level = State(
            factors,
            math.nan,
            math.inf,
            sweep=0,
            stage=0,
            level=NOT_STARTED,
            name="",
            loss=LeastSquares(),
            level_sweep=0,
            start=start,
            generator=generator or {},
            fibres=fibres,
        )
        state, finished = self.next_level(before_first_level)
        if finished:
            raise ValueError(f"loss: no stage is for this data ({'; '.join(state.notes)})")
        if not math.isfinite(state.objective):
            raise ValueError(f"init: the objective is {state.objective} there")
        return state

    def run(
        self, state: State, sweep_limit: int, after_sweep: Callable[[State], bool] = lambda _: False
    ) -> tuple[State, Outcome]:
        """Advance until finished, or for at most so many sweeps; and how it ended.

        It may be given any state that `after_sweep` saw, or that it returned for want of sweeps.
        """
        while True:
            if state.level_sweep > 0 and self.is_level_finished(state):
                state, finished = self.next_level(state)
                if finished:
                    return state, CONVERGED
            if state.sweep >= sweep_limit:
                return state, max_sweeps_outcome(state.sweep)
            state = self.advance(state)
            if after_sweep(state):
                return state, STOPPED

    def move_to_posterior_means(self, state: State) -> State:
        """The state at the posterior means of all rows, if they have a prior; as one more stage.

        It costs more than the state before, which is the likeliest.
        """
        prior, noise, order = state.prior, state.noise, len(state.factors)
        if self.problem.engine.max_abs == 0:
            return state
        if (
            prior is None
            or noise is None
            or len(self.modes) < order
            or any(ridge is None for ridge in prior.ridges)
        ):
            return state
        objective, engine = self.objective_of(state), self.problem.engine
        means = posterior_means(
            objective.engine, self.constraints, state.factors, state.loss, noise.sigma
        )
        if means is None:
            return state
        factors = tuple(
            engine.xp.astype(engine.asarray(A), B.dtype)
            for A, B in zip(means, state.factors, strict=True)
        )
        value = _evaluate_objective(objective, self._stage(state).update, factors)[0]
        return replace(
            state,
            factors=factors,
            swept_factors=factors,
            objective=value,
            sweep=state.sweep + 1,
            stages=(*state.stages, ("posterior means", 1)),
            trace=(*state.trace, self.reported_objective(value, state.loss)),
            cached_equations=None,
        )

    def resume(self, state: State) -> State:
        """A state that comes from a file, with what is not kept there."""
        equations = _evaluate_objective(
            self.objective_of(state), self._stage(state).update, state.factors
        )[1]
        return replace(state, cached_equations=equations)

    def advance(self, state: State) -> State:
        """One more sweep."""
        stage, objective = self._stage(state), self.objective_of(state)
        sweep_result = stage.update.sweep(objective, state.factors, state.cached_equations)
        changes = self._extrapolate(state, objective, sweep_result)
        if "factors" not in changes:
            end = self._balance_norms(sweep_result.factors, state.prior)
            changes |= {"swept_factors": end, "momentum": 1, **self._accept(state, objective, end)}
        if "factors" not in changes:  # only rounding makes a plain sweep rise: this is the lowest
            changes |= {"swept_factors": state.swept_factors, "momentum": 0, "decrease": 0.0}
        value = changes.get("objective", state.objective)
        return state.replace_fields(
            **changes,
            unsolved_rows=sweep_result.unsolved_rows,
            stages=state.stages_after_sweep(),
            sweep=state.sweep + 1,
            level_sweep=state.level_sweep + 1,
            trace=(
                *state.trace,
                self._objective_in_data_units(value + objective.excess, state.loss),
            ),
        )

    def is_level_finished(self, state: State) -> bool:
        """Whether the level has converged, or has had its share of sweeps."""
        tol, max_level_sweeps = self.level_limits(state)
        return state.decrease < tol or state.level_sweep >= max_level_sweeps

    def level_limits(self, state: State) -> tuple[float, float]:
        """The fall in a sweep below which the level ends, and the most sweeps that it has."""
        stage = self._stage(state)
        tol = stage.tol if state.prior is None else PRIOR_TOL_FACTOR * stage.tol
        return tol, math.inf if stage.schedule.is_last(state.level) else stage.level_sweeps

    def is_last_level(self, state: State) -> bool:
        """Whether no level or stage is known to come after the state's."""
        last_stage = state.stage + 1 == len(self.stages)
        return last_stage and self._stage(state).schedule.is_last(state.level)

    def next_level(self, state: State) -> tuple[State, bool]:
        """The state at the beginning of the next level; or this one, and that it was the last."""
        stage_number, level = state.stage, state.level + 1
        while stage_number < len(self.stages):
            stage = self._stage_at(stage_number, state.skipped)
            has_started = state.level > NOT_STARTED
            engine = self.problem.clipped_for(state.loss) if has_started else self.problem.engine
            try:
                has_level = has_started or state.fibres is not None
                level_spec = stage.schedule(
                    level, engine, state.factors, state.level_spec if has_level else None
                )
            except Skip as reason:
                notes = (*state.notes, str(reason))
                if (
                    level > 0 and state.before_stage is not None
                ):  # undo what the stage has done so far
                    state = state.before_stage
                state = replace(state, notes=notes)
                if stage.fallback is not None:
                    state = replace(state, skipped=(*state.skipped, stage_number))
                    level = 0
                    continue
                level_spec = None
            if level_spec is not None:
                return self._enter_level(state, level_spec, stage_number, level), False
            stage_number, level = stage_number + 1, 0
        return state, True

    # Objectives

    def objective_of(self, state: State) -> Objective:
        """What is minimised in a state."""
        return self._cached_objective(self._stage(state), state.level_spec)

    def _cached_objective(self, stage: Stage, level_spec: Level) -> Objective:
        """That of a stage and its level; the one that was asked for last is kept."""
        cache, key = (
            self._objective_cache,
            (stage, level_spec.loss, level_spec.noise, level_spec.prior, level_spec.fibres),
        )
        if not cache or any(old is not new for old, new in zip(cache, key, strict=False)):
            cache[:] = *key, self._objective(stage, level_spec)
        objective: Objective = cache[-1]
        return objective

    def value(self, state: State, level_spec: Level) -> float:
        """The objective at a state for other costs of residuals, in the units of the fit."""
        stage = self._stage(state)
        return _evaluate_objective(self._objective(stage, level_spec), stage.update, state.factors)[
            0
        ]

    def reported_objective(self, objective: float, loss: Loss) -> float:
        """An objective in the units of the data, wild entries included."""
        return self._objective_in_data_units(objective + self.problem.excess(loss), loss)

    def _objective_in_data_units(self, objective: float, loss: Loss) -> float:
        return self.problem.units.objective_of_data(objective, loss.degree)

    def state_in_data_units(self, state: State) -> State:
        """A state in the units of the data."""
        units = self.problem.units
        return replace(
            state,
            factors=units.factors_of_data(state.factors) if units.exponent else state.factors,
            swept_factors=units.factors_of_data(state.swept_factors)
            if units.exponent
            else state.swept_factors,
            objective=self.reported_objective(state.objective, state.loss),
            loss=units.loss_of_data(state.loss).original,
            noise=state.noise and state.noise.scaled(units.factor),
            cached_equations=None,
            before_stage=None,
        )

    def _stage(self, state: State) -> Stage:
        return self._stage_at(state.stage, state.skipped)

    def _stage_at(self, stage_number: int, skipped: tuple[int, ...]) -> Stage:
        stage = self.stages[stage_number]
        for _ in range(skipped.count(stage_number)):
            assert stage.fallback is not None
            stage = stage.fallback
        return stage

    def _objective(self, stage: Stage, level_spec: Level) -> Objective:
        all_have_prior = level_spec.prior is not None and all(
            level_spec.prior.ridges[n] is not None for n in self.modes
        )
        mu = 0.0 if all_have_prior else stage.mu
        return Objective.of(
            self.problem,
            level_spec.loss,
            self.constraints,
            self.modes,
            mu,
            level_spec.view_data,
            level_spec.prior,
        )

    # Steps

    def _extrapolate(
        self, state: State, objective: Objective, sweep_result: SweepResult
    ) -> dict[str, Any]:
        """What changes in a state that goes beyond the end of a sweep, if that is not higher up."""
        acceleration, algebra = self._stage(state).acceleration, objective.engine.algebra
        entry_limit = (
            CHEAP_LEAST_SQUARES_ENTRIES if objective.loss.quadratic else CHEAP_SWEEP_ENTRIES
        )
        if self.problem.engine.count <= entry_limit and state.level_sweep < JOINT_STEP_AFTER_SWEEPS:
            acceleration = acceleration.cheap_variant
        sweep = SweepStep(
            state.factors, sweep_result.factors, self.modes, sweep_result.predicted_decrease
        )
        proposed_step = acceleration.propose(sweep, state.damping, algebra)
        if proposed_step is None:
            return {}
        end = self._balance_norms(objective.project(proposed_step.factors), state.prior)
        momentum, extrapolated = acceleration.momentum(proposed_step, state.momentum), end
        if momentum > 0:
            extrapolated = objective.project(
                tuple(
                    new + momentum * (new - old) if mode in self.modes else new
                    for mode, (new, old) in enumerate(zip(end, state.swept_factors, strict=True))
                )
            )
        changes = self._accept(state, objective, extrapolated)
        if not changes:
            return {"damping": acceleration.next_damping(state.damping, proposed_step, -math.inf)}
        ratio = (
            (state.objective - changes["objective"]) / proposed_step.predicted_decrease
            if proposed_step.predicted_decrease > 0
            else math.nan
        )
        damping = acceleration.next_damping(state.damping, proposed_step, ratio)
        return changes | {"swept_factors": end, "momentum": state.momentum + 1, "damping": damping}

    def _accept(self, state: State, objective: Objective, factors: Factors) -> dict[str, Any]:
        """What changes in a state that moves to these factors; nothing if that is higher up."""
        value, equations = _evaluate_objective(objective, self._stage(state).update, factors)
        if not value <= state.objective:
            return {}
        decrease = objective.relative_decrease(state.objective, value)
        return {
            "factors": factors,
            "objective": value,
            "decrease": decrease,
            "cached_equations": equations,
        }

    def _enter_level(self, old: State, level_spec: Level, stage_number: int, level: int) -> State:
        """The state at the beginning of a level."""
        stage = self._stage_at(stage_number, old.skipped)
        objective = self._cached_objective(stage, level_spec)
        value, equations = _evaluate_objective(objective, stage.update, old.factors)
        stages = (*old.stages, (stage.name, 0)) if level == 0 else old.stages
        return replace(
            old,
            objective=value,
            stages=stages,
            decrease=math.inf,
            stage=stage_number,
            level=level,
            name=stage.name,
            loss=level_spec.loss,
            noise=level_spec.noise,
            prior=level_spec.prior,
            fibres=level_spec.fibres,
            level_sweep=0,
            unsolved_rows=(),
            swept_factors=old.factors,
            momentum=0,
            damping=1.0,
            cached_equations=equations,
            before_stage=old if level == 0 else old.before_stage,
        )

    def _balance_norms(self, factors: Factors, prior: Prior | None = None) -> Factors:
        """The same model with equal column norms in the modes that are solved for.

        All the weight in one factor would make the mu term large. With a prior, its terms are
        equal in these modes: there they are lowest.
        """
        if len(self.modes) < 2:
            return factors
        engine, roots = self.problem.engine, []
        if prior is not None:
            if any(prior.ridges[mode] is None for mode in self.modes):
                return factors
            roots = [
                engine.xp.astype(engine.asarray(_ridge_root(prior, mode)), factors[mode].dtype)
                for mode in self.modes
            ]
        new = engine.algebra.balance_norms([factors[mode] for mode in self.modes], roots)
        balanced = dict(zip(self.modes, new, strict=True))
        return tuple(balanced.get(mode, A) for mode, A in enumerate(factors))


def _ridge_root(prior: Prior, mode: int) -> np.ndarray:
    ridge = prior.ridges[mode]
    assert ridge is not None
    return np.asarray(np.sqrt(ridge))


def _evaluate_objective(
    objective: Objective, update: Update, factors: Factors
) -> tuple[float, NormalEquations | None]:
    """Loss and penalty, and the first factor's normal equations where they come with them."""
    value, equations = update.evaluate(objective, factors)
    return value + objective.penalty(factors), equations
