"""Fits noise of a given kind to residuals, modelled as a mixture of noise and outliers.

A residual r_i is either clean, and then normal with standard deviation s_i, or an outlier. s_i^2 is
the variance function a + b |m_i| + c m_i^2, where m_i is the entry of the model, multiplied as a
whole by the squared scales of the slabs of the entry. For outliers the density of r_i / s_i is
constant (the floor): one constant for positive residuals, another for negative ones.

As in the EM algorithm, the probability that each entry is clean is computed, and with it as a
weight the parameters are updated: the variance function is fitted to the weighted mean squares of
groups of entries with similar |m_i|; the squared scale of each slab is multiplied by the weighted
mean of (r_i / s_i)^2 in it, and the logarithms of the scales are shrunk towards their mean.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from robustcp.noise.contaminated_normal import ContaminatedNormal, fit_contaminated_normal
from robustcp.noise.group_statistics import group_medians, shrink_log_scales
from robustcp.noise.model import COMMON, Kind, Noise
from robustcp.noise.residuals import Residuals, SlabScales, Variance
from robustcp.noise.settings import NOISE_SETTINGS
from robustcp.noise.variance_function import fit_variance_function

#: The mixture for residuals too few to show outliers: all count as clean.
NO_OUTLIERS = ContaminatedNormal(1.0, 1e-4, 1e-4, 1.0, 0.0)


def fit_common_noise(
    residuals: Residuals,
    sigma: float | None = None,
    max_entries: int = NOISE_SETTINGS.kind_entries,
) -> Noise:
    """Noise of one standard deviation for all entries, which is estimated unless it is given."""
    values = residuals.values
    if sigma is None:
        mixture = fit_contaminated_normal(values, residuals.resolution.min_sigma, max_entries)
    else:
        relative_floor = NOISE_SETTINGS.min_relative_sigma
        mixture = fit_contaminated_normal(values / sigma, relative_floor, max_entries)
    slabs = (None,) * len(residuals.shape)
    return _noise(mixture, mixture.sigma if sigma is None else sigma, (1.0, 0.0, 0.0), slabs)


def fit_noise(
    residuals: Residuals,
    kind: Kind,
    initial: Noise | None = None,
    known_slabs: SlabScales = (),
) -> Noise:
    """Noise of a kind, fitted from an `initial` estimate of that kind if there is one.

    `known_slabs` are the scales of slabs that are known already, for some modes.
    """
    if kind == COMMON:
        return fit_common_noise(residuals)
    return _MixtureFit(residuals, kind, initial, known_slabs).run()


def _noise(
    mixture: ContaminatedNormal,
    sigma: float,
    variance: Variance,
    slabs: SlabScales,
    min_sigma: float = 0.0,
) -> Noise:
    """A `Noise` that takes its density of outliers and its clean share from a mixture."""
    return Noise(
        sigma,
        variance,
        tuple(slabs),
        min_sigma,
        mixture.above,
        mixture.below,
        mixture.clean,
        rejected_share=mixture.rejected_share,
    )


class _MixtureFit:
    """The parameters of noise of one kind while they are fitted to some residuals.

    Attributes
    ----------
    variance : (a, b, c)
        Absolute coefficients of the variance function, in the units of the residuals; those of
        `Noise.variance` are relative to sigma.
    slabs : list of (array or None), one for each mode
        The scales of slabs.
    """

    variance: Variance

    def __init__(
        self,
        residuals: Residuals,
        kind: Kind,
        initial: Noise | None = None,
        known_slabs: SlabScales = (),
    ) -> None:
        self.residuals, self.kind = residuals, kind
        self.min_sigma = residuals.resolution.min_entry_sigma
        self.slabs = list(known_slabs) or [None] * len(residuals.shape)
        self.free_modes = [mode for mode in kind.modes if self.slabs[mode] is None]
        if initial is not None and initial.kind == kind:
            (a, b, c), sigma = initial.variance, initial.sigma
            self.variance, self.slabs = (a * sigma**2, b * sigma, c), list(initial.slabs)
        else:
            self._initialize()

    def _initialize(self) -> None:
        """Set the first parameters, from quick estimates."""
        residuals, r = self.residuals, np.abs(self.residuals.values)
        sigma = fit_contaminated_normal(r, residuals.resolution.min_sigma).sigma
        if sigma <= self.min_sigma:
            # Sigma may be that of entries that are fitted exactly; then the median is used.
            sigma = max(sigma, 1.4826 * float(np.median(r)))
        self.variance = (sigma**2, 0.0, 0.0)
        if self.kind.signal:
            self.variance = (0.0, residuals.resolution.step, 0.0)
            if not residuals.resolution.count_data:
                medians = group_medians(r, residuals.groups, NOISE_SETTINGS.signal_groups)
                squares = (1.4826 * medians) ** 2
                self.variance = fit_variance_function(residuals, squares, residuals.sums_by_group())
        for mode in self.free_modes:
            medians = group_medians(
                r / self._sigmas(), residuals.indices[mode], residuals.shape[mode]
            )
            min_median = max(1e-3 * float(np.median(medians)), math.exp(self._min_log_scale))
            self._set_slabs(mode, np.log(np.maximum(medians, min_median)), residuals.counts(mode))

    def _sigmas(self) -> np.ndarray:
        """The standard deviation of each residual."""
        return self.residuals.sigmas(self.variance, self.slabs, self.min_sigma)

    @property
    def _min_log_scale(self) -> float:
        """The lower bound of a slab's log scale, for slabs without noise such as a dead sensor.

        At this scale the variance function's mean over all residuals becomes `min_sigma` squared.
        If the mean is smaller already, the bound is 0.
        """
        mean_variance, b, c = self.variance
        if b or c:
            magnitudes = self.residuals.signal_magnitudes
            mean_variance += b * float(np.mean(magnitudes))
            mean_variance += c * float(np.mean(magnitudes**2))
        return min(
            0.0, math.log(self.min_sigma) - 0.5 * math.log(max(mean_variance, self.min_sigma**2))
        )

    def _set_slabs(self, mode: int, logs: np.ndarray, count: np.ndarray) -> float:
        """Set a mode's scales from estimated log scales; returns the mean scale divided out."""
        log_scales, log_mean = shrink_log_scales(
            logs, count, NOISE_SETTINGS.log_scale_sampling_variance
        )
        self.slabs[mode] = np.exp(log_scales)
        return math.exp(log_mean)

    def run(self) -> Noise:
        """Update the parameters until they change little, and return the noise."""
        before = self._sigmas()
        for _ in range(NOISE_SETTINGS.max_rounds):
            self._update()
            sigmas = self._sigmas()
            change = float(np.sqrt(np.mean(np.log(sigmas / before) ** 2)))
            before = sigmas
            if change < NOISE_SETTINGS.log_tolerance:
                break
        mixture = self._fit_mixture(before)
        a, b, c = self.variance = self._scaled_variance(mixture.sigma)
        sigma = float(np.exp(np.mean(np.log(self._sigmas()))))
        a, b, c = a / sigma**2, b / sigma, c
        if self.kind.signal and b == c == 0:
            c = 1e-12  # so that the kind stays the same
        return _noise(mixture, sigma, (a, b, c), self.slabs, self.min_sigma)

    def _scaled_variance(self, scale: float) -> Variance:
        """The variance function for standard deviations times a factor."""
        a, b, c = self.variance
        return a * scale**2, b * scale**2, c * scale**2

    def _update(self) -> None:
        """Update the variance function, then the scales of each mode that has free ones."""
        residuals = self.residuals
        if self.kind.signal:
            weights, _ = self._clean_probabilities()
            entry_scales = np.ones_like(weights)
            for scales, index in zip(self.slabs, residuals.indices, strict=True):
                entry_scales = entry_scales if scales is None else entry_scales * scales[index]
            count = residuals.sums_by_group(weights)
            sums = residuals.sums_by_group(weights * (residuals.values / entry_scales) ** 2)
            self.variance = fit_variance_function(
                residuals, sums / np.maximum(count, 1e-300), count
            )
        elif not self.free_modes:  # the scales of all slabs are known
            self.variance = self._scaled_variance(self._fit_mixture(self._sigmas()).sigma)
        for mode in self.free_modes:
            weights, z = self._clean_probabilities()
            count = residuals.sums_by_slab(mode, weights)
            sums = residuals.sums_by_slab(mode, weights * z * z)
            old = self.slabs[mode]
            assert old is not None
            free = count * residuals.degrees_of_freedom(mode, count)
            # Residuals with a multiplier are corrected for leverage already.
            divisor = free if residuals.multiplier is None else count
            ratio = np.clip(sums / np.maximum(divisor, 1e-300), 0.01, 100.0)
            ratio[count == 0] = 1.0
            logs = np.maximum(np.log(old) + 0.5 * np.log(ratio), self._min_log_scale)
            # The log of a mean of few squares is too small, and its variance grows faster.
            logs += np.minimum(0.5 / np.maximum(free, 1e-9), 2.0)
            mean_scale = self._set_slabs(mode, logs, free**2 / (free + 1.5))
            if not self.kind.signal:
                self.variance = self._scaled_variance(mean_scale)

    def _clean_probabilities(self) -> tuple[np.ndarray, np.ndarray]:
        """The probability of each residual to be clean, and the standardized residuals."""
        s = self._sigmas()
        mixture = self._fit_mixture(s)
        z = self.residuals.values / s
        peak = np.exp(-0.5 * (z / mixture.sigma) ** 2)
        return peak / (peak + np.where(z >= 0, mixture.above, mixture.below)), z

    def _fit_mixture(self, s: np.ndarray) -> ContaminatedNormal:
        """The contaminated normal distribution of the residuals divided by `s`.

        Entries whose standard deviation is hardly above `min_sigma`, such as those of a dead
        sensor, are left out if there are enough others: their residuals are mostly 0, which would
        make sigma too small.

        Residuals of counts are skewed. For these, z is the difference of the square roots of count
        and model (Anscombe's transform), which is nearly symmetric. Counts where the model is at
        most one quantisation step are left out, as outliers cannot be told from noise there. For
        counts `s` is their standard deviation already, so sigma is not estimated but 1.
        """
        residuals, step = self.residuals, self.residuals.resolution.step
        if not residuals.resolution.count_data:
            z, resolved = residuals.values / s, s > 2 * self.min_sigma
            if int(resolved.sum()) >= NOISE_SETTINGS.min_residuals:
                z = z[resolved]
            return fit_contaminated_normal(z, NOISE_SETTINGS.min_relative_sigma)
        selected = residuals.model > step
        if int(selected.sum()) < NOISE_SETTINGS.min_residuals:
            return NO_OUTLIERS
        m = residuals.model[selected]
        unit = np.maximum(s[selected] ** 2 / m, 0.5 * step)
        x = np.maximum(m + residuals.values[selected], 0.0)
        z = 2 * (np.sqrt(x / unit + 0.375) - np.sqrt(m / unit + 0.375))
        return replace(fit_contaminated_normal(z, NOISE_SETTINGS.min_relative_sigma), sigma=1.0)
