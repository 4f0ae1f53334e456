"""Selection of the kind of noise that residuals show, by an information criterion."""

from __future__ import annotations

import math

import numpy as np

from robustcp.noise.estimation_by_slab_and_signal import fit_common_noise, fit_noise
from robustcp.noise.model import Kind, Noise
from robustcp.noise.residuals import Residuals
from robustcp.noise.settings import NOISE_SETTINGS


def select_kind(residuals: Residuals) -> Noise:
    """The noise of the selected kind, as a sample of the residuals shows it.

    Kinds grow by the mode whose slabs differ most, with and without a dependence on the signal, as
    long as slabs differ. The kind with the lowest information criterion is selected. The noise of
    small counts always grows with the signal.
    """
    sample = residuals.subsample(NOISE_SETTINGS.kind_entries, by_index=True)
    resolution, enough = sample.resolution, sample.values.size >= NOISE_SETTINGS.min_residuals
    if resolution.small_counts and enough:
        return fit_noise(sample, Kind(signal=True))
    common_noise, counts = fit_common_noise(sample), resolution.count_data
    negligible = (
        common_noise.sigma <= resolution.min_entry_sigma and common_noise.rejected_share <= 0.5
    )
    if (negligible and not counts) or not enough:
        return common_noise
    modes, by_signal = _find_heteroscedasticity(sample, common_noise)
    if not (modes or by_signal or counts):
        return common_noise
    candidates = [common_noise, *_grow_kinds(sample, common_noise, signal=False)]
    if by_signal or counts or _find_heteroscedasticity(sample, candidates[-1])[1]:
        candidates += _grow_kinds(sample, common_noise, signal=True)
    return min(candidates, key=lambda noise: _information_criterion(sample, noise))


def _grow_kinds(sample: Residuals, common_noise: Noise, *, signal: bool) -> list[Noise]:
    """The noises of kinds that grow, one mode at a time."""
    kind = Kind(signal=signal)
    candidates = [fit_noise(sample, kind)] if signal else []
    while True:
        modes, _ = _find_heteroscedasticity(sample, candidates[-1] if candidates else common_noise)
        new = [mode for mode in modes if mode not in kind.modes]
        if not new:
            return candidates
        kind = Kind(tuple(sorted((*kind.modes, new[0]))), signal)
        candidates.append(fit_noise(sample, kind))


def _find_heteroscedasticity(sample: Residuals, noise: Noise) -> tuple[list[int], bool]:
    """The modes between whose slabs `noise` leaves differences, and whether the signal does.

    The modes are in descending order of the differences.
    """
    z = np.minimum(np.abs(sample.values) / sample.sigmas_of(noise), 2.5)
    spreads, min_spread = np.zeros(len(sample.shape)), NOISE_SETTINGS.min_log_spread
    for mode in sample.scalable_modes:
        spreads[mode] = _log_scale_spread(z, sample.indices[mode], sample.counts(mode))
    modes = [int(n) for n in np.argsort(spreads)[::-1] if spreads[n] >= min_spread]
    return modes, _log_scale_spread(z, sample.groups, sample.sums_by_group()) >= min_spread


def _log_scale_spread(z: np.ndarray, group: np.ndarray, count: np.ndarray) -> float:
    """Between-group standard deviation of the log scale, net of sampling variance.

    It is 0 if the groups do not differ significantly. `z` are standardized magnitudes, cut at 2.5.
    """
    full = count > 1
    mean = np.bincount(group, z, minlength=count.size)[full] / count[full]
    count, degrees_of_freedom = count[full], int(full.sum()) - 1
    grand_mean, variance = float(np.average(mean, weights=count)), float(z.var())
    if degrees_of_freedom < 1 or variance == 0 or grand_mean == 0:
        return 0.0
    excess = float(np.sum(count * (mean - grand_mean) ** 2)) / variance - degrees_of_freedom
    if excess < NOISE_SETTINGS.min_z_score * math.sqrt(2 * degrees_of_freedom):
        return 0.0
    # Cut at 2.5 sigma, the mean of |z| grows by a tenth less than the scale.
    return math.sqrt(excess * variance / float(count.sum())) / (0.9 * grand_mean)


def _information_criterion(sample: Residuals, noise: Noise) -> float:
    """Half the AIC under a scaled t distribution.

    Slab scales count by their effective degrees of freedom after shrinkage.
    """
    s = sample.sigmas_of(noise)
    square, nu = (sample.values / s) ** 2, NOISE_SETTINGS.t_degrees_of_freedom
    squared_scale = 0.7
    for _ in range(30):
        weights = (nu + 1) / (nu + square / squared_scale)
        new = max(float(np.mean(weights * square)), NOISE_SETTINGS.min_relative_sigma)
        if abs(new / squared_scale - 1) < 1e-4:
            break
        squared_scale = new
    tails = (nu + 1) / 2 * np.log1p(square / (nu * squared_scale))
    negative_log_likelihood = float(np.sum(np.log(s) + tails)) + 0.5 * s.size * math.log(
        squared_scale
    )
    parameters = 2.0 * noise.kind.signal
    for mode, scales in enumerate(noise.slabs):
        if scales is not None:
            variance = float(np.var(np.log(scales)))
            sampling_variance = NOISE_SETTINGS.log_scale_sampling_variance / np.maximum(
                sample.counts(mode), 1
            )
            parameters += float(np.sum(variance / (variance + sampling_variance)))
    return negative_log_likelihood + parameters
