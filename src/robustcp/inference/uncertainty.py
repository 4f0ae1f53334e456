"""Intervals for the entries of a fit's factors: by asymptotic normality, or by resamples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp._util import checks
from robustcp.constraints import Constraints
from robustcp.engines import (
    Engine,
    Entries,
    EntryField,
    ListedField,
    Observed,
    Scales,
    as_engine,
    single_blas_thread,
)
from robustcp.inference.covariance import (
    GeneralizedInverse,
    covariance,
    newton_inverse,
    normalize_columns,
)
from robustcp.inference.parallel import Progress, run_parallel
from robustcp.losses import Loss, as_loss
from robustcp.model.kruskal import component_name, host_factors
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
#: Noted for bootstraps too: resamples are fitted from where the fit is, and do not show it.
UNDETERMINED_NOTE = "the data does not determine all factors"
#: Noted where the joint covariance would be too large.
ROWS_ALONE_NOTE = "too many unknowns to solve for together: each row as if others were known"
#: A component of a resample is paired with one of the fit from this congruence on.
SAME_CONGRUENCE = 0.9
#: A component that is recovered in a smaller share of the resamples is noted.
MIN_RECOVERED_SHARE = 0.95
#: The fewest resamples for intervals.
MIN_RESAMPLES = 20
#: The fewest slabs beyond the rank for intervals.
MIN_EXTRA_SLABS = 2
#: Refits widen a loss that bends within a smaller multiple of the standard deviation of the
#: residuals, such as the 1-norm, to this multiple: else entries that are fitted exactly stay so.
MIN_LOSS_WIDTH = 0.03
#: A refit ends when a sweep lowers the objective by less than this, per entry.
REFIT_TOLERANCE = 1e-3
#: The most sweeps of a refit.
MAX_REFIT_SWEEPS = 500
#: With fewer entries in all resamples together, refits in sequence are faster than processes.
MIN_PARALLEL_ENTRIES = 1 << 27
#: A resample with a smaller share of entries is fitted as a list of entries, else as an array.
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
        The share of intervals that should contain the true entry.
    low, high : tuple of (float64 array (I_n, R) or None), one for each mode
        The ends of the intervals; None for the mode whose slabs were resampled.
    errors : tuple of (float64 array (I_n, R) or None)
        Standard errors; infinite where the data does not determine the entry.
    came_back : float64 array (R,)
        The share of resamples in which each component was recovered.
    count, failed : int
        How many resamples there were, and how many could not be fitted.
    notes : tuple of str
        Limits of the intervals.

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
    """Intervals for a fit to some data; see `Fit.uncertainty`."""
    checks.choice("method", method, METHODS)
    level = checks.real_number("level", level, 0.0, strict=True, below=1.0)
    n = checks.whole_number("n", n, MIN_RESAMPLES)
    generator = checks.generator(rng)
    if method == "normal" and mode is not None:
        raise checks.ArgumentError("mode", f"is for resampled slabs, got {mode!r} for 'normal'")
    if method == "jackknife" and mode is None:
        mode = 0
    with single_blas_thread:
        basis = FitBasis.of(fit, problem)
        if method == "normal":
            return _normal_intervals(fit, basis, level)
        refitter = basis.make_refitter()
        if mode is None:
            resampling = _bootstrap_residuals(basis, refitter, n, generator)
        elif method == "bootstrap":
            resampling = _bootstrap_slabs(refitter, mode, n, generator)
        else:
            resampling = _jackknife_slabs(refitter, mode, n)
    if jobs is None and len(resampling.items) * refitter.entries.values.size < MIN_PARALLEL_ENTRIES:
        jobs = 1
    models = run_parallel(resampling.refit, resampling.items, jobs=jobs, progress=progress)
    rows_with_data = basis.rows_with_data(refitter.entries)
    return _resampled_intervals(fit, method, mode, level, resampling, rows_with_data, models)


# The estimation problem that a fit solved


@dataclass(frozen=True, eq=False)
class FitBasis:
    """The data, loss and priors of a fit's last level, in units in which squares stay in range.

    Attributes
    ----------
    engine : Engine
        The data without what the fit left out, with residuals in units of their noise.
    factors : tuple of float64 array
        The factors on the host, with the weights multiplied in.
    loss : Loss
    constraints : tuple of Constraint
    row_prior : RowPrior
        The modes with a prior; none unless some rows have few entries.
    unit : float
        The ratio of the loss to a negative log likelihood, where there is a prior.
    inflation : float
        The ratio of the standard deviation of the noise to that of the residuals, which lack the
        degrees of freedom of the model.
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
        factors = tuple(host_factors(units.factors_of_fit(fit.model.absorbed())))
        if loss.tail is not None:
            problem = problem.without_gross_outliers
        if noise.kind_determined:
            problem = problem.without_constant_fibres
        engine = problem.clipped_for(loss)
        if fit.cases is not None and fit.cases.flagged.any():
            engine = engine.without_slabs(fit.cases.mode, np.flatnonzero(fit.cases.flagged))
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
    def _residual_scale(self) -> float:
        """The robust standard deviation of the residuals that the loss does not reject."""
        r = np.abs(self.engine.sample(self._engine_factors).values)
        accepted = r[r <= self.loss.rejects]
        return 1.4826 * float(np.median(accepted if accepted.size else r))

    @cached_property
    def smoothed_loss(self) -> Loss:
        """The loss, with a reach of at least `MIN_LOSS_WIDTH` standard deviations of residuals."""
        reach, min_width = self.loss.reach, MIN_LOSS_WIDTH * self._residual_scale
        if self.loss.tail is None or not 0 < reach < min_width:
            return self.loss
        return self.loss.rescaled(min_width / reach)

    @cached_property
    def row_posterior(self) -> RowPosterior:
        """The posterior of the rows of each mode, given the other factors."""
        return self.row_prior.row_posterior(
            self.engine, self._engine_factors, self.smoothed_loss, self.unit, None
        )

    @property
    def _engine_factors(self) -> tuple[Any, ...]:
        return tuple(self.engine.asarray(A) for A in self.factors)

    def make_refitter(self) -> Refitter:
        """The function that fits resamples."""
        return Refitter(
            self.engine.entries(),
            np.float64 if self.engine.machine_epsilon < 1e-10 else np.float32,
            self.factors,
            self.smoothed_loss,
            self.constraints,
            self.row_posterior.prior(self.unit) if self.row_prior.modes else None,
            Magnitudes.of(self.engine),
        )

    def newton_inverse(self) -> GeneralizedInverse | None:
        """The inverse of the second derivatives; None with a prior of rows, or if it is too large.

        See `covariance.newton_inverse`.
        """
        if self.row_prior.modes:
            return None
        return newton_inverse(self.engine, self.factors, self.smoothed_loss, self.row_posterior)

    def rows_with_data(self, entries: Entries) -> list[np.ndarray]:
        """For each mode, which rows have entries that the loss does not reject."""
        accepted = self.accepts(entries.residuals(self.factors))
        return [
            np.bincount(index[accepted], minlength=size) > 0
            for index, size in zip(entries.indices, entries.shape, strict=True)
        ]

    def accepts(self, residuals: np.ndarray) -> np.ndarray:
        """Which residuals the loss does not reject."""
        return np.asarray(np.abs(residuals) <= self.loss.rejects)


