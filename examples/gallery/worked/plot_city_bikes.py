"""
Where a city cycles, and when
=============================

*For those who explore data.* Trips to the stations of Oslo's city bikes, as counted in 2021, from
the file that comes with TensorLy-Viz: from NetCDF to a paragraph that could stand in a paper. Every
number on this page was printed by the code above it.
"""

# %%
# Read
# ----
# ``robustcp.read`` takes the file with its names and labels; xarray does as well. We take the forty
# busiest stations and the months in which the bikes are out, and say what the counts are counts of.

from importlib.util import find_spec
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import xarray

import robustcp

path = Path(find_spec("tlviz").origin).parent / "datasets" / "oslo_bike.nc4"
trips = xarray.open_dataset(path)["Bike trips"].sel(Year=2021).drop_vars(["lat", "lon", "Year"])
trips = trips.rename(dict(zip(trips.dims, ("station", "month", "day", "hour"), strict=True)))
busiest = np.argsort(-trips.sum(["month", "day", "hour"]).values)[:40]
X = trips.isel(station=np.sort(busiest)).sel(month=slice(4, 11))
print(dict(X.sizes), f"{int(X.sum())} trips")

# %%
# Look
# ----
# Counts: their noise grows with them, and a few cells are far above the others. Least squares would
# spend its components on the busiest station in its busiest hours.

print(f"median {float(X.median()):.0f}, largest {float(X.max()):.0f} trips in a cell")

# %%
# Fit
# ---
# Trips do not cancel, so factors are nonnegative. We say nothing about the noise: ``cp`` finds out.

fit = robustcp.cp(X, 3, nonnegative=True)
print(fit.noise)
robustcp.plot.components(fit, kinds={"station": "bar"})
plt.show()

# %%
# People ride to work in the morning, home in the afternoon, and for pleasure on weekends. The
# variance grows with the model's entries, as that of counts does, and a little faster than
# Poisson's: not every Tuesday is alike.
#
# Doubt
# -----
# A warning is not an error. This one says that hours and days beside each other have residuals
# of the same sign: three components are not all there is in a city.

for warning in fit.warnings:
    print(f"[{warning.code}] {warning.sentence}")

# %%
# Which cells does the model not account for? One station stands out, and its months show why: in
# October and November nobody arrived there.

found = fit.outliers(X)
worst = [(str(X.station.values[k]), share) for k, share in found.worst("station", 3)]
print([(name, f"{share:.0%}") for name, share in worst])
odd = worst[0][0]
figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
robustcp.plot.outliers(found, "station", ax=axes[0])
by_month = X.sel(station=odd).sum(["day", "hour"])
axes[1].bar(by_month.month, by_month, color="0.4")
axes[1].set(xlabel="month", ylabel="trips", title=odd)
axes[1].spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# Does that station matter for the others? Leave it out, and compare months, days and hours.

plain = robustcp.cpals(X, 3, constraints={name: robustcp.Nonnegative() for name in X.dims})
without = X.sel(station=[name for name in X.station.values if name != odd])
again = robustcp.cp(without, 3, nonnegative=True)
plain_again = robustcp.cpals(without, 3, constraints={n: robustcp.Nonnegative() for n in X.dims})


def same(one, other):
    """How alike two models are in months, days and hours."""
    return robustcp.factor_match_score(one, other, skip_mode=0, weights=False)


moved = {"cp": same(fit, again), "least squares": same(plain, plain_again)}
for name, score in moved.items():
    print(f"{name}: {score:.3f} between the fits with and without {odd}")

# %%
# Write down
# ----------
# The paragraph, from the numbers above.

print(
    f"Trips to the {X.sizes['station']} busiest stations in {X.sizes['month']} months of 2021 "
    f"(station x month x day of the week x hour) were decomposed into {fit.rank} nonnegative "
    f"components by robust CP (robustcp {robustcp.__version__}), which explain {fit.explained:.0%} "
    f"of the trips. The noise was found to grow with the signal. {found.share:.1%} of "
    f"the cells were flagged as outlying; {odd} had the most ({worst[0][1]:.0%}). Without that "
    f"station the temporal factors stay the same (factor match score {moved['cp']:.2f}; least "
    f"squares: {moved['least squares']:.2f})."
)
