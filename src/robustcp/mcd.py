"""The minimum covariance determinant: centre and spread of points, most of which are good.

Of all subsets of h points, about half of them, the one whose covariance has the smallest
determinant gives a first centre and covariance. The points that are not far from it, at a level of
97.5%, give the final ones. Both are made consistent for Gaussian points (Rousseeuw & Van Driessen
1999, Croux & Haesbroeck 1999, Hubert & Debruyne 2010). Centres and covariances follow every affine
map of the points, and do not depend on their order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

#: The share of Gaussian points that are not far.
LEVEL = 0.975
#: Small subsets that a search begins with, and how many of their ends go on.
STARTS, BEST = 500, 30
#: Determinants are lower if their logarithm is, by this.
LOWER = 1e-10
#: So many points at the edge of a subset, on either side, may be exchanged.
EDGE = 200
#: Of more points, so many are searched for the beginning.
POINTS = 1500
#: Numbers that are worked on at a time.
PIECE = 1 << 21
#: A covariance is singular if a correlation matrix has an eigenvalue below this, or if a standard
#: deviation is below this share of the mean: those are roundings.
SINGULAR = 1e-12


@dataclass(frozen=True, eq=False)
class Scatter:
    """Centre and covariance of most points.

    Attributes
    ----------
    centre : float64 array (p,)
    covariance : float64 array (p, p)
    subset : integer array (h,)
        The points of the subset with the smallest determinant, ascending.
    """

    centre: np.ndarray
    covariance: np.ndarray
    subset: np.ndarray

    def distances(self, points: np.ndarray) -> np.ndarray:
        """The Mahalanobis distance of each point."""
        squares = _squares(points, self.centre[None], self.covariance[None])[0]
        return np.asarray(np.sqrt(squares))


def univariate(x: np.ndarray) -> tuple[float, float]:
    """Centre and standard deviation of most numbers; exact.

    The best subset of numbers is an interval.

    Examples
    --------
    >>> import numpy as np
    >>> centre, spread = univariate(np.array([1.0, 1.2, 0.9, 1.1, 0.8, 50.0]))
    >>> round(centre, 3), bool(0.1 < spread < 0.4)
    (1.0, True)
    """
    n = x.size
    h = n // 2 + 1
    if h >= n:
        return float(x.mean()), float(x.std())
    best = _best_interval(np.sort(x), h)
    centre, variance = float(best.mean()), float(best.var()) * _consistency(h / n, 1)
    if variance == 0:
        return centre, 0.0
    near = x[(x - centre) ** 2 / variance < _chi2(LEVEL, 1)]
    return float(near.mean()), float(near.std()) * math.sqrt(_consistency(near.size / n, 1))


def _best_interval(x: np.ndarray, h: int) -> np.ndarray:
    """The h neighbours, of ascending numbers, with the smallest variance.

    They hold the median, so that sums of squares from there lose no digits but to numbers that
    are far from it; those are moved nearer. None is in the best interval: its variance would
    be that of the shortest at least.
    """
    widths = x[h - 1 :] - x[: x.size - h + 1]
    shortest = int(np.argmin(widths))
    if widths[shortest] == 0:
        return x[shortest : shortest + h]
    far = math.sqrt(h) * float(widths[shortest])
    d = np.clip(x - x[x.size // 2], -far, far)
    first, second = (np.concatenate([[0.0], np.cumsum(d**k)]) for k in (1, 2))
    sums, squares = (total[h:] - total[:-h] for total in (first, second))
    at = int(np.argmin(squares - sums**2 / h))
    return x[at : at + h]


def multivariate(points: np.ndarray) -> Scatter | None:
    """Centre and covariance of most points, of two coordinates or more.

    C-steps, which take the h points that are nearest by the covariance of a subset as the next
    one, never raise the determinant. They begin at many small subsets. Where they end best,
    single points are exchanged as long as that lowers it (Hawkins 1994).

    Parameters
    ----------
    points : float64 array (n, p)

    Returns
    -------
    Scatter, or None if h of the points lie in a plane: then there is no covariance.

    Examples
    --------
    >>> import numpy as np
    >>> points = np.random.default_rng(0).standard_normal((100, 2))
    >>> points[:20] += 50.0
    >>> bool((np.abs(multivariate(points).centre) < 0.5).all())
    True
    """
    n, p = points.shape
    order = _from_the_middle(points)
    rng = np.random.default_rng(0)
    some = order if n <= POINTS else rng.choice(order, POINTS, replace=False)
    begun = _begun(points[some], rng)
    if begun is None:
        return None
    subset = _best(points, some[begun])
    if subset is None:
        return None
    centre, covariance = _moments(points[subset])
    raw = Scatter(centre, covariance, np.sort(subset))
    squares = raw.distances(points) ** 2
    near = points[squares * _chi2(0.5, p) / np.median(squares) < _chi2(LEVEL, p)]
    centre, covariance = _moments(near)
    return Scatter(centre, covariance * _consistency(LEVEL, p), raw.subset)


def _from_the_middle(points: np.ndarray) -> np.ndarray:
    """The points in an order that no affine map changes.

    So the subsets that a search begins with do not depend on the order in which points are given.
    """
    centre, covariance = (part[None] for part in _moments(points))
    if _singular(centre, covariance)[0]:
        return np.lexsort(points.T)
    return np.argsort(_squares(points, centre, covariance)[0], kind="stable")


def _begun(points: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
    """The best subsets that C-steps end at; None if they lie in a plane."""
    n, p = points.shape
    drawn = np.argsort(rng.random((STARTS, n)), axis=1)
    pieces = np.array_split(drawn, max(1, STARTS * n * p // PIECE))
    found = [_settled(points, *_spread_out(points, piece)) for piece in pieces]
    ends, costs = (np.concatenate(parts) for parts in zip(*found, strict=True))
    best = np.argsort(costs, kind="stable")[:BEST]
    return ends[best] if best.size and costs[best[0]] > -np.inf else None


def _spread_out(points: np.ndarray, drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Moments of p + 1 points of each draw, or of more until they lie in no plane.

    Draws that never do, for points that are too far from all others, are left out.
    """
    size = points.shape[1] + 1
    centres, covariances = _moments(points[drawn[:, :size]])
    while (flat := _singular(centres, covariances)).any() and size < len(points):
        size = min(2 * size, len(points))
        centres[flat], covariances[flat] = _moments(points[drawn[flat, :size]])
    return centres[~flat], covariances[~flat]


