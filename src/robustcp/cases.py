"""Samples that are bad as a whole, and agree with each other: found by subsets of samples.

A fifth of the samples with one foreign component is a component like any other to a criterion of
entries. If one mode is known to hold samples, most of which are good, some small subset of them is
good throughout; the factors of its fit describe most samples well, and those of others do not.
So models of random subsets are compared by how well they describe the best of all samples.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from robustcp import _checks
from robustcp._typing import Factors
from robustcp.constraints import Constraints
from robustcp.doubts import some
from robustcp.engines import Arrangement, Engine
from robustcp.journal import Journal
from robustcp.kruskal import KruskalTensor
from robustcp.noise import Asked, Noise, first_look
from robustcp.schedules import Continuation
from robustcp.search import (
    Begun,
    Cold,
    Start,
    Starts,
    Trial,
    constraints_on,
    cut,
    extended,
    same,
)
from robustcp.sizes import Problem
from robustcp.solver import Solver, Stage
from robustcp.stages import to_the_noise

LOG = logging.getLogger(__name__)

#: A subset has so many samples more than there are components.
MORE = 2
#: The chance to have no good subset, and the most subsets.
RISK, MOST = 0.001, 300
#: The share of the samples that must be good, and that models are compared by.
GOOD = 0.6
#: Rounds in which the best samples are fitted again: of all subsets, and of the best of them.
ROUNDS, BEST, MORE_ROUNDS = 1, 4, 3
#: Subsets are compared on so many entries.
ENTRIES = 1 << 15
#: A sample is bad if its distance is larger than the median by so many robust standard deviations
#: of the logarithm, by so many standard errors, and by that factor.
BEYOND, SURE, FACTOR = 4.0, 5.0, 1.3
#: The standard error of the logarithm of a median magnitude, times the root of the count.
ERROR = 1.17
#: Distances are not below this.
LEAST = 1e-12
#: How subsets begin: the kinds of their starts, and their first smoothing.
KINDS = (("clipped", 0.03), ("positive", 1.0), ("random", 1.0), ("random", 0.03))
#: Rounds in which the model and the bad samples are found anew.
AGAIN = 5


@dataclass(frozen=True)
class Cases:
    """Which mode holds samples, some of which may be bad as a whole.

    Attributes
    ----------
    mode : int or str
        Its number or its name.
    share : float
        The share of the samples that may be bad. Up to 0.4 can be found; a larger share takes
        more subsets.

    Examples
    --------
    >>> from robustcp import Cases
    >>> Cases(0, share=0.4).subsets(rank=3)
    86
    """

    mode: int | str
    share: float = 0.25

    def __post_init__(self) -> None:
        _checks.real_number("cases: share", self.share, 0.0, most=1 - GOOD)

    def check(self, size: int, rank: int) -> None:
        """Complain if there are too few samples."""
        if math.floor(GOOD * size) < rank + 1:
            raise _checks.ArgumentError(
                "cases", f"mode {self.mode} has {size} samples, and {GOOD:.0%} of them are fewer "
                f"than rank + 1 = {rank + 1}"
            )  # fmt: skip

    def subsets(self, rank: int) -> int:
        """How many subsets it takes that one of them is good throughout, almost surely."""
        chance = (1 - self.share) ** (rank + MORE)
        return max(1, math.ceil(math.log(RISK) / math.log1p(-chance))) if chance < 1 else 1


def as_cases(given: object, names: Sequence[str], order: int) -> Cases | None:
    """What `cp` takes as cases, with the mode as a number."""
    if given is None:
        return None
    asked = given if isinstance(given, Cases) else Cases(given)  # type: ignore[arg-type]
    return replace(asked, mode=_checks.mode_number("cases", asked.mode, names, order))


@dataclass(frozen=True, eq=False)
class Judged:
    """What is known of the samples of a fit with `cases`.

    Attributes
    ----------
    mode : int
    weights : float64 array (I,)
        0 for bad samples, which have no say in the other factors; else 1.
    distances : float64 array (I,)
        The residual distance of each sample: the median magnitude of its residuals in units of
        the noise, times 1.4826: about 1 where there is nothing but noise. NaN without entries.
    cutoffs : float64 array (I,)
        The distance from which each is bad; higher for those with few entries.

    If more than 40% of the samples are bad there is no majority to go by, and a warning says so.
    """

    mode: int
    weights: np.ndarray = field(repr=False)
    distances: np.ndarray = field(repr=False)
    cutoffs: np.ndarray = field(repr=False)

    @property
    def flagged(self) -> np.ndarray:
        """True for bad samples."""
        return np.asarray(self.weights == 0)

    def arranged(self, how: Arrangement) -> Judged:
        """Of the same samples where modes and indices are in another order."""
        mode = how.order.index(self.mode)
        rows = slice(None) if (at := how.rows[mode]) is None else at
        return Judged(mode, self.weights[rows], self.distances[rows], self.cutoffs[rows])

    @property
    def words(self) -> str:
        """Which samples are bad, in a sentence."""
        bad = np.flatnonzero(self.flagged).tolist()
        shown = f" ({some(bad)})" if bad else ""
        return f"{len(bad)} of {self.weights.size} samples of mode {self.mode}{shown}"

    def __repr__(self) -> str:
        return f"Judged({self.words} bad)"


def judged(problem: Problem, factors: Factors, noise: Noise | None, mode: int) -> Judged:
    """The samples of a mode, all of which are described by some factors."""
    engine = problem.engine
    if noise is None:
        noise = first_look(engine, factors, problem.resolution)
    slabs = tuple(None if n == mode else v for n, v in enumerate(noise.slabs))
    noise = replace(noise, slabs=slabs)  # bad samples do not hide behind their own spread
    if not noise.known and not noise.even:
        engine = engine.standardized(noise.scales(engine.shape))
    size = engine.shape[mode]
    distances, counts = np.full(size, np.nan), np.zeros(size)
    for k in np.flatnonzero(engine.counts(mode) > 0):
        at = [np.array([k]) if n == mode else None for n in range(engine.order)]
        rows = tuple(A[int(k) : int(k) + 1, :] if n == mode else A for n, A in enumerate(factors))
        z = np.abs(engine.subtensor(at).entries(rows).values) / noise.sigma
        counts[k] = z.size
        if z.size:
            distances[k] = 1.4826 * float(np.median(z))
    return _cut_off(distances, counts, mode)


def _cut_off(distances: np.ndarray, counts: np.ndarray, mode: int) -> Judged:
    """Which distances are too large, beside the others."""
    some = np.isfinite(distances)
    logs = np.log(np.maximum(distances, LEAST))
    middle = float(np.median(logs[some])) if some.any() else 0.0
    spread = 1.4826 * float(np.median(np.abs(logs[some] - middle))) if some.any() else 0.0
    errors = SURE * ERROR / np.sqrt(np.maximum(counts, 1))
    cutoffs = np.exp(middle + np.maximum(max(BEYOND * spread, math.log(FACTOR)), errors))
    cutoffs = np.maximum(cutoffs, FACTOR)  # where data is exact, distances are roundings
    weights = np.where(some & (distances > cutoffs), 0.0, 1.0)
    return Judged(mode, weights, distances, cutoffs)


def without_cases(problem: Problem, mode: int, bad: np.ndarray) -> Problem:
    """The same data without bad samples; their rows are not missed."""
    if not bad.any():
        return problem
    rows = np.flatnonzero(bad)
    rest = problem.on(problem.engine.leaving_out_slabs(mode, rows))
    rest.notes, rest.absent = problem.notes, {mode: rows}
    return rest


def scored(
    problem: Problem, factors: Factors, noise: Noise | None, mode: int, bad: np.ndarray,
    constraints: Constraints, tol: float, journal: Journal,
) -> Factors:  # fmt: skip
    """The factors with rows for bad samples: their scores, the other factors held."""
    rows = np.flatnonzero(bad)
    if not rows.size:
        return factors
    engine = problem.engine
    at = [rows if n == mode else None for n in range(engine.order)]
    part = problem.on(engine.subtensor(at))
    asked = Asked() if noise is None else Asked.as_of(noise, mode)
    stages = to_the_noise(part, tol, asked.on(part.engine))
    alone = tuple(
        constraint.of_rows if n == mode else constraint for n, constraint in enumerate(constraints)
    )
    solver = Solver(part, stages, (mode,), alone)
    zeros = engine.asarray(np.zeros((rows.size, factors[0].shape[1])))
    begin = tuple(zeros if n == mode else A for n, A in enumerate(factors))
    found = journal.run(solver, lambda: solver.start(begin), 200)[mode]
    A = engine.xp.asarray(factors[mode], copy=True)
    A[engine.xp.asarray(rows), :] = found
    return tuple(A if n == mode else B for n, B in enumerate(factors))


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A model of a part of the data: of all samples, fitted to some.

    Attributes
    ----------
    factors : tuple of arrays
    distances : float64 array (I,)
        The median magnitude of the residuals of each sample.
    """

    factors: Factors
    distances: np.ndarray

    @property
    def good(self) -> np.ndarray:
        """The samples that it describes best."""
        count = math.floor(GOOD * self.distances.size)
        return np.sort(np.argsort(self.distances, kind="stable")[:count])

    @property
    def cost(self) -> float:
        """The mean log distance of those."""
        return float(np.mean(np.log(np.maximum(self.distances[self.good], 1e-300))))


