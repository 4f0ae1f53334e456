"""The multistart of `cp`: rounds of proposals are fitted loosely until candidates agree."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from robustcp._util.interrupts import stop_requested
from robustcp.constraints import Constraints
from robustcp.engines.installed import numba_kernels
from robustcp.model.kruskal import KruskalTensor
from robustcp.model.metrics import factor_match_score
from robustcp.noise import estimate_rough_noise, find_outlying_fibres
from robustcp.optimize.problem import Problem
from robustcp.starts.candidates import Candidate, Candidates, Starts, multistart
from robustcp.starts.choice_of_starts import L1Proposal, Proposal, QuantileProposal, l1_proposals
from robustcp.starts.component_search import search_components
from robustcp.starts.criterion import localised_components
from robustcp.starts.initial_factors import Initialization
from robustcp.starts.loose_fits import ParallelMap, StartFitter, serial_map
from robustcp.starts.search_log import SearchLog, transfer_factors
from robustcp.starts.settings import SEARCH_SETTINGS, SearchSettings
from robustcp.starts.start import Start, StartingPoint
from robustcp.starts.subsamples import (
    Indices,
    draw_first_subsample,
    draw_subsample,
    extend_factors,
    restrict_constraints,
)

#: Reports at level INFO why the search continues.
LOG = logging.getLogger("robustcp.search")


@dataclass(frozen=True)
class SubsampleStart(Start):
    """Large tensors: the 1-norm fit of a subsample. Small ones: the same as `Initialization`."""

    kind: str

    def __call__(
        self,
        problem: Problem,
        rank: int,
        rng: np.random.Generator,
        constraints: Constraints,
        search_log: SearchLog | None = None,
    ) -> StartingPoint:
        subsample = draw_subsample(problem.engine, rank, rng)
        initialization = Initialization(self.kind)
        if subsample is None:
            return initialization(problem, rank, rng, constraints)
        search_log = search_log or SearchLog()
        fitter = make_fitter(problem, constraints, subsample, search_log)
        initial_factors = initialization(fitter.problem, rank, rng, constraints).factors
        share = fitter.settings.small_epsilon_share
        factors = fitter.fit_l1(initial_factors, share, 1e-5, 200)
        return StartingPoint(
            extend_factors(problem, subsample, factors, constraints, search_log), warm_start=True
        )


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


@dataclass(frozen=True)
class Multistart(Start):
    """The best of several starts, each fitted just far enough to compare them.

    A start minimises the 1-norm and then Cauchy's loss, of residuals divided by the scale of their
    slab. Starts are compared by the entropy of their residuals, so that a component for one large
    entry or one slab does not lower the cost.

    For large tensors the search uses a random subsample; the rows outside of it are then fitted by
    robust regression on the factors of the subsample.
    """

    kind: str
    count: int | None
    settings: SearchSettings = field(default=SEARCH_SETTINGS, repr=False)

    def __call__(
        self,
        problem: Problem,
        rank: int,
        rng: np.random.Generator,
        constraints: Constraints,
        search_log: SearchLog | None = None,
    ) -> StartingPoint:
        problem, search_log = problem.without_gross_outliers, search_log or SearchLog()
        engine, settings = problem.engine, self.settings
        if engine.max_abs == 0:
            return Initialization(self.kind)(problem, rank, rng, constraints)
        subsample, agree = None, False
        if self.count is None:
            subsample = draw_first_subsample(engine, rank, rng, settings)
        if subsample is not None:
            log = search_log.section("first look")
            fitter = make_fitter(problem, constraints, subsample, log, settings)
            sizes = settings.block_sizes[: settings.fallback_after_block + 1]
            candidates, agree = self._search(fitter, rank, rng, sizes)
        if not agree:
            subsample = draw_subsample(engine, rank, rng, settings)
            fitter = make_fitter(problem, constraints, subsample, search_log, settings)
            sizes = settings.block_sizes if self.count is None else (self.count,)
            candidates, agree = self._search(fitter, rank, rng, sizes)
        max_final_fits = max(
            settings.min_final_fits, int(settings.max_final_fit_entries / engine.count)
        )
        selected, sufficient_rank = candidates.select()[:max_final_fits], rank
        many = len(candidates) >= settings.many_starts
        if self.count is None and many:
            sufficient_rank = fitter.eliminate_components(selected[0])[0].shape[1]
        positions = {id(candidate): number for number, candidate in enumerate(candidates)}
        first, *alternatives = (
            replace(
                _starting_point(problem, fitter, subsample, candidate, constraints),
                start_number=positions[id(candidate)],
            )
            for candidate in selected
        )
        return replace(
            first,
            starts=_starts_of_candidates(problem, candidates),
            alternatives=tuple(alternatives),
            sufficient_rank=sufficient_rank,
            reliable=agree and not many and first.reliable,
        )

    def _search(
        self, fitter: StartFitter, rank: int, rng: np.random.Generator, sizes: Sequence[int]
    ) -> tuple[Candidates[Candidate], bool]:
        """The candidates, and whether they agree."""
        search = _Search(self, fitter, rank, rng)
        if not fitter.criterion.needs_row_prior(rank):
            return multistart(
                lambda candidates: search.add_rounds(candidates, sizes), search.agree, self.settings
            )
        candidates, agree = multistart(
            search.add_thin_row_round,
            lambda candidates: self.count is None and search.agree(candidates),
            self.settings,
        )
        if not agree and not stop_requested():
            search.add_components_of_thin_rows(candidates)
        return candidates, agree


@dataclass(frozen=True, eq=False)
class _Search:
    """The rounds of proposals of one search, and its rule of agreement."""

    start: Multistart
    fitter: StartFitter
    rank: int
    rng: np.random.Generator

    @property
    def settings(self) -> SearchSettings:
        return self.start.settings

    @property
    def parallel_map(self) -> ParallelMap:
        engine = self.fitter.problem.engine
        parallel = engine.count >= self.settings.min_parallel_entries
        return engine.executor.map_tasks if parallel else serial_map

    def proposals(self) -> Iterator[L1Proposal]:
        """Starts that minimise the 1-norm, most promising first."""
        engine, reorder = self.fitter.problem.engine, self.start.count is None
        return l1_proposals(engine, self.start.kind, reorder, self.settings)

    def fit(
        self, name: str, proposals: Iterable[Proposal], count: int, parallel_map: ParallelMap
    ) -> list[Candidate]:
        """The candidates of the first `count` proposals."""
        items = list(zip(proposals, self.rng.spawn(count), strict=False))
        return self.fitter.fit_starts(
            name, lambda fitter, item: item[0].fit(fitter, self.rank, item[1]), items, parallel_map
        )

    def add_rounds(self, candidates: Candidates[Candidate], sizes: Sequence[int]) -> Iterator[None]:
        """Add blocks of starts of these sizes, and after block `fallback_after_block` also quantile
        starts and component searches. Yields whenever agreement is to be tested."""
        settings, proposals = self.settings, iter(self.proposals())
        for block, size in enumerate(sizes):
            last = block + 1 == len(sizes)
            self.add_block(candidates, itertools.islice(proposals, size), size)
            if not last:
                self.add_starts_without_artifacts(candidates)
            yield
            if block == settings.fallback_after_block and not last:
                LOG.info("starts disagree; trying starts for a majority of outliers")
                kinds = settings.quantile_starts
                quantile_proposals = [QuantileProposal(*kind) for kind in kinds]
                candidates.add(
                    self.fit("quantile starts", quantile_proposals, len(kinds), self.parallel_map)
                )
                yield
                if self.rank <= settings.max_component_search_rank:
                    LOG.info("starts disagree; running component searches")
                    rngs = self.rng.spawn(settings.component_searches)
                    additions = settings.max_fallback_additions
                    candidates.add(
                        search_components(
                            self.fitter, self.rank, rngs, additions, self.parallel_map
                        )
                    )
                    yield
            LOG.info("%d starts, no agreement yet", len(candidates))

    def add_block(
        self, candidates: Candidates[Candidate], proposals: Iterable[Proposal], count: int
    ) -> None:
        name = f"block {len(candidates.rounds) + 1}"
        candidates.add(self.fit(name, proposals, count, self.parallel_map))

    def add_starts_without_artifacts(self, candidates: Candidates[Candidate]) -> None:
        """Add two starts without outlying fibres, if a localised component of the best candidate
        may have fitted such fibres."""
        fibres = self.fitter.find_artifact_fibres(candidates.best)
        if fibres is None:
            return
        description = fibres.describe(self.fitter.problem.engine.view.axes)
        LOG.info("a component is localised on a few slabs; starting without %s", description)
        proposals = (replace(proposal, excluded=fibres) for proposal in self.proposals())
        self.add_block(candidates, proposals, 2)

    def add_thin_row_round(self, candidates: Candidates[Candidate]) -> Iterator[None]:
        """Add starts that minimise the 1-norm, for data whose rows have few entries."""
        count = self.start.count
        plain = 4 if count is None else min(2, count - self.component_search_count)
        candidates.add(self.fit("plain", self.proposals(), plain, serial_map))
        yield

    def add_components_of_thin_rows(self, candidates: Candidates[Candidate]) -> None:
        """Add component searches, for data whose rows have few entries."""
        LOG.info("rows with few entries; running component searches until two agree")
        settings, engine = self.settings, self.fitter.problem.engine
        limit = int(settings.max_addition_entries / engine.count)
        rngs = self.rng.spawn(self.component_search_count)
        compiled = numba_kernels() is not None  # then threads pay for small data too
        parallel_map = engine.executor.map_tasks if compiled else self.parallel_map
        candidates.add(
            search_components(
                self.fitter, self.rank, rngs, min(settings.max_additions, limit), parallel_map
            )
        )

    @property
    def component_search_count(self) -> int:
        count = self.start.count
        return self.settings.component_searches if count is None else max(1, count - 2)

    def agree(self, candidates: Candidates[Candidate]) -> bool:
        """Whether the search may stop: enough candidates have the best model; or at least two do,
        and its residuals are noise, no component of it is localised and, with few starts, its
        entropy is far below the entropy of the data.
        """
        best, settings, criterion = candidates.best, self.settings, self.fitter.criterion
        many, same_count = len(candidates) >= settings.many_starts, candidates.count_same()
        if same_count == 1 and many:
            same_count = self._count_same_reduced_model(candidates)
        if same_count >= settings.sufficient_same_starts:
            return True
        if not many and criterion.null_entropy - best.cost < settings.large_entropy_drop:
            return False  # most of the data may be outliers
        return (
            same_count > 1
            and not localised_components(best.factors, settings)
            and criterion.is_noise(best.factors, best.fibres)
        )

    def _count_same_reduced_model(self, candidates: Candidates[Candidate]) -> int:
        """How many candidates have the model of the best one without its redundant components."""
        best = candidates.best
        factors = self.fitter.eliminate_components(best)
        if factors[0].shape[1] == best.factors[0].shape[1]:
            return 1
        model = KruskalTensor.from_factors(factors)
        models = [other.model for other in candidates if other.model.shape == model.shape]
        scores = [factor_match_score(other, model, weights=False) for other in models]
        return sum(score > self.settings.same_model_score for score in scores)


def _starting_point(
    problem: Problem,
    fitter: StartFitter,
    subsample: Indices | None,
    candidate: Candidate,
    constraints: Constraints,
) -> StartingPoint:
    """The starting point of the fit of all data, from a candidate that may be of a subsample."""
    factors, fibres, engine = candidate.factors, candidate.fibres, problem.engine
    reliable = False
    if not fitter.criterion.needs_row_prior(factors[0].shape[1]):
        refitted = fitter.replace_redundant_component(candidate)
        factors, reliable = refitted.factors, refitted is candidate
    if subsample is not None:
        if engine.count > fitter.settings.max_full_search_entries:
            factors = fitter.fit_standardized_l1(factors, fibres)  # its cost is small
        factors = extend_factors(
            problem, subsample, factors, constraints, fitter.search_log, fitter.settings
        )
        if fibres is not None:
            noise = estimate_rough_noise(engine, factors, problem.resolution)
            fibres = find_outlying_fibres(engine, factors, noise)
    factors = transfer_factors(engine, factors)
    return StartingPoint(factors, warm_start=True, fibres=fibres, reliable=reliable)


def _starts_of_candidates(problem: Problem, candidates: Candidates[Candidate]) -> Starts:
    """The costs and models of all candidates, in the units of the data."""
    units = problem.units
    models = (
        KruskalTensor.from_factors(units.factors_of_data(candidate.factors)).normalized()
        for candidate in candidates
    )
    costs = [candidate.cost + math.log(units.factor) for candidate in candidates]
    return Starts(costs, models=models)
