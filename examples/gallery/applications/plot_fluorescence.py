"""
Fluorescence with its scatter
=============================

Landscapes of fluorescence, sample x emission x excitation, have bands of scattered light in them,
brighter than what is looked for. One can cut them out, or leave them in.
"""

import matplotlib.pyplot as plt
import numpy as np

import robustcp
from robustcp import eem

emission, excitation = np.arange(300, 501, 5.0), np.arange(240, 401, 8.0)
rng = np.random.default_rng(0)
em = np.exp(-0.5 * ((emission[:, None] - [340, 410, 450]) / [18, 30, 28]) ** 2)
ex = np.exp(-0.5 * ((excitation[:, None] - [275, 310, 360]) / [12, 25, 22]) ** 2)
amounts = rng.uniform(0.2, 1.0, (15, 3))
shift = emission[:, None] - excitation
em_ex = np.einsum("ir,jr,kr->ijk", amounts, em, ex) * (shift > 0)
scatter = 4 * np.exp(-0.5 * (shift / 5) ** 2) * rng.uniform(0.7, 1.3, (15, 1, 1))
noise = 0.01 * rng.standard_normal(em_ex.shape)

X = eem.landscapes(em_ex + scatter + noise, emission=emission, excitation=excitation)
cut = eem.mask_scatter(X, rayleigh=(50, 30), raman=None)
print(X)
print(cut)

# %%
# One sample as it is, and with its scatter cut.

figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True, layout="constrained")
for ax, each, title in zip(axes, (X, cut), ("as measured", "scatter cut"), strict=True):
    picture = ax.pcolormesh(excitation, emission, each.data[0], vmin=0, vmax=1.2, cmap="viridis")
    ax.set(title=title, xlabel="excitation, nm")
axes[0].set_ylabel("emission, nm")
figure.colorbar(picture, ax=axes, label="intensity", extend="max")
plt.show()

# %%
# Least squares spends its components on the scatter. ``cp`` leaves out fibres that are outlying
# as a whole, and comes as far as if the bands were cut. Where scatter has long tails, as it often
# has, cut it, and broadly enough: what is left of a band is worse than a few missing entries.

truth = robustcp.KruskalTensor.from_factors([amounts, em, ex])
fits = {
    "least squares, scatter left in": robustcp.cpals(X, 3),
    "cp, scatter left in": robustcp.cp(X, 3, nonnegative=True),
    "cp, scatter cut": robustcp.cp(cut, 3, nonnegative=True),
}
for name, fit in fits.items():
    print(f"{name:31} score {robustcp.factor_match_score(fit, truth, weights=False):.3f}")

# %%
# Spectra, with a maximum of 1. What is then the score of a sample is its Fmax.

found = [eem.spectra(fits[name], X) for name in ("cp, scatter cut", "cp, scatter left in")]
robustcp.plot.spectra(*found, labels=["scatter cut", "scatter left in"])
plt.show()
print(found[0])
print("Fmax of the first samples:", found[0].fmax[:2].round(2).tolist())
