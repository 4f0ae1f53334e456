"""Models of one data set at each of several ranks, from the highest down: cheap, but comparable.

The model of a rank is the best of a few starts and of the model of the next higher rank without
one of its components. So the models of neighbouring ranks differ by what a component is worth, and
not by where their starts happened to end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from robustcp._util.typing import Factors
from robustcp.constraints import Constraints
from robustcp.engines import as_engine
from robustcp.model.kruskal import KruskalTensor
from robustcp.optimize.posterior import Entries, Posterior
from robustcp.optimize.problem import Problem
from robustcp.starts.multistart import MAX_ADDITIONS, StartSearch, is_same_model

#: Starts at each rank: their kinds, and their first smoothing.
START_KINDS = (("clipped", 0.03), ("positive", 1.0), ("positive", 0.03), ("random", 1.0))
#: How many models of a rank without one component are followed.
PRUNED_CANDIDATES = 2
#: Sweeps in which rows with few entries are settled.
POSTERIOR_SWEEPS = 30


@dataclass(frozen=True, eq=False)
class RankFit:
    """The model of a rank.

    Attributes
    ----------
    model : KruskalTensor
        In the units of the data.
    cost : float
        What it costs per entry, as starts of `cp` are compared.
    start_count : int
        How many starts there were, the one from the next higher rank included.
    converged_count : int
        How many of them ended at the model.
    """

    model: KruskalTensor
    cost: float
    start_count: int
    converged_count: int

    @property
    def agreement(self) -> float:
        """The share of the starts that agree."""
        return self.converged_count / self.start_count


def fit_rank_path(
    X: object, ranks: Sequence[int], constraints: Constraints, starts: int, rng: np.random.Generator
) -> dict[int, RankFit]:
    """The models of some data at some ranks; for each at most so many starts, until two agree."""
    problem = Problem.of(as_engine(X)).without_gross_outliers.without_constant_fibres
    trial = StartSearch(problem, constraints)
    fits: dict[int, RankFit] = {}
    higher_rank_factors: Factors | None = None
    for rank in range(max(ranks), min(ranks) - 1, -1):
        candidates = RankCandidates(trial)
        if higher_rank_factors is not None:
            candidates.add(_prune_component(trial, higher_rank_factors))
        if rank in ranks:
            for factors in _run_starts(trial, rank, starts, rng):
                candidates.add(factors)
                if candidates.converged_count > 1:
                    break
            fits[rank] = candidates.rank_fit()
        higher_rank_factors = candidates.best_factors
    return fits


@dataclass(eq=False)
class RankCandidates:
    """Where the starts of a rank ended."""

    trial: StartSearch
    factors: list[Factors] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)

    def add(self, factors: Factors) -> None:
        """One more; where rows have few entries, at the means of the rows."""
        if self.trial.needs_row_prior(factors[0].shape[1]):
            factors = _posterior_means(self.trial, factors)
        self.factors.append(factors)
        self.costs.append(self.trial.cost(factors))

    @property
    def best_factors(self) -> Factors:
        return self.factors[int(np.argmin(self.costs))]

    @property
    def converged_count(self) -> int:
        """How many are the best model."""
        model = KruskalTensor.from_factors(self.best_factors)
        return sum(
            is_same_model(KruskalTensor.from_factors(factors), model) for factors in self.factors
        )

    def rank_fit(self) -> RankFit:
        model = KruskalTensor.from_factors(
            self.trial.problem.units.factors_of_data(self.best_factors)
        )
        return RankFit(model.normalized(), min(self.costs), len(self.factors), self.converged_count)


def _prune_component(trial: StartSearch, factors: Factors) -> Factors:
    """Without the component that is missed least."""
    candidates = sorted(trial.leave_one_component_out(factors), key=trial.entropy)[
        :PRUNED_CANDIDATES
    ]
    return min(map(trial.fit_cauchy, candidates), key=trial.entropy)


def _run_starts(
    trial: StartSearch, rank: int, starts: int, rng: np.random.Generator
) -> Iterator[Factors]:
    """Where starts end, one by one."""
    rngs = rng.spawn(starts)
    if trial.needs_row_prior(1):  # hardly any row has enough entries: components must come and go
        searches = trial.search_components(
            rank, rngs[:2], MAX_ADDITIONS // 4, lambda f, xs: [f(x) for x in xs]
        )
        yield from (end.factors for end in searches)
        return
    for number, start_rng in enumerate(rngs):
        kind = START_KINDS[number % len(START_KINDS)]
        yield trial.fit_start(rank, number, *kind, start_rng).factors


def _posterior_means(trial: StartSearch, factors: Factors) -> Factors:
    """The means of the rows, where some have few entries."""
    engine = trial.problem.engine
    entries, resolution = Entries.of(engine), trial.problem.resolution.min_entry_sigma
    posterior = Posterior.from_factors(entries, trial.constraints, factors, resolution).fit(
        POSTERIOR_SWEEPS
    )
    return tuple(engine.asarray(A) for A in posterior.means)
