"""No negative entries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from robustcp._util.typing import Array
from robustcp.constraints.base import Constraint, Free
from robustcp.engines.algebra import Algebra
from robustcp.engines.normal_equations import NormalEquations


@dataclass(frozen=True)
class Nonnegative(Constraint):
    """No negative entries: the rows that satisfy their KKT conditions.

    Examples
    --------
    >>> import robustcp
    >>> sim = robustcp.simulate((12, 11, 10), 2, eta=0.1, gamma=1.0, rng=0)
    >>> fit = robustcp.cp(sim.data, 2, constraints={1: robustcp.Nonnegative()})
    >>> bool((fit.factors[1] >= 0).all())
    True
    """

    @property
    def signed(self) -> bool:
        return False

    @property
    def row_solver(self) -> str | None:
        return "solve_nonnegative_rows" if self._methods_are(Nonnegative) else None

    def project(self, factor: Array) -> Array:
        return array_namespace(factor).clip(factor, min=0.0)

    def solve(
        self,
        equations: NormalEquations,
        rows: Array,
        mu: float,
        algebra: Algebra,
        penalty_weights: np.ndarray | None = None,
    ) -> Array:
        return algebra.solve_nonnegative_rows(equations, rows, mu)


class OptionallyNonnegative(Constraint):
    """A constraint that is a dataclass with a field `nonnegative`."""

    nonnegative: bool

    def _check_nonnegative(self) -> None:
        if not isinstance(self.nonnegative, bool | np.bool_):
            raise ValueError(f"nonnegative: must be True or False, got {self.nonnegative!r}")
        object.__setattr__(self, "nonnegative", bool(self.nonnegative))

    @property
    def signed(self) -> bool:
        return not self.nonnegative

    @property
    def couples_rows(self) -> bool:
        return True

    @property
    def of_rows(self) -> Constraint:
        return Nonnegative() if self.nonnegative else Free()

    @property
    def as_nonnegative(self) -> Constraint:
        dataclass_value: Any = self
        both: Constraint = replace(dataclass_value, nonnegative=True)
        return both
