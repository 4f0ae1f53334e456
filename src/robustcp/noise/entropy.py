"""The entropy of a model's residuals, by which starts are compared."""

from __future__ import annotations

import math

import numpy as np

from robustcp._util.quantiles import quantile
from robustcp._util.typing import Factors
from robustcp.engines import Engine
from robustcp.noise.contaminated_normal import NORMAL_LOW_QUANTILE
from robustcp.noise.noise_of_model import standardize_by_main_effects
from robustcp.noise.residuals import Residuals
from robustcp.noise.resolution import Resolution
from robustcp.noise.settings import MIXTURE_SETTINGS, NOISE_SETTINGS


def model_entropy(engine: Engine, factors: Factors, resolution: Resolution) -> float:
    """The entropy of a model's residuals per entry; for small counts their cross entropy."""
    residuals = Residuals.of(engine, factors, resolution).subsample(NOISE_SETTINGS.rough_entries)
    if resolution.small_counts:
        return _count_cross_entropy(residuals)
    return residual_entropy(residuals)


def residual_entropy(residuals: Residuals) -> float:
    """The entropy of residuals per entry, whatever their distribution up to scales of slabs.

    It is the mean of log s plus the entropy of r / s, from a histogram with bins that grow beyond
    the noise. Entries count equally, so that large entries, slabs or leverage cannot dominate it.
    """
    settings = NOISE_SETTINGS
    noise, z = standardize_by_main_effects(residuals, residuals.quickly_scalable_modes)
    if not z.size:
        return 0.0
    magnitudes = np.abs(z)
    unit = max(
        quantile(magnitudes, MIXTURE_SETTINGS.low_share) / NORMAL_LOW_QUANTILE,
        settings.min_histogram_unit,
    )  # so that bins resolve any peak
    bins = _histogram_bins(magnitudes / unit)
    bins[z < 0] += settings.bin_widths.size
    share = np.bincount(bins, minlength=2 * settings.bin_widths.size) / z.size
    occupied = np.flatnonzero(share)
    share, width = share[occupied], settings.bin_widths[occupied % settings.bin_widths.size]
    unit *= noise.sigma  # the geometric mean
    return math.log(unit) - float(np.sum(share * np.log(share / width)))


def _histogram_bins(magnitudes: np.ndarray) -> np.ndarray:
    """The number of each magnitude's bin: uniform bins up to a limit, growing ones beyond."""
    settings = NOISE_SETTINGS
    limit, uniform_bins = settings.uniform_limit, settings.uniform_bins
    bins: np.ndarray = (np.minimum(magnitudes, limit) * (uniform_bins / limit)).astype(np.intp)
    large = np.flatnonzero(magnitudes >= limit)
    growing = np.log(magnitudes[large] / limit) / math.log(settings.bin_growth)
    growing = np.minimum(growing, settings.growing_bins - 1)
    bins[large] = uniform_bins + growing.astype(np.intp)
    return bins


def _count_cross_entropy(residuals: Residuals) -> float:
    """Minus the log likelihood per entry of small counts: Poisson's distribution and outliers.

    Outliers have any distribution, the same for all entries. The entropy of residuals would be
    lowest for models that are near whole numbers.
    """
    from scipy.special import gammaln

    step = residuals.resolution.step
    m = np.maximum(residuals.model / step, NOISE_SETTINGS.min_count_mean)
    x = np.rint(residuals.model / step + residuals.values / step)
    levels, level_numbers = np.unique(x, return_inverse=True)
    likelihood = np.exp(x * np.log(m) - m - gammaln(levels + 1)[level_numbers])
    outlier_share, density = 0.02, np.full(x.size, 1 / levels.size)
    for _ in range(30):
        outliers = outlier_share * density
        outlier_probability = outliers / (outliers + (1 - outlier_share) * likelihood)
        outlier_share = float(np.mean(outlier_probability))
        frequencies = np.bincount(level_numbers, outlier_probability) + 1e-3
        density = (frequencies / frequencies.sum())[level_numbers]
    mixture = outlier_share * density + (1 - outlier_share) * likelihood
    return math.log(step) - float(np.mean(np.log(mixture)))
