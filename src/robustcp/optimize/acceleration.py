"""Extrapolation of sweeps: a joint step of all factors, and momentum.

A sweep solves for one factor after the other. Where components are alike, each of them can only
follow the others in tiny steps (a swamp). Let H be the Hessian of half the squared residuals in
all factors, after Gauss and Newton. When factor n was solved for, its gradient became zero; the
steps s_m of later factors have changed it to sum_{m>n} H_nm s_m. So the joint step e from the end
of the sweep,

    H e = -L' s,    L' the blocks of H above the diagonal,

needs no pass over the data. The weights that a loss gives to entries cancel as far as their mean
is the same everywhere. Its blocks are e_n = A_n E_n, and the R x R matrices E_n follow from
the Gram matrices of the factors.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from robustcp._util.typing import Factors
from robustcp.engines.algebra import Algebra
from robustcp.engines.joint_step import JointSystem


@dataclass(frozen=True)
class SweepStep:
    """The step of a sweep.

    Attributes
    ----------
    start, end : tuple of arrays
        The factors before and after the sweep.
    modes : sequence of int
        The modes that were solved for, in this order.
    first_decrease : float
        The predicted decrease of the loss by the first of these modes; NaN if it is not known.
    """

    start: Factors
    end: Factors
    modes: Sequence[int]
    first_decrease: float = math.nan


@dataclass(frozen=True)
class ProposedStep:
    """Factors that an acceleration proposes after a sweep.

    Attributes
    ----------
    factors : tuple of arrays
    relative_gain : float
        The predicted decrease of the objective beyond the end of the sweep, relative to the
        decrease by the sweep.
    damping_gain : float
        The further decrease that half the damping would give, relative to the total decrease.
    predicted_decrease : float
        The predicted decrease of the objective from the beginning of the sweep; NaN if it is not
        known.
    """

    factors: Factors
    relative_gain: float = 0.0
    damping_gain: float = 0.0
    predicted_decrease: float = math.nan


class Acceleration(ABC):
    """How sweeps are extrapolated."""

    @abstractmethod
    def propose(self, sweep: SweepStep, damping: float, algebra: Algebra) -> ProposedStep | None:
        """The factors to try after a sweep; None to stay at its end."""

    @property
    def cheap_variant(self) -> Acceleration:
        """This acceleration without steps that take longer than a sweep of small data."""
        return self

    @property
    def momentum_weight(self) -> float | None:
        """The factor of Nesterov's momentum, if there is no extrapolation beside it; else None."""
        return None

    def momentum(self, step: ProposedStep, extrapolations: int) -> float:
        """The momentum coefficient of a step, after some accepted extrapolations in a row."""
        return 0.0

    def next_damping(self, damping: float, step: ProposedStep, ratio: float) -> float:
        """The damping of the next joint step.

        `ratio` is the decrease of the objective over the predicted one: negative if the objective
        would have risen, NaN if it is not known.
        """
        return damping


@dataclass(frozen=True)
class NoAcceleration(Acceleration):
    """No extrapolation."""

    @property
    def momentum_weight(self) -> float | None:
        return 0.0

    def propose(self, sweep: SweepStep, damping: float, algebra: Algebra) -> ProposedStep | None:
        return None


@dataclass(frozen=True)
class Momentum(Acceleration):
    """Nesterov's momentum alone."""

    @property
    def momentum_weight(self) -> float | None:
        return 1.0

    def propose(self, sweep: SweepStep, damping: float, algebra: Algebra) -> ProposedStep | None:
        return ProposedStep(sweep.end)

    def momentum(self, step: ProposedStep, extrapolations: int) -> float:
        return extrapolations / (extrapolations + 3) / (1 + step.relative_gain)


