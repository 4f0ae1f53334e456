"""The sweep loop of all estimators.

A fit is a sequence of stages, a stage a sequence of levels with a loss each, and a level a number
of sweeps, which update each factor in turn. `Solver.advance` maps a `State` to the state after one
more sweep, `Solver.next_level` to the beginning of the next level, and `Solver.run` repeats both.
Stopping rules, callbacks and checkpoints look at states only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from robustcp._util.typing import Factors
from robustcp.constraints import Constraints, Free, orient_columns, project_factors
from robustcp.engines import Engine, Fibres, SweepState
from robustcp.engines.normal_equations import NormalEquations
from robustcp.losses import LeastSquares, Loss
from robustcp.noise import Noise
from robustcp.optimize.acceleration import Acceleration, JointStep, SweepStep
from robustcp.optimize.objective import Objective
from robustcp.optimize.outcome import CONVERGED, STOPPED, Outcome, max_sweeps_outcome
from robustcp.optimize.problem import Problem
from robustcp.optimize.row_prior import Prior
from robustcp.optimize.schedules import Level, Schedule, Skip
from robustcp.optimize.units import Units
from robustcp.optimize.updates import MajorizeMinimize, SweepResult, UnsolvedRows, Update

#: With a prior, `Stage.tol` is multiplied by this: sweeps progress slowly along the valleys that
#: badly determined rows make.
PRIOR_TOL_FACTOR = 0.01
#: For data with at most this many entries, a sweep costs less than a joint step.
CHEAP_SWEEP_ENTRIES = 1 << 15
#: The same limit for least squares.
CHEAP_LEAST_SQUARES_ENTRIES = 1 << 18
#: Where sweeps are that cheap, joint steps begin after this many sweeps of a level.
JOINT_STEP_AFTER_SWEEPS = 30
#: The most sweeps that compiled code does before Python is entered again.
MAX_COMPILED_SWEEPS = 64
#: The level of a state before its first level.
NOT_STARTED = -1


@dataclass(frozen=True)
class Stage:
    """A part of a fit: what it minimises, and how.

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
        The most sweeps of a level, unless it is the stage's last.
    acceleration : Acceleration
        How sweeps are extrapolated, where that lowers the objective.
    update : Update
        How each factor is updated.
    fallback : Stage, optional
        The stage that replaces this one if its schedule finds it unsuitable for the data.
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
        """This stage for a fit whose initial factors may be good already."""
        return replace(self, schedule=self.schedule.for_warm_start(engine, factors))

    def in_units(self, units: Units) -> Stage:
        """This stage in the units of the fit, from the units of the data."""
        return replace(
            self,
            schedule=self.schedule.in_units(units),
            mu=units.mu_of_fit(self.mu, self.schedule.degree),
            fallback=self.fallback and self.fallback.in_units(units),
        )


