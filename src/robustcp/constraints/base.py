"""The protocol of constraints, and the constraint of each mode."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from robustcp._util import checks
from robustcp._util.typing import Array, Factors
from robustcp.engines import to_host
from robustcp.engines.algebra import Algebra
from robustcp.engines.normal_equations import NormalEquations, unpack_indices


class Constraint:
    """A constraint of the factor of one mode. This base class allows all factors.

    Subclass it with `solve` and `project`, and with the others where they differ. Factors are
    rescaled column by column, so an allowed factor must stay allowed when a column is multiplied
    by a positive number.

    Examples
    --------
    >>> import numpy as np, robustcp
    >>> class Bounded(robustcp.Constraint):
    ...     '''Nonnegative, by coordinate descent.'''
    ...
    ...     def project(self, factor):
    ...         return np.maximum(factor, 0)
    ...
    ...     def solve(self, equations, rows, mu, algebra):
    ...         G, _ = algebra.grams(equations, rows, mu)
    ...         slope = mu * rows - equations.gradient
    ...         rows = rows.copy()
    ...         for r in range(rows.shape[1]):
    ...             new = np.maximum(rows[:, r] - slope[:, r] / G[:, r, r], 0)
    ...             slope += G[:, :, r] * (new - rows[:, r])[:, None]
    ...             rows[:, r] = new
    ...         return rows
    >>> sim = robustcp.simulate((12, 11, 10), 2, eta=0.1, gamma=1.0, rng=0)
    >>> fit = robustcp.cp(sim.data, 2, constraints={0: Bounded()})
    >>> bool(fit.factors[0].min() >= 0), robustcp.factor_match_score(fit, sim.truth) > 0.97
    (True, True)
    """

    def solve(
        self,
        equations: NormalEquations,
        rows: Array,
        mu: float,
        algebra: Algebra,
        penalty_weights: np.ndarray | None = None,
    ) -> Array:
        """New rows, given their normal equations and current values.

        They must satisfy the constraint, and must not raise the majorizer plus mu/2 |u|^2 plus
        sum_r penalty_weights_r penalty_r. The last argument is passed, by position, only to
        constraints that have a penalty.
        """
        return algebra.solve_rows(equations, rows, mu)

    def project(self, factor: Array) -> Array:
        """The nearest factor that satisfies the constraint, for starts and extrapolated steps."""
        return factor

    def penalty(self, factor: Array) -> Array | None:
        """The penalty of each column, quadratic in the column; None if there never is any.

        The objective holds sum_r penalty_r prod_m |b_r|^2 over the columns b_r of the other
        modes, which does not depend on how a component's size is shared out among the modes.
        """
        return None

    @property
    def signed(self) -> bool:
        """Whether entries may be negative."""
        return True

    @property
    def symmetric(self) -> bool:
        """Whether the sign of a column may be changed."""
        return False

    @property
    def couples_rows(self) -> bool:
        """Whether a row depends on others, so that `solve` must be given all of them."""
        return False

    @property
    def leaves_empty_rows(self) -> bool:
        """Whether rows without entries begin where the start has them, rather than at 0."""
        return self.couples_rows

    @property
    def relaxed_at_start(self) -> bool:
        """Whether a fit from a single start first goes without it, to where it misleads less."""
        return False

    @property
    def as_nonnegative(self) -> Constraint | None:
        """This constraint without negative entries; None if there is no such constraint."""
        return None if self.signed else self

    @property
    def row_solver(self) -> str | None:
        """The name of the method of `Algebra` that does all that `solve` does, or None.

        Compiled sweeps call the same solver directly. Factors are then projected entry by entry,
        unless they are signed, and have no penalty.
        """
        return "solve_rows" if self._methods_are(Constraint) else None

    def _methods_are(self, constraint_type: type[Constraint]) -> bool:
        """Whether solution, projection and penalty are those of a type."""
        own = type(self)
        return all(
            getattr(own, name) is getattr(constraint_type, name)
            for name in ("solve", "project", "penalty")
        )

    def bound(self, size: int, labels: Sequence[Any] | None) -> Constraint:
        """This constraint for a mode of some size, with labels where its indices have them."""
        return self

    def on(self, indices: np.ndarray) -> Constraint:
        """This constraint for a subset of the rows."""
        return self

    @property
    def of_rows(self) -> Constraint:
        """The constraint that holds for rows without their neighbours."""
        return Free() if self.couples_rows else self


@dataclass(frozen=True)
class Free(Constraint):
    """No constraint."""

    @property
    def symmetric(self) -> bool:
        return True


@dataclass(frozen=True)
class ConstraintAdapter(Constraint):
    """A constraint from an object that has only some of the methods."""

    original: Any

    def solve(self, *arguments: Any) -> Array:
        return self.original.solve(*arguments)

    def project(self, factor: Array) -> Array:
        return self.original.project(factor)

    def penalty(self, factor: Array) -> Array | None:
        return self.original.penalty(factor) if hasattr(self.original, "penalty") else None

    @property
    def signed(self) -> bool:
        return bool(getattr(self.original, "signed", True))

    @property
    def symmetric(self) -> bool:
        return bool(getattr(self.original, "symmetric", False))

    @property
    def couples_rows(self) -> bool:
        return bool(getattr(self.original, "couples_rows", False))


#: One constraint for each mode.
Constraints = tuple[Constraint, ...]


def as_constraint(given: Any) -> Constraint:
    """A constraint from a `Constraint`, or from any object with `solve` and `project`."""
    if isinstance(given, Constraint):
        return given
    if isinstance(given, type):
        raise ValueError(f"constraints: must be values such as Nonnegative(), got {given!r}")
    missing = [name for name in ("solve", "project") if not callable(getattr(given, name, None))]
    if missing:
        raise ValueError(f"constraints: {given!r} is no constraint, it has no {', '.join(missing)}")
    return ConstraintAdapter(given)


def constraints_by_mode(given: Any, names: Sequence[str], order: int) -> Constraints:
    """One constraint for each mode, from a mapping of mode numbers or names to constraints."""
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        raise ValueError(f"constraints: must map modes to constraints, got {given!r}")
    constraints: dict[int, Constraint] = {}
    for key, value in given.items():
        mode = _mode_number(key, names, order)
        if mode in constraints:
            raise ValueError(f"constraints: mode {mode} has two, one of them as {key!r}")
        constraints[mode] = as_constraint(value)
    return tuple(constraints.get(mode, Free()) for mode in range(order))


def _mode_number(key: Any, names: Sequence[str], order: int) -> int:
    if not isinstance(key, str):
        return checks.whole_number("constraints: a mode", key, 0, maximum=order - 1)
    if key not in names:
        hint = f"; there are {', '.join(map(repr, names))}" if names else "; modes have no names"
        raise ValueError(f"constraints: no mode is named {key!r}{hint}")
    return list(names).index(key)


def host_equations(
    equations: NormalEquations, rows: Array
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gram matrices (count or 1, R, R), gradients and current rows, float64 on the host."""
    U = np.array(to_host(rows), dtype=np.float64)
    gram, gradient = (
        np.asarray(to_host(a), dtype=np.float64) for a in (equations.gram, equations.gradient)
    )
    rank = U.shape[1]
    return gram[:, unpack_indices(rank)].reshape(-1, rank, rank), gradient, U


