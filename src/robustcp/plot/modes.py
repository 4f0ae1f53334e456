"""Modes given by number or name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from robustcp._util import checks

if TYPE_CHECKING:
    from robustcp.results.fit import Fit

#: A mode's number or name.
Mode: TypeAlias = int | str


def mode_number(fit: Fit, argument: str, mode: Any) -> int:
    """The number of a mode, which an argument gives by number or name."""
    return checks.mode_number(argument, mode, fit.modes, len(fit.shape))


def resolve_modes(fit: Fit, argument: str, mapping: Any) -> dict[int, Any]:
    """A mapping from modes with their names replaced by numbers."""
    if mapping is None:
        return {}
    if not isinstance(mapping, Mapping):
        raise ValueError(f"{argument}: must be a mapping from modes, got {mapping!r}")
    return {mode_number(fit, argument, mode): value for mode, value in mapping.items()}
