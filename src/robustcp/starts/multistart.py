"""Where a fit begins: given factors, singular vectors, a part of the data, the best of trials."""

from __future__ import annotations

import itertools
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, cast

import numpy as np

from robustcp._util import checks
from robustcp._util.typing import Factors
from robustcp.constraints import Constraints
from robustcp.engines import Engine, Fibres, to_host
from robustcp.losses import L1
from robustcp.model.kruskal import KruskalTensor
from robustcp.model.metrics import concentration, factor_match_score
from robustcp.noise import (
    Noise,
    estimate_rough_noise,
    find_outlying_fibres,
    measure_structure,
    median_magnitude,
    model_entropy,
)
from robustcp.optimize.posterior import Entries, Posterior
from robustcp.optimize.problem import Problem
from robustcp.optimize.row_prior import RowPrior
from robustcp.optimize.schedules import (
    CauchyContinuation,
    Continuation,
    NarrowWelsch,
    QuantileContinuation,
    Schedule,
    StandardizedL1,
    most_are_outliers,
)
from robustcp.optimize.solver import Solver, Stage
from robustcp.starts import initial_factors as starting
from robustcp.starts.component_search import (
    ComponentSearch,
    extend_to_all_data,
    flag_fibres_of_posterior,
)
from robustcp.starts.search_log import SearchLog, transfer_factors
from robustcp.starts.spectral import spectral_factors

#: Where the search says, at the level INFO, why it goes on.
LOG = logging.getLogger("robustcp.search")

#: How many starts "auto" tries at once: more only if those before do not agree.
AUTO_BLOCK_SIZES = (2, 2, 2, 6, 8)
#: If more than this share of the entries is positive, the first starts are tried in this order.
MOSTLY_POSITIVE_SHARE, POSITIVE_DATA_ORDER = 0.9, (3, 1, 2, 0)
#: Component searches, components that each proposes at a time, and at most: where rows
#: have few entries, and where nothing else is found after the first blocks.
(
    COMPONENT_SEARCHES,
    ADDITIONS_PER_ROUND,
    MIN_ADDITIONS_IF_PRUNED,
    ADDITION_PATIENCE,
    MAX_ADDITIONS,
    MAX_FALLBACK_ADDITIONS,
    FALLBACK_AFTER_BLOCK,
) = 2, 4, 20, 32, 80, 8, 1
#: Entries, times proposals, that are worth it where rows have few entries.
MAX_ADDITION_ENTRIES = MAX_ADDITIONS << 13
#: On so many entries, or else on a part of so many; and not for more components.
MAX_COMPONENT_SEARCH_ENTRIES, COMPONENT_SEARCH_SUBSAMPLE, MAX_COMPONENT_SEARCH_RANK = (
    1 << 16,
    1 << 14,
    8,
)
#: Starts for data of which most entries are outliers: their kinds, and the quantiles that lead.
QUANTILE_STARTS = (("clipped", 0.2), ("clipped", 0.8), ("positive", 0.2), ("positive", 0.5))
#: If so many starts agree there is no better place to be found, whatever residuals look like.
SUFFICIENT_SAME_STARTS = 6
#: From so many starts on, they may agree but for components that would not be missed: without
#: such a one the cost per entry rises by less than this for each of its numbers.
MANY_STARTS, COST_PER_PARAMETER = 8, 2.0
#: By how much a model should lower the entropy.
LARGE_ENTROPY_DROP = 1.0
#: So many entries for each parameter are enough to tell something.
MIN_ENTRIES_PER_PARAMETER = 2
#: A component is not missed if the entropy without it rises by no more than this.
NEGLIGIBLE_ENTROPY_RISE = 0.005
#: A component lives on a few rows if this share of them holds that share of its squares.
LOCALISED_ROW_SHARE, LOCALISED_ENERGY_SHARE = 0.05, 0.9
#: A start whose cost, per entry, is higher than that of the best by this is not followed further.
MAX_COST_GAP = 0.05
#: Starts that are followed to the end, if so many are needed: entries, times starts, and the least.
MAX_FINAL_FIT_ENTRIES, MIN_FINAL_FITS = 1 << 20, 3
#: The cosine of columns that are alike; the size of a component that is yet to find its place.
SIMILAR_COSINE, NEW_COMPONENT_SIZE = 0.8, 0.1
#: The factor match score, without weights, of models that are the same.
SAME_MODEL_SCORE = 0.95
#: Tensors with more entries are tried on a part of about PART entries.
MAX_FULL_SEARCH_ENTRIES, SUBSAMPLE_ENTRIES = 1 << 20, 1 << 17
#: Of tensors with more entries the first look is at a quarter.
MIN_FIRST_SUBSAMPLE_ENTRIES = 1 << 16
#: From so many entries on, starts are followed side by side.
MIN_PARALLEL_ENTRIES = 1 << 15
#: The share of the data's size, squared, that the smoothing of a start begins with. Where strong
#: artifacts lead astray a small one is better, for sparse data a large one: so both are tried.
FIRST_EPSILON_SHARES = (0.03, 1.0)
#: Starts are followed down to this share, loosely.
LOWEST_EPSILON_SHARE = 1e-4
#: Starts that end this close to the best, relatively, have reached it.
SAME_OBJECTIVE_TOL = 5e-3


#: Does some work for each of several items, perhaps side by side.
ParallelMap = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]


