"""How many components? Robust evidence for each rank, and a recommendation.

The samples of one mode are assigned to folds at random. The models of a fold are fitted without its
samples and without some random cells of the others. Held-out cells measure how well a model
predicts, and their core consistency; the folds' models show whether components are recovered from
other samples. The noise is that of the model of all data with most components.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp._util import checks
from robustcp._util.typing import Factors
from robustcp.constraints import Constraint, Constraints, constraints_by_mode
from robustcp.engines import Entries, HostData, as_engine, host_data
from robustcp.estimators.driver import Seed, bind_constraints
from robustcp.estimators.spec import add_nonnegative
from robustcp.inference.core_consistency import chance_consistency, consistency
from robustcp.inference.ensemble import parse_ranks
from robustcp.inference.parallel import Progress, results_or_raise, run_parallel
from robustcp.inference.rank_checkpoint import RankPathCheckpoint
from robustcp.inference.rank_path import RankFit, fit_rank_path
from robustcp.model.kruskal import KruskalTensor, host_factors
from robustcp.model.metrics import align_components, canonical_model
from robustcp.noise import Noise, estimate_rough_noise, parse_limits
from robustcp.optimize.problem import Problem
from robustcp.persist.checkpoint import CheckpointArgument, request_checkpoint
from robustcp.preprocess import fit_preprocessing
from robustcp.results.fit import Fit
from robustcp.results.view import FittedView
from robustcp.starts.subsamples import draw_indices, restrict_constraints

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The share of cells that each fold holds out.
HELD_OUT_SHARE = 0.1
#: The default number of folds.
DEFAULT_FOLDS = 5
#: With fewer samples, folds hold out cells only.
MIN_SAMPLES_TO_LEAVE_OUT = 4
#: The error is the mean of this share of held-out residuals, the smallest ones.
SCORED_SHARE = 0.7
#: The most starts at each rank.
MAX_STARTS = 4
#: Degrees of freedom of the t distribution by which held-out cells are scored.
T_DEGREES_OF_FREEDOM = 3.0
#: The least gain of a better rank in a fold, per held-out cell.
MIN_GAIN = 0.002
#: The number of folds in which a better rank may gain less.
ALLOWED_EXCEPTIONS = 1
#: A component is replicated if its congruence is at least this (Lorenzo-Seva and ten Berge 2006).
MIN_STABILITY = 0.95
#: Components compensate each other if the core consistency is below that of chance by this.
MAX_CONSISTENCY_DEFICIT = 50.0
#: Lower core consistencies are reported as this.
MIN_CONSISTENCY = -100.0
#: Larger data is reduced at random to about this number of entries.
SUBSAMPLE_ENTRIES = 1 << 18


@dataclass(frozen=True, eq=False)
class RankProfile:
    """Evidence for each rank, from several folds.

    Attributes
    ----------
    ranks : tuple of int
    error : float64 array
        The robust error of held-out cells: the mean of the 70% smallest |residual| in units of
        their noise, relative to the error of a zero model; NaN where that is 0, as for data that
        is mostly 0.
    gain : float64 array
        The gain in log density of held-out cells over the previous rank that was tried, in nats per
        cell; at the first rank, over a zero model.
    stability : float64 array
        How well components are recovered from other samples: the least congruence, in the other
        modes, of a component, exceeded in all folds but one. The reference is the model of the
        rank, of all data or of a fold, to which the others are most similar.
    agreement : float64 array
        The share of starts that ended at the best model of all data.
    consistency : float64 array
        Core consistency in percent, estimated from held-out cells: 100 for a CP model. Components
        that fit noise or compensate each other lower it, also below 0 (but not below -100 here).
        NaN where there are too few cells.
    noise : float64 array
        The standard deviation of the noise, estimated from the residuals.
    spread : dict of float64 arrays
        The standard errors of "error", "gain", "stability" and "consistency".
    rank : int
        The recommended rank.
    reason : str
        The reason for it.
    runner_up : int or None
        The neighbouring rank that predicts held-out cells better, if there is one.
    mode : int
        The mode that holds samples.

    Examples
    --------
    >>> import robustcp
    >>> X = robustcp.simulate((12, 11, 10), 2, eta=0.1, gamma=1.0, rng=0).data
    >>> profile = robustcp.rank_profile(X, range(1, 4), folds=3, jobs=1)
    >>> profile.rank, profile.error.shape
    (2, (3,))
    """

    ranks: tuple[int, ...]
    error: np.ndarray = field(repr=False)
    gain: np.ndarray = field(repr=False)
    stability: np.ndarray = field(repr=False)
    agreement: np.ndarray = field(repr=False)
    consistency: np.ndarray = field(repr=False)
    noise: np.ndarray = field(repr=False)
    spread: dict[str, np.ndarray] = field(repr=False)
    rank: int
    reason: str
    runner_up: int | None
    mode: int = 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RankProfile):
            return NotImplemented
        return all(_equal(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        rank_range = f"{self.ranks[0]} to {self.ranks[-1]}"
        return f"RankProfile(ranks {rank_range}, rank {self.rank}: {self.reason})"

    def rows(self) -> list[dict[str, float]]:
        """The numbers of each rank, as the rows of a table."""
        columns = ("error", "gain", "stability", "agreement", "consistency", "noise")
        return [
            {
                "rank": rank,
                **{name: float(getattr(self, name)[k]) for name in columns},
                **{f"{name}_spread": float(values[k]) for name, values in self.spread.items()},
            }
            for k, rank in enumerate(self.ranks)
        ]

    def plot(self, ax: Axes | None = None) -> Axes:
        """Held-out error and stability against the rank (see `robustcp.plot.rank_profile`)."""
        from robustcp.plot import rank_profile as draw

        return draw(self, ax=ax)


def _equal(first: Any, second: Any) -> bool:
    """Whether two values are equal, arrays entry by entry, with NaN equal to itself."""
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_equal(first[k], second[k]) for k in first)
    if isinstance(first, str) or first is None:
        return bool(first == second)
    return bool(np.array_equal(first, second, equal_nan=True))


def rank_profile(  # noqa: PLR0913 - many are those of `cp`
    X: Any,
    ranks: int | Iterable[int] = range(1, 9),
    *,
    mode: int | str = 0,
    folds: int = DEFAULT_FOLDS,
    limits: Any = "auto",
    preprocess: Any = None,
    nonnegative: bool | tuple[bool, ...] = False,
    constraints: Mapping[int | str, Constraint] | None = None,
    starts: int | str = "auto",
    rng: Seed = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    checkpoint: CheckpointArgument = None,
) -> RankProfile:
    """Fit each rank in several folds of the data, and recommend one.

    The best predicting rank is the lowest that no higher one improves on: none predicts held-out
    cells better in all folds but one. Recommended is the highest rank up to it whose components are
    all recovered without some samples and do not compensate each other: the core consistency is no
    lower than by chance. If that rank loses more prediction than its last component gains, the best
    predicting rank is recommended nevertheless, and the reason names its weakness.

    Parameters
    ----------
    X : array, masked array, or Observed
        Outliers and missing entries are allowed, as for `cp`.
    ranks : int or iterable of int
    mode : int or str
        The mode that holds samples. With fewer than four of them only cells are held out.
    folds : int
        The number of folds.
    limits, preprocess, nonnegative, constraints
        As in `cp`. Censored entries are not held out. Centres and sizes are those of all data.
    starts : int or "auto"
        The most starts at each rank, for all data and for each fold; fewer if two of them agree.
        "auto" is 4.
    rng : None, seed or Generator
    jobs, progress
        As in `cp_many`.
    checkpoint : path or Checkpoint, optional
        A file to which the models of all data and of each fold are saved as they are done. The same
        call with the same data continues from it.

    Examples
    --------
    >>> import robustcp
    >>> sim = robustcp.simulate((16, 15, 14), 2, eta=0.1, gamma=1.0, rng=0)
    >>> profile = robustcp.rank_profile(sim.data, range(1, 4), jobs=1)
    >>> profile.rank
    2
    """
    rank_list = parse_ranks(ranks)
    folds = checks.whole_number("folds", folds, 2)
    start_count = MAX_STARTS if starts == "auto" else checks.whole_number("starts", starts, 1)
    generator = checks.generator(rng)
    engine = as_engine(X)  # refuses what is not a tensor
    axes = engine.view.axes
    mode_index = axes.mode_number("mode", mode, engine.order)
    mode_constraints = add_nonnegative(
        constraints_by_mode(constraints, axes.modes, engine.order), nonnegative, axes
    )
    rng_state = dict(generator.bit_generator.state)
    found_limits, _ = parse_limits(limits, engine)
    censored = as_engine(host_data(X).data).with_axes(axes).censored(found_limits)
    preprocessing, preprocessed, _ = fit_preprocessing(preprocess, censored)
    data, bound_constraints = _subsample(
        replace(host_data(preprocessed), limits=preprocessed.view.limits),
        bind_constraints(mode_constraints, engine.shape, axes.labels),
        max(rank_list),
        generator,
    )
    if not data.entries.values.any():
        raise ValueError("X: is zero everywhere, there are no components to count")
    fold_list = _make_folds(data, mode_index, folds, generator)
    tasks = [
        RankPathTask(data, mode_index, fold, rank_list, bound_constraints, start_count, own)
        for fold, own in zip([None, *fold_list], generator.spawn(folds + 1), strict=True)
    ]
    request = request_checkpoint(
        checkpoint,
        "rank_profile",
        data=data.digest,
        ranks=rank_list,
        mode=mode_index,
        folds=folds,
        constraints=repr(mode_constraints),
        starts=start_count,
        rng=rng_state,
        **({} if preprocessing is None else {"preprocess": preprocessing.describe(axes.modes)}),
    )
    paths = RankPathCheckpoint(request, len(tasks))
    pending = [number for number in range(len(tasks)) if number not in paths.completed]
    finished_count = len(tasks) - len(pending)

    def record_path(position: int, result: dict[int, RankFit] | Exception) -> None:
        if not isinstance(result, Exception):
            paths.add(pending[position], result)
        if progress is not None:
            progress(finished_count + position + 1, len(tasks))

    pending_tasks = [tasks[number] for number in pending]
    results_or_raise(
        run_parallel(RankPathTask.run, pending_tasks, jobs=jobs, on_result=record_path)
    )
    full_fits, *fold_fits = (paths.completed[number] for number in range(len(tasks)))
    return _RankEvidence(data, mode_index, fold_list, full_fits, fold_fits).profile(rank_list)


@dataclass(frozen=True, eq=False)
class Fold:
    """The part of the data that the models of a fold are fitted to.

    Attributes
    ----------
    samples : integer array
        The samples of the fold.
    held_out : integer array
        The positions, among the observed entries of all data, of the held-out cells of these
        samples.
    """

    samples: np.ndarray
    held_out: np.ndarray


def _subsample(
    data: HostData, constraints: Constraints, rank: int, rng: np.random.Generator
) -> tuple[HostData, Constraints]:
    """Random rows of each mode of large data that is mostly observed; other data as it is."""
    indices = None
    if data.count > SUBSAMPLE_ENTRIES and data.count > 0.4 * np.prod(data.shape, dtype=float):
        indices = draw_indices(data.shape, SUBSAMPLE_ENTRIES, rank, rng)
    if indices is None:
        return data, constraints
    for mode, rows in enumerate(indices):
        data = data if rows is None else data.take(mode, rows)
    return data, restrict_constraints(constraints, indices)


def _make_folds(data: HostData, mode: int, folds: int, rng: np.random.Generator) -> list[Fold]:
    """Folds of samples and cells at random; each with all samples where there are few."""
    size, cell_folds = data.shape[mode], round(1 / HELD_OUT_SHARE)
    fold_of_cell = rng.permutation(data.count) % cell_folds
    fold_of_sample = np.empty(size, dtype=np.int64)
    fold_of_sample[rng.permutation(size)] = np.arange(size) % folds
    if size < MIN_SAMPLES_TO_LEAVE_OUT:
        fold_of_sample[:] = -1
    fold_list = []
    for fold in range(folds):
        in_fold = fold_of_sample != fold
        held_out = (fold_of_cell == fold % cell_folds) & in_fold[data.entries.indices[mode]]
        if data.entries.sides is not None:
            held_out &= data.entries.sides == 0
        fold_list.append(Fold(np.flatnonzero(in_fold), np.flatnonzero(held_out)))
    return fold_list


@dataclass(frozen=True, eq=False)
class RankPathTask:
    """The data, or a fold of it, to which `run` fits models of all ranks."""

    data: HostData
    mode: int
    fold: Fold | None
    ranks: Sequence[int]
    constraints: Constraints
    starts: int
    rng: np.random.Generator

    def run(self) -> dict[int, RankFit]:
        """The model of each rank."""
        data, constraints = self.data, self.constraints
        if self.fold is not None:
            held_out = np.zeros(data.count, dtype=bool)
            held_out[self.fold.held_out] = True
            data = data.without_entries(held_out).take(self.mode, self.fold.samples)
            rows = [self.fold.samples if n == self.mode else None for n in range(len(data.shape))]
            constraints = restrict_constraints(constraints, rows)
        engine = as_engine(data.data).censored(data.limits)
        return fit_rank_path(engine, self.ranks, constraints, self.starts, self.rng)


@dataclass(frozen=True, eq=False)
class _RankEvidence:
    """The models of all data and of the folds, which `profile` evaluates."""

    data: HostData
    mode: int
    folds: Sequence[Fold]
    full_fits: Mapping[int, RankFit]
    fold_fits: Sequence[Mapping[int, RankFit]]

    def profile(self, ranks: tuple[int, ...]) -> RankProfile:
        """The evidence for each rank, and the recommendation."""
        sigma = self._entry_sigma(max(ranks))
        held_out = [self._held_out_cells(rank, sigma) for rank in ranks]
        null_scores = [
            self.data.entries.values[fold.held_out] / sigma[fold.held_out] for fold in self.folds
        ]
        scores = [
            null_scores,
            *([cells.values for _, cells in folds] for folds in held_out),
        ]
        losses = np.array([[_mean_t_loss(z) for z in folds] for folds in scores])
        errors = np.array([[_trimmed_mean(z) for z in folds] for folds in scores])
        errors = errors[1:] / np.where(errors[0] > 0, errors[0], np.nan)
        gains = losses[:-1] - losses[1:]
        stabilities = np.array([self._stabilities(rank) for rank in ranks])
        stability = _smallest_but_one(stabilities)
        consistencies = np.array([[consistency(*cells) for cells in folds] for folds in held_out])
        deficits = np.full(len(ranks), np.nan)
        for k in np.flatnonzero(stability >= MIN_STABILITY):
            by_chance = [chance_consistency(*cells) for cells in held_out[k]]
            deficits[k] = np.median(by_chance - consistencies[k])
        choice = RankChoice(ranks, losses[1:], float(losses[0].mean()), stability, deficits)
        by_fold = {
            "error": errors,
            "gain": gains,
            "stability": stabilities,
            "consistency": consistencies,
        }
        return RankProfile(
            ranks,
            errors.mean(axis=1),
            gains.mean(axis=1),
            stability,
            np.array([self.full_fits[rank].agreement for rank in ranks]),
            np.maximum(np.median(consistencies, axis=1), MIN_CONSISTENCY),
            np.array([self._noise_sigma(rank) for rank in ranks]),
            {name: _standard_error(values) for name, values in by_fold.items()},
            choice.rank,
            choice.reason,
            choice.runner_up,
            self.mode,
        )

    def _estimate_noise(self, rank: int) -> tuple[Problem, Factors, Noise]:
        """The data in the units of a fit, and the model of a rank and its noise in these units."""
        engine = as_engine(self.data.data).censored(self.data.limits)
        problem = Problem.of(engine).without_gross_outliers
        model = problem.units.factors_of_fit(self.full_fits[rank].model.absorbed())
        factors = tuple(problem.engine.asarray(A) for A in model)
        return problem, factors, estimate_rough_noise(problem.engine, factors, problem.resolution)

    def _noise_sigma(self, rank: int) -> float:
        problem, _, noise = self._estimate_noise(rank)
        return float(noise.sigma * problem.units.factor)

    def _entry_sigma(self, rank: int) -> np.ndarray:
        """The standard deviation of each observed entry."""
        problem, factors, noise = self._estimate_noise(rank)
        engine = problem.engine
        scales = np.ones(self.data.count)
        if not noise.homoscedastic:
            noise_scales = noise.scales(engine.shape, host_factors(factors))
            if noise_scales is not None:
                scales = noise_scales.values_at(self.data.entries.indices)
        floor = max(noise.least, problem.resolution.min_entry_sigma, np.finfo(float).tiny)
        return np.asarray(np.maximum(noise.sigma * scales, floor) * problem.units.factor)

    def _held_out_cells(self, rank: int, sigma: np.ndarray) -> list[tuple[KruskalTensor, Entries]]:
        """The model of each fold, and its residuals of the held-out cells in units of sigma."""
        pairs = []
        for fold, rank_fits in zip(self.folds, self.fold_fits, strict=True):
            model = rank_fits[rank].model
            cells = self.data.entries.select(fold.held_out).take(self.mode, fold.samples)
            cell_sigma = sigma[fold.held_out]
            z = (cells.values - model.at(np.stack(cells.indices, axis=1))) / cell_sigma
            pairs.append((model, replace(cells, values=z, scales=cell_sigma)))
        return pairs

    def _stabilities(self, rank: int) -> np.ndarray:
        """The least congruence of a component of each model with the reference model.

        The reference is the model to which the others are most similar. It may be that of a fold:
        the fit to all data, too, may have ended at another optimum.
        """
        models = [fits[rank].model for fits in (self.full_fits, *self.fold_fits)]
        congruences = np.array(
            [
                [
                    align_components(model, reference, skip=self.mode)[1].min()
                    for model in models
                    if model is not reference
                ]
                for reference in models
            ]
        )
        return np.asarray(congruences[int(np.argmax(_smallest_but_one(congruences)))])


def _mean_t_loss(z: np.ndarray) -> float:
    """The mean of minus the log density of a t distribution, without constants; 0 for no cells."""
    if not z.size:
        return 0.0
    return float(np.mean(0.5 * (T_DEGREES_OF_FREEDOM + 1) * np.log1p(z * z / T_DEGREES_OF_FREEDOM)))


def _trimmed_mean(z: np.ndarray) -> float:
    """The mean of the smaller magnitudes; NaN if there are none."""
    sizes = np.sort(np.abs(z))[: max(1, int(SCORED_SHARE * z.size))]
    return float(sizes.mean()) if z.size else float("nan")


def _smallest_but_one(values: np.ndarray) -> np.ndarray:
    """The value that all folds but one reach, for each row."""
    return np.asarray(np.sort(values, axis=1)[:, ALLOWED_EXCEPTIONS])


def _standard_error(values: np.ndarray) -> np.ndarray:
    """The standard error of the mean over folds, for each rank."""
    return np.asarray(values.std(axis=1, ddof=1) / np.sqrt(values.shape[1]))


@dataclass(frozen=True)
class RankChoice:
    """The choice of a rank from the evidence.

    Attributes
    ----------
    ranks : tuple of int
    losses : float64 array (ranks, folds)
        The mean loss of held-out cells.
    null_loss : float
        The mean loss of held-out cells under a zero model.
    stability : float64 array (ranks,)
    consistency_deficit : float64 array (ranks,)
        The core consistency by chance minus the core consistency, in percent; NaN if unknown.
    """

    ranks: tuple[int, ...]
    losses: np.ndarray
    null_loss: float
    stability: np.ndarray
    consistency_deficit: np.ndarray

    def predicts_better(self, k: int, other: int) -> bool:
        """Whether rank k predicts held-out cells better than another in all folds but one."""
        gains = self.losses[other] - self.losses[k]
        return bool(np.sum(gains > MIN_GAIN) >= max(gains.size - ALLOWED_EXCEPTIONS, 1))

    @property
    def best_predicting_index(self) -> int:
        """The first rank than which no higher one predicts better."""
        count = len(self.ranks)
        return next(
            k
            for k in range(count)
            if not any(self.predicts_better(other, k) for other in range(k + 1, count))
        )

    def is_sound(self, k: int) -> bool:
        """Whether all components of rank k are recovered, and none compensates another."""
        return bool(
            self.stability[k] >= MIN_STABILITY
            and not self.consistency_deficit[k] > MAX_CONSISTENCY_DEFICIT
        )

    @property
    def recommended_index(self) -> int:
        """The highest sound rank up to the best predicting one, unless it predicts much worse.

        Then, or if none is sound, it is the best predicting one. Much worse is a larger loss of
        prediction than the gain by the last component of the sound rank.
        """
        best, means = self.best_predicting_index, [self.null_loss, *self.losses.mean(axis=1)]
        sound = next((k for k in range(best, -1, -1) if self.is_sound(k)), best)
        last_gain = means[sound] - means[sound + 1]
        return sound if means[sound + 1] - means[best + 1] <= last_gain else best

    @property
    def rank(self) -> int:
        return self.ranks[self.recommended_index]

    @property
    def runner_up(self) -> int | None:
        """The neighbour of the recommended rank that predicts held-out cells better."""
        k, last, mean = self.recommended_index, len(self.ranks) - 1, self.losses.mean(axis=1)
        neighbours = [other for other in (k - 1, k + 1) if 0 <= other <= last]
        return self.ranks[min(neighbours, key=lambda other: mean[other])] if neighbours else None

    @property
    def reason(self) -> str:
        k, best = self.recommended_index, self.best_predicting_index
        if k < best:
            rejected = self.ranks[best]
            return f"rank {rejected} predicts held-out cells better, but {self._weaknesses(best)}"
        if k + 1 < len(self.ranks):
            gain = float(np.mean(self.losses[k] - self.losses[k + 1]))
            change = f"{abs(gain):.4f} nats worse"
            if gain > 0:
                change = f"only {gain:.4f} nats better"
            if gain > MIN_GAIN:
                change = f"{gain:.4f} nats better on average, but in too few folds"
            explanation = f"rank {self.ranks[k + 1]} predicts held-out cells {change}"
        else:
            explanation = "held-out cells are still predicted better at the highest rank tried"
            if k == 0:
                explanation = "no other rank was tried"
        if self.is_sound(k):
            return f"{explanation}, and all components come back from other samples"
        return f"{explanation}; but {self._weaknesses(k)}"

    def _weaknesses(self, k: int) -> str:
        """The weaknesses of a rank that is not sound."""
        reasons = []
        if not self.stability[k] >= MIN_STABILITY:
            reasons.append(
                "its components do not all come back from other samples (congruence "
                f"{self.stability[k]:.2f})"
            )
        if self.consistency_deficit[k] > MAX_CONSISTENCY_DEFICIT:
            reasons.append("its components mend each other (low core consistency)")
        return " and ".join(reasons)


def core_consistency(fit: Fit, X: Any) -> float:
    """How close the best core tensor of a model's factors is to a superdiagonal of ones, in %.

    The core is estimated from the observed entries by least squares in units of their noise,
    without outliers. 100 is perfect; it is low or negative where components compensate each other.

    TensorLy-Viz's `core_consistency` differs for the same model: it estimates the core by least
    squares over all entries, so it also fits outliers. On data with bad entries it is lower, the
    more so the larger they are, though the model is as good: 56 against 99.9 here, on a tensor of
    `simulate` with a fifth of artifacts and correct factors. On clean data with homoscedastic noise
    the two agree. For a robust fit use this one.

    Examples
    --------
    >>> import robustcp
    >>> sim = robustcp.simulate((12, 11, 10), 2, eta=0.1, gamma=1.0, rng=0)
    >>> bool(robustcp.core_consistency(robustcp.cp(sim.data, 2), sim.data) > 95)
    True
    """
    fit = fit.aligned_to(X)
    data = host_data(X)
    if data.shape != fit.shape:
        raise ValueError(f"X: has shape {data.shape}, the model has shape {fit.shape}")
    view = FittedView.of(fit, data.data)
    scores, sigma = host_factors((view.outliers.scores, view.sigma()))
    if scores.ndim > 1:
        scores, sigma = scores[data.entries.indices], sigma[data.entries.indices]
    sigma = np.maximum(sigma, np.finfo(float).tiny)
    residuals = replace(data.entries, values=scores, scales=sigma)
    return consistency(canonical_model(fit), residuals)
