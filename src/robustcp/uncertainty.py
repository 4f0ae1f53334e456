"""Intervals for the entries of a fit's factors: by asymptotic normality, or by resamples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp import _checks
from robustcp.constraints import Constraints
from robustcp.covariance import Inverse, covariance, newton
from robustcp.engines import (
    Engine,
    Listed,
    Observed,
    Scales,
    Weights,
    as_engine,
    single_blas_thread,
    to_host,
)
from robustcp.kruskal import component_name
from robustcp.losses import Loss, as_loss
from robustcp.metrics import paired
from robustcp.noise import degrees_of_freedom_correction, fibres_of
from robustcp.parallel import Progress, side_by_side
from robustcp.priors import Known, Prior, RowPrior
from robustcp.schedules import Single
from robustcp.sizes import Problem, Sizes
from robustcp.solver import Solver, Stage, State
from robustcp.units import Units

if TYPE_CHECKING:
    from robustcp.fitted import Fit

METHODS = ("normal", "bootstrap", "jackknife")
#: Resamples are fitted from where the fit is, and do not show it.
UNDETERMINED = "the data does not determine all factors"
#: The congruence from which on a component is the same one; one that comes back in a smaller share
#: of the resamples than that is noted.
SAME, RARELY = 0.9, 0.95
#: The fewest resamples, and the fewest slabs beyond the rank, that intervals are made of.
FEWEST, BEYOND = 20, 2
#: Losses that bend within less than this many standard deviations of the residuals, such as the
#: 1-norm, do so within as many when they are fitted again: else entries that are met jam.
BEND = 0.03
#: A refit ends when a sweep lowers the objective by less than this many times its share of one
#: entry; and after so many sweeps at the latest.
LITTLE, SWEEPS = 1e-3, 500
#: With fewer entries than this in all resamples together, starting processes takes longer.
SHORT = 1 << 27
#: With fewer of its entries than this share, a tensor is passed over as a list of entries.
DENSE = 0.1


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
        how = self.method
        if self.mode is not None:
            how += f" of mode {self.mode}"
        if self.count:
            how += f", {self.count} resamples"
        if self.failed:
            how += f", {self.failed} failed"
        every = np.concatenate([e.ravel() for e in self.errors if e is not None])
        notes = "".join(f"; {note}" for note in self.notes)
        return (
            f"Uncertainty({how}, {100 * self.level:g}% intervals, "
            f"median error {np.median(every):.2g}{notes})"
        )


def uncertainty(
    fit: Fit,
    engine: Engine,
    method: str,
    mode: int | None,
    n: int,
    level: float,
    rng: int | np.random.Generator | None,
    jobs: int | None,
    progress: Progress | None,
) -> Uncertainty:
    """Intervals for a fit of some data; see `Fit.uncertainty`."""
    _checks.choice("method", method, METHODS)
    level = _checks.real_number("level", level, 0.0, above=True, below=1.0)
    n = _checks.whole_number("n", n, FEWEST)
    generator = _checks.generator(rng)
    if method == "normal" and mode is not None:
        raise _checks.ArgumentError("mode", f"is for resampled slabs, got {mode!r} for 'normal'")
    if method == "jackknife" and mode is None:
        mode = 0
    with single_blas_thread:
        held = Held.of(fit, engine)
        if method == "normal":
            return _normal(fit, held, level)
        refit = held.refit()
        if mode is None:
            work = held.residuals(refit)
            ahead = work.refit.ahead
            notes = () if ahead is None or ahead.determined else (UNDETERMINED,)
            how = Resampling(work, generator.spawn(n), notes=notes)
        elif method == "bootstrap":
            how = _drawn(OfSlabs(refit, mode), n, generator)
        else:
            how = _left_out(OfSlabs(refit, mode), n)
    if jobs is None and len(how.items) * refit.cells.values.size < SHORT:
        jobs = 1
    models = side_by_side(how.work, how.items, jobs=jobs, progress=progress)
    return _resampled(fit, method, mode, level, how, held.seen(refit.cells), models)


# What a fit was made of


@dataclass(frozen=True, eq=False)
class Held:
    """All that a fit rests on, in units in which squares can be made.

    Attributes
    ----------
    engine : Engine
        The data without what the fit left out, residuals in units of their noise.
    factors : tuple of float64 array
        On the host, weights and all.
    loss : Loss
    constraints : tuple of Constraint
    rows : RowPrior
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
    rows: RowPrior
    unit: float
    inflation: float

    @classmethod
    def of(cls, fit: Fit, engine: Engine) -> Held:
        problem = Problem.of(engine)
        units, loss = problem.units, problem.units.loss_of_fit(as_loss(fit.loss))
        noise = fit.noise.scaled(1 / units.factor)
        factors = tuple(
            np.asarray(to_host(A), dtype=np.float64)
            for A in units.factors_of_fit(fit.model.absorbed())
        )
        if loss.tail is not None:
            problem = problem.without_wild
        if noise.looked:
            problem = problem.without_stuck
        engine = problem.seen_by(loss)
        if fit.cases is not None and fit.cases.flagged.any():
            bad = np.flatnonzero(fit.cases.flagged)
            engine = engine.leaving_out_slabs(fit.cases.mode, bad)
        own = tuple(engine.asarray(A) for A in factors)
        if noise.kind.signal:
            noise = noise.holding(factors)
        if noise.looked and noise.sigma > 0:
            fibres = fibres_of(engine, own, noise)
            engine = engine if fibres is None else engine.leaving_out(fibres)
        if not noise.even:
            engine = engine.standardized(noise.scales(engine.shape, factors))
        constraints = tuple(
            constraint.bound(size, labels)
            for constraint, size, labels in zip(
                fit.constraints, engine.shape, fit.labels, strict=True
            )
        )
        rows = RowPrior.of(constraints, range(engine.order))
        if not (noise.looked and rows.needed(engine, fit.rank)):
            rows = RowPrior()
        inflation = degrees_of_freedom_correction(engine, fit.rank, noise.clean)
        return cls(engine, factors, loss, constraints, rows, noise.sigma**2, inflation)

    @property
    def spread(self) -> float:
        """The robust standard deviation of the residuals that are not rejected."""
        r = np.abs(self.engine.sample(self._own).values)
        near = r[r <= self.loss.rejects]
        return 1.4826 * float(np.median(near if near.size else r))

    @property
    def bent(self) -> Loss:
        """The loss, bent within no less than a share of the spread."""
        reach, least = self.loss.reach, BEND * self.spread
        if self.loss.tail is None or not 0 < reach < least:
            return self.loss
        return self.loss.rescaled(least / reach)

    @property
    def known(self) -> Known:
        """What is known of the rows, each mode by itself."""
        return self.rows.known(self.engine, self._own, self.bent, self.unit, None)

    @property
    def _own(self) -> tuple[Any, ...]:
        return tuple(self.engine.asarray(A) for A in self.factors)

    def refit(self) -> Refit:
        """How resamples are fitted."""
        entries = self.engine.entries()
        cells = Cells(
            self.engine.shape, tuple(entries.indices), entries.values, entries.scales,
            entries.weights, self.engine.precision,
        )  # fmt: skip
        prior = self.known.prior(self.unit) if self.rows.modes else None
        return Refit(cells, self.factors, self.bent, self.constraints, prior, Sizes.of(self.engine))

    def residuals(self, refit: Refit) -> OfResiduals:
        """Resamples of the residuals."""
        model, r = self._residuals(refit.cells)
        ahead = None
        if not self.rows.modes:
            ahead = newton(self.engine, self.factors, self.bent, self.known)
        near = np.abs(r) <= self.loss.rejects
        return OfResiduals(replace(refit, ahead=ahead), model, self.inflation * r, near)

    def seen(self, cells: Cells) -> list[np.ndarray]:
        """Which rows of each mode have entries that are not rejected."""
        near = np.abs(self._residuals(cells)[1]) <= self.loss.rejects
        return [
            np.bincount(index[near], minlength=size) > 0
            for index, size in zip(cells.indices, cells.shape, strict=True)
        ]

    def _residuals(self, cells: Cells) -> tuple[np.ndarray, np.ndarray]:
        """The model's entries, and the residuals in units of their noise."""
        model = cells.of_model(self.factors)
        r = cells.values - model
        return model, r if cells.scales is None else r / cells.scales


