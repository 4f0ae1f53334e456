"""Where a fit begins: given factors, singular vectors, a part of the data, the best of trials."""

from __future__ import annotations

import itertools
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, cast

import numpy as np

from robustcp import _checks
from robustcp import init as starting
from robustcp._typing import Factors
from robustcp.births import Chain, fibres_beside, on_the_whole
from robustcp.constraints import Constraints
from robustcp.engines import Engine, Fibres, to_host
from robustcp.journal import Journal, carried
from robustcp.kruskal import KruskalTensor
from robustcp.losses import L1
from robustcp.metrics import factor_match_score, held_by_few
from robustcp.noise import Noise, entropy_of, fibres_of, first_look, structure_of, typical
from robustcp.posterior import Entries, Posterior
from robustcp.priors import RowPrior
from robustcp.schedules import (
    Beside,
    Continuation,
    EvenedOut,
    Narrow,
    Redescent,
    Schedule,
    most_are_outliers,
)
from robustcp.sizes import Problem
from robustcp.solver import Solver, Stage
from robustcp.spectral import compressed

#: Where the search says, at the level INFO, why it goes on.
LOG = logging.getLogger(__name__)

#: How many starts "auto" tries at once: more only if those before do not agree.
AUTO = (2, 2, 2, 6, 8)
#: If more than this share of the entries is positive, the first starts are tried in this order.
POSITIVE, LEADING = 0.9, (3, 1, 2, 0)
#: Chains of births that are followed, how many births at a time, and the most of them: where rows
#: have few entries, and where nothing else is found after the first blocks.
CHAINS, BIRTHS, AWHILE, PATIENCE, MANY_BIRTHS, FEW_BIRTHS, FIRST = 2, 4, 20, 32, 80, 8, 1
#: Entries, times births, that are worth it where rows have few entries.
BIRTH_ENTRIES = MANY_BIRTHS << 13
#: On so many entries, or else on a part of so many; and not for more components.
CHAIN_ENTRIES, CHAIN_PART, FEW_COMPONENTS = 1 << 16, 1 << 14, 8
#: Starts for data of which most entries are outliers: their kinds, and the quantiles that lead.
MOST = (("clipped", 0.2), ("clipped", 0.8), ("positive", 0.2), ("positive", 0.5))
#: If so many starts agree there is no better place to be found, whatever residuals look like.
MANY = 6
#: From so many starts on, they may agree but for components that would not be missed: without
#: such a one the cost per entry rises by less than this for each of its numbers.
SOME, IDLE = 8, 2.0
#: By how much a model should lower the entropy.
MUCH = 1.0
#: So many entries for each parameter are enough to tell something.
ENOUGH = 2
#: A component is not missed if the entropy without it rises by no more than this.
USELESS = 0.005
#: A component lives on a few rows if this share of them holds that share of its squares.
FEW_ROWS, HELD = 0.05, 0.9
#: A start whose cost, per entry, is higher than that of the best by this is not followed further.
HOPELESS = 0.05
#: Starts that are followed to the end, if so many are needed: entries, times starts, and the least.
FOLLOWED, FEWEST = 1 << 20, 3
#: The cosine of columns that are alike; the size of a component that is yet to find its place.
ALIKE, SMALL = 0.8, 0.1
#: The factor match score, without weights, of models that are the same.
SAME = 0.95
#: Tensors with more entries are tried on a part of about PART entries.
LARGE, PART = 1 << 20, 1 << 17
#: Of tensors with more entries the first look is at a quarter.
FIRST_LOOK = 1 << 16
#: From so many entries on, starts are followed side by side.
WORTH_THREADS = 1 << 15
#: The share of the data's size, squared, that the smoothing of a start begins with. Where strong
#: artifacts lead astray a small one is better, for sparse data a large one: so both are tried.
SHARES = (0.03, 1.0)
#: Starts are followed down to this share, loosely.
LOWEST = 1e-4
#: Starts that end this close to the best, relatively, have reached it.
CLOSE = 5e-3


#: Does some work for each of several items, perhaps side by side.
Together = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]


