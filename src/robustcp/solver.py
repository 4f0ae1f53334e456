"""The one sweep loop.

A fit is a list of stages; a stage is a list of levels, each with a loss; a level is a number of
sweeps; a sweep updates each factor in turn. `Solver.advance` maps a `State` to the next one, a
sweep further on, `Solver.following` to the beginning of the next level, and `Solver.run` repeats
the two. Whatever wants to look in (stopping, callbacks, tests) looks at states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from robustcp._typing import Factors
from robustcp.acceleration import Acceleration, Joint, Way
from robustcp.constraints import Constraints, Free, feasible
from robustcp.engines import Engine, Fibres
from robustcp.losses import LeastSquares, Loss
from robustcp.noise import Noise
from robustcp.normal import NormalEquations
from robustcp.objective import Objective
from robustcp.outcome import CONVERGED, STOPPED, Outcome, max_sweeps
from robustcp.posterior import posterior_means
from robustcp.priors import Prior
from robustcp.schedules import Level, Schedule, Skip
from robustcp.sizes import Problem
from robustcp.units import Units
from robustcp.updates import Kept, MajorizeMinimize, Swept, Update

#: Where rows are badly determined, sweeps go slowly along valleys: what ends a level, relatively.
SLOWLY = 0.01
#: With so few entries, sweeps cost less than what may save some: it begins after that many in a
#: level.
SMALL, SMALL_SQUARES, PATIENT = 1 << 15, 1 << 18, 30
#: The level of a state that has not begun.
NOWHERE = -1


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
        `Objective.progress`).
    mu : float
        The weight of the factors' squared norms.
    level_sweeps : int
        A level other than the stage's last ends after so many sweeps at the latest.
    acceleration : Acceleration
        How sweeps are carried on, where that lowers the objective.
    update : Update
        How each factor is updated in its turn.
    otherwise : Stage, optional
        What is done in its place if its schedule says that it is not for this data.
    """

    name: str
    schedule: Schedule
    tol: float
    mu: float = 0.0
    level_sweeps: int = 30
    acceleration: Acceleration = Joint()  # noqa: RUF009 - it is frozen
    update: Update = MajorizeMinimize()  # noqa: RUF009 - it is frozen
    otherwise: Stage | None = None

    def near(self, engine: Engine, factors: Factors) -> Stage:
        """This stage for a fit that begins at factors which may be good already."""
        return replace(self, schedule=self.schedule.near(engine, factors))

    def in_units(self, units: Units) -> Stage:
        """This stage, given in the units of the data, in those of the fit."""
        return replace(
            self,
            schedule=self.schedule.in_units(units),
            mu=units.mu_of_fit(self.mu, self.schedule.degree),
            otherwise=self.otherwise and self.otherwise.in_units(units),
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
    fall : float
        By how much the last sweep lowered it (see `Objective.progress`).
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
    fall: float
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
    kept: Kept = field(repr=False, default=())
    #: Where the last sweep led, before momentum; how often in a row the way beyond its end was
    #: taken; and the damping of the next joint step (see `Acceleration`).
    swept: Factors = field(repr=False, default=())
    momentum: int = field(repr=False, default=0)
    damping: float = field(repr=False, default=1.0)
    #: The first factor's normal equations, where they came out of evaluating the objective.
    ahead: NormalEquations | None = field(repr=False, default=None)
    #: The state before this stage.
    before: State | None = field(repr=False, default=None)

    @property
    def cost(self) -> Level:
        """What residuals cost in this level."""
        return Level(self.loss, self.noise, self.prior, self.fibres)

    def with_sweep(self, **changes: Any) -> State:
        """As `replace`, in a third of its time: nothing here is made from the other fields."""
        other = object.__new__(State)
        other.__dict__.update(self.__dict__, **changes)
        return other

    def counted(self) -> tuple[tuple[str, int], ...]:
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
    _known: list[Any] = field(init=False, repr=False, compare=False, default_factory=list)

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
        factors = self._balanced(feasible(factors, self.constraints, self.modes))
        nowhere = State(
            factors, math.nan, math.inf, sweep=0, stage=0, level=NOWHERE, name="",
            loss=LeastSquares(), level_sweep=0, start=start, generator=generator or {},
            fibres=fibres,
        )  # fmt: skip
        state, finished = self.following(nowhere)
        if finished:
            raise ValueError(f"loss: no stage is for this data ({'; '.join(state.notes)})")
        if not math.isfinite(state.objective):
            raise ValueError(f"init: the objective is {state.objective} there")
        return state

    def run(
        self, state: State, most: int, after_sweep: Callable[[State], bool] = lambda _: False
    ) -> tuple[State, Outcome]:
        """Advance until finished, or for at most so many sweeps; and how it ended.

        It may be given any state that `after_sweep` saw, or that it returned for want of sweeps.
        """
        while True:
            if state.level_sweep > 0 and self.level_done(state):
                state, finished = self.following(state)
                if finished:
                    return state, CONVERGED
            if state.sweep >= most:
                return state, max_sweeps(state.sweep)
            state = self.advance(state)
            if after_sweep(state):
                return state, STOPPED

    def averaged(self, state: State) -> State:
        """The state at the posterior means of all rows, if they have a prior; as one more stage.

        It costs more than the state before, which is the likeliest.
        """
        prior, noise, every = state.prior, state.noise, len(state.factors)
        if self.problem.engine.largest == 0:
            return state
        if (
            prior is None
            or noise is None
            or len(self.modes) < every
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
        value = _total(objective, self._stage(state).update, factors)[0]
        return replace(
            state, factors=factors, swept=factors, objective=value, sweep=state.sweep + 1,
            stages=(*state.stages, ("posterior means", 1)),
            trace=(*state.trace, self.reported(value, state.loss)), ahead=None,
        )  # fmt: skip

    def resumed(self, state: State) -> State:
        """A state that comes from a file, with what is not kept there."""
        ahead = _total(self.objective_of(state), self._stage(state).update, state.factors)[1]
        return replace(state, ahead=ahead)

    def advance(self, state: State) -> State:
        """One more sweep."""
        stage, objective = self._stage(state), self.objective_of(state)
        swept = stage.update.sweep(objective, state.factors, state.ahead)
        moved = self._leap(state, objective, swept)
        if "factors" not in moved:
            end = self._balanced(swept.factors, state.prior)
            moved |= {"swept": end, "momentum": 1, **self._accept(state, objective, end)}
        if "factors" not in moved:  # only rounding makes a plain sweep rise: this is the lowest
            moved |= {"swept": state.swept, "momentum": 0, "fall": 0.0}
        value = moved.get("objective", state.objective)
        return state.with_sweep(
            **moved, kept=swept.kept, stages=state.counted(), sweep=state.sweep + 1,
            level_sweep=state.level_sweep + 1,
            trace=(*state.trace, self._in_data(value + objective.excess, state.loss)),
        )  # fmt: skip

    def level_done(self, state: State) -> bool:
        """Whether the level has converged, or has had its share of sweeps."""
        tol, most = self.end_of_level(state)
        return state.fall < tol or state.level_sweep >= most

    def end_of_level(self, state: State) -> tuple[float, float]:
        """The fall in a sweep below which the level ends, and the most sweeps that it has."""
        stage = self._stage(state)
        tol = stage.tol if state.prior is None else SLOWLY * stage.tol
        return tol, math.inf if stage.schedule.last(state.level) else stage.level_sweeps

    def last_level(self, state: State) -> bool:
        """Whether no level or stage is known to come after the state's."""
        last_stage = state.stage + 1 == len(self.stages)
        return last_stage and self._stage(state).schedule.last(state.level)

    def following(self, state: State) -> tuple[State, bool]:
        """The state at the beginning of the next level; or this one, and that it was the last."""
        number, level = state.stage, state.level + 1
        while number < len(self.stages):
            stage = self._stage_at(number, state.skipped)
            begun = state.level > NOWHERE
            engine = self.problem.seen_by(state.loss) if begun else self.problem.engine
            try:
                known = begun or state.fibres is not None
                cost = stage.schedule(level, engine, state.factors, state.cost if known else None)
            except Skip as reason:
                notes = (*state.notes, str(reason))
                if level > 0 and state.before is not None:  # undo what the stage has done so far
                    state = state.before
                state = replace(state, notes=notes)
                if stage.otherwise is not None:
                    state = replace(state, skipped=(*state.skipped, number))
                    level = 0
                    continue
                cost = None
            if cost is not None:
                return self._enter(state, cost, number, level), False
            number, level = number + 1, 0
        return state, True

    # Objectives

    def objective_of(self, state: State) -> Objective:
        """What is minimised in a state."""
        return self._known_objective(self._stage(state), state.cost)

    def _known_objective(self, stage: Stage, cost: Level) -> Objective:
        """That of a stage and its level; the one that was asked for last is kept."""
        known, now = self._known, (stage, cost.loss, cost.noise, cost.prior, cost.fibres)
        if not known or any(old is not new for old, new in zip(known, now, strict=False)):
            known[:] = *now, self._objective(stage, cost)
        found: Objective = known[-1]
        return found

    def value(self, state: State, cost: Level) -> float:
        """The objective at a state for other costs of residuals, in the units of the fit."""
        stage = self._stage(state)
        return _total(self._objective(stage, cost), stage.update, state.factors)[0]

    def reported(self, objective: float, loss: Loss) -> float:
        """An objective in the units of the data, wild entries included."""
        return self._in_data(objective + self.problem.excess(loss), loss)

    def _in_data(self, objective: float, loss: Loss) -> float:
        return self.problem.units.objective_of_data(objective, loss.degree)

    def in_data(self, state: State) -> State:
        """A state in the units of the data."""
        units = self.problem.units
        return replace(
            state,
            factors=units.factors_of_data(state.factors) if units.exponent else state.factors,
            swept=units.factors_of_data(state.swept) if units.exponent else state.swept,
            objective=self.reported(state.objective, state.loss),
            loss=units.loss_of_data(state.loss).original,
            noise=state.noise and state.noise.scaled(units.factor),
            ahead=None,
            before=None,
        )

    def _stage(self, state: State) -> Stage:
        return self._stage_at(state.stage, state.skipped)

    def _stage_at(self, number: int, skipped: tuple[int, ...]) -> Stage:
        stage = self.stages[number]
        for _ in range(skipped.count(number)):
            assert stage.otherwise is not None
            stage = stage.otherwise
        return stage

    def _objective(self, stage: Stage, cost: Level) -> Objective:
        whole = cost.prior is not None and all(cost.prior.ridges[n] is not None for n in self.modes)
        mu = 0.0 if whole else stage.mu
        return Objective.of(
            self.problem, cost.loss, self.constraints, self.modes, mu, cost.seen, cost.prior
        )

    # Steps

    def _leap(self, state: State, objective: Objective, swept: Swept) -> dict[str, Any]:
        """What changes in a state that goes beyond the end of a sweep, if that is not higher up."""
        acceleration, algebra = self._stage(state).acceleration, objective.engine.algebra
        small = SMALL_SQUARES if objective.loss.quadratic else SMALL
        if self.problem.engine.count <= small and state.level_sweep < PATIENT:
            acceleration = acceleration.cheap
        way = Way(state.factors, swept.factors, self.modes, swept.fall)
        aim = acceleration.aim(way, state.damping, algebra)
        if aim is None:
            return {}
        end = self._balanced(objective.feasible(aim.factors), state.prior)
        beyond, leap = acceleration.momentum(aim, state.momentum), end
        if beyond > 0:
            leap = objective.feasible(tuple(
                new + beyond * (new - old) if mode in self.modes else new
                for mode, (new, old) in enumerate(zip(end, state.swept, strict=True))
            ))  # fmt: skip
        moved = self._accept(state, objective, leap)
        if not moved:
            return {"damping": acceleration.damping(state.damping, aim, -math.inf)}
        ratio = (state.objective - moved["objective"]) / aim.fall if aim.fall > 0 else math.nan
        damping = acceleration.damping(state.damping, aim, ratio)
        return moved | {"swept": end, "momentum": state.momentum + 1, "damping": damping}

    def _accept(self, state: State, objective: Objective, factors: Factors) -> dict[str, Any]:
        """What changes in a state that moves to these factors; nothing if that is higher up."""
        value, ahead = _total(objective, self._stage(state).update, factors)
        if not value <= state.objective:
            return {}
        fall = objective.progress(state.objective, value)
        return {"factors": factors, "objective": value, "fall": fall, "ahead": ahead}

    def _enter(self, old: State, cost: Level, number: int, level: int) -> State:
        """The state at the beginning of a level."""
        stage = self._stage_at(number, old.skipped)
        objective = self._known_objective(stage, cost)
        value, ahead = _total(objective, stage.update, old.factors)
        stages = (*old.stages, (stage.name, 0)) if level == 0 else old.stages
        return replace(
            old, objective=value, stages=stages, fall=math.inf, stage=number, level=level,
            name=stage.name, loss=cost.loss, noise=cost.noise, prior=cost.prior,
            fibres=cost.fibres, level_sweep=0, kept=(),
            swept=old.factors, momentum=0, damping=1.0, ahead=ahead,
            before=old if level == 0 else old.before,
        )  # fmt: skip

    def _balanced(self, factors: Factors, prior: Prior | None = None) -> Factors:
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
                engine.xp.astype(engine.asarray(_root(prior, mode)), factors[mode].dtype)
                for mode in self.modes
            ]
        new = engine.algebra.balanced([factors[mode] for mode in self.modes], roots)
        changed = dict(zip(self.modes, new, strict=True))
        return tuple(changed.get(mode, A) for mode, A in enumerate(factors))


def _root(prior: Prior, mode: int) -> np.ndarray:
    ridge = prior.ridges[mode]
    assert ridge is not None
    return np.asarray(np.sqrt(ridge))


def _total(
    objective: Objective, update: Update, factors: Factors
) -> tuple[float, NormalEquations | None]:
    """Loss and penalty, and the first factor's normal equations where they come with them."""
    value, equations = update.evaluate(objective, factors)
    return value + objective.penalty(factors), equations
