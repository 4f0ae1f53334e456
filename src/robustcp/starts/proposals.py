"""Proposals: the starts that a multistart may try, not fitted yet.

A proposal says where a start begins, at initial factors of a kind or at a candidate, and which
losses are minimised from there. `l1_proposals` yields those that minimise the 1-norm, in the order
in which they are tried. choice_of_starts.py decides when the other proposals are tried; the starts
of `cpal1` and `cpals` are made by `make_starts` in initial_factors.py, those of `cases` in
cases.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from robustcp._util.interrupts import stop_requested
from robustcp._util.typing import Factors
from robustcp.engines import Engine, Fibres
from robustcp.optimize.schedules import (
    Continuation,
    QuantileContinuation,
    StandardizedL1,
)
from robustcp.starts.candidates import Candidate
from robustcp.starts.loose_fits import StartFitter
from robustcp.starts.settings import SEARCH_SETTINGS, SearchSettings
from robustcp.starts.subsamples import observed_share

#: The kinds of initial factors in the descriptions of families; see `Initialization`.
INITIALIZATION_NAMES = {
    "clipped": "singular vectors of clipped data",
    "nvecs": "singular vectors",
    "positive": "positive factors",
    "random": "random factors",
    "spectral": "eigenvectors of hollow Gram matrices",
}


@dataclass(frozen=True, eq=False)
class L1Proposal:
    """A start that minimises the 1-norm, then Cauchy's loss.

    Attributes
    ----------
    kind : str
        The kind of initial factors, see `Initialization`.
    epsilon_share : float
        The first epsilon, as a multiple of the squared magnitude of ordinary entries.
    standardized : bool
        Whether residuals are divided by the scale of their slab. Components that are localised
        on a few slabs are found by the plain 1-norm only.
    extra_component : bool
        Whether the fit begins with rank + 1 components, and the one of least effect is removed.
    excluded : Fibres, optional
        Fibres that are left out of the data.
    """

    kind: str
    epsilon_share: float
    standardized: bool = True
    extra_component: bool = False
    excluded: Fibres | None = None

    @classmethod
    def from_number(cls, number: int, kind: str, epsilon_share: float) -> L1Proposal:
        """The proposal at position `number` (from 0), before any reordering.

        Odd positions use the plain 1-norm; positions 2, 5 and all from 6 on have an extra
        component.
        """
        return cls(kind, epsilon_share, number % 2 == 0, number % 3 == 2 or number >= 6)

    @property
    def family(self) -> str:
        words = "standardized 1-norm" if self.standardized else "1-norm"
        words += f" from {INITIALIZATION_NAMES.get(self.kind, self.kind)}"
        if self.extra_component:
            words += ", one component more"
        return words if self.excluded is None else words + ", without outlying fibres"

    def fit(self, fitter: StartFitter, rank: int, rng: np.random.Generator) -> Candidate:
        data = fitter if self.excluded is None else fitter.without_fibres(self.excluded)
        factors = self.fit_loosely(data, rank + self.extra_component, rng)
        if self.extra_component:
            factors = data.fit_cauchy(data.prune_component(factors).factors)
        return Candidate(factors, fitter.criterion.cost(factors), self.excluded)

    def fit_loosely(self, data: StartFitter, rank: int, rng: np.random.Generator) -> Factors:
        """Factors after minimising the 1-norm, then Cauchy's loss."""
        initial_factors = data.initialize(self.kind, rank, rng)
        continuation = Continuation(*data.epsilon_range(self.epsilon_share))
        schedule = (
            StandardizedL1(continuation, data.problem.resolution)
            if self.standardized
            else continuation
        )
        return data.run_stages([data.stage(schedule, 1), data.cauchy_stage], initial_factors)


