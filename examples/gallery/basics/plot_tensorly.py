"""
Beside TensorLy
===============

TensorLy's ``parafac`` is least squares. How far off is it as more entries go bad? A fit of
robustcp is a pair ``weights, factors``, so functions of TensorLy take it as it is.
"""

import matplotlib.pyplot as plt
import tensorly
from tensorly.decomposition import parafac

import robustcp

shares = (0.0, 0.01, 0.05, 0.1, 0.2, 0.3)
scores = {"tensorly parafac": [], "cp": []}
for share in shares:
    sim = robustcp.simulate((25, 25, 25), 3, eta=share, gamma=4 * share**0.5, rng=1)
    theirs = parafac(tensorly.tensor(sim.data), 3, random_state=0)
    ours = robustcp.cp(sim.data, 3)
    scores["tensorly parafac"].append(robustcp.factor_match_score(theirs, sim.truth))
    scores["cp"].append(robustcp.factor_match_score(ours, sim.truth))

# %%
# With no bad entries both recover the factors. A bad entry is off by as much in each of these,
# however many there are.

figure, ax = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
for (name, values), (colour, line, mark) in zip(scores.items(), robustcp.plot.STYLES, strict=False):
    ax.plot([100 * share for share in shares], values, mark + line, color=colour, label=name)
ax.set(xlabel="bad entries, %", ylabel="factor match score", ylim=(0, 1.03))
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False)
plt.show()

# %%
# Code that is written for TensorLy needs another import, and no other change. What it gets is
# TensorLy's ``CPTensor``, with the fit, for the bad entries and whatever else a fit knows.

from robustcp.tensorly import parafac

model = parafac(tensorly.tensor(sim.data), 3, random_state=0)
print(model, "score", round(robustcp.factor_match_score(model, sim.truth), 3))
found = model.fit.outliers(sim.data).mask
print(f"{found[sim.artifacts].mean():.0%} of the bad entries found")

# %%
# A ``Fit`` in the hands of TensorLy, and TensorLy's model in ours.

print(tensorly.cp_to_tensor(ours).shape)
print(robustcp.KruskalTensor.from_tensorly(theirs))