class Starts(tuple[float, ...]):
    """What the starts of a fit ended at: objectives in the data's units; or, where starts were
    tried before some were followed to the end, what they cost then (see `cp`).

    If few of many reached the best, there may be a better one still.

    Attributes
    ----------
    reached : int
        How many ended at the best model; where models were not compared, within 0.5% of the best.
    final : tuple of (float or None), one for each start
        What those that were followed to the end cost there, on the same scale; else None.
    models : tuple of KruskalTensor, one for each start
        Where it ended; empty for a fit that was read from a file. Of large data, starts are tried
        on a part, and their models are of that part.
    """

    reached: int
    final: tuple[float | None, ...]
    models: tuple[KruskalTensor, ...]

    def __new__(
        cls,
        values: Iterable[float],
        reached: int | None = None,
        final: Iterable[float | None] = (),
        models: Iterable[KruskalTensor] = (),
    ) -> Starts:
        starts = super().__new__(cls, values)
        if reached is None:
            reached = sum(value <= min(starts) * (1 + SAME_OBJECTIVE_TOL) for value in starts)
        starts.reached = reached
        starts.final = tuple(final) or (None,) * len(starts)
        starts.models = tuple(models)
        return starts

    def __repr__(self) -> str:
        final_values = [value for value in self.final if value is not None]
        best = f"{min(final_values or self):.6g}"
        return f"Starts({self.reached} of {len(self)} reached the best, {best})"

    def with_final(self, number: int, value: float, model: KruskalTensor) -> Starts:
        """With what a start cost that was followed to the end, and where it ended."""
        final = (*self.final[:number], value, *self.final[number + 1 :])
        models = self.models
        if models and models[number].shape == model.shape:
            models = (*models[:number], model, *models[number + 1 :])
        return Starts(self, self.reached, final, models)

    def recount_reached(self, number: int) -> Starts:
        """With the number of starts whose models are the same as that of one of them."""
        if not self.models:
            return self
        reached = sum(is_same_model(model, self.models[number]) for model in self.models)
        return Starts(self, reached, self.final, self.models)


def is_same_model(model: KruskalTensor, other: KruskalTensor) -> bool:
    """Whether two models are the same, by their factors."""
    if model.shape != other.shape or model.rank != other.rank:
        return False
    return model is other or factor_match_score(model, other, weights=False) > SAME_MODEL_SCORE


@dataclass(frozen=True, eq=False)
class Candidate:
    """Where a start ended: its factors, what they cost, and fibres that are left out there.

    The cost is the entropy of the residuals; where rows have few entries, minus the log evidence.
    """

    factors: Factors
    cost: float
    fibres: Fibres | None = None

    @cached_property
    def model(self) -> KruskalTensor:
        return KruskalTensor.from_factors(self.factors)


def _count_same_model(candidates: Sequence[Candidate], best: Candidate) -> int:
    """How many ends are the same model as the best, by their factors."""
    return sum(
        candidate is best or is_same_model(candidate.model, best.model) for candidate in candidates
    )


@dataclass(frozen=True, eq=False)
class StartingPoint:
    """Where a fit begins.

    Attributes
    ----------
    factors : tuple of arrays
        In the units of the fit.
    warm_start : bool
        Whether they may be good already, so that stages begin near them.
    starts : Starts, optional
        The trials that they are one of, and
    start_number : int
        which of them.
    alternatives : tuple of StartingPoint
        Where else it is worth to begin: what is best in the end decides.
    fibres : Fibres, optional
        What is to be left out of the data to begin with.
    bad_samples : array of bool, optional
        Samples that are to be left out to begin with, where a mode holds samples.
    sufficient_rank : int, optional
        How many components seem to be enough, where that was asked.
    reliable : bool
        Whether the first starts agreed, and each component is needed and explains much.
    """

    factors: Factors
    warm_start: bool = False
    starts: Starts | None = None
    start_number: int = 0
    fibres: Fibres | None = None
    alternatives: tuple[StartingPoint, ...] = ()
    bad_samples: np.ndarray | None = None
    sufficient_rank: int | None = None
    reliable: bool = False


class Start(ABC):
    """A kind of start; the runs that it takes are kept in a search log."""

    @abstractmethod
    def __call__(
        self,
        problem: Problem,
        rank: int,
        rng: np.random.Generator,
        constraints: Constraints,
        search_log: SearchLog | None = None,
    ) -> StartingPoint: ...


@dataclass(frozen=True)
class GivenStart(Start):
    """Factors, a KruskalTensor or a Fit that the user has, in the units of the data."""

    init: Any

    def __call__(
        self,
        problem: Problem,
        rank: int,
        rng: np.random.Generator,
        constraints: Constraints,
        search_log: SearchLog | None = None,
    ) -> StartingPoint:
        factors = starting.factors_from_init(problem.engine, rank, self.init)
        return StartingPoint(problem.units.factors_of_fit(factors), warm_start=True)


@dataclass(frozen=True)
class Initialization(Start):
    """Factors of a kind: "nvecs" (as "auto"), "clipped", "spectral", "random" or "positive".

    Singular vectors are those of the data; "clipped" cuts it at the size of ordinary entries.
    "spectral" is for few entries, see `spectral_factors`, which are cut at their median magnitude.
    """

    kind: str

    def __call__(
        self,
        problem: Problem,
        rank: int,
        rng: np.random.Generator,
        constraints: Constraints,
        search_log: SearchLog | None = None,
    ) -> StartingPoint:
        engine, order = problem.engine, problem.units.order
        if self.kind in ("random", "positive"):
            factors = starting.random_factors(engine, rank, rng)
            if self.kind == "positive":
                factors = tuple(engine.xp.abs(A) for A in factors)
        elif self.kind == "spectral":  # there is nothing left of their size that misleads
            factors = spectral_factors(
                engine.clipped(median_magnitude(engine.sample().values)), rank, rng
            )
        else:
            clipped = self.kind == "clipped"
            source = engine.clipped(problem.ordinary_magnitude) if clipped else problem.clipped
            factors = tuple(starting.nvecs(source, n, rank, rng=rng) for n in range(order))
        size = problem.scale if engine.max_abs > 0 else 0.0  # zeros: the model is zero at once
        return StartingPoint(tuple(A * size ** (1 / order) for A in factors))


