"""The search of a multistart: which families of starts are fitted, when, and when it ends.

The families themselves are in proposals.py. Which of the fitted candidates go on to the final fits
is decided by `Candidates.select` (candidates.py), by their costs (criterion.py); how many at most,
by `Multistart`.

First come up to six starts that minimise the 1-norm, in blocks of two (all at once where rows have
few entries). Each further family has an indication, which is cheap to evaluate from the candidates
at hand:

- starts without outlying fibres: a component is localised, and would explain such fibres; or it is
  constant on a block, and may explain no more than that;
- component searches: rows have few entries, or entries are missing and starts disagree;
- quantile starts: the best model explains little, or starts disagree;
- exchanged components: starts disagree; or they agree, but the residuals are not noise, or a
  component is localised, redundant or split.

The search ends when `Search.agree` is true, at a price limit, or after the last block; with a given
number of starts when these are fitted. Prices are counted in entries x rank x passes, so that a
search makes the same choices on every machine.
"""

from __future__ import annotations

import itertools
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from robustcp._util.progress import ProgressReport
from robustcp.constraints import Constraints
from robustcp.engines.installed import numba_kernels
from robustcp.optimize.problem import Problem
from robustcp.starts.candidates import Candidate, Candidates, multistart
from robustcp.starts.component_search import search_components
from robustcp.starts.loose_fits import ParallelMap, Proposal, StartFitter, serial_map
from robustcp.starts.proposals import (
    ExchangeProposal,
    L1Proposal,
    QuantileProposal,
    l1_proposals,
)
from robustcp.starts.search_log import SearchLog
from robustcp.starts.settings import SEARCH_SETTINGS, SearchSettings
from robustcp.starts.subsamples import (
    Indices,
    draw_indices,
    extend_factors,
    observed_share,
    restrict_constraints,
)

#: Reports at level INFO why the search continues.
LOG = logging.getLogger("robustcp.search")


def make_fitter(
    problem: Problem,
    constraints: Constraints,
    subsample: Indices | None,
    search_log: SearchLog,
    settings: SearchSettings = SEARCH_SETTINGS,
) -> StartFitter:
    """The fitter for a subsample of the data, or for all of it."""
    engine = problem.engine
    if subsample is not None:
        engine = engine.subtensor(subsample)
        constraints = restrict_constraints(constraints, subsample)
    return StartFitter(problem.with_engine(engine.in_memory), constraints, search_log, settings)


@dataclass(frozen=True, eq=False)
class SearchResult:
    """The candidates of a search.

    Attributes
    ----------
    candidates : Candidates
    agree : bool
        Whether `Search.agree` ended the search.
    limited : bool
        Whether the search ended at its price limit.
    """

    candidates: Candidates[Candidate]
    agree: bool
    limited: bool


