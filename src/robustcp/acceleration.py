"""How a sweep is carried on: a joint step of all factors, and momentum.

A sweep solves for one factor after the other. Where components are alike, each of them can only
follow the others in tiny steps (a swamp). Let H be the Hessian of half the squared residuals in
all factors, after Gauss and Newton. When factor n was solved for, its gradient became zero; the
steps s_m of those after it have made sum_{m>n} H_nm s_m of that. So the joint step e from the end
of the sweep,

    H e = -L' s,    L' the blocks of H above the diagonal,

needs no pass over the data. The weights that a loss gives to entries cancel, in so far as their
mean is the same everywhere. Its blocks are e_n = A_n E_n, and the R x R matrices E_n follow from
the Gram matrices of the factors.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from robustcp._typing import Factors
from robustcp.engines.algebra import Algebra
from robustcp.engines.joint import JointSystem


@dataclass(frozen=True)
class Way:
    """What a sweep did.

    Attributes
    ----------
    old, swept : tuple of arrays
        The factors before it and at its end.
    modes : sequence of int
        Those that were solved for, in the order of their turns.
    first : float
        By how much the first of them should have lowered the loss; NaN if that is not known.
    """

    old: Factors
    swept: Factors
    modes: Sequence[int]
    first: float = math.nan


@dataclass(frozen=True)
class Aim:
    """Where a sweep leads.

    Attributes
    ----------
    factors : tuple of arrays
    gain : float
        By how much it should be lower there than at the end of the sweep, in units of the sweep's
        own fall.
    held : float
        By how much half of the damping would lower it more, in units of the whole fall.
    fall : float
        How far the objective should fall from the beginning of the sweep; NaN if that is not
        known.
    """

    factors: Factors
    gain: float = 0.0
    held: float = 0.0
    fall: float = math.nan


class Acceleration(ABC):
    """How a sweep is carried on."""

    @abstractmethod
    def aim(self, way: Way, damping: float, algebra: Algebra) -> Aim | None:
        """Where a sweep leads; None if there is nothing beyond its end."""

    @property
    def cheap(self) -> Acceleration:
        """The same without anything that takes longer than a sweep of small data."""
        return self

    def momentum(self, aim: Aim, leaps: int) -> float:
        """How far to go on along the way from the last aim to this one, after so many leaps."""
        return 0.0

    def damping(self, before: float, aim: Aim, ratio: float) -> float:
        """The damping of the next joint step, given how far the objective fell with this one.

        The ratio is to what it should; negative if it would rise, NaN if that is not known.
        """
        return before


@dataclass(frozen=True)
class Plain(Acceleration):
    """Not at all."""

    def aim(self, way: Way, damping: float, algebra: Algebra) -> Aim | None:
        return None


@dataclass(frozen=True)
class Momentum(Acceleration):
    """By Nesterov's momentum alone."""

    def aim(self, way: Way, damping: float, algebra: Algebra) -> Aim | None:
        return Aim(way.swept)

    def momentum(self, aim: Aim, leaps: int) -> float:
        return leaps / (leaps + 3) / (1 + aim.gain)


@dataclass(frozen=True)
class Joint(Momentum):
    """By a joint step of all factors; by momentum, in so far as that step has little to add.

    The step is damped, (H + damping D) e = -L' s with D the diagonal blocks of H: with much of it
    the aim is the end of the sweep. Damping follows from how well falls are foretold. Momentum is
    Nesterov's, divided by 1 + `Aim.gain`: where the joint step does the work it would only carry
    away from the bottom of the valley.

    Attributes
    ----------
    good, bad : float
        Damping is halved if the objective falls by more than this share of what it should, and
        doubled if it falls by less.
    worth : float
        What half of the damping must have to offer for that, see `Aim.held`.
    refused : float
        What damping is multiplied by if the objective would rise.
    least, most : float
        Bounds of the damping.

    Examples
    --------
    Components that are alike in every mode, and the sweeps that least squares takes:

    >>> import numpy as np
    >>> from robustcp import cp
    >>> from robustcp.losses import LeastSquares
    >>> from robustcp.schedules import Single
    >>> from robustcp.solver import Stage
    >>> rng = np.random.default_rng(0)
    >>> A, B, C = (rng.random((15, 1)) + 0.5 * rng.random((15, 3)) for _ in range(3))
    >>> X = np.einsum("ir,jr,kr->ijk", A, B, C) + 1e-3 * rng.standard_normal((15, 15, 15))
    >>> begin = [rng.random((15, 3)) for _ in range(3)]
    >>> stages = [
    ...     Stage("squares", Single(LeastSquares()), 1e-6, acceleration=way)
    ...     for way in (Joint(), Plain())
    ... ]
    >>> joint, plain = (cp(X, 3, loss=[stage], init=begin) for stage in stages)
    >>> joint.sweeps < 100 < plain.sweeps
    True
    """

    good: float = 0.9
    bad: float = 0.5
    worth: float = 0.05
    refused: float = 4.0
    least: float = 1e-8
    most: float = 1e4

    def aim(self, way: Way, damping: float, algebra: Algebra) -> Aim | None:
        swept, modes = way.swept, way.modes
        if len(modes) < 2:
            return Aim(swept)
        with np.errstate(all="ignore"):  # factors that run off
            grams, squares, slipped = algebra.step_products(way.old, swept)
            system, solved = JointSystem.of(grams, modes), list(modes)
            own, slips = system.own_falls(squares[solved]), system.slips(slipped[solved])
        total = float(np.sum(own))
        if not (0 < total < math.inf and np.all(np.isfinite(slips))):
            return Aim(swept)
        E, lower = algebra.joint_step(system, slips, damping)
        moved = dict(zip(modes, algebra.changed([swept[n] for n in modes], E), strict=True))
        factors = tuple(moved.get(mode, A) for mode, A in enumerate(swept))
        held = 0.5 * damping * system.damped(E) / (total + lower)
        fall = way.first / float(own[0]) * (total + lower) if own[0] > 0 else math.nan
        return Aim(factors, lower / total, held, fall)

    @property
    def cheap(self) -> Acceleration:
        return Momentum()

    def damping(self, before: float, aim: Aim, ratio: float) -> float:
        if ratio < 0:
            return min(self.refused * before, self.most)
        if ratio < self.bad:
            return min(2 * before, self.most)
        return before if ratio < self.good or aim.held < self.worth else max(before / 2, self.least)
