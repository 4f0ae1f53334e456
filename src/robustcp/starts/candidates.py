"""Candidates: fitted starts, the rule for when two of them agree, and the multistart loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from robustcp._util.interrupts import stop_requested
from robustcp._util.optional import import_optional
from robustcp._util.typing import Factors
from robustcp.engines import Fibres
from robustcp.model.kruskal import KruskalTensor
from robustcp.model.metrics import factor_match_score
from robustcp.starts.settings import SEARCH_SETTINGS, SearchSettings


class Starts(tuple[float, ...]):
    """A number for each start, lower for better models, in the units of the data.

    Of `cp` the cost after the loose fit (costs at convergence are in `final`); of other estimators
    the final objective. If few of many starts reached the best model, there may be a better one.

    Attributes
    ----------
    reached : int
        The number of starts that ended at the best model; within 0.5% of the best objective, where
        models were not compared.
    final : tuple of (float or None), one for each start
        The cost at convergence, on the same scale, of starts that were fitted loosely first; None
        for the others.
    models : tuple of KruskalTensor, one for each start
        The model of each start; empty for a fit that was read from a file. For large data, starts
        are fitted to a subsample, and these are models of the subsample.
    families : tuple of str, one for each start
        The kind of each start; empty if there is one kind only.
    seconds : tuple of float, one for each start
        The time of its loose fit; empty if it was not measured.
    """

    reached: int
    final: tuple[float | None, ...]
    models: tuple[KruskalTensor, ...]
    families: tuple[str, ...]
    seconds: tuple[float, ...]

    def __new__(
        cls,
        values: Iterable[float],
        reached: int | None = None,
        final: Iterable[float | None] = (),
        models: Iterable[KruskalTensor] = (),
        families: Iterable[str] = (),
        seconds: Iterable[float] = (),
    ) -> Starts:
        starts = super().__new__(cls, values)
        if reached is None:
            limit = min(starts) + SEARCH_SETTINGS.same_objective_tol * abs(min(starts))
            reached = sum(value <= limit for value in starts)
        starts.reached = reached
        starts.final = tuple(final) or (None,) * len(starts)
        starts.models = tuple(models)
        starts.families, starts.seconds = tuple(families), tuple(seconds)
        return starts

    def __repr__(self) -> str:
        final_values = [value for value in self.final if value is not None]
        best = f"{min(final_values or self):.6g}"
        return f"Starts({self.reached} of {len(self)} reached the best, {best})"

    def table(self) -> pandas.DataFrame:
        """The starts as a table, the lowest cost first.

        Of each start the family, the cost after the loose fit, the final cost if it was fitted to
        convergence, and the seconds of the loose fit.

        Examples
        --------
        >>> import robustcp
        >>> sim = robustcp.simulate((20, 20, 20), 3, eta=0.1, gamma=2.0, rng=0)
        >>> table = robustcp.cp(sim.data, 3, rng=0).starts.table()
        >>> list(table.columns)
        ['family', 'cost', 'final cost', 'seconds']
        """
        pandas = import_optional("pandas", "Starts.table")
        count = len(self)
        columns = {
            "family": list(self.families or [""] * count),
            "cost": list(self),
            "final cost": [math.nan if value is None else value for value in self.final],
            "seconds": list(self.seconds or [math.nan] * count),
        }
        index = pandas.RangeIndex(1, count + 1, name="start")
        return pandas.DataFrame(columns, index=index).sort_values("cost", kind="stable")

    def with_final(self, number: int, value: float, model: KruskalTensor) -> Starts:
        """A copy with the cost and model at convergence of one start."""
        final = (*self.final[:number], value, *self.final[number + 1 :])
        models = self.models
        if models and models[number].shape == model.shape:
            models = (*models[:number], model, *models[number + 1 :])
        return Starts(self, self.reached, final, models, self.families, self.seconds)

    def without_models(self) -> Starts:
        """A copy without the models."""
        return Starts(self, self.reached, self.final, (), self.families, self.seconds)

    def recount_reached(self, number: int) -> Starts:
        """A copy in which `reached` counts the starts whose model is that of start `number`."""
        if not self.models:
            return self
        return self.with_reached(
            sum(is_same_model(model, self.models[number]) for model in self.models)
        )

    def with_reached(self, reached: int) -> Starts:
        """A copy with another number of starts that ended at the best model."""
        return Starts(self, reached, self.final, self.models, self.families, self.seconds)


def is_same_model(
    model: KruskalTensor, other: KruskalTensor, settings: SearchSettings = SEARCH_SETTINGS
) -> bool:
    """Whether two models are the same, by their factors."""
    if model.shape != other.shape or model.rank != other.rank:
        return False
    if model is other:
        return True
    return factor_match_score(model, other, weights=False) > settings.same_model_score


class Solution(Protocol):
    """What the agreement rule needs of a fitted start."""

    @property
    def cost(self) -> float: ...

    @property
    def model(self) -> KruskalTensor: ...


if TYPE_CHECKING:
    import pandas

C = TypeVar("C", bound=Solution)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A fitted start: its factors, their cost, and the fibres that its fit left out.

    The cost is the entropy of the residuals; where rows have few entries, minus the log evidence.
    """

    factors: Factors
    cost: float
    fibres: Fibres | None = None
    family: str = ""
    seconds: float = 0.0

    @cached_property
    def model(self) -> KruskalTensor:
        return KruskalTensor.from_factors(self.factors)