class Starts(tuple[float, ...]):
    """What the starts of a fit ended at: objectives in the data's units; or, where starts were
    tried before some were followed to the end, what they cost then (see `cp`).

    If few of many reached the best, there may be a better one still.

    Attributes
    ----------
    reached : int
        How many ended at the best model; where models were not compared, within 0.5% of the best.
    final : tuple of (float or None), one for each start
        What those that were followed to the end cost there, on the same scale; else None.
    models : tuple of KruskalTensor, one for each start
        Where it ended; empty for a fit that was read from a file. Of large data, starts are tried
        on a part, and their models are of that part.
    """

    reached: int
    final: tuple[float | None, ...]
    models: tuple[KruskalTensor, ...]

    def __new__(
        cls,
        values: Iterable[float],
        reached: int | None = None,
        final: Iterable[float | None] = (),
        models: Iterable[KruskalTensor] = (),
    ) -> Starts:
        found = super().__new__(cls, values)
        if reached is None:
            reached = sum(value <= min(found) * (1 + CLOSE) for value in found)
        found.reached = reached
        found.final = tuple(final) or (None,) * len(found)
        found.models = tuple(models)
        return found

    def __repr__(self) -> str:
        ended = [value for value in self.final if value is not None]
        best = f"{min(ended or self):.6g}"
        return f"Starts({self.reached} of {len(self)} reached the best, {best})"

    def ended(self, number: int, value: float, model: KruskalTensor) -> Starts:
        """With what a start cost that was followed to the end, and where it ended."""
        final = (*self.final[:number], value, *self.final[number + 1 :])
        models = self.models
        if models and models[number].shape == model.shape:
            models = (*models[:number], model, *models[number + 1 :])
        return Starts(self, self.reached, final, models)

    def agreeing_with(self, number: int) -> Starts:
        """With the number of starts whose models are the same as that of one of them."""
        if not self.models:
            return self
        reached = sum(same(model, self.models[number]) for model in self.models)
        return Starts(self, reached, self.final, self.models)


def same(one: KruskalTensor, other: KruskalTensor) -> bool:
    """Whether two models are the same, by their factors."""
    if one.shape != other.shape or one.rank != other.rank:
        return False
    return one is other or factor_match_score(one, other, weights=False) > SAME


@dataclass(frozen=True, eq=False)
class End:
    """Where a start ended: its factors, what they cost, and fibres that are left out there.

    The cost is the entropy of the residuals; where rows have few entries, minus the log evidence.
    """

    factors: Factors
    entropy: float
    fibres: Fibres | None = None

    @cached_property
    def model(self) -> KruskalTensor:
        return KruskalTensor.from_factors(self.factors)


def _agreeing(ends: Sequence[End], best: End) -> int:
    """How many ends are the same model as the best, by their factors."""
    return sum(end is best or same(end.model, best.model) for end in ends)


@dataclass(frozen=True, eq=False)
class Begun:
    """Where a fit begins.

    Attributes
    ----------
    factors : tuple of arrays
        In the units of the fit.
    good : bool
        Whether they may be good already, so that stages begin near them.
    tried : Starts, optional
        The trials that they are one of, and
    best : int
        which of them.
    others : tuple of Begun
        Where else it is worth to begin: what is best in the end decides.
    fibres : Fibres, optional
        What is to be left out of the data to begin with.
    bad : array of bool, optional
        Samples that are to be left out to begin with, where a mode holds samples.
    enough : int, optional
        How many components seem to be enough, where that was asked.
    sound : bool
        Whether the first starts agreed, and each component is needed and explains much.
    """

    factors: Factors
    good: bool = False
    tried: Starts | None = None
    best: int = 0
    fibres: Fibres | None = None
    others: tuple[Begun, ...] = ()
    bad: np.ndarray | None = None
    enough: int | None = None
    sound: bool = False


class Start(ABC):
    """A way to begin; what takes long is kept in a journal."""

    @abstractmethod
    def __call__(
        self,
        problem: Problem,
        rank: int,
        rng: np.random.Generator,
        constraints: Constraints,
        journal: Journal | None = None,
    ) -> Begun: ...


@dataclass(frozen=True)
class Given(Start):
    """Factors, a KruskalTensor or a Fit that the user has, in the units of the data."""

    init: Any

    def __call__(
        self,
        problem: Problem,
        rank: int,
        rng: np.random.Generator,
        constraints: Constraints,
        journal: Journal | None = None,
    ) -> Begun:
        factors = starting.given(problem.engine, rank, self.init)
        return Begun(problem.units.factors_of_fit(factors), good=True)


@dataclass(frozen=True)
class Cold(Start):
    """Factors of a kind: "nvecs" (as "auto"), "clipped", "spectral", "random" or "positive".

    Singular vectors are those of the data; "clipped" cuts it at the size of ordinary entries.
    "spectral" is for few entries, see `compressed`, which are cut at their median magnitude.
    """

    kind: str

    def __call__(
        self,
        problem: Problem,
        rank: int,
        rng: np.random.Generator,
        constraints: Constraints,
        journal: Journal | None = None,
    ) -> Begun:
        engine, order = problem.engine, problem.units.order
        if self.kind in ("random", "positive"):
            factors = starting.random(engine, rank, rng)
            if self.kind == "positive":
                factors = tuple(engine.xp.abs(A) for A in factors)
        elif self.kind == "spectral":  # there is nothing left of their size that misleads
            factors = compressed(engine.saturated(typical(engine.sample().values)), rank, rng)
        else:
            clipped = self.kind == "clipped"
            source = engine.saturated(problem.ordinary) if clipped else problem.tame
            factors = tuple(starting.nvecs(source, n, rank, rng=rng) for n in range(order))
        size = problem.scale if engine.largest > 0 else 0.0  # zeros: the model is zero at once
        return Begun(tuple(A * size ** (1 / order) for A in factors))


