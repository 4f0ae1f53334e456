"""Axes to draw into: those that were passed, or new ones."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def axes_or_new(ax: Axes | None, figsize: tuple[float, float]) -> Axes:
    """The Axes that were passed, or those of a new figure."""
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=figsize, layout="constrained")[1] if ax is None else ax


def grid_or_new(axes: Any, shape: tuple[int, ...], figsize: tuple[float, float]) -> np.ndarray:
    """The array of Axes that was passed, or that of a new figure, in this shape."""
    import matplotlib.pyplot as plt

    if axes is None:
        rows, columns = shape if len(shape) == 2 else (1, *shape)
        made = plt.subplots(rows, columns, figsize=figsize, squeeze=False, layout="constrained")
        return np.reshape(np.asarray(made[1]), shape)
    grid = np.asarray(axes, dtype=object)
    if grid.size != math.prod(shape):
        raise ValueError(f"axes: must be an array of {shape} Axes, got shape {grid.shape}")
    return np.reshape(grid, shape)


def hide_top_and_right(ax: Axes) -> None:
    """Leave only the left and lower edge of the frame."""
    ax.spines[["top", "right"]].set_visible(False)
