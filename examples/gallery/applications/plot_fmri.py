"""
A scan in which the head moved
==============================

The small fMRI scan that comes with nibabel, as voxel x time. In four volumes we let the head jerk
by a quarter of a voxel and one slice lose a fifth of its signal.
"""

from importlib.resources import files

import matplotlib.pyplot as plt
import nibabel
import numpy as np
from scipy.ndimage import shift

import robustcp

image = nibabel.load(str(files("nibabel") / "tests" / "data" / "functional.nii"))
clean = image.get_fdata()
scan = clean.copy()
for volume in (4, 9, 10, 15):
    scan[..., volume] = shift(scan[..., volume], (0, 0.25, 0), order=1, mode="nearest")
    scan[:, :, volume % 3, volume] *= 0.8
X = scan.reshape(-1, scan.shape[3])  # of a matrix a single component is unique
print(scan.shape, "->", X.shape)

# %%
# One component: a map times a time course, in percent of its median.


def course(fit):
    time = fit.factors[1][:, 0]
    return 100 * (time / np.median(time) - 1)


truth = course(robustcp.cpals(clean.reshape(X.shape), 1))
fits = {"least squares": robustcp.cpals(X, 1), "cp": robustcp.cp(X, 1)}
for name, fit in fits.items():
    print(f"{name:14} correlation with the clean scan {np.corrcoef(course(fit), truth)[0, 1]:.2f}")

figure, ax = plt.subplots(figsize=(8, 3.4), layout="constrained")
ax.plot(truth, color="0.75", linewidth=5, label="clean scan")
for (name, fit), (colour, line, mark) in zip(fits.items(), robustcp.plot.STYLES, strict=False):
    ax.plot(course(fit), mark + line, color=colour, markersize=4, label=name)
ax.set(xlabel="volume", ylabel="global signal, %")
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False)
plt.show()

# %%
# The moved volumes are those with the most flagged voxels.

found = fits["cp"].outliers(X)
print([(slab[0], f"{slab[1]:.0%}") for slab in found.worst(1, 5)])
flagged = np.asarray(found.mask).reshape(scan.shape)
figure, axes = plt.subplots(1, 3, figsize=(7.5, 3.6), layout="constrained")
for ax, volume in zip(axes, (3, 4, 9), strict=True):
    ax.imshow(clean[:, :, volume % 3, volume].T, cmap="gray", origin="lower")
    seen = np.ma.masked_equal(flagged[:, :, volume % 3, volume].T, False)
    ax.imshow(seen, cmap="autumn", alpha=0.7, origin="lower")
    ax.set_title(f"volume {volume}", fontsize=10)
    ax.set_axis_off()
plt.show()
