"""
Which entries are bad?
======================

A stack of frames in which two things went wrong: one frame is shifted, and one pixel region
flickers. The fit is of the rest, and its residuals show both.
"""

import matplotlib.pyplot as plt
import numpy as np

import robustcp

sim = robustcp.simulate((40, 30, 25), 3, eta=0.0, gamma=0.0, rng=3)
X = sim.data.copy()
X[:, :, 17] = np.roll(X[:, :, 17], 5, axis=0)  # a shifted frame
flicker = np.random.default_rng(0).random(25) < 0.4
X[5:9, 10:16, flicker] += 4.0  # a region that flickers

fit = robustcp.cp(X, 3)
found = fit.outliers(X)  # one false alarm in a thousand clean entries
print(found.worst(2, 3))

# %%
# The share of flagged entries in each frame, and what chance alone would flag.

figure, ax = plt.subplots(figsize=(8, 3), layout="constrained")
robustcp.plot.outliers(found, 2, ax=ax)
plt.show()

# %%
# A frame with the flicker in it: data, model and residual.

robustcp.plot.slices(fit, X, int(np.flatnonzero(flicker)[0]), mode=2)
plt.show()

# %%
# All cells at once, averaged over the frames: red is too high, blue too low.

# sphinx_gallery_thumbnail_number = 3
figure, ax = plt.subplots(figsize=(7, 5), layout="constrained")
robustcp.plot.cellmap(found, ax=ax)
plt.show()
