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
from typing import Protocol

import numpy as np
from array_api_compat import array_namespace

from robustcp import constraints as blocks
from robustcp._typing import Array, Factors
from robustcp.engines import Engine
from robustcp.engines.fused import column_norms
from robustcp.losses import L1, Loss
from robustcp.normal import NormalEquations

#: How a run can end, but for its last sweep.
CONVERGED, STOPPED = "converged", "stopped by the callback"

#: Modes with rows that could not be solved, and those rows.
Kept = tuple[tuple[int, tuple[int, ...]], ...]


class Skip(Exception):  # noqa: N818 - not an error: a schedule says why its stage is not for this data
    """Raised by a schedule: the stage is left out, or undone, and the fit before it is kept."""


class Schedule(Protocol):
    """The losses of a stage, level by level."""

    def __call__(
        self, level: int, engine: Engine, factors: Factors, loss: Loss | None
    ) -> Loss | None:
        """The loss of a level that begins at these factors; None when there is no such level.

        `loss` is that of the level before, of this stage or the one before; None at the start.
        """
        ...

    def last(self, level: int) -> bool:
        """Whether a level is known to be the last."""
        ...

    def near(self, engine: Engine, factors: Factors) -> Schedule:
        """The same schedule for a fit that begins at factors which may be good already."""
        ...


@dataclass(frozen=True)
class Single:
    """One level with one loss."""

    loss: Loss

    def __call__(
        self, level: int, engine: Engine, factors: Factors, loss: Loss | None
    ) -> Loss | None:
        return self.loss if level == 0 else None

    def last(self, level: int) -> bool:
        return True

    def near(self, engine: Engine, factors: Factors) -> Single:
        return self


@dataclass(frozen=True)
class Continuation:
    """The smoothed 1-norm with epsilon falling from one level to the next, down to the last.

    With a fixed tiny epsilon an entry that happens to be fitted gets a huge weight and pins its
    row; coming down from a large one, the same objective ends lower in fewer sweeps.

    With `enough` it ends before the last, once epsilon is below that share of the square of the
    median residual: where another stage follows, residuals need not be told apart any finer.
    """

    first: float
    lowest: float
    ratio: float = 0.1
    enough: float = 0.0

    def __call__(
        self, level: int, engine: Engine, factors: Factors, loss: Loss | None
    ) -> Loss | None:
        if level > 0 and self.last(level - 1):
            return None
        if level > 0 and self.enough and isinstance(loss, L1):
            size = typical(engine.sample(factors))
            if loss.epsilon <= self.enough * size * size:
                return None
        return L1(max(self.lowest, self.first * self.ratio**level))

    def last(self, level: int) -> bool:
        return self.first * self.ratio**level <= self.lowest

    def near(self, engine: Engine, factors: Factors) -> Continuation:
        """Begin at the size of the residuals: a larger epsilon would lead a good start astray."""
        size = typical(engine.sample(factors)) or math.inf
        return replace(self, first=max(self.lowest, min(self.first, size * size)))