def as_array_like(A: np.ndarray, rows: Array) -> Array:
    """An array of the host in the library and type and on the device of `rows`."""
    return array_namespace(rows).asarray(A, dtype=rows.dtype, device=device(rows))


def project_factors(factors: Factors, constraints: Constraints, modes: Collection[int]) -> Factors:
    """The nearest factors that satisfy the constraints; other modes stay as they are."""
    return tuple(
        constraints[mode].project(A) if mode in modes else A for mode, A in enumerate(factors)
    )


def orient_columns(factors: Factors, constraints: Constraints, modes: Collection[int]) -> Factors:
    """The same model with columns turned, two at a time, towards what constraints of columns allow.

    Singular vectors and random columns have arbitrary signs; of a monotone column that is turned
    around, the projection would leave a constant.
    """
    turnable = [mode for mode in modes if not constraints[mode].symmetric]
    if not any(constraints[mode].couples_rows for mode in turnable):
        return factors
    gains = np.stack([_gains_of_turning(constraints[mode], factors[mode]) for mode in turnable])
    turned = gains > 0
    odd = turned.sum(axis=0) % 2 == 1
    flippable = [mode for mode in modes if constraints[mode].symmetric]
    signs = dict(zip(turnable, np.where(turned, -1.0, 1.0), strict=True))
    if flippable:
        signs[flippable[-1]] = np.where(odd, -1.0, 1.0)
    else:  # in one mode it costs least to do otherwise
        columns = np.flatnonzero(odd)
        cheapest = np.argmin(np.abs(gains[:, columns]), axis=0)
        for mode, column in zip(cheapest, columns, strict=True):
            signs[turnable[mode]][column] *= -1.0
    return tuple(
        A * as_array_like(signs[mode], A) if mode in signs else A for mode, A in enumerate(factors)
    )


def _gains_of_turning(constraint: Constraint, factor: Array) -> np.ndarray:
    """By how much nearer each column would be to what is allowed with the opposite sign."""
    A = np.asarray(to_host(factor), dtype=np.float64)
    if not constraint.couples_rows:
        return np.zeros(A.shape[1])
    misfits = [np.sum((np.asarray(constraint.project(B)) - B) ** 2, axis=0) for B in (A, -A)]
    return np.asarray(misfits[0] - misfits[1])
