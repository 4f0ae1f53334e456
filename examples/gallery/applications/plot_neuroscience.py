"""
Neurons, time and trials
========================

Calcium traces of neurons over time in many trials: tensor component analysis. The animal moves in
some trials, which makes artifacts in all neurons at once.
"""

import matplotlib.pyplot as plt
import numpy as np
import xarray

import robustcp

rng = np.random.default_rng(0)
neurons, times, trials = 50, 60, 80
t = np.linspace(0, 3, times)
course = np.stack(
    [np.exp(-0.5 * ((t - c) / w) ** 2) for c, w in ((0.6, 0.2), (1.5, 0.3), (2.2, 0.5))]
)
left = np.arange(trials) % 2 == 0
strength = np.stack([np.ones(trials), 1.0 * left, np.linspace(0.2, 1.5, trials)])  # learning
strength *= rng.uniform(0.8, 1.2, strength.shape)
loading = rng.gamma(1.0, 1.0, (neurons, 3))
truth = robustcp.KruskalTensor.from_factors([loading, course.T, strength.T])
X = truth.full() + 0.3 * rng.standard_normal((neurons, times, trials))
moved = rng.choice(trials, 8, replace=False)
for trial in moved:  # a burst of a fifth of a second, in all neurons
    begin = rng.integers(0, times - 8)
    X[:, begin : begin + 8, trial] += rng.uniform(4, 10) * rng.uniform(0.5, 1.5, (neurons, 1))

X = xarray.DataArray(X, dims=("neuron", "time", "trial"), coords={"time": t})

fits = {"least squares": robustcp.cpals(X, 3), "cp": robustcp.cp(X, 3, nonnegative=True)}
for name, fit in fits.items():
    print(f"{name:14} score {robustcp.factor_match_score(fit, truth):.3f}")

# %%
# What ``cp`` finds: which neurons, when, and in which trials. Left and right trials have marks of
# their own.

fit = fits["cp"]
sides = ["left" if each else "right" for each in left]
robustcp.plot.components(fit, kinds={"neuron": "bar"}, groups={"trial": sides})
plt.show()

# %%
# The trials in which the animal moved stand out; nobody had to look for them.

found = fit.outliers(X)
print("moved:  ", sorted(int(trial) for trial in moved))
print("flagged:", sorted(slab[0] for slab in found.worst("trial", 8)))
figure, ax = plt.subplots(figsize=(8, 3), layout="constrained")
robustcp.plot.outliers(found, "trial", ax=ax)
plt.show()