@dataclass(frozen=True)
class QuantileProposal:
    """A start for data in which most entries are outliers: it minimises a quantile loss, then a
    narrow Welsch loss."""

    kind: str
    tau: float

    @property
    def family(self) -> str:
        return f"quantile {self.tau:g} from {INITIALIZATION_NAMES.get(self.kind, self.kind)}"

    def fit(self, fitter: StartFitter, rank: int, rng: np.random.Generator) -> Candidate:
        initial_factors = fitter.initialize(self.kind, rank, rng)
        schedule = QuantileContinuation(Continuation(*fitter.epsilon_range(1.0)), self.tau)
        factors = fitter.fit_narrow(
            fitter.run_stages([fitter.stage(schedule, 1)], initial_factors, max_sweeps=300)
        )
        return Candidate(factors, fitter.criterion.entropy(factors))


@dataclass(frozen=True, eq=False)
class ExchangeProposal:
    """A candidate whose components are exchanged for new ones, one at a time.

    Most local minima have all components right but one or two. Only exchanges that lower the cost
    are accepted. Fits leave out the fibres that the candidate leaves out, or else those that are
    outlying given its model; after an improvement those that are outlying given the new one. The
    result has the `fibres` of the original candidate: the final fit looks for them anew.

    Attributes
    ----------
    candidate : Candidate
    patience : int
        The number of failures in a row that ends the exchanges; they also end after
        `max_exchange_ratio` times as many.
    """

    candidate: Candidate
    patience: int

    @property
    def family(self) -> str:
        return "exchanged components"

    def fit(self, fitter: StartFitter, rank: int, rng: np.random.Generator) -> Candidate:
        settings, kinds = fitter.settings, fitter.settings.exchange_kinds
        if observed_share(fitter.problem.engine) <= 0.4:
            kinds = tuple(kind for kind in kinds if kind != "residuals")
        best, failures = self.candidate, 0
        min_improvement = max(settings.min_improvement, fitter.criterion.component_cost / 2)
        fibres = best.fibres or fitter.find_outlying_fibres(best.factors)
        for number in range(settings.max_exchange_ratio * self.patience):
            data = fitter if fibres is None else fitter.without_fibres(fibres)
            factors = data.exchange_component(best.factors, kinds[number % len(kinds)], rng)
            new = replace(best, factors=factors, cost=fitter.criterion.cost(factors))
            if new.cost < best.cost - min_improvement:
                best, failures = new, 0
                fibres = fitter.find_outlying_fibres(best.factors)
                continue
            failures += 1
            if failures == self.patience or stop_requested():
                break
        return best


def l1_proposals(
    engine: Engine, init: str, reorder: bool, settings: SearchSettings = SEARCH_SETTINGS
) -> Iterator[L1Proposal]:
    """An endless sequence of proposals for some data, most promising first.

    With `init="auto"` and `reorder`, for mostly positive data the starts with positive factors and
    the plain 1-norm come first: of all kinds of starts they agree most often.
    """
    kinds = _initializations(engine, init, settings)
    proposals = (L1Proposal.from_number(number, *kind) for number, kind in enumerate(kinds))
    if init == "auto" and reorder and is_mostly_positive(engine, settings):
        order = settings.positive_data_order
        first = list(itertools.islice(proposals, len(order)))
        yield from (first[number] for number in order)
    yield from proposals


def _initializations(
    engine: Engine, init: str, settings: SearchSettings
) -> Iterator[tuple[str, float]]:
    """Kinds of initial factors, each with the multiple for its first epsilon."""
    small, large = settings.small_epsilon_share, settings.large_epsilon_share
    if init == "auto" and observed_share(engine) > 0.4:
        yield from (("clipped", small), ("positive", large), ("nvecs", large))
    elif init == "auto":
        yield from (("spectral", small), ("positive", small), ("spectral", large))
    elif init == "nvecs":
        yield "nvecs", small
    while True:
        yield from (("positive", small), ("random", large), ("positive", large), ("random", small))


def is_mostly_positive(engine: Engine, settings: SearchSettings = SEARCH_SETTINGS) -> bool:
    """Whether nearly all nonzero entries are positive (`mostly_positive_share`) and over 40% of
    the entries are observed."""
    if observed_share(engine) <= 0.4:
        return False
    values = engine.sample().values
    positive_limit = settings.mostly_positive_share * np.count_nonzero(values)
    return bool(np.sum(values > 0) > positive_limit)
