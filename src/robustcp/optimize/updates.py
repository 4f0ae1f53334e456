"""Updates of one factor while the others are fixed."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from robustcp._util.typing import Array, Factors
from robustcp.engines import SweepRule, SweepState
from robustcp.engines.normal_equations import NormalEquations
from robustcp.optimize.objective import Objective

#: Modes with rows that could not be solved, and those rows.
UnsolvedRows = tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True)
class FactorUpdate:
    """An updated factor.

    Attributes
    ----------
    factor : array
    unsolved_rows : tuple of int
        Rows that could not be solved and keep their last value.
    predicted_decrease : float
        By how much the quadratic majorizer falls; NaN if it is not known.
    """

    factor: Array
    unsolved_rows: tuple[int, ...] = ()
    predicted_decrease: float = math.nan


@dataclass(frozen=True)
class SweepResult:
    """The factors after a sweep.

    Attributes
    ----------
    factors : tuple of arrays
    unsolved_rows : tuple of (int, tuple of int)
        Rows that could not be solved, for each mode that has any.
    predicted_decrease : float
        The predicted decrease of the first factor that was updated (see `FactorUpdate`).
    """

    factors: Factors
    unsolved_rows: UnsolvedRows = ()
    predicted_decrease: float = math.nan


class Update(ABC):
    """How factors are updated in a sweep."""

    @abstractmethod
    def evaluate(
        self, objective: Objective, factors: Factors
    ) -> tuple[float, NormalEquations | None]:
        """The loss, with the first mode's normal equations where they come for free."""

    def sweep(
        self,
        objective: Objective,
        factors: Factors,
        cached_equations: NormalEquations | None = None,
    ) -> SweepResult:
        """Update all factors that are solved for, in turn.

        `cached_equations` are the first mode's normal equations, if they are known.
        """
        unsolved_rows, decreases = [], []
        for mode in objective.modes:
            update = self.update_factor(objective, factors, mode, cached_equations)
            factors = (*factors[:mode], update.factor, *factors[mode + 1 :])
            cached_equations = None
            decreases.append(update.predicted_decrease)
            if update.unsolved_rows:
                unsolved_rows.append((mode, update.unsolved_rows))
        return SweepResult(factors, tuple(unsolved_rows), float(decreases[0]))

    def advance(
        self,
        objective: Objective,
        state: SweepState,
        tol: float,
        momentum_weight: float,
        max_sweeps: int,
    ) -> SweepState | None:
        """The state after several sweeps in compiled code; None if there is none for them."""
        return None

    @abstractmethod
    def update_factor(
        self,
        objective: Objective,
        factors: Factors,
        mode: int,
        cached_equations: NormalEquations | None = None,
    ) -> FactorUpdate:
        """The mode's new factor; `cached_equations` are its normal equations if they are known."""


@dataclass(frozen=True)
class MajorizeMinimize(Update):
    """Each row solves its reweighted least-squares problem (eq. 5), once or a few times.

    Attributes
    ----------
    inner, inner_tol
        The most steps for a factor before the next one's turn, and the relative fall of the
        loss below which they end early.
    """

    inner: int = 1
    inner_tol: float = 0.0

    def sweep(
        self,
        objective: Objective,
        factors: Factors,
        cached_equations: NormalEquations | None = None,
    ) -> SweepResult:
        if self.inner == 1 and objective.whole_sweep is not None:
            new = objective.whole_sweep.update_factors(
                factors, objective.modes, objective.mu, cached_equations
            )
            first = objective.modes[0]
            if cached_equations is None:
                return SweepResult(new)
            xp = objective.engine.xp
            decrease = _predict_decrease(cached_equations, factors[first], new[first], xp)
            return SweepResult(new, predicted_decrease=float(decrease))
        return super().sweep(objective, factors, cached_equations)

    def advance(
        self,
        objective: Objective,
        state: SweepState,
        tol: float,
        momentum_weight: float,
        max_sweeps: int,
    ) -> SweepState | None:
        if self.inner > 1 or objective.whole_sweep is None:
            return None
        rule = SweepRule(
            objective.modes,
            tuple(not constraint.signed for constraint in objective.constraints),
            objective.mu,
            tol,
            objective.floor,
            objective.engine.total_weight,
            objective.loss.likelihood,
            momentum_weight,
        )
        return objective.whole_sweep.advance(state, rule, max_sweeps)

    def evaluate(
        self, objective: Objective, factors: Factors
    ) -> tuple[float, NormalEquations | None]:
        mode = objective.modes[0]
        if objective.whole_sweep is not None:
            equations = objective.whole_sweep.normal_equations(factors, mode)
            return equations.value, equations
        rank = factors[mode].shape[1]
        if len(objective.row_blocks(mode, rank)) > 1:
            return objective.value(factors), None
        equations = objective.equations(factors, mode)
        return float(equations.value), equations

    def update_factor(
        self,
        objective: Objective,
        factors: Factors,
        mode: int,
        cached_equations: NormalEquations | None = None,
    ) -> FactorUpdate:
        before, decrease, xp = math.inf, 0.0, objective.engine.xp
        for steps_left in reversed(range(self.inner)):
            old, value, blocks = factors[mode], 0.0, []
            for rows in objective.row_blocks(mode, old.shape[1]):
                equations = cached_equations or objective.equations(factors, mode, rows)
                value += equations.value
                blocks.append(objective.solve_rows(equations, factors, mode, rows))
                decrease += _predict_decrease(equations, old[rows, :], blocks[-1], xp)
            new = blocks[0] if len(blocks) == 1 else xp.concat(blocks, axis=0)
            factors = (*factors[:mode], new, *factors[mode + 1 :])
            if steps_left == 0 or before - value < self.inner_tol * value:
                break
            before, cached_equations = value, None
        return FactorUpdate(factors[mode], predicted_decrease=decrease)


def _predict_decrease(equations: NormalEquations, old: Array, new: Array, xp: Any) -> Array:
    """By how much new rows at the minimum of the majorizer lower it; a scalar array."""
    return 0.5 * xp.sum(equations.gradient * (new - old))
