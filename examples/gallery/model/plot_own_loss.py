"""
A loss of your own
==================

A loss is what a residual costs: an object with its value, its slope, and the curvature of a
parabola that touches it and lies above it. Here the loss of Geman and McClure, which robustcp
does not have.
"""

from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np

import robustcp


@dataclass(frozen=True)
class GemanMcClure:
    """c^2/2 r^2 / (c^2 + r^2): at most c^2/2, whatever the residual."""

    c: float

    def value(self, r):
        return 0.5 * self.c**2 * r**2 / (self.c**2 + r**2)

    def slope(self, r):
        return r * (self.c**2 / (self.c**2 + r**2)) ** 2

    def curvature(self, r):  # slope / r, since it is concave in r^2
        return (self.c**2 / (self.c**2 + r**2)) ** 2


# %%
# Beside some that are there. Influence is the slope: how hard an entry pulls.

r = np.linspace(-6, 6, 400)
losses = {
    "Huber": robustcp.Huber(1.345),
    "Cauchy": robustcp.Cauchy(2.385),
    "Geman-McClure": GemanMcClure(2.5),
}
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for (name, loss), (colour, line, _) in zip(losses.items(), robustcp.plot.STYLES, strict=False):
    axes[0].plot(r, loss.value(r), line, color=colour, label=name)
    axes[1].plot(r, loss.slope(r), line, color=colour)
axes[0].set(xlabel="residual", ylabel="cost", ylim=(0, 6))
axes[1].set(xlabel="residual", ylabel="influence", ylim=(-3, 3))
axes[0].legend(frameon=False)
for ax in axes:
    ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# The fit begins at the start that ``cp`` finds, and the loss is in the units of the data: here
# 2.5 standard deviations of the noise.

sim = robustcp.simulate((25, 25, 25), 3, eta=0.1, gamma=2.0, rng=0)
for loss in (robustcp.Huber(1.345 * sim.sigma), GemanMcClure(2.5 * sim.sigma), None):
    fit = robustcp.cp(sim.data, 3, loss=loss)
    name = "cp's own" if loss is None else type(loss).__name__
    print(f"{name:13} score {robustcp.factor_match_score(fit, sim.truth):.4f}")
