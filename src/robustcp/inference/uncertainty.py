"""Intervals for the entries of a fit's factors: by asymptotic normality, or by resamples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp._util import checks
from robustcp.constraints import Constraints
from robustcp.engines import (
    CoordinateWeights,
    Engine,
    Observed,
    Scales,
    Weights,
    as_engine,
    single_blas_thread,
    to_host,
)
from robustcp.inference.covariance import GeneralizedInverse, covariance, newton_inverse
from robustcp.inference.parallel import Progress, run_parallel
from robustcp.losses import Loss, as_loss
from robustcp.model.kruskal import component_name
from robustcp.model.metrics import best_pairing
from robustcp.noise import degrees_of_freedom_correction, find_outlying_fibres
from robustcp.noise.resolution import Magnitudes
from robustcp.optimize.problem import Problem
from robustcp.optimize.row_prior import Prior, RowPosterior, RowPrior
from robustcp.optimize.schedules import Single
from robustcp.optimize.solver import Solver, Stage, State
from robustcp.optimize.units import Units

if TYPE_CHECKING:
    from robustcp.results.fit import Fit

METHODS = ("normal", "bootstrap", "jackknife")
#: Resamples are fitted from where the fit is, and do not show it.
UNDETERMINED_NOTE = "the data does not determine all factors"
#: The congruence from which a component of a resample is the same one.
SAME_CONGRUENCE = 0.9
#: A component that is the same in a smaller share of the resamples is noted.
MIN_RECOVERED_SHARE = 0.95
#: The fewest resamples for intervals.
MIN_RESAMPLES = 20
#: The fewest slabs beyond the rank for intervals.
MIN_EXTRA_SLABS = 2
#: Losses that bend within less than this many standard deviations of the residuals, such as the
#: 1-norm, do so within as many when they are fitted again: else entries that are met jam.
MIN_LOSS_WIDTH = 0.03
#: A refit ends when a sweep lowers the objective by less than this many times its share of one
#: entry,
REFIT_TOLERANCE = 1e-3
#: or after so many sweeps.
MAX_REFIT_SWEEPS = 500
#: With fewer entries than this in all resamples together, starting processes takes longer.
MIN_PARALLEL_ENTRIES = 1 << 27
#: With fewer of its entries than this share, a tensor is passed over as a list of entries.
MIN_DENSE_SHARE = 0.1


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """Intervals for the entries of the unit columns of a fit's factors.

    Attributes
    ----------
    method : {"normal", "bootstrap", "jackknife"}
    mode : int, optional
        The mode whose slabs were resampled.
    level : float
        The share of intervals that should hold the true entry.
    low, high : tuple of (float64 array (I_n, R) or None), one for each mode
        The ends of the intervals; None for the mode whose slabs were resampled.
    errors : tuple of (float64 array (I_n, R) or None)
        Standard errors; infinite where there is no telling.
    came_back : float64 array (R,)
        The share of resamples in which each component came back.
    count, failed : int
        How many resamples there were, and how many could not be fitted.
    notes : tuple of str
        What users should know.

    Examples
    --------
    >>> import robustcp
    >>> X = robustcp.simulate((12, 11, 10), 2, eta=0.1, gamma=1.0, rng=0).data
    >>> fit = robustcp.cp(X, 2)
    >>> sure = fit.uncertainty(X)
    >>> bool(((sure.low[1] <= fit.factors[1]) & (fit.factors[1] <= sure.high[1])).all())
    True
    """

    method: str
    mode: int | None
    level: float
    low: tuple[np.ndarray | None, ...] = field(repr=False)
    high: tuple[np.ndarray | None, ...] = field(repr=False)
    errors: tuple[np.ndarray | None, ...] = field(repr=False)
    came_back: np.ndarray = field(repr=False)
    count: int = 0
    failed: int = 0
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        description = self.method
        if self.mode is not None:
            description += f" of mode {self.mode}"
        if self.count:
            description += f", {self.count} resamples"
        if self.failed:
            description += f", {self.failed} failed"
        all_errors = np.concatenate([e.ravel() for e in self.errors if e is not None])
        notes = "".join(f"; {note}" for note in self.notes)
        return (
            f"Uncertainty({description}, {100 * self.level:g}% intervals, "
            f"median error {np.median(all_errors):.2g}{notes})"
        )


def uncertainty(
    fit: Fit,
    problem: Problem,
    method: str,
    mode: int | None,
    *,
    n: int = 200,
    level: float = 0.95,
    rng: int | np.random.Generator | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Uncertainty:
    """Intervals for a fit of some data; see `Fit.uncertainty`."""
    checks.choice("method", method, METHODS)
    level = checks.real_number("level", level, 0.0, strict=True, below=1.0)
    n = checks.whole_number("n", n, MIN_RESAMPLES)
    generator = checks.generator(rng)
    if method == "normal" and mode is not None:
        raise checks.ArgumentError("mode", f"is for resampled slabs, got {mode!r} for 'normal'")
    if method == "jackknife" and mode is None:
        mode = 0
    with single_blas_thread:
        view = FitBasis.of(fit, problem)
        if method == "normal":
            return _normal_intervals(fit, view, level)
        refitter = view.make_refitter()
        if mode is None:
            residual_refitter = view.make_residual_refitter(refitter)
            inverse = residual_refitter.refitter.inverse
            notes = () if inverse is None or inverse.determined else (UNDETERMINED_NOTE,)
            resampling = Resampling(residual_refitter, generator.spawn(n), notes=notes)
        elif method == "bootstrap":
            resampling = _bootstrap_slabs(SlabRefitter(refitter, mode), n, generator)
        else:
            resampling = _jackknife_slabs(SlabRefitter(refitter, mode), n)
    if jobs is None and len(resampling.items) * refitter.entries.values.size < MIN_PARALLEL_ENTRIES:
        jobs = 1
    models = run_parallel(resampling.refitter, resampling.items, jobs=jobs, progress=progress)
    return _resampled_intervals(
        fit, method, mode, level, resampling, view.rows_with_data(refitter.entries), models
    )


# What a fit was made of


@dataclass(frozen=True, eq=False)
class FitBasis:
    """All that a fit rests on, in units in which squares can be made.

    Attributes
    ----------
    engine : Engine
        The data without what the fit left out, residuals in units of their noise.
    factors : tuple of float64 array
        On the host, weights and all.
    loss : Loss
    constraints : tuple of Constraint
    row_prior : RowPrior
        Which modes have a prior, where some rows have few entries.
    unit : float
        The loss is so many times a negative log likelihood, where there is a prior.
    inflation : float
        What residuals are multiplied by, to be as large as the noise.
    """

    engine: Engine
    factors: tuple[np.ndarray, ...]
    loss: Loss
    constraints: Constraints
    row_prior: RowPrior
    unit: float
    inflation: float

    @classmethod
    def of(cls, fit: Fit, problem: Problem) -> FitBasis:
        units, loss = problem.units, problem.units.loss_of_fit(as_loss(fit.loss))
        noise = fit.noise.scaled(1 / units.factor)
        factors = tuple(
            np.asarray(to_host(A), dtype=np.float64)
            for A in units.factors_of_fit(fit.model.absorbed())
        )
        if loss.tail is not None:
            problem = problem.without_gross_outliers
        if noise.kind_determined:
            problem = problem.without_constant_fibres
        engine = problem.clipped_for(loss)
        if fit.cases is not None and fit.cases.flagged.any():
            flagged = np.flatnonzero(fit.cases.flagged)
            engine = engine.without_slabs(fit.cases.mode, flagged)
        engine_factors = tuple(engine.asarray(A) for A in factors)
        if noise.kind.signal:
            noise = noise.with_signal(factors)
        if noise.kind_determined and noise.sigma > 0:
            fibres = find_outlying_fibres(engine, engine_factors, noise)
            engine = engine if fibres is None else engine.without_fibres(fibres)
        if not noise.homoscedastic:
            engine = engine.standardized(noise.scales(engine.shape, factors))
        constraints = tuple(
            constraint.bound(size, labels)
            for constraint, size, labels in zip(
                fit.constraints, engine.shape, fit.labels, strict=True
            )
        )
        row_prior = RowPrior.of(constraints, range(engine.order))
        if not (noise.kind_determined and row_prior.is_needed(engine, fit.rank)):
            row_prior = RowPrior()
        inflation = degrees_of_freedom_correction(engine, fit.rank, noise.clean)
        return cls(engine, factors, loss, constraints, row_prior, noise.sigma**2, inflation)

    @property
    def residual_scale(self) -> float:
        """The robust standard deviation of the residuals that are not rejected."""
        r = np.abs(self.engine.sample(self._engine_factors).values)
        accepted = r[r <= self.loss.rejects]
        return 1.4826 * float(np.median(accepted if accepted.size else r))

    @property
    def smoothed_loss(self) -> Loss:
        """The loss, bent within no less than a share of the spread."""
        reach, min_width = self.loss.reach, MIN_LOSS_WIDTH * self.residual_scale
        if self.loss.tail is None or not 0 < reach < min_width:
            return self.loss
        return self.loss.rescaled(min_width / reach)

    @property
    def row_posterior(self) -> RowPosterior:
        """What is known of the rows, each mode by itself."""
        return self.row_prior.row_posterior(
            self.engine, self._engine_factors, self.smoothed_loss, self.unit, None
        )

    @property
    def _engine_factors(self) -> tuple[Any, ...]:
        return tuple(self.engine.asarray(A) for A in self.factors)

    def make_refitter(self) -> Refitter:
        """How resamples are fitted."""
        entries = self.engine.entries()
        host_entries = HostEntries(
            self.engine.shape,
            tuple(entries.indices),
            entries.values,
            entries.scales,
            entries.weights,
            self.engine.machine_epsilon,
        )
        prior = self.row_posterior.prior(self.unit) if self.row_prior.modes else None
        return Refitter(
            host_entries,
            self.factors,
            self.smoothed_loss,
            self.constraints,
            prior,
            Magnitudes.of(self.engine),
        )

    def make_residual_refitter(self, refitter: Refitter) -> ResidualRefitter:
        """Resamples of the residuals."""
        model, r = self._model_and_residuals(refitter.entries)
        inverse = None
        if not self.row_prior.modes:
            inverse = newton_inverse(
                self.engine, self.factors, self.smoothed_loss, self.row_posterior
            )
        accepted = np.abs(r) <= self.loss.rejects
        return ResidualRefitter(
            replace(refitter, inverse=inverse), model, self.inflation * r, accepted
        )

    def rows_with_data(self, entries: HostEntries) -> list[np.ndarray]:
        """Which rows of each mode have entries that are not rejected."""
        accepted = np.abs(self._model_and_residuals(entries)[1]) <= self.loss.rejects
        return [
            np.bincount(index[accepted], minlength=size) > 0
            for index, size in zip(entries.indices, entries.shape, strict=True)
        ]

    def _model_and_residuals(self, entries: HostEntries) -> tuple[np.ndarray, np.ndarray]:
        """The model's entries, and the residuals in units of their noise."""
        model = entries.model_entries(self.factors)
        r = entries.values - model
        return model, r if entries.scales is None else r / entries.scales