@dataclass(frozen=True)
class Subsets(Start):
    """Factors that describe most samples of a mode, from fits of small subsets of them."""

    cases: Cases
    count: int | None = None

    def __call__(
        self,
        problem: Problem,
        rank: int,
        rng: np.random.Generator,
        constraints: Constraints,
        journal: Journal | None = None,
    ) -> Begun:
        mode, engine = int(self.cases.mode), problem.engine
        size = engine.shape[mode]
        if engine.largest == 0:
            return Cold("nvecs")(problem, rank, rng, constraints)
        part = self._part(engine, mode, rank, rng)
        small = (
            problem.on(engine.subtensor(part)) if any(at is not None for at in part) else problem
        )
        journal = journal or Journal()
        search = _Search(small, constraints_on(constraints, part), mode, rank, journal)
        wanted = self.cases.subsets(rank)
        count = min(wanted, MOST) if self.count is None else self.count
        LOG.info("%d subsets of %d samples", count, rank + MORE)
        together = small.engine.tiles.side_by_side
        tried = together(search.of_subset, list(enumerate(rng.spawn(count))))
        best = sorted(tried, key=lambda one: one.cost)[:BEST]
        best = together(search.settled_more, list(enumerate(best)))
        chosen = min(best, key=lambda one: one.cost)
        models = [KruskalTensor.from_factors(one.factors) for one in tried]
        mine = KruskalTensor.from_factors(chosen.factors)
        starts = Starts([one.cost for one in tried], sum(same(mine, model) for model in models))
        bad = np.ones(size, dtype=bool)
        bad[chosen.good] = False
        rest = without_cases(problem, mode, bad)
        factors = extended(rest, part, chosen.factors, constraints, journal)
        return Begun(factors, good=True, tried=starts, bad=bad)

    def _part(
        self, engine: Engine, mode: int, rank: int, rng: np.random.Generator
    ) -> list[np.ndarray | None]:
        """Some indices of the other modes, and all samples."""
        others = tuple(size for n, size in enumerate(engine.shape) if n != mode)
        most = max(ENTRIES // engine.shape[mode], 1)
        if not engine.complete:
            most = math.ceil(most * math.prod(engine.shape) / max(engine.count, 1))
        found = cut(others, most, rank, rng) or [None] * len(others)
        return [*found[:mode], None, *found[mode:]]


@dataclass(frozen=True)
class _Search:
    """Fits of samples, on a part of the data."""

    problem: Problem
    constraints: Constraints
    mode: int
    rank: int
    journal: Journal

    def _within(self, name: str) -> _Search:
        return replace(self, journal=self.journal.within(name))

    def settled_more(self, numbered: tuple[int, _Candidate]) -> _Candidate:
        """After more rounds."""
        number, candidate = numbered
        return self._within(f"best {number + 1}").settled(candidate, MORE_ROUNDS)

    def of_subset(self, numbered: tuple[int, np.random.Generator]) -> _Candidate:
        """The model of a random subset, after some rounds."""
        number, rng = numbered
        size = self.problem.engine.shape[self.mode]
        some = np.sort(rng.permutation(size)[: self.rank + MORE])
        kind, share = KINDS[number % len(KINDS)]
        own = self._within(f"subset {number + 1}")
        end = own._trial(some).end(self.rank, number % 2, kind, share, rng)
        return own.settled(own._candidate(end.factors), ROUNDS)

    def settled(self, candidate: _Candidate, rounds: int) -> _Candidate:
        """After rounds in which the samples that are described best are fitted again."""
        for _ in range(rounds):
            good = candidate.good
            xp = self.problem.engine.xp
            begin = tuple(
                A[xp.asarray(good), :] if n == self.mode else A
                for n, A in enumerate(candidate.factors)
            )
            new = self._candidate(self._trial(good).redescended(begin))
            if new.cost >= candidate.cost:
                break
            candidate = new
        return candidate

    def _trial(self, some: np.ndarray) -> Trial:
        at = [some if n == self.mode else None for n in range(self.problem.units.order)]
        part = self.problem.on(self.problem.engine.subtensor(at))
        return Trial(part, constraints_on(self.constraints, at), self.journal)

    def _candidate(self, factors: Factors) -> _Candidate:
        """All samples, described by the other modes' factors."""
        problem, mode = self.problem, self.mode
        engine = problem.engine
        zeros = engine.asarray(np.zeros((engine.shape[mode], factors[0].shape[1])))
        begin = tuple(zeros if n == mode else A for n, A in enumerate(factors))
        size = problem.ordinary**2
        lowest = max(1e-3 * size, (problem.resolution.step / 2) ** 2, problem.least_epsilon)
        stage = Stage("rows", Continuation(max(lowest, 0.03 * size), lowest), 1e-2, 0.0, 6)
        alone = tuple(
            constraint.of_rows if n == mode else constraint
            for n, constraint in enumerate(self.constraints)
        )
        solver = Solver(problem, (stage,), (mode,), alone)
        found = self.journal.run(solver, lambda: solver.start(begin), 20)
        sample = engine.sample(found)
        index = sample.indices[mode]
        order = np.lexsort((np.abs(sample.values), index))
        count = np.bincount(index, minlength=engine.shape[mode])
        first = np.cumsum(count) - count
        middle = np.minimum(first + count // 2, max(index.size - 1, 0))
        distances = np.where(count > 0, np.abs(sample.values)[order][middle], np.inf)
        return _Candidate(found, distances)
