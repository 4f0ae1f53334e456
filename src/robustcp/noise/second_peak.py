"""A second peak of residuals: a share of the entries that is shifted by a few standard deviations.

Shifted entries are too near to be outliers, and yet they pull the model to their side. The noise
gets a second Gaussian of the same standard deviation, with its own mean, but only if the residuals
show it: skewed noise has none, nor has noise with long tails.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from robustcp.noise.model import Noise
from robustcp.noise.residuals import Residuals
from robustcp.noise.settings import PEAK_SETTINGS


def add_second_peak(residuals: Residuals, noise: Noise) -> Noise:
    """The same noise with a second peak, if residuals have one; see `fit_two_peaks`."""
    settings, resolution = PEAK_SETTINGS, residuals.resolution
    if noise.known or not noise.sigma > settings.min_steps * resolution.min_sigma:
        return noise
    z = residuals.values / residuals.sigmas_of(noise)
    peaks = fit_two_peaks(z)
    if peaks is None:
        return noise
    sigma, height, shift, floor, clean = peaks
    noise = noise.inflated(sigma)
    return replace(
        noise, above=floor, below=floor, clean=clean, shifted=height, shift=shift / sigma
    )


def fit_two_peaks(z: np.ndarray) -> tuple[float, float, float, float, float] | None:
    """The two peaks of standardised residuals; None if one peak describes them as well.

    That is judged by the logarithms of the counts in a histogram. Noise of one peak, whatever its
    skewness and its tails, with outliers at a distance, has a log density that is first concave and
    then convex on either side; a second peak makes it concave once more.

    Returns
    -------
    The common standard deviation, the height of the second peak relative to the first, the distance
    between them (negative if the second is below), the floor of outliers relative to the first
    peak, and the share of entries in the first peak.
    """
    settings = PEAK_SETTINGS
    counts, edges = np.histogram(
        z, np.arange(-settings.window, settings.window + 1e-9, settings.bin_width)
    )
    x, far = 0.5 * (edges[1:] + edges[:-1]), int(1.5 / settings.bin_width)
    center = x.size // 2
    left, right = int(counts[: center - far].sum()), int(counts[center + far :].sum())
    difference = right - left
    if abs(difference) < settings.min_z_score * math.sqrt(left + right) or (
        abs(difference) < settings.min_asymmetry * z.size
    ):
        return None
    side = math.copysign(1.0, difference)
    if side < 0:
        counts = counts[::-1]
    best = _maximise_likelihood(x, counts)
    weights, first, distance, sigma = best
    share = weights[1] / (weights[0] + weights[1])
    if not (
        settings.min_share < share < settings.max_share
        and settings.min_distance < distance / sigma < settings.max_distance
    ):
        return None
    density = _densities(x, first, distance, sigma) @ weights
    expected = density * counts.sum() / density.sum()
    window = (x > first - 3 * sigma) & (x < first + distance + 3 * sigma) & (counts >= 5)
    one_peak = _misfit_of_one_peak(x[window], counts[window], first)
    observed = counts[window]
    two_peaks = float(np.sum((observed - expected[window]) ** 2 / expected[window]))
    if one_peak - two_peaks < settings.min_evidence or two_peaks > settings.max_misfit * one_peak:
        return None
    peak = weights[0] / (sigma * math.sqrt(2 * math.pi))
    floor = max(float(weights[2:].sum()) / (2 * settings.window) / peak, 1e-4, 1 / z.size)
    clean = float(weights[0]) * counts.sum() / z.size
    return sigma, float(weights[1] / weights[0]), side * distance, floor, clean


def _densities(x: np.ndarray, first: float, distance: float, sigma: float) -> np.ndarray:
    """The densities of the two peaks and of outliers below and above the first."""
    half = 1 / PEAK_SETTINGS.window
    unit = 1 / (sigma * math.sqrt(2 * math.pi))
    peaks = [unit * np.exp(-0.5 * ((x - m) / sigma) ** 2) for m in (first, first + distance)]
    return np.stack([*peaks, half * (x < first), half * (x >= first)], axis=1)


def _maximise_likelihood(
    x: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, float, float, float]:
    """The mixture of two peaks and outliers by EM: its weights, first mean, distance and sigma."""
    best: tuple[float, tuple[np.ndarray, float, float, float]] | None = None
    for distance in PEAK_SETTINGS.initial_distances:
        weights, first, sigma = np.array([0.8, 0.18, 0.01, 0.01]), -0.2, 0.8
        for _ in range(PEAK_SETTINGS.rounds):
            joint = _densities(x, first, distance, sigma) * weights
            total = joint.sum(axis=1) + 1e-300
            shares = joint * (counts / total)[:, None]
            sums = shares.sum(axis=0)
            means = shares.T[:2] @ x / np.maximum(sums[:2], 1e-9)
            old, weights = sigma, sums / counts.sum()
            squares = (x - means[0]) ** 2 @ shares[:, 0] + (x - means[1]) ** 2 @ shares[:, 1]
            sigma = math.sqrt(max(float(squares / (sums[0] + sums[1])), 1e-2))
            first, distance = float(means[0]), float(means[1] - means[0])
            if abs(sigma - old) < 1e-6:
                break
        likelihood = float(counts @ np.log(total))
        if best is None or likelihood > best[0]:
            best = likelihood, (weights, first, distance, sigma)
    assert best is not None
    return best[1]


def _misfit_of_one_peak(x: np.ndarray, counts: np.ndarray, first: float) -> float:
    """Chi-squared of the counts beside the best log density that is concave, then convex.

    On the left, which has no second peak, any density is taken to fit.
    """
    from scipy.optimize import nnls

    root = np.sqrt(counts)
    target, best = np.log(counts) * root, math.inf
    hinges = np.maximum(x[:, None] - x[None, 1:-1], 0.0)
    line = np.stack([np.ones_like(x), -np.ones_like(x), x - first, first - x], axis=1)
    for inflection in range(hinges.shape[1] + 1):
        signs = np.where(np.arange(hinges.shape[1]) < inflection, -1.0, 1.0)
        terms = np.hstack([line, signs * hinges]) * root[:, None]
        best = min(best, nnls(terms, target)[1] ** 2)
    return best
