"""What is minimised."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from robustcp._util.typing import Array, Factors
from robustcp.constraints import Constraints, Free, project_factors
from robustcp.engines import Engine, WholeSweep, to_host
from robustcp.engines.normal_equations import NormalEquations
from robustcp.losses import Loss
from robustcp.optimize.problem import Problem
from robustcp.optimize.row_prior import Prior


@dataclass(frozen=True, eq=False)
class Objective:
    """The loss summed over the data, plus mu/2 times the squared norms of the factors solved for.

    To these comes what the constraints cost: for each mode n that has a `Constraint.penalty`,
    unit * sum_r penalty_r(A_n) prod_m |b_r|^2 over the columns b_r of the other modes.

    Attributes
    ----------
    engine : Engine
        The data in the units of the fit, wild entries cut if the loss allows it; residuals in
        units of the noise, where that differs between entries.
    loss : Loss
    constraints : tuple of Constraint, one for each mode
    modes : tuple of int
        The modes that are solved for, in the order of their turns.
    mu : float
    floor : float
        The part of the loss that no model can lower, of entries far beyond the others.
    excess : float
        What the loss of the whole data is more, for the entries that were cut.
    penalty_unit : float
        What the penalties of constraints are multiplied by, so that they have the loss's degree.
    prior : Prior, optional
        Of the rows.
    """

    engine: Engine
    loss: Loss
    constraints: Constraints
    modes: tuple[int, ...]
    mu: float = 0.0
    floor: float = 0.0
    excess: float = 0.0
    penalty_unit: float = 1.0
    prior: Prior | None = None

    @classmethod
    def of(
        cls,
        problem: Problem,
        loss: Loss,
        constraints: Constraints,
        modes: tuple[int, ...],
        mu: float = 0.0,
        view: Callable[[Engine], Engine] = lambda engine: engine,
        prior: Prior | None = None,
    ) -> Objective:
        """The objective for a problem's data, with what follows for wild entries.

        The data may be looked at in another way: without some of it, residuals in other units.
        """
        engine = view(problem.clipped_for(loss))
        floor, excess = problem.floor(loss), problem.excess(loss)
        penalty_unit = problem.penalty_unit(loss.degree)
        return cls(engine, loss, constraints, modes, mu, floor, excess, penalty_unit, prior)

    def value(self, factors: Factors) -> float:
        """The loss alone."""
        return self.engine.value(factors, self.loss)

    def equations(self, factors: Factors, mode: int, rows: slice | None = None) -> NormalEquations:
        return self.engine.normal_equations(factors, mode, self.loss, rows)

    @cached_property
    def unconstrained(self) -> bool:
        """Whether all factors are allowed."""
        return all(self.constraints[n] == Free() for n in self.modes)

    @cached_property
    def whole_sweep(self) -> WholeSweep | None:
        """Whole sweeps, where the engine has them and nothing but the data has a say."""
        return (
            self.engine.whole_sweep(self.loss)
            if self.unconstrained and self.prior is None
            else None
        )

    def row_blocks(self, mode: int, rank: int) -> Sequence[slice]:
        """Parts of a mode's rows that can be solved one after the other."""
        if self.constraints[mode].couples_rows:
            return [slice(0, self.engine.shape[mode])]
        return self.engine.row_blocks(mode, rank, self.loss)

    def solve_rows(
        self, equations: NormalEquations, factors: Factors, mode: int, rows: slice
    ) -> Array:
        """New rows of a mode's factor from their normal equations, penalties included."""
        constraint, algebra = self.constraints[mode], self.engine.algebra
        old, penalties = factors[mode][rows, :], self._column_penalties(factors)
        ridge = None if self.prior is None else self.prior.ridges[mode]
        if ridge is not None:
            equations = equations.with_ridge(ridge, old)
        if not penalties:
            return constraint.solve(equations, old, self.mu, algebra)
        squares = _squared_norms(factors)
        ridges = [
            self.penalty_unit * penalty * _product_of_other_modes(squares, n, mode)
            for n, penalty in penalties.items()
            if n != mode
        ]
        if ridges:
            equations = equations.with_ridge(2 * sum(ridges, np.zeros(())), old)
        if mode not in penalties:
            return constraint.solve(equations, old, self.mu, algebra)
        penalty_weight = self.penalty_unit * _product_of_other_modes(squares, mode)
        return constraint.solve(equations, old, self.mu, algebra, penalty_weight)

    def penalty(self, factors: Factors) -> float:
        """What is added to the loss."""
        total = 0.0
        if self.mu != 0:
            square = self.engine.algebra.squared_norm
            total = 0.5 * self.mu * sum(square(factors[mode]) for mode in self.modes)
        if self.prior is not None:
            total += self.prior.value(factors)
        penalties = self._column_penalties(factors)
        if penalties:
            squares = _squared_norms(factors)
            terms = [
                penalty @ _product_of_other_modes(squares, mode)
                for mode, penalty in penalties.items()
            ]
            total += self.penalty_unit * float(sum(terms))
        return total

    def _column_penalties(self, factors: Factors) -> dict[int, np.ndarray]:
        """What the columns cost, for each mode whose constraint has a penalty."""
        penalties = {}
        for mode in self.__dict__.get("_penalised_modes", self.modes):
            penalty = self.constraints[mode].penalty(factors[mode])
            if penalty is not None:
                penalties[mode] = np.asarray(to_host(penalty), dtype=np.float64)
        self.__dict__["_penalised_modes"] = tuple(
            penalties
        )  # a constraint has a penalty always or never
        return penalties

    def relative_decrease(self, before: float, after: float) -> float:
        """How far the objective has fallen: relatively, or per entry if it has no zero.

        An entry counts by its weight.
        """
        reference = before - self.floor if before > self.floor else before
        if self.loss.likelihood or reference <= 0:
            reference = self.engine.total_weight
        return (before - after) / reference

    def project(self, factors: Factors) -> Factors:
        """The nearest factors that are allowed."""
        return (
            factors
            if self.unconstrained
            else project_factors(factors, self.constraints, self.modes)
        )


def _squared_norms(factors: Factors) -> list[np.ndarray]:
    """Of the columns of each factor; host."""
    return [np.sum(np.asarray(to_host(A), dtype=np.float64) ** 2, axis=0) for A in factors]


def _product_of_other_modes(squares: list[np.ndarray], *modes: int) -> np.ndarray:
    """The product over all modes but some."""
    return np.asarray(math.prod(s for m, s in enumerate(squares) if m not in modes))
