"""How one factor is updated while the others are held."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from robustcp._typing import Array, Factors
from robustcp.normal import NormalEquations
from robustcp.objective import Objective

#: Modes with rows that could not be solved, and those rows.
Kept = tuple[tuple[int, tuple[int, ...]], ...]


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

    def sweep(
        self, objective: Objective, factors: Factors, ahead: NormalEquations | None = None
    ) -> tuple[Factors, Kept]:
        """All factors that are solved for, updated in turn; also which rows were left out.

        `ahead` are the first mode's normal equations, if they are known.
        """
        kept = []
        for mode in objective.modes:
            block = self.block(objective, factors, mode, ahead)
            factors = (*factors[:mode], block.factor, *factors[mode + 1 :])
            ahead = None
            if block.kept:
                kept.append((mode, block.kept))
        return factors, tuple(kept)

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

    def sweep(
        self, objective: Objective, factors: Factors, ahead: NormalEquations | None = None
    ) -> tuple[Factors, Kept]:
        if self.inner == 1 and objective.at_once is not None:
            return objective.at_once.swept(factors, objective.modes, objective.mu, ahead), ()
        return super().sweep(objective, factors, ahead)

    def evaluate(
        self, objective: Objective, factors: Factors
    ) -> tuple[float, NormalEquations | None]:
        mode = objective.modes[0]
        if objective.at_once is not None:
            equations = objective.at_once.equations(factors, mode)
            return equations.value, equations
        rank = factors[mode].shape[1]
        if len(objective.row_blocks(mode, rank)) > 1:
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
        before = math.inf
        for _ in range(self.inner):
            old, value, solved = factors[mode], 0.0, []
            for rows in objective.row_blocks(mode, old.shape[1]):
                equations = ahead or objective.equations(factors, mode, rows)
                value += equations.value
                solved.append(objective.solved(equations, factors, mode, rows))
            new = solved[0] if len(solved) == 1 else objective.engine.xp.concat(solved, axis=0)
            factors = (*factors[:mode], new, *factors[mode + 1 :])
            if before - value < self.inner_tol * value:
                break
            before, ahead = value, None
        return Block(factors[mode])