@dataclass(frozen=True)
class SubsampleStart(Start):
    """For a large tensor, the 1-norm fit of a part of it; for a small one as `Initialization`."""

    kind: str

    def __call__(
        self,
        problem: Problem,
        rank: int,
        rng: np.random.Generator,
        constraints: Constraints,
        search_log: SearchLog | None = None,
    ) -> StartingPoint:
        subsample = _draw_subsample(problem.engine, rank, rng)
        initialization = Initialization(self.kind)
        if subsample is None:
            return initialization(problem, rank, rng, constraints)
        subtensor = problem.engine.subtensor(subsample).in_memory
        search_log = search_log or SearchLog()
        search = StartSearch(
            problem.with_engine(subtensor), restrict_constraints(constraints, subsample), search_log
        )
        initial_factors = initialization(search.problem, rank, rng, constraints).factors
        factors = search.fit_l1(initial_factors, FIRST_EPSILON_SHARES[0], 1e-5, 200)
        return StartingPoint(
            extend_factors(problem, subsample, factors, constraints, search_log), warm_start=True
        )


@dataclass(frozen=True)
class Multistart(Start):
    """The best of several starts, followed just far enough to tell.

    They are followed by the 1-norm and then by Cauchy's loss, of residuals in units of the spread
    of their slabs, and compared by the entropy of their residuals: so neither a large entry nor a
    slab can buy a component.

    Large tensors are tried on a random part, and the rows that the part leaves out are then
    found by robust regression on its factors.
    """

    kind: str
    count: int | None

    def __call__(
        self,
        problem: Problem,
        rank: int,
        rng: np.random.Generator,
        constraints: Constraints,
        search_log: SearchLog | None = None,
    ) -> StartingPoint:
        problem, search_log = problem.without_gross_outliers, search_log or SearchLog()
        engine = problem.engine
        if engine.max_abs == 0:
            return Initialization(self.kind)(problem, rank, rng, constraints)
        subsample, converged = (
            _draw_first_subsample(engine, rank, rng) if self.count is None else None,
            False,
        )
        if subsample is not None:
            subtensor = engine.subtensor(subsample).in_memory
            first_log = search_log.section("first look")
            search = StartSearch(
                problem.with_engine(subtensor),
                restrict_constraints(constraints, subsample),
                first_log,
            )
            blocks, converged = self._fit_blocks(
                search, rank, rng, AUTO_BLOCK_SIZES[: FALLBACK_AFTER_BLOCK + 1]
            )
        if not converged:
            subsample = _draw_subsample(engine, rank, rng)
            subtensor = (engine if subsample is None else engine.subtensor(subsample)).in_memory
            subsample_constraints = (
                constraints if subsample is None else restrict_constraints(constraints, subsample)
            )
            search = StartSearch(problem.with_engine(subtensor), subsample_constraints, search_log)
            block_sizes = AUTO_BLOCK_SIZES if self.count is None else (self.count,)
            blocks, converged = self._fit_blocks(search, rank, rng, block_sizes)
        candidates = [candidate for block in blocks for candidate in block]
        log_unit = math.log(problem.units.factor)
        starts = Starts(
            [candidate.cost + log_unit for candidate in candidates],
            models=[_model_in_data_units(problem, candidate) for candidate in candidates],
        )
        max_final_fits = max(MIN_FINAL_FITS, int(MAX_FINAL_FIT_ENTRIES / engine.count))
        selected, sufficient_rank = _select_candidates(blocks)[:max_final_fits], rank
        if self.count is None and len(candidates) >= MANY_STARTS:
            sufficient_rank = search.eliminate_components(selected[0])[0].shape[1]
        first, *alternatives = (
            self._starting_point(
                problem, search, subsample, candidate, constraints, candidates.index(candidate)
            )
            for candidate in selected
        )
        reliable = converged and len(candidates) < MANY_STARTS and first.reliable
        return replace(
            first,
            starts=starts,
            alternatives=tuple(alternatives),
            sufficient_rank=sufficient_rank,
            reliable=reliable,
        )

    def _starting_point(
        self,
        problem: Problem,
        search: StartSearch,
        subsample: list[np.ndarray | None] | None,
        candidate: Candidate,
        constraints: Constraints,
        number: int,
    ) -> StartingPoint:
        """Where the fit of all data begins, given where a start ended."""
        factors, fibres, engine, reliable = (
            candidate.factors,
            candidate.fibres,
            problem.engine,
            False,
        )
        if not search.needs_row_prior(factors[0].shape[1]):
            refitted = search.replace_redundant_component(candidate)
            factors, reliable = refitted.factors, refitted is candidate
        if subsample is not None:
            if (
                engine.count > MAX_FULL_SEARCH_ENTRIES
            ):  # what is settled here costs little beside the whole
                factors = search.fit_standardized_l1(factors, fibres)
            factors = extend_factors(problem, subsample, factors, constraints, search.search_log)
            if fibres is not None:
                fibres = find_outlying_fibres(
                    engine, factors, estimate_rough_noise(engine, factors, problem.resolution)
                )
        return StartingPoint(
            transfer_factors(engine, factors),
            warm_start=True,
            start_number=number,
            fibres=fibres,
            reliable=reliable,
        )

    def _fit_blocks(
        self, search: StartSearch, rank: int, rng: np.random.Generator, block_sizes: Sequence[int]
    ) -> tuple[list[list[Candidate]], bool]:
        """Where the starts end, in blocks: until some agree, or as many as asked for; and whether
        they agree."""
        engine = search.problem.engine
        parallel_map = (
            engine.executor.map_tasks if engine.count >= MIN_PARALLEL_ENTRIES else _serial_map
        )
        if search.needs_row_prior(rank):
            search_count = COMPONENT_SEARCHES if self.count is None else max(1, self.count - 2)
            plain_count = 4 if self.count is None else min(2, self.count - search_count)
            rngs_and_kinds = zip(rng.spawn(plain_count), self._ordered_kinds(engine), strict=False)
            starts = [(*kind, start_rng) for start_rng, kind in rngs_and_kinds]
            candidates = search.fit_starts(
                "plain", lambda search, start: search.fit_start(rank, *start), starts
            )
            if self.count is None and search.have_starts_converged([candidates]):
                return [candidates], True
            LOG.info("rows with few entries; components come and go until two chains agree")
            max_additions = min(MAX_ADDITIONS, int(MAX_ADDITION_ENTRIES / engine.count))
            return [
                candidates,
                search.search_components(
                    rank, rng.spawn(search_count), max_additions, parallel_map
                ),
            ], False
        kinds = iter(self._ordered_kinds(engine))
        blocks: list[list[Candidate]] = []
        for block, size in enumerate(block_sizes):
            starts = [
                (*kind, start_rng) for start_rng, kind in zip(rng.spawn(size), kinds, strict=False)
            ]
            candidates = search.fit_starts(
                f"block {len(blocks) + 1}",
                lambda search, start: search.fit_start(rank, *start),
                starts,
                parallel_map,
            )
            blocks.append(candidates)
            if block + 1 < len(block_sizes):
                blocks += self._fit_without_artifacts(search, blocks, rank, rng, parallel_map)
            if (
                block == FALLBACK_AFTER_BLOCK
                and block + 1 < len(block_sizes)
                and not search.have_starts_converged(blocks)
            ):
                LOG.info("starts disagree; looking at outliers that are most of the entries")
                quantile_starts = list(
                    zip(QUANTILE_STARTS, rng.spawn(len(QUANTILE_STARTS)), strict=True)
                )
                candidates = search.fit_starts(
                    "beside",
                    lambda search, start: search.fit_quantile_start(rank, *start),
                    quantile_starts,
                    parallel_map,
                )
                blocks.append(candidates)
                if rank <= MAX_COMPONENT_SEARCH_RANK and not search.have_starts_converged(blocks):
                    LOG.info("starts disagree; looking for fibres that are outlying")
                    blocks.append(
                        search.search_components(
                            rank,
                            rng.spawn(COMPONENT_SEARCHES),
                            MAX_FALLBACK_ADDITIONS,
                            parallel_map,
                        )
                    )
            if search.have_starts_converged(blocks):
                return blocks, True
            LOG.info("%d starts, and none to rely on yet", sum(map(len, blocks)))
        return blocks, False

    def _fit_without_artifacts(
        self,
        search: StartSearch,
        blocks: Sequence[Sequence[Candidate]],
        rank: int,
        rng: np.random.Generator,
        parallel_map: ParallelMap,
    ) -> list[list[Candidate]]:
        """Starts without fibres that the best so far may have spent a component on, if it has."""
        best = min(
            (candidate for block in blocks for candidate in block),
            key=lambda candidate: candidate.cost,
        )
        fibres = search.find_artifact_fibres(best)
        if fibres is None:
            return []
        description = fibres.describe(search.problem.engine.view.axes)
        LOG.info("a component lives on a few slabs; starting without %s", description)
        kinds = self._ordered_kinds(search.problem.engine)
        starts = [(*kind, start_rng) for start_rng, kind in zip(rng.spawn(2), kinds, strict=False)]
        return [
            search.fit_starts(
                f"block {len(blocks) + 1}",
                lambda search, start: search.fit_start_without(fibres, rank, *start),
                starts,
                parallel_map,
            )
        ]

    def _ordered_kinds(self, engine: Engine) -> Iterable[tuple[int, str, float]]:
        """Starts by number, with their kinds and first smoothing (see `StartSearch.fit_start`).

        For data that is mostly positive, those from positive factors that the plain 1-norm leads
        are first: these end at the same model most often. Where a number of starts is asked for,
        those that differ most are first.
        """
        numbered = ((number, *kind) for number, kind in enumerate(self._kinds(engine)))
        if self.kind == "auto" and self.count is None and _is_mostly_positive(engine):
            first = list(itertools.islice(numbered, len(POSITIVE_DATA_ORDER)))
            yield from (first[number] for number in POSITIVE_DATA_ORDER)
        yield from numbered

    def _kinds(self, engine: Engine) -> Iterable[tuple[str, float]]:
        """Kinds of starts and their first smoothing, best guesses first, without end."""
        small_share, large_share = FIRST_EPSILON_SHARES
        if self.kind == "auto" and _observed_share(engine) > 0.4:
            yield from (("clipped", small_share), ("positive", large_share), ("nvecs", large_share))
        elif self.kind == "auto":
            yield from (
                ("spectral", small_share),
                ("positive", small_share),
                ("spectral", large_share),
            )
        elif self.kind == "nvecs":
            yield "nvecs", small_share
        while True:
            yield from (
                ("positive", small_share),
                ("random", large_share),
                ("positive", large_share),
                ("random", small_share),
            )