@dataclass(frozen=True)
class OnPart(Start):
    """For a large tensor, the 1-norm fit of a part of it; for a small one as `Cold`."""

    kind: str

    def __call__(
        self,
        problem: Problem,
        rank: int,
        rng: np.random.Generator,
        constraints: Constraints,
        journal: Journal | None = None,
    ) -> Begun:
        part = _part(problem.engine, rank, rng)
        cold = Cold(self.kind)
        if part is None:
            return cold(problem, rank, rng, constraints)
        small = problem.engine.subtensor(part).at_hand
        journal = journal or Journal()
        trial = Trial(problem.on(small), constraints_on(constraints, part), journal)
        begun = cold(trial.problem, rank, rng, constraints).factors
        found = trial.follow(begun, SHARES[0], 1e-5, 200)
        return Begun(extended(problem, part, found, constraints, journal), good=True)


@dataclass(frozen=True)
class Screened(Start):
    """The best of several starts, followed just far enough to tell.

    They are followed by the 1-norm and then by Cauchy's loss, of residuals in units of the spread
    of their slabs, and compared by the entropy of their residuals: so neither a large entry nor a
    slab can buy a component.

    Large tensors are tried on a random part, and the rows that the part leaves out are then
    found by robust regression on its factors.
    """

    kind: str
    count: int | None

    def __call__(
        self,
        problem: Problem,
        rank: int,
        rng: np.random.Generator,
        constraints: Constraints,
        journal: Journal | None = None,
    ) -> Begun:
        problem, journal = problem.without_wild, journal or Journal()
        engine = problem.engine
        if engine.largest == 0:
            return Cold(self.kind)(problem, rank, rng, constraints)
        part, agreed = _look(engine, rank, rng) if self.count is None else None, False
        if part is not None:
            small = engine.subtensor(part).at_hand
            looking = journal.within("first look")
            trial = Trial(problem.on(small), constraints_on(constraints, part), looking)
            blocks, agreed = self._followed(trial, rank, rng, AUTO[: FIRST + 1])
        if not agreed:
            part = _part(engine, rank, rng)
            small = (engine if part is None else engine.subtensor(part)).at_hand
            on_part = constraints if part is None else constraints_on(constraints, part)
            trial = Trial(problem.on(small), on_part, journal)
            sizes = AUTO if self.count is None else (self.count,)
            blocks, agreed = self._followed(trial, rank, rng, sizes)
        ends = [end for block in blocks for end in block]
        unit = math.log(problem.units.factor)
        tried = Starts(
            [end.entropy + unit for end in ends],
            models=[_in_data(problem, end) for end in ends],
        )
        most = max(FEWEST, int(FOLLOWED / engine.count))
        chosen, enough = _worth_following(blocks)[:most], rank
        if self.count is None and len(ends) >= SOME:
            enough = trial.reduced(chosen[0])[0].shape[1]
        first, *others = (
            self._begun(problem, trial, part, end, constraints, ends.index(end)) for end in chosen
        )
        sound = agreed and len(ends) < SOME and first.sound
        return replace(first, tried=tried, others=tuple(others), enough=enough, sound=sound)

    def _begun(
        self,
        problem: Problem,
        trial: Trial,
        part: list[np.ndarray | None] | None,
        end: End,
        constraints: Constraints,
        number: int,
    ) -> Begun:
        """Where the fit of all data begins, given where a start ended."""
        found, fibres, engine, sound = end.factors, end.fibres, problem.engine, False
        if not trial.thin(found[0].shape[1]):
            used = trial.with_all_used(end)
            found, sound = used.factors, used is end
        if part is not None:
            if engine.count > LARGE:  # what is settled here costs little beside the whole
                found = trial.settled(found, fibres)
            found = extended(problem, part, found, constraints, trial.journal)
            if fibres is not None:
                fibres = fibres_of(engine, found, first_look(engine, found, problem.resolution))
        return Begun(carried(engine, found), good=True, best=number, fibres=fibres, sound=sound)

    def _followed(
        self, trial: Trial, rank: int, rng: np.random.Generator, sizes: Sequence[int]
    ) -> tuple[list[list[End]], bool]:
        """Where the starts end, in blocks: until some agree, or as many as asked for; and whether
        they agree."""
        small = trial.problem.engine
        together = small.tiles.side_by_side if small.count >= WORTH_THREADS else _in_turn
        if trial.thin(rank):
            chains = CHAINS if self.count is None else max(1, self.count - 2)
            plain = 4 if self.count is None else min(2, self.count - chains)
            begun = zip(rng.spawn(plain), self._in_order(small), strict=False)
            starts = [(*kind, own) for own, kind in begun]
            ends = trial.each("plain", lambda trial, start: trial.end(rank, *start), starts)
            if self.count is None and trial.found([ends]):
                return [ends], True
            LOG.info("rows with few entries; components come and go until two chains agree")
            births = min(MANY_BIRTHS, int(BIRTH_ENTRIES / small.count))
            return [ends, trial.evolved(rank, rng.spawn(chains), births, together)], False
        kinds = iter(self._in_order(small))
        blocks: list[list[End]] = []
        for block, size in enumerate(sizes):
            starts = [(*kind, own) for own, kind in zip(rng.spawn(size), kinds, strict=False)]
            ends = trial.each(
                f"block {len(blocks) + 1}", lambda trial, start: trial.end(rank, *start), starts,
                together,
            )  # fmt: skip
            blocks.append(ends)
            if block + 1 < len(sizes):
                blocks += self._without_artifacts(trial, blocks, rank, rng, together)
            if block == FIRST and block + 1 < len(sizes) and not trial.found(blocks):
                LOG.info("starts disagree; looking at outliers that are most of the entries")
                beside = list(zip(MOST, rng.spawn(len(MOST)), strict=True))
                ends = trial.each(
                    "beside", lambda trial, start: trial.end_beside(rank, *start), beside, together
                )
                blocks.append(ends)
                if rank <= FEW_COMPONENTS and not trial.found(blocks):
                    LOG.info("starts disagree; looking for fibres that are outlying")
                    blocks.append(trial.evolved(rank, rng.spawn(CHAINS), FEW_BIRTHS, together))
            if trial.found(blocks):
                return blocks, True
            LOG.info("%d starts, and none to rely on yet", sum(map(len, blocks)))
        return blocks, False

    def _without_artifacts(
        self,
        trial: Trial,
        blocks: Sequence[Sequence[End]],
        rank: int,
        rng: np.random.Generator,
        together: Together,
    ) -> list[list[End]]:
        """Starts without fibres that the best so far may have spent a component on, if it has."""
        best = min((end for block in blocks for end in block), key=lambda end: end.entropy)
        fibres = trial.artifacts(best)
        if fibres is None:
            return []
        LOG.info("a component lives on a few slabs; starting without %s", fibres.words)
        kinds = self._in_order(trial.problem.engine)
        starts = [(*kind, own) for own, kind in zip(rng.spawn(2), kinds, strict=False)]
        return [
            trial.each(
                f"block {len(blocks) + 1}",
                lambda trial, start: trial.end_without(fibres, rank, *start), starts, together,
            )
        ]  # fmt: skip

    def _in_order(self, engine: Engine) -> Iterable[tuple[int, str, float]]:
        """Starts by number, with their kinds and first smoothing (see `Trial.end`).

        For data that is mostly positive, those from positive factors that the plain 1-norm leads
        are first: these end at the same model most often. Where a number of starts is asked for,
        those that differ most are first.
        """
        numbered = ((number, *kind) for number, kind in enumerate(self._kinds(engine)))
        if self.kind == "auto" and self.count is None and _mostly_positive(engine):
            first = list(itertools.islice(numbered, len(LEADING)))
            yield from (first[number] for number in LEADING)
        yield from numbered

    def _kinds(self, engine: Engine) -> Iterable[tuple[str, float]]:
        """Kinds of starts and their first smoothing, best guesses first, without end."""
        small, large = SHARES
        if self.kind == "auto" and _observed_share(engine) > 0.4:
            yield from (("clipped", small), ("positive", large), ("nvecs", large))
        elif self.kind == "auto":
            yield from (("spectral", small), ("positive", small), ("spectral", large))
        elif self.kind == "nvecs":
            yield "nvecs", small
        while True:
            yield from (
                ("positive", small), ("random", large), ("positive", large), ("random", small)
            )  # fmt: skip


