"""What a search for starts has done so far, so that it need not be done again.

A search is made of runs of the solver, each with a name, and is the same whenever it is done: so
one that goes on takes the runs that are known as they are, and the others from where they were.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from robustcp._typing import Factors
from robustcp.engines import Engine, to_host
from robustcp.solver import Solver, State
from robustcp.telling import Pace, Step

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Noted:
    """A run: where it ended; or, if it has not, where it is."""

    factors: Factors
    state: State | None = None


class Notes:
    """The runs of a search, by name.

    Parameters
    ----------
    known : dict from str to Noted, optional
        Those of a search that was interrupted. Without it nothing is kept.
    changed : function, optional
        Called when there is something new.
    """

    def __init__(
        self, known: dict[str, Noted] | None = None, changed: Callable[[], object] | None = None
    ) -> None:
        self.known, self._changed, self.pace = known, changed, Pace()

    def get(self, name: str) -> Noted | None:
        """What is known of a run."""
        return None if self.known is None else self.known.get(name)

    def put(self, name: str, noted: Noted) -> None:
        """Remember where a run is."""
        if self.known is not None:
            self.known[name] = noted
            if self._changed is not None:
                self._changed()


class Journal:
    """A part of a search, whose runs follow one another: so they are told by their number."""

    def __init__(self, notes: Notes | None = None, name: str = "search") -> None:
        self.notes, self.name, self._count = notes or Notes(), name, 0

    def within(self, name: str) -> Journal:
        """A part of this part."""
        return Journal(self.notes, f"{self.name}, {name}")

    def run(self, solver: Solver, begin: Callable[[], State], most: int) -> Factors:
        """Where a run ends: begun, gone on with, or known already."""
        self._count += 1
        name, engine = f"{self.name}, run {self._count}", solver.problem.engine
        noted = self.notes.get(name)
        if noted is not None and noted.state is None:
            return carried(engine, noted.factors)
        state = begin() if noted is None else solver.resumed(_moved(noted.state, engine))

        def after_sweep(state: State) -> bool:
            self.notes.put(name, Noted(state.factors, state))
            pace = self.notes.pace
            pace.step()
            pace.tell(LOG, lambda: Step(name, f"sweep {state.sweep}"))
            return False

        factors = solver.run(state, most, after_sweep)[0].factors
        self.notes.put(name, Noted(factors))
        return factors


def _moved(state: State | None, engine: Engine) -> State:
    """A state that comes from a file, in the library and on the device of an engine."""
    assert state is not None
    before = None if state.before is None else _moved(state.before, engine)
    return replace(
        state, factors=carried(engine, state.factors), swept=carried(engine, state.swept),
        before=before,
    )  # fmt: skip


def carried(engine: Engine, factors: Factors) -> Factors:
    """Factors in the library and on the device of an engine."""
    return tuple(engine.asarray(to_host(A)) for A in factors)