def _fit_engine(entries: Entries, dtype: Any) -> Engine:
    """Entries as data of a fit: a list of entries if few are observed, else an array."""
    weights, scales = entries.weights, None
    if entries.values.size < MIN_DENSE_SHARE * math.prod(entries.shape):
        indices = np.stack(entries.indices, axis=1)
        engine = as_engine(Observed(indices, entries.values.astype(dtype), entries.shape))
        if entries.scales is not None:
            scales = Scales(ListedField(entries.scales))
    else:
        engine = as_engine(entries.to_dense(entries.values).astype(dtype, copy=False))
        if entries.scales is not None:
            array = entries.to_dense(entries.scales, 1.0)
            scales = Scales(EntryField.from_array(entries.shape, array))
        weights = None if weights is None else entries.to_dense(weights, 0.0)
    engine = engine if weights is None else engine.weighted(weights)
    return engine.standardized(scales).censored(_limits_of(entries))


def _limits_of(entries: Entries) -> tuple[Any, Any] | None:
    """The limits of entries, which are at their values where they are censored."""
    if entries.sides is None:
        return None
    low, high = (
        entries.to_dense(np.where(entries.sides == side, entries.values, math.nan))
        if np.any(entries.sides == side)
        else None
        for side in (-1, 1)
    )
    return low, high


