"""What users say of the noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from robustcp import _checks
from robustcp.engines import Engine, Listed, Scales, Weights, in_modes_of
from robustcp.noise.estimation import Residuals, common, look
from robustcp.noise.model import COMMON, Kind, Noise
from robustcp.units import Units

#: The kinds of noise that have names.
NAMES = ("auto", "common", "slabs", "signal", "signal*slabs")


@dataclass(frozen=True)
class Asked:
    """What is known of the noise before a fit.

    Attributes
    ----------
    kind : Kind, optional
        None is the kind that the data shows.
    sigma : float, optional
        The standard deviation, if that is known: of residuals that are in units of the known
        standard deviations of their entries, which are the engine's scales.
    """

    kind: Kind | None = None
    sigma: float | None = None
    #: Scales of slabs that are known from elsewhere, for some modes.
    slabs: tuple[np.ndarray | None, ...] = field(repr=False, compare=False, default=())

    @classmethod
    def as_of(cls, noise: Noise, mode: int) -> Asked:
        """For new slabs of a mode, what was found for others; nothing from what was given."""
        if noise.known:
            return cls()
        slabs = tuple(None if n == mode else v for n, v in enumerate(noise.slabs))
        return cls(noise.kind if noise.looked else None, slabs=slabs if noise.looked else ())

    def noise(self, residuals: Residuals, before: Noise | None = None) -> Noise:
        """What residuals show of it; of the kind that they showed before, if that is told."""
        if self.sigma is not None:
            return common(residuals, self.sigma)
        kind = self.kind if before is None or self.kind is not None else before.kind
        return look(residuals, kind, before, self.slabs)

    def in_units(self, units: Units) -> Asked:
        """The same, given in the units of the data, in those of the fit."""
        if self.sigma is None:
            return self
        return replace(self, sigma=self.sigma / units.factor)

    def on(self, engine: Engine) -> Asked:
        """The same, or common noise for an engine that cannot look at any other."""
        return self if engine.takes_scales else Asked(COMMON, self.sigma)


def as_noise(given: Any, engine: Engine) -> tuple[Asked, Engine]:
    """What users say of the noise of some data, and the data as it is to be looked at."""
    kind = None
    if is_kind(given):
        kind = as_kind(given, engine.view.axes.modes, engine.order)
        if kind is None or kind == COMMON:
            return Asked(kind).on(engine), engine
    if not engine.takes_scales:
        raise _checks.ArgumentError("noise", f"{type(engine).__name__} takes only common noise")
    if kind is not None:
        return Asked(kind), engine
    known = _standard_deviations(given, engine)
    sigma = known.typical
    return Asked(COMMON, sigma), engine.standardized(Scales(known, unit=1 / sigma))


def _standard_deviations(given: Any, engine: Engine) -> Weights | Listed:
    """Known standard deviations: of the shapes that weights may have, and positive."""
    try:
        known = engine.weighted(in_modes_of(engine.view.axes, given)).view.weights
    except (TypeError, ValueError) as error:
        problem = str(error).partition("entry_weights: ")[2] or str(error)
        raise _checks.ArgumentError("noise", f"standard deviations {problem}") from None
    if known is None:
        raise _checks.ArgumentError("noise", f"holds no standard deviations, got {given!r}")
    try:
        Scales(known)
    except _checks.ArgumentError as error:
        raise _checks.ArgumentError("noise", f"standard deviations {error.problem}") from None
    return known


def as_kind(given: Any, names: Sequence[str], order: int) -> Kind | None:
    """A kind of noise by its name, or by the modes whose slabs differ; None for "auto"."""
    every = tuple(range(order))
    if isinstance(given, Kind):
        return given
    if isinstance(given, str) and given in NAMES:
        modes = every if "slabs" in given else ()
        return None if given == "auto" else Kind(modes, signal="signal" in given)
    listed = given if isinstance(given, list | tuple) else [given]
    if not listed:
        raise _checks.ArgumentError("noise", "an empty list of modes")
    found = [_mode(key, names, order) for key in listed]
    for mode in found:
        if found.count(mode) > 1:
            raise _checks.ArgumentError("noise", f"mode {mode} is named twice, got {given!r}")
    return Kind(tuple(sorted(found)))


def _mode(key: Any, names: Sequence[str], order: int) -> int:
    if not isinstance(key, str):
        return _checks.whole_number("noise", key, 0, most=order - 1)
    if key in names:
        return list(names).index(key)
    known = ", ".join(map(repr, (*NAMES, *names)))
    raise _checks.ArgumentError(
        "noise", f"must be one of {known}, modes, or standard deviations, got {key!r}"
    )


def is_kind(given: Any) -> bool:
    """Whether something names a kind of noise, or modes, and is not standard deviations.

    Whole numbers are modes, as everywhere; True and False are refused as such.
    """
    listed = given if isinstance(given, list | tuple) else [given]
    return isinstance(given, Kind) or all(isinstance(k, str | int | np.integer) for k in listed)
