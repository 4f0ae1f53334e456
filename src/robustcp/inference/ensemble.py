"""The models of several random starts at several ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from robustcp._util import checks
from robustcp.inference.batch import FitTask, can_move_to_process, refuse_single_fit_options
from robustcp.inference.parallel import Progress, results_or_raise, run_parallel
from robustcp.model.kruskal import KruskalTensor
from robustcp.model.metrics import align_components, factor_match_score
from robustcp.results.fit import Fit


@dataclass(frozen=True, eq=False)
class Ensemble:
    """The fits of several random starts at each of several ranks.

    Attributes
    ----------
    ranks : tuple of int
    fits : dict from a rank to a tuple of Fit
        The best first; see `costs`.
    models : dict from a rank to a tuple of KruskalTensor
        The models of the fits, with components in the order and with the signs of the best.
    costs : dict from a rank to a float64 array
        The entropy of the residuals of each fit, by which they are ranked as in `cp`.
    errors : dict from a rank to a float64 array
        The share of the data that each fit does not explain.
    similarities : dict from a rank to a float64 array
        The factor match score of each fit with the best of its rank, without weights.

    Examples
    --------
    >>> import robustcp
    >>> X = robustcp.simulate((8, 7, 6), 2, eta=0, gamma=0, rng=0).data
    >>> models = robustcp.ensemble(X, [1, 2], starts=2, jobs=1)
    >>> models.best(2).rank, models.errors[2].shape
    (2, (2,))
    """

    ranks: tuple[int, ...]
    fits: dict[int, tuple[Fit, ...]] = field(repr=False)
    models: dict[int, tuple[KruskalTensor, ...]] = field(repr=False)
    costs: dict[int, np.ndarray] = field(repr=False)
    errors: dict[int, np.ndarray] = field(repr=False)
    similarities: dict[int, np.ndarray] = field(repr=False)

    def best(self, rank: int) -> Fit:
        """The fit of a rank with the lowest cost."""
        if rank not in self.fits:
            choices = ", ".join(map(str, self.ranks))
            raise checks.ArgumentError("rank", f"must be one of {choices}, got {rank!r}")
        return self.fits[rank][0]

    def __repr__(self) -> str:
        descriptions = (
            f"rank {rank}: error {self.errors[rank][0]:.3f}, similarity "
            f"{np.median(self.similarities[rank]):.2f}"
            for rank in self.ranks
        )
        starts = max(map(len, self.fits.values()))
        return f"Ensemble({starts} starts; {'; '.join(descriptions)})"

    def plot(self, axes: Any = None) -> np.ndarray:
        """Error and similarity against the rank; see `robustcp.plot.ensemble`."""
        from robustcp.plot import ensemble as draw

        return draw(self, axes=axes)


def ensemble(
    X: Any,
    ranks: int | Iterable[int],
    *,
    starts: int = 10,
    rng: int | np.random.Generator | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    folder: str | Path | None = None,
    **options: Any,
) -> Ensemble:
    """Fit each of several random starts to convergence, at each of several ranks.

    A model that all starts of a rank end at can be trusted more than models that differ between
    starts, as they usually do at too high a rank.

    Parameters
    ----------
    X : array, masked array, or Observed
    ranks : int or iterable of int
    starts : int
        How many for each rank.
    rng : None, seed or Generator
    jobs, progress, folder
        As in `cp_many`.
    **options
        As in `cp`, but for `init` and `starts`.

    Returns
    -------
    Ensemble

    Examples
    --------
    >>> import robustcp
    >>> X = robustcp.simulate((12, 11, 10), 2, eta=0.1, gamma=1.0, rng=0).data
    >>> found = robustcp.ensemble(X, [1, 2], starts=3, jobs=1)
    >>> len(found.fits[2]), bool(found.errors[2][0] < found.errors[1][0])
    (3, True)
    """
    refuse_single_fit_options(options)
    rank_list = parse_ranks(ranks)
    starts = checks.whole_number("starts", starts, 1)
    if "init" in options:
        raise checks.ArgumentError("init", "cannot be given: all starts are random")
    seeds = checks.generator(rng).integers(2**63, size=starts).tolist()
    tasks = [
        FitTask.of(X, rank, {**options, "init": "random", "starts": 1, "rng": seed}, folder)
        for rank in rank_list
        for seed in seeds
    ]
    if not can_move_to_process(X):
        jobs = 1
    results = results_or_raise(run_parallel(FitTask.run, tasks, jobs=jobs, progress=progress))
    fits = {
        rank: tuple(sorted((fit for fit in results if fit.rank == rank), key=_final_cost))
        for rank in rank_list
    }

    def measure(value: Callable[[Fit, Fit], float]) -> dict[int, np.ndarray]:
        return {rank: np.array([value(fit, own[0]) for fit in own]) for rank, own in fits.items()}

    return Ensemble(
        rank_list,
        fits,
        {
            rank: tuple(align_components(fit, own[0])[0] for fit in own)
            for rank, own in fits.items()
        },
        costs=measure(lambda fit, _: _final_cost(fit)),
        errors=measure(lambda fit, _: 1 - fit.explained),
        similarities=measure(lambda fit, best: factor_match_score(fit, best, weights=False)),
    )


def parse_ranks(ranks: int | Iterable[int]) -> tuple[int, ...]:
    """Ranks without repetitions, in ascending order."""
    given_ranks = ranks if isinstance(ranks, Iterable) else (ranks,)
    rank_list = tuple(sorted({checks.whole_number("ranks", rank, 1) for rank in given_ranks}))
    if not rank_list:
        raise checks.ArgumentError("ranks", "must name at least one rank")
    return rank_list


def _final_cost(fit: Fit) -> float:
    """The final cost of the start of a fit; its objective if starts were not compared."""
    return min((value for value in fit.starts.final if value is not None), default=fit.objective)
