"""Schedules: what residuals cost in a stage, level by level."""

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
    """The constants by which the noise leads a fit."""

    #: With a larger share of outliers the noise cannot be estimated.
    max_outlier_share: float = 0.5
    #: With at most this share the noise can be estimated if its peak is high:
    max_outlier_share_with_peak: float = 0.75
    #: the floor of outliers, relative to the peak, is at most this.
    max_outlier_floor: float = 0.5
    #: With fewer clean entries the 1-norm, which is led by medians, misleads.
    min_clean_share: float = 0.55
    #: A level that raises the share of rejected entries, and lowers that of clean ones, by this is
    #: undone: to a bounded loss, rejecting entries may be cheaper than a penalty.
    max_rejection_rise: float = 0.05
    #: The change of the logarithm of common noise at which a refinement ends;
    common_noise_tol: float = 0.002
    #: the same of heteroscedastic noise, entry by entry.
    heteroscedastic_noise_tol: float = 0.005
    #: The same of starts, which only have to be compared.
    start_noise_tol: float = 0.02
    #: The kind of noise is selected before the first levels of a refinement, then it stays.
    noise_kind_levels: int = 2


REFINEMENT = RefinementSettings()


class Skip(Exception):  # noqa: N818 - not an error: the stage is not for this data
    """Raised by a schedule, with the reason: the stage is left out, or undone."""


@dataclass(frozen=True)
class Level:
    """What residuals cost in a level of a stage.

    Attributes
    ----------
    loss : Loss
        Of residuals in the units of the data.
    noise : Noise, optional
        If entries have noise of different size, the loss is of residuals that are divided by
        its scales.
    prior : Prior, optional
        Of the rows, where the data says little of some.
    fibres : Fibres, optional
        What is left out.
    """

    loss: Loss
    noise: Noise | None = None
    prior: Prior | None = None
    fibres: Fibres | None = None

    def view_data(self, engine: Engine) -> Engine:
        """Data as this level looks at it."""
        if self.fibres is not None:
            engine = engine.without_fibres(self.fibres)
        if self.noise is not None and not self.noise.homoscedastic:
            engine = engine.standardized(self.noise.scales(engine.shape))
        return engine


class Schedule(ABC):
    """What residuals cost in a stage, level by level."""

    @abstractmethod
    def __call__(
        self, level: int, engine: Engine, factors: Factors, before: Level | None
    ) -> Level | None:
        """The level that begins at these factors; None when there is no such level.

        `before` is the level before, of this stage or the one before; None at the start.
        """

    #: By which power of a factor of the data its losses grow (see `Loss.degree`).
    degree: int = 0

    def is_last(self, level: int) -> bool:
        """Whether a level is known to be the last."""
        return False

    def for_warm_start(self, engine: Engine, factors: Factors) -> Schedule:
        """The same schedule for a fit that begins at factors which may be good already."""
        return self

    def in_units(self, units: Units) -> Schedule:
        """The same schedule, given in the units of the data, in those of the fit."""
        return self


@dataclass(frozen=True)
class Single(Schedule):
    """One level with one loss and, where rows have one, a prior."""

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
    """The smoothed 1-norm with epsilon falling from one level to the next, down to the last.

    With a fixed tiny epsilon an entry that happens to be fitted gets a huge weight and pins its
    row; coming down from a large one, the same objective ends lower in fewer sweeps.

    With `stop_share` it ends before the last, once epsilon is below that share of the square of the
    median residual: where another stage follows, residuals need not be told apart any finer.
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
        """Begin at the size of the residuals: a larger epsilon would lead a good start astray."""
        size = median_magnitude(engine.sample(factors).values) or math.inf
        return replace(self, first=max(self.lowest, min(self.first, size * size)))


@dataclass(frozen=True)
class Refinement(Schedule):
    """Levels of `Contaminated`, with the noise estimated anew before each, to a fixed point.

    Within a level the noise is frozen, also where it depends on the model's entries.

    Attributes
    ----------
    resolution : Resolution
        What is too small to be seen.
    noise : NoiseSpec
        What is known of the noise.
    row_prior : RowPrior
        Which rows have a prior, where they have few entries.
    max_levels : int
        The most levels.
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
        if before is not None and level == 0:
            before = replace(before, noise=None)
        residuals, posterior = self._estimate_residuals(engine, factors, before)
        old = None if before is None else before.noise
        noise = self.noise.estimate(
            residuals, old if level >= REFINEMENT.noise_kind_levels else None
        )
        self._check_noise(noise, old)
        frozen_noise = noise.with_signal(factors) if noise.kind.signal else noise
        fibres = find_outlying_fibres(engine, factors, frozen_noise)
        same_fibres = (fibres is None) == (before is None or before.fibres is None)
        if old is not None and noise.kind == old.kind and same_fibres:
            tol = (
                REFINEMENT.common_noise_tol
                if noise.kind == COMMON
                else REFINEMENT.heteroscedastic_noise_tol
            )
            if rms_log_ratio(residuals, noise, old) < tol:
                return None
        loss = Contaminated(noise.sigma, noise.above, noise.below)
        prior = None if posterior is None else posterior.prior(noise.sigma**2)
        return Level(loss, frozen_noise, prior, fibres)

    def _estimate_residuals(
        self, engine: Engine, factors: Factors, before: Level | None
    ) -> tuple[Residuals, RowPosterior | None]:
        """Residuals of what was not left out; with few entries, as large as they should be.

        Entries pull the model to themselves, and the more so the fewer there are (leverage).
        """
        if before is not None and before.fibres is not None:
            engine = engine.without_fibres(before.fibres)
        if not self.row_prior.is_needed(engine, factors[0].shape[1]):
            return Residuals.of(engine, factors, self.resolution), None
        raw = engine.sample(factors).values
        if before is None or before.noise is None:
            sigma = max(1.4826 * median_magnitude(raw), self.resolution.min_entry_sigma)
            before = Level(Cauchy(2 * sigma), Noise.common(sigma, engine.order))
        level_spec, standardized = before, replace(before, fibres=None).view_data(engine)
        sigma = cast(Noise, level_spec.noise).sigma
        posterior = self.row_prior.row_posterior(
            standardized, factors, level_spec.loss, sigma**2, level_spec.prior
        )
        sample = standardized.sample(factors)
        u = np.divide(raw, sample.values, out=np.ones_like(raw), where=sample.values != 0)
        leverages = posterior.leverages(
            sample, factors, level_spec.loss.curvature(sample.values) / u**2
        )
        leverage_correction = 1 / np.sqrt(1 - leverages)
        return Residuals.of(engine, factors, self.resolution, leverage_correction), posterior

    def _check_noise(self, noise: Noise, old: Noise | None) -> None:
        """Whether there is noise that can be told from the outliers."""
        has_peak = max(noise.above, noise.below) < REFINEMENT.max_outlier_floor
        if noise.rejected_share > (
            REFINEMENT.max_outlier_share_with_peak if has_peak else REFINEMENT.max_outlier_share
        ):
            raise Skip(
                f"refinement would reject {noise.rejected_share:.0%} of the entries: "
                "the L1 fit is kept"
            )
        if old is not None and _rejects_more(old, noise):
            raise Skip(
                f"refinement would reject more and more entries ({old.rejected_share:.0%}, then "
                f"{noise.rejected_share:.0%}): the L1 fit is kept"
            )


