"""What an estimator does with some data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from robustcp.constraints import Constraints, Free
from robustcp.optimize.problem import Problem
from robustcp.optimize.solver import Solver, Stage
from robustcp.starts.cases import Cases, exclude_cases
from robustcp.starts.start import Start, StartingPoint


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
    restarts : sequence of Start
        Starts for those that run off to infinity where entries are missing.
    """

    problem: Problem
    stages: Sequence[Stage]
    starts: Sequence[Start]
    modes: tuple[int, ...] = ()
    constraints: Constraints = ()
    restarts: Sequence[Start] = ()
    cases: Cases | None = None

    @property
    def mode_constraints(self) -> Constraints:
        """The constraint of each mode."""
        return self.constraints or (Free(),) * self.problem.units.order

    def without_samples(self, bad: np.ndarray | None) -> Plan:
        """The same without some samples, where a mode holds such."""
        if bad is None or self.cases is None:
            return self
        return replace(self, problem=exclude_cases(self.problem, int(self.cases.mode), bad))

    def solver(self, starting_point: StartingPoint) -> Solver:
        """The solver for a fit that begins there."""
        stages = self.stages
        if starting_point.warm_start:
            stages = [
                stage.for_warm_start(self.problem.engine, starting_point.factors)
                for stage in stages
            ]
        return Solver(self.problem, stages, self.modes, self.mode_constraints)
