"""Modes given by number or name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from robustcp import _checks

if TYPE_CHECKING:
    from robustcp.fitted import Fit

#: A mode's number or name.
Mode: TypeAlias = int | str


def mode_number(fit: Fit, name: str, mode: Any) -> int:
    """The number of a mode that the argument `name` gives by number or name."""
    return _checks.mode_number(name, mode, fit.modes, len(fit.shape))


def by_number(fit: Fit, name: str, given: Any) -> dict[int, Any]:
    """A mapping from modes with their numbers as keys."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ValueError(f"{name}: must be a mapping from modes, got {given!r}")
    return {mode_number(fit, name, mode): value for mode, value in given.items()}
