"""What is minimised."""

from __future__ import annotations

from dataclasses import dataclass

from robustcp._typing import Factors
from robustcp.constraints import Constraints, feasible
from robustcp.engines import Engine
from robustcp.losses import Loss
from robustcp.normal import NormalEquations
from robustcp.sizes import Problem


@dataclass(frozen=True, eq=False)
class Objective:
    """The loss summed over the data, plus mu/2 times the squared norms of the factors solved for.

    Attributes
    ----------
    engine : Engine
        The data in the units of the fit, wild entries cut if the loss allows it.
    loss : Loss
    constraints : tuple of Constraint, one for each mode
    modes : tuple of int
        The modes that are solved for, in the order of their turns.
    mu : float
    floor : float
        The part of the loss that no model can lower, of entries far beyond the others.
    excess : float
        What the loss of the whole data is more, for the entries that were cut.
    """

    engine: Engine
    loss: Loss
    constraints: Constraints
    modes: tuple[int, ...]
    mu: float = 0.0
    floor: float = 0.0
    excess: float = 0.0

    @classmethod
    def of(
        cls,
        problem: Problem,
        loss: Loss,
        constraints: Constraints,
        modes: tuple[int, ...],
        mu: float = 0.0,
    ) -> Objective:
        """The objective for a problem's data, with what follows for wild entries."""
        engine = problem.seen_by(loss)
        floor, excess = problem.floor(loss), problem.excess(loss)
        return cls(engine, loss, constraints, modes, mu, floor, excess)

    def value(self, factors: Factors) -> float:
        """The loss alone."""
        return self.engine.value(factors, self.loss)

    def equations(self, factors: Factors, mode: int, rows: slice | None = None) -> NormalEquations:
        return self.engine.normal(factors, mode, self.loss, rows)

    def penalty(self, factors: Factors) -> float:
        if self.mu == 0:
            return 0.0
        xp = self.engine.xp
        return 0.5 * self.mu * sum(float(xp.sum(factors[mode] ** 2)) for mode in self.modes)

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
        return feasible(factors, self.constraints, self.modes)
