"""Where starts ended, and when two models are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

from robustcp._util.typing import Factors
from robustcp.engines import Fibres
from robustcp.model.kruskal import KruskalTensor
from robustcp.model.metrics import factor_match_score
from robustcp.starts.settings import SEARCH_SETTINGS, SearchSettings


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
        starts = super().__new__(cls, values)
        if reached is None:
            reached = sum(
                value <= min(starts) * (1 + SEARCH_SETTINGS.same_objective_tol) for value in starts
            )
        starts.reached = reached
        starts.final = tuple(final) or (None,) * len(starts)
        starts.models = tuple(models)
        return starts

    def __repr__(self) -> str:
        final_values = [value for value in self.final if value is not None]
        best = f"{min(final_values or self):.6g}"
        return f"Starts({self.reached} of {len(self)} reached the best, {best})"

    def with_final(self, number: int, value: float, model: KruskalTensor) -> Starts:
        """With what a start cost that was followed to the end, and where it ended."""
        final = (*self.final[:number], value, *self.final[number + 1 :])
        models = self.models
        if models and models[number].shape == model.shape:
            models = (*models[:number], model, *models[number + 1 :])
        return Starts(self, self.reached, final, models)

    def recount_reached(self, number: int) -> Starts:
        """With the number of starts whose models are the same as that of one of them."""
        if not self.models:
            return self
        reached = sum(is_same_model(model, self.models[number]) for model in self.models)
        return Starts(self, reached, self.final, self.models)


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
    """What the agreement rule needs to know of the end of a start."""

    @property
    def cost(self) -> float: ...

    @property
    def model(self) -> KruskalTensor: ...


C = TypeVar("C", bound=Solution)


@dataclass(frozen=True, eq=False)
class Candidate:
    """Where a start ended: its factors, what they cost, and fibres that are left out there.

    The cost is the entropy of the residuals; where rows have few entries, minus the log evidence.
    """

    factors: Factors
    cost: float
    fibres: Fibres | None = None

    @cached_property
    def model(self) -> KruskalTensor:
        return KruskalTensor.from_factors(self.factors)


class Candidates(Generic[C]):
    """The ends of the starts of a multistart, round by round.

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
        """One more round."""
        self.rounds.append(list(candidates))

    @property
    def best(self) -> C:
        """The one of lowest cost."""
        return min(self, key=lambda candidate: candidate.cost)

    def count_same(self, best: C | None = None) -> int:
        """How many are the same model as the best of them, or as another one."""
        best = self.best if best is None else best
        return sum(
            candidate is best or is_same_model(candidate.model, best.model, self._settings)
            for candidate in self
        )

    def select(self) -> list[C]:
        """The two best of each round, by cost, without duplicates and far costlier ones. Each round
        keeps its two, so that further rounds do not displace good candidates.
        """
        leading = [
            candidate
            for candidates in self.rounds
            for candidate in sorted(candidates, key=lambda candidate: candidate.cost)[:2]
        ]
        max_cost = min(candidate.cost for candidate in leading) + self._settings.max_cost_gap
        selected: list[C] = []
        for candidate in sorted(leading, key=lambda candidate: candidate.cost):
            if candidate.cost <= max_cost and not any(
                is_same_model(candidate.model, other.model, self._settings) for other in selected
            ):
                selected.append(candidate)
        return selected


def multistart(
    rounds: Callable[[Candidates[C]], Iterator[Any]],
    agree: Callable[[Candidates[C]], bool],
    settings: SearchSettings = SEARCH_SETTINGS,
) -> tuple[Candidates[C], bool]:
    """Fit one round of starts after the other, until they agree; and whether they do.

    Parameters
    ----------
    rounds : function of the candidates so far
        It adds candidates, and yields each time when they are to be compared.
    agree : function of the candidates so far
    """
    candidates = Candidates[C](settings=settings)
    for _ in rounds(candidates):
        if agree(candidates):
            return candidates, True
    return candidates, False
