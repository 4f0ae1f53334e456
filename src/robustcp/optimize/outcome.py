"""How a fit ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """How a fit ended, as a name for programs and a sentence for people.

    Attributes
    ----------
    name : {"converged", "max_sweeps", "stopped"}
    sentence : str
    """

    name: str
    sentence: str

    def __str__(self) -> str:
        return self.sentence


CONVERGED = Outcome("converged", "converged")
STOPPED = Outcome("stopped", "stopped by the callback")


def max_sweeps_outcome(count: int) -> Outcome:
    """The outcome of a run that reached its limit of sweeps."""
    return Outcome("max_sweeps", f"stopped after {count} sweeps (max_sweeps)")
