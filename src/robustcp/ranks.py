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

from robustcp import _checks
from robustcp.checkpoints import Kept
from robustcp.checkpoints import asked as checkpointed
from robustcp.climbs import TITLE as PROFILE
from robustcp.climbs import Climbs
from robustcp.constraints import Constraint, Constraints, by_mode
from robustcp.core import Cells, by_chance, consistency
from robustcp.engines import HostData, as_engine, host_data, to_host
from robustcp.ensembles import ranks_of
from robustcp.estimate import Seed, bound
from robustcp.fitted import Fit
from robustcp.ladder import Rung, ladder
from robustcp.methods import nonnegative_too
from robustcp.metrics import aligned, on_host
from robustcp.noise import first_look
from robustcp.parallel import Progress, all_of, side_by_side
from robustcp.search import constraints_on, cut
from robustcp.sizes import Problem

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The share of cells that each fold holds out, and how many folds there are.
HELD_OUT, FOLDS = 0.1, 5
#: With fewer samples, none are left out.
FEW = 4
#: The share of held-out residuals, the smallest ones, that the error is of.
SCORED = 0.7
#: The most starts at each rank.
STARTS = 4
#: Degrees of freedom of the t distribution by which held-out cells are scored.
HEAVY = 3.0
#: What a rank must gain at least, per held-out cell, in all folds but so many.
GAIN, BUT = 0.002, 1
#: A component has come back if its congruence is at least this (Lorenzo-Seva and ten Berge 2006);
#: components mend each other if the core consistency is lower than by chance by so much.
STABLE, MENDED = 0.95, 50.0
#: A core consistency below this is all the same.
NONSENSE = -100.0
#: Of data with more entries a part of about so many is looked at.
LARGE = 1 << 18


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
        tried = f"{self.ranks[0]} to {self.ranks[-1]}"
        return f"RankProfile(ranks {tried}, rank {self.rank}: {self.reason})"

    def rows(self) -> list[dict[str, float]]:
        """What there is to say about each rank, as a table."""
        columns = ("error", "gain", "stability", "agreement", "consistency", "noise")
        return [
            {"rank": rank, **{name: float(getattr(self, name)[k]) for name in columns},
             **{f"{name}_spread": float(each[k]) for name, each in self.spread.items()}}
            for k, rank in enumerate(self.ranks)
        ]  # fmt: skip

    def plot(self, ax: Axes | None = None) -> Axes:
        """Held-out error and stability against the rank (see `robustcp.plot.rank_profile`)."""
        from robustcp.plot import rank_profile as draw

        return draw(self, ax=ax)