def make_starts(
    init: Any, count: int, start_type: Callable[[str], Start] = Initialization
) -> list[Start]:
    """The start that is asked for, and so many more at random."""
    first = start_type(init) if isinstance(init, str) else GivenStart(init)
    return [first, *(start_type("random") for _ in range(count - 1))]


def zero_unobserved_rows(
    problem: Problem, factors: Factors, modes: Sequence[int], constraints: Constraints
) -> Factors:
    """Rows to be solved for of which no entry was observed are set to zero, with a warning.

    Not so where they follow from other rows; and without a warning where that was meant.
    """
    engine = problem.engine
    if engine.complete:
        return factors
    new_factors = []
    for mode, A in enumerate(factors):
        rows_independent = mode in modes and not constraints[mode].couples_rows
        unobserved = (
            np.flatnonzero(engine.slab_counts(mode) == 0) if rows_independent else np.array([])
        )
        if np.setdiff1d(unobserved, problem.excluded_slabs.get(mode, ())).size:
            shown = ", ".join(map(str, unobserved[:5])) + (", ..." if unobserved.size > 5 else "")
            checks.warn(
                f"X: {unobserved.size} slabs of mode {mode} have no observed entry ({shown}); "
                "their rows of the factor are 0"
            )
        if unobserved.size:
            observed_mask = np.ones((engine.shape[mode], 1))
            observed_mask[unobserved] = 0.0
            A = A * engine.asarray(observed_mask)
        new_factors.append(A)
    return tuple(new_factors)