# Resamples


@dataclass(frozen=True, eq=False)
class Refitter:
    """Fits a model to a resample: from the factors of the fit, with its loss and noise held.

    Attributes
    ----------
    entries : Entries
        The data of the fit.
    dtype
        The floating point type of fits.
    factors, loss, constraints, prior, sizes
        Those of the fit.
    inverse : GeneralizedInverse, optional
        The inverse of the fit's second derivatives.
    """

    entries: Entries
    dtype: Any
    factors: tuple[np.ndarray, ...]
    loss: Loss
    constraints: Constraints
    prior: Prior | None
    sizes: Magnitudes
    inverse: GeneralizedInverse | None = None

    def __call__(
        self, entries: Entries, mode: int | None = None, rows: Any = None
    ) -> tuple[np.ndarray, ...]:
        """The factors of other entries, which may be of some rows of a mode only."""
        factors, constraints = list(self.factors), list(self.constraints)
        if mode is not None:
            factors[mode] = factors[mode][rows]
            constraints[mode] = constraints[mode].on(rows)
        with single_blas_thread:
            engine = _fit_engine(entries, self.dtype)
            problem = Problem(engine, Units(engine.order), self.sizes)
            tol, mu = REFIT_TOLERANCE / engine.count, problem.relative_mu(1e-8, self.loss.degree)
            stage = Stage("refit", Single(self.loss, self.prior), tol, mu)
            solver = Solver(problem, [stage], constraints=tuple(constraints))
            state = solver.start(tuple(engine.asarray(A) for A in factors))
            state, _ = solver.run(self._try_newton_step(solver, state), MAX_REFIT_SWEEPS)
        return tuple(np.asarray(A, dtype=np.float64) for A in state.factors)

    def _try_newton_step(self, solver: Solver, state: State) -> State:
        """The state after a Newton step with the fit's second derivatives, if that is lower."""
        if self.inverse is None:
            return state
        engine = solver.problem.engine
        slopes = [
            engine.normal_equations(state.factors, mode, self.loss).gradient
            for mode in range(engine.order)
        ]
        steps = map(engine.asarray, self.inverse.multiply(host_factors(slopes)))
        new_state = solver.start(tuple(A + s for A, s in zip(state.factors, steps, strict=True)))
        return new_state if new_state.objective < state.objective else state

    def refit_residuals(
        self,
        model: np.ndarray,
        noise: np.ndarray,
        accepted: np.ndarray,
        rng: np.random.Generator,
    ) -> tuple[np.ndarray, ...]:
        """The factors of the model plus noise drawn with replacement.

        Entries that are not accepted keep their values: their places may have a meaning, such as a
        bad slab.
        """
        entries = self.entries
        drawn = noise[rng.integers(noise.size, size=noise.size)]
        if entries.scales is not None:
            drawn = drawn * entries.scales[accepted]
        values = entries.values.copy()
        values[accepted] = model[accepted] + drawn
        return self(replace(entries, values=values))

    def refit_slabs(self, mode: int, counts: np.ndarray) -> tuple[np.ndarray, ...]:
        """The factors of the slabs of a mode, weighted by counts."""
        rows = np.flatnonzero(counts)
        entries = self.entries.take(mode, rows)
        weights = counts[rows][entries.indices[mode]] * (
            1.0 if entries.weights is None else entries.weights
        )
        entries = replace(entries, weights=None if np.all(weights == 1) else weights)
        return self(entries, mode, rows)