def in_turn(init: Any, count: int, kind: Callable[[str], Start] = Cold) -> list[Start]:
    """The start that is asked for, and so many more at random."""
    first = kind(init) if isinstance(init, str) else Given(init)
    return [first, *(kind("random") for _ in range(count - 1))]


def cleared(
    problem: Problem, factors: Factors, modes: Sequence[int], constraints: Constraints
) -> Factors:
    """Rows to be solved for of which no entry was observed are set to zero, with a warning.

    Not so where they follow from other rows; and without a warning where that was meant.
    """
    engine = problem.engine
    if engine.complete:
        return factors
    filled = []
    for mode, A in enumerate(factors):
        alone = mode in modes and not constraints[mode].couples_rows
        empty = np.flatnonzero(engine.counts(mode) == 0) if alone else np.array([])
        if np.setdiff1d(empty, problem.absent.get(mode, ())).size:
            shown = ", ".join(map(str, empty[:5])) + (", ..." if empty.size > 5 else "")
            _checks.warn(
                f"X: {empty.size} slabs of mode {mode} have no observed entry ({shown}); "
                "their rows of the factor are 0"
            )
        if empty.size:
            keep = np.ones((engine.shape[mode], 1))
            keep[empty] = 0.0
            A = A * engine.asarray(keep)
        filled.append(A)
    return tuple(filled)