@dataclass(frozen=True)
class StartSearch:
    """Fits by the 1-norm that only have to tell starts apart."""

    problem: Problem
    constraints: Constraints
    search_log: SearchLog = field(default_factory=SearchLog, repr=False, compare=False)

    def fit_starts(
        self,
        name: str,
        work: Callable[[StartSearch, Any], Candidate],
        items: Sequence[Any],
        parallel_map: ParallelMap | None = None,
    ) -> list[Candidate]:
        """The candidates of some starts, each with a part of the search log of its own."""
        tasks = [
            (replace(self, search_log=self.search_log.section(f"{name}, start {k + 1}")), item)
            for k, item in enumerate(items)
        ]
        return (parallel_map or _serial_map)(lambda task: work(*task), tasks)

    @property
    def _lowest_loss(self) -> L1:
        """Within a quantisation step residuals cannot be told apart."""
        half_step = self.problem.resolution.step / 2
        return L1(max(LOWEST_EPSILON_SHARE * self.problem.ordinary_magnitude**2, half_step**2))

    def _l1_solver(self, share: float, tol: float) -> Solver:
        lowest = self._lowest_loss.epsilon
        schedule = Continuation(max(lowest, share * self.problem.ordinary_magnitude**2), lowest)
        stage = Stage("starts", schedule, tol, self.problem.relative_mu(1e-8), 10)
        return Solver(self.problem, (stage,), constraints=self.constraints)

    def fit_l1(self, factors: Factors, share: float, tol: float, max_sweeps: int) -> Factors:
        """Follow a start by the 1-norm for so many sweeps."""
        solver = self._l1_solver(share, tol)
        return self.search_log.run(solver, lambda: solver.start(factors), max_sweeps)

    def fit_start(
        self, rank: int, number: int, kind: str, share: float, rng: np.random.Generator
    ) -> Candidate:
        """Follow a start.

        Every third, and all late ones, have a component too many, which is taken away in the end.
        Every other one is led by the plain 1-norm, for components that live on a few slabs only.
        """
        has_extra = number % 3 == 2 or number >= 6
        initial_factors = Initialization(kind)(
            self.problem, rank + has_extra, rng, self.constraints
        ).factors
        continuation = Continuation(*self._epsilon_range(share))
        schedule = (
            continuation if number % 2 else StandardizedL1(continuation, self.problem.resolution)
        )
        factors = self._run_stages([self._stage(schedule, 1), self._cauchy_stage], initial_factors)
        if has_extra:
            factors = self._run_stages([self._cauchy_stage], self.prune_component(factors).factors)
        return Candidate(factors, self.cost(factors))

    def fit_quantile_start(
        self, rank: int, kind_and_quantile: tuple[str, float], rng: np.random.Generator
    ) -> Candidate:
        """Follow a start by a quantile, then by a loss that is narrow: for many outliers."""
        kind, tau = kind_and_quantile
        initial_factors = Initialization(kind)(self.problem, rank, rng, self.constraints).factors
        schedule = QuantileContinuation(Continuation(*self._epsilon_range(1.0)), tau)
        narrow_stage = replace(
            self._stage(NarrowWelsch(self.problem.resolution), 2), tol=1e-4, level_sweeps=30
        )
        factors = self._run_stages(
            [narrow_stage],
            self._run_stages([self._stage(schedule, 1)], initial_factors),
            max_sweeps=300,
        )
        return Candidate(factors, self.entropy(factors))

    def fit_start_without(
        self,
        fibres: Fibres,
        rank: int,
        number: int,
        kind: str,
        share: float,
        rng: np.random.Generator,
    ) -> Candidate:
        """Follow a start on the data without some fibres."""
        search = replace(
            self, problem=self.problem.with_engine(self.problem.engine.without_fibres(fibres))
        )
        factors = search.fit_start(rank, number, kind, share, rng).factors
        return Candidate(factors, self.cost(factors), fibres)

    def find_artifact_fibres(self, candidate: Candidate) -> Fibres | None:
        """Fibres that are outlying beside the components of an end that live on many slabs.

        Those that live on a few may be spent on such fibres. None if there is nothing of that.
        """
        localised = localised_components(candidate.factors)
        remaining = [r for r in range(candidate.factors[0].shape[1]) if r not in localised]
        if not localised or not remaining:
            return None
        engine = self.problem.engine
        factors = tuple(
            engine.xp.stack([A[:, r] for r in remaining], axis=1) for A in candidate.factors
        )
        return find_outlying_fibres(
            engine, factors, estimate_rough_noise(engine, factors, self.problem.resolution)
        )

    def needs_row_prior(self, rank: int) -> bool:
        """Whether some rows have few entries, so that models need a prior.

        Not if there are hardly more entries than parameters: then there is no telling anyway.
        """
        engine = self.problem.engine
        if (
            not MIN_ENTRIES_PER_PARAMETER * rank * sum(engine.shape)
            <= engine.count
            <= MAX_FULL_SEARCH_ENTRIES
        ):
            return False
        return RowPrior.of(self.constraints, range(engine.order)).is_needed(engine, rank)

    def search_components(
        self,
        rank: int,
        rngs: Sequence[np.random.Generator],
        max_additions: int,
        parallel_map: ParallelMap,
    ) -> list[Candidate]:
        """The candidates of component searches: when two agree, or after so many proposals."""
        problem, has_row_prior = self.problem, self.needs_row_prior(rank)
        subsample = None
        if not has_row_prior and problem.engine.count > MAX_COMPONENT_SEARCH_ENTRIES:
            subsample = draw_indices(
                problem.engine.shape, COMPONENT_SEARCH_SUBSAMPLE, rank, rngs[0]
            )
        engine = problem.engine if subsample is None else problem.engine.subtensor(subsample)
        constraints = (
            self.constraints
            if subsample is None
            else restrict_constraints(self.constraints, subsample)
        )
        entries, noise_floor = Entries.of(engine), problem.resolution.min_entry_sigma
        searches = parallel_map(
            lambda rng: ComponentSearch.start(entries, constraints, rank, noise_floor, rng), rngs
        )
        while searches[0].proposals < max_additions and not _have_searches_converged(searches):
            if all(
                search.proposals - search.last_improvement >= ADDITION_PATIENCE
                for search in searches
            ):
                break
            searches = parallel_map(lambda search: search.run(ADDITIONS_PER_ROUND), searches)
        return [self._candidate_from_posterior(search.best, subsample) for search in searches]

    def _candidate_from_posterior(
        self, posterior: Posterior, subsample: list[np.ndarray | None] | None
    ) -> Candidate:
        """The end of a chain, which may be on a part of the data."""
        engine = self.problem.engine
        if subsample is not None:
            posterior = extend_to_all_data(posterior, engine, subsample)
        factors = tuple(engine.asarray(A) for A in posterior.means)
        fibres = flag_fibres_of_posterior(posterior) or None
        return Candidate(factors, self.cost(factors), fibres)

    def replace_redundant_component(self, candidate: Candidate) -> Candidate:
        """With a component that is not missed spent on what is left, if that is better.

        So a component that lives on a few slabs is found, which is nothing but outliers to those
        that are everywhere.
        """
        if candidate.factors[0].shape[1] == 1:
            return candidate
        pruned = self.prune_component(candidate.factors)
        if pruned.cost > candidate.cost + NEGLIGIBLE_ENTROPY_RISE:
            if not _has_split_component(candidate.factors):
                return candidate
            pruned = self._best_candidate(
                map(self.fit_cauchy, self.leave_one_component_out(candidate.factors))
            )
            if pruned.cost > candidate.cost + NEGLIGIBLE_ENTROPY_RISE:
                return candidate
        xp = self.problem.engine.xp
        new_component = Initialization("clipped")(
            self.problem, 1, np.random.default_rng(0), self.constraints
        ).factors
        initial_factors = tuple(
            xp.concat([A, NEW_COMPONENT_SIZE * B], axis=1)
            for A, B in zip(pruned.factors, new_component, strict=True)
        )
        factors = self._run_stages(
            [self._cauchy_stage], self.fit_l1(initial_factors, FIRST_EPSILON_SHARES[1], 1e-4, 100)
        )
        refitted = Candidate(factors, self.entropy(factors))
        return (
            refitted if refitted.cost < candidate.cost + NEGLIGIBLE_ENTROPY_RISE / 2 else candidate
        )

    def have_starts_converged(self, blocks: Sequence[Sequence[Candidate]]) -> bool:
        """Whether two ends agree with the best, and it looks right; or many do.

        It looks right if nothing but noise is left, and not much of that, unless there were many
        starts; and if no component lives on a few slabs, as those do that are spent on artifacts.
        """
        candidates = [candidate for block in blocks for candidate in block]
        best = min(candidates, key=lambda candidate: candidate.cost)
        same_count = _count_same_model(candidates, best)
        if same_count == 1 and len(candidates) >= MANY_STARTS:
            same_count = self._count_same_reduced_model(candidates, best)
        if same_count >= SUFFICIENT_SAME_STARTS:
            return True
        if len(candidates) < MANY_STARTS and self.null_entropy - best.cost < LARGE_ENTROPY_DROP:
            return False  # most of the data may be outliers
        return same_count > 1 and not localised_components(best.factors) and self.is_noise(best)

    @cached_property
    def null_entropy(self) -> float:
        """The entropy of the data, as residuals of a model that is zero."""
        engine = self.problem.engine
        return self.entropy(tuple(engine.asarray(np.zeros((n, 1))) for n in engine.shape))

    def redundant_components(self, factors: Factors, entropy: float) -> list[int]:
        """Components that would not be missed, as they are; given what the model costs."""
        if factors[0].shape[1] == 1 or self.problem.engine.max_abs == 0:
            return []
        limit = entropy + self._component_cost
        reduced_models = self.leave_one_component_out(factors)
        return [r for r, reduced in enumerate(reduced_models) if self.entropy(reduced) < limit]

    @property
    def _component_cost(self) -> float:
        """By how much the cost per entry must fall for one more component."""
        engine = self.problem.engine
        return COST_PER_PARAMETER * sum(engine.shape) / max(engine.count, 1)

    def eliminate_components(self, candidate: Candidate) -> Factors:
        """The model of an end with as few components as fit as well."""
        factors, cost = candidate.factors, self.entropy(candidate.factors)
        while factors[0].shape[1] > 1:
            reduced_models = sorted(self.leave_one_component_out(factors), key=self.entropy)[:2]
            reduced = self._best_candidate(map(self.fit_cauchy, reduced_models))
            if reduced.cost > cost + self._component_cost:
                break
            factors = reduced.factors
        return factors

    def _count_same_reduced_model(self, candidates: Sequence[Candidate], best: Candidate) -> int:
        """How many ends are the same as the best, but for components that are not needed."""
        factors = self.eliminate_components(best)
        if factors[0].shape[1] == best.factors[0].shape[1]:
            return 1
        model = KruskalTensor.from_factors(factors)
        models = [
            candidate.model for candidate in candidates if candidate.model.shape == model.shape
        ]
        return sum(
            factor_match_score(other, model, weights=False) > SAME_MODEL_SCORE for other in models
        )

    def is_noise(self, candidate: Candidate) -> bool:
        """Whether the residuals there are nothing but noise, and perhaps outlying fibres."""
        engine, factors, fibres = self.problem.engine, candidate.factors, candidate.fibres
        if fibres is None:
            if self._is_only_noise(engine, factors):
                return True
            noise = estimate_rough_noise(engine, factors, self.problem.resolution)
            fibres = find_outlying_fibres(engine, factors, noise)
        return fibres is not None and self._is_only_noise(engine.without_fibres(fibres), factors)

    def _is_only_noise(self, engine: Engine, factors: Factors) -> bool:
        noise = estimate_rough_noise(engine, factors, self.problem.resolution)
        if not noise.homoscedastic:
            engine = engine.standardized(noise.scales(engine.shape))
        return not measure_structure(engine, factors, noise.sigma).describe(engine.view.axes)

    @property
    def _cauchy_stage(self) -> Stage:
        return self._stage(CauchyContinuation(self.problem.resolution), 2)

    def _stage(self, schedule: Schedule, degree: int) -> Stage:
        return Stage("starts", schedule, 1e-3, self.problem.relative_mu(1e-8, degree), 10)

    def _epsilon_range(self, share: float) -> tuple[float, float]:
        size, min_epsilon = (
            self.problem.ordinary_magnitude**2,
            (self.problem.resolution.step / 2) ** 2,
        )
        return max(share * size, min_epsilon), max(0.01 * size, min_epsilon)

    def _run_stages(
        self,
        stages: Sequence[Stage],
        initial_factors: Factors,
        fibres: Fibres | None = None,
        max_sweeps: int = 100,
    ) -> Factors:
        solver = Solver(self.problem, stages, constraints=self.constraints)
        return self.search_log.run(
            solver, lambda: solver.start(initial_factors, fibres=fibres), max_sweeps
        )

    def cost(self, factors: Factors, noise: Noise | None = None) -> float:
        """What a model costs: the entropy of its residuals; or, if rows have few entries, minus
        its log evidence, in which it has a price that they can be fitted to anything.

        The evidence is given the noise of each entry, where that is known.
        """
        engine = self.problem.engine
        if not self.needs_row_prior(factors[0].shape[1]):
            return self.entropy(factors)
        if noise is not None and not noise.homoscedastic and not noise.known:
            engine = engine.standardized(noise.scales(engine.shape))
        entries, noise_floor = Entries.of(engine), self.problem.resolution.min_entry_sigma
        mean_log_scale = float(np.mean(np.log(entries.scales))) if entries.scales.size else 0.0
        return (
            Posterior.from_factors(entries, self.constraints, factors, noise_floor).cost
            + mean_log_scale
        )

    def entropy(self, factors: Factors) -> float:
        """That of the residuals."""
        return model_entropy(self.problem.engine, factors, self.problem.resolution)

    def prune_component(self, factors: Factors) -> Candidate:
        """Without the component that is missed least."""
        return self._best_candidate(self.leave_one_component_out(factors))

    def _best_candidate(self, models: Iterable[Factors]) -> Candidate:
        """The one of lowest entropy."""
        candidates = (Candidate(factors, self.entropy(factors)) for factors in models)
        return min(candidates, key=lambda candidate: candidate.cost)

    def leave_one_component_out(self, factors: Factors) -> list[Factors]:
        """The models without one of the components, for each of them."""
        xp, rank = self.problem.engine.xp, factors[0].shape[1]
        remaining = [[r for r in range(rank) if r != left_out] for left_out in range(rank)]
        return [
            tuple(xp.stack([A[:, r] for r in components], axis=1) for A in factors)
            for components in remaining
        ]

    def fit_cauchy(self, factors: Factors) -> Factors:
        """Follow factors by a loss to which outliers mean nothing."""
        return self._run_stages([self._cauchy_stage], factors)

    def fit_standardized_l1(self, factors: Factors, fibres: Fibres | None = None) -> Factors:
        """Follow good factors to where they lead."""
        (stage,) = self._l1_solver(FIRST_EPSILON_SHARES[0], 1e-5).stages
        schedule = StandardizedL1(cast(Continuation, stage.schedule), self.problem.resolution)
        warm_schedule = schedule.for_warm_start(self.problem.engine, factors)
        if warm_schedule.is_unsuitable(self.problem.engine, factors):
            return factors
        return self._run_stages([replace(stage, schedule=warm_schedule)], factors, fibres)