def _settled(
    points: np.ndarray, centres: np.ndarray, covariances: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The subsets that C-steps end at, the best first, and log determinants.

    That of one in a plane is minus infinity. Others that are singular, for points in them that
    are too far from the rest, are left out.
    """
    h = sum(points.shape, 1) // 2
    ends, costs = np.empty((len(centres), h), dtype=np.intp), np.full(len(centres), np.inf)
    singular, left = np.zeros(len(centres), dtype=bool), np.arange(len(centres))
    while left.size:
        ends[left] = _nearest(points, centres, covariances, h)
        centres, covariances = _moments(points[ends[left]])
        flat, new = _singular(centres, covariances), np.linalg.slogdet(covariances)[1]
        goes_on = ~flat & (new < costs[left] - LOWER)
        costs[left], singular[left] = new, flat
        left, centres, covariances = left[goes_on], centres[goes_on], covariances[goes_on]
    least = costs[~singular].min(initial=np.inf)
    costs[singular & (costs < least)] = -np.inf
    kept = np.flatnonzero(~singular | (costs < least))
    kept = kept[np.argsort(costs[kept], kind="stable")]
    return ends[kept], costs[kept]


def _best(points: np.ndarray, subsets: np.ndarray) -> np.ndarray | None:
    """The subset with the smallest determinant that some lead to; None if it lies in a plane."""
    ends, costs = _settled(points, *_moments(points[subsets]))
    best: np.ndarray = ends[0]
    least = costs[0]
    while least > -np.inf:
        swapped = [new for end in np.unique(np.sort(ends, axis=1), axis=0)
                   if (new := _swapped(points, end)) is not None]  # fmt: skip
        if not swapped:
            return best
        ends, costs = _settled(points, *_moments(points[np.stack(swapped)]))
        if costs[0] < least - LOWER:
            best, least = ends[0], costs[0]
    return None


def _swapped(points: np.ndarray, subset: np.ndarray) -> np.ndarray | None:
    """With one point exchanged so that the determinant is the smallest; None if none lowers it.

    With q_ij = 1/h + z_i'z_j / (h - 1), z the points in coordinates in which the subset has
    covariance 1, the exchange of i for j multiplies it by (1 - q_ii)(1 + q_jj) + q_ij^2.
    """
    h = subset.size
    centre, covariance = _moments(points[subset])
    z = np.linalg.solve(np.linalg.cholesky(covariance), (points - centre).T).T
    squares = np.sum(z**2, axis=1)
    rest = np.setdiff1d(np.arange(len(points)), subset)
    inside = subset[np.argsort(-squares[subset], kind="stable")[:EDGE]]
    outside = rest[np.argsort(squares[rest], kind="stable")[:EDGE]]
    if not outside.size:
        return None
    q = 1 / h + z[inside] @ z[outside].T / (h - 1)
    out, new = (1 / h + squares[at] / (h - 1) for at in (inside, outside))
    ratio = np.outer(1 - out, 1 + new) + q**2
    i, j = np.unravel_index(np.argmin(ratio), ratio.shape)
    if ratio[i, j] > 1 - LOWER:
        return None
    return np.append(subset[subset != inside[i]], outside[j])


def _nearest(
    points: np.ndarray, centres: np.ndarray, covariances: np.ndarray, h: int
) -> np.ndarray:
    """The h points that are nearest, for each covariance."""
    squares = _squares(points, centres, covariances)
    return np.argpartition(squares, h - 1, axis=1)[:, :h]


def _squares(points: np.ndarray, centres: np.ndarray, covariances: np.ndarray) -> np.ndarray:
    """Squared Mahalanobis distances, (covariances, points)."""
    roots = np.linalg.inv(np.linalg.cholesky(covariances))
    z = roots @ (points.T[None] - centres[:, :, None])
    return np.asarray(np.einsum("spn,spn->sn", z, z))


def _moments(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and covariances of sets of points, (..., count, p)."""
    centres = points.mean(axis=-2)
    d = points - centres[..., None, :]
    return centres, d.swapaxes(-1, -2) @ d / (points.shape[-2] - 1)


def _singular(centres: np.ndarray, covariances: np.ndarray) -> np.ndarray:
    """Which covariances are singular, but for roundings."""
    spread = np.sqrt(np.diagonal(covariances, axis1=-2, axis2=-1))
    flat = (spread <= SINGULAR * np.abs(centres)).any(axis=-1)
    by = np.where(flat[:, None], 1.0, spread)
    least = np.linalg.eigvalsh(covariances / (by[:, :, None] * by[:, None, :]))[:, 0]
    return np.asarray(flat | (least < SINGULAR))


def _chi2(level: float, p: int) -> float:
    """A quantile of the squared distances of Gaussian points."""
    from scipy.special import gammaincinv

    return 2 * float(gammaincinv(p / 2, level))


def _consistency(share: float, p: int) -> float:
    """What the covariance of the nearest share of Gaussian points is to be multiplied by."""
    from scipy.special import gammainc

    return share / float(gammainc(p / 2 + 1, _chi2(share, p) / 2)) if share < 1 else 1.0