@dataclass(frozen=True)
class Trial:
    """Fits by the 1-norm that only have to tell starts apart."""

    problem: Problem
    constraints: Constraints
    journal: Journal = field(default_factory=Journal, repr=False, compare=False)

    def each(
        self,
        name: str,
        work: Callable[[Trial, Any], End],
        items: Sequence[Any],
        together: Together | None = None,
    ) -> list[End]:
        """Where starts end, each in a part of the journal of its own."""
        parts = [
            (replace(self, journal=self.journal.within(f"{name}, start {k + 1}")), item)
            for k, item in enumerate(items)
        ]
        return (together or _in_turn)(lambda part: work(*part), parts)

    @property
    def _lowest(self) -> L1:
        """Within a quantisation step residuals cannot be told apart."""
        grain = self.problem.resolution.step / 2
        return L1(max(LOWEST * self.problem.ordinary**2, grain**2))

    def _solver(self, share: float, tol: float) -> Solver:
        lowest = self._lowest.epsilon
        schedule = Continuation(max(lowest, share * self.problem.ordinary**2), lowest)
        stage = Stage("starts", schedule, tol, self.problem.relative_mu(1e-8), 10)
        return Solver(self.problem, (stage,), constraints=self.constraints)

    def follow(self, factors: Factors, share: float, tol: float, most: int) -> Factors:
        """Follow a start by the 1-norm for so many sweeps."""
        solver = self._solver(share, tol)
        return self.journal.run(solver, lambda: solver.start(factors), most)

    def end(self, rank: int, number: int, kind: str, share: float, rng: np.random.Generator) -> End:
        """Follow a start.

        Every third, and all late ones, have a component too many, which is taken away in the end.
        Every other one is led by the plain 1-norm, for components that live on a few slabs only.
        """
        wide = number % 3 == 2 or number >= 6
        begin = Cold(kind)(self.problem, rank + wide, rng, self.constraints).factors
        plain = Continuation(*self._span(share))
        down = plain if number % 2 else EvenedOut(plain, self.problem.resolution)
        factors = self._run([self._stage(down, 1), self._redescent], begin)
        if wide:
            factors = self._run([self._redescent], self.pruned(factors).factors)
        return End(factors, self.cost(factors))

    def end_beside(self, rank: int, how: tuple[str, float], rng: np.random.Generator) -> End:
        """Follow a start by a quantile, then by a loss that is narrow: for many outliers."""
        kind, tau = how
        begin = Cold(kind)(self.problem, rank, rng, self.constraints).factors
        down = Beside(Continuation(*self._span(1.0)), tau)
        narrow = replace(self._stage(Narrow(self.problem.resolution), 2), tol=1e-4, level_sweeps=30)
        factors = self._run([narrow], self._run([self._stage(down, 1)], begin), most=300)
        return End(factors, self.entropy(factors))

    def end_without(
        self,
        fibres: Fibres,
        rank: int,
        number: int,
        kind: str,
        share: float,
        rng: np.random.Generator,
    ) -> End:
        """Follow a start on the data without some fibres."""
        rest = replace(self, problem=self.problem.on(self.problem.engine.leaving_out(fibres)))
        factors = rest.end(rank, number, kind, share, rng).factors
        return End(factors, self.cost(factors), fibres)

    def artifacts(self, end: End) -> Fibres | None:
        """Fibres that are outlying beside the components of an end that live on many slabs.

        Those that live on a few may be spent on such fibres. None if there is nothing of that.
        """
        spent = on_few_rows(end.factors)
        rest = [r for r in range(end.factors[0].shape[1]) if r not in spent]
        if not spent or not rest:
            return None
        engine = self.problem.engine
        factors = tuple(engine.xp.stack([A[:, r] for r in rest], axis=1) for A in end.factors)
        return fibres_of(engine, factors, first_look(engine, factors, self.problem.resolution))

    def thin(self, rank: int) -> bool:
        """Whether some rows have few entries, so that models need a prior.

        Not if there are hardly more entries than parameters: then there is no telling anyway.
        """
        engine = self.problem.engine
        if not ENOUGH * rank * sum(engine.shape) <= engine.count <= LARGE:
            return False
        return RowPrior.of(self.constraints, range(engine.order)).needed(engine, rank)

    def evolved(
        self, rank: int, rngs: Sequence[np.random.Generator], most: int, together: Together
    ) -> list[End]:
        """Where chains of births end: when they agree, or after so many births."""
        problem, thin = self.problem, self.thin(rank)
        part = None
        if not thin and problem.engine.count > CHAIN_ENTRIES:
            part = cut(problem.engine.shape, CHAIN_PART, rank, rngs[0])
        engine = problem.engine if part is None else problem.engine.subtensor(part)
        constraints = self.constraints if part is None else constraints_on(self.constraints, part)
        entries, least = Entries.of(engine), problem.resolution.entry
        chains = together(lambda rng: Chain.begun(entries, constraints, rank, least, rng), rngs)
        while chains[0].births < most and not _agree(chains):
            if all(chain.births - chain.changed >= PATIENCE for chain in chains):
                break
            chains = together(lambda chain: chain.after(BIRTHS), chains)
        return [self._end_of(chain.best, part) for chain in chains]

    def _end_of(self, found: Posterior, part: list[np.ndarray | None] | None) -> End:
        """The end of a chain, which may be on a part of the data."""
        engine = self.problem.engine
        if part is not None:
            found = on_the_whole(found, engine, part)
        factors = tuple(engine.asarray(A) for A in found.means)
        fibres = fibres_beside(found) or None
        return End(factors, self.cost(factors), fibres)

    def with_all_used(self, end: End) -> End:
        """With a component that is not missed spent on what is left, if that is better.

        So a component that lives on a few slabs is found, which is nothing but outliers to those
        that are everywhere.
        """
        if end.factors[0].shape[1] == 1:
            return end
        rest = self.pruned(end.factors)
        if rest.entropy > end.entropy + USELESS:
            if not _split(end.factors):
                return end
            rest = self._best(map(self.redescended, self.without_one(end.factors)))
            if rest.entropy > end.entropy + USELESS:
                return end
        xp = self.problem.engine.xp
        new = Cold("clipped")(self.problem, 1, np.random.default_rng(0), self.constraints).factors
        begin = tuple(
            xp.concat([A, SMALL * B], axis=1) for A, B in zip(rest.factors, new, strict=True)
        )
        factors = self._run([self._redescent], self.follow(begin, SHARES[1], 1e-4, 100))
        other = End(factors, self.entropy(factors))
        return other if other.entropy < end.entropy + USELESS / 2 else end

    def found(self, blocks: Sequence[Sequence[End]]) -> bool:
        """Whether two ends agree with the best, and it looks right; or many do.

        It looks right if nothing but noise is left, and not much of that, unless there were many
        starts; and if no component lives on a few slabs, as those do that are spent on artifacts.
        """
        ends = [end for block in blocks for end in block]
        best = min(ends, key=lambda end: end.entropy)
        agreeing = _agreeing(ends, best)
        if agreeing == 1 and len(ends) >= SOME:
            agreeing = self._agreeing_on_fewer(ends, best)
        if agreeing >= MANY:
            return True
        if len(ends) < SOME and self.nothing - best.entropy < MUCH:
            return False  # most of the data may be outliers
        return agreeing > 1 and not on_few_rows(best.factors) and self.is_noise(best)

    @cached_property
    def nothing(self) -> float:
        """The entropy of the data, as residuals of a model that is zero."""
        engine = self.problem.engine
        return self.entropy(tuple(engine.asarray(np.zeros((n, 1))) for n in engine.shape))

    def idle(self, factors: Factors, entropy: float) -> list[int]:
        """Components that would not be missed, as they are; given what the model costs."""
        if factors[0].shape[1] == 1 or self.problem.engine.largest == 0:
            return []
        limit = entropy + self._price
        rests = self.without_one(factors)
        return [r for r, rest in enumerate(rests) if self.entropy(rest) < limit]

    @property
    def _price(self) -> float:
        """By how much the cost per entry must fall for one more component."""
        engine = self.problem.engine
        return IDLE * sum(engine.shape) / max(engine.count, 1)

    def reduced(self, end: End) -> Factors:
        """The model of an end with as few components as fit as well."""
        factors, cost = end.factors, self.entropy(end.factors)
        while factors[0].shape[1] > 1:
            rests = sorted(self.without_one(factors), key=self.entropy)[:2]
            rest = self._best(map(self.redescended, rests))
            if rest.entropy > cost + self._price:
                break
            factors = rest.factors
        return factors

    def _agreeing_on_fewer(self, ends: Sequence[End], best: End) -> int:
        """How many ends are the same as the best, but for components that are not needed."""
        factors = self.reduced(best)
        if factors[0].shape[1] == best.factors[0].shape[1]:
            return 1
        model = KruskalTensor.from_factors(factors)
        some = [end.model for end in ends if end.model.shape == model.shape]
        return sum(factor_match_score(one, model, weights=False) > SAME for one in some)

    def is_noise(self, end: End) -> bool:
        """Whether the residuals there are nothing but noise, and perhaps outlying fibres."""
        engine, factors, fibres = self.problem.engine, end.factors, end.fibres
        if fibres is None:
            if self._only_noise(engine, factors):
                return True
            noise = first_look(engine, factors, self.problem.resolution)
            fibres = fibres_of(engine, factors, noise)
        return fibres is not None and self._only_noise(engine.leaving_out(fibres), factors)

    def _only_noise(self, engine: Engine, factors: Factors) -> bool:
        noise = first_look(engine, factors, self.problem.resolution)
        if not noise.even:
            engine = engine.standardized(noise.scales(engine.shape))
        return not structure_of(engine, factors, noise.sigma).notes

    @property
    def _redescent(self) -> Stage:
        return self._stage(Redescent(self.problem.resolution), 2)

    def _stage(self, schedule: Schedule, degree: int) -> Stage:
        return Stage("starts", schedule, 1e-3, self.problem.relative_mu(1e-8, degree), 10)

    def _span(self, share: float) -> tuple[float, float]:
        size, grain = self.problem.ordinary**2, (self.problem.resolution.step / 2) ** 2
        return max(share * size, grain), max(0.01 * size, grain)

    def _run(
        self,
        stages: Sequence[Stage],
        begin: Factors,
        fibres: Fibres | None = None,
        most: int = 100,
    ) -> Factors:
        solver = Solver(self.problem, stages, constraints=self.constraints)
        return self.journal.run(solver, lambda: solver.start(begin, fibres=fibres), most)

    def cost(self, factors: Factors, noise: Noise | None = None) -> float:
        """What a model costs: the entropy of its residuals; or, if rows have few entries, minus
        its log evidence, in which it has a price that they can be fitted to anything.

        The evidence is given the noise of each entry, where that is known.
        """
        engine = self.problem.engine
        if not self.thin(factors[0].shape[1]):
            return self.entropy(factors)
        if noise is not None and not noise.even and not noise.known:
            engine = engine.standardized(noise.scales(engine.shape))
        entries, least = Entries.of(engine), self.problem.resolution.entry
        logs = float(np.mean(np.log(entries.scales))) if entries.scales.size else 0.0
        return Posterior.at(entries, self.constraints, factors, least).cost + logs

    def entropy(self, factors: Factors) -> float:
        """That of the residuals."""
        return entropy_of(self.problem.engine, factors, self.problem.resolution)

    def pruned(self, factors: Factors) -> End:
        """Without the component that is missed least."""
        return self._best(self.without_one(factors))

    def _best(self, models: Iterable[Factors]) -> End:
        """The one of lowest entropy."""
        ends = (End(factors, self.entropy(factors)) for factors in models)
        return min(ends, key=lambda end: end.entropy)

    def without_one(self, factors: Factors) -> list[Factors]:
        """The models without one of the components, for each of them."""
        xp, rank = self.problem.engine.xp, factors[0].shape[1]
        rest = [[r for r in range(rank) if r != gone] for gone in range(rank)]
        return [tuple(xp.stack([A[:, r] for r in some], axis=1) for A in factors)
                for some in rest]  # fmt: skip

    def redescended(self, factors: Factors) -> Factors:
        """Follow factors by a loss to which outliers mean nothing."""
        return self._run([self._redescent], factors)

    def settled(self, factors: Factors, fibres: Fibres | None = None) -> Factors:
        """Follow good factors to where they lead."""
        (stage,) = self._solver(SHARES[0], 1e-5).stages
        down = EvenedOut(cast(Continuation, stage.schedule), self.problem.resolution)
        near = down.near(self.problem.engine, factors)
        if near.left_out(self.problem.engine, factors):
            return factors
        return self._run([replace(stage, schedule=near)], factors, fibres)


