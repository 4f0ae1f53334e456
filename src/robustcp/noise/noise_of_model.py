"""The noise that a model leaves: the estimates that other packages call.

The methods are elsewhere: sigma in spite of outliers in contaminated_normal.py; a quick estimate of
the scales of slabs in quick_slab_scales.py; the accurate one, with the dependence on the signal, in
estimation_by_slab_and_signal.py; the selection of the kind of noise in kind_selection.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from robustcp._util.quantiles import median
from robustcp._util.typing import Factors
from robustcp.engines import Engine
from robustcp.noise.contaminated_normal import (
    degrees_of_freedom_correction,
    fit_contaminated_normal,
)
from robustcp.noise.estimation_by_slab_and_signal import fit_common_noise, fit_noise
from robustcp.noise.kind_selection import select_kind
from robustcp.noise.model import COMMON, Kind, Noise
from robustcp.noise.quick_slab_scales import estimate_main_effects
from robustcp.noise.residuals import Residuals, SlabScales
from robustcp.noise.resolution import Resolution
from robustcp.noise.second_peak import add_second_peak
from robustcp.noise.settings import NOISE_SETTINGS
from robustcp.optimize.units import Units


def estimate_noise(
    residuals: Residuals,
    kind: Kind | None = None,
    initial: Noise | None = None,
    known_slabs: SlabScales = (),
) -> Noise:
    """The noise of residuals, of a given kind or of the kind that they show.

    `initial` is an earlier estimate, if there is one. It is not used when the kind is to be
    selected, nor if it is of another kind. `known_slabs` are the scales of slabs that are known
    already, for some modes. A second peak is only looked for if `initial` has one, or is not given.
    """
    one_peak = initial is not None and not initial.shifted
    if kind is None:
        initial = select_kind(residuals)
        kind = initial.kind
    sample = residuals
    if kind != COMMON:
        sample = residuals.subsample(NOISE_SETTINGS.estimation_entries, by_index=True)
    noise = fit_noise(sample, kind, initial, known_slabs)
    return noise if one_peak else add_second_peak(sample, noise)


def estimate_model_noise(
    engine: Engine,
    factors: Factors,
    resolution: Resolution,
    units: Units,
    kind: Kind | None = None,
    initial: Noise | None = None,
) -> Noise:
    """The noise that a model leaves, in the units of the fit, corrected for degrees of freedom.

    Known standard deviations (the engine's scales, which are in the units of the data) are not
    estimated.
    """
    fitted_scales = () if initial is None else initial.slabs
    residuals = Residuals.of(engine, factors, resolution, fitted_scales=fitted_scales)
    known_scales = engine.view.scales
    if known_scales is not None:
        noise = fit_common_noise(residuals, 1 / known_scales.unit / units.factor)
        return replace(noise, known_sigmas=known_scales.field)
    noise = estimate_noise(residuals, kind if engine.takes_scales else COMMON, initial)
    if noise.kind == COMMON and not noise.shifted:
        # of all residuals: which ones are drawn depends on their order
        noise = fit_common_noise(residuals, max_entries=max(residuals.values.size, 1))
    rank = factors[0].shape[1]
    return noise.inflated(degrees_of_freedom_correction(engine, rank, noise.clean))


def estimate_rough_noise(engine: Engine, factors: Factors, resolution: Resolution) -> Noise:
    """A quick estimate of the noise: with scales of slabs, where these differ.

    For small counts there are no scales of slabs; instead, the variance of an entry grows with the
    model's value there. If the engine cannot divide residuals by scales, all entries have the same
    standard deviation.
    """
    residuals = Residuals.of(engine, factors, resolution).subsample(NOISE_SETTINGS.rough_entries)
    if resolution.small_counts and engine.takes_scales:
        return fit_noise(residuals, Kind(signal=True)).with_signal(factors)
    modes = residuals.quickly_scalable_modes if engine.takes_scales else ()
    return standardize_by_main_effects(residuals, modes)[0]


def standardize_by_main_effects(
    residuals: Residuals, modes: Sequence[int]
) -> tuple[Noise, np.ndarray]:
    """Noise with scales for the slabs of some modes, and the standardized residuals.

    A quick estimate, by `estimate_main_effects`.
    """
    r, min_sigma = np.abs(residuals.values), residuals.resolution.min_entry_sigma
    if not r.size:
        return fit_common_noise(residuals), r
    slabs, z = estimate_main_effects(residuals, modes, max(1e-2 * min_sigma, 1e-3 * median(r)))
    unit = fit_contaminated_normal(z, min_sigma).sigma
    if all(scales is None for scales in slabs):
        return Noise(unit, (1.0, 0.0, 0.0), tuple(slabs), min_sigma), z / unit
    mean_log = min_log = 0.0
    for mode, scales in enumerate(slabs):
        if scales is not None:
            log_scales = np.log(scales)
            mean_log += float(residuals.counts(mode) @ log_scales) / r.size
            min_log += float(log_scales.min())
    sigma, z = unit * math.exp(mean_log), z / unit
    if min_sigma > NOISE_SETTINGS.negligible_floor * unit * math.exp(min_log):
        s = residuals.sigmas((unit**2, 0.0, 0.0), slabs, min_sigma)
        sigma, z = float(np.exp(np.mean(np.log(s)))), residuals.values / s
    return Noise(sigma, ((unit / sigma) ** 2, 0.0, 0.0), tuple(slabs), min_sigma), z


def rms_log_ratio(residuals: Residuals, first: Noise, second: Noise) -> float:
    """How much two noises differ: the root mean square of the log ratio of standard deviations."""
    if first.homoscedastic and second.homoscedastic:
        return abs(math.log(first.sigma / second.sigma))
    ratio = residuals.sigmas_of(first) / residuals.sigmas_of(second)
    return float(np.sqrt(np.mean(np.log(ratio) ** 2)))
