"""The arguments of an estimator as a value, and the plan that follows from them for some data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from robustcp._util import checks
from robustcp.constraints import Constraint, Constraints, Free, Nonnegative, constraints_by_mode
from robustcp.engines import Axes, Engine
from robustcp.optimize.problem import Problem
from robustcp.optimize.row_prior import RowPrior
from robustcp.optimize.solver import Stage
from robustcp.results.fit import Fit
from robustcp.starts.cases import Cases, as_cases
from robustcp.starts.fit_plan import Plan
from robustcp.starts.initial_factors import GivenStart, RelaxedStart, make_starts
from robustcp.starts.start import Start


class Method(ABC):
    """What an estimator minimises, in which stages, and from which starts."""

    #: Whether its starts are the results of a search.
    searches: ClassVar[bool] = False

    @abstractmethod
    def stages(self, engine: Engine, row_prior: RowPrior) -> tuple[Problem, list[Stage]]:
        """The data in the units of the fit, and the stages in the same units."""

    def starts(self, init: Any, count: int | None, cases: Cases | None) -> list[Start]:
        """The starts; `count` is their number, or None for as many as needed."""
        return make_starts(init, count or 1)

    def restarts(self, init: Any) -> list[Start]:
        """Starts that replace those that diverge where entries are missing."""
        return []


@dataclass(frozen=True, eq=False)
class FitSpec:
    """The arguments of an estimator, checked as far as possible without the data.

    Attributes
    ----------
    method : Method
    rank : int
    init : str, KruskalTensor, Fit or list of factors
    starts : int or None
        None is as many as needed.
    max_sweeps : int
    entry_weights, limits, preprocess, constraints, nonnegative, fixed, cases
        As `cp` takes them.
    """

    method: Method
    rank: int
    init: Any
    starts: Any
    max_sweeps: int
    entry_weights: Any = None
    limits: Any = None
    preprocess: Any = None
    constraints: Mapping[int | str, Constraint] | None = None
    nonnegative: bool | Sequence[bool] | Sequence[int | str] = False
    fixed: Sequence[int | str] = ()
    cases: Cases | int | str | None = None

    def __post_init__(self) -> None:
        for name in ("starts", "rank", "max_sweeps"):
            given = getattr(self, name)
            if name != "starts" or given is not None:
                object.__setattr__(self, name, checks.whole_number(name, given, 1))
        if isinstance(self.init, str):
            checks.choice("init", self.init, ("auto", "nvecs", "random"))
        if not isinstance(self.fixed, Sequence) or isinstance(self.fixed, str):
            raise ValueError(f"fixed: must be a list of modes, got {self.fixed!r}")
        if len(self.fixed) and isinstance(self.init, str):
            raise ValueError(f"fixed: needs the factors to keep in init, got init={self.init!r}")


def plan(spec: FitSpec, engine: Engine) -> Plan:
    """The plan of a specification for some data."""
    axes, order = engine.view.axes, engine.order
    constraints = add_nonnegative(
        constraints_by_mode(spec.constraints, axes.modes, order), spec.nonnegative, axes
    )
    fixed = {axes.mode_number("fixed", mode, order) for mode in spec.fixed}
    if len(fixed) == order:
        raise ValueError(f"fixed: must leave a mode to solve for, got {tuple(spec.fixed)!r}")
    modes = tuple(mode for mode in range(order) if mode not in fixed)
    problem, stages = spec.method.stages(engine, RowPrior.of(constraints, modes))
    cases = as_cases(spec.cases, axes.modes, order)
    if cases is not None:
        cases.check(engine.shape[int(cases.mode)], spec.rank)
    init = align_init(spec.init, engine, fixed)
    starts, restarts = spec.method.starts(init, spec.starts, cases), spec.method.restarts(init)
    if not spec.method.searches and any(constraint.relaxed_at_start for constraint in constraints):
        starts, restarts = _relax(starts, stages[0]), _relax(restarts, stages[0])
    return Plan(problem, stages, starts, modes, constraints, restarts, cases)


def _relax(starts: Sequence[Start], stage: Stage) -> list[Start]:
    """The starts, those that are not given with some sweeps without constraints of columns."""
    return [s if isinstance(s, GivenStart) else RelaxedStart(s, stage) for s in starts]


def align_init(init: Any, engine: Engine, fixed: Collection[int] = ()) -> Any:
    """`init` with modes and indices in the order of the data, if it is a `Fit`; else as it is.

    Modes that are not fixed may have other labels.
    """
    if not isinstance(init, Fit):
        return init
    free = set(range(engine.order)) - set(fixed)
    names = engine.view.axes.modes if init.axes.has_names and engine.view.axes.has_names else ()
    free_in_init = {
        init.modes.index(names[n]) if names and names[n] in init.modes else n for n in free
    }
    return init.aligned_to(engine, free=free_in_init)


def add_nonnegative(
    constraints: Constraints, nonnegative: bool | Sequence[bool] | Sequence[int | str], axes: Axes
) -> Constraints:
    """Constraints, without negative entries in the flagged modes."""
    flags, combined = _nonnegative_flags(nonnegative, axes, len(constraints)), list(constraints)
    for mode, (constraint, flag) in enumerate(zip(constraints, flags, strict=True)):
        if not flag:
            continue
        both = Nonnegative() if constraint == Free() else constraint.as_nonnegative
        if both is None:
            raise ValueError(
                f"nonnegative: mode {mode} has the constraint {constraint!r}, which allows "
                f"negative entries; got nonnegative={nonnegative!r}"
            )
        combined[mode] = both
    return tuple(combined)


def _nonnegative_flags(nonnegative: Any, axes: Axes, order: int) -> tuple[bool, ...]:
    """One flag for each mode, from one for all, one for each, or modes by number or name."""
    if isinstance(nonnegative, bool | np.bool_):
        return (bool(nonnegative),) * order
    flags_or_modes = (nonnegative,) if isinstance(nonnegative, str) else nonnegative
    items = tuple(flags_or_modes) if isinstance(flags_or_modes, Sequence) else (None,)
    if all(isinstance(flag, bool | np.bool_) for flag in items) and len(items) == order:
        return tuple(map(bool, items))
    if any(flag is None or isinstance(flag, bool | np.bool_) for flag in items):
        raise ValueError(
            f"nonnegative: must be a bool or {order} of them, or modes, got {nonnegative!r}"
        )
    modes = {axes.mode_number("nonnegative", mode, order) for mode in items}
    return tuple(mode in modes for mode in range(order))