def _equal(one: Any, other: Any) -> bool:
    """Whether two values are the same, arrays entry by entry, with NaN equal to itself."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
    if isinstance(one, str) or one is None:
        return bool(one == other)
    return bool(np.array_equal(one, other, equal_nan=True))


def rank_profile(
    X: Any,
    ranks: int | Iterable[int] = range(1, 9),
    *,
    mode: int | str = 0,
    folds: int = FOLDS,
    nonnegative: bool | tuple[bool, ...] = False,
    constraints: Mapping[int | str, Constraint] | None = None,
    starts: int | str = "auto",
    rng: Seed = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    checkpoint: Kept = None,
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
    tried = ranks_of(ranks)
    folds = _checks.whole_number("folds", folds, 2)
    count = STARTS if starts == "auto" else _checks.whole_number("starts", starts, 1)
    generator = _checks.generator(rng)
    engine = as_engine(X)  # refuses what is not a tensor
    axes = engine.view.axes
    at = axes.mode("mode", mode, engine.order)
    asked = nonnegative_too(by_mode(constraints, axes.modes, engine.order), nonnegative, axes)
    drawn = dict(generator.bit_generator.state)
    whole, bound_to = _part(
        host_data(X), bound(asked, engine.shape, axes.labels), max(tried), generator
    )
    if not whole.values.any():
        raise ValueError("X: is zero everywhere, there are no components to count")
    parts = _folds(whole, at, folds, generator)
    tasks = [Climb(whole, at, None, tried, bound_to, count, generator.spawn(1)[0])]
    tasks += [
        Climb(whole, at, part, tried, bound_to, count, own)
        for part, own in zip(parts, generator.spawn(folds), strict=True)
    ]
    climbs = Climbs(
        checkpointed(
            checkpoint, "rank_profile", PROFILE, data=whole.digest, ranks=tried, mode=at,
            folds=folds, constraints=repr(asked), starts=count, rng=drawn,
        ),
        len(tasks),
    )  # fmt: skip
    left = [number for number in range(len(tasks)) if number not in climbs.done]
    known = len(tasks) - len(left)

    def keep(number: int, found: dict[int, Rung] | Exception) -> None:
        if not isinstance(found, Exception):
            climbs.add(left[number], found)
        if progress is not None:
            progress(known + number + 1, len(tasks))

    all_of(side_by_side(Climb.__call__, [tasks[k] for k in left], jobs=jobs, each=keep))
    of_all, *of_folds = (climbs.done[number] for number in range(len(tasks)))
    return _Evidence(whole, at, parts, of_all, of_folds).profile(tried)


@dataclass(frozen=True, eq=False)
class Fold:
    """What one fold leaves out.

    Attributes
    ----------
    kept : integer array
        The samples that its models have.
    held : integer array
        Which of the observed entries of all data are held out, of those samples.
    """

    kept: np.ndarray
    held: np.ndarray


def _part(
    data: HostData, constraints: Constraints, rank: int, rng: np.random.Generator
) -> tuple[HostData, Constraints]:
    """Of large data a random part, which tells as much."""
    if not (data.count > LARGE and data.count > 0.4 * np.prod(data.shape, dtype=float)):
        return data, constraints
    part = cut(data.shape, LARGE, rank, rng)
    if part is None:
        return data, constraints
    for mode, rows in enumerate(part):
        data = data if rows is None else data.taken(mode, rows)
    return data, constraints_on(constraints, part)


def _folds(data: HostData, mode: int, folds: int, rng: np.random.Generator) -> list[Fold]:
    """Samples and cells, dealt out at random; of few samples all are kept."""
    size, number = data.shape[mode], rng.permutation(data.count) % round(1 / HELD_OUT)
    place = np.empty(size, dtype=np.int64)
    place[rng.permutation(size)] = np.arange(size) % folds
    if size < FEW:
        place[:] = -1
    found = []
    for fold in range(folds):
        kept = np.flatnonzero(place != fold)
        held = (number == fold % round(1 / HELD_OUT)) & (place[data.indices[mode]] != fold)
        found.append(Fold(kept, np.flatnonzero(held)))
    return found


@dataclass(frozen=True, eq=False)
class Climb:
    """The models of some data, or of what a fold leaves of it, at all ranks."""

    data: HostData
    mode: int
    fold: Fold | None
    ranks: Sequence[int]
    constraints: Constraints
    starts: int
    rng: np.random.Generator

    def __call__(self) -> dict[int, Rung]:
        data, constraints = self.data, self.constraints
        if self.fold is not None:
            hit = np.zeros(data.count, dtype=bool)
            hit[self.fold.held] = True
            data = data.without(hit).taken(self.mode, self.fold.kept)
            chosen = [self.fold.kept if n == self.mode else None for n in range(len(data.shape))]
            constraints = constraints_on(constraints, chosen)
        return ladder(data.data, self.ranks, constraints, self.starts, self.rng)


@dataclass(frozen=True, eq=False)
class _Evidence:
    """What the models of all data and of the folds say of each rank."""

    data: HostData
    mode: int
    folds: Sequence[Fold]
    of_all: Mapping[int, Rung]
    of_folds: Sequence[Mapping[int, Rung]]

    def profile(self, ranks: tuple[int, ...]) -> RankProfile:
        """The numbers of all ranks, and what follows from them."""
        sigma = self._sigma(max(ranks))
        scored = {rank: self._scored(rank, sigma) for rank in (0, *ranks)}
        losses = np.array([[_loss(z) for z in scored[rank]] for rank in (0, *ranks)])
        errors = np.array([[_trimmed(z) for z in scored[rank]] for rank in (0, *ranks)])
        errors = errors[1:] / np.where(errors[0] > 0, errors[0], np.nan)
        gains = losses[:-1] - losses[1:]
        stabilities = np.array([self._stabilities(rank) for rank in ranks])
        cores = np.array([self._cores(rank, sigma, consistency) for rank in ranks])
        spread = {
            "error": _standard_error(errors),
            "gain": _standard_error(gains),
            "stability": _standard_error(stabilities),
            "consistency": _standard_error(cores),
        }
        stability, core = _in_all_but_one(stabilities), np.median(cores, axis=1)
        mended = np.array([
            np.median(self._cores(rank, sigma, lambda cells: by_chance(cells) - consistency(cells)))
            if stable >= STABLE
            else np.nan
            for rank, stable in zip(ranks, stability, strict=True)
        ])  # fmt: skip
        choice = Choice(ranks, losses[1:], float(losses[0].mean()), stability, mended)
        return RankProfile(
            ranks, errors.mean(axis=1), gains.mean(axis=1), stability,
            np.array([self.of_all[rank].agreement for rank in ranks]), np.maximum(core, NONSENSE),
            np.array([self._noise(rank) for rank in ranks]), spread, choice.rank, choice.reason,
            choice.runner_up, self.mode,
        )  # fmt: skip

    def _look(self, rank: int) -> tuple[Problem, Any, Any]:
        problem = Problem.of(as_engine(self.data.data)).without_wild
        model = problem.units.factors_of_fit(self.of_all[rank].model.absorbed())
        factors = tuple(problem.engine.asarray(A) for A in model)
        return problem, factors, first_look(problem.engine, factors, problem.resolution)

    def _noise(self, rank: int) -> float:
        problem, _, noise = self._look(rank)
        return float(noise.sigma * problem.units.factor)

    def _sigma(self, rank: int) -> np.ndarray:
        """The standard deviation of each observed entry."""
        problem, factors, noise = self._look(rank)
        engine = problem.engine
        scales = np.ones(self.data.count)
        if not noise.even:
            held = tuple(np.asarray(A, dtype=np.float64) for A in factors)
            found = noise.scales(engine.shape, held)
            scales = scales if found is None else found.at(self.data.indices)
        least = max(noise.least, problem.resolution.entry, np.finfo(float).tiny)
        return np.asarray(np.maximum(noise.sigma * scales, least) * problem.units.factor)

    def _scored(self, rank: int, sigma: np.ndarray) -> list[np.ndarray]:
        """The residuals of the held-out cells of each fold, in units of their noise."""
        found = []
        for fold, rungs in zip(self.folds, self.of_folds, strict=True):
            values = self.data.values[fold.held]
            model = rungs[rank].model.at(self._cells(fold)) if rank else 0.0
            found.append((values - model) / sigma[fold.held])
        return found

    def _cells(self, fold: Fold) -> np.ndarray:
        """Where the held-out cells are, in the data of the fold."""
        at = [index[fold.held] for index in self.data.indices]
        at[self.mode] = np.searchsorted(fold.kept, at[self.mode])
        return np.stack(at, axis=1)

    def _stabilities(self, rank: int) -> np.ndarray:
        """How much the worst component of each model is like one of the model most are like.

        That may be one of a fold: the model of all data, too, may have ended elsewhere.
        """
        models = [rungs[rank].model for rungs in (self.of_all, *self.of_folds)]
        each = np.array([
            [aligned(one, other, skip=self.mode)[1].min() for one in models if one is not other]
            for other in models
        ])  # fmt: skip
        found: np.ndarray = each[int(np.argmax(_in_all_but_one(each)))]
        return found

    def _cores(self, rank: int, sigma: np.ndarray, look: Callable[[Cells], float]) -> list[float]:
        """What the held-out cells of each fold say of the core."""
        found = []
        for fold, rungs in zip(self.folds, self.of_folds, strict=True):
            model, at = rungs[rank].model, self._cells(fold)
            z = (self.data.values[fold.held] - model.at(at)) / sigma[fold.held]
            found.append(look(Cells(model, at, z, sigma[fold.held])))
        return found


def _loss(z: np.ndarray) -> float:
    """What cells cost on average: minus the log density of a t distribution, but for constants."""
    if not z.size:
        return 0.0
    return float(np.mean(0.5 * (HEAVY + 1) * np.log1p(z * z / HEAVY)))


def _trimmed(z: np.ndarray) -> float:
    """The mean of the smaller magnitudes; NaN if there are none."""
    sizes = np.sort(np.abs(z))[: max(1, int(SCORED * z.size))]
    return float(sizes.mean()) if z.size else float("nan")


def _in_all_but_one(each: np.ndarray) -> np.ndarray:
    """What is reached in all folds but one, for each row."""
    return np.asarray(np.sort(each, axis=1)[:, BUT])


def _standard_error(each: np.ndarray) -> np.ndarray:
    """That of the mean over folds, for each rank."""
    return np.asarray(each.std(axis=1, ddof=1) / np.sqrt(each.shape[1]))


@dataclass(frozen=True)
class Choice:
    """Which rank the evidence speaks for.

    Attributes
    ----------
    ranks : tuple of int
    losses : float64 array (ranks, folds)
        What held-out cells cost.
    nothing : float
        What they cost under a zero model.
    stability : float64 array (ranks,)
    mended : float64 array (ranks,)
        By how much the core consistency is lower than by chance, in percent; NaN if that is not
        known.
    """

    ranks: tuple[int, ...]
    losses: np.ndarray
    nothing: float
    stability: np.ndarray
    mended: np.ndarray

    def better(self, k: int, other: int) -> bool:
        """Whether one predicts held-out cells better than another, in all folds but one."""
        gains = self.losses[other] - self.losses[k]
        return bool(np.sum(gains > GAIN) >= max(gains.size - BUT, 1))

    @property
    def predicting(self) -> int:
        """The first that none after it predicts better than."""
        last = len(self.ranks) - 1
        return next(
            k for k in range(last + 1)
            if not any(self.better(other, k) for other in range(k + 1, last + 1))
        )  # fmt: skip

    def sound(self, k: int) -> bool:
        """Whether all components come back, and none is there to mend another."""
        return bool(self.stability[k] >= STABLE and not self.mended[k] > MENDED)

    @property
    def chosen(self) -> int:
        """The highest that predicts, and is sound; the one that predicts if none is, or if that
        would give up more of the prediction than its own last component gains."""
        best, mean = self.predicting, self.losses.mean(axis=1)
        found = next((k for k in range(best, -1, -1) if self.sound(k)), best)
        gained = mean[found - 1] - mean[found] if found else self.nothing - mean[0]
        return found if mean[found] - mean[best] <= gained else best

    @property
    def rank(self) -> int:
        return self.ranks[self.chosen]

    @property
    def runner_up(self) -> int | None:
        """What to look at next: that of its neighbours which predicts held-out cells better."""
        k, last, mean = self.chosen, len(self.ranks) - 1, self.losses.mean(axis=1)
        near = [other for other in (k - 1, k + 1) if 0 <= other <= last]
        return self.ranks[min(near, key=lambda other: mean[other])] if near else None

    @property
    def reason(self) -> str:
        k, best = self.chosen, self.predicting
        if k < best:
            worst = self.ranks[best]
            return f"rank {worst} predicts held-out cells better, but {self._doubts(best)}"
        if k + 1 < len(self.ranks):
            gain = float(np.mean(self.losses[k] - self.losses[k + 1]))
            change = f"{abs(gain):.4f} nats worse"
            if gain > 0:
                change = f"only {gain:.4f} nats better"
            if gain > GAIN:
                change = f"{gain:.4f} nats better on average, but in too few folds"
            why = f"rank {self.ranks[k + 1]} predicts held-out cells {change}"
        else:
            why = "held-out cells are still predicted better at the highest rank tried"
            if k == 0:
                why = "no other rank was tried"
        if self.sound(k):
            return f"{why}, and all components come back from other samples"
        return f"{why}; but {self._doubts(k)}"

    def _doubts(self, k: int) -> str:
        """What is wrong with a rank that is not sound."""
        found = []
        if not self.stability[k] >= STABLE:
            found.append(
                "its components do not all come back from other samples (congruence "
                f"{self.stability[k]:.2f})"
            )
        if self.mended[k] > MENDED:
            found.append("its components mend each other (low core consistency)")
        return " and ".join(found)


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
    found = fit.outliers(data.data)
    at = np.stack(data.indices, axis=1)
    scores, sigma = (
        np.asarray(to_host(each), dtype=np.float64) for each in (found.scores, fit.sigma(data.data))
    )
    if scores.ndim > 1:
        scores, sigma = scores[data.indices], sigma[data.indices]
    return consistency(Cells(on_host(fit), at, scores, np.maximum(sigma, np.finfo(float).tiny)))
