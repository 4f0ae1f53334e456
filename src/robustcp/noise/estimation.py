"""Noise from residuals: selection of its kind, robust estimates of its parameters.

The model of a residual r_i is a Gaussian of standard deviation s_i on a floor of outliers, with
s_i^2 = (a + b |m_i| + c m_i^2) times the squares of the scales of its slabs. It is fitted as
mixtures are: entries count by their probability of being clean, and the scales of the slabs and
the variance function are the ratios of weighted squares, in turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import combinations
from typing import Any

import numpy as np

from robustcp._util.quantiles import median, quantile, quantile_of_sorted
from robustcp._util.typing import Factors
from robustcp.engines import Engine, Sample
from robustcp.engines.installed import numba_kernels
from robustcp.noise.contaminated_normal import (
    NORMAL_LOW_QUANTILE,
    ContaminatedNormal,
    degrees_of_freedom_correction,
    fit_contaminated_normal,
)
from robustcp.noise.model import COMMON, Kind, Noise
from robustcp.noise.resolution import Resolution
from robustcp.noise.settings import MIXTURE_SETTINGS, NOISE_SETTINGS, NoiseSettings
from robustcp.optimize.units import Units

#: The lowest magnitude of which there is a logarithm.
MIN_MAGNITUDE = 1e-300


class Residuals:
    """Some residuals, and, when asked for, where they are and what the model says there.

    Attributes
    ----------
    values : float64 array (count,)
    shape : tuple of int
        That of the data.
    resolution : Resolution
        What is too small to be seen in the data.
    count : float
        How many entries the data has.
    settings : NoiseSettings
        The constants of what is estimated from them.
    """

    def __init__(
        self,
        sample: Sample,
        read_data: Callable[[], np.ndarray],
        shape: tuple[int, ...],
        resolution: Resolution,
        count: float | None = None,
        selection: np.ndarray | None = None,
        multiplier: np.ndarray | None = None,
        settings: NoiseSettings = NOISE_SETTINGS,
    ) -> None:
        self.settings = settings
        self._sample, self._read_data, self._selection, self._multiplier = (
            sample,
            read_data,
            selection,
            multiplier,
        )
        self.shape, self.resolution = shape, resolution
        self.count = sample.values.size if count is None else count
        self.values = self._select(
            sample.values if multiplier is None else sample.values * multiplier
        )

    @classmethod
    def of(
        cls,
        engine: Engine,
        factors: Factors,
        resolution: Resolution,
        multiplier: np.ndarray | None = None,
    ) -> Residuals:
        """At the engine's sample of entries; multiplied by something, such as for leverage."""
        sample = engine.sample(factors)
        read_data = lambda: engine.sample().values  # noqa: E731 - only where it is asked for
        return cls(sample, read_data, engine.shape, resolution, engine.count, multiplier=multiplier)

    def subsample(self, max_count: int) -> Residuals:
        """Not more than so many of them, drawn at random."""
        if self.values.size <= max_count:
            return self
        selection = _draw_indices(self.values.size, max_count)
        selection = selection if self._selection is None else self._selection[selection]
        return Residuals(
            self._sample,
            self._read_data,
            self.shape,
            self.resolution,
            self.count,
            selection,
            self._multiplier,
            self.settings,
        )

    def _select(self, x: np.ndarray) -> np.ndarray:
        return x if self._selection is None else x[self._selection]

    @cached_property
    def model(self) -> np.ndarray:
        return np.asarray(self._select(self._read_data() - self._sample.values))

    @cached_property
    def indices(self) -> tuple[np.ndarray, ...]:
        return tuple(map(self._select, self._sample.indices))

    @property
    def scalable_modes(self) -> list[int]:
        """Modes whose slabs may have scales of their own.

        Their slabs have more than a few entries here; and in all so many that no component can be
        spent on fitting one of them exactly, as it can in a matrix: that slab would then have no
        noise, and all the weight.
        """
        return [
            mode
            for mode, size in enumerate(self.shape)
            if self.values.size >= self.settings.min_entries_per_slab * size
            and self.count
            >= self.settings.min_entries_per_parameter * size * (sum(self.shape) - size)
        ]

    def counts(self, mode: int) -> np.ndarray:
        """How many of them there are in each slab of a mode."""
        if self.values.size == math.prod(self.shape):
            return np.full(self.shape[mode], self.values.size // self.shape[mode])
        return np.bincount(self.indices[mode], minlength=self.shape[mode])

    @cached_property
    def signal_magnitudes(self) -> np.ndarray:
        """The size of the signal."""
        return np.asarray(np.abs(self.model))

    @cached_property
    def groups(self) -> np.ndarray:
        """Which of the groups of entries with a signal of about the same size each is in."""
        order = np.argsort(self.signal_magnitudes)
        ordered = self.signal_magnitudes[order]
        edges = [
            quantile_of_sorted(ordered, k / self.settings.signal_groups)
            for k in range(1, self.settings.signal_groups)
        ]
        ends = ordered.searchsorted(edges, side="right")
        labels = np.empty(self.signal_magnitudes.size, dtype=np.intp)
        labels[order] = np.repeat(
            np.arange(self.settings.signal_groups), np.diff(ends, prepend=0, append=order.size)
        )
        return labels

    @cached_property
    def group_means(self) -> np.ndarray:
        """The mean of 1, |m| and m^2 in each group."""
        count = np.maximum(np.bincount(self.groups, minlength=self.settings.signal_groups), 1)
        powers = (
            np.ones_like(self.signal_magnitudes),
            self.signal_magnitudes,
            self.signal_magnitudes**2,
        )
        sums = [
            np.bincount(self.groups, power, minlength=self.settings.signal_groups)
            for power in powers
        ]
        return np.stack(sums, axis=1) / count[:, None]


@lru_cache(maxsize=4)
def _draw_indices(count: int, max_count: int) -> np.ndarray:
    indices = np.sort(np.random.default_rng(0).permutation(count)[:max_count])
    indices.setflags(write=False)
    return indices


# What residuals show


def estimate_noise(
    residuals: Residuals,
    kind: Kind | None = None,
    initial: Noise | None = None,
    slabs: Sequence[np.ndarray | None] = (),
) -> Noise:
    """The noise of residuals, of a given or else a selected kind.

    `initial` is what it was before, if that is known, and `slabs` the scales that are known.
    """
    if kind is None:
        kind, initial = select_kind(residuals)
    if kind == COMMON:
        return estimate_common_noise(residuals)
    return _NoiseEstimator(
        residuals.subsample(residuals.settings.estimation_entries), kind, initial, slabs
    ).estimate()


def estimate_model_noise(
    engine: Engine,
    factors: Factors,
    resolution: Resolution,
    units: Units,
    kind: Kind | None = None,
    initial: Noise | None = None,
) -> Noise:
    """The noise that the residuals of a model show, corrected for the degrees of freedom.

    Known standard deviations (the engine's scales, in the units of the data) are not estimated. All
    else is in the units of the fit.
    """
    residuals = Residuals.of(engine, factors, resolution)
    known_scales = engine.view.scales
    if known_scales is not None:
        noise = estimate_common_noise(residuals, 1 / known_scales.unit / units.factor)
        return replace(noise, known_sigmas=known_scales.slabs)
    noise = estimate_noise(residuals, kind if engine.takes_scales else COMMON, initial)
    rank = factors[0].shape[1]
    return noise.inflated(degrees_of_freedom_correction(engine, rank, noise.clean))


def select_kind(residuals: Residuals) -> tuple[Kind, Noise]:
    """The kind of noise that some of the residuals show, and what they say of it.

    Kinds grow by the mode whose slabs differ most, with and without a part by signal, as long as
    there is a difference; the best is that of the highest likelihood, penalised by the number of
    parameters. The noise of small counts grows with the signal.
    """
    sample = residuals.subsample(residuals.settings.kind_entries)
    if sample.resolution.small_counts and sample.values.size >= sample.settings.min_residuals:
        noise = _NoiseEstimator(sample, Kind(signal=True)).estimate()
        return noise.kind, noise
    common_noise, counts = estimate_common_noise(sample), sample.resolution.count_data
    negligible = (
        common_noise.sigma <= sample.resolution.min_entry_sigma
        and common_noise.rejected_share <= 0.5
    )
    if (negligible and not counts) or sample.values.size < sample.settings.min_residuals:
        return COMMON, common_noise
    modes, by_signal = _find_heteroscedasticity(sample, common_noise)
    if not (modes or by_signal or counts):
        return COMMON, common_noise
    candidates = [common_noise, *_grow_kinds(sample, common_noise, signal=False)]
    if by_signal or counts or _find_heteroscedasticity(sample, candidates[-1])[1]:
        candidates += _grow_kinds(sample, common_noise, signal=True)
    best = min(candidates, key=lambda noise: _information_criterion(sample, noise))
    return best.kind, best


def _grow_kinds(sample: Residuals, common_noise: Noise, *, signal: bool) -> list[Noise]:
    """Noises of kinds that grow, one mode at a time."""
    candidates, kind = [], Kind(signal=signal)
    if signal:
        candidates.append(_NoiseEstimator(sample, kind).estimate())
    while True:
        modes, _ = _find_heteroscedasticity(sample, candidates[-1] if candidates else common_noise)
        new = [mode for mode in modes if mode not in kind.modes]
        if not new:
            return candidates
        kind = Kind(tuple(sorted((*kind.modes, new[0]))), signal)
        candidates.append(_NoiseEstimator(sample, kind).estimate())


def _find_heteroscedasticity(sample: Residuals, noise: Noise) -> tuple[list[int], bool]:
    """Modes whose slabs have noise of different size, most different first; and the signal."""
    settings = sample.settings
    z = np.minimum(np.abs(sample.values) / entry_sigmas(sample, noise), 2.5)
    spreads = np.zeros(len(sample.shape))
    for mode in sample.scalable_modes:
        spreads[mode] = _log_scale_spread(z, sample.indices[mode], sample.counts(mode), settings)
    modes = [int(n) for n in np.argsort(spreads)[::-1] if spreads[n] >= settings.min_log_spread]
    return modes, _log_scale_spread(
        z, sample.groups, np.bincount(sample.groups, minlength=settings.signal_groups), settings
    ) >= settings.min_log_spread


def _log_scale_spread(
    z: np.ndarray, group: np.ndarray, count: np.ndarray, settings: NoiseSettings
) -> float:
    """The standard deviation of the log scales of groups, of what is not chance; 0 if it may be."""
    full = count > 1
    mean = np.bincount(group, z, minlength=count.size)[full] / count[full]
    count, degrees_of_freedom = count[full], int(full.sum()) - 1
    grand_mean, variance = float(np.average(mean, weights=count)), float(z.var())
    if degrees_of_freedom < 1 or variance == 0 or grand_mean == 0:
        return 0.0
    excess = float(np.sum(count * (mean - grand_mean) ** 2)) / variance - degrees_of_freedom
    if excess < settings.min_z_score * math.sqrt(2 * degrees_of_freedom):
        return 0.0
    # Cut at 2.5 sigma, the mean of |z| grows a tenth less than the scale.
    return math.sqrt(excess * variance / float(count.sum())) / (0.9 * grand_mean)


def _information_criterion(sample: Residuals, noise: Noise) -> float:
    """Minus the log likelihood of a heavy-tailed distribution, and 1 for each number (Akaike).

    The scales of slabs are as many numbers as shrinkage leaves of them.
    """
    settings = sample.settings
    s = entry_sigmas(sample, noise)
    square = (sample.values / s) ** 2
    squared_scale = 0.7
    for _ in range(30):
        weights = (settings.t_degrees_of_freedom + 1) / (
            settings.t_degrees_of_freedom + square / squared_scale
        )
        new = max(float(np.mean(weights * square)), settings.min_relative_sigma)
        if abs(new / squared_scale - 1) < 1e-4:
            break
        squared_scale = new
    tails = (
        (settings.t_degrees_of_freedom + 1)
        / 2
        * np.log1p(square / (settings.t_degrees_of_freedom * squared_scale))
    )
    negative_log_likelihood = float(np.sum(np.log(s) + tails)) + 0.5 * s.size * math.log(
        squared_scale
    )
    parameters = 2.0 * noise.kind.signal
    for scales, index in zip(noise.slabs, sample.indices, strict=True):
        if scales is not None:
            variance = float(np.var(np.log(scales)))
            sampling_variance = settings.log_scale_sampling_variance / np.maximum(
                np.bincount(index, minlength=scales.size), 1
            )
            parameters += float(np.sum(variance / (variance + sampling_variance)))
    return negative_log_likelihood + parameters


def entry_sigmas(residuals: Residuals, noise: Noise) -> np.ndarray:
    """The standard deviation of each residual."""
    if noise.homoscedastic:
        return np.broadcast_to(noise.sigma, residuals.values.shape)
    (a, b, c), s = noise.variance, noise.sigma
    return _entry_sigmas(residuals, (a * s * s, b * s, c), noise.slabs, noise.least)


def _entry_sigmas(
    residuals: Residuals,
    variance: tuple[float, float, float],
    slabs: Sequence[np.ndarray | None],
    min_sigma: float,
) -> np.ndarray:
    a, b, c = variance
    v: Any = (
        a + (b + c * residuals.signal_magnitudes) * residuals.signal_magnitudes if b or c else a
    )
    for scales, index in zip(slabs, residuals.indices, strict=True):
        if scales is not None:
            v = v * scales[index] ** 2
    return np.broadcast_to(_floor_sigmas(v, min_sigma), residuals.values.shape)


def _floor_sigmas(variance: np.ndarray | float, min_sigma: float) -> np.ndarray:
    """Standard deviations that do not go below the least one, smoothly."""
    floor = min_sigma * min_sigma
    if floor == 0:
        return np.sqrt(variance)
    # sqrt(hypot(variance, floor)), which takes longer
    high = np.maximum(variance, floor)
    ratio = np.minimum(variance, floor) / high
    return np.asarray(np.sqrt(high * np.sqrt(1.0 + ratio * ratio)))


def rms_log_ratio(residuals: Residuals, first: Noise, second: Noise) -> float:
    """How different two noises are: the root mean square of the ratio's logarithm."""
    if first.homoscedastic and second.homoscedastic:
        return abs(math.log(first.sigma / second.sigma))
    ratio = entry_sigmas(residuals, first) / entry_sigmas(residuals, second)
    return float(np.sqrt(np.mean(np.log(ratio) ** 2)))


# Estimates


def estimate_common_noise(residuals: Residuals, sigma: float | None = None) -> Noise:
    """Noise that is the same for all entries: known, or estimated."""
    if sigma is None:
        mixture = fit_contaminated_normal(
            residuals.values, residuals.resolution.min_sigma, residuals.settings.kind_entries
        )
    else:
        mixture = fit_contaminated_normal(
            residuals.values / sigma,
            residuals.settings.min_relative_sigma,
            residuals.settings.kind_entries,
        )
        mixture = replace(mixture, sigma=sigma)
    return Noise.common(
        mixture.sigma,
        len(residuals.shape),
        above=mixture.above,
        below=mixture.below,
        clean=mixture.clean,
        rejected_share=mixture.rejected_share,
    )


def estimate_rough_noise(engine: Engine, factors: Factors, resolution: Resolution) -> Noise:
    """Noise with a scale per slab, by main effects; common for an engine without scales."""
    residuals = Residuals.of(engine, factors, resolution)
    residuals = residuals.subsample(residuals.settings.rough_entries)
    if not engine.takes_scales:
        return noise_from_main_effects(residuals, ())
    if resolution.small_counts:
        return _NoiseEstimator(residuals, Kind(signal=True)).estimate().with_signal(factors)
    return noise_from_main_effects(residuals, residuals.scalable_modes)


def model_entropy(engine: Engine, factors: Factors, resolution: Resolution) -> float:
    """The entropy of a model's residuals, per entry; of small counts, what they cost."""
    residuals = Residuals.of(engine, factors, resolution)
    residuals = residuals.subsample(residuals.settings.rough_entries)
    if resolution.small_counts:
        return count_negative_log_likelihood(residuals)
    return residual_entropy(residuals)


def count_negative_log_likelihood(residuals: Residuals) -> float:
    """Minus the log likelihood of small counts, per entry: of Poisson's distribution and outliers.

    Outliers have any distribution, the same for all entries. The entropy of residuals would be
    lowest for models that are near whole numbers.
    """
    from scipy.special import gammaln

    step = residuals.resolution.step
    m = np.maximum(residuals.model / step, residuals.settings.min_count_mean)
    x = np.rint(residuals.model / step + residuals.values / step)
    levels, level_numbers = np.unique(x, return_inverse=True)
    likelihood = np.exp(x * np.log(m) - m - gammaln(levels + 1)[level_numbers])
    outlier_share, density = 0.02, np.full(x.size, 1 / levels.size)
    for _ in range(30):
        outlier_probability = (
            outlier_share * density / (outlier_share * density + (1 - outlier_share) * likelihood)
        )
        outlier_share = float(np.mean(outlier_probability))
        frequencies = np.bincount(level_numbers, outlier_probability) + 1e-3
        density = (frequencies / frequencies.sum())[level_numbers]
    return math.log(step) - float(
        np.mean(np.log(outlier_share * density + (1 - outlier_share) * likelihood))
    )


def noise_from_main_effects(residuals: Residuals, modes: Sequence[int]) -> Noise:
    """Noise with a scale for each slab of some modes: a first look, and a quick one.

    The scales are geometric means of magnitudes, which add up as logarithms do: the main effects
    of an analysis of variance. Modes whose slabs hardly differ have none.
    """
    return _standardize_by_main_effects(residuals, modes)[0]


def _standardize_by_main_effects(
    residuals: Residuals, modes: Sequence[int]
) -> tuple[Noise, np.ndarray]:
    """The same, and residuals in standard deviations."""
    r, min_sigma = np.abs(residuals.values), residuals.resolution.min_entry_sigma
    if not r.size:
        return estimate_common_noise(residuals), r
    floor = max(1e-2 * min_sigma, 1e-3 * median(r))
    estimate_effects = (
        _estimate_main_effects if numba_kernels() is None else _estimate_main_effects_compiled
    )
    slabs, z = estimate_effects(residuals, modes, floor)
    unit = fit_contaminated_normal(z, min_sigma).sigma
    if all(scales is None for scales in slabs):
        return Noise(unit, (1.0, 0.0, 0.0), slabs, min_sigma), z / unit
    mean_log = min_log = 0.0
    for mode, scales in enumerate(slabs):
        if scales is not None:
            log_scales = np.log(scales)
            mean_log += float(residuals.counts(mode) @ log_scales) / r.size
            min_log += float(log_scales.min())
    sigma, z = unit * math.exp(mean_log), z / unit
    if min_sigma > residuals.settings.negligible_floor * unit * math.exp(min_log):
        s = _entry_sigmas(residuals, (unit**2, 0.0, 0.0), slabs, min_sigma)
        sigma, z = float(np.exp(np.mean(np.log(s)))), residuals.values / s
    return Noise(sigma, ((unit / sigma) ** 2, 0.0, 0.0), slabs, min_sigma), z


SlabScales = tuple[np.ndarray | None, ...]


def _estimate_main_effects(
    residuals: Residuals, modes: Sequence[int], floor: float
) -> tuple[SlabScales, np.ndarray]:
    """Scales of slabs from the logarithms of magnitudes, and residuals in their units."""
    logs = np.log(np.maximum(np.abs(residuals.values), floor))
    slabs: list[np.ndarray | None] = [None] * len(residuals.shape)
    for mode in modes:
        size, index = residuals.shape[mode], residuals.indices[mode]
        count = residuals.counts(mode)
        effects = np.bincount(index, logs, minlength=size) / np.maximum(count, 1)
        if not count.all():
            effects[count == 0] = float(logs.mean())
        log_scales, _ = _shrink_log_scales(
            effects, count, residuals.settings.mean_log_sampling_variance
        )
        if log_scales.std() >= residuals.settings.min_log_spread:
            slabs[mode] = np.exp(log_scales)
            logs = logs - log_scales[index]
    return tuple(slabs), residuals.values / _entry_sigmas(residuals, (1.0, 0.0, 0.0), slabs, 0.0)


def _estimate_main_effects_compiled(
    residuals: Residuals, modes: Sequence[int], floor: float
) -> tuple[SlabScales, np.ndarray]:
    """The same by compiled code: `main_effects` in engines/passes/numba/noise.py."""
    code, slabs = numba_kernels(), [None] * len(residuals.shape)
    if not modes:
        return tuple(slabs), residuals.values
    values = np.ascontiguousarray(residuals.values)
    counts = [residuals.counts(mode).astype(np.float64) for mode in modes]
    indices = [np.ascontiguousarray(residuals.indices[mode], np.int64) for mode in modes]
    all_counts, sizes = np.concatenate(counts), np.array([count.size for count in counts])
    index_addresses = np.array([code.address(index) for index in indices])
    max_weights = (max(median(count), 1e-9) for count in counts)
    numbers = np.array(
        (
            max(floor, MIN_MAGNITUDE),
            residuals.settings.mean_log_sampling_variance,
            residuals.settings.min_log_spread,
            *max_weights,
        )
    )
    scales, z = np.empty(all_counts.size), np.empty(values.size)
    pointers = map(code.address, (index_addresses, sizes, all_counts, numbers, scales, z))
    mode_bits = code.main_effects().run(code.address(values), values.size, len(modes), *pointers)
    slab_scales: list[np.ndarray | None] = list(slabs)
    for n, (mode, mode_scales) in enumerate(
        zip(modes, np.split(scales, sizes.cumsum()[:-1]), strict=True)
    ):
        slab_scales[mode] = mode_scales if int(mode_bits) >> n & 1 else None
    return tuple(slab_scales), z


def residual_entropy(residuals: Residuals) -> float:
    """The entropy of residuals, per entry, of any shape but of scales as slabs have them.

    The mean of log s plus the entropy of r / s, from a histogram with bins that grow beyond the
    noise. Entries count equally, so that large entries, slabs or leverage cannot dominate it.
    """
    settings = residuals.settings
    noise, z = _standardize_by_main_effects(residuals, residuals.scalable_modes)
    if not z.size:
        return 0.0
    magnitudes = np.abs(z)
    unit = max(
        quantile(magnitudes, MIXTURE_SETTINGS.low_share) / NORMAL_LOW_QUANTILE,
        settings.min_histogram_unit,
    )  # so that bins resolve any peak
    bins = _histogram_bins(magnitudes / unit, settings)
    bins[z < 0] += settings.bin_widths.size
    share = np.bincount(bins, minlength=2 * settings.bin_widths.size) / z.size
    occupied = np.flatnonzero(share)
    share, width = share[occupied], settings.bin_widths[occupied % settings.bin_widths.size]
    unit *= noise.sigma  # the geometric mean
    return math.log(unit) - float(np.sum(share * np.log(share / width)))


def _histogram_bins(magnitudes: np.ndarray, settings: NoiseSettings) -> np.ndarray:
    """The bins of magnitudes in a histogram of even bins and, beyond them, growing ones."""
    large = np.flatnonzero(magnitudes >= settings.uniform_limit)
    bins: np.ndarray = (
        np.minimum(magnitudes, settings.uniform_limit)
        * (settings.uniform_bins / settings.uniform_limit)
    ).astype(np.intp)
    growing = np.log(magnitudes[large] / settings.uniform_limit) / math.log(settings.bin_growth)
    bins[large] = settings.uniform_bins + np.minimum(growing, settings.growing_bins - 1).astype(
        np.intp
    )
    return bins


class _NoiseEstimator:
    """Noise of one kind and a floor of outliers, fitted to some residuals."""

    def __init__(
        self,
        residuals: Residuals,
        kind: Kind,
        initial: Noise | None = None,
        known_slabs: Sequence[np.ndarray | None] = (),
    ) -> None:
        self.residuals, self.kind = residuals, kind
        self.slabs: list[np.ndarray | None] = list(known_slabs) or [None] * len(residuals.shape)
        self.free_modes = [mode for mode in kind.modes if self.slabs[mode] is None]
        if initial is not None and initial.kind == kind:
            (a, b, c), sigma = initial.variance, initial.sigma
            self.variance, self.slabs = (a * sigma**2, b * sigma, c), list(initial.slabs)
            return
        r = np.abs(residuals.values)
        sigma = fit_contaminated_normal(r, residuals.resolution.min_sigma).sigma
        if sigma <= residuals.resolution.min_entry_sigma:  # the core may be entries that are exact
            sigma = max(sigma, 1.4826 * float(np.median(r)))
        self.variance = (sigma**2, 0.0, 0.0)
        if kind.signal:
            self.variance = (0.0, residuals.resolution.step, 0.0)
            if not residuals.resolution.count_data:
                medians = _group_medians(r, residuals.groups, self.residuals.settings.signal_groups)
                count = np.bincount(
                    residuals.groups, minlength=self.residuals.settings.signal_groups
                )
                self._fit_variance((1.4826 * medians) ** 2, count)
        for mode in self.free_modes:
            size, index = residuals.shape[mode], residuals.indices[mode]
            medians = _group_medians(r / self.entry_sigmas(), index, size)
            min_median = max(1e-3 * float(np.median(medians)), math.exp(self._min_log_scale))
            logs = np.log(np.maximum(medians, min_median))
            self.slabs[mode] = _shrink_scales(
                logs, np.bincount(index, minlength=size), self._sampling_variance
            )[0]

    @property
    def _sampling_variance(self) -> float:
        return self.residuals.settings.log_scale_sampling_variance

    def entry_sigmas(self) -> np.ndarray:
        """The standard deviation of each residual."""
        min_sigma = self.residuals.resolution.min_entry_sigma
        return _entry_sigmas(self.residuals, self.variance, self.slabs, min_sigma)

    @property
    def _min_log_scale(self) -> float:
        """The log scale of a slab whose noise is too small to be seen, as of a dead sensor."""
        magnitudes, (a, b, c) = self.residuals.signal_magnitudes, self.variance
        mean_variance = (
            a + b * float(np.mean(magnitudes)) + c * float(np.mean(magnitudes**2)) if b or c else a
        )
        min_sigma = self.residuals.resolution.min_entry_sigma
        return min(0.0, math.log(min_sigma) - 0.5 * math.log(max(mean_variance, min_sigma**2)))

    def estimate(self) -> Noise:
        """The noise after some rounds."""
        before = self.entry_sigmas()
        for _ in range(self.residuals.settings.max_rounds):
            self._update()
            sigmas = self.entry_sigmas()
            change = float(np.sqrt(np.mean(np.log(sigmas / before) ** 2)))
            before = sigmas
            if change < self.residuals.settings.log_tolerance:
                break
        mixture = self._fit_mixture(before)
        a, b, c = (coefficient * mixture.sigma**2 for coefficient in self.variance)
        self.variance = (a, b, c)
        sigma = float(np.exp(np.mean(np.log(self.entry_sigmas()))))
        a, b, c = a / sigma**2, b / sigma, c
        if self.kind.signal and b == c == 0:
            c = 1e-12  # of this kind still
        return Noise(
            sigma,
            (a, b, c),
            tuple(self.slabs),
            self.residuals.resolution.min_entry_sigma,
            mixture.above,
            mixture.below,
            mixture.clean,
            rejected_share=mixture.rejected_share,
        )

    def _update(self) -> None:
        residuals = self.residuals
        if self.kind.signal:
            weights, _ = self._clean_probabilities()
            entry_scales = np.ones_like(weights)
            for scales, index in zip(self.slabs, residuals.indices, strict=True):
                entry_scales = entry_scales if scales is None else entry_scales * scales[index]
            squares = weights * (residuals.values / entry_scales) ** 2
            count = np.bincount(
                residuals.groups, weights, minlength=self.residuals.settings.signal_groups
            )
            sums = np.bincount(
                residuals.groups, squares, minlength=self.residuals.settings.signal_groups
            )
            self._fit_variance(sums / np.maximum(count, 1e-300), count)
        if not (self.kind.signal or self.free_modes):  # the scales of all slabs are known
            mean_scale = self._fit_mixture(self.entry_sigmas()).sigma
            self.variance = (self.variance[0] * mean_scale**2, 0.0, 0.0)
        for mode in self.free_modes:
            weights, z = self._clean_probabilities()
            index, size = residuals.indices[mode], residuals.shape[mode]
            count = np.bincount(index, weights, minlength=size)
            sums = np.bincount(index, weights * z * z, minlength=size)
            old = self.slabs[mode]
            assert old is not None
            ratio = np.clip(sums / np.maximum(count, 1e-300), 0.01, 100.0)
            ratio[count == 0] = 1.0
            logs = np.maximum(np.log(old) + 0.5 * np.log(ratio), self._min_log_scale)
            self.slabs[mode], mean_scale = _shrink_scales(logs, count, self._sampling_variance)
            if not self.kind.signal:
                self.variance = (self.variance[0] * mean_scale**2, 0.0, 0.0)

    def _clean_probabilities(self) -> tuple[np.ndarray, np.ndarray]:
        """The probability of each residual to be clean, and the standardized residuals."""
        s = self.entry_sigmas()
        mixture = self._fit_mixture(s)
        z = self.residuals.values / s
        peak = np.exp(-0.5 * (z / mixture.sigma) ** 2)
        return peak / (peak + np.where(z >= 0, mixture.above, mixture.below)), z

    def _fit_mixture(self, s: np.ndarray) -> ContaminatedNormal:
        """The core of residuals in units of their standard deviations.

        Entries whose noise is too small to be seen, as of a dead sensor, have residuals of 0 in
        any unit, and are left out if there are others.

        Counts are skewed: where they are not small, the square root takes that away; where they
        are, nothing can be told. Their standard deviations are by signal, and need no other unit.
        """
        residuals, step = self.residuals, self.residuals.resolution.step
        if not residuals.resolution.count_data:
            resolved = s > 2 * residuals.resolution.min_entry_sigma
            if int(resolved.sum()) < self.residuals.settings.min_residuals:
                return fit_contaminated_normal(
                    residuals.values / s, self.residuals.settings.min_relative_sigma
                )
            return fit_contaminated_normal(
                residuals.values[resolved] / s[resolved], self.residuals.settings.min_relative_sigma
            )
        selected = residuals.model > step
        if int(selected.sum()) < self.residuals.settings.min_residuals:
            return NO_OUTLIERS
        m = residuals.model[selected]
        unit = np.maximum(s[selected] ** 2 / m, 0.5 * step)
        x = np.maximum(m + residuals.values[selected], 0.0)
        z = 2 * (np.sqrt(x / unit + 0.375) - np.sqrt(m / unit + 0.375))
        return replace(
            fit_contaminated_normal(z, self.residuals.settings.min_relative_sigma), sigma=1.0
        )

    def _fit_variance(self, squares: np.ndarray, count: np.ndarray) -> None:
        """The variance function that explains the mean squares of the groups.

        Its coefficients are nonnegative, and groups weighted by inverse fitted variances.
        """
        terms, floor = self.residuals.group_means, self.residuals.resolution.min_entry_sigma**2
        nonempty = count > 0
        terms, squares, count = terms[nonempty], squares[nonempty], count[nonempty]
        fitted = np.hypot(squares, floor)
        coefficients = np.zeros(3)
        for _ in range(8):
            weights = np.sqrt(count) / fitted
            coefficients = _nonnegative_least_squares(terms * weights[:, None], squares * weights)
            fitted = np.hypot(terms @ coefficients, floor)
        self.variance = (float(coefficients[0]), float(coefficients[1]), float(coefficients[2]))


#: The core where nothing can be told of outliers.
NO_OUTLIERS = ContaminatedNormal(1.0, 1e-4, 1e-4, 1.0, 0.0)


def _shrink_scales(
    logs: np.ndarray, count: np.ndarray, sampling_variance: float
) -> tuple[np.ndarray, float]:
    """Scales of slabs of geometric mean 1, and that mean, from the logarithms of estimates.

    Estimates from few entries are shrunk to the mean, by what their variance is beyond that of
    chance.
    """
    log_scales, log_mean = _shrink_log_scales(logs, count, sampling_variance)
    return np.exp(log_scales), math.exp(log_mean)


def _shrink_log_scales(
    logs: np.ndarray, count: np.ndarray, sampling_variance: float
) -> tuple[np.ndarray, float]:
    """Log scales of slabs, shrunk, of mean 0; and the log of their mean."""
    count = np.maximum(count, 1e-9)
    weights = np.minimum(count, median(count))
    mean = float(logs @ weights / weights.sum())
    variances, centered = sampling_variance / count, logs - mean
    excess_variance = max(0.0, float(np.mean(centered * centered - np.minimum(variances, 1.0))))
    shrunk = (
        centered * (excess_variance / (excess_variance + variances))
        if excess_variance
        else 0.0 * centered
    )
    shrunk_mean = float(shrunk.mean())
    return shrunk - shrunk_mean, mean + shrunk_mean


def _group_medians(x: np.ndarray, group: np.ndarray, size: int) -> np.ndarray:
    """The median of each group; of an empty one, that of the others."""
    order = np.lexsort((x, group))
    count = np.bincount(group, minlength=size)
    first = np.cumsum(count) - count
    medians = x[order][np.minimum(first + count // 2, x.size - 1)]
    nonempty = count > 0
    return np.asarray(np.where(nonempty, medians, np.median(medians[nonempty])))


def _nonnegative_least_squares(terms: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The best of few nonnegative coefficients: the best of those that use some of the terms."""
    norms = np.sqrt(np.sum(terms**2, axis=0))
    columns = [k for k in range(terms.shape[1]) if norms[k] > 0]
    best, least_error = np.zeros(terms.shape[1]), math.inf
    for count in range(1, len(columns) + 1):
        for subset in map(list, combinations(columns, count)):
            coefficients = np.linalg.lstsq(terms[:, subset] / norms[subset], targets, rcond=None)[0]
            if np.any(coefficients < 0):
                continue
            error = float(np.sum((terms[:, subset] / norms[subset] @ coefficients - targets) ** 2))
            if error < least_error * (1 - 1e-9):
                least_error = error
                best = np.zeros(terms.shape[1])
                best[subset] = coefficients / norms[subset]
    return best
