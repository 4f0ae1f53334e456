"""Residuals that noise is estimated from, and the standard deviations of their entries."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from robustcp._util.quantiles import quantile_of_sorted
from robustcp._util.typing import Factors
from robustcp.engines import (
    SAMPLE_ENTRIES,
    Engine,
    Entries,
    sample_size,
    select_by_index,
    to_host,
)
from robustcp.noise.model import Noise
from robustcp.noise.resolution import Resolution
from robustcp.noise.settings import NOISE_SETTINGS

#: The coefficients a, b and c of a variance function a + b |m| + c m^2.
Variance = tuple[float, float, float]
#: For each mode the scales of its slabs, or None if they have none of their own.
SlabScales = Sequence[np.ndarray | None]


@dataclass(frozen=True, eq=False)
class Residuals:
    """A sample of residuals, with the positions and model values of their entries on demand.

    Attributes
    ----------
    sample : Entries
        The residuals of the sampled entries (of a small tensor, all), and their indices.
    read_data : function that returns an array
        Reads the data at the same entries.
    shape : tuple of int
        The shape of the data.
    resolution : Resolution
        What is too small to be seen in the data.
    data_count : float
        How many entries the data has.
    multiplier : float64 array, optional
        What the residuals are multiplied by, such as a correction for leverage.
    selection : integer array, optional
        Which of the sampled residuals are used; by default all.
    factors : tuple of arrays, optional
        The factors of the model.
    fitted_scales : tuple of (array or None), optional
        The scales of slabs with which the model was fitted.
    """

    sample: Entries
    read_data: Callable[[], np.ndarray]
    shape: tuple[int, ...]
    resolution: Resolution
    data_count: float
    multiplier: np.ndarray | None = None
    selection: np.ndarray | None = None
    factors: tuple[np.ndarray, ...] = ()
    fitted_scales: SlabScales = ()

    @classmethod
    def of(
        cls,
        engine: Engine,
        factors: Factors,
        resolution: Resolution,
        multiplier: np.ndarray | None = None,
        fitted_scales: SlabScales = (),
    ) -> Residuals:
        """The residuals of a model at the engine's sample of entries."""
        sample = engine.sample(factors)
        host = tuple(np.asarray(to_host(A), dtype=np.float64) for A in factors)
        if engine.view.limits is None:
            read_data = lambda: engine.sample().values  # noqa: E731 - only where it is asked for
        else:  # there are no residuals of some entries
            read_data = lambda: sample.values + sample.model(host)  # noqa: E731
        sizes = engine.shape, resolution, engine.count
        return cls(sample, read_data, *sizes, multiplier, None, host, fitted_scales)

    def subsample(self, max_count: int, *, by_index: bool = False) -> Residuals:
        """At most `max_count` of these residuals, drawn at random; more of a larger sample.

        With `by_index` the same entries are drawn for any order of the modes, which takes longer.
        """
        max_count = max_count * sample_size(self.shape) // SAMPLE_ENTRIES
        if self.values.size <= max_count:
            return self
        if by_index:
            selection = select_by_index(self.indices, max_count)
        else:
            selection = _draw_indices(self.values.size, max_count)
        return replace(
            self, selection=selection if self.selection is None else self.selection[selection]
        )

    def _select(self, x: np.ndarray) -> np.ndarray:
        return x if self.selection is None else x[self.selection]

    @cached_property
    def values(self) -> np.ndarray:
        """The residuals, float64."""
        values = self.sample.values
        return self._select(values if self.multiplier is None else values * self.multiplier)

    @cached_property
    def model(self) -> np.ndarray:
        """The model's entries at the same positions."""
        return np.asarray(self._select(self.read_data() - self.sample.values))

    @cached_property
    def indices(self) -> tuple[np.ndarray, ...]:
        """For each mode, the index of every entry."""
        return tuple(map(self._select, self.sample.indices))

    @property
    def scalable_modes(self) -> list[int]:
        """The modes whose slabs may have scales of their own.

        Their slabs hold more than a few of these residuals, and the data several entries for each
        parameter of the model.
        """
        rank = self.factors[0].shape[1] if self.factors else 1
        return self._modes_of_full_slabs(NOISE_SETTINGS.min_entries_per_parameter * rank)

    @property
    def quickly_scalable_modes(self) -> list[int]:
        """The modes whose slabs may have scales by quick estimates: the same for all models."""
        return self._modes_of_full_slabs(NOISE_SETTINGS.min_entries_per_component_parameter)

    def _modes_of_full_slabs(self, entries_per_parameter: int) -> list[int]:
        """The modes whose slabs hold enough residuals, if the data has enough entries."""
        parameters = sum(self.shape) - len(self.shape) + 1
        if self.data_count < entries_per_parameter * parameters:
            return []
        per_slab = NOISE_SETTINGS.min_entries_per_slab
        return [n for n, size in enumerate(self.shape) if self.values.size >= per_slab * size]

    def counts(self, mode: int) -> np.ndarray:
        """How many of these residuals each slab of a mode holds."""
        if self.values.size == math.prod(self.shape):
            return np.full(self.shape[mode], self.values.size // self.shape[mode])
        return self.sums_by_slab(mode)

    def sums_by_slab(self, mode: int, terms: np.ndarray | None = None) -> np.ndarray:
        """For each slab of a mode the sum of some terms, one per residual; by default of 1."""
        return np.bincount(self.indices[mode], terms, minlength=self.shape[mode])

    def degrees_of_freedom(self, mode: int, counts: np.ndarray) -> np.ndarray:
        """The degrees of freedom per clean entry of each slab, relative to those of all entries.

        The clean entries of a slab (`counts` of these residuals) determine its own row of the
        factor, and of the other modes' columns as much as its leverage. That depends on the scales
        in the fit: the slab of the least scale had the largest weight, and may have determined a
        component alone. If such a slab is fitted exactly, this says nothing of its noise.
        """
        if not self.factors:
            return np.ones(counts.size)
        entries = np.maximum(counts * (self.data_count / self.values.size), 1e-9)
        scales = self.fitted_scales[mode] if self.fitted_scales else None
        rows = self.factors[mode] * np.sqrt(entries)[:, None]
        rows = rows if scales is None else rows / scales[:, None]
        norms = np.sqrt(np.sum(rows**2, axis=0))
        left, values, _ = np.linalg.svd(rows / np.where(norms > 0, norms, 1.0), full_matrices=False)
        leverages = np.sum(left[:, values > 1e-6 * values[0]] ** 2, axis=1)
        others = sum(self.shape) - self.shape[mode] - (len(self.shape) - 1)
        used = self.factors[0].shape[1] + leverages * others
        total = max(1 - float(used.sum() / entries.sum()), 0.1)
        return np.asarray(np.clip((1 - used / entries) / total, 1e-3, None))

    # Groups of entries with similar signal

    @cached_property
    def signal_magnitudes(self) -> np.ndarray:
        """The magnitude of the model's entries."""
        return np.asarray(np.abs(self.model))

    @cached_property
    def groups(self) -> np.ndarray:
        """For each residual the number of its group: those with signals of similar magnitude."""
        count, order = NOISE_SETTINGS.signal_groups, np.argsort(self.signal_magnitudes)
        ordered = self.signal_magnitudes[order]
        edges = [quantile_of_sorted(ordered, k / count) for k in range(1, count)]
        ends = ordered.searchsorted(edges, side="right")
        labels = np.empty(order.size, dtype=np.intp)
        labels[order] = np.repeat(np.arange(count), np.diff(ends, prepend=0, append=order.size))
        return labels

    def sums_by_group(self, terms: np.ndarray | None = None) -> np.ndarray:
        """For each group the sum of some terms, one per residual; by default of 1."""
        return np.bincount(self.groups, terms, minlength=NOISE_SETTINGS.signal_groups)

    @cached_property
    def mean_signal_powers(self) -> np.ndarray:
        """The mean of 1, |m| and m^2 over the entries of each group, with m the model's entry."""
        count, magnitudes = np.maximum(self.sums_by_group(), 1), self.signal_magnitudes
        powers = np.ones_like(magnitudes), magnitudes, magnitudes**2
        sums = [self.sums_by_group(power) for power in powers]
        return np.asarray(np.stack(sums, axis=1) / count[:, None])

    # Standard deviations of the entries

    def sigmas(self, variance: Variance, slabs: SlabScales, min_sigma: float) -> np.ndarray:
        """Each entry's standard deviation for a variance function and scales of slabs.

        The standard deviations approach `min_sigma` smoothly from above.
        """
        (a, b, c), magnitudes = variance, self.signal_magnitudes if any(variance[1:]) else None
        v: Any = a if magnitudes is None else a + (b + c * magnitudes) * magnitudes
        for scales, index in zip(slabs, self.indices, strict=True):
            if scales is not None:
                v = v * scales[index] ** 2
        return np.broadcast_to(_floor_sigmas(v, min_sigma), self.values.shape)

    def sigmas_of(self, noise: Noise) -> np.ndarray:
        """Each entry's standard deviation according to a noise."""
        if noise.homoscedastic:
            return np.broadcast_to(noise.sigma, self.values.shape)
        (a, b, c), s = noise.variance, noise.sigma
        return self.sigmas((a * s * s, b * s, c), noise.slabs, noise.least)


@lru_cache(maxsize=4)
def _draw_indices(count: int, max_count: int) -> np.ndarray:
    """The indices of a random subset, ascending; always the same for the same counts."""
    indices = np.sort(np.random.default_rng(0).permutation(count)[:max_count])
    indices.setflags(write=False)
    return indices


def _floor_sigmas(variance: np.ndarray | float, min_sigma: float) -> np.ndarray:
    """sqrt(hypot(variance, min_sigma^2)), without the slow hypot."""
    floor = min_sigma * min_sigma
    if floor == 0:
        return np.sqrt(variance)
    high = np.maximum(variance, floor)
    ratio = np.minimum(variance, floor) / high
    return np.asarray(np.sqrt(high * np.sqrt(1.0 + ratio * ratio)))
