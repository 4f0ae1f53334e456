"""The loss of censored entries, which grows on one side only."""

from __future__ import annotations

from dataclasses import dataclass

from array_api_compat import array_namespace

from robustcp._util.typing import Array
from robustcp.losses.base import Loss


@dataclass(frozen=True, eq=False)
class OneSided(Loss):
    """A loss where some entries are censored: constant where the model is beyond their limit.

    With t the residual of least cost (`Loss.minimizer`), the cost of an entry at its upper limit
    is loss(max(r, t)), at its lower limit loss(min(r, t)). At residuals on the flat side the slope
    is 0, and there are two curvatures of parabolas that lie above:

    - that of the loss at t, since the parabola with it touches the loss at t, and its center may be
      moved away;
    - for a convex loss also that of the loss at r. For rho(s) <= rho(r) + rho'(r) (s - r)
      + c (s - r)^2 / 2, and rho(r) + rho'(r) (t - r) <= rho(t) as rho is convex; so for all s
      beyond t, where rho'(r) (s - t) <= 0, rho(s) <= rho(t) + c (s - r)^2 / 2.

    For the 1-norm with a small epsilon the first is huge, and would keep the model where it is.

    Attributes
    ----------
    loss : Loss
    sides : array
        For each residual 1 if the entry is at its upper limit, -1 at its lower limit, else 0.
    """

    loss: Loss
    sides: Array

    def _is_flat(self, r: Array) -> Array:
        sides = array_namespace(r).astype(self.sides, r.dtype)
        return sides * (r - self.loss.minimizer) < 0

    def _at_minimizer(self, r: Array) -> tuple[Array, Array]:
        """Value and curvature at the residual of least cost."""
        xp = array_namespace(r)
        point = xp.full_like(xp.reshape(r, (-1,))[:1], self.loss.minimizer)
        value, _, curvature = self.loss.majorize(point)
        return value, curvature

    def value(self, r: Array) -> Array:
        xp, flat = array_namespace(r), self._is_flat(r)
        return xp.where(flat, self._at_minimizer(r)[0], self.loss.value(r))

    def slope(self, r: Array) -> Array:
        return self.majorize(r + 0.0)[1]

    def curvature(self, r: Array) -> Array:
        return self.majorize(r + 0.0)[2]

    def majorize(self, r: Array) -> tuple[Array, Array, Array]:
        xp, flat, (least, peak) = array_namespace(r), self._is_flat(r), self._at_minimizer(r)
        value, slope, curvature = self.loss.majorize(r)
        if not self.loss.convex:
            curvature = xp.where(flat, peak, curvature)
        return xp.where(flat, least, value), xp.where(flat, xp.zeros_like(slope), slope), curvature
