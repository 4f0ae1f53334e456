"""The constants of noise estimation, in one place."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class MixtureSettings:
    """The constants of `fit_contaminated_normal`."""

    #: The normal distribution is fitted to residuals within so many sigmas.
    truncation: float = 2.0
    #: Outliers are counted between these, in sigmas; their floor is the lower of the two densities.
    #: That of the first window alone would be taken for outliers where the noise itself has long
    #: tails, and sigma would shrink from one round of a fit to the next.
    outlier_edges: tuple[float, float, float] = (3.0, 5.0, 10.0)
    #: A quantile of magnitudes: low enough if most residuals are outliers, and high enough not to
    #: be that of the few residuals that a model can fit exactly.
    low_share: float = 0.35
    #: The most that the sigma of a narrow peak is of that of the wide one.
    narrow_ratio: float = 0.6
    #: The least share of the residuals in a narrow peak.
    min_narrow_share: float = 0.36
    #: The highest floor beside a narrow peak, relative to its height.
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

    #: Entries for a rough estimate,
    rough_entries: int = 1 << 14
    #: for the selection of the kind of noise,
    kind_entries: int = 1 << 15
    #: and for the estimate of its parameters.
    estimation_entries: int = 1 << 16
    #: The variance function is fitted to so many groups of entries, by the size of the signal.
    signal_groups: int = 24
    #: Scales of slabs differ if their logarithms have at least this standard deviation,
    min_log_spread: float = 0.1
    #: and so many times that of chance.
    min_z_score: float = 5.0
    #: With fewer residuals the noise is common.
    min_residuals: int = 200
    #: Slabs with fewer entries than this on average get no scale of their own,
    min_entries_per_slab: int = 8
    #: nor those with fewer than so many times the rows that a component has in the other modes.
    min_entries_per_parameter: int = 4
    #: Rounds of an estimate at most,
    max_rounds: int = 8
    #: and the change of log standard deviations at which they end.
    log_tolerance: float = 0.005
    #: Degrees of freedom of the t distribution by whose likelihood kinds are compared.
    t_degrees_of_freedom: float = 3.0
    #: The variance of the logarithm of a scale by chance, times the number of entries.
    log_scale_sampling_variance: float = 0.65
    #: The same of a geometric mean of magnitudes.
    mean_log_sampling_variance: float = 1.23
    #: Counts have at least this mean, in steps.
    min_count_mean: float = 0.01
    #: A floor of this share of a standard deviation is negligible: its fourth power is.
    negligible_floor: float = 0.03
    #: In units of its estimate, a standard deviation is not below this.
    min_relative_sigma: float = 0.3
    #: The smallest unit of the histogram of residuals by which their entropy is estimated,
    min_histogram_unit: float = 0.01
    #: where its uniform bins end, in units,
    uniform_limit: float = 5.0
    #: how many there are,
    uniform_bins: int = 20
    #: and by how much each further bin grows,
    bin_growth: float = 1.4
    #: of which there are so many.
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

    #: Residuals are clipped at so many standard deviations: one entry makes no outlying fibre.
    clip_limit: float = 3.0
    #: The least distance of an outlying fibre from the median, in robust standard deviations.
    min_distance: float = 5.0
    #: The least mean of an outlying fibre in absolute value,
    min_mean: float = 0.5
    #: or else its least mean square.
    min_mean_square: float = 2.0
    #: Fibres with fewer entries cannot be outlying,
    min_entries: int = 4
    #: nor can those of a mode with fewer fibres.
    min_fibres: int = 10
    #: Larger data is probed on so many entries first.
    probe_entries: int = 1 << 16
    #: Outlying fibres hold at most this share of the entries.
    max_outlying_share: float = 0.5
    #: Fibres with fewer entries may be constant by chance.
    min_constant_entries: int = 6
    #: With a larger share, constant fibres are taken as regular data.
    max_constant_share: float = 0.5
    #: The share of other entries that equal the one before along the mode is at most this.
    max_tie_share: float = 0.01
    #: Larger data is probed for constant fibres on so many entries first.
    constant_probe_entries: int = 1 << 18


@dataclass(frozen=True)
class StructureSettings:
    """The constants of the tests of residuals."""

    #: Entries of the window that is tested.
    window_entries: int = 1 << 16
    #: Residuals beyond so many standard deviations are outliers, and left out.
    outlier_limit: float = 4.0
    #: The correlation of neighbours that is reported,
    min_autocorrelation: float = 0.1
    #: if it is so many times its standard error.
    min_z_score: float = 5.0
    #: By how much the leading eigenvalue exceeds that of noise, relatively.
    min_eigenvalue_excess: float = 0.3
    #: Fewer residuals are not tested,
    min_residuals: int = 500
    #: nor are smaller ones, in units of the noise: where the model is exact they are roundings.
    exact_limit: float = 0.01


MIXTURE_SETTINGS = MixtureSettings()
NOISE_SETTINGS = NoiseSettings()
FIBRE_SETTINGS = FibreSettings()
STRUCTURE_SETTINGS = StructureSettings()