def _select_candidates(blocks: Sequence[Sequence[Candidate]]) -> list[Candidate]:
    """The best two of each block, the best of all first, and of those that agree the best.

    With further blocks none of them drops out that has a chance, so that what is best in the end
    does not become worse.
    """
    best_of_blocks = [
        candidate
        for block in blocks
        for candidate in sorted(block, key=lambda candidate: candidate.cost)[:2]
    ]
    selected: list[Candidate] = []
    best = min(candidate.cost for candidate in best_of_blocks)
    close_candidates = [
        candidate for candidate in best_of_blocks if candidate.cost <= best + MAX_COST_GAP
    ]
    for candidate in sorted(close_candidates, key=lambda candidate: candidate.cost):
        if not any(is_same_model(candidate.model, other.model) for other in selected):
            selected.append(candidate)
    return selected


def _model_in_data_units(problem: Problem, candidate: Candidate) -> KruskalTensor:
    """The model of an end, in the units of the data."""
    factors = problem.units.factors_of_data(candidate.factors)
    return KruskalTensor.from_factors(factors).normalized()


def model_cost(
    problem: Problem, constraints: Constraints, factors: Factors, noise: Noise | None = None
) -> float:
    """What a model costs, on the scale on which starts are compared."""
    return StartSearch(problem, constraints).cost(factors, noise)