def _worth_following(blocks: Sequence[Sequence[End]]) -> list[End]:
    """The best two of each block, the best of all first, and of those that agree the best.

    With further blocks none of them drops out that has a chance, so that what is best in the end
    does not become worse.
    """
    some = [end for block in blocks for end in sorted(block, key=lambda end: end.entropy)[:2]]
    found: list[End] = []
    best = min(end.entropy for end in some)
    hopeful = [end for end in some if end.entropy <= best + HOPELESS]
    for end in sorted(hopeful, key=lambda end: end.entropy):
        if not any(same(end.model, other.model) for other in found):
            found.append(end)
    return found


def _in_data(problem: Problem, end: End) -> KruskalTensor:
    """The model of an end, in the units of the data."""
    factors = problem.units.factors_of_data(end.factors)
    return KruskalTensor.from_factors(factors).normalized()


def cost_of(
    problem: Problem, constraints: Constraints, factors: Factors, noise: Noise | None = None
) -> float:
    """What a model costs, on the scale on which starts are compared."""
    return Trial(problem, constraints).cost(factors, noise)


def on_few_rows(factors: Factors) -> list[int]:
    """Components that live on a few rows of some mode."""
    host = (np.asarray(to_host(A), dtype=np.float64) for A in factors)
    narrow = [held_by_few(A, FEW_ROWS) > HELD for A in host]
    return [int(r) for r in np.flatnonzero(np.any(narrow, axis=0))]