@dataclass(frozen=True)
class JointStep(Momentum):
    """A joint step of all factors, with momentum as far as that step gains little.

    The step is damped, (H + damping D) e = -L' s with D the diagonal blocks of H: strong damping
    leads to the end of the sweep. The damping is adapted to how well decreases are predicted.
    Momentum is Nesterov's, divided by 1 + `ProposedStep.relative_gain`: where the joint step does
    the work, momentum would only lead away from the bottom of the valley.

    Attributes
    ----------
    good_ratio, bad_ratio : float
        Damping is halved if the objective falls by more than the first share of the predicted
        decrease, and doubled if it falls by less than the second.
    min_damping_gain : float
        The least `ProposedStep.damping_gain` for which damping is halved.
    rejection_factor : float
        The factor of damping if the objective would rise.
    min_damping, max_damping : float
        Bounds of the damping.

    Examples
    --------
    Least squares with components that are alike in every mode takes fewer sweeps:

    >>> import numpy as np
    >>> from robustcp import cp
    >>> from robustcp.losses import LeastSquares
    >>> from robustcp.optimize.schedules import Single
    >>> from robustcp.optimize.solver import Stage
    >>> rng = np.random.default_rng(0)
    >>> A, B, C = (rng.random((15, 1)) + 0.5 * rng.random((15, 3)) for _ in range(3))
    >>> X = np.einsum("ir,jr,kr->ijk", A, B, C) + 1e-3 * rng.standard_normal((15, 15, 15))
    >>> begin = [rng.random((15, 3)) for _ in range(3)]
    >>> stages = [
    ...     Stage("squares", Single(LeastSquares()), 1e-6, acceleration=way)
    ...     for way in (JointStep(), NoAcceleration())
    ... ]
    >>> joint, plain = (cp(X, 3, loss=[stage], init=begin) for stage in stages)
    >>> joint.sweeps < 100 < plain.sweeps
    True
    """

    good_ratio: float = 0.9
    bad_ratio: float = 0.5
    min_damping_gain: float = 0.05
    rejection_factor: float = 4.0
    min_damping: float = 1e-8
    max_damping: float = 1e4

    @property
    def momentum_weight(self) -> float | None:
        return None

    def propose(self, sweep: SweepStep, damping: float, algebra: Algebra) -> ProposedStep | None:
        end, modes = sweep.end, sweep.modes
        if len(modes) < 2:
            return ProposedStep(end)
        with np.errstate(all="ignore"):  # factors that run off
            grams, squares, cross_products = algebra.step_products(sweep.start, end)
            system, solved_modes = JointSystem.from_grams(grams, modes), list(modes)
            own_decreases = system.own_decreases(squares[solved_modes])
            gradients = system.coupled_gradients(cross_products[solved_modes])
        total = float(np.sum(own_decreases))
        if not (0 < total < math.inf and np.all(np.isfinite(gradients))):
            return ProposedStep(end)
        E, joint_decrease = algebra.joint_step(system, gradients, damping)
        changed = dict(zip(modes, algebra.add_step([end[n] for n in modes], E), strict=True))
        factors = tuple(changed.get(mode, A) for mode, A in enumerate(end))
        damping_gain = 0.5 * damping * system.diagonal_quadratic_form(E) / (total + joint_decrease)
        predicted_decrease = math.nan
        if own_decreases[0] > 0:
            unit = sweep.first_decrease / float(own_decreases[0])
            predicted_decrease = unit * (total + joint_decrease)
        return ProposedStep(factors, joint_decrease / total, damping_gain, predicted_decrease)

    @property
    def cheap_variant(self) -> Acceleration:
        return Momentum()

    def next_damping(self, damping: float, step: ProposedStep, ratio: float) -> float:
        if ratio < 0:
            return min(self.rejection_factor * damping, self.max_damping)
        if ratio < self.bad_ratio:
            return min(2 * damping, self.max_damping)
        if ratio < self.good_ratio or step.damping_gain < self.min_damping_gain:
            return damping
        return max(damping / 2, self.min_damping)
