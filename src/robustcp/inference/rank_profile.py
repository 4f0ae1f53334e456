"""How many components? Robust evidence for each rank, and a recommendation.

The samples of one mode are dealt out to folds. Each fold's models leave out its samples, and some
cells of the others at random. So the same models tell how well cells are predicted that they have
not seen, whether components come back from other samples, and whether the core of such cells is
that of a CP model. The noise is that of the model of all data with most components.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp._util import checks
from robustcp.constraints import Constraint, Constraints, constraints_by_mode
from robustcp.engines import HostData, as_engine, host_data, to_host
from robustcp.estimators.driver import Seed, bind_constraints
from robustcp.estimators.spec import add_nonnegative
from robustcp.inference.core_consistency import EntryResiduals, chance_consistency, consistency
from robustcp.inference.ensemble import parse_ranks
from robustcp.inference.parallel import Progress, results_or_raise, run_parallel
from robustcp.inference.rank_checkpoint import RankPathCheckpoint
from robustcp.inference.rank_path import RankFit, fit_rank_path
from robustcp.model.metrics import align_components, canonical_model
from robustcp.noise import estimate_rough_noise
from robustcp.optimize.problem import Problem
from robustcp.persist.checkpoint import CheckpointArgument, request_checkpoint
from robustcp.results.fit import Fit
from robustcp.starts.subsamples import draw_indices, restrict_constraints

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The share of cells that each fold holds out.
HELD_OUT_SHARE = 0.1
#: How many folds there are.
DEFAULT_FOLDS = 5
#: With fewer samples, none are left out.
MIN_SAMPLES_TO_LEAVE_OUT = 4
#: The share of held-out residuals, the smallest ones, that the error is of.
SCORED_SHARE = 0.7
#: The most starts at each rank.
MAX_STARTS = 4
#: Degrees of freedom of the t distribution by which held-out cells are scored.
T_DEGREES_OF_FREEDOM = 3.0
#: What a rank must gain at least, per held-out cell,
MIN_GAIN = 0.002
#: in all folds but so many.
ALLOWED_EXCEPTIONS = 1
#: A component is replicated if its congruence is at least this (Lorenzo-Seva and ten Berge 2006).
MIN_STABILITY = 0.95
#: Components compensate each other if the core consistency is below that of chance by this.
MAX_CONSISTENCY_DEFICIT = 50.0
#: A core consistency below this is all the same.
MIN_CONSISTENCY = -100.0
#: Of data with more entries a part of about so many is looked at.
SUBSAMPLE_ENTRIES = 1 << 18


@dataclass(frozen=True, eq=False)
class RankProfile:
    """Evidence for each rank.

    Numbers come from several folds; `spread` has the standard error of each.

    Attributes
    ----------
    ranks : tuple of int
    error : float64 array
        The robust error of cells that were held out: the mean of the 70% smallest |residual| in
        units of the noise of their entries, relative to that of a zero model; NaN where that is 0,
        as for data that is mostly 0.
    gain : float64 array
        How much better held-out cells are predicted than by the rank before (of those tried), in
        nats per cell; at the first rank, than by a zero model.
    stability : float64 array
        Whether components come back from other samples: the congruence, in the other modes, of
        the component that comes back worst, at least so much in all folds but one. It is that
        with the model of the rank, of all data or of a fold, that the others are most like.
    agreement : float64 array
        The share of starts that ended at the best model of all data.
    consistency : float64 array
        Core consistency in percent, estimated from cells that the factors have not seen: 100 for
        a CP model. Components that are nothing but noise, or that mend each other, lower it, also
        below 0 (but not below -100 here). NaN where there are too few cells.
    noise : float64 array
        The standard deviation of the noise that the residuals show.
    spread : dict of float64 arrays
        The standard errors of "error", "gain", "stability" and "consistency".
    rank : int
        The recommendation.
    reason : str
        Why.
    runner_up : int or None
        The rank to look at next, if there is one.
    mode : int
        The mode of which samples were left out.

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
        """What there is to say about each rank, as a table."""
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
    """Whether two values are the same, arrays entry by entry, with NaN equal to itself."""
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_equal(first[k], second[k]) for k in first)
    if isinstance(first, str) or first is None:
        return bool(first == second)
    return bool(np.array_equal(first, second, equal_nan=True))


