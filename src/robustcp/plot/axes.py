"""Axes, new or given, and what all plots draw in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def axes_or_new(ax: Axes | None, figsize: tuple[float, float]) -> Axes:
    """The given Axes, or the Axes of a new figure."""
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=figsize, layout="constrained")[1] if ax is None else ax


def grid_or_new(axes: Any, shape: tuple[int, ...], figsize: tuple[float, float]) -> np.ndarray:
    """The given array of Axes, or the array of a new figure, in a given shape."""
    import matplotlib.pyplot as plt

    if axes is None:
        rows, columns = shape if len(shape) == 2 else (1, *shape)
        subplots = plt.subplots(rows, columns, figsize=figsize, squeeze=False, layout="constrained")
        return np.reshape(np.asarray(subplots[1]), shape)
    grid = np.asarray(axes, dtype=object)
    if grid.size != math.prod(shape):
        raise ValueError(f"axes: must be an array of {shape} Axes, got shape {grid.shape}")
    return np.reshape(grid, shape)


def hide_top_and_right(ax: Axes) -> None:
    """Hide the upper and right edge of the frame."""
    ax.spines[["top", "right"]].set_visible(False)


def draw_zero_line(ax: Axes) -> None:
    """Draw a thin line at zero."""
    ax.axhline(0, color="0.4", linewidth=0.7)


def add_legend(ax: Axes, handles: Sequence[Any], names: Sequence[str], *, own_figure: bool) -> None:
    """Add a legend: above all panels if the figure is new, otherwise in one panel."""
    style: dict[str, Any] = {"frameon": False, "fontsize": "small", "columnspacing": 1.2}
    if own_figure:
        figure: Any = ax.figure
        figure.legend(handles, names, loc="outside upper right", ncols=min(4, len(names)), **style)
    else:
        ax.legend(handles, names, **style)