def typical(residuals: np.ndarray) -> float:
    """The median magnitude, of some of many residuals; of none, 0."""
    if not residuals.size:
        return 0.0
    return float(np.median(np.abs(residuals[:: -(-residuals.size // (1 << 15))])))


@dataclass(frozen=True)
class Block:
    """What an update makes of one factor.

    Attributes
    ----------
    factor : array
    kept : tuple of int
        Rows that could not be solved and keep their last value.
    """

    factor: Array
    kept: tuple[int, ...] = ()


class Update(Protocol):
    """How one factor is updated while the others are held."""

    def value(
        self, engine: Engine, factors: Factors, mode: int, loss: Loss
    ) -> tuple[float, NormalEquations | None]:
        """The loss, with this mode's normal equations where they cost no more."""
        ...

    def block(
        self,
        engine: Engine,
        factors: Factors,
        mode: int,
        loss: Loss,
        mu: float,
        ahead: NormalEquations | None,
    ) -> Block:
        """The mode's new factor; `ahead` holds its normal equations if they are known."""
        ...

    def feasible(self, factors: Factors) -> Factors:
        """The nearest factors that the update could have made."""
        ...


@dataclass(frozen=True)
class MajorizeMinimize:
    """Each row solves its reweighted least-squares problem (eq. 5), some times over.

    Attributes
    ----------
    inner, inner_tol
        The most steps for a factor before the next one's turn, and the relative fall of the
        loss below which they end early.
    nonnegative : tuple of bool
        For each mode, whether its factor must not be negative; all free when empty.
    """

    inner: int = 1
    inner_tol: float = 0.0
    nonnegative: tuple[bool, ...] = ()

    def value(
        self, engine: Engine, factors: Factors, mode: int, loss: Loss
    ) -> tuple[float, NormalEquations | None]:
        if len(engine.row_blocks(mode, factors[mode].shape[1], loss)) > 1:
            return engine.value(factors, loss), None
        equations = engine.normal(factors, mode, loss)
        return equations.value, equations

    def block(
        self,
        engine: Engine,
        factors: Factors,
        mode: int,
        loss: Loss,
        mu: float,
        ahead: NormalEquations | None,
    ) -> Block:
        solve = blocks.nonnegative if mode in self._bounded else blocks.free
        before = math.inf
        for _ in range(self.inner):
            old, value, solved = factors[mode], 0.0, []
            for rows in engine.row_blocks(mode, old.shape[1], loss):
                equations = ahead or engine.normal(factors, mode, loss, rows)
                value += equations.value
                solved.append(solve(equations, old[rows, :], mu))
            new = solved[0] if len(solved) == 1 else engine.xp.concat(solved, axis=0)
            factors = (*factors[:mode], new, *factors[mode + 1 :])
            if before - value < self.inner_tol * value:
                break
            before, ahead = value, None
        return Block(factors[mode])

    def feasible(self, factors: Factors) -> Factors:
        xp = array_namespace(factors[0])
        return tuple(
            xp.clip(A, min=0.0) if mode in self._bounded else A for mode, A in enumerate(factors)
        )

    @property
    def _bounded(self) -> set[int]:
        return {mode for mode, bounded in enumerate(self.nonnegative) if bounded}


@dataclass(frozen=True)
class Stage:
    """A part of a fit.

    Attributes
    ----------
    name : str
    schedule : Schedule
        The losses of its levels.
    tol : float
        A level ends when a sweep lowers the objective by less than this, relatively.
    mu : float
        The objective is the loss summed over the data plus mu/2 times the squared norms of the
        factors that are solved for.
    level_sweeps : int
        A level other than the stage's last ends after so many sweeps at the latest.
    extrapolate : bool
        Whether to step on along the change of the last sweep, when that lowers the objective.
    update : Update
        How each factor is updated in its turn.
    """

    name: str
    schedule: Schedule
    tol: float
    mu: float = 0.0
    level_sweeps: int = 30
    extrapolate: bool = True
    update: Update = MajorizeMinimize()

    def near(self, engine: Engine, factors: Factors) -> Stage:
        """This stage for a fit that begins at factors which may be good already."""
        return replace(self, schedule=self.schedule.near(engine, factors))


@dataclass(frozen=True, eq=False)
class State:
    """Where a fit stands after a sweep.

    Attributes
    ----------
    factors : tuple of arrays
        The current factors, with column norms balanced over the modes.
    objective : float
        The objective at these factors, for the loss of this level.
    fall : float
        By how much the last sweep lowered it, relatively.
    sweep : int
        Sweeps so far, over all levels and stages.
    stage, level : int
    name : str
        Of the stage.
    loss : Loss
    level_sweep : int
        Sweeps in this level.
    notes : tuple of str
        What is to be known about the fit so far.
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
    notes: tuple[str, ...] = ()
    #: Rows that the last sweep could not solve, for each mode that has any.
    kept: Kept = field(repr=False, default=())
    #: The factors before extrapolation, and how many extrapolations in a row were taken.
    swept: Factors = field(repr=False, default=())
    momentum: int = field(repr=False, default=0)
    #: The first factor's normal equations, where they came out of evaluating the objective.
    ahead: NormalEquations | None = field(repr=False, default=None)
    #: The state before this stage.
    before: State | None = field(repr=False, default=None)


@dataclass(frozen=True)
class Solver:
    """Block majorization-minimization over stages.

    Attributes
    ----------
    engine : Engine
    stages : sequence of Stage
    modes : sequence of int
        Which factors are solved for, in the order of their turns; the others stay as given.
    baseline : float
        A part of the 1-norm that no model can lower, of entries far beyond the others; how far a
        sweep has come is measured without it.
    """

    engine: Engine
    stages: Sequence[Stage]
    modes: Sequence[int]
    baseline: float = 0.0

    def start(self, factors: Factors) -> State:
        """The state before the first sweep."""
        feasible = self.stages[0].update.feasible(factors)
        factors = self._balanced(
            tuple(new if mode in self.modes else old
                  for mode, (new, old) in enumerate(zip(feasible, factors, strict=True)))
        )  # fmt: skip
        loss = self.stages[0].schedule(0, self.engine, factors, None)
        assert loss is not None, "the first stage must have a level"
        state = self._enter(factors, loss, sweep=0, stage=0, level=0)
        if not math.isfinite(state.objective):
            raise ValueError(f"init: the objective is {state.objective} there")
        return state

    def run(
        self, state: State, max_sweeps: int, after_sweep: Callable[[State], bool]
    ) -> tuple[State, str]:
        """Advance until finished; returns the last state and why it is the last, in words."""
        while True:
            if state.sweep >= max_sweeps:
                return state, f"stopped after {state.sweep} sweeps (max_sweeps)"
            state = self.advance(state)
            if after_sweep(state):
                return state, STOPPED
            if self.level_done(state):
                state, finished = self.following(state)
                if finished:
                    return state, CONVERGED

    def advance(self, state: State) -> State:
        """One more sweep."""
        stage = self.stages[state.stage]
        swept, kept = self._sweep(state)
        if stage.extrapolate and state.momentum > 0:
            beyond = state.momentum / (state.momentum + 3)
            leap = tuple(
                new + beyond * (new - old) if mode in self.modes else new
                for mode, (new, old) in enumerate(zip(swept, state.swept, strict=True))
            )
            feasible = stage.update.feasible(leap)
            ahead = self._accept(state, feasible, swept, state.momentum + 1, kept)
            if ahead is not None:
                return ahead
        plain = self._accept(state, swept, swept, 1, kept)
        if plain is not None:
            return plain
        # Only rounding can make a plain sweep rise: then this is as low as it gets.
        return replace(
            state, fall=0.0, momentum=0, kept=kept, sweep=state.sweep + 1,
            level_sweep=state.level_sweep + 1,
        )  # fmt: skip

    def level_done(self, state: State) -> bool:
        """Whether the level has converged, or has had its share of sweeps."""
        stage = self.stages[state.stage]
        return state.fall < stage.tol or (
            state.level_sweep >= stage.level_sweeps and not stage.schedule.last(state.level)
        )

    def last_level(self, state: State) -> bool:
        """Whether no level or stage is known to come after the state's."""
        last_stage = state.stage + 1 == len(self.stages)
        return last_stage and self.stages[state.stage].schedule.last(state.level)

    def following(self, state: State) -> tuple[State, bool]:
        """The state at the beginning of the next level; or this one, and that it was the last."""
        stage, level = state.stage, state.level + 1
        while stage < len(self.stages):
            try:
                schedule = self.stages[stage].schedule
                new = schedule(level, self.engine, state.factors, state.loss)
            except Skip as reason:
                notes = (*state.notes, str(reason))
                if level > 0 and state.before is not None:  # undo what the stage has done so far
                    state = state.before
                state, new = replace(state, notes=notes), None
            if new is not None:
                return self._enter(state.factors, new, state.sweep, stage, level, state), False
            stage, level = stage + 1, 0
        return state, True

    def objective(self, state: State, loss: Loss) -> float:
        """The objective at a state for another loss."""
        return self._evaluate(state.stage, state.factors, loss)[0]

    def _accept(
        self, state: State, factors: Factors, swept: Factors, momentum: int, kept: Kept
    ) -> State | None:
        """The state at these factors, a sweep on, if the objective is not higher there."""
        objective, ahead = self._evaluate(state.stage, factors, state.loss)
        if not objective <= state.objective:
            return None
        size = state.objective
        if isinstance(state.loss, L1) and size > self.baseline:
            size -= self.baseline
        fall = (state.objective - objective) / size if size > 0 else 0.0
        return replace(
            state, factors=factors, swept=swept, objective=objective, fall=fall,
            momentum=momentum, ahead=ahead, kept=kept, sweep=state.sweep + 1,
            level_sweep=state.level_sweep + 1,
        )  # fmt: skip

    def _enter(
        self,
        factors: Factors,
        loss: Loss,
        sweep: int,
        stage: int,
        level: int,
        old: State | None = None,
    ) -> State:
        """The state at the beginning of a level."""
        objective, ahead = self._evaluate(stage, factors, loss)
        notes = old.notes if old else ()
        before = None if old is None else old if level == 0 else old.before
        return State(
            factors=factors, objective=objective, fall=math.inf, sweep=sweep, stage=stage,
            level=level, name=self.stages[stage].name, loss=loss, level_sweep=0, notes=notes,
            swept=factors, ahead=ahead, before=before,
        )  # fmt: skip

    def _evaluate(
        self, stage: int, factors: Factors, loss: Loss
    ) -> tuple[float, NormalEquations | None]:
        """The objective, and the first factor's normal equations where they come with it."""
        update, mu = self.stages[stage].update, self.stages[stage].mu
        value, equations = update.value(self.engine, factors, self.modes[0], loss)
        if mu == 0:
            return value, equations
        xp = self.engine.xp
        squares = sum(float(xp.sum(factors[mode] ** 2)) for mode in self.modes)
        return value + 0.5 * mu * squares, equations

    def _sweep(self, state: State) -> tuple[Factors, Kept]:
        """Update each factor in turn, holding the others; also which rows were left out."""
        update, mu = self.stages[state.stage].update, self.stages[state.stage].mu
        factors, ahead = state.factors, state.ahead
        kept = []
        for mode in self.modes:
            block = update.block(self.engine, factors, mode, state.loss, mu, ahead)
            factors = (*factors[:mode], block.factor, *factors[mode + 1 :])
            ahead = None
            if block.kept:
                kept.append((mode, block.kept))
        return self._balanced(factors), tuple(kept)

    def _balanced(self, factors: Factors) -> Factors:
        """The same model with equal column norms in the modes that are solved for.

        All the weight in one factor would make the mu term large.
        """
        if len(self.modes) < 2:
            return factors
        xp = array_namespace(factors[0])
        norms = {mode: _column_norms(factors[mode]) for mode in self.modes}
        mean = math.prod(norm ** (1.0 / len(norms)) for norm in norms.values())
        if not bool(xp.all(mean > 0)):
            some, one = mean > 0, xp.ones_like(mean)
            mean = xp.where(some, mean, one)
            norms = {mode: xp.where(some, norm, one) for mode, norm in norms.items()}
        return tuple(
            A * (mean / norms[mode])[None, :] if mode in norms else A
            for mode, A in enumerate(factors)
        )


def _column_norms(A: Array) -> Array:
    """Euclidean norms of the columns, also of very large or small ones."""
    norms = column_norms(A)
    if norms is not None:
        return norms
    xp = array_namespace(A)
    top = xp.max(xp.abs(A), axis=0)
    top = xp.where(top > 0, top, xp.ones_like(top))
    return top * xp.sqrt(xp.sum((A / top[None, :]) ** 2, axis=0))
