"""How many components? Robust evidence for each rank, and a recommendation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp import _checks
from robustcp.engines import as_array, as_engine, to_host
from robustcp.estimate import Seed
from robustcp.fitted import Fit
from robustcp.kruskal import KruskalTensor
from robustcp.methods import cp
from robustcp.metrics import factor_match_score

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The share of entries that are held out.
HELD_OUT = 0.1
#: The share of held-out residuals, the smallest ones, that are scored.
SCORED = 0.7
#: Each rank must lower the held-out error of the one before by this much; the components of the
#: recommended one must come back in halves, and their core be consistent, to this degree.
GAIN, STABLE, CONSISTENT = 0.03, 0.9, 50.0


@dataclass(frozen=True)
class RankProfile:
    """Evidence for each rank.

    Attributes
    ----------
    ranks : tuple of int
    error : array
        The robust error on entries that were held out: the mean of the 70% smallest |residual|
        in units of the noise of their entries, relative to that of a zero model.
    consistency : array
        Core consistency in percent: near 100 when the data, outliers replaced, are trilinear in
        these components, low or negative when there are too many.
    stability : array
        How well components agree (factor match score) between fits to two halves of the data
        along its longest mode, in the other modes; 1 is perfect.
    agreement : array
        The share of starts that reached the best objective.
    rank : int
        The recommendation.
    reason : str
        Why.
    """

    ranks: tuple[int, ...]
    error: np.ndarray
    consistency: np.ndarray
    stability: np.ndarray
    agreement: np.ndarray
    rank: int
    reason: str

    def __repr__(self) -> str:
        tried = f"{self.ranks[0]} to {self.ranks[-1]}"
        return f"RankProfile(ranks {tried}, rank {self.rank}: {self.reason})"

    def plot(self, ax: Axes | None = None) -> Axes:
        """Held-out error and stability against the rank (see `robustcp.plot.rank_profile`)."""
        from robustcp.plot import rank_profile as draw

        return draw(self, ax=ax)


def rank_profile(
    X: Any,
    ranks: Iterable[int] = range(1, 9),
    *,
    nonnegative: bool | tuple[bool, ...] = False,
    starts: int | str = "auto",
    rng: Seed = None,
) -> RankProfile:
    """Fit each rank and say which to take.

    Entries are held out at random, and scored by a loss that outliers among them cannot spoil.
    The recommended rank is the largest one up to which each step lowers that error by at least
    3% and gives components that come back when the data is split in halves.

    Parameters
    ----------
    X : array, masked array
        With bad and missing entries, as for `cp`.
    ranks : iterable of int
    nonnegative, starts, rng
        As in `cp`.

    Examples
    --------
    >>> import robustcp
    >>> sim = robustcp.simulate((16, 15, 14), 2, eta=0.1, gamma=1.0, rng=0)
    >>> robustcp.rank_profile(sim.data, range(1, 4)).rank
    2
    """
    ranks = ranks if isinstance(ranks, Iterable) else (ranks,)
    tried = tuple(sorted({_checks.whole_number("ranks", rank, 1) for rank in ranks}))
    if not tried:
        raise ValueError("ranks: must name at least one rank")
    generator = _checks.generator(rng)
    data = to_host(as_array(X))
    as_engine(data)  # refuses what is not a tensor
    data = data.astype(np.float64)
    held = (generator.random(data.shape) < HELD_OUT) & ~np.isnan(data)
    training = np.where(held, np.nan, data)
    longest = int(np.argmax(data.shape))
    order = generator.permutation(data.shape[longest])
    halves = [np.take(data, np.sort(order[k::2]), axis=longest) for k in (0, 1)]
    options: dict[str, Any] = {"nonnegative": nonnegative, "starts": starts}

    errors, consistencies, stabilities, agreements = [], [], [], []
    fits = [cp(training, rank, rng=0, **options) for rank in tried]
    # In units of the noise that the best of the models shows: that of the others holds misfit.
    unit = fits[-1].sigma(training)[held]
    nothing = _trimmed(data[held] / unit)
    for rank, fit in zip(tried, fits, strict=True):
        errors.append(_trimmed((data - fit.full())[held] / unit) / nothing)
        consistencies.append(core_consistency(fit, training))
        agreements.append(fit.starts.reached / len(fit.starts))
        one, other = (cp(half, rank, rng=0, **options) for half in halves)
        stabilities.append(_agreement(one, other, longest))
    error, consistency, stability, agreement = map(
        np.array, (errors, consistencies, stabilities, agreements)
    )
    rank, reason = _choose(tried, error, consistency, stability)
    return RankProfile(tried, error, consistency, stability, agreement, rank, reason)


def _trimmed(residuals: np.ndarray) -> float:
    """The mean of the smaller magnitudes."""
    sizes = np.sort(np.abs(residuals))
    return float(sizes[: max(1, int(SCORED * sizes.size))].mean()) or np.finfo(float).tiny


def _choose(
    ranks: tuple[int, ...], error: np.ndarray, consistency: np.ndarray, stability: np.ndarray
) -> tuple[int, str]:
    """The last rank that pays, if its components are real; else the last one whose are."""
    last, why = len(ranks) - 1, "the held-out error still falls at the highest rank tried"
    for k in range(1, len(ranks)):
        gain = 1 - error[k] / error[k - 1]
        if gain < GAIN:
            change = f"lowers it by only {gain:.1%}" if gain > 0 else f"raises it by {-gain:.1%}"
            last = k - 1
            why = (
                f"the held-out error stops falling: rank {ranks[k]} {change} "
                f"(from {error[k - 1]:.3f} to {error[k]:.3f})"
            )
            break
    for k in range(last, -1, -1):
        if stability[k] >= STABLE and consistency[k] >= CONSISTENT:
            if k < last:
                why = (
                    f"the components of rank {ranks[k + 1]} do not come back in halves of the data "
                    f"(score {stability[k + 1]:.2f}, core consistency {consistency[k + 1]:.0f}%)"
                )
            return ranks[k], why
    return ranks[last], why + "; but its components do not come back in halves of the data"


def _agreement(one: Fit, other: Fit, mode: int) -> float:
    """Factor match score of two fits, without the mode along which the data was halved."""

    def rest(fit: Fit) -> KruskalTensor:
        return KruskalTensor.from_factors([A for m, A in enumerate(fit.factors) if m != mode])

    return factor_match_score(rest(one), rest(other), weights=False)


def core_consistency(fit: Fit, X: Any) -> float:
    """How close the best core tensor of a model's factors is to a superdiagonal of ones, in %.

    Outliers and missing entries are replaced by the model first, so that they do not count.
    """
    data = to_host(as_array(X)).astype(np.float64)
    model = np.asarray(to_host(fit.full()), dtype=np.float64)
    bad = np.asarray(to_host(fit.outliers(data).mask)) | np.isnan(data)
    core = np.where(bad, model, data)
    for mode, A in enumerate(fit.model.absorbed()):
        inverse = np.linalg.pinv(np.asarray(to_host(A), dtype=np.float64))
        core = np.moveaxis(np.tensordot(inverse, core, axes=(1, mode)), 0, mode)
    ideal = np.zeros_like(core)
    ideal[(np.arange(fit.rank),) * core.ndim] = 1.0
    return float(100 * (1 - np.sum((core - ideal) ** 2) / fit.rank))
