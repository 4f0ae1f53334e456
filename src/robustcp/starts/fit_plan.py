"""A plan: problem, stages and starts of one fit."""

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
    """The problem, stages and starts of one fit.

    Attributes
    ----------
    problem : Problem
        The data in the units of the fit.
    stages : sequence of Stage
        In the units of the fit.
    starts : sequence of Start
        Each is fitted through all stages. The result is the best run: the one of lowest cost after
        a multistart, otherwise the one of lowest objective.
    modes : tuple of int
        The modes to be fitted; all if empty.
    constraints : tuple of Constraint, one for each mode; all are free if empty
    cases : Cases, optional
        Which mode holds samples.
    restarts : sequence of Start
        Replacements for runs that diverge because entries are missing.
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
        """A plan for the data without bad samples; this plan if no mode holds samples."""
        if bad is None or self.cases is None:
            return self
        return replace(self, problem=exclude_cases(self.problem, int(self.cases.mode), bad))

    def solver(self, starting_point: StartingPoint) -> Solver:
        """The solver for a fit from a starting point."""
        stages = self.stages
        if starting_point.warm_start:
            stages = [
                stage.for_warm_start(self.problem.engine, starting_point.factors)
                for stage in stages
            ]
        return Solver(self.problem, stages, self.modes, self.mode_constraints)
