"""How far samples are from a model: outside of it, and within it.

The samples are the slabs of one mode. With the other modes' factors held, each has scores: its
weighted least-squares projection on the model. What is left is its residual distance; how far its
scores are from those of the others is its score distance (as for robust principal components:
Hubert, Rousseeuw & Vanden Branden 2005).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from array_api_compat import array_namespace, device

from robustcp._util.typing import Array, Factors
from robustcp.constraints import Constraint, Free
from robustcp.engines import Engine, to_host
from robustcp.engines.normal_equations import NormalEquations, unpack_indices
from robustcp.losses import LeastSquares, Loss
from robustcp.optimize.objective import Objective
from robustcp.results import minimum_covariance

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The share of clean entries that are taken for bad ones by chance.
FALSE_FLAG_RATE = 1e-3
#: Of a sample with a larger share of bad entries nobody knows which are the good ones.
MAX_BAD_SHARE = 0.5
#: Standard deviations of scores below this, in units of their noise, are roundings.
MIN_SCORE_SPREAD = 0.1
#: So are residual distances below this, where noise alone is 1 for each entry.
MIN_RESIDUAL_DISTANCE = 0.5
#: The most rounds of a constraint that solves for rows step by step.
MAX_SOLVE_ROUNDS = 100

REGULAR = "regular"
GOOD_LEVERAGE = "good leverage"
ORTHOGONAL = "orthogonal outlier"
BAD_LEVERAGE = "bad leverage"
NO_DATA = "no data"


@dataclass(frozen=True, eq=False)
class Distances:
    """The score and residual distance of each sample, with its bad entries and without them.

    "Before" is with the data as they are. "After" is without bad entries, those with residuals
    beyond 3.29 standard deviations of their noise, which count as missing; but if they are more
    than half of a sample's entries, nobody knows which are the good ones, and all stay. Distances
    are as for samples of which every entry was observed, NaN for those without any.

    Attributes
    ----------
    mode : int
    name : str
        The name of the mode.
    labels : list, optional
        Those of the samples.
    score, residual : float64 array (I,)
        After.
    score_before, residual_before : float64 array (I,)
    score_cutoff, residual_cutoff : float
        2.5% of many regular samples with Gaussian scores are beyond each; more of few, above all
        beyond that of scores: some 8% of 50, and a fifth of 20.
    shares : float64 array (I,)
        The share of bad entries in each sample.
    note : str
        What to know of the score distances where there are too few samples for a covariance.

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

    @property
    def kinds(self) -> np.ndarray:
        """What each sample is, without its bad entries.

        "regular"; "good leverage": scores far from the others', but as the model says;
        "orthogonal outlier": ordinary scores, and something that the model does not describe;
        "bad leverage": both; "no data".
        """
        return self._classify(self.score, self.residual)

    @property
    def kinds_before(self) -> np.ndarray:
        """What each sample is, bad entries and all."""
        return self._classify(self.score_before, self.residual_before)

    def _classify(self, score: np.ndarray, residual: np.ndarray) -> np.ndarray:
        far_scores, large_residual = score > self.score_cutoff, residual > self.residual_cutoff
        conditions = [np.isnan(residual), far_scores & large_residual, large_residual, far_scores]
        return np.select(conditions, [NO_DATA, BAD_LEVERAGE, ORTHOGONAL, GOOD_LEVERAGE], REGULAR)

    @property
    def bad(self) -> np.ndarray:
        """True for samples that are bad as a whole: not for a few bad entries."""
        return np.asarray(self.residual > self.residual_cutoff)

    @property
    def only_cells(self) -> np.ndarray:
        """True for samples that are bad for nothing but some of their entries."""
        return np.asarray((self.residual_before > self.residual_cutoff) & ~self.bad)

    def rows(self) -> list[dict[str, Any]]:
        """What is known of each sample, the most outlying first."""
        ratios = np.stack([self.score / self.score_cutoff, self.residual / self.residual_cutoff])
        order = np.argsort(-np.nan_to_num(ratios.max(axis=0), nan=-1.0), kind="stable")
        kinds, cells = self.kinds, self.only_cells
        return [
            {
                "index": int(k),
                "label": int(k) if self.labels is None else self.labels[k],
                "kind": str(kinds[k]),
                "score": float(self.score[k]),
                "residual": float(self.residual[k]),
                "score_before": float(self.score_before[k]),
                "residual_before": float(self.residual_before[k]),
                "share": float(self.shares[k]),
                "only_cells": bool(cells[k]),
            }
            for k in order
        ]

    @property
    def words(self) -> str:
        """How many samples are of which kind."""
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
) -> Distances:
    """The distances of the slabs of a mode.

    Parameters
    ----------
    engine : Engine
        The data, with residuals in units of their noise, times sigma.
    factors : tuple of arrays
        The robust model.
    sigma : float
    mode : int
    constraint : Constraint
        What single rows of the mode's factor must be like.
    name, labels
        Of the mode.
    """
    from scipy.special import ndtri

    limit = float(-ndtri(FALSE_FLAG_RATE / 2)) * sigma
    counts = np.asarray(engine.slab_counts(mode), dtype=np.float64)
    has_data = counts > 0
    shares = engine.count_large_residuals(factors, limit)[mode] / np.maximum(counts, 1)
    trimmed = (shares > 0) & (shares <= MAX_BAD_SHARE)
    before = _Projection.of(engine, factors, mode, LeastSquares(), constraint)
    after = _Projection.of(engine, factors, mode, _TrimmedSquares(limit), constraint)
    after = after.merge(trimmed, before)
    slab_entries = math.prod(engine.shape) / engine.shape[mode]
    squared_unit = np.where(has_data, counts, np.nan) * sigma**2 / slab_entries
    variance_share = np.where(trimmed, (1 - shares) * _variance_within(limit / sigma), 1.0)
    residual = np.sqrt(after.squares / (squared_unit * variance_share))
    residual_before = np.sqrt(before.squares / squared_unit)
    metric, note = _fit_score_metric(
        after.scores[has_data], before.gram / sigma**2 / max(has_data.sum(), 1)
    )
    score, score_before = (
        np.where(has_data, metric(part.scores), np.nan) for part in (after, before)
    )
    return Distances(
        mode,
        name,
        labels,
        score,
        residual,
        score_before,
        residual_before,
        _score_cutoff(factors[0].shape[1]),
        _residual_cutoff(residual[has_data], slab_entries),
        shares,
        note,
    )