class Candidates(Generic[C]):
    """The fitted starts of a multistart, round by round.

    A candidate agrees with the best if both are the same model.
    """

    def __init__(
        self, rounds: Iterable[Sequence[C]] = (), settings: SearchSettings = SEARCH_SETTINGS
    ) -> None:
        self.rounds, self._settings = [list(candidates) for candidates in rounds], settings

    def __iter__(self) -> Iterator[C]:
        return (candidate for candidates in self.rounds for candidate in candidates)

    def __len__(self) -> int:
        return sum(map(len, self.rounds))

    def add(self, candidates: Iterable[C]) -> None:
        """Append one round."""
        self.rounds.append(list(candidates))

    @property
    def best(self) -> C:
        """The candidate of lowest cost."""
        return min(self, key=lambda candidate: candidate.cost)

    def count_same(self, best: C | None = None) -> int:
        """How many candidates have the model of `best`, by default the candidate of lowest cost."""
        best = self.best if best is None else best
        return sum(
            candidate is best or is_same_model(candidate.model, best.model, self._settings)
            for candidate in self
        )

    def distinct(self, candidates: Iterable[C] | None = None) -> list[C]:
        """The candidates, by default all, whose models differ, the cheapest first."""
        distinct: list[C] = []
        candidates = self if candidates is None else candidates
        for candidate in sorted(candidates, key=lambda candidate: candidate.cost):
            if not any(
                is_same_model(candidate.model, other.model, self._settings) for other in distinct
            ):
                distinct.append(candidate)
        return distinct

    def select(self, alternatives: Iterable[C] = ()) -> list[C]:
        """The two cheapest models of each round, without duplicates and without candidates whose
        cost is far above the lowest. Two of each round, so that later rounds do not displace good
        candidates. The second is the cheapest of the `alternatives`, whatever its cost.
        """
        max_cost = self.best.cost + self._settings.max_cost_gap
        leading = (
            candidate
            for candidates in self.rounds
            for candidate in self.distinct(c for c in candidates if c.cost <= max_cost)[:2]
        )
        best, *others = self.distinct(leading)
        second = [c for c in self.distinct([best, *alternatives]) if c is not best][:1]
        others = [
            c
            for c in others
            if not any(is_same_model(c.model, new.model, self._settings) for new in second)
        ]
        return [best, *second, *others]


def multistart(
    rounds: Callable[[Candidates[C]], Iterator[Any]],
    agree: Callable[[Candidates[C]], bool],
    settings: SearchSettings = SEARCH_SETTINGS,
) -> tuple[Candidates[C], bool]:
    """Fit rounds of starts until candidates agree. Returns all candidates, and whether they agree.

    Parameters
    ----------
    rounds : function of the candidates so far
        A generator that adds candidates, and yields whenever agreement is to be tested.
    agree : function of the candidates so far
    """
    candidates = Candidates[C](settings=settings)
    for _ in rounds(candidates):
        if agree(candidates):
            return candidates, True
        if stop_requested():
            break
    return candidates, False
