"""The noise argument of estimators, as a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from robustcp._util import checks
from robustcp.engines import Engine, EntryField, ListedField, Scales, align_to_axes
from robustcp.noise.estimation_by_slab_and_signal import fit_common_noise
from robustcp.noise.model import COMMON, Kind, Noise
from robustcp.noise.noise_of_model import estimate_noise
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
        The standard deviation, if it is known, of residuals in units of the known standard
        deviations of their entries, which are the engine's scales.
    """

    kind: Kind | None = None
    sigma: float | None = None
    #: Scales of slabs that are known from elsewhere, for some modes.
    slabs: tuple[np.ndarray | None, ...] = field(repr=False, compare=False, default=())

    @classmethod
    def for_new_slabs(cls, noise: Noise, mode: int) -> NoiseSpec:
        """The specification for new slabs of a mode, from the noise of others unless given."""
        if noise.known:
            return cls()
        slabs = tuple(None if n == mode else v for n, v in enumerate(noise.slabs))
        return cls(
            noise.kind if noise.kind_determined else None,
            slabs=slabs if noise.kind_determined else (),
        )

    def estimate(self, residuals: Residuals, before: Noise | None = None) -> Noise:
        """The noise that residuals show, of the specified kind or else of the kind of `before`."""
        if self.sigma is not None:
            return fit_common_noise(residuals, self.sigma)
        kind = self.kind if before is None or self.kind is not None else before.kind
        return estimate_noise(residuals, kind, before, self.slabs)

    def in_units(self, units: Units) -> NoiseSpec:
        """This specification in the units of the fit, from the units of the data."""
        if self.sigma is None:
            return self
        return replace(self, sigma=self.sigma / units.factor)

    def for_engine(self, engine: Engine) -> NoiseSpec:
        """This specification, or common noise for an engine that does not take scales."""
        return self if engine.takes_scales else NoiseSpec(COMMON, self.sigma)


def parse_noise(given: Any, engine: Engine) -> tuple[NoiseSpec, Engine]:
    """The specification from a noise argument, and the data in units of known noise."""
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
    """Known standard deviations, which are positive and have the shapes that weights may have."""
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
    """Whether a noise argument names a kind of noise, or modes, rather than standard deviations.

    Whole numbers are modes; `parse_kind` refuses True and False.
    """
    keys = given if isinstance(given, list | tuple) else [given]
    return isinstance(given, Kind) or all(isinstance(k, str | int | np.integer) for k in keys)
