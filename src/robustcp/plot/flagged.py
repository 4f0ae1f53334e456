"""Flagged entries: their share in each slab, and a map of one slice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from robustcp.plot.axes import axes_or_new, hide_top_and_right
from robustcp.plot.colours import STYLES, diverging
from robustcp.plot.modes import Mode, mode_number
from robustcp.plot.slicing import (
    arrows,
    finite,
    fixed_modes,
    slice_image,
    slice_title,
)
from robustcp.plot.ticks import FEW, index_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from robustcp.outlying import Outliers


def outliers(found: Outliers, mode: Mode = 0, *, ax: Axes | None = None) -> Axes:
    """The percentage of flagged entries in each slab of a mode.

    Parameters
    ----------
    found : Outliers
    mode : int or str
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes
    """
    n = mode_number(found.fit, "mode", mode)
    ax = axes_or_new(ax, (8, 2.8))
    shares = found.slabs[n]
    few = shares.size <= FEW
    ax.bar(np.arange(shares.size), 100 * shares, width=0.8 if few else 1.0, color=STYLES[1][0])
    index_ticks(ax.xaxis, found.fit.labels[n], shares.size)
    ax.set_xlim(-0.6, shares.size - 0.4)
    ax.set_xlabel(found.fit.modes[n])
    ax.set_ylabel("flagged entries, %")
    hide_top_and_right(ax)
    return ax


def outlier_map(
    found: Outliers,
    mode: Mode | Sequence[Mode] = 0,
    index: int | Sequence[int] = 0,
    *,
    ax: Axes | None = None,
) -> Axes:
    """The scores of one slice as an image: pale for clean entries, saturated for flagged ones.

    In greyscale, flagged entries are dark if the data are too low and mid-grey if they are too
    high. Missing entries are hatched. The colour scale ends at three times the threshold.

    Parameters
    ----------
    found : Outliers
    mode, index : int, or a sequence with one for each fixed mode
        Which slice; see `slices`.
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes
    """
    fit = found.fit
    fixed = fixed_modes(fit, mode, index)
    scores = found.scores_of(fixed)
    known = np.abs(finite(scores))
    threshold = found.threshold
    limit = 3 * threshold if math.isfinite(threshold) else known.max(initial=1.0)
    flagged = np.count_nonzero(known > threshold) / max(known.size, 1)
    ax = axes_or_new(ax, (6, 3.8))
    limits = (-limit, limit)
    image = slice_image(ax, fit, scores, fixed, diverging(threshold / limit), limits)
    bar = ax.figure.colorbar(image, ax=ax, extend=arrows(scores, limits))
    bar.set_label("residual, in units of its own noise")
    if math.isfinite(threshold):
        bar.set_ticks([s * threshold for s in range(-3, 4)])
        bar.ax.yaxis.set_major_formatter("{x:.1f}")
    ax.set_title(slice_title(fit, fixed, f"{flagged:.1%} flagged"), fontsize="medium")
    return ax
