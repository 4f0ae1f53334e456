"""What an estimator does with some data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from robustcp.cases import Cases, without_cases
from robustcp.constraints import Constraints, Free
from robustcp.search import Begun, Start
from robustcp.sizes import Problem
from robustcp.solver import Solver, Stage


@dataclass(frozen=True)
class Plan:
    """What an estimator does with some data.

    Attributes
    ----------
    problem : Problem
        The data in the units of the fit.
    stages : sequence of Stage
        In those units.
    starts : sequence of Start
        Each is followed through all stages, and the lowest objective wins.
    modes : tuple of int
        The modes that are solved for; all if empty.
    constraints : tuple of Constraint, one for each mode; all are free if empty
    cases : Cases, optional
        Which mode holds samples.
    spare : sequence of Start
        Starts for those that run off to infinity where entries are missing.
    """

    problem: Problem
    stages: Sequence[Stage]
    starts: Sequence[Start]
    modes: tuple[int, ...] = ()
    constraints: Constraints = ()
    spare: Sequence[Start] = ()
    cases: Cases | None = None

    @property
    def constrained(self) -> Constraints:
        """The constraint of each mode."""
        return self.constraints or (Free(),) * self.problem.units.order

    def without(self, bad: np.ndarray | None) -> Plan:
        """The same without some samples, where a mode holds such."""
        if bad is None or self.cases is None:
            return self
        return replace(self, problem=without_cases(self.problem, int(self.cases.mode), bad))

    def solver(self, begun: Begun) -> Solver:
        """The solver for a fit that begins there."""
        stages = self.stages
        if begun.good:
            stages = [stage.near(self.problem.engine, begun.factors) for stage in stages]
        return Solver(self.problem, stages, self.modes, self.constrained)
