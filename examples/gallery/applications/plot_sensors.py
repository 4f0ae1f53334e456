"""
Which sensors are broken?
=========================

A long table of temperatures, sensor x day x hour, as it comes from a database: rows are missing,
two sensors send spikes, one is stuck for a week.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import robustcp

rng = np.random.default_rng(0)
sensors, days, hours = 20, 28, 24
hour, day = np.arange(hours), np.arange(days)
A = np.stack([rng.uniform(8, 12, sensors), rng.gamma(2, 4, sensors), rng.gamma(1, 4, sensors)])
B = np.stack([np.ones(days), rng.uniform(0.1, 1, days), 1.0 * (day % 7 < 5)])
sun = np.clip(np.sin(np.pi * (hour - 6) / 14), 0, None)
C = np.stack([np.ones(hours), sun, 1.0 * ((hour >= 7) & (hour < 18))])
X = np.einsum("ri,rj,rk->ijk", A, B, C) + rng.normal(0, 0.5, (sensors, days, hours))
for s in (6, 17):
    X[s] += np.where(rng.random((days, hours)) < 0.15, rng.uniform(20, 60, (days, hours)), 0)
X[11, 7:14] = 35.0

names = [f"S{s:02}" for s in range(sensors)]
index = pd.MultiIndex.from_product([names, day, hour], names=["sensor", "day", "hour"])
table = pd.Series(X.ravel(), index=index, name="temperature").sample(frac=0.7, random_state=0)
print(table.head(3))

# %%
# A Series with a level of its index for each mode goes in as it is; rows that are not there are
# missing.

fit = robustcp.cp(table, 3)
found = fit.outliers(table)
for slab in found.worst("sensor", 4):
    print(f"{slab.label}: {slab[1]:.1%} of its rows flagged")

# %%
# The components: the level, the sun on more or less cloudy days, and the heating of office hours
# on weekdays.

robustcp.plot.components(fit, kinds={"sensor": "bar"})
plt.show()

# %%
# Cells by sensor and day. Spikes are spread over all days; the stuck sensor has a week of its
# own.

figure, ax = plt.subplots(figsize=(8, 5), layout="constrained")
robustcp.plot.cellmap(found, ax=ax)
plt.show()