def localised_components(factors: Factors) -> list[int]:
    """Components that live on a few rows of some mode."""
    host = (np.asarray(to_host(A), dtype=np.float64) for A in factors)
    localised = [concentration(A, LOCALISED_ROW_SHARE) > LOCALISED_ENERGY_SHARE for A in host]
    return [int(r) for r in np.flatnonzero(np.any(localised, axis=0))]


def _has_split_component(factors: Factors) -> bool:
    """Whether two components are alike in all modes but one: they may be one that was split."""
    similar_modes: Any = 0
    for A in factors:
        host = np.asarray(to_host(A), dtype=np.float64)
        norms = np.linalg.norm(host, axis=0)
        unit = host / np.where(norms > 0, norms, 1.0)
        similar_modes = similar_modes + (np.abs(unit.T @ unit) > SIMILAR_COSINE)
    np.fill_diagonal(similar_modes, 0)
    return bool(np.any(similar_modes >= len(factors) - 1))


def _have_searches_converged(searches: Sequence[ComponentSearch]) -> bool:
    """Whether two of the chains are at the same model, and no other is at a better one.

    With dead components they must have tried for a while.
    """
    best = min(searches, key=lambda search: search.best.cost).best
    if best.pruned_components.size and searches[0].proposals < MIN_ADDITIONS_IF_PRUNED:
        return False
    others = [search.best for search in searches if search.best is not best]
    if len(best.means) == 2:  # factors of a matrix may be turned
        return any(other.cost < best.cost + NEGLIGIBLE_ENTROPY_RISE for other in others)
    model = _unpruned_model(best)
    models = [other for other in map(_unpruned_model, others) if other.rank == model.rank]
    return any(
        factor_match_score(other, model, weights=False) > SAME_MODEL_SCORE for other in models
    )


