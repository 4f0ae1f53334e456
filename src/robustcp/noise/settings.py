"""The constants of noise estimation, in one place."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class MixtureSettings:
    """The constants of `fit_contaminated_normal`."""

    #: The normal distribution is fitted to residuals within this many sigmas.
    truncation: float = 2.0
    #: The edges of two windows in which outliers are counted, in sigmas. The lower of the two
    #: densities is the floor: with the first window alone, long tails of the noise would be taken
    #: for outliers, and sigma would shrink from one round of a fit to the next.
    outlier_edges: tuple[float, float, float] = (3.0, 5.0, 10.0)
    #: The quantile of magnitudes from which a narrow peak is sought: low enough if most residuals
    #: are outliers, but above the few residuals that a model can fit exactly.
    low_share: float = 0.35
    #: The largest ratio of the sigma of a narrow peak to the sigma of the wide one.
    narrow_ratio: float = 0.6
    #: The least share of the residuals in a narrow peak.
    min_narrow_share: float = 0.36
    #: The highest floor of outliers, relative to the height of a narrow peak.
    max_floor_height: float = 0.5

    @cached_property
    def edges(self) -> np.ndarray:
        """The edges of the windows of outliers."""
        return np.array(self.outlier_edges)

    @cached_property
    def truncated_probability(self) -> float:
        """The probability of a standard normal variable to be within the truncation."""
        return math.erf(self.truncation / math.sqrt(2))

    @cached_property
    def truncated_variance(self) -> float:
        """The variance of a standard normal variable truncated there."""
        c = self.truncation
        density = math.exp(-c * c / 2) / math.sqrt(2 * math.pi)
        return 1 - 2 * c * density / self.truncated_probability


@dataclass(frozen=True)
class NoiseSettings:
    """The constants of noise estimation from residuals."""

    #: The most entries for a rough estimate. Like the next two, it is for samples of the usual
    #: size; from larger ones, of data with a long mode, proportionally more are taken.
    rough_entries: int = 1 << 14
    #: The most entries for the selection of the kind of noise.
    kind_entries: int = 1 << 15
    #: The most entries for the estimate of the parameters of the noise.
    estimation_entries: int = 1 << 16
    #: The number of groups of entries, by signal magnitude, for the fit of the variance function.
    signal_groups: int = 24
    #: Scales of slabs differ if their logarithms have at least this standard deviation.
    min_log_spread: float = 0.1
    #: Scales of slabs differ only if their variance exceeds the sampling variance by this z-score.
    min_z_score: float = 5.0
    #: With fewer residuals the noise is common.
    min_residuals: int = 200
    #: Slabs with fewer entries than this on average get no scales of their own.
    min_entries_per_slab: int = 8
    #: Slabs get scales of their own only with this many entries per parameter of the model.
    min_entries_per_parameter: int = 8
    #: By quick estimates they get them only with this many entries per parameter of a component.
    min_entries_per_component_parameter: int = 16
    #: The most rounds of an estimate.
    max_rounds: int = 8
    #: The root mean square change of log standard deviations at which the rounds end.
    log_tolerance: float = 0.005
    #: Degrees of freedom of the t distribution whose likelihood selects the kind of noise.
    t_degrees_of_freedom: float = 3.0
    #: The sampling variance of the logarithm of a scale, times the number of entries.
    log_scale_sampling_variance: float = 0.65
    #: The sampling variance of the log of a geometric mean of magnitudes, times their number.
    mean_log_sampling_variance: float = 1.23
    #: The least mean of counts, in quantisation steps.
    min_count_mean: float = 0.01
    #: A floor below this share of a standard deviation is negligible, as its fourth power enters.
    negligible_floor: float = 0.03
    #: The least standard deviation of standardized residuals.
    min_relative_sigma: float = 0.3
    #: The smallest unit of the histogram of residuals by which their entropy is estimated.
    min_histogram_unit: float = 0.01
    #: The end of the uniform bins of the histogram, in units.
    uniform_limit: float = 5.0
    #: The number of uniform bins.
    uniform_bins: int = 20
    #: The ratio of the edges of each further bin.
    bin_growth: float = 1.4
    #: The number of growing bins.
    growing_bins: int = 399

    @cached_property
    def bin_widths(self) -> np.ndarray:
        """The widths of the bins of the histogram."""
        uniform = np.linspace(0.0, self.uniform_limit, self.uniform_bins + 1)
        growing = self.uniform_limit * self.bin_growth ** np.arange(1, self.growing_bins + 1)
        return np.diff(np.concatenate([uniform, growing]))


@dataclass(frozen=True)
class FibreSettings:
    """The constants by which fibres are flagged, as outlying or as constant."""

    #: Residuals are clipped at this many standard deviations: one entry makes no outlying fibre.
    clip_limit: float = 3.0
    #: The least distance of an outlying fibre from the median, in robust standard deviations.
    min_distance: float = 5.0
    #: A fibre can be outlying if the magnitude of its mean residual is larger than this.
    min_mean: float = 0.5
    #: A fibre can be outlying if its mean squared residual is larger than this.
    min_mean_square: float = 2.0
    #: Fibres with fewer entries cannot be outlying.
    min_entries: int = 4
    #: Fibres along a mode with fewer of them cannot be outlying.
    min_fibres: int = 10
    #: Larger data is probed for outlying fibres on this many entries first.
    probe_entries: int = 1 << 16
    #: Outlying fibres hold at most this share of the entries.
    max_outlying_share: float = 0.5
    #: Fibres with fewer entries may be constant by chance.
    min_constant_entries: int = 6
    #: If a larger share of the fibres is constant, they are taken as regular data.
    max_constant_share: float = 0.5
    #: If a larger share of the other entries equals the previous one, ties are regular data.
    max_tie_share: float = 0.01
    #: Larger data is probed for constant fibres on this many entries first.
    constant_probe_entries: int = 1 << 18


@dataclass(frozen=True)
class StructureSettings:
    """The constants of the tests of residuals."""

    #: The most entries of the window that is tested.
    window_entries: int = 1 << 16
    #: Residuals beyond this many standard deviations are left out as outliers.
    outlier_limit: float = 4.0
    #: The least correlation of neighbours that is reported.
    min_autocorrelation: float = 0.1
    #: The least ratio of a reported correlation to its standard error.
    min_z_score: float = 5.0
    #: By how much a reported leading eigenvalue exceeds that of noise, relatively.
    min_eigenvalue_excess: float = 0.3
    #: Fewer residuals are not tested.
    min_residuals: int = 500
    #: Residuals smaller than this, in units of the noise, are roundings and are not tested.
    exact_limit: float = 0.01


@dataclass(frozen=True)
class PeakSettings:
    """The constants by which a second peak of residuals is found."""

    #: Residuals within this many standard deviations are counted.
    window: float = 10.0
    #: The width of the bins of their histogram.
    bin_width: float = 0.25
    #: A second peak is looked for if one side has more entries beyond 1.5 sigma, by this z-score.
    min_z_score: float = 5.0
    #: And if the difference is at least this share of all entries.
    min_asymmetry: float = 0.01
    #: The distances of the peaks from which the likelihood is maximised.
    initial_distances: tuple[float, ...] = (2.5, 4.0, 6.0)
    #: The most rounds of EM.
    rounds: int = 400
    #: The least share of shifted entries.
    min_share: float = 0.03
    #: The largest share of shifted entries.
    max_share: float = 0.5
    #: The least distance of the peaks, in standard deviations.
    min_distance: float = 2.0
    #: The largest distance: beyond it, a floor of outliers does as well.
    max_distance: float = 7.0
    #: By how much two peaks lower chi-squared at least.
    min_evidence: float = 10.0
    #: The largest chi-squared of two peaks, relative to that of one.
    max_misfit: float = 0.8
    #: The least standard deviation, in units of the resolution.
    min_steps: float = 5.0


MIXTURE_SETTINGS = MixtureSettings()
PEAK_SETTINGS = PeakSettings()
NOISE_SETTINGS = NoiseSettings()
FIBRE_SETTINGS = FibreSettings()
STRUCTURE_SETTINGS = StructureSettings()
