"""Schedules: the losses of a stage, and the noise, prior and fibres that go with them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from robustcp._util.typing import Factors
from robustcp.engines import Engine, Fibres
from robustcp.losses import L1, Cauchy, Contaminated, Loss, Quantile, Welsch, as_loss
from robustcp.noise import (
    COMMON,
    Noise,
    NoiseSpec,
    Residuals,
    estimate_rough_noise,
    find_outlying_fibres,
    fit_contaminated_normal,
    median_magnitude,
    rms_log_ratio,
)
from robustcp.noise.resolution import Resolution
from robustcp.optimize.row_prior import Prior, RowPosterior, RowPrior
from robustcp.optimize.units import Units


@dataclass(frozen=True)
class RefinementSettings:
    """The constants of refinement, and of other levels that depend on estimated noise."""

    #: With a larger share of outliers the noise cannot be estimated.
    max_outlier_share: float = 0.5
    #: The same limit if the peak of the noise is high.
    max_outlier_share_with_peak: float = 0.75
    #: The peak is high if the floor of outliers, relative to the peak, is at most this.
    max_outlier_floor: float = 0.5
    #: With fewer clean entries the 1-norm, which follows medians, misleads.
    min_clean_share: float = 0.55
    #: A level is undone if it raises the share of rejected entries and lowers the share of clean
    #: entries by this: to a bounded loss, rejecting entries may be cheaper than a penalty.
    max_rejection_rise: float = 0.05
    #: A refinement ends when the logarithm of common noise changes by less than this.
    common_noise_tol: float = 0.002
    #: The same for heteroscedastic noise: the root mean square change over the entries.
    heteroscedastic_noise_tol: float = 0.005
    #: The same for starts, which only have to be compared.
    start_noise_tol: float = 0.02


REFINEMENT = RefinementSettings()


class Skip(Exception):  # noqa: N818 - not an error: the stage is not for this data
    """Raised by a schedule, with the reason, to leave out the stage or undo it."""


@dataclass(frozen=True)
class Level:
    """What is minimised in a level of a stage.

    Attributes
    ----------
    loss : Loss
        The loss of residuals in the units of the data.
    noise : Noise, optional
        The estimated noise. Where it is heteroscedastic, residuals are divided by its scales.
    prior : Prior, optional
        The prior of rows with few entries.
    fibres : Fibres, optional
        Fibres that are left out of the data.
    """

    loss: Loss
    noise: Noise | None = None
    prior: Prior | None = None
    fibres: Fibres | None = None

    def view_data(self, engine: Engine) -> Engine:
        """The data without the fibres, with residuals in units of the scales of the noise."""
        if self.fibres is not None:
            engine = engine.without_fibres(self.fibres)
        if self.noise is not None and not self.noise.homoscedastic:
            engine = engine.standardized(self.noise.scales(engine.shape))
        return engine


class Schedule(ABC):
    """The levels of a stage."""

    @abstractmethod
    def __call__(
        self, level: int, engine: Engine, factors: Factors, before: Level | None
    ) -> Level | None:
        """The level of a number, which begins at these factors; None if the stage ends before it.

        `before` is the previous level, of this stage or the one before; None at the start.
        """

    #: The power with which its losses grow with the data (see `Loss.degree`).
    degree: int = 0

    def is_last(self, level: int) -> bool:
        """Whether a level is known to be the last."""
        return False

    def for_warm_start(self, engine: Engine, factors: Factors) -> Schedule:
        """This schedule for a fit whose initial factors may be good already."""
        return self

    def in_units(self, units: Units) -> Schedule:
        """This schedule in the units of the fit, from the units of the data."""
        return self


@dataclass(frozen=True)
class Single(Schedule):
    """One level with one loss and, optionally, a prior of the rows."""

    loss: Loss
    prior: Prior | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "loss", as_loss(self.loss))

    @property
    def degree(self) -> int:  # type: ignore[override]
        return self.loss.degree

    def __call__(
        self, level: int, engine: Engine, factors: Factors, before: Level | None
    ) -> Level | None:
        return Level(self.loss, prior=self.prior) if level == 0 else None

    def is_last(self, level: int) -> bool:
        return True

    def in_units(self, units: Units) -> Single:
        return replace(self, loss=units.loss_of_fit(self.loss))


@dataclass(frozen=True)
class Continuation(Schedule):
    """The smoothed 1-norm, with epsilon multiplied by `ratio` from level to level.

    With a fixed tiny epsilon an entry that happens to be fitted gets a huge weight and pins its
    row. From a large epsilon downward, the same objective ends lower in fewer sweeps.

    Attributes
    ----------
    first, lowest : float
        Epsilon in the first and in the last level.
    ratio : float
    stop_share : float
        If another stage follows, the levels end once epsilon is below this share of the square of
        the median residual: a sharper 1-norm gains nothing then.
    """

    degree = 1
    first: float
    lowest: float
    ratio: float = 0.1
    stop_share: float = 0.0

    def in_units(self, units: Units) -> Continuation:
        first, lowest = map(units.epsilon_of_fit, (self.first, self.lowest))
        return replace(self, first=first, lowest=lowest)

    def __call__(
        self, level: int, engine: Engine, factors: Factors, before: Level | None
    ) -> Level | None:
        if level > 0 and self.is_last(level - 1):
            return None
        if level > 0 and self.stop_share:
            size = median_magnitude(engine.sample(factors).values)
            if self._epsilon(level - 1) <= self.stop_share * size * size:
                return None
        return Level(L1(self._epsilon(level)))

    def _epsilon(self, level: int) -> float:
        return max(self.lowest, self.first * self.ratio**level)

    def is_last(self, level: int) -> bool:
        return self.first * self.ratio**level <= self.lowest

    def for_warm_start(self, engine: Engine, factors: Factors) -> Continuation:
        """Begin at the magnitude of the residuals: a larger epsilon would spoil a good start.

        If most residuals are 0, those count where the model is not: of sparse data, a poor model
        fits most entries too, which are 0.
        """
        engine = engine.censored(None)
        residuals = engine.sample(factors).values
        size = median_magnitude(residuals)
        if size == 0:
            is_modelled = residuals != engine.sample().values
            size = median_magnitude(residuals[is_modelled]) if is_modelled.any() else math.inf
        return replace(self, first=max(self.lowest, min(self.first, size * size)))


@dataclass(frozen=True)
class Refinement(Schedule):
    """Levels of `Contaminated`, with the noise estimated before each, until it changes little.

    Within a level the noise is fixed, also where it depends on the model's entries.

    Attributes
    ----------
    resolution : Resolution
        What is too small to be seen in the data.
    noise : NoiseSpec
        What is known of the noise.
    row_prior : RowPrior
        The modes whose rows have a prior if some have few entries.
    max_levels : int
    """

    degree = 2
    resolution: Resolution
    noise: NoiseSpec = NoiseSpec()  # noqa: RUF009 - it is frozen
    row_prior: RowPrior = RowPrior()  # noqa: RUF009 - it is frozen
    max_levels: int = 8

    def in_units(self, units: Units) -> Refinement:
        return replace(
            self,
            resolution=self.resolution.scaled(1 / units.factor),
            noise=self.noise.in_units(units),
        )

    def __call__(
        self, level: int, engine: Engine, factors: Factors, before: Level | None
    ) -> Level | None:
        if level >= self.max_levels:
            return None
        residuals, posterior = self._estimate_residuals(engine, factors, before, level)
        old = None if before is None or level == 0 else before.noise
        noise = self.noise.estimate(residuals, old)  # of the kind that is selected at level 0
        if level == 0 and before is not None and noise.sigma > 0:
            # The smoothed 1-norm does not resolve smaller residuals: they are not noise yet.
            noise = noise.inflated(max(1.0, before.loss.reach / noise.sigma))
        self._check_noise(noise, old)
        frozen_noise = noise.with_signal(factors) if noise.kind.signal else noise
        fibres = find_outlying_fibres(engine, factors, frozen_noise)
        same_fibres = (fibres is None) == (before is None or before.fibres is None)
        same_peaks = old is None or bool(noise.shifted) == bool(old.shifted)
        if old is not None and noise.kind == old.kind and same_fibres and same_peaks:
            tol = (
                REFINEMENT.common_noise_tol
                if noise.kind == COMMON
                else REFINEMENT.heteroscedastic_noise_tol
            )
            if rms_log_ratio(residuals, noise, old) < tol:
                return None
        shift = noise.shift * noise.sigma
        loss = Contaminated(noise.sigma, noise.above, noise.below, noise.shifted, shift)
        prior = None if posterior is None else posterior.prior(noise.sigma**2)
        return Level(loss, frozen_noise, prior, fibres)

    def _estimate_residuals(
        self, engine: Engine, factors: Factors, before: Level | None, level: int
    ) -> tuple[Residuals, RowPosterior | None]:
        """Residuals without the excluded fibres, and the posterior of the rows if it is needed.

        Where rows have few entries, residuals are corrected for leverage: each entry pulls the
        model towards itself.
        """
        if before is not None and before.fibres is not None:
            engine = engine.without_fibres(before.fibres)
        scales = () if before is None or before.noise is None else before.noise.slabs
        if not self.row_prior.is_needed(engine, factors[0].shape[1]):
            return Residuals.of(engine, factors, self.resolution, fitted_scales=scales), None
        raw = engine.sample(factors).values
        if before is None or before.noise is None or level == 0:
            sigma = max(1.4826 * median_magnitude(raw), self.resolution.min_entry_sigma)
            before = Level(Cauchy(2 * sigma), Noise.common(sigma, engine.order))
        standardized = replace(before, fibres=None).view_data(engine)
        unit = cast(Noise, before.noise).sigma ** 2
        posterior = self.row_prior.row_posterior(
            standardized, factors, before.loss, unit, before.prior
        )
        sample = standardized.sample(factors)
        u = np.divide(raw, sample.values, out=np.ones_like(raw), where=sample.values != 0)
        curvatures = before.loss.curvature(sample.values) / u**2
        correction = 1 / np.sqrt(1 - posterior.leverages(sample, factors, curvatures))
        return Residuals.of(engine, factors, self.resolution, correction, scales), posterior

    def _check_noise(self, noise: Noise, old: Noise | None) -> None:
        """Raise `Skip` if noise cannot be told from outliers."""
        max_share = REFINEMENT.max_outlier_share
        if max(noise.above, noise.below) < REFINEMENT.max_outlier_floor:
            max_share = REFINEMENT.max_outlier_share_with_peak
        if noise.rejected_share > max_share:
            raise Skip(
                f"refinement would reject {noise.rejected_share:.0%} of the entries: "
                "the L1 fit is kept"
            )
        rise = REFINEMENT.max_rejection_rise
        if (
            old is not None
            and noise.clean < old.clean - rise
            and noise.rejected_share > old.rejected_share + rise
        ):
            raise Skip(
                f"refinement would reject more and more entries ({old.rejected_share:.0%}, then "
                f"{noise.rejected_share:.0%}): the L1 fit is kept"
            )


@dataclass(frozen=True)
class StandardizedL1(Schedule):
    """A continuation of the smoothed 1-norm, of residuals divided by the scales of their slabs.

    In the first level the scales are estimated from the data, so that slabs of large entries have
    no more influence than others before there is a model; then from the residuals.

    Attributes
    ----------
    continuation : Continuation
        The values of epsilon.
    resolution : Resolution
    trust_residuals : bool
        Whether the initial factors may be good enough to estimate scales from their residuals.
    row_prior : RowPrior
        The modes whose rows have a prior if some have few entries.
    """

    degree = 1
    continuation: Continuation
    resolution: Resolution
    trust_residuals: bool = False
    row_prior: RowPrior = RowPrior()  # noqa: RUF009 - it is frozen

    def __call__(
        self, level: int, engine: Engine, factors: Factors, before: Level | None
    ) -> Level | None:
        fibres = None if before is None else before.fibres
        if fibres is not None:
            engine = engine.without_fibres(fibres)
        rank = factors[0].shape[1]
        if self.is_unsuitable(engine, factors):
            return None
        level_spec = self.continuation(level, engine, factors, before)
        if level_spec is None:
            return None
        model = factors
        if level == 0 and not (self.trust_residuals and _explains_data(engine, factors)):
            model = tuple(0.0 * A for A in factors)
        noise = estimate_rough_noise(engine, model, self.resolution)
        level_spec = replace(level_spec, noise=noise, fibres=fibres)
        if model is factors and self.row_prior.is_needed(engine, rank):
            standardized = replace(level_spec, fibres=None).view_data(engine)
            limit, residuals = 4 * noise.sigma, standardized.sample(factors).values
            mean = float(np.mean(np.abs(np.clip(residuals, -limit, limit))))
            unit = max(mean, self.resolution.min_sigma)
            old = None if before is None else before.prior
            posterior = self.row_prior.row_posterior(
                standardized, factors, level_spec.loss, unit, old
            )
            level_spec = replace(level_spec, prior=posterior.prior(unit))
        return level_spec

    def is_unsuitable(self, engine: Engine, factors: Factors) -> bool:
        """Whether medians, which the 1-norm follows, would spoil initial factors that are good.

        They mislead where rows have hardly any entries, where most entries are outliers, and for
        small counts, whose median is a whole number below their mean.
        """
        if not self.trust_residuals:
            return False
        if self.row_prior.has_thin_rows(engine, factors[0].shape[1]):
            return True
        return self.resolution.small_counts or most_are_outliers(engine, factors, self.resolution)

    def is_last(self, level: int) -> bool:
        return self.continuation.is_last(level)

    def for_warm_start(self, engine: Engine, factors: Factors) -> StandardizedL1:
        return replace(
            self,
            continuation=self.continuation.for_warm_start(engine, factors),
            trust_residuals=True,
        )

    def in_units(self, units: Units) -> StandardizedL1:
        resolution = self.resolution.scaled(1 / units.factor)
        return replace(self, continuation=self.continuation.in_units(units), resolution=resolution)


def most_are_outliers(engine: Engine, factors: Factors, resolution: Resolution) -> bool:
    """Whether less than half of the entries, or hardly more, are clean given a model."""
    residuals = engine.sample(factors).values
    mixture = fit_contaminated_normal(residuals, resolution.min_entry_sigma)
    return mixture.clean < REFINEMENT.min_clean_share


def _explains_data(engine: Engine, factors: Factors) -> bool:
    """Whether residuals are smaller than the data, by their median magnitudes."""
    residuals, data = engine.sample(factors).values, engine.sample().values
    return median_magnitude(residuals) < median_magnitude(data)


@dataclass(frozen=True)
class CauchyContinuation(Schedule):
    """Levels of Cauchy's loss of residuals divided by the scales of their slabs.

    Entries and slabs that are far from the model have little influence.

    Attributes
    ----------
    resolution : Resolution
    width : float
        The width of the loss, in standard deviations.
    max_levels : int
        The most levels; they end when the noise changes little.
    """

    degree = 2
    resolution: Resolution
    width: float = 2.0
    max_levels: int = 4

    def __call__(
        self, level: int, engine: Engine, factors: Factors, before: Level | None
    ) -> Level | None:
        if level >= self.max_levels:
            return None
        noise = estimate_rough_noise(engine, factors, self.resolution)
        old = before.noise if before is not None and level > 0 else None
        if old is not None and abs(math.log(noise.sigma / old.sigma)) < REFINEMENT.start_noise_tol:
            return None
        return Level(Cauchy(self.width * noise.sigma), noise)


@dataclass(frozen=True)
class QuantileContinuation(Schedule):
    """A continuation of the smoothed quantile loss, for data with most outliers on one side.

    Attributes
    ----------
    continuation : Continuation
        The values of epsilon.
    tau : float
        The quantile.
    """

    degree = 1
    continuation: Continuation
    tau: float

    def __call__(
        self, level: int, engine: Engine, factors: Factors, before: Level | None
    ) -> Level | None:
        level_spec = self.continuation(level, engine, factors, before)
        return level_spec and Level(Quantile(self.tau, cast(L1, level_spec.loss).epsilon))


@dataclass(frozen=True)
class NarrowWelsch(Schedule):
    """Levels of Welsch's loss, narrow enough for data in which most entries are outliers.

    Attributes
    ----------
    resolution : Resolution
    width : float
        The width of the loss, in units of the lower quartile of residual magnitudes.
    max_levels : int
    """

    degree = 2
    resolution: Resolution
    width: float = 3.0
    max_levels: int = 8

    def __call__(
        self, level: int, engine: Engine, factors: Factors, before: Level | None
    ) -> Level | None:
        if level >= self.max_levels:
            return None
        residuals = np.abs(engine.sample(factors).values)
        quartile = float(np.quantile(residuals, 0.25)) if residuals.size else 0.0
        return Level(Welsch(self.width * max(quartile, self.resolution.min_entry_sigma)))


@dataclass(frozen=True)
class L1Finish(Schedule):
    """A continuation of the 1-norm that begins at the magnitude of the current residuals."""

    degree = 1
    lowest: float
    ratio: float = 0.1

    def in_units(self, units: Units) -> L1Finish:
        return replace(self, lowest=units.epsilon_of_fit(self.lowest))

    def __call__(
        self, level: int, engine: Engine, factors: Factors, before: Level | None
    ) -> Level | None:
        if level == 0:
            return Level(L1(max(self.lowest, median_magnitude(engine.sample(factors).values) ** 2)))
        epsilon = cast(L1, cast(Level, before).loss).epsilon
        if epsilon <= self.lowest:
            return None
        return Level(L1(max(self.lowest, self.ratio * epsilon)))
