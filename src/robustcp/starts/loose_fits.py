"""Loose fits of starts: accurate enough to compare starts, and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from robustcp._util.typing import Factors
from robustcp.constraints import Constraints
from robustcp.engines import Fibres
from robustcp.losses import L1
from robustcp.noise import estimate_rough_noise, find_outlying_fibres
from robustcp.optimize.problem import Problem
from robustcp.optimize.schedules import CauchyContinuation, Continuation, Schedule, StandardizedL1
from robustcp.optimize.solver import Solver, Stage
from robustcp.starts.candidates import Candidate
from robustcp.starts.criterion import (
    Criterion,
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
        work: Callable[[StartFitter, Any], Candidate],
        items: Sequence[Any],
        parallel_map: ParallelMap | None = None,
    ) -> list[Candidate]:
        """The candidates of some starts, each recorded in a section of the search log."""
        tasks = [
            (replace(self, search_log=self.search_log.section(f"{name}, start {k + 1}")), item)
            for k, item in enumerate(items)
        ]

        def fit_start(task: tuple[StartFitter, Any]) -> Candidate:
            candidate = work(*task)
            self.search_log.finish_start()
            return candidate

        return (parallel_map or serial_map)(fit_start, tasks)

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
        return self._best_candidate(self.leave_one_out(factors))

    def _best_candidate(self, models: Iterable[Factors]) -> Candidate:
        """The model of lowest entropy."""
        candidates = (Candidate(factors, self.criterion.entropy(factors)) for factors in models)
        return min(candidates, key=lambda candidate: candidate.cost)

    def find_artifact_fibres(self, candidate: Candidate) -> Fibres | None:
        """The outlying fibres given a candidate's model without its localised components, which may
        have fitted such fibres. None if there is no localised component or no such fibre.
        """
        localised = localised_components(candidate.factors, self.settings)
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

    def replace_redundant_component(self, candidate: Candidate) -> Candidate:
        """The candidate with a redundant component replaced by a new one, if that lowers the cost.
        This finds localised components, whose entries look like outliers given the others.
        """
        if candidate.factors[0].shape[1] == 1:
            return candidate
        pruned = self.prune_component(candidate.factors)
        if pruned.cost > candidate.cost + self.settings.negligible_entropy_rise:
            if not has_split_component(candidate.factors, self.settings):
                return candidate
            pruned = self._best_candidate(
                map(self.fit_cauchy, self.leave_one_out(candidate.factors))
            )
            if pruned.cost > candidate.cost + self.settings.negligible_entropy_rise:
                return candidate
        xp = self.problem.engine.xp
        new_component = Initialization("clipped")(
            self.problem, 1, np.random.default_rng(0), self.constraints
        ).factors
        initial_factors = tuple(
            xp.concat([A, self.settings.new_component_size * B], axis=1)
            for A, B in zip(pruned.factors, new_component, strict=True)
        )
        factors = self.run_stages(
            [self.cauchy_stage],
            self.fit_l1(initial_factors, self.settings.large_epsilon_share, 1e-4, 100),
        )
        refitted = Candidate(factors, self.criterion.entropy(factors))
        return (
            refitted
            if refitted.cost < candidate.cost + self.settings.negligible_entropy_rise / 2
            else candidate
        )

    def eliminate_components(self, candidate: Candidate) -> Factors:
        """The model of a candidate without its redundant components: backward elimination."""
        factors, cost = candidate.factors, self.criterion.entropy(candidate.factors)
        while factors[0].shape[1] > 1:
            reduced_models = sorted(self.leave_one_out(factors), key=self.criterion.entropy)[:2]
            reduced = self._best_candidate(map(self.fit_cauchy, reduced_models))
            if reduced.cost > cost + self.criterion.component_cost:
                break
            factors = reduced.factors
        return factors
