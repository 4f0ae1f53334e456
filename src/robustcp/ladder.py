"""Models of one data set at each of several ranks, from the highest down: cheap, but comparable.

The model of a rank is the best of a few starts and of the model of the next higher rank without
one of its components. So the models of neighbouring ranks differ by what a component is worth, and
not by where their starts happened to end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

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
        What it costs per entry, as starts of `cp` are compared.
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
    """The models of some data at some ranks; for each at most so many starts, until two agree."""
    problem = Problem.of(as_engine(X)).without_wild.without_stuck
    trial = Trial(problem, constraints)
    found: dict[int, Rung] = {}
    above: Factors | None = None
    for rank in range(max(ranks), min(ranks) - 1, -1):
        ends = Ends(trial)
        if above is not None:
            ends.add(_pruned(trial, above))
        if rank in ranks:
            for factors in _begun(trial, rank, starts, rng):
                ends.add(factors)
                if ends.agreeing > 1:
                    break
            found[rank] = ends.rung()
        above = ends.best
    return found


@dataclass(eq=False)
class Ends:
    """Where the starts of a rank ended."""

    trial: Trial
    factors: list[Factors] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)

    def add(self, factors: Factors) -> None:
        """One more; where rows have few entries, at the means of the rows."""
        if self.trial.thin(factors[0].shape[1]):
            factors = _settled(self.trial, factors)
        self.factors.append(factors)
        self.costs.append(self.trial.cost(factors))

    @property
    def best(self) -> Factors:
        return self.factors[int(np.argmin(self.costs))]

    @property
    def agreeing(self) -> int:
        """How many are the best model."""
        model = KruskalTensor.from_factors(self.best)
        return sum(same(KruskalTensor.from_factors(factors), model) for factors in self.factors)

    def rung(self) -> Rung:
        model = KruskalTensor.from_factors(self.trial.problem.units.factors_of_data(self.best))
        return Rung(model.normalized(), min(self.costs), len(self.factors), self.agreeing)


def _pruned(trial: Trial, factors: Factors) -> Factors:
    """Without the component that is missed least."""
    rests = sorted(trial.without_one(factors), key=trial.entropy)[:PRUNED]
    return min(map(trial.redescended, rests), key=trial.entropy)


def _begun(trial: Trial, rank: int, starts: int, rng: np.random.Generator) -> Iterator[Factors]:
    """Where starts end, one by one."""
    rngs = rng.spawn(starts)
    if trial.thin(1):  # hardly any row has enough entries: components must come and go
        chains = trial.evolved(rank, rngs[:2], MANY_BIRTHS // 4, lambda f, xs: [f(x) for x in xs])
        yield from (end.factors for end in chains)
        return
    for number, own in enumerate(rngs):
        kind = KINDS[number % len(KINDS)]
        yield trial.end(rank, number, *kind, own).factors


def _settled(trial: Trial, factors: Factors) -> Factors:
    """The means of the rows, where some have few entries."""
    engine = trial.problem.engine
    entries, least = Entries.of(engine), trial.problem.resolution.entry
    found = Posterior.at(entries, trial.constraints, factors, least).settled(SWEEPS)
    return tuple(engine.asarray(A) for A in found.means)
