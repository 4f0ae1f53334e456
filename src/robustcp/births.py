"""A search by births: components come at random, and stay if the data supports them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from robustcp.constraints import Constraints
from robustcp.engines import Engine, Fibres
from robustcp.noise import core_of, outlying_fibres
from robustcp.posterior import Entries, Posterior

#: How often a component that lives is given up for a new one, while there are dead ones.
GIVEN_UP = 0.3
#: A model is better if its cost per entry is lower by this.
BETTER = 1e-4
#: How often outlying fibres are looked for.
LOOKS = 3
#: Sweeps on the whole data, for a model that was found on a part.
SOME = 10


@dataclass(frozen=True, eq=False)
class Chain:
    """A model that changes by births, and only for the better.

    Attributes
    ----------
    best : Posterior
    rng : Generator
    births : int
    changed : int
        How many there were when it last became better.
    """

    best: Posterior
    rng: np.random.Generator
    births: int = 0
    changed: int = 0

    @classmethod
    def begun(
        cls,
        entries: Entries,
        constraints: Constraints,
        rank: int,
        least: float,
        rng: np.random.Generator,
    ) -> Chain:
        """With all components new."""
        nothing = Posterior.nothing(entries, constraints, rank, least)
        return cls(_grown(nothing.born(range(rank), rng)), rng)

    def after(self, births: int) -> Chain:
        """After some more births."""
        chain = self
        for _ in range(births):
            chain = chain.further()
        return chain

    def further(self) -> Chain:
        """After one more birth."""
        best, rng = self.best, self.rng
        new = list(best.dead)
        living = np.setdiff1d(np.arange(best.rank), new)
        if living.size and (not new or rng.random() < GIVEN_UP):
            new.append(int(rng.choice(living)))
        other = _grown(replace(best, kept=None).born(new, rng))
        if other.cost < best.cost - BETTER:
            return Chain(other, rng, self.births + 1, self.births + 1)
        return replace(self, births=self.births + 1)


def _grown(begun: Posterior) -> Posterior:
    """A model with new components, when they have found their place."""
    found = begun.grown().settled()
    for _ in range(LOOKS):
        fibres = fibres_beside(found)
        if not fibres and found.kept is None:
            break
        bad = fibres.at(found.entries.indices)
        found = replace(found, kept=(~bad).astype(np.float64)).settled()
    return found


def on_the_whole(found: Posterior, engine: Engine, part: Sequence[np.ndarray | None]) -> Posterior:
    """A model that was found on a part of the data, after some sweeps on all of it."""
    modes = range(engine.order)
    slabs = [[None if m == mode else at for m, at in enumerate(part)] for mode in modes]
    parts = [Entries.of(engine.subtensor(some)) for some in slabs]
    whole = found.extended(parts, Entries.of(engine)).settled(SOME)
    bad = fibres_beside(whole).at(whole.entries.indices)
    return replace(whole, kept=(~bad).astype(np.float64)).settled(SOME) if bad.any() else whole


def fibres_beside(found: Posterior) -> Fibres:
    """The fibres that are outlying beside a model."""
    entries = found.entries
    r = (entries.values - entries.model(found.means)) * np.sqrt(entries.weights)
    inside = r if found.kept is None else r[found.kept > 0]
    sigma = core_of(inside, max(math.sqrt(found.least), 1e-300)).sigma
    return outlying_fibres(r / sigma, entries.indices, entries.shape)