def rank_profile(
    X: Any,
    ranks: int | Iterable[int] = range(1, 9),
    *,
    mode: int | str = 0,
    folds: int = DEFAULT_FOLDS,
    nonnegative: bool | tuple[bool, ...] = False,
    constraints: Mapping[int | str, Constraint] | None = None,
    starts: int | str = "auto",
    rng: Seed = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    checkpoint: CheckpointArgument = None,
) -> RankProfile:
    """Fit each rank in several folds of the data, and say which to take.

    A rank is worth its last component if that predicts cells better which were held out, in all
    folds but one. Of the ranks that are, the highest is recommended whose components all come
    back when samples are left out, and do not mend each other: whose core consistency is no lower
    than by chance. If that would give up more of the prediction than its last component gains, the
    higher one is recommended all the same, and the reason says what is wrong with it.

    Parameters
    ----------
    X : array, masked array, or Observed
        With bad and missing entries, as for `cp`.
    ranks : int or iterable of int
    mode : int or str
        The mode that holds samples. With fewer than four of them none are left out.
    folds : int
        In how many folds cells, and samples, are held out.
    nonnegative, constraints
        As in `cp`.
    starts : int or "auto"
        The most starts at each rank, in all data and in each fold, until two agree; "auto" is 4.
    rng : None, seed or Generator
    jobs, progress
        As in `cp_many`.
    checkpoint : path or Checkpoint, optional
        A file that holds the models of all data and of each fold once they are done. The same
        call with the same data does only those that are not.

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
    data, bound_constraints = _subsample(
        host_data(X),
        bind_constraints(mode_constraints, engine.shape, axes.labels),
        max(rank_list),
        generator,
    )
    if not data.values.any():
        raise ValueError("X: is zero everywhere, there are no components to count")
    fold_list = _make_folds(data, mode_index, folds, generator)
    tasks = [
        RankPathTask(
            data, mode_index, None, rank_list, bound_constraints, start_count, generator.spawn(1)[0]
        )
    ]
    tasks += [
        RankPathTask(data, mode_index, part, rank_list, bound_constraints, start_count, own)
        for part, own in zip(fold_list, generator.spawn(folds), strict=True)
    ]
    completed_paths = RankPathCheckpoint(
        request_checkpoint(
            checkpoint,
            "rank_profile",
            data=data.digest,
            ranks=rank_list,
            mode=mode_index,
            folds=folds,
            constraints=repr(mode_constraints),
            starts=start_count,
            rng=rng_state,
        ),
        len(tasks),
    )
    pending = [number for number in range(len(tasks)) if number not in completed_paths.completed]
    finished_count = len(tasks) - len(pending)

    def record_path(number: int, result: dict[int, RankFit] | Exception) -> None:
        if not isinstance(result, Exception):
            completed_paths.add(pending[number], result)
        if progress is not None:
            progress(finished_count + number + 1, len(tasks))

    results_or_raise(
        run_parallel(
            RankPathTask.__call__, [tasks[k] for k in pending], jobs=jobs, on_result=record_path
        )
    )
    full_fits, *fold_fits = (completed_paths.completed[number] for number in range(len(tasks)))
    return _RankEvidence(data, mode_index, fold_list, full_fits, fold_fits).profile(rank_list)


@dataclass(frozen=True, eq=False)
class Fold:
    """What one fold leaves out.

    Attributes
    ----------
    samples : integer array
        The samples that its models have.
    held_out : integer array
        Which of the observed entries of all data are held out, of those samples.
    """

    samples: np.ndarray
    held_out: np.ndarray


def _subsample(
    data: HostData, constraints: Constraints, rank: int, rng: np.random.Generator
) -> tuple[HostData, Constraints]:
    """Of large data a random part, which tells as much."""
    if not (data.count > SUBSAMPLE_ENTRIES and data.count > 0.4 * np.prod(data.shape, dtype=float)):
        return data, constraints
    indices = draw_indices(data.shape, SUBSAMPLE_ENTRIES, rank, rng)
    if indices is None:
        return data, constraints
    for mode, rows in enumerate(indices):
        data = data if rows is None else data.take(mode, rows)
    return data, restrict_constraints(constraints, indices)


def _make_folds(data: HostData, mode: int, folds: int, rng: np.random.Generator) -> list[Fold]:
    """Samples and cells, dealt out at random; of few samples all are kept."""
    size, cell_numbers = data.shape[mode], rng.permutation(data.count) % round(1 / HELD_OUT_SHARE)
    fold_of_sample = np.empty(size, dtype=np.int64)
    fold_of_sample[rng.permutation(size)] = np.arange(size) % folds
    if size < MIN_SAMPLES_TO_LEAVE_OUT:
        fold_of_sample[:] = -1
    fold_list = []
    for fold in range(folds):
        samples = np.flatnonzero(fold_of_sample != fold)
        held_out = (cell_numbers == fold % round(1 / HELD_OUT_SHARE)) & (
            fold_of_sample[data.indices[mode]] != fold
        )
        fold_list.append(Fold(samples, np.flatnonzero(held_out)))
    return fold_list


@dataclass(frozen=True, eq=False)
class RankPathTask:
    """The models of some data, or of what a fold leaves of it, at all ranks."""

    data: HostData
    mode: int
    fold: Fold | None
    ranks: Sequence[int]
    constraints: Constraints
    starts: int
    rng: np.random.Generator

    def __call__(self) -> dict[int, RankFit]:
        data, constraints = self.data, self.constraints
        if self.fold is not None:
            held_out = np.zeros(data.count, dtype=bool)
            held_out[self.fold.held_out] = True
            data = data.without_entries(held_out).take(self.mode, self.fold.samples)
            indices = [
                self.fold.samples if n == self.mode else None for n in range(len(data.shape))
            ]
            constraints = restrict_constraints(constraints, indices)
        return fit_rank_path(data.data, self.ranks, constraints, self.starts, self.rng)


@dataclass(frozen=True, eq=False)
class _RankEvidence:
    """What the models of all data and of the folds say of each rank."""

    data: HostData
    mode: int
    folds: Sequence[Fold]
    full_fits: Mapping[int, RankFit]
    fold_fits: Sequence[Mapping[int, RankFit]]

    def profile(self, ranks: tuple[int, ...]) -> RankProfile:
        """The numbers of all ranks, and what follows from them."""
        sigma = self._entry_sigma(max(ranks))
        scores = {rank: self._held_out_scores(rank, sigma) for rank in (0, *ranks)}
        losses = np.array([[_mean_t_loss(z) for z in scores[rank]] for rank in (0, *ranks)])
        errors = np.array([[_trimmed_mean(z) for z in scores[rank]] for rank in (0, *ranks)])
        errors = errors[1:] / np.where(errors[0] > 0, errors[0], np.nan)
        gains = losses[:-1] - losses[1:]
        stabilities = np.array([self._stabilities(rank) for rank in ranks])
        consistencies = np.array([self._core_values(rank, sigma, consistency) for rank in ranks])
        spread = {
            "error": _standard_error(errors),
            "gain": _standard_error(gains),
            "stability": _standard_error(stabilities),
            "consistency": _standard_error(consistencies),
        }
        stability, consistency_median = (
            _smallest_but_one(stabilities),
            np.median(consistencies, axis=1),
        )
        deficits = np.array(
            [
                np.median(
                    self._core_values(
                        rank, sigma, lambda cells: chance_consistency(cells) - consistency(cells)
                    )
                )
                if stable >= MIN_STABILITY
                else np.nan
                for rank, stable in zip(ranks, stability, strict=True)
            ]
        )
        choice = RankChoice(ranks, losses[1:], float(losses[0].mean()), stability, deficits)
        return RankProfile(
            ranks,
            errors.mean(axis=1),
            gains.mean(axis=1),
            stability,
            np.array([self.full_fits[rank].agreement for rank in ranks]),
            np.maximum(consistency_median, MIN_CONSISTENCY),
            np.array([self._noise_sigma(rank) for rank in ranks]),
            spread,
            choice.rank,
            choice.reason,
            choice.runner_up,
            self.mode,
        )

    def _estimate_noise(self, rank: int) -> tuple[Problem, Any, Any]:
        problem = Problem.of(as_engine(self.data.data)).without_gross_outliers
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
            host_factors = tuple(np.asarray(A, dtype=np.float64) for A in factors)
            noise_scales = noise.scales(engine.shape, host_factors)
            scales = scales if noise_scales is None else noise_scales.values_at(self.data.indices)
        floor = max(noise.least, problem.resolution.min_entry_sigma, np.finfo(float).tiny)
        return np.asarray(np.maximum(noise.sigma * scales, floor) * problem.units.factor)

    def _held_out_scores(self, rank: int, sigma: np.ndarray) -> list[np.ndarray]:
        """The residuals of the held-out cells of each fold, in units of their noise."""
        scores = []
        for fold, rank_fits in zip(self.folds, self.fold_fits, strict=True):
            values = self.data.values[fold.held_out]
            model = rank_fits[rank].model.at(self._held_out_indices(fold)) if rank else 0.0
            scores.append((values - model) / sigma[fold.held_out])
        return scores

    def _held_out_indices(self, fold: Fold) -> np.ndarray:
        """Where the held-out cells are, in the data of the fold."""
        indices = [index[fold.held_out] for index in self.data.indices]
        indices[self.mode] = np.searchsorted(fold.samples, indices[self.mode])
        return np.stack(indices, axis=1)

    def _stabilities(self, rank: int) -> np.ndarray:
        """How much the worst component of each model is like one of the model most are like.

        That may be one of a fold: the model of all data, too, may have ended elsewhere.
        """
        models = [rungs[rank].model for rungs in (self.full_fits, *self.fold_fits)]
        congruences = np.array(
            [
                [
                    align_components(model, other, skip=self.mode)[1].min()
                    for model in models
                    if model is not other
                ]
                for other in models
            ]
        )
        stabilities: np.ndarray = congruences[int(np.argmax(_smallest_but_one(congruences)))]
        return stabilities

    def _core_values(
        self, rank: int, sigma: np.ndarray, measure: Callable[[EntryResiduals], float]
    ) -> list[float]:
        """What the held-out cells of each fold say of the core."""
        values = []
        for fold, rank_fits in zip(self.folds, self.fold_fits, strict=True):
            model, indices = rank_fits[rank].model, self._held_out_indices(fold)
            z = (self.data.values[fold.held_out] - model.at(indices)) / sigma[fold.held_out]
            values.append(measure(EntryResiduals(model, indices, z, sigma[fold.held_out])))
        return values


def _mean_t_loss(z: np.ndarray) -> float:
    """What cells cost on average: minus the log density of a t distribution, but for constants."""
    if not z.size:
        return 0.0
    return float(np.mean(0.5 * (T_DEGREES_OF_FREEDOM + 1) * np.log1p(z * z / T_DEGREES_OF_FREEDOM)))


def _trimmed_mean(z: np.ndarray) -> float:
    """The mean of the smaller magnitudes; NaN if there are none."""
    sizes = np.sort(np.abs(z))[: max(1, int(SCORED_SHARE * z.size))]
    return float(sizes.mean()) if z.size else float("nan")


def _smallest_but_one(values: np.ndarray) -> np.ndarray:
    """What is reached in all folds but one, for each row."""
    return np.asarray(np.sort(values, axis=1)[:, ALLOWED_EXCEPTIONS])


def _standard_error(values: np.ndarray) -> np.ndarray:
    """That of the mean over folds, for each rank."""
    return np.asarray(values.std(axis=1, ddof=1) / np.sqrt(values.shape[1]))


@dataclass(frozen=True)
class RankChoice:
    """Which rank the evidence speaks for.

    Attributes
    ----------
    ranks : tuple of int
    losses : float64 array (ranks, folds)
        What held-out cells cost.
    null_loss : float
        What they cost under a zero model.
    stability : float64 array (ranks,)
    consistency_deficit : float64 array (ranks,)
        By how much the core consistency is lower than by chance, in percent; NaN if that is not
        known.
    """

    ranks: tuple[int, ...]
    losses: np.ndarray
    null_loss: float
    stability: np.ndarray
    consistency_deficit: np.ndarray

    def predicts_better(self, k: int, other: int) -> bool:
        """Whether one predicts held-out cells better than another, in all folds but one."""
        gains = self.losses[other] - self.losses[k]
        return bool(np.sum(gains > MIN_GAIN) >= max(gains.size - ALLOWED_EXCEPTIONS, 1))

    @property
    def best_predicting_index(self) -> int:
        """The first that none after it predicts better than."""
        last = len(self.ranks) - 1
        return next(
            k
            for k in range(last + 1)
            if not any(self.predicts_better(other, k) for other in range(k + 1, last + 1))
        )

    def is_sound(self, k: int) -> bool:
        """Whether all components come back, and none is there to mend another."""
        return bool(
            self.stability[k] >= MIN_STABILITY
            and not self.consistency_deficit[k] > MAX_CONSISTENCY_DEFICIT
        )

    @property
    def recommended_index(self) -> int:
        """The highest that predicts, and is sound; the one that predicts if none is, or if that
        would give up more of the prediction than its own last component gains."""
        best, mean = self.best_predicting_index, self.losses.mean(axis=1)
        sound_index = next((k for k in range(best, -1, -1) if self.is_sound(k)), best)
        last_gain = (
            mean[sound_index - 1] - mean[sound_index] if sound_index else self.null_loss - mean[0]
        )
        return sound_index if mean[sound_index] - mean[best] <= last_gain else best

    @property
    def rank(self) -> int:
        return self.ranks[self.recommended_index]

    @property
    def runner_up(self) -> int | None:
        """What to look at next: that of its neighbours which predicts held-out cells better."""
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
        """What is wrong with a rank that is not sound."""
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

    The core is estimated from the observed entries by least squares in units of their noise;
    outliers are left out. 100 is perfect; it is low or negative where components mend each other.

    TensorLy-Viz's `core_consistency` is another number for the same model: there the core is that
    of plain least squares over all entries, so what it has to explain is the outliers too. On data
    with bad entries it is lower, the more so the larger they are, though the model is as good: 56
    against 99.9 here, on a tensor of `simulate` with a fifth of artifacts whose factors are found.
    On clean data with even noise the two agree. For a robust fit take this one.

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
    outliers = fit.outliers(data.data)
    indices = np.stack(data.indices, axis=1)
    scores, sigma = (
        np.asarray(to_host(array), dtype=np.float64)
        for array in (outliers.scores, fit.sigma(data.data))
    )
    if scores.ndim > 1:
        scores, sigma = scores[data.indices], sigma[data.indices]
    return consistency(
        EntryResiduals(
            canonical_model(fit), indices, scores, np.maximum(sigma, np.finfo(float).tiny)
        )
    )
