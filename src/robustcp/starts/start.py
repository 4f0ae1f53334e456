"""Where a fit begins: given factors, singular vectors, random factors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from robustcp._util import checks
from robustcp._util.typing import Factors
from robustcp.constraints import Constraints
from robustcp.engines import Fibres
from robustcp.noise import median_magnitude
from robustcp.optimize.problem import Problem
from robustcp.starts import initial_factors
from robustcp.starts.candidates import Starts
from robustcp.starts.search_log import SearchLog
from robustcp.starts.spectral import spectral_factors


@dataclass(frozen=True, eq=False)
class StartingPoint:
    """Where a fit begins.

    Attributes
    ----------
    factors : tuple of arrays
        In the units of the fit.
    warm_start : bool
        Whether they may be good already, so that stages begin near them.
    starts : Starts, optional
        The costs of all starts.
    start_number : int
        The position of this one among them.
    alternatives : tuple of StartingPoint
        Other starting points to run; the best final fit is kept.
    fibres : Fibres, optional
        What is to be left out of the data to begin with.
    bad_samples : array of bool, optional
        Samples that are to be left out to begin with, where a mode holds samples.
    sufficient_rank : int, optional
        How many components seem to be enough, where that was asked.
    reliable : bool
        Whether the first starts agreed, and each component is needed and explains much.
    """

    factors: Factors
    warm_start: bool = False
    starts: Starts | None = None
    start_number: int = 0
    fibres: Fibres | None = None
    alternatives: tuple[StartingPoint, ...] = ()
    bad_samples: np.ndarray | None = None
    sufficient_rank: int | None = None
    reliable: bool = False


class Start(ABC):
    """A kind of start; the runs that it takes are kept in a search log."""

    @abstractmethod
    def __call__(
        self,
        problem: Problem,
        rank: int,
        rng: np.random.Generator,
        constraints: Constraints,
        search_log: SearchLog | None = None,
    ) -> StartingPoint: ...


@dataclass(frozen=True)
class GivenStart(Start):
    """Factors, a KruskalTensor or a Fit that the user has, in the units of the data."""

    init: Any

    def __call__(
        self,
        problem: Problem,
        rank: int,
        rng: np.random.Generator,
        constraints: Constraints,
        search_log: SearchLog | None = None,
    ) -> StartingPoint:
        factors = initial_factors.factors_from_init(problem.engine, rank, self.init)
        return StartingPoint(problem.units.factors_of_fit(factors), warm_start=True)


@dataclass(frozen=True)
class Initialization(Start):
    """Factors of a kind: "nvecs" (as "auto"), "clipped", "spectral", "random" or "positive".

    Singular vectors are those of the data; "clipped" cuts it at the size of ordinary entries.
    "spectral" is for few entries, see `spectral_factors`, which are cut at their median magnitude.
    """

    kind: str

    def __call__(
        self,
        problem: Problem,
        rank: int,
        rng: np.random.Generator,
        constraints: Constraints,
        search_log: SearchLog | None = None,
    ) -> StartingPoint:
        engine, order = problem.engine, problem.units.order
        if self.kind in ("random", "positive"):
            factors = initial_factors.random_factors(engine, rank, rng)
            if self.kind == "positive":
                factors = tuple(engine.xp.abs(A) for A in factors)
        elif self.kind == "spectral":  # clipped at the median: large entries have no leverage
            factors = spectral_factors(
                engine.clipped(median_magnitude(engine.sample().values)), rank, rng
            )
        else:
            clipped = self.kind == "clipped"
            source = engine.clipped(problem.ordinary_magnitude) if clipped else problem.clipped
            factors = tuple(initial_factors.nvecs(source, n, rank, rng=rng) for n in range(order))
        size = problem.scale if engine.max_abs > 0 else 0.0  # zeros: the model is zero at once
        return StartingPoint(tuple(A * size ** (1 / order) for A in factors))


def make_starts(
    init: Any, count: int, start_type: Callable[[str], Start] = Initialization
) -> list[Start]:
    """The start that is asked for, and so many more at random."""
    first = start_type(init) if isinstance(init, str) else GivenStart(init)
    return [first, *(start_type("random") for _ in range(count - 1))]


def zero_unobserved_rows(
    problem: Problem, factors: Factors, modes: Sequence[int], constraints: Constraints
) -> Factors:
    """Rows to be solved for of which no entry was observed are set to zero, with a warning.

    Not if the constraint couples rows; no warning for excluded slabs.
    """
    engine = problem.engine
    if engine.complete:
        return factors
    new_factors = []
    for mode, A in enumerate(factors):
        rows_independent = mode in modes and not constraints[mode].couples_rows
        unobserved = (
            np.flatnonzero(engine.slab_counts(mode) == 0) if rows_independent else np.array([])
        )
        if np.setdiff1d(unobserved, problem.excluded_slabs.get(mode, ())).size:
            shown = ", ".join(map(str, unobserved[:5])) + (", ..." if unobserved.size > 5 else "")
            checks.warn(
                f"X: {unobserved.size} slabs of mode {mode} have no observed entry ({shown}); "
                "their rows of the factor are 0"
            )
        if unobserved.size:
            observed_mask = np.ones((engine.shape[mode], 1))
            observed_mask[unobserved] = 0.0
            A = A * engine.asarray(observed_mask)
        new_factors.append(A)
    return tuple(new_factors)