@dataclass(frozen=True, eq=False)
class Cells:
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

    def engine(self) -> Engine:
        dtype = np.float64 if self.precision < 1e-10 else np.float32
        if self.values.size < DENSE * math.prod(self.shape):
            at, values = np.stack(self.indices, axis=1), self.values.astype(dtype)
            engine = as_engine(Observed(at, values, self.shape))
            scales = None if self.scales is None else Scales(Listed(self.scales))
            weights = self.weights
        else:
            engine = as_engine(self._dense(self.values, math.nan).astype(dtype, copy=False))
            scales = None
            if self.scales is not None:
                array = self._dense(self.scales, 1.0)
                scales = Scales(Weights(self.shape, (None,) * len(self.shape), array))
            weights = None if self.weights is None else self._dense(self.weights, 0.0)
        engine = engine if weights is None else engine.weighted(weights)
        return engine.standardized(scales)

    def _dense(self, values: np.ndarray, missing: float) -> np.ndarray:
        found = np.full(self.shape, missing)
        found[self.indices] = values
        return found

    def of_model(self, factors: Sequence[np.ndarray]) -> np.ndarray:
        """The entries of a model."""
        product = np.ones((1, factors[0].shape[1]))
        for A, index in zip(factors, self.indices, strict=True):
            product = product * A[index]
        return np.asarray(product.sum(axis=1))

    def of_slabs(self, mode: int, counts: np.ndarray) -> Cells:
        """The slabs of a mode, each counted so many times; those of count 0 are not there."""
        place = np.cumsum(counts > 0) - 1
        times = counts[self.indices[mode]]
        some = times > 0
        indices = [index[some] for index in self.indices]
        indices[mode] = place[indices[mode]]
        weights = times[some] if self.weights is None else times[some] * self.weights[some]
        shape = list(self.shape)
        shape[mode] = int(np.count_nonzero(counts))
        scales = None if self.scales is None else self.scales[some]
        return replace(
            self, shape=tuple(shape), indices=tuple(indices), values=self.values[some],
            scales=scales, weights=None if np.all(weights == 1) else weights.astype(np.float64),
        )  # fmt: skip


