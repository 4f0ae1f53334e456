"""The log of a search for starts: its runs of the solver, for progress and checkpoints.

A search is deterministic, and each of its runs has a name. A search that is resumed takes the
results of the finished runs from the log, and continues the others from their last state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from robustcp._util.interrupts import interrupts, stop_requested
from robustcp._util.progress import ProgressReport, Throughput
from robustcp._util.typing import Factors
from robustcp.engines import Engine, to_host
from robustcp.optimize.outcome import STOPPED
from robustcp.optimize.solver import Solver, State

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class LoggedRun:
    """A run of the solver: its final factors, or the state of a run that is not finished.

    The price is that of all sweeps so far: entries x rank x passes.
    """

    factors: Factors
    state: State | None = None
    price: int = 0


class SearchRuns:
    """The runs of a search, by name.

    Parameters
    ----------
    runs : dict from str to LoggedRun, optional
        The runs of an interrupted search. None: no run is recorded.
    on_change : function, optional
        Called after each change.
    """

    def __init__(
        self,
        runs: dict[str, LoggedRun] | None = None,
        on_change: Callable[[], object] | None = None,
    ) -> None:
        self.runs, self._on_change, self.throughput = runs, on_change, Throughput()
        self.finished_starts, self.prices = 0, dict[str, int]()

    def get(self, name: str) -> LoggedRun | None:
        """The run of this name, or None."""
        return None if self.runs is None else self.runs.get(name)

    def put(self, name: str, run: LoggedRun) -> None:
        """Record a run."""
        if self.runs is not None:
            self.runs[name] = run
            if self._on_change is not None:
                self._on_change()


class SearchLog:
    """A section of a search. Its runs follow one another and are named by their number."""

    def __init__(self, runs: SearchRuns | None = None, name: str = "search") -> None:
        self.runs, self.name, self._run_count = runs or SearchRuns(), name, 0

    @property
    def price(self) -> int:
        """The price of all runs of the search: entries x rank x passes.

        Seconds would make the choices of a search depend on the speed of the machine.
        """
        return sum(self.runs.prices.values())

    def charge(self, price: int) -> None:
        """Add the price of work that is not a run of the solver."""
        self._run_count += 1
        self.runs.prices[f"{self.name}, work {self._run_count}"] = price

    def section(self, name: str) -> SearchLog:
        """A section of this section."""
        return SearchLog(self.runs, f"{self.name}, {name}")

    def run(self, solver: Solver, make_state: Callable[[], State], max_sweeps: int) -> Factors:
        """The final factors of a run, which is taken from the log, resumed or started."""
        self._run_count += 1
        name, engine = f"{self.name}, run {self._run_count}", solver.problem.engine
        logged = self.runs.get(name)
        if logged is not None and logged.state is None:
            self.runs.prices[name] = logged.price
            return transfer_factors(engine, logged.factors)
        # A run that begins after a stop may begin at unfinished factors, so it is not recorded.
        recorded = not stop_requested()
        state = (
            make_state() if logged is None else solver.resume(_transfer_state(logged.state, engine))
        )

        sweeps_before = state.sweep

        def after_sweep(state: State) -> bool:
            nonlocal sweeps_before
            if recorded:
                self.runs.put(name, LoggedRun(state.factors, state))
            throughput = self.runs.throughput
            throughput.count_steps(state.sweep - sweeps_before)
            sweeps_before = state.sweep
            throughput.report(LOG, lambda: ProgressReport(name, f"sweep {state.sweep}"))
            interrupts.answer()
            return stop_requested()

        state, outcome = solver.run(state, max_sweeps, after_sweep, every_sweep=False)
        rank, passes = state.factors[0].shape[1], state.sweep * len(solver.modes)
        price = self.runs.prices[name] = engine.count * rank * passes
        if recorded and outcome != STOPPED:
            self.runs.put(name, LoggedRun(state.factors, price=price))
        return state.factors

    def finish_start(self) -> None:
        """Count a start; raise KeyboardInterrupt if a stop is requested before any is finished."""
        if not stop_requested():
            self.runs.finished_starts += 1
        elif not self.runs.finished_starts:
            raise KeyboardInterrupt


def _transfer_state(state: State | None, engine: Engine) -> State:
    """A state read from a file, as arrays of the library and device of an engine."""
    assert state is not None
    before = None if state.before_stage is None else _transfer_state(state.before_stage, engine)
    return replace(
        state,
        factors=transfer_factors(engine, state.factors),
        swept_factors=transfer_factors(engine, state.swept_factors),
        before_stage=before,
    )


def transfer_factors(engine: Engine, factors: Factors) -> Factors:
    """Factors as arrays of the library and device of an engine."""
    return tuple(engine.asarray(to_host(A)) for A in factors)
