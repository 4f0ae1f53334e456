"""
Names and labels
================

An ``xarray.DataArray`` gives the names of its dimensions and its coordinates to the fit, to its
pictures and to what is found. Data in another order is matched by them.
"""

import matplotlib.pyplot as plt
import numpy as np
import xarray

import robustcp

rng = np.random.default_rng(0)
hours = np.arange(24)
day = np.stack([np.exp(-0.5 * ((hours - c) / 3) ** 2) for c in (8, 18)], axis=1)
week = np.array([[1, 1, 1, 1, 1, 0.3, 0.2], [0.9, 0.9, 0.9, 1, 1.2, 1.5, 1.3]]).T
streets = rng.uniform(100, 400, (12, 2))
counts = np.einsum("sr,dr,hr->sdh", streets, week, day) + 10 * rng.standard_normal((12, 7, 24))
counts[4, 2, 6:14] = 0  # a road that was closed

traffic = xarray.DataArray(
    counts,
    dims=("street", "day", "hour"),
    coords={
        "street": list("ABCDEFGHIJKL"),
        "day": ["Mo", "Tu", "We", "Th", "Fr", "Sa", "Su"],
        "hour": hours,
    },
)
fit = robustcp.cp(traffic, 2, nonnegative=True)
robustcp.plot.components(fit)
plt.show()

# %%
# Outliers have names, too.

found = fit.outliers(traffic)
print(found.worst("street", 2))
print(found.scores_of({"street": "E", "day": "We"}).round(0))

# %%
# The modes may come in any order; an integer is always a position, a label is a label.

turned = traffic.transpose("hour", "street", "day")
print(fit.outliers(turned).worst("street", 1), "of", turned.dims)
print(fit.to_frames()["day"].round(2))
