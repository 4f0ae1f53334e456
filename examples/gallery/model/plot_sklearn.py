"""
In a scikit-learn pipeline
==========================

:class:`robustcp.RobustCP` is a transformer: samples come first, and their scores come out. Here
they tell two kinds of sample apart, although a tenth of the entries is bad.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline

import robustcp

rng = np.random.default_rng(0)
kind = np.arange(48) % 2
amounts = rng.gamma(4, 0.25, (48, 3))
amounts[:, 1] *= 1 + 1.5 * kind  # more of the second component
X = np.einsum("ir,jr,kr->ijk", amounts, rng.random((15, 3)) ** 2, rng.random((12, 3)) ** 2)
X += 0.02 * rng.standard_normal(X.shape)
X[rng.random(X.shape) < 0.1] += 2.0

pipeline = make_pipeline(robustcp.RobustCP(n_components=3, starts=4), LogisticRegression())
accuracy = cross_val_score(pipeline, X, kind, cv=4)
print("accuracy of four folds:", accuracy.round(2))

# %%
# The scores of all samples.

scores = robustcp.RobustCP(n_components=3).fit_transform(X)
best = int(np.argmax(np.abs(scores[kind == 1].mean(0) - scores[kind == 0].mean(0))))
other = (best + 1) % 3
figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
for each, (colour, _, mark) in enumerate(robustcp.plot.STYLES[:2]):
    chosen = scores[kind == each]
    ax.plot(chosen[:, best], chosen[:, other], mark, color=colour, label=f"kind {each}")
ax.set(xlabel=f"score of component {best + 1}", ylabel=f"score of component {other + 1}")
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False)
plt.show()
