"""The magnitudes of the entries of some data, and what is too small to be seen in it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from robustcp._util.quantiles import quantile
from robustcp.engines import Engine

#: With fewer ordinary entries, gross outliers and quantisation are not looked for.
MIN_ENTRIES = 100
#: The most entries that magnitudes are computed from; of more, every k-th is used.
MAGNITUDE_ENTRIES = 1 << 17
#: Counts are small if most are smaller than this.
SMALL_COUNT_LIMIT = 16.0
#: The most entries among which a quantisation step is looked for.
QUANTISATION_ENTRIES = 1 << 13


@dataclass(frozen=True)
class Magnitudes:
    """The median of the nonzero magnitudes of some data, and their 0.9 quantile."""

    median: float
    high_quantile: float

    @classmethod
    def of(cls, engine: Engine) -> Magnitudes:
        sample = engine.sample().values
        magnitudes = np.abs(sample[:: max(1, -(-sample.size // MAGNITUDE_ENTRIES))])
        magnitudes = magnitudes[magnitudes > 0]
        if not magnitudes.size:
            return cls(engine.max_abs or 1.0, engine.max_abs or 1.0)
        return cls(quantile(magnitudes, 0.5), quantile(magnitudes, 0.9))


@dataclass(frozen=True)
class Resolution:
    """What is too small to be seen in some data.

    Attributes
    ----------
    min_sigma : float
        The least standard deviation of noise that is common to all entries: the size of roundings
        and of unconverged residuals, and half a quantisation step.
    min_entry_sigma : float
        The least standard deviation of heteroscedastic noise: half a quantisation step, or 1e-3 of
        the median magnitude. Without it the likelihood is unbounded where entries are exact.
    step : float
        The quantisation step; 0 if there is none.
    count_data : bool
        Whether the data is quantised and not negative.
    small_counts : bool
        Whether the data are counts too small to be treated as real numbers.
    """

    min_sigma: float
    min_entry_sigma: float
    step: float = 0.0
    count_data: bool = False
    small_counts: bool = False

    @classmethod
    def of(cls, engine: Engine, magnitudes: Magnitudes | None = None) -> Resolution:
        magnitudes = magnitudes or Magnitudes.of(engine)
        values = engine.sample().values
        step = quantisation_step(values)
        min_sigma = max(
            8 * engine.machine_epsilon * magnitudes.high_quantile,
            1e-5 * magnitudes.median,
            step / 2,
        )
        count_data = step > 0 and float(values.min()) >= 0
        small_counts = count_data and float(np.median(values)) < SMALL_COUNT_LIMIT * step
        return cls(
            min_sigma, max(step / 2, 1e-3 * magnitudes.median), step, count_data, small_counts
        )

    def scaled(self, factor: float) -> Resolution:
        """The resolution of the data times a factor."""
        min_sigma, min_entry_sigma, step = (
            factor * part for part in (self.min_sigma, self.min_entry_sigma, self.step)
        )
        return replace(self, min_sigma=min_sigma, min_entry_sigma=min_entry_sigma, step=step)


def quantisation_step(values: np.ndarray) -> float:
    """The number that all differences of values are multiples of; 0 if they are not quantised.

    A number more than a million times smaller than the values does not count.
    """
    if values.size < MIN_ENTRIES:
        return 0.0
    sample = values[:: -(-values.size // QUANTISATION_ENTRIES)]
    levels = np.unique(sample)
    if levels.size < 2 or levels.size > sample.size / 2:
        return 0.0
    step = float(np.diff(levels).min())
    if step <= 1e-6 * max(abs(levels[0]), abs(levels[-1])):
        return 0.0
    multiples = (levels - levels[0]) / step
    return step if float(np.abs(multiples - np.rint(multiples)).max()) < 1e-3 else 0.0
