"""How one factor is updated while the others are held."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from robustcp._typing import Array, Factors
from robustcp.normal import NormalEquations
from robustcp.objective import Objective


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


class Update(ABC):
    """How one factor is updated while the others are held."""

    @abstractmethod
    def evaluate(
        self, objective: Objective, factors: Factors
    ) -> tuple[float, NormalEquations | None]:
        """The loss, with the first mode's normal equations where they cost no more."""

    @abstractmethod
    def block(
        self,
        objective: Objective,
        factors: Factors,
        mode: int,
        ahead: NormalEquations | None = None,
    ) -> Block:
        """The mode's new factor; `ahead` holds its normal equations if they are known."""


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

    def evaluate(
        self, objective: Objective, factors: Factors
    ) -> tuple[float, NormalEquations | None]:
        mode = objective.modes[0]
        rank = factors[mode].shape[1]
        if len(objective.engine.row_blocks(mode, rank, objective.loss)) > 1:
            return objective.value(factors), None
        equations = objective.equations(factors, mode)
        return equations.value, equations

    def block(
        self,
        objective: Objective,
        factors: Factors,
        mode: int,
        ahead: NormalEquations | None = None,
    ) -> Block:
        engine, constraint = objective.engine, objective.constraints[mode]
        before = math.inf
        for _ in range(self.inner):
            old, value, solved = factors[mode], 0.0, []
            for rows in engine.row_blocks(mode, old.shape[1], objective.loss):
                equations = ahead or objective.equations(factors, mode, rows)
                value += equations.value
                solved.append(
                    constraint.solve(equations, old[rows, :], objective.mu, engine.algebra)
                )
            new = solved[0] if len(solved) == 1 else engine.xp.concat(solved, axis=0)
            factors = (*factors[:mode], new, *factors[mode + 1 :])
            if before - value < self.inner_tol * value:
                break
            before, ahead = value, None
        return Block(factors[mode])
