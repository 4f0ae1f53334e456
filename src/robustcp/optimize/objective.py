"""The objective: the loss over the data, penalties of the factors, and priors of their rows."""

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

    It also holds the penalties of constraints: for each mode n that has a `Constraint.penalty`,
    unit * sum_r penalty_r(A_n) prod_m |b_r|^2 over the columns b_r of the other modes.

    Attributes
    ----------
    engine : Engine
        The data in the units of the fit, with large entries clipped if the tail of the loss is
        known, and residuals divided by the scales of heteroscedastic noise.
    loss : Loss
    constraints : tuple of Constraint, one for each mode
    modes : tuple of int
        The modes that are solved for, in the order of their turns.
    mu : float
    floor : float
        The part of the loss that no model can lower, of entries far beyond the others.
    excess : float
        By how much clipping lowers the loss.
    penalty_unit : float
        The factor of the penalties of constraints, which gives them the degree of the loss.
    prior : Prior, optional
        The prior of the rows.
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
        """The objective for a problem's data, or for a view of it."""
        return cls(
            view(problem.clipped_for(loss)),
            loss,
            constraints,
            modes,
            mu,
            problem.floor(loss),
            problem.excess(loss),
            problem.penalty_unit(loss.degree),
            prior,
        )

    def value(self, factors: Factors) -> float:
        """The loss alone."""
        return self.engine.value(factors, self.loss)

    def equations(self, factors: Factors, mode: int, rows: slice | None = None) -> NormalEquations:
        return self.engine.normal_equations(factors, mode, self.loss, rows)

    @cached_property
    def unconstrained(self) -> bool:
        """Whether no mode that is solved for has a constraint."""
        return all(self.constraints[n] == Free() for n in self.modes)

    @cached_property
    def whole_sweep(self) -> WholeSweep | None:
        """Compiled whole sweeps, if the engine has them for the constraints.

        Modes that are not solved for count as free.
        """
        names = [
            self.constraints[n].row_solver if n in self.modes else Free().row_solver
            for n in range(len(self.constraints))
        ]
        row_solvers = tuple(name for name in names if name is not None)
        if len(row_solvers) < len(names):
            return None
        ridges = None if self.prior is None else self.prior.ridges
        return self.engine.whole_sweep(self.loss, row_solvers, ridges)

    def row_blocks(self, mode: int, rank: int) -> Sequence[slice]:
        """Blocks of a mode's rows that are solved one after the other."""
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
        """The terms of the objective other than the loss."""
        if self.whole_sweep is not None:
            compiled = self.whole_sweep.penalty(factors, self.modes, self.mu)
            if compiled is not None:
                return compiled
        total = 0.0
        if self.mu != 0:
            square = self.engine.algebra.squared_norm
            total = 0.5 * self.mu * sum(square(factors[mode]) for mode in self.modes)
        if self.prior is not None:
            total += self.prior.value(factors)
        penalties = self._column_penalties(factors)
        if penalties:
            squares = _squared_norms(factors)
            terms = (
                penalty @ _product_of_other_modes(squares, n) for n, penalty in penalties.items()
            )
            total += self.penalty_unit * float(sum(terms))
        return total

    def _column_penalties(self, factors: Factors) -> dict[int, np.ndarray]:
        """The penalties of the columns, for each mode whose constraint has any."""
        penalties = {}
        for mode in self.__dict__.get("_penalised_modes", self.modes):
            penalty = self.constraints[mode].penalty(factors[mode])
            if penalty is not None:
                penalties[mode] = np.asarray(to_host(penalty), dtype=np.float64)
        # a constraint has a penalty always or never
        self.__dict__["_penalised_modes"] = tuple(penalties)
        return penalties

    def relative_decrease(self, before: float, after: float) -> float:
        """The decrease of the objective, relative to it, or per entry (by weight) for likelihoods.

        Likelihoods have no natural zero.
        """
        reference = before - self.floor if before > self.floor else before
        if self.loss.likelihood or reference <= 0:
            reference = self.engine.total_weight
        return (before - after) / reference

    def project(self, factors: Factors) -> Factors:
        """The nearest factors that satisfy the constraints."""
        if self.unconstrained:
            return factors
        return project_factors(factors, self.constraints, self.modes)


def _squared_norms(factors: Factors) -> list[np.ndarray]:
    """The squared norms of each factor's columns, on the host."""
    return [np.sum(np.asarray(to_host(A), dtype=np.float64) ** 2, axis=0) for A in factors]


def _product_of_other_modes(squares: list[np.ndarray], *modes: int) -> np.ndarray:
    """The product of the squared norms over all modes but some."""
    return np.asarray(math.prod(s for m, s in enumerate(squares) if m not in modes))
