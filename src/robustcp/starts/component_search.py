"""Component search: add components at random, prune those that the data does not support."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from robustcp._util.interrupts import stop_requested
from robustcp.constraints import Constraints
from robustcp.engines import Entries, Fibres
from robustcp.model.kruskal import KruskalTensor
from robustcp.noise import fit_contaminated_normal, flag_outlying_fibres
from robustcp.optimize.posterior import Posterior
from robustcp.starts.candidates import Candidate, is_same_model
from robustcp.starts.loose_fits import ParallelMap, StartFitter
from robustcp.starts.settings import SEARCH_SETTINGS, SearchSettings


@dataclass(frozen=True, eq=False)
class ComponentSearch:
    """A model to which new components are proposed; those that lower the cost are accepted.

    Attributes
    ----------
    best : Posterior
    rng : Generator
    proposals : int
    last_improvement : int
        The number of proposals when the last one was accepted.
    """

    best: Posterior
    rng: np.random.Generator
    proposals: int = 0
    last_improvement: int = 0
    settings: SearchSettings = field(default=SEARCH_SETTINGS, repr=False)

    @classmethod
    def start(
        cls,
        entries: Entries,
        constraints: Constraints,
        rank: int,
        min_scale: float,
        rng: np.random.Generator,
        settings: SearchSettings = SEARCH_SETTINGS,
    ) -> ComponentSearch:
        """Begin with random components only."""
        null_model = Posterior.null_model(entries, constraints, rank, min_scale)
        initial = null_model.with_random_components(range(rank), rng)
        return cls(_fit_candidate(initial, settings), rng, settings=settings)

    def run(self, proposals: int) -> ComponentSearch:
        """The search after some more proposals."""
        search = self
        for _ in range(proposals):
            search = search.propose()
        return search

    def propose(self) -> ComponentSearch:
        """The search after one more proposal."""
        best, rng, settings = self.best, self.rng, self.settings
        replaced = list(best.pruned_components)
        active = np.setdiff1d(np.arange(best.rank), replaced)
        if active.size and (not replaced or rng.random() < settings.replacement_probability):
            replaced.append(int(rng.choice(active)))
        initial = replace(best, entry_mask=None).with_random_components(replaced, rng)
        candidate, count = _fit_candidate(initial, settings), self.proposals + 1
        if candidate.cost < best.cost - settings.min_improvement:
            return replace(self, best=candidate, proposals=count, last_improvement=count)
        return replace(self, proposals=count)


def _fit_candidate(initial: Posterior, settings: SearchSettings) -> Posterior:
    """Fit a model with new components, without outlying fibres."""
    posterior = initial.sweep_with_fixed_noise().fit()
    for _ in range(settings.fibre_rounds):
        fibres = flag_fibres_of_posterior(posterior)
        if not fibres and posterior.entry_mask is None:
            break
        outlying = fibres.contains(posterior.entries.indices)
        posterior = replace(posterior, entry_mask=(~outlying).astype(np.float64)).fit()
    return posterior


def flag_fibres_of_posterior(posterior: Posterior) -> Fibres:
    """The fibres that are outlying beside a model."""
    entries, mask = posterior.entries, posterior.entry_mask
    decided = entries.decided(posterior.means)
    if decided is not None:
        entries, mask = entries.select(decided), None if mask is None else mask[decided]
    r = (entries.values - entries.model(posterior.means)) * np.sqrt(entries.precisions)
    used = r if mask is None else r[mask > 0]
    sigma = fit_contaminated_normal(used, max(math.sqrt(posterior.min_squared_scale), 1e-300)).sigma
    return flag_outlying_fibres(r / sigma, entries.indices, entries.shape)


def search_components(
    fitter: StartFitter,
    rank: int,
    rngs: Sequence[np.random.Generator],
    max_additions: int,
    parallel_map: ParallelMap,
) -> list[Candidate]:
    """The candidates of component searches that end when two agree, or after `max_additions`."""
    problem, constraints, settings = fitter.problem, fitter.constraints, fitter.settings
    entries, noise_floor = problem.engine.entries(), problem.resolution.min_entry_sigma
    searches = parallel_map(
        lambda rng: ComponentSearch.start(entries, constraints, rank, noise_floor, rng, settings),
        rngs,
    )
    while searches[0].proposals < max_additions and not _have_converged(searches, settings):
        stalled = [search.proposals - search.last_improvement for search in searches]
        if min(stalled) >= settings.addition_patience or stop_requested():
            break
        searches = parallel_map(lambda search: search.run(settings.additions_per_round), searches)
    sweeps = settings.addition_sweeps * sum(search.proposals + 1 for search in searches)
    fitter.search_log.charge(entries.values.size * rank * sweeps * len(entries.shape))
    return [_candidate_from_posterior(fitter, search.best) for search in searches]


def _candidate_from_posterior(fitter: StartFitter, posterior: Posterior) -> Candidate:
    """The candidate of a search."""
    engine = fitter.problem.engine
    factors = tuple(engine.asarray(A) for A in posterior.means)
    fibres = flag_fibres_of_posterior(posterior) or None
    return Candidate(factors, fitter.criterion.cost(factors), fibres, "component search")


def _have_converged(searches: Sequence[ComponentSearch], settings: SearchSettings) -> bool:
    """Whether another search has the model of the best one.

    If components were pruned, only after `min_additions_if_pruned` proposals.
    """
    best = min(searches, key=lambda search: search.best.cost).best
    if best.pruned_components.size and searches[0].proposals < settings.min_additions_if_pruned:
        return False
    others = [search.best for search in searches if search.best is not best]
    if len(best.means) == 2:  # factors of a matrix may be rotated
        return any(other.cost < best.cost + settings.same_search_cost for other in others)
    model = _unpruned_model(best)
    return any(is_same_model(other, model, settings) for other in map(_unpruned_model, others))


def _unpruned_model(posterior: Posterior) -> KruskalTensor:
    components = [r for r in range(posterior.rank) if r not in posterior.pruned_components] or [0]
    return KruskalTensor.from_factors([A[:, components] for A in posterior.means])
