"""
Missing entries
===============

NaN means missing. Nothing is filled in, so the question is only how many entries are left. Here a
tenth of those is bad as well.
"""

import matplotlib.pyplot as plt
import numpy as np

import robustcp

sim = robustcp.simulate((30, 30, 30), 3, eta=0.1, gamma=1.0, rng=0)
order = np.random.default_rng(0).permutation(sim.data.size)
gone = (0.0, 0.5, 0.8, 0.9, 0.95)
scores = []
for share in gone:
    X = sim.data.copy()
    X.flat[order[: int(share * X.size)]] = np.nan
    fit = robustcp.cp(X, 3)
    scores.append(robustcp.factor_match_score(fit, sim.truth))
    print(f"{share:4.0%} missing: score {scores[-1]:.3f}; {len(fit.warnings)} warnings")

figure, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
ax.plot([100 * share for share in gone], scores, "o-", color=robustcp.plot.STYLES[0][0])
ax.set(xlabel="missing entries, %", ylabel="factor match score", ylim=(0, 1.03))
ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# When most entries are missing, list those that are there: work and memory follow their number,
# not the shape. This is 0.2% of a tensor of 8 million entries.

rng = np.random.default_rng(1)
truth = robustcp.simulate((200, 200, 200), 2, eta=0.0, gamma=0.0, rng=0).truth
indices = np.unique(rng.integers(0, 200, (16_000, 3)), axis=0)
values = truth.at(indices) * (1 + 0.05 * rng.standard_normal(len(indices)))
listed = robustcp.Observed(indices, values, (200, 200, 200))
fit = robustcp.cp(listed, 2)
print(f"{len(values) / 200**3:.2%} listed: score {robustcp.factor_match_score(fit, truth):.3f}")
print("prediction", fit.at([(0, 1, 2)]).round(2), "truth", truth.at(np.array([[0, 1, 2]])).round(2))