@dataclass(frozen=True, eq=False)
class Resampling:
    """Resamples, and how their spread gives standard errors.

    Attributes
    ----------
    refit : function from an item to the factors of a resample
    items : sequence
    error_factor : float
        The ratio of standard errors to the standard deviation over the resamples.
    degrees_of_freedom : float
        The degrees of freedom of that standard deviation, as of Student's t.
    notes : tuple of str
        Limits of the intervals.
    """

    refit: Callable[[Any], Any]
    items: Sequence[Any]
    error_factor: float = 1.0
    degrees_of_freedom: float = math.inf
    notes: tuple[str, ...] = ()


def _bootstrap_residuals(
    basis: FitBasis, refitter: Refitter, n: int, rng: np.random.Generator
) -> Resampling:
    """The model plus residuals that are drawn with replacement among those that are accepted."""
    entries, inverse = refitter.entries, basis.newton_inverse()
    r = entries.residuals(basis.factors)
    accepted = basis.accepts(r) & (True if entries.sides is None else entries.sides == 0)
    refit = partial(
        replace(refitter, inverse=inverse).refit_residuals,
        entries.model(basis.factors),
        basis.inflation * r[accepted],
        accepted,
    )
    notes = () if inverse is None or inverse.determined else (UNDETERMINED_NOTE,)
    return Resampling(refit, rng.spawn(n), notes=notes)


def _bootstrap_slabs(refitter: Refitter, mode: int, n: int, rng: np.random.Generator) -> Resampling:
    """As many slabs as there are, drawn with replacement."""
    slabs, size = _slabs_with_data(refitter, mode)
    items = [np.bincount(rng.choice(slabs, size=slabs.size), minlength=size) for _ in range(n)]
    factor = math.sqrt(slabs.size / (slabs.size - 1))
    return Resampling(partial(refitter.refit_slabs, mode), items, factor, slabs.size - 1)


def _jackknife_slabs(refitter: Refitter, mode: int, n: int) -> Resampling:
    """All slabs but one, or all but one of n groups of neighbours."""
    slabs, size = _slabs_with_data(refitter, mode)
    groups = np.array_split(slabs, min(n, slabs.size))
    items = [np.isin(np.arange(size), np.setdiff1d(slabs, group)) for group in groups]
    factor = (len(groups) - 1) / math.sqrt(len(groups))
    return Resampling(partial(refitter.refit_slabs, mode), items, factor, len(groups) - 1)


def _slabs_with_data(refitter: Refitter, mode: int) -> tuple[np.ndarray, int]:
    """The slabs of a mode that have entries, and the number of all slabs."""
    slabs = np.unique(refitter.entries.indices[mode])
    rank = refitter.factors[0].shape[1]
    if slabs.size < rank + MIN_EXTRA_SLABS:
        raise checks.ArgumentError(
            "mode",
            f"must have at least {rank + MIN_EXTRA_SLABS} slabs with data for rank {rank}, "
            f"mode {mode} has {slabs.size}",
        )
    return slabs, refitter.entries.shape[mode]


# Intervals


