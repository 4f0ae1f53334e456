"""What users say of the noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from robustcp._util import checks
from robustcp.engines import Engine, EntryField, ListedField, Scales, align_to_axes
from robustcp.noise.estimation import estimate_noise
from robustcp.noise.mixture_fit import fit_common_noise
from robustcp.noise.model import COMMON, Kind, Noise
from robustcp.noise.residuals import Residuals
from robustcp.optimize.units import Units

#: The kinds of noise that have names.
KIND_NAMES = ("auto", "common", "slabs", "signal", "signal*slabs")


@dataclass(frozen=True)
class NoiseSpec:
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
    def for_new_slabs(cls, noise: Noise, mode: int) -> NoiseSpec:
        """For new slabs of a mode, what was found for others; nothing from what was given."""
        if noise.known:
            return cls()
        slabs = tuple(None if n == mode else v for n, v in enumerate(noise.slabs))
        return cls(
            noise.kind if noise.kind_determined else None,
            slabs=slabs if noise.kind_determined else (),
        )

    def estimate(self, residuals: Residuals, before: Noise | None = None) -> Noise:
        """What residuals show of it; of the kind that they showed before, if that is told."""
        if self.sigma is not None:
            return fit_common_noise(residuals, self.sigma)
        kind = self.kind if before is None or self.kind is not None else before.kind
        return estimate_noise(residuals, kind, before, self.slabs)

    def in_units(self, units: Units) -> NoiseSpec:
        """The same, given in the units of the data, in those of the fit."""
        if self.sigma is None:
            return self
        return replace(self, sigma=self.sigma / units.factor)

    def for_engine(self, engine: Engine) -> NoiseSpec:
        """The same, or common noise for an engine that cannot look at any other."""
        return self if engine.takes_scales else NoiseSpec(COMMON, self.sigma)


def parse_noise(given: Any, engine: Engine) -> tuple[NoiseSpec, Engine]:
    """What users say of the noise of some data, and the data as it is to be looked at."""
    kind = None
    if is_kind(given):
        kind = parse_kind(given, engine.view.axes.modes, engine.order)
        if kind is None or kind == COMMON:
            return NoiseSpec(kind).for_engine(engine), engine
    if not engine.takes_scales:
        raise checks.ArgumentError("noise", f"{type(engine).__name__} takes only common noise")
    if kind is not None:
        return NoiseSpec(kind), engine
    known_sigmas = _parse_standard_deviations(given, engine)
    sigma = known_sigmas.geometric_mean
    return NoiseSpec(COMMON, sigma), engine.standardized(Scales(known_sigmas, unit=1 / sigma))


def _parse_standard_deviations(given: Any, engine: Engine) -> EntryField | ListedField:
    """Known standard deviations: of the shapes that weights may have, and positive."""
    try:
        sigmas = engine.weighted(align_to_axes(engine.view.axes, given)).view.weights
    except (TypeError, ValueError) as error:
        problem = str(error).partition("entry_weights: ")[2] or str(error)
        raise checks.ArgumentError("noise", f"standard deviations {problem}") from None
    if sigmas is None:
        raise checks.ArgumentError("noise", f"holds no standard deviations, got {given!r}")
    try:
        Scales(sigmas)
    except checks.ArgumentError as error:
        raise checks.ArgumentError("noise", f"standard deviations {error.problem}") from None
    return sigmas


def parse_kind(given: Any, mode_names: Sequence[str], order: int) -> Kind | None:
    """A kind of noise by its name, or by the modes whose slabs differ; None for "auto"."""
    all_modes = tuple(range(order))
    if isinstance(given, Kind):
        return given
    if isinstance(given, str) and given in KIND_NAMES:
        modes = all_modes if "slabs" in given else ()
        return None if given == "auto" else Kind(modes, signal="signal" in given)
    keys = given if isinstance(given, list | tuple) else [given]
    if not keys:
        raise checks.ArgumentError("noise", "an empty list of modes")
    mode_numbers = [_parse_mode(key, mode_names, order) for key in keys]
    for mode in mode_numbers:
        if mode_numbers.count(mode) > 1:
            raise checks.ArgumentError("noise", f"mode {mode} is named twice, got {given!r}")
    return Kind(tuple(sorted(mode_numbers)))


def _parse_mode(key: Any, mode_names: Sequence[str], order: int) -> int:
    if not isinstance(key, str):
        return checks.whole_number("noise", key, 0, maximum=order - 1)
    if key in mode_names:
        return list(mode_names).index(key)
    options = ", ".join(map(repr, (*KIND_NAMES, *mode_names)))
    raise checks.ArgumentError(
        "noise", f"must be one of {options}, modes, or standard deviations, got {key!r}"
    )


def is_kind(given: Any) -> bool:
    """Whether something names a kind of noise, or modes, and is not standard deviations.

    Whole numbers are modes, as everywhere; True and False are refused as such.
    """
    keys = given if isinstance(given, list | tuple) else [given]
    return isinstance(given, Kind) or all(isinstance(k, str | int | np.integer) for k in keys)
