"""Bad samples that agree with each other, found by fits of random subsets of the samples.

The entries of a component that a fifth of the samples share are not outlying one by one. But a
model with one component more describes it by that component, and without it still describes the
other samples. So models with extra components are fitted to three quarters of the samples, drawn
anew for each, and pruned; they are compared by the residuals of the 60% of the samples that each
fits best, after concentration steps, in which these samples are fitted again (as in FAST-MCD and
FAST-LTS). If they do not agree, models are also fitted to small subsets, of which some have no bad
sample.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from robustcp._util import checks
from robustcp._util.interrupts import stop_requested
from robustcp._util.quantiles import median
from robustcp._util.typing import Factors
from robustcp.constraints import Constraints
from robustcp.engines import Arrangement, Axes, Engine, to_host
from robustcp.model.kruskal import KruskalTensor, host_factors
from robustcp.noise import Noise, NoiseSpec, estimate_rough_noise
from robustcp.noise.group_statistics import group_medians
from robustcp.optimize.problem import Problem
from robustcp.optimize.schedules import Continuation
from robustcp.optimize.solver import Solver, Stage
from robustcp.optimize.stages import cp_stages
from robustcp.starts.candidates import Candidate, Candidates, Starts
from robustcp.starts.initial_factors import Initialization
from robustcp.starts.loose_fits import StartFitter
from robustcp.starts.proposals import INITIALIZATION_NAMES, L1Proposal, is_mostly_positive
from robustcp.starts.search_log import SearchLog
from robustcp.starts.settings import CASE_SETTINGS, SEARCH_SETTINGS
from robustcp.starts.start import Start, StartingPoint
from robustcp.starts.subsamples import (
    Indices,
    draw_indices,
    extend_factors,
    restrict_constraints,
)

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
        the noise, without outlying ones, times 1.4826: about 1 for Gaussian noise. NaN for samples
        without entries.
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

    def consistent_with(self, bad: np.ndarray) -> CaseDiagnostics:
        """These diagnostics, with the bad samples that the model was fitted without.

        The cut-off of a sample that would change sides again is moved to its distance.
        """
        with np.errstate(invalid="ignore"):
            lowered = np.minimum(self.cutoffs, np.nextafter(self.distances, 0.0))
            raised = np.maximum(self.cutoffs, self.distances)
        cutoffs = np.where(np.isnan(self.distances), self.cutoffs, np.where(bad, lowered, raised))
        return replace(self, weights=np.where(bad, 0.0, 1.0), cutoffs=cutoffs)

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
    problem: Problem,
    factors: Factors,
    noise: Noise | None,
    mode: int,
    left_out: np.ndarray | None = None,
) -> CaseDiagnostics:
    """The diagnostics of the samples of a mode, given factors with a row for each sample.

    `left_out` are samples that the factors of the other modes were not fitted to. The errors of
    these factors add to their residuals, the more the larger the sample is, so their cut-offs are
    higher: a large sample that follows the model is not bad.
    """
    engine = problem.engine
    if noise is None:
        noise = estimate_rough_noise(engine, factors, problem.resolution)
    slabs = tuple(None if n == mode else v for n, v in enumerate(noise.slabs))
    noise = replace(noise, slabs=slabs)  # a sample's own scale would mask its distance
    if not noise.known and not noise.homoscedastic:
        engine = engine.standardized(noise.scales(engine.shape))
    size, rank = engine.shape[mode], factors[0].shape[1]
    distances, counts = np.full(size, np.nan), np.zeros(size)
    for k in np.flatnonzero(engine.slab_counts(mode) > 0):
        indices = [np.array([k]) if n == mode else None for n in range(engine.order)]
        rows = tuple(A[int(k) : int(k) + 1, :] if n == mode else A for n, A in enumerate(factors))
        z = np.abs(engine.subtensor(indices).entries(rows).values) / noise.sigma
        counts[k] = z.size
        if z.size:
            distances[k] = _scale_without_bad_cells(z)
    distances *= _degrees_of_freedom_correction(counts, rank)
    host = host_factors(factors)
    growth = _growth_with_size(distances, _sample_sizes(host, mode))
    if left_out is not None and left_out.any():
        variances = _variances_of_model(host, mode, left_out, counts)
        variances = np.where(left_out, variances, 0.0)
        growth = growth * np.sqrt(1 + CASE_SETTINGS.left_out_variance_ratio * variances)
    return _flag_large_distances(distances, counts, mode, growth)


def readmit_cases(
    problem: Problem,
    factors: Factors,
    noise: Noise | None,
    mode: int,
    bad: np.ndarray,
    constraints: Constraints,
    search_log: SearchLog,
) -> np.ndarray:
    """The bad samples without those that a model may describe that is fitted to them, too.

    Those are tried that errors of the factors may explain. They are readmitted if the model then
    describes them and is not much worse for the other samples.
    """
    if not bad.any():
        return bad
    flagged = diagnose_cases(problem, factors, noise, mode, bad).flagged
    if not (bad & ~flagged).any():
        return bad
    rest, rank = exclude_cases(problem, mode, bad & flagged), factors[0].shape[1]
    refitted = StartFitter(rest, constraints, search_log).fit_cauchy(factors)
    parameters = rank * sum(size for n, size in enumerate(problem.engine.shape) if n != mode)
    max_rise = max(CASE_SETTINGS.max_cost_rise, parameters / problem.engine.count)
    costs = (cost_of_most_samples(problem.engine, A, mode) for A in (factors, refitted))
    if next(costs) + max_rise < next(costs):
        return bad
    return np.asarray(bad & diagnose_cases(problem, refitted, noise, mode).flagged)


def _scale_without_bad_cells(z: np.ndarray) -> float:
    """The scaled median of magnitudes, without the cells that are outliers given that scale.

    A quarter of bad cells would raise the median by 40%. In a sample that is bad as a whole hardly
    any cell is an outlier given its own scale.
    """
    scale = 1.4826 * median(z)
    for _ in range(CASE_SETTINGS.scale_rounds):
        scale = 1.4826 * median(z[z <= CASE_SETTINGS.bad_cell_limit * scale])
    return scale


def _degrees_of_freedom_correction(counts: np.ndarray, rank: int) -> np.ndarray:
    """By how much the residuals of samples are too small, as `rank` scores are fitted to each."""
    return np.asarray(np.sqrt(np.maximum(counts, 1) / np.maximum(counts - rank, 1)))


def _gram_of_others(factors: Sequence[np.ndarray], modes: Sequence[int]) -> np.ndarray:
    """The product of the Gram matrices of some modes, each divided by the size of its mode."""
    rank = factors[0].shape[1]
    grams = (factors[n].T @ factors[n] / len(factors[n]) for n in modes)
    return np.asarray(math.prod(grams, start=np.ones((rank, rank))))


def _sample_sizes(factors: Sequence[np.ndarray], mode: int) -> np.ndarray:
    """The root mean square of each sample's model."""
    A, gram = factors[mode], _gram_of_others(factors, [n for n in range(len(factors)) if n != mode])
    return np.asarray(np.sqrt(np.maximum(np.sum((A @ gram) * A, axis=1), 0.0)))


