"""
Nonnegative, smooth, unimodal
=============================

Spectra have one peak, vary smoothly and are not negative. Saying so helps when there are few or
noisy entries: here 70% are missing and a tenth of the rest is bad.
"""

import matplotlib.pyplot as plt
import numpy as np

import robustcp
from robustcp import Nonnegative, Smooth, Unimodal

rng = np.random.default_rng(0)
nm = np.arange(300, 420, 2)
spectra = np.exp(-0.5 * ((nm[:, None] - [335, 350, 380]) / [10, 14, 12]) ** 2)
truth = robustcp.KruskalTensor.from_factors([rng.random((8, 3)), spectra, rng.random((6, 3))])
X = truth.full() + 0.05 * rng.standard_normal((8, 60, 6))
X[rng.random(X.shape) < 0.1] += 1.0
X[rng.random(X.shape) < 0.7] = np.nan

asked = {
    "free": {},
    "nonnegative": {mode: Nonnegative() for mode in range(3)},
    "unimodal, nonnegative": {0: Nonnegative(), 1: Unimodal(), 2: Nonnegative()},
    "smooth, nonnegative": {0: Nonnegative(), 1: Smooth(1.0, nonnegative=True), 2: Nonnegative()},
}
fits = {name: robustcp.cp(X, 3, constraints=each) for name, each in asked.items()}
for name, fit in fits.items():
    print(f"{name:22} score {robustcp.factor_match_score(fit, truth):.3f}")

# %%
# The spectra, in the order of the truth (grey).

figure, axes = plt.subplots(2, 2, figsize=(9, 5.5), sharex=True, sharey=True, layout="constrained")
true = truth.normalized()
for ax, (name, fit) in zip(axes.flat, fits.items(), strict=True):
    score, order = robustcp.factor_match_score(fit, true, return_permutation=True)
    found = fit.factors[1][:, order]
    found = found * np.sign((found * true.factors[1]).sum(axis=0))
    ax.plot(nm, true.factors[1], color="0.8", linewidth=4)
    for column, (colour, line, _) in zip(found.T, robustcp.plot.STYLES, strict=False):
        ax.plot(nm, column, line, color=colour)
    ax.set_title(f"{name}: {score:.3f}", fontsize=10)
    ax.spines[["top", "right"]].set_visible(False)
for ax in axes[1]:
    ax.set_xlabel("emission, nm")
plt.show()
