"""Schedules: what residuals cost in a stage, level by level."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from robustcp._typing import Factors
from robustcp.engines import Engine, Fibres
from robustcp.losses import L1, Cauchy, Contaminated, Loss, Quantile, Welsch, as_loss
from robustcp.noise import (
    COMMON,
    Asked,
    Noise,
    Residuals,
    change,
    core_of,
    fibres_of,
    first_look,
    typical,
)
from robustcp.priors import Known, Prior, RowPrior
from robustcp.sizes import Resolution
from robustcp.units import Units

#: With a larger share of outliers than this there is no telling what the noise is; up to that
#: share there is, if its peak is twice as high as the floor of outliers.
TOO_MANY, MOST, HIGHEST = 0.5, 0.75, 0.5
#: With fewer clean entries than this the 1-norm, which is led by medians, leads astray.
HALF = 0.55
#: A level that raises the share of rejected entries, and lowers that of clean ones, by so much has
#: gone astray: to a bounded loss, giving up entries may be cheaper than a penalty.
WORSE = 0.05
#: Changes of the noise, as logarithms, at which a refinement ends: common, and entry by entry.
SETTLED, SETTLED_UNEVEN = 0.002, 0.005
#: The same of starts, which only have to be told apart.
STEADY = 0.02
#: The kind of noise is chosen before the first levels of a refinement, then it stays.
CHOSEN = 2


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

    def seen(self, engine: Engine) -> Engine:
        """Data as this level looks at it."""
        if self.fibres is not None:
            engine = engine.leaving_out(self.fibres)
        if self.noise is not None and not self.noise.even:
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

    def last(self, level: int) -> bool:
        """Whether a level is known to be the last."""
        return False

    def near(self, engine: Engine, factors: Factors) -> Schedule:
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

    def last(self, level: int) -> bool:
        return True

    def in_units(self, units: Units) -> Single:
        return replace(self, loss=units.loss_of_fit(self.loss))


@dataclass(frozen=True)
class Continuation(Schedule):
    """The smoothed 1-norm with epsilon falling from one level to the next, down to the last.

    With a fixed tiny epsilon an entry that happens to be fitted gets a huge weight and pins its
    row; coming down from a large one, the same objective ends lower in fewer sweeps.

    With `enough` it ends before the last, once epsilon is below that share of the square of the
    median residual: where another stage follows, residuals need not be told apart any finer.
    """

    degree = 1
    first: float
    lowest: float
    ratio: float = 0.1
    enough: float = 0.0

    def in_units(self, units: Units) -> Continuation:
        first, lowest = map(units.epsilon_of_fit, (self.first, self.lowest))
        return replace(self, first=first, lowest=lowest)

    def __call__(
        self, level: int, engine: Engine, factors: Factors, before: Level | None
    ) -> Level | None:
        if level > 0 and self.last(level - 1):
            return None
        if level > 0 and self.enough:
            size = typical(engine.sample(factors).values)
            if self._epsilon(level - 1) <= self.enough * size * size:
                return None
        return Level(L1(self._epsilon(level)))

    def _epsilon(self, level: int) -> float:
        return max(self.lowest, self.first * self.ratio**level)

    def last(self, level: int) -> bool:
        return self.first * self.ratio**level <= self.lowest

    def near(self, engine: Engine, factors: Factors) -> Continuation:
        """Begin at the size of the residuals: a larger epsilon would lead a good start astray."""
        size = typical(engine.sample(factors).values) or math.inf
        return replace(self, first=max(self.lowest, min(self.first, size * size)))


@dataclass(frozen=True)
class Refinement(Schedule):
    """Levels of `Contaminated`, with the noise estimated anew before each, to a fixed point.

    Within a level the noise is frozen, also where it depends on the model's entries.

    Attributes
    ----------
    resolution : Resolution
        What is too small to be seen.
    noise : Asked
        What is known of the noise.
    rows : RowPrior
        Which rows have a prior, where they have few entries.
    rounds : int
        The most levels.
    """

    degree = 2
    resolution: Resolution
    noise: Asked = Asked()  # noqa: RUF009 - it is frozen
    rows: RowPrior = RowPrior()  # noqa: RUF009 - it is frozen
    rounds: int = 8

    def in_units(self, units: Units) -> Refinement:
        return replace(
            self, resolution=self.resolution.times(1 / units.factor),
            noise=self.noise.in_units(units),
        )  # fmt: skip

    def __call__(
        self, level: int, engine: Engine, factors: Factors, before: Level | None
    ) -> Level | None:
        if level >= self.rounds:
            return None
        if before is not None and level == 0:
            before = replace(before, noise=None)
        residuals, known = self._look(engine, factors, before)
        old = None if before is None else before.noise
        noise = self.noise.noise(residuals, old if level >= CHOSEN else None)
        self._check(noise, old)
        held = noise.holding(factors) if noise.kind.signal else noise
        fibres = fibres_of(engine, factors, held)
        same = (fibres is None) == (before is None or before.fibres is None)
        if old is not None and noise.kind == old.kind and same:
            enough = SETTLED if noise.kind == COMMON else SETTLED_UNEVEN
            if change(residuals, noise, old) < enough:
                return None
        loss = Contaminated(noise.sigma, noise.above, noise.below)
        prior = None if known is None else known.prior(noise.sigma**2)
        return Level(loss, held, prior, fibres)

    def _look(
        self, engine: Engine, factors: Factors, before: Level | None
    ) -> tuple[Residuals, Known | None]:
        """Residuals of what was not left out; with few entries, as large as they should be.

        Entries pull the model to themselves, and the more so the fewer there are (leverage).
        """
        if before is not None and before.fibres is not None:
            engine = engine.leaving_out(before.fibres)
        if not self.rows.needed(engine, factors[0].shape[1]):
            return Residuals.of(engine, factors, self.resolution), None
        raw = engine.sample(factors).values
        if before is None or before.noise is None:
            sigma = max(1.4826 * typical(raw), self.resolution.entry)
            before = Level(Cauchy(2 * sigma), Noise.common(sigma, engine.order))
        cost, seen = before, replace(before, fibres=None).seen(engine)
        sigma = cast(Noise, cost.noise).sigma
        known = self.rows.known(seen, factors, cost.loss, sigma**2, cost.prior)
        sample = seen.sample(factors)
        u = np.divide(raw, sample.values, out=np.ones_like(raw), where=sample.values != 0)
        leverages = known.leverages(sample, factors, cost.loss.curvature(sample.values) / u**2)
        by = 1 / np.sqrt(1 - leverages)
        return Residuals.of(engine, factors, self.resolution, by), known

    def _check(self, noise: Noise, old: Noise | None) -> None:
        """Whether there is noise that can be told from the outliers."""
        peak = max(noise.above, noise.below) < HIGHEST
        if noise.beyond > (MOST if peak else TOO_MANY):
            raise Skip(
                f"refinement would reject {noise.beyond:.0%} of the entries: the L1 fit is kept"
            )
        if old is not None and _astray(old, noise):
            raise Skip(
                f"refinement would reject more and more entries ({old.beyond:.0%}, then "
                f"{noise.beyond:.0%}): the L1 fit is kept"
            )


@dataclass(frozen=True)
class EvenedOut(Schedule):
    """The smoothed 1-norm of residuals in units of the spread of their slabs, epsilon falling.

    The spread is that of the data to begin with, so that a slab of large entries has no more say
    than others before anything is known; then that of the residuals.

    Attributes
    ----------
    down : Continuation
        How epsilon falls.
    resolution : Resolution
    known : bool
        Whether the residuals may tell something from the beginning.
    rows : RowPrior
        Rows with few entries, which have a prior. With very few there is no such stage, if
        something is known; nor is there if medians mislead.
    """

    degree = 1
    down: Continuation
    resolution: Resolution
    known: bool = False
    rows: RowPrior = RowPrior()  # noqa: RUF009 - it is frozen

    def __call__(
        self, level: int, engine: Engine, factors: Factors, before: Level | None
    ) -> Level | None:
        fibres = None if before is None else before.fibres
        if fibres is not None:
            engine = engine.leaving_out(fibres)
        rank = factors[0].shape[1]
        if self.left_out(engine, factors):
            return None
        cost = self.down(level, engine, factors, before)
        if cost is None:
            return None
        model = factors
        if level == 0 and not (self.known and _tells_something(engine, factors)):
            model = tuple(0.0 * A for A in factors)
        noise = first_look(engine, model, self.resolution)
        cost = replace(cost, noise=noise, fibres=fibres)
        if model is factors and self.rows.needed(engine, rank):
            seen = replace(cost, fibres=None).seen(engine)
            unit = float(np.mean(np.abs(np.clip(seen.sample(factors).values, *_cut(noise)))))
            unit = max(unit, self.resolution.least)
            old = None if before is None else before.prior
            known = self.rows.known(seen, factors, cost.loss, unit, old)
            cost = replace(cost, prior=known.prior(unit))
        return cost

    def left_out(self, engine: Engine, factors: Factors) -> bool:
        """Whether this is not for the data: of good factors, if medians, which lead here, mislead.

        So they do where rows have hardly any entries, where most are outliers, and of small
        counts, whose median is a whole number and lower than their mean.
        """
        if not self.known:
            return False
        if self.rows.thin(engine, factors[0].shape[1]):
            return True
        return self.resolution.small or most_are_outliers(engine, factors, self.resolution)

    def last(self, level: int) -> bool:
        return self.down.last(level)

    def near(self, engine: Engine, factors: Factors) -> EvenedOut:
        return replace(self, down=self.down.near(engine, factors), known=True)

    def in_units(self, units: Units) -> EvenedOut:
        resolution = self.resolution.times(1 / units.factor)
        return replace(self, down=self.down.in_units(units), resolution=resolution)


def most_are_outliers(engine: Engine, factors: Factors, resolution: Resolution) -> bool:
    """Whether less than half of the entries, or hardly more, are clean beside a model."""
    return core_of(engine.sample(factors).values, resolution.entry).clean < HALF


def _cut(noise: Noise) -> tuple[float, float]:
    """What is beyond this does not tell how large residuals are."""
    return -4 * noise.sigma, 4 * noise.sigma


def _astray(before: Noise, now: Noise) -> bool:
    """Whether far more entries are rejected than before, and fewer are clean."""
    return now.clean < before.clean - WORSE and now.beyond > before.beyond + WORSE


def _tells_something(engine: Engine, factors: Factors) -> bool:
    """Whether residuals are smaller than the data."""
    return typical(engine.sample(factors).values) < typical(engine.sample().values)


@dataclass(frozen=True)
class Redescent(Schedule):
    """Levels of Cauchy's loss of residuals in units of the spread of their slabs.

    What is far from the model has next to no say, be it an entry or a slab.

    Attributes
    ----------
    resolution : Resolution
    width : float
        The width of the loss, in standard deviations.
    rounds : int
        The most levels; there are fewer once the noise stays the same.
    """

    degree = 2
    resolution: Resolution
    width: float = 2.0
    rounds: int = 4

    def __call__(
        self, level: int, engine: Engine, factors: Factors, before: Level | None
    ) -> Level | None:
        if level >= self.rounds:
            return None
        noise = first_look(engine, factors, self.resolution)
        old = before.noise if before is not None and level > 0 else None
        if old is not None and abs(math.log(noise.sigma / old.sigma)) < STEADY:
            return None
        return Level(Cauchy(self.width * noise.sigma), noise)


@dataclass(frozen=True)
class Beside(Schedule):
    """The smoothed quantile loss with epsilon falling: most entries on one side are outliers.

    Attributes
    ----------
    down : Continuation
        How epsilon falls.
    tau : float
        The quantile.
    """

    degree = 1
    down: Continuation
    tau: float

    def __call__(
        self, level: int, engine: Engine, factors: Factors, before: Level | None
    ) -> Level | None:
        cost = self.down(level, engine, factors, before)
        return cost and Level(Quantile(self.tau, cast(L1, cost.loss).epsilon))


@dataclass(frozen=True)
class Narrow(Schedule):
    """Levels of Welsch's loss that is so narrow that most entries may be outliers.

    Attributes
    ----------
    resolution : Resolution
    width : float
        In units of the lower quartile of the magnitudes of the residuals.
    rounds : int
    """

    degree = 2
    resolution: Resolution
    width: float = 3.0
    rounds: int = 8

    def __call__(
        self, level: int, engine: Engine, factors: Factors, before: Level | None
    ) -> Level | None:
        if level >= self.rounds:
            return None
        residuals = np.abs(engine.sample(factors).values)
        quartile = float(np.quantile(residuals, 0.25)) if residuals.size else 0.0
        return Level(Welsch(self.width * max(quartile, self.resolution.entry)))


@dataclass(frozen=True)
class Finish(Schedule):
    """The 1-norm down to its end, from wherever a fit stands.

    It begins at the size of the residuals: the stage before may have left off anywhere.
    """

    degree = 1
    lowest: float
    ratio: float = 0.1

    def in_units(self, units: Units) -> Finish:
        return replace(self, lowest=units.epsilon_of_fit(self.lowest))

    def __call__(
        self, level: int, engine: Engine, factors: Factors, before: Level | None
    ) -> Level | None:
        if level == 0:
            return Level(L1(max(self.lowest, typical(engine.sample(factors).values) ** 2)))
        epsilon = cast(L1, cast(Level, before).loss).epsilon
        if epsilon <= self.lowest:
            return None
        return Level(L1(max(self.lowest, self.ratio * epsilon)))