# Projections


@dataclass(frozen=True)
class _TrimmedSquares(Loss):
    """Least squares without the entries that are far from the model."""

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
    """The slabs of a mode, projected on the model.

    Attributes
    ----------
    scores : float64 array (I, R)
    squares : float64 array (I,)
        The sums of squares that are left.
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
        """By one step from the rows of the model: a quadratic is at its minimum after that."""
        rank = factors[0].shape[1]
        constraints = tuple(constraint if n == mode else Free() for n in range(engine.order))
        objective = Objective(engine, loss, constraints, (mode,))
        squares, scores = _slab_squares(engine, factors, mode, loss), []
        total = np.zeros((rank, rank))
        for rows in objective.row_blocks(mode, rank):
            equations = objective.equations(factors, mode, rows)
            part_factors = tuple(A[rows, :] if n == mode else A for n, A in enumerate(factors))
            steps = _solve_steps(objective, equations, part_factors, mode)
            gram, gradient = _host_array(equations.gram), _host_array(equations.gradient)
            G = gram[:, unpack_indices(rank)].reshape(-1, rank, rank)
            curvature = np.sum((G @ steps[:, :, None])[:, :, 0] * steps, axis=1)
            squares[rows] += curvature - 2 * np.sum(gradient * steps, axis=1)
            scores.append(_host_array(part_factors[mode]) + steps)
            total += np.broadcast_to(G, (len(steps), rank, rank)).sum(axis=0)
        return cls(np.concatenate(scores), np.maximum(squares, 0.0), total)

    def merge(self, mask: np.ndarray, other: _Projection) -> _Projection:
        """These for some slabs, and others for the rest."""
        scores = np.where(mask[:, None], self.scores, other.scores)
        return _Projection(scores, np.where(mask, self.squares, other.squares), self.gram)


def _solve_steps(
    objective: Objective, equations: NormalEquations, factors: Factors, mode: int
) -> np.ndarray:
    """From some rows of the model to where the quadratic of their equations is least; host.

    A constraint may solve for rows step by step; the equations follow them.
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
    return np.asarray(_host_array(rows) - _host_array(start))


def _slab_squares(engine: Engine, factors: Factors, mode: int, loss: Loss) -> np.ndarray:
    """Twice the loss of each slab; host."""
    xp = engine.xp

    def squares(r: Array) -> Array:
        cost = 2 * loss.value(xp.astype(r, xp.float64))
        return xp.where(xp.isnan(r), xp.zeros_like(cost), cost)

    weights = {} if engine.view.weights is None else {"weighted": True}
    return engine.slab_sums(squares, factors, **weights)[mode].astype(np.float64)