def _variances_of_model(
    factors: Sequence[np.ndarray], mode: int, left_out: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """The mean variance of each sample's model that errors of the other factors cause, in units of
    the variance of the noise, where these factors were fitted to the samples that are not left out.
    """
    A, others = factors[mode], [n for n in range(len(factors)) if n != mode]
    rest = A[~left_out]
    count, gram = float(counts[~left_out].sum()), rest.T @ rest / max(len(rest), 1)
    variances = np.zeros(len(A))
    for mode_of_errors in others:
        gram_of_others = _gram_of_others(factors, [n for n in others if n != mode_of_errors])
        precision = np.linalg.pinv(gram * gram_of_others, rcond=1e-10, hermitian=True)
        precision *= len(factors[mode_of_errors]) / max(count, 1.0)
        variances += np.sum((A @ (precision * gram_of_others)) * A, axis=1)
    return np.maximum(variances, 0.0)


def _growth_with_size(distances: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """How distances grow with the size of a sample, 1 for the median size.

    Where noise is partly proportional to the signal, or a model does not quite describe the data,
    the squared distance is 1 + c size^2. Most samples of ordinary size must show that: c is the one
    with which most of their log distances differ least. Larger samples are taken to
    be as large as the largest of these: their distances cannot tell growth from a bad sample.
    """
    settings, growth = CASE_SETTINGS, np.ones(sizes.size)
    usable = np.isfinite(distances) & (sizes > 0)
    if not usable.any():
        return growth
    log_sizes = np.log(np.where(usable, sizes, 1.0))
    log_sizes -= np.median(log_sizes[usable])
    spread = 1.4826 * float(np.median(np.abs(log_sizes[usable])))
    ordinary = usable & (np.abs(log_sizes) <= settings.ordinary_deviations * spread)
    if ordinary.sum() < settings.min_samples_for_growth:
        return growth
    lowest, largest = log_sizes[ordinary].min(), log_sizes[ordinary].max()
    relative = np.exp(np.clip(log_sizes, lowest, largest))
    logs = np.log(np.maximum(distances[ordinary], settings.min_distance))
    smallest = math.inf
    for c in (0.0, *settings.growth_coefficients):
        candidate = np.sqrt((1 + c * relative**2) / (1 + c))
        _, spread = _center_and_spread(logs - np.log(candidate[ordinary]))
        if c == 0:
            smallest = settings.min_growth_gain * spread
        elif spread < smallest:
            smallest, growth = spread, candidate
    return growth


def _flag_large_distances(
    distances: np.ndarray, counts: np.ndarray, mode: int, growth: np.ndarray
) -> CaseDiagnostics:
    """The diagnostics of some distances: samples that are outlying among the others are bad.

    `growth` is by how much the distance of each sample is expected to be larger than others.
    """
    finite = np.isfinite(distances)
    logs = np.log(np.maximum(distances, CASE_SETTINGS.min_distance) / growth)
    center, spread = _center_and_spread(logs[finite])
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
    cutoffs = growth * np.maximum(
        cutoffs, CASE_SETTINGS.min_cutoff_ratio
    )  # where data is exact, distances are roundings
    weights = np.where(finite & (distances > cutoffs), 0.0, 1.0)
    return CaseDiagnostics(mode, weights, distances, cutoffs)


def _center_and_spread(logs: np.ndarray) -> tuple[float, float]:
    """The middle of the shortest interval with 60% of the numbers, and their standard deviation.

    The median and its deviations would be too large if many samples are bad.
    """
    if not logs.size:
        return 0.0, 0.0
    ordered, count = np.sort(logs), math.ceil(CASE_SETTINGS.good_share * logs.size)
    lengths = ordered[count - 1 :] - ordered[: ordered.size - count + 1]
    first = int(np.argmin(lengths))
    center = float(np.median(ordered[first : first + count]))
    return center, float(lengths[first]) / CASE_SETTINGS.normal_interval


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
        See `_sample_distances`.
    mode : int
        The mode that holds samples.
    number : int
        The number of the start.
    family : str
        The kind of start.
    seconds : float
        The time of its fit, without concentration steps.
    concentrated : bool
        Whether concentration steps were run.
    """

    factors: Factors
    distances: np.ndarray
    mode: int
    number: int = 0
    family: str = ""
    seconds: float = 0.0
    concentrated: bool = False

    @property
    def closest_samples(self) -> np.ndarray:
        """The 60% of the samples with the smallest distances."""
        count = math.floor(CASE_SETTINGS.good_share * self.distances.size)
        return np.sort(np.argsort(self.distances, kind="stable")[:count])

    @cached_property
    def model(self) -> KruskalTensor:
        """The model without the scores of the samples, which those of bad samples may dominate."""
        return KruskalTensor.from_factors([A for n, A in enumerate(self.factors) if n != self.mode])

    @cached_property
    def cost(self) -> float:
        """See `_trimmed_cost`."""
        return _trimmed_cost(self.distances)


def _sample_distances(engine: Engine, factors: Factors, mode: int) -> np.ndarray:
    """The median magnitude of the residuals of each sample.

    On a fixed sample of the entries. The scores of a sample are fitted to its entries, which makes
    residuals smaller: corrected for these degrees of freedom. NaN for samples without entries.
    """
    sample = engine.sample(factors)
    size, rank = engine.shape[mode], factors[0].shape[1]
    counts = np.bincount(sample.indices[mode], minlength=size)
    medians = group_medians(np.abs(sample.values), sample.indices[mode], size)
    medians *= _degrees_of_freedom_correction(counts, rank)
    return np.where(counts > 0, medians, np.nan)


def cost_of_most_samples(engine: Engine, factors: Factors, mode: int) -> float:
    """The cost by which models of samples are compared, see `_trimmed_cost`."""
    return _trimmed_cost(_sample_distances(engine, factors, mode))


def _trimmed_cost(distances: np.ndarray) -> float:
    """The mean log distance of the 60% of the samples with the smallest distances.

    Distances count as a tenth of the median at least: a component that is spent on one sample does
    not pay, however well it fits there.
    """
    finite = np.sort(distances[np.isfinite(distances)])
    if not finite.size:
        return math.inf
    least = max(CASE_SETTINGS.min_distance_share * float(np.median(finite)), 1e-300)
    closest = finite[: max(math.floor(CASE_SETTINGS.good_share * distances.size), 1)]
    return float(np.mean(np.log(np.maximum(closest, least))))


@dataclass(frozen=True)
class _Subset:
    """A random subset of the samples, and how a model is fitted to it.

    A model with an extra component may describe what bad samples have in common by that component,
    which is then pruned. It succeeds from most subsets of three quarters of the samples, where a
    model without extra components needs a subset without bad samples.
    """

    kind: str
    epsilon_share: float
    standardized: bool
    extra_components: int
    small: bool

    @classmethod
    def from_number(cls, number: int, positive: bool) -> _Subset:
        """The subset of a number (from 0)."""
        settings = CASE_SETTINGS
        starts = settings.positive_starts if positive else settings.signed_starts
        extra = settings.extra_components[number % len(settings.extra_components)]
        small = number >= settings.large_subsets and number % 2 == 0
        return cls(*starts[number % len(starts)], 0 if small else extra, small)

    @property
    def family(self) -> str:
        words = "a small subset" if self.small else "three quarters of the samples"
        words += f", from {INITIALIZATION_NAMES.get(self.kind, self.kind)}"
        extra = self.extra_components
        return words + (f", {extra} more component{'s' * (extra > 1)}" if extra else "")

    def draw(self, samples: np.ndarray, rank: int, rng: np.random.Generator) -> np.ndarray:
        """The samples of the subset, drawn from some samples."""
        least, size = rank + CASE_SETTINGS.extra_subset_samples, samples.size
        count = least if self.small else max(least, round(CASE_SETTINGS.subset_share * size))
        return np.sort(samples[rng.permutation(size)[:count]])


@dataclass(frozen=True)
class SubsetStart(Start):
    """Factors that fit most samples of a mode, from fits of random subsets of the samples."""

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
        fits, agree, certain = search.run(count, rng, end_early=self.count is None)
        selected, final_fits = search.select(fits), CASE_SETTINGS.min_final_fits
        if certain:
            final_fits = 1
        elif engine.count * CASE_SETTINGS.max_final_fits < SEARCH_SETTINGS.max_final_fit_entries:
            final_fits = CASE_SETTINGS.max_final_fits
        selected = selected[:final_fits]
        starts = Starts(
            [fit.cost + math.log(problem.units.factor) for fit in fits],
            families=[fit.family for fit in fits],
            seconds=[fit.seconds for fit in fits],
        )
        points = []
        for fit in map(search.replace_redundant_component, selected):
            point = self._starting_point(problem, subsample, fit, constraints, search_log)
            reached = Candidates([fits]).count_same(fit)
            points.append(replace(point, starts=starts.with_reached(reached), reliable=agree))
        return replace(points[0], alternatives=tuple(points[1:]))

    def _starting_point(
        self,
        problem: Problem,
        subsample: Indices,
        fit: _SubsetFit,
        constraints: Constraints,
        search_log: SearchLog,
    ) -> StartingPoint:
        """The starting point of the fit of all data, from a fit of a subsample."""
        mode = int(self.cases.mode)
        bad = np.ones(fit.distances.size, dtype=bool)
        bad[fit.closest_samples] = False
        rest = exclude_cases(problem, mode, bad)
        factors = extend_factors(rest, subsample, fit.factors, constraints, search_log)
        flagged = diagnose_cases(problem, factors, None, mode).flagged
        if flagged.sum() <= bad.sum():
            bad = readmit_cases(problem, factors, None, mode, flagged, constraints, search_log)
        return StartingPoint(factors, warm_start=True, start_number=fit.number, bad_samples=bad)

    def _draw_subsample(
        self, engine: Engine, mode: int, rank: int, rng: np.random.Generator
    ) -> Indices:
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

    def run(
        self, count: int, rng: np.random.Generator, *, end_early: bool
    ) -> tuple[list[_SubsetFit], bool, bool]:
        """Fits of subsets, two at a time, until enough agree.

        Returns the fits, whether enough agree, and whether the residuals of the best are noise.

        Only fits whose cost is near the lowest get concentration steps. If a component of the best
        model is localised on some samples, these may be bad: then models are fitted to the other
        samples, a few of them before fits may agree.
        """
        LOG.info("at most %d subsets of the samples", count)
        parallel_map = self.problem.engine.executor.map_tasks
        positive = is_mostly_positive(self.problem.engine)
        tasks = [
            (number, _Subset.from_number(number, positive), child)
            for number, child in enumerate(rng.spawn(count))
        ]
        fits, all_samples = list[_SubsetFit](), np.arange(self._size)
        agree = is_noise = False
        samples, fits_without_localised = all_samples, 0
        for first in range(0, count, 2):
            block = [(*task, samples) for task in tasks[first : first + 2]]
            fits += parallel_map(self.fit_subset, block)
            fits_without_localised += len(block) * (samples is not all_samples)
            limit = min(fit.cost for fit in fits) + CASE_SETTINGS.max_cost_gap
            new = [fit for fit in fits if not fit.concentrated and fit.cost <= limit]
            for fit in parallel_map(self.concentrate, new):
                fits[fit.number] = fit
            localised = self._localised_samples(Candidates([fits]).best)
            samples = np.setdiff1d(all_samples, localised) if localised.size else all_samples
            agree, is_noise = self._agreement(fits)
            if localised.size:
                agree &= fits_without_localised >= CASE_SETTINGS.fits_without_localised_samples
            if (agree and end_early) or stop_requested():
                break
        return fits, agree, agree and is_noise

    @property
    def _size(self) -> int:
        """The number of samples."""
        return self.problem.engine.shape[self.mode]

    def _localised_samples(self, fit: _SubsetFit) -> np.ndarray:
        """The samples on which the most localised component is concentrated; none if too many."""
        squares = np.asarray(to_host(fit.factors[self.mode]), dtype=np.float64) ** 2
        count = self._size - max(
            math.floor(CASE_SETTINGS.good_share * self._size),
            self.rank + CASE_SETTINGS.extra_subset_samples,
        )
        order = np.argsort(-squares, axis=0, kind="stable")[: max(count, 0)]
        total = np.maximum(squares.sum(axis=0), 1e-300)
        remainders = 1 - np.take_along_axis(squares, order, axis=0).sum(axis=0) / total
        r = int(np.argmin(remainders))
        is_small = remainders[r] < CASE_SETTINGS.localised_remainder
        is_least = remainders[r] < CASE_SETTINGS.least_remainder_ratio * np.median(remainders)
        is_tiny = remainders[r] < CASE_SETTINGS.tiny_remainder
        return order[:, r] if (is_small and is_least) or is_tiny else order[:0, r]

    def _agreement(self, fits: Sequence[_SubsetFit]) -> tuple[bool, bool]:
        """Whether enough fits have the model of the best, and whether its residuals are noise.

        Fewer are enough if they are.
        """
        candidates = Candidates([fits])
        best, same = candidates.best, candidates.count_same()
        if same < CASE_SETTINGS.sufficient_same_noise_starts:
            return False, False
        is_noise = self._is_noise(best)
        return is_noise or same >= CASE_SETTINGS.sufficient_same_starts, is_noise

    def _is_noise(self, fit: _SubsetFit) -> bool:
        """Whether the residuals of the closest samples are noise."""
        samples = fit.closest_samples
        fitter, factors = self._fitter_of_samples(samples), self._rows_of_samples(fit, samples)
        return fitter.criterion.is_noise(factors)

    def select(self, fits: Sequence[_SubsetFit]) -> list[_SubsetFit]:
        """The fits with different models that are nearly as good as the best, the best first."""
        entries = CASE_SETTINGS.good_share * max(self.problem.engine.count, 1)
        standard_error = CASE_SETTINGS.log_median_standard_error / math.sqrt(entries)
        limit = min(fit.cost for fit in fits)
        limit += max(SEARCH_SETTINGS.max_cost_gap, 2 * standard_error)
        return Candidates([fits]).distinct(fit for fit in fits if fit.cost <= limit)

    def _section(self, name: str) -> _SubsetSearch:
        return replace(self, search_log=self.search_log.section(name))

    def fit_subset(self, task: tuple[int, _Subset, np.random.Generator, np.ndarray]) -> _SubsetFit:
        """Fit a random subset of some samples loosely, then the scores of all samples."""
        (number, subset, rng, samples), begin = task, time.perf_counter()
        if subset.small or samples.size == self._size:
            samples = subset.draw(samples, self.rank, rng)
        search = self._section(f"start {number + 1}")
        fitter = search._fitter_of_samples(samples)
        proposal = L1Proposal(subset.kind, subset.epsilon_share, subset.standardized)
        factors = proposal.fit_loosely(fitter, self.rank + subset.extra_components, rng)
        fit = search._prune(search._fit_all_samples(factors), subset.extra_components)
        self.search_log.finish_start()
        seconds = time.perf_counter() - begin
        return replace(fit, number=number, family=subset.family, seconds=seconds)

    def _prune(self, fit: _SubsetFit, count: int) -> _SubsetFit:
        """The fit without those components whose removal leaves the lowest cost."""
        if count == 0:
            return fit
        components = range(fit.factors[0].shape[1])
        reduced = (
            self._with_distances(tuple(A[:, list(kept)] for A in fit.factors))
            for kept in itertools.combinations(components, len(components) - count)
        )
        return min(reduced, key=lambda fit: fit.cost)

    def concentrate(self, fit: _SubsetFit) -> _SubsetFit:
        """Run concentration steps: fit the closest samples again, while that lowers the cost."""
        search, best = self._section(f"concentration {fit.number + 1}"), fit
        for _ in range(CASE_SETTINGS.concentration_steps):
            samples = best.closest_samples
            fitter = search._fitter_of_samples(samples)
            factors = fitter.fit_cauchy(self._rows_of_samples(best, samples))
            new = search._fit_all_samples(factors)
            decrease = best.cost - new.cost
            if decrease > 0:
                best = new
            if not decrease > CASE_SETTINGS.min_cost_decrease:
                break
        return replace(fit, factors=best.factors, distances=best.distances, concentrated=True)

    def replace_redundant_component(self, fit: _SubsetFit) -> _SubsetFit:
        """The fit with a component replaced that is not needed; see `StartFitter`."""
        search = self._section(f"redundant components {fit.number + 1}")
        fitter = search._fitter_of_samples(fit.closest_samples)
        factors = self._rows_of_samples(fit, fit.closest_samples)
        candidate = Candidate(factors, fitter.criterion.entropy(factors))
        new = fitter.replace_redundant_component(candidate, refit=True)
        if new is candidate:
            return fit
        refitted = search._fit_all_samples(new.factors)
        return replace(fit, factors=refitted.factors, distances=refitted.distances)

    def _rows_of_samples(self, fit: _SubsetFit, samples: np.ndarray) -> Factors:
        index = self.problem.engine.xp.asarray(samples)
        return tuple(A[index, :] if n == self.mode else A for n, A in enumerate(fit.factors))

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
        return self._with_distances(
            self.search_log.run(solver, lambda: solver.start(initial_factors), 20)
        )

    def _with_distances(self, factors: Factors) -> _SubsetFit:
        distances = _sample_distances(self.problem.engine, factors, self.mode)
        return _SubsetFit(factors, distances, self.mode)