@dataclass(frozen=True, eq=False)
class State:
    """All that is known of a fit after a sweep.

    Attributes
    ----------
    factors : tuple of arrays
        The current factors, with column norms balanced over the modes.
    objective : float
        The objective at these factors, for the loss of this level.
    decrease : float
        By how much the last sweep lowered the objective (see `Objective.relative_decrease`).
    sweep : int
        The number of sweeps of this start so far, over all levels and stages.
    trace : tuple of float
        The objective after each of these sweeps, in the units of the data.
    start : int
        The number of the start.
    stage, level : int
        The numbers of the current stage and level.
    name : str
        The name of the stage.
    stages : tuple of (name, sweeps)
        The stages so far, and their numbers of sweeps.
    skipped : tuple of int
        Stages that were replaced by their fallback.
    loss : Loss
    noise : Noise, optional
        The noise, if residuals are divided by the scales of their entries.
    prior : Prior, optional
        The prior of rows with few entries.
    fibres : Fibres, optional
        Fibres that are left out of the data.
    level_sweep : int
        The number of sweeps in this level.
    notes : tuple of str
        What users should know about the fit so far.
    generator : dict
        The state of the random generator, from which the next start is drawn.
    unsolved_rows : tuple of (int, tuple of int)
        Rows that the last sweep could not solve, for each mode that has any.
    swept_factors : tuple of arrays
        The factors at the end of the last sweep, before momentum.
    momentum : int
        How many extrapolated sweeps in a row were accepted.
    damping : float
        The damping of the next joint step (see `Acceleration`).
    cached_equations : NormalEquations, optional
        The first factor's normal equations, where evaluating the objective computed them.
    before_stage : State, optional
        The state before this stage.
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
    unsolved_rows: UnsolvedRows = field(repr=False, default=())
    swept_factors: Factors = field(repr=False, default=())
    momentum: int = field(repr=False, default=0)
    damping: float = field(repr=False, default=1.0)
    cached_equations: NormalEquations | None = field(repr=False, default=None)
    before_stage: State | None = field(repr=False, default=None)

    @property
    def level_spec(self) -> Level:
        """What is minimised in this level."""
        return Level(self.loss, self.noise, self.prior, self.fibres)

    def replace_fields(self, **changes: Any) -> State:
        """As `dataclasses.replace`, but three times faster: there is no initialization to run."""
        other = object.__new__(State)
        other.__dict__.update(self.__dict__, **changes)
        return other


@dataclass(frozen=True)
class Solver:
    """Block majorization-minimization over stages.

    Attributes
    ----------
    problem : Problem
        The data in the units of the fit.
    stages : sequence of Stage
    modes : sequence of int, optional
        The factors that are solved for, in this order; the others stay fixed. By default all.
    constraints : tuple of Constraint, one for each mode
        By default all modes are free.
    """

    problem: Problem
    stages: Sequence[Stage]
    modes: tuple[int, ...] = ()
    constraints: Constraints = ()
    #: The last stage and level whose objective was computed, and the objective.
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
        """The state before the first sweep; `fibres` are left out of the data from the start."""
        factors = orient_columns(factors, self.constraints, self.modes)
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
        self,
        state: State,
        sweep_limit: int,
        after_sweep: Callable[[State], bool] | None = None,
        *,
        every_sweep: bool = True,
    ) -> tuple[State, Outcome]:
        """Sweep until all stages have converged, or `sweep_limit` or `after_sweep` ends the run.

        Returns the last state and how the run ended. It can go on from any state that `after_sweep`
        saw, or that another call returned at its limit. Without `every_sweep`, `after_sweep` may be
        called after several sweeps of small data, which compiled code does at once; the states have
        the same bits.
        """
        while True:
            if state.level_sweep > 0 and self.is_level_finished(state):
                state, finished = self.next_level(state)
                if finished:
                    return state, CONVERGED
            if state.sweep >= sweep_limit:
                return state, max_sweeps_outcome(state.sweep)
            one_by_one = every_sweep and after_sweep is not None
            state = self.advance(state, 1 if one_by_one else sweep_limit - state.sweep)
            if after_sweep is not None and after_sweep(state):
                return state, STOPPED

    def move_to(self, state: State, factors: Factors, name: str) -> State:
        """The state at other factors, reached in one sweep of a stage of that name."""
        value, _ = self._evaluate(self.objective_of(state), state, factors)
        return replace(
            state,
            factors=factors,
            swept_factors=factors,
            objective=value,
            sweep=state.sweep + 1,
            stages=(*state.stages, (name, 1)),
            trace=(*state.trace, self.reported_objective(value, state.loss)),
            cached_equations=None,
        )

    def resume(self, state: State) -> State:
        """A state that was read from a file, with the fields that files do not hold."""
        _, equations = self._evaluate(self.objective_of(state), state, state.factors)
        return replace(state, cached_equations=equations)

    def advance(self, state: State, max_sweeps: int = 1) -> State:
        """The state after one more sweep, or after several of the same level."""
        stage, objective = self._stage(state), self.objective_of(state)
        acceleration, same_sweeps = self._acceleration(state, objective)
        compiled = self._advance_compiled(state, acceleration, min(max_sweeps, same_sweeps))
        if compiled is not None:
            return compiled
        sweep_result = stage.update.sweep(objective, state.factors, state.cached_equations)
        changes = self._extrapolate(state, objective, sweep_result, acceleration)
        if "factors" not in changes:
            end = self._balance_norms(sweep_result.factors, state.prior)
            changes |= {"swept_factors": end, "momentum": 1, **self._accept(state, objective, end)}
        if "factors" not in changes:  # only rounding makes a plain sweep rise: stay
            changes |= {"swept_factors": state.swept_factors, "momentum": 0, "decrease": 0.0}
        changes["unsolved_rows"] = sweep_result.unsolved_rows
        objectives = (changes.get("objective", state.objective),)
        return self._count_sweeps(state.replace_fields(**changes), objective, objectives)

    def _advance_compiled(
        self, state: State, acceleration: Acceleration, max_sweeps: float
    ) -> State | None:
        """The state after sweeps in compiled code; None if there is none for the next sweep."""
        weight, equations = acceleration.momentum_weight, state.cached_equations
        if weight is None or equations is None:
            return None
        objective, (tol, max_level_sweeps) = self.objective_of(state), self.level_limits(state)
        sweeps = int(min(max_sweeps, max_level_sweeps - state.level_sweep, MAX_COMPILED_SWEEPS))
        last = state.objective, state.decrease, state.momentum
        start = SweepState(state.factors, state.swept_factors, equations, *last)
        end = self._stage(state).update.advance(objective, start, tol, weight, sweeps)
        if end is None or not end.objectives:
            return None
        changed = state.replace_fields(
            factors=end.factors,
            swept_factors=end.swept_factors,
            cached_equations=end.equations,
            objective=end.objective,
            decrease=end.decrease,
            momentum=end.momentum,
            unsolved_rows=(),
        )
        return self._count_sweeps(changed, objective, end.objectives)

    def _count_sweeps(
        self, state: State, objective: Objective, objectives: Sequence[float]
    ) -> State:
        """The state with further sweeps counted, given the objective after each of them."""
        count, excess = len(objectives), objective.excess
        return state.replace_fields(
            stages=(*state.stages[:-1], (state.name, state.stages[-1][1] + count)),
            sweep=state.sweep + count,
            level_sweep=state.level_sweep + count,
            trace=(
                *state.trace,
                *(self._objective_in_data_units(x + excess, state.loss) for x in objectives),
            ),
        )

    def is_level_finished(self, state: State) -> bool:
        """Whether the level has converged, or has reached its limit of sweeps."""
        tol, max_level_sweeps = self.level_limits(state)
        return state.decrease < tol or state.level_sweep >= max_level_sweeps

    def level_limits(self, state: State) -> tuple[float, float]:
        """The decrease in a sweep below which the level ends, and its limit of sweeps."""
        stage = self._stage(state)
        tol = stage.tol if state.prior is None else PRIOR_TOL_FACTOR * stage.tol
        return tol, math.inf if stage.schedule.is_last(state.level) else stage.level_sweeps

    def is_last_level(self, state: State) -> bool:
        """Whether no level or stage is known to come after the state's."""
        last_stage = state.stage + 1 == len(self.stages)
        return last_stage and self._stage(state).schedule.is_last(state.level)

    def next_level(self, state: State) -> tuple[State, bool]:
        """The state at the beginning of the next level, and whether there was none left."""
        stage_number, level = state.stage, state.level + 1
        while stage_number < len(self.stages):
            stage = self._stage_at(stage_number, state.skipped)
            has_started = state.level > NOT_STARTED
            engine = self.problem.clipped_for(state.loss) if has_started else self.problem.engine
            has_level = has_started or state.fibres is not None
            try:
                level_spec = stage.schedule(
                    level, engine, state.factors, state.level_spec if has_level else None
                )
            except Skip as reason:
                notes, level_spec = (*state.notes, str(reason)), None
                if level > 0 and state.before_stage is not None:
                    state = state.before_stage  # undo what the stage has done
                state = replace(state, notes=notes)
                if stage.fallback is not None:
                    state, level = replace(state, skipped=(*state.skipped, stage_number)), 0
                    continue
            if level_spec is not None:
                return self._enter_level(state, level_spec, stage_number, level), False
            stage_number, level = stage_number + 1, 0
        return state, True

    # Objectives

    def objective_of(self, state: State) -> Objective:
        """What is minimised in a state."""
        return self._cached_objective(self._stage(state), state.level_spec)

    def _cached_objective(self, stage: Stage, level_spec: Level) -> Objective:
        """The objective of a stage's level; the last one is cached."""
        cache = self._objective_cache
        key = stage, level_spec.loss, level_spec.noise, level_spec.prior, level_spec.fibres
        if not cache or any(old is not new for old, new in zip(cache, key, strict=False)):
            cache[:] = *key, self._objective(stage, level_spec)
        objective: Objective = cache[-1]
        return objective

    def value(self, state: State, level_spec: Level) -> float:
        """The objective at a state's factors for another level, in the units of the fit."""
        objective = self._objective(self._stage(state), level_spec)
        return self._evaluate(objective, state, state.factors)[0]

    def _evaluate(
        self, objective: Objective, state: State, factors: Factors
    ) -> tuple[float, NormalEquations | None]:
        """See `_evaluate_objective`, by the update of the state's stage."""
        return _evaluate_objective(objective, self._stage(state).update, factors)

    def reported_objective(self, objective: float, loss: Loss) -> float:
        """An objective in the units of the data, with the cost of clipped entries."""
        return self._objective_in_data_units(objective + self.problem.excess(loss), loss)

    def _objective_in_data_units(self, objective: float, loss: Loss) -> float:
        return self.problem.units.objective_of_data(objective, loss.degree)

    def state_in_data_units(self, state: State) -> State:
        """A state in the units of the data."""
        units = self.problem.units
        convert = units.factors_of_data if units.exponent else tuple
        return replace(
            state,
            factors=convert(state.factors),
            swept_factors=convert(state.swept_factors),
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
        """The objective of a stage's level; mu is left out if all rows have a prior."""
        prior = level_spec.prior
        all_have_prior = prior is not None and all(prior.ridges[n] is not None for n in self.modes)
        mu, view = 0.0 if all_have_prior else stage.mu, level_spec.view_data
        return Objective.of(
            self.problem, level_spec.loss, self.constraints, self.modes, mu, view, prior
        )

    # Steps

    def _acceleration(self, state: State, objective: Objective) -> tuple[Acceleration, float]:
        """How the next sweeps are extrapolated, and for how many sweeps that stays the same."""
        acceleration = self._stage(state).acceleration
        cheap_entries = (
            CHEAP_LEAST_SQUARES_ENTRIES if objective.loss.quadratic else CHEAP_SWEEP_ENTRIES
        )
        is_cheap = self.problem.engine.count <= cheap_entries
        if is_cheap and state.level_sweep < JOINT_STEP_AFTER_SWEEPS:
            return acceleration.cheap_variant, JOINT_STEP_AFTER_SWEEPS - state.level_sweep
        return acceleration, math.inf

    def _extrapolate(
        self,
        state: State,
        objective: Objective,
        sweep_result: SweepResult,
        acceleration: Acceleration,
    ) -> dict[str, Any]:
        """What changes in a state that moves beyond the end of a sweep, if that is not higher."""
        algebra = objective.engine.algebra
        sweep = SweepStep(
            state.factors, sweep_result.factors, self.modes, sweep_result.predicted_decrease
        )
        step = acceleration.propose(sweep, state.damping, algebra)
        if step is None:
            return {}
        end = self._balance_norms(objective.project(step.factors), state.prior)
        coefficient, extrapolated = acceleration.momentum(step, state.momentum), end
        if coefficient > 0:
            extrapolated = objective.project(
                tuple(
                    new + coefficient * (new - old) if mode in self.modes else new
                    for mode, (new, old) in enumerate(zip(end, state.swept_factors, strict=True))
                )
            )
        changes = self._accept(state, objective, extrapolated)
        if not changes:
            return {"damping": acceleration.next_damping(state.damping, step, -math.inf)}
        decrease, ratio = state.objective - changes["objective"], math.nan
        if step.predicted_decrease > 0:
            ratio = decrease / step.predicted_decrease
        damping = acceleration.next_damping(state.damping, step, ratio)
        return changes | {"swept_factors": end, "momentum": state.momentum + 1, "damping": damping}

    def _accept(self, state: State, objective: Objective, factors: Factors) -> dict[str, Any]:
        """What changes in a state that moves to some factors; empty if its objective would rise."""
        value, equations = self._evaluate(objective, state, factors)
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
            for mode in self.modes:
                ridge = prior.ridges[mode]
                if ridge is None:
                    return factors
                root = engine.asarray(np.sqrt(ridge))
                roots.append(engine.xp.astype(root, factors[mode].dtype))
        new = engine.algebra.balance_norms([factors[mode] for mode in self.modes], roots)
        balanced = dict(zip(self.modes, new, strict=True))
        return tuple(balanced.get(mode, A) for mode, A in enumerate(factors))


def _evaluate_objective(
    objective: Objective, update: Update, factors: Factors
) -> tuple[float, NormalEquations | None]:
    """Loss and penalty, and the first factor's normal equations where they come for free."""
    value, equations = update.evaluate(objective, factors)
    return value + objective.penalty(factors), equations
