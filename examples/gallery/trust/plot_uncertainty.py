"""
How sure is each number?
========================

Intervals for the entries of the factors: by asymptotic normality, at the cost of a few sweeps, or
by fits to resamples.
"""

import matplotlib.pyplot as plt
import numpy as np

import robustcp

x = np.linspace(0, 1, 40)
bumps = np.exp(-0.5 * ((x[:, None] - [0.3, 0.5]) / [0.08, 0.15]) ** 2)
rng = np.random.default_rng(0)
truth = robustcp.KruskalTensor.from_factors([rng.random((10, 2)), bumps, rng.random((8, 2))])
X = truth.full() + 0.1 * rng.standard_normal((10, 40, 8))
X[rng.random(X.shape) < 0.05] += 2.0

fit = robustcp.cp(X, 2)
sure = fit.uncertainty(X)
robustcp.plot.components(fit, uncertainty=sure)
plt.show()

# %%
# 95% of the intervals should hold the true entry, one by one.

true = truth.normalized()
_, order = robustcp.factor_match_score(fit, true, return_permutation=True)
held = []
for low, high, A in zip(sure.low, sure.high, true.factors, strict=True):
    low, high = low[:, order], high[:, order]
    sign = np.sign(((low + high) * A).sum(axis=0))
    held.append((low <= sign * A) & (sign * A <= high))
print("held:", [f"{each.mean():.0%}" for each in held])

# %%
# The bootstrap draws residuals anew and fits again, here sixty times. It also says whether
# components come back.

again = fit.uncertainty(X, "bootstrap", n=60)
print("came back:", again.came_back)
print("errors beside those above:", (again.errors[1] / sure.errors[1]).mean(axis=0).round(2))
