"""Loose fits of starts: accurate enough to compare starts, and no more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, cast

import numpy as np

from robustcp._util.typing import Factors
from robustcp.constraints import Constraints
from robustcp.engines import Fibres, as_engine
from robustcp.losses import L1
from robustcp.noise import estimate_rough_noise, find_outlying_fibres, median_magnitude
from robustcp.optimize.problem import Problem
from robustcp.optimize.schedules import (
    CauchyContinuation,
    Continuation,
    NarrowWelsch,
    Schedule,
    StandardizedL1,
    most_are_outliers,
)
from robustcp.optimize.solver import Solver, Stage
from robustcp.starts.candidates import Candidate
from robustcp.starts.criterion import (
    Criterion,
    fibres_of_blocks,
    has_split_component,
    leave_one_component_out,
    localised_components,
)
from robustcp.starts.initial_factors import Initialization
from robustcp.starts.search_log import SearchLog
from robustcp.starts.settings import SEARCH_SETTINGS, SearchSettings

#: Applies a function to each of several items, perhaps in parallel.
ParallelMap = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]


def serial_map(work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """The results, computed one after the other."""
    return [work(item) for item in items]


class Proposal(Protocol):
    """One start, not yet fitted."""

    @property
    def family(self) -> str:
        """The kind of start, in a few words."""

    def fit(self, fitter: StartFitter, rank: int, rng: np.random.Generator) -> Candidate:
        """Fit the start loosely; return the candidate."""


@dataclass(frozen=True)
class StartFitter:
    """Loose fits of some data, by losses that resist outliers."""

    problem: Problem
    constraints: Constraints
    search_log: SearchLog = field(default_factory=SearchLog, repr=False, compare=False)
    settings: SearchSettings = field(default=SEARCH_SETTINGS, repr=False)

    @cached_property
    def criterion(self) -> Criterion:
        """The criterion by which models of the data are compared."""
        return Criterion(self.problem, self.constraints, self.settings)

    def initialize(self, kind: str, rank: int, rng: np.random.Generator) -> Factors:
        """Initial factors of a kind, see `Initialization`."""
        return Initialization(kind)(self.problem, rank, rng, self.constraints).factors

    def without_fibres(self, fibres: Fibres) -> StartFitter:
        """A fitter for the data without some fibres."""
        engine = self.problem.engine.without_fibres(fibres)
        return replace(self, problem=self.problem.with_engine(engine))

    def leave_one_out(self, factors: Factors) -> list[Factors]:
        """For each component, the model without it."""
        return leave_one_component_out(self.problem.engine.xp, factors)

    def fit_starts(
        self,
        name: str,
        proposals: Sequence[Proposal],
        rank: int,
        rngs: Sequence[np.random.Generator],
        parallel_map: ParallelMap,
    ) -> list[Candidate]:
        """The candidates of some proposals, each recorded in a section of the search log."""

        def fit(number: int) -> Candidate:
            proposal, begin = proposals[number], time.perf_counter()
            log = self.search_log.section(f"{name}, start {number + 1}")
            candidate = proposal.fit(replace(self, search_log=log), rank, rngs[number])
            self.search_log.finish_start()
            seconds = time.perf_counter() - begin
            return replace(candidate, family=proposal.family, seconds=seconds)

        return parallel_map(fit, range(len(proposals)))

    @property
    def _lowest_loss(self) -> L1:
        """The 1-norm of smallest epsilon: residuals within a quantisation step are alike."""
        half_step = self.problem.resolution.step / 2
        return L1(
            max(
                self.settings.lowest_epsilon_share * self.problem.ordinary_magnitude**2,
                half_step**2,
            )
        )

    def _l1_solver(self, share: float, tol: float) -> Solver:
        lowest = self._lowest_loss.epsilon
        schedule = Continuation(max(lowest, share * self.problem.ordinary_magnitude**2), lowest)
        stage = Stage("starts", schedule, tol, self.problem.relative_mu(1e-8), 10)
        return Solver(self.problem, (stage,), constraints=self.constraints)

    def fit_l1(self, factors: Factors, share: float, tol: float, max_sweeps: int) -> Factors:
        """Factors after minimising the 1-norm for at most `max_sweeps` sweeps."""
        solver = self._l1_solver(share, tol)
        return self.search_log.run(solver, lambda: solver.start(factors), max_sweeps)

    def fit_cauchy(self, factors: Factors) -> Factors:
        """Factors after minimising Cauchy's loss."""
        return self.run_stages([self.cauchy_stage], factors)

    def fit_narrow(self, factors: Factors) -> Factors:
        """Factors after minimising a narrow Welsch loss: for a majority of outliers."""
        stage = self.stage(NarrowWelsch(self.problem.resolution), 2)
        return self.run_stages([replace(stage, tol=1e-4, level_sweeps=30)], factors, max_sweeps=300)

    def fit_standardized_l1(self, factors: Factors, fibres: Fibres | None = None) -> Factors:
        """Factors after minimising the standardized 1-norm, if it suits the data."""
        (stage,) = self._l1_solver(self.settings.small_epsilon_share, 1e-5).stages
        schedule = StandardizedL1(cast(Continuation, stage.schedule), self.problem.resolution)
        warm_schedule = schedule.for_warm_start(self.problem.engine, factors)
        if warm_schedule.is_unsuitable(self.problem.engine, factors):
            return factors
        return self.run_stages([replace(stage, schedule=warm_schedule)], factors, fibres)

    @property
    def cauchy_stage(self) -> Stage:
        return self.stage(CauchyContinuation(self.problem.resolution), 2)

    def stage(self, schedule: Schedule, degree: int) -> Stage:
        """A stage with a loose tolerance."""
        return Stage("starts", schedule, 1e-3, self.problem.relative_mu(1e-8, degree), 10)

    def epsilon_range(self, share: float) -> tuple[float, float]:
        """The first epsilon, and the last one, at which starts can be compared."""
        size, min_epsilon = (
            self.problem.ordinary_magnitude**2,
            (self.problem.resolution.step / 2) ** 2,
        )
        return max(share * size, min_epsilon), max(0.01 * size, min_epsilon)

    def run_stages(
        self,
        stages: Sequence[Stage],
        initial_factors: Factors,
        fibres: Fibres | None = None,
        max_sweeps: int = 100,
    ) -> Factors:
        """Factors after the stages, with at most `max_sweeps` sweeps in all."""
        solver = Solver(self.problem, stages, constraints=self.constraints)
        return self.search_log.run(
            solver, lambda: solver.start(initial_factors, fibres=fibres), max_sweeps
        )

    def prune_component(self, factors: Factors) -> Candidate:
        """The model without the component whose removal raises the entropy least."""
        entropy, model = min(self.criterion.reduced_models(factors), key=lambda reduced: reduced[0])
        return Candidate(model, entropy)

    def _best_candidate(self, models: Iterable[Factors]) -> Candidate:
        """The model of lowest entropy."""
        candidates = (Candidate(factors, self.criterion.entropy(factors)) for factors in models)
        return min(candidates, key=lambda candidate: candidate.cost)

    def find_artifact_fibres(self, candidate: Candidate) -> Fibres | None:
        """The fibres through blocks on which components are constant; or the outlying fibres given
        a candidate's model without its localised components, which may have fitted such fibres.

        None if there is no such block, and no localised component or no such fibre.
        """
        localised = localised_components(candidate.factors, self.settings)
        remaining = [r for r in range(candidate.factors[0].shape[1]) if r not in localised]
        if not localised or not remaining:
            excludable = self.problem.engine.takes_weights and self.problem.engine.order > 2
            return fibres_of_blocks(candidate.factors, self.settings) if excludable else None
        engine = self.problem.engine
        factors = tuple(
            engine.xp.stack([A[:, r] for r in remaining], axis=1) for A in candidate.factors
        )
        return self.find_outlying_fibres(factors)

    def find_outlying_fibres(self, factors: Factors) -> Fibres | None:
        """The outlying fibres given a model; None if there is none."""
        engine = self.problem.engine
        noise = estimate_rough_noise(engine, factors, self.problem.resolution)
        return find_outlying_fibres(engine, factors, noise)

    def exchange_component(self, factors: Factors, kind: str, rng: np.random.Generator) -> Factors:
        """The model after a new component is added, and the one of least effect removed.

        The new component is random, positive, or the leading singular vectors of the residuals.
        """
        size = median_magnitude(self.problem.engine.sample(factors).values)
        if size == 0:
            return factors
        if kind == "residuals":
            new = self._residual_component(
                factors, size * rng.uniform(*self.settings.residual_limits)
            )
        else:
            new = Initialization(kind)(self.problem, 1, rng, self.constraints).factors
        initial_factors = self._append_component(factors, new, self.settings.new_component_size)
        refine, resolution = self.fit_cauchy, self.problem.resolution
        thin = self.criterion.needs_row_prior(factors[0].shape[1])
        if not thin and most_are_outliers(self.problem.engine, factors, resolution):
            refine = self.fit_narrow
        elif not resolution.small_counts:
            min_epsilon = max((resolution.step / 2) ** 2, self.problem.min_epsilon)
            epsilons = (max(share * size**2, min_epsilon) for share in (1.0, 0.01))
            stage = self.stage(Continuation(*epsilons), 1)
            initial_factors = self.run_stages([stage], initial_factors, max_sweeps=30)
        return refine(self.prune_component(refine(initial_factors)).factors)

    def _residual_component(self, factors: Factors, limit: float) -> Factors:
        """The leading singular vectors of the residuals of a model, clipped at a limit."""
        engine = self.problem.engine
        entries, residuals = engine.entries(factors), np.full(engine.shape, np.nan)
        residuals[entries.indices] = entries.values
        problem = Problem.of(as_engine(residuals, threads=1).clipped(limit))
        start = Initialization("nvecs")(problem, 1, np.random.default_rng(0), self.constraints)
        return tuple(map(engine.asarray, problem.units.factors_of_data(start.factors)))

    def _append_component(self, factors: Factors, new: Factors, size: float) -> Factors:
        """A model with one more component, multiplied by `size` in each mode."""
        concat = self.problem.engine.xp.concat
        return tuple(concat([A, size * B], axis=1) for A, B in zip(factors, new, strict=True))

    def replace_redundant_component(
        self, candidate: Candidate, *, refit: bool = False
    ) -> Candidate:
        """The candidate with a redundant component, such as half of a split one, replaced by a new
        one, if that hardly raises the cost.

        With `refit` a component is also redundant if the others can make up for it.
        """
        if candidate.factors[0].shape[1] == 1:
            return candidate
        pruned = self.prune_component(candidate.factors)
        if pruned.cost > candidate.cost + self.settings.negligible_entropy_rise:
            if has_split_component(candidate.factors, self.settings):
                reduced_models = self.leave_one_out(candidate.factors)
            elif refit and pruned.cost < candidate.cost + self.settings.max_entropy_rise_to_refit:
                reduced_models = [pruned.factors]
            else:
                return candidate
            pruned = self._best_candidate(map(self.fit_cauchy, reduced_models))
            if pruned.cost > candidate.cost + self.settings.negligible_entropy_rise:
                return candidate
        new = Initialization("clipped")(
            self.problem, 1, np.random.default_rng(0), self.constraints
        ).factors
        initial_factors = self._append_component(
            pruned.factors, new, self.settings.replacement_size
        )
        factors = self.fit_cauchy(
            self.fit_l1(initial_factors, self.settings.large_epsilon_share, 1e-4, 100)
        )
        refitted = replace(candidate, factors=factors, cost=self.criterion.entropy(factors))
        return (
            refitted
            if refitted.cost < candidate.cost + self.settings.negligible_entropy_rise / 2
            else candidate
        )

    def eliminate_components(self, candidate: Candidate) -> Factors:
        """The model of a candidate without its redundant components: backward elimination."""
        factors, cost = candidate.factors, self.criterion.entropy(candidate.factors)
        while factors[0].shape[1] > 1:
            reduced_models = sorted(
                self.criterion.reduced_models(factors), key=lambda reduced: reduced[0]
            )
            reduced = self._best_candidate(
                self.fit_cauchy(model) for _, model in reduced_models[:2]
            )
            if reduced.cost > cost + self.criterion.component_cost:
                break
            factors = reduced.factors
        return factors
