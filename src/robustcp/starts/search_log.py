"""What a search for starts has done so far, so that it need not be done again.

A search is made of runs of the solver, each with a name, and is the same whenever it is done: so
one that goes on takes the runs that are known as they are, and the others from where they were.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from robustcp._util.progress import ProgressReport, Throughput
from robustcp._util.typing import Factors
from robustcp.engines import Engine, to_host
from robustcp.optimize.solver import Solver, State

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class LoggedRun:
    """A run: where it ended; or, if it has not, where it is."""

    factors: Factors
    state: State | None = None


class SearchRuns:
    """The runs of a search, by name.

    Parameters
    ----------
    runs : dict from str to LoggedRun, optional
        Those of a search that was interrupted. Without it nothing is kept.
    on_change : function, optional
        Called when there is something new.
    """

    def __init__(
        self,
        runs: dict[str, LoggedRun] | None = None,
        on_change: Callable[[], object] | None = None,
    ) -> None:
        self.runs, self._on_change, self.throughput = runs, on_change, Throughput()

    def get(self, name: str) -> LoggedRun | None:
        """What is known of a run."""
        return None if self.runs is None else self.runs.get(name)

    def put(self, name: str, run: LoggedRun) -> None:
        """Remember where a run is."""
        if self.runs is not None:
            self.runs[name] = run
            if self._on_change is not None:
                self._on_change()


class SearchLog:
    """A part of a search, whose runs follow one another: so they are told by their number."""

    def __init__(self, runs: SearchRuns | None = None, name: str = "search") -> None:
        self.runs, self.name, self._run_count = runs or SearchRuns(), name, 0

    def section(self, name: str) -> SearchLog:
        """A part of this part."""
        return SearchLog(self.runs, f"{self.name}, {name}")

    def run(self, solver: Solver, make_state: Callable[[], State], max_sweeps: int) -> Factors:
        """Where a run ends: begun, gone on with, or known already."""
        self._run_count += 1
        name, engine = f"{self.name}, run {self._run_count}", solver.problem.engine
        logged = self.runs.get(name)
        if logged is not None and logged.state is None:
            return transfer_factors(engine, logged.factors)
        state = (
            make_state() if logged is None else solver.resume(_transfer_state(logged.state, engine))
        )

        def after_sweep(state: State) -> bool:
            self.runs.put(name, LoggedRun(state.factors, state))
            throughput = self.runs.throughput
            throughput.count_step()
            throughput.report(LOG, lambda: ProgressReport(name, f"sweep {state.sweep}"))
            return False

        factors = solver.run(state, max_sweeps, after_sweep)[0].factors
        self.runs.put(name, LoggedRun(factors))
        return factors


def _transfer_state(state: State | None, engine: Engine) -> State:
    """A state that comes from a file, in the library and on the device of an engine."""
    assert state is not None
    before = None if state.before_stage is None else _transfer_state(state.before_stage, engine)
    return replace(
        state,
        factors=transfer_factors(engine, state.factors),
        swept_factors=transfer_factors(engine, state.swept_factors),
        before_stage=before,
    )


def transfer_factors(engine: Engine, factors: Factors) -> Factors:
    """Factors in the library and on the device of an engine."""
    return tuple(engine.asarray(to_host(A)) for A in factors)