@dataclass(frozen=True, eq=False)
class HostEntries:
    """Entries of a tensor on the host, and where they are.

    Attributes
    ----------
    shape : tuple of int
    indices : tuple of integer array (count,), one for each mode
    values : float64 array (count,)
    scales, weights : float64 array (count,), optional
        As in `Sample`.
    precision : float
        The machine epsilon of the type that they are fitted in.
    """

    shape: tuple[int, ...]
    indices: tuple[np.ndarray, ...]
    values: np.ndarray
    scales: np.ndarray | None
    weights: np.ndarray | None
    precision: float

    def to_engine(self) -> Engine:
        dtype = np.float64 if self.precision < 1e-10 else np.float32
        if self.values.size < MIN_DENSE_SHARE * math.prod(self.shape):
            indices, values = np.stack(self.indices, axis=1), self.values.astype(dtype)
            engine = as_engine(Observed(indices, values, self.shape))
            scales = None if self.scales is None else Scales(CoordinateWeights(self.scales))
            weights = self.weights
        else:
            engine = as_engine(self._to_dense(self.values, math.nan).astype(dtype, copy=False))
            scales = None
            if self.scales is not None:
                array = self._to_dense(self.scales, 1.0)
                scales = Scales(Weights(self.shape, (None,) * len(self.shape), array))
            weights = None if self.weights is None else self._to_dense(self.weights, 0.0)
        engine = engine if weights is None else engine.weighted(weights)
        return engine.standardized(scales)

    def _to_dense(self, values: np.ndarray, missing: float) -> np.ndarray:
        array = np.full(self.shape, missing)
        array[self.indices] = values
        return array

    def model_entries(self, factors: Sequence[np.ndarray]) -> np.ndarray:
        """The entries of a model."""
        product = np.ones((1, factors[0].shape[1]))
        for A, index in zip(factors, self.indices, strict=True):
            product = product * A[index]
        return np.asarray(product.sum(axis=1))

    def repeat_slabs(self, mode: int, counts: np.ndarray) -> HostEntries:
        """The slabs of a mode, each counted so many times; those of count 0 are not there."""
        new_index = np.cumsum(counts > 0) - 1
        repeats = counts[self.indices[mode]]
        repeated = repeats > 0
        indices = [index[repeated] for index in self.indices]
        indices[mode] = new_index[indices[mode]]
        weights = (
            repeats[repeated]
            if self.weights is None
            else repeats[repeated] * self.weights[repeated]
        )
        shape = list(self.shape)
        shape[mode] = int(np.count_nonzero(counts))
        scales = None if self.scales is None else self.scales[repeated]
        return replace(
            self,
            shape=tuple(shape),
            indices=tuple(indices),
            values=self.values[repeated],
            scales=scales,
            weights=None if np.all(weights == 1) else weights.astype(np.float64),
        )


