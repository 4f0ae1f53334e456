"""
Would the components come back?
===============================

A component is worth reporting if it comes back from other samples, and from other starts.
"""

import matplotlib.pyplot as plt

import robustcp

sim = robustcp.simulate((30, 20, 12), 3, eta=0.05, gamma=0.5, rng=0)
X = sim.data

# %%
# Fits without a fifth of the samples each, at the true rank and with one component too many.

for rank in (3, 4):
    found = robustcp.replicability(X, rank, mode=0, folds=5, starts=2)
    print(f"rank {rank}: score {found.score:.3f}; came back {found.came_back.round(2)}")

# %%
# The fourth component is another one in each part.

robustcp.plot.replicability(found)
plt.show()

# %%
# Split-half, as chemists do it: the quarters A to D in three pairs of halves.

halves = robustcp.replicability(X, 3, mode=0, preset="split_half", starts=2)
# sphinx_gallery_thumbnail_number = 2
robustcp.plot.split_half(halves)
plt.show()

# %%
# All models of several starts at several ranks. Starts agree at every rank here, also at rank 4:
# that a component is found from every start does not mean that other samples have it.

models = robustcp.ensemble(X, range(1, 5), starts=5)
robustcp.plot.ensemble(models)
plt.show()
