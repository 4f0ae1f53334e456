"""The noise that residuals show: its kind chosen by them, its numbers estimated robustly.

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

from robustcp._typing import Factors
from robustcp.engines import Engine, Sample
from robustcp.engines.installed import compiled_code
from robustcp.noise.core import (
    LOW,
    NORMAL_LOW,
    Core,
    core_of,
    degrees_of_freedom_correction,
)
from robustcp.noise.model import COMMON, Kind, Noise
from robustcp.quantiles import median, quantile, quantile_of_sorted
from robustcp.sizes import Resolution
from robustcp.units import Units

#: Entries that a first look is at.
FEWER = 1 << 14
#: Entries that a kind is chosen by, and that its numbers are estimated from.
SOME, ENOUGH = 1 << 15, 1 << 16
#: The variance function is read from so many groups of entries, by the size of the signal.
GROUPS = 24
#: Scales differ if their logarithms have at least this standard deviation, so many times as sure.
UNEVEN, SURE = 0.1, 5.0
#: Of fewer residuals nobody can say what their noise depends on.
PLENTY = 200
#: Slabs with fewer entries than this on average get no scale of their own, nor those that have
#: fewer than so many times the rows that a component has in the other modes.
FEW, MANY = 8, 4
#: Rounds of an estimate, and the change of log standard deviations at which they end.
ROUNDS, SAME = 8, 0.005
#: Degrees of freedom of the t distribution by whose likelihood kinds are compared.
HEAVY = 3.0
#: The variance of the logarithm of a scale by chance, times the number of entries.
CHANCE = 0.65
#: The same of a geometric mean of magnitudes.
CHANCE_OF_LOGS = 1.23
#: Counts have at least this mean, in steps.
LEAST_MEAN = 0.01
#: A floor of this share of a standard deviation does not show: its fourth power does not.
NEGLIGIBLE = 0.03
#: The lowest magnitude of which there is a logarithm.
TINY = 1e-300
#: In units of its estimate, a standard deviation is not below this.
LOWEST = 0.3


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
    """

    def __init__(
        self,
        sample: Sample,
        data: Callable[[], np.ndarray],
        shape: tuple[int, ...],
        resolution: Resolution,
        count: float | None = None,
        at: np.ndarray | None = None,
        by: np.ndarray | None = None,
    ) -> None:
        self._sample, self._data, self._at, self._by = sample, data, at, by
        self.shape, self.resolution = shape, resolution
        self.count = sample.values.size if count is None else count
        self.values = self._chosen(sample.values if by is None else sample.values * by)

    @classmethod
    def of(
        cls,
        engine: Engine,
        factors: Factors,
        resolution: Resolution,
        by: np.ndarray | None = None,
    ) -> Residuals:
        """At the engine's sample of entries; multiplied by something, such as for leverage."""
        sample = engine.sample(factors)
        data = lambda: engine.sample().values  # noqa: E731 - only where it is asked for
        return cls(sample, data, engine.shape, resolution, engine.count, by=by)

    def some(self, most: int) -> Residuals:
        """Not more than so many of them, drawn at random."""
        if self.values.size <= most:
            return self
        at = _drawn(self.values.size, most)
        at = at if self._at is None else self._at[at]
        return Residuals(
            self._sample, self._data, self.shape, self.resolution, self.count, at, self._by
        )

    def _chosen(self, x: np.ndarray) -> np.ndarray:
        return x if self._at is None else x[self._at]

    @cached_property
    def model(self) -> np.ndarray:
        return np.asarray(self._chosen(self._data() - self._sample.values))

    @cached_property
    def indices(self) -> tuple[np.ndarray, ...]:
        return tuple(map(self._chosen, self._sample.indices))

    @property
    def modes(self) -> list[int]:
        """Modes whose slabs may have scales of their own.

        Their slabs have more than a few entries here; and in all so many that no component can be
        spent on fitting one of them exactly, as it can in a matrix: that slab would then have no
        noise, and all the weight.
        """
        return [
            mode
            for mode, size in enumerate(self.shape)
            if self.values.size >= FEW * size
            and self.count >= MANY * size * (sum(self.shape) - size)
        ]

    def counts(self, mode: int) -> np.ndarray:
        """How many of them there are in each slab of a mode."""
        if self.values.size == math.prod(self.shape):
            return np.full(self.shape[mode], self.values.size // self.shape[mode])
        return np.bincount(self.indices[mode], minlength=self.shape[mode])

    @cached_property
    def size(self) -> np.ndarray:
        """The size of the signal."""
        return np.asarray(np.abs(self.model))

    @cached_property
    def groups(self) -> np.ndarray:
        """Which of the groups of entries with a signal of about the same size each is in."""
        order = np.argsort(self.size)
        ordered = self.size[order]
        edges = [quantile_of_sorted(ordered, k / GROUPS) for k in range(1, GROUPS)]
        ends = ordered.searchsorted(edges, side="right")
        found = np.empty(self.size.size, dtype=np.intp)
        found[order] = np.repeat(np.arange(GROUPS), np.diff(ends, prepend=0, append=order.size))
        return found

    @cached_property
    def group_means(self) -> np.ndarray:
        """The mean of 1, |m| and m^2 in each group."""
        count = np.maximum(np.bincount(self.groups, minlength=GROUPS), 1)
        parts = (np.ones_like(self.size), self.size, self.size**2)
        sums = [np.bincount(self.groups, part, minlength=GROUPS) for part in parts]
        return np.stack(sums, axis=1) / count[:, None]


@lru_cache(maxsize=4)
def _drawn(count: int, most: int) -> np.ndarray:
    found = np.sort(np.random.default_rng(0).permutation(count)[:most])
    found.setflags(write=False)
    return found


# What residuals show


def look(
    residuals: Residuals,
    kind: Kind | None = None,
    begin: Noise | None = None,
    slabs: Sequence[np.ndarray | None] = (),
) -> Noise:
    """The noise that residuals show: of a kind, or of the kind that they show.

    `begin` is what it was before, if that is known, and `slabs` the scales that are known.
    """
    if kind is None:
        kind, begin = chosen(residuals)
    if kind == COMMON:
        return common(residuals)
    return _Mixture(residuals.some(ENOUGH), kind, begin, slabs).settled()


def noise_of(
    engine: Engine,
    factors: Factors,
    resolution: Resolution,
    units: Units,
    kind: Kind | None = None,
    begin: Noise | None = None,
) -> Noise:
    """The noise that the residuals of a model show, corrected for the degrees of freedom.

    Known standard deviations, which are the engine's scales, are what they are. Those are in the
    units of the data, all else is in those of the fit.
    """
    residuals = Residuals.of(engine, factors, resolution)
    known = engine.view.scales
    if known is not None:
        noise = common(residuals, 1 / known.unit / units.factor)
        return replace(noise, given=known.slabs)
    noise = look(residuals, kind if engine.takes_scales else COMMON, begin)
    rank = factors[0].shape[1]
    return noise.inflated(degrees_of_freedom_correction(engine, rank, noise.clean))


def chosen(residuals: Residuals) -> tuple[Kind, Noise]:
    """The kind of noise that some of the residuals show, and what they say of it.

    Kinds grow by the mode whose slabs differ most, with and without a part by signal, as long as
    there is a difference; the best is that of the highest likelihood, less a price for each
    number. The noise of small counts grows with the signal: their shape differs from slab to
    slab as much as their scale, and no scale would be the better for it.
    """
    some = residuals.some(SOME)
    if some.resolution.small and some.values.size >= PLENTY:
        noise = _Mixture(some, Kind(signal=True)).settled()
        return noise.kind, noise
    even, counts = common(some), some.resolution.counts
    hardly_any = even.sigma <= some.resolution.entry and even.beyond <= 0.5
    if (hardly_any and not counts) or some.values.size < PLENTY:
        return COMMON, even
    modes, by_signal = _differing(some, even)
    if not (modes or by_signal or counts):
        return COMMON, even
    found = [even, *_grown(some, even, signal=False)]
    if by_signal or counts or _differing(some, found[-1])[1]:
        found += _grown(some, even, signal=True)
    best = min(found, key=lambda noise: _cost(some, noise))
    return best.kind, best


def _grown(some: Residuals, even: Noise, *, signal: bool) -> list[Noise]:
    """Noises of kinds that grow, one mode at a time."""
    found, kind = [], Kind(signal=signal)
    if signal:
        found.append(_Mixture(some, kind).settled())
    while True:
        modes, _ = _differing(some, found[-1] if found else even)
        new = [mode for mode in modes if mode not in kind.modes]
        if not new:
            return found
        kind = Kind(tuple(sorted((*kind.modes, new[0]))), signal)
        found.append(_Mixture(some, kind).settled())


def _differing(some: Residuals, noise: Noise) -> tuple[list[int], bool]:
    """Modes whose slabs have noise of different size, most different first; and the signal."""
    z = np.minimum(np.abs(some.values) / deviations(some, noise), 2.5)
    by_mode = np.zeros(len(some.shape))
    for mode in some.modes:
        by_mode[mode] = _spread(z, some.indices[mode], some.counts(mode))
    modes = [int(n) for n in np.argsort(by_mode)[::-1] if by_mode[n] >= UNEVEN]
    return modes, _spread(z, some.groups, np.bincount(some.groups, minlength=GROUPS)) >= UNEVEN


def _spread(z: np.ndarray, group: np.ndarray, count: np.ndarray) -> float:
    """The standard deviation of the log scales of groups, of what is not chance; 0 if it may be."""
    full = count > 1
    mean = np.bincount(group, z, minlength=count.size)[full] / count[full]
    count, free = count[full], int(full.sum()) - 1
    whole, variance = float(np.average(mean, weights=count)), float(z.var())
    if free < 1 or variance == 0 or whole == 0:
        return 0.0
    excess = float(np.sum(count * (mean - whole) ** 2)) / variance - free
    if excess < SURE * math.sqrt(2 * free):
        return 0.0
    # Cut at 2.5 sigma, the mean of |z| grows a tenth less than the scale.
    return math.sqrt(excess * variance / float(count.sum())) / (0.9 * whole)


def _cost(some: Residuals, noise: Noise) -> float:
    """Minus the log likelihood of a heavy-tailed distribution, and 1 for each number (Akaike).

    The scales of slabs are as many numbers as shrinkage leaves of them.
    """
    s = deviations(some, noise)
    square = (some.values / s) ** 2
    unit = 0.7
    for _ in range(30):
        weights = (HEAVY + 1) / (HEAVY + square / unit)
        new = max(float(np.mean(weights * square)), LOWEST)
        if abs(new / unit - 1) < 1e-4:
            break
        unit = new
    tails = (HEAVY + 1) / 2 * np.log1p(square / (HEAVY * unit))
    minus = float(np.sum(np.log(s) + tails)) + 0.5 * s.size * math.log(unit)
    numbers = 2.0 * noise.kind.signal
    for scales, index in zip(noise.slabs, some.indices, strict=True):
        if scales is not None:
            spread = float(np.var(np.log(scales)))
            chance = CHANCE / np.maximum(np.bincount(index, minlength=scales.size), 1)
            numbers += float(np.sum(spread / (spread + chance)))
    return minus + numbers


def deviations(residuals: Residuals, noise: Noise) -> np.ndarray:
    """The standard deviation of each residual."""
    if noise.even:
        return np.broadcast_to(noise.sigma, residuals.values.shape)
    (a, b, c), s = noise.variance, noise.sigma
    return _deviations(residuals, (a * s * s, b * s, c), noise.slabs, noise.least)


def _deviations(
    residuals: Residuals,
    variance: tuple[float, float, float],
    slabs: Sequence[np.ndarray | None],
    least: float,
) -> np.ndarray:
    a, b, c = variance
    v: Any = a + (b + c * residuals.size) * residuals.size if b or c else a
    for scales, index in zip(slabs, residuals.indices, strict=True):
        if scales is not None:
            v = v * scales[index] ** 2
    return np.broadcast_to(_floored(v, least), residuals.values.shape)


def _floored(variance: np.ndarray | float, least: float) -> np.ndarray:
    """Standard deviations that do not go below the least one, smoothly."""
    floor = least * least
    if floor == 0:
        return np.sqrt(variance)
    # sqrt(hypot(variance, floor)), which takes longer
    high = np.maximum(variance, floor)
    ratio = np.minimum(variance, floor) / high
    return np.asarray(np.sqrt(high * np.sqrt(1.0 + ratio * ratio)))


def change(residuals: Residuals, one: Noise, other: Noise) -> float:
    """How different two noises are: the root mean square of the ratio's logarithm."""
    if one.even and other.even:
        return abs(math.log(one.sigma / other.sigma))
    ratio = deviations(residuals, one) / deviations(residuals, other)
    return float(np.sqrt(np.mean(np.log(ratio) ** 2)))


# Estimates


def common(residuals: Residuals, sigma: float | None = None) -> Noise:
    """Noise that is the same for all entries: known, or estimated."""
    if sigma is None:
        core = core_of(residuals.values, residuals.resolution.least, SOME)
    else:
        core = core_of(residuals.values / sigma, LOWEST, SOME)
        core = replace(core, sigma=sigma)
    return Noise.common(
        core.sigma, len(residuals.shape), above=core.above, below=core.below, clean=core.clean,
        beyond=core.beyond,
    )  # fmt: skip


def first_look(engine: Engine, factors: Factors, resolution: Resolution) -> Noise:
    """Noise with a scale for each slab, by medians; common for an engine without scales."""
    residuals = Residuals.of(engine, factors, resolution).some(FEWER)
    if not engine.takes_scales:
        return rough(residuals, ())
    if resolution.small:
        return _Mixture(residuals, Kind(signal=True)).settled().holding(factors)
    return rough(residuals, residuals.modes)


def entropy_of(engine: Engine, factors: Factors, resolution: Resolution) -> float:
    """The entropy of a model's residuals, per entry; of small counts, what they cost."""
    residuals = Residuals.of(engine, factors, resolution).some(FEWER)
    if resolution.small:
        return cost_of_counts(residuals)
    return entropy(residuals)


def cost_of_counts(residuals: Residuals) -> float:
    """Minus the log likelihood of small counts, per entry: of Poisson's distribution and outliers.

    Outliers have any distribution, the same for all entries. The entropy of residuals would be
    lowest for models that are near whole numbers.
    """
    from scipy.special import gammaln

    step = residuals.resolution.step
    m = np.maximum(residuals.model / step, LEAST_MEAN)
    x = np.rint(residuals.model / step + residuals.values / step)
    found, number = np.unique(x, return_inverse=True)
    clean = np.exp(x * np.log(m) - m - gammaln(found + 1)[number])
    share, density = 0.02, np.full(x.size, 1 / found.size)
    for _ in range(30):
        outlier = share * density / (share * density + (1 - share) * clean)
        share = float(np.mean(outlier))
        each = np.bincount(number, outlier) + 1e-3
        density = (each / each.sum())[number]
    return math.log(step) - float(np.mean(np.log(share * density + (1 - share) * clean)))


def rough(residuals: Residuals, modes: Sequence[int]) -> Noise:
    """Noise with a scale for each slab of some modes: a first look, and a quick one.

    The scales are geometric means of magnitudes, which add up as logarithms do: the main effects
    of an analysis of variance. Modes whose slabs hardly differ have none.
    """
    return _rough(residuals, modes)[0]


def _rough(residuals: Residuals, modes: Sequence[int]) -> tuple[Noise, np.ndarray]:
    """The same, and residuals in standard deviations."""
    r, least = np.abs(residuals.values), residuals.resolution.entry
    if not r.size:
        return common(residuals), r
    floor = max(1e-2 * least, 1e-3 * median(r))
    effects = _main_effects if compiled_code() is None else _compiled_effects
    slabs, z = effects(residuals, modes, floor)
    unit = core_of(z, least).sigma
    if all(scales is None for scales in slabs):
        return Noise(unit, (1.0, 0.0, 0.0), slabs, least), z / unit
    logs = lowest = 0.0
    for mode, scales in enumerate(slabs):
        if scales is not None:
            each = np.log(scales)
            logs += float(residuals.counts(mode) @ each) / r.size
            lowest += float(each.min())
    sigma, z = unit * math.exp(logs), z / unit
    if least > NEGLIGIBLE * unit * math.exp(lowest):
        s = _deviations(residuals, (unit**2, 0.0, 0.0), slabs, least)
        sigma, z = float(np.exp(np.mean(np.log(s)))), residuals.values / s
    return Noise(sigma, ((unit / sigma) ** 2, 0.0, 0.0), slabs, least), z


Slabs = tuple[np.ndarray | None, ...]


def _main_effects(
    residuals: Residuals, modes: Sequence[int], floor: float
) -> tuple[Slabs, np.ndarray]:
    """Scales of slabs from the logarithms of magnitudes, and residuals in their units."""
    logs = np.log(np.maximum(np.abs(residuals.values), floor))
    slabs: list[np.ndarray | None] = [None] * len(residuals.shape)
    for mode in modes:
        size, index = residuals.shape[mode], residuals.indices[mode]
        count = residuals.counts(mode)
        effects = np.bincount(index, logs, minlength=size) / np.maximum(count, 1)
        if not count.all():
            effects[count == 0] = float(logs.mean())
        found, _ = _log_scales(effects, count, CHANCE_OF_LOGS)
        if found.std() >= UNEVEN:
            slabs[mode] = np.exp(found)
            logs = logs - found[index]
    return tuple(slabs), residuals.values / _deviations(residuals, (1.0, 0.0, 0.0), slabs, 0.0)


def _compiled_effects(
    residuals: Residuals, modes: Sequence[int], floor: float
) -> tuple[Slabs, np.ndarray]:
    """The same by compiled code."""
    code, slabs = compiled_code(), [None] * len(residuals.shape)
    if not modes:
        return tuple(slabs), residuals.values
    values = np.ascontiguousarray(residuals.values)
    counts = [residuals.counts(mode).astype(np.float64) for mode in modes]
    indices = [np.ascontiguousarray(residuals.indices[mode], np.int64) for mode in modes]
    each, sizes = np.concatenate(counts), np.array([count.size for count in counts])
    at = np.array([code.address(index) for index in indices])
    most = (max(median(count), 1e-9) for count in counts)
    numbers = np.array((max(floor, TINY), CHANCE_OF_LOGS, UNEVEN, *most))
    scales, z = np.empty(each.size), np.empty(values.size)
    places = map(code.address, (at, sizes, each, numbers, scales, z))
    used = code.main_effects().run(code.address(values), values.size, len(modes), *places)
    found: list[np.ndarray | None] = list(slabs)
    for n, (mode, own) in enumerate(zip(modes, np.split(scales, sizes.cumsum()[:-1]), strict=True)):
        found[mode] = own if int(used) >> n & 1 else None
    return tuple(found), z


def entropy(residuals: Residuals) -> float:
    """The entropy of residuals, per entry, of any shape but of scales as slabs have them.

    The mean of log s plus the entropy of r / s, from a histogram with bins that grow beyond the
    noise. No entry counts more than another, so that nothing large, no slab and no leverage can
    buy a low value: it is lowest where most residuals are most alike.
    """
    noise, z = _rough(residuals, residuals.modes)
    if not z.size:
        return 0.0
    size = np.abs(z)
    unit = max(quantile(size, LOW) / NORMAL_LOW, LOWEST_UNIT)  # so that bins resolve any peak
    bins = _bins(size / unit)
    bins[z < 0] += WIDTHS.size
    share = np.bincount(bins, minlength=2 * WIDTHS.size) / z.size
    full = np.flatnonzero(share)
    share, width = share[full], WIDTHS[full % WIDTHS.size]
    unit *= noise.sigma  # the geometric mean
    return math.log(unit) - float(np.sum(share * np.log(share / width)))


def _bins(size: np.ndarray) -> np.ndarray:
    """The bins of magnitudes in a histogram of even bins and, beyond them, growing ones."""
    beyond = np.flatnonzero(size >= EVEN)
    found: np.ndarray = (np.minimum(size, EVEN) * (EVENLY / EVEN)).astype(np.intp)
    growing = np.log(size[beyond] / EVEN) / math.log(GROWTH)
    found[beyond] = EVENLY + np.minimum(growing, GROWING - 1).astype(np.intp)
    return found


class _Mixture:
    """Noise of one kind and a floor of outliers, fitted to some residuals."""

    def __init__(
        self,
        residuals: Residuals,
        kind: Kind,
        begin: Noise | None = None,
        known: Sequence[np.ndarray | None] = (),
    ) -> None:
        self.residuals, self.kind = residuals, kind
        self.slabs: list[np.ndarray | None] = list(known) or [None] * len(residuals.shape)
        self.modes = [mode for mode in kind.modes if self.slabs[mode] is None]
        if begin is not None and begin.kind == kind:
            (a, b, c), sigma = begin.variance, begin.sigma
            self.variance, self.slabs = (a * sigma**2, b * sigma, c), list(begin.slabs)
            return
        r = np.abs(residuals.values)
        sigma = core_of(r, residuals.resolution.least).sigma
        if sigma <= residuals.resolution.entry:  # the core may be entries that are exact
            sigma = max(sigma, 1.4826 * float(np.median(r)))
        self.variance = (sigma**2, 0.0, 0.0)
        if kind.signal:
            self.variance = (0.0, residuals.resolution.step, 0.0)
            if not residuals.resolution.counts:
                median = _group_medians(r, residuals.groups, GROUPS)
                count = np.bincount(residuals.groups, minlength=GROUPS)
                self._fit_variance((1.4826 * median) ** 2, count)
        for mode in self.modes:
            size, index = residuals.shape[mode], residuals.indices[mode]
            median = _group_medians(r / self.deviations(), index, size)
            lowest = max(1e-3 * float(np.median(median)), math.exp(self._lowest))
            logs = np.log(np.maximum(median, lowest))
            self.slabs[mode] = _scales(logs, np.bincount(index, minlength=size))[0]

    def deviations(self) -> np.ndarray:
        """The standard deviation of each residual."""
        least = self.residuals.resolution.entry
        return _deviations(self.residuals, self.variance, self.slabs, least)

    @property
    def _lowest(self) -> float:
        """The log scale of a slab whose noise is too small to be seen, as of a dead sensor."""
        size, (a, b, c) = self.residuals.size, self.variance
        typical = a + b * float(np.mean(size)) + c * float(np.mean(size**2)) if b or c else a
        least = self.residuals.resolution.entry
        return min(0.0, math.log(least) - 0.5 * math.log(max(typical, least**2)))

    def settled(self) -> Noise:
        """The noise after some rounds."""
        before = self.deviations()
        for _ in range(ROUNDS):
            self._round()
            now = self.deviations()
            moved = float(np.sqrt(np.mean(np.log(now / before) ** 2)))
            before = now
            if moved < SAME:
                break
        core = self._core(before)
        a, b, c = (part * core.sigma**2 for part in self.variance)
        self.variance = (a, b, c)
        sigma = float(np.exp(np.mean(np.log(self.deviations()))))
        a, b, c = a / sigma**2, b / sigma, c
        if self.kind.signal and b == c == 0:
            c = 1e-12  # of this kind still
        return Noise(
            sigma, (a, b, c), tuple(self.slabs), self.residuals.resolution.entry, core.above,
            core.below, core.clean, beyond=core.beyond,
        )  # fmt: skip

    def _round(self) -> None:
        residuals = self.residuals
        if self.kind.signal:
            weights, _ = self._clean()
            slabs = np.ones_like(weights)
            for scales, index in zip(self.slabs, residuals.indices, strict=True):
                slabs = slabs if scales is None else slabs * scales[index]
            squares = weights * (residuals.values / slabs) ** 2
            count = np.bincount(residuals.groups, weights, minlength=GROUPS)
            sums = np.bincount(residuals.groups, squares, minlength=GROUPS)
            self._fit_variance(sums / np.maximum(count, 1e-300), count)
        if not (self.kind.signal or self.modes):  # the scales of all slabs are known
            level = self._core(self.deviations()).sigma
            self.variance = (self.variance[0] * level**2, 0.0, 0.0)
        for mode in self.modes:
            weights, z = self._clean()
            index, size = residuals.indices[mode], residuals.shape[mode]
            count = np.bincount(index, weights, minlength=size)
            sums = np.bincount(index, weights * z * z, minlength=size)
            old = self.slabs[mode]
            assert old is not None
            ratio = np.clip(sums / np.maximum(count, 1e-300), 0.01, 100.0)
            ratio[count == 0] = 1.0
            logs = np.maximum(np.log(old) + 0.5 * np.log(ratio), self._lowest)
            self.slabs[mode], level = _scales(logs, count)
            if not self.kind.signal:
                self.variance = (self.variance[0] * level**2, 0.0, 0.0)

    def _clean(self) -> tuple[np.ndarray, np.ndarray]:
        """The probability of each residual to be clean, and it in standard deviations."""
        s = self.deviations()
        core = self._core(s)
        z = self.residuals.values / s
        peak = np.exp(-0.5 * (z / core.sigma) ** 2)
        return peak / (peak + np.where(z >= 0, core.above, core.below)), z

    def _core(self, s: np.ndarray) -> Core:
        """The core of residuals in units of their standard deviations.

        Entries whose noise is too small to be seen, as of a dead sensor, have residuals of 0 in
        any unit, and are left out if there are others.

        Counts are skewed: where they are not small, the square root takes that away; where they
        are, nothing can be told. Their standard deviations are by signal, and need no other unit.
        """
        residuals, step = self.residuals, self.residuals.resolution.step
        if not residuals.resolution.counts:
            told = s > 2 * residuals.resolution.entry
            if int(told.sum()) < PLENTY:
                return core_of(residuals.values / s, LOWEST)
            return core_of(residuals.values[told] / s[told], LOWEST)
        some = residuals.model > step
        if int(some.sum()) < PLENTY:
            return NO_OUTLIERS
        m = residuals.model[some]
        unit = np.maximum(s[some] ** 2 / m, 0.5 * step)
        x = np.maximum(m + residuals.values[some], 0.0)
        z = 2 * (np.sqrt(x / unit + 0.375) - np.sqrt(m / unit + 0.375))
        return replace(core_of(z, LOWEST), sigma=1.0)

    def _fit_variance(self, squares: np.ndarray, count: np.ndarray) -> None:
        """The variance function that explains the mean squares of the groups.

        None of its numbers is negative. Relative errors count, as they do for variances.
        """
        terms, floor = self.residuals.group_means, self.residuals.resolution.entry**2
        seen = count > 0
        terms, squares, count = terms[seen], squares[seen], count[seen]
        fitted = np.hypot(squares, floor)
        found = np.zeros(3)
        for _ in range(8):
            weights = np.sqrt(count) / fitted
            found = _nonnegative_least_squares(terms * weights[:, None], squares * weights)
            fitted = np.hypot(terms @ found, floor)
        self.variance = (float(found[0]), float(found[1]), float(found[2]))


#: The smallest unit of that histogram; its even bins, how the others grow, and how many there are.
LOWEST_UNIT = 0.01
EVEN, EVENLY, GROWTH, GROWING = 5.0, 20, 1.4, 399
WIDTHS = np.diff(
    np.concatenate([np.linspace(0.0, EVEN, EVENLY + 1), EVEN * GROWTH ** np.arange(1, GROWING + 1)])
)
#: The core where nothing can be told of outliers.
NO_OUTLIERS = Core(1.0, 1e-4, 1e-4, 1.0, 0.0)


def _scales(
    logs: np.ndarray, count: np.ndarray, chances: float = CHANCE
) -> tuple[np.ndarray, float]:
    """Scales of slabs of geometric mean 1, and that mean, from the logarithms of estimates.

    Estimates from few entries are shrunk to the mean, by what their variance is beyond that of
    chance.
    """
    found, level = _log_scales(logs, count, chances)
    return np.exp(found), math.exp(level)


def _log_scales(logs: np.ndarray, count: np.ndarray, chances: float) -> tuple[np.ndarray, float]:
    """The logarithms of those scales, and of that mean."""
    count = np.maximum(count, 1e-9)
    weights = np.minimum(count, median(count))
    mean = float(logs @ weights / weights.sum())
    chance, away = chances / count, logs - mean
    true = max(0.0, float(np.mean(away * away - np.minimum(chance, 1.0))))
    shrunk = away * (true / (true + chance)) if true else 0.0 * away
    level = float(shrunk.mean())
    return shrunk - level, mean + level


def _group_medians(x: np.ndarray, group: np.ndarray, size: int) -> np.ndarray:
    """The median of each group; of an empty one, that of the others."""
    order = np.lexsort((x, group))
    count = np.bincount(group, minlength=size)
    first = np.cumsum(count) - count
    found = x[order][np.minimum(first + count // 2, x.size - 1)]
    full = count > 0
    return np.asarray(np.where(full, found, np.median(found[full])))


def _nonnegative_least_squares(terms: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The best of few nonnegative coefficients: the best of those that use some of the terms."""
    size = np.sqrt(np.sum(terms**2, axis=0))
    used = [k for k in range(terms.shape[1]) if size[k] > 0]
    best, least = np.zeros(terms.shape[1]), math.inf
    for count in range(1, len(used) + 1):
        for some in map(list, combinations(used, count)):
            part = np.linalg.lstsq(terms[:, some] / size[some], wanted, rcond=None)[0]
            if np.any(part < 0):
                continue
            error = float(np.sum((terms[:, some] / size[some] @ part - wanted) ** 2))
            if error < least * (1 - 1e-9):
                least = error
                best = np.zeros(terms.shape[1])
                best[some] = part / size[some]
    return best
