"""Models of one data set at each of several ranks, from the highest down: cheap, but comparable.

The model of a rank is the best of a few starts and of the model of the next higher rank without
one of its components. So the models of neighbouring ranks differ by what a component is worth, and
not by where their starts happened to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from robustcp._typing import Factors
from robustcp.constraints import Constraints
from robustcp.engines import as_engine
from robustcp.kruskal import KruskalTensor
from robustcp.posterior import Entries, Posterior
from robustcp.search import MANY_BIRTHS, Trial, same
from robustcp.sizes import Problem

#: Starts at each rank: their kinds, and their first smoothing.
KINDS = (("clipped", 0.03), ("positive", 1.0), ("positive", 0.03), ("random", 1.0))
#: How many models of a rank without one component are followed.
PRUNED = 2
#: Sweeps in which rows with few entries are settled.
SWEEPS = 30


@dataclass(frozen=True, eq=False)
class Rung:
    """The model of a rank.

    Attributes
    ----------
    model : KruskalTensor
        In the units of the data.
    cost : float
        The entropy of its residuals, per entry.
    ends : int
        How many starts there were, the one from the next higher rank included.
    agreeing : int
        How many of them ended at the model.
    """

    model: KruskalTensor
    cost: float
    ends: int
    agreeing: int

    @property
    def agreement(self) -> float:
        """The share of the starts that agree."""
        return self.agreeing / self.ends


def ladder(
    X: object, ranks: Sequence[int], constraints: Constraints, starts: int, rng: np.random.Generator
) -> dict[int, Rung]:
    """The models of some data at some ranks; `starts` for each of them."""
    engine = as_engine(X)
    problem = Problem.of(engine).without_wild.without_stuck
    trial = Trial(problem, constraints)
    found: dict[int, Rung] = {}
    above: Factors | None = None
    for rank in range(max(ranks), min(ranks) - 1, -1):
        ends = [] if above is None else [_pruned(trial, above)]
        if rank in ranks:
            ends += _begun(trial, rank, starts, rng)
        costs = [trial.entropy(factors) for factors in ends]
        best = int(np.argmin(costs))
        above = ends[best]
        if rank in ranks:
            found[rank] = _rung(trial, ends, best, costs[best])
    return found


def _pruned(trial: Trial, factors: Factors) -> Factors:
    """Without the component that is missed least."""
    rests = sorted(trial.without_one(factors), key=trial.entropy)[:PRUNED]
    return min(map(trial.redescended, rests), key=trial.entropy)


def _begun(trial: Trial, rank: int, starts: int, rng: np.random.Generator) -> list[Factors]:
    """Where some starts end."""
    rngs = rng.spawn(starts)
    if trial.thin(1):  # hardly any row has enough entries: components must come and go
        together = lambda work, items: [work(item) for item in items]  # noqa: E731
        return [end.factors for end in trial.evolved(rank, rngs[:2], MANY_BIRTHS // 4, together)]
    kinds = [KINDS[number % len(KINDS)] for number in range(starts)]
    begun = enumerate(zip(kinds, rngs, strict=True))
    return [trial.end(rank, number, *kind, own).factors for number, (kind, own) in begun]


def _rung(trial: Trial, ends: Sequence[Factors], best: int, cost: float) -> Rung:
    models = [KruskalTensor.from_factors(factors) for factors in ends]
    agreeing = sum(same(model, models[best]) for model in models)
    factors = settled(trial, ends[best]) if trial.thin(models[best].rank) else ends[best]
    units = trial.problem.units
    model = KruskalTensor.from_factors(units.factors_of_data(factors)).normalized()
    return Rung(model, cost, len(ends), agreeing)


def settled(trial: Trial, factors: Factors) -> Factors:
    """The means of the rows, where some have few entries."""
    engine = trial.problem.engine
    entries, least = Entries.of(engine), trial.problem.resolution.entry
    found = Posterior.at(entries, trial.constraints, factors, least).settled(SWEEPS)
    return tuple(engine.asarray(A) for A in found.means)