def _host_array(array: Array) -> np.ndarray:
    return np.asarray(to_host(array), dtype=np.float64)


# What is far


def _variance_within(limit: float) -> float:
    """The variance of Gaussian noise of variance 1 that is not beyond a limit."""
    from scipy.special import ndtr

    density = math.exp(-0.5 * limit**2) / math.sqrt(2 * math.pi)
    return 1 - 2 * limit * density / (1 - 2 * float(ndtr(-limit)))


@dataclass(frozen=True, eq=False)
class _ScoreMetric:
    """Where scores are, and how far others are from there.

    Attributes
    ----------
    centre : float64 array (R,)
    root : float64 array (R, R)
        Scores times this have covariance 1.
    """

    centre: np.ndarray
    root: np.ndarray

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        distances: np.ndarray = np.linalg.norm((scores - self.centre) @ self.root, axis=1)
        return distances


def _fit_score_metric(scores: np.ndarray, gram: np.ndarray) -> tuple[_ScoreMetric, str]:
    """The shape of most scores, and a note if correlations are ignored.

    `gram` is the inverse of the covariance that the noise of the data gives them. In coordinates
    where that is 1 no direction can have less, except for roundings.
    """
    count, rank = scores.shape
    values, vectors = np.linalg.eigh(gram)
    whitening = vectors * np.sqrt(np.maximum(values, 0.0))
    if count < 2 * (rank + 1):
        return _componentwise_metric(scores, gram), (
            f"{count} samples are too few for the covariance of {rank} scores: score distances "
            "are by medians, without correlations"
        )
    scatter = _robust_scatter(scores @ whitening)
    if scatter is None:
        return _componentwise_metric(scores, gram), (
            "the scores of most samples lie in a plane: score distances are by medians, without "
            "correlations"
        )
    centre, covariance = scatter
    root = whitening @ np.linalg.inv(np.linalg.cholesky(covariance)).T
    return _ScoreMetric(np.linalg.lstsq(whitening.T, centre)[0], root), ""


def _robust_scatter(points: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """The centre and covariance of most points, in units of their noise; None if it is flat."""
    if points.shape[1] == 1:
        centre, spread = minimum_covariance.univariate(points[:, 0])
        return None if spread < MIN_SCORE_SPREAD else (np.array([centre]), np.array([[spread**2]]))
    scatter = minimum_covariance.multivariate(points)
    if scatter is None or np.linalg.eigvalsh(scatter.covariance)[0] < MIN_SCORE_SPREAD**2:
        return None
    return scatter.centre, scatter.covariance


def _componentwise_metric(scores: np.ndarray, gram: np.ndarray) -> _ScoreMetric:
    """By the median and the median deviation of each component.

    Where most scores are the same it is the mean deviation, and where all are, the noise.
    """
    centre = np.median(scores, axis=0)
    deviations = np.abs(scores - centre)
    noise = np.sqrt(np.maximum(np.diag(np.linalg.pinv(gram, hermitian=True)), 0.0))
    noise = np.where(noise > 0, noise, np.inf)
    spread = 1.4826 * np.median(deviations, axis=0)
    mean = math.sqrt(math.pi / 2) * np.mean(deviations, axis=0)
    spread = np.where(spread < MIN_SCORE_SPREAD * noise, mean, spread)
    spread = np.where(spread < MIN_SCORE_SPREAD * noise, noise, spread)
    return _ScoreMetric(centre, np.diag(1 / spread))


def _score_cutoff(rank: int) -> float:
    from scipy.special import gammaincinv

    return math.sqrt(2 * float(gammaincinv(rank / 2, minimum_covariance.QUANTILE_LEVEL)))


def _residual_cutoff(residual: np.ndarray, cells: float) -> float:
    """By the approximation of Wilson and Hilferty: distances to the power 2/3 are Gaussian.

    Distances that are far smaller than those of noise are roundings.
    """
    from scipy.special import ndtri

    centre, spread = minimum_covariance.univariate(residual ** (2 / 3))
    cutoff = math.pow(centre + spread * float(ndtri(minimum_covariance.QUANTILE_LEVEL)), 1.5)
    return max(cutoff * (1 + 1e-12), MIN_RESIDUAL_DISTANCE * math.sqrt(cells))
