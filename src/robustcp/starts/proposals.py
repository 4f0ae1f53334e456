"""Proposals: initial factors of a start, and the losses that it minimises."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from robustcp.engines import Engine, Fibres
from robustcp.optimize.schedules import (
    Continuation,
    NarrowWelsch,
    QuantileContinuation,
    StandardizedL1,
)
from robustcp.starts.candidates import Candidate
from robustcp.starts.fitting import StartFitter
from robustcp.starts.settings import SEARCH_SETTINGS, SearchSettings
from robustcp.starts.subsamples import observed_share


class Proposal(ABC):
    """A start of a multistart."""

    @abstractmethod
    def fit(self, fitter: StartFitter, rank: int, rng: np.random.Generator) -> Candidate:
        """The fitted candidate."""


@dataclass(frozen=True, eq=False)
class L1Proposal(Proposal):
    """A start that minimises the 1-norm, then Cauchy's loss.

    Attributes
    ----------
    kind : str
        How it begins, see `Initialization`.
    epsilon_share : float
        The first smoothing, as a share of the data's size, squared.
    standardized : bool
        Whether residuals are in units of the spread of their slabs. Components that are localised
        on a few slabs are found by the plain 1-norm only.
    extra_component : bool
        Whether it starts at rank + 1 and the component of least effect is removed.
    excluded : Fibres, optional
        Fibres that are left out of the data.
    """

    kind: str
    epsilon_share: float
    standardized: bool = True
    extra_component: bool = False
    excluded: Fibres | None = None

    @classmethod
    def numbered(cls, number: int, kind: str, epsilon_share: float) -> L1Proposal:
        """One of a sequence: every other one uses the plain 1-norm, every third and all late ones
        have an extra component."""
        return cls(kind, epsilon_share, number % 2 == 0, number % 3 == 2 or number >= 6)

    def fit(self, fitter: StartFitter, rank: int, rng: np.random.Generator) -> Candidate:
        data = fitter if self.excluded is None else fitter.without_fibres(self.excluded)
        initial_factors = data.initialize(self.kind, rank + self.extra_component, rng)
        continuation = Continuation(*data.epsilon_range(self.epsilon_share))
        schedule = (
            StandardizedL1(continuation, data.problem.resolution)
            if self.standardized
            else continuation
        )
        factors = data.run_stages([data.stage(schedule, 1), data.cauchy_stage], initial_factors)
        if self.extra_component:
            factors = data.fit_cauchy(data.prune_component(factors).factors)
        return Candidate(factors, fitter.criterion.cost(factors), self.excluded)


@dataclass(frozen=True)
class QuantileProposal(Proposal):
    """A start that minimises a quantile loss, then a narrow one: for many outliers."""

    kind: str
    tau: float

    def fit(self, fitter: StartFitter, rank: int, rng: np.random.Generator) -> Candidate:
        initial_factors = fitter.initialize(self.kind, rank, rng)
        schedule = QuantileContinuation(Continuation(*fitter.epsilon_range(1.0)), self.tau)
        narrow = fitter.stage(NarrowWelsch(fitter.problem.resolution), 2)
        factors = fitter.run_stages(
            [replace(narrow, tol=1e-4, level_sweeps=30)],
            fitter.run_stages([fitter.stage(schedule, 1)], initial_factors),
            max_sweeps=300,
        )
        return Candidate(factors, fitter.criterion.entropy(factors))


def l1_proposals(
    engine: Engine,
    init: str,
    reorder: bool,
    settings: SearchSettings = SEARCH_SETTINGS,
) -> Iterator[L1Proposal]:
    """Proposals for some data, best guesses first, without end.

    For data that is mostly positive, and if `reorder` allows it, those from positive factors by the
    plain 1-norm are first: they end at the same model most often.
    """
    kinds = _initializations(engine, init, settings)
    proposals = (L1Proposal.numbered(number, *kind) for number, kind in enumerate(kinds))
    if init == "auto" and reorder and _is_mostly_positive(engine, settings):
        order = settings.positive_data_order
        first = list(itertools.islice(proposals, len(order)))
        yield from (first[number] for number in order)
    yield from proposals


def _initializations(
    engine: Engine, init: str, settings: SearchSettings
) -> Iterator[tuple[str, float]]:
    """Kinds of initial factors with their first smoothing."""
    small, large = settings.small_epsilon_share, settings.large_epsilon_share
    if init == "auto" and observed_share(engine) > 0.4:
        yield from (("clipped", small), ("positive", large), ("nvecs", large))
    elif init == "auto":
        yield from (("spectral", small), ("positive", small), ("spectral", large))
    elif init == "nvecs":
        yield "nvecs", small
    while True:
        yield from (("positive", small), ("random", large), ("positive", large), ("random", small))


def _is_mostly_positive(engine: Engine, settings: SearchSettings) -> bool:
    """Whether most entries that are not 0 are positive, of data that is mostly observed."""
    if observed_share(engine) <= 0.4:
        return False
    values = engine.sample().values
    positive_limit = settings.mostly_positive_share * np.count_nonzero(values)
    return bool(np.sum(values > 0) > positive_limit)
