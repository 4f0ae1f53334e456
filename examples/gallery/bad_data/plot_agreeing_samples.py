"""
Bad samples that agree with each other
======================================

Seven of thirty samples hold something that the others do not have. To a criterion of entries that
is a component like any other. Told which mode holds samples, ``cp`` finds the model of most of
them.
"""

import matplotlib.pyplot as plt
import numpy as np

import robustcp

rng = np.random.default_rng(1)
sim = robustcp.simulate((30, 20, 15), 3, eta=0.02, gamma=0.5, rng=3)
X = sim.data.copy()
X[:7] += 8 * np.median(np.abs(X)) * np.multiply.outer(rng.random(20), rng.random(15))

plain = robustcp.cp(X, 3)
told = robustcp.cp(X, 3, cases=0)
for name, fit in {"without": plain, "with cases=0": told}.items():
    score = robustcp.factor_match_score(fit, sim.truth, weights=False, skip_mode=0)
    print(f"{name:13} score of the other two modes {score:.3f}")
print("warnings of the first:", [warning.code for warning in plain.warnings])
print(told.cases)

# %%
# The residual distance of each sample from the model of most, with its cut-off. Flagged samples
# had no say in the other factors, and keep their scores.

figure, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
flagged = told.cases.flagged
for name, which, (colour, _, mark) in zip(
    ("good", "flagged"), (~flagged, flagged), robustcp.plot.STYLES, strict=False
):
    at = np.flatnonzero(which)
    ax.plot(at, told.cases.distances[at], mark, color=colour, label=name)
ax.step(range(30), np.broadcast_to(told.cases.cutoffs, 30), "k--", where="mid", label="cut-off")
ax.set(xlabel="sample", ylabel="residual distance", yscale="log")
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False)
plt.show()