def _split(factors: Factors) -> bool:
    """Whether two components are alike in all modes but one: they may be one that was split."""
    alike: Any = 0
    for A in factors:
        host = np.asarray(to_host(A), dtype=np.float64)
        norms = np.linalg.norm(host, axis=0)
        unit = host / np.where(norms > 0, norms, 1.0)
        alike = alike + (np.abs(unit.T @ unit) > ALIKE)
    np.fill_diagonal(alike, 0)
    return bool(np.any(alike >= len(factors) - 1))


def _agree(chains: Sequence[Chain]) -> bool:
    """Whether two of the chains are at the same model, and no other is at a better one.

    With dead components they must have tried for a while.
    """
    best = min(chains, key=lambda chain: chain.best.cost).best
    if best.dead.size and chains[0].births < AWHILE:
        return False
    others = [chain.best for chain in chains if chain.best is not best]
    if len(best.means) == 2:  # factors of a matrix may be turned
        return any(other.cost < best.cost + USELESS for other in others)
    model = _living(best)
    living = [other for other in map(_living, others) if other.rank == model.rank]
    return any(factor_match_score(other, model, weights=False) > SAME for other in living)


def _living(found: Posterior) -> KruskalTensor:
    alive = [r for r in range(found.rank) if r not in found.dead] or [0]
    return KruskalTensor.from_factors([A[:, alive] for A in found.means])


