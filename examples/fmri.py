"""The global signal of an fMRI scan in which the head moved in four volumes.

The scan is the small one that comes with nibabel (17 x 21 x 3 voxels, 20 volumes). In four volumes
we let the head jerk by 1 mm (a quarter of a voxel), and one slice, caught in the movement, lose a
fifth of its signal. The model is voxel x time with one component: a map times a time course. Of a
matrix only a single component is unique; but with x, y and z in modes of their own the anatomy
does not fit, and three components leave residuals of five times the noise. A jump of a *whole*
volume is of the model's own form: the time course follows it, robust or not.

    python examples/fmri.py             # writes fmri.png and, beside it, fmri_map.nii
"""

import argparse
from importlib.resources import files
from pathlib import Path

import matplotlib.pyplot as plt
import nibabel
import numpy as np
from scipy.ndimage import shift

import robustcp

# not nibabel.testing, which needs pytest
SCAN = str(files("nibabel") / "tests" / "data" / "functional.nii")
MOVED = {4: (0, 0.25, 0), 9: (0, 0.25, 0), 10: (0, 0.25, 0), 15: (0.25, 0, 0)}  # voxels


def with_motion(scan: np.ndarray) -> np.ndarray:
    """The scan with the head displaced, and one slice darker, in the volumes of MOVED."""
    scan = scan.copy()
    for volume, move in MOVED.items():
        scan[..., volume] = shift(scan[..., volume], move, order=1, mode="nearest")
        scan[:, :, volume % scan.shape[2], volume] *= 0.8
    return scan


def parts(fit: robustcp.Fit) -> tuple[np.ndarray, np.ndarray]:
    """The map, in the scan's units, and the time course, in percent of its median."""
    weights, (space, time) = fit
    middle = np.median(time)
    return weights * middle * space[:, 0], 100 * (time[:, 0] / middle - 1)


def main(out: str = "fmri.png") -> dict:
    """Fit clean and moved scan, print agreement, draw time courses, write the map."""
    image = nibabel.load(SCAN)
    clean = image.get_fdata()
    X = with_motion(clean).reshape(-1, clean.shape[3])  # voxel x time

    true_map, truth = parts(robustcp.cpals(clean.reshape(X.shape), 1))
    fits = {"least squares": robustcp.cpals(X, 1), "cp": robustcp.cp(X, 1)}
    found = fits["cp"].outliers(X)
    numbers: dict = {"flagged": found.worst(1, count=len(MOVED) + 1)}
    for name, (space, time) in {name: parts(fit) for name, fit in fits.items()}.items():
        agreement = float(np.corrcoef(time, truth)[0, 1])
        error = float(np.sqrt(np.mean((time - truth) ** 2)))
        off = float(100 * np.linalg.norm(space - true_map) / np.linalg.norm(true_map))
        numbers[name] = (agreement, error, off)
        print(f"{name}: correlation with the clean scan's time course {agreement:.3f}, "
              f"error {error:.2f}%, error of the map {off:.2f}%")  # fmt: skip
    print(f"standard deviation of the clean time course {truth.std():.2f}%")
    print("worst volumes:", *(f"{k} ({share:.0%} flagged)" for k, share in numbers["flagged"]))

    spatial = nibabel.Nifti1Image(parts(fits["cp"])[0].reshape(clean.shape[:3]), image.affine)
    nibabel.save(spatial, Path(out).with_name(Path(out).stem + "_map.nii"))

    figure, axes = plt.subplots(3, figsize=(7, 6), sharex=True, layout="constrained")
    for ax in axes[:2]:
        ax.plot(truth, color="0.75", linewidth=5, label="clean scan")
        for (name, fit), style in zip(fits.items(), robustcp.plot.STYLES, strict=False):
            colour, line, mark = style
            ax.plot(parts(fit)[1], mark + line, color=colour, markersize=4, label=name)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    axes[0].set_ylabel("global signal, %")
    axes[1].set(ylabel="magnified, %", ylim=(-0.7, 0.7))
    robustcp.plot.outliers(found, 1, ax=axes[2])
    for k, bar in enumerate(axes[2].patches):
        bar.set(width=0.8, x=k - 0.4, hatch="///" if k in MOVED else "", edgecolor="white")
    axes[2].set(xlabel="volume (hatched: the head moved)", ylabel="flagged voxels, %")
    axes[2].set_xticks(range(X.shape[1]))
    figure.savefig(out, dpi=150)
    plt.close(figure)
    return numbers


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", nargs="?", default="fmri.png", help="the picture")
    main(parser.parse_args().out)