def _unpruned_model(posterior: Posterior) -> KruskalTensor:
    components = [r for r in range(posterior.rank) if r not in posterior.pruned_components] or [0]
    return KruskalTensor.from_factors([A[:, components] for A in posterior.means])


def draw_indices(
    shape: tuple[int, ...], entry_limit: int, rank: int, rng: np.random.Generator
) -> list[np.ndarray | None] | None:
    """Random indices of each mode that make a part with not more entries; None for all."""
    if math.prod(shape) <= entry_limit:
        return None
    min_sizes = [min(size, max(20, 4 * rank)) for size in shape]
    sizes = [float(size) for size in shape]
    for _ in range(20):  # long modes are cut first, short ones stay whole
        excess = math.prod(sizes) / entry_limit
        if excess <= 1:
            break
        reducible = [n for n, size in enumerate(sizes) if size > min_sizes[n]]
        if not reducible:
            break
        reduction = excess ** (1 / len(reducible))
        for n in reducible:
            sizes[n] = max(float(min_sizes[n]), sizes[n] / reduction)
    return [
        None if round(size) >= full_size else np.sort(rng.permutation(full_size)[: round(size)])
        for size, full_size in zip(sizes, shape, strict=True)
    ]


def _serial_map(work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    return [work(item) for item in items]


def _observed_share(engine: Engine) -> float:
    return 1.0 if engine.complete else engine.count / math.prod(engine.shape)


def _is_mostly_positive(engine: Engine) -> bool:
    """Whether most entries that are not 0 are positive, of data that is mostly observed."""
    if _observed_share(engine) <= 0.4:
        return False
    values = engine.sample().values
    return bool(np.sum(values > 0) > MOSTLY_POSITIVE_SHARE * np.count_nonzero(values))


def _draw_first_subsample(
    engine: Engine, rank: int, rng: np.random.Generator
) -> list[np.ndarray | None] | None:
    """Random indices of each mode that make a part for a first look, which may be all it takes."""
    count = math.prod(engine.shape)
    if not (MIN_FIRST_SUBSAMPLE_ENTRIES < count <= MAX_FULL_SEARCH_ENTRIES and engine.complete):
        return None
    return draw_indices(engine.shape, count // 4, rank, rng)


def _draw_subsample(
    engine: Engine, rank: int, rng: np.random.Generator
) -> list[np.ndarray | None] | None:
    """Random indices of each mode that make a part small enough for trials."""
    if math.prod(engine.shape) <= MAX_FULL_SEARCH_ENTRIES or _observed_share(engine) <= 0.4:
        return None
    return draw_indices(engine.shape, SUBSAMPLE_ENTRIES, rank, rng)


def restrict_constraints(
    constraints: Constraints, subsample: list[np.ndarray | None]
) -> Constraints:
    """The constraints of a part."""
    return tuple(
        constraint if indices is None else constraint.on(indices)
        for constraint, indices in zip(constraints, subsample, strict=True)
    )


def extend_factors(
    problem: Problem,
    subsample: list[np.ndarray | None],
    factors: Factors,
    constraints: Constraints,
    search_log: SearchLog,
) -> Factors:
    """Factors of the whole from those of a part: each mode by regression on the others' part."""
    engine, full_factors = problem.engine, []
    factors = transfer_factors(engine, factors)
    mostly_outliers = most_are_outliers(engine.subtensor(subsample), factors, problem.resolution)
    for mode, indices in enumerate(subsample):
        if indices is None:
            full_factors.append(factors[mode])
            continue
        slabs = engine.subtensor(
            [None if m == mode else other_indices for m, other_indices in enumerate(subsample)]
        )
        rows = engine.asarray(np.zeros((engine.shape[mode], factors[0].shape[1])))
        rows[engine.xp.asarray(indices), :] = factors[mode]
        size = problem.ordinary_magnitude**2
        lowest = max(LOWEST_EPSILON_SHARE * size, (problem.resolution.step / 2) ** 2)
        schedule: Schedule = Continuation(max(lowest, 0.03 * size), lowest)
        if mostly_outliers:
            schedule = NarrowWelsch(problem.resolution)
        stage = Stage("rows", schedule, 1e-3, 0.0, 8)
        solver = Solver(problem.with_engine(slabs), (stage,), (mode,), constraints)
        initial_factors = (*factors[:mode], rows, *factors[mode + 1 :])
        fitted_factors = search_log.run(solver, partial(solver.start, initial_factors), 40)
        full_factors.append(fitted_factors[mode])
    return tuple(full_factors)
