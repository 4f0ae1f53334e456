"""Emission spectra from fluorescence data with bad entries: least squares against `cp`.

Five samples of three amino acids, sample x emission x excitation. One entry in ten is multiplied
by 10, and each method's spectra are set beside those of least squares on the clean data.

    python examples/fluorescence.py                           # simulated data
    python examples/fluorescence.py --data aminoacids.mat     # the amino acids data, 5 x 201 x 61
"""

import argparse

import matplotlib.pyplot as plt
import numpy as np
from scipy.io import loadmat
from scipy.optimize import linear_sum_assignment

import robustcp


def simulated(emission: np.ndarray, excitation: np.ndarray) -> np.ndarray:
    """Three smooth spectra in five samples, of which three are pure, and 0.1% noise."""
    rng = np.random.default_rng(0)
    A = np.vstack([np.eye(3), rng.uniform(0.2, 0.8, (2, 3))])
    B = np.exp(-0.5 * ((emission[:, None] - [288, 308, 358]) / [14, 16, 26]) ** 2)
    C = np.exp(-0.5 * ((excitation[:, None] - [258, 274, 280]) / [9, 9, 12]) ** 2)
    X = 1000 * np.einsum("ir,jr,kr->ijk", A, B, C)
    return X + rng.standard_normal(X.shape)


def matched(fit: robustcp.Fit, clean: robustcp.Fit) -> list[np.ndarray]:
    """A fit's factors, with components in the order and signs of the clean fit's."""
    order = linear_sum_assignment(robustcp.congruence(clean, fit), maximize=True)[1]
    pairs = zip(fit.factors, clean.factors, strict=True)
    return [A[:, order] * np.sign((A[:, order] * B).sum(axis=0)) for A, B in pairs]


def main(out: str = "fluorescence.png", data: str | None = None, small: bool = False) -> dict:
    """Fit clean and bad data, print cosines, draw emission spectra."""
    emission, excitation = np.arange(250, 451, 4 if small else 1), np.arange(240, 301)
    X = loadmat(data, simplify_cells=True)["X"]["data"] if data else simulated(emission, excitation)
    bad = np.where(np.random.default_rng(1).random(X.shape) < 0.1, 10 * X, X)

    clean = robustcp.cpals(X, 3)
    fits = {
        "least squares": robustcp.cpals(bad, 3),
        "cp, nonnegative": robustcp.cp(bad, 3, nonnegative=True),
    }

    figure, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True, layout="constrained")
    cosines = {}
    for ax, (name, fit) in zip(axes, fits.items(), strict=True):
        factors = matched(fit, clean)
        each = [(A * B).sum(axis=0) for A, B in zip(factors, clean.factors, strict=True)]
        cosines[name] = [float(c.min()) for c in each]
        ax.plot(emission, clean.factors[1], color="0.75", linewidth=4, label="clean data")
        for spectrum, (colour, line, _) in zip(factors[1].T, robustcp.plot.STYLES, strict=True):
            ax.plot(emission, spectrum, line, color=colour, linewidth=1.3, label="bad data")
        ax.set_title(f"{name}: cosine at least {cosines[name][1]:.4f}", fontsize=10)
        ax.set_xlabel("emission, nm")
        ax.spines[["top", "right"]].set_visible(False)
        print(f"{name}: least cosine of samples {cosines[name][0]:.4f}, "
              f"emission {cosines[name][1]:.4f}, excitation {cosines[name][2]:.4f}")  # fmt: skip
    axes[0].set_ylabel("unit spectrum")
    handles, _ = axes[0].get_legend_handles_labels()
    axes[1].legend(
        [handles[0], *handles[3:]],
        ["clean data", *(f"component {r + 1}, bad data" for r in range(3))],
        frameon=False,
    )
    figure.savefig(out, dpi=150)
    plt.close(figure)
    return cosines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", nargs="?", default="fluorescence.png", help="the picture")
    parser.add_argument("--data", help="aminoacids.mat; simulated data if left out")
    parser.add_argument("--small", action="store_true", help="every fourth emission wavelength")
    main(**vars(parser.parse_args()))