@dataclass(frozen=True)
class StandardizedL1(Schedule):
    """The smoothed 1-norm of residuals in units of the spread of their slabs, epsilon falling.

    The spread is that of the data to begin with, so that a slab of large entries has no more say
    than others before anything is known; then that of the residuals.

    Attributes
    ----------
    continuation : Continuation
        How epsilon falls.
    resolution : Resolution
    trust_residuals : bool
        Whether the residuals may tell something from the beginning.
    row_prior : RowPrior
        Rows with few entries, which have a prior. With very few there is no such stage, if
        something is known; nor is there if medians mislead.
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
            unit = float(
                np.mean(np.abs(np.clip(standardized.sample(factors).values, *_clip_limits(noise))))
            )
            unit = max(unit, self.resolution.min_sigma)
            old = None if before is None else before.prior
            posterior = self.row_prior.row_posterior(
                standardized, factors, level_spec.loss, unit, old
            )
            level_spec = replace(level_spec, prior=posterior.prior(unit))
        return level_spec

    def is_unsuitable(self, engine: Engine, factors: Factors) -> bool:
        """Whether this is not for the data: of good factors, if medians, which lead here, mislead.

        So they do where rows have hardly any entries, where most are outliers, and of small
        counts, whose median is a whole number and lower than their mean.
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
    """Whether less than half of the entries, or hardly more, are clean beside a model."""
    return (
        fit_contaminated_normal(engine.sample(factors).values, resolution.min_entry_sigma).clean
        < REFINEMENT.min_clean_share
    )


def _clip_limits(noise: Noise) -> tuple[float, float]:
    """What is beyond this does not tell how large residuals are."""
    return -4 * noise.sigma, 4 * noise.sigma


def _rejects_more(before: Noise, now: Noise) -> bool:
    """Whether far more entries are rejected than before, and fewer are clean."""
    return (
        now.clean < before.clean - REFINEMENT.max_rejection_rise
        and now.rejected_share > before.rejected_share + REFINEMENT.max_rejection_rise
    )


def _explains_data(engine: Engine, factors: Factors) -> bool:
    """Whether residuals are smaller than the data."""
    return median_magnitude(engine.sample(factors).values) < median_magnitude(
        engine.sample().values
    )


@dataclass(frozen=True)
class CauchyContinuation(Schedule):
    """Levels of Cauchy's loss of residuals in units of the spread of their slabs.

    What is far from the model has next to no say, be it an entry or a slab.

    Attributes
    ----------
    resolution : Resolution
    width : float
        The width of the loss, in standard deviations.
    max_levels : int
        The most levels; there are fewer once the noise stays the same.
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
    """The smoothed quantile loss with epsilon falling: most entries on one side are outliers.

    Attributes
    ----------
    continuation : Continuation
        How epsilon falls.
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
    """Levels of Welsch's loss that is so narrow that most entries may be outliers.

    Attributes
    ----------
    resolution : Resolution
    width : float
        In units of the lower quartile of the magnitudes of the residuals.
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
    """The 1-norm down to its end, from wherever a fit stands.

    It begins at the size of the residuals: the stage before may have left off anywhere.
    """

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
