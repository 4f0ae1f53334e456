"""How one factor is updated while the others are held."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

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
    fall : float
        By how much it should lower the loss, as far as that is quadratic; NaN if it is not known.
    """

    factor: Array
    kept: tuple[int, ...] = ()
    fall: float = math.nan


@dataclass(frozen=True)
class Swept:
    """What a sweep makes of all factors that are solved for.

    Attributes
    ----------
    factors : tuple of arrays
    kept : tuple of (int, tuple of int)
        Modes with rows that could not be solved, and those rows.
    fall : float
        That of the first factor that was updated, see `Block`.
    """

    factors: Factors
    kept: Kept = ()
    fall: float = math.nan


class Update(ABC):
    """How one factor is updated while the others are held."""

    @abstractmethod
    def evaluate(
        self, objective: Objective, factors: Factors
    ) -> tuple[float, NormalEquations | None]:
        """The loss, with the first mode's normal equations where they cost no more."""

    def sweep(
        self, objective: Objective, factors: Factors, ahead: NormalEquations | None = None
    ) -> Swept:
        """All factors that are solved for, updated in turn.

        `ahead` are the first mode's normal equations, if they are known.
        """
        kept, falls = [], []
        for mode in objective.modes:
            block = self.block(objective, factors, mode, ahead)
            factors = (*factors[:mode], block.factor, *factors[mode + 1 :])
            ahead = None
            falls.append(block.fall)
            if block.kept:
                kept.append((mode, block.kept))
        return Swept(factors, tuple(kept), float(falls[0]))

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
    ) -> Swept:
        if self.inner == 1 and objective.at_once is not None:
            new = objective.at_once.swept(factors, objective.modes, objective.mu, ahead)
            first = objective.modes[0]
            fall = math.nan
            if ahead is not None:
                fall = float(_fall(ahead, factors[first], new[first], objective.engine.xp))
            return Swept(new, fall=fall)
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
        return float(equations.value), equations

    def block(
        self,
        objective: Objective,
        factors: Factors,
        mode: int,
        ahead: NormalEquations | None = None,
    ) -> Block:
        before, fall = math.inf, 0.0
        for left in reversed(range(self.inner)):
            old, value, solved = factors[mode], 0.0, []
            for rows in objective.row_blocks(mode, old.shape[1]):
                equations = ahead or objective.equations(factors, mode, rows)
                value += equations.value
                solved.append(objective.solved(equations, factors, mode, rows))
                fall += _fall(equations, old[rows, :], solved[-1], objective.engine.xp)
            new = solved[0] if len(solved) == 1 else objective.engine.xp.concat(solved, axis=0)
            factors = (*factors[:mode], new, *factors[mode + 1 :])
            if left == 0 or before - value < self.inner_tol * value:
                break
            before, ahead = value, None
        return Block(factors[mode], fall=fall)


def _fall(equations: NormalEquations, old: Array, new: Array, xp: Any) -> Array:
    """By how much new rows lower the majorizer if they are where it is lowest; a number."""
    return 0.5 * xp.sum(equations.gradient * (new - old))
