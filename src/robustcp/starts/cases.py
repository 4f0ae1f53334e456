"""Bad samples that agree with each other, found by fits of random subsets of the samples.

The entries of a component that a fifth of the samples share are not outlying one by one. If most
samples of a mode are good, some small random subset has good samples only; the factors fitted to it
have small residuals on most samples, and those of other subsets do not. So subsets are compared by
the residuals of the 60% of the samples that their model fits best, after concentration steps, in
which these samples are fitted again (as in FAST-MCD and FAST-LTS).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from robustcp._util import checks
from robustcp._util.typing import Factors
from robustcp.constraints import Constraints
from robustcp.engines import Arrangement, Axes, Engine
from robustcp.model.kruskal import KruskalTensor
from robustcp.noise import Noise, NoiseSpec, estimate_rough_noise
from robustcp.optimize.problem import Problem
from robustcp.optimize.schedules import Continuation
from robustcp.optimize.solver import Solver, Stage
from robustcp.optimize.stages import cp_stages
from robustcp.starts.candidates import Candidates, Starts
from robustcp.starts.initial_factors import Initialization
from robustcp.starts.loose_fits import StartFitter
from robustcp.starts.proposals import L1Proposal
from robustcp.starts.search_log import SearchLog
from robustcp.starts.settings import CASE_SETTINGS
from robustcp.starts.start import Start, StartingPoint
from robustcp.starts.subsamples import draw_indices, extend_factors, restrict_constraints

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cases:
    """Which mode holds samples, some of which may be bad as a whole.

    Attributes
    ----------
    mode : int or str
        The mode, by number or name.
    share : float
        The largest share of bad samples to be prepared for, at most 0.4. A larger share takes more
        subsets.

    Examples
    --------
    >>> from robustcp import Cases
    >>> Cases(0, share=0.4).subsets(rank=3)
    86
    """

    mode: int | str
    share: float = 0.25

    def __post_init__(self) -> None:
        checks.real_number("cases: share", self.share, 0.0, maximum=1 - CASE_SETTINGS.good_share)

    def check(self, size: int, rank: int) -> None:
        """Raise an error if there are too few samples."""
        if math.floor(CASE_SETTINGS.good_share * size) < rank + 1:
            raise checks.ArgumentError(
                "cases",
                f"mode {self.mode} has {size} samples, and {CASE_SETTINGS.good_share:.0%} of them "
                f"are fewer than rank + 1 = {rank + 1}",
            )

    def subsets(self, rank: int) -> int:
        """The number of random subsets of which one has no bad sample, with probability 0.999."""
        chance = (1 - self.share) ** (rank + CASE_SETTINGS.extra_subset_samples)
        return (
            max(1, math.ceil(math.log(CASE_SETTINGS.max_failure_probability) / math.log1p(-chance)))
            if chance < 1
            else 1
        )


def as_cases(given: object, names: Sequence[str], order: int) -> Cases | None:
    """The argument `cases` of `cp`, with the mode as a number."""
    if given is None:
        return None
    cases = given if isinstance(given, Cases) else Cases(given)  # type: ignore[arg-type]
    return replace(cases, mode=checks.mode_number("cases", cases.mode, names, order))


@dataclass(frozen=True, eq=False)
class CaseDiagnostics:
    """The diagnostics of the samples of a fit with `cases`.

    Attributes
    ----------
    mode : int
    weights : float64 array (I,)
        0 for bad samples, which have no influence on the other factors; else 1.
    distances : float64 array (I,)
        The residual distance of each sample: the median magnitude of its residuals in units of
        the noise, times 1.4826: about 1 for Gaussian noise. NaN for samples without entries.
    cutoffs : float64 array (I,)
        The distance above which each sample is bad; higher for samples with few entries.

    If more than 40% of the samples are bad, a warning says that no majority is left to go by.
    """

    mode: int
    weights: np.ndarray = field(repr=False)
    distances: np.ndarray = field(repr=False)
    cutoffs: np.ndarray = field(repr=False)

    @property
    def flagged(self) -> np.ndarray:
        """True for bad samples."""
        return np.asarray(self.weights == 0)

    def reorder(self, arrangement: Arrangement) -> CaseDiagnostics:
        """A copy for data whose modes and rows are in another order."""
        mode = arrangement.order.index(self.mode)
        rows = slice(None) if (indices := arrangement.rows[mode]) is None else indices
        return CaseDiagnostics(mode, self.weights[rows], self.distances[rows], self.cutoffs[rows])

    def describe(self, axes: Axes) -> str:
        """The number of bad samples, and which they are, in words."""
        bad = np.flatnonzero(self.flagged).tolist()
        shown = f" ({axes.list_indices(self.mode, bad)})" if bad else ""
        return f"{len(bad)} of {self.weights.size} samples of {axes.mode_name(self.mode)}{shown}"

    def __repr__(self) -> str:
        return f"CaseDiagnostics({self.describe(Axes())} bad)"


def diagnose_cases(
    problem: Problem, factors: Factors, noise: Noise | None, mode: int
) -> CaseDiagnostics:
    """The diagnostics of the samples of a mode, given factors with a row for each sample."""
    engine = problem.engine
    if noise is None:
        noise = estimate_rough_noise(engine, factors, problem.resolution)
    slabs = tuple(None if n == mode else v for n, v in enumerate(noise.slabs))
    noise = replace(noise, slabs=slabs)  # a sample's own scale would mask its distance
    if not noise.known and not noise.homoscedastic:
        engine = engine.standardized(noise.scales(engine.shape))
    size = engine.shape[mode]
    distances, counts = np.full(size, np.nan), np.zeros(size)
    for k in np.flatnonzero(engine.slab_counts(mode) > 0):
        indices = [np.array([k]) if n == mode else None for n in range(engine.order)]
        rows = tuple(A[int(k) : int(k) + 1, :] if n == mode else A for n, A in enumerate(factors))
        z = np.abs(engine.subtensor(indices).entries(rows).values) / noise.sigma
        counts[k] = z.size
        if z.size:
            distances[k] = 1.4826 * float(np.median(z))
    return _flag_large_distances(distances, counts, mode)


def _flag_large_distances(distances: np.ndarray, counts: np.ndarray, mode: int) -> CaseDiagnostics:
    """The diagnostics of some distances: samples that are outlying among the others are bad."""
    finite = np.isfinite(distances)
    logs = np.log(np.maximum(distances, CASE_SETTINGS.min_distance))
    center = float(np.median(logs[finite])) if finite.any() else 0.0
    spread = 1.4826 * float(np.median(np.abs(logs[finite] - center))) if finite.any() else 0.0
    errors = (
        CASE_SETTINGS.cutoff_standard_errors
        * CASE_SETTINGS.log_median_standard_error
        / np.sqrt(np.maximum(counts, 1))
    )
    cutoffs = np.exp(
        center
        + np.maximum(
            max(CASE_SETTINGS.cutoff_deviations * spread, math.log(CASE_SETTINGS.min_cutoff_ratio)),
            errors,
        )
    )
    cutoffs = np.maximum(
        cutoffs, CASE_SETTINGS.min_cutoff_ratio
    )  # where data is exact, distances are roundings
    weights = np.where(finite & (distances > cutoffs), 0.0, 1.0)
    return CaseDiagnostics(mode, weights, distances, cutoffs)


def exclude_cases(problem: Problem, mode: int, bad: np.ndarray) -> Problem:
    """A problem without the bad samples; their rows give no warning."""
    if not bad.any():
        return problem
    rows = np.flatnonzero(bad)
    rest = problem.with_engine(problem.engine.without_slabs(mode, rows))
    rest.notes, rest.excluded_slabs = problem.notes, {mode: rows}
    return rest


def estimate_bad_scores(
    problem: Problem,
    factors: Factors,
    noise: Noise | None,
    mode: int,
    bad: np.ndarray,
    constraints: Constraints,
    tol: float,
    search_log: SearchLog,
) -> Factors:
    """The factors with scores of bad samples, estimated with the other factors fixed."""
    rows = np.flatnonzero(bad)
    if not rows.size:
        return factors
    engine = problem.engine
    indices = [rows if n == mode else None for n in range(engine.order)]
    bad_problem = problem.with_engine(engine.subtensor(indices))
    noise_spec = NoiseSpec() if noise is None else NoiseSpec.for_new_slabs(noise, mode)
    stages = cp_stages(bad_problem, tol, noise_spec.for_engine(bad_problem.engine))
    rowwise_constraints = tuple(
        constraint.of_rows if n == mode else constraint for n, constraint in enumerate(constraints)
    )
    solver = Solver(bad_problem, stages, (mode,), rowwise_constraints)
    zeros = engine.asarray(np.zeros((rows.size, factors[0].shape[1])))
    initial_factors = tuple(zeros if n == mode else A for n, A in enumerate(factors))
    scores = search_log.run(solver, lambda: solver.start(initial_factors), 200)[mode]
    A = engine.xp.asarray(factors[mode], copy=True)
    A[engine.xp.asarray(rows), :] = scores
    return tuple(A if n == mode else B for n, B in enumerate(factors))


@dataclass(frozen=True, eq=False)
class _SubsetFit:
    """A model fitted to a subset of the samples, with scores for all samples.

    Attributes
    ----------
    factors : tuple of arrays
    distances : float64 array (I,)
        The median magnitude of the residuals of each sample.
    """

    factors: Factors
    distances: np.ndarray

    @property
    def closest_samples(self) -> np.ndarray:
        """The 60% of the samples with the smallest distances."""
        count = math.floor(CASE_SETTINGS.good_share * self.distances.size)
        return np.sort(np.argsort(self.distances, kind="stable")[:count])

    @cached_property
    def model(self) -> KruskalTensor:
        return KruskalTensor.from_factors(self.factors)

    @property
    def cost(self) -> float:
        """The mean log distance of the closest samples."""
        return float(np.mean(np.log(np.maximum(self.distances[self.closest_samples], 1e-300))))


@dataclass(frozen=True)
class SubsetStart(Start):
    """Factors that fit most samples of a mode, from fits of small random subsets of samples."""

    cases: Cases
    count: int | None = None

    def __call__(
        self,
        problem: Problem,
        rank: int,
        rng: np.random.Generator,
        constraints: Constraints,
        search_log: SearchLog | None = None,
    ) -> StartingPoint:
        mode, engine = int(self.cases.mode), problem.engine
        size = engine.shape[mode]
        if engine.max_abs == 0:
            return Initialization("nvecs")(problem, rank, rng, constraints)
        subsample = self._draw_subsample(engine, mode, rank, rng)
        subproblem = (
            problem.with_engine(engine.subtensor(subsample))
            if any(indices is not None for indices in subsample)
            else problem
        )
        search_log = search_log or SearchLog()
        search = _SubsetSearch(
            subproblem, restrict_constraints(constraints, subsample), mode, rank, search_log
        )
        subsets_needed = self.cases.subsets(rank)
        count = min(subsets_needed, CASE_SETTINGS.max_subsets) if self.count is None else self.count
        LOG.info("%d subsets of %d samples", count, rank + CASE_SETTINGS.extra_subset_samples)
        parallel_map = subproblem.engine.executor.map_tasks
        fits = parallel_map(search.fit_subset, list(enumerate(rng.spawn(count))))
        best_fits = sorted(fits, key=lambda fit: fit.cost)[: CASE_SETTINGS.best_subsets]
        best_fits = parallel_map(search.run_final_concentration_steps, list(enumerate(best_fits)))
        best_fit = min(best_fits, key=lambda fit: fit.cost)
        starts = Starts([fit.cost for fit in fits], Candidates([fits]).count_same(best_fit))
        bad = np.ones(size, dtype=bool)
        bad[best_fit.closest_samples] = False
        rest = exclude_cases(problem, mode, bad)
        factors = extend_factors(rest, subsample, best_fit.factors, constraints, search_log)
        return StartingPoint(factors, warm_start=True, starts=starts, bad_samples=bad)

    def _draw_subsample(
        self, engine: Engine, mode: int, rank: int, rng: np.random.Generator
    ) -> list[np.ndarray | None]:
        """Random indices of the other modes, and all samples."""
        others = tuple(size for n, size in enumerate(engine.shape) if n != mode)
        entry_limit = max(CASE_SETTINGS.subset_fit_entries // engine.shape[mode], 1)
        if not engine.complete:
            entry_limit = math.ceil(entry_limit * math.prod(engine.shape) / max(engine.count, 1))
        other_indices = draw_indices(others, entry_limit, rank, rng) or [None] * len(others)
        return [*other_indices[:mode], None, *other_indices[mode:]]


@dataclass(frozen=True)
class _SubsetSearch:
    """Fits of subsets of the samples, on a subsample of the other modes."""

    problem: Problem
    constraints: Constraints
    mode: int
    rank: int
    search_log: SearchLog

    def _section(self, name: str) -> _SubsetSearch:
        return replace(self, search_log=self.search_log.section(name))

    def run_final_concentration_steps(self, numbered: tuple[int, _SubsetFit]) -> _SubsetFit:
        """Run the final concentration steps on one of the best fits."""
        number, candidate = numbered
        return self._section(f"best {number + 1}").concentrate(
            candidate, CASE_SETTINGS.final_concentration_steps
        )

    def fit_subset(self, numbered: tuple[int, np.random.Generator]) -> _SubsetFit:
        """Fit a random subset of samples, and run the first concentration steps."""
        number, rng = numbered
        size = self.problem.engine.shape[self.mode]
        samples = np.sort(rng.permutation(size)[: self.rank + CASE_SETTINGS.extra_subset_samples])
        kind, share = CASE_SETTINGS.subset_starts[number % len(CASE_SETTINGS.subset_starts)]
        search = self._section(f"subset {number + 1}")
        proposal = L1Proposal(kind, share, standardized=number % 2 == 0)
        candidate = proposal.fit(search._fitter_of_samples(samples), self.rank, rng)
        fit = search.concentrate(
            search._fit_all_samples(candidate.factors), CASE_SETTINGS.concentration_steps
        )
        self.search_log.finish_start()
        return fit

    def concentrate(self, candidate: _SubsetFit, rounds: int) -> _SubsetFit:
        """Run concentration steps: fit the closest samples again, while that lowers the cost."""
        for _ in range(rounds):
            samples = candidate.closest_samples
            xp = self.problem.engine.xp
            initial_factors = tuple(
                A[xp.asarray(samples), :] if n == self.mode else A
                for n, A in enumerate(candidate.factors)
            )
            new = self._fit_all_samples(
                self._fitter_of_samples(samples).fit_cauchy(initial_factors)
            )
            if new.cost >= candidate.cost:
                break
            candidate = new
        return candidate

    def _fitter_of_samples(self, samples: np.ndarray) -> StartFitter:
        indices = [samples if n == self.mode else None for n in range(self.problem.units.order)]
        subproblem = self.problem.with_engine(self.problem.engine.subtensor(indices))
        return StartFitter(
            subproblem, restrict_constraints(self.constraints, indices), self.search_log
        )

    def _fit_all_samples(self, factors: Factors) -> _SubsetFit:
        """Scores and distances of all samples, with the factors of the other modes fixed."""
        problem, mode = self.problem, self.mode
        engine = problem.engine
        zeros = engine.asarray(np.zeros((engine.shape[mode], factors[0].shape[1])))
        initial_factors = tuple(zeros if n == mode else A for n, A in enumerate(factors))
        size = problem.ordinary_magnitude**2
        lowest = max(1e-3 * size, (problem.resolution.step / 2) ** 2, problem.min_epsilon)
        stage = Stage("rows", Continuation(max(lowest, 0.03 * size), lowest), 1e-2, 0.0, 6)
        rowwise_constraints = tuple(
            constraint.of_rows if n == mode else constraint
            for n, constraint in enumerate(self.constraints)
        )
        solver = Solver(problem, (stage,), (mode,), rowwise_constraints)
        fitted_factors = self.search_log.run(solver, lambda: solver.start(initial_factors), 20)
        sample = engine.sample(fitted_factors)
        index = sample.indices[mode]
        order = np.lexsort((np.abs(sample.values), index))
        count = np.bincount(index, minlength=engine.shape[mode])
        offsets = np.cumsum(count) - count
        median_positions = np.minimum(offsets + count // 2, max(index.size - 1, 0))
        distances = np.where(count > 0, np.abs(sample.values)[order][median_positions], np.inf)
        return _SubsetFit(fitted_factors, distances)