def cut(
    shape: tuple[int, ...], most: int, rank: int, rng: np.random.Generator
) -> list[np.ndarray | None] | None:
    """Random indices of each mode that make a part with not more entries; None for all."""
    if math.prod(shape) <= most:
        return None
    least = [min(size, max(20, 4 * rank)) for size in shape]
    sizes = [float(size) for size in shape]
    for _ in range(20):  # long modes are cut first, short ones stay whole
        over = math.prod(sizes) / most
        if over <= 1:
            break
        free = [n for n, size in enumerate(sizes) if size > least[n]]
        if not free:
            break
        cut = over ** (1 / len(free))
        for n in free:
            sizes[n] = max(float(least[n]), sizes[n] / cut)
    return [
        None if round(size) >= whole else np.sort(rng.permutation(whole)[: round(size)])
        for size, whole in zip(sizes, shape, strict=True)
    ]


def _in_turn(work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    return [work(item) for item in items]


def _observed_share(engine: Engine) -> float:
    return 1.0 if engine.complete else engine.count / math.prod(engine.shape)


def _mostly_positive(engine: Engine) -> bool:
    """Whether most entries that are not 0 are positive, of data that is mostly observed."""
    if _observed_share(engine) <= 0.4:
        return False
    values = engine.sample().values
    return bool(np.sum(values > 0) > POSITIVE * np.count_nonzero(values))


def _look(engine: Engine, rank: int, rng: np.random.Generator) -> list[np.ndarray | None] | None:
    """Random indices of each mode that make a part for a first look, which may be all it takes."""
    count = math.prod(engine.shape)
    if not (FIRST_LOOK < count <= LARGE and engine.complete):
        return None
    return cut(engine.shape, count // 4, rank, rng)


def _part(engine: Engine, rank: int, rng: np.random.Generator) -> list[np.ndarray | None] | None:
    """Random indices of each mode that make a part small enough for trials."""
    if math.prod(engine.shape) <= LARGE or _observed_share(engine) <= 0.4:
        return None
    return cut(engine.shape, PART, rank, rng)


def constraints_on(constraints: Constraints, part: list[np.ndarray | None]) -> Constraints:
    """The constraints of a part."""
    return tuple(
        constraint if chosen is None else constraint.on(chosen)
        for constraint, chosen in zip(constraints, part, strict=True)
    )


def extended(
    problem: Problem,
    part: list[np.ndarray | None],
    factors: Factors,
    constraints: Constraints,
    journal: Journal,
) -> Factors:
    """Factors of the whole from those of a part: each mode by regression on the others' part."""
    engine, whole = problem.engine, []
    factors = carried(engine, factors)
    beyond_half = most_are_outliers(engine.subtensor(part), factors, problem.resolution)
    for mode, chosen in enumerate(part):
        if chosen is None:
            whole.append(factors[mode])
            continue
        slabs = engine.subtensor([None if m == mode else at for m, at in enumerate(part)])
        rows = engine.asarray(np.zeros((engine.shape[mode], factors[0].shape[1])))
        rows[engine.xp.asarray(chosen), :] = factors[mode]
        size = problem.ordinary**2
        lowest = max(LOWEST * size, (problem.resolution.step / 2) ** 2)
        schedule: Schedule = Continuation(max(lowest, 0.03 * size), lowest)
        if beyond_half:
            schedule = Narrow(problem.resolution)
        stage = Stage("rows", schedule, 1e-3, 0.0, 8)
        solver = Solver(problem.on(slabs), (stage,), (mode,), constraints)
        begin = (*factors[:mode], rows, *factors[mode + 1 :])
        found = journal.run(solver, partial(solver.start, begin), 40)
        whole.append(found[mode])
    return tuple(whole)
