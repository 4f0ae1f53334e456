"""What is minimised."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from robustcp._typing import Array, Factors
from robustcp.constraints import Constraints, Free, feasible
from robustcp.engines import Engine, Sweeping, to_host
from robustcp.losses import Loss
from robustcp.normal import NormalEquations
from robustcp.priors import Prior
from robustcp.sizes import Problem


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
    unit : float
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
    unit: float = 1.0
    prior: Prior | None = None

    @classmethod
    def of(
        cls,
        problem: Problem,
        loss: Loss,
        constraints: Constraints,
        modes: tuple[int, ...],
        mu: float = 0.0,
        seen: Callable[[Engine], Engine] = lambda engine: engine,
        prior: Prior | None = None,
    ) -> Objective:
        """The objective for a problem's data, with what follows for wild entries.

        The data may be looked at in another way: without some of it, residuals in other units.
        """
        engine = seen(problem.seen_by(loss))
        floor, excess = problem.floor(loss), problem.excess(loss)
        unit = problem.penalty_unit(loss.degree)
        return cls(engine, loss, constraints, modes, mu, floor, excess, unit, prior)

    def value(self, factors: Factors) -> float:
        """The loss alone."""
        return self.engine.value(factors, self.loss)

    def equations(self, factors: Factors, mode: int, rows: slice | None = None) -> NormalEquations:
        return self.engine.normal(factors, mode, self.loss, rows)

    @cached_property
    def free(self) -> bool:
        """Whether all factors are allowed."""
        return all(self.constraints[n] == Free() for n in self.modes)

    @cached_property
    def at_once(self) -> Sweeping | None:
        """Whole sweeps, where the engine has them and nothing but the data has a say."""
        return self.engine.sweep(self.loss) if self.free and self.prior is None else None

    def row_blocks(self, mode: int, rank: int) -> Sequence[slice]:
        """Parts of a mode's rows that can be solved one after the other."""
        if self.constraints[mode].couples_rows:
            return [slice(0, self.engine.shape[mode])]
        return self.engine.row_blocks(mode, rank, self.loss)

    def solved(self, equations: NormalEquations, factors: Factors, mode: int, rows: slice) -> Array:
        """New rows of a mode's factor from their normal equations, penalties included."""
        constraint, algebra = self.constraints[mode], self.engine.algebra
        old, costs = factors[mode][rows, :], self._costs(factors)
        ridge = None if self.prior is None else self.prior.ridges[mode]
        if ridge is not None:
            equations = equations.ridged(ridge, old)
        if not costs:
            return constraint.solve(equations, old, self.mu, algebra)
        squares = _squared_norms(factors)
        shared = [self.unit * cost * _others(squares, n, mode)
                  for n, cost in costs.items() if n != mode]  # fmt: skip
        if shared:
            equations = equations.ridged(2 * sum(shared, np.zeros(())), old)
        if mode not in costs:
            return constraint.solve(equations, old, self.mu, algebra)
        price = self.unit * _others(squares, mode)
        return constraint.solve(equations, old, self.mu, algebra, price)

    def penalty(self, factors: Factors) -> float:
        """What is added to the loss."""
        total = 0.0
        if self.mu != 0:
            square = self.engine.algebra.square
            total = 0.5 * self.mu * sum(square(factors[mode]) for mode in self.modes)
        if self.prior is not None:
            total += self.prior.value(factors)
        costs = self._costs(factors)
        if costs:
            squares = _squared_norms(factors)
            shares = [cost @ _others(squares, mode) for mode, cost in costs.items()]
            total += self.unit * float(sum(shares))
        return total

    def _costs(self, factors: Factors) -> dict[int, np.ndarray]:
        """What the columns cost, for each mode whose constraint has a penalty."""
        costs = {}
        for mode in self.__dict__.get("_priced", self.modes):
            cost = self.constraints[mode].penalty(factors[mode])
            if cost is not None:
                costs[mode] = np.asarray(to_host(cost), dtype=np.float64)
        self.__dict__["_priced"] = tuple(costs)  # a constraint has a penalty always or never
        return costs

    def progress(self, before: float, after: float) -> float:
        """How far the objective has fallen: relatively, or per entry if it has no zero.

        An entry counts by its weight.
        """
        size = before - self.floor if before > self.floor else before
        if self.loss.likelihood or size <= 0:
            size = self.engine.weight
        return (before - after) / size

    def feasible(self, factors: Factors) -> Factors:
        """The nearest factors that are allowed."""
        return factors if self.free else feasible(factors, self.constraints, self.modes)


def _squared_norms(factors: Factors) -> list[np.ndarray]:
    """Of the columns of each factor; host."""
    return [np.sum(np.asarray(to_host(A), dtype=np.float64) ** 2, axis=0) for A in factors]


def _others(squares: list[np.ndarray], *modes: int) -> np.ndarray:
    """The product over all modes but some."""
    return np.asarray(math.prod(s for m, s in enumerate(squares) if m not in modes))
