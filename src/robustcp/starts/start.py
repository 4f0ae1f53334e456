"""What a start of a fit is: a strategy that returns a starting point."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from robustcp._util.typing import Factors
from robustcp.constraints import Constraints
from robustcp.engines import Fibres
from robustcp.optimize.problem import Problem
from robustcp.starts.candidates import Starts
from robustcp.starts.search_log import SearchLog


@dataclass(frozen=True, eq=False)
class StartingPoint:
    """Initial factors of a fit, and what the search that found them knows.

    Attributes
    ----------
    factors : tuple of arrays
        In the units of the fit.
    warm_start : bool
        Whether the factors may be near a solution: stages then begin at their last levels.
    starts : Starts, optional
        The costs of all starts of a multistart.
    start_number : int
        The position of this starting point among them.
    alternatives : tuple of StartingPoint
        Other starting points to run; the best final fit is kept.
    fibres : Fibres, optional
        Fibres that the first level leaves out.
    bad_samples : array of bool, optional
        Samples that the first fit leaves out, where a mode holds samples.
    sufficient_rank : int, optional
        The number of components that are not redundant, where the search counted them.
    reliable : bool
        Whether enough of the first starts agreed.
    search_limited : bool
        Whether the search ended at its price limit before starts agreed.
    """

    factors: Factors
    warm_start: bool = False
    starts: Starts | None = None
    start_number: int = 0
    fibres: Fibres | None = None
    alternatives: tuple[StartingPoint, ...] = ()
    bad_samples: np.ndarray | None = None
    sufficient_rank: int | None = None
    reliable: bool = False
    search_limited: bool = False


class Start(ABC):
    """A strategy that returns a starting point; a search log records its runs of the solver."""

    @abstractmethod
    def __call__(
        self,
        problem: Problem,
        rank: int,
        rng: np.random.Generator,
        constraints: Constraints,
        search_log: SearchLog | None = None,
    ) -> StartingPoint: ...
