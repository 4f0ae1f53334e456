"""How far samples are from a model: outside of it, and within it.

The samples are the slabs of one mode. With the factors of the other modes held, the scores of a
sample are its weighted least-squares projection on the model. Its residual distance is the size of
what the projection leaves; its score distance is how far its scores are from those of the others
(as for robust principal components: Hubert, Rousseeuw & Vanden Branden 2005).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from array_api_compat import array_namespace, device

from robustcp._util.typing import Array, Factors
from robustcp.constraints import Constraint, Free
from robustcp.engines import Engine
from robustcp.engines.normal_equations import NormalEquations, unpack_indices
from robustcp.losses import LeastSquares, Loss
from robustcp.model.kruskal import host_factors
from robustcp.optimize.objective import Objective
from robustcp.results.minimum_covariance import (
    QUANTILE_LEVEL,
    chi2_quantile,
    multivariate,
    univariate,
)
from robustcp.results.outliers import FLAG_RATE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from robustcp.starts.cases import CaseDiagnostics

#: Samples with a larger share of bad entries keep all: which ones are good is then unknown.
MAX_BAD_SHARE = 0.5
#: A sample has many bad entries if their share is above this, ...
MIN_MANY_SHARE = 0.25
#: ... and above the median of all samples by this many robust standard deviations.
MANY_SHARE_DEVIATIONS = 4.0
#: Smaller standard deviations of scores, in units of their noise, are rounding errors.
MIN_SCORE_SPREAD = 0.1
#: Smaller residual distances, in units of the noise of an entry, are rounding errors.
MIN_RESIDUAL_DISTANCE = 0.5
#: The most rounds of a constraint that solves for rows iteratively.
MAX_SOLVE_ROUNDS = 100

REGULAR = "regular"
GOOD_LEVERAGE = "good leverage"
MANY_BAD_ENTRIES = "many bad entries"
ORTHOGONAL = "orthogonal outlier"
BAD_LEVERAGE = "bad leverage"
NO_DATA = "no data"


@dataclass(frozen=True, eq=False)
class Distances:
    """The score and residual distance of each sample, with its bad entries and without them.

    "Before" means all entries. "After" means without bad entries, those with residuals beyond 3.29
    standard deviations of their noise; a sample of which more than half is bad keeps all entries.
    Distances are scaled to completely observed samples, and NaN for samples without entries.

    Of a fit with `cases`, the bad samples of that mode are those of `fit.cases`, whatever their
    residual distance: its cut-offs allow for few entries, large samples and many comparisons.

    Attributes
    ----------
    mode : int
    name : str
        The name of the mode.
    labels : list, optional
        The labels of the samples.
    score, residual : float64 array (I,)
        The distances after.
    score_before, residual_before : float64 array (I,)
        The distances before.
    score_cutoff, residual_cutoff : float
        Of many regular samples with Gaussian scores 2.5% are beyond each cutoff. Of few samples
        more are, in particular beyond the cutoff of scores: some 8% of 50, and a fifth of 20.
    shares : float64 array (I,)
        The share of bad entries in each sample.
    note : str
        How scores are compared where there are too few samples for a covariance.
    flagged : boolean array (I,), optional
        The bad samples of `fit.cases`.
    share_cutoff : float
        The share of bad entries above which a sample has many of them, compared with the others.

    Examples
    --------
    >>> import robustcp
    >>> X = robustcp.simulate((30, 12, 10), 2, eta=0.02, gamma=0.5, rng=0).data.copy()
    >>> X[4] += 5.0  # something that the others do not have
    >>> found = robustcp.cp(X, 2).distances(X, mode=0)
    >>> bool(found.bad[4]), found.kinds.shape
    (True, (30,))
    """

    mode: int
    name: str
    labels: list[Any] | None = field(repr=False)
    score: np.ndarray = field(repr=False)
    residual: np.ndarray = field(repr=False)
    score_before: np.ndarray = field(repr=False)
    residual_before: np.ndarray = field(repr=False)
    score_cutoff: float
    residual_cutoff: float
    shares: np.ndarray = field(repr=False)
    note: str = ""
    flagged: np.ndarray | None = field(repr=False, default=None)
    share_cutoff: float = math.inf

    @property
    def kinds(self) -> np.ndarray:
        """The kind of each sample, without its bad entries.

        "regular"; "good leverage": scores far from the others, and a small residual;
        "orthogonal outlier": ordinary scores, and a large residual; "bad leverage": scores far from
        the others, and a large residual; "many bad entries": a small residual, but only without
        far more bad entries than others have; "no data".
        """
        kinds = self._classify(self.score, self.residual, self.bad)
        small_residual = (kinds == REGULAR) | (kinds == GOOD_LEVERAGE)
        return np.where(small_residual & (self.shares > self.share_cutoff), MANY_BAD_ENTRIES, kinds)

    @property
    def kinds_before(self) -> np.ndarray:
        """The kind of each sample, with its bad entries."""
        bad = self.residual_before > self.residual_cutoff
        return self._classify(self.score_before, self.residual_before, bad)

    def _classify(self, score: np.ndarray, residual: np.ndarray, bad: np.ndarray) -> np.ndarray:
        far_scores, large_residual = score > self.score_cutoff, bad
        conditions = [np.isnan(residual), far_scores & large_residual, large_residual, far_scores]
        return np.select(conditions, [NO_DATA, BAD_LEVERAGE, ORTHOGONAL, GOOD_LEVERAGE], REGULAR)

    @property
    def bad(self) -> np.ndarray:
        """True for samples with large residuals even without their bad entries."""
        if self.flagged is not None:
            return self.flagged
        return np.asarray(self.residual > self.residual_cutoff)

    @property
    def only_cells(self) -> np.ndarray:
        """True for samples with large residuals only because of some bad entries."""
        return np.asarray((self.residual_before > self.residual_cutoff) & ~self.bad)

    def rows(self) -> list[dict[str, Any]]:
        """The numbers of each sample, the most outlying first."""
        ratios = np.stack([self.score / self.score_cutoff, self.residual / self.residual_cutoff])
        order = np.argsort(-np.nan_to_num(ratios.max(axis=0), nan=-1.0), kind="stable")
        kinds, cells = self.kinds, self.only_cells
        numbers = {
            "score": self.score,
            "residual": self.residual,
            "score_before": self.score_before,
            "residual_before": self.residual_before,
            "share": self.shares,
        }
        return [
            {"index": k, "label": k if self.labels is None else self.labels[k]}
            | {"kind": str(kinds[k])}
            | {name: float(values[k]) for name, values in numbers.items()}
            | {"only_cells": bool(cells[k])}
            for k in order.tolist()
        ]

    @property
    def words(self) -> str:
        """The number of samples of each kind."""
        kinds = self.kinds
        counts = [(name, int(np.sum(kinds == kind))) for kind, name in _PLURALS.items()]
        parts = [f"{count} {name}" for name, count in counts if count]
        cells = int(self.only_cells.sum())
        parts += [f"{cells} with bad entries only"] if cells else []
        return f"{kinds.size} samples of {self.name}: {', '.join(parts)}"

    def __repr__(self) -> str:
        return f"Distances({self.words})"

    def plot(self, ax: Axes | None = None) -> Axes:
        """Score against residual distances; see `robustcp.plot.distance_map`."""
        from robustcp import plot

        return plot.distance_map(self, ax=ax)


_PLURALS = {
    BAD_LEVERAGE: "bad leverage",
    ORTHOGONAL: "orthogonal outliers",
    MANY_BAD_ENTRIES: "with many bad entries",
    GOOD_LEVERAGE: "good leverage",
    REGULAR: "regular",
    NO_DATA: "without data",
}


def compute_distances(
    engine: Engine,
    factors: Factors,
    sigma: float,
    mode: int,
    constraint: Constraint,
    name: str,
    labels: list[Any] | None,
    cases: CaseDiagnostics | None = None,
) -> Distances:
    """The distances of the slabs of a mode.

    Parameters
    ----------
    engine : Engine
        The data, with residuals in units of their noise times `sigma`.
    factors : tuple of arrays
        The factors of the robust fit, in the units of the engine.
    sigma : float
    mode : int
    constraint : Constraint
        The constraint on single rows of the mode's factor.
    name, labels
        The name and the labels of the mode.
    cases : CaseDiagnostics, optional
        The diagnostics of the slabs, if the fit was told that the mode holds samples.
    """
    from scipy.special import ndtri

    limit = float(-ndtri(FLAG_RATE / 2)) * sigma
    counts = np.asarray(engine.residual_counts(factors, mode), dtype=np.float64)
    has_data = counts > 0
    shares = engine.count_large_residuals(factors, limit)[mode] / np.maximum(counts, 1)
    trimmed = (shares > 0) & (shares <= MAX_BAD_SHARE)
    before = _Projection.of(engine, factors, mode, LeastSquares(), constraint)
    after = _Projection.of(engine, factors, mode, _TrimmedSquares(limit), constraint)
    scores = np.where(trimmed[:, None], after.scores, before.scores)
    squares = np.where(trimmed, after.squares, before.squares)
    slab_entries = math.prod(engine.shape) / engine.shape[mode]
    unit = np.where(has_data, counts, np.nan) * sigma**2 / slab_entries
    share_of_variance = np.where(trimmed, (1 - shares) * _variance_within(limit / sigma), 1.0)
    residual = np.sqrt(squares / (unit * share_of_variance))
    precision = before.gram / sigma**2 / max(has_data.sum(), 1)
    metric, note = _fit_score_metric(scores[has_data], precision)
    score, score_before = (
        np.where(has_data, metric.distances(part), np.nan) for part in (scores, before.scores)
    )
    return Distances(
        mode,
        name,
        labels,
        score,
        residual,
        score_before,
        np.sqrt(before.squares / unit),
        math.sqrt(chi2_quantile(QUANTILE_LEVEL, factors[0].shape[1])),
        _residual_cutoff(residual[has_data], slab_entries),
        shares,
        note,
        None if cases is None else cases.flagged,
        _share_cutoff(shares[has_data]),
    )


# Projections


@dataclass(frozen=True)
class _TrimmedSquares(Loss):
    """Least squares without residuals beyond a limit."""

    degree: ClassVar[int] = 2
    limit: float

    def value(self, r: Array) -> Array:
        return 0.5 * self.slope(r) ** 2

    def slope(self, r: Array) -> Array:
        return r * self.curvature(r)

    def curvature(self, r: Array) -> Array:
        xp = array_namespace(r)
        return xp.where(xp.abs(r) > self.limit, xp.zeros_like(r), xp.ones_like(r))


@dataclass(frozen=True, eq=False)
class _Projection:
    """The projections of the slabs of a mode on the model.

    Attributes
    ----------
    scores : float64 array (I, R)
    squares : float64 array (I,)
        The sums of squared residuals.
    gram : float64 array (R, R)
        The sum of the Gram matrices of all slabs.
    """

    scores: np.ndarray
    squares: np.ndarray
    gram: np.ndarray

    @classmethod
    def of(
        cls, engine: Engine, factors: Factors, mode: int, loss: Loss, constraint: Constraint
    ) -> _Projection:
        """The projections, by one Newton step from the rows of the model."""
        rank = factors[0].shape[1]
        constraints = tuple(constraint if n == mode else Free() for n in range(engine.order))
        objective = Objective(engine, loss, constraints, (mode,))
        squares, scores = _slab_squares(engine, factors, mode, loss), []
        total = np.zeros((rank, rank))
        for rows in objective.row_blocks(mode, rank):
            equations = objective.equations(factors, mode, rows)
            part_factors = tuple(A[rows, :] if n == mode else A for n, A in enumerate(factors))
            steps = _solve_steps(objective, equations, part_factors, mode)
            gram, gradient, start = host_factors(
                (equations.gram, equations.gradient, part_factors[mode])
            )
            G = gram[:, unpack_indices(rank)].reshape(-1, rank, rank)
            curvature = np.sum((G @ steps[:, :, None])[:, :, 0] * steps, axis=1)
            squares[rows] += curvature - 2 * np.sum(gradient * steps, axis=1)
            scores.append(start + steps)
            total += np.broadcast_to(G, (len(steps), rank, rank)).sum(axis=0)
        return cls(np.concatenate(scores), np.maximum(squares, 0.0), total)


def _solve_steps(
    objective: Objective, equations: NormalEquations, factors: Factors, mode: int
) -> np.ndarray:
    """The steps from rows of the model to the minimum of the quadratic of their equations; host.

    A constraint may solve for rows iteratively, with the equations at the current rows.
    """
    xp, start = objective.engine.xp, factors[mode]
    rank = start.shape[1]
    unpack = xp.asarray(unpack_indices(rank), device=device(start))
    G = xp.reshape(xp.take(equations.gram, unpack, axis=1), (-1, rank, rank))
    rows = start
    for _ in range(MAX_SOLVE_ROUNDS):
        gradient_change = xp.sum(G * (rows - start)[:, None, :], axis=-1)
        current_equations = NormalEquations(
            equations.gram, equations.gradient - gradient_change, equations.value
        )
        current_factors = tuple(rows if n == mode else A for n, A in enumerate(factors))
        new = objective.solve_rows(
            current_equations, current_factors, mode, slice(0, rows.shape[0])
        )
        largest_change = float(xp.max(xp.abs(new - rows)))
        rows = new
        if largest_change <= 1e3 * objective.engine.machine_epsilon * float(xp.max(xp.abs(rows))):
            break
    new_rows, old_rows = host_factors((rows, start))
    return np.asarray(new_rows - old_rows)


def _slab_squares(engine: Engine, factors: Factors, mode: int, loss: Loss) -> np.ndarray:
    """Twice the loss of each slab; host."""
    xp = engine.xp

    def squares(r: Array) -> Array:
        cost = 2 * loss.value(xp.astype(r, xp.float64))
        return xp.where(xp.isnan(r), xp.zeros_like(cost), cost)

    weights = {} if engine.view.weights is None else {"weighted": True}
    return engine.slab_sums(squares, factors, **weights)[mode].astype(np.float64)


# Metrics and cutoffs


def _share_cutoff(shares: np.ndarray) -> float:
    """The share of bad entries above which a sample has many of them."""
    center = float(np.median(shares)) if shares.size else 0.0
    spread = 1.4826 * float(np.median(np.abs(shares - center))) if shares.size else 0.0
    return max(MIN_MANY_SHARE, center + MANY_SHARE_DEVIATIONS * spread)


def _variance_within(limit: float) -> float:
    """The variance of Gaussian noise of variance 1 that is not beyond a limit."""
    from scipy.special import ndtr

    density = math.exp(-0.5 * limit**2) / math.sqrt(2 * math.pi)
    return 1 - 2 * limit * density / (1 - 2 * float(ndtr(-limit)))


@dataclass(frozen=True, eq=False)
class _ScoreMetric:
    """The Mahalanobis distances of scores.

    Attributes
    ----------
    centre : float64 array (R,)
    root : float64 array (R, R)
        A root of the inverse covariance: scores times the root have covariance 1.
    """

    centre: np.ndarray
    root: np.ndarray

    def distances(self, scores: np.ndarray) -> np.ndarray:
        """The distance of each row of scores."""
        return np.asarray(np.linalg.norm((scores - self.centre) @ self.root, axis=1))


def _fit_score_metric(scores: np.ndarray, precision: np.ndarray) -> tuple[_ScoreMetric, str]:
    """The metric of most scores, and a note if it ignores correlations.

    `precision` is the inverse of the covariance that noise alone gives to scores. In coordinates in
    which it is 1, a smaller variance in any direction is a rounding error.
    """
    count, rank = scores.shape
    values, vectors = np.linalg.eigh(precision)
    whitening = vectors * np.sqrt(np.maximum(values, 0.0))
    too_few = count < 2 * (rank + 1)
    scatter = None if too_few else _robust_scatter(scores @ whitening)
    if scatter is None:
        problem = "the scores of most samples lie in a plane"
        if too_few:
            problem = f"{count} samples are too few for the covariance of {rank} scores"
        note = f"{problem}: score distances are by medians, without correlations"
        return _componentwise_metric(scores, precision), note
    centre, covariance = scatter
    root = whitening @ np.linalg.inv(np.linalg.cholesky(covariance)).T
    return _ScoreMetric(np.linalg.lstsq(whitening.T, centre)[0], root), ""


def _robust_scatter(points: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """The centre and covariance of most points, in units of their noise; None if singular."""
    if points.shape[1] == 1:
        centre, spread = univariate(points[:, 0])
        return None if spread < MIN_SCORE_SPREAD else (np.array([centre]), np.array([[spread**2]]))
    scatter = multivariate(points)
    if scatter is None or np.linalg.eigvalsh(scatter.covariance)[0] < MIN_SCORE_SPREAD**2:
        return None
    return scatter.centre, scatter.covariance


def _componentwise_metric(scores: np.ndarray, precision: np.ndarray) -> _ScoreMetric:
    """The metric by the median and the median absolute deviation of each component.

    Where most scores are equal it uses the mean absolute deviation, and where all are, the noise.
    """
    centre = np.median(scores, axis=0)
    deviations = np.abs(scores - centre)
    noise = np.sqrt(np.maximum(np.diag(np.linalg.pinv(precision, hermitian=True)), 0.0))
    noise = np.where(noise > 0, noise, np.inf)
    spread = 1.4826 * np.median(deviations, axis=0)
    mean = math.sqrt(math.pi / 2) * np.mean(deviations, axis=0)
    spread = np.where(spread < MIN_SCORE_SPREAD * noise, mean, spread)
    spread = np.where(spread < MIN_SCORE_SPREAD * noise, noise, spread)
    return _ScoreMetric(centre, np.diag(1 / spread))


def _residual_cutoff(residual: np.ndarray, cells: float) -> float:
    """The cutoff of residual distances by Wilson and Hilferty: to the power 2/3 they are Gaussian.

    It is above rounding errors, which are far smaller than distances of noise.
    """
    from scipy.special import ndtri

    centre, spread = univariate(residual ** (2 / 3))
    cutoff = math.pow(centre + spread * float(ndtri(QUANTILE_LEVEL)), 1.5)
    return max(cutoff * (1 + 1e-12), MIN_RESIDUAL_DISTANCE * math.sqrt(cells))