@dataclass(frozen=True, eq=False)
class Search:
    """The steps of one search, and its rule of agreement.

    Attributes
    ----------
    kind : str
        The kind of initial factors of the first starts that minimise the 1-norm, see
        `Initialization`; "auto" for several. Later ones are positive and random in turn.
    count : int or None
        The number of starts; None for as many as needed.
    fitter : StartFitter
        For the data of the search, which may be a subsample.
    rank : int
    rng : Generator
    max_price : float
        The search ends when all fits of the search log have cost more than this (see
        `SearchLog.price`), but not before one block.
    exchanged : list of Candidate
        The candidates whose components were exchanged, and the results.
    tried : set of str
        The families that were fitted, as far as `agree` asks for them.
    """

    kind: str
    count: int | None
    fitter: StartFitter
    rank: int
    rng: np.random.Generator
    max_price: float
    settings: SearchSettings = field(default=SEARCH_SETTINGS, repr=False)
    exchanged: list[Candidate] = field(default_factory=list)
    tried: set[str] = field(default_factory=set)

    def run(self, further_blocks: Iterable[int]) -> SearchResult:
        """The candidates, and how the search ended; after the first blocks come further ones."""
        steps = self.steps_for_thin_rows if self.is_thin else self.steps
        candidates, agree = multistart(
            lambda candidates: steps(candidates, further_blocks), self.agree, self.settings
        )
        return SearchResult(candidates, agree, self.is_too_expensive and not agree)

    @cached_property
    def is_thin(self) -> bool:
        """Whether some rows have few entries."""
        return self.fitter.criterion.needs_row_prior(self.rank)

    @property
    def is_too_expensive(self) -> bool:
        """Whether the search has reached its price limit; it has none for a given count."""
        return self.count is None and self.fitter.search_log.price > self.max_price

    def remaining_starts(self, candidates: Candidates[Candidate]) -> int:
        """How many more starts may be fitted."""
        if self.count is None:
            return 0 if len(candidates) and self.is_too_expensive else sys.maxsize
        return self.count - len(candidates)

    @property
    def parallel_map(self) -> ParallelMap:
        engine = self.fitter.problem.engine
        parallel = engine.count >= self.settings.min_parallel_entries
        return engine.executor.map_tasks if parallel else serial_map

    def l1_proposals(self) -> Iterator[L1Proposal]:
        """Starts that minimise the 1-norm, most promising first."""
        engine, reorder = self.fitter.problem.engine, self.count is None
        return l1_proposals(engine, self.kind, reorder, self.settings)

    def steps(
        self, candidates: Candidates[Candidate], further_blocks: Iterable[int]
    ) -> Iterator[None]:
        """Add blocks of starts that minimise the 1-norm, and starts of other families where the
        candidates indicate them. Yields whenever agreement is to be tested."""
        settings, proposals = self.settings, self.l1_proposals()
        for size in settings.first_blocks:
            yield from self.add_block(candidates, proposals, size)
        if self.may_search_components:
            additions = settings.max_fallback_additions
            self.add_component_searches(candidates, additions, "starts disagree")
            yield
        quantile_starts = [QuantileProposal(*kind) for kind in settings.quantile_starts]
        reason = "most entries may be outliers"
        if not self.explains_little(candidates.best):
            reason = "starts disagree"
            self.add_exchanges(candidates)
            yield
        self.add(candidates, quantile_starts, reason)
        self.tried.add("quantile starts")
        yield
        self.add_exchanges(candidates)
        yield
        for size in further_blocks:
            if self.remaining_starts(candidates) <= 0:
                return
            yield from self.add_block(candidates, proposals, size)
            self.add_exchanges(candidates)
            yield

    @property
    def may_search_components(self) -> bool:
        """Whether component searches may help, and cost little, where rows have enough entries."""
        engine, settings = self.fitter.problem.engine, self.settings
        if engine.complete or self.rank > settings.max_component_search_rank:
            return False
        searches_all = engine.count <= settings.max_component_search_entries
        return searches_all or observed_share(engine) > 0.4

    def add_block(
        self, candidates: Candidates[Candidate], proposals: Iterator[L1Proposal], size: int
    ) -> Iterator[None]:
        """Add the next starts that minimise the 1-norm; and two starts without some fibres, if a
        component of the best candidate may have fitted no more than these."""
        self.add(candidates, list(itertools.islice(proposals, size)))
        fibres = self.fitter.find_artifact_fibres(candidates.best)
        if fibres is not None:
            first_two = itertools.islice(self.l1_proposals(), 2)
            description = fibres.describe(self.fitter.problem.engine.view.axes)
            reason = f"a component may have fitted no more than {description}"
            self.add(candidates, [replace(start, excluded=fibres) for start in first_two], reason)
        yield

    def steps_for_thin_rows(
        self, candidates: Candidates[Candidate], further_blocks: Iterable[int]
    ) -> Iterator[None]:
        """As `steps`, for data whose rows have few entries: component searches, no blocks."""
        count, settings = self.count, self.settings
        first = sum(settings.first_blocks)
        if count is not None:
            first = min(first, count - 1)
        self.add(candidates, list(itertools.islice(self.l1_proposals(), first)))
        yield
        max_additions = int(settings.max_addition_entries / self.fitter.problem.engine.count)
        max_additions = min(settings.max_additions, max_additions)
        self.add_component_searches(candidates, max_additions, "rows have few entries")
        yield
        self.add_exchanges(candidates)

    def add_component_searches(
        self, candidates: Candidates[Candidate], max_additions: int, reason: str
    ) -> None:
        """Add component searches; of large data on a subsample, unless rows have few entries."""
        remaining, settings, fitter = self.remaining_starts(candidates), self.settings, self.fitter
        if remaining <= 0:
            return
        LOG.info("%s: component searches", reason)
        engine, count = fitter.problem.engine, settings.component_searches
        if self.count is not None:
            count = max(remaining, 1) if self.is_thin else min(count, remaining)
        subsample = None
        if not self.is_thin and engine.count > settings.max_component_search_entries:
            entries = round(settings.max_component_search_entries / observed_share(engine))
            subsample = draw_indices(engine.shape, entries, self.rank, self.rng)
            fitter = make_fitter(
                fitter.problem, fitter.constraints, subsample, fitter.search_log, settings
            )
        begin = time.perf_counter()
        compiled = numba_kernels() is not None  # then threads pay for small data too
        new = search_components(
            fitter,
            self.rank,
            self.rng.spawn(count),
            max_additions,
            engine.executor.map_tasks if compiled else self.parallel_map,
        )
        if subsample is not None:
            new = [self._extend(candidate, subsample) for candidate in new]
        seconds = (time.perf_counter() - begin) / max(len(new), 1)
        candidates.add(replace(candidate, seconds=seconds) for candidate in new)

    def _extend(self, candidate: Candidate, subsample: Indices) -> Candidate:
        """A candidate for all data, from one of a subsample."""
        fitter = self.fitter
        factors = extend_factors(
            fitter.problem,
            subsample,
            candidate.factors,
            fitter.constraints,
            fitter.search_log,
            self.settings,
        )
        factors = fitter.fit_cauchy(factors)
        return replace(candidate, factors=factors, cost=fitter.criterion.cost(factors), fibres=None)

    def add(
        self, candidates: Candidates[Candidate], proposals: Sequence[Proposal], reason: str = ""
    ) -> None:
        """Fit some proposals and add the candidates."""
        candidates.add(self.fit(candidates, proposals, reason))

    def fit(
        self, candidates: Candidates[Candidate], proposals: Sequence[Proposal], reason: str
    ) -> list[Candidate]:
        """The candidates of some proposals, as many as remain."""
        proposals = proposals[: max(0, self.remaining_starts(candidates))]
        if not proposals:
            return []
        if reason:
            seconds = sum(candidate.seconds for candidate in candidates) / len(candidates)
            progress = ProgressReport(
                f"search: {reason}: {len(proposals)} x {proposals[0].family}",
                f"{candidates.count_same()} of {len(candidates)} starts agree",
                seconds_left=len(proposals) * seconds,
                estimate_scope=" for these starts",
            )
            LOG.info("%s", progress, extra={"step": progress})
        return self.fitter.fit_starts(
            f"round {len(candidates.rounds) + 1}",
            proposals,
            self.rank,
            self.rng.spawn(len(proposals)),
            self.parallel_map,
        )

    def add_exchanges(self, candidates: Candidates[Candidate]) -> None:
        """Exchange components of the best candidates; if enough agree, of the best one only."""
        settings, count = self.settings, max(self.fitter.problem.engine.count, 1)
        size = np.clip(settings.max_exchanged_entries // count, *settings.exchanged_candidates)
        patience = np.clip(settings.max_exchange_entries // count, *settings.exchange_patience)
        best, reason = candidates.distinct()[: int(size)], "starts disagree"
        if candidates.count_same() >= settings.sufficient_same_starts:
            best, reason = best[:1], "the best model may lack a component"
        best = [candidate for candidate in best if candidate not in self.exchanged]
        proposals = [ExchangeProposal(candidate, int(patience)) for candidate in best]
        fitted = self.fit(candidates, proposals, reason)
        self.exchanged.extend([*best[: len(fitted)], *fitted])
        candidates.add(new for new, old in zip(fitted, best, strict=False) if new.cost < old.cost)

    def explains_little(self, candidate: Candidate) -> bool:
        """Whether the entropy of the residuals is hardly lower than that of the data: then most of
        the data may be outliers."""
        criterion = self.fitter.criterion
        drop = criterion.null_entropy - criterion.candidate_entropy(candidate)
        return drop < self.settings.large_entropy_drop

    def agree(self, candidates: Candidates[Candidate]) -> bool:
        """Whether the search may end. It may not with a given number of starts; it may

        1. if the best model is exact, and none of its components is odd (localised, redundant or
           split);
        2. if three starts reached the best model, and exchanges did not improve it;
        3. if two starts reached it, its residuals are noise, and none of its components is odd, or
           exchanges did not improve it.

        If the best model explains little, 2 and 3 must wait until quantile starts were tried, and
        until three starts reached it or exchanges did not improve it. They need not wait where rows
        have few entries.
        """
        if self.count is not None:
            return False
        best, settings, criterion = candidates.best, self.settings, self.fitter.criterion
        if criterion.is_exact(best.factors) and not criterion.has_odd_component(best):
            return True
        same_count = candidates.count_same()
        exchanged, enough = best in self.exchanged, same_count >= settings.sufficient_same_starts
        if same_count == 1:
            return False
        tried = "quantile starts" in self.tried and (enough or exchanged)
        if not (self.is_thin or tried) and self.explains_little(best):
            return False
        if enough and exchanged:
            return True
        if not exchanged and criterion.has_odd_component(best):
            return False
        return criterion.is_noise(best.factors, best.fibres)
