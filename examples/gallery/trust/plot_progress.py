"""
How a fit goes, and how it goes on
==================================

The objective of each stage, a callback that watches, and a checkpoint from which the same call
goes on to the same bits.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import robustcp

X = robustcp.simulate((30, 30, 30), 3, eta=0.2, gamma=2.0, rng=0).data
fit = robustcp.cp(X, 3)
print(fit.status)
print("sweeps of each stage:", fit.stages)
print("starts that reached this model:", fit.starts.reached, "of", len(fit.starts))

# %%
# Within each stage the objective never rises. Levels within a stage lower the smoothing, or
# estimate the noise anew, which makes the values jump.

figure, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
robustcp.plot.convergence(fit, ax=ax)
plt.show()

# %%
# A callback sees the state after each sweep; returning True stops the fit. With a checkpoint
# nothing is lost: the same call goes on.

whole = robustcp.cpal1(X, 3)
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "fit.ckpt"
    part = robustcp.cpal1(X, 3, checkpoint=path, callback=lambda state: state.sweep >= 5)
    on = robustcp.cpal1(X, 3, checkpoint=path)
print("stopped:", part.status)
print("the same as without the stop:", np.array_equal(on.factors[0], whole.factors[0]))
