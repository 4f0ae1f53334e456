"""
Choosing the rank
=================

How many components? :func:`robustcp.rank_profile` fits several ranks, predicts cells that it has
not seen, and leaves out samples to see which components come back.
"""

import matplotlib.pyplot as plt

import robustcp

sim = robustcp.simulate((24, 18, 12), 3, eta=0.1, gamma=1.0, rng=2)
profile = robustcp.rank_profile(sim.data, range(1, 6), folds=4)

print("rank", profile.rank, "-", profile.reason)

# %%
# The held-out error falls until the rank is reached. Beyond it a component is another one in each
# fold, so its stability is low. The core consistency falls, too, here two ranks later: components
# that mend each other are noise.

figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
robustcp.plot.rank_profile(profile, ax=ax)
plt.show()

# %%
# The numbers behind it. The gain is in nats per held-out cell.

print("rank  error  gain   stability  consistency")
columns = (profile.ranks, profile.error, profile.gain, profile.stability, profile.consistency)
for rank, error, gain, stability, consistency in zip(*columns, strict=True):
    print(f"{rank:4}  {error:.3f}  {gain:.3f}  {stability:9.3f}  {consistency:11.1f}")
