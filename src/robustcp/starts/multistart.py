"""The multistart of `cp`: a search for candidates, and the starting points of the best of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from robustcp._util.interrupts import stop_requested
from robustcp.constraints import Constraints
from robustcp.model.kruskal import KruskalTensor
from robustcp.noise import estimate_rough_noise, find_outlying_fibres
from robustcp.optimize.problem import Problem
from robustcp.starts.candidates import Candidate, Candidates, Starts
from robustcp.starts.choice_of_starts import Search, make_fitter
from robustcp.starts.criterion import fibres_of_blocks, localised_components
from robustcp.starts.initial_factors import Initialization
from robustcp.starts.loose_fits import StartFitter
from robustcp.starts.search_log import SearchLog, transfer_factors
from robustcp.starts.settings import SEARCH_SETTINGS, SearchSettings
from robustcp.starts.start import Start, StartingPoint
from robustcp.starts.subsamples import (
    Indices,
    draw_first_subsample,
    draw_subsample,
    extend_factors,
)


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


@dataclass(frozen=True)
class Multistart(Start):
    """The best of several starts, each fitted just far enough to compare them.

    Most starts minimise the 1-norm, then Cauchy's loss. In every other start the 1-norm is that of
    residuals divided by the scale of their slab; proposals.py has all families. Starts are compared
    by the entropy of their residuals, so that a component for one large entry or one slab does not
    lower the cost; where rows have few entries, by their evidence.

    For large tensors the search uses a random subsample; all rows are then fitted by robust
    regression on the factors of the subsample.
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
        final_price = engine.count * rank * engine.order * settings.final_fit_sweeps
        max_price = max(settings.max_price_ratio * final_price, settings.min_price_limit)
        subsample, result, points = None, None, list[StartingPoint]()
        if self.count is None:
            subsample = draw_first_subsample(engine, rank, rng, settings)
        if subsample is not None:
            log = search_log.section("first look")
            fitter = make_fitter(problem, constraints, subsample, log, settings)
            result = Search(self.kind, self.count, fitter, rank, rng, max_price, settings).run(())
            if result.agree:
                points = self._starting_points(
                    fitter, subsample, result.candidates, problem, constraints
                )
        # A component that is localised in all data may have looked ordinary in the first part.
        search_again = not points or localised_components(points[0].factors, settings)
        if result is None or (search_again and not stop_requested()):
            subsample = draw_subsample(engine, rank, rng, settings)
            fitter = make_fitter(problem, constraints, subsample, search_log, settings)
            blocks: Iterable[int] = settings.further_blocks
            if self.count is not None:
                blocks = itertools.chain(blocks, itertools.repeat(settings.further_blocks[-1]))
            result = Search(self.kind, self.count, fitter, rank, rng, max_price, settings).run(
                blocks
            )
            points = []
        candidates, sufficient_rank = result.candidates, rank
        points = points or self._starting_points(
            fitter, subsample, candidates, problem, constraints
        )
        many = len(candidates) >= settings.many_starts
        if self.count is None and many:
            selected = candidates.select()[0]
            sufficient_rank = fitter.eliminate_components(selected)[0].shape[1]
        return replace(
            points[0],
            starts=_starts_of_candidates(problem, candidates),
            alternatives=tuple(points[1:]),
            sufficient_rank=sufficient_rank,
            reliable=result.agree and not many,
            search_limited=result.limited,
        )

    def _starting_points(
        self,
        fitter: StartFitter,
        subsample: Indices | None,
        candidates: Candidates[Candidate],
        problem: Problem,
        constraints: Constraints,
    ) -> list[StartingPoint]:
        """The starting points of the final fits, from the best of the selected candidates."""
        settings, numbers = self.settings, {id(c): number for number, c in enumerate(candidates)}
        alternatives = list[Candidate]()
        if fibres_of_blocks(candidates.best.factors, settings) is not None:
            # Its cost is lower if it has fitted a block; models without this are compared later.
            alternatives = [candidate for candidate in candidates if candidate.fibres is not None]
        max_final_fits = max(
            settings.min_final_fits, int(settings.max_final_fit_entries / problem.engine.count)
        )
        return [
            replace(
                _starting_point(problem, fitter, subsample, candidate, constraints),
                start_number=numbers[id(candidate)],
            )
            for candidate in candidates.select(alternatives)[:max_final_fits]
        ]


def _starting_point(
    problem: Problem,
    fitter: StartFitter,
    subsample: Indices | None,
    candidate: Candidate,
    constraints: Constraints,
) -> StartingPoint:
    """The starting point of the fit of all data, from a candidate that may be of a subsample."""
    if not fitter.criterion.needs_row_prior(candidate.factors[0].shape[1]):
        candidate = fitter.replace_redundant_component(candidate)
    factors, fibres, engine = candidate.factors, candidate.fibres, problem.engine
    if subsample is not None:
        if engine.count > fitter.settings.max_full_search_entries:
            factors = fitter.fit_standardized_l1(factors, fibres)  # this takes little time
        factors = extend_factors(
            problem, subsample, factors, constraints, fitter.search_log, fitter.settings
        )
        if fibres is not None:
            noise = estimate_rough_noise(engine, factors, problem.resolution)
            fibres = find_outlying_fibres(engine, factors, noise)
    factors = transfer_factors(engine, factors)
    return StartingPoint(factors, warm_start=True, fibres=fibres)


def _starts_of_candidates(problem: Problem, candidates: Candidates[Candidate]) -> Starts:
    """The costs and models of all candidates, in the units of the data."""
    units = problem.units
    models = (
        KruskalTensor.from_factors(units.factors_of_data(candidate.factors)).normalized()
        for candidate in candidates
    )
    costs = [candidate.cost + math.log(units.factor) for candidate in candidates]
    return Starts(
        costs,
        models=models,
        families=[candidate.family for candidate in candidates],
        seconds=[candidate.seconds for candidate in candidates],
    )
