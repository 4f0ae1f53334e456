"""A search by births: components come at random, and stay if the data supports them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from robustcp.constraints import Constraints
from robustcp.engines import Engine, Fibres
from robustcp.noise import fit_contaminated_normal, flag_outlying_fibres
from robustcp.optimize.posterior import Entries, Posterior

#: How often a component that lives is given up for a new one, while there are dead ones.
REPLACEMENT_PROBABILITY = 0.3
#: A model is better if its cost per entry is lower by this.
MIN_IMPROVEMENT = 1e-4
#: How often outlying fibres are looked for.
FIBRE_ROUNDS = 3
#: Sweeps on the whole data, for a model that was found on a part.
EXTENSION_SWEEPS = 10


@dataclass(frozen=True, eq=False)
class ComponentSearch:
    """A model that changes by births, and only for the better.

    Attributes
    ----------
    best : Posterior
    rng : Generator
    proposals : int
    last_improvement : int
        How many there were when it last became better.
    """

    best: Posterior
    rng: np.random.Generator
    proposals: int = 0
    last_improvement: int = 0

    @classmethod
    def start(
        cls,
        entries: Entries,
        constraints: Constraints,
        rank: int,
        min_scale: float,
        rng: np.random.Generator,
    ) -> ComponentSearch:
        """With all components new."""
        null_model = Posterior.null_model(entries, constraints, rank, min_scale)
        return cls(_fit_candidate(null_model.with_random_components(range(rank), rng)), rng)

    def run(self, proposals: int) -> ComponentSearch:
        """After some more births."""
        search = self
        for _ in range(proposals):
            search = search.propose()
        return search

    def propose(self) -> ComponentSearch:
        """After one more birth."""
        best, rng = self.best, self.rng
        replaced = list(best.pruned_components)
        active = np.setdiff1d(np.arange(best.rank), replaced)
        if active.size and (not replaced or rng.random() < REPLACEMENT_PROBABILITY):
            replaced.append(int(rng.choice(active)))
        candidate = _fit_candidate(
            replace(best, entry_mask=None).with_random_components(replaced, rng)
        )
        if candidate.cost < best.cost - MIN_IMPROVEMENT:
            return ComponentSearch(candidate, rng, self.proposals + 1, self.proposals + 1)
        return replace(self, proposals=self.proposals + 1)


def _fit_candidate(initial: Posterior) -> Posterior:
    """A model with new components, when they have found their place."""
    posterior = initial.sweep_with_fixed_noise().fit()
    for _ in range(FIBRE_ROUNDS):
        fibres = flag_fibres_of_posterior(posterior)
        if not fibres and posterior.entry_mask is None:
            break
        outlying = fibres.contains(posterior.entries.indices)
        posterior = replace(posterior, entry_mask=(~outlying).astype(np.float64)).fit()
    return posterior


def extend_to_all_data(
    posterior: Posterior, engine: Engine, subset: Sequence[np.ndarray | None]
) -> Posterior:
    """A model that was found on a part of the data, after some sweeps on all of it."""
    modes = range(engine.order)
    mode_subsets = [
        [None if m == mode else index for m, index in enumerate(subset)] for mode in modes
    ]
    mode_entries = [Entries.of(engine.subtensor(mode_subset)) for mode_subset in mode_subsets]
    extended = posterior.extend(mode_entries, Entries.of(engine)).fit(EXTENSION_SWEEPS)
    outlying = flag_fibres_of_posterior(extended).contains(extended.entries.indices)
    return (
        replace(extended, entry_mask=(~outlying).astype(np.float64)).fit(EXTENSION_SWEEPS)
        if outlying.any()
        else extended
    )


def flag_fibres_of_posterior(posterior: Posterior) -> Fibres:
    """The fibres that are outlying beside a model."""
    entries = posterior.entries
    r = (entries.values - entries.evaluate_model(posterior.means)) * np.sqrt(entries.weights)
    used = r if posterior.entry_mask is None else r[posterior.entry_mask > 0]
    sigma = fit_contaminated_normal(used, max(math.sqrt(posterior.min_squared_scale), 1e-300)).sigma
    return flag_outlying_fibres(r / sigma, entries.indices, entries.shape)