# Resamples


@dataclass(frozen=True, eq=False)
class Refitter:
    """How a model is fitted to a resample: from where the fit is, its loss and noise held.

    Attributes
    ----------
    entries : Cells
        The data of the fit.
    factors, loss, constraints, prior, sizes
        What the fit holds.
    inverse : Inverse, optional
        The inverse of its second derivatives.
    """

    entries: HostEntries
    factors: tuple[np.ndarray, ...]
    loss: Loss
    constraints: Constraints
    prior: Prior | None
    sizes: Magnitudes
    inverse: GeneralizedInverse | None = None

    def __call__(
        self, entries: HostEntries, mode: int | None = None, rows: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        """The factors of other cells, or of those of some rows of a mode."""
        factors, constraints = list(self.factors), list(self.constraints)
        if mode is not None and rows is not None:
            factors[mode] = factors[mode][rows]
            constraints[mode] = constraints[mode].on(rows)
        with single_blas_thread:
            engine = entries.to_engine()
            problem = Problem(engine, Units(engine.order), self.sizes)
            tol, mu = REFIT_TOLERANCE / engine.count, problem.relative_mu(1e-8, self.loss.degree)
            stage = Stage("refit", Single(self.loss, self.prior), tol, mu)
            solver = Solver(problem, [stage], constraints=tuple(constraints))
            state = solver.start(tuple(engine.asarray(A) for A in factors))
            state, _ = solver.run(self._try_newton_step(solver, state), MAX_REFIT_SWEEPS)
        return tuple(np.asarray(A, dtype=np.float64) for A in state.factors)

    def _try_newton_step(self, solver: Solver, state: State) -> State:
        """The state after a step by the fit's second derivatives, if that is lower."""
        if self.inverse is None:
            return state
        engine = solver.problem.engine
        slopes = [
            np.asarray(
                engine.normal_equations(state.factors, mode, self.loss).gradient, dtype=np.float64
            )
            for mode in range(engine.order)
        ]
        steps = self.inverse.multiply(slopes)
        new_state = solver.start(
            tuple(A + engine.asarray(step) for A, step in zip(state.factors, steps, strict=True))
        )
        return new_state if new_state.objective < state.objective else state


@dataclass(frozen=True, eq=False)
class ResidualRefitter:
    """A refit to the model plus residuals that are drawn among those that fit.

    Outlying entries stay as they are: they may have their places, such as a bad slab.
    """

    refitter: Refitter
    model: np.ndarray
    residuals: np.ndarray
    accepted: np.ndarray

    def __call__(self, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        entries, pool, accepted = (
            self.refitter.entries,
            self.residuals[self.accepted],
            self.accepted,
        )
        noise = pool[rng.integers(pool.size, size=pool.size)]
        values = entries.values.copy()
        values[accepted] = self.model[accepted] + (
            noise if entries.scales is None else noise * entries.scales[accepted]
        )
        return self.refitter(replace(entries, values=values))


@dataclass(frozen=True, eq=False)
class SlabRefitter:
    """A refit to the slabs of a mode, each counted so many times."""

    refitter: Refitter
    mode: int

    def __call__(self, counts: np.ndarray) -> tuple[np.ndarray, ...]:
        entries = self.refitter.entries.repeat_slabs(self.mode, counts)
        return self.refitter(entries, self.mode, np.flatnonzero(counts))


@dataclass(frozen=True, eq=False)
class Resampling:
    """Some resamples, and what their spread says.

    Attributes
    ----------
    refitter : function from an item to the factors of a resample
    items : sequence
    error_factor : float
        By how much standard errors are larger than the spread of the resamples.
    degrees_of_freedom : float
        The degrees of freedom of that spread, as of Student's t.
    notes : tuple of str
        What users should know.
    """

    refitter: Callable[[Any], Any]
    items: Sequence[Any]
    error_factor: float = 1.0
    degrees_of_freedom: float = math.inf
    notes: tuple[str, ...] = ()


def _bootstrap_slabs(refitter: SlabRefitter, n: int, rng: np.random.Generator) -> Resampling:
    """As many slabs as there are, with replacement."""
    slabs, size = _slabs_with_data(refitter)
    items = [np.bincount(rng.choice(slabs, size=slabs.size), minlength=size) for _ in range(n)]
    return Resampling(refitter, items, math.sqrt(slabs.size / (slabs.size - 1)), slabs.size - 1)


def _jackknife_slabs(refitter: SlabRefitter, n: int) -> Resampling:
    """Without each slab in turn, or of many each of n groups of neighbours."""
    slabs, size = _slabs_with_data(refitter)
    groups = np.array_split(slabs, min(n, slabs.size))
    items = [np.isin(np.arange(size), np.setdiff1d(slabs, group)) for group in groups]
    return Resampling(refitter, items, (len(groups) - 1) / math.sqrt(len(groups)), len(groups) - 1)


def _slabs_with_data(refitter: SlabRefitter) -> tuple[np.ndarray, int]:
    """Which slabs of a mode hold anything, and how many there are in all."""
    entries, rank, mode = (
        refitter.refitter.entries,
        refitter.refitter.factors[0].shape[1],
        refitter.mode,
    )
    slabs = np.unique(entries.indices[mode])
    if slabs.size < rank + MIN_EXTRA_SLABS:
        raise checks.ArgumentError(
            "mode",
            f"must have at least {rank + MIN_EXTRA_SLABS} slabs with data for rank {rank}, "
            f"mode {mode} has {slabs.size}",
        )
    return slabs, entries.shape[mode]


# Intervals


def _normal_intervals(fit: Fit, view: FitBasis, level: float) -> Uncertainty:
    from scipy.special import ndtri

    estimate = covariance(view.engine, view.factors, view.loss, view.row_posterior, view.unit)
    errors = tuple(np.sqrt(V) for V in estimate.variances)
    notes = []
    if not estimate.joint:
        notes.append("too many unknowns to solve for together: each row as if others were known")
    if not estimate.determined:
        notes.append(UNDETERMINED_NOTE)
    low, high = _interval_ends(fit, errors, float(ndtri(0.5 + level / 2)))
    all_recovered = np.ones(fit.rank)
    return Uncertainty("normal", None, level, low, high, errors, all_recovered, notes=tuple(notes))


def _resampled_intervals(
    fit: Fit,
    method: str,
    mode: int | None,
    level: float,
    resampling: Resampling,
    rows_with_data: Sequence[np.ndarray],
    results: Sequence[Any],
) -> Uncertainty:
    """Intervals from the factors of resamples; the first error, if most could not be fitted."""
    from scipy.special import stdtrit

    models = [result for result in results if not isinstance(result, Exception)]
    failed = [result for result in results if isinstance(result, Exception)]
    if len(failed) > len(models):
        raise failed[0]
    columns, recovered = _match_resamples(fit, mode, rows_with_data, models)
    count = recovered.sum(axis=0)
    errors = tuple(
        None
        if E is None
        else np.where(
            rows[:, None], resampling.error_factor * _resample_deviation(E, count), np.inf
        )
        for E, rows in zip(columns, rows_with_data, strict=True)
    )
    low, high = _interval_ends(
        fit, errors, float(stdtrit(resampling.degrees_of_freedom, 0.5 + level / 2))
    )
    share = count / len(models)
    notes = [*resampling.notes]
    notes += [
        f"{component_name(int(r))} came back in {share[r]:.0%} of the resamples"
        for r in np.flatnonzero(share < MIN_RECOVERED_SHARE)
    ]
    return Uncertainty(
        method, mode, level, low, high, errors, share, len(results), len(failed), tuple(notes)
    )


def _match_resamples(
    fit: Fit,
    mode: int | None,
    rows_with_data: Sequence[np.ndarray],
    models: Sequence[Sequence[np.ndarray]],
) -> tuple[list[np.ndarray | None], np.ndarray]:
    """Columns (count, I_n, R) of resamples as the fit has them, and which components came back.

    Components are paired by their congruence in all modes but the one that was resampled, and
    have the signs of the fit's. None for that mode. Rows without entries have no say: columns are
    as large as the fit's in the others.
    """
    modes = [n for n in range(len(fit.shape)) if n != mode]
    fit_columns = {
        n: _normalize_columns(A * rows_with_data[n][:, None])
        for n, A in enumerate(_unit_factors(fit))
        if n != mode
    }
    columns_by_mode = {n: np.empty((len(models), *U.shape)) for n, (U, _) in fit_columns.items()}
    recovered = np.empty((len(models), fit.rank), dtype=bool)
    for k, model in enumerate(models):
        units = {n: _normalize_columns(model[n] * rows_with_data[n][:, None])[0] for n in modes}
        cosines = {n: U.T @ units[n] for n, (U, _) in fit_columns.items()}
        congruence = math.prod(np.abs(cosine) for cosine in cosines.values())
        rows, columns = best_pairing(congruence)
        recovered[k] = congruence[rows, columns] >= SAME_CONGRUENCE
        for n, (_, sizes) in fit_columns.items():
            signed_sizes = np.where(cosines[n][rows, columns] < 0, -sizes, sizes)
            columns_by_mode[n][k] = np.where(
                recovered[k], units[n][:, columns] * signed_sizes, np.nan
            )
    return [columns_by_mode.get(n) for n in range(len(fit.shape))], recovered


def _resample_deviation(columns: np.ndarray, count: np.ndarray) -> np.ndarray:
    """The standard deviation over the resamples in which components came back."""
    mean = np.nansum(columns, axis=0) / np.maximum(count, 1)
    squares = np.nansum((columns - mean) ** 2, axis=0)
    return np.where(count > 1, np.sqrt(squares / np.maximum(count - 1, 1)), np.inf)


def _interval_ends(
    fit: Fit, errors: Sequence[np.ndarray | None], width: float
) -> tuple[tuple[np.ndarray | None, ...], tuple[np.ndarray | None, ...]]:
    """So many errors below and above the fit, within what unit columns may hold."""
    ends: list[list[np.ndarray | None]] = [[], []]
    for A, e, constraint in zip(_unit_factors(fit), errors, fit.constraints, strict=True):
        lower_bound = -1.0 if constraint.signed else 0.0
        for side, end in zip((-1, 1), ends, strict=True):
            end.append(None if e is None else np.clip(A + side * width * e, lower_bound, 1.0))
    return tuple(ends[0]), tuple(ends[1])


def _unit_factors(fit: Fit) -> list[np.ndarray]:
    return [np.asarray(to_host(A), dtype=np.float64) for A in fit.factors]


def _normalize_columns(A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unit columns, and the sizes that they had."""
    sizes = np.linalg.norm(A, axis=0)
    return A / np.where(sizes > 0, sizes, 1.0), sizes