# Resamples


@dataclass(frozen=True, eq=False)
class Refit:
    """How a model is fitted to a resample: from where the fit is, its loss and noise held.

    Attributes
    ----------
    cells : Cells
        The data of the fit.
    factors, loss, constraints, prior, sizes
        What the fit holds.
    ahead : Inverse, optional
        The inverse of its second derivatives.
    """

    cells: Cells
    factors: tuple[np.ndarray, ...]
    loss: Loss
    constraints: Constraints
    prior: Prior | None
    sizes: Sizes
    ahead: Inverse | None = None

    def __call__(
        self, cells: Cells, mode: int | None = None, rows: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        """The factors of other cells, or of those of some rows of a mode."""
        factors, constraints = list(self.factors), list(self.constraints)
        if mode is not None and rows is not None:
            factors[mode] = factors[mode][rows]
            constraints[mode] = constraints[mode].on(rows)
        with single_blas_thread:
            engine = cells.engine()
            problem = Problem(engine, Units(engine.order), self.sizes)
            tol, mu = LITTLE / engine.count, problem.relative_mu(1e-8, self.loss.degree)
            stage = Stage("refit", Single(self.loss, self.prior), tol, mu)
            solver = Solver(problem, [stage], constraints=tuple(constraints))
            state = solver.start(tuple(engine.asarray(A) for A in factors))
            state, _ = solver.run(self._stepped(solver, state), SWEEPS)
        return tuple(np.asarray(A, dtype=np.float64) for A in state.factors)

    def _stepped(self, solver: Solver, state: State) -> State:
        """The state after a step by the fit's second derivatives, if that is lower."""
        if self.ahead is None:
            return state
        engine = solver.problem.engine
        slopes = [
            np.asarray(engine.normal(state.factors, mode, self.loss).gradient, dtype=np.float64)
            for mode in range(engine.order)
        ]
        steps = self.ahead.times(slopes)
        moved = solver.start(
            tuple(A + engine.asarray(step) for A, step in zip(state.factors, steps, strict=True))
        )
        return moved if moved.objective < state.objective else state


@dataclass(frozen=True, eq=False)
class OfResiduals:
    """A refit to the model plus residuals that are drawn among those that fit.

    Outlying entries stay as they are: they may have their places, such as a bad slab.
    """

    refit: Refit
    model: np.ndarray
    residuals: np.ndarray
    near: np.ndarray

    def __call__(self, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        cells, pool, near = self.refit.cells, self.residuals[self.near], self.near
        noise = pool[rng.integers(pool.size, size=pool.size)]
        values = cells.values.copy()
        values[near] = self.model[near] + (
            noise if cells.scales is None else noise * cells.scales[near]
        )
        return self.refit(replace(cells, values=values))


@dataclass(frozen=True, eq=False)
class OfSlabs:
    """A refit to the slabs of a mode, each counted so many times."""

    refit: Refit
    mode: int

    def __call__(self, counts: np.ndarray) -> tuple[np.ndarray, ...]:
        cells = self.refit.cells.of_slabs(self.mode, counts)
        return self.refit(cells, self.mode, np.flatnonzero(counts))


@dataclass(frozen=True, eq=False)
class Resampling:
    """Some resamples, and what their spread says.

    Attributes
    ----------
    work : function from an item to the factors of a resample
    items : sequence
    factor : float
        By how much standard errors are larger than the spread of the resamples.
    freedom : float
        The degrees of freedom of that spread, as of Student's t.
    notes : tuple of str
        What users should know.
    """

    work: Callable[[Any], Any]
    items: Sequence[Any]
    factor: float = 1.0
    freedom: float = math.inf
    notes: tuple[str, ...] = ()


def _drawn(work: OfSlabs, n: int, rng: np.random.Generator) -> Resampling:
    """As many slabs as there are, with replacement."""
    at, size = _slabs(work)
    items = [np.bincount(rng.choice(at, size=at.size), minlength=size) for _ in range(n)]
    return Resampling(work, items, math.sqrt(at.size / (at.size - 1)), at.size - 1)


def _left_out(work: OfSlabs, n: int) -> Resampling:
    """Without each slab in turn, or of many each of n groups of neighbours."""
    at, size = _slabs(work)
    groups = np.array_split(at, min(n, at.size))
    items = [np.isin(np.arange(size), np.setdiff1d(at, group)) for group in groups]
    return Resampling(work, items, (len(groups) - 1) / math.sqrt(len(groups)), len(groups) - 1)


def _slabs(work: OfSlabs) -> tuple[np.ndarray, int]:
    """Which slabs of a mode hold anything, and how many there are in all."""
    cells, rank, mode = work.refit.cells, work.refit.factors[0].shape[1], work.mode
    at = np.unique(cells.indices[mode])
    if at.size < rank + BEYOND:
        raise _checks.ArgumentError(
            "mode",
            f"must have at least {rank + BEYOND} slabs with data for rank {rank}, "
            f"mode {mode} has {at.size}",
        )
    return at, cells.shape[mode]


# Intervals


def _normal(fit: Fit, held: Held, level: float) -> Uncertainty:
    from scipy.special import ndtri

    found = covariance(held.engine, held.factors, held.loss, held.known, held.unit)
    errors = tuple(np.sqrt(V) for V in found.variances)
    notes = []
    if not found.joint:
        notes.append("too many unknowns to solve for together: each row as if others were known")
    if not found.determined:
        notes.append(UNDETERMINED)
    low, high = _ends(fit, errors, float(ndtri(0.5 + level / 2)))
    every = np.ones(fit.rank)
    return Uncertainty("normal", None, level, low, high, errors, every, notes=tuple(notes))


def _resampled(
    fit: Fit,
    method: str,
    mode: int | None,
    level: float,
    how: Resampling,
    seen: Sequence[np.ndarray],
    found: Sequence[Any],
) -> Uncertainty:
    """Intervals from the factors of resamples; the first error, if most could not be fitted."""
    from scipy.special import stdtrit

    models = [one for one in found if not isinstance(one, Exception)]
    failed = [one for one in found if isinstance(one, Exception)]
    if len(failed) > len(models):
        raise failed[0]
    each, back = _came_back(fit, mode, seen, models)
    count = back.sum(axis=0)
    errors = tuple(
        None if E is None else np.where(rows[:, None], how.factor * _spread(E, count), np.inf)
        for E, rows in zip(each, seen, strict=True)
    )
    low, high = _ends(fit, errors, float(stdtrit(how.freedom, 0.5 + level / 2)))
    share = count / len(models)
    notes = [*how.notes]
    notes += [
        f"{component_name(int(r))} came back in {share[r]:.0%} of the resamples"
        for r in np.flatnonzero(share < RARELY)
    ]
    return Uncertainty(
        method, mode, level, low, high, errors, share, len(found), len(failed), tuple(notes)
    )


def _came_back(
    fit: Fit, mode: int | None, seen: Sequence[np.ndarray], models: Sequence[Sequence[np.ndarray]]
) -> tuple[list[np.ndarray | None], np.ndarray]:
    """Columns (count, I_n, R) of resamples as the fit has them, and which components came back.

    Components are paired by their congruence in all modes but the one that was resampled, and
    have the signs of the fit's. None for that mode. Rows without entries have no say: columns are
    as large as the fit's in the others.
    """
    modes = [n for n in range(len(fit.shape)) if n != mode]
    ours = {n: _unit(A * seen[n][:, None]) for n, A in enumerate(_unit_factors(fit)) if n != mode}
    each = {n: np.empty((len(models), *U.shape)) for n, (U, _) in ours.items()}
    back = np.empty((len(models), fit.rank), dtype=bool)
    for k, model in enumerate(models):
        units = {n: _unit(model[n] * seen[n][:, None])[0] for n in modes}
        cosines = {n: U.T @ units[n] for n, (U, _) in ours.items()}
        congruence = math.prod(np.abs(cosine) for cosine in cosines.values())
        rows, columns = paired(congruence)
        back[k] = congruence[rows, columns] >= SAME
        for n, (_, sizes) in ours.items():
            signed = np.where(cosines[n][rows, columns] < 0, -sizes, sizes)
            each[n][k] = np.where(back[k], units[n][:, columns] * signed, np.nan)
    return [each.get(n) for n in range(len(fit.shape))], back


def _spread(each: np.ndarray, count: np.ndarray) -> np.ndarray:
    """The standard deviation over the resamples in which components came back."""
    mean = np.nansum(each, axis=0) / np.maximum(count, 1)
    squares = np.nansum((each - mean) ** 2, axis=0)
    return np.where(count > 1, np.sqrt(squares / np.maximum(count - 1, 1)), np.inf)


def _ends(
    fit: Fit, errors: Sequence[np.ndarray | None], width: float
) -> tuple[tuple[np.ndarray | None, ...], tuple[np.ndarray | None, ...]]:
    """So many errors below and above the fit, within what unit columns may hold."""
    ends: list[list[np.ndarray | None]] = [[], []]
    for A, e, constraint in zip(_unit_factors(fit), errors, fit.constraints, strict=True):
        least = -1.0 if constraint.signed else 0.0
        for side, end in zip((-1, 1), ends, strict=True):
            end.append(None if e is None else np.clip(A + side * width * e, least, 1.0))
    return tuple(ends[0]), tuple(ends[1])


def _unit_factors(fit: Fit) -> list[np.ndarray]:
    return [np.asarray(to_host(A), dtype=np.float64) for A in fit.factors]


def _unit(A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unit columns, and the sizes that they had."""
    sizes = np.linalg.norm(A, axis=0)
    return A / np.where(sizes > 0, sizes, 1.0), sizes
