"""Models of one data set at each of several ranks, from the highest down: cheap, but comparable.

The model of a rank is the best of a few starts and of the model of the next higher rank without
one of its components. So the models of neighbouring ranks differ by the contribution of a
component, and less by the optima that their starts happened to end at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from robustcp._util.typing import Factors
from robustcp.constraints import Constraints
from robustcp.engines import as_engine
from robustcp.model.kruskal import KruskalTensor
from robustcp.optimize.posterior import Posterior
from robustcp.optimize.problem import Problem
from robustcp.starts.candidates import Candidate, Candidates, multistart
from robustcp.starts.component_search import search_components
from robustcp.starts.loose_fits import StartFitter, serial_map
from robustcp.starts.proposals import L1Proposal

#: The kind and the first smoothing of successive starts at each rank.
START_KINDS = (("clipped", 0.03), ("positive", 1.0), ("positive", 0.03), ("random", 1.0))
#: The number of models without one component that are fitted again.
PRUNED_CANDIDATES = 2
#: The sweeps that estimate the posterior means of rows with few entries.
POSTERIOR_SWEEPS = 30


@dataclass(frozen=True, eq=False)
class RankFit:
    """The model of a rank.

    Attributes
    ----------
    model : KruskalTensor
        The model in the units of the data.
    cost : float
        The criterion per entry by which `cp` compares starts.
    start_count : int
        The number of starts, including the model of the next higher rank.
    converged_count : int
        The number of starts that ended at the model.
    """

    model: KruskalTensor
    cost: float
    start_count: int
    converged_count: int

    @property
    def agreement(self) -> float:
        """The share of the starts that ended at the model."""
        return self.converged_count / self.start_count


def fit_rank_path(
    X: object, ranks: Sequence[int], constraints: Constraints, starts: int, rng: np.random.Generator
) -> dict[int, RankFit]:
    """The models of some data at some ranks, each of at most `starts` starts, until two agree."""
    problem = Problem.of(as_engine(X)).without_gross_outliers.without_constant_fibres
    fitter = StartFitter(problem, constraints)
    fits: dict[int, RankFit] = {}
    higher_rank_factors: Factors | None = None
    for rank in range(max(ranks), min(ranks) - 1, -1):
        count = starts if rank in ranks else 0
        rounds = partial(_rank_rounds, fitter, rank, higher_rank_factors, count, rng)
        candidates, _ = multistart(rounds, lambda candidates: candidates.count_same() > 1)
        higher_rank_factors = candidates.best.factors
        if rank in ranks:
            model = KruskalTensor.from_factors(problem.units.factors_of_data(higher_rank_factors))
            fits[rank] = RankFit(
                model.normalized(), candidates.best.cost, len(candidates), candidates.count_same()
            )
    return fits


def _rank_rounds(
    fitter: StartFitter,
    rank: int,
    higher_rank_factors: Factors | None,
    starts: int,
    rng: np.random.Generator,
    candidates: Candidates[Candidate],
) -> Iterator[None]:
    """Adds the model of the next higher rank without a component, and then starts one by one."""
    if higher_rank_factors is not None:
        pruned = _prune_component(fitter, higher_rank_factors)
        candidates.add([_posterior_candidate(fitter, pruned)])
    for factors in _run_starts(fitter, rank, starts, rng) if starts else ():
        candidates.add([_posterior_candidate(fitter, factors)])
        yield


def _posterior_candidate(fitter: StartFitter, factors: Factors) -> Candidate:
    """The candidate of a start; with posterior means where some rows have few entries."""
    if fitter.criterion.needs_row_prior(factors[0].shape[1]):
        factors = _posterior_means(fitter, factors)
    return Candidate(factors, fitter.criterion.cost(factors))


def _prune_component(fitter: StartFitter, factors: Factors) -> Factors:
    """The factors without the component whose removal raises the entropy least, fitted again."""
    entropy = fitter.criterion.entropy
    candidates = sorted(fitter.leave_one_out(factors), key=entropy)[:PRUNED_CANDIDATES]
    return min(map(fitter.fit_cauchy, candidates), key=entropy)


def _run_starts(
    fitter: StartFitter, rank: int, starts: int, rng: np.random.Generator
) -> Iterator[Factors]:
    """The factors that starts end at, one by one."""
    rngs = rng.spawn(starts)
    if fitter.criterion.needs_row_prior(1):  # hardly any row has enough entries
        max_additions = fitter.settings.max_additions // 4
        searches = search_components(fitter, rank, rngs[:2], max_additions, serial_map)
        yield from (candidate.factors for candidate in searches)
        return
    for number, start_rng in enumerate(rngs):
        kind = START_KINDS[number % len(START_KINDS)]
        yield L1Proposal.from_number(number, *kind).fit(fitter, rank, start_rng).factors


def _posterior_means(fitter: StartFitter, factors: Factors) -> Factors:
    """The posterior means of all rows."""
    engine = fitter.problem.engine
    entries, resolution = engine.entries(), fitter.problem.resolution.min_entry_sigma
    posterior = Posterior.from_factors(entries, fitter.constraints, factors, resolution).fit(
        POSTERIOR_SWEEPS
    )
    return tuple(engine.asarray(A) for A in posterior.means)