def _normal_intervals(fit: Fit, basis: FitBasis, level: float) -> Uncertainty:
    """Intervals from the asymptotic covariance of the factors."""
    from scipy.special import ndtri

    estimate = covariance(basis.engine, basis.factors, basis.loss, basis.row_posterior, basis.unit)
    errors = tuple(np.sqrt(V) for V in estimate.variances)
    notes = []
    if not estimate.joint:
        notes.append(ROWS_ALONE_NOTE)
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
    """Intervals from the factors of resamples; raises the first error if most refits failed."""
    from scipy.special import stdtrit

    models = [result for result in results if not isinstance(result, Exception)]
    failed = [result for result in results if isinstance(result, Exception)]
    if len(failed) > len(models):
        raise failed[0]
    columns, recovered = _match_resamples(fit, mode, rows_with_data, models)
    count = recovered.sum(axis=0)
    errors: list[np.ndarray | None] = [None] * len(fit.shape)
    for n, values in columns.items():
        deviation = resampling.error_factor * _resample_deviation(values, count)
        errors[n] = np.where(rows_with_data[n][:, None], deviation, np.inf)
    width = float(stdtrit(resampling.degrees_of_freedom, 0.5 + level / 2))
    low, high = _interval_ends(fit, errors, width)
    share = count / len(models)
    lost = [
        f"{component_name(int(r))} came back in {share[r]:.0%} of the resamples"
        for r in np.flatnonzero(share < MIN_RECOVERED_SHARE)
    ]
    return Uncertainty(
        method,
        mode,
        level,
        low,
        high,
        tuple(errors),
        share,
        len(results),
        len(failed),
        (*resampling.notes, *lost),
    )


def _match_resamples(
    fit: Fit,
    mode: int | None,
    rows_with_data: Sequence[np.ndarray],
    models: Sequence[Sequence[np.ndarray]],
) -> tuple[dict[int, np.ndarray], np.ndarray]:
    """The columns of resamples in the order, signs and norms of the fit, and which are recovered.

    Components are paired by their congruence in all modes but the one that was resampled. Rows
    without data count as 0. Returns, for each of these modes, an array (count, I_n, R), NaN where
    the component is not recovered; and a boolean array (count, R).
    """
    unit_factors = host_factors(fit.factors)
    fit_columns = {
        n: normalize_columns(A * rows_with_data[n][:, None])
        for n, A in enumerate(unit_factors)
        if n != mode
    }
    columns_by_mode = {n: np.empty((len(models), *U.shape)) for n, (U, _) in fit_columns.items()}
    recovered = np.empty((len(models), fit.rank), dtype=bool)
    for k, model in enumerate(models):
        units = {
            n: normalize_columns(model[n] * rows_with_data[n][:, None])[0] for n in fit_columns
        }
        cosines = {n: U.T @ units[n] for n, (U, _) in fit_columns.items()}
        congruence = math.prod(np.abs(cosine) for cosine in cosines.values())
        rows, partners = best_pairing(congruence)
        recovered[k] = congruence[rows, partners] >= SAME_CONGRUENCE
        for n, (_, norms) in fit_columns.items():
            signed_norms = np.where(cosines[n][rows, partners] < 0, -norms, norms)
            aligned = units[n][:, partners] * signed_norms
            columns_by_mode[n][k] = np.where(recovered[k], aligned, np.nan)
    return columns_by_mode, recovered


def _resample_deviation(columns: np.ndarray, count: np.ndarray) -> np.ndarray:
    """The standard deviation over the resamples in which a component is recovered."""
    mean = np.nansum(columns, axis=0) / np.maximum(count, 1)
    squares = np.nansum((columns - mean) ** 2, axis=0)
    return np.where(count > 1, np.sqrt(squares / np.maximum(count - 1, 1)), np.inf)


def _interval_ends(
    fit: Fit, errors: Sequence[np.ndarray | None], width: float
) -> tuple[tuple[np.ndarray | None, ...], tuple[np.ndarray | None, ...]]:
    """The fit minus and plus `width` errors, within the range of entries of unit columns."""
    low: list[np.ndarray | None] = []
    high: list[np.ndarray | None] = []
    for A, e, constraint in zip(host_factors(fit.factors), errors, fit.constraints, strict=True):
        least = -1.0 if constraint.signed else 0.0
        low.append(None if e is None else np.clip(A - width * e, least, 1.0))
        high.append(None if e is None else np.clip(A + width * e, least, 1.0))
    return tuple(low), tuple(high)
